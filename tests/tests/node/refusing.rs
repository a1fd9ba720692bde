//! Links of a sender that are down for a while: what is under way waits, no thread spins, and all is sent
//! when they are up again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use lnet_tests::node::{PINNED_PORTALS, Putter};
use lnet_user::runtime::Worker;

use crate::privileged;
use crate::wakeups::{Joined, PATIENCE, PROMPT, cpu_time, cpu_time_of, spawn_putter};

/// Puts that are under way when the link goes down: more than a shard's credits to one peer.
const COUNT: u32 = 100;
/// How long the link is down.
const DOWN: Duration = Duration::from_secs(1);

/// Counts what is logged.
struct Lines(Arc<AtomicU32>);

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("lnet_user")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Puts until one is sent; then they are acknowledged too.
fn recover(worker: &mut Worker, putter: &mut Putter) {
    let (begun, sent) = (Instant::now(), putter.sent);
    while putter.sent == sent {
        assert!(begun.elapsed() < PATIENCE, "{putter:?}");
        std::thread::sleep(Duration::from_millis(5));
        putter.put(worker, PINNED_PORTALS[0], false);
        assert!(putter.drive_to_end(worker, 4 * PROMPT), "{putter:?}");
    }
    let acked = putter.acked;
    putter.put(worker, PINNED_PORTALS[0], true);
    assert!(putter.drive_to_end(worker, PROMPT), "{putter:?}");
    assert_eq!(putter.acked, acked + 1);
}

/// Puts are under way on shard `shard` when its link goes down.
fn goes_down(queues: u16, shard: usize) {
    if !privileged() {
        return;
    }
    let mut joined = Joined::new(queues);
    let mut worker = joined.sources.remove(shard);
    let sibling = spawn_putter(joined.sources.remove(0), joined.target);
    let mut putter = Putter::new(joined.target, &mut worker);
    for _ in 0..COUNT {
        putter.put(&mut worker, PINNED_PORTALS[0], false);
    }
    joined.link("down");

    let lines = Arc::new(AtomicU32::new(0));
    let counted = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
    let (begun, before) = (Instant::now(), cpu_time());
    let (mut turns, mut busy) = (0, 0);
    while let Some(left) = DOWN.checked_sub(begun.elapsed()) {
        turns += 1;
        busy += u32::from(worker.progress());
        putter.turn(&mut worker);
        worker.wait(Some(left)).unwrap();
    }
    let spent = cpu_time() - before;
    drop(counted);
    let lines = lines.load(Ordering::Relaxed);
    assert_eq!((putter.sent, putter.failed), (0, 0), "they wait for the link");
    assert!(
        busy < 200 && spent < DOWN / 5 && lines < 10,
        "{turns} turns, {busy} of them busy, {spent:?} of {DOWN:?}, {lines} lines"
    );
    let idle = cpu_time_of(&sibling, PROMPT);
    assert!(idle < PROMPT / 20, "the sibling took {idle:?}");

    // A Put that begins while it is down waits as well.
    putter.put(&mut worker, PINNED_PORTALS[0], false);
    assert!(!putter.drive_to_end(&mut worker, PROMPT / 2), "{putter:?}");
    joined.link("up");
    assert!(putter.drive_to_end(&mut worker, PATIENCE), "{putter:?}");
    assert_eq!((putter.sent, putter.failed), (COUNT + 1, 0));
    recover(&mut worker, &mut putter);
    let usage = worker.usage();
    assert_eq!(usage.messages, 0, "{usage:?}");
}

#[test]
fn the_link_of_a_queues_owner_goes_down() {
    goes_down(2, 0);
}

#[test]
fn the_link_of_a_siblings_queue_goes_down() {
    goes_down(1, 1);
}

/// Down and up again between two turns: what was refused and what comes after it are both sent, though
/// nothing follows that would push them.
#[test]
fn a_link_that_is_down_for_a_moment() {
    if !privileged() {
        return;
    }
    let mut joined = Joined::new(2);
    let mut worker = joined.sources.remove(0);
    let mut putter = Putter::new(joined.target, &mut worker);
    for round in 0..10 {
        putter.put(&mut worker, PINNED_PORTALS[0], false);
        joined.link("down");
        worker.progress();
        joined.link("up");
        putter.put(&mut worker, PINNED_PORTALS[0], false);
        let ended = putter.drive_to_end(&mut worker, 5 * PROMPT);
        assert!(ended, "round {round}: {putter:?}");
        recover(&mut worker, &mut putter);
    }
}
