//! A runner whose drivers and shards do what a test says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, DRAIN_TIMEOUT, DriverError, NetOptions, NiSpec, Node, NodeChange, NodeConfig, Outcome, Report,
    Request, RequestError, RequestId,
};
use lnet_core::shard::Confirmation;
use lnet_core::time::Instant;
use lnet_core::topology::{Forwarding, NiStatus, Topology};
use lnet_wire::ping::{self, Features, PingNi};
use lnet_wire::{NetType, Nid};

/// What an LND wants to know, here.
pub(crate) type Lnd = u32;

/// The NID of host `10.0.0.host` on net `tcp<net>`.
pub(crate) fn nid(net: u16, host: u8) -> Nid {
    Nid::from_small(2 << 48 | u64::from(net) << 32 | 10 << 24 | u64::from(host)).unwrap()
}

pub(crate) fn config(shards: u8) -> NodeConfig {
    NodeConfig::new(shards, 6, &[NetType::TCP, NetType::XDP])
}

/// An NI on the interface `eth<host>`.
pub(crate) fn spec(net: u16, host: u8) -> NiSpec<Lnd> {
    let interface = format!("eth{host}");
    NiSpec { nid: nid(net, host), interface, options: NetOptions::default(), lnd: host.into() }
}

pub(crate) fn refused() -> DriverError {
    DriverError { errno: 100, message: "no such device".into() }
}

/// The word of a node with these NIs, each with whether it is up, by this number.
pub(crate) fn word(features: Features, sequence: u32, nis: &[(Nid, bool)]) -> Vec<u8> {
    let status = |is_up| if is_up { ping::NiStatus::UP } else { ping::NiStatus::DOWN };
    let nis = nis.iter().map(|(nid, is_up)| PingNi { nid: *nid, status: status(*is_up) });
    let mut bytes = vec![0; ping::encoded_bytes(nis.clone()).unwrap()];
    ping::write(&mut bytes, features, 12345, sequence, nis).unwrap();
    bytes
}

/// A node with shards that take every snapshot at once and are quiet, unless a test says otherwise, and
/// drivers that open and close.
pub(crate) struct Runner {
    pub(crate) node: Node<Lnd>,
    pub(crate) now: Instant,
    pub(crate) topology: Arc<Topology>,
    /// Portals that were frozen at any time, a bit each.
    pub(crate) frozen_ever: u64,
    pub(crate) is_quiet: bool,
    pub(crate) arrived_count: u64,
    pub(crate) portals_in_use: u64,
    /// Whether shards have messages of others under way.
    pub(crate) is_forwarding: bool,
    /// Router buffers that were made, and whether there is memory for others.
    pub(crate) pools: Vec<[u32; 3]>,
    pub(crate) has_memory: bool,
    /// Whether what is pushed is acknowledged at once.
    pub(crate) acknowledges: bool,
    /// NIDs that answer pings at once, and what.
    pub(crate) told: BTreeMap<Nid, Vec<u8>>,
    /// NIDs that do not open.
    pub(crate) broken: Vec<Nid>,
    /// What was done, but for opening and closing.
    pub(crate) done: Vec<Action<Lnd>>,
    /// Slots opened and closed.
    pub(crate) opened: Vec<(NiId, bool)>,
}

impl Runner {
    pub(crate) fn new(shards: u8) -> Self {
        Self::with(config(shards))
    }

    pub(crate) fn with(config: NodeConfig) -> Self {
        let mut node = Node::new(config);
        let topology = node.poll_snapshot().unwrap();
        Self {
            node,
            now: Instant(0),
            topology,
            frozen_ever: 0,
            is_quiet: true,
            arrived_count: 0,
            portals_in_use: 0,
            is_forwarding: false,
            pools: Vec::new(),
            has_memory: true,
            acknowledges: true,
            told: BTreeMap::new(),
            broken: Vec::new(),
            done: Vec::new(),
            opened: Vec::new(),
        }
    }

    pub(crate) fn confirm(&mut self) {
        let shards = self.topology.steering().unwrap().shard_count;
        for shard in (0..shards).map(ShardId) {
            let (generation, is_quiet) = (self.topology.generation(), self.is_quiet);
            let goes = |status| matches!(status, NiStatus::Leaving | NiStatus::Closed);
            let is_quiet = is_quiet || !self.topology.local_nis().any(|(_, ni)| goes(ni.status));
            let (arrived_count, portals_in_use) = (self.arrived_count, self.portals_in_use);
            let is_forwarding = self.is_forwarding && self.topology.forwarding() == Forwarding::Ending;
            let confirmation =
                Confirmation { shard, generation, is_quiet, arrived_count, portals_in_use, is_forwarding };
            self.node.handle_report(self.now, Report::Confirmed(confirmation));
        }
    }

