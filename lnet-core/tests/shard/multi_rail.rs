//! Peers with several NIs: which path a request takes, why, and what its end says of the path.

use std::sync::Arc;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Cause, NiId, Path, PathReport, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{Candidate, Criterion, HealthNote, PathNote, PathState, PutRequest};
use lnet_core::topology::{HEALTH_MAX, LocalNi, NiStatus, PeerMap, PeerNid, PeerView, Topology};
use lnet_core::{ShardConfig, health::HealthStatus};
use lnet_wire::{Nid, ProcessId};

use crate::common::{NOW, Node, config, get_header, local_ni, nid, put_header, put_request};

/// Two nets of two local NIs each, in slots 0 to 3.
fn locals() -> Vec<LocalNi> {
    [(1, 1), (1, 2), (2, 1), (2, 2)].map(|(net, host)| local_ni(nid(net, host), 8, 4)).to_vec()
}

/// A peer with two NIs on each net; its primary NID is host 11 on net 1.
fn peer() -> PeerView {
    let nis =
        [(1, 11), (1, 12), (2, 11), (2, 12)].map(|(net, host)| PeerNid::new(nid(net, host), HEALTH_MAX));
    PeerView::new(true, nis.to_vec()).unwrap()
}

fn topology(locals: Vec<LocalNi>, peer: PeerView) -> Topology {
    let mut peers = PeerMap::default();
    peers.insert(peer);
    Topology::new(locals).with_peers(peers).with_generation(1)
}

fn node(topology: Topology) -> Node {
    let limits = Limits { nis: 4, ..config().limits };
    Node::new(ShardConfig { limits, topology: Arc::new(topology), ..config() })
}

pub(crate) fn put(node: &mut Node, to: Nid, self_nid: Option<Nid>) {
    let md = node.shard.bind(&node.md(10)).unwrap();
    let target = ProcessId::lustre(to);
    node.shard.put(NOW, &PutRequest { self_nid, target, ..put_request(md, 0) }).unwrap();
}

/// Takes the messages that leave, by all NIs.
pub(crate) fn sent(node: &mut Node) -> Vec<Transmit> {
    let by = |node: &mut Node, ni| node.shard.poll_transmit(NOW, NiId(ni)).map(|lent| *lent.transmit);
    (0..4).flat_map(|ni| std::iter::from_fn(|| by(node, ni)).collect::<Vec<_>>()).collect()
}

/// The path that a request to the peer's second NID takes, and its ends are those of the header.
#[track_caller]
fn path(node: &mut Node) -> (Nid, Nid) {
    let explained = node.shard.explain(NOW, &nid(1, 12)).choice.unwrap();
    put(node, nid(1, 12), None);
    let [transmit] = sent(node)[..] else { panic!("one message") };
    let header = &transmit.header;
    assert_eq!((transmit.ni, transmit.next_hop), (explained.ni, explained.next_hop), "as it was explained");
    assert_eq!(header.destination.nid, explained.destination);
    assert_eq!(header.destination.nid, transmit.next_hop);
    node.shard.sent(NOW, transmit.tx, Status::Ok);
    (header.source.nid, header.destination.nid)
}

#[test]
fn all_paths_of_two_by_two_are_used_alike() {
    let mut node = node(topology(locals(), peer()));
    let mut used = std::collections::BTreeMap::<_, u32>::new();
    for _ in 0..16 {
        *used.entry(path(&mut node)).or_default() += 1;
    }
    let sources: Vec<_> = locals().iter().map(|ni| ni.nid).collect();
    for nid in sources.iter().chain(peer().nis.iter().map(|ni| &ni.nid)) {
        let count: u32 = used.iter().filter(|((from, to), _)| from == nid || to == nid).map(|(_, n)| n).sum();
        assert_eq!(count, 4, "{nid}: {used:?}");
    }
}

