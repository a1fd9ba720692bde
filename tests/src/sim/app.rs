//! The application of all nodes: posts entries, starts PUTs and GETs, unlinks.

use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::lnd::PING_PORTAL;
use lnet_core::md::{MdError, MdOptions, MdSpec, Threshold};
use lnet_core::portal::{EntrySpec, Position};
use lnet_core::shard::{GetRequest, MdPart, PutRequest, SubmitError};
use lnet_core::time::Instant;
use lnet_wire::header::PAYLOAD_BYTES_MAX;
use lnet_wire::steer::{self, SteerKey, initiator_hash};
use lnet_wire::{MessageType, ProcessId};

use super::NetKind;
use super::ledger::{Flight, Operation};
use super::memory::Region;
use super::node::{INITIATOR, PORTALS_USED, ROTOR, nid};
use super::plan::{MS, happens};
use super::report::Fault;
use super::world::{Happening, World};

/// `user_ptr` of a descriptor that is not of one operation.
pub(super) const NO_OPERATION: u64 = u64::MAX;
/// The bits of a request that say which operation it is.
const OPERATION_BITS: u64 = !0 << 32;
/// Length of a descriptor for many PUTs.
const SHARED_BYTES: u32 = 512;
/// Bytes of a descriptor behind its part.
const TAIL_BYTES: u32 = 10;
/// Values of the bits that entries go by.
const KEYS: usize = 8;

/// An entry with its descriptor.
pub(super) struct Posted {
    pub(super) node: usize,
    shard: usize,
    entry: MeHandle,
    md: MdHandle,
}

/// A descriptor for many PUTs.
pub(super) struct Shared {
    pub(super) node: usize,
    shard: usize,
    md: MdHandle,
    seed: u64,
}

/// An entry to be made, on these shards.
#[derive(Clone)]
pub(super) struct Late {
    node: usize,
    life: u32,
    shards: Vec<usize>,
    entry: EntrySpec,
    md: MdSpec,
    seed: Option<u64>,
}

/// A PUT or GET to be started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    node: usize,
    shard: usize,
    target: usize,
    portal: u32,
    match_bits: u64,
    length: u32,
    get: bool,
    /// The rails of the target and of the node, if it matters by which it goes.
    rails: Option<(u8, u8)>,
}

/// A GET by each path in the end. A request may be lost: who asks a node that has begun a new life may learn
/// that by it, and tables may be full. One that was taken is answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    wish: Wish,
    /// The operation that is under way.
    number: Option<u32>,
    /// Requests that were lost.
    lost: u32,
    /// How often in a row there was no room to begin.
    refused: u32,
}

/// A trial ends after so many requests that were lost, and after so many for which there was no room.
const LOST_MAX: u32 = 2;
const REFUSED_MAX: u32 = 100;

impl Trial {
    pub(super) const fn new(wish: Wish) -> Self {
        Self { wish: Wish { portal: 1, get: true, length: 100, ..wish }, number: None, lost: 0, refused: 0 }
    }
}

impl World {
    /// Entries for many operations, of which each node has some on each portal.
    pub(super) fn post_buckets(&mut self, node: usize) {
        for portal in 0..PORTALS_USED as u32 {
            for _ in 0..2 {
                // Pings and pushes of hostile runs are not for these.
                let is_pinged = portal == PING_PORTAL && !self.plan.hostile.is_empty();
                let key = (self.random.below(KEYS) as u64).max(is_pinged.into());
                let get = self.random.once_in(3);
                let remote = self.random.once_in(3);
                let length_bytes = self.random.pick(&[4096, 32 << 10, 64 << 10]);
                let mut options = if get { MdOptions::GET } else { MdOptions::PUT };
                if remote {
                    options = options | MdOptions::MANAGE_REMOTE;
                }
                if self.random.once_in(2) {
                    options = options | MdOptions::TRUNCATE;
                }
                let threshold =
                    if self.random.once_in(2) { Threshold::Infinite } else { Threshold::Count(12) };
                let max_size_bytes = self.random.once_in(2).then_some(2048);
                let shards = match portal {
                    ROTOR | INITIATOR => (0..self.nodes[node].lanes.len()).collect(),
                    _ => vec![self.home(node, portal, key, 0)],
                };
                let seed = get.then(|| self.random.bits());
                let queue = usize::from(self.random.once_in(3));
                let md = MdSpec {
                    length_bytes,
                    max_size_bytes,
                    threshold,
                    options,
                    auto_unlink: true,
                    event_queue: None,
                    user_ptr: queue as u64,
                };
                let entry = self.entry(portal, key, OPERATION_BITS);
                let life = self.nodes[node].life;
                self.post(&Late { node, life, shards, entry, md, seed });
            }
        }
    }

