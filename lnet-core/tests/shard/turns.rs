//! Turns at the credits of an NI: peers that answer, silent crowds, and messages that pass their credits on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lnet_core::lnd::{Full, NiId, Status, TxId, Uplink};
use lnet_core::md::MdSpec;
use lnet_core::shard::PutRequest;
use lnet_core::time::Instant;
use lnet_core::topology::{LocalNi, NiStatus, Topology};
use lnet_core::{Limits, ShardConfig};
use lnet_wire::{Nid, ProcessId};
use proptest::prelude::*;

use crate::common::{NI, Node, PID, config, local_ni, nid, put_request};

const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A shard whose NI has this many credits, 8 for each peer.
fn crowded(credits: u32, shard_count: u8) -> Node {
    let topology = Arc::new(Topology::new(vec![local_ni(nid(1, 1), credits, 8)]));
    let limits = Limits { requests: 1 << 13, memory_descs: 1 << 14, peers: 1 << 12, ..config().limits };
    Node::new(ShardConfig { topology, limits, shard_count, ..config() })
}

/// Sends `count` messages to a peer; the numbers of hosts go on in the next octet.
fn send(node: &mut Node, now: Instant, peer: u32, count: usize) {
    for _ in 0..count {
        let md = node.shard.bind(&MdSpec { event_queue: None, ..node.md(1) }).unwrap();
        let nid = Nid::from_small(2 << 48 | 1 << 32 | 10 << 24 | u64::from(peer)).unwrap();
        let target = ProcessId { nid, pid: PID };
        node.shard.put(now, &PutRequest { target, ..put_request(md, 2) }).unwrap();
    }
}

/// Takes all messages that may leave; the last octets of their destinations, and those to the friend end
/// well.
fn drain(node: &mut Node, now: Instant, friend: u32) -> (usize, usize) {
    let (mut of_friend, mut of_others) = (0, 0);
    while let Some(sent) = node.transmit_at(now) {
        if sent.header.destination.nid.to_small().unwrap() as u32 == 10 << 24 | friend {
            of_friend += 1;
            node.shard.sent(now, sent.tx, Status::Ok);
        } else {
            of_others += 1;
        }
    }
    (of_friend, of_others)
}

const FRIEND: u32 = 2;

/// A friend's messages leave at once from the first moment on, while many others have messages that they do
/// not take, with this share of the credits.
fn friends_messages_leave_at_once(credits: u32, shard_count: u8, silent_count: u32, each: usize) {
    let mut node = crowded(credits, shard_count);
    let mut now = Instant(0);
    send(&mut node, now, FRIEND, 1);
    assert_eq!(drain(&mut node, now, FRIEND), (1, 0));
    (0..silent_count).for_each(|host| send(&mut node, now, 1_000 + host, each));
    drain(&mut node, now, FRIEND);
    for round in 0..100 {
        send(&mut node, now, FRIEND, 8);
        let (of_friend, _) = drain(&mut node, now, FRIEND);
        assert_eq!(of_friend, 8, "{silent_count} of {shard_count} shards, round {round}");
        now = now + Duration::from_millis(50);
        if node.shard.poll_timeout().is_some_and(|at| at <= now) {
            node.shard.handle_timeout(now);
        }
    }
    assert!(node.shard.counters().credits_passed_on > 0 || silent_count * each as u32 <= credits);
}

