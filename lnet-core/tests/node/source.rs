//! The source of what goes to peers that are not Multi-Rail: recorded once, and kept.

use std::sync::Arc;

use lnet_core::lnd::NiId;
use lnet_core::node::{ChangeError, NodeChange, PeerEdit, Report, RequestError};
use lnet_core::topology::Reach;
use lnet_core::udsp::{RuleEdit, RuleError};
use lnet_model::pattern::UdspPattern;
use lnet_model::peer::PeerSpec;
use lnet_model::udsp::UdspRule;
use lnet_wire::Nid;

use crate::common::{Runner, nid, spec};

fn peer(nids: &[Nid], is_multi_rail: bool) -> NodeChange<u32> {
    let (primary, nids) = (nids[0], nids[1..].to_vec());
    NodeChange::Peer(PeerEdit::Add(PeerSpec {
        primary_nid: primary,
        nids,
        multi_rail: is_multi_rail,
        lock_primary: false,
    }))
}

/// Hosts of `tcp1` whose last octet is from `low` to `high`.
fn hosts(low: u32, high: u32) -> Option<UdspPattern> {
    Some(format!("10.0.0.[{low}-{high}]@tcp1").parse().unwrap())
}

fn pair(source: Option<UdspPattern>, destination: Option<UdspPattern>) -> NodeChange<u32> {
    NodeChange::Udsp(RuleEdit::Add { index: None, rule: UdspRule::new(source, destination, None, None) })
}

fn source(runner: &Runner, to: &Nid) -> Option<Nid> {
    runner.node.peer(to).and_then(|peer| peer.ni(to)?.source.as_deref().copied())
}

/// What the shards have.
fn preferred(runner: &Runner, to: &Nid) -> Vec<Nid> {
    runner.topology.peer(to).unwrap().ni(to).unwrap().preferred.nids().collect()
}

fn two_nis() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(1, 2))]).unwrap();
    runner
}

#[test]
fn a_source_is_recorded_and_stays_while_its_ni_does() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), peer(&[nid(1, 9)], false)]).unwrap();
    assert_eq!(source(&runner, &nid(1, 9)), Some(nid(1, 1)));
    assert_eq!(preferred(&runner, &nid(1, 9)), [], "there is nothing to choose");
    runner.batch(&[NodeChange::AddNi(spec(1, 2)), NodeChange::AddNi(spec(1, 3))]).unwrap();
    assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, 1)], "others have come, and it keeps what it had");
    let ill = NodeChange::SetHealth { nid: Some(nid(1, 1)), value: 10 };
    runner.batch(&[ill]).unwrap();
    assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, 1)], "whatever its health is");
    runner.batch(&[NodeChange::DeleteNi { nid: nid(1, 1) }]).unwrap();
    let next = source(&runner, &nid(1, 9)).unwrap();
    assert!([nid(1, 2), nid(1, 3)].contains(&next));
    assert_eq!(preferred(&runner, &nid(1, 9)), [next]);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    assert_eq!(preferred(&runner, &nid(1, 9)), [next], "what has gone comes back as another one");
}

#[test]
fn a_peer_that_was_heard_first_is_spoken_to_by_that_ni() {
    for (ni, own) in [(1, 1), (2, 2)] {
        let mut runner = two_nis();
        let first_ni = Some(NiId(ni));
        runner
            .node
            .handle_report(runner.now, Report::Traffic { nid: nid(1, 9), is_incoming: true, first_ni });
        runner.run();
        assert_eq!(
            (source(&runner, &nid(1, 9)), preferred(&runner, &nid(1, 9))),
            (Some(nid(1, own)), vec![nid(1, own)])
        );
        // What comes by another one later changes nothing.
        let first_ni = Some(NiId(3 - ni));
        runner
            .node
            .handle_report(runner.now, Report::Traffic { nid: nid(1, 9), is_incoming: true, first_ni });
        runner.run();
        assert_eq!(source(&runner, &nid(1, 9)), Some(nid(1, own)));
    }
}

#[test]
fn peers_are_spread_over_nis_that_are_equal_and_avoid_those_that_are_ill() {
    let mut runner = two_nis();
    let peers: Vec<_> = (10..50).map(|host| nid(1, host)).collect();
    runner.batch(&peers.iter().map(|nid| peer(&[*nid], false)).collect::<Vec<_>>()).unwrap();
    let by_first = peers.iter().filter(|to| source(&runner, to) == Some(nid(1, 1))).count();
    assert!((10..=30).contains(&by_first), "{by_first} of 40 by the first NI");
    let ill = NodeChange::SetHealth { nid: Some(nid(1, 1)), value: 10 };
    runner.batch(&[ill]).unwrap();
    let late: Vec<_> = (60..80).map(|host| nid(1, host)).collect();
    runner.batch(&late.iter().map(|nid| peer(&[*nid], false)).collect::<Vec<_>>()).unwrap();
    assert!(late.iter().all(|to| source(&runner, to) == Some(nid(1, 2))));
}

