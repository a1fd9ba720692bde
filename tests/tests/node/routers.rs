//! A router between two nodes on nets of other LNDs: payloads arrive as they were sent, and are copied no
//! more than they must be.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use lnet_load::Pattern;
use lnet_model::pool::PoolKind;
use lnet_model::route::RouteSpec;
use lnet_tests::netns::{Interface, Namespace, Netns, Wiring, enter};
use lnet_tests::node::{LIMITS, config};
use lnet_user::api::{Ack, EventQueue, Lnet, QueuedEvent, Target};
use lnet_user::lnet_core::node::NodeChange;
use lnet_user::lnet_wire::{Net, NetType, Parameter};
use lnet_user::node::{LndOptions, NiConfig, XdpMode};
use lnet_user::{
    Buffer, EntrySpec, EventKind, Limits, MdOptions, MdSpec, Nid, Policy, Request, Status, Threshold,
};

use crate::privileged;

const PATIENCE: Duration = Duration::from_secs(20);
const PORTAL: u32 = 41;

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
    _netns: Netns,
}

fn start(namespace: &Namespace, nis: Vec<NiConfig>, shards: u32) -> Lnet {
    let base = config(namespace, Nid::LO);
    let policies = vec![(PORTAL as u8, Policy::Pin(0))];
    let mut config = base.nis(nis).shards(shards).policies(policies);
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
        let own = |rail: usize| sides[rail].ni(rail, &far.interfaces()[rail]);
        let router = start(far, Vec::new(), shards);
        let pools = PoolKind::ALL.map(|pool| NodeChange::SetPool { pool, buffer_count: 128 });
        let nis = [0, 1].map(|rail| NodeChange::AddNi(own(rail).spec(&router.lnd_defaults())));
        // A node that comes so is a router at once.
        change(&router, [&waits[..], &nis, &[NodeChange::SetRouting { on: true }], &pools].concat());
        let nids = [0, 1].map(|rail| sides[rail].nid(rail, &near.interfaces()[rail]));
        let ends = [0, 1].map(|rail| {
            let end = start(near, vec![sides[rail].ni(rail, &near.interfaces()[rail])], 2);
            let route = RouteSpec::new(sides[1 - rail].net(1 - rail), own(rail).nid);
            change(&end, [waits.clone(), vec![NodeChange::AddRoute(route)]].concat());
            end
        });
        let begun = Instant::now();
        while !ends.iter().all(|end| end.machine().net_routes().all(|route| route.is_up)) {
            assert!(begun.elapsed() < PATIENCE, "routes are up");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { ends, nids, router, _netns: netns }
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
        self.router
            .shards()
            .map(|shard| shard.run(move |worker| worker.counted(name)).unwrap().unwrap())
            .sum()
    }
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
