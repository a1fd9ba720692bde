//! The log: lines on standard error. Who logs never waits for one, and none can end the daemon.
//!
//! Invariant: a thread of its own writes. A line that finds no room, or that cannot be written (a full file
//! system, a pipe whose reader has gone), is counted, and the count stands before the next line that can be.

use std::fmt::{self, Debug};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lnet_model::pattern::escaped;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Lines that wait for the writer at most.
const WAITING_MAX: usize = 4096;
/// How long the daemon's end waits for lines that are not written yet.
const END_PATIENCE: Duration = Duration::from_secs(1);
/// How often the end looks whether they are.
const END_INTERVAL: Duration = Duration::from_millis(2);

/// The running log. Its end waits a while for what is not written yet.
#[derive(Debug)]
pub(crate) struct Log(Arc<Lines>);

impl Log {
    /// Has what the filter lets pass written to standard error from now on.
    ///
    /// # Errors
    ///
    /// A filter that is none, or no thread.
    pub(crate) fn start(filter: &str) -> Result<Self> {
        let filter = EnvFilter::try_new(filter).with_context(|| {
            format!("--log {filter:?}: a filter such as `info` or `warn,lnet_user=debug` is expected")
        })?;
        let log = Self(Lines::over(io::stderr())?);
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(io::stderr().is_terminal())
            .with_writer(Arc::clone(&log.0))
            .fmt_fields(debug_fn(put_field).delimited(" "))
            .log_internal_errors(false)
            .init();
        Ok(log)
    }
}

/// Puts a field into a line. What others have said, such as the name of a session, can neither end the line
/// nor act on a terminal.
fn put_field(to: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let value = escaped(&format!("{value:?}"));
    match field.name() {
        "message" => to.write_str(&value),
        name => write!(to, "{name}={value}"),
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let deadline = Instant::now() + END_PATIENCE;
        while self.0.waiting.load(Ordering::Acquire) != 0 && Instant::now() < deadline {
            thread::sleep(END_INTERVAL);
        }
    }
}

/// Writes the last line of a daemon that fails. The end waits a while for it, as for the log.
pub(crate) fn say_last(line: String) {
    let (done, written) = sync_channel(1);
    let write = move || {
        // Nothing is left to do where this cannot be written either.
        let _ = writeln!(io::stderr(), "{line}");
        let _ = done.send(());
    };
    if thread::Builder::new().spawn(write).is_ok() {
        let _ = written.recv_timeout(END_PATIENCE);
    }
}

/// Lines on their way to the thread that writes them. Each `write` takes one line.
#[derive(Debug)]
struct Lines {
    writer: SyncSender<Vec<u8>>,
    waiting: AtomicU64,
    lost: AtomicU64,
}

impl Lines {
    /// Lines that a new thread writes there.
    fn over(to: impl Write + Send + 'static) -> Result<Arc<Self>> {
        let (writer, lines) = sync_channel(WAITING_MAX);
        let own = Arc::new(Self { writer, waiting: AtomicU64::new(0), lost: AtomicU64::new(0) });
        let written = Arc::clone(&own);
        let thread = thread::Builder::new().name("lnet-log".to_owned());
        thread.spawn(move || written.put_down(&lines, to)).context("the thread that writes the log")?;
        Ok(own)
    }

    fn put_down(&self, lines: &Receiver<Vec<u8>>, mut to: impl Write) {
        let mut is_broken = false;
        while let Ok(line) = lines.recv() {
            let lost = self.lost.load(Ordering::Relaxed);
            // A line that failed may have left its beginning.
            let end = if is_broken { "\n" } else { "" };
            let note = match lost {
                0 => String::new(),
                lost => format!("{end}lines of this log that were lost: {lost}\n"),
            };
            let (taken, done) = match to.write_all(note.as_bytes()) {
                Ok(()) => (lost, to.write_all(&line)),
                Err(error) => (0, Err(error)),
            };
            is_broken = done.is_err();
            self.lost.fetch_sub(taken, Ordering::Relaxed);
            self.lost.fetch_add(u64::from(is_broken), Ordering::Relaxed);
            self.waiting.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.writer.try_send(line.to_vec()).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A file system that is full for so many writes.
    #[derive(Clone)]
    struct Full(Arc<Mutex<(u32, Vec<u8>)>>);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut own = self.0.lock().unwrap();
            if own.0 != 0 {
                own.0 -= 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            own.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(full_for: u32, lines: u32) -> String {
        let file = Full(Arc::new(Mutex::new((full_for, Vec::new()))));
        let log = Log(Lines::over(file.clone()).unwrap());
        for number in 0..lines {
            assert_eq!((&*log.0).write(format!("line {number}\n").as_bytes()).unwrap(), 7);
        }
        drop(log);
        String::from_utf8(file.0.lock().unwrap().1.clone()).unwrap()
    }

    #[test]
    fn lost_lines_are_told_when_one_can_be_written_again() {
        assert_eq!(written(0, 2), "line 0\nline 1\n");
        assert_eq!(written(3, 5), "\nlines of this log that were lost: 3\nline 3\nline 4\n");
        assert_eq!(written(9, 3), "");
    }

    #[test]
    fn foreign_texts_end_no_line() {
        let file = Full(Arc::new(Mutex::new((0, Vec::new()))));
        let log = Log(Lines::over(file.clone()).unwrap());
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_writer(Arc::clone(&log.0))
            .fmt_fields(debug_fn(put_field).delimited(" "))
            .finish();
        let name = "a\nINFO lnetd: \u{1b}[2J";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(name = %name, other = name, number = 7, "told {name}");
        });
        drop(log);
        let said = String::from_utf8(file.0.lock().unwrap().1.clone()).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            !said.contains('\u{1b}') && said.contains("told a\\nINFO") && said.contains(" number=7"),
            "{said}"
        );
    }

    #[test]
    fn who_logs_never_waits() {
        /// Takes nothing until the other end is dropped.
        struct Stuck(Receiver<()>);
        impl Write for Stuck {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let _ = self.0.recv();
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (go_on, stuck) = sync_channel(0);
        let log = Log(Lines::over(Stuck(stuck)).unwrap());
        for _ in 0..2 * WAITING_MAX {
            (&*log.0).write_all(b"a line\n").unwrap();
        }
        let lost = log.0.lost.load(Ordering::Relaxed);
        // The writer may have taken one off the queue.
        assert!((WAITING_MAX - 1..=WAITING_MAX).contains(&(lost as usize)), "{lost}");
        drop(go_on);
        drop(log);
    }
}
