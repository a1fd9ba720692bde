//! Memory that is being sent or filled over tcp, while other messages are for the same bytes: what is sent
//! must not change, so REPLYs wait for it; those that are received one after the other do not. A peer that
//! speaks slowly, or not at all any more, ends no node.

use std::io::Read;
use std::time::Duration;

use lnet_core::event::EventKind;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::SubmitError;
use lnet_tests::netns::{Netns, Wiring, enter, wait_until};
use lnet_user::api::{Ack, Descriptor, EventQueue, Lnet, LnetError, QueuedEvent, Target};
use lnet_user::node::{NiConfig, NodeConfig};
use lnet_user::{Buffer, Nid};
use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::socklnd::{ByteOrder, PREFIX_BYTES, Prefix, PrefixKind, Version};
use lnet_wire::{Body, Header, WireHandle};

use crate::dialler::{Dialler, Greeting, header, message, nid, privileged as reserved, told};
use crate::privileged;

const PORTAL: u32 = 40;
const LONG_BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);
const MINE: u8 = 3;
const THEIRS: u8 = 5;

/// A node of one shard, and a peer of its that says what a test wants it to say.
struct Scene {
    netns: Netns,
    lnet: Lnet,
    queue: EventQueue,
    /// The descriptor that all messages go to, or come from.
    md: Descriptor,
    peer: Dialler,
    /// The NIDs of the node and of its peer.
    own: Nid,
    other: Nid,
}

impl Scene {
    /// The descriptor takes so many operations.
    fn new(operations: u32) -> Self {
        let netns = Netns::new(Wiring::default());
        let [near, far] = [netns.a(), netns.b()].map(|side| side.interface().ipv4);
        let config = NodeConfig::new(vec![NiConfig::new(nid(near), &netns.a().interface().name)]);
        let lnet = enter(netns.a(), || Lnet::start(&config).unwrap());
        lnet.open().unwrap();
        let shard = lnet.shard(0).unwrap();
        let queue = shard.create_event_queue(64).unwrap();
        let read = MdSpec::new(LONG_BYTES as u64, Threshold::Infinite, MdOptions::GET, queue.handle());
        let read = MdSpec { event_queue: None, ..read };
        let own = Buffer::from(vec![MINE; LONG_BYTES]);
        shard.attach(&EntrySpec::new(PORTAL, 1), &read, own).unwrap().detach();
        let spec =
            MdSpec::new(LONG_BYTES as u64, Threshold::Count(operations), MdOptions::NONE, queue.handle());
        let md = shard.bind(&spec, Buffer::zeroed(LONG_BYTES)).unwrap();
        let (stream, _) = enter(netns.b(), || reserved(far, near, 1024));
        let peer = Dialler::connected(stream, Greeting::new(nid(far), nid(near)));
        Self { netns, lnet, queue, md, peer, own: nid(near), other: nid(far) }
    }

    fn counted(&self, name: &'static str) -> u64 {
        self.lnet.shard(0).unwrap().run(move |worker| worker.counted(name)).unwrap().unwrap()
    }

    fn next(&mut self, kind: EventKind) -> QueuedEvent {
        loop {
            let queued = self.queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event");
            if queued.event.kind() == kind {
                return queued;
            }
        }
    }

    /// Gets from the peer, which is told by which handle.
    fn get(&mut self) -> WireHandle {
        self.md.get(&Target::new(self.other, PORTAL, 1)).start().unwrap();
        match self.heard().body {
            Body::Get { return_md, portal: PORTAL, .. } => return_md,
            other => panic!("{other:?}"),
        }
    }

    /// The header of the next message that the peer is sent; it answers the ping that comes before all.
    fn heard(&mut self) -> Header {
        loop {
            let mut prefix = [0; PREFIX_BYTES];
            self.peer.stream.read_exact(&mut prefix).unwrap();
            if Prefix::decode(&prefix, ByteOrder::Little).unwrap().kind == PrefixKind::Lnet {
                let mut bytes = [0; SMALL_HEADER_BYTES];
                self.peer.stream.read_exact(&mut bytes).unwrap();
                let header = Header::decode_small(&bytes).unwrap();
                let Body::Get { return_md, portal: 0, .. } = header.body else { return header };
                self.peer.reply(return_md, &told(self.other));
            }
        }
    }

