//! The lnet transport, over nodes of this process.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod any;
mod common;
mod deliveries;
mod scenarios;

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Party;
use lnet_messaging::lnet::{LnetTransport, endpoint_is_valid, net_cmp, portal_policy};
use lnet_messaging::transport::Transport;
use lnet_messaging::{
    Addition, Attachment, Callback, Domain, Errno, Operation, Pool, PoolSpec, Reprovision, StopMode, TmEvent,
    TmState,
};
use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Limits, Lnet, NiConfig, Nid, NodeConfig, Policy, Spread};

const PORTAL: u32 = 34;

/// A node of so many shards on a fabric of this process.
fn node(fabric: &str, host: u8, shards: u32) -> Lnet {
    node_that_steers(fabric, host, shards, portal_policy())
}

/// A node with another policy of the portal.
fn node_that_steers(fabric: &str, host: u8, shards: u32, policy: Policy) -> Lnet {
    node_with(fabric, &[&format!("10.9.8.{host}@xdp")], shards, policy)
}

/// A node with these NIs, each on the fabric's part for its net.
fn node_with(fabric: &str, nids: &[&str], shards: u32, policy: Policy) -> Lnet {
    let ni = |nid: &&str| {
        let nid: Nid = nid.parse().unwrap();
        NiConfig::new(nid, &format!("in-process:{fabric} {}", nid.net()))
    };
    let config = NodeConfig::new(nids.iter().map(ni).collect())
        .shards(shards)
        .policies(vec![(PORTAL as u8, policy)])
        .lnd_timeout(Duration::from_secs(5))
        .limits(Limits {
            match_entries: 1 << 9,
            memory_descs: 1 << 10,
            event_queues: 16,
            events: 1 << 14,
            unlimited_events: 1 << 6,
            spare_events: 0,
            requests: 1 << 8,
            responses: 1 << 8,
            forwards: 0,
            incoming: 1 << 6,
            delayed: 1 << 6,
            peers: 1 << 7,
            nis: 4,
        });
    let lnet = Lnet::start_on(&config, &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    lnet.open().unwrap();
    lnet
}

fn transport(lnet: &Lnet) -> Arc<dyn Transport> {
    LnetTransport::with_event_slots(lnet, 256).shared()
}

fn address(host: u8, tmid: &str) -> String {
    format!("10.9.8.{host}@xdp:12345:{PORTAL}:{tmid}")
}

fn pair(fabric: &str) -> [Party; 2] {
    [1, 2].map(|host| Party::started(&transport(&node(fabric, host, 2)), &address(host, "7")))
}

#[test]
fn ln_24_ping_and_bulk_between_two_nodes() {
    scenarios::messages_and_bulk(pair("ping"));
}

#[test]
fn ln_10_a_message_without_a_receive_buffer_or_a_transfer_machine() {
    scenarios::messages_to_nowhere(pair("nowhere"));
    let [mut near, far] = pair("no node");
    let id = near.send(&address(9, "1"), b"hello");
    assert_eq!(near.end_of(id).0, Err(Errno::HostUnreachable));
    near.end();
    far.end();
}

#[test]
fn ln_07_several_messages_in_one_buffer() {
    common::received::several_messages_in_one_buffer(pair("several"));
}

#[test]
fn ln_08_and_ln_09_the_second_buffer_goes_on_where_the_first_is_full() {
    common::received::a_second_buffer(pair("second"));
}

#[test]
fn messages_of_a_buffer_are_told_of_before_its_end() {
    common::received::a_deletion_behind_messages(pair("deletion"), true);
    common::received::many_messages_in_few_buffers(pair("few"));
}

#[test]
fn a_message_longer_than_the_least_room_is_lost() {
    scenarios::a_message_that_is_too_long(pair("longer"));
}

#[test]
fn ln_17_and_ln_18_refused_bulk_operations_leave_the_passive_buffer_alone() {
    scenarios::refused_bulk_operations(pair("refused"));
}

#[test]
fn a_peer_that_has_gone_ends_a_bulk_operation() {
    scenarios::a_passive_buffer_that_has_gone(pair("gone"));
}

#[test]
fn a_pool_feeds_a_receive_queue() {
    scenarios::a_pool_that_runs_empty(pair("pooled"));
}

/// The name of a passive buffer says on which shard it is: those of one transfer machine are on both, where
/// peers and their answers find them, and so are messages and pools, which have the name 0.
#[test]
fn buffers_of_one_transfer_machine_are_on_several_shards() {
    let policy = Policy::MatchBits { shift: 0, bits: 8, spread: Spread::Hash };
    let lnets = [1, 2].map(|host| node_that_steers("counters", host, 2, policy));
    let pair = || [0, 1].map(|at| Party::started(&transport(&lnets[at]), &address(at as u8 + 1, "7")));
    let entries = || [0, 1].map(|shard| lnets[1].shard(shard).unwrap().usage().unwrap().match_entries);
    let [mut near, mut far] = pair();
    let before = entries();
    let bytes = scenarios::pattern(3000);
    let added: Vec<_> =
        (0..32).map(|_| far.tm.add(far.filled(&bytes), passive_send(bytes.len() as u64)).unwrap()).collect();
    let after = entries();
    assert!((0..2).all(|shard| after[shard] > before[shard] + 4), "{before:?}, then {after:?}");
    for passive in added {
        near.add(near.buffer(&[bytes.len()]), Operation::ActiveReceive { from: passive.descriptor.unwrap() });
        assert!(near.buffer_event().payload_bytes() == bytes);
        assert_eq!(far.end_of(passive.id).0, Ok(()));
    }
    assert_eq!(entries(), before);
    near.end();
    far.end();
    scenarios::messages_and_bulk(pair());
    common::received::several_messages_in_one_buffer(pair());
    scenarios::refused_bulk_operations(pair());
    scenarios::a_stop_with_all_queues_loaded(pair());
    scenarios::a_pool_that_runs_empty(pair());
}

#[test]
fn me_01_bulk_data_and_messages_across_segments() {
    scenarios::bytes_across_segments(pair("segments"));
}

#[test]
fn me_09_a_descriptor_dies_with_its_use() {
    scenarios::a_descriptor_of_an_earlier_use(pair("earlier"));
}

/// The time that a test gives to what shall not happen.
const IN_VAIN: Duration = Duration::from_millis(200);

/// A stranger who has the descriptor itself reads and writes nothing that is for another node, and the friend
/// does.
#[test]
fn a_passive_buffer_with_an_initiator_is_for_no_other_node() {
    let started = |host| Party::started(&transport(&node("stranger", host, 2)), &address(host, "7"));
    let [mut friend, mut far, mut stranger] = [1, 2, 3].map(started);
    let initiator = || Some(far.tm.create_end_point(&friend.address()).unwrap());
    let send = Operation::PassiveSend { initiator: initiator(), length_bytes: 8 };
    let source = far.tm.add(far.filled(b"a secret"), send).unwrap();
    let room = far.tm.add(far.buffer(&[8]), Operation::PassiveReceive { initiator: initiator() }).unwrap();
    let (from, to) = (source.descriptor.unwrap(), room.descriptor.unwrap());
    let read = Addition::from(Operation::ActiveReceive { from: from.clone() });
    let id = stranger.add(stranger.buffer(&[8]), read.deadline(Instant::now() + IN_VAIN));
    assert_eq!(stranger.end_of(id).0, Err(Errno::TimedOut));
    let write = Operation::ActiveSend { to: to.clone(), length_bytes: 8 };
    let id = stranger.add(stranger.filled(b"a forged"), write);
    assert_eq!(stranger.end_of(id).0, Ok(()), "it has left");
    std::thread::sleep(IN_VAIN);
    assert!(far.tm.queued(source.id).is_some() && far.tm.queued(room.id).is_some());

    friend.add(friend.buffer(&[8]), Operation::ActiveReceive { from });
    assert_eq!(friend.buffer_event().payload_bytes(), b"a secret");
    assert_eq!(far.end_of(source.id).0, Ok(()));
    let id = friend.add(friend.filled(b"by right"), Operation::ActiveSend { to, length_bytes: 8 });
    assert_eq!(friend.end_of(id).0, Ok(()));
    let event = far.buffer_event();
    assert_eq!((event.id, event.payload_bytes()), (room.id, b"by right".to_vec()));
    drop(event);
    [friend, far, stranger].into_iter().for_each(Party::end);
}

/// Match bits near to those that a stranger was given lead nowhere: neither counted up nor down, nor those of
/// a counter from 1.
#[test]
fn match_bits_of_one_passive_buffer_say_nothing_of_the_next() {
    let [mut near, far] = pair("guesses");
    let sources = [(); 8].map(|()| far.tm.add(far.filled(b"a secret"), passive_send(8)).unwrap());
    let known = sources[3].descriptor.clone().unwrap();
    let words = known.as_bytes().as_chunks::<8>().0;
    let first = u64::from_le_bytes(words[0]);
    let guesses = (1..=8).flat_map(|step| [first + step, first - step, 7 << 52 | step]);
    let ids: Vec<_> = guesses
        .map(|guess| {
            // The checksum is the exclusive or of all words.
            let sum = u64::from_le_bytes(words[5]) ^ first ^ guess;
            let mut forged = known.as_bytes().to_vec();
            forged[..8].copy_from_slice(&guess.to_le_bytes());
            forged[40..].copy_from_slice(&sum.to_le_bytes());
            let from = lnet_messaging::BulkDescriptor::from_bytes(&forged);
            let read = Addition::from(Operation::ActiveReceive { from });
            near.add(near.buffer(&[8]), read.deadline(Instant::now() + IN_VAIN))
        })
        .collect();
    for _ in ids {
        assert_eq!(near.buffer_event().status, Err(Errno::TimedOut));
    }
    assert!(sources.iter().all(|source| far.tm.queued(source.id).is_some()));
    near.end();
    far.end();
}

/// A node with two NIs is one peer: whichever of its NIDs names it, and whether it was discovered before the
/// buffer was added or after that, so that another NID is its primary one than was.
#[test]
fn an_initiator_may_be_named_by_any_nid_of_its_node() {
    let nis = ["10.9.8.1@xdp", "10.9.8.11@xdp1"];
    let near = node_with("rails", &nis, 2, portal_policy());
    let far = node_with("rails", &["10.9.8.2@xdp", "10.9.8.12@xdp1"], 2, portal_policy());
    let far_node = far;
    let mut far = Party::started(&transport(&far_node), &format!("10.9.8.12@xdp1:12345:{PORTAL}:7"));
    let mut near = Party::started(&transport(&near), &format!("{}:12345:{PORTAL}:7", nis[1]));
    let named = |nid: &str| format!("{nid}:12345:{PORTAL}:7");
    let before = add_secrets(&mut far, &nis.map(named));
    far_node.discover(nis[1].parse().unwrap(), false).unwrap();
    far.post(8, 8, 1);
    let id = near.send(&far.address(), b"hello");
    assert_eq!(near.end_of(id).0, Ok(()));
    let sender = far.buffer_event().end_point.as_ref().unwrap().address().to_owned();
    assert_eq!(sender, named(nis[0]), "its peer was discovered");
    let after = add_secrets(&mut far, &nis.map(named));
    for (index, source) in before.into_iter().chain(after).enumerate() {
        let read = Addition::from(Operation::ActiveReceive { from: source.descriptor.unwrap() });
        near.add(near.buffer(&[8]), read.deadline(Instant::now() + Duration::from_secs(10)));
        assert_eq!(near.buffer_event().payload_bytes(), b"a secret", "buffer {index}");
        assert_eq!(far.end_of(source.id).0, Ok(()));
    }
    near.end();
    far.end();
}

/// Buffers of 8 bytes to be read, one for each of these initiators.
fn add_secrets(party: &mut Party, initiators: &[String]) -> Vec<lnet_messaging::Added> {
    let add = |initiator: &String| {
        let initiator = Some(party.tm.create_end_point(initiator).unwrap());
        party
            .tm
            .add(party.filled(b"a secret"), Operation::PassiveSend { initiator, length_bytes: 8 })
            .unwrap()
    };
    initiators.iter().map(add).collect()
}

#[test]
fn me_12_and_ln_23_stops_with_all_queues_loaded() {
    scenarios::a_stop_with_all_queues_loaded(pair("loaded"));
    scenarios::a_stop_that_drains(pair("drains"));
}

const CANCELED: Result<(), Errno> = Err(Errno::Canceled);

/// The transport over a node that reaches itself alone.
fn loopback() -> Arc<dyn Transport> {
    transport(
        &Lnet::start_on(&NodeConfig::loopback(), &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap(),
    )
}

fn lo(tmid: &str) -> String {
    format!("0@lo:12345:{PORTAL}:{tmid}")
}

fn passive_send(length_bytes: u64) -> Operation {
    Operation::PassiveSend { initiator: None, length_bytes }
}

#[test]
fn mi_01_addresses_are_checked_by_their_form() {
    for good in [
        "0@lo:12345:34:1",
        "172.18.1.1@tcp:12345:40:401",
        "255.0.0.0@tcp:12345:1:1",
        "172.18.1.1@o2ib:12345:40:401",
        "172.18.1.1@o2ib1:12345:40:401",
        "172.18.1.1@xdp:12345:40:401",
        "fd00::1@tcp:12345:40:401",
        "fd00:1111:2222:3333:4444:5555:6666:7777@xdp3:12345:40:401",
    ] {
        assert!(endpoint_is_valid(good), "{good}");
    }
    for bad in [
        "",
        " 0@lo:12345:34:1",
        "0@lo:12345:34:1 ",
        "1@lo:12345:34:1",
        "172.18.1.1:12345:34:1",
        "172.18.256.1@tcp:12345:34:1",
        "172.18.1.1@tcp:54321:34:1",
        "172.18.1.1@tcp12:12345:34:1",
        "fd00::1::2@tcp:12345:34:1",
        "fd00::1:12345:34:1",
        "1@gni:12345:34:1",
        "172.18.1.1@tcp:12345:34",
        "172.18.1.1@tcp:12345:34:",
        "172.18.1.1@tcp:12345:34:1:2",
    ] {
        assert!(!endpoint_is_valid(bad), "{bad}");
    }
}

#[test]
fn ln_01_addresses_are_compared_by_their_nids() {
    let one = "1.1.1.1@tcp:12345:30:10";
    assert_eq!(net_cmp(one, "1.1.1.1@tcp:12345:31:*"), Ordering::Equal);
    assert_eq!(net_cmp(one, "1.1.1.2@tcp:12345:30:10"), Ordering::Less);
    assert_eq!(net_cmp("1.1.1.2@tcp:12345:30:10", one), Ordering::Greater);
    let large = "fd00::1@xdp:12345:30:10";
    assert_eq!(net_cmp(large, "fd00::1@xdp:12345:31:*"), Ordering::Equal);
    assert_eq!(net_cmp(large, "fd00::2@xdp:12345:30:10"), Ordering::Less);
    assert_eq!([net_cmp(one, "1.1.1.1@tcp"), net_cmp("x", "x")], [Ordering::Less; 2]);
}

#[test]
fn ln_02_domains_come_and_go() {
    let lnet = node("domains", 1, 1);
    let net = LnetTransport::new(&lnet);
    assert_eq!(net.interfaces(), ["10.9.8.1@xdp", "0@lo"]);
    let net = net.shared();
    for _ in 0..2 {
        let domains: Vec<Domain> = (0..3).map(|_| Domain::new(&net).unwrap()).collect();
        for domain in &domains {
            let party = Party::in_domain(domain);
            let buffer = party.buffer(&[4096; 256]);
            party.tm.finish().unwrap();
            party.tm.initialize().unwrap();
            assert_eq!((domain.buffer_count(), domain.tm_count()), (1, 1));
            drop(buffer.deregister());
            party.tm.finish().unwrap();
        }
        for domain in domains {
            domain.finish().unwrap();
        }
    }
    let usage = lnet.shard(0).unwrap().usage().unwrap();
    assert_eq!((usage.memory_descs, usage.match_entries), (0, 0));
}

const LO: &str = "0@lo:12345:34";

#[test]
fn ln_03_starts_that_fail() {
    scenarios::alone::starts_that_fail(&loopback(), LO);
}

#[test]
fn ln_04_ln_05_and_ln_11_addresses() {
    scenarios::alone::addresses_that_are_chosen(&loopback(), LO);
}

/// The CPUs that a thread of a transfer machine may run on, seen in its callbacks. A confinement that cannot
/// be fails the start.
#[test]
fn if_05_and_ln_05_callbacks_run_on_the_cpus_that_were_given() {
    use rustix::thread::sched_getaffinity;
    let allowed = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..1024).filter(|cpu| allowed.is_set(*cpu)).collect();
    let (first, last) = (cpus[0], *cpus.last().unwrap());
    let (told, seen) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let callback = Callback::new(move |_, _| {
        let set = sched_getaffinity(None).unwrap();
        let found: Vec<usize> = (0..1024).filter(|cpu| set.is_set(*cpu)).collect();
        let _ = told.lock().unwrap().send(found);
    });
    let net = loopback();
    for (given, expected) in [(vec![first], vec![first]), (vec![last], vec![last]), (cpus.clone(), cpus)] {
        let party = Party::new(&net);
        party.tm.confine(&[first, last]).unwrap();
        party.tm.confine(&given).unwrap();
        let party = party.start(&lo("1"));
        let send = Addition::from(passive_send(8)).callback(&callback);
        let id = party.add(party.buffer(&[8]), send);
        assert!(party.tm.del(id));
        assert_eq!(seen.recv().unwrap(), expected);
        party.end();
    }
    for absent in [1023, 1 << 20] {
        let mut party = Party::new(&net);
        party.tm.confine(&[absent]).unwrap();
        party.tm.start(&lo("1")).unwrap();
        let status = Err(Errno::Invalid);
        let failed = TmEvent::StateChange { state: TmState::Failed, status, end_point: None };
        assert_eq!(party.tm_event(), failed, "CPU {absent}");
        party.tm.finish().unwrap();
    }
    // Its address was free all the time.
    Party::started(&net, &lo("1")).end();
}

#[test]
fn ln_06_and_ln_16_waiting_buffers_are_deleted() {
    scenarios::alone::waiting_buffers_are_deleted(&loopback(), LO);
}

#[test]
fn ln_12_to_ln_14_descriptors_that_are_none_are_refused() {
    scenarios::alone::descriptors_that_are_none(&loopback(), LO);
}

#[test]
fn ln_19_the_application_delivers() {
    let net = loopback();
    scenarios::alone::the_application_delivers([&net, &net], [&lo("1"), &lo("2")]);
    deliveries::threads_deliver_in_order(&net, [&lo("1"), &lo("2")]);
}

/// Each transport knows what the others over its node have in use.
#[test]
fn kc_21_an_address_is_in_use_once_on_a_node() {
    let lnet =
        Lnet::start_on(&NodeConfig::loopback(), &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    let one = Party::started(&transport(&lnet), &lo("5"));
    let mut other = Party::new(&transport(&lnet.clone()));
    other.tm.start(&lo("5")).unwrap();
    let status = Err(Errno::AddressInUse);
    let failed = TmEvent::StateChange { state: TmState::Failed, status, end_point: None };
    assert_eq!(other.tm_event(), failed);
    let chosen = [(); 2].map(|()| Party::started(&transport(&lnet), &lo("*")));
    assert_eq!(chosen.each_ref().map(Party::address), ["4095", "4094"].map(lo));
    // Another node's addresses are its own.
    Party::started(&loopback(), &lo("5")).end();
    chosen.into_iter().for_each(Party::end);
    one.end();
    Party::started(&transport(&lnet), &lo("5")).end();
}

/// A receive buffer for more messages than there are event slots is refused before anything is made for it.
#[test]
fn more_messages_than_event_slots_are_refused() {
    let party = Party::started(&loopback(), &lo("1"));
    for max_messages in [256, 1 << 20, u32::MAX] {
        let receive = Operation::Receive { min_receive_bytes: 1, max_messages };
        let refused = party.tm.add(party.buffer(&[8]), receive).unwrap_err();
        assert_eq!(refused.error.errno(), Errno::NoMemory, "{max_messages} messages");
    }
    party.post(8, 1, 255);
    let pooled = Party::in_domain(&party.domain);
    let spec = PoolSpec { threshold: 0, segments: 1, segment_bytes: 8, colours: 0 };
    let pool = Pool::new(&party.domain, spec, Arc::new(Reprovision)).unwrap();
    let attach = |max_messages| {
        let attachment =
            Attachment { pool: pool.clone(), min_receive_bytes: 1, max_messages, callback: None };
        pooled.tm.attach_pool(attachment, 2).map_err(|error| error.errno())
    };
    assert_eq!([256, u32::MAX, 255].map(attach), [Err(Errno::NoMemory), Err(Errno::NoMemory), Ok(())]);
    drop(pooled);
    party.end();
}

/// What a shard has no room for is `ENOMEM`, whichever of its tables is full.
#[test]
fn a_table_that_is_full_is_no_memory() {
    let config =
        NodeConfig::loopback().limits(Limits { match_entries: 4, memory_descs: 16, ..Limits::DEFAULT });
    let lnet = Lnet::start_on(&config, &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    let party = Party::started(&transport(&lnet), &lo("1"));
    let mut queued = 0;
    let refused = loop {
        match party.tm.add(party.buffer(&[8]), passive_send(8)) {
            Ok(_) => queued += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused.error.errno(), queued > 0), (Errno::NoMemory, true), "{}", refused.error);
    party.end();
}

#[test]
fn ln_20_and_ln_21_deadlines_pass() {
    let mut party = Party::started(&loopback(), &lo("1"));
    let wait = Duration::from_millis(40);
    let operations: [fn() -> Operation; 3] = [
        || Operation::Receive { min_receive_bytes: 8, max_messages: 2 },
        || passive_send(8),
        || Operation::PassiveReceive { initiator: None },
    ];
    for operation in operations {
        let begun = Instant::now();
        let queue = operation().queue();
        let late = Addition::from(operation()).deadline(begun + wait);
        let late = party.add(party.buffer(&[8]), late);
        let never = party.add(party.buffer(&[8]), operation());
        let stats = {
            assert_eq!(party.end_of(late).0, Err(Errno::TimedOut));
            party.tm.stats(queue, false).unwrap()
        };
        assert!(begun.elapsed() >= wait && stats.time_in_queue >= wait);
        assert!(party.tm.queued(never).is_some() && party.tm.del(never));
        assert_eq!(party.end_of(never).0, CANCELED);
        assert_eq!(party.counts(queue), (2, 1, 0, 2));
    }
    let begun = Instant::now();
    for operation in operations {
        party.add(party.buffer(&[8]), Addition::from(operation()).deadline(begun + wait));
    }
    for _ in operations {
        assert_eq!(party.buffer_event().status, Err(Errno::TimedOut));
    }
    party.end();
}

#[test]
fn ln_23_an_aborting_stop_of_waiting_buffers() {
    let net = loopback();
    let mut party = Party::started(&net, &lo("1"));
    for _ in 0..3 {
        party.post(8, 8, 1);
        party.add(party.buffer(&[8]), passive_send(8));
        party.add(party.buffer(&[8]), Operation::PassiveReceive { initiator: None });
    }
    party.tm.stop(StopMode::Abort).unwrap();
    for _ in 0..9 {
        assert_eq!(party.buffer_event().status, CANCELED);
    }
    let stopped = TmEvent::StateChange { state: TmState::Stopped, status: Ok(()), end_point: None };
    assert_eq!(party.tm_event(), stopped);
    party.tm.finish().unwrap();
}

/// More buffers than the event queue of the transfer machine has slots for.
#[test]
fn what_finds_no_event_slots_is_refused_and_goes_well_later() {
    let mut party = Party::started(&loopback(), &lo("1"));
    let mut ids = Vec::new();
    let refused = loop {
        let receive = Operation::Receive { min_receive_bytes: 1, max_messages: 7 };
        match party.tm.add(party.buffer(&[8]), receive) {
            Ok(added) => ids.push(added.id),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused.error.errno(), ids.len()), (Errno::NoMemory, 32), "256 slots");
    assert!(party.tm.del(ids[0]));
    assert_eq!(party.end_of(ids[0]).0, CANCELED);
    let receive = Operation::Receive { min_receive_bytes: 1, max_messages: 7 };
    party.add(refused.buffer, receive);
    party.end();
}

/// What the documentation of events says: the program that keeps one keeps the buffer.
#[test]
fn an_event_that_is_kept_keeps_its_buffer_and_the_stop_back() {
    let [mut near, mut far] = pair("kept");
    let id = far.post(64, 8, 8);
    common::received::send_each(&mut near, &far.address(), &[8]);
    let kept = far.buffer_event();
    assert!(!kept.is_last());
    far.tm.stop(StopMode::Abort).unwrap();
    // The node has had time by now to tell of what it can.
    near.end();
    assert!(far.events.try_next().is_none() && far.tm.state() == TmState::Stopping);
    assert_eq!(kept.payload_bytes(), [0; 8]);
    drop(kept);
    assert_eq!(far.end_of(id).0, CANCELED);
    assert!(matches!(far.tm_event(), TmEvent::StateChange { state: TmState::Stopped, .. }));
}

/// Two addresses more on the far node.
fn others() -> [String; 2] {
    ["8", "9"].map(|tmid| address(2, tmid))
}

#[test]
fn a_stop_while_callbacks_run() {
    any::a_stop_while_callbacks_run(pair("echo"));
}

#[test]
fn a_message_is_lost_while_the_buffers_of_a_pool_are_held() {
    any::a_pool_whose_buffers_are_held(pair("held"), &others()[0], false);
}

#[test]
fn if_06_to_if_20_the_front() {
    any::front::starts_and_stops(pair("starts"), &others()[0]);
    any::front::end_points(pair("end points"));
    any::front::refusals(pair("refusals"));
    any::front::additions_deletions_and_counters(pair("additions"));
    any::front::a_callback_uses_the_front(pair("uses"));
    any::front::domains_come_and_go(pair("come and go"));
    any::front::a_callback_that_panics(pair("panics"), &others()[0]);
    any::front::deadlines(pair("deadlines"));
    any::front::diagnostics(pair("diagnostics"));
}

#[test]
fn pv_02_to_pv_13_pools() {
    let others = others();
    let two = others.each_ref().map(String::as_str);
    any::pooled::the_queue_is_filled_behind_the_start(pair("behind"), two[0]);
    any::pooled::two_queues_of_one_pool(pair("two queues"), two);
    any::pooled::a_message_is_made_up_for(pair("made up"), two[0]);
    any::pooled::buffers_by_their_colours(pair("colours"), two);
    any::pooled::a_stop_feeds_another(pair("feeds"), two);
    any::pooled::starts_and_stops_share_a_pool(pair("share"), two);
}
