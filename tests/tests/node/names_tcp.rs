//! Peers of two NIDs over tcp, played as kernel nodes are: under which name their requests are matched, and
//! how long these wait for that.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lnet_core::event::Event;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::NAME_WAIT;
use lnet_model::peer::PeerSpec;
use lnet_tests::netns::{Netns, Wiring, enter, ip, wait_until};
use lnet_tests::node::config;
use lnet_user::api::{EventQueue, Lnet};
use lnet_user::node::NiConfig;
use lnet_user::{Buffer, Global, Nid, PeerEdit, Policy};
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::socklnd::Version;
use lnet_wire::{Body, Net, NetType, ProcessId, WireHandle};

use crate::dialler::{Dialler, Greeting, header, message, privileged as reserved, put};
use crate::privileged;

const PORTAL: u32 = 40;
const PATIENCE: Duration = Duration::from_secs(20);
/// Match bits of pings and pushes, at portal 0.
const PING_BITS: u64 = 1 << 63;
/// Multi-Rail, with discovery.
const MULTI_RAIL: Features = Features(0x1E);
/// Time that requests take which are not to wait.
const AT_ONCE: Duration = Duration::from_millis(700);

fn on_net(number: u16, address: Ipv4Addr) -> Nid {
    Nid::new_ip(Net::new(NetType::TCP, number), address.into()).unwrap()
}

fn address(nid: &Nid) -> Ipv4Addr {
    let Some(IpAddr::V4(address)) = nid.ip() else { panic!("{nid}") };
    address
}

/// Ping information of a node of these NIDs.
fn told(sequence: u32, nis: &[(Nid, NiStatus)]) -> Vec<u8> {
    let nis = nis.iter().map(|(nid, status)| PingNi { nid: *nid, status: *status });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, ProcessId::LUSTRE_PID, sequence, nis).unwrap();
    bytes
}

/// A node of two shards, whose NIs are on nets of their own, a rail each.
struct Scene {
    netns: Netns,
    lnet: Lnet,
    queue: EventQueue,
    nids: Vec<Nid>,
    /// Names that were made up for peers.
    names: u8,
}

impl Scene {
    fn new(rails: u8) -> Self {
        let netns = Netns::new(Wiring { rails, ..Wiring::default() });
        let interfaces = netns.a().interfaces();
        let nids: Vec<_> = (0..).zip(interfaces).map(|(net, ni)| on_net(net, ni.ipv4)).collect();
        let nis = nids.iter().zip(interfaces).map(|(nid, ni)| NiConfig::new(*nid, &ni.name)).collect();
        let base = config(netns.a(), Nid::LO);
        let mut policies = base.policies.clone();
        policies.push((PORTAL as u8, Policy::Pin(0)));
        let lnet = enter(netns.a(), || Lnet::start(&base.nis(nis).policies(policies)).unwrap());
        lnet.open().unwrap();
        let queue = lnet.shard(0).unwrap().create_event_queue(128).unwrap();
        Self { netns, lnet, queue, nids, names: 0 }
    }

    /// A new address on a rail, the last one if there are fewer, as a NID of its net.
    fn name(&mut self, rail: usize) -> Nid {
        let rail = rail.min(self.nids.len() - 1);
        let interface = &self.netns.b().interfaces()[rail];
        self.names += 1;
        let [a, b, c, _] = interface.ipv4.octets();
        let address = Ipv4Addr::new(a, b, c, 50 + self.names);
        ip(self.netns.b(), &format!("address add {address}/24 dev {}", interface.name));
        on_net(rail as u16, address)
    }

    /// Takes one PUT of a peer's, known as `initiator`.
    fn expect(&self, initiator: Nid, match_bits: u64) {
        let spec =
            MdSpec::new(64, Threshold::Count(1), MdOptions::PUT | MdOptions::TRUNCATE, self.queue.handle());
        let source = ProcessId { nid: initiator, pid: ProcessId::ANY_PID };
        let entry = EntrySpec { source, ..EntrySpec::new(PORTAL, match_bits) };
        self.lnet.shard(0).unwrap().attach(&entry, &spec, Buffer::zeroed(64)).unwrap().detach();
    }

    /// The PUT that was expected comes: its initiator, and its source.
    #[track_caller]
    fn arrived(&mut self) -> [Nid; 2] {
        let queued = self.queue.next_blocking(Some(PATIENCE)).unwrap().expect("a PUT");
        let Event::Put { origin, .. } = queued.event else { panic!("{:?}", queued.event) };
        [origin.initiator.nid, origin.source]
    }

    /// The NID of this node that is on a peer's net.
    fn near(&self, nid: &Nid) -> Nid {
        *self.nids.iter().find(|own| own.net() == nid.net()).unwrap()
    }

    /// The peer dials from one of its NIDs.
    fn connect(&self, peer: &Player, nid: Nid) -> Dialler {
        let near = self.near(&nid);
        let [from, to] = [nid, near].map(|nid| address(&nid));
        let stream = enter(self.netns.b(), || reserved(from, to, 1024).0);
        let dialler = Dialler::connected(stream, Greeting::new(nid, near));
        let reader = Dialler { stream: dialler.stream.try_clone().unwrap(), ..dialler };
        peer.serve(reader);
        dialler
    }
}

