//! A random runner: requests and reports in any order, drivers that fail, shards that lag, against a naive
//! model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::NiId;
use lnet_core::node::{
    Action, NetOptions, NiSpec, Node, NodeChange, NodeConfig, Outcome, PingId, Report, Request, RequestError,
    RequestId,
};
use lnet_core::shard::Confirmation;
use lnet_core::time::Instant;
use lnet_core::topology::{NiStatus, Topology};
use lnet_model::route::RouteSpec;
use lnet_wire::steer::Policy;
use lnet_wire::{Global, Net, Nid};
use proptest::prelude::*;

use crate::common::{Lnd, config, nid, refused};

const SHARDS: u8 = 3;
const REQUESTS: usize = 8;

#[derive(Clone, Debug)]
enum Step {
    Batch(Vec<NodeChange<Lnd>>),
    Ping {
        to: Nid,
        bytes: Vec<u8>,
        is_answered: bool,
    },
    Cancel {
        which: usize,
    },
    /// A driver ends what it was asked for, well or not.
    Drive {
        which: usize,
        well: bool,
    },
    Answer {
        which: usize,
    },
    /// A shard takes the newest snapshot, and says whether it is quiet, and which portals are in use.
    Shard {
        which: u8,
        is_quiet: bool,
        portals_in_use: u64,
    },
    Link {
        slot: u16,
        is_up: bool,
    },
    Traffic {
        host: u8,
    },
    Advance {
        milliseconds: u64,
    },
}

struct Run {
    node: Node<Lnd>,
    now: Instant,
    newest: Arc<Topology>,
    /// What each shard has.
    shards: Vec<Arc<Topology>>,
    /// NIs that drivers have open, by slot.
    open: BTreeMap<NiId, Nid>,
    /// What drivers are asked for: to open that NID, or to close.
    asked: Vec<(NiId, Option<Nid>)>,
    pings: Vec<(PingId, usize)>,
    answers: BTreeMap<RequestId, (Vec<u8>, bool)>,
    /// Requests that have not ended, and the batches among them.
    pending: BTreeMap<RequestId, Option<Vec<NodeChange<Lnd>>>>,
    /// The local NIDs and their interfaces, in order.
    model: Vec<(Nid, String)>,
    /// The nets that routes lead to, each with a gateway.
    routes: BTreeSet<(Net, Nid)>,
    numa_range: u32,
}

impl Run {
    fn new() -> Self {
        let limits = NodeConfig { requests_max: REQUESTS, peers_max: 4, ..config(SHARDS) };
        let mut node = Node::new(limits);
        let newest = node.poll_snapshot().unwrap();
        Self {
            node,
            now: Instant(0),
            shards: vec![Arc::clone(&newest); usize::from(SHARDS)],
            newest,
            open: BTreeMap::new(),
            asked: Vec::new(),
            pings: Vec::new(),
            answers: BTreeMap::new(),
            pending: BTreeMap::new(),
            model: Vec::new(),
            routes: BTreeSet::new(),
            numa_range: 0,
        }
    }

