//! A program that depends on `lnet-user` alone. What the tests use of a node has names here: a signature that
//! a program could not write down would not compile.
#![cfg(test)]

use std::sync::Arc;
use std::time::Duration;

use lnet_user::api::Outcome;
use lnet_user::lnet_core::fault::Faults;
use lnet_user::lnet_core::node;
use lnet_user::lnet_core::shard::{Confirmation, Shard};
use lnet_user::lnet_io::netlink::NetlinkError;
use lnet_user::lnet_io::reactor::{Armed, Waiter};
use lnet_user::lnet_model::lnd::{LndRow, NiFact, OptionError};
use lnet_user::lnet_model::ni::NiOptions;
use lnet_user::lnet_xdp::bpf::{BpfError, LogPump, XdpProgram};
use lnet_user::lnet_xdp::{XdpFrames, XferCounters, XferUsage};
use lnet_user::node::{LndOptions, Machine};
use lnet_user::rustix::io::Errno;
use lnet_user::{
    Ack, Buffer, CaptureError, DelayRule, Descriptor, Discovery, Distance, DropRule, Entry, EntrySpec,
    EventHandler, EventKind, EventMd, EventQueue, FaultEdit, FaultError, FaultRules, Filter, Global, Guest,
    HealthError, Hold, Limits, Lnd, Lnet, LnetError, MdOptions, MdSpec, MessageTypes, NiConfig, NiId,
    NiOption, NiState, Nid, NodeConfig, NodeError, NotLent, Origin, OwnedRequest, Peer, PeerEdit, PeerSpec,
    Pinged, QueuedEvent, Request, RequestError, RingSizes, RuleEdit, ShardHandle, Span, Stream, Target,
    Threads, Threshold, Topology, UdspPattern, UdspRule, UnsentRequest, Usage, WaitError, Worker, rpc,
};

const FRIEND: &str = "10.0.0.9@tcp";

fn node() -> Lnet {
    Lnet::start_on(&NodeConfig::loopback(), &Threads::new()).unwrap()
}

#[test]
fn peers_are_edited_and_read() {
    let lnet = node();
    let friend: Nid = FRIEND.parse().unwrap();
    let spec = PeerSpec { primary_nid: friend, nids: vec![friend], multi_rail: true, lock_primary: false };
    lnet.edit_peers(&[PeerEdit::Add(spec)]).unwrap();
    let peers: Vec<Peer> = lnet.peers().unwrap();
    assert_eq!(peers.len(), 1);
    lnet.edit_peers(&[PeerEdit::SetHealth { nid: Some(friend), value: 500 }]).unwrap();
    lnet.edit_peers(&[PeerEdit::Delete { primary: friend, nids: Vec::new(), is_forced: false }]).unwrap();
    let refused: Result<(), LnetError> =
        lnet.edit_peers(&[PeerEdit::Delete { primary: friend, nids: Vec::new(), is_forced: false }]);
    let Err(LnetError::Refused(error)) = refused else { panic!("{refused:?}") };
    let _: RequestError = error;
}

#[test]
fn selection_policies_are_edited_and_read() {
    let lnet = node();
    let pattern: UdspPattern = "tcp".parse().unwrap();
    let rule = UdspRule::new(Some(pattern), None, None, Some(1));
    lnet.edit_selection_policies(&[RuleEdit::Add { index: None, rule: rule.clone() }]).unwrap();
    assert_eq!(lnet.selection_policies(), [rule]);
    let wrong = UdspRule::new(None, None, None, None);
    let refused = lnet.edit_selection_policies(&[
        RuleEdit::Delete { index: None },
        RuleEdit::Add { index: None, rule: wrong },
    ]);
    assert!(matches!(refused, Err(LnetError::Refused(_))) && lnet.selection_policies().len() == 1);
    lnet.edit_selection_policies(&[RuleEdit::Delete { index: Some(0) }]).unwrap();
    assert!(lnet.selection_policies().is_empty());
}

