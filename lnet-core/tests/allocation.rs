//! Nothing on the data path allocates after `Shard::new`.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

use std::sync::Arc;
use std::time::Duration;

use lnet_core::fault::{DelayRule, FAULT_RULES_MAX};
use lnet_core::handle::{BufferHandle, Cookie, CookieKind, EqHandle, ShardId};
use lnet_core::lnd::{
    Cause, NiId, Path, PathReport, PrefetchHint, PrefetchHints, RxId, Status, Uplink, Verdict,
};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::{EntrySpec, Position};
use lnet_core::shard::{GetRequest, PutRequest, SubmitError};
use lnet_core::stats::{DelayReason, DropReason};
use lnet_core::time::Instant;
use lnet_core::topology::{
    Forwarding, GatewayNi, HEALTH_MAX, LocalNi, NetRoutes, NiStatus, PRIORITY_NONE, PeerMap, PeerNid,
    PeerView, Steering, Topology,
};
use lnet_core::{Limits, Shard, ShardConfig};
use lnet_model::fault::{DropRule, Filter};
use lnet_model::pool::PoolKind;
use lnet_wire::steer::{PORTALS, Policy, PolicyWord};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

const NI: NiId = NiId(0);
const ANYONE: ProcessId = ProcessId::ANY;

fn host(last: u64) -> ProcessId {
    ProcessId::lustre(Nid::from_small(0x0002_0001_0A00_0000 + last).unwrap())
}

fn shard() -> Shard {
    let nid = host(1).nid;
    let message_timeout = Duration::from_secs(50);
    let ni = LocalNi::new(nid, 16, 4, message_timeout);
    let limits = Limits {
        match_entries: 100,
        memory_descs: 200,
        events: 1000,
        requests: 100,
        responses: 100,
        incoming: 16,
        peers: 10,
        ..Limits::DEFAULT
    };
    Shard::new(ShardConfig {
        shard: ShardId(0),
        shard_count: 1,
        seal_key: [1, 2],
        pid: ProcessId::LUSTRE_PID,
        limits,
        topology: Arc::new(Topology::new(vec![ni])),
        hash_seed: 1,
    })
}

fn descriptor(queue: EqHandle, options: MdOptions) -> MdSpec {
    MdSpec {
        length_bytes: 100,
        max_size_bytes: None,
        threshold: Threshold::Count(2),
        options,
        auto_unlink: true,
        event_queue: Some(queue),
        user_ptr: 0,
    }
}

