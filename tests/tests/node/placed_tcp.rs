//! Payload of the tcp LND goes straight into the memory of its descriptor, on whichever shard that is.

use std::time::Duration;

use lnet_core::event::EventKind;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_load::Pattern;
use lnet_tests::netns::{Namespace, Netns, Wiring, enter};
use lnet_tests::node::config;
use lnet_user::api::{Ack, EventQueue, Lnet, QueuedEvent, Target};
use lnet_user::node::NiConfig;
use lnet_user::{Buffer, Nid, Policy, ShardHandle};

use crate::dialler::nid;
use crate::privileged;

const SHARDS: u32 = 2;
/// The portal that is pinned to the first shard; the next one is pinned to the second.
const PORTAL: u32 = 40;
const PATIENCE: Duration = Duration::from_secs(20);
const LONG_BYTES: usize = 1 << 20;
/// More than a connection takes at once.
const MESSAGES: u32 = 12;

fn start(namespace: &Namespace) -> Lnet {
    let interface = namespace.interface();
    let base = config(namespace, Nid::LO);
    let mut policies = base.policies.clone();
    policies.extend((0..SHARDS).map(|shard| ((PORTAL + shard) as u8, Policy::Pin(shard as u8))));
    let config = base.nis(vec![NiConfig::new(nid(interface.ipv4), &interface.name)]).policies(policies);
    let lnet = enter(namespace, || Lnet::start(&config).unwrap());
    lnet.open().unwrap();
    lnet
}

/// What the shards of a node have counted under this name.
fn counted(lnet: &Lnet, name: &'static str) -> u64 {
    let count = |shard: ShardHandle| shard.run(move |worker| worker.counted(name)).unwrap().unwrap();
    (0..SHARDS).map(|shard| count(lnet.shard(shard as usize).unwrap())).sum()
}

fn next(queue: &mut EventQueue, kind: EventKind) -> QueuedEvent {
    loop {
        let queued = queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
        if queued.event.kind() == kind {
            return queued;
        }
    }
}

fn spec(queue: &EventQueue, count: u32, options: MdOptions) -> MdSpec {
    MdSpec::new(LONG_BYTES as u64, Threshold::Count(count), options, queue.handle())
}

fn pattern(seed: u32) -> Vec<u8> {
    let mut bytes = vec![0; LONG_BYTES];
    Pattern::of(0, seed.into(), 0).fill(0, &mut bytes);
    bytes
}

/// Puts to a portal of the far node and Gets from there, several at once.
fn exchange(near: &Lnet, far: &Lnet, to: Nid, pinned: u32) {
    let (from, at) = (near.shard(0).unwrap(), far.shard(pinned as usize).unwrap());
    let portal = PORTAL + pinned;
    let mut ends = from.create_event_queue(128).unwrap();
    let mut arrived = at.create_event_queue(128).unwrap();
    let sources: Vec<_> = (0..MESSAGES)
        .map(|number| {
            let taken = spec(&arrived, 1, MdOptions::PUT);
            let entry = EntrySpec::new(portal, u64::from(number));
            at.attach(&entry, &taken, Buffer::zeroed(LONG_BYTES)).unwrap().detach();
            let source = spec(&ends, 2, MdOptions::NONE);
            from.bind(&source, Buffer::from(pattern(number))).unwrap()
        })
        .collect();
    for (source, number) in sources.iter().zip(0..) {
        source.put(&Target::new(to, portal, number), Ack::Wanted, number).queue().unwrap();
    }
    for _ in 0..MESSAGES {
        let put = next(&mut arrived, EventKind::Put);
        let lnet_core::event::Event::Put { hdr_data, .. } = put.event else { unreachable!() };
        assert!(put.payload() == Some(&pattern(hdr_data as u32)[..]), "message {hdr_data}");
        next(&mut ends, EventKind::Ack);
    }
    drop(sources);
    let read = spec(&arrived, 1, MdOptions::GET);
    let sinks: Vec<_> = (0..MESSAGES)
        .map(|number| {
            let entry = EntrySpec::new(portal, u64::from(number));
            at.attach(&entry, &read, Buffer::from(pattern(number))).unwrap().detach();
            from.bind(&spec(&ends, 2, MdOptions::NONE), Buffer::zeroed(LONG_BYTES)).unwrap()
        })
        .collect();
    for (sink, number) in sinks.iter().zip(0..) {
        sink.get(&Target::new(to, portal, number)).queue().unwrap();
    }
    // A buffer comes home with the later one of SEND and REPLY.
    let mut read = Vec::new();
    while read.len() < sinks.len() {
        let queued = ends.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
        read.extend(queued.into_buffer());
    }
    for number in 0..MESSAGES {
        let bytes = pattern(number);
        assert!(read.iter().any(|buffer| buffer[..] == bytes[..]), "REPLY {number}");
    }
}

#[test]
fn long_payload_is_copied_on_no_shard() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [near, far] = [netns.a(), netns.b()].map(start);
    let nids = [netns.a(), netns.b()].map(|side| nid(side.interface().ipv4));
    let bytes = LONG_BYTES as u64 * u64::from(MESSAGES);
    let counts = || {
        let names = ["payload_bytes_copied", "payload_bytes_placed"];
        [&near, &far].map(|node| names.map(|name| counted(node, name)))
    };
    // The first messages go by the connection that is made first, among short ones.
    exchange(&near, &far, nids[1], 0);
    for (from, to, nid) in [(&near, &far, nids[1]), (&far, &near, nids[0])] {
        // A shard of the two is not that of the connections.
        for pinned in 0..SHARDS {
            let before = counts();
            exchange(from, to, nid, pinned);
            let expected = before.map(|[copied, placed]| [copied, placed + bytes]);
            assert_eq!(counts(), expected, "copied and placed, to {nid}, portal of shard {pinned}");
        }
    }
}