    /// Takes what the node has to say.
    fn poll(&mut self) {
        if let Some(snapshot) = self.node.poll_snapshot() {
            assert!(snapshot.generation() > self.newest.generation(), "generations grow");
            assert_eq!(snapshot.generation(), self.node.generation());
            for (ni, local) in snapshot.local_nis().skip(1) {
                let is_open = self.open.get(&ni) == Some(&local.nid);
                assert!(
                    is_open || local.status == NiStatus::Closed,
                    "shards hear of {ni:?}, which is not open"
                );
            }
            for (ni, former) in self.newest.local_nis() {
                let stays = snapshot.ni(ni).is_some_and(|next| next.nid == former.nid);
                assert!(stays || former.status == NiStatus::Closed, "{ni:?} goes as {:?}", former.status);
            }
            self.newest = snapshot;
        }
        while let Some(action) = self.node.poll_action() {
            match action {
                Action::Open { ni, spec, .. } => {
                    assert_ne!(ni, NiId(0));
                    assert!(!self.open.contains_key(&ni), "two NIs in {ni:?}");
                    assert!(!self.open.values().any(|nid| *nid == spec.nid), "{} is open twice", spec.nid);
                    self.asked.push((ni, Some(spec.nid)));
                }
                Action::Close { ni } => {
                    assert!(self.open.contains_key(&ni), "{ni:?} is not open");
                    for shard in &self.shards {
                        let status = shard.ni(ni).map(|ni| ni.status);
                        assert!(
                            matches!(status, None | Some(NiStatus::Closed)),
                            "a shard has {ni:?} as {status:?}"
                        );
                    }
                    self.asked.push((ni, None));
                }
                Action::Ping { ping, length_bytes, .. } => self.pings.push((ping, length_bytes)),
                Action::Forget { ping } => self.pings.retain(|(other, _)| *other != ping),
                Action::Publish(_)
                | Action::Push { .. }
                | Action::Steer { .. }
                | Action::Pools(_)
                | Action::DropPools
                | Action::Disconnect { .. } => {}
                Action::Done { request, result } => self.done(request, result),
            }
        }
        assert_eq!(self.node.request_count(), self.pending.len());
        let slots: BTreeSet<_> = self.asked.iter().map(|(ni, _)| ni).collect();
        assert_eq!(slots.len(), self.asked.len(), "one thing at a time is asked of a slot");
    }

    fn done(&mut self, request: RequestId, result: Result<Outcome, RequestError>) {
        let batch = self.pending.remove(&request).expect("a request ends twice");
        self.answers.remove(&request);
        match (batch, result) {
            (Some(changes), Ok(outcome)) => {
                assert_eq!(outcome, Outcome::Changed);
                changes.iter().for_each(|change| self.apply(change));
            }
            (Some(_), Err(RequestError::Open { lost, .. })) => {
                self.model.retain(|(nid, _)| !lost.contains(nid))
            }
            (Some(_), Err(_)) => {}
            (None, result) => assert_ne!(result, Ok(Outcome::Changed)),
        }
        let nids: Vec<_> =
            self.node.nets().iter().flat_map(|net| net.nis.iter().map(|ni| ni.spec.nid)).collect();
        let of_net = |nid: &Nid| self.model.iter().position(|(other, _)| other.net() == nid.net());
        let mut expected: Vec<_> = self.model.iter().map(|(nid, _)| *nid).collect();
        expected.sort_by_key(of_net);
        // One that is being carried out may be there in part.
        if self.pending.values().all(Option::is_none) {
            assert_eq!(self.node.changing(), []);
            assert_eq!(nids, expected);
            let routes = self.node.net_routes().map(|route| (route.spec.net, route.spec.gateway));
            assert_eq!(routes.collect::<BTreeSet<_>>(), self.routes);
            assert!(self.routes.iter().all(|(net, _)| self.model.iter().all(|(nid, _)| nid.net() != *net)));
            assert_eq!(self.node.settings().get(Global::NumaRange), self.numa_range);
        }
    }

    fn apply(&mut self, change: &NodeChange<Lnd>) {
        let before = self.model.len();
        match change {
            NodeChange::AddNi(spec) => self.model.push((spec.nid, spec.interface.clone())),
            NodeChange::DeleteNi { nid } => self.model.retain(|(other, _)| other != nid),
            NodeChange::DeleteInterface { net, interface } => {
                self.model.retain(|(nid, name)| nid.net() != *net || name != interface);
            }
            NodeChange::DeleteNet { net } => self.model.retain(|(nid, _)| nid.net() != *net),
            NodeChange::AddRoute(RouteSpec { net, gateway, .. }) => {
                return assert!(self.routes.insert((*net, *gateway)), "{change:?} was there");
            }
            NodeChange::DeleteRoute { net, gateway } => {
                return assert!(self.routes.remove(&(*net, *gateway)), "{change:?} had nothing to delete");
            }
            NodeChange::Set { setting: Global::NumaRange, value } => self.numa_range = *value as u32,
            NodeChange::Set { .. }
            | NodeChange::SetParameter { .. }
            | NodeChange::SetHealth { .. }
            | NodeChange::SetLndTimeout { .. }
            | NodeChange::SetPolicy { .. }
            | NodeChange::Peer(_)
            | NodeChange::ReopenNi { .. }
            | NodeChange::SetRouting { .. }
            | NodeChange::SetPool { .. }
            | NodeChange::Udsp(_) => return,
        }
        if self.model.len() < before {
            let nets: Vec<_> = self.model.iter().map(|(nid, _)| nid.net()).collect();
            self.routes.retain(|(_, gateway)| nets.contains(&gateway.net()));
        }
        let is_set = matches!(change, NodeChange::Set { .. });
        assert!(is_set || self.model.len() != before, "{change:?} had nothing to change");
    }

