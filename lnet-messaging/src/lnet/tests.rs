//! The lnet transport over an LNet that does what a test says.

mod passive;
mod shapes;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lnet_user::{EventKind, Nid, ProcessId, Target};

use super::LnetTransport;
use super::address::{LnetAddress, TMID_MAX, join, split};
use super::descriptor::LnetDescriptor;
use super::network::{
    Allowed, Ends, EntryPlan, EventSource, MdPlan, Network, NetworkEvent, NotPosted, Payload, Posted, Poster,
};
use super::registry::Addresses;
use crate::errno::{Errno, Error, Status};
use crate::memory::Memory;
use crate::operation::{BulkDescriptor, Operation};
use crate::queue::QueueType;
use crate::transport::NAME_MASK;
use crate::{Added, Addition, BufferEvent, Domain, Event, Events, StopMode, TmState, TransferMachine};

const OWN: &str = "0@lo:12345:34:7";
const PEER: ProcessId = ProcessId { nid: Nid::LO, pid: 12345 };

/// What was asked of LNet.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Call {
    Attach { portal: u32, match_bits: u64, allowed: Allowed, initiator: Option<Nid>, md: MdPlan },
    Put { to: Target, hdr_data: u64, md: MdPlan },
    Get { from: Target, md: MdPlan },
}

impl Call {
    fn md(&self) -> MdPlan {
        match *self {
            Self::Attach { md, .. } | Self::Put { md, .. } | Self::Get { md, .. } => md,
        }
    }
}

#[derive(Default)]
struct Lab {
    calls: Vec<Call>,
    events: VecDeque<NetworkEvent>,
    waker: Option<Waker>,
    /// Memory of descriptors that live.
    lent: Vec<(u64, Memory)>,
    cancelled: Vec<u64>,
    refuse: Option<Errno>,
    /// What is refused comes back with an UNLINK event.
    refuses_late: bool,
    /// Events that come before the call returns.
    at_once: Option<fn(u64) -> NetworkEvent>,
    is_stalled: bool,
    has_ended: bool,
}

#[derive(Clone, Default)]
struct FakeLnet(Arc<Mutex<Lab>>);

fn event(kind: EventKind, user_ptr: u64) -> NetworkEvent {
    NetworkEvent {
        user_ptr,
        kind,
        status: Ok(()),
        is_unlinked: false,
        length_bytes: 0,
        offset_bytes: 0,
        hdr_data: 0,
        initiator: None,
        payload: Payload::None,
    }
}

fn last(event: NetworkEvent) -> NetworkEvent {
    NetworkEvent { is_unlinked: true, ..event }
}

fn failed(event: NetworkEvent) -> NetworkEvent {
    NetworkEvent { status: Err(Errno::Io), ..event }
}

impl FakeLnet {
    fn lab<R>(&self, run: impl FnOnce(&mut Lab) -> R) -> R {
        run(&mut self.0.lock().unwrap())
    }

    /// Has an event come, with the memory if it is the last one.
    fn post(&self, mut event: NetworkEvent) {
        self.lab(|lab| {
            let lent = lab.lent.iter().position(|(user_ptr, _)| *user_ptr == event.user_ptr);
            if let Some(lent) = lent.filter(|_| event.is_unlinked) {
                event.payload = Payload::Memory(lab.lent.remove(lent).1);
            }
            lab.events.push_back(event);
            if !lab.is_stalled {
                lab.waker.take().inspect(Waker::wake_by_ref);
            }
        });
    }

    fn release(&self) {
        self.lab(|lab| {
            lab.is_stalled = false;
            lab.waker.take().inspect(Waker::wake_by_ref);
        });
    }

