//! Peers that answer discovery with what is wrong, too much, or another one's.

use lnet_core::node::{NodeChange, Outcome, Report, Request, RequestError, RequestId, TOLD_MAX, peer_state};
use lnet_wire::Nid;
use lnet_wire::ping::{
    self, BUFFER_BYTES_MAX, BUFFER_BYTES_MIN, ENTRIES_MAX, Features, NiStatus, PingError, PingNi,
    SMALL_ENTRY_BYTES,
};

use crate::common::{Runner, nid, spec};

/// Multi-Rail, with discovery.
const MULTI_RAIL: Features = Features(0x1E);

fn runner() -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1)), NodeChange::AddNi(spec(2, 1))]).unwrap();
    runner
}

fn info(sequence: u32, nids: &[Nid]) -> Vec<u8> {
    let nis = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, sequence, nis).unwrap();
    bytes
}

fn discover(runner: &mut Runner, nid: Nid) -> RequestId {
    runner.start(Request::Discover { nid, is_forced: true })
}

/// Answers all pings to a NID; with how much room they asked.
fn answer(runner: &mut Runner, nid: Nid, bytes: &[u8]) -> Vec<usize> {
    let mut rooms = Vec::new();
    loop {
        let at = runner
            .done
            .iter()
            .position(|action| matches!(action, lnet_core::node::Action::Ping { nid: to, .. } if *to == nid));
        let Some(at) = at else { return rooms };
        let lnet_core::node::Action::Ping { ping, length_bytes, .. } = runner.done.remove(at) else {
            return rooms;
        };
        rooms.push(length_bytes);
        let bytes = &bytes[..bytes.len().min(length_bytes)];
        runner.node.handle_report(runner.now, Report::Answered { ping, bytes });
        runner.run();
    }
}

fn nids(runner: &Runner, nid: Nid) -> Vec<Nid> {
    runner.node.peer(&nid).map(lnet_core::node::Peer::nids).unwrap_or_default()
}

#[test]
fn an_answer_with_a_wrong_magic_or_size_is_no_peers_word() {
    let good = info(1, &[nid(1, 9), nid(2, 9)]);
    let wrong = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    for bytes in [
        wrong(&|bytes| bytes[0] ^= 1),
        wrong(&|bytes| bytes.truncate(15)),
        wrong(&|bytes| bytes.truncate(0)),
        // No entry, and entries that are not there.
        wrong(&|bytes| bytes[12..16].fill(0)),
    ] {
        let mut runner = runner();
        let request = discover(&mut runner, nid(1, 9));
        answer(&mut runner, nid(1, 9), &bytes);
        let result = runner.result(request);
        let is_refused =
            matches!(&result, Some(Err(RequestError::PingAnswer { .. } | RequestError::PingStranger(_))));
        assert!(is_refused, "{bytes:?}: {result:?}");
        let peer = runner.node.peer(&nid(1, 9)).unwrap();
        assert_eq!(peer.nids(), [nid(1, 9)]);
        assert!(peer.is(peer_state::REDISCOVER) && !peer.is(peer_state::DISCOVERED), "{}", peer.state);
        let counters = runner.node.discovery_counters();
        assert_eq!((counters.answers_refused, counters.refused), (1, 0), "{bytes:?}");
        // An honest answer to the next ping mends it.
        let request = discover(&mut runner, nid(1, 9));
        answer(&mut runner, nid(1, 9), &good);
        assert!(matches!(runner.result(request), Some(Ok(Outcome::Pinged(_)))));
        assert_eq!(nids(&runner, nid(1, 9)), [nid(1, 9), nid(2, 9)]);
    }
    assert!(matches!(ping::PingInfo::parse(&[7; 48]), Err(PingError::Magic(_))), "the reason is told");
}

#[test]
fn a_nid_that_is_told_twice_counts_once() {
    let mut runner = runner();
    discover(&mut runner, nid(1, 9));
    let told = [nid(1, 9), nid(2, 9), nid(1, 9), nid(2, 9), nid(2, 9)];
    answer(&mut runner, nid(1, 9), &info(1, &told));
    assert_eq!(nids(&runner, nid(1, 9)), [nid(1, 9), nid(2, 9)]);
}

/// NIDs of this node, the wildcard and `lo` are none's to tell.
#[test]
fn nids_that_are_not_a_peers_are_left_out() {
    let mut runner = runner();
    discover(&mut runner, nid(1, 9));
    answer(&mut runner, nid(1, 9), &info(1, &[nid(1, 9), nid(1, 1), nid(2, 1), nid(2, 9)]));
    assert_eq!(nids(&runner, nid(1, 9)), [nid(1, 9), nid(2, 9)]);
    assert!(runner.node.peer(&nid(1, 1)).is_none() && runner.node.ni(&nid(1, 1)).is_some());
}

