//! Pings: asked, answered, and not.

use std::time::Duration;

use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, ChangeError, NodeChange, NodeConfig, Outcome, PeerEdit, PingId, Pinged, Report, Request,
    RequestError,
};
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingError, PingNi};
use lnet_wire::{Global, Nid};
use proptest::prelude::*;

use crate::common::{Runner, config, nid, refused, spec};

const SECOND: Duration = Duration::from_secs(1);

fn runner() -> Runner {
    let mut runner = Runner::new(1);
    let add = [NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(1, 2))];
    assert_eq!(runner.batch(&add), Ok(Outcome::Changed));
    runner
}

fn request(nid: Nid) -> Request<u32> {
    Request::Ping { nid, source: None, timeout: Some(SECOND) }
}

/// The GETs that are to be sent, with the room for their answers.
fn asked(runner: &mut Runner) -> Vec<(PingId, Nid, usize)> {
    let mut asked = Vec::new();
    runner.done.retain(|action| match action {
        Action::Ping { ping, nid, length_bytes, .. } => {
            asked.push((*ping, *nid, *length_bytes));
            false
        }
        _ => true,
    });
    asked
}

fn answer(runner: &mut Runner, ping: PingId, bytes: &[u8]) {
    runner.node.handle_report(runner.now, Report::Answered { ping, bytes });
    runner.run();
}

fn info(nids: &[Nid]) -> Vec<u8> {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, Features::NI_STATUS, 12345, 1, nis).unwrap();
    bytes
}

#[test]
fn an_answer_has_the_nids_in_their_order() {
    let mut runner = runner();
    let id = runner.start(request(nid(1, 9)));
    let [(ping, to, room)] = asked(&mut runner)[..] else { panic!("one GET") };
    assert_eq!((to, room), (nid(1, 9), 3960));
    assert_eq!(runner.result(id), None);
    let nids = [nid(2, 9), nid(1, 9), nid(2, 9)];
    answer(&mut runner, ping, &info(&nids));
    let expected =
        Pinged { nid: nid(1, 9), primary: nid(1, 9), is_multi_rail: false, nids: nids[..2].to_vec() };
    assert_eq!(runner.result(id), Some(Ok(Outcome::Pinged(expected))));
    let peer = runner.node.peer(&nid(1, 9)).unwrap();
    assert_eq!(peer.nids(), [nid(1, 9)], "what it answers on request makes no peer of its NIDs");
    assert_eq!(runner.node.peers().count(), 1);
    answer(&mut runner, ping, &info(&nids));
    assert_eq!(runner.result(id), None, "it has ended");
}

#[test]
fn a_long_answer_is_asked_for_again() {
    let mut runner = runner();
    let id = runner.start(request(nid(1, 9)));
    let nids: Vec<_> = (0..=250).map(|host| nid(3, host)).collect();
    let bytes = info(&nids);
    let (first, _, room) = asked(&mut runner)[0];
    answer(&mut runner, first, &bytes[..room]);
    let (second, _, room) = asked(&mut runner)[0];
    assert_eq!(room, bytes.len());
    answer(&mut runner, first, &bytes);
    assert_eq!(runner.result(id), None, "that was the first");
    answer(&mut runner, second, &bytes);
    let Some(Ok(Outcome::Pinged(pinged))) = runner.result(id) else { panic!("not answered") };
    assert_eq!(pinged.nids, nids);
}

