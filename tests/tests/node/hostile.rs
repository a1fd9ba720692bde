//! Broken and hostile frames: each is counted under its reason, none leaks a frame or stops the traffic of a
//! good peer.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lnet_core::stats::DropReason;
use lnet_io::netlink::Interface;
use lnet_io::xsk::{self, Kick, QueueConfig, RingDescriptor, Umem, UmemConfig};
use lnet_tests::bpf::frames::{self, Frame};
use lnet_tests::bpf::random::{Random, seed};
use lnet_tests::netns::{Namespace, Netns, Wiring, enter, ip, wait_until};
use lnet_tests::node::message::{HOSTILE_BIT, Message, seal};
use lnet_tests::node::{
    Account, By, FLOOD_PORTALS, Flood, Flooded, Flooder, Stranger, config, nid_v4, process, settle,
    settle_both, start, stop_all,
};
use lnet_user::node::{NiConfig, NodeDriver, XdpMode};
use lnet_user::runtime::Worker;
use lnet_wire::frame::{self, FIRST_HEADERS_BYTES, Kind};
use lnet_wire::nid::{Net, NetType};
use lnet_wire::packet::Reason;
use lnet_wire::{Body, MessageType, Nid, WireHandle};
use lnet_xdp::XdpDrop;
use lnet_xdp_proto::XferDrop;

use crate::privileged;
use crate::traffic::PATIENCE;

/// Payload of the flood that is posted for; other Puts are too long.
const ROOM_BYTES: u32 = 64;
/// What a veth holds of a sender's frames before it drops: a pause comes before.
const BURST: usize = 100;

/// Where the LNet header begins, and fields in it (its large form).
const HEADER: usize = frame::FRAME_HEADER_BYTES;
const HEADER_SOURCE: usize = HEADER + 20;
const HEADER_TYPE: usize = HEADER + 48;
const HEADER_LENGTH: usize = HEADER + 52;
const HEADER_MATCH_BITS: usize = HEADER + 56 + 16;
const HEADER_PORTAL: usize = HEADER + 56 + 32;

struct Victim {
    netns: Netns,
    node: NodeDriver,
    workers: Vec<Worker>,
    nid: Nid,
    peer: Nid,
}

impl Victim {
    fn new() -> Self {
        Self::of_mode(XdpMode::Auto)
    }

    fn of_mode(mode: XdpMode) -> Self {
        let netns = Netns::new(Wiring::default());
        let [nid, peer] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
        let interface = &netns.a().interface().name;
        let nis = vec![NiConfig::new(nid, interface), NiConfig::new(second_nid(netns.a()), interface)];
        // Strangers are remembered for the whole of a test, and what they do not acknowledge ends in time.
        let config = config(netns.a(), nid).nis(nis).mode(mode).lnd_timeout(PATIENCE / 3 * 2);
        let (node, workers) = start(netns.a(), &config);
        Self { netns, node, workers, nid, peer }
    }

    fn put(&self, portal: u32, match_bits: u64, length_bytes: usize) -> Message {
        Message::put(self.peer, self.nid, portal, match_bits, length_bytes)
    }
}

/// The NID of an interface's second NI, on a net of its own.
fn second_nid(namespace: &Namespace) -> Nid {
    let address = namespace.interface().ipv6.expect("a kernel with IPv6");
    Nid::new_ip(lnet_wire::Net::new(lnet_wire::NetType::XDP, 1), address.into()).unwrap()
}