/// Posts, sends and receives more of everything than there is room for, and lets it all end.
fn round(shard: &mut Shard, queue: EqHandle, now: Instant) {
    // More than are looked ahead at, twice.
    let announced = PrefetchHint { portal: 4, match_bits: 1, source: host(2) };
    (0..2).for_each(|_| shard.hint(&[announced; 200], |_| {}));
    let rule = DropRule {
        filter: Filter::EVERYTHING,
        rate: 50,
        interval_s: 0,
        random: false,
        drop_all: false,
        health_errors: Vec::new(),
    };
    let faults = shard.faults_mut();
    for peer in 0..FAULT_RULES_MAX as u64 {
        faults.add_drop_rule(now, &rule, peer).unwrap();
        faults.fail_peer(&host(200 + peer).nid, Threshold::Count(1)).unwrap();
    }
    faults.delete_drop_rules(&Nid::ANY, &Nid::ANY);
    faults.restore_peer(&Nid::ANY);
    faults.add_drop_rule(now, &rule, 1).unwrap();
    let mut entries = [None; 150];
    for number in 0..150 {
        let ignore_bits = number % 2;
        let spec = EntrySpec {
            portal: 4,
            source: ANYONE,
            match_bits: number,
            ignore_bits,
            auto_unlink: true,
            position: Position::First,
            is_of_node: false,
        };
        if let Ok(me) = shard.attach_entry(&spec) {
            shard.attach(me, &descriptor(queue, MdOptions::PUT | MdOptions::GET)).unwrap();
            entries[number as usize] = Some(me);
        }
    }
    assert_eq!(entries.iter().flatten().count(), 100);
    for number in 0..50 {
        let source = host(2 + number % 20);
        let ack_md = WireHandle { interface_cookie: 5, object_cookie: number };
        let put = Body::Put { ack_md, match_bits: number, hdr_data: 0, portal: 4, offset: 0 };
        let get = Body::Get { return_md: ack_md, match_bits: number, portal: 4, offset: 0, sink_length: 10 };
        for (body, payload_length) in [(put, 10), (get, 0)] {
            let header = Header { destination: host(1), source, payload_length, body };
            if shard.header(now, NI, &header.source.nid, RxId(0), &header) != Verdict::Drop {
                shard.received(now, RxId(0), Status::Ok);
            }
        }
    }
    let mut refused = false;
    for number in 0..60 {
        let spec = MdSpec { threshold: Threshold::Count(3), ..descriptor(queue, MdOptions::NONE) };
        let Ok(md) = shard.bind(&spec) else { break };
        let target = host(2 + number % 8);
        let put = PutRequest {
            md,
            part: None,
            ack: true,
            self_nid: None,
            target,
            portal: 4,
            match_bits: 0,
            offset: 0,
            hdr_data: 0,
        };
        let get = GetRequest { md, part: None, self_nid: None, target, portal: 4, match_bits: 0, offset: 0 };
        let started = (shard.put(now, &put), shard.get(now, &get));
        let full = Err(SubmitError::PeersFull);
        refused |= started == (full, full);
        // The others end for want of a response.
        if number % 4 == 0 || started == (full, full) {
            shard.unlink(md).unwrap();
        }
    }
    assert!(refused, "the peer table was never full");
    shard.handle_timeout(now + Duration::from_secs(60));
    while let Some(transmit) = shard.poll_transmit(now, NI).map(|lent| *lent.transmit) {
        shard.sent(now, transmit.tx, Status::Ok);
    }
    assert!(shard.counters().drops(DropReason::Fault).messages > 0);
    shard.faults_mut().delete_drop_rules(&Nid::ANY, &Nid::ANY);
    let timeouts = shard.counters().response_timeouts;
    shard.handle_timeout(now + Duration::from_secs(200));
    assert!(shard.counters().response_timeouts > timeouts);
    for me in entries.into_iter().flatten() {
        // Some have gone with their descriptors.
        let _ = shard.unlink_entry(me);
    }
    let mut ended = 0;
    while let Some(event) = shard.poll_event(queue) {
        ended += u32::from(event.unlinked());
    }
    assert!(ended > 100, "{ended} descriptors ended");
    assert_eq!((shard.usage().memory_descs, shard.usage().messages), (0, 0));
}

/// Two shards of a node, both of which serve the lazy portal 4.
fn shards() -> [Shard; 2] {
    let mut policies = [PolicyWord::default(); PORTALS];
    policies[4] = Policy::Rotor.pack().unwrap();
    let nid = host(1).nid;
    let message_timeout = Duration::from_secs(50);
    let ni = LocalNi::new(nid, 64, 64, message_timeout);
    let topology = Arc::new(Topology::new(vec![ni]).with_steering(Steering { shard_count: 2, policies }));
    [0, 1].map(|shard| {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(shard),
            shard_count: 2,
            seal_key: [1, 2],
            pid: ProcessId::LUSTRE_PID,
            limits: Limits { incoming: 64, delayed: 40, ..Limits::DEFAULT },
            topology: Arc::clone(&topology),
            hash_seed: 1,
        });
        shard.set_lazy(4).unwrap();
        shard
    })
}

/// Carries what the shards say, and ends what they resume; how many messages were taken.
fn settle(shards: &mut [Shard; 2], now: Instant) -> u32 {
    let mut taken = 0;
    let mut moved = true;
    while moved {
        moved = false;
        for from in 0..2 {
            while let Some(message) = shards[from].poll_mesh_to(ShardId(1 - from as u8)) {
                shards[1 - from].handle_mesh(now, ShardId(from as u8), message);
                moved = true;
            }
            while let Some((_, rx, verdict)) = shards[from].poll_resume() {
                if verdict != Verdict::Drop {
                    shards[from].received(now, rx, Status::Ok);
                    taken += 1;
                }
                moved = true;
            }
            while let Some(transmit) = shards[from].poll_transmit(now, NI).map(|lent| *lent.transmit) {
                shards[from].sent(now, transmit.tx, Status::Ok);
            }
        }
    }
    taken
}