    fn lend(&self, call: Call, memory: Memory) -> Result<Box<dyn Posted>, NotPosted> {
        let user_ptr = call.md().user_ptr;
        let (refused, late, at_once) = self.lab(|lab| {
            lab.calls.push(call);
            (lab.refuse, lab.refuses_late, lab.at_once)
        });
        if let Some(errno) = refused {
            let memory = if late {
                self.lab(|lab| lab.lent.push((user_ptr, memory)));
                self.post(last(event(EventKind::Unlink, user_ptr)));
                // The worker has this long for that.
                std::thread::sleep(Duration::from_millis(20));
                None
            } else {
                Some(memory)
            };
            return Err(NotPosted { error: Error::new(errno, "the test refuses it"), memory });
        }
        self.lab(|lab| lab.lent.push((user_ptr, memory)));
        if let Some(at_once) = at_once {
            self.post(at_once(user_ptr));
        }
        Ok(Box::new(FakePosted { lnet: self.clone(), user_ptr, has_ended: false }))
    }
}

impl Network for FakeLnet {
    fn is_local(&self, nid: &Nid) -> bool {
        nid.is_loopback()
    }

    fn register(&self, _: &[u8]) -> Option<Memory> {
        None
    }

    fn event_slots(&self) -> u32 {
        2048
    }

    fn open(&self, _: u32, _: u64) -> Result<Ends, Error> {
        Ok((Box::new(self.clone()), Box::new(self.clone())))
    }
}

impl Poster for FakeLnet {
    fn attach(
        &mut self,
        entry: &EntryPlan,
        md: &MdPlan,
        memory: Memory,
    ) -> Result<Box<dyn Posted>, NotPosted> {
        let EntryPlan { portal, match_bits, allowed, initiator } = *entry;
        self.lend(Call::Attach { portal, match_bits, allowed, initiator, md: *md }, memory)
    }

    fn put(
        &mut self,
        to: &Target,
        hdr_data: u64,
        md: &MdPlan,
        memory: Memory,
    ) -> Result<Box<dyn Posted>, NotPosted> {
        self.lend(Call::Put { to: *to, hdr_data, md: *md }, memory)
    }

    fn get(&mut self, from: &Target, md: &MdPlan, memory: Memory) -> Result<Box<dyn Posted>, NotPosted> {
        self.lend(Call::Get { from: *from, md: *md }, memory)
    }
}

impl EventSource for FakeLnet {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<NetworkEvent>> {
        self.lab(|lab| {
            if !lab.is_stalled
                && let Some(event) = lab.events.pop_front()
            {
                return Poll::Ready(Some(event));
            }
            if lab.has_ended {
                return Poll::Ready(None);
            }
            lab.waker = Some(context.waker().clone());
            Poll::Pending
        })
    }
}

struct FakePosted {
    lnet: FakeLnet,
    user_ptr: u64,
    has_ended: bool,
}

impl Posted for FakePosted {
    fn forget(mut self: Box<Self>) {
        self.has_ended = true;
    }
}

impl Drop for FakePosted {
    fn drop(&mut self) {
        if !self.has_ended {
            self.lnet.lab(|lab| lab.cancelled.push(self.user_ptr));
            self.lnet.post(last(event(EventKind::Unlink, self.user_ptr)));
        }
    }
}

/// A started transfer machine over a fake LNet.
struct Setup {
    lnet: FakeLnet,
    domain: Domain,
    tm: TransferMachine,
    events: Events,
}

