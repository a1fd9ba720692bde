//! Parameters of a node that `lnetctl` has no names for in LNet: those of its kernel module about routers, by
//! their names there (LNet `router.c`).

use core::str::FromStr;

use crate::named;

named! {
    /// A parameter of a node: what it does about gateways, and as one.
    Parameter {
        /// Seconds between checks of a gateway by one of its nets; 0 ends them once one has gone well.
        AliveRouterCheckInterval => "alive_router_check_interval",
        /// Seconds that a gateway has for the answer to a check.
        RouterPingTimeout => "router_ping_timeout",
        /// Whether routes are down until their gateway was checked: 0 or 1.
        CheckRoutersBeforeUse => "check_routers_before_use",
        /// Whether a route is down while its gateway tells that it has no NI up on the net behind it: 0 or 1.
        AvoidAsymRouterFailure => "avoid_asym_router_failure",
        /// Messages of one peer NI that a router takes at once, on nets that say nothing else; 0 is as many
        /// as may go there at once.
        PeerBufferCredits => "peer_buffer_credits",
    }
}

impl Parameter {
    /// The value of an untouched kernel node.
    #[must_use]
    pub const fn default_value(self) -> u32 {
        match self {
            Self::AliveRouterCheckInterval => 60,
            Self::RouterPingTimeout => 50,
            Self::CheckRoutersBeforeUse | Self::PeerBufferCredits => 0,
            Self::AvoidAsymRouterFailure => 1,
        }
    }

    /// Least and greatest value.
    #[must_use]
    pub const fn range(self) -> (u32, u32) {
        match self {
            Self::AliveRouterCheckInterval | Self::PeerBufferCredits => (0, i32::MAX as u32),
            Self::RouterPingTimeout => (1, i32::MAX as u32),
            Self::CheckRoutersBeforeUse | Self::AvoidAsymRouterFailure => (0, 1),
        }
    }
}

impl FromStr for Parameter {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|parameter| parameter.name() == text);
        named.ok_or("the name of a parameter is expected")
    }
}
