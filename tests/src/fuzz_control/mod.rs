//! A node's control state machine among hostile peers: pushes, answers to pings and batches of changes, as
//! the input says.
//!
//! Invariants after each step: a NID belongs to one peer, or is shown with one that claims it; the
//! primary one is among a peer's; a peer has no more NIDs than may be, none of them this node's; shards know
//! those that it has; what is under way is bounded. In the end every request has ended once.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, DriverError, NetOptions, NiSpec, Node, NodeChange, NodeConfig, PeerEdit, PingId, Report, Request,
    RequestId, TOLD_MAX, peer_state,
};
use lnet_core::shard::Confirmation;
use lnet_core::time::Instant;
use lnet_core::topology::Topology;
use lnet_model::peer::PeerSpec;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::{Global, Net, NetType, Nid};

const PEERS_MAX: usize = 16;
const STEPS_MAX: usize = 400;
/// Pings and pushes of the node's own, and those of its requests.
const UNDER_WAY_MAX: usize = 64 + 16 + 64;
const REQUESTS_MAX: usize = 64;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A NID of a few: some of this node's own, the wildcard and `lo` are among them.
    fn nid(&mut self) -> Nid {
        match self.byte() {
            0xFF => Nid::ANY,
            0xFE => Nid::LO,
            byte => nid(u16::from(byte >> 6) + 1, byte & 0x1F),
        }
    }

    /// What a node may say of itself.
    fn info(&mut self) -> Vec<u8> {
        let (features, sequence, count) = (self.byte(), self.byte(), self.byte() % 40);
        let mut told = Vec::new();
        for _ in 0..count {
            let byte = self.byte();
            let status = if byte & 0x20 == 0 { NiStatus::UP } else { NiStatus::DOWN };
            told.push(PingNi { nid: nid(u16::from(byte >> 6) + 1, byte & 0x1F), status });
        }
        let mut bytes = vec![0; ping::encoded_bytes(told.iter().copied()).unwrap_or(0)];
        let features = Features(u32::from(features));
        let _ = ping::write(&mut bytes, features, 12345, sequence.into(), told);
        bytes
    }
}

fn nid(net: u16, host: u8) -> Nid {
    let net = Net::new(NetType::TCP, net);
    Nid::new_ip(net, [10, 0, 0, host].into()).unwrap_or(Nid::LO)
}

struct World {
    node: Node<()>,
    topology: Arc<Topology>,
    now: Instant,
    under_way: VecDeque<PingId>,
    asked: BTreeSet<RequestId>,
}

impl World {
    fn new() -> Self {
        let config = NodeConfig {
            peers_max: PEERS_MAX,
            requests_max: REQUESTS_MAX,
            ..NodeConfig::new(1, 6, &[NetType::TCP])
        };
        let mut node = Node::new(config);
        node.gate_requests();
        let topology = node.poll_snapshot().unwrap_or_default();
        let (under_way, asked) = (VecDeque::new(), BTreeSet::new());
        let mut world = Self { node, topology, now: Instant(0), under_way, asked };
        world.batch(vec![add_ni(1, 1), add_ni(2, 1)]);
        world
    }

    fn request(&mut self, request: Request<()>) {
        if let Ok(id) = self.node.handle_request(self.now, request) {
            assert!(self.asked.insert(id), "{id:?} is given twice");
        }
        self.run();
    }

    fn batch(&mut self, changes: Vec<NodeChange<()>>) {
        self.request(Request::batch(changes));
    }

    fn report(&mut self, report: Report<'_>) {
        self.node.handle_report(self.now, report);
        self.run();
    }

    fn run(&mut self) {
        loop {
            while let Some(snapshot) = self.node.poll_snapshot() {
                assert!(snapshot.generation() > self.topology.generation());
                self.topology = snapshot;
                let generation = self.topology.generation();
                let confirmation = Confirmation {
                    shard: ShardId(0),
                    generation,
                    is_quiet: true,
                    arrived_count: 0,
                    portals_in_use: 0,
                    is_forwarding: false,
                };
                self.node.handle_report(self.now, Report::Confirmed(confirmation));
            }
            let Some(action) = self.node.poll_action() else { return self.check() };
            match action {
                Action::Open { ni, .. } => {
                    self.node.handle_report(self.now, Report::Opened { ni, result: Ok(()) })
                }
                Action::Close { ni } => self.node.handle_report(self.now, Report::Closed { ni }),
                Action::Ping { ping, .. } | Action::Push { ping, .. } => self.under_way.push_back(ping),
                Action::Forget { ping } => self.under_way.retain(|other| *other != ping),
                Action::Done { request, .. } => {
                    assert!(self.asked.remove(&request), "{request:?} ends twice")
                }
                Action::Pools(_) => self.node.handle_report(self.now, Report::Pools { result: Ok(()) }),
                Action::Publish(_) | Action::DropPools | Action::Steer { .. } | Action::Disconnect { .. } => {
                }
            }
        }
    }