/// Two nodes may have one address, as that of a bridge which software makes on every host. Where a peer tells
/// it first, it goes by another NID; that is warned of, and all of its other NIDs are used.
#[test]
fn a_peer_whose_primary_nid_is_this_nodes_goes_by_another_one() {
    let shared = nid(2, 1);
    for told in [
        vec![shared, nid(1, 9), nid(1, 8)],
        vec![shared, nid(1, 1), nid(1, 9), nid(1, 8)],
        vec![nid(1, 9), shared, nid(1, 8)],
    ] {
        for is_pushed in [false, true] {
            let mut runner = runner();
            if is_pushed {
                let bytes = info(3, &told);
                let report = Report::Pushed { from: nid(1, 9), bytes: &bytes, length_bytes: bytes.len() };
                runner.node.handle_report(runner.now, report);
                runner.run();
            } else {
                let request = discover(&mut runner, nid(1, 9));
                answer(&mut runner, nid(1, 9), &info(3, &told));
                assert!(matches!(runner.result(request), Some(Ok(Outcome::Pinged(_)))), "{told:?}");
            }
            let peer = runner.node.peer(&nid(1, 9)).unwrap();
            assert!(peer.is(peer_state::MULTI_RAIL | peer_state::DISCOVERED), "{told:?}: {}", peer.state);
            assert_eq!((peer.primary, peer.nids()), (nid(1, 9), vec![nid(1, 9), nid(1, 8)]), "{told:?}");
            assert!(runner.node.peer(&shared).is_none() && runner.node.ni(&shared).is_some());
            let warned: Vec<_> = std::iter::from_fn(|| runner.node.poll_difference()).collect();
            let own: Vec<_> = told.iter().filter(|nid| runner.node.ni(nid).is_some()).copied().collect();
            assert_eq!(warned.iter().map(|told| told.own.clone()).collect::<Vec<_>>(), [own], "{told:?}");
            assert!(warned[0].to_string().contains(&shared.to_string()), "{}", warned[0]);
        }
    }
}

/// So many NIDs on nets of 200 hosts.
fn many(count: u16) -> Vec<Nid> {
    (0..count).map(|index| nid(1 + index / 200, (index % 200 + 2) as u8)).collect()
}

/// The header, and entry 0, which names no NI.
const FIRST_BYTES: usize = 32;

/// What a peer that tells this says of itself is refused as a whole.
#[track_caller]
fn check_too_many(told: &[Nid], bytes: &[u8]) {
    let mut runner = runner();
    let request = discover(&mut runner, told[0]);
    assert_eq!(answer(&mut runner, told[0], bytes), [BUFFER_BYTES_MIN], "it is not asked once more");
    let result = runner.result(request);
    assert!(matches!(&result, Some(Err(RequestError::PingAnswer { .. }))), "{result:?}");
    assert_eq!(nids(&runner, told[0]), told[..1]);
    assert!(runner.node.peers().count() == 1 && runner.node.push_room_bytes() <= BUFFER_BYTES_MAX);
}

#[test]
fn ten_thousand_entries_are_refused_whether_they_are_there_or_not() {
    let told = many(10_000);
    let with_count = |mut bytes: Vec<u8>| {
        bytes[12..16].copy_from_slice(&10_001_u32.to_le_bytes());
        bytes
    };
    check_too_many(&told, &with_count(info(1, &told[..250])));
    let entries = told.chunks(4000).flat_map(|some| info(1, some).split_off(FIRST_BYTES));
    let bytes = info(1, &[]).into_iter().chain(entries).collect::<Vec<_>>();
    assert_eq!(bytes.len(), FIRST_BYTES + 10_000 * SMALL_ENTRY_BYTES);
    check_too_many(&told, &with_count(bytes));
}

#[test]
fn of_the_most_entries_there_may_be_so_many_are_kept_as_a_peer_may_have() {
    let mut runner = runner();
    let told = many(ENTRIES_MAX as u16 - 1);
    let request = discover(&mut runner, told[0]);
    let bytes = info(1, &told);
    assert_eq!(
        answer(&mut runner, told[0], &bytes),
        [BUFFER_BYTES_MIN, bytes.len()],
        "it is asked once more"
    );
    assert!(runner.result(request).is_some(), "it ends");
    assert_eq!(nids(&runner, told[0]), told[..TOLD_MAX]);
    assert!(runner.node.peers().count() == 1 && runner.node.push_room_bytes() <= BUFFER_BYTES_MAX);
}

