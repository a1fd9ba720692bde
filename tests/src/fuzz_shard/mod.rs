//! The body of the fuzz target `shard`: two shards of a node, with a peer that sends headers of all types as
//! it likes, from two verified addresses, and an honest peer beside it. It uses `lnet-wire` and `lnet-core`
//! alone, so that the fuzzer has little to instrument.
//!
//! What must hold: nothing panics; each message ends once; the tables stay within their limits; a message
//! whose source is not its sender's is dropped, and no other peer is sent an answer to it; what the honest
//! peer sends in bounds is delivered once, and answered once, also while the hostile peer fills every table;
//! once all has ended, nothing is left and all credits are home.

mod honest;
mod hostile;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lnet_core::event::EventKind;
use lnet_core::handle::{EqHandle, MdHandle, ShardId};
use lnet_core::lnd::{NiId, RxId, Span, Status, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_core::topology::{LocalNi, PeerMap, PeerNid, PeerView, Steering, Topology};
use lnet_core::{Limits, Shard, ShardConfig};
use lnet_wire::steer::{PORTALS, Policy, Spread};
use lnet_wire::{Body, Header, Nid, ProcessId};

/// Bytes of one step of an input.
const STEP_BYTES: usize = 16;
/// Steps of an input that count.
const STEPS_MAX: usize = 200;
const SHARDS: usize = 2;
const NI: NiId = NiId(0);
/// Credits of the NI, over both shards, and those of a peer.
const CREDITS: (u32, u32) = (16, 8);
/// How long a message waits for credits.
const CREDIT_WAIT: Duration = Duration::from_secs(5);
const SEAL_KEY: [u64; 2] = [0x1111, 0x2222];

const NODE: u8 = 1;
const HONEST: u8 = 2;
/// The addresses of the hostile peer.
const HOSTILE: [u8; 2] = [3, 4];

/// Portals that the hostile peer's entries are on; those above have none.
const PORTALS_USED: u32 = 4;
/// The portal of the honest peer's entries: of one shard, so that the other one has to ask.
const HONEST_PORTAL: u32 = 8;
/// Names of arriving messages that the hostile peer's take; the others are the honest peer's.
const HOSTILE_RX: u32 = 24;

const LIMITS: Limits = Limits {
    match_entries: 32,
    memory_descs: 48,
    event_queues: 2,
    events: 512,
    unlimited_events: 3,
    spare_events: 4,
    requests: 8,
    responses: 8,
    forwards: 0,
    incoming: 32,
    delayed: 8,
    peers: 6,
    nis: 1,
};

fn nid(host: u8) -> Nid {
    Nid::from_small(2 << 48 | 1 << 32 | 10 << 24 | u64::from(host)).expect("a NID")
}

fn process(host: u8) -> ProcessId {
    ProcessId::lustre(nid(host))
}

/// A message that has arrived and has not ended.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Arriving {
    Delayed,
    Delivered(Span),
}

/// A shard of the node, and what its LND has of it.
struct Lane {
    shard: Shard,
    queues: [EqHandle; 2],
    arriving: BTreeMap<u32, Arriving>,
    /// Messages that the LND has taken, and whether they are answers to the honest peer.
    sending: BTreeMap<u32, bool>,
    mds: Vec<MdHandle>,
    /// Events of the honest peer's messages: its PUTs and GETs that were taken whole.
    honest_events: Vec<u64>,
}

/// The honest peer's message whose verdict is awaited.
struct Awaited {
    lane: usize,
    rx: u32,
    verdict: Option<Verdict>,
}

struct Scene {
    now: Instant,
    lanes: [Lane; SHARDS],
    /// The honest peer's messages so far, and the answers to them that the LND was given.
    honest: u64,
    answers: BTreeMap<u64, u32>,
    /// Messages of the honest peer that were taken.
    taken: Vec<u64>,
    awaited: Option<Awaited>,
}