/// More messages wait than may, for a delay rule, an entry and a sibling; some are given up.
fn wait(shards: &mut [Shard; 2], now: Instant) {
    let latency = Duration::from_secs(1);
    let rule = DelayRule { filter: Filter::EVERYTHING, rate: 3, interval: Duration::ZERO, latency };
    shards[0].faults_mut().add_delay_rule(now, &rule, 1).unwrap();
    let ack_md = WireHandle { interface_cookie: 5, object_cookie: 5 };
    for number in 0..51 {
        let body = Body::Put { ack_md, match_bits: number % 20, hdr_data: 0, portal: 4, offset: 0 };
        // One peer has its half, others the rest.
        let source = host(number.max(20));
        let header = Header { destination: host(1), source, payload_length: 10, body };
        let verdict = shards[0].header(now, NI, &header.source.nid, RxId(number as u32), &header);
        assert_eq!(verdict == Verdict::Delay, number < 41 && number != 20, "message {number}");
    }
    settle(shards, now);
    shards[0].delete_delay_rules(now, &Nid::ANY, &Nid::ANY);
    settle(shards, now);
    (0..4).for_each(|rx| shards[0].received(now, RxId(rx), Status::Unknown(Cause::Reset)));
    let mut taken = 0;
    for match_bits in 0..10 {
        for shard in 0..2 {
            let spec = EntrySpec {
                portal: 4,
                source: ANYONE,
                match_bits,
                ignore_bits: 0,
                auto_unlink: true,
                position: Position::Last,
                is_of_node: false,
            };
            let me = shards[shard].attach_entry(&spec).unwrap();
            let md = MdSpec { threshold: Threshold::Count(1), ..without_events() };
            shards[shard].attach(me, &md).unwrap();
            taken += settle(shards, now);
        }
    }
    // The entries match 20 messages, of which 4 were given up. The sibling's entries took each second one of
    // the others.
    assert_eq!(taken, 16);
    assert_eq!([shards[0].counters().lent, shards[1].counters().lent], [0, 6]);
    for shard in &mut *shards {
        shard.clear_lazy(4).unwrap();
        shard.set_lazy(4).unwrap();
    }
    settle(shards, now);
    assert_eq!(shards[0].usage().delayed + shards[1].usage().delayed, 0);
}

fn without_events() -> MdSpec {
    MdSpec {
        length_bytes: 100,
        max_size_bytes: None,
        threshold: Threshold::Infinite,
        options: MdOptions::PUT,
        auto_unlink: true,
        event_queue: None,
        user_ptr: 0,
    }
}

#[test]
fn nothing_is_allocated_while_messages_wait() {
    let mut shards = shards();
    let measured = allocation_counter::measure(|| wait(&mut shards, Instant(0)));
    assert_eq!(measured.count_total, 0, "{measured:?}");
    assert_ne!(shards[0].counters().delays(DelayReason::Fault), 0);
}

#[test]
fn nothing_is_allocated_after_the_start() {
    let mut shard = shard();
    let queue = shard.create_event_queue(900).unwrap();
    let measured = allocation_counter::measure(|| {
        for second in 0..3 {
            round(&mut shard, queue, Instant(second * 1_000_000_000));
            assert!(shard.counters().dropped().messages > 0);
        }
    });
    assert_eq!(measured.count_total, 0, "{measured:?}");
    assert!(allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1)))).count_total > 0);
}

#[test]
fn nothing_is_allocated_when_a_snapshot_comes() {
    let mut shard = shard();
    let queue = shard.create_event_queue(900).unwrap();
    let ni = |last, credits| Some(LocalNi::new(host(last).nid, credits, 4, Duration::from_secs(50)));
    let leaving = |slot: Option<LocalNi>| slot.map(|ni| LocalNi { status: NiStatus::Leaving, ..ni });
    let states = [
        vec![ni(1, 16), None, ni(90, 2)],
        vec![leaving(ni(1, 16)), ni(91, 4), ni(90, 2)],
        vec![ni(1, 2), ni(91, 1), ni(90, 9)],
        vec![None, None, leaving(ni(90, 9))],
    ];
    let snapshots: Vec<_> = (1..)
        .zip(states)
        .map(|(generation, state)| Arc::new(Topology::with_slots(state).with_generation(generation)))
        .collect();
    let measured = allocation_counter::measure(|| {
        for snapshot in &snapshots {
            for peer in 0..8 {
                let md = shard.bind(&descriptor(queue, MdOptions::NONE)).unwrap();
                let target = host(2 + peer % 3);
                let get = GetRequest {
                    md,
                    part: None,
                    self_nid: None,
                    target,
                    portal: 4,
                    match_bits: 0,
                    offset: 0,
                };
                shard.get(Instant(0), &get).unwrap();
            }
            if snapshot.nis()[0].is_none() {
                while let Some(transmit) =
                    (0..3).find_map(|ni| shard.poll_transmit(Instant(0), NiId(ni)).map(|lent| *lent.transmit))
                {
                    shard.sent(Instant(0), transmit.tx, Status::Ok);
                }
            }
            shard.update(Instant(0), Arc::clone(snapshot));
        }
    });
    assert_eq!(measured.count_total, 0, "{measured:?}");
    assert_eq!(shard.topology().generation(), 4);
}

