//! The global tunables of a node, with `lnetctl`'s names, ranges and defaults (LNet `api-ni.c`).

use core::fmt;
use core::time::Duration;

use crate::tunables::{ResponseTracking, Tunables};

/// The name of a global tunable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Setting {
    /// NUMA distance tolerated in selection; without effect.
    NumaRange,
    /// Most local interfaces, `lo` included; what is less than 16 becomes 4096.
    MaxInterfaces,
    /// Whether peers are discovered, 0 or 1; any other number is 1.
    Discovery,
    /// Whether messages are dropped that come by a router that the answer would not go by; as above.
    DropAsymRoute,
    /// How often a message is sent again.
    RetryCount,
    /// Seconds that the response to a request may take.
    TransactionTimeout,
    /// What a failure takes off an interface's health, 0 to 1000.
    HealthSensitivity,
    /// Obsolete: anything is accepted, 1 is kept.
    RecoveryInterval,
    /// Least health of a router's interface, in percent.
    RouterSensitivity,
    /// Which requests are watched until their response comes, 0 to 3.
    ResponseTracking,
    /// Seconds after which an unhealthy peer is given up; 0 is never.
    RecoveryLimit,
    /// Most seconds between pings of an unhealthy interface.
    MaxRecoveryPingInterval,
}

impl Setting {
    /// All of them, in the order in which `lnetctl global show` has them.
    pub const ALL: [Self; 12] = [
        Self::NumaRange,
        Self::MaxInterfaces,
        Self::Discovery,
        Self::DropAsymRoute,
        Self::RetryCount,
        Self::TransactionTimeout,
        Self::HealthSensitivity,
        Self::RecoveryInterval,
        Self::RouterSensitivity,
        Self::ResponseTracking,
        Self::RecoveryLimit,
        Self::MaxRecoveryPingInterval,
    ];

