//! Two rails of which one is worse: what is reported of it while nothing has timed out.

use alloc::vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, NiId, Path, PathReport, Status};

use super::wire::{Faults, Network, Node};

const SECOND: Duration = Duration::from_secs(1);

fn pair(seed: u64) -> Network {
    Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], seed)
}

/// Sends messages by the rails in turn, some at once, and by no other ones while a rail is silent; all
/// arrive. How often each rail was reported as lossy, and as slow.
fn send(network: &mut Network, count: u64, rails: &[u16], at_once: u64) -> [[usize; 2]; 2] {
    let nids = network.nodes[1].nids.clone();
    network.nodes[0].shards[0].up.stays = true;
    for number in 0..count {
        let (now, rail) = (network.now, rails[number as usize % rails.len()]);
        network.nodes[0].put(now, &nids[usize::from(rail)], rail, 4, number, 1400);
        if number % at_once == at_once - 1 {
            network.run(SECOND / 16_000 * at_once as u32);
            while network.nodes[0].shards[0].xfer.usage().messages > 64 {
                assert!(network.step(now + SECOND), "nothing moves");
            }
        }
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, count);
    let up = &network.nodes[0].shards[0].up;
    let times =
        |rail, of| up.reports.iter().filter(|(path, what)| (path.ni, *what) == (NiId(rail), of)).count();
    let found = [0, 1].map(|rail| [PathReport::Lossy, PathReport::Slow].map(|of| times(rail, of)));
    let counters = network.nodes[0].counters()[0];
    let sum = |at: usize| (found[0][at] + found[1][at]) as u64;
    assert!(counters.paths_lossy >= sum(0) && counters.paths_slow >= sum(1), "{counters:?}");
    found
}

/// Messages that take the rails in turn share frames as those of one rail do.
#[test]
fn messages_by_two_rails_share_frames() {
    const COUNT: u64 = 200;
    let frames = |rails: u64| {
        let mut network = pair(1);
        let nids = network.nodes[1].nids.clone();
        let put = |network: &mut Network, number: u64| {
            let (now, rail) = (network.now, number % rails);
            network.nodes[0].put(now, &nids[rail as usize], rail as u16, 4, number, 64);
        };
        // Sessions, and a window that is open.
        (0..16).for_each(|number| put(&mut network, number));
        network.run(SECOND);
        let before = network.nodes[0].counters()[0];
        (16..COUNT).for_each(|number| put(&mut network, number));
        network.run(SECOND);
        network.assert_all_arrived(0, 1, COUNT);
        let counters = network.nodes[0].counters()[0];
        let by_rail = |rail| {
            let frames = network.log.iter().filter(|frame| frame.ni == NiId(rail) && frame.lnet.is_some());
            frames.map(|frame| 1 + frame.records.len()).sum::<usize>()
        };
        assert_eq!(by_rail(1) as u64, if rails == 2 { COUNT / 2 } else { 0 });
        counters.frames_sent - before.frames_sent
    };
    let [one, two] = [1, 2].map(frames);
    assert!(two <= one + 2, "{two} frames by two rails, {one} by one");
}

#[test]
fn a_rail_that_loses_a_tenth_beside_a_clean_one_is_reported() {
    for seed in 0..10 {
        let mut network = pair(seed);
        network.rails[0].0 = 100;
        let [[lossy, _], clean] = send(&mut network, 4000, &[0, 1], 32);
        assert!(lossy >= 3, "seed {seed}: {lossy} times");
        assert_eq!(clean, [0, 0], "seed {seed}");
    }
}

/// Each loss is found by a probe.
#[test]
fn a_rail_that_loses_single_messages_is_reported() {
    let mut network = pair(1);
    network.rails[0].0 = 100;
    let [[lossy, _], clean] = send(&mut network, 4000, &[0, 1], 1);
    assert!(lossy >= 3, "{lossy} times");
    assert_eq!(clean, [0, 0]);
}

#[test]
fn a_rail_that_is_well_again_is_reported_no_more() {
    let mut network = pair(1);
    network.rails[0].0 = 100;
    let [[before, _], _] = send(&mut network, 4000, &[0, 1], 32);
    network.rails[0].0 = 0;
    let up = &mut network.nodes[0].shards[0].up;
    (up.reports, up.sent) = (vec![], vec![]);
    network.nodes[1].shards[0].up.arrived.clear();
    network.nodes[0].reset_numbers();
    let [[after, _], _] = send(&mut network, 4000, &[0, 1], 32);
    // The window in which it became well has losses.
    assert!(before >= 3 && after <= 1, "{before} times before, {after} times after");
}