/// The first NI of the peer with many, and the peer that sees a single source.
const FIRST_FAR: u64 = 101;
const PLAIN: u64 = 200;

/// So many NIs here and of a peer, on one net.
fn many_paths(count: u64, generation: u64, is_gated: bool) -> Arc<Topology> {
    let locals = (1..=count).map(|last| LocalNi::new(host(last).nid, 64, 16, Duration::from_secs(50)));
    let locals = locals.collect();
    let mut peers = PeerMap::default();
    let far = FIRST_FAR..FIRST_FAR + count;
    let mut far: Vec<_> = far.map(|last| PeerNid::new(host(last).nid, HEALTH_MAX)).collect();
    far[1].health = 900;
    far[2].preferred = [host(3).nid].into();
    let view = PeerView::new(true, far).unwrap();
    peers.insert(PeerView { is_gated, is_wanted: is_gated, ..view });
    // One that sees a single source.
    let plain = PeerNid { preferred: [host(2).nid].into(), ..PeerNid::new(host(PLAIN).nid, HEALTH_MAX) };
    peers.insert(PeerView::new(false, vec![plain]).unwrap());
    let topology = Topology::new(locals).with_peers(peers).with_gated_requests(true);
    Arc::new(topology.with_generation(generation))
}

/// Requests wait for discovery, are selected for, and are sent again by other paths, more often than there
/// are NIs.
#[test]
fn nothing_is_allocated_where_paths_are_chosen() {
    check_choice(4, 4);
    check_choice(16, 16);
}

/// Chooses among so many NIs at either end, in so many rounds.
#[track_caller]
fn check_choice(count: u64, rounds: usize) {
    let far = [FIRST_FAR, FIRST_FAR + count - 1, PLAIN];
    let nis = count as u16;
    let mut shard = Shard::new(ShardConfig {
        shard: ShardId(0),
        shard_count: 1,
        seal_key: [1, 2],
        pid: ProcessId::LUSTRE_PID,
        limits: Limits { requests: 64, memory_descs: 64, peers: 64, nis, ..Limits::DEFAULT },
        topology: many_paths(count, 1, true),
        hash_seed: 1,
    });
    let queue = shard.create_event_queue(400).unwrap();
    let known = many_paths(count, 2, false);
    let start = |shard: &mut Shard| {
        for number in 0..30 {
            let md =
                shard.bind(&MdSpec { threshold: Threshold::Count(1), ..descriptor(queue, MdOptions::NONE) });
            let put = PutRequest {
                md: md.unwrap(),
                part: None,
                ack: false,
                self_nid: None,
                target: host(far[number % far.len()]),
                portal: 4,
                match_bits: 0,
                offset: 0,
                hdr_data: 0,
            };
            shard.put(Instant(0), &put).unwrap();
        }
    };
    let mut paths = [[false; 16]; 16];
    let measured = allocation_counter::measure(|| {
        start(&mut shard);
        assert_eq!((shard.counters().gated, shard.poll_wanted().is_some()), (20, true));
        shard.update(Instant(0), Arc::clone(&known));
        for round in 0..rounds {
            while let Some(transmit) =
                (0..nis).find_map(|ni| shard.poll_transmit(Instant(0), NiId(ni)).map(|lent| *lent.transmit))
            {
                if let Some(far) = (0..count).find(|far| host(FIRST_FAR + far).nid == transmit.next_hop) {
                    paths[usize::from(transmit.ni.0)][far as usize] = true;
                }
                let failed = Status::NeverSent(Cause::Timeout);
                shard.sent(Instant(0), transmit.tx, if round % 2 == 0 { failed } else { Status::Ok });
            }
            while shard.poll_event(queue).is_some() {}
            while shard.poll_health().is_some() {}
            start(&mut shard);
        }
    });
    assert_eq!(measured.count_total, 0, "{count} x {count}: {measured:?}");
    assert!(shard.counters().resends > 20, "{:?}", shard.counters());
    let used = paths.iter().flatten().filter(|is_used| **is_used).count() as u64;
    assert!(used > 2 * count, "{used} of {count} x {count}");
    // One is not in full health.
    let uses = |far: usize| paths.iter().any(|local| local[far]);
    assert!((0..16).filter(|far| uses(*far)).count() as u64 >= count - 1, "{paths:?}");
    assert!(paths.iter().filter(|local| local.contains(&true)).count() as u64 == count, "{paths:?}");
}

