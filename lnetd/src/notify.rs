//! Telling a service manager that the daemon is ready (sd_notify(3)).

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use lnet_admin::StartProgress;
use tracing::warn;

/// Microseconds for which a start that waits goes on at least.
const WAITING_US: u32 = 30_000_000;

/// Tells the service manager, if there is one, that all is done, or that the start goes on and what it waits
/// for.
pub(crate) fn tell(progress: &StartProgress) {
    send(state(progress).as_bytes());
}

/// The state of the service: a status stands until the next one, so that who is ready has an empty one.
fn state(progress: &StartProgress) -> String {
    match progress {
        StartProgress::Ready => "READY=1\nSTATUS=".to_owned(),
        StartProgress::Waiting(absent) => {
            let absent = absent.lines().next().unwrap_or_default();
            format!("EXTEND_TIMEOUT_USEC={WAITING_US}\nSTATUS=waits: {absent}")
        }
    }
}

fn send(state: &[u8]) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let told = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state, &address));
    if let Err(error) = told {
        warn!(%error, ?path, "the service manager is not told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ready_waits_for_nothing() {
        let waiting = state(&StartProgress::Waiting("interface eth9\nmore".to_owned()));
        assert_eq!(waiting, "EXTEND_TIMEOUT_USEC=30000000\nSTATUS=waits: interface eth9");
        assert_eq!(state(&StartProgress::Ready), "READY=1\nSTATUS=");
    }
}