    fn entry(&mut self, portal: u32, match_bits: u64, ignore_bits: u64) -> EntrySpec {
        let position = if self.random.once_in(4) { Position::First } else { Position::Last };
        EntrySpec { ignore_bits, position, ..EntrySpec::new(portal, match_bits) }
    }

    /// The shard that requests with these match bits of an initiator go to.
    pub(super) fn home(&self, node: usize, portal: u32, match_bits: u64, initiator: usize) -> usize {
        let key = SteerKey {
            message_type: MessageType::Put,
            portal: portal as u8,
            key: match_bits,
            message_id: 0,
            initiator_hash: initiator_hash(&nid(&self.plan, initiator, 0)),
        };
        let node = &self.nodes[node];
        steer::shard_of(&key, node.policies[portal as usize], node.lanes.len() as u32) as usize
    }

    /// Makes an entry; says whether there was room.
    fn post(&mut self, late: &Late) -> bool {
        let Late { node, life, shards, entry, md, seed } = late;
        if self.nodes[*node].life != *life {
            return false;
        }
        let mut posted = true;
        for &shard in shards {
            let lane = &mut self.nodes[*node].lanes[shard];
            let Ok(me) = lane.shard.attach_entry(entry) else {
                self.counts.add(Fault::Refused);
                posted = false;
                continue;
            };
            let queue = lane.queues[md.user_ptr as usize];
            let spec = MdSpec { event_queue: Some(queue), user_ptr: NO_OPERATION, ..*md };
            let md = match lane.shard.attach(me, &spec) {
                Ok(md) => md,
                Err(error) => {
                    self.counts.add(refusal(&error));
                    posted = false;
                    continue;
                }
            };
            let region = seed.map_or_else(
                || Region::Sink {
                    bytes: vec![0; spec.length_bytes as usize],
                    overlaps: spec.options.contains(MdOptions::MANAGE_REMOTE),
                },
                Region::Source,
            );
            self.trace.say(|| format!("node {node}/{shard} posts {entry:?} {spec:?}"));
            self.nodes[*node].memory.lend(md, region);
            self.posted.push(Posted { node: *node, shard, entry: me, md });
            self.request_turn(*node, shard, self.now + 1);
        }
        posted
    }

    pub(super) fn post_late(&mut self, late: u32) {
        let late = self.late[late as usize].clone();
        self.post(&late);
    }

