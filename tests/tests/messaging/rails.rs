//! Two nodes with two rails on one net, of which one is cut and comes back, while there are messages and bulk
//! operations. They have discovered each other before, or do so by their traffic. The application sends and
//! fetches everything once: what else there is to do is LNet's. Over tcp what TCP had taken is not sent
//! again, since it may have arrived: that is all that may be missing there, and the load goes on without it.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lnet_messaging::{BufferId, EndPoint, Errno, Event, Operation, QueueType};
use lnet_tests::netns::{Wiring, enter, ip, wait_until};
use lnet_user::Global;
use lnet_xdp::bpf::Faults;

use crate::common::{PATIENCE, Party};
use crate::nets::{Carrier, Nodes, privileged};
use crate::scenarios::pattern;

/// Messages under way.
const WINDOW: usize = 24;
const MESSAGE_BYTES: usize = 200;
/// Receive buffers, and messages of each: they have room for all that is under way, also where most of them
/// are used up.
const RECEIVE_BUFFERS: usize = 4;
const MESSAGES_MAX: u32 = 100;
const BULK_BYTES: usize = 200_000;
/// What arrives while a rail is cut, and after it has come back.
const STEP: u64 = 2000;
const BULK_STEP: u64 = 10;
/// After which an answer over tcp is not waited for, and a message that has not arrived is given up.
const ANSWER_TIMEOUT_S: u32 = 4;
/// The rails, each of which is cut once.
const RAILS: usize = 2;
/// How long the receiver waits for messages that are missing over tcp, in all.
const MISSING: Duration = Duration::from_secs(3 * ANSWER_TIMEOUT_S as u64);
/// How long the receiver waits for messages that came twice.
const LINGER: Duration = Duration::from_secs(1);

/// What the threads of the load tell each other.
#[derive(Default)]
struct Progress {
    stops: AtomicBool,
    /// Messages in all, from when each of them has ended at the sender; 0 before.
    sent_all: AtomicU64,
    arrived: AtomicU64,
    fetched: AtomicU64,
}

impl Progress {
    fn stops(&self) -> bool {
        self.stops.load(Ordering::Acquire)
    }
}

fn send(party: &Party, to: &EndPoint, number: u64) -> BufferId {
    let mut bytes = pattern(MESSAGE_BYTES);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let length_bytes = bytes.len() as u64;
    party.add(party.filled(&bytes), Operation::Send { to: to.clone(), length_bytes })
}

/// Keeps a window of messages under way until it is to stop. None is sent twice. The number of messages, and
/// how some failed.
fn send_all(party: &mut Party, to: &str, progress: &Progress) -> (u64, Vec<Errno>) {
    let to = party.tm.create_end_point(to).unwrap();
    let (mut under_way, mut next, mut failed) = (BTreeSet::new(), 0, Vec::new());
    // Since when as many have arrived, and how many that are missing are not waited for.
    let (mut since, mut arrived, mut given_up) = (Instant::now(), 0, 0);
    while !progress.stops() || !under_way.is_empty() {
        let now_arrived = progress.arrived.load(Ordering::Acquire);
        if now_arrived != arrived {
            (since, arrived) = (Instant::now(), now_arrived);
        } else if under_way.is_empty() && since.elapsed() > Duration::from_secs(ANSWER_TIMEOUT_S.into()) {
            (since, given_up) = (Instant::now(), next - arrived);
        }
        let most = arrived + given_up + WINDOW as u64;
        while !progress.stops() && under_way.len() < WINDOW && next < most {
            under_way.insert(send(party, &to, next));
            next += 1;
        }
        if under_way.is_empty() {
            std::thread::sleep(Duration::from_micros(200));
            continue;
        }
        let event = party.buffer_event();
        assert!(under_way.remove(&event.id));
        failed.extend(event.status.err());
    }
    progress.sent_all.store(next, Ordering::Release);
    (next, failed)
}

/// Posts a receive buffer.
fn post(party: &Party) {
    party.post(MESSAGE_BYTES * MESSAGES_MAX as usize, MESSAGE_BYTES as u64, MESSAGES_MAX);
}

/// Takes messages; how often each has come. Those that are missing are waited for so long.
fn receive_all(
    party: &mut Party,
    progress: &Progress,
    missing: Duration,
) -> (HashMap<u64, u32>, BTreeSet<String>) {
    let (mut arrived, mut senders) = (HashMap::new(), BTreeSet::new());
    let (mut last, mut lingers) = (Instant::now(), missing);
    loop {
        let Some(event) = party.events.try_next() else {
            // The sender's event may come before the receiver's, so what is missing is waited for, and what
            // is double as well.
            let all = progress.sent_all.load(Ordering::Acquire);
            if all > 0 && arrived.len() as u64 == all {
                lingers = LINGER;
            }
            if all > 0 && last.elapsed() > lingers {
                return (arrived, senders);
            }
            std::thread::sleep(Duration::from_micros(200));
            continue;
        };
        last = Instant::now();
        let Event::Buffer(event) = event else { panic!("{event:?}") };
        assert_eq!((event.queue(), event.status), (QueueType::Receive, Ok(())));
        let bytes = event.payload_bytes();
        assert!(bytes.len() == MESSAGE_BYTES && bytes[8..] == pattern(MESSAGE_BYTES)[8..]);
        let number = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        let count = arrived.entry(number).or_insert(0);
        *count += 1;
        progress.arrived.fetch_add(u64::from(*count == 1), Ordering::AcqRel);
        senders.insert(event.end_point.as_ref().unwrap().address().to_owned());
        if event.is_last() {
            post(party);
        }
    }
}