#[test]
fn rails_that_lose_alike_and_a_sole_one_are_not_reported() {
    for seed in 0..10 {
        let mut network = pair(seed);
        network.faults.lost = 100;
        assert_eq!(send(&mut network, 4000, &[0, 1], 32), [[0; 2]; 2], "seed {seed}");
        let mut network = pair(seed);
        network.faults.lost = 100;
        assert_eq!(send(&mut network, 4000, &[0], 32), [[0; 2]; 2], "seed {seed}");
    }
}

#[test]
fn a_rail_whose_round_trip_is_far_longer_is_reported() {
    for (at_once, delay_us) in [(1, 8000), (32, 8000), (32, 30_000)] {
        let mut network = pair(1);
        network.rails[0].1 = delay_us * 1000;
        let [slow, fast] = send(&mut network, 4000, &[0, 1], at_once);
        assert!(
            slow[0] + slow[1] >= 3,
            "{at_once} at once, {delay_us} us: {slow:?} {:?} {:?}",
            network.nodes[0].counters(),
            network.nodes[0].shards[0].up.reports
        );
        assert_eq!(fast, [0, 0], "{at_once} at once, {delay_us} us");
    }
}

#[test]
fn rails_that_lose_nothing_are_not_reported() {
    for seed in 0..10 {
        for faults in [Faults::default(), Faults { doubled: 100, late: 300, ..Faults::default() }] {
            let mut network = pair(seed);
            network.faults = faults;
            // Longer, but not by much.
            network.rails[1].1 = 400_000;
            assert_eq!(send(&mut network, 4000, &[0, 1], 32), [[0; 2]; 2], "seed {seed}");
        }
    }
}

/// A receiver that is not scheduled for a while has lost nothing.
#[test]
fn rails_to_a_receiver_that_stalls_are_not_reported() {
    let mut network = pair(1);
    let nids = network.nodes[1].nids.clone();
    for number in 0..4000 {
        let (now, rail) = (network.now, number as u16 % 2);
        network.nodes[0].put(now, &nids[usize::from(rail)], rail, 4, number, 1400);
        if number % 32 == 31 {
            network.stalled = Some(1);
            network.run(SECOND / 400);
            network.stalled = None;
            network.run(SECOND / 100);
        }
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 4000);
    let is_ill = |report| matches!(report, PathReport::Lossy | PathReport::Slow);
    let reports = &network.nodes[0].shards[0].up.reports;
    assert!(!reports.iter().any(|(_, report)| is_ill(*report)), "{reports:?}");
}

/// A rail was silent, and the stream went on by the other one, which ended its silence. What goes by the
/// first one later is acknowledged: it answers again, and is told once.
#[test]
fn a_rail_that_was_silent_answers_again() {
    let mut network = pair(1);
    let nids = network.nodes[1].nids.clone();
    let silent = Path { ni: NiId(0), peer: nids[0] };
    let reports = |network: &mut Network| {
        let reports = core::mem::take(&mut network.nodes[0].shards[0].up.reports);
        let of_it = reports.into_iter().filter(|(path, _)| *path == silent).map(|(_, report)| report);
        of_it.collect::<alloc::vec::Vec<_>>()
    };
    let mut number = 0;
    let mut put = |network: &mut Network, rails: &[u16]| {
        for rail in rails {
            let now = network.now;
            network.nodes[0].put(now, &nids[usize::from(*rail)], *rail, 4, number, 10);
            number += 1;
            network.run(SECOND / 10);
        }
    };
    put(&mut network, &[0, 1]);
    reports(&mut network);
    for round in 0..3 {
        network.dead = vec![0];
        put(&mut network, &[0]);
        let told = reports(&mut network);
        assert!(told.contains(&PathReport::Silent), "round {round}: {told:?}");
        network.dead = vec![];
        network.run(SECOND * 2);
        put(&mut network, &[1]);
        let told = reports(&mut network);
        assert_eq!(told, [], "round {round}: nothing went by it");
        put(&mut network, &[0, 0]);
        let told = reports(&mut network);
        let is_answer = |report: &PathReport| matches!(report, PathReport::Answers { .. });
        assert!(told.len() == 1 && told.iter().all(is_answer), "round {round}: {told:?}");
    }
    network.assert_all_arrived(0, 1, number);
}

