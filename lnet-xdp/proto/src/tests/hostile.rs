//! Frames that lie.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::lnd::{Cause, PING_PORTAL, RxId, Status, Verdict};
use lnet_wire::frame::{Ack, FrameHeader, Kind};

use super::super::{Disposition, XferDrop};
use super::wire::{Frame, Network, Node, Up, identity, limits, put_key};

const SECOND: Duration = Duration::from_secs(1);

/// Two nodes that have exchanged a message, and its frames.
fn met() -> (Network, Vec<Frame>) {
    let mut network = Network::new(vec![Node::new(1, 1, 1), Node::new(2, 1, 1)], 1);
    let to = network.nodes[1].nids[0];
    let now = network.now;
    network.nodes[0].put(now, &to, 0, 4, 0, 100);
    network.run(SECOND / 100);
    let log = core::mem::take(&mut network.log);
    (network, log)
}

fn find(log: &[Frame], kind: Kind) -> Frame {
    log.iter().find(|frame| frame.header.kind == kind).unwrap().clone()
}

/// A word about a message, in the frame that comes so far behind another one of its sender's.
fn word(behind: &Frame, step: u32, kind: Kind, id: u64, ticket: u32) -> Frame {
    let mut word = behind.clone();
    word.header = FrameHeader::other(kind, 0, id);
    word.transfer.number += step;
    word.transfer.ticket = Some(ticket);
    word.lnet = None;
    word.payload.clear();
    word
}

fn expect(network: &mut Network, node: usize, frame: &Frame, reason: XferDrop) {
    let now = network.now;
    assert_eq!(network.nodes[node].receive(now, frame), Some(Disposition::Drop(reason)), "{frame:?}");
}

#[test]
fn fields_that_lie_are_dropped() {
    let (mut network, log) = met();
    let data = find(&log, Kind::Data);
    let change = |what: &dyn Fn(&mut Frame)| {
        let mut frame = data.clone();
        frame.transfer.number += 5;
        frame.header.key.message_id += 5;
        frame.transfer.oldest = 5;
        what(&mut frame);
        frame
    };
    let cases: Vec<(Frame, XferDrop)> = vec![
        (change(&|frame| frame.transfer.session ^= 1), XferDrop::UnknownSession),
        (change(&|frame| frame.transfer.incarnation ^= 1), XferDrop::UnknownSession),
        (change(&|frame| frame.transfer.shard = 1), XferDrop::UnknownSession),
        (change(&|frame| frame.header.key.message_id ^= 1 << 56), XferDrop::Malformed),
        (
            change(&|frame| {
                frame.header.key.message_id &= u64::MAX << 56;
                frame.transfer.oldest = 1;
            }),
            XferDrop::Malformed,
        ),
        (
            change(&|frame| {
                frame.header.key.message_id += 5000;
                frame.transfer.oldest = 5000;
            }),
            XferDrop::BeyondWindow,
        ),
        (change(&|frame| frame.header.key.message_id -= 5), XferDrop::Malformed),
        (change(&|frame| frame.header.fragment_offset = 1), XferDrop::Malformed),
        (
            change(&|frame| {
                frame.header.total_length = 5000;
                frame.payload.truncate(99);
            }),
            XferDrop::Malformed,
        ),
    ];
    let arrived = network.nodes[1].arrived();
    for (frame, reason) in &cases {
        expect(&mut network, 1, frame, *reason);
    }
    assert_eq!(network.nodes[1].arrived(), arrived);
    expect(&mut network, 1, &data, XferDrop::Duplicate);
    // The same message in a frame of another number.
    expect(
        &mut network,
        1,
        &change(&|frame| {
            frame.header.key.message_id -= 5;
            frame.transfer.oldest = 0;
        }),
        XferDrop::Duplicate,
    );
    assert_eq!(network.nodes[1].arrived(), arrived);
}

#[test]
fn acknowledgements_of_what_was_never_sent_do_nothing() {
    let (mut network, log) = met();
    let ack = find(&log, Kind::Ack);
    let now = network.now;
    let to = network.nodes[1].nids[0];
    network.nodes[0].put(now, &to, 0, 4, 1, 100);
    network.dead = vec![0];
    network.run(SECOND / 1000);
    for distance in [2, 1000, 1 << 31, u32::MAX - 1] {
        let mut forged = ack.clone();
        let highest = forged.transfer.ack.unwrap().highest.wrapping_add(distance);
        forged.transfer.ack = Some(Ack { highest, below: u64::MAX, grant_bytes: 0, buffered: false });
        network.nodes[0].receive(network.now, &forged);
    }
    assert!(network.nodes[0].counters()[0].dropped(XferDrop::BadAck) >= 2);
    let mut spoofed = ack.clone();
    spoofed.transfer.session ^= 1;
    spoofed.transfer.ack = spoofed.transfer.ack.map(|ack| Ack { highest: ack.highest + 1, ..ack });
    expect(&mut network, 0, &spoofed, XferDrop::BadAck);
    assert_eq!(network.nodes[0].sent(), [(0, Status::Ok)], "the second message goes on");
    network.dead.clear();
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 2);
}

