//! Selection policies, distances and health that is set: what comes of them in snapshots.

use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_core::node::{ChangeError, NodeChange, Outcome, PeerEdit, Report, RequestError};
use lnet_core::topology::{LocalNi, MemoryNode, PRIORITY_NONE, PeerView};
use lnet_core::udsp::{RuleEdit, RuleError};
use lnet_model::pattern::UdspPattern;
use lnet_model::peer::PeerSpec;
use lnet_model::udsp::UdspRule;
use lnet_wire::{Global, Nid};

use crate::common::{Runner, nid, spec};

fn net(number: u32) -> Option<UdspPattern> {
    Some(format!("tcp{number}").parse().unwrap())
}

fn add(
    source: Option<UdspPattern>,
    destination: Option<UdspPattern>,
    priority: Option<u32>,
) -> NodeChange<u32> {
    let rule = UdspRule::new(source, destination, None, priority);
    NodeChange::Udsp(RuleEdit::Add { index: None, rule })
}

fn peer(primary: Nid, nids: &[Nid]) -> NodeChange<u32> {
    let nids = nids.to_vec();
    NodeChange::Peer(PeerEdit::Add(PeerSpec {
        primary_nid: primary,
        nids,
        multi_rail: true,
        lock_primary: false,
    }))
}

fn local(runner: &Runner, nid: &Nid) -> LocalNi {
    *runner.topology.local_nis().find(|(_, local)| local.nid == *nid).unwrap().1
}

fn view<'a>(runner: &'a Runner, nid: &Nid) -> &'a PeerView {
    runner.topology.peer(nid).unwrap()
}

#[test]
fn rules_reach_what_is_there_and_what_comes_later() {
    let mut runner = Runner::new(2);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), peer(nid(1, 9), &[nid(2, 9)])]).unwrap();
    let rules = [add(net(1), None, Some(3)), add(None, net(2), Some(4)), add(net(2), net(1), None)];
    runner.batch(&rules).unwrap();
    assert_eq!(local(&runner, &nid(1, 1)).net_priority, 3);
    assert_eq!(view(&runner, &nid(1, 9)).net_priorities[..], [(nid(2, 9).net(), 4)]);
    assert!(view(&runner, &nid(1, 9)).nis[0].preferred.is_empty(), "no such NI is local yet");

    runner.batch(&[NodeChange::AddNi(spec(2, 2)), peer(nid(2, 8), &[])]).unwrap();
    assert_eq!(local(&runner, &nid(2, 2)).net_priority, PRIORITY_NONE);
    assert_eq!(view(&runner, &nid(1, 9)).nis[0].preferred, [nid(2, 2)].into());
    assert_eq!(view(&runner, &nid(2, 8)).net_priorities[..], [(nid(2, 9).net(), 4)]);

    // What a rule gave goes with it, and the others stay.
    runner.batch(&[NodeChange::Udsp(RuleEdit::Delete { index: Some(1) })]).unwrap();
    assert!(view(&runner, &nid(1, 9)).net_priorities.is_empty());
    assert_eq!(view(&runner, &nid(1, 9)).nis[0].preferred, [nid(2, 2)].into());
    runner.batch(&[NodeChange::Udsp(RuleEdit::Delete { index: None })]).unwrap();
    assert!(view(&runner, &nid(1, 9)).nis[0].preferred.is_empty());
    assert_eq!(local(&runner, &nid(1, 1)).net_priority, PRIORITY_NONE);
}

#[test]
fn a_batch_with_a_wrong_rule_changes_no_rule() {
    let mut runner = Runner::new(1);
    let twice = [add(net(1), None, Some(1)), add(net(1), None, Some(1))];
    let error = ChangeError::Rule(RuleError::Exists(0));
    let refused = RequestError::Change { index: 1, error };
    assert_eq!(refused.errno(), 114);
    assert_eq!(runner.batch(&twice), Err(refused));
    assert!(runner.node.rules().rules().is_empty());
    assert_eq!(runner.batch(&twice[..1]), Ok(Outcome::Changed));
}

