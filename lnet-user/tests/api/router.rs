//! A router between two nodes of other nets, over the in-process LND.

use std::time::{Duration, Instant};

use lnet_model::pool::PoolKind;
use lnet_model::route::RouteSpec;
use lnet_user::lnet_core::node::{NodeChange, RouterState};
use lnet_user::lnet_core::shard::PoolUsage;
use lnet_user::lnet_wire::{NetType, Parameter};
use lnet_user::node::LndOptions;
use lnet_user::{
    Ack, Buffer, EntrySpec, EventKind, Limits, Lnet, LnetError, MdOptions, Net, NiConfig, Nid, QueuedEvent,
    Request, Target,
};

use crate::common::{PATIENCE, PINNED, config, post, spec};

type Change = NodeChange<LndOptions>;

/// Buffers of the pools.
const POOLS: [u32; 3] = [8, 600, 5];

fn nid(net: u16, host: u8) -> Nid {
    Nid::new_ip(Net::new(NetType::XDP, net), [10, 9, net as u8, host].into()).unwrap()
}

fn ni(fabric: &str, net: u16, host: u8) -> NiConfig {
    NiConfig::new(nid(net, host), &format!("in-process:{fabric}{net}"))
}

fn node(nis: Vec<NiConfig>, shards: u32) -> Lnet {
    let config = config(shards);
    let limits = Limits { nis: 2, forwards: 1 << 10, ..config.limits };
    let lnet = Lnet::start(&config.nis(nis).limits(limits)).unwrap();
    lnet.open().unwrap();
    lnet
}

fn change(lnet: &Lnet, changes: Vec<Change>) -> Result<(), LnetError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(lnet.request(Request::batch(changes))).map(drop)
}

/// Looks at gateways come soon. A net counts as idle after both times together, which a busy machine may take
/// for a look.
fn waits() -> Vec<Change> {
    let waits = [(Parameter::AliveRouterCheckInterval, 1), (Parameter::RouterPingTimeout, 5)];
    waits.map(|(parameter, value)| NodeChange::SetParameter { parameter, value }).to_vec()
}

fn pool(pool: PoolKind, buffer_count: u32) -> Change {
    NodeChange::SetPool { pool, buffer_count }
}

/// Use of the pools of all shards.
fn pools(lnet: &Lnet) -> [PoolUsage; 3] {
    let mut sum = [PoolUsage::default(); 3];
    for shard in lnet.shards() {
        for (sum, pool) in sum.iter_mut().zip(shard.run(|worker| worker.shard().router_pools()).unwrap()) {
            sum.buffers += pool.buffers;
            sum.credits += pool.credits;
        }
    }
    sum
}

