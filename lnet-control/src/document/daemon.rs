//! The block `daemon`: options of a daemon's command line, which it has at its start.

use super::tree::{self, Marked, Value};
use super::{DocumentError, Position};

/// An option that a document sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DaemonOption {
    /// Where it stands.
    pub position: Position,
    /// Its name, with dashes.
    pub name: String,
    /// Its values: several where a list has them, `NAME=VALUE` where a map has.
    pub values: Vec<String>,
}

/// The options that the block `daemon` of a document sets, in their order.
///
/// # Errors
/// Mistakes of the document, and values that no option has.
pub fn daemon_options(text: &str) -> Result<Vec<DaemonOption>, Vec<DocumentError>> {
    let root = tree::load(text).map_err(|error| vec![error])?;
    let Some(Marked { value: Value::Map(blocks), .. }) = root else { return Ok(Vec::new()) };
    let Some(block) = blocks.iter().find(|block| block.key == "daemon") else { return Ok(Vec::new()) };
    let entries = match &block.value.value {
        Value::Map(entries) => entries.as_slice(),
        _ if block.value.is_blank() => &[],
        _ => {
            let message = format!("{} for 'daemon': a map of options is expected", block.value.describe());
            return Err(vec![DocumentError::new(block.value.position, message)]);
        }
    };
    let (mut options, mut errors) = (Vec::new(), Vec::new());
    for entry in entries.iter().filter(|entry| !entry.value.is_null()) {
        match values(&entry.value) {
            Some(values) => {
                let name = entry.key.replace('_', "-");
                options.push(DaemonOption { position: entry.position, name, values });
            }
            None => {
                let message = format!("'{}': a value, or a list or map of values is expected", entry.key);
                errors.push(DocumentError::new(entry.value.position, message));
            }
        }
    }
    if errors.is_empty() { Ok(options) } else { Err(errors) }
}

fn values(value: &Marked) -> Option<Vec<String>> {
    let text = |value: &Marked| match &value.value {
        Value::Scalar { text, .. } => Some(text.clone()),
        _ => None,
    };
    match &value.value {
        Value::Scalar { text, .. } => Some(vec![text.clone()]),
        Value::Sequence(items) => items.iter().map(text).collect(),
        Value::Map(entries) => {
            let set = |entry: &tree::MapEntry| Some(format!("{}={}", entry.key, text(&entry.value)?));
            entries.iter().map(set).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_in_a_block() {
        let text = "net:\ndaemon:\n  shards: 2\n  cpus: 4-5\n  peer_memory: 72M\n  log:\n  selftest: true\n  limit: \
                    {nis: 64, events: 0x4000}\n  param: [a=1, b=2]\n";
        let options = daemon_options(text).unwrap();
        let told: Vec<_> =
            options.iter().map(|one| format!("{} {}", one.name, one.values.join(" "))).collect();
        assert_eq!(
            told,
            [
                "shards 2",
                "cpus 4-5",
                "peer-memory 72M",
                "selftest true",
                "limit nis=64 events=0x4000",
                "param a=1 b=2"
            ]
        );
        assert_eq!((options[2].position.line, options[2].position.column), (5, 3));
        for text in ["", "# nothing\n", "net:\n", "daemon:\n", "daemon: {}\n"] {
            assert_eq!(daemon_options(text), Ok(Vec::new()), "{text}");
        }
        let error = |text| daemon_options(text).unwrap_err()[0].to_string();
        assert_eq!(
            error("daemon: 3\n"),
            "line 1, column 9: \"3\" for 'daemon': a map of options is expected"
        );
        assert_eq!(
            error("daemon:\n  cpus: [[1]]\n"),
            "line 2, column 9: 'cpus': a value, or a list or map of values is expected"
        );
    }
}
