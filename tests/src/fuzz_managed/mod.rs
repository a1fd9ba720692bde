//! Administration by any user: documents for the tool, and requests at the daemon's control socket.

use lnet_control::ControlRequest;
use lnet_control::document::{self, Instruction, Mode, Position};
use lnet_control::legacy::{LegacyKind, LegacyText, module_options, string};
use lnet_control::protocol::{self, HEADER_BYTES, ProtocolError, REQUEST_BYTES_MAX};
use lnet_model::request::{Change, ChangeSet};
use serde_json::Value;

/// A YAML document: it is understood or refused whole, each mistake with a place in it; the changes that it
/// asks for are those that the daemon reads.
pub fn document(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    // The end of a text whose last line has no end of its own is the beginning of the line behind it.
    let lines = 2 + text.matches(['\n', '\r']).count();
    let check = |position: Position| {
        assert!((1..=lines).contains(&position.line), "{position} of {lines} lines");
        assert!(position.column >= 1, "{position}");
    };
    strings(text);
    for mode in [Mode::Add, Mode::Delete, Mode::Execute, Mode::Show] {
        match document::parse(text, mode) {
            Ok(document) => {
                document.items.iter().for_each(|item| check(item.position));
                let changes = document.items.into_iter().filter_map(|item| match item.action {
                    Instruction::Change(change) => Some(*change),
                    _ => None,
                });
                check_changes(changes.collect());
            }
            Err(errors) => {
                assert!(!errors.is_empty() && errors.is_sorted_by_key(|error| error.position));
                for error in errors {
                    check(error.position);
                    assert!(!error.message.is_empty());
                }
            }
        }
    }
}

/// A text as the strings of LNet's kernel module: each is understood or refused whole, and what is read is
/// printed as it is read again.
fn strings(text: &str) {
    let options = module_options(text).into_iter().map(|option| option.value);
    for text in options.chain([LegacyText::new(text)]) {
        for kind in LegacyKind::ALL {
            let Ok(legacy) = kind.read(&text) else { continue };
            let printed = string(kind, &legacy);
            let again = kind.read(&LegacyText::new(&printed)).expect("what was printed");
            assert_eq!(string(kind, &again), printed);
        }
    }
}

/// Changes come to the daemon as they were meant.
fn check_changes(changes: Vec<Change>) {
    let request = ControlRequest::Apply(ChangeSet { changes, dry_run: false, generation: None });
    match protocol::encode(&request, REQUEST_BYTES_MAX) {
        Ok(message) => check_message(&message, &request),
        Err(ProtocolError::Length { length, limit }) => assert!(length > limit),
        Err(error) => panic!("{error} of {request:?}"),
    }
}

fn check_message(message: &[u8], request: &ControlRequest) {
    let (header, json) = message.split_first_chunk::<HEADER_BYTES>().expect("a header");
    assert_eq!(protocol::read_header(header, REQUEST_BYTES_MAX).expect("our header"), json.len());
    assert_eq!(&protocol::decode::<ControlRequest>(json).expect("our request"), request);
}

/// A message at the control socket: what can be read is written, and read again to the same request.
pub fn request(input: &[u8]) {
    let Some((header, json)) = input.split_first_chunk::<HEADER_BYTES>() else { return };
    match protocol::read_header(header, REQUEST_BYTES_MAX) {
        Ok(length) => assert!(length <= REQUEST_BYTES_MAX && header.starts_with(&protocol::MAGIC)),
        Err(error) => return assert!(!error.to_string().is_empty()),
    }
    let request = match protocol::decode::<ControlRequest>(json) {
        Ok(request) => request,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    // A fraction may be read as one of its neighbours.
    if serde_json::from_slice(json).is_ok_and(|value| !has_fraction(&value)) {
        check_message(&protocol::encode(&request, usize::MAX).expect("what was read"), &request);
    }
}

fn has_fraction(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(values) => values.iter().any(has_fraction),
        Value::Object(values) => values.values().any(has_fraction),
        _ => false,
    }
}