#[test]
fn multi_rail_and_policies_erase_the_record() {
    let mut runner = two_nis();
    runner.batch(&[peer(&[nid(1, 9)], false), peer(&[nid(1, 8)], true)]).unwrap();
    assert!(source(&runner, &nid(1, 9)).is_some());
    assert_eq!((source(&runner, &nid(1, 8)), preferred(&runner, &nid(1, 8))), (None, vec![]));
    for own in [1, 2] {
        runner.batch(&[pair(hosts(own, own), hosts(9, 9))]).unwrap();
        let own = nid(1, own as u8);
        assert_eq!((source(&runner, &nid(1, 9)), preferred(&runner, &nid(1, 9))), (None, vec![own]));
        runner.batch(&[NodeChange::Udsp(RuleEdit::Delete { index: None })]).unwrap();
        assert!(source(&runner, &nid(1, 9)).is_some());
    }
}

#[test]
fn a_policy_that_names_two_sources_for_such_a_peer_is_refused() {
    let mut runner = two_nis();
    let both = pair(hosts(1, 2), hosts(9, 9));
    // It is right for a Multi-Rail peer, and for one that is none yet.
    runner.batch(&[peer(&[nid(1, 8)], true), pair(hosts(1, 2), hosts(8, 8))]).unwrap();
    let error = runner.batch(&[peer(&[nid(1, 9)], false), both.clone()]).unwrap_err();
    let refused = ChangeError::Rule(RuleError::SeveralPreferred(nid(1, 9)));
    assert_eq!(error, RequestError::Change { index: 1, error: refused });
    assert_eq!(RuleError::SeveralPreferred(nid(1, 9)).errno(), 1);
    assert_eq!(runner.node.rules().rules().len(), 1);
    // Two rules that name one each are as bad; one alone is not.
    runner.batch(&[peer(&[nid(1, 9)], false), pair(hosts(2, 2), hosts(9, 9))]).unwrap();
    runner.batch(&[pair(hosts(1, 1), hosts(9, 9))]).unwrap_err();
    assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, 2)]);
    // A peer that comes later takes the first.
    runner.batch(&[NodeChange::Udsp(RuleEdit::Delete { index: None }), both.clone()]).unwrap_err();
    runner
        .batch(&[
            NodeChange::Peer(PeerEdit::Delete { primary: nid(1, 9), nids: vec![], is_forced: false }),
            both,
        ])
        .unwrap();
    runner.batch(&[peer(&[nid(1, 9)], false)]).unwrap();
    assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, 1)]);
}

/// Tells of a route by an NI, or that there is none.
fn route(runner: &mut Runner, ni: u16, to: Option<(u8, u8)>) {
    let routes = to.map(|(host, bits)| ([10, 0, 0, host].into(), bits));
    let reach = Arc::new(Reach::new(routes));
    runner.node.handle_report(runner.now, Report::Reach { ni: NiId(ni), reach: &reach });
    runner.run();
}

/// A record that leads nowhere ends; every other one stays, whatever route becomes a better one.
#[test]
fn a_source_has_a_route_to_the_nid() {
    for (ni, host) in [(1_u16, 1), (2, 2)] {
        let other = 3 - ni;
        let mut runner = two_nis();
        route(&mut runner, other, None);
        route(&mut runner, ni, Some((0, 24)));
        runner.batch(&[peer(&[nid(1, 9)], false)]).unwrap();
        assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, host)]);
        route(&mut runner, other, Some((9, 32)));
        assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, host)], "it still leads there");
        route(&mut runner, ni, Some((128, 25)));
        assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, other as u8)]);
        route(&mut runner, other, None);
        assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, other as u8)], "nothing leads there");
        // Without a record the longest prefix counts, behind health.
        route(&mut runner, other, Some((0, 24)));
        route(&mut runner, ni, Some((0, 25)));
        runner.batch(&[peer(&[nid(1, 10)], false)]).unwrap();
        assert_eq!(preferred(&runner, &nid(1, 10)), [nid(1, host)]);
        let ill = NodeChange::SetHealth { nid: Some(nid(1, host)), value: 10 };
        runner.batch(&[ill, peer(&[nid(1, 11)], false)]).unwrap();
        assert_eq!(preferred(&runner, &nid(1, 11)), [nid(1, other as u8)]);
    }
}

/// Routes go with a link: a record outlasts that, and what has no link is told of again when it is back.
#[test]
fn a_source_without_a_link_stays_the_source() {
    let mut runner = two_nis();
    route(&mut runner, 1, Some((0, 24)));
    route(&mut runner, 2, None);
    runner.batch(&[peer(&[nid(1, 9)], false)]).unwrap();
    route(&mut runner, 2, Some((0, 0)));
    runner.node.handle_report(runner.now, Report::Link { ni: NiId(1), is_up: false });
    route(&mut runner, 1, None);
    assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, 1)]);
    route(&mut runner, 1, Some((0, 24)));
    runner.node.handle_report(runner.now, Report::Link { ni: NiId(1), is_up: true });
    runner.run();
    assert_eq!(preferred(&runner, &nid(1, 9)), [nid(1, 1)]);
}