/// A GET of one's own portal, of which the first is dropped.
#[test]
fn fault_rules_are_edited_and_counted() {
    let lnet = node();
    let filter = Filter { messages: MessageTypes::GET, ..Filter::EVERYTHING };
    let drops = DropRule {
        filter,
        rate: 1,
        interval_s: 0,
        random: false,
        drop_all: false,
        health_errors: Vec::<HealthError>::new(),
    };
    let latency = Duration::from_millis(1);
    let delays = DelayRule { filter, rate: 1, interval: Duration::ZERO, latency };
    let wrong = FaultEdit::AddDelay(DelayRule { latency: Duration::ZERO, ..delays });
    let refused = lnet.edit_faults(&[FaultEdit::AddDrop(drops.clone()), wrong]);
    assert!(matches!(refused, Err(LnetError::Fault(FaultError::Latency))), "{refused:?}");
    assert_eq!(lnet.fault_rules(), FaultRules::default(), "all or none");

    lnet.edit_faults(&[FaultEdit::AddDrop(drops.clone()), FaultEdit::AddDelay(delays)]).unwrap();
    let rules = lnet.fault_rules();
    assert_eq!((&rules.drops[..], &rules.delays[..]), (&[drops][..], &[delays][..]));
    let mut events = lnet.create_event_queue(16).unwrap();
    let give = MdSpec::new(8, Threshold::Count(4), MdOptions::GET, events.handle());
    lnet.attach(&EntrySpec::new(4, 1), &give, Buffer::zeroed(8)).unwrap().detach();
    let get = |events: &EventQueue| {
        let take = MdSpec::new(8, Threshold::Count(2), MdOptions::NONE, events.handle());
        let sink = lnet.bind(&take, Buffer::zeroed(8)).unwrap();
        sink.get(&Target::new(Nid::LO, 4, 1)).queue().unwrap();
        sink.detach();
    };
    let next = |events: &mut EventQueue, kind| loop {
        let queued = events.next_blocking(Some(Duration::from_secs(20))).unwrap().unwrap();
        if queued.event.kind() == kind {
            return queued;
        }
    };
    get(&events);
    next(&mut events, EventKind::Send);
    while lnet.drop_rules().unwrap()[0].counters.get == 0 {
        std::thread::yield_now();
    }
    assert_eq!(lnet.delay_rules().unwrap().len(), 1);
    let [source, destination] = [Nid::ANY; 2];
    lnet.edit_faults(&[
        FaultEdit::ResetDrops,
        FaultEdit::DeleteDrops { source, destination },
        FaultEdit::DeleteDelays { source, destination },
    ])
    .unwrap();
    assert_eq!(lnet.fault_rules(), FaultRules::default());
    get(&events);
    next(&mut events, EventKind::Reply);
}

#[test]
fn what_a_node_tells_has_names() {
    let lnet = node();
    let _: Arc<Topology> = lnet.topology();
    let _: Option<Distance> = lnet.distance(&Nid::LO);
    let nis: Vec<NiState> = lnet.nis();
    for ni in &nis {
        let (_, _, _): (NiId, Option<&LndRow>, &[Option<NiFact>]) = (ni.ni, ni.lnd(), &ni.facts);
    }
    let _: &Limits = lnet.limits();
    let pinged: Result<Pinged, LnetError> = lnet.ping(FRIEND.parse().unwrap(), None, Duration::ZERO);
    assert!(pinged.is_err(), "no NI is on that net");
    lnet.set(Global::Discovery, Discovery::Verify as u32).unwrap();
    let _: XdpFrames = lnet.xdp_frames().unwrap();
    let shard: ShardHandle = lnet.shard(0).unwrap();
    let _: Usage = shard.usage().unwrap();
}

#[test]
fn events_can_be_taken_apart() {
    let lnet = node();
    let mut events: EventQueue = lnet.create_event_queue(16).unwrap();
    let take = MdSpec::new(8, Threshold::Count(1), MdOptions::PUT, events.handle());
    lnet.attach(&EntrySpec::new(4, 1), &take, Buffer::zeroed(8)).unwrap().detach();
    let give = MdSpec::new(8, Threshold::Count(1), MdOptions::NONE, events.handle());
    let source = lnet.bind(&give, Buffer::zeroed(8)).unwrap();
    source.put(&Target::new(Nid::LO, 4, 1), Ack::NotWanted, 0).queue().unwrap();
    loop {
        let queued: QueuedEvent = events.next_blocking(Some(Duration::from_secs(20))).unwrap().unwrap();
        if queued.event.kind() == EventKind::Put {
            let _: Option<Span> = queued.event.payload();
            let _: Option<&Origin> = queued.event.origin();
            break;
        }
    }
}

