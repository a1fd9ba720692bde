//! The NI that a message goes by, and the one that it goes by when that fails.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::ShardConfig;
use lnet_core::handle::ShardId;
use lnet_core::limits::Limits;
use lnet_core::lnd::{Cause, NiId, Path, PathReport, RxId, Status, Transmit, Uplink};
use lnet_core::md::{MdOptions, MdSpec};
use lnet_core::shard::{Criterion, PeerChange, PutRequest};
use lnet_core::topology::{LocalNi, MemoryNode, NiStatus, PeerMap, PeerNid, PeerView, Reach, Topology};
use lnet_core::tunables::Tunables;
use lnet_wire::Nid;

use crate::common::{NOW, Node, config, local_ni, nid, put_header, put_request};

const SECOND: Duration = Duration::from_secs(1);
const NIS: [NiId; 2] = [NiId(0), NiId(1)];

/// Two NIs of 8 credits on one net.
fn node() -> Node {
    let nis = vec![local_ni(nid(1, 1), 8, 8), local_ni(nid(1, 9), 8, 8)];
    Node::new(ShardConfig { topology: Arc::new(Topology::new(nis)), ..config() })
}

/// One peer.
fn peers(is_multi_rail: bool, nis: &[PeerNid]) -> PeerMap {
    let mut peers = PeerMap::default();
    peers.insert(PeerView::new(is_multi_rail, nis.to_vec()).unwrap());
    peers
}

fn put(node: &mut Node, to: u8, self_nid: Option<Nid>) {
    let md = node.shard.bind(&node.md(10)).unwrap();
    node.shard.put(NOW, &PutRequest { self_nid, ..put_request(md, to) }).unwrap();
}

/// Takes the messages that leave by either NI.
fn sent(node: &mut Node) -> [Vec<Transmit>; 2] {
    NIS.map(|ni| {
        std::iter::from_fn(|| node.shard.poll_transmit(NOW, ni).map(|lent| *lent.transmit)).collect()
    })
}

fn counts(node: &mut Node) -> [usize; 2] {
    sent(node).map(|messages| messages.len())
}

#[test]
fn two_nis_on_a_net_share_the_load() {
    let mut node = node();
    (0..8).for_each(|_| put(&mut node, 2, None));
    let messages = sent(&mut node);
    assert_eq!(messages.each_ref().map(Vec::len), [4, 4]);
    for (messages, source) in messages.iter().zip([nid(1, 1), nid(1, 9)]) {
        assert!(messages.iter().all(|message| message.header.source.nid == source));
    }
}

#[test]
fn equal_ones_take_turns_and_a_named_one_is_obeyed() {
    let mut node = node();
    let mut used = [0, 0];
    for _ in 0..6 {
        put(&mut node, 2, None);
        let messages = sent(&mut node);
        for (used, messages) in used.iter_mut().zip(messages) {
            *used += messages.len();
            messages.iter().for_each(|message| node.shard.sent(NOW, message.tx, Status::Ok));
        }
    }
    assert_eq!(used, [3, 3]);
    (0..3).for_each(|_| put(&mut node, 2, Some(nid(1, 9))));
    assert_eq!(counts(&mut node), [0, 3]);
}

#[test]
fn each_shard_takes_the_device_that_is_near_to_itself() {
    let near_to = [[10, 21], [21, 10]].map(Box::from);
    for (shard, expected) in [(0, [3, 0]), (1, [0, 3])] {
        let nis = vec![local_ni(nid(1, 1), 8, 8), local_ni(nid(1, 9), 8, 8)];
        let topology = Arc::new(Topology::new(nis).with_numa_distances(near_to.to_vec()));
        let shard = ShardId(shard);
        let mut node = Node::new(ShardConfig { shard, shard_count: 2, topology, ..config() });
        (0..3).for_each(|_| put(&mut node, 2, None));
        assert_eq!(counts(&mut node), expected, "shard {}", shard.0);
        let steps = node.shard.explain(NOW, &nid(1, 2)).steps;
        let lost = steps.iter().flatten().filter(|weighed| weighed.lost_by == Some(Criterion::Distance));
        assert_eq!(lost.count(), 1, "{steps:?}");
    }
}

