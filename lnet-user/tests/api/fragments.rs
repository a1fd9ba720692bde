//! Buffers of several fragments at either end of a message, within a node and between two.

use std::time::Duration;

use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{
    Ack, Buffer, EntrySpec, EventKind, EventQueue, Lnet, MdOptions, Net, NiConfig, Nid, QueuedEvent,
    ShardHandle, Target,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::{PINNED, config, next, spec};

/// A node's shard that sends, another's that receives or the same, and the NID of that.
struct Ends {
    near: ShardHandle,
    far: ShardHandle,
    nid: Nid,
    _nodes: Vec<Lnet>,
}

impl Ends {
    fn new(is_lo: bool) -> Self {
        let nid = |host: u8| Nid::new_ip(Net::XDP, [10, 9, 7, host].into()).unwrap();
        let node = |host: u8| {
            let mut config = config(2);
            if !is_lo {
                config.nis = vec![NiConfig::new(nid(host), "in-process:fragments")];
            }
            let threads = Threads::new().idle(Idle::new(Duration::ZERO));
            let lnet = Lnet::start_on(&config, &threads).unwrap();
            lnet.open().unwrap();
            lnet
        };
        let nodes: Vec<Lnet> = if is_lo { vec![node(1)] } else { vec![node(1), node(2)] };
        let nid = if is_lo { Nid::LO } else { nid(2) };
        let far = nodes.last().unwrap().shard(0).unwrap();
        // The other shard of one node: what it sends is received by a lease.
        Self { near: nodes[0].shard(1).unwrap(), far, nid, _nodes: nodes }
    }

    fn target(&self, offset: usize) -> Target {
        Target { offset: offset as u32, ..Target::new(self.nid, PINNED[0], 7) }
    }
}

#[derive(Clone, Debug)]
struct Case {
    /// Where the sending and the receiving buffer are cut, in 65536ths.
    cuts: [Vec<u16>; 2],
    length: usize,
    /// Bytes of room beyond the length.
    more: usize,
    /// The offset that is asked for, if the descriptor is managed remotely.
    offset: Option<usize>,
}

impl Case {
    fn options(&self, option: MdOptions) -> MdOptions {
        let managed = if self.offset.is_some() { MdOptions::MANAGE_REMOTE } else { MdOptions::NONE };
        option | MdOptions::TRUNCATE | managed
    }

    fn room(&self) -> usize {
        self.length + self.more
    }
}

fn case() -> impl Strategy<Value = Case> {
    let cuts = || vec(any::<u16>(), 0..255);
    let offset = proptest::option::of(any::<u16>());
    ([cuts(), cuts()], 1..20_000_usize, 1..20_000_usize, offset).prop_map(|(cuts, length, more, offset)| {
        let offset = offset.map(|share| usize::from(share) * (length + more) / 65536);
        Case { cuts, length, more, offset }
    })
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|index| 1 + (index % 251) as u8).collect()
}

/// The bytes in fragments, and their lengths.
fn cut(bytes: &[u8], cuts: &[u16]) -> (Buffer, Vec<usize>) {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) * bytes.len() / 65536).collect();
    ends.extend([0, bytes.len()]);
    ends.sort_unstable();
    ends.dedup();
    let parts = || ends.windows(2).map(|ends| &bytes[ends[0]..ends[1]]);
    (Buffer::from_fragments(parts().map(<[u8]>::to_vec)).unwrap(), parts().map(<[u8]>::len).collect())
}

fn flat(queued: &QueuedEvent) -> Option<Vec<u8>> {
    let fragments = queued.payload_fragments()?;
    let count = fragments.clone().count();
    let flat: Vec<u8> = fragments.flatten().copied().collect();
    let one = queued.payload().map(<[u8]>::to_vec);
    assert_eq!(one, (count < 2).then(|| flat.clone()), "one slice if it lies in one fragment");
    Some(flat)
}

/// The last event of the queue's only descriptor.
fn last(queue: &mut EventQueue) -> QueuedEvent {
    loop {
        let queued = next(queue);
        if queued.event.unlinked() {
            return queued;
        }
    }
}

/// The buffer of a last event, whose fragments are as they were.
fn home(queued: QueuedEvent, lengths: &[usize]) -> Vec<u8> {
    let fragments = queued.into_buffer().unwrap().into_fragments();
    assert!(fragments.iter().map(|fragment| fragment.len()).eq(lengths.iter().copied()));
    fragments.iter().flat_map(|fragment| fragment.to_vec()).collect()
}

