//! Long PUTs over tcp into one descriptor of which peers choose the bytes (`MANAGE_REMOTE`): each goes
//! straight to its bytes, also where another one is under way to the same. A peer that stops in the middle of
//! its payload keeps no other from them.

use std::time::Duration;

use lnet_core::event::{Event, EventKind};
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_tests::netns::{Netns, Wiring, enter, wait_until};
use lnet_user::Buffer;
use lnet_user::api::{Entry, EventQueue, Lnet, QueuedEvent};
use lnet_user::node::{NiConfig, NodeConfig, ReactorChoice};
use lnet_wire::socklnd::Version;
use lnet_wire::{Body, WireHandle};

use crate::dialler::{Dialler, Greeting, header, message, nid, privileged as reserved};
use crate::privileged;

const PORTAL: u32 = 40;
const BITS: u64 = 7;
/// Bytes of a PUT; the descriptor has twice as many.
const LONG_BYTES: usize = 256 << 10;
const HALF: usize = LONG_BYTES / 2;
const PATIENCE: Duration = Duration::from_secs(20);
const FIRST: u8 = 3;
const SECOND: u8 = 5;
const REACTORS: [ReactorChoice; 2] = [ReactorChoice::IoUring, ReactorChoice::Epoll];

/// A node of one shard with the entry, and two peers that say what a test wants them to say.
struct Scene {
    lnet: Lnet,
    queue: EventQueue,
    entry: Option<Entry>,
    peers: [Dialler; 2],
    _netns: Netns,
}

impl Scene {
    fn new(reactor: ReactorChoice, options: MdOptions) -> Self {
        let netns = Netns::new(Wiring::default());
        let [near, far] = [netns.a(), netns.b()].map(|side| side.interface().ipv4);
        let [a, b, c, d] = far.octets();
        let other = [a, b, c, d + 1].into();
        netns.b().ip(&format!("addr add {other}/24 dev {}", netns.b().interface().name)).unwrap();
        let config = NodeConfig::new(vec![NiConfig::new(nid(near), &netns.a().interface().name)]);
        let lnet = enter(netns.a(), || Lnet::start(&config.reactor(reactor)).unwrap());
        lnet.open().unwrap();
        let shard = lnet.shard(0).unwrap();
        let queue = shard.create_event_queue(64).unwrap();
        let options = MdOptions::PUT | MdOptions::MANAGE_REMOTE | options;
        let spec = MdSpec::new(2 * LONG_BYTES as u64, Threshold::Count(20), options, queue.handle());
        let entry = shard.attach(&EntrySpec::new(PORTAL, BITS), &spec, Buffer::zeroed(2 * LONG_BYTES));
        let peers = [far, other].map(|from| {
            let (stream, _) = enter(netns.b(), || reserved(from, near, 1024));
            Dialler::connected(stream, Greeting::new(nid(from), nid(near)))
        });
        Self { lnet, queue, entry: Some(entry.unwrap()), peers, _netns: netns }
    }

    fn counted(&self, name: &'static str) -> u64 {
        self.lnet.shard(0).unwrap().run(move |worker| worker.counted(name)).unwrap().unwrap()
    }

    fn arrived_bytes(&self) -> u64 {
        self.counted("payload_bytes_placed") + self.counted("payload_bytes_copied")
    }

    /// A peer begins a PUT of [`LONG_BYTES`], and says so much of its payload.
    fn begin(&mut self, peer: usize, offset: usize, said: usize) {
        let Greeting { source, destination, .. } = self.peers[peer].greeting;
        let body = Body::Put {
            ack_md: WireHandle::NONE,
            match_bits: BITS,
            hdr_data: peer as u64,
            portal: PORTAL,
            offset: offset as u32,
        };
        let before = self.arrived_bytes();
        self.peers[peer].say(&message(Version::V3, &header(source, destination, LONG_BYTES as u32, body)));
        self.go_on(peer, said);
        wait_until("it has arrived", PATIENCE, || self.arrived_bytes() >= before + said as u64);
    }

    fn go_on(&mut self, peer: usize, said: usize) {
        self.peers[peer].say(&vec![[FIRST, SECOND][peer]; said]);
    }

    fn next(&mut self) -> QueuedEvent {
        self.queue.next_blocking(Some(PATIENCE)).unwrap().expect("an event")
    }

    /// The PUT of a peer has arrived, with so many bytes.
    fn expect(&mut self, peer: usize, bytes: usize) {
        let queued = self.next();
        assert_eq!(queued.event.status(), Status::Ok);
        let Event::Put { hdr_data, manipulated_bytes, .. } = queued.event else { panic!("{queued:?}") };
        assert_eq!((hdr_data as usize, manipulated_bytes as usize), (peer, bytes));
    }