impl Setup {
    fn new() -> Self {
        let lnet = FakeLnet::default();
        let transport = LnetTransport::over(Arc::new(lnet.clone())).shared();
        let domain = Domain::new(&transport).unwrap();
        let (handler, mut events) = Events::channel();
        let tm = TransferMachine::new(&domain, handler).unwrap();
        tm.start(OWN).unwrap();
        assert!(matches!(events.next_blocking(), Some(Event::Tm(_))));
        let begun = Instant::now();
        while tm.state() != TmState::Started {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        Self { lnet, domain, tm, events }
    }

    fn add(&self, operation: Operation) -> (Added, Call) {
        let buffer = self.domain.allocate(1, 100).unwrap();
        let added = self.tm.add(buffer, operation).unwrap();
        (added, self.lnet.lab(|lab| lab.calls.pop()).unwrap())
    }

    fn event(&mut self) -> BufferEvent {
        match self.events.next_blocking().unwrap() {
            Event::Buffer(event) => event,
            Event::Tm(event) => panic!("{event:?}"),
        }
    }

    /// The one event of an operation: how it ended, and its length.
    fn end(&mut self) -> (Status, u64) {
        let event = self.event();
        assert!(event.is_last(), "{event:?}");
        (event.status, event.length_bytes)
    }

    fn counts(&self, queue: QueueType) -> (u64, u64, u64, u64) {
        let stats = self.tm.stats(queue, true).unwrap();
        (stats.num_adds, stats.num_dels, stats.num_s_events, stats.num_f_events)
    }

    fn send(&self) -> Operation {
        let to = self.tm.create_end_point("0@lo:12345:35:9").unwrap();
        Operation::Send { to, length_bytes: 60 }
    }

    /// A descriptor of another transfer machine's buffer.
    fn descriptor(queue: QueueType, size_bytes: u64) -> BulkDescriptor {
        let address = LnetAddress::parse("0@lo:12345:36:5").unwrap();
        LnetDescriptor { match_bits: join(5, 77), address, queue, size_bytes }.encode().unwrap()
    }

    fn get(&self) -> Operation {
        Operation::ActiveReceive { from: Self::descriptor(QueueType::PassiveSend, 80) }
    }

    fn finish(mut self) {
        self.tm.stop(StopMode::Abort).unwrap();
        loop {
            if let Some(Event::Tm(_)) = self.events.next_blocking() {
                break;
            }
        }
        self.tm.finish().unwrap();
    }
}

const RECEIVE: Operation = Operation::Receive { min_receive_bytes: 25, max_messages: 4 };

fn md(length_bytes: u64, threshold: u32, added: &Added) -> MdPlan {
    MdPlan { length_bytes, max_size_bytes: None, threshold, user_ptr: added.id.number }
}

/// A message of a transfer machine 9 on portal 35.
fn message(added: &Added, length_bytes: u64, offset_bytes: u64) -> NetworkEvent {
    let initiator = Some(PEER);
    let put = event(EventKind::Put, added.id.number);
    NetworkEvent { length_bytes, offset_bytes, hdr_data: join(9, 35), initiator, ..put }
}

#[test]
fn kc_03_and_kc_04_addresses_are_parsed_and_printed() {
    for text in [
        "127.0.0.1@tcp:12345:30:10",
        "127.0.0.1@tcp:12345:30:*",
        "4.4.4.4@tcp:42:29:28",
        "4.4.4.4@xdp:12345:29:28",
        "fd00:1111:2222:3333:4444:5555:6666:7777@xdp65535:4294967295:63:4095",
    ] {
        assert_eq!(LnetAddress::parse(text).unwrap().to_string(), text);
    }
    for wrong in [
        "x@tcp:12345:30:10",
        "127.0.0.1:12345:30:10",
        "127.0.0.1@tcp:x:30:10",
        "127.0.0.1@tcp:12345:x:10",
        "127.0.0.1@tcp:12345:30:x",
        "127.0.0.1@tcp:12345:30:-10",
        "127.0.0.1@tcp:12345:30:0",
        "127.0.0.1@tcp:12345:30:4096",
        "127.0.0.1@tcp:12345:30:10 ",
        "127.0.0.1@tcp:12345:30",
        "127.0.0.1@tcp",
        "",
        "fd00:1111:2222:3333:4444:5555:6666:7777:8888@tcp:12345:30:1",
        "<?>:12345:30:1",
    ] {
        assert_eq!(LnetAddress::parse(wrong).unwrap_err().errno(), Errno::Invalid, "{wrong}");
    }
}

#[test]
fn kc_05_match_bits_and_header_data() {
    for tmid in [0, 1, 4095] {
        for low in [0, 1, 30, 63, NAME_MASK] {
            assert_eq!(split(join(tmid, low)), (tmid, low));
        }
    }
    assert_eq!(LnetAddress::of_sender(PEER, 0), None, "header data of no transfer machine");
}

#[test]
fn kc_07_and_kc_08_a_receive_buffer_takes_several_messages() {
    let mut setup = Setup::new();
    let (added, call) = setup.add(RECEIVE);
    let md = MdPlan { max_size_bytes: Some(25), ..md(100, 4, &added) };
    let (match_bits, initiator) = (join(7, 0), None);
    assert_eq!(call, Call::Attach { portal: 34, match_bits, allowed: Allowed::Put, initiator, md });
    let (reserved, size) = setup.tm.event_room().unwrap();
    assert_eq!((reserved, size > 4), (4, true), "a slot for each message, and one that is free");
    for (number, offset) in [(0, 0), (1, 10), (2, 20)] {
        setup.lnet.post(event(EventKind::Ack, added.id.number));
        let message = message(&added, 10, offset);
        setup.lnet.post(if number == 2 { last(message) } else { message });
        let event = setup.event();
        assert_eq!((event.status, event.length_bytes, event.offset_bytes), (Ok(()), 10, offset));
        assert_eq!(event.end_point.as_ref().unwrap().address(), "0@lo:12345:35:9");
        assert_eq!((event.is_last(), setup.tm.queued(added.id).is_none()), (number == 2, number == 2));
        // Slots of messages that have not come go with the last one.
        let reserved = if number == 2 { 0 } else { 4 };
        assert_eq!(setup.tm.event_room(), Some((reserved, size)));
    }
    assert_eq!(setup.counts(QueueType::Receive), (1, 0, 3, 0));
    assert!(setup.events.try_next().is_none());
    setup.finish();
}

#[test]
fn kc_09_events_that_were_stalled_come_in_their_order() {
    let mut setup = Setup::new();
    let (added, _) = setup.add(RECEIVE);
    setup.lnet.lab(|lab| lab.is_stalled = true);
    for offset in [0, 10, 20] {
        setup.lnet.post(message(&added, 10, offset));
    }
    assert!(setup.events.try_next().is_none());
    setup.lnet.release();
    let offsets = [(); 3].map(|()| setup.event().offset_bytes);
    assert_eq!(offsets, [0, 10, 20]);
    setup.finish();
}

/// A message that names no sender stands for an end point that cannot be made.
#[test]
fn kc_10_messages_without_a_sender_are_counted_and_the_last_is_told() {
    let mut setup = Setup::new();
    let (added, _) = setup.add(RECEIVE);
    let nameless = || NetworkEvent { hdr_data: 0, ..message(&added, 10, 0) };
    setup.lnet.post(message(&added, 10, 0));
    assert_eq!(setup.event().status, Ok(()));
    setup.lnet.post(nameless());
    setup.lnet.post(failed(message(&added, 10, 0)));
    setup.lnet.post(last(nameless()));
    assert_eq!(setup.end(), (Err(Errno::Protocol), 10));
    assert_eq!(setup.counts(QueueType::Receive), (1, 0, 1, 3));
    setup.finish();
}

#[test]
fn kc_11_a_message_is_sent() {
    let mut setup = Setup::new();
    for fails in [false, true] {
        let (added, call) = setup.add(setup.send());
        let to =
            Target { process: PEER, portal: 35, match_bits: join(9, 0), offset: 0, self_nid: Some(Nid::LO) };
        assert_eq!(call, Call::Put { to, hdr_data: join(7, 34), md: md(60, 1, &added) });
        // The callback of the round before drops its reference behind its event.
        setup.tm.wait(None, |front| front.callback_count() == 0);
        let peer = setup.tm.create_end_point("0@lo:12345:35:9").unwrap();
        assert_eq!(peer.reference_count(), 2);
        drop(peer);
        assert_eq!(setup.tm.event_room().map(|(reserved, _)| reserved), Some(1));
        let sent = last(event(EventKind::Send, added.id.number));
        setup.lnet.post(if fails { failed(sent) } else { sent });
        assert_eq!(setup.end(), (if fails { Err(Errno::Io) } else { Ok(()) }, 0));
        assert_eq!(setup.tm.event_room().map(|(reserved, _)| reserved), Some(0));
        assert_eq!(setup.counts(QueueType::Send), (1, 0, u64::from(!fails), u64::from(fails)));
    }
    setup.finish();
}

/// What LNet tells of a GET, and the one event that it makes.
#[test]
fn kc_14_to_kc_16_reply_and_send_in_either_order() {
    let mut setup = Setup::new();
    let reply = |id| NetworkEvent { length_bytes: 80, ..event(EventKind::Reply, id) };
    // Its length is none of the data's.
    let send = |id| NetworkEvent { length_bytes: 3, ..event(EventKind::Send, id) };
    let unlink = |id| event(EventKind::Unlink, id);
    type Told<'a> = &'a dyn Fn(u64) -> Vec<NetworkEvent>;
    let cases: [(Told<'_>, (Status, u64)); 7] = [
        (&|id| vec![send(id), last(reply(id))], (Ok(()), 80)),
        (&|id| vec![reply(id), last(send(id))], (Ok(()), 80)),
        (&|id| vec![last(failed(send(id)))], (Err(Errno::Io), 0)),
        (&|id| vec![send(id), last(failed(reply(id)))], (Err(Errno::Io), 80)),
        (&|id| vec![failed(reply(id)), last(send(id))], (Err(Errno::Io), 80)),
        (&|id| vec![last(send(id))], (Err(Errno::Canceled), 0)),
        (&|id| vec![last(unlink(id))], (Err(Errno::Canceled), 0)),
    ];
    for (number, (told, expected)) in cases.into_iter().enumerate() {
        let (added, call) = setup.add(setup.get());
        let from =
            Target { process: PEER, portal: 36, match_bits: join(5, 77), offset: 0, self_nid: Some(Nid::LO) };
        assert_eq!(call, Call::Get { from, md: md(80, 2, &added) }, "the passive size");
        for event in told(added.id.number) {
            setup.lnet.post(event);
        }
        assert_eq!(setup.end(), expected, "case {number}");
    }
    assert!(setup.events.try_next().is_none());
    assert_eq!(setup.counts(QueueType::ActiveReceive), (7, 0, 2, 5));
    setup.finish();
}

#[test]
fn kc_17_an_active_send() {
    let mut setup = Setup::new();
    for (kind, fails, expected) in [
        (EventKind::Send, false, Ok(())),
        (EventKind::Send, true, Err(Errno::Io)),
        (EventKind::Unlink, false, Err(Errno::Canceled)),
    ] {
        let to = Setup::descriptor(QueueType::PassiveReceive, 80);
        let (added, call) = setup.add(Operation::ActiveSend { to, length_bytes: 50 });
        let to =
            Target { process: PEER, portal: 36, match_bits: join(5, 77), offset: 0, self_nid: Some(Nid::LO) };
        assert_eq!(call, Call::Put { to, hdr_data: 0, md: md(50, 1, &added) });
        let event = last(event(kind, added.id.number));
        setup.lnet.post(if fails { failed(event) } else { event });
        assert_eq!(setup.end().0, expected);
    }
    setup.finish();
}

#[test]
fn kc_18_identifiers_are_shared_out() {
    let addresses = Arc::new(Addresses::default());
    let claim = |text: &str| addresses.claim(LnetAddress::parse(text).unwrap());
    let any = || claim("1.1.1.1@tcp:12345:30:*");
    let [first, middle, third] = [(); 3].map(|()| any().unwrap());
    assert_eq!([&first, &middle, &third].map(|claim| claim.tmid()), [4095, 4094, 4093]);
    drop(middle);
    let again = any().unwrap();
    assert_eq!((again.tmid(), any().unwrap().tmid()), (4094, 4092));
    assert_eq!(again.address().to_string(), "1.1.1.1@tcp:12345:30:4094");
    assert_eq!(claim("1.1.1.1@tcp:12345:30:4094").unwrap_err().errno(), Errno::AddressInUse);
    for other in ["1.1.1.1@tcp:12345:31:*", "1.1.1.2@tcp:12345:30:*"] {
        assert_eq!(claim(other).unwrap().tmid(), 4095, "{other}");
    }
    let fixed = claim("1.1.1.1@tcp:12345:30:4092").unwrap();
    let rest: Vec<_> = std::iter::from_fn(|| any().ok()).collect();
    assert_eq!(rest.len() + 4, usize::from(TMID_MAX));
    assert_eq!(rest.last().unwrap().tmid(), 1);
    assert_eq!(any().unwrap_err().errno(), Errno::AddressNotAvailable);
    drop(fixed);
    assert_eq!(any().unwrap().tmid(), 4092);
}

#[test]
fn kc_19_what_lnet_refuses_is_refused() {
    let setup = Setup::new();
    setup.lnet.lab(|lab| lab.refuse = Some(Errno::NoMemory));
    let to = Setup::descriptor(QueueType::PassiveReceive, 80);
    let send = Operation::PassiveSend { initiator: None, length_bytes: 1 };
    for operation in [
        RECEIVE,
        setup.send(),
        Operation::PassiveReceive { initiator: None },
        send,
        setup.get(),
        Operation::ActiveSend { to, length_bytes: 50 },
    ] {
        let queue = operation.queue();
        let refused = setup.tm.add(setup.domain.allocate(1, 100).unwrap(), operation).unwrap_err();
        assert_eq!((refused.error.errno(), refused.buffer.memory().size_bytes()), (Errno::NoMemory, 100));
        assert_eq!((setup.counts(queue), setup.tm.queue_length(queue)), ((0, 0, 0, 0), 0));
        assert_eq!(setup.tm.event_room().map(|(reserved, _)| reserved), Some(0), "{queue:?}");
    }
    setup.lnet.lab(|lab| lab.refuse = None);
    setup.finish();
}

/// A message that is refused when its descriptor is there: the memory comes with the end of that.
#[test]
fn a_message_that_is_refused_late_ends_with_the_reason() {
    let mut setup = Setup::new();
    setup.lnet.lab(|lab| (lab.refuse, lab.refuses_late) = (Some(Errno::NoMemory), true));
    setup.add(setup.send());
    let event = setup.event();
    assert_eq!((event.status, event.buffer().unwrap().memory().size_bytes()), (Err(Errno::NoMemory), 100));
    drop(event);
    setup.lnet.lab(|lab| lab.refuse = None);
    setup.finish();
}

#[test]
fn a_node_that_ends_gives_the_buffers_back() {
    let mut setup = Setup::new();
    setup.add(RECEIVE);
    setup.add(setup.send());
    setup.lnet.lab(|lab| lab.has_ended = true);
    setup.lnet.release();
    for _ in 0..2 {
        let event = setup.event();
        assert_eq!((event.status, event.buffer().unwrap().memory().size_bytes()), (Err(Errno::Io), 100));
    }
    assert!(matches!(setup.events.next_blocking(), Some(Event::Tm(_))));
    assert_eq!(setup.tm.state(), TmState::Failed);
    setup.tm.finish().unwrap();
}

#[test]
fn kc_20_an_event_may_come_before_the_call_returns() {
    let mut setup = Setup::new();
    setup.lnet.lab(|lab| lab.at_once = Some(|id| last(event(EventKind::Send, id))));
    for _ in 0..100 {
        setup.add(setup.send());
        assert_eq!(setup.end(), (Ok(()), 0));
    }
    setup.lnet.lab(|lab| lab.at_once = None);
    setup.finish();
}

#[test]
fn kc_21_a_transfer_machine_that_is_dropped_unlinks_and_waits() {
    let setup = Setup::new();
    let (added, _) = setup.add(RECEIVE);
    let Setup { lnet, domain, tm, events } = setup;
    drop((tm, events));
    let begun = Instant::now();
    while domain.tm_count() != 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(lnet.lab(|lab| lab.cancelled.clone()), [added.id.number]);
    assert_eq!(domain.buffer_count(), 0);
    domain.finish().unwrap();
}

#[test]
fn ln_12_to_ln_14_descriptors_and_sizes() {
    let sent = Setup::descriptor(QueueType::PassiveSend, 80);
    let decoded = LnetDescriptor::decode(&sent).unwrap();
    assert_eq!(decoded.encode().unwrap(), sent);
    let bulk = |queue, size, active, local| {
        let described = LnetDescriptor::decode(&Setup::descriptor(queue, size)).unwrap();
        described.bulk(active, local).map(|bulk| bulk.length_bytes).map_err(|error| error.errno())
    };
    use QueueType::{ActiveReceive, ActiveSend, PassiveReceive, PassiveSend};
    for (queue, active, local, expected) in [
        (PassiveSend, ActiveReceive, 80, Ok(80)),
        (PassiveSend, ActiveReceive, 81, Ok(80)),
        (PassiveSend, ActiveReceive, 79, Err(Errno::TooBig)),
        (PassiveSend, ActiveSend, 80, Err(Errno::NotPermitted)),
        (PassiveReceive, ActiveSend, 80, Ok(80)),
        (PassiveReceive, ActiveSend, 79, Ok(79)),
        (PassiveReceive, ActiveSend, 81, Err(Errno::TooBig)),
        (PassiveReceive, ActiveReceive, 80, Err(Errno::NotPermitted)),
    ] {
        assert_eq!(bulk(queue, 80, active, local), expected, "{queue:?} {active:?} {local}");
    }
    for nid in ["10.0.0.1@xdp", "fd00::1:2@tcp3", "fd00:1111:2222:3333:4444:5555:6666:7777@xdp"] {
        let mut large = decoded;
        large.address.process.nid = nid.parse().unwrap();
        let encoded = large.encode().unwrap();
        assert_eq!(LnetDescriptor::decode(&encoded).unwrap(), large);
        let bytes = encoded.as_bytes();
        assert_eq!(bytes.len(), 48);
        for place in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[place] ^= 0x10;
            let changed = BulkDescriptor::from_bytes(&changed);
            assert_eq!(LnetDescriptor::decode(&changed).unwrap_err().errno(), Errno::Invalid, "{place}");
        }
    }
    for match_bits in [join(5, 0), join(6, 1)] {
        let forged = LnetDescriptor { match_bits, ..decoded };
        assert_eq!(forged.bulk(ActiveReceive, 80).unwrap_err().errno(), Errno::Invalid);
    }
}

#[test]
fn ln_22_a_success_that_was_there_before_the_deadline_counts() {
    let mut setup = Setup::new();
    let deadline = Instant::now() + Duration::from_millis(20);
    let addition = Addition::from(setup.send()).deadline(deadline);
    setup.lnet.lab(|lab| lab.is_stalled = true);
    let added = setup.tm.add(setup.domain.allocate(1, 100).unwrap(), addition).unwrap();
    setup.lnet.post(last(event(EventKind::Send, added.id.number)));
    let begun = Instant::now();
    while !setup.tm.queued(added.id).unwrap().flags.timed_out {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    // The UNLINK of the fake's descriptor would come behind that; of one that has ended there is none.
    setup.lnet.lab(|lab| lab.events.truncate(1));
    setup.lnet.release();
    assert_eq!(setup.end(), (Ok(()), 0));
    setup.finish();
}
