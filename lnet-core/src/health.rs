//! Health statuses: how the end of a message is judged (LNet `lib-types.h: enum
//! lnet_msg_hstatus`), names and numbers.

use lnet_wire::named;

named! {
    /// How a message ended badly, in the terms of health.
    HealthStatus {
        /// The local NI was interrupted.
        LocalInterrupt = 1 => "local_interrupt",
        /// The local NI dropped it.
        LocalDropped = 2 => "local_dropped",
        /// The local NI aborted it.
        LocalAborted = 3 => "local_aborted",
        /// The local NI has no route to the peer.
        LocalNoRoute = 4 => "local_no_route",
        /// The local NI failed.
        LocalError = 5 => "local_error",
        /// The message timed out before it left.
        LocalTimeout = 6 => "local_timeout",
        /// The peer NI failed.
        RemoteError = 7 => "remote_error",
        /// The peer NI dropped it.
        RemoteDropped = 8 => "remote_dropped",
        /// The peer NI did not answer in time.
        RemoteTimeout = 9 => "remote_timeout",
        /// The message timed out, at an unknown point.
        NetworkTimeout = 10 => "network_timeout",
    }
}

impl HealthStatus {
    /// Whether the local NI loses health (LNet `lib-msg.c: lnet_health_check`).
    #[must_use]
    pub const fn blames_local(self) -> bool {
        !matches!(self, Self::RemoteError | Self::RemoteDropped | Self::RemoteTimeout)
    }

    /// Whether the peer NI does, likewise.
    #[must_use]
    pub const fn blames_peer(self) -> bool {
        matches!(self, Self::RemoteError | Self::RemoteDropped | Self::RemoteTimeout | Self::NetworkTimeout)
    }

    /// Whether a message that ended so may go by another path, if it never left by this one (LNet `lib-msg.c:
    /// lnet_health_check`).
    #[must_use]
    pub const fn allows_another_path(self) -> bool {
        matches!(
            self,
            Self::LocalInterrupt
                | Self::LocalDropped
                | Self::LocalAborted
                | Self::LocalNoRoute
                | Self::LocalTimeout
                | Self::RemoteDropped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status, whether the local and the peer NI lose health, whether it may be sent again: all of LNet's
    /// table.
    #[test]
    fn each_status_has_its_consequences() {
        use HealthStatus::{
            LocalAborted, LocalDropped, LocalError, LocalInterrupt, LocalNoRoute, LocalTimeout,
            NetworkTimeout, RemoteDropped, RemoteError, RemoteTimeout,
        };
        let table = [
            (LocalInterrupt, true, false, true),
            (LocalDropped, true, false, true),
            (LocalAborted, true, false, true),
            (LocalNoRoute, true, false, true),
            (LocalError, true, false, false),
            (LocalTimeout, true, false, true),
            (RemoteError, false, true, false),
            (RemoteDropped, false, true, true),
            (RemoteTimeout, false, true, false),
            (NetworkTimeout, true, true, false),
        ];
        assert_eq!(table.map(|(status, ..)| status), HealthStatus::ALL);
        for (status, local, peer, resent) in table {
            let found = (status.blames_local(), status.blames_peer(), status.allows_another_path());
            assert_eq!(found, (local, peer, resent), "{status}");
        }
    }

    #[test]
    fn numbers_count_from_one() {
        for (position, status) in HealthStatus::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, position + 1);
        }
    }
}
