//! Whose message it is: the peer NI that an LND names decides, not the header.

use lnet_core::ShardConfig;
use lnet_core::limits::Limits;
use lnet_core::lnd::{LndFacts, RxId, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::ForgedSource;
use lnet_core::stats::DropReason;
use lnet_core::topology::{LocalNi, PeerMap, PeerNid, PeerView, Topology};
use lnet_wire::{Header, Nid, ProcessId};

use crate::common::{NI, NOW, Node, config, get_header, host, local_ni, nid, put_header};

/// One of many NIDs of a net.
fn name(net: u16, number: u32) -> Nid {
    Nid::from_small(2 << 48 | u64::from(net) << 32 | u64::from(11 << 24 | number)).unwrap()
}

const NAMES: u32 = 10_000;
const LIMITS: Limits = Limits { responses: 16, delayed: 16, incoming: 64, peers: 4, ..Limits::DEFAULT };

/// A node that answers GETs of bits 1 on a lazy portal, and knows host 2 by a second NID, host 3.
fn node() -> Node {
    node_of(LndFacts::KERNEL)
}

fn node_of(facts: LndFacts) -> Node {
    let mut peers = PeerMap::default();
    let nis = [2, 3].map(|host| PeerNid::new(nid(1, host), 1000)).to_vec();
    peers.insert(PeerView::new(false, nis).unwrap());
    let local = LocalNi { facts, ..local_ni(nid(1, 1), 8, 4) };
    let topology = Topology::new(vec![local]).with_peers(peers);
    let mut node = Node::new(ShardConfig { limits: LIMITS, topology: topology.into(), ..config() });
    let spec = MdSpec { threshold: Threshold::Infinite, event_queue: None, ..node.md(8) };
    node.post(1, &MdSpec { options: MdOptions::GET | MdOptions::MANAGE_REMOTE, ..spec });
    node.shard.set_lazy(4).unwrap();
    node
}

/// A message with this source, sent by a peer NI with that NID.
fn claim(node: &mut Node, from: Nid, rx: u32, source: Nid, header: Header) -> Verdict {
    let header = Header { source: ProcessId::lustre(source), ..header };
    node.shard.header(NOW, NI, &from, RxId(rx), &header)
}

#[test]
fn a_source_that_is_not_the_senders_is_dropped_and_told() {
    let mut node = node();
    assert_eq!(node.shard.poll_forged(), None);
    for number in 0..NAMES {
        let source = name(1, number);
        for header in [get_header(1, 4), put_header(2, 4)] {
            assert_eq!(claim(&mut node, nid(1, 9), 0, source, header), Verdict::Drop);
        }
    }
    let dropped = node.shard.counters().drops(DropReason::ForgedSource).messages;
    assert_eq!(
        (dropped, node.shard.counters().dropped().messages),
        (u64::from(2 * NAMES), u64::from(2 * NAMES))
    );
    let usage = node.shard.usage();
    assert_eq!((usage.peers, usage.delayed, usage.messages), (0, 0, 0));
    assert_eq!(node.transmit(), None, "no other node has an answer of it");
    let last = ForgedSource { ni: NI, from: nid(1, 9), source: name(1, NAMES - 1) };
    assert_eq!(node.shard.poll_forged(), Some(last));
    assert_eq!(node.shard.poll_forged(), None, "it is told once");
}

/// The node is on two nets: a peer of the one speaks for no neighbour on the other, nor for the node itself.
#[test]
fn a_source_on_another_net_of_the_node_is_forged_as_well() {
    let topology = Topology::new(vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(2, 1), 8, 4)]);
    let mut node = Node::new(ShardConfig { limits: LIMITS, topology: topology.into(), ..config() });
    for source in [nid(2, 7), nid(2, 1), nid(1, 1)] {
        assert_eq!(claim(&mut node, nid(1, 9), 0, source, put_header(2, 4)), Verdict::Drop);
        assert_eq!(node.shard.poll_forged(), Some(ForgedSource { ni: NI, from: nid(1, 9), source }));
    }
}

#[test]
fn what_discovery_has_heard_counts_where_the_lnd_proves_nothing() {
    for (proves_sources, verdict) in [(false, Verdict::Delay), (true, Verdict::Drop)] {
        let mut node = node_of(LndFacts { proves_sources, ..LndFacts::KERNEL });
        assert_eq!(claim(&mut node, nid(1, 2), 0, nid(1, 3), put_header(2, 4)), verdict);
        assert_eq!(node.shard.poll_forged().is_some(), proves_sources);
    }
}

