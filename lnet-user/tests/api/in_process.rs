//! Two nodes in one process, over the in-process LND.

use std::time::Duration;

use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{
    Ack, Buffer, Cause, Discovery, EntrySpec, EventKind, EventQueue, Global, Lnet, MdOptions, Net, NiConfig,
    Nid, NodeDriver, Status, Target, XdpMode,
};

use crate::common::{LAZY, PATIENCE, PINNED, config, post, spec};

/// How long a message may wait for room in its peer's queue.
const LND_TIMEOUT: Duration = Duration::from_secs(2);
/// Messages that a queue holds.
const QUEUE_MAX: usize = 256;

fn nid(host: u8) -> Nid {
    Nid::new_ip(Net::XDP, [10, 9, 8, host].into()).unwrap()
}

fn ni(fabric: &str, host: u8) -> NiConfig {
    NiConfig::new(nid(host), &format!("in-process:{fabric}"))
}

fn node(fabric: &str, host: u8, shards: u32) -> Result<Lnet, lnet_user::LnetError> {
    node_of(ni(fabric, host), shards)
}

fn node_of(ni: NiConfig, shards: u32) -> Result<Lnet, lnet_user::LnetError> {
    let config = config(shards).nis(vec![ni]).lnd_timeout(LND_TIMEOUT);
    let idle = Idle::new(Duration::ZERO);
    let lnet = Lnet::start_on(&config, &Threads::new().idle(idle))?;
    lnet.set_lazy(LAZY, true).unwrap();
    lnet.open().unwrap();
    Ok(lnet)
}

fn pair(fabric: &str, shards: u32) -> [Lnet; 2] {
    [1, 2].map(|host| node(fabric, host, shards).unwrap())
}

/// The next event of a kind; others are skipped.
fn next(queue: &mut EventQueue, kind: EventKind) -> lnet_user::QueuedEvent {
    loop {
        let queued = queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
        if queued.event.kind() == kind {
            return queued;
        }
    }
}

#[test]
fn puts_are_acknowledged_and_gets_answered_between_two_nodes() {
    put_and_get(&pair("puts", 2));
}

/// What arrives at the shard that serves the NI goes on to the one that it is for, requests as well as
/// answers.
#[test]
fn messages_of_a_shard_that_does_not_serve_its_ni_arrive() {
    let on_first = |host| node_of(ni("served", host).serving_shards(vec![0]), 2).unwrap();
    put_and_get(&[1, 2].map(on_first));
    let refused = node_of(ni("served", 3).serving_shards(vec![0, 2]), 2).map(drop).unwrap_err();
    assert!(refused.to_string().contains("CPT 2 for 10.9.8.3@xdp"), "{refused}");
}

fn put_and_get([near, far]: &[Lnet; 2]) {
    let (from, to) = (near.shard(1).unwrap(), far.shard(1).unwrap());
    let (mut sent, mut arrived) = (from.create_event_queue(32).unwrap(), to.create_event_queue(32).unwrap());
    for length in [0, 1, 5000, 1 << 20] {
        let bytes: Vec<u8> = (0..length).map(|index: u32| (index ^ index >> 8) as u8).collect();
        post(&to, &arrived, PINNED[1], 7, bytes.len());
        let source = spec(&sent, bytes.len(), 2, MdOptions::NONE);
        let source = from.bind(&source, Buffer::from(bytes.clone())).unwrap();
        source.put(&Target::new(nid(2), PINNED[1], 7), Ack::Wanted, 0).start().unwrap();
        assert_eq!(next(&mut arrived, EventKind::Put).payload(), Some(&bytes[..]), "{length} bytes");
        next(&mut sent, EventKind::Ack);

        let posted = spec(&arrived, bytes.len(), 1, MdOptions::GET);
        to.attach(&EntrySpec::new(PINNED[1], 8), &posted, Buffer::from(bytes.clone())).unwrap().detach();
        let sink = spec(&sent, bytes.len(), 2, MdOptions::NONE);
        let sink = from.bind(&sink, Buffer::zeroed(bytes.len())).unwrap();
        sink.get(&Target::new(nid(2), PINNED[1], 8)).start().unwrap();
        assert_eq!(next(&mut sent, EventKind::Reply).payload(), Some(&bytes[..]), "{length} bytes");
    }
}

