//! The node as the server knows it: it carries requests out.

use std::time::Duration;

use lnet_model::capture::{CaptureRecord, CaptureSpec};
use lnet_model::choice::InterfaceRecord;
use lnet_model::fault::{DelayRuleRecord, DropRuleRecord};
use lnet_model::records::{
    ConnectionRecord, CptRecord, ExplainRecord, FramesRecord, Globals, LoadRecord, NetRecord, Parameters,
    PeerPage, PeerQuery, RecoveryRecord, RoutePage, RoutingRecord, SelftestAnswer, SelftestRequest,
    Statistics, UsageRecord,
};
use lnet_model::request::{ChangeSet, Effect, PingRecord};
use lnet_model::route::RouteSpec;
use lnet_model::steering::SteeringRecord;
use lnet_model::text::NidText;
use lnet_model::udsp::UdspRule;
use lnet_model::{Errno, Refusal};
use lnet_wire::Nid;

use crate::request::{ControlRequest, LoadSpec, Reply};

macro_rules! handler {
    ($($(#[$doc:meta])+ $kind:ident $variant:ident: $call:ident($($name:ident: $argument:ty)?) -> $answer:ty;)+) => {
        /// A node, as the server sees it. It refuses what is not implemented.
        ///
        /// The calls of several clients run at the same time on one thread, except changes: of these one runs
        /// at a time, and always to its end. The futures of the others are dropped when their client goes,
        /// and must leave nothing behind; that of an order leaves the order to the one who obeys it.
        ///
        /// A node that is not configured refuses everything but
        /// [`Change::Configure`](lnet_model::request::Change::Configure) and
        /// [`Unconfigure`](lnet_model::request::Change::Unconfigure) with [`Errno::NETDOWN`].
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
        pub(crate) async fn answer<H: Handler>(handler: &H, request: ControlRequest) -> Reply {
            match request {
                $(
                    ControlRequest::$variant $(($name))? => {
                        handler.$call($($name)?).await.map_or_else(Reply::Refused, Reply::$variant)
                    }
                )+
                ControlRequest::Ping(_) => Reply::Ping(None),
            }
        }
    };
}

requests!(handler);

fn unavailable(call: &str) -> Refusal {
    Refusal::new(Errno::OPNOTSUPP, format!("{}: this node has no such service", call.replace('_', " ")))
}