/// Packets that an interface has sent.
fn sent_packets(namespace: &Namespace) -> u64 {
    let file = format!("/sys/class/net/{}/statistics/tx_packets", namespace.interface().name);
    let output = Command::new("ip").args(["netns", "exec", namespace.name(), "cat", &file]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Packets that the peer sent before the program was there.
fn unseen(namespace: &Namespace, node: &NodeDriver, workers: &[Worker]) -> u64 {
    loop {
        let sent = sent_packets(namespace);
        // A pause for what is on its way: XDP sees a packet within microseconds.
        std::thread::sleep(Duration::from_millis(20));
        let seen = Account::of(node, workers).seen();
        if sent_packets(namespace) == sent {
            return sent - seen;
        }
    }
}

/// Waits until XDP has seen all that the peer has sent, but `unseen` packets: they were sent before the
/// program was there. A packet of another sender may arrive at any moment.
fn wait_until_seen(namespace: &Namespace, unseen: u64, node: &NodeDriver, workers: &[Worker]) {
    wait_until("XDP has seen every packet that was sent", PATIENCE, || {
        let sent = sent_packets(namespace);
        Account::of(node, workers).seen() + unseen == sent
    });
}

fn with_byte(datagram: &[u8], offset: usize, value: u8) -> Vec<u8> {
    let mut bytes = datagram.to_vec();
    bytes[offset] = value;
    seal(&mut bytes);
    bytes
}

/// Every way of being broken that there is a counter for, with its name.
fn broken(victim: &Victim, stranger: &mut Stranger) -> Vec<(String, Vec<u8>)> {
    let mut cases = Vec::new();
    // A frame to shard 1: it takes a first frame of a session while that is young, and forgets it when no
    // further ones come for long. What is for both shards goes first, and then what is for shard 0.
    let md = WireHandle { interface_cookie: 1, object_cookie: 4 };
    let ack = Body::Ack { md, match_bits: 0, manipulated_length: 0 };
    let ack = stranger.sign(Message::new(victim.peer, victim.nid, ack, vec![])).datagram();
    cases.push((DropReason::UnknownMd.to_string(), ack));
    cases.extend(refused(victim, stranger));
    let mut fresh = || stranger.sign(victim.put(10, 3, 20)).datagram();
    let first = fresh();
    let good = fresh();
    let mut add = |name: &str, bytes: Vec<u8>| cases.push((name.to_owned(), bytes));
    add("taken", first.clone());
    add(XferDrop::Duplicate.name(), first);
    for length in 0..FIRST_HEADERS_BYTES + 1 {
        add(Reason::BadLength.name(), good[..length].to_vec());
    }
    // A fragment that does not end where fragments end.
    for length in FIRST_HEADERS_BYTES + 1..good.len() {
        add(XferDrop::Malformed.name(), good[..length].to_vec());
    }
    for offset in 0..4 {
        add(Reason::BadMagic.name(), with_byte(&good, offset, 0));
    }
    for value in [0, 12, 255] {
        add(Reason::BadVersion.name(), with_byte(&good, frame::VERSION_OFFSET, value));
        add(Reason::BadVersion.name(), with_byte(&good, frame::KIND_OFFSET, value));
    }
    for value in [4, 5, 255] {
        add(Reason::BadType.name(), with_byte(&good, frame::TYPE_OFFSET, value));
    }
    for value in [64, 255] {
        add(Reason::BadPortal.name(), with_byte(&good, frame::PORTAL_OFFSET, value));
    }
    // Lengths: beyond the most that there is, less than there is, an offset beyond the end.
    add(Reason::BadLength.name(), with_byte(&good, frame::TOTAL_LENGTH_OFFSET + 3, 0xFF));
    add(Reason::BadLength.name(), with_byte(&good, frame::TOTAL_LENGTH_OFFSET, 19));
    add(Reason::BadLength.name(), with_byte(&good, frame::FRAGMENT_OFFSET_OFFSET + 3, 0xFF));
    add(XdpDrop::HeaderMismatch.name(), with_byte(&good, frame::TOTAL_LENGTH_OFFSET, 21));
    let mut later = good.clone();
    later[frame::FRAGMENT_OFFSET_OFFSET] = 1;
    later[frame::TOTAL_LENGTH_OFFSET + 2] = 1;
    seal(&mut later);
    add(XferDrop::Malformed.name(), later);
    // A bit of each byte that the checksum covers but those that decide something before.
    for offset in (frame::KEY_OFFSET..frame::FRAGMENT_OFFSET_OFFSET)
        .chain(frame::FRAME_NUMBER_OFFSET..FIRST_HEADERS_BYTES)
    {
        let mut bytes = good.clone();
        bytes[offset] ^= 0x10;
        add(XdpDrop::BadChecksum.name(), bytes);
    }
    // A flag and a shard that there are not.
    add(XdpDrop::BadHeader.name(), with_byte(&good, frame::FLAGS_OFFSET, 0x80));
    add(XdpDrop::BadHeader.name(), with_byte(&good, frame::SHARD_OFFSET, 64));
    for offset in [frame::INCARNATION_OFFSET, frame::SESSION_OFFSET] {
        add(XferDrop::UnknownSession.name(), with_byte(&good, offset, good[offset] ^ 1));
    }
    // The id of another shard than the one that sends, and one far older than there can be.
    add(XferDrop::Malformed.name(), with_byte(&good, frame::MESSAGE_ID_OFFSET + 7, 1));
    add(XferDrop::Malformed.name(), with_byte(&good, frame::OLDEST_OFFSET, 200));
    // A payload whose checksum is wrong.
    add(XdpDrop::PayloadCorrupt.name(), with_byte(&good, frame::FLAGS_OFFSET, frame::FLAG_PAYLOAD_CRC));
    add("taken", with_byte(&fresh(), FIRST_HEADERS_BYTES + 5, 1));
    // A frame for another NI of the node than it arrives by, as when a rail does not answer.
    let mut by_another = victim.put(10, 3, 20);
    by_another.header.destination.nid = second_nid(victim.netns.a());
    add("taken", stranger.sign(by_another).datagram());
    for (offset, value) in
        [(HEADER_LENGTH, 19), (HEADER_MATCH_BITS, 4), (HEADER_PORTAL, 11), (HEADER_TYPE, 2)]
    {
        add(XdpDrop::HeaderMismatch.name(), with_byte(&good, offset, value));
    }
    add(XdpDrop::HeaderMismatch.name(), with_byte(&good, HEADER_TYPE, 4));
    add(XdpDrop::BadHeader.name(), with_byte(&good, HEADER_TYPE, 5));
    add(XdpDrop::BadHeader.name(), with_byte(&good, HEADER_TYPE + 3, 1));
    // Answers without a question.
    let welcome = with_byte(&stranger.other(Kind::Hello), frame::KIND_OFFSET, Kind::Welcome as u8);
    for (kind, bytes) in [
        (XferDrop::Unasked, welcome),
        (XferDrop::BadAck, stranger.other(Kind::Ack)),
        (XferDrop::UnknownSession, stranger.other(Kind::Reset)),
        (XferDrop::Malformed, stranger.other(Kind::Deferred)),
        (XferDrop::Malformed, stranger.other(Kind::Pull)),
    ] {
        add(kind.name(), bytes);
    }
    cases.extend(short(victim, stranger));
    cases.extend(further(victim, stranger));
    cases
}

/// Short frames, good and broken.
fn short(victim: &Victim, stranger: &mut Stranger) -> Vec<(String, Vec<u8>)> {
    let mut cases = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| cases.push((name.to_owned(), bytes));
    let first = stranger.sign(victim.put(10, 3, 20)).short_datagram();
    add("taken", first.clone());
    add(XferDrop::Duplicate.name(), first);
    let message = stranger.sign(victim.put(10, 3, 20));
    let good = message.short_datagram();
    let changed = |offset: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[offset] = value;
        message.seal_short(&mut bytes);
        bytes
    };
    for length in 0..good.len() {
        add(Reason::BadLength.name(), good[..length].to_vec());
    }
    add(Reason::BadLength.name(), [&good[..], &[0]].concat());
    // A GET, a bundle, a later fragment.
    add(Reason::BadLength.name(), changed(frame::TYPE_OFFSET, 2));
    add(Reason::BadLength.name(), changed(frame::FLAGS_OFFSET, frame::FLAG_SHORT | frame::FLAG_BUNDLE));
    add(Reason::BadLength.name(), changed(frame::FRAGMENT_OFFSET_OFFSET, 1));
    for flag in [frame::FLAG_PULLED, 0x80] {
        add(XdpDrop::BadHeader.name(), changed(frame::FLAGS_OFFSET, frame::FLAG_SHORT | flag));
    }
    // A payload whose checksum is wrong.
    let has_checksum = frame::FLAG_SHORT | frame::FLAG_PAYLOAD_CRC;
    add(XdpDrop::PayloadCorrupt.name(), changed(frame::FLAGS_OFFSET, has_checksum));
    add(XferDrop::UnknownSession.name(), changed(frame::SESSION_OFFSET, good[frame::SESSION_OFFSET] ^ 1));
    add(XferDrop::Malformed.name(), changed(frame::MESSAGE_ID_OFFSET + 7, 1));
    for offset in frame::INCARNATION_OFFSET..frame::FRAME_HEADER_BYTES {
        if offset != frame::FLAGS_OFFSET {
            let mut bytes = good.clone();
            bytes[offset] ^= 0x10;
            add(XdpDrop::BadChecksum.name(), bytes);
        }
    }
    // A frame in the name of another node, and one to another.
    let mut by_another = message.clone();
    by_another.header.source.nid = victim.nid;
    add(XdpDrop::BadChecksum.name(), by_another.short_datagram());
    let mut to_another = message.clone();
    to_another.header.destination.nid = victim.peer;
    add(XdpDrop::BadChecksum.name(), to_another.short_datagram());
    cases
}

/// Frames with a second message that is broken; the first one is never taken.
fn further(victim: &Victim, stranger: &mut Stranger) -> Vec<(String, Vec<u8>)> {
    const RECORD_BYTES: usize = frame::RECORD_BYTES + 96;
    let mut cases = Vec::new();
    let mut bundle = stranger.sign(victim.put(10, 3, 20));
    bundle.frame.bundled = true;
    let mut add = |name: &str, record: &[u8]| {
        let bytes = [&bundle.datagram()[..], record].concat();
        cases.push((name.to_owned(), bytes));
    };
    for length in 0..frame::RECORD_BYTES {
        add(Reason::BadLength.name(), &vec![1; length]);
    }
    for length in frame::RECORD_BYTES..RECORD_BYTES {
        add(XdpDrop::BadHeader.name(), &vec![1; length]);
    }
    for length in [RECORD_BYTES, RECORD_BYTES + 1, 1000] {
        add(XdpDrop::BadChecksum.name(), &vec![1; length]);
    }
    cases
}

/// Frames that are what they should be, with messages that a shard refuses.
fn refused(victim: &Victim, stranger: &mut Stranger) -> Vec<(String, Vec<u8>)> {
    let &Victim { nid, peer, .. } = victim;
    let mut cases = Vec::new();
    let mut add = |name: DropReason, message: Message| {
        cases.push((name.to_string(), stranger.sign(message).datagram()));
    };
    add(DropReason::NoMatch, victim.put(9, 3, 20));
    add(DropReason::NoMatch, victim.put(10, 1 << 40, 20));
    add(DropReason::TooLong, victim.put(10, 3, ROOM_BYTES as usize + 1));
    let mut far = victim.put(10, 3, 20);
    let Body::Put { offset, .. } = &mut far.header.body else { panic!("a PUT") };
    *offset = u32::MAX;
    add(DropReason::TooLong, far);
    let mut elsewhere = victim.put(10, 3, 20);
    elsewhere.header.destination.nid = peer;
    add(DropReason::NotLocal, elsewhere);
    let mut from_nobody = victim.put(10, 3, 20);
    from_nobody.header.source.nid = Nid::ANY;
    add(DropReason::NoSource, from_nobody);
    // A net that the node is not on.
    let mut from_afar = victim.put(10, 3, 20);
    from_afar.header.source.nid = Nid::new_ip(Net::new(NetType::TCP, 9), [1, 2, 3, 4].into()).unwrap();
    let Body::Put { ack_md, .. } = &mut from_afar.header.body else { panic!("a PUT") };
    *ack_md = WireHandle { interface_cookie: 1, object_cookie: 2 };
    add(DropReason::ForgedSource, from_afar);
    let get = |sink_length| {
        let return_md = WireHandle { interface_cookie: 1, object_cookie: 2 };
        let body = Body::Get { return_md, match_bits: 3, portal: 10, offset: 0, sink_length };
        Message::new(peer, nid, body, vec![])
    };
    add(DropReason::NoMatch, get(0));
    add(DropReason::Malformed, get((1 << 20) + 1));
    add(DropReason::Malformed, get(u32::MAX));
    // Handles that were never given, of any kind, slot and shard.
    for object_cookie in [0, 1, 2, 3, 4, 7, 0x104, u64::MAX, u64::MAX << 1, 1 << 63, 0xFC] {
        for interface_cookie in [0, 1, u64::MAX] {
            let md = WireHandle { interface_cookie, object_cookie };
            let ack = Body::Ack { md, match_bits: 0, manipulated_length: u32::MAX };
            add(DropReason::UnknownMd, Message::new(peer, nid, ack, vec![]));
            add(DropReason::UnknownMd, Message::new(peer, nid, Body::Reply { md }, vec![1; 100]));
        }
    }
    cases
}

#[test]
fn each_broken_frame_is_counted_under_its_reason() {
    if !privileged() {
        return;
    }
    let mut victim = Victim::new();
    let flood = Flood::new(process(victim.nid), 1, ROOM_BYTES);
    let mut flooded: Vec<_> = victim
        .workers
        .iter_mut()
        .map(|worker| Flooded::post(&flood, victim.node.steering(), worker))
        .collect();
    let mut stranger = Stranger::new(victim.netns.b(), victim.peer, victim.nid);
    stranger.greet(|| {
        for worker in &mut victim.workers {
            worker.progress();
        }
    });
    let cases = broken(&victim, &mut stranger);
    let mut before = Account::of(&victim.node, &victim.workers);
    for (name, bytes) in &cases {
        stranger.send(bytes);
        let begun = Instant::now();
        let (after, changes) = loop {
            for (worker, flooded) in victim.workers.iter_mut().zip(&mut flooded) {
                worker.progress();
                flooded.turn(worker);
            }
            let after = Account::of(&victim.node, &victim.workers);
            let changes = after.since(&before);
            if !changes.is_empty() && after.steered == after.received + after.ring_losses {
                break (after, changes);
            }
            assert!(begun.elapsed() < PATIENCE, "{} bytes that are {name} are not counted", bytes.len());
        };
        let expected = std::iter::once((name.clone(), 1)).collect();
        assert_eq!(changes, expected, "{} bytes: {bytes:02x?}", bytes.len());
        before = after;
    }
    before.check();
    assert!(cases.len() > 350, "{}", cases.len());
}

/// Changes a good datagram; with a fitting checksum in most cases, so that what is behind it is met too.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(4) {
        let reach = bytes.len().min(FIRST_HEADERS_BYTES + 8);
        let (index, noise) = (random.below(reach), random.bits() as u8);
        bytes[index] = random.pick(&[0, 1, 0x7F, 0x80, 0xFF, bytes[index] ^ 1, noise]);
    }
    if random.once_in(10) {
        bytes.truncate(random.below(bytes.len()));
    }
    if !random.once_in(4) {
        seal(bytes);
    }
}