#[test]
fn words_about_messages_that_do_not_exist_are_answered_and_change_nothing() {
    let (mut network, log) = met();
    // So that both have a session.
    let (now, back) = (network.now, network.nodes[0].nids[0]);
    network.nodes[1].put(now, &back, 0, 4, 0, 10);
    network.run(SECOND / 100);
    let data = network.log.iter().find(|frame| frame.header.kind == Kind::Data).unwrap().clone();
    drop(log);
    for (step, kind) in [Kind::Deferred, Kind::Pull, Kind::Discard, Kind::Ping, Kind::Gone, Kind::Lost]
        .into_iter()
        .enumerate()
    {
        let mut forged = word(&data, 1 + step as u32, kind, 12345, 77);
        assert_eq!(network.nodes[0].receive(network.now, &forged), Some(Disposition::Done), "{kind:?}");
        forged.transfer.ticket = None;
        forged.transfer.number += 50;
        expect(&mut network, 0, &forged, XferDrop::Malformed);
    }
    network.run(SECOND);
    network.nodes.iter().for_each(Node::assert_idle);
}

#[test]
fn answers_to_nothing_are_dropped() {
    let (mut network, log) = met();
    let (hello, welcome) = (find(&log, Kind::Hello), find(&log, Kind::Welcome));
    expect(&mut network, 0, &welcome, XferDrop::Unasked);
    let mut elsewhere = welcome.clone();
    elsewhere.from = hello.to;
    elsewhere.header.key.message_id ^= 1;
    expect(&mut network, 0, &elsewhere, XferDrop::Unasked);
    let mut reset = welcome;
    reset.header = FrameHeader::other(Kind::Reset, 0, 0);
    reset.transfer.session ^= 1;
    expect(&mut network, 0, &reset, XferDrop::UnknownSession);
    let now = network.now;
    let to = network.nodes[1].nids[0];
    network.nodes[0].put(now, &to, 0, 4, 1, 10);
    network.run(SECOND);
    network.assert_all_arrived(0, 1, 2);
}

/// What a node has dropped, by reason.
fn drops(node: &Node) -> [u64; XferDrop::ALL.len()] {
    let counters = node.counters()[0];
    XferDrop::ALL.map(|reason| counters.dropped(reason))
}

fn only(reason: XferDrop, count: u64) -> [u64; XferDrop::ALL.len()] {
    XferDrop::ALL.map(|other| if other == reason { count } else { 0 })
}

#[test]
fn an_address_that_has_its_share_of_streams_opens_no_more() {
    let (mut network, log) = met();
    let (hello, data) = (find(&log, Kind::Hello), find(&log, Kind::Data));
    // The address does not answer which of them lives there.
    network.stalled = Some(0);
    let mut open = |stranger: u64| {
        // Not so fast that it is not heard.
        network.run(SECOND / 10);
        let now = network.now;
        let identity = identity(9, stranger);
        let asks = hello.of(&identity);
        let node = &mut network.nodes[1];
        assert_eq!(node.receive(now, &asks), Some(Disposition::Done));
        let mut begins = data.of(&identity);
        begins.transfer.session = find(&node.poll(now), Kind::Welcome).transfer.session;
        node.receive(now, &begins)
    };
    // Half of the room for peers, of which the first node has one already.
    for stranger in 1..4 {
        assert_ne!(open(stranger), Some(Disposition::Drop(XferDrop::PeersFull)), "stranger {stranger}");
    }
    assert_eq!(open(4), Some(Disposition::Drop(XferDrop::PeersFull)));
    assert_eq!(drops(&network.nodes[1]), only(XferDrop::PeersFull, 1));
    assert_eq!(network.nodes[1].shards[0].xfer.usage().receive_streams, 4);
}

