//! SIGTERM and SIGINT, which end the daemon, and those that do not: after SIGHUP the start-up is read again,
//! after SIGXFSZ the write that was too long for a limit fails as on a full disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use lnet_admin::Signals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::SignalOnly;
use tokio::sync::{mpsc, oneshot};
use tracing::info;

/// The status that the shell gives a process that a signal has ended: 128 and the signal's number.
const SIGNALLED: i32 = 128;

/// Ready with the first signal once `is_ready` says that a task waits for it; before, the first one ends the
/// process, and so does any second one.
pub(crate) fn signals(is_ready: Arc<AtomicBool>) -> Result<Signals<impl Future<Output = ()>>> {
    let mut signals =
        SignalsInfo::<SignalOnly>::new([SIGTERM, SIGINT, SIGHUP, SIGXFSZ]).context("cannot catch signals")?;
    let (first, stop) = oneshot::channel();
    let (reloads, reload) = mpsc::unbounded_channel();
    let mut first = Some(first);
    let wait = move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                info!("SIGHUP: the start-up is read again");
                // The receiver is gone if the daemon is about to end anyway.
                let _ = reloads.send(());
                continue;
            }
            if signal == SIGXFSZ {
                // No line tells of it: it may be the log that is too long. Lines that are lost are counted.
                continue;
            }
            match first.take().filter(|_| is_ready.load(Ordering::Acquire)) {
                // The receiver is gone if the daemon is about to end anyway.
                Some(first) => drop(first.send(())),
                None => std::process::exit(SIGNALLED + signal),
            }
        }
    };
    thread::Builder::new().name("lnetd-signals".into()).spawn(wait).context("cannot start a thread")?;
    let stop = async {
        if stop.await.is_err() {
            std::future::pending().await
        }
    };
    Ok(Signals { stop, reload })
}
