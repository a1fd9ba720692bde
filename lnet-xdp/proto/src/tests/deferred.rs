//! Messages that wait at their receiver.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, RxId, Status, Verdict};
use lnet_wire::frame::Kind;

use super::wire::{Faults, Frame, Network, Node, ROTOR, Up};

const SECOND: Duration = Duration::from_secs(1);
const LAZY: u32 = 7;

fn network(seed: u64) -> Network {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], seed);
    network.nodes[1].shards[0].up.delays = vec![LAZY];
    network
}

fn put(network: &mut Network, number: u64, length: u32) {
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[0].put(now, &to, 0, LAZY, number, length);
}

/// Gives every delayed message its verdict.
fn resume(network: &mut Network, verdict: impl Fn(&lnet_wire::Header) -> Verdict) {
    let now = network.now;
    let shard = &mut network.nodes[1].shards[0];
    for (rx, header) in core::mem::take(&mut shard.up.delayed) {
        shard.xfer.resume(now, RxId(rx), verdict(&header), &mut shard.up);
    }
    shard.replay(now);
}

fn deliver(header: &lnet_wire::Header) -> Verdict {
    Verdict::Deliver(Up::span(header))
}

#[test]
fn a_message_that_is_wanted_soon_is_buffered_and_not_sent_again() {
    let mut network = network(1);
    put(&mut network, 0, 5000);
    while network.nodes[1].shards[0].up.delayed.is_empty() {
        assert!(network.step(network.now + SECOND));
    }
    resume(&mut network, deliver);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 1);
    assert_eq!(network.frames(Kind::Deferred), 0);
    assert_eq!(network.nodes[0].counters()[0].frames_resent, 0);
}

/// What a shard asks its siblings takes long where those are not scheduled: the frames wait, and are not
/// lost, also where more overtake them than one acknowledgement tells of.
#[test]
fn frames_that_overtake_delayed_messages_do_not_have_them_sent_again() {
    for (others, apart_ns) in [(60, 20_000), (200, 6_000)] {
        let mut network = network(1);
        put(&mut network, 0, 1000);
        while network.nodes[1].shards[0].up.delayed.is_empty() {
            assert!(network.step(network.now + SECOND));
        }
        let delayed_at = network.now;
        for number in 1..=others {
            if number + 80 == others {
                put(&mut network, number, 1000);
            } else {
                let (now, to) = (network.now, network.nodes[1].nids[0]);
                network.nodes[0].put(now, &to, 0, 4, number, 1000);
            }
            network.run(Duration::from_nanos(apart_ns));
        }
        assert!(network.now - delayed_at > Duration::from_millis(1));
        resume(&mut network, deliver);
        network.run(SECOND);
        network.assert_all_arrived(0, 1, others + 1);
        assert_eq!(network.nodes[0].counters()[0].frames_resent, 0, "{others} frames");
        assert_eq!(network.frames(Kind::Deferred), 0);
    }
}

#[test]
fn a_message_that_waits_is_deferred_and_pulled() {
    for seed in 0..40 {
        let mut network = network(seed);
        if seed != 0 {
            network.faults = Faults { lost: 150, doubled: 150, late: 150 };
        }
        for number in 0..6 {
            put(&mut network, number, [5000, 0, 100_000, 40, 1 << 20, 1000][number as usize]);
        }
        network.run(SECOND * 5);
        // Longer than any message may take, and none has ended.
        assert_eq!(network.nodes[0].sent(), [], "seed {seed}");
        assert_eq!(network.nodes[1].counters()[0].messages_deferred, 6);
        assert_eq!(network.nodes[1].shards[0].xfer.usage().buffered, 0);
        let resent = network.nodes[0].counters()[0].frames_sent;
        network.run(SECOND * 5);
        assert!(network.nodes[0].counters()[0].frames_sent < resent + 200, "only words about it");
        resume(&mut network, deliver);
        network.run(SECOND * 10);
        network.assert_all_arrived(0, 1, 6);
    }
}