/// An NI without a route comes last, whatever its health is, and every step says so. A longer prefix counts
/// behind health, and for a source alone.
#[test]
fn an_ni_without_a_route_to_the_peer_comes_last() {
    let explained = |health: u32, routes: [&[(u8, u8)]; 2], peers: Option<PeerMap>| {
        let nis = vec![LocalNi { health, ..local_ni(nid(1, 1), 8, 8) }, local_ni(nid(1, 9), 8, 8)];
        let reach = |routes: &[(u8, u8)]| {
            let routes = routes.iter().map(|(host, bits)| ([10, 0, 0, *host].into(), *bits));
            Some(Arc::new(Reach::new(routes)))
        };
        let mut topology = Topology::new(nis).with_reaches(routes.map(reach).into());
        if let Some(peers) = peers {
            topology = topology.with_peers(peers);
        }
        let node = Node::new(ShardConfig { topology: Arc::new(topology), ..config() });
        let explanation = node.shard.explain(NOW, &nid(1, 2));
        let lost_by = |weighed: &lnet_core::shard::Weighed| weighed.lost_by;
        let lost: Vec<_> = explanation.steps.iter().flatten().filter_map(lost_by).collect();
        (explanation.choice.unwrap(), lost)
    };
    let others = |is_multi_rail| peers(is_multi_rail, &[2, 200].map(|host| PeerNid::new(nid(1, host), 1000)));
    let stranger = || Some(PeerMap::default());
    for (peers, is_sticky) in
        [(None, false), (stranger(), true), (Some(peers(false, &[PeerNid::new(nid(1, 2), 1000)])), true)]
    {
        let (choice, lost) = explained(10, [&[(0, 24)], &[(128, 25)]], peers.clone());
        assert_eq!((choice.ni, &lost[..]), (NIS[0], &[Criterion::Route][..]));
        let (choice, lost) = explained(10, [&[(0, 24)], &[(0, 0)]], peers.clone());
        assert_eq!((choice.ni, &lost[..]), (NIS[1], &[Criterion::LocalHealth][..]));
        let by_bits = [[&[(0, 24)][..], &[(0, 0)]], [&[(0, 0)], &[(0, 24)]]];
        for (routes, ni) in by_bits.into_iter().zip(NIS).filter(|_| is_sticky) {
            let (choice, lost) = explained(1000, routes, peers.clone());
            assert_eq!((choice.ni, &lost[..]), (ni, &[Criterion::RouteBits][..]));
        }
    }
    // Each NI reaches another NID of the Multi-Rail peer: the NI in better health sends, to what it reaches.
    let (choice, lost) = explained(10, [&[(0, 25)], &[(128, 25)]], Some(others(true)));
    assert_eq!((choice.ni, choice.next_hop), (NIS[1], nid(1, 200)));
    assert_eq!(lost, [Criterion::LocalHealth, Criterion::Route]);
    let (choice, lost) = explained(10, [&[(0, 25)], &[(64, 26)]], Some(others(true)));
    assert_eq!((choice.ni, choice.next_hop), (NIS[0], nid(1, 2)));
    assert_eq!(lost, [Criterion::Route, Criterion::Route]);
}

#[test]
fn a_silent_path_comes_last_until_it_answers() {
    let mut node = node();
    let path = Path { ni: NIS[0], peer: nid(1, 2) };
    node.shard.path_health(NOW, &path, PathReport::Silent);
    (0..4).for_each(|_| put(&mut node, 2, None));
    assert_eq!(counts(&mut node), [0, 4]);
    put(&mut node, 3, None);
    assert_eq!(counts(&mut node), [1, 0], "another peer's path is another one");
    node.shard.path_health(NOW, &path, PathReport::Answers { round_trip: None });
    (0..2).for_each(|_| put(&mut node, 2, None));
    assert_eq!(counts(&mut node), [2, 0], "it has more credits free");
}

/// Changes, for a log: not reports, and never more than fit.
#[test]
fn changes_of_peers_are_told_once() {
    let mut node = node();
    let path = Path { ni: NIS[0], peer: nid(1, 2) };
    let answers = PathReport::Answers { round_trip: None };
    for report in [answers, PathReport::Silent, PathReport::Silent, answers, answers] {
        node.shard.path_health(NOW, &path, report);
    }
    node.shard.restarted(&nid(1, 3));
    let told = |node: &mut Node| std::iter::from_fn(|| node.shard.poll_peer_change()).collect::<Vec<_>>();
    let expected = [
        (nid(1, 2), PeerChange::Silent),
        (nid(1, 2), PeerChange::Answers),
        (nid(1, 3), PeerChange::Restarted),
    ];
    assert_eq!(told(&mut node), expected);
    // It goes on not to answer.
    for _ in 0..2 {
        (0..100).for_each(|_| node.shard.path_health(NOW, &path, PathReport::Silent));
        assert_eq!(told(&mut node), [(nid(1, 2), PeerChange::Silent)]);
    }
    (0..1000).for_each(|_| node.shard.restarted(&nid(1, 3)));
    assert_eq!(told(&mut node).len(), 64);
    assert_eq!(told(&mut node), []);
}

