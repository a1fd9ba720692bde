//! Wires that lose, double and reorder, and peers that vanish.

use alloc::format;
use alloc::vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, NiId, Path, PathReport, Status};
use lnet_wire::frame::Kind;

use super::wire::{Faults, Frame, Network, Node, ROTOR};

const SECOND: Duration = Duration::from_secs(1);

fn pair(seed: u64, shards: (u8, u8)) -> Network {
    Network::new(vec![Node::new(1, 1, shards.0), Node::new(2, 1, shards.1)], seed)
}

fn put_many(network: &mut Network, count: u64, lengths: &[u32]) {
    let to = network.nodes[1].nids[0];
    for number in 0..count {
        let length = lengths[number as usize % lengths.len()];
        let now = network.now;
        let portal = if number % 3 == 0 { ROTOR } else { 4 };
        network.nodes[0].put(now, &to, 0, portal, number, length);
    }
}

#[test]
fn one_message_takes_one_frame_each_way_once_a_session_is_there() {
    let mut network = pair(1, (1, 1));
    put_many(&mut network, 1, &[100]);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 1);
    let count = |kind| network.frames(kind);
    assert_eq!([count(Kind::Hello), count(Kind::Welcome), count(Kind::Data), count(Kind::Ack)], [1; 4]);
    let to = network.nodes[1].nids[0];
    let now = network.now;
    network.nodes[0].put(now, &to, 0, 4, 1, 0);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 2);
    assert_eq!(
        [network.frames(Kind::Hello), network.frames(Kind::Data), network.frames(Kind::Ack)],
        [1, 2, 2]
    );
}

/// A wire takes 5 us each way: messages with none before them have ended two ways later, one with others
/// before it 10 us after that, and no message waits as long as fragments do.
#[test]
fn a_message_that_asks_for_no_ack_ends_as_soon_as_it_can() {
    let mut network = pair(1, (1, 1));
    put_many(&mut network, 1, &[100]);
    network.run(SECOND);
    let to = network.nodes[1].nids[0];
    let put_some = |network: &mut Network, first: u64, count: u64| {
        let now = network.now;
        (first..first + count).for_each(|number| {
            network.nodes[0].put(now, &to, 0, 4, number, 64);
        });
        network.nodes[0].sent().len()
    };
    let us = Duration::from_micros;
    let ended = |network: &mut Network, time: Duration| {
        network.run(time);
        network.nodes[0].sent().len()
    };
    for count in [1, 5] {
        let before = put_some(&mut network, 10 * count, count);
        assert_eq!(ended(&mut network, us(9)), before);
        assert_eq!(ended(&mut network, us(2)), before + count as usize);
        network.run(SECOND);
    }
    // The second one is on its way when the first one is acknowledged, which brings that on.
    let before = put_some(&mut network, 100, 1);
    network.run(us(3));
    put_some(&mut network, 101, 1);
    assert_eq!(ended(&mut network, us(8)), before + 1);
    assert_eq!(ended(&mut network, us(11)), before + 1, "it waits for a frame to travel with");
    assert_eq!(ended(&mut network, us(2)), before + 2);
    network.run(SECOND);
    network.nodes.iter().for_each(Node::assert_idle);
}

/// The application answers in the turn in which it sees a message: the answer acknowledges it.
#[test]
fn an_answer_acknowledges_what_it_answers() {
    let mut network = pair(1, (1, 1));
    put_many(&mut network, 1, &[100]);
    let (there, back) = (network.nodes[1].nids[0], network.nodes[0].nids[0]);
    let now = network.now;
    network.nodes[1].put(now, &back, 0, 4, 1, 64);
    network.run(SECOND);
    let (now, acks) = (network.now, network.frames(Kind::Ack));
    network.nodes[0].put(now, &there, 0, 4, 10, 64);
    network.run(Duration::from_micros(5));
    assert!(network.nodes[1].arrived().iter().any(|(number, _)| *number == 10));
    let now = network.now;
    network.nodes[1].put(now, &back, 0, 4, 11, 64);
    network.run(Duration::from_micros(4));
    assert_eq!(network.frames(Kind::Ack), acks);
    network.run(Duration::from_micros(1));
    assert_eq!(network.nodes[0].sent().len(), 2);
}

