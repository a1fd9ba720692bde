//! The global tunables of a node, and its parameters.

use core::time::Duration;

use lnet_wire::{Discovery, Global, Parameter};

use super::{ChangeError, SettingRange};
use crate::tunables::{ResponseTracking, Tunables};

/// The values of all [`Global`]s and all [`Parameter`]s.
///
/// Invariants: the retry count is at most the transaction timeout, and 0 while the sensitivity is; the LND
/// timeout follows from both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    globals: [u32; Global::ALL.len()],
    parameters: [u32; Parameter::ALL.len()],
}

impl Default for Settings {
    fn default() -> Self {
        let parameters = Parameter::ALL.map(Parameter::default_value);
        Self { globals: Global::ALL.map(Global::default_value), parameters }
    }
}

impl Settings {
    /// The value of one.
    #[must_use]
    pub const fn get(&self, setting: Global) -> u32 {
        self.globals[setting as usize]
    }

    /// Messages of one peer NI that a router takes at once, where its net has these credits (LNet `router.c:
    /// lnet_peer_buffer_credits`).
    #[must_use]
    pub const fn router_credits(&self, peer_credits: u32, peer_buffer_credits: u32) -> u32 {
        match (peer_buffer_credits, self.parameter(Parameter::PeerBufferCredits)) {
            (0, 0) => peer_credits,
            (0, credits) | (credits, _) => credits,
        }
    }

    /// The value of a parameter.
    #[must_use]
    pub const fn parameter(&self, parameter: Parameter) -> u32 {
        self.parameters[parameter as usize]
    }

    /// The settings with another value of a parameter. `None` if the value is out of range.
    #[must_use]
    pub fn with_parameter(&self, parameter: Parameter, value: u32) -> Option<Self> {
        let (least, greatest) = parameter.range();
        let mut changed = *self;
        changed.parameters[parameter as usize] = value;
        (least..=greatest).contains(&value).then_some(changed)
    }

    /// What is done about the NIDs that peers tell.
    #[must_use]
    pub fn discovery(&self) -> Discovery {
        Discovery::from_number(self.get(Global::Discovery).into())
    }

    /// How long an LND may take for a message, if its net does not say: what is left of the transaction
    /// timeout for each try (LNet `lib-lnet.h: lnet_get_lnd_timeout`).
    const fn lnd_timeout_s(&self) -> u32 {
        let tries = self.get(Global::RetryCount).saturating_add(1);
        let each = (self.get(Global::TransactionTimeout) - 1) / tries;
        if each == 0 { 1 } else { each }
    }

    /// What the shards have to know.
    #[must_use]
    pub fn tunables(&self) -> Tunables {
        let response_tracking = ResponseTracking::from_number(self.get(Global::ResponseTracking));
        Tunables {
            transaction_timeout: Duration::from_secs(self.get(Global::TransactionTimeout).into()),
            response_tracking: response_tracking.unwrap_or_default(),
            retry_count: self.get(Global::RetryCount),
            drops_asymmetric: self.get(Global::DropAsymRoute) != 0,
        }
    }

    /// What one may be while the others are as they are.
    fn range(&self, setting: Global) -> SettingRange {
        match setting {
            Global::RetryCount if self.get(Global::HealthSensitivity) == 0 => SettingRange::NoHealth,
            Global::RetryCount => SettingRange::Timeout(self.get(Global::TransactionTimeout)),
            Global::TransactionTimeout => SettingRange::Retries(self.get(Global::RetryCount)),
            _ => {
                let (least, greatest) = setting.range();
                SettingRange::Fixed(least, greatest)
            }
        }
    }

    /// Why one does not take a value.
    pub(super) fn refusal(&self, setting: Global, value: i64) -> ChangeError {
        ChangeError::Setting { setting, value, range: self.range(setting) }
    }