#[test]
fn messages_for_a_ticket_that_nobody_has_are_dropped_and_told() {
    let (mut network, log) = met();
    let mut data = find(&log, Kind::Data);
    data.header.key.message_id += 1;
    data.header.total_length = 128;
    data.transfer.number += 1;
    data.transfer.oldest = 1;
    data.transfer.ticket = Some(77);
    data.payload.truncate(64);
    expect(&mut network, 1, &data, XferDrop::UnknownTicket);
    assert_eq!(drops(&network.nodes[1]), only(XferDrop::UnknownTicket, 1));
    let mut rest = data.clone();
    rest.header.fragment_offset = 64;
    rest.transfer.number += 1;
    rest.lnet = None;
    expect(&mut network, 1, &rest, XferDrop::UnknownTicket);
    assert_eq!(drops(&network.nodes[1]), only(XferDrop::UnknownTicket, 2));
    network.run(SECOND / 10);
    let told: Vec<_> = network.log.iter().filter(|frame| frame.header.kind == Kind::Lost).collect();
    let [lost] = told[..] else { panic!("the first fragment is answered, and once: {told:?}") };
    assert_eq!((lost.header.key.message_id, lost.transfer.ticket), (data.header.key.message_id, Some(77)));
}

#[test]
fn a_flood_of_beginnings_is_bounded_and_the_others_go_on() {
    let (mut network, log) = met();
    let data = find(&log, Kind::Data);
    let base = data.header.key.message_id;
    for step in 1..3000_u32 {
        let mut begun = data.clone();
        begun.header = FrameHeader::data(put_key(4, base + u64::from(step)), 0, 1 << 20);
        begun.transfer.number += step;
        begun.transfer.oldest = step as u16;
        let mut lnet = begun.lnet.unwrap();
        lnet.payload_length = 1 << 20;
        if let lnet_wire::Body::Put { hdr_data, .. } = &mut lnet.body {
            *hdr_data = u64::from(step);
        }
        begun.lnet = Some(lnet);
        begun.payload.truncate(64);
        network.nodes[1].receive(network.now, &begun);
        let mut early = begun.clone();
        early.header.fragment_offset = 64;
        early.header.key.message_id += 1000;
        early.transfer.oldest += 1000;
        early.transfer.number += 4000;
        early.lnet = None;
        network.nodes[1].receive(network.now, &early);
    }
    let usage = network.nodes[1].shards[0].xfer.usage();
    assert!(usage.partials <= 12 && usage.incoming <= 64 && usage.buffered <= 8, "{usage:?}");
    let counters = network.nodes[1].counters()[0];
    assert!(counters.dropped(XferDrop::IncomingFull) > 1000);
    assert!(counters.dropped(XferDrop::TooEarly) > 1000);
    // Another node's messages are taken meanwhile, those in several frames too.
    network.nodes.push(Node::new(3, 1, 1));
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[2].put(now, &to, 0, 4, 9999, 100_000);
    network.run(SECOND / 10);
    assert_eq!(network.nodes[2].sent(), [(0, Status::Ok)]);
    network.run(SECOND * 20);
    network.nodes[1].assert_idle();
}

/// The beginning of a push that never goes on, and comes bit by bit: one place is for the pushes of all.
#[test]
fn a_push_that_is_not_whole_keeps_its_place_for_a_second() {
    for (portal, is_given_up) in [(PING_PORTAL, true), (4, false)] {
        let (mut network, log) = met();
        let data = find(&log, Kind::Data);
        let id = data.header.key.message_id + 1;
        for part in 0..10_u32 {
            let mut begun = data.clone();
            begun.header = FrameHeader::data(put_key(portal as u8, id), part * 64, 1 << 20);
            begun.transfer.number += 1 + part;
            begun.transfer.oldest = 0;
            let mut lnet = begun.lnet.unwrap();
            lnet.payload_length = 1 << 20;
            if let lnet_wire::Body::Put { portal: of, hdr_data, .. } = &mut lnet.body {
                (*of, *hdr_data) = (portal, 7777);
            }
            begun.lnet = (part == 0).then_some(lnet);
            begun.payload.resize(64, 0);
            network.nodes[1].receive(network.now, &begun);
            network.run(SECOND / 8);
        }
        let ended = network.nodes[1].arrived().into_iter().find(|(number, _)| *number == 7777);
        let expected = is_given_up.then_some((7777, Status::Unknown(Cause::Timeout)));
        assert_eq!(ended, expected, "portal {portal}");
        // Fragments that come after it are not acknowledged: the sender is told.
        let is_lost = |frame: &Frame| frame.header.kind == Kind::Lost && frame.header.key.message_id == id;
        assert_eq!(network.log.iter().any(is_lost), is_given_up, "portal {portal}");
    }
}