    /// The application does something.
    pub(super) fn act(&mut self) {
        if happens(&mut self.random, self.plan.unlinks) {
            return self.unlink_any();
        }
        let count = if self.random.once_in(4) { 1 + self.random.below(self.plan.burst) } else { 1 };
        let node = self.random.below(self.plan.hosts());
        let shard = self.random.below(self.nodes[node].lanes.len());
        // Hostile nodes are asked for nothing.
        let friends = self.plan.friends();
        let target = if node < friends {
            (node + 1 + self.random.below(friends - 1)) % friends
        } else {
            self.random.below(friends)
        };
        let is_friendly = node < friends && friends < self.plan.hosts();
        if is_friendly && self.random.once_in(4) {
            return self.ping_any(node, target);
        }
        let count = if is_friendly { 1 } else { count };
        for _ in 0..count {
            let number = self.ledger.operations.len() as u64;
            // Friends share no descriptor with others, which may hold that.
            let key = if is_friendly { KEYS as u64 + number % 100 } else { self.random.below(KEYS) as u64 };
            let wish = Wish {
                node,
                shard,
                target,
                portal: self.portal(is_friendly),
                match_bits: number << 32 | key,
                length: self.length(),
                get: self.random.once_in(3),
                rails: None,
            };
            let has_entry = (is_friendly || !self.random.once_in(3)) && self.post_for(&wish);
            if has_entry || !is_friendly {
                self.start(&wish, has_entry);
            }
        }
        self.request_turn(node, shard, self.now + 1);
    }

    /// The portal of an operation. Messages of friends that fit no entry are not to wait for one.
    fn portal(&mut self, is_friendly: bool) -> u32 {
        let first = if is_friendly { self.plan.first_portal() as usize } else { 0 };
        (first + self.random.below(PORTALS_USED - first)) as u32
    }

    /// PUTs of each shard to each NID of the other nodes, by each of its own rails that leads there: where
    /// they have arrived, all shards know all peers.
    pub(super) fn introductions(&self) -> Vec<Wish> {
        let (rails, same_net) = (self.plan.rails_of(0), self.plan.same_net);
        let paths = (0..rails).flat_map(|rail| (0..rails).map(move |own| (rail, own)));
        let paths: Vec<_> = paths.filter(|(rail, own)| same_net || rail == own).collect();
        let shards = self.plan.shards.iter().take(self.plan.hosts()).enumerate();
        let shards =
            shards.flat_map(|(node, shards)| (0..usize::from(*shards)).map(move |shard| (node, shard)));
        let wish = |(node, shard), target, rails| Wish {
            node,
            shard,
            target,
            portal: self.plan.first_portal(),
            match_bits: 0,
            length: 0,
            get: false,
            rails: Some(rails),
        };
        let others = |of: (usize, usize)| (0..self.plan.hosts()).filter(move |node| *node != of.0);
        let paths = &paths;
        shards
            .flat_map(|of| others(of).flat_map(move |to| paths.iter().map(move |path| wish(of, to, *path))))
            .collect()
    }

    /// Starts the introductions that are left, as far as their shards have room.
    pub(super) fn introduce(&mut self) {
        let left = std::mem::take(&mut self.introductions);
        for mut wish in left {
            wish.match_bits = (self.ledger.operations.len() as u64) << 32;
            if self.start(&wish, false) {
                self.introduced = self.ledger.operations.len();
            } else {
                self.introductions.push(wish);
            }
            self.request_turn(wish.node, wish.shard, self.now + 1);
        }
    }

    /// Judges the trial that has ended and starts the next one. One at a time finds room in the smallest
    /// tables.
    pub(super) fn prove(&mut self) {
        let Some(mut trial) = self.trials.pop() else { return };
        // A stream tells its sender of no loss; once it is known to be broken, another one carries all.
        // Neither does a router.
        let is_tried_on = self.plan.net == NetKind::Tcp || self.plan.routers > 0;
        match trial.number {
            None if trial.refused == REFUSED_MAX => return self.prove(),
            None => self.start_trial(&mut trial),
            Some(number) if self.open.contains(&number) || self.unsent.contains(&number) => {}
            Some(number) => {
                let operation = self.ledger.operations[number as usize].clone();
                let is_answered = operation.response.well;
                self.counts.proven += u64::from(is_answered);
                let is_given_up = trial.lost == LOST_MAX && !is_tried_on;
                if is_answered || (operation.taken.is_none() && is_given_up) {
                    return self.prove();
                }
                self.ledger.expect(
                    operation.taken.is_none() || is_tried_on,
                    "what was taken is answered in the end",
                    || format!("{trial:?}: operation {number}: {operation:?}"),
                );
                (trial.number, trial.lost) = (None, trial.lost + 1);
            }
        }
        self.trials.push(trial);
    }