/// Fragments that were sent before their message was deferred go once more when it is pulled, and count.
#[test]
fn what_is_sent_once_more_of_a_deferred_message_is_counted() {
    for length in [0, 40, 5000, 1 << 20] {
        let mut network = network(1);
        put(&mut network, 0, length);
        network.run(SECOND);
        assert_eq!(network.nodes[1].counters()[0].messages_deferred, 1);
        let data = |network: &Network| -> Vec<u32> {
            let frames = network.log.iter().filter(|frame| frame.header.kind == Kind::Data);
            frames.map(|frame| frame.header.fragment_offset).collect()
        };
        let before = data(&network);
        assert!(length != 1 << 20 || before.len() < 100, "{} frames before it is deferred", before.len());
        let former = network.nodes[0].counters()[0];
        assert_eq!(former.frames_sent_anew, 0);
        resume(&mut network, deliver);
        network.run(SECOND);
        network.assert_all_arrived(0, 1, 1);
        let after = data(&network).split_off(before.len());
        let again = after.iter().filter(|offset| before.contains(offset)).count();
        // An empty message is not pulled.
        assert_eq!(again == 0, length == 0);
        let counters = network.nodes[0].counters()[0];
        assert_eq!(counters.frames_sent_anew, again as u64, "{length} bytes");
        assert_eq!(counters.frames_resent, former.frames_resent, "none is lost");
    }
}

#[test]
fn a_pulled_message_goes_to_the_shard_that_pulls_it_although_ids_decide_about_shards() {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 3)], 1);
    for shard in &mut network.nodes[1].shards {
        shard.up.delays = vec![ROTOR];
    }
    for number in 0..20 {
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, ROTOR, number, 100);
    }
    network.run(SECOND);
    // One after the other: their tickets are alike.
    for shard in 0..3 {
        let now = network.now;
        let shard = &mut network.nodes[1].shards[shard];
        assert!(shard.xfer.counters().messages_deferred > 1);
        for (rx, header) in core::mem::take(&mut shard.up.delayed) {
            shard.xfer.resume(now, RxId(rx), deliver(&header), &mut shard.up);
        }
        network.run(SECOND);
    }
    network.assert_all_arrived(0, 1, 20);
}

#[test]
fn one_that_is_not_wanted_any_more_is_let_go() {
    for seed in 0..20 {
        let mut network = network(seed);
        network.faults = Faults { lost: 200, doubled: 0, late: 100 };
        put(&mut network, 0, 5000);
        network.run(SECOND * 3);
        resume(&mut network, |_| Verdict::Drop);
        network.run(SECOND * 8);
        assert_eq!(network.nodes[0].sent(), [(0, Status::Ok)]);
        assert_eq!(network.nodes[1].arrived(), []);
        let usage = network.nodes[1].shards[0].xfer.usage();
        assert_eq!([usage.incoming, usage.frames], [0, 0]);
        network.nodes[0].assert_idle();
    }
}

/// Messages that are deferred, as many as a sender may have waiting; it has heard so of none yet.
fn many_deferred() -> (Network, usize) {
    const MANY: u64 = 32;
    let mut network = network(1);
    for number in 0..MANY {
        put(&mut network, number, 0);
    }
    while network.nodes[1].counters()[0].messages_deferred < MANY {
        assert!(network.step(network.now + SECOND));
    }
    (network, MANY as usize)
}

/// Checks that the sender of each message hears what became of it.
fn check_told(verdict: impl Fn(&lnet_wire::Header) -> Verdict, arrives: bool) {
    let (mut network, many) = many_deferred();
    resume(&mut network, verdict);
    network.run(SECOND * 2);
    let sent = network.nodes[0].sent();
    assert!(sent.len() == many && sent.iter().all(|(_, status)| *status == Status::Ok), "{sent:?}");
    assert_eq!(network.nodes[1].arrived().len(), if arrives { many } else { 0 });
    network.nodes[0].assert_idle();
    let usage = network.nodes[1].shards[0].xfer.usage();
    assert_eq!([usage.incoming, usage.frames], [0, 0]);
}

