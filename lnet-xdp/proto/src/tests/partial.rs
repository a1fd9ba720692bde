//! Messages that are sent while they arrive.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, RxId, Status, Transmit, Verdict};
use lnet_wire::frame::Kind;

use super::wire::{Faults, Network, Node, Up, content};

const SECOND: Duration = Duration::from_secs(1);
const LENGTH: u32 = 1 << 20;
const HALF: u32 = LENGTH / 2;
const PORTAL: u32 = 4;
const LAZY: u32 = 7;
const WITHDRAWN: Status = Status::Unknown(Cause::Cancelled);

fn network(seed: u64) -> Network {
    Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], seed)
}

/// A message of which half is there.
fn begin(network: &mut Network, portal: u32, number: u64) -> Transmit {
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[0].put_part(now, &to, portal, number, [HALF, LENGTH])
}

/// More of it is there.
fn extend(network: &mut Network, transmit: &mut Transmit, there: u32) {
    transmit.payload.as_mut().unwrap().length_bytes = there;
    let now = network.now;
    assert!(network.nodes[0].shards[0].xfer.extend(now, transmit));
}

fn withdraw(network: &mut Network, transmit: &Transmit) -> bool {
    let now = network.now;
    let shard = &mut network.nodes[0].shards[0];
    shard.xfer.withdraw(now, transmit.tx, &mut shard.up)
}

/// The beginning of a message is there, and nothing else.
fn assert_begun(network: &Network, number: u64, there: u32) {
    let bytes = &network.nodes[1].shards[0].up.bytes[&number];
    let there = there as usize;
    assert!(bytes[..there] == content(number, LENGTH)[..there]);
    assert!(bytes[there..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_message_is_sent_as_it_comes() {
    let mut network = network(1);
    let mut transmit = begin(&mut network, PORTAL, 0);
    for there in [HALF, HALF + 64, HALF + 65, HALF + 200_000, LENGTH - 1, LENGTH] {
        if there != HALF {
            extend(&mut network, &mut transmit, there);
        }
        // Longer than any message may take that is whole would be too long for this one as well.
        network.run(SECOND / 10);
        if there != LENGTH {
            assert_begun(&network, 0, there / 64 * 64);
            assert_eq!(network.nodes[0].shards[0].xfer.usage().frames, 0, "all was acknowledged");
            assert_eq!((network.nodes[1].arrived(), network.nodes[0].sent()), (vec![], vec![]));
        }
    }
    network.assert_all_arrived(0, 1, 1);
    assert_eq!(network.nodes[0].counters()[0].frames_resent, 0);
}

/// Others go past those that wait for their rest, as many as a router has for one next hop: neither their
/// turns nor the few that begin at once are less.
#[test]
fn others_go_past_a_message_that_waits() {
    let mut network = network(1);
    let mut waiting: Vec<_> = (0..4).map(|number| begin(&mut network, PORTAL, number)).collect();
    network.run(SECOND / 10);
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    for number in 4..46 {
        network.nodes[0].put(now, &to, 0, PORTAL, number, if number % 2 == 0 { LENGTH } else { 40 });
    }
    network.run(SECOND);
    let arrived: Vec<_> = network.nodes[1].arrived();
    assert_eq!(arrived, (4..46).map(|number| (number, Status::Ok)).collect::<Vec<_>>());
    for transmit in &mut waiting {
        extend(&mut network, transmit, LENGTH);
    }
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 46);
}

#[test]
fn a_message_whose_rest_does_not_come_is_forgotten_at_both_ends() {
    for (seed, lost) in [(1, 0), (2, 150), (3, 400)] {
        let mut network = network(seed);
        network.faults = Faults { lost, doubled: lost, late: lost };
        let transmit = begin(&mut network, PORTAL, 0);
        network.run(SECOND / 2);
        assert_begun(&network, 0, HALF);
        assert!(withdraw(&mut network, &transmit) && !withdraw(&mut network, &transmit));
        assert_eq!(network.nodes[0].sent(), [(0, WITHDRAWN)]);
        network.run(SECOND / 2);
        // Long before its time is over.
        assert_eq!(network.nodes[1].arrived(), [(0, Status::Unknown(Cause::Timeout))]);
        network.run(SECOND);
        network.nodes.iter().for_each(Node::assert_idle);
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, PORTAL, 1, LENGTH);
        network.run(SECOND);
        assert_eq!(network.nodes[1].arrived()[1], (1, Status::Ok));
        network.nodes.iter().for_each(Node::assert_idle);
    }
}

/// No frame of it is sent, or its first ones come when it is over.
#[test]
fn a_message_that_is_withdrawn_at_once_does_not_begin() {
    for is_late in [false, true] {
        let mut network = network(1);
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, PORTAL, 1, 40);
        network.run(SECOND / 10);
        let transmit = begin(&mut network, PORTAL, 0);
        let mut late = Vec::new();
        if is_late {
            late = network.nodes[0].poll(network.now);
            assert!(!late.is_empty());
        }
        assert!(withdraw(&mut network, &transmit));
        let expected = if is_late { WITHDRAWN } else { Status::NeverSent(Cause::Cancelled) };
        assert_eq!(network.nodes[0].sent(), [(0, Status::Ok), (1, expected)]);
        network.run(SECOND / 10);
        assert_eq!(network.frames(Kind::Gone), usize::from(is_late));
        late.into_iter().for_each(|frame| network.launch(frame));
        network.run(SECOND);
        assert_eq!(network.nodes[1].arrived(), [(1, Status::Ok)]);
        network.nodes.iter().for_each(Node::assert_idle);
    }
}

