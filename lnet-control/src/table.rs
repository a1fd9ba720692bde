//! The table of requests: a row for each, with its argument and its answer. [`Request`], [`Reply`], the calls
//! of [`Client`], [`Handler`] and the server's dispatch all come from it.
//!
//! A row is `read`, `change` or `order`; changes and orders are for root and the node's owner alone. An order
//! waits for other nodes, so changes go on beside it. Pings stand beside the table: they are answered part by
//! part.

#[cfg(feature = "server")]
use std::time::Duration;

#[cfg(feature = "server")]
use lnet_model::Errno;
use lnet_model::Refusal;
use lnet_model::capture::{CaptureRecord, CaptureSpec};
use lnet_model::fault::DropRuleRecord;
use lnet_model::records::{
    CptRecord, ExplainRecord, FramesRecord, Globals, LoadRecord, LoadRole, NetRecord, PeerRecord,
    RecoveryRecord, SelftestAnswer, SelftestRequest, Statistics,
};
#[cfg(feature = "server")]
use lnet_model::request::PingRecord;
use lnet_model::request::{Batch, Outcome, PingReply, PingRequest};
use lnet_model::steering::SteeringRecord;
use lnet_model::text::NidText;
use lnet_model::udsp::UdspRule;
#[cfg(feature = "server")]
use lnet_wire::Nid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::client::{Client, ClientError};

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
        Kind::Read
    };
    (change) => {
        Kind::Change
    };
    (order) => {
        Kind::Order
    };
}

/// What a request is to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Change,
    Order,
}

macro_rules! requests {
    ($($(#[$doc:meta])+ $kind:ident $variant:ident: $call:ident($($name:ident: $argument:ty)?) -> $answer:ty;)+) => {
        /// Something that a node is asked; answered by the [`Reply`] of the same name.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Request {
            $($(#[$doc])+ $variant $(($argument))?,)+
            /// To ping; answered by a [`Reply::Ping`] for each NID, in their order, and an empty one. It ends
            /// when the client goes.
            Ping(PingRequest),
        }

        impl Request {
            /// Whether only root and the node's owner may ask for it.
            #[must_use]
            pub const fn is_privileged(&self) -> bool {
                !matches!(self.kind(), Kind::Read)
            }

            pub(crate) const fn kind(&self) -> Kind {
                match self {
                    $(Self::$variant { .. } => kind!($kind),)+
                    Self::Ping(_) => Kind::Read,
                }
            }
        }

        /// A node's answer, or a part of it.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Reply {
            $($(#[$doc])+ $variant($answer),)+
            /// What became of the ping of one NID; nothing behind the last one.
            Ping(Option<PingReply>),
            /// It is not done; nothing has changed.
            Refused(Refusal),
        }

        impl Client {
            $(
                $(#[$doc])+
                ///
                /// # Errors
                /// [`ClientError`].
                pub fn $call(&mut self $(, $name: $argument)?) -> Result<$answer, ClientError> {
                    match self.ask(&Request::$variant $(($name))?)? {
                        Reply::$variant(answer) => Ok(answer),
                        _ => Err(ClientError::Unexpected),
                    }
                }
            )+
        }

        /// A node, as the server sees it. It refuses what is not implemented.
        ///
        /// The calls of several clients run at the same time on one thread, except changes: of these one runs
        /// at a time, and always to its end. The futures of the others are dropped when their client goes,
        /// and must leave nothing behind; that of an order leaves the order to the one who obeys it.
        ///
        /// A node that is not configured refuses everything but
        /// [`Change::Configure`](lnet_model::request::Change::Configure) and
        /// [`Unconfigure`](lnet_model::request::Change::Unconfigure) with [`Errno::NETDOWN`].
        #[cfg(feature = "server")]
        pub trait Handler {
            $(
                $(#[$doc])+
                fn $call(&self $(, $name: $argument)?) -> impl Future<Output = Result<$answer, Refusal>> {
                    $(let _ = $name;)?
                    async { Err(unavailable(stringify!($call))) }
                }
            )+

            /// Pings one NID. The server gives up, and drops the future, a little later than `timeout`.
            fn ping(
                &self,
                nid: Nid,
                source: Option<Nid>,
                timeout: Duration,
            ) -> impl Future<Output = Result<PingRecord, Refusal>>;

            /// Discovers the peer with a NID; with `is_forced` whatever is known of it. Likewise.
            fn discover(
                &self,
                nid: Nid,
                is_forced: bool,
                timeout: Duration,
            ) -> impl Future<Output = Result<PingRecord, Refusal>> {
                let _ = (nid, is_forced, timeout);
                async { Err(unavailable("discover")) }
            }
        }

        /// The answer to a request; that to a ping is told elsewhere, part by part.
        #[cfg(feature = "server")]
        pub(crate) async fn answer<H: Handler>(handler: &H, request: Request) -> Reply {
            match request {
                $(
                    Request::$variant $(($name))? => {
                        handler.$call($($name)?).await.map_or_else(Reply::Refused, Reply::$variant)
                    }
                )+
                Request::Ping(_) => Reply::Ping(None),
            }
        }
    };
}

requests! {
    /// Its nets: `lo` first, then in order of creation.
    read Nets: nets() -> Vec<NetRecord>;
    /// Its peers.
    read Peers: peers() -> Vec<PeerRecord>;
    /// Its global tunables.
    read Globals: globals() -> Globals;
    /// Its counters.
    read Statistics: statistics() -> Statistics;
    /// Its drop rules, newest first.
    read DropRules: drop_rules() -> Vec<DropRuleRecord>;
    /// Its steering policies.
    read Steering: steering() -> SteeringRecord;
    /// Its selection policies, by index.
    read Udsp: udsp() -> Vec<UdspRule>;
    /// Which NIs are pinged until they recover.
    read Recovery: recovery() -> RecoveryRecord;
    /// By which path requests to a NID would go at this moment, and why.
    read Explain: explain(nid: NidText) -> ExplainRecord;
    /// The CPTs (shards) that NIDs belong to, in their order.
    read CptsOf: cpts_of(nids: Vec<NidText>) -> Vec<CptRecord>;
    /// Its captures, running and ended.
    read Captures: captures() -> Vec<CaptureRecord>;
    /// Where the frames of its xdp nets went.
    read Frames: frames() -> FramesRecord;
    /// Its loads, running and ended.
    read Loads: loads() -> Vec<LoadRecord>;
    /// To make all changes of a batch or none, or, with `dry_run`, to say what they would do. The outcomes
    /// are as many as the changes, in their order. A refusal names the offending change by its position
    /// ([`Refusal::of_change`]).
    change Apply: apply(batch: Batch) -> Vec<Outcome>;
    /// To say in its log all that it knows of the peer with a NID.
    change LogPeer: log_peer(nid: NidText) -> ();
    /// To write its frames to a file.
    change StartCapture: start_capture(spec: CaptureSpec) -> ();
    /// To end the capture to this file, and forget it; what it became.
    change StopCapture: stop_capture(path: String) -> CaptureRecord;
    /// To begin a load; its number.
    change StartLoad: start_load(spec: LoadSpec) -> u32;
    /// To end a load, at once if it runs, and forget it; what it became.
    change StopLoad: stop_load(id: u32) -> LoadRecord;
    /// To do something as console of LNet selftest.
    order Selftest: selftest(request: SelftestRequest) -> SelftestAnswer;
}

#[cfg(feature = "server")]
fn unavailable(call: &str) -> Refusal {
    Refusal::new(Errno::OPNOTSUPP, format!("{}: this node has no such service", call.replace('_', " ")))
}
