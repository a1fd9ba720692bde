//! The thread that prints what an XDP program refuses.

use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::bpf::{BpfError, XdpProgram};

/// How long the last lines may take that were written before the end.
const LAST_LINES: Duration = Duration::from_millis(20);

/// Forwards log lines from the kernel until it is dropped, to the `tracing` subscriber of the thread that
/// started it.
#[derive(Debug)]
pub(super) struct LogThread {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LogThread {
    /// Starts forwarding the lines of a program, which is of the logging kind.
    pub(super) fn start(program: &mut XdpProgram) -> Result<Self, BpfError> {
        let log = program.take_log()?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(BpfError::Log)?;
        let dispatch = tracing::dispatcher::get_default(Clone::clone);
        let (stop, stopped) = oneshot::channel();
        let pump = move || {
            runtime.block_on(async {
                tokio::spawn(async {
                    if let Err(error) = log.pump().await {
                        tracing::error!(%error, "refused frames are no longer logged");
                    }
                });
                // Told to stop, or the node is gone: the same.
                let _ = stopped.await;
                tokio::time::sleep(LAST_LINES).await;
            });
        };
        let thread = std::thread::Builder::new()
            .name("lnet-log".into())
            .spawn(move || tracing::dispatcher::with_default(&dispatch, pump))
            .map_err(BpfError::Log)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by then.
            let _ = thread.join();
        }
    }
}
