//! A peer that holds sessions and never acknowledges anything: what it is sent ends in time, it takes no more
//! of the node than its share, and another peer notices nothing.

use std::sync::Arc;
use std::time::Duration;

use lnet_tests::netns::{Netns, Wiring, ip, wait_until};
use lnet_tests::node::message::Message;
use lnet_tests::node::{
    Account, By, Driven, FLOOD_WINDOW, Flood, Flooded, Flooder, LIMITS, Stranger, assert_nothing_left,
    config, losses, nid_v4, process, settle, settle_both, start, stop_all,
};
use lnet_user::node::NodeDriver;
use lnet_user::runtime::Worker;
use lnet_wire::{Body, Nid, WireHandle};

use crate::privileged;
use crate::traffic::PATIENCE;

const SHARDS: u32 = 2;
/// Messages that the node may have in flight, and may to one peer.
const CREDITS: u32 = 32;
const PEER_CREDITS: u32 = 16;
/// How long a message may be under way: the good peer is not to wait for the end of what goes to the silent
/// one.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Payload of each Put, of several frames.
const PUT_BYTES: u32 = 3000;
const FRAMES_PER_PUT: u32 = 3;
/// Entries that a shard posts for a flood at most, one for each portal and match bits.
const POSTED_MAX: u32 = 7 * 32;
/// Puts that the silent peer sends one after the other.
const PUTS_AT_ONCE: u32 = 16;
/// How often all Puts to the silent peer that may be under way are to end.
const GENERATIONS: u64 = 2;

/// A shard that is flooded by one peer, floods two, and notes the most that it has held.
struct Middle {
    flooded: Flooded,
    good: Flooder,
    silent: Flooder,
    held: Held,
}

#[derive(Clone, Copy, Default, Debug)]
struct Held {
    /// Messages of the shard, those that wait for credits included.
    messages: u32,
    /// Messages that the driver has.
    in_flight: u32,
    /// Frames of these that are not acknowledged.
    frames: u32,
    incoming: u32,
    memory_descs: u32,
    peers: u32,
}

impl Held {
    fn note(&mut self, worker: &Worker) {
        let (shard, xfer) = (worker.usage(), worker.xdp().expect("there is an NI").transfer_usage());
        self.messages = self.messages.max(shard.messages);
        self.memory_descs = self.memory_descs.max(shard.memory_descs);
        self.in_flight = self.in_flight.max(xfer.messages);
        self.frames = self.frames.max(xfer.frames);
        self.incoming = self.incoming.max(xfer.incoming);
        self.peers = self.peers.max(xfer.peers);
    }

    /// Asserts that it is bounded by what each peer and each flooder may have under way.
    fn assert_bounded(&self) {
        println!("{self:?}");
        let windows = 2 * FLOOD_WINDOW as u32;
        // A shard's share of the credits of two peers.
        let in_flight = 2 * PEER_CREDITS / SHARDS;
        assert!(self.in_flight <= in_flight, "{self:?}");
        assert!(self.frames <= in_flight * FRAMES_PER_PUT, "{self:?}");
        assert!(self.messages <= windows + LIMITS.responses, "{self:?}");
        assert!(self.incoming <= windows, "{self:?}");
        assert!(self.memory_descs <= windows + POSTED_MAX, "{self:?}");
        assert_eq!(self.peers, 2, "{self:?}");
    }
}

impl Middle {
    fn start(floods: [&Arc<Flood>; 3], node: &NodeDriver, workers: Vec<Worker>) -> Vec<Driven<Self>> {
        let [inward, good, silent] = floods;
        let start = |mut worker: Worker| {
            let middle = Self {
                flooded: Flooded::post(inward, node.steering(), &mut worker),
                good: Flooder::new(good, &mut worker),
                silent: Flooder::new(silent, &mut worker),
                held: Held::default(),
            };
            Driven::start(By::Application, worker, middle, |worker, middle: &mut Self| middle.turn(worker))
        };
        workers.into_iter().map(start).collect()
    }

    fn turn(&mut self, worker: &mut Worker) {
        self.flooded.turn(worker);
        self.good.turn(worker);
        self.silent.turn(worker);
        self.held.note(worker);
    }
}

/// A PUT that asks for an ACK, which will never be acknowledged.
fn put_with_ack(number: u32, from: Nid, to: Nid) -> Message {
    let mut put = Message::put(from, to, 10 + number % 7, u64::from(number / 7 % 32), 64);
    let Body::Put { ack_md, .. } = &mut put.header.body else { panic!("a PUT") };
    *ack_md = WireHandle { interface_cookie: 1, object_cookie: 1 };
    put
}

fn all_ended(flood: &Flood) {
    wait_until("every Put has ended", PATIENCE, || flood.acked() + flood.failed() == flood.started());
}