    /// Goes on as long as anything happens.
    pub(crate) fn run(&mut self) {
        loop {
            while let Some(snapshot) = self.node.poll_snapshot() {
                assert!(snapshot.generation() > self.topology.generation());
                self.frozen_ever |=
                    (0..64).filter(|portal| snapshot.is_frozen(*portal)).fold(0, |bits, at| bits | 1 << at);
                self.topology = snapshot;
                self.confirm();
            }
            let Some(action) = self.node.poll_action() else { return };
            match action {
                Action::Open { ni, spec, .. } => {
                    let result = if self.broken.contains(&spec.nid) { Err(refused()) } else { Ok(()) };
                    if result.is_ok() {
                        self.opened.push((ni, true));
                    }
                    let is_open = result.is_ok();
                    self.node.handle_report(self.now, Report::Opened { ni, result });
                    if is_open {
                        let distance = 100 + u32::from(ni.0);
                        self.node.handle_report(
                            self.now,
                            Report::Distance { ni, distances: &[distance], by_memory: &[] },
                        );
                    }
                }
                Action::Close { ni } => {
                    self.opened.push((ni, false));
                    self.node.handle_report(self.now, Report::Closed { ni });
                }
                Action::Pools(pools) => {
                    let error = DriverError { errno: 12, message: "no memory".into() };
                    let result = self.has_memory.then(|| self.pools.push(pools)).ok_or(error);
                    self.node.handle_report(self.now, Report::Pools { result });
                }
                Action::Push { ping, .. } if self.acknowledges => {
                    self.node.handle_report(self.now, Report::Answered { ping, bytes: &[] });
                }
                Action::Ping { ping, nid, .. } if self.told.contains_key(&nid) => {
                    let bytes = self.told[&nid].clone();
                    self.node.handle_report(self.now, Report::Answered { ping, bytes: &bytes });
                }
                action => self.done.push(action),
            }
        }
    }

    /// NIDs answer the pings that wait, and all that follow meanwhile, with these bytes.
    pub(crate) fn answer_all(&mut self, nids: &[Nid], bytes: &[u8]) {
        let is_theirs =
            |action: &mut Action<Lnd>| matches!(action, Action::Ping { nid, .. } if nids.contains(nid));
        let waiting: Vec<_> = self.done.extract_if(.., is_theirs).collect();
        self.told = nids.iter().map(|nid| (*nid, bytes.to_vec())).collect();
        for action in waiting {
            let Action::Ping { ping, .. } = action else { unreachable!() };
            self.node.handle_report(self.now, Report::Answered { ping, bytes });
            self.run();
        }
        self.told.clear();
    }

    /// The pings to a NID that wait for their answers fail.
    pub(crate) fn fail(&mut self, to: &Nid) {
        let is_its = |action: &mut Action<Lnd>| matches!(action, Action::Ping { nid, .. } if nid == to);
        let waiting: Vec<_> = self.done.extract_if(.., is_its).collect();
        assert!(!waiting.is_empty(), "{to} is not asked");
        for action in waiting {
            let Action::Ping { ping, .. } = action else { unreachable!() };
            let error = DriverError { errno: 111, message: "refused".into() };
            self.node.handle_report(self.now, Report::Unanswered { ping, error });
            self.run();
        }
    }

    pub(crate) fn start(&mut self, request: Request<Lnd>) -> RequestId {
        let id = self.node.handle_request(self.now, request).unwrap();
        self.run();
        id
    }

    /// How a request ended, once.
    pub(crate) fn result(&mut self, id: RequestId) -> Option<Result<Outcome, RequestError>> {
        let at = self
            .done
            .iter()
            .position(|action| matches!(action, Action::Done { request, .. } if *request == id))?;
        let Action::Done { result, .. } = self.done.remove(at) else { unreachable!() };
        Some(result)
    }

    pub(crate) fn batch(&mut self, changes: &[NodeChange<Lnd>]) -> Result<Outcome, RequestError> {
        let id = self.start(Request::batch(changes.to_vec()));
        // An NI that peers know goes when they have been told, and it was quiet, or when its time is over.
        for time in [Duration::ZERO, Duration::from_millis(100), DRAIN_TIMEOUT] {
            if !time.is_zero() {
                self.advance(time);
            }
            if let Some(result) = self.result(id) {
                return result;
            }
        }
        panic!("the batch has not ended");
    }

    /// The local NIDs with their slots, as the shards know them; without `lo`.
    pub(crate) fn nids(&self) -> Vec<(u16, Nid)> {
        let nis = self.topology.local_nis().map(|(ni, local)| (ni.0, local.nid));
        nis.filter(|(_, nid)| !nid.is_loopback()).collect()
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        self.now = self.now + time;
        self.node.handle_timeout(self.now);
        self.run();
    }
}