/// Which NIs are used, of three messages, when one thing is changed; and what decided.
#[track_caller]
fn check(
    change: impl Fn(&mut Vec<LocalNi>, &mut PeerView),
    criterion: Criterion,
    expected: impl Fn(&(Nid, Nid)) -> bool,
) {
    let (mut locals, mut view) = (locals(), peer());
    change(&mut locals, &mut view);
    let mut node = node(topology(locals, view));
    for round in 0..3 {
        let steps = node.shard.explain(NOW, &nid(1, 11)).steps;
        let decided = steps.iter().flatten().any(|weighed| weighed.lost_by == Some(criterion));
        assert!(decided, "{criterion} in round {round}: {steps:?}");
        let path = path(&mut node);
        assert!(expected(&path), "{criterion} in round {round}: {path:?}");
    }
}

#[test]
fn criteria_decide_in_their_order() {
    let net = |net: u16| move |path: &(Nid, Nid)| path.0.net() == nid(net, 1).net();
    let from = |host: u8| move |path: &(Nid, Nid)| [nid(1, host), nid(2, host)].contains(&path.0);
    let to = |host: u8| move |path: &(Nid, Nid)| [nid(1, host), nid(2, host)].contains(&path.1);
    // Health of a net is that of its best NI.
    check(
        |_, peer| peer.nis[..2].iter_mut().for_each(|ni| ni.health = 900),
        Criterion::PeerNetHealth,
        net(2),
    );
    check(|_, peer| peer.net_priorities = [(nid(2, 1).net(), 0)].into(), Criterion::PeerNetPriority, net(2));
    check(|local, _| local[2..].iter_mut().for_each(|ni| ni.health = 0), Criterion::LocalNetHealth, net(1));
    check(
        |local, _| local[2..].iter_mut().for_each(|ni| ni.net_priority = 3),
        Criterion::LocalNetPriority,
        net(2),
    );
    let second = |local: &mut Vec<LocalNi>, change: fn(&mut LocalNi)| {
        local.iter_mut().skip(1).step_by(2).for_each(change);
    };
    check(|local, _| second(local, |ni| ni.health = 999), Criterion::LocalHealth, from(1));
    check(|local, _| second(local, |ni| ni.priority = 0), Criterion::LocalPriority, from(2));
    check(|local, _| second(local, |ni| ni.numa_distance = 20), Criterion::Distance, from(1));
    check(|local, _| second(local, |ni| ni.credits = 16), Criterion::LocalCredits, from(2));
    let second = |peer: &mut PeerView, change: fn(&mut PeerNid)| {
        peer.nis.iter_mut().skip(1).step_by(2).for_each(change);
    };
    check(|_, peer| second(peer, |ni| ni.health = 999), Criterion::PeerHealth, to(11));
    check(|_, peer| second(peer, |ni| ni.priority = 7), Criterion::PeerPriority, to(12));
    // Each peer NI prefers another local NI, so the turn of those decides.
    let prefers = |peer: &mut PeerView| {
        for ni in &mut peer.nis {
            let host = if [nid(1, 11), nid(2, 11)].contains(&ni.nid) { 2 } else { 1 };
            ni.preferred = [nid(1, host), nid(2, host)].into();
        }
    };
    let crosswise = |path: &(Nid, Nid)| from(1)(path) == to(12)(path);
    check(|_, peer| prefers(peer), Criterion::Preferred, crosswise);
}

/// What decided about a request at this moment.
fn deciding(node: &Node) -> Vec<Criterion> {
    let steps = node.shard.explain(NOW, &nid(1, 11)).steps;
    steps.iter().flatten().filter_map(|weighed| weighed.lost_by).collect()
}

#[test]
fn where_all_else_is_equal_turns_decide() {
    let mut node = node(topology(locals(), peer()));
    // Each net had its turn, and of each net one NI at either end.
    let first = [path(&mut node), path(&mut node)];
    let decided = deciding(&node);
    for criterion in [Criterion::PeerNetSequence, Criterion::LocalSequence, Criterion::PeerSequence] {
        assert!(decided.contains(&criterion), "{criterion}: {decided:?} after {first:?}");
    }
    let next = path(&mut node);
    assert!(first.iter().all(|path| path.0 != next.0 && path.1 != next.1), "{first:?}, then {next:?}");
}

