//! The schema of what `--json` prints, `docs/schema/lnetctl-1.json`.
//!
//! In here a key that the schema does not have is a mistake; for others keys may come.

use std::sync::OnceLock;

use jsonschema::Validator;
use serde_json::{Value, json};

fn validator() -> &'static Validator {
    static VALIDATOR: OnceLock<Validator> = OnceLock::new();
    VALIDATOR.get_or_init(|| {
        let mut schema = serde_json::from_str(include_str!("../../../docs/schema/lnetctl-1.json")).unwrap();
        jsonschema::meta::validate(&schema).unwrap();
        close(&mut schema);
        jsonschema::validator_for(&schema).unwrap()
    })
}

/// Has objects take no keys but those that they name.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(entries) => {
            entries.values_mut().for_each(close);
            if entries.contains_key("properties") && entries.get("type") == Some(&json!("object")) {
                entries.insert("additionalProperties".to_owned(), json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// Each line of the text has to be as the schema says.
#[track_caller]
pub(crate) fn check(text: &str) {
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let errors: Vec<_> = ["document", "frames", "load"].iter().map(|name| told(name, &value)).collect();
        assert!(validator().is_valid(&value), "{line}\n{errors:#?}");
    }
}

/// Mistakes of a value as one of these.
fn told(name: &str, value: &Value) -> Vec<String> {
    let mut schema: Value =
        serde_json::from_str(include_str!("../../../docs/schema/lnetctl-1.json")).unwrap();
    close(&mut schema);
    schema.as_object_mut().unwrap().remove("anyOf");
    schema["$ref"] = json!(format!("#/$defs/{name}"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[test]
fn what_the_schema_does_not_have_is_found() {
    check("{}\n{\"change\":{\"at_ms\":1,\"of\":\"a\",\"from\":null,\"to\":\"b\"}}\n");
    for wrong in [
        json!({"frob": 1}),
        json!({"net": [{"net type": 1}]}),
        json!({"net": [{"net type": "tcp", "frob": 1}]}),
        json!({"change": {"of": "a"}}),
        json!([{"role": 1}]),
        json!("net"),
    ] {
        assert!(!validator().is_valid(&wrong), "{wrong}");
    }
}
