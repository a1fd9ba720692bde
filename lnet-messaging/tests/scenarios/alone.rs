//! What a transfer machine of the lnet transport does by itself, or with its own node, whatever net that is
//! on. A node is named by the part of its addresses before the identifiers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use lnet_messaging::transport::Transport;
use lnet_messaging::{
    Addition, BulkDescriptor, Callback, Domain, Errno, Events, Operation, QueueType, StopMode, TmEvent,
    TmState, TransferMachine,
};

use super::{passive_send, send_each};
use crate::common::{PATIENCE, Party};

/// LN-03, and a second one on an address.
pub(crate) fn starts_that_fail(net: &Arc<dyn Transport>, node: &str) {
    let party = Party::new(net);
    assert_eq!(party.tm.start("invalid").unwrap_err().errno(), Errno::Invalid);
    assert_eq!(party.tm.state(), TmState::Failed);
    let (nid, _) = node.split_once(':').unwrap();
    for (address, errno) in [
        (format!("{nid}:12345:99:1"), Errno::Invalid),
        (format!("{nid}:12345:0:1"), Errno::Invalid),
        (format!("{nid}:12346:34:1"), Errno::NotFound),
        ("10.1.2.3@tcp9:12345:34:1".to_owned(), Errno::NotFound),
    ] {
        let mut party = Party::new(net);
        party.tm.start(&address).unwrap();
        let failed = TmEvent::StateChange { state: TmState::Failed, status: Err(errno), end_point: None };
        assert_eq!(party.tm_event(), failed, "{address}");
        party.tm.finish().unwrap();
    }
    let one = Party::started(net, &format!("{node}:5"));
    let mut other = Party::new(net);
    other.tm.start(&format!("{node}:5")).unwrap();
    let status = Err(Errno::AddressInUse);
    let failed = TmEvent::StateChange { state: TmState::Failed, status, end_point: None };
    assert_eq!(other.tm_event(), failed);
    one.end();
}

/// LN-04, LN-05 and LN-11: addresses are as given, or the highest that are free.
pub(crate) fn addresses_that_are_chosen(net: &Arc<dyn Transport>, node: &str) {
    let named = |tmid: &str| format!("{node}:{tmid}");
    let party = Party::started(net, &named("9"));
    assert_eq!(party.address(), named("9"));
    assert_eq!(party.tm.create_end_point(&named("*")).unwrap_err().errno(), Errno::Invalid);
    party.end();
    let start = || {
        let party = Party::new(net);
        party.tm.confine(&[0]).unwrap();
        party.tm.confine(&[0]).unwrap();
        party.start(&named("*"))
    };
    let mut parties: Vec<Party> = (0..4).map(|_| start()).collect();
    let addresses: Vec<String> = parties.iter().map(Party::address).collect();
    assert_eq!(addresses, ["4095", "4094", "4093", "4092"].map(named));
    parties.remove(1).end();
    let again = start();
    assert_eq!(again.address(), addresses[1]);
    again.end();
    parties.into_iter().for_each(Party::end);
}

/// LN-06 and LN-16: what waits is deleted.
pub(crate) fn waiting_buffers_are_deleted(net: &Arc<dyn Transport>, node: &str) {
    let mut party = Party::started(net, &format!("{node}:1"));
    let receive = Operation::Receive { min_receive_bytes: 64, max_messages: 1 };
    for operation in [receive, passive_send(8), Operation::PassiveReceive { initiator: None }] {
        let queue = operation.queue();
        let added = party.tm.add(party.buffer(&[64]), operation).unwrap();
        assert_eq!(added.descriptor.map(|bytes| bytes.as_bytes().len()), queue.is_passive().then_some(48));
        assert!(party.tm.del(added.id));
        assert_eq!(party.end_of(added.id).0, Err(Errno::Canceled));
        assert_eq!(party.counts(queue), (1, 1, 0, 1));
        assert!(!party.tm.del(added.id));
    }
    assert_eq!(party.tm.queue_length(QueueType::Receive), 0);
    party.end();
}