    fn start_trial(&mut self, trial: &mut Trial) {
        let wish = &mut trial.wish;
        let number = self.ledger.operations.len() as u32;
        // No other entry has these bits, and all shards of the target have their turn.
        wish.match_bits = u64::from(number) << 32 | (KEYS as u64 + u64::from(number) % 100);
        let Wish { target, portal, match_bits, length, node, shard, .. } = *wish;
        let md = MdSpec {
            length_bytes: length.into(),
            max_size_bytes: None,
            threshold: Threshold::Count(1),
            options: MdOptions::GET,
            auto_unlink: true,
            event_queue: None,
            user_ptr: 0,
        };
        let shards = vec![self.home(target, portal, match_bits, node)];
        let entry = self.entry(portal, match_bits, 0);
        let seed = Some(self.random.bits());
        let late = Late { node: target, life: self.nodes[target].life, shards, entry, md, seed };
        let wish = *wish;
        trial.refused += 1;
        if self.post(&late) {
            if self.start(&wish, true) {
                (trial.number, trial.refused) = (Some(number), 0);
            } else if let Some(Posted { node, shard, entry, .. }) = self.posted.pop() {
                let _ = self.nodes[node].lanes[shard].shard.unlink_entry(entry);
                if self.plan.routers > 0 {
                    // There is room, and routes come back.
                    trial.refused = 0;
                }
            }
        }
        self.request_turn(node, shard, self.now + 1);
    }

    fn length(&mut self) -> u32 {
        let long = happens(&mut self.random, self.plan.long);
        let most = if long { self.plan.length_max } else { self.random.pick(&[0, 8, 100, 1024, 1500, 6000]) };
        self.random.below(most as usize + 1) as u32
    }

    /// Posts the very entry that an operation wants, mostly in time.
    /// Says whether it is there and stays.
    fn post_for(&mut self, wish: &Wish) -> bool {
        let Wish { target, portal, match_bits, length, get, node, .. } = *wish;
        let mut options = if get { MdOptions::GET } else { MdOptions::PUT };
        let mut length_bytes = u64::from(length);
        if self.random.once_in(10) {
            length_bytes /= 2;
            if !self.random.once_in(4) {
                options = options | MdOptions::TRUNCATE;
            }
        }
        if self.random.once_in(20) {
            options = options | MdOptions::ACK_DISABLE;
        }
        let shards = match portal {
            // Shards that lend each other spans find it wherever it is.
            ROTOR if self.plan.mesh => vec![self.random.below(self.nodes[target].lanes.len())],
            ROTOR => (0..self.nodes[target].lanes.len()).collect(),
            _ => vec![self.home(target, portal, match_bits, node)],
        };
        let stays = self.random.once_in(8);
        let md = MdSpec {
            length_bytes,
            max_size_bytes: None,
            threshold: Threshold::Count(if stays { 2 } else { 1 }),
            options,
            auto_unlink: !stays,
            event_queue: None,
            user_ptr: u64::from(self.random.once_in(3)),
        };
        let entry = self.entry(portal, match_bits, 0);
        let seed = get.then(|| self.random.bits());
        let late = Late { node: target, life: self.nodes[target].life, shards, entry, md, seed };
        if self.random.once_in(6) {
            let at = self.now + self.random.bits() % (2 * MS);
            self.late.push(late);
            self.at(at, Happening::Post(self.late.len() as u32 - 1));
            return false;
        }
        self.post(&late) && self.plan.unlinks == 0
    }