#[test]
fn the_peer_ni_with_more_free_credits_comes_before_turns() {
    let mut view = peer();
    view.nis.truncate(2);
    let mut node = node(topology(locals()[..1].to_vec(), view));
    let mut to = Vec::new();
    for _ in 0..2 {
        put(&mut node, nid(1, 12), None);
        let [transmit] = sent(&mut node)[..] else { panic!("one message") };
        to.push(transmit);
    }
    assert_ne!(to[0].next_hop, to[1].next_hop);
    // The turn is that of the first one, which has fewer credits as long as its message is under way.
    node.shard.sent(NOW, to[1].tx, Status::Ok);
    assert!(deciding(&node).contains(&Criterion::PeerCredits), "{:?}", deciding(&node));
    assert_eq!(path(&mut node).1, to[1].next_hop);
    node.shard.sent(NOW, to[0].tx, Status::Ok);
    assert_eq!(path(&mut node).1, to[0].next_hop);
}

#[test]
fn what_is_given_is_obeyed_and_answered_where_it_came_from() {
    let mut node = node(topology(locals(), peer()));
    for _ in 0..3 {
        put(&mut node, nid(2, 12), Some(nid(2, 1)));
    }
    let given = |message: &Transmit| message.header.source.nid == nid(2, 1) && message.next_hop == nid(2, 12);
    assert!(sent(&mut node).iter().all(given));
    // A GET from a NID that is not the primary one is matched and reported under that, and answered by its
    // own path.
    let spec = lnet_core::md::MdSpec { options: MdOptions::GET, ..node.md(8) };
    let entry =
        lnet_core::portal::EntrySpec { source: ProcessId::lustre(nid(1, 11)), ..crate::common::entry(5) };
    let entry = node.shard.attach_entry(&entry).unwrap();
    node.shard.attach(entry, &spec).unwrap();
    let mut header = get_header(5, 8);
    (header.source.nid, header.destination.nid) = (nid(2, 12), nid(2, 2));
    let verdict = node.shard.header(NOW, NiId(3), &nid(2, 12), RxId(0), &header);
    assert!(matches!(verdict, Verdict::Deliver(_)), "{verdict:?}");
    node.shard.received(NOW, RxId(0), Status::Ok);
    let [reply] = sent(&mut node)[..] else { panic!("one REPLY") };
    assert_eq!((reply.ni, reply.next_hop, reply.header.source.nid), (NiId(3), nid(2, 12), nid(2, 2)));
    node.shard.sent(NOW, reply.tx, Status::Ok);
    let origin = *node.events().last().unwrap().origin().unwrap();
    assert_eq!((origin.initiator.nid, origin.source), (nid(1, 11), nid(2, 12)));
}

/// A service that answers the primary NID of a peer from the NI that was asked.
#[test]
fn a_source_on_another_net_than_the_nid_that_was_named_leads_to_the_peer_there() {
    let mut node = node(topology(locals(), peer()));
    put(&mut node, nid(1, 11), Some(nid(2, 1)));
    let [message] = sent(&mut node)[..] else { panic!("one message") };
    assert_eq!((message.header.source.nid, message.next_hop.net()), (nid(2, 1), nid(2, 1).net()));
    assert_eq!(message.header.destination.nid, message.next_hop);
    // No path leads to a peer that is not known by a NID on that net.
    put(&mut node, nid(1, 40), Some(nid(2, 1)));
    assert_eq!(sent(&mut node), []);
}