#[test]
fn reports_of_other_paths_do_not_hide_a_silent_one() {
    let mut node = node();
    let path = |ni, host| Path { ni: NIS[ni], peer: nid(1, host) };
    node.shard.path_health(NOW, &path(0, 2), PathReport::Silent);
    for host in 10..50 {
        node.shard.path_health(NOW + SECOND / 4, &path(0, host), PathReport::Answers { round_trip: None });
    }
    (0..2).for_each(|_| put(&mut node, 2, None));
    assert_eq!(counts(&mut node), [0, 2], "answers take no silence's room");
    node.shard.path_health(NOW + SECOND / 2, &path(0, 3), PathReport::Silent);
    for host in [2, 3] {
        (0..2).for_each(|_| put(&mut node, host, None));
        assert_eq!(counts(&mut node), [0, 2], "host {host}: a silence takes an answer's");
    }
    for host in 60..92 {
        node.shard.path_health(NOW + SECOND / 2, &path(0, host), PathReport::Silent);
    }
    put(&mut node, 2, None);
    assert_eq!(counts(&mut node), [1, 0], "it was reported first");
}

#[test]
fn another_path_is_the_one_with_the_shortest_round_trip_that_is_not_silent() {
    let mut node = node();
    let paths = [(0, 2), (1, 2), (0, 3), (1, 3)].map(|(ni, host)| Path { ni: NiId(ni), peer: nid(1, host) });
    let answers = |micros| PathReport::Answers { round_trip: Some(Duration::from_micros(micros)) };
    node.shard.path_health(NOW, &paths[1], answers(30));
    node.shard.path_health(NOW, &paths[3], answers(20));
    assert_eq!(node.shard.reroute(NOW, &paths[0], &paths), Some(3));
    assert_eq!(node.shard.reroute(NOW, &paths[3], &paths), Some(1));
    assert_eq!(node.shard.reroute(NOW, &paths[3], &paths[3..]), None, "there is no other");
    // The health that the snapshot tells of a NID comes before what is measured.
    let mut ill = self::node();
    let nis = vec![local_ni(nid(1, 1), 8, 8), local_ni(nid(1, 9), 8, 8)];
    let peer = [(2, 1000), (3, 10)].map(|(host, health)| PeerNid::new(nid(1, host), health));
    let topology = Topology::new(nis).with_peers(peers(true, &peer)).with_generation(1);
    ill.shard.update(NOW, Arc::new(topology));
    ill.shard.path_health(NOW, &paths[3], answers(20));
    assert_eq!(ill.shard.reroute(NOW, &paths[0], &paths), Some(1));
    // Another path that an LND may know nothing of leads to a Multi-Rail peer, by an NI that the LND has.
    assert_eq!(ill.shard.another_path(&paths[0], |_| true), Some(paths[1]));
    assert_eq!(ill.shard.another_path(&paths[1], |_| true), Some(paths[2]), "the first one was silent");
    assert_eq!(ill.shard.another_path(&paths[0], |ni| ni == NiId(0)), Some(paths[2]));
    assert_eq!(ill.shard.another_path(&paths[0], |_| false), None);
    assert_eq!(node.shard.another_path(&paths[0], |_| true), None, "nothing is known of the peer");
    // Where all are silent each has its turn, however long ago that was.
    let mut path = 3;
    let mut turns = Vec::new();
    for second in 1..9 {
        let now = NOW + Duration::from_secs(second);
        path = node.shard.reroute(now, &paths[path], &paths).unwrap();
        turns.push(path);
    }
    turns[4..].sort_unstable();
    assert_eq!(turns[4..], [0, 1, 2, 3]);
}

