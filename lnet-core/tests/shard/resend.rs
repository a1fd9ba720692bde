//! What is sent again after its sending failed, and whose health that costs. Numbers are those of the cases
//! that LNet's own tools are tested by: single-rail is one NI on each side, multi-rail two.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::lnd::{Cause, LndFacts, NiId, Path, PathReport, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::shard::{GetRequest, HealthNote, PutRequest};
use lnet_core::topology::{HEALTH_MAX, LocalNi, PeerMap, PeerNid, PeerView, Topology};
use lnet_core::{Limits, ShardConfig, health::HealthStatus};
use lnet_model::fault::{DropRule, Filter, HealthError};
use lnet_wire::{Nid, ProcessId};

use crate::common::{
    MESSAGE_TIMEOUT, NOW, Node, config, entry, get_header, get_request, local_ni, nid, put_request,
};

const LOCAL: [HealthStatus; 5] = [
    HealthStatus::LocalInterrupt,
    HealthStatus::LocalDropped,
    HealthStatus::LocalAborted,
    HealthStatus::LocalNoRoute,
    HealthStatus::LocalTimeout,
];

/// A node with so many NIs beside `lo`, and a Multi-Rail peer with so many, all on one net.
fn node(locals: u8, peers: u8) -> Node {
    node_with(locals, peers, |_| {})
}

fn node_with(locals: u8, peers: u8, change: impl FnOnce(&mut PeerView)) -> Node {
    let own = (1..=locals).map(|host| local_ni(nid(1, host), 8, 4));
    let own = std::iter::once(LocalNi::loopback(MESSAGE_TIMEOUT)).chain(own).collect();
    let nis = (1..=peers).map(|host| PeerNid::new(nid(1, 10 + host), HEALTH_MAX)).collect();
    let mut map = PeerMap::default();
    let mut view = PeerView::new(true, nis).unwrap();
    change(&mut view);
    map.insert(view);
    let limits = Limits { nis: 4, ..config().limits };
    let topology = Arc::new(Topology::new(own).with_peers(map).with_generation(1));
    Node::new(ShardConfig { limits, topology, ..config() })
}

/// Has messages fail with this status: one of so many.
fn fail(node: &mut Node, status: HealthStatus, rate: u32) {
    let rule = DropRule {
        filter: Filter::EVERYTHING,
        rate,
        interval_s: 0,
        random: false,
        drop_all: false,
        health_errors: vec![HealthError::ALL[status as usize - 1]],
    };
    node.shard.faults_mut().add_drop_rule(NOW, &rule, 1).unwrap();
}

/// Pings a NID; what leaves, and how often it was sent again.
fn ping(node: &mut Node, to: Nid, source: Option<Nid>) -> (Vec<Transmit>, u64) {
    let before = node.shard.counters().resends;
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(2), ..node.md(10) }).unwrap();
    let target = ProcessId::lustre(to);
    node.shard.get(NOW, &GetRequest { target, portal: 0, self_nid: source, ..get_request(md) }).unwrap();
    let by = |ni| node.shard.poll_transmit(NOW, NiId(ni)).map(|lent| *lent.transmit);
    let sent = (0..3).filter_map(by).collect();
    (sent, node.shard.counters().resends - before)
}

/// Failures that were noted: of local NIs, and of the peer's.
fn failures(node: &mut Node) -> (u32, u32) {
    let notes: Vec<HealthNote> = std::iter::from_fn(|| node.shard.poll_health()).collect();
    let is_local = |note: &&HealthNote| (1..=2).any(|host| note.nid == nid(1, host));
    let count = |is: bool| notes.iter().filter(|note| is_local(note) == is).map(|note| note.failures).sum();
    (count(true), count(false))
}

#[track_caller]
fn check(rails: u8, status: HealthStatus, resends: u64, (local, peer): (u32, u32)) {
    let mut node = node(rails, rails);
    fail(&mut node, status, 1);
    let (sent, again) = ping(&mut node, nid(1, 11), None);
    assert_eq!((sent, again), (vec![], resends), "{status}");
    assert_eq!(failures(&mut node), (local, peer), "{status}");
    check_counted(&node, status, resends + 1, 1);
    assert!(node.event().status() != Status::Ok);
    assert_eq!(node.shard.usage().messages, 0);
}