/// A datagram of the stranger's, whose NID is `own`; in the good peer's name now and then.
fn hostile(random: &mut Random, victim: &Victim, stranger: &mut Stranger, own: Nid) -> Vec<u8> {
    if random.once_in(50) {
        let mut noise = vec![0; random.below(400)];
        random.fill(&mut noise);
        return noise;
    }
    let &Victim { nid, peer, .. } = victim;
    let source = if random.once_in(4) { peer } else { own };
    let handle = WireHandle { interface_cookie: random.bits(), object_cookie: random.bits() };
    let portal = random.pick(&[9, 63]).min(FLOOD_PORTALS.start + random.below(8) as u32);
    let match_bits = random.below(40) as u64;
    let mut message = match random.below(5) {
        0 => Message::new(
            source,
            nid,
            Body::Ack { md: handle, match_bits, manipulated_length: random.bits() as u32 },
            vec![],
        ),
        1 => Message::new(source, nid, Body::Reply { md: handle }, vec![1; random.below(100)]),
        2 => {
            let (offset, sink_length) = (random.bits() as u32, random.bits() as u32 >> random.below(32));
            let body = Body::Get { return_md: handle, match_bits, portal, offset, sink_length };
            Message::new(source, nid, body, vec![])
        }
        _ => Message::put(source, nid, portal, match_bits, random.below(100)),
    };
    if let Body::Put { ack_md, hdr_data, offset, .. } = &mut message.header.body {
        *hdr_data = HOSTILE_BIT | random.bits();
        *offset = random.bits() as u32 >> random.below(32);
        // An acknowledgement, to the good peer as well, which did not ask for it.
        if random.once_in(4) {
            *ack_md = handle;
        }
    }
    let mut bytes = stranger.sign(message).datagram();
    if !random.once_in(4) {
        damage(random, &mut bytes);
        // Header data stay hostile, so that the Put is not taken for one of the flood.
        if let Some(byte) = bytes.get_mut(HEADER + 56 + 31) {
            let fits = *byte & 0x80 != 0;
            *byte |= 0x80;
            if !fits {
                seal(&mut bytes);
            }
        }
    }
    bytes
}