/// LN-12 to LN-14: descriptors that are cut short, longer, or of which a bit is wrong.
pub(crate) fn descriptors_that_are_none(net: &Arc<dyn Transport>, node: &str) {
    let party = Party::started(net, &format!("{node}:1"));
    let passive = party.tm.add(party.buffer(&[8]), passive_send(8)).unwrap();
    let good = passive.descriptor.unwrap().as_bytes().to_vec();
    let mut wrong: Vec<Vec<u8>> = (0..good.len()).map(|end| good[..end].to_vec()).collect();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        wrong.push(bytes);
    }
    wrong.push([&good[..], &[0]].concat());
    for bytes in wrong {
        let from = BulkDescriptor::from_bytes(&bytes);
        let refused = party.tm.add(party.buffer(&[8]), Operation::ActiveReceive { from }).unwrap_err();
        assert_eq!(refused.error.errno(), Errno::Invalid, "{bytes:?}");
    }
    party.end();
}

struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A started transfer machine whose buffer events the test delivers.
pub(crate) fn synchronous(net: &Arc<dyn Transport>, address: &str) -> (Domain, TransferMachine) {
    let (handler, _) = Events::channel();
    let domain = Domain::new(net).unwrap();
    let tm = TransferMachine::new(&domain, handler).unwrap();
    tm.deliver_synchronously().unwrap();
    tm.start(address).unwrap();
    wait_until(|| tm.state() == TmState::Started);
    (domain, tm)
}

/// Stops one of which nothing is queued.
pub(crate) fn end(tm: &TransferMachine) {
    tm.stop(StopMode::Abort).unwrap();
    wait_until(|| tm.state() == TmState::Stopped);
    tm.finish().unwrap();
}

/// LN-19: the callbacks of the far side run where the application has them run.
pub(crate) fn the_application_delivers(nets: [&Arc<dyn Transport>; 2], addresses: [&str; 2]) {
    let mut near = Party::started(nets[0], addresses[0]);
    let (domain, far) = synchronous(nets[1], addresses[1]);
    assert!(!far.is_pending().unwrap());
    far.deliver_all().unwrap();
    let (told, seen) = mpsc::channel();
    let callback = Callback::new(move |_, event| told.send((std::thread::current().id(), event)).unwrap());
    for _ in 0..4 {
        let receive = Operation::Receive { min_receive_bytes: 8, max_messages: 1 };
        far.add(domain.allocate(1, 8).unwrap(), Addition::from(receive).callback(&callback)).unwrap();
    }
    let count = Arc::new(Count(AtomicU32::new(0)));
    far.notify(Waker::from(Arc::clone(&count))).unwrap();
    assert_eq!(count.0.load(Ordering::SeqCst), 0);
    send_each(&mut near, addresses[1], &[1, 2, 3, 4]);
    wait_until(|| count.0.load(Ordering::SeqCst) == 1);
    assert!(far.is_pending().unwrap() && seen.try_recv().is_err());
    let mut lengths = Vec::new();
    wait_until_all(&far, || seen.try_iter().collect(), &mut lengths);
    assert_eq!(lengths, [1, 2, 3, 4]);
    assert_eq!(count.0.load(Ordering::SeqCst), 1, "once");
    near.end();
    end(&far);
}

/// Delivers until four messages have come, all on this thread.
fn wait_until_all(
    far: &TransferMachine,
    mut seen: impl FnMut() -> Vec<(std::thread::ThreadId, lnet_messaging::BufferEvent)>,
    lengths: &mut Vec<u64>,
) {
    let begun = Instant::now();
    while lengths.len() < 4 {
        assert!(begun.elapsed() < PATIENCE);
        far.deliver_all().unwrap();
        for (thread, event) in seen() {
            assert_eq!(thread, std::thread::current().id());
            lengths.push(event.length_bytes);
        }
    }
}
