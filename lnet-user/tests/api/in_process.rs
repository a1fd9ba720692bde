//! Two nodes in one process, over the in-process LND.

use std::time::Duration;

use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Ack, Buffer, EntrySpec, EventKind, EventQueue, Lnet, MdOptions, Net, NiConfig, Nid, Target};

use crate::common::{LAZY, PATIENCE, PINNED, config, post, spec};

fn nid(host: u8) -> Nid {
    Nid::new_ip(Net::XDP, [10, 9, 8, host].into()).unwrap()
}

fn node(fabric: &str, host: u8, shards: u32) -> Result<Lnet, lnet_user::LnetError> {
    let nis = vec![NiConfig::new(nid(host), &format!("in-process:{fabric}"))];
    let mut config = config(shards);
    config.nis = nis;
    let idle = Idle { spin: Duration::ZERO };
    let lnet = Lnet::start_on(&config, &Threads::for_shards(1).cpus(Vec::new()).idle(idle))?;
    lnet.set_lazy(LAZY, true).unwrap();
    lnet.open().unwrap();
    Ok(lnet)
}

fn pair(fabric: &str, shards: u32) -> [Lnet; 2] {
    [1, 2].map(|host| node(fabric, host, shards).unwrap())
}

/// The next event of a kind; others are skipped.
fn next(queue: &mut EventQueue, kind: EventKind) -> lnet_user::Notice {
    loop {
        let notice = queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
        if notice.event.kind() == kind {
            return notice;
        }
    }
}

#[test]
fn puts_are_acknowledged_and_gets_answered_between_two_nodes() {
    let [near, far] = pair("puts", 2);
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

/// More messages than a queue holds, from several threads: each arrives once.
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
                        next(&mut sent, EventKind::Send);
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
    let notice = next(&mut sent, EventKind::Send);
    assert_ne!(notice.event.status(), lnet_user::Status::Ok);
}

#[test]
fn a_nid_that_another_node_has_is_refused() {
    let [_near, far] = pair("taken", 1);
    let error = node("taken", 2, 1).unwrap_err().to_string();
    assert!(error.contains("10.9.8.2@xdp is on in-process:taken already"), "{error}");
    drop(far);
    node("taken", 2, 1).unwrap();
}
