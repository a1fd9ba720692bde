//! Fault rules and what shards count of them.

use std::sync::atomic::{AtomicBool, Ordering};

use lnet_user::{
    Ack, Buffer, DropRule, FaultEdit, Filter, MdOptions, MdSpec, MessageTypes, Nid, Target, Threshold,
};

use crate::common::{PINNED, next, start};

/// A rule that comes and goes while others are read takes no counts of theirs.
#[test]
fn counts_stay_with_their_rule_while_another_one_comes_and_goes() {
    let lnet = start(2);
    let rule = |source, messages| DropRule {
        filter: Filter { source, messages, ..Filter::EVERYTHING },
        rate: 1,
        interval_s: 0,
        random: false,
        drop_all: false,
        health_errors: Vec::new(),
    };
    let [counted, passing] = [rule(Nid::ANY, MessageTypes::PUT), rule(Nid::LO, MessageTypes::ACK)];
    lnet.edit_faults(&[FaultEdit::AddDrop(counted.clone())]).unwrap();
    let shard = lnet.shard(0).unwrap();
    let mut events = shard.create_event_queue(16).unwrap();
    let md = MdSpec::new(8, Threshold::Count(1), MdOptions::NONE, events.handle());
    let source = shard.bind(&md, Buffer::zeroed(8)).unwrap();
    source.put(&Target::new(Nid::LO, PINNED[0], 1), Ack::NotWanted, 0).start().unwrap();
    next(&mut events);
    let stops = AtomicBool::new(false);
    let (source, destination) = (Nid::LO, Nid::ANY);
    let mut is_seen = [false; 2];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stops.load(Ordering::Relaxed) {
                lnet.edit_faults(&[FaultEdit::AddDrop(passing.clone())]).unwrap();
                lnet.edit_faults(&[FaultEdit::DeleteDrops { source, destination }]).unwrap();
            }
        });
        for _ in 0..5000 {
            let rules = lnet.drop_rules().unwrap();
            let told: Vec<_> = rules.iter().map(|record| (&record.rule, record.dropped)).collect();
            let whole = [(&passing, 0), (&counted, 1)];
            is_seen[usize::from(told.len() == 2)] = true;
            if told != whole[2 - told.len()..] {
                stops.store(true, Ordering::Relaxed);
                panic!("{told:?}");
            }
        }
        stops.store(true, Ordering::Relaxed);
    });
    assert_eq!(is_seen, [true; 2], "the rule was there, and was not");
}