/// A peer: what it says when it is asked, if it answers.
struct Player {
    told: Vec<u8>,
    answers: Arc<AtomicBool>,
    acked: (Sender<()>, Receiver<()>),
}

impl Player {
    fn new(nids: &[Nid]) -> Self {
        let nis: Vec<_> = nids.iter().map(|nid| (*nid, NiStatus::UP)).collect();
        Self { told: told(1, &nis), answers: Arc::new(AtomicBool::new(true)), acked: channel() }
    }

    fn serve(&self, mut reader: Dialler) {
        let (told, answers, acked) = (self.told.clone(), Arc::clone(&self.answers), self.acked.0.clone());
        std::thread::spawn(move || {
            while let Ok((said, _)) = reader.try_next_message() {
                match said.body {
                    Body::Get { return_md, .. } if answers.load(Ordering::Acquire) => {
                        reader.reply(return_md, &told);
                    }
                    Body::Put { ack_md: md, match_bits, .. } => {
                        let Greeting { source, destination, .. } = reader.greeting;
                        let body = Body::Ack { md, match_bits, manipulated_length: said.payload_length };
                        reader.say(&message(Version::V3, &header(source, destination, 0, body)));
                    }
                    Body::Ack { .. } => acked.send(()).unwrap_or_default(),
                    _ => {}
                }
            }
        });
    }

    /// Pushes this by a connection, and waits for the ACK.
    fn push(&self, by: &mut Dialler, bytes: &[u8]) {
        let Greeting { source, destination, .. } = by.greeting;
        let ack_md = WireHandle { interface_cookie: 7, object_cookie: 7 };
        let body = Body::Put { ack_md, match_bits: PING_BITS, hdr_data: 0, portal: 0, offset: 0 };
        let header = header(source, destination, bytes.len() as u32, body);
        by.say(&[message(Version::V3, &header), bytes.to_vec()].concat());
        self.acked.1.recv_timeout(PATIENCE).expect("an ACK");
    }
}

fn put_by(dialler: &mut Dialler, match_bits: u64) {
    let Greeting { source, destination, .. } = dialler.greeting;
    dialler.say(&message(Version::V3, &header(source, destination, 0, put(PORTAL, match_bits))));
}

/// A kernel node sends what has waited for its push as soon as that is acknowledged, by any of its NIDs.
#[test]
fn the_first_request_after_a_push_is_matched_under_the_primary_nid() {
    if !privileged() {
        return;
    }
    for rails in [1, 2] {
        let mut scene = Scene::new(rails);
        for round in 0..20 {
            let nids = [scene.name(0), scene.name(1)];
            let player = Player::new(&nids);
            let mut diallers = nids.map(|nid| scene.connect(&player, nid));
            scene.expect(nids[0], round);
            // In every other round the push comes by the second one too.
            let by = (round % 2) as usize;
            player.push(&mut diallers[by], &player.told);
            let begun = Instant::now();
            put_by(&mut diallers[1], round);
            assert_eq!(scene.arrived(), nids, "round {round} with {rails} nets");
            assert!(begun.elapsed() < AT_ONCE, "round {round}: {:?}", begun.elapsed());
        }
    }
}

/// A primary NID that cannot be asked costs a second, once.
#[test]
fn a_request_of_a_peer_whose_primary_nid_is_out_of_reach_waits_once() {
    if !privileged() {
        return;
    }
    for rails in [1, 2] {
        let mut scene = Scene::new(rails);
        let nids = [on_net(0, address(&scene.nids[0]) | Ipv4Addr::new(0, 0, 0, 128)), scene.name(1)];
        let player = Player::new(&nids);
        let mut second = scene.connect(&player, nids[1]);
        player.push(&mut second, &player.told);
        for (round, waits) in [(1, true), (2, false), (3, false)] {
            scene.expect(nids[1], round);
            let begun = Instant::now();
            put_by(&mut second, round);
            assert_eq!(scene.arrived(), [nids[1]; 2], "matching goes by the proven NID");
            let took = begun.elapsed();
            assert!(took < NAME_WAIT + AT_ONCE && (waits || took < AT_ONCE), "round {round}: {took:?}");
        }
    }
}