#[test]
fn what_never_left_goes_by_another_path_and_costs_health_once_a_try() {
    let peers = PeerView::new(true, [11, 12].map(|host| PeerNid::new(nid(1, host), HEALTH_MAX)).to_vec());
    let mut node = node(topology(vec![local_ni(nid(1, 1), 8, 4)], peers.unwrap()));
    put(&mut node, nid(1, 11), None);
    let [first] = sent(&mut node)[..] else { panic!("one message") };
    let dropped = Status::NeverSent(Cause::Simulated(HealthStatus::RemoteDropped));
    node.shard.sent(NOW, first.tx, dropped);
    let [again] = sent(&mut node)[..] else { panic!("the same once more") };
    // The snapshot's health is as before, but the other one's turn has come.
    assert_ne!(again.next_hop, first.next_hop);
    assert_eq!(again.header.destination.nid, again.next_hop);
    node.shard.sent(NOW, again.tx, Status::Ok);
    assert_eq!(node.shard.usage().messages, 0);
    let credits: Vec<_> = node.shard.peers().map(|peer| (peer.credits, peer.queued_bytes)).collect();
    assert_eq!(credits, [(4, 0), (4, 0)]);
    let note = HealthNote { nid: first.next_hop, failures: 1, successes: 0 };
    assert!(node.shard.has_failures(), "others are to hear of it soon");
    assert_eq!((node.shard.poll_health(), node.shard.poll_health()), (Some(note), None));
    assert!(!node.shard.has_failures());
    // What may have arrived is not sent again.
    put(&mut node, nid(1, 11), None);
    let [lost] = sent(&mut node)[..] else { panic!("one message") };
    node.shard.sent(NOW, lost.tx, Status::Unknown(Cause::Timeout));
    assert_eq!(sent(&mut node), []);
    let mut notes: Vec<_> = std::iter::from_fn(|| node.shard.poll_health()).map(|note| note.nid).collect();
    notes.sort();
    assert_eq!(notes, [nid(1, 1), lost.next_hop], "a network timeout blames both");
}

/// The NI that a request went to at last is the one that gave no answer.
#[test]
fn a_missing_answer_costs_the_peer_ni_that_the_request_was_sent_to_again() {
    let nids = [11, 12].map(|host| PeerNid::new(nid(1, host), HEALTH_MAX)).to_vec();
    let peers = PeerView::new(true, nids).unwrap();
    let mut node = node(topology(vec![local_ni(nid(1, 1), 8, 4)], peers));
    let spec = MdSpec { threshold: Threshold::Count(2), ..node.md(10) };
    let md = node.shard.bind(&spec).unwrap();
    let target = ProcessId::lustre(nid(1, 11));
    node.shard.put(NOW, &PutRequest { ack: true, target, ..put_request(md, 0) }).unwrap();
    let [first] = sent(&mut node)[..] else { panic!("one message") };
    node.shard.sent(NOW, first.tx, Status::NeverSent(Cause::Simulated(HealthStatus::RemoteDropped)));
    let [again] = sent(&mut node)[..] else { panic!("the same once more") };
    node.shard.sent(NOW, again.tx, Status::Ok);
    while node.shard.poll_health().is_some() {}
    node.shard.handle_timeout(NOW + lnet_core::tunables::Tunables::DEFAULT.transaction_timeout);
    let note = HealthNote { nid: again.next_hop, failures: 1, successes: 0 };
    assert_eq!((node.shard.poll_health(), node.shard.poll_health()), (Some(note), None));
}

#[test]
fn a_silent_net_is_left_though_it_is_in_health() {
    let mut node = node(topology(locals(), peer()));
    for (ni, local) in [(0, 1), (1, 1)] {
        for host in [11, 12] {
            let path = Path { ni: NiId(ni), peer: nid(local, host) };
            node.shard.path_health(NOW, &path, PathReport::Silent);
        }
    }
    for _ in 0..4 {
        assert_eq!(path(&mut node).0.net(), nid(2, 1).net());
    }
}

