//! Services of the nodes themselves, where some are hostile: answers to pings, pushes that are taken, and
//! pings and pushes that control asks for.
//!
//! Pings of nodes that are not hostile are operations like others: they are answered in time.

use std::sync::Arc;

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::lnd::{PING_MATCH_BITS, PING_PORTAL, Status};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::node::{DriverError, PingId, Report};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_core::time::Instant;
use lnet_wire::{Nid, ProcessId};

use super::app::NO_OPERATION;
use super::ledger::{Flight, Operation};
use super::memory::Region;
use super::node::nid;
use super::plan::MS;
use super::report::Fault;
use super::world::{Happening, Phase, World};

/// How often control hears what shards have learned, and what found no room is tried again.
const FOLLOW_NS: u64 = 5 * MS;
/// Places of the event queue for pushes: those of a descriptor, and of the one that comes after it.
const PUSH_SLOTS: u32 = 4;
/// Room for the answer to a ping of the application.
const PING_BYTES: u32 = 256;

/// An entry of a node's service.
struct Served {
    node: usize,
    shard: usize,
    entry: MeHandle,
    md: MdHandle,
}

/// Payload of a message that a node sends for itself.
pub(super) enum Word {
    /// A ping from one of its NIDs, with room for the answer.
    Ping {
        source: Option<Nid>,
        length_bytes: u32,
    },
    Push(Arc<[u8]>),
}

/// A message that a node's control has asked for.
struct Errand {
    node: usize,
    ping: PingId,
    to: Nid,
    word: Word,
    /// Number of the operation, once there was room for it.
    number: Option<u32>,
    answer: Option<Vec<u8>>,
}

/// Services of all nodes.
#[derive(Default)]
pub(super) struct Services {
    served: Vec<Served>,
    errands: Vec<Errand>,
    /// Whether there are none any more.
    is_over: bool,
}

impl Services {
    /// Whether control waits for nothing.
    pub(super) const fn is_idle(&self) -> bool {
        self.errands.is_empty()
    }
}

impl World {
    /// All nodes begin to answer pings, and to take pushes if they have a control that wants to know.
    pub(super) fn serve(&mut self) {
        for node in 0..self.nodes.len() {
            let answer = self.nodes[node].control.as_ref().map(|control| control.published.to_vec());
            let answer = answer.unwrap_or_else(|| vec![0xA5; PING_BYTES as usize]);
            let options = MdOptions::GET | MdOptions::MANAGE_REMOTE | MdOptions::TRUNCATE;
            let md = MdSpec {
                length_bytes: answer.len() as u64,
                max_size_bytes: None,
                threshold: Threshold::Infinite,
                options,
                auto_unlink: false,
                event_queue: None,
                user_ptr: NO_OPERATION,
            };
            self.post_service(node, &md, answer);
            self.post_push(node);
            self.at(self.now + FOLLOW_NS, Happening::Follow(node));
        }
    }

    fn post_service(&mut self, node: usize, spec: &MdSpec, bytes: Vec<u8>) {
        let shard = self.home(node, PING_PORTAL, PING_MATCH_BITS, 0);
        let lane = &mut self.nodes[node].lanes[shard].shard;
        let entry = EntrySpec::new(PING_PORTAL, PING_MATCH_BITS).of_node();
        let entry = lane.attach_entry(&entry).expect("room for the entries of a node");
        let md = lane.attach(entry, spec).expect("room for the descriptors of a node");
        self.nodes[node].memory.lend(md, Region::Sink { bytes, overlaps: true });
        self.services.served.push(Served { node, shard, entry, md });
        self.request_turn(node, shard, self.now + 1);
    }

    /// An entry for one push.
    fn post_push(&mut self, node: usize) {
        if !self.plan.has_lies() || self.services.is_over {
            return;
        }
        let Some(control) = &self.nodes[node].control else { return };
        let length_bytes = control.push_room_bytes();
        let shard = self.home(node, PING_PORTAL, PING_MATCH_BITS, 0);
        let options = MdOptions::PUT | MdOptions::TRUNCATE | MdOptions::ACK_LATE;
        let lane = &mut self.nodes[node].lanes[shard];
        let queue = match lane.queues.get(2) {
            Some(queue) => *queue,
            None => {
                let queue = lane.shard.create_event_queue(PUSH_SLOTS).expect("a third queue");
                lane.queues.push(queue);
                queue
            }
        };
        let spec = MdSpec::new(length_bytes as u64, Threshold::Count(1), options, queue);
        self.nodes[node].lanes[shard].shard.acknowledge(Instant(self.now));
        self.post_service(node, &MdSpec { user_ptr: NO_OPERATION, ..spec }, vec![0; length_bytes]);
    }