#[test]
fn a_good_peer_goes_on_among_hostile_datagrams() {
    const TEST: &str = "a_good_peer_goes_on_among_hostile_datagrams";
    const DATAGRAMS: usize = 100_000;
    if !privileged() {
        return;
    }
    let mut random = Random::new(seed(TEST));
    let victim = Victim::new();
    let flood = Flood::new(process(victim.nid), 1 << 40, ROOM_BYTES);
    let (peer_node, peer_workers) = start(victim.netns.b(), &config(victim.netns.b(), victim.peer));
    // The stranger has an address of its own, the node that of the interface.
    let other = Nid::new_ip(victim.peer.net(), [10, 211, 0, 77].into()).unwrap();
    ip(victim.netns.b(), &format!("address add 10.211.0.77/24 dev {}", victim.netns.b().interface().name));
    let mut stranger = Stranger::new(victim.netns.b(), other, victim.nid);
    let unseen = unseen(victim.netns.b(), &victim.node, &victim.workers);
    let mut victim = victim;
    let flooded = Flooded::start_all(&flood, victim.node.steering(), std::mem::take(&mut victim.workers));
    let flooders = Flooder::start_all(&flood, By::Application, peer_workers);
    let seen = |victim: &Victim| {
        let counters = victim.node.xdp_frames().unwrap();
        counters.slots.iter().map(|slot| slot.frames).sum::<u64>() + counters.reasons.values().sum::<u64>()
    };
    let (mut acked, mut stalls) = (0, 0);
    for burst in 0..DATAGRAMS / BURST {
        if burst % 10 == 0 {
            // Whatever the last life has told the victim of its ids.
            stranger.greet(|| {});
        }
        for _ in 0..BURST {
            let datagram = hostile(&mut random, &victim, &mut stranger, other);
            stranger.send(&datagram);
        }
        if burst % 10 == 9 {
            // Reading the counters is the pause.
            assert_ne!(seen(&victim), 0);
            stalls += u32::from(flood.acked() == acked);
            acked = flood.acked();
        }
    }
    flood.stop();
    let begun = Instant::now();
    while flood.acked() + flood.failed() < flood.started() && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    let (acked, started) = (flood.acked(), flood.started());
    assert_eq!((acked, flood.failed()), (started, 0), "{:?}", flood.failures());
    let (mut peer_workers, _) = stop_all(flooders);
    let (mut workers, _) = stop_all(flooded);
    // Responses to the stranger, which tells of several NIDs and has gone, are tried three times.
    settle_both(&mut peer_workers, &mut workers, PATIENCE * 3);
    let account = Account::of(&victim.node, &workers);
    account.check();
    wait_until_seen(victim.netns.b(), unseen, &victim.node, &workers);
    Account::of(&peer_node, &peer_workers).check();
    assert!(acked > 1000 && stalls < 50, "{acked} good Puts, {stalls} stalls; {account:?}");
    for reason in ["bad_magic", "bad_length", "bad_type", "bad_portal"] {
        assert!(account.reasons[reason] > 100, "{reason}: {account:?}");
    }
    let drops = [XdpDrop::BadChecksum, XdpDrop::HeaderMismatch].map(XdpDrop::name);
    let refusals = [XferDrop::Malformed, XferDrop::UnknownSession].map(XferDrop::name);
    let of_shards = [DropReason::NoMatch, DropReason::ForgedSource].map(|reason| reason.to_string());
    for reason in drops.into_iter().chain(refusals).map(str::to_owned).chain(of_shards) {
        assert!(account.drops[&reason] > 100, "{reason}: {account:?}");
    }
}