    fn request(&mut self, request: Request<Lnd>) -> Option<RequestId> {
        let batch = match &request {
            Request::Batch { changes, .. } => Some(changes.clone()),
            Request::Ping { .. }
            | Request::Discover { .. }
            | Request::Announce { .. }
            | Request::PrimaryNid { .. } => None,
        };
        let result = self.node.handle_request(self.now, request);
        assert_eq!(result.is_err(), self.pending.len() == REQUESTS);
        let id = result.ok()?;
        self.pending.insert(id, batch);
        Some(id)
    }

    fn drive(&mut self, which: usize, well: bool) {
        if self.asked.is_empty() {
            return;
        }
        let (ni, opens) = self.asked.swap_remove(which % self.asked.len());
        let Some(nid) = opens else {
            self.open.remove(&ni);
            return self.node.handle_report(self.now, Report::Closed { ni });
        };
        if well {
            self.open.insert(ni, nid);
        }
        let result = if well { Ok(()) } else { Err(refused()) };
        self.node.handle_report(self.now, Report::Opened { ni, result });
    }

    fn shard(&mut self, which: u8, is_quiet: bool, portals_in_use: u64) {
        let shard = usize::from(which % SHARDS);
        let newest = Arc::clone(&self.newest);
        self.shards[shard] = newest;
        let goes = |status| matches!(status, NiStatus::Leaving | NiStatus::Closed);
        let is_busy = self.shards[shard].local_nis().any(|(_, ni)| goes(ni.status)) && !is_quiet;
        let confirmation = Confirmation {
            shard: ShardId(shard as u8),
            generation: self.shards[shard].generation(),
            is_quiet: !is_busy,
            arrived_count: u64::from(which),
            portals_in_use,
            is_forwarding: false,
        };
        self.node.handle_report(self.now, Report::Confirmed(confirmation));
    }

    fn answer(&mut self, which: usize) {
        if self.pings.is_empty() {
            return;
        }
        // Answers may come twice, and late.
        let (ping, room) = self.pings[which % self.pings.len()];
        let Some((bytes, is_answered)) = self.answers.get(&ping.request).cloned() else { return };
        let report = if is_answered {
            Report::Answered { ping, bytes: &bytes[..room.min(bytes.len())] }
        } else {
            Report::Unanswered { ping, error: refused() }
        };
        self.node.handle_report(self.now, report);
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Batch(changes) => {
                self.request(Request::batch(changes.clone()));
            }
            Step::Ping { to, bytes, is_answered } => {
                let timeout = Some(Duration::from_secs(1));
                if let Some(id) = self.request(Request::Ping { nid: *to, source: None, timeout }) {
                    self.answers.insert(id, (bytes.clone(), *is_answered));
                }
            }
            Step::Cancel { which } if !self.pending.is_empty() => {
                let id = *self.pending.keys().nth(which % self.pending.len()).unwrap();
                let _ = self.node.cancel(id);
            }
            Step::Cancel { .. } => {}
            Step::Drive { which, well } => self.drive(*which, *well),
            Step::Answer { which } => self.answer(*which),
            Step::Shard { which, is_quiet, portals_in_use } => self.shard(*which, *is_quiet, *portals_in_use),
            Step::Link { slot, is_up } => {
                self.node.handle_report(self.now, Report::Link { ni: NiId(*slot), is_up: *is_up });
            }
            Step::Traffic { host } => {
                self.node.handle_report(
                    self.now,
                    Report::Traffic { nid: nid(1, *host), is_incoming: true, first_ni: None },
                );
                assert!(self.node.peers().filter(|peer| !peer.is_gateway()).count() <= 4);
            }
            Step::Advance { milliseconds } => {
                self.now = self.now + Duration::from_millis(*milliseconds);
                self.node.handle_timeout(self.now);
            }
        }
        self.poll();
    }

    /// Lets everything end.
    fn rest(&mut self) {
        for _ in 0..10_000 {
            if self.pending.is_empty() {
                return;
            }
            self.run(&Step::Drive { which: 0, well: true });
            (0..SHARDS).for_each(|which| self.run(&Step::Shard { which, is_quiet: true, portals_in_use: 0 }));
            self.run(&Step::Advance { milliseconds: 100 });
        }
        panic!("{:?} have not ended", self.pending);
    }
}