#[test]
fn who_answers_does_not_wait_for_who_does_not() {
    for (shard_count, silent_count, each) in [(1, 33, 8), (1, 700, 8), (2, 700, 8), (64, 40, 8), (1, 700, 1)]
    {
        friends_messages_leave_at_once(256, shard_count, silent_count, each);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn friends_do_not_wait_for_any_crowd(
        credits in 1_u32..300,
        shard_count in 1_u8..=64,
        silent_count in 32_u32..700,
        each in 1_usize..=8,
    ) {
        friends_messages_leave_at_once(credits, shard_count, silent_count, each);
    }
}

/// A message to a peer that nothing is known of yet goes at once where the silent have been found out. Before
/// that it has its turn after one message of each: with 700 of them and 256 credits in three times 1.25 s.
#[test]
fn who_is_new_waits_for_one_round_of_others_at_most() {
    for (shard_count, rounds) in [(1, 3), (2, 6)] {
        let mut node = crowded(256, shard_count);
        let mut now = Instant(0);
        (0..700).for_each(|host| send(&mut node, now, 1_000 + host, 8));
        send(&mut node, now, FRIEND, 1);
        let mut looks = 0;
        while drain(&mut node, now, FRIEND).0 == 0 {
            now = node.shard.poll_timeout().unwrap().max(now + Duration::from_millis(1));
            node.shard.handle_timeout(now);
            looks += 1;
            assert!(looks < 100);
        }
        let most = Duration::from_millis(1_250) * rounds;
        assert!(now - Instant(0) <= most, "{:?} with {shard_count} shards", now - Instant(0));
        // All have had a turn and a second; the next newcomers find them out.
        let end = now + Duration::from_secs(12);
        while now < end {
            drain(&mut node, now, FRIEND);
            now = now + LOOK_INTERVAL;
            node.shard.handle_timeout(now);
        }
        for newcomer in 3..9 {
            drain(&mut node, now, newcomer);
            send(&mut node, now, newcomer, 1);
            assert_eq!(drain(&mut node, now, newcomer).0, 1, "newcomer {newcomer}");
        }
    }
}

/// Takes all messages that may leave, which end well at once.
fn take_all(node: &mut Node, now: Instant) {
    while let Some(sent) = node.transmit_at(now) {
        node.shard.sent(now, sent.tx, Status::Ok);
    }
}

/// Peers that take one message at once, and nothing of what they ask for then, again and again, are no better
/// than a friend: its messages leave at once.
#[test]
fn who_takes_a_message_to_have_many_stops_no_friend() {
    for (shard_count, crowd) in [(1, 40), (1, 150), (2, 70)] {
        let mut node = crowded(256, shard_count);
        let mut now = Instant(0);
        send(&mut node, now, FRIEND, 1);
        take_all(&mut node, now);
        for round in 0..5 {
            (0..crowd).for_each(|host| send(&mut node, now, 1_000 + host, 1));
            take_all(&mut node, now);
            (0..crowd).for_each(|host| send(&mut node, now, 1_000 + host, 8));
            let mut stuck = Vec::new();
            for step in 0..40 {
                send(&mut node, now, FRIEND, 8);
                let mut of_friend = 0;
                while let Some(sent) = node.transmit_at(now) {
                    if sent.header.destination.nid.to_small().unwrap() as u32 == 10 << 24 | FRIEND {
                        of_friend += 1;
                        node.shard.sent(now, sent.tx, Status::Ok);
                    } else {
                        stuck.push(sent.tx);
                    }
                }
                assert_eq!(of_friend, 8, "{crowd} peers, {shard_count} shards, round {round}, step {step}");
                now = now + Duration::from_millis(50);
                if node.shard.poll_timeout().is_some_and(|at| at <= now) {
                    node.shard.handle_timeout(now);
                }
            }
            assert!(node.shard.counters().credits_passed_on > 0, "no credit was short");
            stuck.into_iter().for_each(|tx| node.shard.sent(now, tx, Status::Ok));
            take_all(&mut node, now);
        }
    }
}

/// Peers that answer are lent half as many credits as there are, at most, where others that do have many.
#[test]
fn half_as_many_credits_is_lent_to_those_that_answer() {
    for (credits, most) in [(1, 1), (4, 6), (7, 9), (8, 12), (256, 384)] {
        let mut node = crowded(credits, 1);
        let now = Instant(0);
        (0..500).for_each(|host| send(&mut node, now, 1_000 + host, 1));
        take_all(&mut node, now);
        (0..500).for_each(|host| send(&mut node, now, 1_000 + host, 2));
        assert_eq!(drain(&mut node, now, FRIEND), (0, most), "{credits} credits");
    }
}

/// A peer by two NIs that has a credit of one of them waits for its turn at the other one; it is the first
/// there again once its credit is home.
#[test]
fn a_credit_of_one_ni_counts_at_the_others() {
    let nis = [1, 2].map(|host| local_ni(nid(1, host), 4, 8));
    let topology = Arc::new(Topology::new(nis.to_vec()));
    let mut node = Node::new(ShardConfig { topology, ..config() });
    let now = Instant(0);
    let send_by = |node: &mut Node, own: u8, peer: u32| {
        let md = node.shard.bind(&MdSpec { event_queue: None, ..node.md(1) }).unwrap();
        let to = Nid::from_small(2 << 48 | 1 << 32 | 10 << 24 | u64::from(peer)).unwrap();
        let (target, self_nid) = (ProcessId { nid: to, pid: PID }, Some(nid(1, own)));
        node.shard.put(now, &PutRequest { target, self_nid, ..put_request(md, 2) }).unwrap();
    };
    let by = |node: &mut Node, ni: u16| {
        let lent = node.shard.poll_transmit(now, NiId(ni))?;
        Some((lent.transmit.header.destination.nid.to_small().unwrap() as u32 & 0xffff, lent.transmit.tx))
    };
    for peer in 1_000..1_004 {
        send_by(&mut node, 1, peer);
        let (_, tx) = by(&mut node, 0).unwrap();
        node.shard.sent(now, tx, Status::Ok);
    }
    // All credits of the second NI are taken, and all are lent that may be.
    let holders = [1_000, 1_000, 1_000, 1_000, 1_001, 1_002];
    holders.into_iter().for_each(|peer| send_by(&mut node, 2, peer));
    let second: Vec<_> = std::iter::from_fn(|| by(&mut node, 1)).collect();
    assert_eq!(second.iter().map(|(peer, _)| *peer).collect::<Vec<_>>(), holders);
    send_by(&mut node, 2, 1_001);
    send_by(&mut node, 1, 1_003);
    let (_, first) = by(&mut node, 0).unwrap();
    send_by(&mut node, 2, 1_003);
    assert_eq!(by(&mut node, 1), None);
    node.shard.sent(now, first, Status::Ok);
    node.shard.sent(now, second[5].1, Status::Ok);
    assert_eq!(by(&mut node, 1).map(|(peer, _)| peer), Some(1_003), "its credit of the first NI is home");
}

/// Where more peers answer than there are credits, and each always has messages that wait, others have their
/// turns all the same.
#[test]
fn many_that_answer_leave_others_their_turns() {
    const CREDITS: u32 = 64;
    for crowd in [20, 64, 80, 200] {
        let mut node = crowded(CREDITS, 1);
        let now = Instant(0);
        (0..crowd).for_each(|host| send(&mut node, now, 1_000 + host, 1));
        take_all(&mut node, now);
        (0..crowd).for_each(|host| send(&mut node, now, 1_000 + host, 8));
        let mut sent = std::collections::VecDeque::new();
        let mut left = 0;
        send(&mut node, now, FRIEND, 1);
        loop {
            while let Some(one) = node.transmit() {
                sent.push_back((one.header.destination.nid.to_small().unwrap() as u32 & 0xffff, one.tx));
            }
            if sent.iter().any(|(host, _)| *host == FRIEND) {
                break;
            }
            let (host, tx) = sent.pop_front().unwrap();
            node.shard.sent(now, tx, Status::Ok);
            send(&mut node, now, host, 1);
            left += 1;
            assert!(left < 3 * CREDITS, "a newcomer waits for more than {left} messages to {crowd} peers");
        }
    }
}

/// Newcomers that take nothing are lent credits again and again; those that the silent have go home.
#[test]
fn half_as_many_credits_as_there_are_is_lent_at_most() {
    let mut node = crowded(8, 1);
    let (mut now, mut sent) = (Instant(0), 0);
    (0..8).for_each(|host| send(&mut node, now, 1_000 + host, 1));
    for round in 0..30 {
        (0..2).for_each(|host| send(&mut node, now, 2_000 + 2 * round + host, 1));
        sent += drain(&mut node, now, FRIEND).1 as u64;
        node.shard.handle_timeout(now);
        sent += drain(&mut node, now, FRIEND).1 as u64;
        let with_credit = sent - node.shard.counters().credits_passed_on;
        assert!(with_credit <= 8 + 4, "{with_credit} credits are taken in round {round}");
        now = now + Duration::from_millis(1_100);
    }
    assert_eq!(sent, 8 + 2 * 30, "newcomers wait for none that is found out");
}

/// A device that has no room for long says nothing of the peers.
#[test]
fn peers_are_judged_by_what_an_lnd_has() {
    let mut node = crowded(4, 1);
    let mut now = Instant(0);
    send(&mut node, now, FRIEND, 1);
    assert_eq!(drain(&mut node, now, FRIEND), (1, 0));
    send(&mut node, now, FRIEND, 4);
    send(&mut node, now, 1_000, 1);
    for _ in 0..8 {
        let tx = node.transmit_at(now).unwrap().tx;
        node.shard.give_back(Full(tx));
        now = now + LOOK_INTERVAL;
        node.shard.handle_timeout(now);
    }
    now = now + Duration::from_secs(2);
    let sent: Vec<TxId> = std::iter::from_fn(|| node.transmit_at(now)).map(|sent| sent.tx).collect();
    assert_eq!(sent.len(), 4);
    now = now + LOOK_INTERVAL;
    node.shard.handle_timeout(now);
    assert_eq!(node.shard.counters().credits_passed_on, 0, "the LND has had them for 250 ms");
    sent.into_iter().for_each(|tx| node.shard.sent(now, tx, Status::Ok));
    assert_eq!(drain(&mut node, now, FRIEND), (0, 1));
    // The peer is a friend still: its messages do not wait for those of others.
    (0..4).for_each(|host| send(&mut node, now, 2_000 + host, 1));
    assert_eq!(drain(&mut node, now, FRIEND), (0, 3));
    send(&mut node, now, FRIEND, 1);
    assert_eq!(drain(&mut node, now, FRIEND), (1, 0));
}

/// A peer that answers again is served as a friend again, and its messages leave in their order.
#[test]
fn who_answers_again_is_a_friend() {
    let mut node = crowded(4, 1);
    let mut now = Instant(0);
    send(&mut node, now, FRIEND, 8);
    let stuck: Vec<TxId> = std::iter::from_fn(|| node.transmit_at(now)).map(|sent| sent.tx).collect();
    assert_eq!(stuck.len(), 4);
    send(&mut node, now, 1_000, 8);
    assert_eq!(drain(&mut node, now, FRIEND), (0, 0));
    now = now + Duration::from_secs(2);
    node.shard.handle_timeout(now);
    assert_eq!(drain(&mut node, now, FRIEND), (0, 4), "others go first");
    stuck.into_iter().for_each(|tx| node.shard.sent(now, tx, Status::Ok));
    assert_eq!(drain(&mut node, now, FRIEND), (0, 0), "so late is as good as unknown");
    now = now + Duration::from_millis(1_250);
    node.shard.handle_timeout(now);
    assert_eq!(drain(&mut node, now, FRIEND).0, 4, "it goes before the silent");
    send(&mut node, now, FRIEND, 3);
    assert_eq!(drain(&mut node, now, FRIEND), (3, 0));
}

/// Peers that all answer have the same share, also those that came last; and others are not forgotten for
/// them.
#[test]
fn peers_take_turns() {
    let mut node = crowded(4, 1);
    let now = Instant(0);
    send(&mut node, now, 1_000, 8);
    send(&mut node, now, 1_001, 8);
    send(&mut node, now, 1_002, 8);
    let mut left: BTreeMap<u32, usize> = BTreeMap::new();
    let mut order = Vec::new();
    while let Some(sent) = node.transmit_at(now) {
        let host = sent.header.destination.nid.to_small().unwrap() as u32 & 0xffff;
        order.push(host);
        *left.entry(host).or_default() += 1;
        node.shard.sent(now, sent.tx, Status::Ok);
    }
    assert_eq!(left.values().copied().collect::<Vec<_>>(), [8, 8, 8]);
    let last = |host| order.iter().rposition(|other| *other == host).unwrap();
    assert!(last(1_001) + 8 > last(1_000) && last(1_002) > 15, "{order:?}");
    // A peer that has not answered yet has the fourth turn, while better ones always wait.
    let mut node = crowded(4, 1);
    for host in 0..4 {
        send(&mut node, now, 2_000 + host, 1);
        let sent = node.transmit_at(now).unwrap();
        node.shard.sent(now, sent.tx, Status::Ok);
    }
    (0..4).for_each(|host| send(&mut node, now, 2_000 + host, 8));
    send(&mut node, now, 1_000, 1);
    let order: Vec<u32> = std::iter::from_fn(|| {
        let sent = node.transmit_at(now)?;
        node.shard.sent(now, sent.tx, Status::Ok);
        Some(sent.header.destination.nid.to_small().unwrap() as u32 & 0xffff)
    })
    .collect();
    let at = order.iter().position(|host| *host == 1_000).unwrap();
    assert_eq!((order.len(), at), (33, 15), "{order:?}");
}

/// A message that its device gives back after it has passed its credit on leaves no credit behind when its NI
/// serves no more.
#[test]
fn a_message_given_back_returns_no_credit_that_it_passed_on() {
    let topology = |generation, status| {
        let ni = LocalNi { status, ..local_ni(nid(1, 1), 1, 1) };
        Arc::new(Topology::new(vec![ni]).with_generation(generation))
    };
    let mut node = Node::new(ShardConfig { topology: topology(1, NiStatus::Up), ..config() });
    let put = |node: &mut Node, peer| {
        let md = node.shard.bind(&node.md(1)).unwrap();
        node.shard.put(Instant(0), &put_request(md, peer)).unwrap();
    };
    put(&mut node, 10);
    let tx = node.transmit().unwrap().tx;
    put(&mut node, 11);
    let now = Instant(0) + Duration::from_secs(1);
    node.shard.handle_timeout(now);
    assert_eq!(node.shard.counters().credits_passed_on, 1);
    node.shard.give_back(Full(tx));
    node.shard.update(now, topology(2, NiStatus::Closed));
    assert_eq!(node.events().len(), 2, "both have ended");
    assert_eq!(node.shard.ni_credits(NI), Some(1));
}
