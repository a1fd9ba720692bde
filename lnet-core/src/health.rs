//! Health statuses: how an LND judges the way that a message ended (LNet `lib-types.h: enum
//! lnet_msg_hstatus`), names and numbers.

use lnet_wire::named;

use crate::lnd::{Cause, Status};

named! {
    /// How a message ended badly, in the terms of health.
    HealthStatus {
        /// The local interface was interrupted.
        LocalInterrupt = 1 => "local_interrupt",
        /// The local interface dropped it.
        LocalDropped = 2 => "local_dropped",
        /// The local interface aborted it.
        LocalAborted = 3 => "local_aborted",
        /// The local interface has no route to the peer.
        LocalNoRoute = 4 => "local_no_route",
        /// The local interface failed.
        LocalError = 5 => "local_error",
        /// It timed out before it left.
        LocalTimeout = 6 => "local_timeout",
        /// The peer interface failed.
        RemoteError = 7 => "remote_error",
        /// The peer interface dropped it.
        RemoteDropped = 8 => "remote_dropped",
        /// The peer interface did not answer in time.
        RemoteTimeout = 9 => "remote_timeout",
        /// It timed out, at an unknown point.
        NetworkTimeout = 10 => "network_timeout",
    }
}

impl HealthStatus {
    /// How health judges the end of a message (LNet `lib-move.c`, `socklnd_cb.c: ksocknal_txlist_done`);
    /// `None` for a good one, for one that this node did not want any more, and for one that
    /// no path was chosen for yet.
    #[must_use]
    pub const fn of(status: Status) -> Option<Self> {
        Some(match status {
            Status::Ok
            | Status::NeverSent(Cause::Cancelled | Cause::Undiscovered(_))
            | Status::Unknown(Cause::Cancelled | Cause::Undiscovered(_)) => return None,
            Status::NeverSent(Cause::Simulated(status)) | Status::Unknown(Cause::Simulated(status)) => status,
            Status::NeverSent(Cause::CreditTimeout)
            | Status::Unknown(Cause::Timeout | Cause::CreditTimeout) => Self::NetworkTimeout,
            Status::NeverSent(Cause::Timeout) => Self::LocalTimeout,
            Status::NeverSent(Cause::Unreachable) => Self::LocalNoRoute,
            // The device has refused it, or is gone.
            Status::NeverSent(Cause::Device) => Self::LocalDropped,
            Status::NeverSent(_) => Self::LocalError,
            Status::Unknown(Cause::Device) => Self::RemoteDropped,
            Status::Unknown(_) => Self::RemoteError,
        })
    }

    /// Whether the local interface loses health (LNet `lib-msg.c: lnet_health_check`).
    #[must_use]
    pub const fn blames_local(self) -> bool {
        !matches!(self, Self::RemoteError | Self::RemoteDropped | Self::RemoteTimeout)
    }

    /// Whether the peer interface does, likewise.
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

    #[test]
    fn ends_are_judged() {
        assert_eq!(HealthStatus::of(Status::Ok), None);
        assert_eq!(HealthStatus::of(Status::NeverSent(Cause::Cancelled)), None);
        assert_eq!(HealthStatus::of(Status::NeverSent(Cause::Undiscovered(110))), None);
        assert_eq!(HealthStatus::of(Status::NeverSent(Cause::Unreachable)), Some(HealthStatus::LocalNoRoute));
        assert_eq!(HealthStatus::of(Status::NeverSent(Cause::TooLong)), Some(HealthStatus::LocalError));
        assert_eq!(HealthStatus::of(Status::NeverSent(Cause::Device)), Some(HealthStatus::LocalDropped));
        assert_eq!(HealthStatus::of(Status::NeverSent(Cause::Timeout)), Some(HealthStatus::LocalTimeout));
        for status in [Status::Unknown(Cause::Timeout), Status::NeverSent(Cause::CreditTimeout)] {
            assert_eq!(HealthStatus::of(status), Some(HealthStatus::NetworkTimeout));
        }
        assert_eq!(HealthStatus::of(Status::Unknown(Cause::Reset)), Some(HealthStatus::RemoteError));
        for status in HealthStatus::ALL {
            let cause = Cause::Simulated(status);
            for end in [Status::NeverSent(cause), Status::Unknown(cause)] {
                assert_eq!(HealthStatus::of(end), Some(status));
            }
        }
    }

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
