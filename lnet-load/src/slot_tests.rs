use std::time::Duration;

use lnet_user::api::Lnet;
use lnet_user::node::NodeConfig;

use super::*;
use crate::{Scheme, SizeClass, Target as LoadTarget};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the messages of this kind among the first ones in a place; the descriptors that events named, and
/// what came of the messages.
fn run(kind: Kind, target_seed: u64) -> (Vec<MdHandle>, Vec<MessageEnd>) {
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let sizes = vec![SizeClass { min_bytes: 0, max_bytes: 3000, weight: 1 }];
    let scheme = Scheme { seed: 5, sizes, ..Scheme::default() };
    let target = LoadTarget::start(&lnet, &Scheme { seed: target_seed, ..scheme.clone() }).unwrap();
    let mut queue = lnet.shard(0).unwrap().create_event_queue(64).unwrap();
    let messages: Vec<_> =
        (0..20).map(|number| scheme.message(number)).filter(|it| it.kind == kind).collect();
    assert!(messages.len() > 4, "{} messages", messages.len());
    let mut slot = RunSlot::new(7, true, 60_000);
    let (mut outcomes, mut named) = (Outcomes::default(), Vec::new());
    let first = slot.prepare(messages.iter().map(|message| (*message, Nid::LO)), &queue).unwrap();
    let begun = Instant::now();
    assert_eq!(slot.started(begun, queue.shard().start(first), &mut outcomes), Next::Done);
    while slot.is_lent() {
        let queued = queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event in time");
        assert_eq!(queued.event.user_ptr(), 7);
        named.push(queued.event.md());
        assert_eq!(slot.take(queued, &mut outcomes), Next::Done);
        assert_eq!(slot.start_next(&mut outcomes), Next::Done);
    }
    assert!(slot.is_free() && outcomes.unstarted.is_empty());
    let numbers = outcomes.ended.iter().map(|ended| ended.message.number);
    assert!(numbers.eq(messages.iter().map(|message| message.number)));
    drop(target);
    (named, outcomes.ended)
}

#[test]
fn one_descriptor_serves_a_run() {
    for kind in Kind::ALL {
        let (named, ended) = run(kind, 5);
        assert!(ended.iter().all(|ended| ended.outcome.is_ok()), "{ended:?}");
        assert_eq!(named.len(), 2 * ended.len(), "a SEND and an answer of each");
        assert!(named.iter().all(|md| *md == named[0]), "{named:?}");
    }
}

#[test]
fn each_part_of_a_run_is_checked() {
    let (_, ended) = run(Kind::Get, 6);
    for ended in ended.iter().filter(|ended| ended.message.length_bytes > 0) {
        assert!(matches!(ended.outcome, Err((FaultKind::Byte, Some(_)))), "{ended:?}");
    }
}
