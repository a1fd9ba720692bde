//! Nodes, and what tests say to them again and again.

use std::time::{Duration, Instant};

use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{
    Buffer, EntrySpec, EventQueue, Limits, Lnet, MdOptions, MdSpec, Nid, NodeConfig, Policy, QueuedEvent,
    ShardHandle, Target, Threshold,
};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Portals: pinned to shard 0 and 1, served by all, and by all and lazy.
pub(crate) const PINNED: [u32; 2] = [4, 5];
pub(crate) const ROTOR: u32 = 6;
pub(crate) const LAZY: u32 = 7;

pub(crate) fn config(shards: u32) -> NodeConfig {
    let last = shards as u8 - 1;
    NodeConfig::loopback()
        .shards(shards)
        .policies(vec![
            (4, Policy::Pin(0)),
            (5, Policy::Pin(1.min(last))),
            (6, Policy::Rotor),
            (7, Policy::Rotor),
        ])
        .limits(Limits {
            match_entries: 1 << 9,
            memory_descs: 1 << 10,
            event_queues: 16,
            events: 1 << 13,
            unlimited_events: 1 << 6,
            spare_events: 0,
            requests: 1 << 8,
            responses: 1 << 8,
            forwards: 0,
            incoming: 1 << 6,
            delayed: 1 << 6,
            peers: 1 << 4,
            nis: 1,
        })
}

/// A node whose shards sleep whenever they can.
pub(crate) fn start(shards: u32) -> Lnet {
    let idle = Idle::new(Duration::ZERO);
    let lnet = Lnet::start_on(&config(shards), &Threads::new().idle(idle)).unwrap();
    lnet.set_lazy(LAZY, true).unwrap();
    // `lnet-without-uring` says so.
    if let Some(expected) = std::env::var_os("LNET_TESTS_REACTOR") {
        assert_eq!(expected, lnet.reactor().reactor.name());
    }
    lnet
}

pub(crate) fn spec(queue: &EventQueue, length: usize, count: u32, options: MdOptions) -> MdSpec {
    MdSpec::new(length as u64, Threshold::Count(count), options, queue.handle())
}

/// Posts room for one PUT.
pub(crate) fn post(shard: &ShardHandle, queue: &EventQueue, portal: u32, match_bits: u64, length: usize) {
    let md = spec(queue, length, 1, MdOptions::PUT);
    shard.attach(&EntrySpec::new(portal, match_bits), &md, Buffer::zeroed(length)).unwrap().detach();
}

/// This node.
pub(crate) fn to_self(portal: u32, match_bits: u64) -> Target {
    Target::new(Nid::LO, portal, match_bits)
}

#[track_caller]
pub(crate) fn next(queue: &mut EventQueue) -> QueuedEvent {
    queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event in time")
}

/// Waits until a shard holds nothing any more.
#[track_caller]
pub(crate) fn await_idle(shard: &ShardHandle) {
    let begun = Instant::now();
    loop {
        let usage = shard.usage().unwrap();
        if (usage.memory_descs, usage.match_entries, usage.events, usage.messages) == (0, 0, 0, 0) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{usage:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