#[test]
fn a_put_to_a_lazy_portal_waits_for_an_entry() {
    let [near, far] = pair("lazy", 1);
    let (from, to) = (near.shard(0).unwrap(), far.shard(0).unwrap());
    let (mut sent, mut arrived) = (from.create_event_queue(8).unwrap(), to.create_event_queue(8).unwrap());
    let source = from.bind(&spec(&sent, 5, 2, MdOptions::NONE), Buffer::from(b"hello".to_vec())).unwrap();
    source.put(&Target::new(nid(2), LAZY, 7), Ack::Wanted, 0).start().unwrap();
    next(&mut sent, EventKind::Send);
    post(&to, &arrived, LAZY, 7, 5);
    assert_eq!(next(&mut arrived, EventKind::Put).payload(), Some(&b"hello"[..]));
    next(&mut sent, EventKind::Ack);
}

/// More messages than a queue holds, and than a shard has room for, from several threads, to a peer that is
/// to be discovered first: each arrives once.
#[test]
fn many_messages_of_several_threads_arrive_once() {
    const COUNT: u32 = 400;
    let [near, far] = pair("threads", 2);
    let to = far.shard(0).unwrap();
    let mut arrived = to.create_event_queue(2 * COUNT + 1).unwrap();
    let room = spec(&arrived, 16, 2 * COUNT, MdOptions::PUT | MdOptions::MANAGE_REMOTE);
    to.attach(&EntrySpec::new(PINNED[0], 7), &room, Buffer::zeroed(16)).unwrap().detach();
    std::thread::scope(|scope| {
        for shard in 0..2 {
            let from = near.shard(shard).unwrap();
            scope.spawn(move || {
                let mut sent = from.create_event_queue(COUNT + 1).unwrap();
                let source = spec(&sent, 8, COUNT, MdOptions::NONE);
                let source = from.bind(&source, Buffer::zeroed(8)).unwrap();
                let mut ended = 0;
                for _ in 0..COUNT {
                    let target = Target::new(nid(2), PINNED[0], 7);
                    while source.put(&target, Ack::NotWanted, 0).start().is_err() {
                        assert_eq!(next(&mut sent, EventKind::Send).event.status(), Status::Ok);
                        ended += 1;
                    }
                }
                (ended..COUNT).for_each(|_| drop(next(&mut sent, EventKind::Send)));
            });
        }
    });
    for number in 0..2 * COUNT {
        assert_eq!(next(&mut arrived, EventKind::Put).event.origin().unwrap().source, nid(1), "{number}");
    }
    assert!(arrived.next_blocking(Some(Duration::from_millis(20))).unwrap().is_none());
}

#[test]
fn a_peer_that_is_gone_ends_messages() {
    let [near, far] = pair("gone", 1);
    let from = near.shard(0).unwrap();
    let mut sent = from.create_event_queue(8).unwrap();
    drop(far);
    let source = from.bind(&spec(&sent, 5, 2, MdOptions::NONE), Buffer::from(b"hello".to_vec())).unwrap();
    source.put(&Target::new(nid(2), PINNED[0], 7), Ack::Wanted, 0).start().unwrap();
    let queued = next(&mut sent, EventKind::Send);
    assert_ne!(queued.event.status(), lnet_user::Status::Ok);
}

#[test]
fn a_nid_that_another_node_has_is_refused() {
    let [_near, far] = pair("taken", 1);
    let error = node("taken", 2, 1).unwrap_err().to_string();
    assert!(error.contains("10.9.8.2@xdp is on in-process:taken already"), "{error}");
    drop(far);
    node("taken", 2, 1).unwrap();
}