/// So many attempts have failed for this reason, of so many messages that have ended badly: LNet counts each
/// attempt, be it made good or not.
#[track_caller]
fn check_counted(node: &Node, status: HealthStatus, attempts: u64, ended: u64) {
    let counters = node.shard.counters();
    assert_eq!((counters.failed.of(status), counters.send_failures), (attempts, ended), "{status}");
    let locals: u64 =
        (0..3).filter_map(|ni| node.shard.ni_usage(NiId(ni))).map(|of| of.counters.failed.of(status)).sum();
    let peers: u64 = node.shard.peers().map(|peer| peer.counters.failed.of(status)).sum();
    assert_eq!((locals, peers), (attempts, attempts), "{status}");
}

#[test]
fn case_204_a_single_rail_resends_nothing() {
    LOCAL.into_iter().chain([HealthStatus::LocalError]).for_each(|status| check(1, status, 0, (1, 0)));
}

#[test]
fn case_205_local_failures_are_resent_but_for_local_error() {
    LOCAL.into_iter().for_each(|status| check(2, status, 2, (3, 0)));
    check(2, HealthStatus::LocalError, 0, (1, 0));
}

/// That the only NI of a peer loses nothing is the node's matter.
#[test]
fn case_206_a_single_rail_resends_no_remote_failure() {
    use HealthStatus::{RemoteDropped, RemoteError, RemoteTimeout};
    [RemoteDropped, RemoteError, RemoteTimeout].into_iter().for_each(|status| check(1, status, 0, (0, 1)));
}

#[test]
fn case_207_of_remote_failures_remote_dropped_is_resent() {
    check(2, HealthStatus::RemoteDropped, 2, (0, 3));
    check(2, HealthStatus::RemoteError, 0, (0, 1));
    check(2, HealthStatus::RemoteTimeout, 0, (0, 1));
}

#[test]
fn case_209_a_network_timeout_is_not_resent_and_blames_both() {
    check(1, HealthStatus::NetworkTimeout, 0, (1, 1));
    check(2, HealthStatus::NetworkTimeout, 0, (1, 1));
}

#[test]
fn case_233_one_failure_of_two_is_made_good_by_one_resend() {
    let mut node = node(2, 2);
    fail(&mut node, HealthStatus::LocalDropped, 2);
    let (sent, again) = ping(&mut node, nid(1, 11), None);
    assert_eq!((sent.len(), again), (1, 1));
    node.shard.sent(NOW, sent[0].tx, Status::Ok);
    assert_eq!(node.shard.counters().successful_resends, 1);
    check_counted(&node, HealthStatus::LocalDropped, 1, 0);
}

/// NIDs of a peer on nets that this node is not on count, though nothing leads there: the one path is taken
/// again.
#[test]
fn a_peer_with_nids_on_other_nets_is_tried_again_by_the_path_that_there_is() {
    use HealthStatus::{LocalDropped, NetworkTimeout, RemoteDropped, RemoteError};
    let with_others = |view: &mut PeerView| view.nid_count = 3;
    for (status, resends) in [(RemoteDropped, 2), (RemoteError, 0), (NetworkTimeout, 0), (LocalDropped, 0)] {
        let mut node = node_with(1, 1, with_others);
        fail(&mut node, status, 1);
        let (sent, again) = ping(&mut node, nid(1, 11), None);
        assert_eq!((sent, again), (vec![], resends), "{status}");
        check_counted(&node, status, resends + 1, 1);
    }
    let mut node = node_with(1, 1, with_others);
    let (sent, _) = ping(&mut node, nid(1, 11), None);
    for cause in [Cause::System(111), Cause::Unreachable] {
        node.shard.sent(NOW, sent[0].tx, Status::NeverSent(cause));
        let again = *node.shard.poll_transmit(NOW, NiId(1)).expect("it leaves again").transmit;
        assert_eq!((again.tx, again.ni, again.next_hop), (sent[0].tx, NiId(1), nid(1, 11)));
    }
    node.shard.sent(NOW, sent[0].tx, Status::Ok);
    assert_eq!(node.event().status(), Status::Ok);
}