#[test]
fn pings_end_without_an_answer() {
    let mut runner = runner();
    let late = runner.start(request(nid(1, 9)));
    let given_up = runner.start(request(nid(1, 9)));
    let failed = runner.start(request(nid(1, 9)));
    let rubbish = runner.start(request(nid(1, 9)));
    let pings: Vec<_> = asked(&mut runner).iter().map(|(ping, ..)| *ping).collect();
    assert_eq!(runner.node.cancel(given_up), Ok(()));
    runner.node.handle_report(runner.now, Report::Unanswered { ping: pings[2], error: refused() });
    answer(&mut runner, pings[3], &[7; 40]);
    assert_eq!(runner.result(given_up), Some(Err(RequestError::Cancelled)));
    assert_eq!(runner.result(failed), Some(Err(RequestError::Ping { nid: nid(1, 9), error: refused() })));
    let error = PingError::Magic(0x0707_0707);
    assert_eq!(runner.result(rubbish), Some(Err(RequestError::PingAnswer { nid: nid(1, 9), error })));
    assert_eq!(runner.result(late), None);
    assert_eq!(runner.node.poll_timeout(), Some(runner.now + SECOND));
    runner.advance(SECOND);
    let timeout = RequestError::PingTimeout { nid: nid(1, 9), timeout: SECOND };
    assert_eq!((timeout.errno(), runner.result(late)), (110, Some(Err(timeout))));
    let forgotten: Vec<_> =
        runner.done.iter().filter(|action| matches!(action, Action::Forget { .. })).collect();
    assert_eq!(forgotten, [&Action::Forget { ping: pings[1] }, &Action::Forget { ping: pings[0] }]);
    assert_eq!(runner.node.peers().count(), 0, "nobody was heard of");
    assert_eq!(runner.node.poll_timeout(), None);
}

#[test]
fn pings_need_a_path() {
    let mut runner = runner();
    let mut refusal = |nid, source| {
        let id = runner.start(Request::Ping { nid, source, timeout: None });
        asked(&mut runner);
        runner.result(id).map(|result| result.map_err(|error| (error.errno(), error)))
    };
    assert_eq!(refusal(Nid::ANY, None), Some(Err((22, RequestError::PingWildcard(Nid::ANY)))));
    assert_eq!(refusal(nid(1, 9), Some(nid(1, 8))), Some(Err((22, RequestError::PingSource(nid(1, 8))))));
    assert_eq!(refusal(nid(2, 9), None), Some(Err((113, RequestError::PingUnreachable(nid(2, 9))))));
    assert_eq!(
        refusal(nid(2, 9), Some(nid(1, 1))),
        Some(Err((113, RequestError::PingUnreachable(nid(2, 9)))))
    );
    assert_eq!(refusal(nid(1, 9), Some(nid(1, 2))), None);
    assert_eq!(refusal(Nid::LO, None), None);
    assert_eq!(refusal(nid(1, 1), Some(nid(1, 1))), None, "oneself");
    for ni in [1, 2].map(NiId) {
        runner.node.handle_report(runner.now, Report::Link { ni, is_up: false });
    }
    let id = runner.start(request(nid(1, 9)));
    assert_eq!(runner.result(id), Some(Err(RequestError::PingUnreachable(nid(1, 9)))));
}

#[test]
fn peers_are_found_by_traffic() {
    let mut runner = runner();
    for heard in [nid(1, 7), nid(1, 1), Nid::LO, Nid::ANY, nid(1, 7), nid(1, 8), nid(2, 7)] {
        runner
            .node
            .handle_report(runner.now, Report::Traffic { nid: heard, is_incoming: true, first_ni: None });
    }
    let peers: Vec<_> = runner.node.peers().map(|peer| peer.primary).collect();
    assert_eq!(peers, [nid(1, 7), nid(1, 8)], "this node is none, nor what is on a net that it is not on");
}

proptest! {
    #[test]
    fn hostile_answers_end_pings_and_no_more(
        hosts in proptest::collection::vec(any::<u8>(), 0..80),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..20),
        cut in any::<proptest::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let mut runner = runner();
        let nids: Vec<_> = hosts.into_iter().map(|host| nid(3, host)).collect();
        let mut bytes = info(&nids);
        for (at, byte) in changes {
            // The header, for the most part.
            let at = at.index(2 * bytes.len()).checked_sub(bytes.len()).unwrap_or(at.index(32));
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let id = runner.start(request(nid(1, 9)));
        let mut asked_count = 0;
        while let Some((ping, _, room)) = asked(&mut runner).pop() {
            asked_count += 1;
            prop_assert!(room <= ping::BUFFER_BYTES_MAX);
            answer(&mut runner, ping, &bytes[..room.min(bytes.len())]);
        }
        prop_assert!((1..=2).contains(&asked_count));
        let result = runner.result(id);
        prop_assert!(result.is_some());
        if let Some(Ok(Outcome::Pinged(pinged))) = result {
            prop_assert!(pinged.nids.iter().all(|nid| !nid.is_any() && !nid.is_loopback()));
            let mut sorted = pinged.nids.clone();
            sorted.sort();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), pinged.nids.len());
        }
        prop_assert!(runner.node.peers().count() <= 1);
        prop_assert_eq!(runner.node.request_count(), 0);
    }
}