    /// The bytes of the descriptor, which ends.
    fn end(&mut self) -> Vec<u8> {
        drop(self.entry.take());
        let last = self.next();
        assert_eq!(last.event.kind(), EventKind::Unlink);
        bytes_of(last)
    }
}

/// A scene over each reactor; none without privileges.
fn scenes(options: MdOptions) -> impl Iterator<Item = Scene> {
    let reactors = REACTORS.into_iter().filter(|_| privileged());
    reactors.map(move |reactor| Scene::new(reactor, options))
}

fn bytes_of(last: QueuedEvent) -> Vec<u8> {
    last.into_buffer().expect("the last event has it").fragments().flatten().copied().collect()
}

/// Asserts that bytes are those of runs, each so many of one value.
#[track_caller]
fn assert_runs(bytes: &[u8], runs: &[(usize, u8)]) {
    let expected: Vec<u8> =
        runs.iter().flat_map(|(count, value)| std::iter::repeat_n(*value, *count)).collect();
    let same = bytes.iter().zip(&expected).take_while(|(found, expected)| found == expected).count();
    assert!(bytes == expected, "the first {same} of {} bytes are right", expected.len());
}

#[test]
fn puts_to_different_bytes_are_received_beside_each_other() {
    for mut scene in scenes(MdOptions::NONE) {
        scene.begin(0, 0, HALF);
        scene.begin(1, LONG_BYTES, HALF);
        scene.go_on(1, LONG_BYTES - HALF);
        scene.expect(1, LONG_BYTES);
        scene.go_on(0, LONG_BYTES - HALF);
        scene.expect(0, LONG_BYTES);
        // Payload that came with the heads was copied.
        assert!(scene.counted("payload_bytes_placed") > LONG_BYTES as u64);
        assert_runs(&scene.end(), &[(LONG_BYTES, FIRST), (LONG_BYTES, SECOND)]);
    }
}

#[test]
fn a_put_does_not_wait_for_another_to_the_same_bytes() {
    for mut scene in scenes(MdOptions::NONE) {
        scene.begin(0, 0, HALF);
        // The first peer says nothing more for a while.
        scene.begin(1, 0, LONG_BYTES);
        scene.expect(1, LONG_BYTES);
        scene.go_on(0, LONG_BYTES - HALF);
        scene.expect(0, LONG_BYTES);
        assert_runs(&scene.end(), &[(HALF, SECOND), (LONG_BYTES - HALF, FIRST), (LONG_BYTES, 0)]);
    }
}

#[test]
fn a_put_is_cut_at_the_end_of_the_descriptor() {
    for mut scene in scenes(MdOptions::TRUNCATE) {
        let offset = LONG_BYTES + HALF;
        scene.begin(0, offset, 1000);
        scene.begin(1, offset, 2000);
        scene.go_on(1, LONG_BYTES - 2000);
        scene.expect(1, HALF);
        scene.go_on(0, LONG_BYTES - 1000);
        scene.expect(0, HALF);
        // Bytes that were cut off are not taken for a message.
        scene.peers.iter_mut().for_each(Dialler::ping);
        let runs = [(offset, 0), (1000, SECOND), (HALF - 1000, FIRST)];
        assert_runs(&scene.end(), &runs);
    }
}

#[test]
fn a_peer_that_goes_in_the_middle_of_its_payload_ends_its_own_put_alone() {
    for mut scene in scenes(MdOptions::NONE) {
        scene.begin(0, 0, HALF);
        scene.begin(1, 0, HALF);
        scene.peers[0].stream.shutdown(std::net::Shutdown::Both).unwrap();
        let ended = scene.next();
        assert!(matches!(ended.event.status(), Status::Unknown(_)), "{:?}", ended.event);
        scene.go_on(1, LONG_BYTES - HALF);
        scene.expect(1, LONG_BYTES);
        assert_runs(&scene.end(), &[(LONG_BYTES, SECOND), (LONG_BYTES, 0)]);
    }
}

#[test]
fn a_descriptor_that_is_unlinked_meanwhile_comes_home_with_the_last_put() {
    for mut scene in scenes(MdOptions::NONE) {
        scene.begin(0, 0, HALF);
        scene.begin(1, LONG_BYTES, HALF);
        drop(scene.entry.take());
        // Orders to a shard are carried out in their order.
        scene.counted("payload_bytes_placed");
        scene.go_on(0, LONG_BYTES - HALF);
        let first = scene.next();
        assert!(first.event.kind() == EventKind::Put && !first.event.unlinked(), "{:?}", first.event);
        scene.go_on(1, LONG_BYTES - HALF);
        let last = scene.next();
        assert!(last.event.kind() == EventKind::Put && last.event.unlinked(), "{:?}", last.event);
        assert_runs(&bytes_of(last), &[(LONG_BYTES, FIRST), (LONG_BYTES, SECOND)]);
        scene.peers.iter_mut().for_each(Dialler::ping);
    }
}