#[test]
fn what_a_device_refuses_leaves_by_the_other_ni_and_ends_once() {
    for cause in [Cause::Device, Cause::Unreachable] {
        let mut node = node();
        put(&mut node, 2, None);
        let refused = sent(&mut node).concat();
        node.shard.sent(NOW, refused[0].tx, Status::NeverSent(cause));
        assert_eq!(node.events(), [], "it goes on");
        let again = sent(&mut node).concat();
        assert_eq!(again.len(), 1);
        assert_ne!(again[0].ni, refused[0].ni);
        assert_ne!(again[0].header.source, refused[0].header.source);
        assert_eq!(node.shard.ni_credits(refused[0].ni), Some(8));
        assert_eq!(node.shard.ni_credits(again[0].ni), Some(7));
        assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(7));
        node.shard.sent(NOW, again[0].tx, Status::Ok);
        assert_eq!(node.event().status(), Status::Ok);
        assert_eq!(NIS.map(|ni| node.shard.ni_credits(ni)), [Some(8); 2]);
        assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(8));
        assert_eq!(node.shard.usage().messages, 0);
        assert!(NIS.iter().all(|ni| node.shard.is_quiet(*ni)));
        let counted = node.shard.counters();
        assert_eq!((counted.resends, counted.successful_resends, counted.failed_resends), (1, 1, 0));
    }
}

#[test]
fn it_is_sent_anew_so_often_and_not_where_that_is_no_use() {
    let mut node = node();
    put(&mut node, 2, None);
    let status = Status::NeverSent(Cause::Device);
    for _ in 0..3 {
        assert_eq!(node.events(), []);
        let message = sent(&mut node).concat()[0];
        node.shard.sent(NOW, message.tx, status);
    }
    assert_eq!(node.event().status(), status, "twice besides the first time");
    let counted = node.shard.counters();
    assert_eq!((counted.resends, counted.successful_resends, counted.failed_resends), (2, 0, 1));
    for (self_nid, status) in
        [(None, Status::Unknown(Cause::Device)), (None, Status::NeverSent(Cause::TooLong))]
    {
        put(&mut node, 2, self_nid);
        let message = sent(&mut node).concat()[0];
        node.shard.sent(NOW, message.tx, status);
        assert_eq!(node.event().status(), status);
        assert_eq!(counts(&mut node), [0, 0]);
    }
    assert_eq!(NIS.map(|ni| node.shard.ni_credits(ni)), [Some(8); 2]);
}

#[test]
fn it_is_not_sent_anew_where_the_retry_count_is_0() {
    let nis = vec![local_ni(nid(1, 1), 8, 8), local_ni(nid(1, 9), 8, 8)];
    let tunables = Tunables { retry_count: 0, ..Tunables::DEFAULT };
    let topology = Topology::new(nis).with_tunables(tunables);
    let mut node = Node::new(ShardConfig { topology: Arc::new(topology), ..config() });
    put(&mut node, 2, None);
    let message = sent(&mut node).concat()[0];
    node.shard.sent(NOW, message.tx, Status::NeverSent(Cause::Device));
    assert_eq!(node.event().status(), Status::NeverSent(Cause::Device));
    assert_eq!(node.shard.counters().resends, 0);
}

#[test]
fn what_two_devices_refuse_leaves_by_the_third() {
    let nis = [1, 8, 9].map(|host| local_ni(nid(1, host), 8, 8));
    let topology = Arc::new(Topology::new(nis.to_vec()));
    let limits = Limits { nis: 3, ..config().limits };
    let mut node = Node::new(ShardConfig { topology, limits, ..config() });
    put(&mut node, 2, None);
    let mut used = Vec::new();
    for status in [Status::NeverSent(Cause::Device), Status::NeverSent(Cause::Device), Status::Ok] {
        let sent = (0..3).find_map(|ni| node.shard.poll_transmit(NOW, NiId(ni)).map(|lent| *lent.transmit));
        let message = sent.expect("it is sent anew");
        used.push(message.ni.0);
        node.shard.sent(NOW, message.tx, status);
    }
    used.sort_unstable();
    assert_eq!(used, [0, 1, 2]);
    assert_eq!(node.event().status(), Status::Ok);
}

