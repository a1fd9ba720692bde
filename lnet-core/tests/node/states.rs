//! The states of local NIs, local nets, peers and peer NIs.

use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, LocalNetState, LocalNiState, NodeChange, PeerEdit, PeerNiState, PeerState, PeerTraffic, PingId,
    Report, Request,
};
use lnet_core::shard::HealthNote;
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{Global, Nid};

use crate::common::{Runner, nid, refused, spec};

const MULTI_RAIL: Features = Features(0x1E);

/// The states of the NI of host 1 on net 1, and of its net.
fn local(runner: &Runner) -> (Option<LocalNiState>, Option<LocalNetState>) {
    (runner.node.ni_state(&nid(1, 1)), runner.node.net_state(nid(1, 1).net()))
}

#[test]
fn a_local_ni_and_its_net_go_through_their_states() {
    use LocalNiState::{Created, Degraded, Deleting, Failed, Init};
    let mut runner = Runner::new(1);
    assert_eq!(local(&runner), (None, None));
    runner.node.handle_request(runner.now, Request::batch(vec![NodeChange::AddNi(spec(1, 1))])).unwrap();
    assert_eq!(local(&runner), (Some(Init), Some(LocalNetState::Init)));
    runner.run();
    assert_eq!(local(&runner), (Some(Created), Some(LocalNetState::Active)));

    let note = |runner: &mut Runner, failures, successes| {
        let note = HealthNote { nid: nid(1, 1), failures, successes };
        runner.node.handle_report(runner.now, Report::Health(note));
        runner.run();
    };
    note(&mut runner, 1, 0);
    assert_eq!(local(&runner), (Some(Degraded), Some(LocalNetState::Active)));
    note(&mut runner, 9, 0);
    assert_eq!(local(&runner), (Some(Failed), Some(LocalNetState::Inactive)));
    note(&mut runner, 0, 9);
    assert_eq!(local(&runner).0, Some(Failed), "told as down until it is in full health");
    note(&mut runner, 0, 1);
    assert_eq!(local(&runner), (Some(Created), Some(LocalNetState::Active)));

    let link = |runner: &mut Runner, is_up| {
        runner.node.handle_report(runner.now, Report::Link { ni: NiId(1), is_up });
        runner.run();
    };
    link(&mut runner, false);
    assert_eq!(local(&runner), (Some(Failed), Some(LocalNetState::Inactive)));
    runner.batch(&[NodeChange::AddNi(spec(1, 2))]).unwrap();
    assert_eq!(local(&runner), (Some(Failed), Some(LocalNetState::Active)), "another one serves");
    link(&mut runner, true);
    assert_eq!(local(&runner), (Some(Created), Some(LocalNetState::Active)));

    runner.is_quiet = false;
    runner.start(Request::batch(vec![NodeChange::DeleteNi { nid: nid(1, 1) }]));
    assert_eq!(local(&runner), (Some(Deleting), Some(LocalNetState::Active)));
    runner.is_quiet = true;
    runner.confirm();
    runner.run();
    assert_eq!(local(&runner), (None, Some(LocalNetState::Active)));
    runner.is_quiet = false;
    runner.start(Request::batch(vec![NodeChange::DeleteNet { net: nid(1, 1).net() }]));
    assert_eq!(local(&runner), (None, Some(LocalNetState::Deleting)));
    runner.is_quiet = true;
    runner.confirm();
    runner.run();
    assert_eq!(local(&runner), (None, None));
    assert_eq!(runner.node.ni_state(&Nid::LO), Some(Created));
    assert_eq!(runner.node.net_state(Nid::LO.net()), Some(LocalNetState::Active));
}

fn info(nids: &[Nid], status: NiStatus) -> Vec<u8> {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, 1, nis).unwrap();
    bytes
}

fn state(runner: &Runner, of: Nid) -> PeerState {
    runner.node.peer_state(runner.node.peer(&of).unwrap())
}

/// The ping or push to a NID that is under way.
fn sent(runner: &Runner, to: Nid) -> PingId {
    let sent = runner.done.iter().rev().find_map(|action| match action {
        Action::Ping { ping, nid, .. } | Action::Push { ping, nid, .. } if *nid == to => Some(*ping),
        _ => None,
    });
    sent.unwrap()
}

fn answer(runner: &mut Runner, to: Nid, bytes: &[u8]) {
    let ping = sent(runner, to);
    runner.node.handle_report(runner.now, Report::Answered { ping, bytes });
    runner.run();
}