/// Before a message times out.
#[test]
fn what_lnds_learn_of_paths_is_told_as_news() {
    let mut node = node(topology(locals(), peer()));
    let path = Path { ni: NiId(2), peer: nid(2, 11) };
    let mut told = |at_s: u64, report| {
        let now = NOW + std::time::Duration::from_secs(at_s);
        node.shard.path_health(now, &path, report);
        let has_failures = node.shard.has_failures();
        let told: Vec<_> = std::iter::from_fn(|| node.shard.poll_paths()).map(|note| note.state).collect();
        assert_eq!((node.shard.poll_health(), node.shard.has_failures()), (None, false));
        (told, has_failures)
    };
    let answers = PathReport::Answers { round_trip: None };
    assert_eq!(told(0, answers), (vec![PathState::Answers], false));
    assert_eq!(told(1, answers), (vec![], false), "no news");
    assert_eq!(told(2, PathReport::Silent), (vec![PathState::Silent], true));
    assert_eq!(told(2, PathReport::Silent), (vec![], false));
    assert_eq!(told(3, PathReport::Silent), (vec![PathState::Silent], true), "once a second");
    assert_eq!(told(3, answers), (vec![PathState::Answers], false));
    for (at_s, report, is_urgent) in
        [(3, PathReport::Lossy, true), (3, PathReport::Slow, false), (4, PathReport::Slow, true)]
    {
        assert_eq!(told(at_s, report), (vec![PathState::Poor], is_urgent), "as often as it is found so");
        assert_eq!(told(at_s, answers), (vec![], false), "it has answered all the time");
    }
    // That it is poor hides nothing else.
    for report in [PathReport::Silent, answers, PathReport::Lossy, PathReport::Lossy] {
        node.shard.path_health(NOW + std::time::Duration::from_secs(5), &path, report);
    }
    let both: Vec<_> = std::iter::from_fn(|| node.shard.poll_paths()).map(|note| note.state).collect();
    assert_eq!(both, [PathState::Poor, PathState::Answers]);
    let note = PathNote { local: nid(2, 1), peer: nid(2, 11), state: PathState::Silent };
    node.shard.reroute(NOW, &path, &[]);
    assert_eq!(node.shard.poll_paths(), Some(note));
}

#[test]
fn a_peer_that_is_not_multi_rail_sees_one_source() {
    let mut view = peer();
    view.is_multi_rail = false;
    view.nis[1].preferred = [nid(1, 2)].into();
    let (mut node, mut source) = (node(topology(locals(), view)), None);
    for _ in 0..4 {
        assert_eq!(path(&mut node), (nid(1, 2), nid(1, 12)));
        // No source is known: it is one and the same.
        put(&mut node, nid(2, 40), None);
        let [message] = sent(&mut node)[..] else { panic!("one message") };
        assert_eq!(*source.get_or_insert(message.header.source.nid), message.header.source.nid);
        assert_eq!(message.next_hop, nid(2, 40));
        node.shard.sent(NOW, message.tx, Status::Ok);
    }
}

/// The choice of a source is explained as well. Nothing that happens to a path changes it.
#[test]
fn the_source_to_a_peer_that_is_not_multi_rail_is_explained() {
    let mut view = peer();
    view.is_multi_rail = false;
    let explained = |view: &PeerView, locals: Vec<LocalNi>| {
        let mut node = node(topology(locals, view.clone()));
        let mut told = None;
        for silent in [None, Some(0), Some(1)] {
            if let Some(ni) = silent {
                let path = Path { ni: NiId(ni), peer: nid(1, 12) };
                node.shard.path_health(NOW, &path, PathReport::Silent);
            }
            let steps = node.shard.explain(NOW, &nid(1, 12)).steps;
            let [candidates] = &steps[..] else { panic!("one step: {steps:?}") };
            let expected = [nid(1, 1), nid(1, 2)].map(Candidate::Local);
            assert!(candidates.iter().map(|weighed| weighed.candidate).eq(expected), "{candidates:?}");
            let chosen = candidates.iter().position(|weighed| weighed.is_chosen).unwrap();
            let (from, _) = path(&mut node);
            assert_eq!(Candidate::Local(from), candidates[chosen].candidate, "as it was explained");
            let lost_by = candidates[1 - chosen].lost_by;
            assert_eq!(*told.get_or_insert((chosen, lost_by)), (chosen, lost_by), "one source: {silent:?}");
        }
        told.unwrap()
    };
    let (ranked, criterion) = explained(&view, locals());
    assert_eq!(criterion, Some(Criterion::Rank));
    let (other, mut changed) = (1 - ranked, locals());
    changed[other].priority = 0;
    assert_eq!(explained(&view, changed.clone()), (other, Some(Criterion::LocalPriority)));
    changed[other].health = 999;
    assert_eq!(explained(&view, changed.clone()), (ranked, Some(Criterion::LocalHealth)));
    // What is recorded stays, whatever the others have to show.
    view.nis[1].preferred = [changed[other].nid].into();
    assert_eq!(explained(&view, changed), (other, Some(Criterion::Preferred)));
}