/// Fetches passive buffers, one after the other. Their descriptors name one NID of the node, as their
/// transfer machine does. How some failed.
fn fetch_all([near, far]: &mut [Party; 2], progress: &Progress) -> Vec<Errno> {
    let (bytes, mut failed) = (pattern(BULK_BYTES), Vec::new());
    while !progress.stops() {
        let send = Operation::PassiveSend { initiator: None, length_bytes: BULK_BYTES as u64 };
        let passive = far.tm.add(far.filled(&bytes), send).unwrap();
        let from = passive.descriptor.unwrap();
        let active = near.add(near.buffer(&[BULK_BYTES]), Operation::ActiveReceive { from });
        let event = near.buffer_event();
        assert!(event.id == active && event.is_last(), "{event:?}");
        match event.status {
            Ok(()) => {
                assert!(event.payload_bytes() == bytes);
                progress.fetched.fetch_add(1, Ordering::AcqRel);
            }
            Err(errno) => {
                failed.push(errno);
                far.tm.del(passive.id);
            }
        }
        let ended = far.end_of(passive.id).0;
        assert!(ended.is_ok() || !failed.is_empty(), "{ended:?}");
    }
    failed
}

/// Waits until the load has made a good step.
fn go_on(progress: &Progress, what: &str) {
    let [arrived, fetched] =
        [&progress.arrived, &progress.fetched].map(|count| count.load(Ordering::Acquire));
    println!("{what}: {arrived} messages, {fetched} fetched before");
    wait_until(what, PATIENCE, || {
        progress.arrived.load(Ordering::Acquire) > arrived + STEP
            && progress.fetched.load(Ordering::Acquire) > fetched + BULK_STEP
    });
}

/// How a rail is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    /// The near end's link goes down, which both nodes are told.
    Link,
    /// XDP drops all that comes to the near end, to the far end: neither node is told.
    Drop { near: bool, far: bool },
}

impl Cut {
    /// Whether messages of the near end are lost by a rail that is cut. A rail that drops answers alone still
    /// carries them. If the far end is the first to find it silent, answers come by the other rail for a
    /// second, and the near end has no reason to leave a rail whose every message is acknowledged.
    fn loses_messages(self) -> bool {
        self != Self::Drop { near: true, far: false }
    }

    /// Cuts a rail, or mends it.
    fn set(self, nodes: &Nodes, rail: usize, is_cut: bool) {
        let (near, far) = match self {
            Self::Link => {
                let name = &nodes.netns.a().interfaces()[rail].name;
                let state = if is_cut { "down" } else { "up" };
                ip(nodes.netns.a(), &format!("link set dev {name} {state}"));
                return;
            }
            Self::Drop { near, far } => (near, far),
        };
        let ends = [(nodes.netns.a(), near), (nodes.netns.b(), far)];
        for (namespace, _) in ends.iter().filter(|(_, drops)| *drops) {
            let name = &namespace.interfaces()[rail].name;
            let mut faults = enter(namespace, || Faults::attached_to(name).unwrap());
            faults.set_loss(if is_cut { 1_000_000 } else { 0 }).unwrap();
        }
    }
}

/// Waits until a good number of messages has gone by a rail.
fn await_use(nodes: &Nodes, rail: usize) {
    let before = nodes.sent_by_near()[rail];
    wait_until("the rail is used", PATIENCE, || nodes.sent_by_near()[rail] > before + STEP / 10);
}

/// Cuts each rail while messages go by it, and mends it.
fn cut_each_rail(nodes: &Nodes, cut: Cut, progress: &Progress) {
    go_on(progress, "a step by both rails");
    for rail in 0..RAILS {
        await_use(nodes, rail);
        cut.set(nodes, rail, true);
        let step = || {
            let before = nodes.sent_by_near()[rail];
            go_on(progress, &format!("a step with rail {rail} cut"));
            nodes.sent_by_near()[rail] - before
        };
        let (mut sent, begun) = (step(), Instant::now());
        while sent >= STEP / 4 && !cut.loses_messages() && begun.elapsed() < PATIENCE {
            sent = step();
        }
        // Messages from before the cut was found, and pings since.
        assert!(sent < STEP / 4, "{sent} by a rail that is cut");
        cut.set(nodes, rail, false);
        go_on(progress, &format!("a step with rail {rail} mended, {sent} by it meanwhile"));
        await_use(nodes, rail);
    }
}

