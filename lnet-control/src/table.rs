//! The table of requests: a row for each, with its argument and its answer.
//! [`ControlRequest`](crate::ControlRequest), [`Reply`](crate::Reply), the calls of a
//! [`Client`](crate::client::Client), a node's `Handler` and the server's dispatch all come from it.
//!
//! A row is `read`, `change` or `order`; changes and orders are for root and the node's owner alone. An order
//! waits for other nodes, so changes go on beside it. Pings stand beside the table: they are answered part by
//! part.

/// Gives all rows to another macro.
macro_rules! requests {
    ($make:ident) => {
        $make! {
            /// How often changes have been asked of it: who plans changes asks this first, and then for what
            /// they are made from.
            read Generation: generation() -> u64;
            /// Its nets: `lo` first, then in order of creation.
            read Nets: nets() -> Vec<NetRecord>;
            /// Some of its peers, of all or of those that are named: the first, or those behind a page.
            read PeerPage: peer_page(query: PeerQuery) -> PeerPage;
            /// Some of its routes: those behind this one, or the first.
            read RoutePage: route_page(after: Option<RouteSpec>) -> RoutePage;
            /// Its routing between nets.
            read Routing: routing() -> RoutingRecord;
            /// Its global tunables.
            read Globals: globals() -> Globals;
            /// Its parameters, which it has also while it is not configured.
            read Parameters: parameters() -> Parameters;
            /// Its counters.
            read Statistics: statistics() -> Statistics;
            /// Its drop rules, newest first.
            read DropRules: drop_rules() -> Vec<DropRuleRecord>;
            /// Its delay rules, newest first.
            read DelayRules: delay_rules() -> Vec<DelayRuleRecord>;
            /// Its steering policies.
            read Steering: steering() -> SteeringRecord;
            /// Its selection policies, by index.
            read Udsp: udsp() -> Vec<UdspRule>;
            /// Which NIs are pinged until they recover.
            read Recovery: recovery() -> RecoveryRecord;
            /// The path by which requests to a NID would go at this moment, and why.
            read Explain: explain(nid: NidText) -> ExplainRecord;
            /// The CPTs (shards) that NIDs belong to, in their order.
            read CptsOf: cpts_of(nids: Vec<NidText>) -> Vec<CptRecord>;
            /// Interfaces of its host but the loopback, and those of these names that are labels of aliases;
            /// also while it is not configured.
            read Interfaces: interfaces(named: Vec<String>) -> Vec<InterfaceRecord>;
            /// Connections of its tcp nets by which messages go, by the NIDs of the peers.
            read Connections: connections() -> Vec<ConnectionRecord>;
            /// Use of the objects that it may have.
            read Usage: usage() -> UsageRecord;
            /// Its captures, running and ended.
            read Captures: captures() -> Vec<CaptureRecord>;
            /// Where the frames of its xdp nets went.
            read Frames: frames() -> FramesRecord;
            /// Its loads, running and ended.
            read Loads: loads() -> Vec<LoadRecord>;
            /// Warnings of what keeps NIs from serving: system settings, and links that do not carry.
            read Warnings: warnings() -> Vec<String>;
            /// Makes all changes of a batch or none, or, with `dry_run`, says what they would do. The
            /// outcomes are as many as the changes, in their order. A refusal names the offending change by
            /// its position ([`Refusal::of_change`]).
            change Apply: apply(batch: ChangeSet) -> Vec<Effect>;
            /// Says in the log all that the node knows of the peer with a NID.
            change LogPeer: log_peer(nid: NidText) -> ();
            /// Says in the log, or not, which frames XDP passes up: of a node that was started to do so.
            change LogRefusals: log_refusals(on: bool) -> ();
            /// Writes the frames of the node to a file.
            change StartCapture: start_capture(spec: CaptureSpec) -> ();
            /// Ends the capture to this file, forgets it, and tells what it became.
            change StopCapture: stop_capture(path: String) -> CaptureRecord;
            /// Begins a load, and tells its number.
            change StartLoad: start_load(spec: LoadSpec) -> u32;
            /// Ends a load, at once if it runs, forgets it, and tells what it became.
            change StopLoad: stop_load(id: u32) -> LoadRecord;
            /// Does something as console of LNet selftest.
            order Selftest: selftest(request: SelftestRequest) -> SelftestAnswer;
        }
    };
}