/// A message that has both its ends given goes again by them, where the side that failed has several NIs: the
/// kernel node 2.17.57 ends `lnetctl ping --source A B` well with each second of its messages failed.
#[test]
fn what_has_its_path_given_is_sent_again_by_the_same_path() {
    use HealthStatus::{LocalError, NetworkTimeout, RemoteDropped, RemoteError};
    for (status, locals, peers, resends) in [
        (HealthStatus::LocalInterrupt, 2, 1, 2),
        (HealthStatus::LocalInterrupt, 1, 2, 0),
        (RemoteDropped, 1, 2, 2),
        (RemoteDropped, 2, 1, 0),
        (LocalError, 2, 2, 0),
        (RemoteError, 2, 2, 0),
        (NetworkTimeout, 2, 2, 0),
    ] {
        let mut node = node(locals, peers);
        fail(&mut node, status, 1);
        let (sent, again) = ping(&mut node, nid(1, 11), Some(nid(1, 1)));
        assert_eq!((sent, again), (vec![], resends), "{status}, {locals} NIs and {peers}");
        let noted = failures(&mut node);
        let times = resends as u32 + 1;
        let expected = (u32::from(status.blames_local()) * times, u32::from(status.blames_peer()) * times);
        assert_eq!(noted, expected, "{status}");
    }
    let mut node = node(2, 2);
    fail(&mut node, HealthStatus::LocalInterrupt, 2);
    for _ in 0..4 {
        let (sent, _) = ping(&mut node, nid(1, 12), Some(nid(1, 2)));
        let [sent] = sent[..] else { panic!("one message leaves") };
        assert_eq!((sent.ni, sent.next_hop, sent.header.source.nid), (NiId(2), nid(1, 12), nid(1, 2)));
        node.shard.sent(NOW, sent.tx, Status::Ok);
    }
    assert_eq!(node.shard.counters().successful_resends, node.shard.counters().resends);
}

/// An LND's own failures are like those of rules.
#[test]
fn a_request_with_its_path_given_that_no_connection_was_made_for_is_sent_again() {
    let mut node = node(2, 2);
    let (sent, _) = ping(&mut node, nid(1, 11), Some(nid(1, 1)));
    let [mut sent] = sent[..] else { panic!("one message") };
    for resends in 1..=2 {
        node.shard.sent(NOW, sent.tx, Status::NeverSent(Cause::System(111)));
        assert_eq!(node.shard.counters().resends, resends);
        sent = *node.shard.poll_transmit(NOW, NiId(1)).expect("it leaves again").transmit;
        assert_eq!((sent.ni, sent.next_hop), (NiId(1), nid(1, 11)));
    }
    node.shard.sent(NOW, sent.tx, Status::NeverSent(Cause::System(111)));
    assert_eq!((node.shard.counters().resends, node.shard.usage().messages), (2, 0));
    assert_eq!(node.event().status(), Status::NeverSent(Cause::System(111)));
}

/// Gets from the node, by its second NI and from the peer's second one; the REPLY.
fn reply(node: &mut Node, from: Nid) -> Transmit {
    let spec = MdSpec { options: MdOptions::GET, ..node.md(8) };
    let entry = node.shard.attach_entry(&entry(5)).unwrap();
    node.shard.attach(entry, &spec).unwrap();
    let mut header = get_header(5, 8);
    (header.source.nid, header.destination.nid) = (from, nid(1, 2));
    assert!(matches!(node.shard.header(NOW, NiId(2), &from, RxId(0), &header), Verdict::Deliver(_)));
    node.shard.received(NOW, RxId(0), Status::Ok);
    let reply = *node.shard.poll_transmit(NOW, NiId(2)).expect("a REPLY").transmit;
    assert_eq!(reply.next_hop, from);
    reply
}

