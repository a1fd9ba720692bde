//! What an operator may set for the whole node, with LNet's names and defaults.

use core::fmt;
use core::time::Duration;

/// Which requests are watched until their response comes (`lnet_response_tracking`).
///
/// A descriptor's [`MdOptions::TRACK_RESPONSE`] and [`MdOptions::NO_TRACK_RESPONSE`] go before it.
///
/// [`MdOptions::TRACK_RESPONSE`]: crate::md::MdOptions::TRACK_RESPONSE
/// [`MdOptions::NO_TRACK_RESPONSE`]: crate::md::MdOptions::NO_TRACK_RESPONSE
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum ResponseTracking {
    /// None of them.
    None = 0,
    /// GETs.
    Get = 1,
    /// PUTs that are to be acknowledged.
    Put = 2,
    /// Both.
    #[default]
    Both = 3,
}

/// A number that is no [`ResponseTracking`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownTracking(pub u32);

impl fmt::Display for UnknownTracking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "response tracking {}: 0 (none), 1 (get), 2 (put) or 3 (both) is expected", self.0)
    }
}

impl core::error::Error for UnknownTracking {}

impl TryFrom<u32> for ResponseTracking {
    type Error = UnknownTracking;

    fn try_from(value: u32) -> Result<Self, UnknownTracking> {
        match value {
            0 => Ok(Self::None),
            1 => Ok(Self::Get),
            2 => Ok(Self::Put),
            3 => Ok(Self::Both),
            other => Err(UnknownTracking(other)),
        }
    }
}

/// The tunables of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunables {
    /// How long the response to a request may take (`lnet_transaction_timeout`).
    pub transaction_timeout: Duration,
    /// Which requests are watched for it.
    pub response_tracking: ResponseTracking,
    /// How often a message is sent anew by other interfaces (`lnet_retry_count`).
    pub retry_count: u32,
}

impl Tunables {
    /// What [`Tunables::default`] returns.
    pub const DEFAULT: Self = Self {
        transaction_timeout: Duration::from_secs(150),
        response_tracking: ResponseTracking::Both,
        retry_count: 2,
    };
}

impl Default for Tunables {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn numbers_are_those_of_lnet() {
        for value in 0..4 {
            assert_eq!(ResponseTracking::try_from(value).map(|mode| mode as u32), Ok(value));
        }
        let error = ResponseTracking::try_from(4).unwrap_err();
        assert!(error.to_string().starts_with("response tracking 4: 0 (none)"), "{error}");
    }
}
