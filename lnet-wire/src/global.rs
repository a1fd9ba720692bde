//! The global tunables of a node, with `lnetctl`'s names, ranges and defaults (LNet `api-ni.c`).

use core::fmt;
use core::str::FromStr;

/// A tunable of the whole node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Global {
    /// NUMA distance that counts as near.
    NumaRange,
    /// Most NIs, and most NIDs in an answer to a ping.
    MaxInterfaces,
    /// Whether peers are discovered: 0 or 1.
    Discovery,
    /// Whether what comes by another gateway than the reply's is dropped: 0 or 1.
    DropAsymRoute,
    /// How often a message is sent again.
    RetryCount,
    /// Seconds that a response may take.
    TransactionTimeout,
    /// What a failure takes from health, 0 to 1000.
    HealthSensitivity,
    /// Obsolete, always 1.
    RecoveryInterval,
    /// Least health of a usable gateway, percent.
    RouterSensitivity,
    /// Seconds that an LND may take; follows from others.
    LndTimeout,
    /// Which requests are watched for their response, 0 to 3.
    ResponseTracking,
    /// Seconds after which an unhealthy peer NI is forgotten; 0 is never.
    RecoveryLimit,
    /// Seconds between recovery pings at most.
    MaxRecoveryPingInterval,
}

impl Global {
    /// All of them, in the order in which tools print them.
    pub const ALL: [Self; 13] = [
        Self::NumaRange,
        Self::MaxInterfaces,
        Self::Discovery,
        Self::DropAsymRoute,
        Self::RetryCount,
        Self::TransactionTimeout,
        Self::HealthSensitivity,
        Self::RecoveryInterval,
        Self::RouterSensitivity,
        Self::LndTimeout,
        Self::ResponseTracking,
        Self::RecoveryLimit,
        Self::MaxRecoveryPingInterval,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NumaRange => "numa_range",
            Self::MaxInterfaces => "max_interfaces",
            Self::Discovery => "discovery",
            Self::DropAsymRoute => "drop_asym_route",
            Self::RetryCount => "retry_count",
            Self::TransactionTimeout => "transaction_timeout",
            Self::HealthSensitivity => "health_sensitivity",
            Self::RecoveryInterval => "recovery_interval",
            Self::RouterSensitivity => "router_sensitivity",
            Self::LndTimeout => "lnd_timeout",
            Self::ResponseTracking => "response_tracking",
            Self::RecoveryLimit => "recovery_limit",
            Self::MaxRecoveryPingInterval => "max_recovery_ping_interval",
        }
    }

    /// The value of an untouched kernel node.
    #[must_use]
    pub const fn default_value(self) -> u32 {
        match self {
            Self::NumaRange | Self::DropAsymRoute | Self::RecoveryLimit => 0,
            Self::MaxInterfaces => 4096,
            Self::Discovery | Self::RecoveryInterval => 1,
            Self::RetryCount => 2,
            Self::TransactionTimeout => 150,
            Self::HealthSensitivity | Self::RouterSensitivity => 100,
            Self::LndTimeout => 49,
            Self::ResponseTracking => 3,
            Self::MaxRecoveryPingInterval => 900,
        }
    }

    /// Least and greatest value that makes sense whatever the others are.
    #[must_use]
    pub const fn range(self) -> (u32, u32) {
        match self {
            Self::MaxInterfaces => (16, u32::MAX),
            Self::Discovery | Self::DropAsymRoute => (0, 1),
            Self::HealthSensitivity => (0, 1000),
            Self::RouterSensitivity => (0, 100),
            Self::ResponseTracking => (0, 3),
            Self::TransactionTimeout | Self::MaxRecoveryPingInterval => (1, u32::MAX),
            Self::NumaRange
            | Self::RetryCount
            | Self::RecoveryInterval
            | Self::LndTimeout
            | Self::RecoveryLimit => (0, u32::MAX),
        }
    }

    /// Whether it can be set: one that cannot follows from others or is obsolete, and what documents say
    /// of it is ignored.
    #[must_use]
    pub const fn is_settable(self) -> bool {
        !matches!(self, Self::LndTimeout | Self::RecoveryInterval)
    }
}

impl fmt::Display for Global {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Global {
    type Err = &'static str;

    /// Reads a name; `max_intf` is another one of `max_interfaces`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = if text == "max_intf" { "max_interfaces" } else { text };
        Self::ALL
            .into_iter()
            .find(|global| global.name() == text)
            .ok_or("the name of a global tunable is expected")
    }
}