fn changes() -> impl Strategy<Value = NodeChange<Lnd>> {
    let host = || 1_u8..5;
    let net = || 1_u16..3;
    prop_oneof![
        8 => (net(), host()).prop_map(|(net, host)| {
            let interface = format!("eth{}", host / 2);
            NodeChange::AddNi(NiSpec { nid: nid(net, host), interface, options: NetOptions::default(), lnd: 0 })
        }),
        3 => (net(), host()).prop_map(|(net, host)| NodeChange::DeleteNi { nid: nid(net, host) }),
        2 => (net(), host()).prop_map(|(net, host)| NodeChange::ReopenNi { nid: nid(net, host) }),
        1 => (net(), 0_u8..3).prop_map(|(net, number)| {
            NodeChange::DeleteInterface { net: nid(net, 0).net(), interface: format!("eth{number}") }
        }),
        2 => net().prop_map(|net| NodeChange::DeleteNet { net: nid(net, 0).net() }),
        4 => (2_u16..5, net(), 3_u8..7).prop_map(|(to, net, host)| {
            NodeChange::AddRoute(RouteSpec::new(nid(to, 0).net(), nid(net, host)))
        }),
        2 => (2_u16..5, net(), 3_u8..7).prop_map(|(to, net, host)| {
            NodeChange::DeleteRoute { net: nid(to, 0).net(), gateway: nid(net, host) }
        }),
        1 => proptest::option::of(host()).prop_map(|host| {
            NodeChange::SetHealth { nid: host.map(|host| nid(1, host)), value: u32::from(host.is_none()) * 1000 }
        }),
        1 => (4_u32..6, 0_u8..4).prop_map(|(portal, shard)| {
            NodeChange::SetPolicy { portal, policy: Policy::Pin(shard) }
        }),
        1 => (-1_i64..5).prop_map(|value| NodeChange::Set { setting: Global::NumaRange, value }),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => proptest::collection::vec(changes(), 1..4).prop_map(Step::Batch),
        2 => (1_u16..3, any::<u8>(), proptest::collection::vec(any::<u8>(), 0..64), any::<bool>()).prop_map(
            |(net, host, bytes, is_answered)| Step::Ping { to: nid(net, host), bytes, is_answered }
        ),
        1 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        8 => (any::<usize>(), proptest::bool::weighted(0.8)).prop_map(|(which, well)| Step::Drive { which, well }),
        2 => any::<usize>().prop_map(|which| Step::Answer { which }),
        16 => (any::<u8>(), proptest::bool::weighted(0.7), proptest::bool::weighted(0.2))
            .prop_map(|(which, is_quiet, in_use)| Step::Shard { which, is_quiet, portals_in_use: u64::from(in_use) << 4 }),
        1 => (0_u16..6, any::<bool>()).prop_map(|(slot, is_up)| Step::Link { slot, is_up }),
        1 => any::<u8>().prop_map(|host| Step::Traffic { host }),
        3 => (0_u64..1500).prop_map(|milliseconds| Step::Advance { milliseconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_comes_in_whatever_order(steps in proptest::collection::vec(steps(), 1..200)) {
        let mut run = Run::new();
        run.poll();
        for step in &steps {
            run.run(step);
        }
        run.rest();
        prop_assert!(run.asked.is_empty());
        let is_absent = |nid: &Nid| run.node.ni(nid).is_some_and(|config| config.is_absent);
        let model: BTreeSet<_> = run.model.iter().map(|(nid, _)| *nid).filter(|nid| !is_absent(nid)).collect();
        let open: BTreeSet<_> = run.open.values().copied().collect();
        prop_assert_eq!(open, model);
    }
}