/// NIDs of peers that are not Multi-Rail are spread over the NIs of a net, and each goes by the same one on
/// all shards.
#[test]
fn peers_that_are_not_multi_rail_are_spread_over_the_nis() {
    let mut nodes = [7, 8].map(|hash_seed| {
        let limits = Limits { nis: 4, peers: 64, ..config().limits };
        let topology = Arc::new(topology(locals(), peer()));
        Node::new(ShardConfig { limits, topology, hash_seed, ..config() })
    });
    let mut by_first = 0;
    for host in 100..140 {
        let sources = nodes.each_mut().map(|node| {
            put(node, nid(1, host), None);
            let [message] = sent(node)[..] else { panic!("one message") };
            node.shard.sent(NOW, message.tx, Status::Ok);
            drop(node.events());
            message.header.source.nid
        });
        assert_eq!(sources[0], sources[1], "host {host}");
        by_first += u32::from(sources[0] == nid(1, 1));
    }
    assert!((10..=30).contains(&by_first), "{by_first} of 40 by the first NI");
}

/// Who was heard before it was asked anything is answered, and asked, by the NI that it knows.
#[test]
fn a_peer_that_speaks_first_is_asked_by_the_ni_that_it_spoke_to() {
    for (ni, own) in [(0, 1), (1, 2)] {
        let mut node = node(topology(locals(), peer()));
        node.post(9, &lnet_core::md::MdSpec { options: MdOptions::PUT, ..node.md(8) });
        let mut header = put_header(9, 0);
        (header.source.nid, header.destination.nid) = (nid(1, 40), nid(1, own));
        node.shard.header(NOW, NiId(ni), &nid(1, 40), RxId(0), &header);
        node.shard.received(NOW, RxId(0), Status::Ok);
        let first_ni = |node: &Node| node.shard.peers().find(|peer| peer.nid == nid(1, 40)).unwrap().first_ni;
        assert_eq!(first_ni(&node), Some(NiId(ni)));
        put(&mut node, nid(1, 40), None);
        let [message] = sent(&mut node)[..] else { panic!("one message") };
        assert_eq!(message.header.source.nid, nid(1, own));
    }
}

/// It sees one source also where that does not get through; only pings, which find out who it is, try others.
#[test]
fn what_never_left_to_a_peer_that_is_not_multi_rail_leaves_by_no_other_ni() {
    let mut view = peer();
    view.is_multi_rail = false;
    view.nis[1].preferred = [nid(1, 2)].into();
    let mut node = node(topology(locals(), view));
    for to in [nid(1, 12), nid(1, 40)] {
        put(&mut node, to, None);
        let [message] = sent(&mut node)[..] else { panic!("one message") };
        node.shard.sent(NOW, message.tx, Status::NeverSent(Cause::Timeout));
        assert_eq!(sent(&mut node), []);
        assert_eq!(node.event().status(), Status::NeverSent(Cause::Timeout));
        put(&mut node, to, None);
        let [again] = sent(&mut node)[..] else { panic!("one message") };
        assert_eq!((again.ni, again.header.source), (message.ni, message.header.source));
        node.shard.sent(NOW, again.tx, Status::Ok);
        drop(node.events());
    }
    let mut sources = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let md = node.shard.bind(&node.md(0)).unwrap();
        let ping = PutRequest { target: ProcessId::lustre(nid(1, 12)), portal: 0, ..put_request(md, 0) };
        node.shard.put(NOW, &ping).unwrap();
        let [message] = sent(&mut node)[..] else { panic!("one message") };
        sources.insert(message.header.source.nid);
        let path = Path { ni: message.ni, peer: message.next_hop };
        node.shard.path_health(NOW, &path, PathReport::Silent);
        node.shard.sent(NOW, message.tx, Status::Ok);
    }
    assert_eq!(sources.len(), 2, "pings go by a path that answers");
    // One that an NI cannot send, since it leads nowhere near the peer, leaves by another one.
    let md = node.shard.bind(&node.md(0)).unwrap();
    let ping = PutRequest { target: ProcessId::lustre(nid(1, 12)), portal: 0, ..put_request(md, 0) };
    node.shard.put(NOW, &ping).unwrap();
    let [message] = sent(&mut node)[..] else { panic!("one message") };
    node.shard.sent(NOW, message.tx, Status::NeverSent(Cause::Unreachable));
    let [again] = sent(&mut node)[..] else { panic!("the same by another NI") };
    assert_ne!(again.ni, message.ni);
}