    /// Starts a PUT or GET with a descriptor of its own, or a PUT with the one that its shard has for many.
    /// Says whether there was room.
    fn start(&mut self, wish: &Wish, has_entry: bool) -> bool {
        let Wish { node, shard, get, length, .. } = *wish;
        let number = self.ledger.operations.len() as u32;
        let ack = self.random.once_in(2);
        let shares = !get && self.random.once_in(8);
        let life = self.nodes[node].life;
        let bits = self.random.bits();
        let part = part_of(bits, if shares { SHARED_BYTES } else { length }, shares);
        let found = if shares {
            self.shared_md(node, shard)
        } else {
            let spec = MdSpec {
                length_bytes: part.map_or(length, |part| part.offset_bytes + length + TAIL_BYTES).into(),
                max_size_bytes: None,
                threshold: Threshold::Count(if get || ack { 2 } else { 1 }),
                options: if get { MdOptions::TRUNCATE } else { MdOptions::NONE },
                auto_unlink: true,
                event_queue: Some(self.nodes[node].lanes[shard].queues[0]),
                user_ptr: u64::from(number),
            };
            self.bind(node, shard, &spec, (!get).then_some(bits)).map(|md| (md, bits))
        };
        let Some((md, seed)) = found else { return false };
        self.ledger.operations.push(Operation {
            node,
            life,
            begun_at: self.now,
            is_hostile: node.max(wish.target) >= self.plan.friends(),
            seed,
            offset: part.map_or(0, |part| part.offset_bytes.into()),
            source: None,
            request: Flight::default(),
            response: Flight::default(),
            send_events: 0,
            started: false,
            entry: has_entry.then(|| (wish.target, self.nodes[wish.target].life)),
            taken: None,
            answered: None,
            awaits: get || ack,
            is_alone: !shares,
            is_of_node: false,
        });
        if !shares {
            self.open.insert(number);
        }
        if get {
            self.ledger.await_reply((node, life), md, number);
        }
        let refused = self.request(wish, (md, part), ack, number).err();
        self.ledger.operations[number as usize].started = refused.is_none();
        let Some(error) = refused else {
            self.unsent.insert(number);
            return true;
        };
        let is_full = matches!(error, SubmitError::EventQueueFull(_));
        self.counts.add(if is_full { Fault::QueueFull } else { Fault::Refused });
        if !shares {
            let _ = self.nodes[node].lanes[shard].shard.unlink(md);
        }
        false
    }

    fn request(
        &mut self,
        wish: &Wish,
        (md, part): (MdHandle, Option<MdPart>),
        ack: bool,
        number: u32,
    ) -> Result<(), SubmitError> {
        let Wish { node, shard, target, portal, match_bits, get, .. } = *wish;
        let rails = usize::from(self.plan.rails_of(target));
        let mut any = || (self.random.below(rails) as u8, self.random.below(rails) as u8);
        let (rail, own_rail) = wish.rails.unwrap_or_else(&mut any);
        let chooses = self.plan.same_net && (wish.rails.is_some() || self.random.once_in(2));
        let self_nid = chooses.then(|| nid(&self.plan, node, own_rail));
        let process = ProcessId::lustre(nid(&self.plan, target, rail));
        let offset = self.random.below(2048) as u32;
        let now = Instant(self.now);
        self.trace.say(|| format!("node {node}/{shard} starts {number}: GET {get} to {target} by {rail} bits {match_bits:x} portal {portal} {md:?}"));
        let lane = &mut self.nodes[node].lanes[shard].shard;
        if get {
            lane.get(now, &GetRequest { md, part, self_nid, target: process, portal, match_bits, offset })
        } else {
            let hdr_data = u64::from(number);
            lane.put(
                now,
                &PutRequest {
                    md,
                    part,
                    ack,
                    self_nid,
                    target: process,
                    portal,
                    match_bits,
                    offset,
                    hdr_data,
                },
            )
        }
    }