    /// All services end.
    pub(super) fn end_services(&mut self) {
        self.services.is_over = true;
        for Served { node, shard, entry, .. } in &self.services.served {
            let _ = self.nodes[*node].lanes[*shard].shard.unlink_entry(*entry);
        }
    }

    /// Whether no message refers to a service any more: answers to pings end without an event. All other
    /// descriptors have been unlinked as well.
    pub(super) fn are_services_over(&mut self) -> bool {
        let nodes = &mut self.nodes;
        self.services.served.retain(|Served { node, shard, md, .. }| {
            let is_there = nodes[*node].lanes[*shard].shard.usage().memory_descs != 0;
            if !is_there {
                nodes[*node].memory.end(*md);
            }
            is_there
        });
        self.services.served.is_empty()
    }

    /// Something has happened to a descriptor: of a service, or of a message of one.
    pub(super) fn note_service(&mut self, node: usize, event: &Event) {
        let is_its = |served: &Served| (served.node, served.md) == (node, event.md());
        if event.kind() == EventKind::Put && self.services.served.iter().any(is_its) {
            self.take_push(node, event);
        }
        let number = event.user_ptr() as u32;
        let is_its = |errand: &Errand| errand.node == node && errand.number == Some(number);
        let Some(at) = self.services.errands.iter().position(is_its) else { return };
        if matches!(event.kind(), EventKind::Reply | EventKind::Ack) && event.status() == Status::Ok {
            self.services.errands[at].answer = Some(self.payload(node, event));
        }
        if event.unlinked() {
            let Errand { ping, answer, .. } = self.services.errands.swap_remove(at);
            let error = DriverError { errno: 110, message: "no answer".to_owned() };
            match answer {
                Some(bytes) => self.report(node, Report::Answered { ping, bytes: &bytes }),
                None => self.report(node, Report::Unanswered { ping, error }),
            }
        }
    }

    /// The bytes that a message has brought.
    fn payload(&self, node: usize, event: &Event) -> Vec<u8> {
        let region = self.nodes[node].memory.get(event.md());
        let (Some(Region::Sink { bytes, .. }), Some(span)) = (region, event.payload()) else {
            return Vec::new();
        };
        let start = span.offset_bytes as usize;
        bytes[start..start + span.length_bytes as usize].to_vec()
    }

    /// A push has come: control hears of it, and there is an entry for the next one.
    fn take_push(&mut self, node: usize, event: &Event) {
        let Event::Put { origin, requested_bytes, .. } = *event else { return };
        let (from, bytes) = (origin.source, self.payload(node, event));
        self.counts.pushes += 1;
        self.follow_shards(node);
        self.report(node, Report::Traffic { nid: from, is_incoming: true, first_ni: None });
        let length_bytes = requested_bytes as usize;
        self.report(node, Report::Pushed { from, bytes: &bytes, length_bytes });
        self.post_push(node);
    }

    /// The control of a node hears what its shards have learned.
    pub(super) fn follow(&mut self, node: usize) {
        if self.services.is_over || self.phase == Phase::Over {
            return;
        }
        self.follow_shards(node);
        self.begin_errands(node);
        self.at(self.now + FOLLOW_NS, Happening::Follow(node));
    }

    fn follow_shards(&mut self, node: usize) {
        for shard in 0..self.nodes[node].lanes.len() {
            let lane = &mut self.nodes[node].lanes[shard].shard;
            let came_from: Vec<_> = std::iter::from_fn(|| lane.poll_came_from()).collect();
            let waiting: Vec<_> = std::iter::from_fn(|| lane.poll_waiting()).collect();
            let wanted: Vec<_> = std::iter::from_fn(|| lane.poll_wanted()).collect();
            if !self.plan.has_lies() {
                continue;
            }
            for (nid, address) in came_from {
                self.report(node, Report::CameFrom { nid, address });
            }
            waiting.into_iter().for_each(|nid| self.report(node, Report::Waiting { nid }));
            wanted.into_iter().for_each(|nid| self.report(node, Report::Wanted { nid }));
        }
    }

    /// Control wants something sent. It asks without end about what liars claim: what is asked for after the
    /// attack has no answer.
    pub(super) fn ask(&mut self, node: usize, ping: PingId, to: Nid, word: Word) {
        if self.plan.routers > 0 {
            return self.ask_aside(node, ping, to, word);
        }
        if self.plan.has_lies() && self.phase == Phase::Active {
            self.services.errands.push(Errand { node, ping, to, word, number: None, answer: None });
        }
    }

