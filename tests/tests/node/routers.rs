//! A router between two nodes on nets of other LNDs: payloads arrive as they were sent, and are copied no
//! more than they must be.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use lnet_load::Pattern;
use lnet_model::pool::PoolKind;
use lnet_model::route::RouteSpec;
use lnet_tests::netns::{Interface, Namespace, Netns, Wiring, enter, wait_until};
use lnet_tests::node::{LIMITS, config};
use lnet_user::api::{Ack, EventQueue, Lnet, QueuedEvent, Target};
use lnet_user::lnet_core::node::NodeChange;
use lnet_user::lnet_wire::socklnd::Version;
use lnet_user::lnet_wire::{Net, NetType, Parameter};
use lnet_user::node::{Carrier, LndOptions, NiConfig, XdpMode};
use lnet_user::{
    Buffer, EntrySpec, EventKind, Limits, MdOptions, MdSpec, Nid, Policy, Request, Status, Threshold,
};

use crate::dialler::{Dialler, Greeting, header, message, privileged as privileged_stream, put};
use crate::privileged;

const PATIENCE: Duration = Duration::from_secs(20);
const PORTAL: u32 = 41;
/// Payload of a long message.
const LONG: usize = 1 << 20;

/// Carrier of the net of one side.
#[derive(Clone, Copy)]
struct Side {
    net_type: NetType,
    mode: Option<XdpMode>,
    is_ipv6: bool,
}

const TCP: Side = Side { net_type: NetType::TCP, mode: None, is_ipv6: false };

const fn xdp(mode: XdpMode) -> Side {
    Side { net_type: NetType::XDP, mode: Some(mode), is_ipv6: false }
}

impl Side {
    fn net(self, rail: usize) -> Net {
        Net::new(self.net_type, rail as u16 + 1)
    }

    fn nid(self, rail: usize, interface: &Interface) -> Nid {
        let address: IpAddr =
            if self.is_ipv6 { interface.ipv6.unwrap().into() } else { interface.ipv4.into() };
        Nid::new_ip(self.net(rail), address).unwrap()
    }

    fn ni(self, rail: usize, interface: &Interface) -> NiConfig {
        NiConfig::new(self.nid(rail, interface), &interface.name).mode(self.mode)
    }
}

/// Nodes with a router between.
struct Routed {
    ends: [Lnet; 2],
    nids: [Nid; 2],
    router: Lnet,
    // Last: nothing is inside when it goes.
    netns: Netns,
}

fn start(namespace: &Namespace, nis: Vec<NiConfig>, shards: u32, registered_bytes: u64) -> Lnet {
    let base = config(namespace, Nid::LO);
    let policies = vec![(PORTAL as u8, Policy::Pin(0))];
    let mut config = base.nis(nis).shards(shards).policies(policies).registered_bytes(registered_bytes);
    config = config.limits(Limits { forwards: 1 << 10, ..LIMITS });
    let frames = config.frames_for(2, 4);
    let lnet = enter(namespace, || Lnet::start(&config.frames(Some(frames))).unwrap());
    lnet.open().unwrap();
    lnet
}

fn change(lnet: &Lnet, changes: Vec<NodeChange<LndOptions>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(lnet.request(Request::batch(changes))).unwrap();
}

fn next(queue: &mut EventQueue, kind: EventKind) -> QueuedEvent {
    loop {
        let queued = queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
        if queued.event.kind() == kind {
            return queued;
        }
    }
}

/// The last event of a descriptor, which brings its buffer home.
fn last(queue: &mut EventQueue) -> QueuedEvent {
    loop {
        let queued = queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
        assert_eq!(queued.event.status(), Status::Ok);
        if queued.event.unlinked() {
            return queued;
        }
    }
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Pattern::of(0, seed, 0).fill(0, &mut bytes);
    bytes
}

impl Routed {
    fn new(sides: [Side; 2], shards: u32, mtus: [u16; 2]) -> Self {
        Self::with_memory(sides, shards, mtus, 0)
    }

