//! What an operator may set for the whole node, with LNet's names and defaults.

use core::time::Duration;

use lnet_model::lnd::KERNEL_NET;

/// Which requests are watched until their response comes (`lnet_response_tracking`).
///
/// A descriptor's [`MdOptions::TRACK_RESPONSE`] and [`MdOptions::NO_TRACK_RESPONSE`] go before it.
///
/// [`MdOptions::TRACK_RESPONSE`]: crate::md::MdOptions::TRACK_RESPONSE
/// [`MdOptions::NO_TRACK_RESPONSE`]: crate::md::MdOptions::NO_TRACK_RESPONSE
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum ResponseTracking {
    /// No requests.
    None = 0,
    /// GETs.
    Get = 1,
    /// PUTs that are to be acknowledged.
    Put = 2,
    /// Both.
    #[default]
    Both = 3,
}

impl ResponseTracking {
    /// The one with this number, if there is one.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::None,
            1 => Self::Get,
            2 => Self::Put,
            3 => Self::Both,
            _ => return None,
        })
    }
}

/// The tunables of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunables {
    /// How long the response to a request may take (`lnet_transaction_timeout`).
    pub transaction_timeout: Duration,
    /// Which requests are watched for it.
    pub response_tracking: ResponseTracking,
    /// How often a message is sent anew by other NIs (`lnet_retry_count`).
    pub retry_count: u32,
    /// Whether a message for this node is dropped that comes by a gateway without a route back by that
    /// (`lnet_drop_asym_route`).
    pub drops_asymmetric: bool,
}

impl Tunables {
    /// What [`Tunables::default`] returns.
    pub const DEFAULT: Self = Self {
        transaction_timeout: Duration::from_secs(150),
        response_tracking: ResponseTracking::Both,
        retry_count: 2,
        drops_asymmetric: false,
    };
}

impl Default for Tunables {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Tunables of a net.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NetTunables {
    /// Seconds without a sign of life after which a peer is taken for dead; 0 is never.
    pub peer_timeout_s: u32,
    /// Messages that may be in flight to a peer.
    pub peer_credits: u32,
    /// Messages of a peer that may be forwarded at once; 0 is as many as `peer_credits`.
    pub peer_buffer_credits: u32,
    /// Messages that an NI may have in flight.
    pub credits: u32,
}

impl NetTunables {
    /// Defaults of nets of kernel nodes.
    pub const LNET: Self = Self::of(KERNEL_NET);

    /// The tunables of these values, in the order of the fields.
    #[must_use]
    pub const fn of([peer_timeout_s, peer_credits, peer_buffer_credits, credits]: [u32; 4]) -> Self {
        Self { peer_timeout_s, peer_credits, peer_buffer_credits, credits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_lnet() {
        for value in 0..4 {
            assert_eq!(ResponseTracking::from_number(value).map(|mode| mode as u32), Some(value));
        }
        assert_eq!(ResponseTracking::from_number(4), None);
    }
}