#[track_caller]
fn until(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Two nodes on nets of their own, with a router between.
struct Routed {
    ends: [Lnet; 2],
    router: Lnet,
}

impl Routed {
    fn new(fabric: &str, shards: u32) -> Self {
        let router = node(vec![ni(fabric, 1, 9), ni(fabric, 2, 9)], shards);
        change(&router, waits()).unwrap();
        let ends = [(1, 2), (2, 1)].map(|(net, far)| {
            let end = node(vec![ni(fabric, net, 1)], 2);
            let route = RouteSpec::new(Net::new(NetType::XDP, far), nid(net, 9));
            change(&end, [waits(), vec![NodeChange::AddRoute(route)]].concat()).unwrap();
            end
        });
        Self { ends, router }
    }

    fn turn_on(&self) {
        let mut changes = vec![NodeChange::SetRouting { on: true }];
        changes.extend(PoolKind::ALL.into_iter().zip(POOLS).map(|(kind, count)| pool(kind, count)));
        change(&self.router, changes).unwrap();
        let is_up = |end: &Lnet| end.machine().net_routes().all(|route| route.is_up);
        until("its ends know it", || self.ends.iter().all(is_up));
    }

    /// The next event of a kind.
    fn next(queue: &mut lnet_user::EventQueue, kind: EventKind) -> QueuedEvent {
        loop {
            let queued = queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
            if queued.event.kind() == kind {
                return queued;
            }
        }
    }

    /// Puts and gets of the first node at the second.
    fn exchange(&self, length: usize) {
        let [near, far] = &self.ends;
        let (from, to) = (near.shard(1).unwrap(), far.shard(1).unwrap());
        let (mut sent, mut arrived) =
            (from.create_event_queue(32).unwrap(), to.create_event_queue(32).unwrap());
        let bytes: Vec<u8> = (0..length).map(|index| (index ^ index >> 8) as u8).collect();
        post(&to, &arrived, PINNED[1], 7, length);
        let source =
            from.bind(&spec(&sent, length, 2, MdOptions::NONE), Buffer::from(bytes.clone())).unwrap();
        source.put(&Target::new(nid(2, 1), PINNED[1], 7), Ack::Wanted, 0).start().unwrap();
        assert_eq!(Self::next(&mut arrived, EventKind::Put).payload(), Some(&bytes[..]), "{length} bytes");
        assert!(Self::next(&mut sent, EventKind::Ack).event.status() == lnet_user::Status::Ok);
        let served = spec(&arrived, length, 1, MdOptions::GET);
        to.attach(&EntrySpec::new(PINNED[1], 8), &served, Buffer::from(bytes.clone())).unwrap().detach();
        let sink = from.bind(&spec(&sent, length, 2, MdOptions::NONE), Buffer::zeroed(length)).unwrap();
        sink.get(&Target::new(nid(2, 1), PINNED[1], 8)).start().unwrap();
        loop {
            let queued = sent.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
            if queued.event.unlinked() && queued.event.md() == sink.handle() {
                break assert_eq!(*queued.into_buffer().unwrap(), bytes, "{length} bytes");
            }
        }
    }

    /// No buffer is in use.
    #[track_caller]
    fn rests(&self) {
        until("a buffer is in use", || {
            pools(&self.router).iter().all(|pool| pool.credits == pool.buffers.into())
        });
    }
}

#[test]
fn messages_are_forwarded_between_nets() {
    for shards in [1, 4] {
        let routed = Routed::new(&format!("routed-{shards}"), shards);
        assert_eq!(pools(&routed.router), [PoolUsage::default(); 3]);
        routed.turn_on();
        let made = pools(&routed.router).map(|pool| pool.buffers);
        assert!(
            made.iter().zip(POOLS).all(|(made, asked)| (asked..asked + shards).contains(made)),
            "{made:?}"
        );
        for length in [0, 1, 64, 4096, 4097, 1 << 20] {
            routed.exchange(length);
        }
        routed.rests();
        let [near, far] = &routed.ends;
        for (end, to) in [(near, nid(2, 1)), (far, nid(1, 1))] {
            assert_eq!(end.ping(to, None, PATIENCE).unwrap().nids, [to]);
        }
        let counters = routed.router.shards().map(|shard| shard.counters().unwrap().routed.messages);
        assert!(counters.sum::<u64>() > 24);
    }
}

/// Pools follow what is set, also where that is too much; memory goes with routing.
#[test]
fn pools_grow_and_shrink() {
    let routed = Routed::new("pools", 2);
    routed.turn_on();
    let router = &routed.router;
    let buffers = || pools(router).map(|pool| pool.buffers);
    change(router, vec![pool(PoolKind::Small, 40), pool(PoolKind::Large, 8)]).unwrap();
    assert_eq!(buffers(), [8, 40, 8]);
    let error = change(router, vec![pool(PoolKind::Small, 1 << 20)]).unwrap_err();
    assert!(error.to_string().contains("are too many"), "{error}");
    assert_eq!(buffers(), [8, 40, 8]);
    routed.exchange(1 << 20);
    change(router, vec![NodeChange::SetRouting { on: false }]).unwrap();
    // Its ends are told at once, and send it nothing new.
    assert_eq!(router.machine().router_state(), RouterState::Stopping);
    until("it is off", || router.machine().router_state() == RouterState::Off);
    until("they go", || buffers() == [0; 3]);
    let [near, _] = &routed.ends;
    until("its ends know it", || near.machine().net_routes().all(|route| !route.is_up));
    near.ping(nid(2, 1), None, PATIENCE).unwrap_err();
    routed.turn_on();
    routed.exchange(4096);
}