#[test]
fn small_messages_that_are_ready_together_share_frames() {
    let mut network = pair(1, (1, 1));
    let to = network.nodes[1].nids[0];
    for number in 0..40 {
        let now = network.now;
        network.nodes[0].put(now, &to, 0, 4, number, 8);
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 40);
    // Twelve of 120 bytes fit a datagram of 1472.
    assert_eq!(network.frames(Kind::Data), 4);
    assert_eq!(network.nodes[0].counters()[0].messages_bundled, 36);
}

/// A frame costs the kernel as much as some kilobytes: whatever fits shares one. Runs spare that already,
/// where the message leaves in one.
#[test]
fn messages_that_fit_share_a_long_frame() {
    const ALL: u32 = 0;
    for (runs, run_min, length, frames) in [
        (false, ALL, 4096, 10),
        (false, ALL, 2700, 7),
        (false, ALL, 4400, 20),
        (true, ALL, 4096, 20),
        (true, 4096, 4096, 20),
        (true, 4097, 4096, 10),
        (true, u32::MAX, 4096, 10),
    ] {
        let mut network = pair(1, (1, 1));
        let (now, nid) = (network.now, network.nodes[1].nids[0]);
        network.nodes[1].remove_ni(now, 0);
        network.nodes[1].runs = runs;
        network.nodes[1].add_ni(0, nid);
        network.nodes[0].shards[0].xfer.set_run_min(NiId(0), run_min);
        network.nodes.iter_mut().for_each(|node| node.set_datagram_max(8972));
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, 4, 20, 8);
        network.run(SECOND);
        let before = network.frames(Kind::Data);
        put_many(&mut network, 20, &[length]);
        network.run(SECOND);
        let what = format!("{length} bytes, runs: {runs} from {run_min} on");
        assert_eq!(network.frames(Kind::Data) - before, frames, "{what}");
        assert_eq!(network.nodes[0].counters()[0].frames_resent, 0);
    }
}

#[test]
fn long_messages_arrive_whole() {
    let mut network = pair(1, (1, 1));
    put_many(&mut network, 6, &[1 << 20, 1289, 1288, 64 << 10, 0, 1000]);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 6);
    let counters = (network.nodes[0].counters(), network.nodes[1].counters());
    assert_eq!(counters.0[0].frames_resent, 0, "{counters:?}");
}

/// A wire that loses three frames of ten leaves half of all questions for a session without an answer, and
/// two seconds have room for eight: seeds 227 and 291 lose all of these. Messages have more time, as those of
/// real nodes do.
#[test]
fn nothing_is_lost_or_doubled_on_a_bad_wire() {
    for seed in (0..60).chain([227, 291]) {
        let node = |host, shards| Node::patient(host, 1, shards, SECOND * 20);
        let nodes = vec![node(1, 1 + seed as u8 % 3), node(2, 1 + seed as u8 / 3 % 3)];
        let mut network = Network::new(nodes, seed);
        network.faults = Faults {
            lost: [0, 10, 100, 300][seed as usize % 4],
            doubled: [0, 200][seed as usize % 2],
            late: [0, 300][seed as usize / 2 % 2],
        };
        put_many(&mut network, 80, &[0, 64, 1, 5000, 100, 40_000, 3, 200_000]);
        network.run(SECOND * 30);
        network.assert_all_arrived(0, 1, 80);
    }
}