/// When the nodes find each other's rails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Discovery {
    /// Before there is anything else.
    Asked,
    /// When the first messages go, by the NIDs in their addresses.
    ByTraffic,
}

/// Whether what ended so may have arrived: all that may be missing over tcp.
fn may_have_arrived(errno: &Errno) -> bool {
    matches!(errno, Errno::TimedOut | Errno::ConnectionReset)
}

fn a_rail_is_cut(carrier: Carrier, discovery: Discovery, cut: Cut) {
    if !privileged() {
        return;
    }
    let nodes = Nodes::start(carrier, Wiring { rails: 2, ..Wiring::default() });
    if discovery == Discovery::Asked {
        nodes.discover_each_other();
    }
    let may_miss = matches!(carrier, Carrier::Tcp);
    if may_miss {
        nodes.lnets.iter().for_each(|lnet| lnet.set(Global::TransactionTimeout, ANSWER_TIMEOUT_S).unwrap());
    }
    let missing = if may_miss { MISSING } else { PATIENCE };
    let [mut near, mut far] = nodes.parties_over_any_rail(7);
    let mut bulk = nodes.parties_over_any_rail(8);
    let (progress, to) = (Progress::default(), far.address());
    // The first message finds no entry else.
    (0..RECEIVE_BUFFERS).for_each(|_| post(&far));
    let (sent, failed, not_fetched, (arrived, senders)) = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive_all(&mut far, &progress, missing));
        let sender = scope.spawn(|| send_all(&mut near, &to, &progress));
        let fetcher = scope.spawn(|| fetch_all(&mut bulk, &progress));
        let cuts = || cut_each_rail(&nodes, cut, &progress);
        let cuts = std::panic::catch_unwind(std::panic::AssertUnwindSafe(cuts));
        progress.stops.store(true, Ordering::Release);
        let (sent, failed) = sender.join().unwrap();
        let ended = (sent, failed, fetcher.join().unwrap(), receiver.join().unwrap());
        let arrived = ended.3.0.len();
        println!(
            "{carrier:?}: {arrived} of {sent} messages, {:?}; {:?} {:?}",
            progress.fetched, ended.1, ended.2
        );
        cuts.unwrap();
        ended
    });
    let doubled: Vec<_> = arrived.iter().filter(|(_, count)| **count > 1).collect();
    let dropped = nodes.lnets[1].shards().map(|shard| shard.counters().unwrap()).collect::<Vec<_>>();
    let count = arrived.len() as u64;
    assert!(doubled.is_empty(), "{doubled:?}");
    if may_miss {
        // No more than was under way at a cut.
        let most = (RAILS * WINDOW) as u64;
        assert!(sent - count <= most && failed.len() as u64 <= most, "{count} of {sent}; {failed:?}");
        assert!(not_fetched.len() <= RAILS && failed.iter().chain(&not_fetched).all(may_have_arrived));
    } else {
        assert!(failed.is_empty() && not_fetched.is_empty(), "{failed:?} {not_fetched:?}");
        assert_eq!(count, sent, "{dropped:?}");
    }
    // A sender has one address, by whichever rail a message came, once its node is known.
    let of_near = nodes.addresses_of_near(7);
    assert!(senders.contains(&near.address()) && senders.is_subset(&of_near), "{senders:?}");
    assert!(discovery == Discovery::ByTraffic || senders.len() == 1, "{senders:?}");
    for party in bulk.into_iter().chain([near, far]) {
        party.end();
    }
}

#[test]
fn nothing_is_lost_or_doubled_when_a_rail_over_rings_is_cut() {
    a_rail_is_cut(Carrier::Rings, Discovery::Asked, Cut::Link);
}

#[test]
fn nothing_is_lost_or_doubled_when_a_rail_over_sockets_is_cut() {
    a_rail_is_cut(Carrier::Sockets, Discovery::Asked, Cut::Link);
}

#[test]
fn what_tcp_had_taken_is_all_that_is_missing_when_a_rail_is_cut() {
    a_rail_is_cut(Carrier::Tcp, Discovery::Asked, Cut::Link);
}

#[test]
fn nothing_is_lost_or_doubled_where_traffic_finds_the_rails() {
    a_rail_is_cut(Carrier::Rings, Discovery::ByTraffic, Cut::Link);
}

#[test]
fn nothing_is_lost_or_doubled_when_a_rail_drops_all_that_is_sent() {
    a_rail_is_cut(Carrier::Rings, Discovery::Asked, Cut::Drop { near: false, far: true });
}

#[test]
fn nothing_is_lost_or_doubled_when_a_rail_drops_all_that_comes_back() {
    a_rail_is_cut(Carrier::Rings, Discovery::Asked, Cut::Drop { near: true, far: false });
}

#[test]
fn nothing_is_lost_or_doubled_when_a_rail_drops_all_in_both_directions() {
    a_rail_is_cut(Carrier::Rings, Discovery::Asked, Cut::Drop { near: true, far: true });
}
