//! The global tunables of a node, with `lnetctl`'s names, ranges and defaults (LNet `api-ni.c`).

use core::str::FromStr;

use crate::named;

named! {
    /// A tunable of the whole node.
    Global {
        /// NUMA distance that counts as near.
        NumaRange => "numa_range",
        /// Most NIs, and most NIDs in an answer to a ping.
        MaxInterfaces => "max_interfaces",
        /// What is done about the NIDs of peers: a [`Discovery`].
        Discovery => "discovery",
        /// Whether what comes by another gateway than the reply's is dropped: 0 or 1.
        DropAsymRoute => "drop_asym_route",
        /// How often a message is sent again.
        RetryCount => "retry_count",
        /// Seconds that a response may take.
        TransactionTimeout => "transaction_timeout",
        /// What a failure takes from health, 0 to 1000.
        HealthSensitivity => "health_sensitivity",
        /// Obsolete, always 1.
        RecoveryInterval => "recovery_interval",
        /// Least health of a usable gateway, percent.
        RouterSensitivity => "router_sensitivity",
        /// Seconds that an LND may take; follows from others.
        LndTimeout => "lnd_timeout",
        /// Which requests are watched for their response, 0 to 3.
        ResponseTracking => "response_tracking",
        /// Seconds after which an unhealthy peer NI is forgotten; 0 is never.
        RecoveryLimit => "recovery_limit",
        /// Seconds between recovery pings at most.
        MaxRecoveryPingInterval => "max_recovery_ping_interval",
    }
}

named! {
    /// What is done about the NIDs that peers tell: the values of [`Global::Discovery`], from 0.
    ///
    /// LNet's own tools know the first two, and take any other number for the second; so the third has a word
    /// wherever people write it.
    Discovery {
        /// Nothing; peers are pinged for the statuses of their NIs alone.
        Off => "off",
        /// The NIDs that peers tell become theirs.
        On => "on",
        /// The NIDs that peers tell are compared with those that are known, and change nothing.
        Verify => "verify",
    }
}

impl Discovery {
    /// The mode of a number; any number but those of the others is [`Discovery::On`].
    #[must_use]
    pub const fn from_number(number: i64) -> Self {
        match number {
            0 => Self::Off,
            2 => Self::Verify,
            _ => Self::On,
        }
    }
}

impl Global {
    /// The word that documents and commands have for a value in place of the number.
    #[must_use]
    pub fn word(self, value: u32) -> Option<&'static str> {
        let is_verify = self == Self::Discovery && value == Discovery::Verify as u32;
        is_verify.then_some(Discovery::Verify.name())
    }

    /// The value that such a word stands for.
    #[must_use]
    pub fn value_of_word(self, word: &str) -> Option<u32> {
        let (_, greatest) = self.range();
        (self.word(greatest)? == word).then_some(greatest)
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
            Self::DropAsymRoute => (0, 1),
            Self::Discovery => (0, Discovery::Verify as u32),
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