/// Frames of any kind straight from a ring of the peer's interface: broken Ethernet, IP and UDP headers too.
/// An `AF_XDP` socket that sends whatever there is to send.
struct RawSender {
    umem: Arc<Umem>,
    free: Vec<xsk::Frame>,
    queue: xsk::Queue,
}

impl RawSender {
    /// Sends by the interface of a namespace.
    fn new(namespace: &Namespace) -> Self {
        let (umem, free) = Umem::new(&UmemConfig::new(256)).unwrap();
        let queue = enter(namespace, || {
            let index = Interface::by_name(&namespace.interface().name).unwrap().index;
            xsk::open_queue(&umem, &QueueConfig::new(index, 0)).unwrap()
        });
        Self { umem, free, queue }
    }

    /// Puts a frame into the ring.
    fn push(&mut self, bytes: &[u8]) {
        let mut frame = self.free.pop().unwrap();
        self.umem.bytes_mut(&mut frame)[..bytes.len()].copy_from_slice(bytes);
        let length = bytes.len() as u32;
        let descriptor = RingDescriptor { frame, offset: 0, length, more: false };
        self.queue.sockets[0].tx.push(descriptor).unwrap();
    }

    /// Sends what is in the ring.
    fn flush(&mut self) {
        self.queue.sockets[0].tx.commit();
        while self.free.len() < 256 {
            assert_ne!(self.queue.sockets[0].device.kick().unwrap(), Kick::NoBuffers);
            self.queue.completion.drain(256, |frame| self.free.push(frame));
        }
    }
}

