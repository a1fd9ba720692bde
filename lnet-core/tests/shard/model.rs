//! The match tables against a list per portal that is searched from its head, and lazy portals against a list
//! of what waits.

use std::collections::{BTreeMap, BTreeSet};

use lnet_core::handle::{MdHandle, MeHandle};
use lnet_core::lnd::{Cause, RxId, Span, Status, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::portal::{EntryError, EntrySpec, Position};
use lnet_core::stats::DropReason;
use lnet_wire::{Body, Header, ProcessId, WireHandle};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::{ANYONE, FOREIGN, NI, NOW, Node, config, host};

#[derive(Clone, Debug)]
enum Operation {
    /// Makes an entry and, perhaps, gives it a descriptor.
    Post(EntrySpec, Option<MdSpec>),
    /// The same before or after an entry of whatever portal, which may have gone.
    PostBeside(EntrySpec, Option<MdSpec>, fn(MeHandle) -> Position, Index),
    /// Gives a descriptor to an entry, if that has none.
    Attach(Index, MdSpec),
    Unlink(Index),
    UnlinkEntry(Index),
    Arrive(Arriving),
    SetLazy(u32),
    ClearLazy(u32),
    GiveUp(Index),
}

#[derive(Clone, Copy, Debug)]
struct Arriving {
    put: bool,
    portal: u32,
    source: ProcessId,
    match_bits: u64,
    length: u32,
    offset: u32,
}

#[derive(Debug)]
struct ModelMd {
    handle: MdHandle,
    spec: MdSpec,
    offset: u64,
    /// `None` without end.
    left: Option<u32>,
}

#[derive(Debug)]
struct ModelEntry {
    handle: MeHandle,
    spec: EntrySpec,
    md: Option<ModelMd>,
}

#[derive(PartialEq, Debug)]
enum Expected {
    Take { md: MdHandle, offset: u64, length: u64 },
    TooLong,
    Nothing,
}

#[derive(Default)]
struct Model {
    /// Entries of each portal, in their order.
    entries: BTreeMap<u32, Vec<ModelEntry>>,
    /// Entries that were ever made.
    made: Vec<MeHandle>,
    lazy: BTreeSet<u32>,
    /// Messages that wait, in the order in which they came.
    delayed: Vec<(RxId, Arriving)>,
}

impl ModelMd {
    fn exhausted(&self) -> bool {
        self.left == Some(0)
            || self.spec.max_size_bytes.is_some_and(|size| self.offset + size > self.spec.length_bytes)
    }
}

fn is_unique(spec: &EntrySpec) -> bool {
    spec.ignore_bits == 0 && spec.source.nid != ANYONE.nid && spec.source.pid != ANYONE.pid
}

impl Model {
    fn refusal(&self, spec: &EntrySpec, capacity: usize) -> Option<EntryError> {
        let portal = spec.portal;
        if let Position::Before(other) | Position::After(other) = spec.position {
            let Some(found) = self.entries().find(|entry| entry.handle == other) else {
                return Some(EntryError::Gone(other));
            };
            let of_portal = found.spec.portal;
            if of_portal != portal {
                return Some(EntryError::OtherPortal { entry: other, portal: of_portal, expected: portal });
            }
        }
        let others = self.entries.get(&portal).map_or(&[][..], Vec::as_slice);
        if others.iter().any(|other| is_unique(&other.spec) != is_unique(spec)) {
            return Some(EntryError::Kind { portal });
        }
        if is_unique(spec) && spec.position != Position::Last {
            return Some(EntryError::Position { portal });
        }
        (self.entries().count() == capacity).then_some(EntryError::Full)
    }

    fn entries(&self) -> impl Iterator<Item = &ModelEntry> {
        self.entries.values().flatten()
    }

    fn insert(&mut self, entry: ModelEntry) {
        let list = self.entries.entry(entry.spec.portal).or_default();
        let at_of = |handle| list.iter().position(|other| other.handle == handle).unwrap();
        let at = match entry.spec.position {
            Position::First => 0,
            Position::Last => list.len(),
            Position::Before(other) => at_of(other),
            Position::After(other) => at_of(other) + 1,
        };
        self.made.push(entry.handle);
        list.insert(at, entry);
    }

    fn remove(&mut self, handle: MeHandle) {
        self.entries.values_mut().for_each(|list| list.retain(|entry| entry.handle != handle));
    }

    fn entry_mut(&mut self, handle: MeHandle) -> &mut ModelEntry {
        self.entries.values_mut().flatten().find(|entry| entry.handle == handle).unwrap()
    }

    /// Whether a descriptor is posted and takes more.
    fn is_open(&self, md: MdHandle) -> bool {
        self.entries()
            .filter_map(|entry| entry.md.as_ref())
            .any(|other| other.handle == md && !other.exhausted())
    }

    /// The tests of LNet `lib-ptl.c: lnet_try_match_md`, one by one.
    fn arrive(&mut self, message: &Arriving) -> Expected {
        let list = self.entries.entry(message.portal).or_default();
        for at in 0..list.len() {
            let ModelEntry { spec, md, .. } = &mut list[at];
            let Some(md) = md else { continue };
            let operation = if message.put { MdOptions::PUT } else { MdOptions::GET };
            if md.exhausted()
                || !md.spec.options.contains(operation)
                || (spec.match_bits ^ message.match_bits) & !spec.ignore_bits != 0
                || spec.source.pid != ANYONE.pid && spec.source.pid != message.source.pid
                || spec.source.nid != ANYONE.nid && spec.source.nid != message.source.nid
            {
                continue;
            }
            let remote = md.spec.options.contains(MdOptions::MANAGE_REMOTE);
            let offset = if remote { message.offset.into() } else { md.offset };
            let offset = md.spec.length_bytes.min(offset);
            let mut allowed = md.spec.length_bytes.saturating_sub(offset);
            if let Some(max_size) = md.spec.max_size_bytes {
                allowed = allowed.min(max_size);
            }
            let mut length = u64::from(message.length);
            if length > allowed {
                if !md.spec.options.contains(MdOptions::TRUNCATE) {
                    return Expected::TooLong;
                }
                length = allowed;
            }
            let expected = Expected::Take { md: md.handle, offset, length };
            md.left = md.left.map(|left| left - 1);
            md.offset = offset + length;
            if md.exhausted() && md.spec.auto_unlink {
                list[at].md = None;
                if list[at].spec.auto_unlink {
                    list.remove(at);
                }
            }
            return expected;
        }
        Expected::Nothing
    }
}

/// A node and the model of its portals.
struct Pair {
    node: Node,
    model: Model,
}

impl Pair {
    fn post(&mut self, spec: &EntrySpec, md: Option<MdSpec>) {
        let made = self.node.shard.attach_entry(spec);
        let refusal = self.model.refusal(spec, 64);
        assert_eq!(made.err(), refusal, "{spec:?}");
        let Ok(handle) = made else { return };
        self.model.insert(ModelEntry { handle, spec: *spec, md: None });
        if let Some(md) = md {
            self.attach(handle, md);
        }
    }

    fn attach(&mut self, entry: MeHandle, spec: MdSpec) {
        let handle = self.node.shard.attach(entry, &spec).unwrap();
        let left = match spec.threshold {
            Threshold::Count(count) => Some(count),
            Threshold::Infinite => None,
        };
        let modelled = self.model.entry_mut(entry);
        modelled.md = Some(ModelMd { handle, spec, offset: 0, left });
        let portal = modelled.spec.portal;
        self.model.delayed.clone().into_iter().filter(|(_, message)| message.portal == portal).for_each(
            |(rx, message)| {
                if self.model.is_open(handle) {
                    self.retry(rx, &message);
                }
            },
        );
        assert_eq!(self.node.shard.poll_resume(), None);
    }

    /// A message that waits is tried again.
    fn retry(&mut self, rx: RxId, message: &Arriving) {
        let expected = match self.model.arrive(message) {
            Expected::Nothing => return,
            Expected::TooLong => Verdict::Drop,
            Expected::Take { md, offset, length } => {
                let length_bytes = u32::try_from(length).unwrap();
                Verdict::Deliver(Span { buffer: md.into(), offset_bytes: offset, length_bytes })
            }
        };
        self.model.delayed.retain(|(other, _)| *other != rx);
        assert_eq!(self.node.shard.poll_resume(), Some((NI, rx, expected)), "{message:?}");
        if expected != Verdict::Drop {
            self.node.shard.received(NOW, rx, Status::Ok);
        }
    }

    fn unlink(&mut self, entry: MeHandle) {
        let modelled = self.model.entry_mut(entry);
        let Some(md) = modelled.md.take() else { return };
        assert_eq!(self.node.shard.unlink(md.handle), Ok(Unlinked::Done));
        if modelled.spec.auto_unlink {
            self.model.remove(entry);
        }
    }

    fn arrive(&mut self, message: &Arriving) {
        let Arriving { put, portal, source, match_bits, length, offset } = *message;
        let body = if put {
            Body::Put { ack_md: WireHandle::NONE, match_bits, hdr_data: 0, portal, offset }
        } else {
            Body::Get { return_md: FOREIGN, match_bits, portal, offset, sink_length: length }
        };
        let payload_length = if put { length } else { 0 };
        let header = Header { destination: host(1), source, payload_length, body };
        match self.model.arrive(message) {
            Expected::Nothing if put && self.model.lazy.contains(&portal) => self.delay(&header, message),
            Expected::Nothing => self.node.assert_drop(&header, DropReason::NoMatch),
            Expected::TooLong => self.node.assert_drop(&header, DropReason::TooLong),
            Expected::Take { md, offset, length } => {
                let Verdict::Deliver(span) = self.node.arrive(&header) else { panic!("{message:?} dropped") };
                let length_bytes = u32::try_from(length).unwrap();
                let taken = Span { buffer: md.into(), offset_bytes: offset, length_bytes };
                if put {
                    assert_eq!(span, taken, "{message:?}");
                } else {
                    let reply = self.node.transmit().unwrap();
                    assert_eq!(reply.payload, (length > 0).then_some(taken), "{message:?}");
                    self.node.shard.sent(NOW, reply.tx, Status::Ok);
                }
            }
        }
    }

    fn delay(&mut self, header: &Header, message: &Arriving) {
        let left = 8 - self.model.delayed.len();
        let of_peer = |(_, other): &&(RxId, Arriving)| other.source.nid == message.source.nid;
        if self.model.delayed.iter().filter(of_peer).count() >= left {
            return self.node.assert_drop(header, DropReason::DelayedFull);
        }
        let used = |rx: &RxId| self.model.delayed.iter().any(|(other, _)| other == rx);
        // 0 is for those that do not wait.
        let rx = (1..).map(RxId).find(|rx| !used(rx)).unwrap();
        assert_eq!(self.node.shard.header(NOW, NI, &header.source.nid, rx, header), Verdict::Delay);
        self.model.delayed.push((rx, *message));
    }

    fn clear_lazy(&mut self, portal: u32) {
        self.node.shard.clear_lazy(portal).unwrap();
        self.model.lazy.remove(&portal);
        let (gone, kept) = self.model.delayed.iter().partition(|(_, message)| message.portal == portal);
        self.model.delayed = kept;
        let gone: Vec<(RxId, Arriving)> = gone;
        for (rx, _) in gone {
            assert_eq!(self.node.shard.poll_resume(), Some((NI, rx, Verdict::Drop)));
        }
    }

    fn give_up(&mut self, index: Index) {
        if !self.model.delayed.is_empty() {
            let (rx, _) = self.model.delayed.remove(index.index(self.model.delayed.len()));
            self.node.shard.received(NOW, rx, Status::Unknown(Cause::Reset));
        }
    }

    fn run(&mut self, operation: Operation) {
        let handles: Vec<_> = self.model.entries().map(|entry| entry.handle).collect();
        let pick = |index: Index| handles[index.index(handles.len())];
        match operation {
            Operation::Post(spec, md) => self.post(&spec, md),
            Operation::PostBeside(..) if self.model.made.is_empty() => {}
            Operation::PostBeside(spec, md, beside, index) => {
                let made = &self.model.made;
                // The last ones are mostly there still.
                let last = made.len().min(24);
                let other = made[made.len() - last + index.index(last)];
                self.post(&EntrySpec { position: beside(other), ..spec }, md);
            }
            Operation::Arrive(message) => self.arrive(&message),
            Operation::SetLazy(portal) => {
                self.node.shard.set_lazy(portal).unwrap();
                self.model.lazy.insert(portal);
            }
            Operation::ClearLazy(portal) => self.clear_lazy(portal),
            Operation::GiveUp(index) => self.give_up(index),
            _ if handles.is_empty() => {}
            Operation::Attach(index, md) => {
                if self.model.entry_mut(pick(index)).md.is_none() {
                    self.attach(pick(index), md);
                }
            }
            Operation::Unlink(index) => self.unlink(pick(index)),
            Operation::UnlinkEntry(index) => {
                assert_eq!(self.node.shard.unlink_entry(pick(index)), Ok(Unlinked::Done));
                self.model.remove(pick(index));
            }
        }
        let usage = self.node.shard.usage();
        assert_eq!(self.node.shard.poll_resume(), None);
        assert_eq!(usage.delayed as usize, self.model.delayed.len());
        assert_eq!(usage.match_entries as usize, self.model.entries().count());
        assert_eq!(
            usage.memory_descs as usize,
            self.model.entries().filter(|entry| entry.md.is_some()).count()
        );
    }
}

/// Few values of everything, so that messages meet entries.
fn entries() -> impl Strategy<Value = EntrySpec> {
    let nid = prop_oneof![Just(ANYONE.nid), Just(host(2).nid), Just(host(3).nid)];
    let pid = prop_oneof![2 => Just(ANYONE.pid), 1 => Just(host(2).pid), 1 => Just(9)];
    let position = prop_oneof![1 => Just(Position::First), 3 => Just(Position::Last)];
    (0_u32..2, nid, pid, 0_u64..4, prop_oneof![3 => Just(0_u64), 1 => 1_u64..4], any::<bool>(), position)
        .prop_map(|(portal, nid, pid, match_bits, ignore_bits, auto_unlink, position)| EntrySpec {
            portal,
            source: ProcessId { nid, pid },
            match_bits,
            ignore_bits,
            auto_unlink,
            position,
            is_of_node: false,
        })
}

fn descriptors() -> impl Strategy<Value = MdSpec> {
    let threshold = prop_oneof![4 => (0_u32..4).prop_map(Threshold::Count), 1 => Just(Threshold::Infinite)];
    let allowed = prop_oneof![
        2 => Just(MdOptions::PUT),
        1 => Just(MdOptions::GET),
        1 => Just(MdOptions::PUT | MdOptions::GET)
    ];
    let option = |option| prop_oneof![Just(MdOptions::NONE), Just(option)];
    let options = (allowed, option(MdOptions::TRUNCATE), option(MdOptions::MANAGE_REMOTE))
        .prop_map(|(allowed, truncate, remote)| allowed | truncate | remote);
    (0_u64..20, proptest::option::weighted(0.3, 0_u64..20), threshold, options, any::<bool>()).prop_map(
        |(length_bytes, max_size, threshold, options, auto_unlink)| MdSpec {
            length_bytes,
            max_size_bytes: max_size.map(|size| size.min(length_bytes)),
            threshold,
            options,
            auto_unlink,
            event_queue: None,
            user_ptr: 0,
        },
    )
}

fn arrivals() -> impl Strategy<Value = Arriving> {
    let pid = prop_oneof![3 => Just(host(2).pid), 1 => Just(9)];
    (prop_oneof![3 => Just(true), 1 => Just(false)], 0_u32..2, 2_u8..4, pid, 0_u64..4, 0_u32..16, 0_u32..24)
        .prop_map(|(put, portal, from, pid, match_bits, length, offset)| Arriving {
            put,
            portal,
            source: ProcessId { pid, ..host(from) },
            match_bits,
            length,
            offset,
        })
}

fn operations() -> impl Strategy<Value = Operation> {
    prop_oneof![
        6 => (entries(), proptest::option::weighted(0.9, descriptors()))
            .prop_map(|(entry, md)| Operation::Post(entry, md)),
        6 => (entries(), proptest::option::weighted(0.9, descriptors()), any::<bool>(), any::<Index>())
            .prop_map(|(entry, md, is_before, index)| {
                let beside = if is_before { Position::Before } else { Position::After };
                Operation::PostBeside(entry, md, beside, index)
            }),
        1 => (any::<Index>(), descriptors()).prop_map(|(index, md)| Operation::Attach(index, md)),
        1 => any::<Index>().prop_map(Operation::Unlink),
        1 => any::<Index>().prop_map(Operation::UnlinkEntry),
        10 => arrivals().prop_map(Operation::Arrive),
        1 => (0_u32..2).prop_map(Operation::SetLazy),
        1 => any::<Index>().prop_map(Operation::GiveUp),
        1 => (0_u32..4).prop_map(|draw| match draw {
            0 | 1 => Operation::ClearLazy(draw),
            _ => Operation::SetLazy(draw - 2),
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn sm_03_tables_match_as_lists_do(operations in proptest::collection::vec(operations(), 1..200)) {
        let mut pair = Pair { node: Node::new(config()), model: Model::default() };
        for operation in operations {
            pair.run(operation);
        }
    }
}