/// More paths than are remembered answer in turn: each is new again and again, and that is told now and then,
/// not each time.
#[test]
fn answers_of_more_paths_than_are_remembered_are_told_rarely() {
    let mut node = node();
    let answers = PathReport::Answers { round_trip: None };
    let mut told = 0;
    for round in 0..20 {
        for host in 10..60 {
            let path = Path { ni: NIS[0], peer: nid(1, host) };
            node.shard.path_health(NOW + SECOND / 10 * round, &path, answers);
            told += std::iter::from_fn(|| node.shard.poll_paths()).count();
        }
    }
    // 32 are new at first; two seconds pass.
    assert!((32..=36).contains(&told), "{told} notes");
}

/// A peer that was heard by an NI which has gone is not spoken to by the NI that has its slot now, for that.
#[test]
fn the_ni_by_which_a_peer_was_first_heard_is_no_other_one_in_its_slot() {
    let topology = |nids: [Option<Nid>; 2], generation| {
        let slots = nids.map(|nid| nid.map(|nid| local_ni(nid, 8, 8)));
        let peers = PeerMap::default();
        Arc::new(Topology::with_slots(slots.to_vec()).with_peers(peers).with_generation(generation))
    };
    let first = |node: &Node| node.shard.peers().find(|peer| peer.nid == nid(1, 2)).unwrap().first_ni;
    let mut node =
        Node::new(ShardConfig { topology: topology([Some(nid(1, 1)), Some(nid(1, 9))], 1), ..config() });
    node.post(9, &MdSpec { options: MdOptions::PUT, ..node.md(8) });
    node.shard.header(NOW, NIS[0], &nid(1, 2), RxId(1), &put_header(9, 0));
    node.shard.received(NOW, RxId(1), Status::Ok);
    assert_eq!(first(&node), Some(NIS[0]));
    node.shard.update(NOW, topology([None, Some(nid(1, 9))], 2));
    assert_eq!(first(&node), None, "it has gone");
    node.shard.update(NOW, topology([Some(nid(1, 7)), Some(nid(1, 9))], 3));
    assert_eq!(first(&node), None, "another one has the slot");
}

/// A buffer's memory node decides among devices, wherever its shard runs; one that is not known leaves the
/// choice to the shard's. It comes after health and priority, and does not outlive the descriptor.
#[test]
fn a_message_takes_the_device_that_is_near_to_its_buffer() {
    let nis = |change: fn(&mut LocalNi)| {
        let mut nis = vec![local_ni(nid(1, 1), 8, 8), local_ni(nid(1, 9), 8, 8)];
        change(&mut nis[1]);
        nis
    };
    let by_node = [[10, 21], [21, 10]].map(Box::from).to_vec();
    let by_shard = [[10, 10], [12, 12]].map(Box::from).to_vec();
    let node_of = |change| {
        let topology = Topology::new(nis(change))
            .with_numa_distances(by_shard.clone())
            .with_memory_distances(by_node.clone());
        Node::new(ShardConfig { topology: Arc::new(topology), ..config() })
    };
    let put_from = |node: &mut Node, memory: Option<u16>| {
        let md = node.shard.bind(&node.md(10)).unwrap();
        if let Some(memory) = memory {
            node.shard.set_memory_node(md, Some(MemoryNode(memory)));
        }
        node.shard.put(NOW, &put_request(md, 2)).unwrap();
        counts(node)
    };
    let mut node = node_of(|_| {});
    for (memory, expected) in [(Some(0), [1, 0]), (Some(1), [0, 1]), (None, [1, 0]), (Some(7), [1, 0])] {
        assert_eq!(put_from(&mut node, memory), expected, "{memory:?}");
    }
    for change in [(|ni| ni.health -= 1) as fn(&mut LocalNi), |ni| ni.status = NiStatus::Down] {
        assert_eq!(put_from(&mut node_of(change), Some(1)), [1, 0], "it is ill");
    }
    assert_eq!(put_from(&mut node_of(|ni| ni.priority = 0), Some(0)), [0, 1], "it has priority");
    // The next descriptor in the slot of one that is gone has its own node.
    let mut node = node_of(|_| {});
    let md = node.shard.bind(&node.md(10)).unwrap();
    node.shard.set_memory_node(md, Some(MemoryNode(1)));
    node.shard.unlink(md).unwrap();
    assert_eq!(put_from(&mut node, None), [1, 0]);
    let topology = Topology::new(nis(|_| {}));
    assert!(!topology.has_memory_distances());
    assert_eq!(topology.memory_distance(NiId(0), MemoryNode(0)), None);
}