/// A NID behind gateways.
fn behind(last: u64) -> ProcessId {
    ProcessId::lustre(Nid::from_small(0x0002_0009_0A00_0000 + last).unwrap())
}

/// Routes by gateways with these numbers.
fn routed(gateways: core::ops::Range<u64>, generation: u64) -> Arc<Topology> {
    let ni = |last| GatewayNi {
        nid: host(last).nid,
        gateway: host(last).nid,
        awaits_link: false,
        priority: (last % 3) as u32,
        hops: 1,
        health: HEALTH_MAX,
        ni_priority: PRIORITY_NONE,
    };
    let nis = gateways.clone().map(|last| (behind(1).nid.net(), ni(last))).collect();
    let routes = NetRoutes::new(nis, gateways.map(|last| host(last).nid).collect());
    let mut peers = PeerMap::default();
    let far = [2, 3].map(|last| PeerNid::new(behind(last).nid, HEALTH_MAX));
    peers.insert(PeerView::new(true, far.to_vec()).unwrap());
    let local = LocalNi::new(host(1).nid, 64, 2, Duration::from_secs(50));
    let topology = Topology::new(vec![local]).with_peers(peers).with_net_routes(Some(Arc::new(routes)));
    Arc::new(topology.with_generation(generation))
}

/// Messages wait for gateways, move to others with a snapshot, are sent again, and are answered.
#[test]
fn nothing_is_allocated_where_gateways_are_chosen() {
    let mut shard = Shard::new(ShardConfig {
        shard: ShardId(0),
        shard_count: 1,
        seal_key: [1, 2],
        pid: ProcessId::LUSTRE_PID,
        limits: Limits { requests: 64, memory_descs: 128, peers: 64, incoming: 16, ..Limits::DEFAULT },
        topology: routed(100..130, 1),
        hash_seed: 1,
    });
    let queue = shard.create_event_queue(400).unwrap();
    let snapshots = [routed(200..202, 2), routed(100..130, 3), routed(0..0, 4), routed(100..101, 5)];
    let put = |shard: &mut Shard, to: u64| {
        let spec = MdSpec { threshold: Threshold::Count(1), ..descriptor(queue, MdOptions::NONE) };
        let md = shard.bind(&spec).unwrap();
        let (part, self_nid, target) = (None, None, behind(to));
        let (portal, match_bits, offset, hdr_data) = (4, 0, 0, 0);
        let put = PutRequest { md, part, ack: false, self_nid, target, portal, match_bits, offset, hdr_data };
        shard.put(Instant(0), &put).unwrap();
    };
    let measured = allocation_counter::measure(|| {
        for snapshot in &snapshots {
            (0..30).for_each(|number| put(&mut shard, 1 + number % 3));
            shard.update(Instant(0), Arc::clone(snapshot));
            let mut count = 0;
            while let Some(transmit) = shard.poll_transmit(Instant(0), NI).map(|lent| *lent.transmit) {
                count += 1;
                let failed = Status::NeverSent(Cause::Timeout);
                shard.sent(Instant(0), transmit.tx, if count % 3 == 0 { failed } else { Status::Ok });
            }
            while shard.poll_event(queue).is_some() {}
            while shard.poll_health().is_some() {}
        }
    });
    assert_eq!(measured.count_total, 0, "{measured:?}");
    assert!(shard.counters().resends > 20, "{:?}", shard.counters());
    let spec = EntrySpec::new(4, 5);
    let entry = shard.attach_entry(&spec).unwrap();
    shard.attach(entry, &descriptor(queue, MdOptions::PUT)).unwrap();
    let ack_md = WireHandle { interface_cookie: 5, object_cookie: 6 };
    let body = Body::Put { ack_md, match_bits: 5, hdr_data: 0, portal: 4, offset: 0 };
    let header = Header { destination: host(1), source: behind(1), payload_length: 10, body };
    let none = routed(150..151, 6);
    let measured = allocation_counter::measure(|| {
        assert_ne!(shard.header(Instant(0), NI, &host(100).nid, RxId(0), &header), Verdict::Drop);
        shard.update(Instant(0), Arc::clone(&none));
        shard.received(Instant(0), RxId(0), Status::Ok);
        let ack = shard.poll_transmit(Instant(0), NI).map(|lent| *lent.transmit).unwrap();
        assert_eq!(ack.next_hop, host(150).nid);
        shard.sent(Instant(0), ack.tx, Status::Ok);
    });
    assert_eq!(measured.count_total, 0, "{measured:?}");
}

