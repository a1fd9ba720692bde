//! Log lines of the XDP program, forwarded to `tracing`.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use aya::Ebpf;
use aya_log::EbpfLogger;
use lnet_wire::packet::Reason;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::error::{BpfError, chain};

/// Takes the log lines of a loaded program out of the kernel and makes `tracing` events of them, at level
/// WARN with target `lnet_xdp` and the fields `queue`, `reason` and `source`.
///
/// Lines that are not read are lost once the kernel's buffer of 128 KiB is full; the program runs on.
pub struct LogPump {
    logger: EbpfLogger<ToTracing>,
}

impl std::fmt::Debug for LogPump {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LogPump").finish_non_exhaustive()
    }
}

impl LogPump {
    pub(super) fn new(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        match EbpfLogger::init_with_logger(ebpf, ToTracing) {
            Ok(logger) => Ok(Self { logger }),
            Err(aya_log::Error::MapNotFound) => Err(BpfError::LogTaken),
            Err(error) => Err(BpfError::Log(std::io::Error::other(chain(&error)))),
        }
    }

    /// Forwards the lines that are there.
    pub fn flush(&mut self) {
        self.logger.flush();
    }

    /// Forwards lines as they come, until the future is dropped. Runs on a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// [`BpfError::Log`] when the runtime cannot watch the buffer.
    #[allow(
        deprecated,
        reason = "the successor is unsafe for types whose descriptor might change; the logger's does not"
    )]
    pub async fn pump(self) -> Result<(), BpfError> {
        let mut watched = AsyncFd::with_interest(self, Interest::READABLE).map_err(BpfError::Log)?;
        loop {
            let mut ready = watched.readable_mut().await.map_err(BpfError::Log)?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}

impl AsRawFd for LogPump {
    fn as_raw_fd(&self) -> RawFd {
        self.logger.as_fd().as_raw_fd()
    }
}

/// What aya-log hands its lines to.
struct ToTracing;

impl log::Log for ToTracing {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = record.args().to_string();
        match parse(&line) {
            Some((queue, reason, source)) => {
                tracing::warn!(target: "lnet_xdp", queue, ?reason, source, "frame passed up");
            }
            None => tracing::warn!(target: "lnet_xdp", "{line}"),
        }
    }

    fn flush(&self) {}
}

/// Queue, reason and source address, as `lnet-ebpf` writes them.
fn parse(line: &str) -> Option<(u32, Reason, String)> {
    let mut words = line.split_whitespace();
    let queue = words.next()?.parse().ok()?;
    let reason = *Reason::ALL.get(words.next()?.parse::<usize>().ok()?)?;
    let source: std::net::Ipv6Addr = words.next()?.parse().ok()?;
    words.next().is_none().then(|| (queue, reason, source.to_canonical().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let line = parse("3 5 ::ffff:10.0.0.1");
        assert_eq!(line, Some((3, Reason::BadMagic, "10.0.0.1".to_owned())));
        assert_eq!(parse("0 11 fd00::1"), Some((0, Reason::NoSocket, "fd00::1".to_owned())));
        for line in ["", "x 5 ::1", "3 99 ::1", "3 5", "3 5 here", "3 5 ::1 more"] {
            assert_eq!(parse(line), None, "{line:?}");
        }
    }
}