/// More than are shelved, and one in the middle that is too long for that.
#[test]
fn requests_that_wait_for_a_name_are_matched_in_their_order() {
    if !privileged() {
        return;
    }
    let mut scene = Scene::new(1);
    let nids = [on_net(0, address(&scene.nids[0]) | Ipv4Addr::new(0, 0, 0, 128)), scene.name(0)];
    let player = Player::new(&nids);
    let mut second = scene.connect(&player, nids[1]);
    player.push(&mut second, &player.told);
    let Greeting { source, destination, .. } = second.greeting;
    let mut bytes = Vec::new();
    for match_bits in 0..50 {
        scene.expect(nids[1], match_bits);
        let payload = vec![7; if match_bits == 20 { 20_000 } else { 8 }];
        let put = header(source, destination, payload.len() as u32, put(PORTAL, match_bits));
        bytes.extend([message(Version::V3, &put), payload].concat());
    }
    let begun = Instant::now();
    second.say(&bytes);
    let arrived: Vec<_> = (0..50)
        .map(|_| {
            scene.queue.next_blocking(Some(PATIENCE)).unwrap().expect("a PUT").event.match_bits().unwrap()
        })
        .collect();
    assert_eq!(arrived, (0..50).collect::<Vec<u64>>());
    assert!(begun.elapsed() < NAME_WAIT + AT_ONCE, "{:?}", begun.elapsed());
}

/// A NID that is down when it is told, and up later.
#[test]
fn a_nid_that_comes_up_later_is_its_peers_then() {
    if !privileged() {
        return;
    }
    for rails in [1, 2] {
        let mut scene = Scene::new(rails);
        let nids = [scene.name(0), scene.name(1)];
        let player = Player::new(&nids);
        let mut first = scene.connect(&player, nids[0]);
        let with = |sequence, status| told(sequence, &[(nids[0], NiStatus::UP), (nids[1], status)]);
        player.push(&mut first, &with(2, NiStatus::DOWN));
        scene.expect(nids[0], 1);
        put_by(&mut first, 1);
        assert_eq!(scene.arrived(), [nids[0]; 2]);
        std::thread::sleep(Duration::from_secs(1));
        let mut second = scene.connect(&player, nids[1]);
        player.push(&mut first, &with(3, NiStatus::UP));
        scene.expect(nids[0], 2);
        put_by(&mut second, 2);
        assert_eq!(scene.arrived(), nids, "{rails} nets");
    }
}

/// Lists that are ignored are not waited for, and what an administrator has said needs no proof.
#[test]
fn what_is_ignored_or_configured_is_not_asked() {
    if !privileged() {
        return;
    }
    let mut scene = Scene::new(1);
    let nids = [scene.name(0), scene.name(0)];
    let player = Player::new(&nids);
    player.answers.store(false, Ordering::Release);
    let mut diallers = nids.map(|nid| scene.connect(&player, nid));
    let put_at_once = |scene: &mut Scene, by: &mut Dialler, expected: Nid, bits| {
        scene.expect(expected, bits);
        let begun = Instant::now();
        put_by(by, bits);
        assert_eq!(scene.arrived(), [expected, nids[1]]);
        assert!(begun.elapsed() < AT_ONCE, "{bits}: {:?}", begun.elapsed());
    };
    scene.lnet.set(Global::Discovery, 0).unwrap();
    player.push(&mut diallers[0], &player.told);
    put_at_once(&mut scene, &mut diallers[1], nids[1], 1);
    let spec = PeerSpec { primary_nid: nids[0], nids: vec![nids[1]], multi_rail: true, lock_primary: false };
    scene.lnet.edit_peers(&[PeerEdit::Add(spec)]).unwrap();
    put_at_once(&mut scene, &mut diallers[1], nids[0], 2);
    scene.lnet.set(Global::Discovery, 1).unwrap();
    player.push(&mut diallers[0], &player.told);
    put_at_once(&mut scene, &mut diallers[1], nids[0], 3);
}

/// A stranger that claims a friend's NID before this node has met the friend gets nothing of it.
#[test]
fn a_friend_whom_a_stranger_claims_keeps_its_name() {
    if !privileged() {
        return;
    }
    let mut scene = Scene::new(1);
    let [mine, friend] = [scene.name(0), scene.name(0)];
    let liar = Player::new(&[mine, friend]);
    let mut lies = scene.connect(&liar, mine);
    let says = [(mine, NiStatus::UP), (friend, NiStatus::UP)];
    for sequence in [1, u32::MAX, 2] {
        liar.push(&mut lies, &told(sequence, &says));
    }
    let honest = Player::new(&[friend]);
    let mut own = scene.connect(&honest, friend);
    // A message of the liar's in the friend's name is not taken.
    scene.expect(friend, 1);
    let forged = header(friend, lies.greeting.destination, 0, put(PORTAL, 1));
    lies.say(&message(Version::V3, &forged));
    liar.push(&mut lies, &told(3, &says));
    let begun = Instant::now();
    put_by(&mut own, 1);
    assert_eq!(scene.arrived(), [friend; 2]);
    assert!(begun.elapsed() < NAME_WAIT + AT_ONCE, "{:?}", begun.elapsed());
    scene.lnet.ping(friend, None, PATIENCE).unwrap();
    wait_until("the claim is contradicted", PATIENCE, || {
        scene.lnet.machine().discovery_counters().contradicted > 0
    });
    let of = |nid: Nid| -> Vec<Nid> {
        let peers = scene.lnet.peers().unwrap();
        peers.iter().find(|peer| peer.primary == nid).map(|peer| peer.proven_nids()).unwrap_or_default()
    };
    assert_eq!((of(mine), of(friend)), (vec![mine], vec![friend]));
}
