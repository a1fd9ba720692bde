//! When threads of transfer machines sleep: while they have nothing to do, and not between events. A program
//! of its own, for it looks at all threads of the process.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{PATIENCE, Party};
use lnet_messaging::transport::Transport;
use lnet_messaging::{
    BufferEvent, Domain, Handler, LnetTransport, MemTransport, Operation, StopMode, TmState, TransferMachine,
};
use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Lnet, NodeConfig};

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

/// One test at a time: each counts what all threads of a name do.
static SERIAL: Mutex<()> = Mutex::new(());

/// A node that talks to itself, whose shard sleeps whenever it can.
fn node(event_slots: u32) -> Arc<dyn Transport> {
    let threads = Threads::new().idle(Idle::new(Duration::ZERO));
    let lnet = Lnet::start_on(&NodeConfig::loopback(), &threads).unwrap();
    LnetTransport::with_event_slots(&lnet, event_slots).shared()
}

/// Keeps the transfer machine in the callback of its first event for as long as the gate is locked.
struct Gate {
    gate: Arc<Mutex<()>>,
    taken: AtomicUsize,
}

impl Handler for Gate {
    fn buffer_event(&self, _: &TransferMachine, event: BufferEvent) {
        drop(self.gate.lock().unwrap());
        assert_eq!(event.status, Ok(()));
        self.taken.fetch_add(1, Ordering::Release);
    }
}

/// Messages arrive while the transfer machine is busy. It takes their events from memory that it shares with
/// the node: what its thread sleeps meanwhile, it sleeps for other reasons than events, and far less often
/// than there are any.
#[test]
fn events_that_have_piled_up_are_taken_without_sleeping_between_them() {
    const MESSAGES: usize = 1000;
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let lnet = node(1 << 12);
    let mut near = Party::started(&lnet, "0@lo:12345:34:1");
    let gate = Arc::new(Mutex::new(()));
    let handler = Arc::new(Gate { gate: Arc::clone(&gate), taken: AtomicUsize::new(0) });
    let domain = Domain::new(&lnet).unwrap();
    // The thread of `near` is there already.
    let others = sleeps("lnet-tm");
    let far = TransferMachine::new(&domain, Arc::clone(&handler) as Arc<dyn Handler>).unwrap();
    far.start("0@lo:12345:34:2").unwrap();
    assert!(far.wait(Some(Instant::now() + PATIENCE), |front| front.state() == TmState::Started));
    let far_sleeps = || -> Vec<u64> {
        let all = sleeps("lnet-tm").into_iter();
        all.filter(|(thread, _)| !others.contains_key(thread)).map(|(_, count)| count).collect()
    };
    let room = Operation::Receive { min_receive_bytes: 1, max_messages: MESSAGES as u32 };
    far.add(domain.allocate(1, MESSAGES).unwrap(), room).unwrap();
    let closed = gate.lock().unwrap();
    for _ in 0..MESSAGES {
        let id = near.send("0@lo:12345:34:2", b"x");
        assert_eq!(near.end_of(id).0, Ok(()));
    }
    // All has arrived, and the thread sleeps at the gate.
    std::thread::sleep(Duration::from_millis(200));
    let before = far_sleeps();
    assert_eq!((before.len(), handler.taken.load(Ordering::Acquire)), (1, 0));
    drop(closed);
    let deadline = Instant::now() + PATIENCE;
    while handler.taken.load(Ordering::Acquire) < MESSAGES {
        assert!(Instant::now() < deadline, "{:?} of {MESSAGES}", handler.taken);
        std::thread::yield_now();
    }
    let (before, after) = (before[0], far_sleeps()[0]);
    assert!(after - before <= MESSAGES as u64 / 20, "{} sleeps for {MESSAGES} events", after - before);
    far.stop(StopMode::Abort).unwrap();
    assert!(far.wait(Some(Instant::now() + PATIENCE), |front| front.state() == TmState::Stopped));
    far.finish().unwrap();
    near.end();
}

#[test]
fn a_transfer_machine_without_deadlines_sleeps_until_something_happens() {
    let _serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let lnet = node(64);
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