fn mac_of(namespace: &Namespace) -> [u8; 6] {
    enter(namespace, || Interface::by_name(&namespace.interface().name)).unwrap().mac.unwrap()
}

/// Frames of others that an interface takes in all the same, as one in promiscuous mode does, and those of a
/// VLAN, go where they go without a node; the Ethernet address is the one that the interface has now.
fn frames_of_others_pass_up(mode: XdpMode) {
    const COUNT: u64 = 10;
    if !privileged() {
        return;
    }
    let mut victim = Victim::of_mode(mode);
    let mut raw = RawSender::new(victim.netns.b());
    let address = victim.netns.a().interface().ipv4.into();
    // Frames of a kind that were steered, and that were not ours.
    let mut sent = |victim: &mut Victim, mac: [u8; 6], vlan: Option<u16>| {
        let mut frame = Frame::new(address, 988, MessageType::Put);
        (frame.mac, frame.vlan) = (mac, vlan);
        let counts = |victim: &Victim| {
            let account = Account::of(&victim.node, &victim.workers);
            (account.steered, account.reasons[Reason::NotOurs.name()])
        };
        let before = counts(victim);
        (0..COUNT).for_each(|_| raw.push(&frame.bytes()));
        raw.flush();
        let mut after = before;
        wait_until("all are seen", PATIENCE, || {
            after = counts(victim);
            after.0 + after.1 >= before.0 + before.1 + COUNT
        });
        settle(&mut victim.workers, PATIENCE);
        (after.0 - before.0, after.1 - before.1)
    };
    let (ours, others) = ((COUNT, 0), (0, COUNT));
    let mut mac = mac_of(victim.netns.a());
    for last in [0x17, 0x18] {
        assert_eq!(sent(&mut victim, mac, None), ours);
        for tci in [0, 0x2000, 0xF000] {
            assert_eq!(sent(&mut victim, mac, Some(tci)), ours, "{tci:#06x}");
        }
        for tci in [1, 7, 4095, 0xE007] {
            assert_eq!(sent(&mut victim, mac, Some(tci)), others, "{tci:#06x}");
        }
        let mut foreign = mac;
        foreign[5] ^= 1;
        for mac in [foreign, [0xFF; 6], [1, 0, 0x5E, 0, 0, 1]] {
            assert_eq!(sent(&mut victim, mac, None), others, "{mac:02x?}");
        }
        let former = std::mem::replace(&mut mac, [2, 0x5E, 0, 0, 0, last]);
        let text = mac.map(|byte| format!("{byte:02x}")).join(":");
        ip(victim.netns.a(), &format!("link set dev {} address {text}", victim.netns.a().interface().name));
        wait_until("the new address is followed", PATIENCE, || sent(&mut victim, mac, None) == ours);
        assert_eq!(sent(&mut victim, former, None), others);
    }
    Account::of(&victim.node, &victim.workers).check();
}