    /// Control has no interest in an answer any more.
    pub(super) fn forget_errand(&mut self, node: usize, ping: PingId) {
        let is_its = |errand: &Errand| (errand.node, errand.ping) == (node, ping);
        self.services.errands.retain(|errand| !is_its(errand));
    }

    /// Sends what control has asked for, as far as there is room.
    pub(super) fn begin_errands(&mut self, node: usize) {
        if self.phase != Phase::Active {
            return self.services.errands.retain(|errand| errand.number.is_some());
        }
        let mut errands = std::mem::take(&mut self.services.errands);
        for errand in errands.iter_mut().filter(|errand| errand.node == node && errand.number.is_none()) {
            errand.number = self.send_word(node, 0, errand.to, &errand.word);
        }
        self.services.errands.extend(errands);
    }

    /// The application of a node pings a friend, or some name of those that are hostile.
    pub(super) fn ping_any(&mut self, node: usize, friend: usize) {
        let rail = self.random.below(usize::from(self.plan.rails)) as u8;
        let mut to = nid(&self.plan, friend, rail);
        if !self.strangers.is_empty() && self.random.once_in(8) {
            let any = self.random.below(self.strangers.len());
            to = self.strangers[any].nid();
        }
        let shard = self.random.below(self.nodes[node].lanes.len());
        let word = Word::Ping { source: None, length_bytes: PING_BYTES };
        self.send_word(node, shard, to, &word);
    }

    /// Pings or pushes; the number of the operation, if there was room.
    fn send_word(&mut self, node: usize, shard: usize, to: Nid, word: &Word) -> Option<u32> {
        let number = self.ledger.operations.len() as u32;
        let life = self.nodes[node].life;
        let bytes = match word {
            Word::Ping { length_bytes, .. } => vec![0; *length_bytes as usize],
            Word::Push(bytes) => bytes.to_vec(),
        };
        let options = match word {
            Word::Ping { .. } => MdOptions::TRUNCATE | MdOptions::TRACK_RESPONSE,
            Word::Push(_) => MdOptions::TRACK_RESPONSE,
        };
        let queue = self.nodes[node].lanes[shard].queues[0];
        let spec = MdSpec::new(bytes.len() as u64, Threshold::Count(2), options, queue);
        let md = self.bind(node, shard, &MdSpec { user_ptr: number.into(), ..spec }, None)?;
        self.nodes[node].memory.lend(md, Region::Sink { bytes, overlaps: true });
        self.ledger.operations.push(Operation {
            node,
            life,
            begun_at: self.now,
            is_hostile: !self.are_friends(node, &to),
            seed: 0,
            offset: 0,
            source: None,
            request: Flight::default(),
            response: Flight::default(),
            send_events: 0,
            started: false,
            entry: None,
            taken: None,
            answered: None,
            awaits: true,
            is_alone: true,
            is_of_node: true,
        });
        self.open.insert(number);
        self.ledger.await_reply((node, life), md, number);
        self.trace.say(|| format!("node {node}/{shard} sends word {number} to {to}: {md:?}"));
        let (now, target) = (Instant(self.now), ProcessId::lustre(to));
        let (portal, match_bits, offset) = (PING_PORTAL, PING_MATCH_BITS, 0);
        let lane = &mut self.nodes[node].lanes[shard].shard;
        let sent = match word {
            Word::Ping { source, .. } => {
                let self_nid = *source;
                lane.get(now, &GetRequest { md, part: None, self_nid, target, portal, match_bits, offset })
            }
            Word::Push(_) => lane.put(
                now,
                &PutRequest {
                    md,
                    part: None,
                    ack: true,
                    self_nid: None,
                    target,
                    portal,
                    match_bits,
                    offset,
                    hdr_data: number.into(),
                },
            ),
        };
        self.request_turn(node, shard, self.now + 1);
        self.ledger.operations[number as usize].started = sent.is_ok();
        if sent.is_err() {
            self.counts.add(Fault::Refused);
            let _ = self.nodes[node].lanes[shard].shard.unlink(md);
            return None;
        }
        self.unsent.insert(number);
        Some(number)
    }

    /// Whether a node is none of those that are hostile, and neither is the one that has a NID.
    fn are_friends(&self, node: usize, to: &Nid) -> bool {
        let friends = self.plan.friends();
        let mut nids = (0..friends).flat_map(|node| (0..self.plan.rails).map(move |rail| (node, rail)));
        node < friends && nids.any(|(node, rail)| nid(&self.plan, node, rail) == *to)
    }
}
