//! Routes, as a node has them.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::route::RouteSpec;

words! {
    /// Whether messages may go by a route.
    RouteState {
        /// Its gateway forwards to the net, as far as is known.
        Up = "up",
        /// Its gateway does not.
        Down = "down",
    }
}

words! {
    /// How far the net is behind the gateway.
    RouteType {
        /// The gateway has an NI on it, as far as is known.
        SingleHop = "single-hop",
        /// Another gateway comes behind the first one.
        MultiHop = "multi-hop",
    }
}

/// Some of the routes, in the order of their nets, and of the gateways to one net.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RoutePage {
    /// The routes.
    pub routes: Vec<RouteRecord>,
    /// Whether there are others behind them; the next page is asked for by the last of these.
    pub has_more: bool,
}

/// A route.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RouteRecord {
    /// The route, with the NID of the gateway that was given.
    #[serde(flatten)]
    pub spec: RouteSpec,
    /// Whether messages may go by it: `state`.
    pub state: RouteState,
    /// How far the net is: `type`.
    pub r#type: RouteType,
}