#[test]
fn a_peer_that_acknowledges_nothing_holds_nobody_up() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [nid, good_nid] = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let with_timeout = |namespace, nid| config(namespace, nid).lnd_timeout(TIMEOUT);
    let mut node_config = with_timeout(netns.a(), nid);
    let ni = node_config.nis[0].clone();
    node_config.nis[0] = ni.credits(Some(CREDITS)).peer_credits(Some(PEER_CREDITS));
    let (node, workers) = start(netns.a(), &node_config);
    let (good_node, good_workers) = start(netns.b(), &with_timeout(netns.b(), good_nid));
    // The silent peer has an address of its own at the same end of the link.
    let silent_nid = Nid::new_ip(nid.net(), [10, 211, 0, 77].into()).unwrap();
    ip(netns.b(), &format!("address add 10.211.0.77/24 dev {}", netns.b().interface().name));
    let mut stranger = Stranger::new(netns.b(), silent_nid, nid);

    let [outward, to_silent, inward] =
        [good_nid, silent_nid, nid].map(|target| Flood::new(process(target), 1 << 40, PUT_BYTES));
    let middle = Middle::start([&inward, &outward, &to_silent], &node, workers);
    let good = good_workers.into_iter().map(|mut worker| {
        let state =
            (Flooded::post(&outward, good_node.steering(), &mut worker), Flooder::new(&inward, &mut worker));
        Driven::start(By::Application, worker, state, |worker, (flooded, flooder)| {
            flooded.turn(worker);
            flooder.turn(worker);
        })
    });
    let good: Vec<_> = good.collect();
    stranger.greet(|| {});
    let (mut puts, mut frames) = (0, 0);
    let window = u64::from(SHARDS) * FLOOD_WINDOW;
    wait_until("Puts to the silent peer end", 4 * PATIENCE, || {
        frames += stranger.stay_silent();
        // More than there are responses to promise.
        for _ in 0..PUTS_AT_ONCE {
            let put = stranger.sign(put_with_ack(puts, silent_nid, nid));
            stranger.send(&put.datagram());
            puts += 1;
        }
        to_silent.failed() >= GENERATIONS * window
    });
    for flood in [&outward, &inward, &to_silent] {
        flood.stop();
    }
    for flood in [&outward, &inward, &to_silent] {
        all_ended(flood);
    }
    let (mut workers, states) = stop_all(middle);
    let (mut good_workers, _) = stop_all(good);
    settle(&mut workers, PATIENCE);
    settle_both(&mut workers, &mut good_workers, PATIENCE);

    println!("{puts} Puts from and {frames} frames to the silent peer, {:?}", to_silent.failures());
    for (name, flood) in [("outward", &outward), ("inward", &inward)] {
        println!("{name}: {} acknowledged, the slowest after {:?}", flood.acked(), flood.slowest());
        assert_eq!((flood.acked(), flood.failed()), (flood.started(), 0), "{name}: {:?}", flood.failures());
        assert!(flood.acked() > 1000, "{name}: {}", flood.acked());
        assert!(flood.slowest() < TIMEOUT / 2, "{name}: {:?}", flood.slowest());
    }
    assert_silent_ended(&to_silent, frames);
    for middle in &states {
        middle.held.assert_bounded();
    }
    assert_nothing_left(&workers);
    let mut lost = [losses(&workers), losses(&good_workers)].concat();
    let promised_no_more = lost.iter().any(|(name, _)| name == "too many responses under way");
    assert!(promised_no_more, "{puts} Puts did not exceed the share of the silent peer: {lost:?}");
    lost.retain(|(name, _)| !["not sent", "too many responses under way"].contains(&name.as_str()));
    assert_eq!(lost, [], "the ACKs to the silent peer are all that is lost");
    Account::of(&node, &workers).check();
}

/// What was sent to the silent peer has ended by time, whether it had left the node, was waiting for its turn
/// in the window, or for a credit.
fn assert_silent_ended(flood: &Flood, frames: u64) {
    let mut failures = flood.failures();
    assert_eq!((flood.acked(), flood.failed()), (0, flood.started()), "{failures:?}");
    for status in ["Unknown(Timeout)", "NeverSent(Timeout)", "NeverSent(CreditTimeout)"] {
        assert!(failures.remove(status).is_some(), "nothing ended as {status}: {:?}", flood.failures());
    }
    assert!(failures.is_empty(), "{failures:?}");
    // The silent peer is asked ever more rarely whether it is there.
    let most = 4 * (flood.failed() + u64::from(SHARDS) * FLOOD_WINDOW) * u64::from(FRAMES_PER_PUT);
    assert!(frames > 0 && frames < most, "{frames} frames went to it");
}