/// Messages of other nodes wait for credits and buffers, are dropped, given up, sent again, and go on.
#[test]
fn nothing_is_allocated_while_messages_are_forwarded() {
    let far = |last: u64| Nid::from_small(0x0002_0002_0A00_0000 + last).unwrap();
    let nis = [host(1).nid, far(1)].map(|nid| LocalNi::new(nid, 64, 3, Duration::from_secs(5)));
    let topology = Arc::new(Topology::new(nis.to_vec()).with_forwarding(Forwarding::On));
    let off = Arc::new(Topology::new(nis.to_vec()).with_generation(1));
    let mut shard = Shard::new(ShardConfig {
        shard: ShardId(0),
        shard_count: 1,
        seal_key: [1, 2],
        pid: ProcessId::LUSTRE_PID,
        limits: Limits { forwards: 16, incoming: 64, peers: 12, ..Limits::DEFAULT },
        topology,
        hash_seed: 1,
    });
    shard.set_router_pools([2, 12, 2]);
    for (kind, count) in PoolKind::ALL.iter().zip(shard.missing_router_buffers()) {
        let buffer = |slot| BufferHandle(Cookie::new(CookieKind::Buffer, ShardId(0), slot, 1));
        (0..count).for_each(|slot| shard.add_router_buffer(*kind, buffer(slot)));
    }
    let measured = allocation_counter::measure(|| {
        for second in 0..40 {
            let now = Instant(30 * second * 1_000_000_000);
            shard.path_health(now, &Path { ni: NiId(1), peer: far(11) }, PathReport::Silent);
            for rx in 0..60_u32 {
                let number = u64::from(rx) + second;
                let source = host(10 + number % 9);
                let destination = ProcessId::lustre(far(10 + number % 7));
                let body = Body::Reply { md: WireHandle { interface_cookie: 5, object_cookie: number } };
                let payload_length = [0, 8, 8, 5000][rx as usize % 4];
                let header = Header { destination, source, payload_length, body };
                if let Verdict::Deliver(_) = shard.header(now, NI, &source.nid, RxId(rx), &header) {
                    shard.received(now, RxId(rx), Status::Ok);
                }
            }
            for round in 0..20 {
                while let Some((_, RxId(rx), verdict)) = shard.poll_resume() {
                    if verdict != Verdict::Drop {
                        let lost = Status::Unknown(Cause::Reset);
                        shard.received(now, RxId(rx), if rx % 11 == 0 { lost } else { Status::Ok });
                    }
                }
                for ni in [NiId(0), NiId(1)] {
                    while let Some(transmit) = shard.poll_transmit(now, ni).map(|lent| *lent.transmit) {
                        let failed = Status::NeverSent(Cause::Timeout);
                        shard.sent(now, transmit.tx, if round == 7 { failed } else { Status::Ok });
                    }
                }
            }
            shard.handle_timeout(now + Duration::from_secs(20));
            while let Some((_, rx, verdict)) = shard.poll_resume() {
                if verdict != Verdict::Drop {
                    shard.received(now, rx, Status::Unknown(Cause::Reset));
                }
            }
            while shard.poll_health().is_some() || shard.poll_paths().is_some() {}
        }
        shard.update(Instant(0), Arc::clone(&off));
    });
    assert_eq!(measured.count_total, 0, "{measured:?}");
    let counters = shard.counters();
    assert!(counters.routed.messages > 500, "{counters:?}");
    assert!(counters.delays(DelayReason::RouterBuffer) > 500, "{counters:?}");
    for reason in [DropReason::NextHopSilent, DropReason::PeersFull] {
        assert!(counters.drops(reason).messages > 0, "{reason:?}: {counters:?}");
    }
}