#[test]
fn both_ways_at_once() {
    for seed in 0..20 {
        let mut network = pair(seed, (2, 2));
        network.faults = Faults { lost: 100, doubled: 100, late: 100 };
        let (a, b) = (network.nodes[0].nids[0], network.nodes[1].nids[0]);
        let now = network.now;
        for number in 0..40 {
            let length = [0, 700, 20_000][number as usize % 3];
            network.nodes[0].put(now, &b, 0, 4, number, length);
            network.nodes[1].put(now, &a, 0, ROTOR, number, length);
        }
        network.run(SECOND * 30);
        network.assert_all_arrived(0, 1, 40);
        network.assert_all_arrived(1, 0, 40);
    }
}

#[test]
fn a_peer_that_is_not_there_is_given_up() {
    let mut network = pair(1, (1, 1));
    network.dead = vec![0];
    put_many(&mut network, 2, &[10]);
    network.run(SECOND * 3);
    let never = Status::NeverSent(Cause::Timeout);
    assert_eq!(network.nodes[0].sent(), [(0, never), (1, never)]);
    network.run(SECOND * 10);
    network.nodes[0].assert_idle();
    assert!(network.frames(Kind::Hello) < 12, "{}", network.frames(Kind::Hello));
}

#[test]
fn a_peer_that_vanishes_leaves_messages_of_unknown_fate() {
    let mut network = pair(1, (1, 1));
    put_many(&mut network, 1, &[10]);
    network.run(SECOND);
    network.dead = vec![0];
    let (to, now) = (network.nodes[1].nids[0], network.now);
    network.nodes[0].put(now, &to, 0, 4, 1, 100_000);
    network.run(SECOND * 3);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok), (1, Status::Unknown(Cause::Timeout))]);
    network.nodes[0].assert_idle();
}

#[test]
fn a_dead_rail_is_gone_around() {
    let mut network = pair(1, (1, 1));
    let nids = network.nodes[1].nids.clone();
    for number in 0..2 {
        let now = network.now;
        network.nodes[0].put(now, &nids[number as usize], number, 4, u64::from(number), 10);
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 2);
    network.dead = vec![0];
    let now = network.now;
    // The peer was heard from last by the other rail.
    network.nodes[0].put(now, &nids[1], 1, 4, 2, 10);
    network.nodes[0].put(now, &nids[0], 0, 4, 3, 300_000);
    network.run(SECOND * 3);
    network.assert_all_arrived(0, 1, 4);
}

#[test]
fn after_a_break_the_first_fragment_comes_first() {
    let mut network = pair(1, (1, 1));
    put_many(&mut network, 1, &[10]);
    network.run(SECOND / 10);
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[0].put(now, &to, 0, 4, 1, 1 << 20);
    network.dead = vec![0];
    network.run(SECOND / 20);
    let lost = network.log.len();
    network.dead = vec![];
    while network.nodes[1].shards[0].xfer.usage().partials == 0 {
        assert!(network.step(network.now + SECOND));
    }
    let needed = network.log.len() - lost;
    // It is in the first window.
    assert!(needed <= 16, "{needed} frames until the receiver knows what they are of");
    network.run(SECOND / 4);
    network.assert_all_arrived(0, 1, 2);
}

#[test]
fn frames_of_a_failover_fit_the_rail_that_they_take() {
    const SHORT: u32 = 1000;
    let mut network = pair(1, (1, 1));
    let nids = network.nodes[1].nids.clone();
    for node in &mut network.nodes {
        node.shards[0].xfer.set_datagram_max(NiId(1), SHORT);
    }
    for number in [1, 0, 1] {
        let (now, count) = (network.now, network.nodes[0].sent().len() as u64);
        network.nodes[0].put(now, &nids[number as usize], number, 4, count, 10);
        network.run(SECOND / 10);
    }
    network.dead = vec![0];
    for number in 3..13 {
        let now = network.now;
        let length = if number == 3 { 100_000 } else { 400 };
        network.nodes[0].put(now, &nids[0], 0, 4, number, length);
    }
    network.run(SECOND * 3);
    network.assert_all_arrived(0, 1, 13);
    let by_short = network.log.iter().filter(|frame| frame.ni.0 == 1);
    let longest = by_short.map(Frame::length).max();
    assert!(longest.is_some_and(|length| length > SHORT / 2 && length <= SHORT), "{longest:?}");
}