/// A rail loses all that comes back. The sender has no session by the other one, and perhaps none at all; its
/// shard knows that the other one leads to the same peer.
#[test]
fn a_rail_without_a_session_is_taken_when_the_other_one_loses_all_that_comes_back() {
    for has_session in [true, false] {
        for seed in 0..10 {
            let mut network = pair(seed);
            let (own, nids) = (network.nodes[0].nids.clone(), network.nodes[1].nids.clone());
            network.nodes[0].shards[0].up.known =
                [0, 1].map(|rail| Path { ni: NiId(rail), peer: nids[usize::from(rail)] }).into();
            let before = u64::from(has_session) * 10;
            let put = |network: &mut Network, number| {
                let now = network.now;
                network.nodes[0].put(now, &nids[0], 0, 4, number, 4000);
            };
            (0..before).for_each(|number| put(&mut network, number));
            network.run(SECOND / 10);
            network.unreached = vec![own[0]];
            (before..before + 20).for_each(|number| put(&mut network, number));
            network.run(SECOND * 19 / 10);
            network.assert_all_arrived(0, 1, before + 20);
            // Later messages find the rail that answers.
            put(&mut network, before + 20);
            network.run(SECOND);
            network.assert_all_arrived(0, 1, before + 21);
        }
    }
}

/// Both nodes have found the rail silent that is whole by now, and the other one is cut: what each says of it
/// to the other one would go by the cut one for ever, since that is the one that neither finds silent.
#[test]
fn what_is_repeated_is_acknowledged_by_each_path_in_turn() {
    for seed in 0..10 {
        let mut network = pair(seed);
        let nids = [0, 1].map(|node| network.nodes[node].nids.clone());
        let put = |network: &mut Network, rail: u16, number| {
            for (node, there) in [(0, 1), (1, 0)] {
                let (now, to) = (network.now, nids[there][usize::from(rail)]);
                network.nodes[node].put(now, &to, rail, 4, number, 10);
            }
        };
        (0..4).for_each(|number| put(&mut network, number as u16 % 2, number));
        network.run(SECOND / 10);
        network.dead = vec![1];
        put(&mut network, 1, 4);
        network.run(SECOND / 20);
        network.dead = vec![0];
        (5..9).for_each(|number| put(&mut network, number as u16 % 2, number));
        network.run(SECOND / 2);
        network.assert_all_arrived(0, 1, 9);
        network.assert_all_arrived(1, 0, 9);
    }
}

/// A receiver has found the rail silent that is whole by now, and knows nothing yet of the other one, which
/// is cut since. Its first acknowledgement is heard: a sender that has to repeat may take cut rails for long.
#[test]
fn what_came_by_a_rail_that_was_silent_is_acknowledged_there_as_well() {
    let mut network = pair(1);
    let nids = [0, 1].map(|node| network.nodes[node].nids.clone());
    let put = |network: &mut Network, node: usize, rail: u16, number| {
        let (now, to) = (network.now, nids[1 - node][usize::from(rail)]);
        network.nodes[node].put(now, &to, rail, 4, number, 10);
    };
    (0..4).for_each(|number| put(&mut network, number as usize % 2, number as u16 / 2, number / 2));
    network.run(SECOND / 10);
    network.dead = vec![1];
    put(&mut network, 1, 1, 2);
    network.run(SECOND / 20);
    network.assert_all_arrived(1, 0, 3);
    network.dead = vec![0];
    put(&mut network, 0, 1, 2);
    network.run(SECOND / 1000);
    network.assert_all_arrived(0, 1, 3);
    assert_eq!(network.nodes[0].counters()[0].probes, 0);
}

/// Nothing was sent for so long that sessions are old: by the one that is left another one is asked for, also
/// where the peer was last heard by the rail that is cut since.
#[test]
fn an_old_session_by_the_rail_that_is_left_is_renewed() {
    for (last, shards) in [(0, 1), (1, 1), (0, 2)] {
        let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, shards)], 1);
        let nids = network.nodes[1].nids.clone();
        let mut number = 0;
        let mut put = |network: &mut Network, rail: u16| {
            let now = network.now;
            network.nodes[0].put(now, &nids[usize::from(rail)], rail, 4, number, 10);
            number += 1;
            network.run(SECOND / 10);
        };
        [1 - last, last].into_iter().for_each(|rail| put(&mut network, rail));
        network.run(SECOND * 100);
        network.dead = vec![last];
        put(&mut network, last);
        network.run(SECOND);
        network.assert_all_arrived(0, 1, 3);
    }
}

/// No shard knows another path: none is made up.
#[test]
fn a_sole_rail_that_loses_all_that_comes_back_is_not_left() {
    let mut network = pair(1);
    let (own, nids) = (network.nodes[0].nids.clone(), network.nodes[1].nids.clone());
    network.unreached = vec![own[0]];
    let now = network.now;
    network.nodes[0].put(now, &nids[0], 0, 4, 0, 10);
    network.run(SECOND * 3);
    assert!(network.log.iter().all(|frame| frame.ni == NiId(0)));
    assert!(matches!(network.nodes[0].sent()[..], [(0, Status::NeverSent(Cause::Timeout))]));
}