#[test]
fn a_peer_goes_through_the_states_of_discovery() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    runner.acknowledges = false;
    let nids = [nid(1, 9), nid(1, 8)];
    let add =
        PeerEdit::Add(PeerSpec { primary_nid: nids[0], nids: vec![], multi_rail: true, lock_primary: false });
    runner.batch(&[NodeChange::Peer(add)]).unwrap();
    assert_eq!(state(&runner, nids[0]), PeerState::Init);
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: 0 }]).unwrap();
    assert_eq!(state(&runner, nids[0]), PeerState::Active, "nothing is to be discovered");
    runner.batch(&[NodeChange::Set { setting: Global::Discovery, value: 1 }]).unwrap();
    let delete = PeerEdit::Delete { primary: nids[0], nids: vec![], is_forced: false };
    runner.batch(&[NodeChange::Peer(delete)]).unwrap();

    runner
        .node
        .handle_report(runner.now, Report::Traffic { nid: nids[0], is_incoming: true, first_ni: None });
    assert_eq!(state(&runner, nids[0]), PeerState::Init);
    runner.node.handle_report(runner.now, Report::Wanted { nid: nids[0] });
    runner.run();
    assert_eq!(state(&runner, nids[0]), PeerState::PingSent);
    answer(&mut runner, nids[0], &info(&nids, NiStatus::UP));
    assert_eq!(state(&runner, nids[0]), PeerState::PushSent);
    runner.answer_all(&nids[1..], &info(&nids, NiStatus::UP));
    answer(&mut runner, nids[0], &[]);
    assert_eq!(state(&runner, nids[0]), PeerState::Active);

    // All of its NIs go down, and one comes back.
    let push = |runner: &mut Runner, bytes: &[u8]| {
        let report = Report::Pushed { from: nids[0], bytes, length_bytes: bytes.len() };
        runner.node.handle_report(runner.now, report);
        runner.run();
    };
    push(&mut runner, &info(&nids, NiStatus::DOWN));
    assert_eq!(state(&runner, nids[0]), PeerState::Inactive);
    push(&mut runner, &info(&nids, NiStatus::UP));
    assert_eq!(state(&runner, nids[0]), PeerState::Inactive, "they have lost health");
    runner.batch(&[NodeChange::Peer(PeerEdit::SetHealth { nid: Some(nids[1]), value: 1000 })]).unwrap();
    assert_eq!(state(&runner, nids[0]), PeerState::Active);

    // An attempt that fails is repeated with the next use.
    runner.node.handle_report(runner.now, Report::Wanted { nid: nid(1, 7) });
    runner.run();
    let failed = Report::Unanswered { ping: sent(&runner, nid(1, 7)), error: refused() };
    runner.node.handle_report(runner.now, failed);
    runner.run();
    assert_eq!(state(&runner, nid(1, 7)), PeerState::Init);
}

/// Catalogue case 304: a peer that is locked by hand, and made one that was found, is discovered by its other
/// NID.
#[test]
fn case_304_a_locked_nid_stays_the_primary_one() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let nids = [nid(1, 9), nid(1, 8)];
    let add =
        PeerEdit::Add(PeerSpec { primary_nid: nids[1], nids: vec![], multi_rail: true, lock_primary: true });
    runner.batch(&[NodeChange::Peer(add)]).unwrap();
    let state = |runner: &Runner| runner.node.peer(&nids[1]).unwrap().state;
    assert_eq!(state(&runner), 1_048_585);
    runner.batch(&[NodeChange::Peer(PeerEdit::SetState { nid: nids[1], state: 1_048_577 })]).unwrap();
    assert_eq!(state(&runner), 1_048_577);
    let request = runner.start(Request::Discover { nid: nids[0], is_forced: false });
    answer(&mut runner, nids[0], &info(&nids, NiStatus::UP));
    assert!(runner.result(request).is_some_and(|result| result.is_ok()));
    runner.answer_all(&nids, &info(&nids, NiStatus::UP));
    assert_eq!(runner.node.peers().count(), 1);
    let peer = runner.node.peer(&nids[0]).unwrap();
    assert_eq!((peer.primary, state(&runner)), (nids[1], 1_048_849));
    assert_eq!(peer.nids(), nids, "the NID that was found is shown first");
}

#[test]
fn peers_wait_for_their_turn() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let known = info(&[nid(1, 250)], NiStatus::UP);
    let push = |runner: &mut Runner| {
        let report = Report::Pushed { from: nid(1, 250), bytes: &known, length_bytes: known.len() };
        runner.node.handle_report(runner.now, report);
        runner.run();
    };
    push(&mut runner);
    assert_eq!(state(&runner, nid(1, 250)), PeerState::Active);
    for host in 100..=164 {
        runner.node.handle_report(runner.now, Report::Wanted { nid: nid(1, host) });
    }
    runner.run();
    assert_eq!(state(&runner, nid(1, 163)), PeerState::PingSent);
    assert_eq!(state(&runner, nid(1, 164)), PeerState::Discover, "64 are under way");
    push(&mut runner);
    assert_eq!(state(&runner, nid(1, 250)), PeerState::DataReceived);
    for host in [100, 101] {
        answer(&mut runner, nid(1, host), &info(&[nid(1, host)], NiStatus::UP));
    }
    assert_eq!(state(&runner, nid(1, 164)), PeerState::PingSent);
    assert_eq!(state(&runner, nid(1, 250)), PeerState::Active);
}

#[test]
fn a_peer_ni_goes_through_its_states() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let nids = vec![nid(1, 8)];
    let add = PeerEdit::Add(PeerSpec { primary_nid: nid(1, 9), nids, multi_rail: true, lock_primary: false });
    runner.batch(&[NodeChange::Peer(add)]).unwrap();
    let state = |runner: &Runner, has_carried, is_under_way| {
        let peer = runner.node.peer(&nid(1, 9)).unwrap();
        peer.ni(&nid(1, 8)).unwrap().state(PeerTraffic { has_carried, is_under_way })
    };
    assert_eq!(state(&runner, false, false), PeerNiState::Created);
    assert_eq!(state(&runner, false, true), PeerNiState::Activating);
    assert_eq!(state(&runner, true, true), PeerNiState::Connected);
    let note = |runner: &mut Runner, failures, successes| {
        let note = HealthNote { nid: nid(1, 8), failures, successes };
        runner.node.handle_report(runner.now, Report::Health(note));
        runner.run();
    };
    note(&mut runner, 1, 0);
    assert_eq!(state(&runner, true, false), PeerNiState::Failed);
    note(&mut runner, 0, 1);
    assert_eq!(state(&runner, true, false), PeerNiState::Connected);
}