#[test]
fn peers_to_be_found_out_about_are_told_once_a_snapshot() {
    let mut view = peer();
    view.is_wanted = true;
    let mut node = node(topology(locals(), view.clone()));
    for to in [nid(1, 12), nid(2, 11), nid(1, 12), nid(2, 40), nid(2, 40)] {
        put(&mut node, to, None);
    }
    let wanted = |node: &mut Node| std::iter::from_fn(|| node.shard.poll_wanted()).collect::<Vec<_>>();
    let told = wanted(&mut node);
    assert!(told.contains(&nid(2, 40)) && told.contains(&nid(1, 12)), "{told:?}");
    assert_eq!(told.iter().filter(|nid| **nid == self::nid(2, 40)).count(), 1);
    put(&mut node, nid(2, 40), None);
    assert_eq!(wanted(&mut node), []);
    // Pings are what finds out.
    let md = node.shard.bind(&node.md(0)).unwrap();
    let ping = PutRequest { target: ProcessId::lustre(nid(2, 41)), portal: 0, ..put_request(md, 0) };
    node.shard.put(NOW, &ping).unwrap();
    assert_eq!(wanted(&mut node), []);
    view.is_wanted = false;
    node.shard.update(NOW, Arc::new(topology(locals(), view).with_generation(2)));
    put(&mut node, nid(1, 12), None);
    assert_eq!(wanted(&mut node), []);
}

#[test]
fn health_that_is_not_full_is_told_to_rise() {
    let (mut locals, mut view) = (locals(), peer());
    locals[0].health = 500;
    view.nis[0].health = 500;
    let mut node = node(topology(locals, view));
    let mut header = put_header(9, 0);
    (header.source.nid, header.destination.nid) = (nid(1, 11), nid(1, 1));
    node.post(9, &lnet_core::md::MdSpec { options: MdOptions::PUT, ..node.md(8) });
    node.shard.header(NOW, NiId(0), &nid(1, 11), RxId(0), &header);
    node.shard.received(NOW, RxId(0), Status::Ok);
    let mut notes: Vec<_> = std::iter::from_fn(|| node.shard.poll_health()).collect();
    notes.sort_by_key(|note| note.nid);
    let note = |nid| HealthNote { nid, failures: 0, successes: 1 };
    assert_eq!(notes, [note(nid(1, 1)), note(nid(1, 11))]);
    // One that has to wait has come as well, be it for a sibling's answer: that of a recovery ping.
    node.shard.set_lazy(4).unwrap();
    assert_eq!(node.shard.header(NOW, NiId(0), &nid(1, 11), RxId(0), &header), Verdict::Delay);
    assert_eq!(std::iter::from_fn(|| node.shard.poll_health()).count(), 2);
    put(&mut node, nid(1, 12), Some(nid(1, 2)));
    let [healthy] = sent(&mut node)[..] else { panic!("one message") };
    node.shard.sent(NOW, healthy.tx, Status::Ok);
    assert_eq!(node.shard.poll_health(), None);
}