    pub(super) fn bind(
        &mut self,
        node: usize,
        shard: usize,
        spec: &MdSpec,
        seed: Option<u64>,
    ) -> Option<MdHandle> {
        let bound = self.nodes[node].lanes[shard].shard.bind(spec);
        let md = bound.inspect_err(|error| self.counts.add(refusal(error))).ok()?;
        let region = seed.map_or_else(
            || Region::Sink { bytes: vec![0; spec.length_bytes as usize], overlaps: false },
            Region::Source,
        );
        self.nodes[node].memory.lend(md, region);
        Some(md)
    }

    /// The descriptor for many PUTs of a shard, and its seed.
    fn shared_md(&mut self, node: usize, shard: usize) -> Option<(MdHandle, u64)> {
        let mut all = self.shared.iter();
        if let Some(found) = all.find(|shared| (shared.node, shared.shard) == (node, shard)) {
            return Some((found.md, found.seed));
        }
        let seed = self.random.bits();
        let spec = MdSpec {
            length_bytes: SHARED_BYTES.into(),
            max_size_bytes: None,
            threshold: Threshold::Infinite,
            options: MdOptions::NONE,
            auto_unlink: false,
            event_queue: Some(self.nodes[node].lanes[shard].queues[1]),
            user_ptr: NO_OPERATION,
        };
        let md = self.bind(node, shard, &spec, Some(seed))?;
        self.shared.push(Shared { node, shard, md, seed });
        Some((md, seed))
    }

    fn unlink_any(&mut self) {
        self.counts.add(Fault::Unlinked);
        let node = self.random.below(self.nodes.len());
        if self.random.once_in(2) && !self.posted.is_empty() {
            let at = self.random.below(self.posted.len());
            let Posted { node, shard, entry, md } = self.posted.swap_remove(at);
            let shard = &mut self.nodes[node].lanes[shard].shard;
            if shard.unlink_entry(entry).is_err() {
                let _ = shard.unlink(md);
            }
            return;
        }
        let count = self.nodes[node].memory.living().count();
        if count != 0 {
            let at = self.random.below(count);
            let md = self.nodes[node].memory.living().nth(at);
            self.unlink(node, md);
        }
    }

    fn unlink(&mut self, node: usize, md: Option<MdHandle>) {
        let Some(md) = md else { return };
        let shard = usize::from(md.0.shard().0);
        self.trace.say(|| format!("node {node}/{shard} unlinks {md:?}"));
        let _ = self.nodes[node].lanes[shard].shard.unlink(md);
        self.shared.retain(|shared| shared.md != md || shared.node != node);
        self.request_turn(node, shard, self.now + 1);
    }

    /// Unlinks everything that is left.
    pub(super) fn unlink_all(&mut self) {
        // Late frames find their entry no more.
        self.ledger.operations.iter_mut().for_each(|operation| operation.entry = None);
        for Posted { node, shard, entry, .. } in std::mem::take(&mut self.posted) {
            let _ = self.nodes[node].lanes[shard].shard.unlink_entry(entry);
            self.request_turn(node, shard, self.now + 1);
        }
        for node in 0..self.nodes.len() {
            let living: Vec<_> = self.nodes[node].memory.living().collect();
            living.into_iter().for_each(|md| self.unlink(node, Some(md)));
        }
    }
}

/// What a request sends or fills of its descriptor: of one in three a part, of a descriptor for many any
/// part.
fn part_of(bits: u64, length_bytes: u32, shares: bool) -> Option<MdPart> {
    let before = (bits >> 8) as u32 % 3000;
    let offset_bytes = before.min(if shares { length_bytes } else { PAYLOAD_BYTES_MAX - length_bytes });
    let is_part = bits.is_multiple_of(3) && offset_bytes + length_bytes + TAIL_BYTES <= PAYLOAD_BYTES_MAX;
    let length_bytes = if shares { length_bytes - offset_bytes } else { length_bytes };
    is_part.then_some(MdPart { offset_bytes, length_bytes })
}

/// What a descriptor that is not made counts as.
const fn refusal(error: &MdError) -> Fault {
    if matches!(error, MdError::EventSlots { .. }) { Fault::QueueFull } else { Fault::Refused }
}
