//! Requests to a node, and its replies: one table has them all.

use lnet_model::Refusal;
use lnet_model::capture::{CaptureRecord, CaptureSpec};
use lnet_model::choice::InterfaceRecord;
use lnet_model::fault::{DelayRuleRecord, DropRuleRecord};
use lnet_model::records::{
    ConnectionRecord, CptRecord, ExplainRecord, FramesRecord, Globals, LoadRecord, LoadRole, NetRecord,
    Parameters, PeerPage, PeerQuery, RecoveryRecord, RoutePage, RoutingRecord, SelftestAnswer,
    SelftestRequest, Statistics, UsageRecord,
};
use lnet_model::request::{ChangeSet, Effect, PingReply, PingRequest};
use lnet_model::route::RouteSpec;
use lnet_model::steering::SteeringRecord;
use lnet_model::text::NidText;
use lnet_model::udsp::UdspRule;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A load to be begun. What it is in detail is the load service's own affair, and JSON here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadSpec {
    /// Take messages, by this scheme.
    Target(Value),
    /// Send messages, by this plan.
    Initiator(Value),
}

impl LoadSpec {
    /// Which end it is.
    #[must_use]
    pub const fn role(&self) -> LoadRole {
        match self {
            Self::Target(_) => LoadRole::Target,
            Self::Initiator(_) => LoadRole::Initiator,
        }
    }
}

macro_rules! kind {
    (read) => {
        RequestClass::Read
    };
    (change) => {
        RequestClass::Change
    };
    (order) => {
        RequestClass::Order
    };
}

/// Kind of a request, as the node treats it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RequestClass {
    Read,
    /// A dry run: a change by its length, which changes nothing.
    DryRun,
    Change,
    Order,
}

macro_rules! messages {
    ($($(#[$doc:meta])+ $kind:ident $variant:ident: $call:ident($($name:ident: $argument:ty)?) -> $answer:ty;)+) => {
        /// Something that a node is asked; answered by the [`Reply`] of the same name.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum ControlRequest {
            $($(#[$doc])+ $variant $(($argument))?,)+
            /// Pings NIDs. A [`Reply::Ping`] answers for each of them, in their order, and an empty one comes
            /// last. It ends when the client goes.
            Ping(PingRequest),
        }

        impl ControlRequest {
            /// Whether only root and the node's owner may ask for it.
            #[must_use]
            pub const fn is_privileged(&self) -> bool {
                !matches!(self.kind(), RequestClass::Read | RequestClass::DryRun)
            }

            pub(crate) const fn kind(&self) -> RequestClass {
                match self {
                    Self::Apply(ChangeSet { dry_run: true, .. }) => RequestClass::DryRun,
                    $(Self::$variant { .. } => kind!($kind),)+
                    Self::Ping(_) => RequestClass::Read,
                }
            }
        }

        /// A node's answer, or a part of it.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reply {
            $($(#[$doc])+ $variant($answer),)+
            /// Outcome of the ping of one NID; nothing behind the last one.
            Ping(Option<PingReply>),
            /// Refusal of the request; nothing has changed.
            Refused(Refusal),
        }
    };
}

requests!(messages);
