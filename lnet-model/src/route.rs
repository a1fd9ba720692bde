//! Routes: nets that are reached by other nodes.

use core::fmt;

use lnet_wire::{Net, Nid};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A route that is to be: messages to NIDs of a net go to another node, which sends them on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct RouteSpec {
    /// The net, which is none of the node's own.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub net: Net,
    /// A NID of the gateway, on a net of the node's own. All NIDs of a peer are one gateway.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub gateway: Nid,
    /// How many nodes forward a message until it is on the net, 1 to 255. What is not said counts as 1.
    pub hops: Option<u8>,
    /// Its priority, 0 the best.
    pub priority: u32,
}

impl RouteSpec {
    /// A route of which nothing else is said.
    #[must_use]
    pub const fn new(net: Net, gateway: Nid) -> Self {
        Self { net, gateway, hops: None, priority: 0 }
    }

    /// The hops by which it is chosen (LNet `lib-move.c`: undefined is 1).
    #[must_use]
    pub const fn distance(&self) -> u8 {
        match self.hops {
            Some(hops) => hops,
            None => 1,
        }
    }

    /// Its hops as tools print and take them: -1 where they are not said.
    #[must_use]
    pub fn shown_hops(&self) -> i32 {
        self.hops.map_or(-1, i32::from)
    }
}

/// Names the net and the gateway, and what else is said of it.
impl fmt::Display for RouteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { net, gateway, hops, priority } = self;
        write!(f, "{net} by {gateway}")?;
        if let Some(hops) = hops {
            write!(f, ", hop {hops}")?;
        }
        if *priority > 0 { write!(f, ", priority {priority}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_route_says_no_more_than_it_was_told() {
        let plain = RouteSpec::new("tcp9".parse().unwrap(), "10.7.0.1@tcp".parse().unwrap());
        assert_eq!(plain.to_string(), "tcp9 by 10.7.0.1@tcp");
        assert_eq!((plain.distance(), plain.shown_hops()), (1, -1));
        let spec = RouteSpec { hops: Some(2), priority: 3, ..plain };
        assert_eq!(spec.to_string(), "tcp9 by 10.7.0.1@tcp, hop 2, priority 3");
        assert_eq!((spec.distance(), spec.shown_hops()), (2, 2));
    }
}
