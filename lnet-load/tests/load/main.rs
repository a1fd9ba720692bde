//! The load service, on a node that talks to itself.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod json;
mod kernel;

use std::time::{Duration, Instant};

use lnet_load::{FAULTS_MAX, FaultKind, Initiator, Kind, LoadError, LoadPlan, Scheme, SizeClass, Target};
use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Ack, Buffer, Lnet, MdOptions, MdSpec, Nid, NodeConfig, Policy, Spread, Threshold};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two shards that sleep whenever they can, and each policy on two portals of the load.
fn start() -> Lnet {
    let table = Spread::Table([0, 1, 0, 1, 0, 1, 0, 1]);
    let by = |shift, bits, spread| Policy::MatchBits { shift, bits, spread };
    let policies = [
        by(0, 16, Spread::Hash),
        by(0, 2, Spread::Hash),
        by(0, 3, table),
        by(0, 1, table),
        Policy::Pin(0),
        Policy::Pin(1),
        Policy::Initiator,
        Policy::Rotor,
    ];
    let policies = (10..).zip(policies).collect();
    let config = NodeConfig::loopback().shards(2).policies(policies);
    let idle = Idle::new(Duration::ZERO);
    Lnet::start_on(&config, &Threads::new().idle(idle)).unwrap()
}

