//! QEMU's monitor (its machine protocol, QMP), by which a machine loses a cable or a card.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// How long QEMU may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The monitor of a machine.
pub(super) struct Monitor(BufReader<UnixStream>);

impl Monitor {
    /// A monitor that takes commands.
    ///
    /// # Errors
    /// When QEMU does not answer.
    pub(super) fn open(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        let mut monitor = Self(BufReader::new(stream));
        monitor.execute("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    /// Plugs the cable of a card in, or pulls it.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub(super) fn plug(&mut self, card: u8, is_in: bool) -> Result<()> {
        self.execute("set_link", &json!({"name": format!("card{card}"), "up": is_in}))
    }

    /// Takes a card out of the machine.
    ///
    /// # Errors
    /// When QEMU refuses.
    pub(super) fn unplug(&mut self, card: u8) -> Result<()> {
        self.execute("device_del", &json!({"id": format!("card{card}")}))
    }

    fn execute(&mut self, command: &str, arguments: &Value) -> Result<()> {
        let request = json!({"execute": command, "arguments": arguments});
        self.0.get_ref().write_all(format!("{request}\n").as_bytes())?;
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).with_context(|| format!("no answer to {request}"))?;
            // Lines without an answer are greetings and events.
            let answer: Value = serde_json::from_str(&line).with_context(|| format!("{line:?}"))?;
            if !answer["error"].is_null() {
                bail!("{request}: {}", answer["error"]);
            }
            if !answer["return"].is_null() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_passed_over_and_refusals_told() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs
            .write_all(
                b"{\"QMP\":{}}\n{\"return\":{}}\n{\"event\":\"RESET\"}\n{\"return\":{}}\n\
                  {\"error\":{\"desc\":\"Device 'card9' not found\"}}\n",
            )
            .unwrap();
        let mut monitor = Monitor::open(ours).unwrap();
        monitor.plug(0, false).unwrap();
        let error = monitor.unplug(9).unwrap_err().to_string();
        assert!(error.contains("card9' not found"), "{error}");
        drop(theirs);
        monitor.plug(0, true).unwrap_err();
    }
}