#[test]
fn a_message_that_is_half_there_when_its_sender_gives_up_ends_at_its_receiver() {
    let mut network = pair(1, (1, 1));
    put_many(&mut network, 1, &[200_000]);
    while network.nodes[1].shards[0].xfer.usage().partials == 0 {
        assert!(network.step(network.now + SECOND));
    }
    network.dead = vec![0];
    network.run(SECOND * 3);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Unknown(Cause::Timeout))]);
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Unknown(Cause::Timeout))]);
    network.nodes[1].assert_idle();
}

/// Frames that overtake the first one of their message are kept and received once that is there: nothing of
/// it is sent again, also where the shard drops the message.
#[test]
fn frames_that_overtake_the_first_one_are_not_sent_again() {
    for drops in [vec![], vec![4]] {
        let mut network = pair(1, (1, 1));
        put_many(&mut network, 1, &[0]);
        network.run(SECOND);
        network.nodes[1].shards[0].up.drops = drops.clone();
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, 4, 1, 5000);
        let mut frames = network.nodes[0].poll(now);
        assert_eq!(frames.len(), 4);
        frames.rotate_left(1);
        for frame in frames {
            network.nodes[1].receive(now, &frame);
        }
        network.run(SECOND);
        assert_eq!(network.nodes[1].counters()[0].frames_buffered, 3);
        assert_eq!(network.nodes[0].counters()[0].frames_resent, 0);
        if drops.is_empty() {
            network.assert_all_arrived(0, 1, 2);
        }
        network.nodes.iter().for_each(Node::assert_idle);
    }
}

#[test]
fn a_receiver_that_was_only_slow_is_not_sent_everything_again() {
    let mut network = pair(1, (1, 1));
    put_many(&mut network, 4, &[1 << 20]);
    network.run(SECOND / 10_000);
    // It hears nothing for some probes, and then everything.
    network.stalled = Some(1);
    network.run(SECOND / 50);
    assert!(network.nodes[0].counters()[0].probes >= 2);
    network.stalled = None;
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 4);
    let resent = network.nodes[0].counters()[0].frames_resent;
    assert!(resent < 40, "{resent} frames");
}

/// Rails and queues that take differently long let frames overtake each other by more than a round trip.
#[test]
fn a_wire_that_only_reorders_has_little_sent_again() {
    let mut network = pair(3, (1, 1));
    network.faults.late = 200;
    let to = network.nodes[1].nids[0];
    for number in 0..2000 {
        let now = network.now;
        network.nodes[0].put(now, &to, 0, 4, number, 1000);
        network.run(SECOND / 100_000);
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 2000);
    let counters = network.nodes[0].counters()[0];
    let (sent, resent) = (counters.frames_sent, counters.frames_resent);
    assert!(resent * 50 < sent, "{resent} of {sent} frames {counters:?} {:?}", network.nodes[1].counters());
}

#[test]
fn a_session_is_renewed_around_a_dead_rail() {
    let mut network = pair(1, (1, 1));
    let nids = network.nodes[1].nids.clone();
    let put = |network: &mut Network, rail: u16, number: u64, length: u32| {
        let now = network.now;
        network.nodes[0].put(now, &nids[usize::from(rail)], rail, 4, number, length);
    };
    put(&mut network, 0, 0, 10);
    put(&mut network, 1, 1, 10);
    network.run(SECOND);
    // Long enough for the stream to count as closed, and the token as old.
    network.dead = vec![0];
    network.run(SECOND * 3);
    put(&mut network, 1, 2, 10);
    network.run(SECOND / 10);
    network.run(SECOND * 3);
    put(&mut network, 0, 3, 50_000);
    network.run(SECOND * 2);
    network.assert_all_arrived(0, 1, 4);
}