/// Debug output is a line: the name and the size of a thing that a program has.
#[test]
fn debug_output_is_for_people() {
    let lnet = node();
    assert_eq!(format!("{lnet:?}"), format!("Lnet {{ nid: {}, shards: 1 }}", lnet.nid()));
    let shard = lnet.shard(0).unwrap();
    assert_eq!(format!("{shard:?}"), "ShardHandle(0)");
    let mut events = shard.create_event_queue(16).unwrap();
    let queue = events.handle().0.0;
    assert_eq!(format!("{events:?}"), format!("EventQueue {{ handle: {queue:#x}, shards: 1 }}"));
    let take = MdSpec::new(8, Threshold::Count(1), MdOptions::PUT, events.handle());
    let entry = shard.attach(&EntrySpec::new(4, 1), &take, Buffer::zeroed(8)).unwrap();
    let (named, md) = (entry.entry_handle().0.0, entry.handle().0.0);
    assert_eq!(format!("{entry:?}"), format!("Entry {{ entry: {named:#x}, md: {md:#x}, shard: 0 }}"));
    assert_eq!(format!("{:?}", entry.handle()), format!("MdHandle({md:#x})"));
    let give = MdSpec::new(8, Threshold::Count(1), MdOptions::NONE, events.handle());
    let source = shard.bind(&give, Buffer::zeroed(8)).unwrap();
    let given = source.handle().0.0;
    assert_eq!(format!("{source:?}"), format!("Descriptor {{ md: {given:#x}, shard: 0 }}"));
    source.put(&Target::new(Nid::LO, 4, 1), Ack::NotWanted, 0).queue().unwrap();
    let mut shown = Vec::new();
    while shown.len() < 2 {
        let queued = events.next_blocking(Some(Duration::from_secs(20))).unwrap().unwrap();
        shown.push(format!("{queued:?}"));
    }
    shown.sort();
    let line =
        |kind, md, has| format!("QueuedEvent {{ kind: {kind}, status: Ok, md: {md:#x}, {has}_bytes: 8 }}");
    assert_eq!(shown, [line("Put", md, "buffer"), line("Send", given, "buffer")]);
    drop(events);
    let handler = shard.create_event_handler(16, drop).unwrap();
    let queue = handler.handle().0.0;
    let expected = format!("EventHandler {{ queue: {queue:#x}, has_ended: false }}");
    assert_eq!(format!("{handler:?}"), expected);
}

/// Programs derive `Debug` for what they keep.
#[test]
fn each_public_type_has_debug_output() {
    const fn has_debug<T: std::fmt::Debug>() {}
    macro_rules! have_debug {
        ($($name:ty),* $(,)?) => { $(has_debug::<$name>();)* };
    }
    have_debug![
        Ack,
        Descriptor,
        Entry,
        EventHandler,
        EventQueue,
        FaultEdit,
        FaultRules,
        Guest,
        Hold,
        Lnet,
        LnetError,
        NotLent,
        Outcome,
        OwnedRequest,
        QueuedEvent,
        ShardHandle,
        Target,
        Threads,
        UnsentRequest<'static>,
        rpc::Client,
        rpc::ReceivedRequest,
        rpc::Server,
        rpc::ServiceSpec,
    ];
}

/// Signatures that no test here calls.
#[expect(dead_code, reason = "it compiles, which is all that it is for")]
mod signatures {
    use super::*;

    fn of_a_worker(worker: &mut Worker) -> Result<(), WaitError> {
        let _: &Shard = worker.shard();
        let _: &mut Faults = worker.faults_mut();
        if let Some(xdp) = worker.xdp() {
            let _: (&XferCounters, XferUsage) = (xdp.transfer_counters(), xdp.transfer_usage());
        }
        worker.wait(None)
    }

    async fn of_the_machine(lnet: &Lnet, request: Request<LndOptions>) -> Result<node::Outcome, LnetError> {
        let _: Vec<Confirmation> = lnet.confirmations().await?;
        let machine: &Machine = &lnet.machine();
        let _ = machine.nets();
        lnet.request(request).await
    }

    fn of_a_document(config: NiConfig, rings: RingSizes) -> NodeConfig {
        let _: &NiOptions = &config.options;
        let config = config.lnd(Some(Lnd::Xdp)).option(NiOption::Queues, Some(2));
        NodeConfig::new(vec![config]).rings(rings)
    }

    fn of_an_error(error: &LnetError) -> &str {
        match error {
            LnetError::Node(NodeError::Wait(_)) => "io_uring",
            LnetError::Capture(CaptureError::Exists(_)) => "capture",
            _ => "another",
        }
    }

    fn of_options(error: OptionError) -> String {
        error.to_string()
    }

    fn of_netlink(error: &NetlinkError) -> Errno {
        lnet_user::api::netlink_errno(error)
    }

    fn of_a_program(program: &mut XdpProgram) -> Result<LogPump, BpfError> {
        program.take_log()
    }

    fn of_a_waiter(waiter: &mut Waiter) -> Armed<'_> {
        waiter.arm()
    }

    fn of_streams(events: EventQueue, server: rpc::Server) -> (impl Stream, impl Stream) {
        (events, server)
    }

    fn of_an_event(md: EventMd) -> EventMd {
        md
    }
}