/// Waits until the node holds nothing any more.
#[track_caller]
fn await_idle(lnet: &Lnet) {
    let begun = Instant::now();
    for shard in 0..lnet.shard_count() {
        loop {
            let usage = lnet.shard(shard).unwrap().usage().unwrap();
            if (usage.memory_descs, usage.match_entries, usage.events, usage.messages) == (0, 0, 0, 0) {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{usage:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn scheme(seed: u64) -> Scheme {
    Scheme { seed, ..Scheme::default() }
}

/// Puts of one length alone.
fn puts_of(length_bytes: u32) -> Scheme {
    Scheme { sizes: vec![SizeClass::of(length_bytes)], puts_percent: 100, ..scheme(3) }
}

fn plan(scheme: &Scheme, messages: u64) -> LoadPlan {
    LoadPlan { messages, window: 32, ..LoadPlan::new(scheme.clone(), vec![Nid::LO]) }
}

#[track_caller]
fn await_ended(initiator: &Initiator, count: u64) {
    let begun = Instant::now();
    while initiator.progress().ended < count {
        assert!(begun.elapsed() < PATIENCE, "{:?}", initiator.progress());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_size_goes_both_ways_over_all_shards() {
    let lnet = start();
    // As many of each size, so that there are long ones.
    let mut scheme = scheme(1);
    scheme.sizes.iter_mut().for_each(|class| class.weight = 1);
    let target = Target::start(&lnet, &scheme).unwrap();
    let initiator = Initiator::start(&lnet, &plan(&scheme, 1200)).unwrap();
    await_ended(&initiator, 1200);
    let done = initiator.wait();
    assert_eq!(done.faults.count, 0, "{:?}", done.faults);
    assert_eq!(done.puts().messages + done.gets().messages, 1200);
    assert_eq!(done.classes.len(), 12);
    for class in &done.classes {
        assert_eq!(class.latency.count(), class.tally.messages);
        assert!(class.tally.messages > 60 && class.latency.quantile(0.5) > 0, "{class:?}");
        assert!(class.latency.max() <= done.elapsed_ns);
    }
    assert!(done.by_shard.iter().all(|count| *count > 100), "{:?}", done.by_shard);
    assert_eq!(done.by_shard.iter().sum::<u64>(), 1200);
    let seen = target.stop();
    assert_eq!((seen.puts, seen.gets), (done.puts(), done.gets()));
    assert_eq!((seen.faults.count, seen.lost_entries), (0, 0), "{seen:?}");
    assert!(seen.by_shard.iter().all(|count| *count > 200), "{:?}", seen.by_shard);
    assert!(seen.reposted > 50, "{}", seen.reposted);
    await_idle(&lnet);
    let expected = (0..1200).map(|number| scheme.message(number)).filter(|message| message.kind == Kind::Put);
    assert_eq!(seen.puts.bytes, expected.map(|message| u64::from(message.length_bytes)).sum::<u64>());
}

#[test]
fn puts_without_acks_arrive() {
    let lnet = start();
    let scheme = puts_of(5000);
    let target = Target::start(&lnet, &scheme).unwrap();
    let done = Initiator::start(&lnet, &LoadPlan { ack: false, ..plan(&scheme, 300) }).unwrap().wait();
    assert_eq!((done.puts().messages, done.faults.count), (300, 0));
    let begun = Instant::now();
    while target.report().puts.messages < 300 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", target.report());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(target.stop().faults.count, 0);
}

#[test]
fn another_seed_is_noticed_at_both_ends() {
    let lnet = start();
    let sizes = vec![SizeClass { min_bytes: 8, max_bytes: 3000, weight: 1 }];
    let ours = Scheme { sizes, ..scheme(1) };
    let target = Target::start(&lnet, &Scheme { seed: 2, ..ours.clone() }).unwrap();
    let done = Initiator::start(&lnet, &plan(&ours, 600)).unwrap().wait();
    assert!(!done.has_given_up);
    assert_eq!(done.gets().messages, 0, "no Get brings the right bytes");
    assert_eq!(done.faults.count, done.faults.of(FaultKind::Byte));
    assert_eq!(done.faults.first.len(), FAULTS_MAX);
    for fault in &done.faults.first {
        let difference = fault.difference.unwrap();
        assert!(difference.expected != difference.found && difference.offset_bytes < 8, "{fault:?}");
    }
    let seen = target.stop();
    assert_eq!((seen.puts.messages, seen.faults.count), (0, done.puts().messages));
    assert_eq!(seen.gets.messages, done.faults.count);
    await_idle(&lnet);
}

#[test]
fn another_length_is_noticed() {
    let lnet = start();
    let target = Target::start(&lnet, &puts_of(200)).unwrap();
    let done = Initiator::start(&lnet, &plan(&puts_of(100), 50)).unwrap().wait();
    assert_eq!(done.faults.count, 0, "the target took them");
    let seen = target.stop();
    assert_eq!((seen.puts.messages, seen.faults.of(FaultKind::Length)), (0, 50));
    let difference = seen.faults.first[0].difference.unwrap();
    assert_eq!((difference.expected, difference.found), (200, 100));
}

/// Puts that no initiator sends: whatever the number, they are counted and told of, and the load goes on.
#[test]
fn a_target_believes_nothing() {
    let lnet = start();
    let scheme = Scheme { puts_percent: 50, ..puts_of(64) };
    let target = Target::start(&lnet, &scheme).unwrap();
    let shard = lnet.shard(0).unwrap();
    let queue = shard.create_event_queue(1024).unwrap();
    let put = |portal, match_bits, number, payload: Vec<u8>| {
        let md = MdSpec::new(payload.len() as u64, Threshold::Count(1), MdOptions::NONE, queue.handle());
        let to = lnet_user::Target::new(Nid::LO, portal, match_bits);
        shard.bind(&md, Buffer::from(payload)).unwrap().put(&to, Ack::NotWanted, number).start().unwrap();
    };
    let numbers = (0..64).flat_map(|bit| [1 << bit, u64::MAX << bit]);
    let mut sent = 0;
    let mut not_puts = 0;
    for number in numbers {
        let message = scheme.message(number);
        if message.kind == Kind::Get {
            put(10, 0, number, vec![0; 64]);
            not_puts += 1;
        } else {
            // Its place is right, its bytes are not.
            put(message.portal, message.match_bits, number, vec![0; 64]);
        }
        sent += 1;
    }
    let begun = Instant::now();
    while target.report().faults.count < sent {
        assert!(begun.elapsed() < PATIENCE, "{:?}", target.report());
        std::thread::sleep(Duration::from_millis(1));
    }
    let done = Initiator::start(&lnet, &plan(&scheme, 200)).unwrap().wait();
    let seen = target.stop();
    assert_eq!((seen.puts, seen.faults.count), (done.puts(), sent));
    assert_eq!(seen.faults.of(FaultKind::Number), not_puts);
    assert_eq!(seen.faults.of(FaultKind::Byte), sent - not_puts);
    assert!(not_puts > 30 && sent - not_puts > 30);
}

#[test]
fn an_initiator_gives_up_when_its_target_stops() {
    let lnet = start();
    let scheme = Scheme { sizes: vec![SizeClass::of(512)], ..scheme(1) };
    let target = Target::start(&lnet, &scheme).unwrap();
    let initiator =
        Initiator::start(&lnet, &LoadPlan { timeout_ms: 200, ..plan(&scheme, u64::MAX) }).unwrap();
    await_ended(&initiator, 300);
    let seen = target.stop();
    let done = initiator.wait();
    assert!(done.has_given_up && !done.is_cancelled);
    assert!(done.faults.of(FaultKind::Timeout) >= 32, "{:?}", done.faults);
    assert!(seen.puts.messages >= done.puts().messages && seen.lost_entries == 0);
    assert_eq!(seen.faults.count, 0, "{:?}", seen.faults);
    await_idle(&lnet);
}

#[test]
fn an_initiator_that_is_over_cannot_be_cancelled() {
    let lnet = start();
    let scheme = scheme(1);
    let _target = Target::start(&lnet, &scheme).unwrap();
    let initiator = Initiator::start(&lnet, &plan(&scheme, 100)).unwrap();
    await_ended(&initiator, 100);
    while !initiator.progress().is_over {
        std::thread::yield_now();
    }
    initiator.cancel();
    let done = initiator.wait();
    assert!(!done.is_cancelled && done.faults.count == 0);
    assert_eq!(done.puts().messages + done.gets().messages, 100);
}

#[test]
fn a_cancelled_initiator_gives_everything_back() {
    let lnet = start();
    let scheme = scheme(1);
    let target = Target::start(&lnet, &scheme).unwrap();
    let initiator = Initiator::start(&lnet, &plan(&scheme, u64::MAX)).unwrap();
    await_ended(&initiator, 100);
    initiator.cancel();
    let done = initiator.wait();
    assert!(done.is_cancelled && !done.has_given_up);
    let good = done.puts().messages + done.gets().messages;
    assert_eq!(done.by_shard.iter().sum::<u64>(), good + done.faults.count, "each ended once");
    assert_eq!(done.faults.count, done.faults.of(FaultKind::Cancelled), "{:?}", done.faults);
    // Dropped is cancelled, too; and the target serves others meanwhile.
    drop(Initiator::start(&lnet, &plan(&scheme, u64::MAX)).unwrap());
    let done = Initiator::start(&lnet, &plan(&scheme, 100)).unwrap().wait();
    assert_eq!((done.puts().messages + done.gets().messages, done.faults.count), (100, 0));
    assert_eq!(target.stop().faults.count, 0);
    await_idle(&lnet);
}

#[test]
fn two_initiators_share_a_target() {
    let lnet = start();
    let scheme = scheme(9);
    let target = Target::start(&lnet, &scheme).unwrap();
    let two = [700, 400].map(|messages| Initiator::start(&lnet, &plan(&scheme, messages)).unwrap());
    let mut sum = lnet_load::InitiatorReport::default();
    for initiator in two {
        sum.merge(&initiator.wait());
    }
    assert_eq!((sum.puts().messages + sum.gets().messages, sum.faults.count), (1100, 0));
    let seen = target.stop();
    assert_eq!((seen.puts, seen.gets, seen.faults.count), (sum.puts(), sum.gets(), 0));
    await_idle(&lnet);
}

#[test]
fn what_does_not_start_leaves_nothing() {
    let lnet = start();
    let wrong = Scheme { puts_percent: 101, ..Scheme::default() };
    assert!(matches!(Target::start(&lnet, &wrong), Err(LoadError::Plan(_))));
    assert!(matches!(Initiator::start(&lnet, &plan(&wrong, 1)), Err(LoadError::Plan(_))));
    // More events than the node has.
    let mut large = Scheme::default();
    large.layout.get_match_bits = 200;
    large.sizes = vec![SizeClass::of(1)];
    let error = Target::start(&lnet, &large).unwrap_err().to_string();
    assert!(error.contains("event slots") && error.contains("Limits"), "{error}");
    await_idle(&lnet);
    assert_eq!(Initiator::start(&lnet, &plan(&Scheme::default(), 0)).unwrap().wait().by_shard, [0, 0]);
}
