//! Which PUTs may wait for an entry, at the shard that they reached and at the one that they are for, against
//! a naive model.

use lnet_core::Limits;
use lnet_core::handle::ShardId;
use lnet_core::lnd::{Cause, Status, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_wire::steer::Policy;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::{NOW, config, from, put_header};
use crate::mesh::Shards;

const SHARDS: usize = 3;
/// The shard that all messages are for; its portal is lazy.
const HOME: usize = 1;

#[derive(Clone, Debug)]
enum Operation {
    /// A PUT of a peer reaches a shard.
    Arrive { shard: usize, peer: u8 },
    /// An LND has finished with a message that was taken, or gives up one that was not.
    End { which: Index, well: bool },
    /// An entry for so many, if the last one is used up.
    Post { count: u32 },
    /// What waits for an entry is dropped.
    Clear,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    /// It has not reached its home.
    Asking,
    Parked,
    Taken,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Message {
    shard: usize,
    rx: u32,
    peer: u8,
    place: Place,
}

struct Run {
    shards: Shards,
    delayed: usize,
    /// Messages that an LND has, in the order in which they came.
    messages: Vec<Message>,
    /// Those that are parked at their home, in the order in which they came there.
    parked: Vec<(usize, u32)>,
    /// Messages that the entry still takes.
    takes: u32,
    /// What was resumed since it was last compared, and whether it was taken.
    resumed: Vec<(usize, u32, bool)>,
}

impl Run {
    fn new(delayed: u32) -> Self {
        let limits =
            Limits { delayed, incoming: 256, match_entries: 256, memory_descs: 256, ..config().limits };
        let mut shards = Shards::with_limits(SHARDS as u8, Policy::Pin(HOME as u8), limits);
        shards.0[HOME].shard.set_lazy(4).unwrap();
        let (messages, parked, resumed) = (Vec::new(), Vec::new(), Vec::new());
        Self { shards, delayed: delayed as usize, messages, parked, takes: 0, resumed }
    }

    /// Whether one more of this peer may wait where those do that `waits` names, and `most` may.
    fn admits(&self, peer: u8, most: usize, waits: impl Fn(&&Message) -> bool) -> bool {
        let waiting: Vec<_> = self.messages.iter().filter(waits).collect();
        waiting.iter().filter(|message| message.peer == peer).count() < most - waiting.len()
    }

    /// Whether one more of this peer may wait for its LND on this shard. At its home one that was taken is
    /// the LND's alone.
    fn may_wait(&self, shard: usize, peer: u8) -> bool {
        self.admits(peer, self.delayed, |message| {
            message.shard == shard && (shard != HOME || message.place == Place::Parked)
        })
    }

    fn find(&mut self, (shard, rx): (usize, u32)) -> &mut Message {
        self.messages.iter_mut().find(|message| (message.shard, message.rx) == (shard, rx)).unwrap()
    }

    fn resume(&mut self, name: (usize, u32), taken: bool) {
        self.resumed.push((name.0, name.1, taken));
        if taken {
            self.find(name).place = Place::Taken;
        } else {
            self.messages.retain(|message| (message.shard, message.rx) != name);
        }
    }

    fn arrive(&mut self, shard: usize, peer: u8) {
        let used = |rx: &u32| self.messages.iter().any(|message| (message.shard, message.rx) == (shard, *rx));
        let rx = (0..).find(|rx| !used(rx)).unwrap();
        let verdict = self.shards.header(shard, rx, &from(peer, put_header(1, 4)));
        let place = match verdict {
            Verdict::Deliver(_) => Place::Taken,
            Verdict::Delay if shard == HOME => Place::Parked,
            _ => Place::Asking,
        };
        if shard == HOME && self.takes > 0 {
            assert_eq!(place, Place::Taken);
            self.takes -= 1;
        } else {
            let expected = if self.may_wait(shard, peer) { Verdict::Delay } else { Verdict::Drop };
            assert_eq!(verdict, expected, "peer {peer} at {shard}: {:?}", self.messages);
        }
        if verdict != Verdict::Drop {
            self.messages.push(Message { shard, rx, peer, place });
        }
        if place == Place::Parked {
            self.parked.push((shard, rx));
        }
    }

    fn end(&mut self, which: Index, well: bool) {
        if self.messages.is_empty() {
            return;
        }
        let Message { shard, rx, place, .. } = self.messages.remove(which.index(self.messages.len()));
        self.parked.retain(|parked| *parked != (shard, rx));
        let status = if well && place == Place::Taken { Status::Ok } else { Status::Unknown(Cause::Reset) };
        self.shards.received(shard, rx, status);
    }

    fn post(&mut self, count: u32) {
        if self.takes > 0 {
            return;
        }
        let threshold = Threshold::Count(count);
        let spec = MdSpec { threshold, event_queue: None, ..self.shards.spec(HOME, MdOptions::PUT) };
        self.shards.post(HOME, 1, &spec);
        let taken = self.parked.len().min(count as usize);
        self.takes = count - taken as u32;
        let taken: Vec<_> = self.parked.drain(..taken).collect();
        taken.into_iter().for_each(|name| self.resume(name, true));
    }

    fn clear(&mut self) {
        self.shards.0[HOME].shard.clear_lazy(4).unwrap();
        self.shards.0[HOME].shard.set_lazy(4).unwrap();
        std::mem::take(&mut self.parked).into_iter().for_each(|name| self.resume(name, false));
    }

    /// What becomes of the messages of a shard that are to be asked about, as long as that may be for their
    /// peers.
    fn ask(&mut self, shard: usize) {
        let asks = (self.delayed / SHARDS).max(1);
        let at_home = |message: &&Message| message.shard == shard && message.place != Place::Asking;
        loop {
            let asking = |message: &&Message| {
                message.shard == shard
                    && message.place == Place::Asking
                    && self.admits(message.peer, asks, at_home)
            };
            let Some(&Message { rx, peer, .. }) = self.messages.iter().find(asking) else { return };
            let parked = |message: &&Message| message.shard == shard && message.place == Place::Parked;
            if self.takes > 0 {
                self.takes -= 1;
                self.resume((shard, rx), true);
            } else if self.admits(peer, asks.div_ceil(2), parked) {
                self.find((shard, rx)).place = Place::Parked;
                self.parked.push((shard, rx));
            } else {
                self.resume((shard, rx), false);
            }
        }
    }

    /// Everything is said and heard.
    fn settle(&mut self) {
        for shard in (0..SHARDS).filter(|&shard| shard != HOME) {
            let mut moved = true;
            while std::mem::take(&mut moved) {
                // Each question is answered before the next one, which may depend on the answer.
                for (from, to, most) in [(HOME, shard, usize::MAX), (shard, HOME, 1)] {
                    for _ in 0..most {
                        let Some(said) = self.shards.0[from].shard.poll_mesh_to(ShardId(to as u8)) else {
                            break;
                        };
                        self.shards.0[to].shard.handle_mesh(NOW, ShardId(from as u8), said);
                        moved = true;
                    }
                }
            }
            self.ask(shard);
        }
        let mut resumed = Vec::new();
        for shard in 0..SHARDS {
            while let Some((rx, verdict)) = self.shards.resume(shard) {
                resumed.push((shard, rx, verdict != Verdict::Drop));
            }
        }
        let mut expected = std::mem::take(&mut self.resumed);
        resumed.sort();
        expected.sort();
        assert_eq!(resumed, expected, "{:?}", self.messages);
    }

    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Arrive { shard, peer } => self.arrive(shard, peer),
            Operation::End { which, well } => self.end(which, well),
            Operation::Post { count } => self.post(count),
            Operation::Clear => self.clear(),
        }
        self.settle();
        for (shard, node) in self.shards.0.iter().enumerate() {
            let kept = self.messages.iter().filter(|message| match (shard, message.shard) {
                (HOME, HOME) => message.place == Place::Parked,
                (HOME, _) => message.place != Place::Asking,
                (shard, reached) => shard == reached,
            });
            assert_eq!(node.shard.usage().delayed as usize, kept.count(), "{shard}: {:?}", self.messages);
        }
    }

    /// Nothing waits any more, and no peer is referred to.
    fn rest(&mut self) {
        while !self.messages.is_empty() {
            self.run(&Operation::Clear);
            let taken = self.messages.iter().position(|message| message.place == Place::Taken);
            let Some(Message { shard, rx, .. }) = taken.map(|taken| self.messages.remove(taken)) else {
                continue;
            };
            self.shards.received(shard, rx, Status::Ok);
            self.settle();
        }
        for node in &self.shards.0 {
            assert_eq!(node.shard.usage().delayed, 0);
            assert!(node.shard.peers().all(|peer| peer.reference_count == 0));
        }
    }
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => (0..SHARDS, 2_u8..6).prop_map(|(shard, peer)| Operation::Arrive { shard, peer }),
        4 => (any::<Index>(), any::<bool>()).prop_map(|(which, well)| Operation::End { which, well }),
        2 => (1_u32..4).prop_map(|count| Operation::Post { count }),
        1 => Just(Operation::Clear),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn peers_share_the_room_for_what_waits(
        delayed in 0_u32..40,
        operations in proptest::collection::vec(operations(), 1..200),
    ) {
        let mut run = Run::new(delayed);
        for operation in &operations {
            run.run(operation);
        }
        run.rest();
    }
}