    /// The settings with another value of one. `None` if the value is out of range, or does not go with the
    /// others.
    #[must_use]
    pub fn with(&self, setting: Global, value: i64) -> Option<Self> {
        let value = match setting {
            Global::Discovery => Discovery::from_number(value) as i64,
            Global::DropAsymRoute => i64::from(value != 0),
            Global::RecoveryInterval => 1,
            Global::MaxInterfaces if value < setting.range().0.into() => setting.default_value().into(),
            _ => value,
        };
        let is_settable = |value: &u32| setting != Global::LndTimeout && self.range(setting).contains(*value);
        let value = u32::try_from(value).ok().filter(is_settable)?;
        let mut changed = *self;
        changed.globals[setting as usize] = value;
        if setting == Global::HealthSensitivity && value == 0 {
            changed.globals[Global::RetryCount as usize] = 0;
        }
        changed.globals[Global::LndTimeout as usize] = changed.lnd_timeout_s();
        Some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(changes: &[(Global, i64)]) -> Option<Settings> {
        changes
            .iter()
            .try_fold(Settings::default(), |settings, (setting, value)| settings.with(*setting, *value))
    }

    #[test]
    fn defaults_are_those_of_lnet() {
        let settings = Settings::default();
        assert_eq!(settings.get(Global::LndTimeout), settings.lnd_timeout_s());
        assert_eq!(settings.tunables(), Tunables::DEFAULT);
        for (at, setting) in Global::ALL.into_iter().enumerate() {
            assert_eq!(setting as usize, at, "{setting}");
            let value = i64::from(settings.get(setting));
            let same = (setting != Global::LndTimeout).then_some(settings);
            assert_eq!(settings.with(setting, value), same, "{setting} {value}");
        }
    }

    #[test]
    fn parameters_have_the_defaults_of_lnet_and_their_ranges() {
        let settings = Settings::default();
        for (at, parameter) in Parameter::ALL.into_iter().enumerate() {
            assert_eq!(parameter as usize, at, "{parameter}");
            let value = settings.parameter(parameter);
            assert_eq!(settings.with_parameter(parameter, value), Some(settings), "{parameter} {value}");
            assert_eq!(parameter.name().parse(), Ok(parameter));
        }
        use Parameter::{
            AliveRouterCheckInterval, AvoidAsymRouterFailure, CheckRoutersBeforeUse, RouterPingTimeout,
        };
        let refused =
            [(RouterPingTimeout, 0), (CheckRoutersBeforeUse, 2), (AliveRouterCheckInterval, 1 << 31)];
        for (parameter, value) in refused {
            assert_eq!(settings.with_parameter(parameter, value), None, "{parameter} {value}");
        }
        let changed = settings.with_parameter(AvoidAsymRouterFailure, 0).unwrap();
        assert_eq!(changed.parameter(AvoidAsymRouterFailure), 0);
        assert_eq!(changed.parameter(AliveRouterCheckInterval), 60);
    }

    #[test]
    fn a_refusal_names_the_limit() {
        let refused = |settings: &Settings, setting, value, expected: &str| {
            assert_eq!(settings.with(setting, value), None);
            let text = alloc::format!("{}", settings.refusal(setting, value));
            assert_eq!(text, alloc::format!("{setting} {value}: {expected}"));
        };
        let all = &Settings::default();
        refused(all, Global::RetryCount, 151, "0 to 150 is expected, since transaction_timeout is 150");
        for few in [0, 2] {
            let expected = "3 to 4294967295 is expected, since retry_count is 2";
            refused(all, Global::TransactionTimeout, few, expected);
        }
        refused(all, Global::HealthSensitivity, 1001, "0 to 1000 is expected");
        let ill = &all.with(Global::HealthSensitivity, 0).unwrap();
        refused(ill, Global::RetryCount, 1, "0 is expected, while health_sensitivity is 0");
    }

    #[test]
    fn values_must_be_in_range_and_go_together() {
        use Global::{
            Discovery, HealthSensitivity, LndTimeout, MaxInterfaces, MaxRecoveryPingInterval, NumaRange,
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
        assert_eq!(
            [0, 1, 2, 3, -1].map(|value| after(&[(Discovery, value)], Discovery)),
            [0, 1, 2, 1, 1].map(Some)
        );
        assert_eq!(after(&[(MaxInterfaces, 15)], MaxInterfaces), Some(4096));
        assert_eq!(after(&[(MaxInterfaces, 16)], MaxInterfaces), Some(16));
        assert_eq!(after(&[(RecoveryInterval, -7)], RecoveryInterval), Some(1));
        assert_eq!(after(&[(RetryCount, 150)], RetryCount), Some(150));
        let without_health = [(HealthSensitivity, 0), (HealthSensitivity, 100)];
        assert_eq!(after(&without_health, RetryCount), Some(0), "it stays 0");
        assert_eq!(with(&[(HealthSensitivity, 0), (RetryCount, 1)]), None);
        assert_eq!(with(&[(RetryCount, 0), (TransactionTimeout, 1)]).map(|all| all.get(LndTimeout)), Some(1));
        let greatest = i64::from(u32::MAX);
        assert_eq!(after(&[(TransactionTimeout, greatest), (RetryCount, greatest)], LndTimeout), Some(1));
    }
}
