//! Routes, as a node has them.

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