/// A REPLY goes back where its GET came from, as often as others are tried.
#[test]
fn a_response_that_failed_is_sent_again_by_the_same_path() {
    let mut node = node(2, 2);
    let reply = reply(&mut node, nid(1, 12));
    node.shard.sent(NOW, reply.tx, Status::NeverSent(Cause::Simulated(HealthStatus::LocalDropped)));
    let again = *node.shard.poll_transmit(NOW, NiId(2)).expect("the same once more").transmit;
    assert_eq!((again.next_hop, again.header.source.nid), (nid(1, 12), nid(1, 2)));
    node.shard.sent(NOW, again.tx, Status::Ok);
    assert_eq!(node.event().status(), Status::Ok);
}

/// A rail may carry frames one way: nothing leads back where a GET came from. The REPLY goes by another path,
/// if there is one.
#[test]
fn a_response_whose_path_leads_nowhere_goes_by_another_one() {
    for (locals, peers) in [(2, 2), (2, 1)] {
        for cause in [Cause::Unreachable, Cause::Timeout, Cause::System(113)] {
            let mut node = node(locals, peers);
            let reply = reply(&mut node, nid(1, 10 + peers));
            node.shard.sent(NOW, reply.tx, Status::NeverSent(cause));
            let again = *node.shard.poll_transmit(NOW, NiId(1)).expect("it leaves by the other NI").transmit;
            assert_eq!((again.next_hop, again.header.source.nid), (nid(1, 11), nid(1, 1)), "{cause:?}");
            assert_eq!(again.header.destination.nid, nid(1, 11), "{cause:?}");
            node.shard.sent(NOW, again.tx, Status::Ok);
            assert_eq!(node.event().status(), Status::Ok);
        }
    }
}

/// A request that is to find out whether its path works is tried once.
#[test]
fn a_request_that_finds_out_whether_its_path_works_is_not_sent_again() {
    let mut node = node(2, 2);
    fail(&mut node, HealthStatus::LocalInterrupt, 1);
    let options = MdOptions::NO_RESEND;
    let spec = MdSpec { threshold: Threshold::Count(2), options, ..node.md(10) };
    let md = node.shard.bind(&spec).unwrap();
    let request = GetRequest {
        target: ProcessId::lustre(nid(1, 11)),
        portal: 0,
        self_nid: Some(nid(1, 1)),
        ..get_request(md)
    };
    node.shard.get(NOW, &request).unwrap();
    assert_eq!((node.shard.counters().resends, failures(&mut node)), (0, (1, 0)));
}

/// Which side has to have another NI.
#[test]
fn a_resend_needs_another_ni_on_the_side_that_failed() {
    let resends = |locals, peers, status| {
        let mut node = node(locals, peers);
        fail(&mut node, status, 1);
        ping(&mut node, nid(1, 11), None).1
    };
    assert_eq!(resends(1, 2, HealthStatus::LocalDropped), 0);
    assert_eq!(resends(2, 1, HealthStatus::LocalDropped), 2);
    assert_eq!(resends(2, 1, HealthStatus::RemoteDropped), 0);
    assert_eq!(resends(1, 2, HealthStatus::RemoteDropped), 2);
    // What nothing leads to is a NID, so that another one of the peer's will do.
    let mut node = node(1, 2);
    let (sent, _) = ping(&mut node, nid(1, 11), None);
    node.shard.sent(NOW, sent[0].tx, Status::NeverSent(Cause::Unreachable));
    assert_eq!(node.shard.counters().resends, 1);
}

/// A ping of an own NID goes by the LND of that NI, so that it can fail as what goes elsewhere.
#[test]
fn case_216_a_ping_of_an_own_nid_costs_the_local_ni_alone() {
    let mut node = node(2, 1);
    let (sent, _) = ping(&mut node, nid(1, 2), Some(nid(1, 2)));
    assert_eq!((sent[0].ni, sent[0].next_hop, sent[0].header.source.nid), (NiId(2), nid(1, 2), nid(1, 2)));
    node.shard.sent(NOW, sent[0].tx, Status::Ok);
    for status in [HealthStatus::NetworkTimeout, HealthStatus::LocalDropped] {
        fail(&mut node, status, 1);
        let (sent, again) = ping(&mut node, nid(1, 2), Some(nid(1, 2)));
        assert_eq!((sent, again), (vec![], 0));
        let note = HealthNote { nid: nid(1, 2), failures: 1, successes: 0 };
        assert_eq!((node.shard.poll_health(), node.shard.poll_health()), (Some(note), None), "{status}");
    }
}