/// More is to be said at once than there is room for.
#[test]
fn each_of_many_senders_hears_what_became_of_its_message() {
    check_told(|_| Verdict::Drop, false);
    check_told(deliver, true);
}

/// A sender that cannot be told takes no room for ever, and its messages end once.
#[test]
fn messages_of_a_silent_sender_that_are_wanted_no_longer_are_forgotten() {
    let (mut network, _) = many_deferred();
    network.dead = vec![0];
    resume(&mut network, |_| Verdict::Drop);
    assert_ne!(network.nodes[1].shards[0].xfer.usage().incoming, 0, "there is room to say all");
    network.run(SECOND * 20);
    assert_eq!(network.nodes[1].arrived(), []);
    let usage = network.nodes[1].shards[0].xfer.usage();
    assert_eq!([usage.incoming, usage.frames], [0, 0]);
}

#[test]
fn deferred_messages_end_with_their_peer() {
    let mut network = network(1);
    put(&mut network, 0, 5000);
    network.run(SECOND);
    network.dead = vec![0];
    network.run(SECOND * 5);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Unknown(Cause::Timeout))]);
    network.run(SECOND * 10);
    // And at the receiver, when it forgets the silent sender.
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Unknown(Cause::Timeout))]);
    network.nodes.iter().for_each(Node::assert_idle);
}

#[test]
fn a_dropped_message_is_not_sent_again() {
    let mut network = network(1);
    network.nodes[1].shards[0].up.drops = vec![3];
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[0].put(now, &to, 0, 3, 0, 100_000);
    network.run(SECOND);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok)]);
    assert_eq!(network.nodes[1].arrived(), []);
    network.nodes.iter().for_each(Node::assert_idle);
}

/// Another shard of its node is heard, by what it said once and says again, but the one that keeps the
/// messages says and acknowledges nothing.
#[test]
fn a_shard_that_does_not_answer_keeps_nothing_for_ever() {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 2)], 1);
    network.nodes[1].shards.iter_mut().for_each(|shard| shard.up.delays = vec![ROTOR]);
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    for number in 0..8 {
        network.nodes[0].put(now, &to, 0, ROTOR, number, 100);
    }
    network.run(SECOND / 10);
    let silent = network.nodes[1].counters()[0].messages_deferred as usize;
    assert!(silent != 0 && silent < 8, "both shards keep some: {silent}");
    let said = |frame: &&Frame| frame.header.kind == Kind::Deferred && frame.transfer.shard == 1;
    let heard = network.log.iter().find(said).unwrap().clone();
    network.stalled = Some(1);
    let mut frames_max = 0;
    for _ in 0..100 {
        network.run(SECOND / 10);
        network.nodes[0].receive(network.now, &heard);
        frames_max = frames_max.max(network.nodes[0].shards[0].xfer.usage().frames);
    }
    let sent = network.nodes[0].sent();
    assert!(sent.iter().all(|(_, status)| *status == Status::Unknown(Cause::Timeout)));
    assert_eq!(sent.len(), silent, "those of the other one may be wanted still");
    assert!(frames_max <= 40, "{frames_max} questions wait");
    network.run(SECOND * 20);
    assert_eq!(network.nodes[0].sent().len(), 8, "until it is silent as well");
    network.nodes[0].assert_idle();
}

/// The word that a message is wanted no longer is lost, and is to be repeated while the only NI is away.
#[test]
fn a_sender_hears_what_became_of_its_message_once_the_interface_is_back() {
    let mut network = network(1);
    let nid = network.nodes[1].nids[0];
    put(&mut network, 0, 100);
    network.run(SECOND / 20);
    assert_eq!(network.nodes[1].counters()[0].messages_deferred, 1);
    network.dead = vec![0];
    resume(&mut network, |_| Verdict::Drop);
    network.run(SECOND / 1000);
    let now = network.now;
    network.nodes[1].remove_ni(now, 0);
    network.run(SECOND / 20);
    network.nodes[1].add_ni(0, nid);
    network.dead.clear();
    network.run(SECOND * 5);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok)]);
    network.nodes[0].assert_idle();
    assert_eq!(network.nodes[1].shards[0].xfer.usage().frames, 0);
}