impl Scene {
    fn new() -> Self {
        let table = Policy::MatchBits { shift: 0, bits: 3, spread: Spread::Hash };
        let policies = [Policy::Pin(0), table, Policy::Rotor, Policy::Initiator];
        let policy =
            |portal: usize| policies.get(portal).unwrap_or(&Policy::Pin(1)).pack().expect("a policy");
        let steering =
            Steering { shard_count: SHARDS as u8, policies: std::array::from_fn::<_, PORTALS, _>(policy) };
        let ni = LocalNi::new(nid(NODE), CREDITS.0, CREDITS.1, CREDIT_WAIT);
        let topology = Topology::new(vec![ni]).with_steering(steering).with_peers(hostile_peer());
        let topology = Arc::new(topology);
        let lane = |number: usize| {
            let mut shard = Shard::new(ShardConfig {
                shard: ShardId(number as u8),
                shard_count: SHARDS as u8,
                seal_key: SEAL_KEY,
                pid: ProcessId::LUSTRE_PID,
                limits: LIMITS,
                topology: Arc::clone(&topology),
                hash_seed: number as u64,
            });
            let queues =
                [256, 128].map(|slots| shard.create_event_queue(slots).expect("slots for two queues"));
            Lane {
                shard,
                queues,
                arriving: BTreeMap::new(),
                sending: BTreeMap::new(),
                mds: Vec::new(),
                honest_events: Vec::new(),
            }
        };
        Self {
            now: Instant(1 << 40),
            lanes: std::array::from_fn(lane),
            honest: 0,
            answers: BTreeMap::new(),
            taken: Vec::new(),
            awaited: None,
        }
    }

    fn step(&mut self, bytes: &[u8; STEP_BYTES]) {
        let lane = usize::from(bytes[1]) % SHARDS;
        match bytes[0] % 16 {
            0..6 => self.send(lane, bytes),
            6 => self.end_arriving(lane, bytes),
            7 => self.end_sending(lane, bytes),
            8 => self.post(lane, bytes),
            9 => self.request(lane, bytes),
            10 => self.unlink(lane, bytes),
            11 => self.change_portal(lane, bytes),
            12 => self.change_rules(lane, bytes),
            13 => self.now = self.now + Duration::from_nanos(1 << (bytes[2] % 36)),
            14 => self.honest_message(lane, bytes[2] & 1 != 0),
            _ => self.poll_events(lane, 0),
        }
        self.settle();
        for lane in &self.lanes {
            let usage = lane.shard.usage();
            let within = usage.match_entries <= LIMITS.match_entries
                && usage.memory_descs <= LIMITS.memory_descs
                && usage.messages <= LIMITS.transmits()
                && usage.events <= LIMITS.events
                && usage.peers <= LIMITS.peers;
            assert!(within, "{usage:?}");
        }
    }

    /// The shards do what is due, and hear each other, until there is nothing more to say.
    fn settle(&mut self) {
        for _ in 0..1000 {
            let mut moved = false;
            for at in 0..SHARDS {
                self.lanes[at].shard.handle_timeout(self.now);
                for to in (0..SHARDS).filter(|to| *to != at) {
                    while let Some(message) = self.lanes[at].shard.poll_mesh_to(ShardId(to as u8)) {
                        moved = true;
                        self.lanes[to].shard.handle_mesh(self.now, ShardId(at as u8), message);
                    }
                }
                while let Some((_, rx, verdict)) = self.lanes[at].shard.poll_resume() {
                    moved = true;
                    self.resume(at, rx, verdict);
                }
                moved |= self.transmit(at);
                self.poll_events(at, 1);
            }
            if !moved {
                return;
            }
        }
        panic!("the shards never stop talking at one moment");
    }

    fn resume(&mut self, at: usize, rx: RxId, verdict: Verdict) {
        let lane = &mut self.lanes[at];
        let former = lane.arriving.remove(&rx.0);
        assert_eq!(former, Some(Arriving::Delayed), "{rx:?} is resumed");
        assert_ne!(verdict, Verdict::Delay, "{rx:?} is delayed for good");
        if let Verdict::Deliver(span) = verdict {
            lane.arriving.insert(rx.0, Arriving::Delivered(span));
        }
        if let Some(awaited) =
            self.awaited.as_mut().filter(|awaited| (awaited.lane, awaited.rx) == (at, rx.0))
        {
            awaited.verdict = Some(verdict);
        }
    }