/// Two PUTs, the second of which may be cut short; the payload of the first is read while the second arrives.
fn puts(ends: &Ends, case: &Case) {
    let (mut sent, mut arrived) =
        (ends.near.create_event_queue(8).unwrap(), ends.far.create_event_queue(8).unwrap());
    let (source, source_lengths) = cut(&bytes(case.length), &case.cuts[0]);
    let (room, room_lengths) = cut(&vec![0; case.room()], &case.cuts[1]);
    let posted = spec(&arrived, case.room(), 2, case.options(MdOptions::PUT));
    ends.far.attach(&EntrySpec::new(PINNED[0], 7), &posted, room).unwrap().detach();
    let md = ends.near.bind(&spec(&sent, case.length, 4, MdOptions::NONE), source).unwrap();
    let mut expected = vec![0; case.room()];
    let mut first = None;
    for number in 0..2 {
        let offset = case.offset.unwrap_or(number * case.length);
        let taken = case.length.min(case.room() - offset);
        expected[offset..offset + taken].copy_from_slice(&bytes(taken));
        md.put(&ends.target(case.offset.unwrap_or(0)), Ack::Wanted, 0).start().unwrap();
        if number == 0 {
            let queued = next(&mut arrived);
            assert_eq!(flat(&queued), case.offset.is_none().then(|| bytes(taken)), "{case:?}");
            first = Some(queued);
        } else {
            let queued = last(&mut sent);
            assert_eq!(
                (queued.event.kind(), queued.event.manipulated_bytes()),
                (EventKind::Ack, taken as u32)
            );
            assert_eq!(home(queued, &source_lengths), bytes(case.length));
            drop(first.take());
            let queued = last(&mut arrived);
            assert_eq!(flat(&queued), Some(bytes(taken)), "{case:?}");
            assert_eq!(home(queued, &room_lengths), expected);
        }
    }
}

/// A GET of part of a buffer.
fn gets(ends: &Ends, case: &Case) {
    let (mut sent, mut arrived) =
        (ends.near.create_event_queue(8).unwrap(), ends.far.create_event_queue(8).unwrap());
    let whole = bytes(case.room());
    let (source, source_lengths) = cut(&whole, &case.cuts[0]);
    let (sink, sink_lengths) = cut(&vec![0; case.length], &case.cuts[1]);
    let posted = spec(&arrived, case.room(), 1, case.options(MdOptions::GET));
    ends.far.attach(&EntrySpec::new(PINNED[0], 7), &posted, source).unwrap().detach();
    let md = ends.near.bind(&spec(&sent, case.length, 2, MdOptions::NONE), sink).unwrap();
    let offset = case.offset.unwrap_or(0);
    md.get(&ends.target(offset)).start().unwrap();
    let taken = case.length.min(case.room() - offset);
    let queued = last(&mut sent);
    if queued.event.kind() == EventKind::Reply {
        assert_eq!(flat(&queued).as_deref(), Some(&whole[offset..offset + taken]), "{case:?}");
    }
    let mut expected = vec![0; case.length];
    expected[..taken].copy_from_slice(&whole[offset..offset + taken]);
    assert_eq!(home(queued, &sink_lengths), expected);
    assert_eq!(home(last(&mut arrived), &source_lengths), whole);
}

/// Messages from one buffer or another, in one fragment or 256, are those of flat buffers.
fn check(is_lo: bool) {
    let ends = Ends::new(is_lo);
    let cuts = (1..256).map(|cut| cut * 256).collect::<Vec<u16>>();
    let most = Case { cuts: [cuts.clone(), cuts], length: 12_345, more: 1, offset: None };
    assert_eq!(cut(&bytes(12_345), &most.cuts[0]).1.len(), lnet_user::BUFFER_FRAGMENTS_MAX);
    puts(&ends, &most);
    gets(&ends, &most);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) };
    let outcome = proptest::test_runner::TestRunner::new(config).run(&case(), |case| {
        puts(&ends, &case);
        gets(&ends, &case);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn fragments_within_a_node_are_those_of_flat_buffers() {
    check(true);
}

#[test]
fn fragments_between_nodes_are_those_of_flat_buffers() {
    check(false);
}