#[test]
fn distances_within_the_range_are_alike() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(1, 2))]).unwrap();
    let distances = |runner: &Runner| [1, 2].map(|host| local(runner, &nid(1, host)).numa_distance);
    assert_eq!(distances(&runner), [101, 102], "told while the batch went on");
    for (ni, distance) in [(1, 10), (2, 21), (9, 7)] {
        runner.node.handle_report(
            runner.now,
            Report::Distance { ni: NiId(ni), distances: &[distance], by_memory: &[] },
        );
    }
    runner.run();
    assert_eq!(distances(&runner), [10, 21]);
    for (range, expected) in [(20, [20, 21]), (30, [30, 30]), (0, [10, 21])] {
        runner.batch(&[NodeChange::Set { setting: Global::NumaRange, value: range }]).unwrap();
        assert_eq!(distances(&runner), expected);
    }
}

#[test]
fn each_shard_has_its_own_distances() {
    let mut runner = Runner::new(2);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(1, 2))]).unwrap();
    let told = |runner: &mut Runner, ni, distances: &[u32]| {
        runner.node.handle_report(runner.now, Report::Distance { ni: NiId(ni), distances, by_memory: &[] });
        runner.run();
    };
    told(&mut runner, 1, &[10, 21]);
    told(&mut runner, 2, &[21, 21]);
    let seen = |runner: &Runner| {
        let of = |ni| [0, 1].map(|shard| runner.topology.numa_distance(NiId(ni), ShardId(shard)));
        ([1, 2].map(of), [1, 2].map(|host| local(runner, &nid(1, host)).numa_distance))
    };
    assert_eq!(seen(&runner), ([[10, 21], [21, 21]], [21, 21]), "the largest is that of the node");
    runner.batch(&[NodeChange::Set { setting: Global::NumaRange, value: 15 }]).unwrap();
    assert_eq!(seen(&runner), ([[15, 21], [21, 21]], [21, 21]));
    runner.batch(&[NodeChange::Set { setting: Global::NumaRange, value: 21 }]).unwrap();
    assert_eq!(seen(&runner), ([[21; 2]; 2], [21, 21]));
}

#[test]
fn memory_nodes_have_their_distances_where_they_differ() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(1, 2))]).unwrap();
    let told = |runner: &mut Runner, ni, by_memory: &[u32]| {
        let report = Report::Distance { ni: NiId(ni), distances: &[21], by_memory };
        runner.node.handle_report(runner.now, report);
        runner.run();
    };
    told(&mut runner, 1, &[]);
    told(&mut runner, 2, &[21, 21]);
    assert!(!runner.topology.has_memory_distances(), "they are as far from all");
    told(&mut runner, 1, &[10, 21]);
    let seen = |runner: &Runner| {
        [1, 2].map(|ni| [0, 1].map(|node| runner.topology.memory_distance(NiId(ni), MemoryNode(node))))
    };
    assert_eq!(seen(&runner), [[Some(10), Some(21)], [Some(21), Some(21)]]);
    runner.batch(&[NodeChange::Set { setting: Global::NumaRange, value: 15 }]).unwrap();
    assert_eq!(seen(&runner), [[Some(15), Some(21)], [Some(21), Some(21)]]);
    runner.batch(&[NodeChange::Set { setting: Global::NumaRange, value: 21 }]).unwrap();
    assert!(!runner.topology.has_memory_distances());
}

#[test]
fn what_is_set_below_full_health_recovers() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), peer(nid(1, 9), &[nid(1, 8)])]).unwrap();
    let set = PeerEdit::SetHealth { nid: Some(nid(1, 8)), value: 500 };
    runner
        .node
        .handle_report(runner.now, Report::Traffic { nid: nid(1, 8), is_incoming: true, first_ni: None });
    runner.batch(&[NodeChange::SetHealth { nid: None, value: 900 }, NodeChange::Peer(set)]).unwrap();
    let (own, peers) = runner.node.recovering();
    assert_eq!([own[0].nid, peers[0].nid], [nid(1, 1), nid(1, 8)]);
    assert!(runner.node.poll_timeout().is_some_and(|at| at <= runner.now + Duration::from_secs(1)));
    let whole = PeerEdit::SetHealth { nid: None, value: 1000 };
    runner.batch(&[NodeChange::SetHealth { nid: None, value: 1000 }, NodeChange::Peer(whole)]).unwrap();
    assert_eq!(runner.node.recovering(), (vec![], vec![]));
}