/// Pings of an own NID, of an LND that does not reach itself, go by `lo`, and fault rules see them.
#[test]
fn a_ping_of_an_own_nid_that_its_lnd_does_not_reach_stays_here_and_can_fail() {
    let own: Nid = "10.0.0.1@xdp".parse().unwrap();
    let facts = LndFacts { reaches_itself: false, ..LndFacts::KERNEL };
    let locals = vec![LocalNi::loopback(MESSAGE_TIMEOUT), LocalNi { facts, ..local_ni(own, 8, 4) }];
    let topology = Arc::new(Topology::new(locals).with_generation(1));
    let mut node = Node::new(ShardConfig { topology, ..config() });
    let (sent, _) = ping(&mut node, own, Some(own));
    assert_eq!((sent[0].ni, sent[0].header.source.nid), (NiId(0), own));
    node.shard.sent(NOW, sent[0].tx, Status::Ok);
    fail(&mut node, HealthStatus::LocalDropped, 1);
    assert_eq!(ping(&mut node, own, Some(own)).0, []);
    let note = HealthNote { nid: own, failures: 1, successes: 0 };
    assert_eq!(node.shard.poll_health(), Some(note));
    // What else stays here is no matter of theirs.
    let md = node.shard.bind(&MdSpec { threshold: Threshold::Count(2), ..node.md(10) }).unwrap();
    let target = ProcessId::lustre(own);
    node.shard.get(NOW, &GetRequest { target, ..get_request(md) }).unwrap();
    assert!(node.shard.poll_transmit(NOW, NiId(0)).is_some());
}

/// On rails of their own the paths across lead nowhere, and with one rail cut a single path of four is left.
/// Those that are tried once in a while are not used up one after the other for one message: what failed goes
/// by a path that is not known to be silent.
#[test]
fn what_failed_goes_by_the_path_that_is_left() {
    let works = Path { ni: NiId(2), peer: nid(1, 12) };
    let mut node = node(2, 2);
    for path in [(1, 11), (1, 12), (2, 11)].map(|(ni, host)| Path { ni: NiId(ni), peer: nid(1, host) }) {
        node.shard.path_health(NOW, &path, PathReport::Silent);
    }
    let mut under_way = std::collections::VecDeque::new();
    let mut slots = std::collections::BTreeMap::new();
    for message in 0..24_u64 {
        // No path is avoided any more, and what is under way by the rail that works has others preferred.
        let now = NOW + Duration::from_secs(2 * (1 + message));
        while under_way.len() > message as usize % 4 {
            node.shard.sent(now, under_way.pop_front().unwrap(), Status::Ok);
        }
        let md = node.shard.bind(&node.md(10)).unwrap();
        let target = ProcessId::lustre(nid(1, 11));
        node.shard.put(now, &PutRequest { target, ..put_request(md, 0) }).unwrap();
        let mut tried = Vec::new();
        while tried.last() != Some(&works) {
            let mut leaving =
                (1..3).filter_map(|ni| node.shard.poll_transmit(now, NiId(ni)).map(|lent| *lent.transmit));
            let Some(sent) = leaving.next() else { panic!("message {message} has tried {tried:?}") };
            tried.push(Path { ni: sent.ni, peer: sent.next_hop });
            // The slot goes with the NID, also of what is sent again to another one.
            assert_eq!(slots.entry(sent.next_hop).or_insert(sent.peer), &sent.peer);
            match tried.last() == Some(&works) {
                true => under_way.push_back(sent.tx),
                false => node.shard.sent(now, sent.tx, Status::NeverSent(Cause::Unreachable)),
            }
        }
    }
}
