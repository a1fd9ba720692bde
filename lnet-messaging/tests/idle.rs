//! Transfer machines that have nothing to do leave the CPUs alone. A program of its own, for it looks at all threads of the process.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::Party;
use lnet_messaging::transport::Transport;
use lnet_messaging::{LnetTransport, MemTransport};
use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Lnet, NodeConfig};
use std::sync::Arc;

/// How often each thread of such a name has gone to sleep so far.
fn sleeps(name: &str) -> BTreeMap<String, u64> {
    let mut sleeps = BTreeMap::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = task.unwrap().path();
        let Ok(status) = std::fs::read_to_string(path.join("status")) else { continue };
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key).map(str::trim));
        if field("Name:").is_some_and(|found| found.starts_with(name)) {
            let count = field("voluntary_ctxt_switches:").unwrap().parse().unwrap();
            sleeps.insert(path.display().to_string(), count);
        }
    }
    sleeps
}

#[test]
fn a_transfer_machine_without_deadlines_sleeps_until_something_happens() {
    let lnet =
        Lnet::start_on(&NodeConfig::loopback(), &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    let lnet = LnetTransport::with_event_slots(&lnet, 64).shared();
    let start = |transport: &Arc<dyn Transport>, address: &str| {
        let party = Party::started(transport, address);
        party.post(8, 8, 1);
        party
    };
    let mem = MemTransport::default().shared();
    let parties = [start(&lnet, "0@lo:12345:34:1"), start(&lnet, "0@lo:12345:34:2")];
    let others = [start(&mem, "127.0.0.1:1")];
    for name in ["lnet-tm", "tm-"] {
        // What the start has left to do is done by then.
        std::thread::sleep(Duration::from_millis(200));
        let before = sleeps(name);
        assert!(!before.is_empty(), "threads named {name}");
        std::thread::sleep(Duration::from_millis(1200));
        assert_eq!(sleeps(name), before, "{name}");
    }
    parties.into_iter().chain(others).for_each(Party::end);
}