/// Puts more messages to a peer that takes none than its queue holds; the statuses with which those ended
/// that it has no room for, once `meanwhile` is over.
fn overfill(fabric: &str, meanwhile: impl FnOnce(&Lnet)) -> Vec<Status> {
    const BEYOND: usize = 20;
    let near = node(fabric, 1, 1).unwrap();
    near.set(Global::Discovery, Discovery::Off as u32).unwrap();
    // Messages wait for a ping that is answered; then another node has the NID, whose shard is the test's to
    // drive, which does not.
    let answering = node(fabric, 2, 1).unwrap();
    near.discover(nid(2), false).unwrap();
    drop(answering);
    let mut stuck = NodeDriver::start(&config(1).nis(vec![ni(fabric, 2)])).unwrap();
    stuck.0.open().unwrap();
    let count = QUEUE_MAX + BEYOND;
    let from = near.shard(0).unwrap();
    let mut sent = from.create_event_queue(count as u32 + 1).unwrap();
    let source = spec(&sent, 8, count as u32, MdOptions::NONE);
    let source = from.bind(&source, Buffer::zeroed(8)).unwrap();
    let target = Target::new(nid(2), PINNED[0], 7);
    let mut statuses = Vec::new();
    for _ in 0..count {
        while source.put(&target, Ack::NotWanted, 0).start().is_err() {
            statuses.push(next(&mut sent, EventKind::Send).event.status());
        }
    }
    statuses.extend((statuses.len()..QUEUE_MAX - 1).map(|_| next(&mut sent, EventKind::Send).event.status()));
    meanwhile(&near);
    if fabric == "left" {
        drop(stuck);
    }
    statuses.extend((statuses.len()..count).map(|_| next(&mut sent, EventKind::Send).event.status()));
    let sent_count = statuses.iter().filter(|status| **status == Status::Ok).count();
    assert!((QUEUE_MAX - 1..=QUEUE_MAX).contains(&sent_count), "{sent_count} had room");
    statuses.retain(|status| *status != Status::Ok);
    statuses
}

#[test]
fn a_peer_that_takes_nothing_delays_no_message_to_another_one() {
    let ended = overfill("full", |near| {
        let far = node("full", 3, 1).unwrap();
        let (from, to) = (near.shard(0).unwrap(), far.shard(0).unwrap());
        let (sent, mut arrived) = (from.create_event_queue(8).unwrap(), to.create_event_queue(8).unwrap());
        post(&to, &arrived, PINNED[0], 7, 5);
        let source = from.bind(&spec(&sent, 5, 2, MdOptions::NONE), Buffer::from(b"hello".to_vec())).unwrap();
        source.put(&Target::new(nid(3), PINNED[0], 7), Ack::NotWanted, 0).start().unwrap();
        let put = arrived.next_blocking(Some(LND_TIMEOUT / 2)).unwrap().expect("it passes the others");
        assert_eq!(put.payload(), Some(&b"hello"[..]));
    });
    let in_time =
        |status: &Status| matches!(status, Status::NeverSent(Cause::Timeout | Cause::CreditTimeout));
    assert!(ended.iter().all(in_time) && ended.contains(&Status::NeverSent(Cause::Timeout)), "{ended:?}");
}

#[test]
fn messages_that_wait_for_a_peer_end_when_it_is_gone() {
    let begun = std::time::Instant::now();
    let ended = overfill("left", |_| {});
    assert!(ended.iter().all(|status| *status == Status::NeverSent(Cause::Unreachable)), "{ended:?}");
    assert!(begun.elapsed() < LND_TIMEOUT);
}

#[test]
fn an_in_process_ni_has_no_interface() {
    let [near, _far] = pair("bare", 1);
    let [ni] = &near.nis()[..] else { panic!("one NI") };
    assert!(ni.xdp.is_none() && ni.down.is_none(), "{ni:?}");
}

/// What only NIs on network interfaces have is refused, before anything is opened and when it is.
#[test]
fn a_port_that_its_lnd_does_not_have_is_refused() {
    for (asked, named) in [
        (ni("none", 1).udp_port(Some(7000)), "port 7000"),
        (ni("none", 1).mode(Some(XdpMode::Generic)), "mode generic"),
        (ni("none", 1).queues(Some(3)), "queues 3"),
    ] {
        let expected = format!("{named} for in-process:none: none is expected there");
        let early = asked.clone().build().unwrap_err().to_string();
        let late = Lnet::start(&config(1).nis(vec![asked])).unwrap_err().to_string();
        assert!(early.contains(&expected) && late.contains(&expected), "{early} / {late}");
    }
}