/// From other nets messages come by routers alone, and there are none.
#[test]
fn a_source_on_a_net_that_the_node_is_not_on_is_forged_as_well() {
    let mut node = node();
    for number in 0..NAMES {
        for header in [put_header(2, 4), get_header(1, 4)] {
            assert_eq!(claim(&mut node, nid(1, 9), 0, name(9, number), header), Verdict::Drop);
        }
    }
    assert_eq!(node.shard.counters().drops(DropReason::ForgedSource).messages, u64::from(2 * NAMES));
    let usage = node.shard.usage();
    assert_eq!((usage.peers, usage.delayed, usage.messages), (0, 0, 0));
    let last = ForgedSource { ni: NI, from: nid(1, 9), source: name(9, NAMES - 1) };
    assert_eq!(node.shard.poll_forged(), Some(last));
    // Others have their room.
    assert_eq!(claim(&mut node, nid(1, 7), 0, nid(1, 7), put_header(2, 4)), Verdict::Delay);
    let answered = claim(&mut node, nid(1, 7), 1, nid(1, 7), get_header(1, 4));
    assert!(matches!(answered, Verdict::Deliver(_)), "{answered:?}");
}

#[test]
fn one_session_takes_one_share_of_what_waits() {
    let mut node = node();
    let mut waiting = 0;
    for _ in 0..NAMES {
        match claim(&mut node, nid(1, 9), waiting, nid(1, 9), put_header(2, 4)) {
            Verdict::Delay => waiting += 1,
            verdict => assert_eq!(verdict, Verdict::Drop),
        }
    }
    assert_eq!(waiting, LIMITS.delayed / 2, "one peer's share");
    assert_eq!(claim(&mut node, nid(1, 7), waiting, nid(1, 7), put_header(2, 4)), Verdict::Delay);
}

#[test]
fn responses_are_of_the_share_of_the_peer_ni_and_go_there() {
    let mut node = node();
    // The peer's other NID, as the snapshot knows it.
    let mut taken = 0;
    for rx in 0..LIMITS.responses {
        match claim(&mut node, nid(1, 2), rx, nid(1, 2 + (rx % 2) as u8), get_header(1, 4)) {
            Verdict::Deliver(_) => taken += 1,
            verdict => assert_eq!(verdict, Verdict::Drop),
        }
    }
    assert_eq!(taken, LIMITS.responses / 2, "two NIDs by one peer NI have one share");
    node.shard.received(NOW, RxId(1), lnet_core::lnd::Status::Ok);
    let reply = node.transmit().unwrap();
    assert_eq!((reply.next_hop, reply.header.destination), (nid(1, 2), host(3)));
}

/// Entries name the peer by either of its NIDs, and snapshots change which is the primary one: the peer's
/// messages are taken by whichever NID they come, on both kinds of portal, in the order of the entries, and a
/// stranger's are not.
#[test]
fn an_entry_names_its_initiator_by_any_nid_whichever_is_the_primary_one() {
    let topology = |primary: u8, generation| {
        let mut peers = PeerMap::default();
        let nis = [primary, 5 - primary].map(|host| PeerNid::new(nid(1, host), 1000)).to_vec();
        peers.insert(PeerView::new(true, nis).unwrap());
        let topology = Topology::new(vec![local_ni(nid(1, 1), 8, 4)]).with_peers(peers);
        topology.with_generation(generation)
    };
    for (pid, ignore_bits) in [(host(2).pid, 0), (ProcessId::ANY_PID, 0), (ProcessId::ANY_PID, 0xff)] {
        for (named, from) in [(2, 2), (2, 3), (3, 2), (3, 3)] {
            let case = format!("named {named}, from {from}, pid {pid}, ignored {ignore_bits:x}");
            let at_first = Topology::new(vec![local_ni(nid(1, 1), 8, 4)]).with_generation(1);
            let mut node = Node::new(ShardConfig { limits: LIMITS, topology: at_first.into(), ..config() });
            let source = ProcessId { nid: nid(1, named), pid };
            let entry = EntrySpec { source, ignore_bits, ..EntrySpec::new(4, 0x700) };
            let spec = MdSpec { options: MdOptions::PUT, ..node.md(8) };
            for _ in 0..2 {
                let slot = node.shard.attach_entry(&entry).unwrap();
                node.shard.attach(slot, &spec).unwrap();
            }
            if ignore_bits != 0 || pid == ProcessId::ANY_PID {
                let slot = node.shard.attach_entry(&EntrySpec { source: ProcessId::ANY, ..entry }).unwrap();
                node.shard.attach(slot, &MdSpec { user_ptr: 9, ..spec }).unwrap();
            }
            for (rx, primary) in [(0, 3), (1, 2)] {
                let snapshot = topology(primary, u64::from(primary == 2) + 2);
                node.shard.update(NOW, snapshot.into());
                if pid != ProcessId::ANY_PID {
                    let stranger = claim(&mut node, nid(1, 9), 7, nid(1, 9), put_header(0x700, 4));
                    assert_eq!(stranger, Verdict::Drop, "{case}");
                }
                let verdict = claim(&mut node, nid(1, from), rx, nid(1, from), put_header(0x700, 4));
                assert!(matches!(verdict, Verdict::Deliver(_)), "{case}, primary {primary}: {verdict:?}");
                node.shard.received(NOW, RxId(rx), lnet_core::lnd::Status::Ok);
                let event = node.events().pop().unwrap();
                assert_eq!(event.origin().unwrap().initiator.nid, nid(1, primary), "{case}");
                assert_ne!(event.user_ptr(), 9, "{case}: an entry before it takes it");
            }
        }
    }
}