/// A net with one NI of this node: its messages have no other NI there, and the peer is on another net as
/// well.
#[test]
fn what_waits_for_a_net_that_goes_leaves_by_another_net_of_the_peer() {
    let locals = || vec![local_ni(nid(1, 1), 3, 2), local_ni(nid(2, 1), 3, 2)];
    let peer = || PeerView::new(true, [1, 2].map(|net| PeerNid::new(nid(net, 11), HEALTH_MAX)).to_vec());
    for status in [NiStatus::Down, NiStatus::Leaving, NiStatus::Closed] {
        let mut node = node(topology(locals(), peer().unwrap()));
        // Two of a net's are ready and two wait for the peer NI; one that is for another node has no other
        // way, and would wait for a link that is down.
        (0..8).for_each(|_| put(&mut node, nid(1, 11), None));
        let without = if status == NiStatus::Down { 0 } else { 2 };
        if without != 0 {
            put(&mut node, nid(1, 40), None);
            put(&mut node, nid(1, 11), Some(nid(1, 1)));
        }
        let credits = |node: &Node| [1, 2].map(|net| node.shard.peer_credits(&nid(net, 11)).unwrap());
        assert_eq!(credits(&node), [-2 - without / 2, -2], "{status:?}");
        let mut next = locals();
        next[0].status = status;
        node.shard.update(NOW, Arc::new(topology(next, peer().unwrap()).with_generation(2)));
        assert_eq!(credits(&node), [2, -6], "{status:?}");
        assert!(node.shard.is_quiet(NiId(0)), "{status:?}");
        let mut count = 0;
        while count < 8 {
            let messages = sent(&mut node);
            assert_eq!(messages.len(), 2, "{status:?} after {count}");
            for message in &messages {
                let header = &message.header;
                assert_eq!((message.ni, message.next_hop), (NiId(1), nid(2, 11)));
                assert_eq!((header.source.nid, header.destination.nid), (nid(2, 1), nid(2, 11)));
                node.shard.sent(NOW, message.tx, Status::Ok);
            }
            count += messages.len();
        }
        assert_eq!((count, node.shard.counters().resends), (8, 0), "none was tried before");
        assert_eq!(credits(&node), [2, 2]);
        let bytes: Vec<_> =
            node.shard.peers().map(|peer| (peer.queued_bytes, peer.reference_count)).collect();
        assert!(bytes.iter().all(|its| *its == (0, 0)), "{bytes:?}");
        let unreachable = Status::NeverSent(Cause::Unreachable);
        let statuses: Vec<_> = node.events().iter().map(|event| event.status()).collect();
        let ended_unsent = statuses.iter().filter(|status| **status == unreachable).count();
        let without = without as usize;
        assert_eq!((statuses.len(), ended_unsent), (8 + without, without), "{statuses:?}");
    }
}

/// A path that is well is silent for a moment on a busy machine. What never left by one path goes by another,
/// silent or not.
#[test]
fn what_never_left_goes_by_a_path_that_is_silent_too() {
    let locals = vec![local_ni(nid(1, 1), 8, 4), local_ni(nid(2, 1), 8, 4)];
    let health = |net: u16| HEALTH_MAX / u32::from(net);
    let peer = PeerView::new(true, [1, 2].map(|net| PeerNid::new(nid(net, 11), health(net))).to_vec());
    let mut node = node(topology(locals, peer.unwrap()));
    for (ni, net) in [(0, 1), (1, 2)] {
        node.shard.path_health(NOW, &Path { ni: NiId(ni), peer: nid(net, 11) }, PathReport::Silent);
    }
    for _ in 0..4 {
        put(&mut node, nid(1, 11), None);
        let [first] = sent(&mut node)[..] else { panic!("one message") };
        node.shard.sent(NOW, first.tx, Status::NeverSent(Cause::Unreachable));
        let [again] = sent(&mut node)[..] else { panic!("the same once more") };
        assert_ne!((again.ni, again.next_hop), (first.ni, first.next_hop));
        node.shard.sent(NOW, again.tx, Status::Ok);
    }
}

/// A peer is found by a name on a net that this node has left, also where it has a single NI.
#[test]
fn what_is_for_a_name_of_a_peer_goes_to_its_nis() {
    let name = nid(9, 11);
    let one = PeerView::new(true, vec![PeerNid::new(nid(2, 11), HEALTH_MAX)]).unwrap();
    for (locals, view) in [(vec![local_ni(nid(2, 1), 8, 4)], one), (locals(), peer())] {
        let view = PeerView { names: [name].into(), ..view };
        let mut node = node(topology(locals, view.clone()));
        put(&mut node, name, None);
        let [transmit] = sent(&mut node)[..] else { panic!("one message") };
        assert!(view.ni(&transmit.next_hop).is_some());
        assert_eq!(transmit.header.destination.nid, transmit.next_hop);
        assert_eq!(node.shard.explain(NOW, &name).primary, Some(view.primary));
    }
}