/// A peer that has told which NIDs are its own keeps them until it tells otherwise.
#[test]
fn of_two_peers_that_claim_one_nid_the_first_keeps_it_until_it_tells_otherwise() {
    let mut runner = runner();
    let (honest, shared, other) = (nid(1, 8), nid(2, 8), nid(1, 9));
    let own = info(1, &[honest, shared]);
    discover(&mut runner, honest);
    answer(&mut runner, honest, &own);
    assert_eq!(answer(&mut runner, shared, &own).len(), 1);
    for sequence in 1..4 {
        discover(&mut runner, other);
        answer(&mut runner, other, &info(sequence, &[other, shared]));
        runner.advance(std::time::Duration::from_secs(1));
        // The NID is asked, and says so again.
        assert_eq!(answer(&mut runner, shared, &own).len(), 1);
        assert_eq!(nids(&runner, shared), [honest, shared]);
        assert_eq!(nids(&runner, other), [other]);
        let marked = [honest, other].map(|nid| runner.node.peer(&nid).unwrap().is(peer_state::BAD_CONFIG));
        assert_eq!(marked, [true; 2], "both are marked");
        assert_eq!(runner.node.discovery_counters().contradicted, sequence.into());
    }
    // The peer has lost the NID to the other one: both say so, and the NID.
    discover(&mut runner, honest);
    answer(&mut runner, honest, &info(2, &[honest]));
    discover(&mut runner, other);
    answer(&mut runner, other, &info(4, &[other, shared]));
    runner.advance(std::time::Duration::from_secs(1));
    answer(&mut runner, shared, &info(4, &[other, shared]));
    assert_eq!((nids(&runner, shared), nids(&runner, honest)), (vec![other, shared], vec![honest]));
    assert!(!runner.node.peer(&other).unwrap().is(peer_state::BAD_CONFIG));
}

/// The primary NID is the first that a peer tells, unless it is locked.
#[test]
fn a_primary_nid_that_changes_is_followed_and_a_locked_one_stays() {
    for is_locked in [false, true] {
        let mut runner = runner();
        let (first, second) = (nid(1, 9), nid(2, 9));
        discover(&mut runner, first);
        answer(&mut runner, first, &info(1, &[first, second]));
        answer(&mut runner, second, &info(1, &[first, second]));
        if is_locked {
            let announced = runner.start(Request::Announce { nids: vec![first] });
            assert!(matches!(runner.result(announced), Some(Ok(_))));
        }
        for (sequence, told) in [(2, [second, first]), (3, [first, second]), (4, [second, first])] {
            discover(&mut runner, first);
            let to = nids(&runner, first)[0];
            answer(&mut runner, to, &info(sequence, &told));
            let peer = runner.node.peer(&first).unwrap();
            assert_eq!(
                peer.primary,
                if is_locked { first } else { told[0] },
                "locked: {is_locked}, {sequence}"
            );
            assert_eq!((peer.nis.len(), runner.node.peers().count()), (2, 1));
        }
    }
}

/// A peer tells a NID of another one, which is known as that alone: its discovery ends at once, and whose the
/// NID is follows.
#[test]
fn no_discovery_waits_for_the_answer_of_another_peer() {
    let (known, new) = (nid(1, 9), nid(2, 9));
    let answers =
        [(Some(vec![known, new]), vec![known, new]), (Some(vec![known]), vec![new]), (None, vec![new])];
    for (told, expected) in answers {
        let mut runner = runner();
        discover(&mut runner, known);
        answer(&mut runner, known, &info(1, &[known]));
        let request = discover(&mut runner, new);
        answer(&mut runner, new, &info(2, &[known, new]));
        let Some(Ok(Outcome::Pinged(pinged))) = runner.result(request) else { panic!("it has no end") };
        assert_eq!((pinged.nids, pinged.primary), (vec![known, new], new));
        match told {
            Some(nids) => drop(answer(&mut runner, known, &info(2, &nids))),
            None => runner.advance(std::time::Duration::from_secs(200)),
        }
        assert_eq!((nids(&runner, new), runner.node.request_count()), (expected, 0));
    }
}

/// A peer that has answered keeps what it has told, though its discovery waits for the word of another one.
#[test]
fn a_liar_takes_no_peer_that_has_answered() {
    let (honest, liar, claimed) = (nid(1, 9), nid(1, 8), nid(2, 9));
    let mut runner = runner();
    discover(&mut runner, liar);
    answer(&mut runner, liar, &info(1, &[liar, claimed]));
    discover(&mut runner, honest);
    answer(&mut runner, honest, &info(1, &[honest, claimed]));
    answer(&mut runner, liar, &info(2, &[liar, claimed, honest]));
    assert_eq!(nids(&runner, honest), [honest]);
}

/// Two peers that claim a NID of each other are asked about each other. What they say again has no peer asked
/// anew; where it is new each time the request ends all the same.
#[test]
fn peers_that_claim_each_others_nids_hold_up_no_discovery() {
    let [first, second] = [9, 8].map(|host| [nid(1, host), nid(2, host)]);
    let both = [(first, second[1]), (second, first[1])];
    for grows in [false, true] {
        let mut runner = runner();
        for (own, _) in both {
            discover(&mut runner, own[0]);
            answer(&mut runner, own[0], &info(1, &own));
        }
        let request = discover(&mut runner, first[0]);
        let (mut asked, mut has_ended) = (0, false);
        for round in 0..300 {
            let sequence = if grows { 2 + round } else { 2 };
            for (own, claimed) in both {
                let told = info(sequence, &[own[0], own[1], claimed]);
                asked += answer(&mut runner, own[0], &told).len();
            }
            has_ended |= runner.result(request).is_some();
            runner.advance(std::time::Duration::from_secs(1));
        }
        assert!(has_ended, "{grows}: {asked} pings");
        assert!(grows || asked < 6, "{asked} pings");
        for (own, _) in both {
            assert_eq!(nids(&runner, own[0]), own);
        }
    }
}