    /// Nodes whose router has so much memory of its rings for buffers; with some the rings have long messages
    /// too.
    fn with_memory(sides: [Side; 2], shards: u32, mtus: [u16; 2], registered_bytes: u64) -> Self {
        let netns = Netns::new(Wiring { rails: 2, queues: 2, ..Wiring::default() });
        let (near, far) = (netns.a(), netns.b());
        for (rail, mtu) in mtus.into_iter().enumerate() {
            for side in [near, far] {
                let name = &side.interfaces()[rail].name;
                lnet_tests::netns::ip(side, &format!("link set dev {name} mtu {mtu}"));
            }
        }
        // Checks are often, and a net is idle after long: the machine may be busy.
        let waits = [(Parameter::AliveRouterCheckInterval, 1), (Parameter::RouterPingTimeout, 20)];
        let waits = waits.map(|(parameter, value)| NodeChange::SetParameter { parameter, value }).to_vec();
        let own = |rail: usize| {
            let ni = sides[rail].ni(rail, &far.interfaces()[rail]);
            let has_rings = registered_bytes > 0 && sides[rail].mode.is_some();
            ni.carrier(has_rings.then_some(Carrier::Rings))
        };
        let router = start(far, Vec::new(), shards, registered_bytes);
        let pools = PoolKind::ALL.map(|pool| NodeChange::SetPool { pool, buffer_count: 128 });
        let nis = [0, 1].map(|rail| NodeChange::AddNi(own(rail).spec(&router.lnd_defaults())));
        // A node that comes so is a router at once.
        change(&router, [&waits[..], &nis, &[NodeChange::SetRouting { on: true }], &pools].concat());
        let nids = [0, 1].map(|rail| sides[rail].nid(rail, &near.interfaces()[rail]));
        let ends = [0, 1].map(|rail| {
            let end = start(near, vec![sides[rail].ni(rail, &near.interfaces()[rail])], 2, 0);
            let route = RouteSpec::new(sides[1 - rail].net(1 - rail), own(rail).nid);
            change(&end, [waits.clone(), vec![NodeChange::AddRoute(route)]].concat());
            end
        });
        let begun = Instant::now();
        while !ends.iter().all(|end| end.machine().net_routes().all(|route| route.is_up)) {
            assert!(begun.elapsed() < PATIENCE, "routes are up");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { ends, nids, router, netns }
    }

    /// A host of the first net, which is one of `tcp`.
    fn dialler(&self, number: u8) -> Dialler {
        let [near, far] = [self.netns.a(), self.netns.b()].map(|side| &side.interfaces()[0]);
        let [a, b, c, _] = near.ipv4.octets();
        let address = Ipv4Addr::new(a, b, c, 100 + number);
        lnet_tests::netns::ip(self.netns.a(), &format!("address add {address}/24 dev {}", near.name));
        let stream = enter(self.netns.a(), || privileged_stream(address, far.ipv4, 1024).0);
        let source = Nid::new_ip(TCP.net(0), address.into()).unwrap();
        Dialler::connected(stream, Greeting::new(source, TCP.nid(0, far)))
    }

    /// The half of a long Put to the other net comes from a host.
    fn begin(&self, host: &mut Dialler, match_bits: u64, bytes: &[u8]) {
        let header = header(host.greeting.source, self.nids[1], LONG as u32, put(PORTAL, match_bits));
        host.say(&[message(Version::V3, &header), bytes[..LONG / 2].to_vec()].concat());
    }

    /// Puts and Gets of an end at the other one, so many at once.
    fn exchange(&self, from: usize, length: usize, count: u64) {
        let (end, other, to) = (&self.ends[from], &self.ends[1 - from], self.nids[1 - from]);
        let (here, there) = (end.shard(1).unwrap(), other.shard(0).unwrap());
        let mut ends = here.create_event_queue(128).unwrap();
        let mut arrived = there.create_event_queue(128).unwrap();
        let spec = |queue: &EventQueue, count, options| {
            MdSpec::new(length as u64, Threshold::Count(count), options, queue.handle())
        };
        let sources: Vec<_> = (0..count)
            .map(|number| {
                let taken = spec(&arrived, 1, MdOptions::PUT);
                let entry = EntrySpec::new(PORTAL, number);
                there.attach(&entry, &taken, Buffer::zeroed(length)).unwrap().detach();
                let source = Buffer::from(pattern(number, length));
                here.bind(&spec(&ends, 2, MdOptions::NONE), source).unwrap()
            })
            .collect();
        for (source, number) in sources.iter().zip(0..) {
            source.put(&Target::new(to, PORTAL, number), Ack::Wanted, number).queue().unwrap();
        }
        for _ in 0..count {
            let put = next(&mut arrived, EventKind::Put);
            let number = put.event.match_bits().unwrap();
            assert_eq!(put.event.status(), Status::Ok, "{:?}, {:?} slow", put.event, self.cuts());
            assert!(put.payload() == Some(&pattern(number, length)), "{length} bytes, Put {number}");
            last(&mut ends);
        }
        for number in 0..count {
            let given = spec(&arrived, 1, MdOptions::GET);
            let bytes = Buffer::from(pattern(100 + number, length));
            there.attach(&EntrySpec::new(PORTAL, 100 + number), &given, bytes).unwrap().detach();
            let sink = here.bind(&spec(&ends, 2, MdOptions::NONE), Buffer::zeroed(length)).unwrap();
            sink.get(&Target::new(to, PORTAL, 100 + number)).queue().unwrap();
            let gotten = last(&mut ends).into_buffer().unwrap();
            assert!(*gotten == pattern(100 + number, length), "{length} bytes, Get {number}");
        }
    }

    fn exchange_all(&self) {
        for from in [0, 1] {
            for (length, count) in [(0, 20), (64, 40), (4096, 20), (1 << 20, 12)] {
                self.exchange(from, length, count);
            }
            let pinged = self.ends[from].ping(self.nids[1 - from], None, PATIENCE).unwrap();
            assert_eq!(pinged.nids, [self.nids[1 - from]]);
        }
        // Buffers are free when what they had has been sent.
        let begun = Instant::now();
        for shard in self.router.shards() {
            let is_free = || {
                let pools = shard.run(|worker| worker.shard().router_pools()).unwrap();
                pools.iter().all(|pool| pool.credits == i64::from(pool.buffers))
            };
            while !is_free() {
                assert!(begun.elapsed() < PATIENCE, "buffers are in use");
            }
            assert_eq!(shard.counters().unwrap().dropped().messages, 0);
        }
    }

    /// Sum of what the router's shards have counted under this name.
    fn counted(&self, name: &'static str) -> u64 {
        counted(&self.router, name)
    }

    /// Messages that went on before they were whole, and those of them that did not come in time.
    fn cuts(&self) -> [u64; 2] {
        let counters = self.router.shards().map(|shard| shard.counters().unwrap());
        counters.fold([0; 2], |[cuts, slow], counters| [cuts + counters.cuts, slow + counters.cuts_slow])
    }
}

/// Sum of what the shards of a node have counted under this name.
fn counted(lnet: &Lnet, name: &'static str) -> u64 {
    lnet.shards().map(|shard| shard.run(move |worker| worker.counted(name)).unwrap().unwrap()).sum()
}

/// Long payloads are received by the kernel into the router's buffers, and sent out of them.
#[test]
fn tcp_to_tcp_copies_nothing_long() {
    if !privileged() {
        return;
    }
    for (shards, mtus) in [(1, [1500, 1500]), (4, [9000, 1500])] {
        let routed = Routed::new([TCP, TCP], shards, mtus);
        routed.exchange_all();
        let long_bytes = (2 * 24) << 20;
        let names = [
            "payload_bytes_placed",
            "payload_bytes_copied",
            "payload_bytes_lent",
            "payload_bytes_copied_out",
        ];
        let [placed, copied, lent, copied_out] = names.map(|name| routed.counted(name));
        assert!(placed + copied >= long_bytes && placed > long_bytes * 9 / 10, "{placed} and {copied}");
        assert!(lent >= long_bytes && copied_out < 1 << 20, "{lent} and {copied_out}");
    }
}

#[test]
fn tcp_and_xdp_are_routed_between() {
    if !privileged() {
        return;
    }
    for (mode, shards) in [(XdpMode::Socket, 1), (XdpMode::Native, 4), (XdpMode::Generic, 2)] {
        Routed::new([TCP, xdp(mode)], shards, [1500, 1500]).exchange_all();
    }
    Routed::new([xdp(XdpMode::Native), TCP], 2, [1500, 9000]).exchange_all();
}

#[test]
fn xdp_and_xdp_are_routed_between() {
    if !privileged() {
        return;
    }
    for (modes, shards, mtus) in [
        ([XdpMode::Native; 2], 2, [1500, 1500]),
        ([XdpMode::Socket; 2], 4, [9000, 1500]),
        ([XdpMode::Native, XdpMode::Generic], 4, [1500, 1500]),
    ] {
        Routed::new(modes.map(xdp), shards, mtus).exchange_all();
    }
}

#[test]
fn a_side_may_have_ipv6() {
    if !privileged() {
        return;
    }
    let large = |side: Side| Side { is_ipv6: true, ..side };
    for sides in [
        [large(TCP), large(TCP)],
        [large(TCP), xdp(XdpMode::Native)],
        [large(xdp(XdpMode::Socket)), large(TCP)],
    ] {
        Routed::new(sides, 2, [1500, 1500]).exchange_all();
    }
}

/// A source that says half of a message, and the rest when the other end has that.
#[test]
fn half_of_a_message_arrives_before_the_rest_is_sent() {
    if !privileged() {
        return;
    }
    for (mode, shards) in [(XdpMode::Socket, 1), (XdpMode::Native, 1), (XdpMode::Native, 4)] {
        let routed = Routed::new([TCP, xdp(mode)], shards, [1500, 1500]);
        let there = routed.ends[1].shard(0).unwrap();
        let mut arrived = there.create_event_queue(16).unwrap();
        let mut host = routed.dialler(0);
        let bytes = pattern(7, LONG);
        let spec = MdSpec::new(LONG as u64, Threshold::Count(1), MdOptions::PUT, arrived.handle());
        there.attach(&EntrySpec::new(PORTAL, 7), &spec, Buffer::zeroed(LONG)).unwrap().detach();
        let before = counted(&routed.ends[1], "taken");
        routed.begin(&mut host, 7, &bytes);
        let half_frames = (LONG / 2 / 1500) as u64;
        wait_until("the other end has half of it", PATIENCE, || {
            counted(&routed.ends[1], "taken") - before > half_frames
        });
        host.say(&bytes[LONG / 2..]);
        let put = next(&mut arrived, EventKind::Put);
        assert_eq!(put.event.status(), Status::Ok);
        assert!(put.payload() == Some(&bytes[..]));
        assert_eq!(routed.cuts()[0], 1);
        // All of it has passed by then.
        wait_until("buffers are free", PATIENCE, || {
            let shards = routed.router.shards();
            let pools = shards.flat_map(|shard| shard.run(|worker| worker.shard().router_pools()).unwrap());
            pools.into_iter().all(|pool| pool.credits == i64::from(pool.buffers))
        });
    }
}

/// Sources that stop in the middle: others pass, and nothing of theirs stays at the other end.
#[test]
fn sources_that_stop_hold_up_no_other() {
    if !privileged() {
        return;
    }
    let routed = Routed::new([TCP, xdp(XdpMode::Native)], 1, [1500, 1500]);
    let bytes = pattern(7, LONG);
    let mut hosts: Vec<_> = (0..8).map(|number| routed.dialler(number)).collect();
    let there = routed.ends[1].shard(0).unwrap();
    let mut arrived = there.create_event_queue(64).unwrap();
    for number in 0..8 {
        let spec = MdSpec::new(LONG as u64, Threshold::Count(1), MdOptions::PUT, arrived.handle());
        there.attach(&EntrySpec::new(PORTAL, 1000 + number), &spec, Buffer::zeroed(LONG)).unwrap().detach();
    }
    for (host, number) in hosts.iter_mut().zip(0..) {
        routed.begin(host, 1000 + number, &bytes);
    }
    wait_until("one is slow", PATIENCE, || routed.cuts()[1] > 0);
    let begun = Instant::now();
    for (length, count) in [(64, 40), (LONG, 12)] {
        routed.exchange(0, length, count);
    }
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    drop(hosts);
    let failed = next(&mut arrived, EventKind::Put);
    assert_ne!(failed.event.status(), Status::Ok);
    routed.exchange_all();
    wait_until("nothing arrives at the other end", PATIENCE, || {
        let mut shards = routed.ends[1].shards();
        shards.all(|shard| {
            shard.run(|worker| worker.xdp().map_or(0, |lnd| lnd.transfer_usage().incoming)).unwrap() == 0
        })
    });
}

/// Frames are copied once, into a buffer, and leave it without a copy; from `tcp` the kernel puts it there.
#[test]
fn buffers_in_the_memory_of_rings_spare_a_copy() {
    if !privileged() {
        return;
    }
    const COUNT: u64 = 12;
    for first in [TCP, xdp(XdpMode::Native)] {
        for shards in [1, 3] {
            let sides = [first, xdp(XdpMode::Native)];
            let routed = Routed::with_memory(sides, shards, [9000, 9000], 72 << 20);
            routed.exchange(0, LONG, COUNT);
            let bytes = COUNT * LONG as u64;
            let names = ["payload bytes in place", "payload bytes copied out", "payload bytes copied"];
            let [in_place, copied_out, copied] = names.map(|name| routed.counted(name));
            assert!(in_place > bytes * 9 / 10 && in_place < bytes * 3, "{in_place} of {bytes}");
            // Gets come the other way, and leave by `tcp` or, as Puts do, in place.
            assert!(copied_out < bytes / 8, "{copied_out} of {bytes}");
            let arrive = if first.mode.is_some() { 2 * bytes } else { bytes };
            assert!((arrive..arrive + bytes / 8).contains(&copied), "{copied} of {arrive}");
        }
    }
}