/// The path from the second interface to the peer's first NID has never had a session; the NID answers by the
/// first.
#[test]
fn a_path_that_was_never_up_has_the_peer_of_its_nid() {
    let mut network = pair(1, (1, 1));
    let to = network.nodes[1].nids[0];
    let now = network.now;
    network.nodes[0].put(now, &to, 0, 4, 0, 10);
    network.run(SECOND / 10);
    network.dead = vec![1];
    for number in 1..4 {
        let now = network.now;
        network.nodes[0].put(now, &to, 1, 4, number, 10_000);
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 4);
}

/// The paths of two nodes are reported as silent and as answering, and another one is asked for.
#[test]
fn silence_is_reported_and_the_choice_is_obeyed() {
    let mut network = pair(1, (1, 1));
    let nids = network.nodes[1].nids.clone();
    let put = |network: &mut Network, rail: u16, number: u64| {
        let now = network.now;
        network.nodes[0].put(now, &nids[usize::from(rail)], rail, 4, number, 10);
    };
    put(&mut network, 0, 0);
    put(&mut network, 1, 1);
    network.run(SECOND / 10);
    let by = |rail: u16| Path { ni: NiId(rail), peer: nids[usize::from(rail)] };
    let up = &network.nodes[0].shards[0].up;
    let answered = |path: Path| {
        let is_it = |(of, report): &&(Path, PathReport)| {
            *of == path && matches!(report, PathReport::Answers { round_trip: Some(_) })
        };
        up.reports.iter().any(|report| is_it(&report))
    };
    assert!(answered(by(0)) && answered(by(1)), "{:?}", up.reports);
    assert_eq!(up.reroutes, []);

    network.nodes[0].shards[0].up.reports.clear();
    network.dead = vec![0];
    put(&mut network, 0, 2);
    network.run(SECOND / 10);
    let up = &network.nodes[0].shards[0].up;
    assert_eq!(up.reports[0], (by(0), PathReport::Silent));
    assert!(up.reports.iter().any(|(path, report)| *path == by(1) && *report != PathReport::Silent));
    assert_eq!(up.reroutes[0], (by(0), vec![by(1)]));
    assert_eq!(up.sent.len(), 3);

    // Where it is to stay it stays.
    network.run(SECOND);
    network.nodes[0].shards[0].up.stays = true;
    put(&mut network, 0, 3);
    network.run(SECOND);
    let up = &network.nodes[0].shards[0].up;
    assert_eq!(up.sent.len(), 3, "it was not asked, or not obeyed");
}

#[test]
fn bulk_goes_around_a_rail_that_dies_under_it() {
    let mut network = pair(1, (1, 1));
    let nids = network.nodes[1].nids.clone();
    for number in 0..2 {
        let now = network.now;
        network.nodes[0].put(now, &nids[number as usize], number, 4, u64::from(number), 10);
    }
    network.run(SECOND / 10);
    for number in 2..22 {
        let now = network.now;
        let rail = number as u16 % 2;
        network.nodes[0].put(now, &nids[usize::from(rail)], rail, 4, number, 1 << 19);
    }
    network.run(SECOND / 100_000 * 3);
    assert!(network.nodes[1].arrived().len() < 20);
    network.dead = vec![0];
    let begun = network.now;
    while network.nodes[0].sent().len() < 22 {
        assert!(network.step(begun + SECOND), "{} messages have ended", network.nodes[0].sent().len());
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 22);
}

#[test]
fn a_stream_that_found_no_item_goes_on_when_others_end() {
    let mut network = pair(1, (1, 2));
    let to = network.nodes[1].nids[0];
    // The first of two streams takes all records there are, while nothing of it is acknowledged.
    put_many(&mut network, 1, &[10]);
    network.run(SECOND / 10);
    network.stalled = Some(1);
    let now = network.now;
    for number in 1..200 {
        network.nodes[0].put(now, &to, 0, ROTOR, number, 1 << 16);
    }
    network.run(SECOND / 1000);
    network.stalled = None;
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 200);
}