    /// The peer begins to answer a GET, until the kernel puts payload in place; how much of it is left to be
    /// said.
    fn begin_reply(&mut self, md: WireHandle) -> usize {
        let body = Body::Reply { md };
        let head = message(Version::V3, &header(self.other, self.own, LONG_BYTES as u32, body));
        self.peer.say(&head);
        // What comes at once with the head is copied.
        let mut left = LONG_BYTES;
        wait_until("payload is put in place", PATIENCE, || {
            let some = [THEIRS; 4096].len().min(left - 1);
            self.peer.say(&[THEIRS; 4096][..some]);
            left -= some;
            self.counted("stream_bytes_placed") != 0
        });
        left
    }

    /// Gets from the node itself into the same bytes.
    fn get_own(&self) {
        self.md.get(&Target::new(Nid::LO, PORTAL, 1)).start().unwrap();
    }

    /// The node's own REPLY has come, whole.
    fn expect_own(&mut self) {
        let reply = self.next(EventKind::Reply);
        assert_eq!(reply.event.status(), Status::Ok);
        let buffer = reply.into_buffer().expect("the last event has it");
        assert!(buffer.fragments().flatten().all(|byte| *byte == MINE));
    }
}

#[test]
fn a_reply_does_not_wait_for_another_that_is_being_received() {
    if !privileged() {
        return;
    }
    let mut scene = Scene::new(5);
    let md = scene.get();
    let left = scene.begin_reply(md);
    scene.get_own();
    let own = scene.next(EventKind::Reply);
    assert_eq!(own.event.status(), Status::Ok);
    drop(own);
    let put = |scene: &Scene| scene.md.put(&Target::new(Nid::LO, PORTAL, 2), Ack::NotWanted, 0).start();
    let refused = put(&scene);
    assert!(matches!(refused, Err(LnetError::Request(SubmitError::MdLent(_)))), "{refused:?}");
    scene.peer.say(&vec![THEIRS; left]);
    let last = scene.next(EventKind::Reply);
    assert_eq!(last.event.status(), Status::Ok);
    drop(last);
    put(&scene).unwrap();
    let buffer = scene.next(EventKind::Send).into_buffer().expect("the last event has it");
    assert!(buffer.fragments().flatten().skip(LONG_BYTES - left).all(|byte| *byte == THEIRS));
    scene.peer.ping();
}

#[test]
fn a_reply_does_not_wait_for_one_whose_peer_goes() {
    if !privileged() {
        return;
    }
    let mut scene = Scene::new(4);
    let md = scene.get();
    scene.begin_reply(md);
    scene.get_own();
    let own = scene.next(EventKind::Reply);
    assert_eq!(own.event.status(), Status::Ok);
    drop(own);
    scene.peer.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let last = scene.next(EventKind::Reply);
    assert!(matches!(last.event.status(), Status::Unknown(_)), "{:?}", last.event);
}

/// Half of a REPLY has come when it is asked for no more, or when all ends.
#[test]
fn what_is_being_received_ends_with_its_node() {
    if !privileged() {
        return;
    }
    let mut scene = Scene::new(4);
    let md = scene.get();
    scene.begin_reply(md);
    let Scene { netns, lnet, queue, md, mut peer, .. } = scene;
    drop((md, queue, lnet));
    crate::dialler::rest(&mut peer.stream);
    drop(netns);
}

#[test]
fn a_reply_waits_for_a_put_that_is_being_sent() {
    if !privileged() {
        return;
    }
    let mut scene = Scene::new(10);
    // More than TCP takes of it: the peer reads nothing but a head.
    for _ in 0..8 {
        scene.md.put(&Target::new(scene.other, PORTAL, 1), Ack::NotWanted, 0).start().unwrap();
    }
    assert!(matches!(scene.heard().body, Body::Put { portal: PORTAL, .. }));
    scene.get_own();
    // Its answer comes behind that of the GET.
    scene.lnet.ping(Nid::LO, None, PATIENCE).unwrap();
    scene.peer.stream.shutdown(std::net::Shutdown::Both).unwrap();
    scene.expect_own();
}