    /// Its name in documents.
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
            Self::ResponseTracking => "response_tracking",
            Self::RecoveryLimit => "recovery_limit",
            Self::MaxRecoveryPingInterval => "max_recovery_ping_interval",
        }
    }

    const fn default(self) -> u32 {
        match self {
            Self::MaxInterfaces => MAX_INTERFACES,
            Self::Discovery | Self::RecoveryInterval => 1,
            Self::RetryCount => 2,
            Self::TransactionTimeout => 150,
            Self::HealthSensitivity | Self::RouterSensitivity => 100,
            Self::ResponseTracking => 3,
            Self::MaxRecoveryPingInterval => 900,
            Self::NumaRange | Self::DropAsymRoute | Self::RecoveryLimit => 0,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

const MAX_INTERFACES: u32 = 4096;
const MAX_INTERFACES_LEAST: i64 = 16;

/// The values of all [`Setting`]s.
///
/// Invariants: the retry count is at most the transaction timeout, and 0 while the sensitivity is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings([u32; Setting::ALL.len()]);

impl Default for Settings {
    fn default() -> Self {
        Self(Setting::ALL.map(Setting::default))
    }
}

impl Settings {
    /// The value of one.
    #[must_use]
    pub const fn get(&self, setting: Setting) -> u32 {
        self.0[setting as usize]
    }

    /// How long an LND may take for a message, if its net does not say: what is left of the transaction timeout
    /// for each try (LNet `lib-lnet.h: lnet_get_lnd_timeout`).
    #[must_use]
    pub const fn lnd_timeout_s(&self) -> u32 {
        let each = (self.get(Setting::TransactionTimeout) - 1) / (self.get(Setting::RetryCount) + 1);
        if each == 0 { 1 } else { each }
    }

    /// What the shards have to know.
    #[must_use]
    pub fn tunables(&self) -> Tunables {
        let response_tracking = ResponseTracking::try_from(self.get(Setting::ResponseTracking));
        Tunables {
            transaction_timeout: Duration::from_secs(self.get(Setting::TransactionTimeout).into()),
            response_tracking: response_tracking.unwrap_or_default(),
            retry_count: self.get(Setting::RetryCount),
        }
    }

    /// The same with another value of one; `None` if it is out of range, or does not go with the others.
    #[must_use]
    pub fn with(&self, setting: Setting, value: i64) -> Option<Self> {
        let retry_count = i64::from(self.get(Setting::RetryCount));
        let value = match setting {
            Setting::Discovery | Setting::DropAsymRoute => i64::from(value != 0),
            Setting::RecoveryInterval => 1,
            Setting::MaxInterfaces if value < MAX_INTERFACES_LEAST => i64::from(MAX_INTERFACES),
            _ => value,
        };
        let is_healthy = self.get(Setting::HealthSensitivity) != 0;
        let is_valid = match setting {
            Setting::RetryCount => {
                value <= i64::from(self.get(Setting::TransactionTimeout)) && (value == 0 || is_healthy)
            }
            Setting::TransactionTimeout => value > retry_count,
            Setting::HealthSensitivity => value <= 1000,
            Setting::RouterSensitivity => value <= 100,
            Setting::ResponseTracking => value <= 3,
            Setting::MaxRecoveryPingInterval => value > 0,
            _ => true,
        };
        let value = u32::try_from(value).ok().filter(|_| is_valid)?;
        let mut changed = *self;
        changed.0[setting as usize] = value;
        if setting == Setting::HealthSensitivity && value == 0 {
            changed.0[Setting::RetryCount as usize] = 0;
        }
        Some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(changes: &[(Setting, i64)]) -> Option<Settings> {
        changes
            .iter()
            .try_fold(Settings::default(), |settings, (setting, value)| settings.with(*setting, *value))
    }

    #[test]
    fn defaults_are_those_of_lnet() {
        let settings = Settings::default();
        assert_eq!(settings.lnd_timeout_s(), 49);
        assert_eq!(settings.tunables(), Tunables::DEFAULT);
        for (at, setting) in Setting::ALL.into_iter().enumerate() {
            assert_eq!(setting as usize, at, "{setting}");
            let value = i64::from(settings.get(setting));
            assert_eq!(settings.with(setting, value), Some(settings), "{setting} {value}");
        }
    }

    #[test]
    fn values_must_be_in_range_and_go_together() {
        use Setting::{
            Discovery, HealthSensitivity, MaxInterfaces, MaxRecoveryPingInterval, NumaRange,
            RecoveryInterval, RecoveryLimit, ResponseTracking, RetryCount, RouterSensitivity,
            TransactionTimeout,
        };
        let refused = [
            (NumaRange, -1),
            (NumaRange, 1 << 32),
            (RetryCount, 151),
            (RetryCount, -1),
            (TransactionTimeout, 2),
            (TransactionTimeout, 0),
            (HealthSensitivity, 1001),
            (RouterSensitivity, 101),
            (ResponseTracking, 4),
            (RecoveryLimit, -1),
            (MaxRecoveryPingInterval, 0),
        ];
        for (setting, value) in refused {
            assert_eq!(with(&[(setting, value)]), None, "{setting} {value}");
        }
        let after = |changes: &[_], setting| with(changes).map(|settings| settings.get(setting));
        assert_eq!(after(&[(Discovery, 2)], Discovery), Some(1));
        assert_eq!(after(&[(MaxInterfaces, 15)], MaxInterfaces), Some(4096));
        assert_eq!(after(&[(MaxInterfaces, 16)], MaxInterfaces), Some(16));
        assert_eq!(after(&[(RecoveryInterval, -7)], RecoveryInterval), Some(1));
        assert_eq!(after(&[(RetryCount, 150)], RetryCount), Some(150));
        let without_health = [(HealthSensitivity, 0), (HealthSensitivity, 100)];
        assert_eq!(after(&without_health, RetryCount), Some(0), "it stays 0");
        assert_eq!(with(&[(HealthSensitivity, 0), (RetryCount, 1)]), None);
        assert_eq!(with(&[(RetryCount, 0), (TransactionTimeout, 1)]).map(|all| all.lnd_timeout_s()), Some(1));
    }
}