/// Others wait for an id far behind for a moment: then the message goes that waits for its rest.
#[test]
fn others_wait_for_an_id_for_a_moment() {
    const BATCH: u64 = 200;
    const BATCHES: u64 = 21;
    let mut network = network(1);
    begin(&mut network, PORTAL, 0);
    network.run(SECOND / 100);
    for batch in 0..BATCHES {
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        for number in 1 + batch * BATCH..=(1 + batch) * BATCH {
            network.nodes[0].put(now, &to, 0, PORTAL, number, 40);
        }
        network.run(SECOND / 100);
    }
    assert_eq!(network.nodes[1].arrived().len(), 4095, "ids are used up");
    network.run(SECOND);
    let sent = network.nodes[0].sent();
    assert_eq!(sent[0], (0, WITHDRAWN));
    assert!(sent[1..].iter().all(|(_, status)| *status == Status::Ok));
    assert_eq!(network.nodes[1].arrived().len() as u64, 1 + BATCH * BATCHES);
    network.nodes.iter().for_each(Node::assert_idle);
}

#[test]
fn a_message_that_comes_slowly_is_deferred_and_pulled() {
    for is_withdrawn in [false, true] {
        let mut network = network(1);
        network.nodes[1].shards[0].up.delays = vec![LAZY];
        let mut transmit = begin(&mut network, LAZY, 0);
        network.run(SECOND);
        assert_eq!(network.nodes[1].counters()[0].messages_deferred, 1);
        extend(&mut network, &mut transmit, HALF + 64_000);
        if is_withdrawn {
            assert!(withdraw(&mut network, &transmit));
        }
        let now = network.now;
        let shard = &mut network.nodes[1].shards[0];
        for (rx, header) in core::mem::take(&mut shard.up.delayed) {
            shard.xfer.resume(now, RxId(rx), Verdict::Deliver(Up::span(&header)), &mut shard.up);
        }
        network.run(SECOND / 10);
        if is_withdrawn {
            assert_eq!(network.nodes[1].arrived(), [(0, Status::Unknown(Cause::Timeout))]);
            network.run(SECOND);
            network.nodes.iter().for_each(Node::assert_idle);
            continue;
        }
        assert_begun(&network, 0, HALF + 64_000);
        extend(&mut network, &mut transmit, LENGTH);
        network.run(SECOND);
        network.assert_all_arrived(0, 1, 1);
    }
}

/// A message that is never extended ends by its time, as others do.
#[test]
fn a_message_that_waits_for_too_long_ends() {
    let mut network = network(1);
    begin(&mut network, PORTAL, 0);
    network.run(SECOND * 10);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Unknown(Cause::Timeout))]);
    assert_eq!(network.nodes[1].arrived(), [(0, Status::Unknown(Cause::Timeout))]);
    network.nodes.iter().for_each(Node::assert_idle);
}

#[test]
fn messages_of_any_pace_arrive_over_a_bad_wire() {
    for seed in 0..60 {
        let mut network = network(seed);
        network.faults = Faults { lost: 100, doubled: 100, late: 200 };
        network.nodes[1].shards[0].up.is_router = true;
        let mut coming: Vec<_> = (0..4).map(|number| begin(&mut network, PORTAL, number)).collect();
        while !coming.is_empty() {
            let at = network.random.below(coming.len() as u64) as usize;
            let there = coming[at].payload.unwrap().length_bytes;
            let more = network.random.below(200_000) as u32;
            extend(&mut network, &mut coming[at], (there + more).min(LENGTH));
            if there + more >= LENGTH {
                coming.swap_remove(at);
            }
            let time = Duration::from_micros(network.random.below(3000));
            network.run(time);
        }
        network.run(SECOND * 3);
        network.assert_all_arrived(0, 1, 4);
        // Each number that is told of a message is larger than the last, and less than the whole.
        for number in 0..4 {
            let there = network.nodes[1].shards[0].up.there.iter().filter(|(of, _)| *of == number);
            let there: Vec<_> = there.map(|(_, there)| *there).collect();
            assert!(there.len() > 5 && there.is_sorted_by(|one, next| one < next), "{there:?}");
            assert!(*there.last().unwrap() < LENGTH);
        }
    }
}