/// A message between two nodes by one of their rails, to a portal that takes it.
fn send(network: &mut Network, from: usize, rail: u16, number: u64) {
    let (now, to) = (network.now, network.nodes[1 - from].nids[usize::from(rail)]);
    network.nodes[from].put(now, &to, rail, 4, number, 100);
}

#[test]
fn a_sender_that_was_restarted_hears_that_its_message_is_deferred() {
    // It speaks first by the rail that its message goes by, or by the other one.
    for first in [0, 1] {
        let mut network = network(1);
        for rail in 0..2 {
            send(&mut network, 1, rail, 50 + u64::from(rail));
            send(&mut network, 0, rail, 60 + u64::from(rail));
        }
        network.run(SECOND / 10);
        network.nodes[0] = Node::new(1, 2, 1);
        if first == 1 {
            send(&mut network, 0, 1, 70);
            network.run(SECOND / 100);
            send(&mut network, 1, 1, 52);
            network.run(SECOND / 100);
        }
        put(&mut network, 7, 5000);
        network.run(SECOND / 2);
        assert!(network.frames(Kind::Deferred) > 0, "first by {first}");
        resume(&mut network, deliver);
        network.run(SECOND);
        assert!(network.nodes[1].arrived().contains(&(7, Status::Ok)), "first by {first}");
        assert!(network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok));
    }
}

#[test]
fn a_control_frame_without_a_path_of_its_own_blocks_no_message() {
    let mut network = network(1);
    // The receiver has a session by the second rail alone, and hears of a message by the first.
    send(&mut network, 1, 1, 50);
    send(&mut network, 0, 0, 51);
    network.run(SECOND / 10);
    put(&mut network, 52, 100);
    network.run(Duration::from_micros(6));
    network.dead = vec![0];
    network.run(Duration::from_micros(2100));
    for number in 60..65 {
        send(&mut network, 1, 1, number);
    }
    network.run(Duration::from_millis(1));
    assert_eq!(network.nodes[0].arrived().len(), 6);
}

#[test]
fn a_deferred_message_is_pulled_by_the_rail_that_lives() {
    let mut network = network(1);
    for rail in [1, 0] {
        send(&mut network, 0, rail, 50 + u64::from(rail));
        send(&mut network, 1, rail, 60 + u64::from(rail));
        network.run(SECOND / 100);
    }
    put(&mut network, 7, 100);
    network.run(SECOND / 10);
    // The rail by which its sender was heard last.
    network.dead = vec![0];
    resume(&mut network, deliver);
    network.run(SECOND);
    assert!(network.nodes[1].arrived().contains(&(7, Status::Ok)));
}

/// A frame of several messages of which one is deferred is not acknowledged, and all of it comes again. So
/// messages to such a portal have frames of their own.
#[test]
fn messages_that_may_be_deferred_share_no_frames() {
    let mut network = network(1);
    let mut resent = vec![];
    for round in 0..5 {
        for number in round * 8..round * 8 + 8 {
            let (now, to) = (network.now, network.nodes[1].nids[0]);
            network.nodes[0].put(now, &to, 0, if number % 4 == 3 { LAZY } else { 4 }, number, 8);
        }
        network.run(SECOND / 100);
        resume(&mut network, deliver);
        network.run(SECOND / 100);
        resent.push(network.nodes[0].counters()[0].frames_resent);
    }
    network.assert_all_arrived(0, 1, 40);
    assert!(resent[0] > 0 && resent[4] == resent[0], "{resent:?}");
    let bundled = network.nodes[0].counters()[0].messages_bundled;
    assert!(bundled > 4 * 2, "others share frames as before: {bundled}");
    // After a while they are tried again.
    network.run(SECOND * 11);
    let before = network.nodes[0].counters()[0].messages_bundled;
    for number in 40..44 {
        put(&mut network, number, 8);
    }
    network.run(SECOND / 100);
    assert_eq!(network.nodes[0].counters()[0].messages_bundled, before + 3);
    resume(&mut network, deliver);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 44);
}
