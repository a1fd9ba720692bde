use std::collections::{BTreeMap, BTreeSet};

use super::*;

#[test]
fn every_message_has_an_entry_with_room_and_every_entry_a_message() {
    for puts_percent in [0, 30, 100] {
        let scheme = Scheme { seed: 5, puts_percent, ..Scheme::default() };
        scheme.validate().unwrap();
        let postings = scheme.postings().filter(|posting| posting.match_bits != PROBE_FLAG);
        let entries: BTreeMap<(u32, u64), Posting> =
            postings.map(|posting| ((posting.portal, posting.match_bits), posting)).collect();
        let mut seen = BTreeSet::new();
        for number in (0..40_000).chain(u64::MAX - 100..=u64::MAX) {
            let message = scheme.message(number);
            let entry = entries[&(message.portal, message.match_bits)];
            assert_eq!(entry.kind, message.kind);
            assert!(u64::from(message.length_bytes) <= entry.max_bytes);
            assert!(u64::from(message.offset_bytes + message.length_bytes) <= entry.room_bytes);
            let class = scheme.sizes[message.class];
            assert!((class.min_bytes..=class.max_bytes).contains(&message.length_bytes));
            seen.insert((message.portal, message.match_bits));
        }
        assert_eq!(seen.len(), entries.len());
    }
}

#[test]
fn shares_are_as_planned() {
    let scheme = Scheme { puts_percent: 25, ..Scheme::default() };
    let mut classes = [0_u32; 6];
    let mut puts = 0_u32;
    for number in 0..100_000 {
        let message = scheme.message(number);
        classes[message.class] += 1;
        puts += u32::from(message.kind == Kind::Put);
    }
    assert!((24_000..26_000).contains(&puts), "{puts}");
    for (count, class) in classes.iter().zip(&scheme.sizes) {
        let wanted = class.weight * 1000;
        assert!(count.abs_diff(wanted) < wanted / 10 + 200, "{classes:?}");
    }
}

#[test]
fn a_put_is_told_from_others_by_its_bytes() {
    let scheme = Scheme { sizes: vec![SizeClass::of(100)], puts_percent: 100, ..Scheme::default() };
    let mut payload = [0; 100];
    scheme.message(7).fill(&mut payload);
    assert_eq!(scheme.message(7).check(&payload), None);
    assert!(scheme.message(8).check(&payload).is_some());
    assert!(Scheme { seed: 1, ..scheme }.message(7).check(&payload).is_some());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |change: &dyn Fn(&mut LoadPlan), expected: PlanError| {
        let mut plan = LoadPlan::new(Scheme::default(), vec![Nid::LO]);
        change(&mut plan);
        assert_eq!(plan.validate(), Err(expected));
    };
    let class = |min_bytes, max_bytes, weight| SizeClass { min_bytes, max_bytes, weight };
    for wrong in [class(2, 1, 1), class(0, (1 << 20) + 1, 1), class(0, 1, 0)] {
        refused(&|plan| plan.scheme.sizes.push(wrong), PlanError::Class(wrong));
    }
    refused(&|plan| plan.scheme.sizes.clear(), PlanError::Classes(0));
    refused(&|plan| plan.scheme.puts_percent = 101, PlanError::Percent(101));
    refused(&|plan| plan.scheme.layout.portals = 0, PlanError::Portals { first: 10, portals: 0 });
    refused(&|plan| plan.scheme.layout.first_portal = 57, PlanError::Portals { first: 57, portals: 8 });
    refused(&|plan| plan.scheme.layout.get_match_bits = 0, PlanError::MatchBits(0));
    refused(&|plan| plan.scheme.layout.small_match_bits = u32::MAX, PlanError::MatchBits(u32::MAX));
    refused(&|plan| plan.targets.clear(), PlanError::NoTargets);
    refused(&|plan| plan.timeout_ms = 0, PlanError::Timeout);
    for window in [0, 1025, 4097] {
        refused(&|plan| plan.window = window, PlanError::Window { window, max_bytes: 1 << 20 });
    }
    let mut plan = LoadPlan::new(Scheme::default(), vec![Nid::LO]);
    plan.scheme.layout.large_match_bits = 256;
    assert!(matches!(plan.validate(), Err(PlanError::Memory(_))));
}
