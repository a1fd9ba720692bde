//! A load takes its memory at the start. In a program of its own, since all of its memory is counted.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

use lnet_load::{Initiator, LoadPlan, Scheme, SizeClass, Target};
use lnet_user::{Lnet, Nid, NodeConfig};

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn memory_does_not_grow_with_messages() {
    let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
    let sizes = vec![SizeClass { min_bytes: 0, max_bytes: 2048, weight: 1 }];
    let scheme = Scheme { sizes, ..Scheme::default() };
    let target = Target::start(&lnet, &scheme).unwrap();
    let initiator =
        Initiator::start(&lnet, &LoadPlan { messages: 15_000, ..LoadPlan::new(scheme, vec![Nid::LO]) })
            .unwrap();
    let mut at_first = None;
    loop {
        let progress = initiator.progress();
        if progress.ended > 3000 {
            at_first.get_or_insert_with(resident_bytes);
        }
        if progress.is_over {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let (at_first, at_last) = (at_first.unwrap(), resident_bytes());
    assert!(at_last < at_first + (2 << 20), "{at_first} {at_last}");
    assert_eq!(initiator.wait().faults.count, 0);
    assert!(target.stop().reposted > 100);
}