/// Fragments whose beginning never comes.
#[test]
fn frames_that_are_buffered_for_one_address_spare_room_for_those_of_others() {
    let (mut network, log) = met();
    network.nodes.push(Node::new(3, 1, 1));
    let (now, to) = (network.now, network.nodes[1].nids[0]);
    network.nodes[2].put(now, &to, 0, 4, 1, 5000);
    network.run(SECOND / 100);
    let data = find(&log, Kind::Data);
    let begun = network.log.iter().rfind(|frame| frame.header.kind == Kind::Data).unwrap().clone();
    let mut early = |frame: &Frame, step: u32| {
        let mut early = frame.clone();
        early.header =
            FrameHeader::data(put_key(4, frame.header.key.message_id + u64::from(step)), 64, 1 << 20);
        early.transfer.number += step;
        early.transfer.oldest = 0;
        early.lnet = None;
        early.payload.resize(64, 0);
        network.nodes[1].receive(now, &early)
    };
    let kept = |action: &Option<Disposition>| matches!(action, Some(Disposition::Buffer(_)));
    let actions: Vec<_> = (1..20).map(|step| early(&data, step)).collect();
    assert_eq!(actions.iter().filter(|action| kept(action)).count(), limits().buffered as usize / 2);
    let others: Vec<_> = (1..4).map(|step| kept(&early(&begun, step))).collect();
    assert_eq!(others, [true, true, false], "half of the rest is another node's");
}

#[test]
fn words_about_messages_that_were_not_sent_yet_change_nothing() {
    for kind in [Kind::Deferred, Kind::Pull, Kind::Discard, Kind::Lost] {
        let (mut network, log) = met();
        let (now, back) = (network.now, network.nodes[0].nids[0]);
        network.nodes[1].put(now, &back, 0, 4, 0, 10);
        network.run(SECOND / 100);
        let last = find(&log, Kind::Data).header.key.message_id;
        let data = network.log.iter().rfind(|frame| frame.header.kind == Kind::Data).unwrap().clone();
        let (now, to) = (network.now, network.nodes[1].nids[0]);
        network.nodes[0].put(now, &to, 0, 4, 1, 100);
        let forged = word(&data, 1, kind, last + 1, 77);
        assert_eq!(network.nodes[0].receive(now, &forged), Some(Disposition::Done));
        assert_eq!(network.nodes[0].sent().len(), 1, "{kind:?}");
        network.run(SECOND);
        assert_eq!(network.nodes[0].sent(), [(0, Status::Ok), (1, Status::Ok)], "{kind:?}");
        assert_eq!(network.nodes[1].arrived().len(), 2, "{kind:?}");
    }
}

/// It asks for what makes its peer tell it something, and acknowledges none of that.
#[test]
fn control_frames_that_a_peer_never_acknowledges_spare_room_for_others() {
    let (mut network, _) = met();
    let (now, back) = (network.now, network.nodes[0].nids[0]);
    network.nodes[1].put(now, &back, 0, 4, 0, 10);
    network.run(SECOND / 100);
    let data = network.log.iter().rfind(|frame| frame.header.kind == Kind::Data).unwrap().clone();
    network.stalled = Some(1);
    network.nodes.push(Node::new(3, 1, 1));
    network.nodes[2].shards[0].up.delays = vec![7];
    let to = network.nodes[2].nids[0];
    let words = |network: &mut Network, count: u32, base: u32| {
        for step in base..base + count {
            let forged = word(&data, 1 + step, Kind::Deferred, u64::from(12_345 + step), step);
            network.nodes[0].receive(network.now, &forged);
            network.nodes[0].poll(network.now);
        }
    };
    words(&mut network, 3000, 0);
    let usage = network.nodes[0].shards[0].xfer.usage();
    assert!(usage.frames <= limits().incoming / 2 + 1, "{usage:?}");
    // Messages of many frames, and such as are deferred, go on to others.
    for number in 1..20 {
        network.nodes[0].put(network.now, &to, 0, if number % 2 == 0 { 7 } else { 4 }, number, 20_000);
    }
    for step in 0..20 {
        network.run(SECOND / 50);
        words(&mut network, 50, 3000 + step * 50);
        let shard = &mut network.nodes[2].shards[0];
        for (rx, header) in core::mem::take(&mut shard.up.delayed) {
            shard.xfer.resume(network.now, RxId(rx), Verdict::Deliver(Up::span(&header)), &mut shard.up);
        }
        shard.replay(network.now);
    }
    assert_eq!(network.nodes[2].arrived().len(), 19);
    assert!(network.nodes[0].sent().iter().all(|(_, status)| *status == Status::Ok));
    // What is not acknowledged for so long is not said any more.
    network.run(SECOND * 5);
    assert_eq!(network.nodes[0].shards[0].xfer.usage().frames, 0);
}