#[test]
fn frames_of_others_pass_up_in_native_mode() {
    frames_of_others_pass_up(XdpMode::Native);
}

#[test]
fn frames_of_others_pass_up_in_generic_mode() {
    frames_of_others_pass_up(XdpMode::Generic);
}

#[test]
fn raw_noise_is_counted_to_the_last_frame() {
    const TEST: &str = "raw_noise_is_counted_to_the_last_frame";
    const FRAMES: usize = 60_000;
    if !privileged() {
        return;
    }
    let mut random = Random::new(seed(TEST));
    let mut victim = Victim::new();
    let endpoints = victim.node_endpoints();
    let seen_before = Account::of(&victim.node, &victim.workers).seen();
    let unseen = unseen(victim.netns.b(), &victim.node, &victim.workers);
    let mac = mac_of(victim.netns.a());
    let mut raw = RawSender::new(victim.netns.b());
    let (mut sent, mut bytes) = (0, Vec::new());
    while sent < FRAMES {
        for _ in 0..BURST {
            frames::any(&mut random, &endpoints, &mut bytes);
            if bytes[..6] == frames::MAC {
                bytes[..6].copy_from_slice(&mac);
            }
            // What is longer than the MTU never leaves.
            bytes.truncate(1500);
            raw.push(&bytes);
            sent += 1;
        }
        raw.flush();
        for worker in &mut victim.workers {
            while worker.progress() {}
        }
    }
    settle(&mut victim.workers, PATIENCE);
    let account = Account::of(&victim.node, &victim.workers);
    account.check();
    assert!(account.seen() - seen_before >= FRAMES as u64);
    wait_until_seen(victim.netns.b(), unseen, &victim.node, &victim.workers);
    assert_eq!(account.ring_losses, 0, "{account:?}");
    for reason in Reason::ALL {
        let never = [Reason::NoShard, Reason::NoSocket, Reason::FaultDropped, Reason::FaultCorrupted];
        let count = account.reasons[reason.name()];
        assert_eq!(count == 0, never.contains(&reason), "{reason:?}: {account:?}");
    }
}

impl Victim {
    fn node_endpoints(&self) -> Vec<(std::net::IpAddr, u16)> {
        let interface = self.netns.a().interface();
        vec![(interface.ipv4.into(), 988), (interface.ipv6.unwrap().into(), 988)]
    }
}

/// Bytes on the wire that say a message type: the tests above count on them.
#[test]
fn the_offsets_of_the_header_are_right() {
    let nid = Nid::new_ip(Net::new(NetType::XDP, 0), [1, 2, 3, 4].into()).unwrap();
    let bytes = Message::put(nid, nid, 7, 9, 5).datagram();
    assert_eq!(bytes[HEADER_TYPE], MessageType::Put as u8);
    assert_eq!((bytes[HEADER_LENGTH], bytes[HEADER_MATCH_BITS], bytes[HEADER_PORTAL]), (5, 9, 7));
    assert_eq!(bytes[HEADER_SOURCE..HEADER_TYPE - 8], nid.to_bytes());
}