    /// The LND takes what is to be sent. Says whether there was anything.
    fn transmit(&mut self, at: usize) -> bool {
        let mut moved = false;
        while let Some(lent) = self.lanes[at].shard.poll_transmit(self.now, NI) {
            let transmit = *lent.transmit;
            moved = true;
            let answers = match transmit.header.body {
                Body::Ack { md, .. } | Body::Reply { md } => Some(md),
                _ => None,
            };
            let is_honest = transmit.next_hop == nid(HONEST);
            let peer = if is_honest { &[HONEST][..] } else { &HOSTILE };
            let is_of = |address: Nid| peer.iter().any(|host| address == nid(*host));
            assert!(is_of(transmit.next_hop) && is_of(transmit.header.destination.nid), "{transmit:?}");
            let answers = answers.filter(|_| is_honest);
            if let Some(md) = answers {
                *self.answers.entry(md.object_cookie).or_default() += 1;
            }
            let taken = self.lanes[at].sending.insert(transmit.tx.0, answers.is_some());
            assert_eq!(taken, None, "{:?} is sent twice", transmit.tx);
            if answers.is_some() {
                // Its LND is done with it at once.
                self.sent(at, transmit.tx.0, Status::Ok);
            }
        }
        moved
    }

    fn sent(&mut self, at: usize, tx: u32, status: Status) {
        self.lanes[at].sending.remove(&tx).expect("a message that is being sent");
        self.lanes[at].shard.sent(self.now, TxId(tx), status);
    }

    /// Events of a queue: 0, which the application polls when it likes, and 1, that of the honest peer's
    /// entries.
    fn poll_events(&mut self, at: usize, queue: usize) {
        let lane = &mut self.lanes[at];
        while let Some(event) = lane.shard.poll_event(lane.queues[queue]) {
            if event.unlinked() {
                lane.mds.retain(|md| *md != event.md());
            }
            if queue == 1 && matches!(event.kind(), EventKind::Put | EventKind::Get) {
                let is_whole = event.status() == Status::Ok || event.kind() == EventKind::Get;
                assert!(is_whole, "{event:?}");
                lane.honest_events.push(event.user_ptr());
            }
        }
    }

    fn header(&mut self, at: usize, rx: u32, from: u8, header: &Header) -> Verdict {
        let lane = &mut self.lanes[at];
        let verdict = lane.shard.header(self.now, NI, &nid(from), RxId(rx), header);
        let is_its_own = |host| header.source.nid == nid(host);
        let is_proved = is_its_own(from) || HOSTILE.contains(&from) && HOSTILE.into_iter().any(is_its_own);
        assert!(verdict == Verdict::Drop || is_proved, "{verdict:?} for {header:?} from {}", nid(from));
        let arriving = match verdict {
            Verdict::Drop => return verdict,
            Verdict::Delay => Arriving::Delayed,
            Verdict::Deliver(span) => Arriving::Delivered(span),
        };
        if let Arriving::Delivered(span) = arriving {
            assert!(span.length_bytes <= header.payload_length, "{span:?} of {header:?}");
        }
        lane.arriving.insert(rx, arriving);
        verdict
    }

    fn received(&mut self, at: usize, rx: u32, status: Status) {
        self.lanes[at].arriving.remove(&rx).expect("a message that arrives");
        self.lanes[at].shard.received(self.now, RxId(rx), status);
    }
}

/// Runs an input: steps of `STEP_BYTES`.
pub fn shard(bytes: &[u8]) {
    let mut scene = Scene::new();
    for step in bytes.as_chunks::<STEP_BYTES>().0.iter().take(STEPS_MAX) {
        scene.step(step);
    }
    scene.conclude();
}

/// The hostile NIDs as those of one peer.
fn hostile_peer() -> PeerMap {
    let mut peers = PeerMap::default();
    let nis = HOSTILE.map(|host| PeerNid::new(nid(host), 1000)).to_vec();
    peers.insert(PeerView::new(false, nis).expect("it has NIs"));
    peers
}