    fn check(&self) {
        assert!(self.under_way.len() <= UNDER_WAY_MAX, "{} pings are under way", self.under_way.len());
        let mut seen = BTreeSet::new();
        for peer in self.node.peers() {
            let nids = peer.nids();
            assert!(nids.len() <= TOLD_MAX && nids.contains(&peer.primary), "{peer:?}");
            for nid in &nids {
                assert!(seen.insert(*nid), "{nid} is two peers'");
                let is_peers = !nid.is_any() && !nid.is_loopback();
                assert!(is_peers && self.node.peer(nid).map(|found| found.primary) == Some(peer.primary));
                if peer.is_own() {
                    assert!(self.topology.peer(nid).is_none(), "shards know no peer {nid} that is the node");
                    continue;
                }
                // A claim that is not proven is shown with its claimant, and is no destination. What is for
                // an own NID stays here, whichever peer it is configured for.
                if peer.ni(nid).is_none() || self.topology.is_local(nid) {
                    continue;
                }
                let view = self.topology.peer(nid).expect("shards know what the node knows");
                let goes_by_primary = view.primary == peer.primary || self.topology.is_local(&peer.primary);
                assert!(goes_by_primary && view.is_multi_rail == peer.is_multi_rail());
            }
        }
        // What the administrator has configured, or a program announced, stays besides.
        let stays = peer_state::CONFIGURED | peer_state::LOCK_PRIMARY;
        let found = self.node.peers().filter(|peer| peer.state & stays == 0).count();
        assert!(found <= PEERS_MAX, "{found} peers, {PEERS_MAX} may be");
    }

    fn step(&mut self, input: &mut Reader<'_>) {
        match input.byte() % 12 {
            0 => {
                let (from, length) = (input.nid(), input.byte());
                let bytes = input.take(length.into());
                self.report(Report::Pushed { from, bytes, length_bytes: bytes.len() });
            }
            1 | 2 => {
                let (from, bytes) = (input.nid(), input.info());
                let room = self.node.push_room_bytes().min(bytes.len());
                self.report(Report::Pushed { from, bytes: &bytes[..room], length_bytes: bytes.len() });
            }
            3 => {
                let length = input.byte();
                let bytes = input.take(length.into());
                if let Some(ping) = self.under_way.pop_front() {
                    self.report(Report::Answered { ping, bytes });
                }
            }
            4 | 5 => {
                let bytes = input.info();
                if let Some(ping) = self.under_way.pop_back() {
                    self.report(Report::Answered { ping, bytes: &bytes });
                }
            }
            6 => {
                let error = DriverError { errno: 110, message: "no answer".to_owned() };
                if let Some(ping) = self.under_way.pop_front() {
                    self.report(Report::Unanswered { ping, error });
                }
            }
            7 => self.change(input),
            8 => {
                let request = match input.byte() % 3 {
                    0 => Request::PrimaryNid { nid: input.nid() },
                    1 => Request::Announce { nids: (0..3).map(|_| input.nid()).collect() },
                    _ => Request::Discover { nid: input.nid(), is_forced: input.byte() & 1 != 0 },
                };
                self.request(request);
            }
            9 => {
                let nid = input.nid();
                self.report(Report::Traffic {
                    nid,
                    is_incoming: true,
                    first_ni: Some(NiId(input.byte().into())),
                });
            }
            10 => {
                let nid = input.nid();
                self.report(Report::Wanted { nid });
            }
            _ => self.pass(Duration::from_secs(u64::from(input.byte()))),
        }
    }

    fn change(&mut self, input: &mut Reader<'_>) {
        let mut changes = Vec::new();
        for _ in 0..=input.byte() % 3 {
            let (kind, net, host) = (input.byte(), u16::from(input.byte() % 4) + 1, input.byte() % 4 + 1);
            let (primary, nids) = (input.nid(), (0..kind >> 5).map(|_| input.nid()).collect());
            changes.push(match kind % 7 {
                0 => add_ni(net, host),
                1 => NodeChange::DeleteNi { nid: nid(net, host) },
                2 => NodeChange::DeleteNet { net: nid(net, host).net() },
                3 => NodeChange::Set { setting: Global::Discovery, value: i64::from(host % 3) },
                4 => NodeChange::Peer(PeerEdit::Delete { primary, nids, is_forced: host & 1 != 0 }),
                _ => {
                    let (is_multi_rail, locks_primary) = (net & 1 != 0, host & 1 != 0);
                    NodeChange::Peer(PeerEdit::Add(PeerSpec {
                        primary_nid: primary,
                        nids,
                        multi_rail: is_multi_rail,
                        lock_primary: locks_primary,
                    }))
                }
            });
        }
        self.batch(changes);
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.node.handle_timeout(self.now);
        self.run();
    }
}

fn add_ni(net: u16, host: u8) -> NodeChange<()> {
    let options = NetOptions::default();
    NodeChange::AddNi(NiSpec { nid: nid(net, host), interface: format!("eth{net}{host}"), options, lnd: () })
}

/// Peers that say anything to a control state machine, whose administrator changes anything meanwhile.
pub fn control(input: &[u8]) {
    let (mut world, mut reader) = (World::new(), Reader(input));
    for _ in 0..STEPS_MAX {
        if reader.0.is_empty() {
            break;
        }
        world.step(&mut reader);
    }
    // No ping is answered any more, and what waits for a turn has one.
    for _ in 0..8 {
        world.pass(Duration::from_secs(200));
    }
    assert!(world.asked.is_empty(), "requests that do not end: {:?}", world.asked);
}