/// `max_interfaces` says how many NIs a node has at most, `lo` among them, and for how many a ping on request
/// has room (LNet `api-ni.c: lnet_interfaces_max`).
#[test]
fn max_interfaces_limits_nis_and_the_room_of_pings() {
    let mut runner = Runner::with(NodeConfig { nis_max: 40, ..config(1) });
    let limit = |value| NodeChange::Set { setting: Global::MaxInterfaces, value };
    runner.batch(&[limit(16)]).unwrap();
    for host in 1..16 {
        runner.batch(&[NodeChange::AddNi(spec(1, host))]).unwrap();
    }
    let error = runner.batch(&[NodeChange::AddNi(spec(1, 16))]).unwrap_err();
    let too_many = RequestError::Change { index: 0, error: ChangeError::TooMany { max: 16 } };
    assert_eq!((error.errno(), error), (28, too_many));
    let room = |runner: &mut Runner| {
        runner.start(Request::Ping { nid: nid(1, 99), source: None, timeout: None });
        let mut rooms = runner.done.iter().filter_map(|action| match action {
            Action::Ping { length_bytes, .. } => Some(*length_bytes),
            _ => None,
        });
        rooms.next_back().unwrap()
    };
    assert_eq!(room(&mut runner), 16 + 16 * 24);
    runner.batch(&[limit(17)]).unwrap();
    assert_eq!(room(&mut runner), 16 + 17 * 24);
    runner.batch(&[NodeChange::AddNi(spec(1, 16))]).unwrap();
    assert_eq!(runner.batch(&[NodeChange::AddNi(spec(1, 17))]).unwrap_err().errno(), 28);
    // Less than 16 is the default.
    runner.batch(&[limit(3)]).unwrap();
    runner.batch(&[NodeChange::AddNi(spec(1, 17))]).unwrap();
    assert_eq!(room(&mut runner), 3960);
}

/// A Multi-Rail peer is pinged by whichever of its NIDs a net is left for: `explain` and `discover` say the
/// same. One that is not is asked by the NID that was named, and by no other.
#[test]
fn a_peer_is_pinged_by_another_net_than_that_of_the_nid_that_was_named() {
    for multi_rail in [true, false] {
        let mut runner = runner();
        let add = PeerEdit::Add(PeerSpec {
            primary_nid: nid(1, 9),
            nids: if multi_rail { vec![nid(1, 9), nid(5, 9)] } else { vec![nid(5, 9)] },
            multi_rail,
            lock_primary: false,
        });
        let added = runner.batch(&[NodeChange::Peer(add)]);
        let id = runner.start(request(nid(5, 9)));
        if !multi_rail || added.is_err() {
            assert_eq!(runner.result(id), Some(Err(RequestError::PingUnreachable(nid(5, 9)))));
            assert_eq!(asked(&mut runner), []);
            continue;
        }
        let [(ping, to, _)] = asked(&mut runner)[..] else { panic!("one GET") };
        assert_eq!(to, nid(5, 9), "the shard chooses the path");
        answer(&mut runner, ping, &info(&[nid(1, 9), nid(5, 9)]));
        let Some(Ok(Outcome::Pinged(pinged))) = runner.result(id) else { panic!("not answered") };
        assert_eq!((pinged.primary, pinged.nids), (nid(1, 9), vec![nid(1, 9), nid(5, 9)]));
        // A source has to be on a net of the peer's.
        let from = |source| Request::Ping { nid: nid(5, 9), source: Some(source), timeout: None };
        let id = runner.start(from(nid(1, 1)));
        assert_eq!((runner.result(id), asked(&mut runner).len()), (None, 1));
    }
}
