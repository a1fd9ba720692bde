//! A node in memory: it does what it is asked, as far as that can be seen from outside, and nothing else.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lnet_control::document::NodeState;
use lnet_control::server::Handler;
use lnet_model::capture::{CaptureRecord, CaptureSpec};
use lnet_model::fault::{DelayRuleRecord, DropRuleRecord};
use lnet_model::lnd::NiOption;
use lnet_model::ni::{Lnd, NiName, NiOptions, NiSpec};
use lnet_model::peer::{PeerSpec, peer_state};
use lnet_model::records::{
    CptRecord, ExplainRecord, ExplainedCandidate, ExplainedChoice, ExplainedKind, ExplainedPath,
    ExplainedStep, FramesRecord, Globals, LoadRecord, NetRecord, NiRecord, NiStatus, Parameters,
    PeerNiRecord, PeerPage, PeerQuery, PeerRecord, RecoveryRecord, RoutePage, RouteRecord, RoutingRecord,
    Statistics,
};
use lnet_model::request::{Change, ChangeSet, Effect, PingRecord, Staying};
use lnet_model::route::RouteSpec;
use lnet_model::steering::{SteeringPolicy, SteeringRecord};
use lnet_model::text::NidText;
use lnet_model::udsp::{Selection, UdspRule};
use lnet_model::{Errno, Refusal};
use lnet_wire::{Global, NetType, Nid};

use crate::model_records::{lo, ni_record, peer};

/// Its interfaces: name, addresses, whether it is up.
pub(crate) const INTERFACES: [(&str, &[&str], bool); 4] = [
    ("eth0", &["10.77.0.11", "10.77.0.113"], true),
    ("eth1", &["10.78.0.11"], true),
    ("eth2", &["10.79.0.11"], true),
    ("down0", &["10.80.0.11"], false),
];

/// The node.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) shards: u32,
    /// Nets, or nothing while it is not configured.
    pub(crate) nets: Option<Vec<NetRecord>>,
    pub(crate) peers: Vec<PeerRecord>,
    pub(crate) routes: Vec<RouteRecord>,
    pub(crate) routing: RoutingRecord,
    pub(crate) globals: Globals,
    parameters: Parameters,
    pub(crate) statistics: Statistics,
    pub(crate) rules: Vec<DropRuleRecord>,
    pub(crate) delays: Vec<DelayRuleRecord>,
    pub(crate) udsp: Vec<UdspRule>,
    last_selection: u32,
    pub(crate) steering: SteeringRecord,
    pub(crate) captures: Vec<CaptureRecord>,
    pub(crate) loads: Vec<LoadRecord>,
    pub(crate) frames: FramesRecord,
    /// Batches of changes that it has been asked to make.
    pub(crate) generation: u64,
    /// How often others are still to change it just before a client does.
    pub(crate) interferences: u32,
    /// Peers that it was asked for: by these NIDs, or all.
    pub(crate) asked_peers: Arc<Mutex<Vec<Option<Vec<NidText>>>>>,
}

pub(crate) type Result<T> = std::result::Result<T, Refusal>;

pub(crate) fn refuse<T>(errno: Errno, message: impl Into<String>) -> Result<T> {
    Err(Refusal::new(errno, message))
}

impl Model {
    pub(crate) fn new(shards: u32) -> Self {
        Self {
            shards,
            nets: None,
            peers: Vec::new(),
            routes: Vec::new(),
            routing: RoutingRecord::default(),
            globals: Globals::default(),
            parameters: Parameters::default(),
            statistics: Statistics::default(),
            rules: Vec::new(),
            delays: Vec::new(),
            udsp: Vec::new(),
            last_selection: 0,
            steering: SteeringRecord { shard_count: shards, portals: Vec::new() },
            captures: Vec::new(),
            loads: Vec::new(),
            frames: FramesRecord::default(),
            generation: 0,
            interferences: 0,
            asked_peers: Arc::default(),
        }
    }

    pub(crate) fn configured(shards: u32) -> Self {
        let mut model = Self::new(shards);
        model.apply(&[Change::Configure { all: false, large: false }]).unwrap();
        model
    }

    /// What documents are made of.
    pub(crate) fn state(&self) -> NodeState {
        NodeState {
            nets: self.nets.clone().unwrap_or_default(),
            peers: self.peers.clone(),
            routes: self.routes.clone(),
            routing: self.routing.clone(),
            globals: self.globals,
            udsp: self.udsp.clone(),
            drop_rules: self.rules.clone(),
            delay_rules: self.delays.clone(),
            steering: self.steering.clone(),
        }
    }

    /// All changes or none.
    pub(crate) fn apply(&mut self, changes: &[Change]) -> Result<Vec<Effect>> {
        let mut next = self.clone();
        let mut outcomes = Vec::new();
        for (position, change) in changes.iter().enumerate() {
            outcomes.push(next.change(change).map_err(|refusal| refusal.of_change(position))?);
        }
        *self = next;
        Ok(outcomes)
    }

    fn change(&mut self, change: &Change) -> Result<Effect> {
        match change {
            Change::Configure { .. } if self.nets.is_some() => return Ok(Effect::Unchanged),
            Change::Configure { .. } => self.nets = Some(vec![lo(self.shards)]),
            Change::Unconfigure => {
                let (globals, parameters) = (self.globals, self.parameters);
                *self = Self { globals, parameters, ..Self::new(self.shards) };
            }
            Change::SetParameter { parameter, value } if self.parameters.get(*parameter) == *value => {
                return Ok(Effect::Unchanged);
            }
            Change::SetGlobal { global, value } if self.globals.get(*global) == *value => {
                return Ok(Effect::Unchanged);
            }
            Change::SetParameter { parameter, value } => self.parameters.set(*parameter, *value),
            Change::SetGlobal { global, value } => self.set_global(*global, *value)?,
            Change::AddNi(spec) => return self.add_ni(spec).map(Effect::leaving),
            _ if self.nets.is_none() => return refuse(Errno::NETDOWN, "the node is not configured"),
            Change::DeleteNi(name) => self.delete_ni(name)?,
            Change::DeleteNet(net) => {
                let nets = self.nets.as_mut().unwrap();
                let before = nets.len();
                nets.retain(|one| one.net != *net);
                if nets.len() == before {
                    return refuse(Errno::INVAL, format!("cannot delete net {net}: it is not configured"));
                }
            }
            Change::SetHealth { nid, value } => self.each_ni(*nid, |ni| {
                ni.health.health_value = *value;
                match *value {
                    0 => ni.status = NiStatus::Down,
                    1000 => ni.status = NiStatus::Up,
                    _ => {}
                }
            })?,
            Change::SetOption { nid, option, value } => self.each_ni(*nid, |ni| {
                let owner = option.owner().and_then(|owner| owner.asked);
                if ni.options.lnd() == owner {
                    ni.options.set(*option, Some(*value));
                }
            })?,
            Change::SetLndTimeout { net, timeout_s } => {
                let fallback = self.globals.get(Global::LndTimeout);
                let shown = if *timeout_s == 0 { fallback } else { *timeout_s };
                let nets = self.nets.as_mut().unwrap().iter_mut();
                for net in nets.filter(|one| one.net.net_type() == net.net_type()) {
                    net.nis.iter_mut().for_each(|ni| ni.timeout_s = shown);
                }
            }
            Change::ResetStatistics => self.statistics = Statistics::default(),
            Change::AddDropRule(_)
            | Change::DeleteDropRules { .. }
            | Change::DeleteAllDropRules
            | Change::ResetDropRules
            | Change::AddDelayRule(_)
            | Change::DeleteDelayRules { .. }
            | Change::DeleteAllDelayRules
            | Change::ResetDelayRules => self.change_rules(change)?,
            Change::AddPeer(spec) => self.add_peer(spec)?,
            Change::DeletePeer { primary_nid, nids, .. } => self.delete_peer(*primary_nid, nids)?,
            Change::AddRoute(spec) => self.add_route(spec)?,
            Change::DeleteRoute { net, gateway } => self.delete_route(*net, *gateway)?,
            Change::SetRouting { on } => return Ok(self.set_routing(*on)),
            Change::SetPool { pool, buffer_count } => return Ok(self.set_pool(*pool, *buffer_count)),
            Change::SetPeerHealth { nid, value } => {
                let nis = self.peers.iter_mut().flat_map(|peer| &mut peer.nis);
                nis.filter(|ni| nid.is_none_or(|nid| nid == ni.nid))
                    .for_each(|ni| ni.health.health_value = *value);
            }
            Change::SetPeerState { nid, state } => self.peer_mut(*nid)?.state = *state,
            Change::AddUdsp { rule, .. } if self.udsp.contains(rule) => {
                return refuse(Errno::ALREADY, "there is such a selection policy");
            }
            Change::AddUdsp { index, rule } => {
                let index = index.map_or(usize::MAX, |index| index as usize).min(self.udsp.len());
                self.udsp.insert(index, rule.clone());
            }
            Change::AddSelection(selection) => {
                let known = Selection::of(&self.udsp);
                if known.iter().any(|known| known.is_like(selection)) {
                    return refuse(Errno::EXIST, "there is such a selection");
                }
                self.last_selection += 1;
                for rule in selection.rules()? {
                    self.udsp.push(UdspRule { selection: Some(self.last_selection), ..rule });
                }
            }
            Change::DeleteSelection { id, like } => {
                let known = Selection::of(&self.udsp);
                let named = known.iter().find(|known| {
                    id.is_none_or(|id| known.id() == Some(id))
                        && like.as_ref().is_none_or(|like| known.is_like(like))
                });
                let Some(named) = named else { return refuse(Errno::NOENT, "no such selection") };
                self.udsp.retain(|rule| rule.selection != named.id());
            }
            Change::DeleteUdsp { index: None } => self.udsp.clear(),
            Change::DeleteUdsp { index: Some(index) } => {
                if *index as usize >= self.udsp.len() {
                    return refuse(Errno::NOENT, format!("no selection policy {index}"));
                }
                self.udsp.remove(*index as usize);
            }
            Change::SetSteering(policy) => {
                policy.check()?;
                let known = self.steering.portals.iter().position(|one| one.portal == policy.portal);
                let known = known.map(|position| self.steering.portals.remove(position));
                let default = policy.policy == SteeringPolicy::DEFAULT;
                if !default {
                    self.steering.portals.push(policy.clone());
                    self.steering.portals.sort_by_key(|one| one.portal);
                }
                if known.as_ref() == Some(policy) || known.is_none() && default {
                    return Ok(Effect::Unchanged);
                }
            }
        }
        Ok(Effect::Changed)
    }

    pub(crate) fn peer_mut(&mut self, nid: Nid) -> Result<&mut PeerRecord> {
        let peer = self.peers.iter_mut().find(|peer| peer.nis.iter().any(|ni| ni.nid == nid));
        peer.ok_or_else(|| Refusal::new(Errno::NOENT, format!("no peer has the nid {nid}")))
    }

    fn add_peer(&mut self, spec: &PeerSpec) -> Result<()> {
        let others = spec.nids.iter().filter(|nid| **nid != spec.primary_nid);
        let nids: Vec<String> =
            std::iter::once(&spec.primary_nid).chain(others).map(ToString::to_string).collect();
        let lock = if spec.lock_primary { peer_state::LOCK_PRIMARY } else { 0 };
        let state = peer_state::CONFIGURED | u32::from(spec.multi_rail) | lock;
        let nids: Vec<&str> = nids.iter().map(String::as_str).collect();
        self.check_no_gateway(spec.primary_nid)?;
        self.peers.retain(|known| known.primary_nid != spec.primary_nid);
        self.peers.push(peer(&nids, state));
        Ok(())
    }

    fn delete_peer(&mut self, primary_nid: Nid, nids: &[Nid]) -> Result<()> {
        self.check_no_gateway(primary_nid)?;
        let peer = self.peer_mut(primary_nid)?;
        if peer.primary_nid != primary_nid {
            return refuse(Errno::NODEV, format!("{primary_nid} is no primary nid"));
        }
        peer.nis.retain(|ni| !nids.contains(&ni.nid));
        if nids.is_empty() || nids.contains(&primary_nid) {
            self.peers.retain(|peer| peer.primary_nid != primary_nid);
        }
        Ok(())
    }

    fn set_global(&mut self, global: Global, value: u32) -> Result<()> {
        let (retries, timeout) = match global {
            Global::RetryCount => (value, self.globals.get(Global::TransactionTimeout)),
            Global::TransactionTimeout => (self.globals.get(Global::RetryCount), value),
            _ => (self.globals.get(Global::RetryCount), self.globals.get(Global::TransactionTimeout)),
        };
        if retries >= timeout {
            let message =
                format!("retry_count {retries} and transaction_timeout {timeout}: less is expected");
            return refuse(Errno::INVAL, message);
        }
        self.globals.set(global, value);
        self.globals.set(Global::LndTimeout, (timeout - 1) / (retries + 1));
        Ok(())
    }

    fn each_ni(&mut self, nid: Option<Nid>, mut set: impl FnMut(&mut NiRecord)) -> Result<()> {
        let nis = self.nets.as_mut().unwrap().iter_mut().flat_map(|net| &mut net.nis);
        let mut found = nid.is_none();
        for ni in nis.filter(|ni| !ni.nid.is_loopback() && nid.is_none_or(|nid| nid == ni.nid)) {
            found = true;
            set(ni);
        }
        if found { Ok(()) } else { refuse(Errno::NOENT, "no such local nid") }
    }

    fn add_ni(&mut self, spec: &NiSpec) -> Result<Vec<Staying>> {
        let shards = self.shards;
        let Some(nets) = &mut self.nets else { return refuse(Errno::SHUTDOWN, "the node is not configured") };
        if self.routes.iter().any(|record| record.spec.net == spec.net) {
            return refuse(Errno::USERS, format!("cannot add an NI: there are routes to {}", spec.net));
        }
        let (interface, address, by_nid) = resolve(spec)?;
        let nid: Nid = format!("{address}@{}", spec.net).parse().unwrap();
        if let Some(cpt) = spec.cpts.iter().find(|cpt| **cpt >= shards) {
            let last = shards - 1;
            let message = format!("invalid CPT value {cpt}: this node has the CPTs (shards) 0 to {last}");
            return refuse(Errno::RANGE, message);
        }
        let mut options = options_of(spec)?;
        let position = nets.iter().position(|net| net.net == spec.net).unwrap_or_else(|| {
            nets.push(NetRecord { net: spec.net, fsm_state: "ACTIVE".into(), nis: Vec::new() });
            nets.len() - 1
        });
        let net = &mut nets[position];
        if net.nis.iter().any(|ni| ni.nid == nid) {
            return refuse(Errno::EXIST, format!("cannot add: {nid} is there already"));
        }
        // The first NI fixes what the net has.
        let mut staying = Vec::new();
        if let Some(first) = net.nis.first() {
            for option in NiOption::ALL.into_iter().filter(|option| option.is_of_net()) {
                let has = first.options.get(option);
                options.set(option, has);
                let (Some(asked), Some(has)) = (spec.options.get(option), has) else { continue };
                if asked != has {
                    staying.push(Staying::Tunable { net: spec.net, option, asked, has });
                }
            }
        }
        let mut cpts = spec.cpts.clone();
        if cpts.is_empty() || (0..shards).all(|cpt| cpts.contains(&cpt)) {
            cpts = (0..shards).collect();
        }
        net.nis.push(ni_record(nid, Some(interface), by_nid, options, cpts));
        Ok(staying)
    }

    fn delete_ni(&mut self, name: &NiName) -> Result<()> {
        let nets = self.nets.as_mut().unwrap();
        let named = |net: &NetRecord, ni: &NiRecord| match name {
            NiName::Nid(nid) => ni.nid == *nid,
            NiName::Interface { net: of, interface } => {
                net.net == *of && ni.interface.as_ref() == Some(interface)
            }
        };
        for position in 0..nets.len() {
            let found = nets[position].nis.iter().position(|ni| named(&nets[position], ni));
            if let Some(ni) = found {
                nets[position].nis.remove(ni);
                if nets[position].nis.is_empty() {
                    nets.remove(position);
                }
                return Ok(());
            }
        }
        match name {
            NiName::Nid(nid) => refuse(Errno::NOENT, format!("cannot delete {nid}: it is not local")),
            NiName::Interface { net, interface } => {
                refuse(Errno::NODEV, format!("cannot delete the NI on {interface}: it is not on net {net}"))
            }
        }
    }
}

/// Interface and address that an NI gets, and whether the address was chosen for itself.
fn resolve(spec: &NiSpec) -> Result<(String, String, bool)> {
    let address = spec.nid.map(|nid| nid.to_string().split_once('@').unwrap().0.to_owned());
    let fits = |(name, addresses, _): &&(&str, &[&str], bool)| {
        spec.interface.as_ref().is_none_or(|wanted| wanted == name)
            && address.as_ref().is_none_or(|wanted| addresses.contains(&wanted.as_str()))
    };
    match INTERFACES.iter().find(fits) {
        Some((name, addresses, true)) => {
            let address = address.unwrap_or_else(|| addresses[0].to_owned());
            let by_nid = address != addresses[0];
            Ok(((*name).to_owned(), address, by_nid))
        }
        _ => {
            let what = spec.interface.clone().or(address).unwrap_or_default();
            refuse(Errno::NETDOWN, format!("cannot add an NI on {what}: no such interface is up"))
        }
    }
}

fn options_of(spec: &NiSpec) -> Result<NiOptions> {
    let asked = spec.options;
    let credits = asked.get(NiOption::Credits).unwrap_or(256);
    let or = |option, default| asked.get(option).unwrap_or(default);
    let options = NiOptions::default()
        .with(NiOption::PeerTimeout, or(NiOption::PeerTimeout, 180))
        .with(NiOption::PeerCredits, or(NiOption::PeerCredits, 8).min(credits))
        .with(NiOption::PeerBufferCredits, or(NiOption::PeerBufferCredits, 0))
        .with(NiOption::Credits, credits);
    let lnd = asked.lnd().or(match spec.net.net_type() {
        NetType::TCP => Some(Lnd::Tcp),
        NetType::XDP => Some(Lnd::Xdp),
        _ => None,
    });
    match lnd {
        Some(Lnd::Tcp) => Ok(options
            .with(NiOption::ConnsPerPeer, or(NiOption::ConnsPerPeer, 0).max(1))
            .with(NiOption::Tos, or(NiOption::Tos, -1))
            .with(NiOption::Lnd, Lnd::Tcp as i64)),
        Some(Lnd::Xdp) => Ok(options
            .with(NiOption::Lnd, Lnd::Xdp as i64)
            .with(NiOption::Mode, or(NiOption::Mode, 0))
            .with(NiOption::Port, or(NiOption::Port, 988))
            .with(NiOption::Queues, or(NiOption::Queues, 0))
            .with(NiOption::Checksum, or(NiOption::Checksum, 0))
            .with(NiOption::ZeroCopy, or(NiOption::ZeroCopy, 0))
            .with(NiOption::Carrier, or(NiOption::Carrier, 0))),
        None => refuse(Errno::INVAL, format!("net {}: LND type not supported", spec.net)),
    }
}

/// The model behind a server of one thread.
pub(crate) struct Served(pub(crate) RefCell<Model>);

impl Served {
    /// What a node tells only while it is configured.
    fn told<T>(&self, tell: impl FnOnce(&Model) -> T) -> Result<T> {
        let model = self.0.borrow();
        if model.nets.is_none() {
            return refuse(Errno::NETDOWN, "the node is not configured: lnetctl lnet configure");
        }
        Ok(tell(&model))
    }
}

impl Handler for Served {
    async fn generation(&self) -> Result<u64> {
        self.told(|model| model.generation)
    }

    async fn nets(&self) -> Result<Vec<NetRecord>> {
        self.told(|model| model.state().nets)
    }

    /// Pages of two peers.
    async fn peer_page(&self, PeerQuery { of, after }: PeerQuery) -> Result<PeerPage> {
        self.told(|model| {
            model.asked_peers.lock().unwrap().push(of.clone());
            let mut peers = model.peers.clone();
            let is_shown_with = |peer: &PeerRecord, NidText(nid): &NidText| {
                peer.primary_nid == *nid || peer.nis.iter().any(|ni| ni.nid == *nid)
            };
            peers.retain(|peer| of.as_ref().is_none_or(|of| of.iter().any(|nid| is_shown_with(peer, nid))));
            peers.sort_by_key(|peer| peer.primary_nid);
            peers.retain(|peer| after.is_none_or(|NidText(nid)| nid < peer.primary_nid));
            let has_more = peers.len() > 2;
            peers.truncate(2);
            let next = peers.last().filter(|_| has_more).map(|last| NidText(last.primary_nid));
            PeerPage { peers, next }
        })
    }

    async fn route_page(&self, after: Option<RouteSpec>) -> Result<RoutePage> {
        self.told(|model| model.route_page(after))
    }

    async fn routing(&self) -> Result<RoutingRecord> {
        self.told(|model| model.routing.clone())
    }

    async fn globals(&self) -> Result<Globals> {
        self.told(|model| model.globals)
    }

    async fn parameters(&self) -> Result<Parameters> {
        Ok(self.0.borrow().parameters)
    }

    async fn statistics(&self) -> Result<Statistics> {
        self.told(|model| model.statistics)
    }

    async fn drop_rules(&self) -> Result<Vec<DropRuleRecord>> {
        self.told(|model| model.rules.clone())
    }

    async fn delay_rules(&self) -> Result<Vec<DelayRuleRecord>> {
        self.told(|model| model.delays.clone())
    }

    async fn steering(&self) -> Result<SteeringRecord> {
        self.told(|model| model.steering.clone())
    }

    async fn udsp(&self) -> Result<Vec<UdspRule>> {
        self.told(|model| model.udsp.clone())
    }

    /// What is not in full health.
    async fn recovery(&self) -> Result<RecoveryRecord> {
        let nets = self.nets().await?;
        let local =
            nets.iter().flat_map(|net| &net.nis).filter(|ni| (1..1000).contains(&ni.health.health_value));
        let peers = self.told(|model| model.peers.clone())?;
        let peers = peers.iter().flat_map(|peer| &peer.nis).filter(|ni| ni.health.health_value < 1000);
        Ok(RecoveryRecord {
            local: local.map(|ni| ni.nid).collect(),
            peers: peers.map(|ni| ni.nid).collect(),
        })
    }

    /// The path from the first NI to the first NID of the peer: as if it alone were not silent.
    async fn explain(&self, NidText(nid): NidText) -> Result<ExplainRecord> {
        let peer = self.0.borrow_mut().peer_mut(nid)?.clone();
        let from = "10.77.0.11@tcp".parse().unwrap();
        let candidate = |(at, ni): (usize, &PeerNiRecord)| ExplainedCandidate {
            name: ni.nid.to_string(),
            is_chosen: at == 0,
            lost_by: (at > 0).then(|| "answers".to_owned()),
            values: vec![
                ("answers".to_owned(), i64::from(at == 0)),
                ("peer priority".to_owned(), u32::MAX.into()),
            ],
        };
        let candidates = peer.nis.iter().enumerate().map(candidate).collect();
        let steps = vec![ExplainedStep { kind: ExplainedKind::PeerNi, candidates }];
        let path = Some(ExplainedPath { from, to: peer.primary_nid });
        let carrier = Some("socket, carrier is socket".to_owned());
        let (gateway, reason) = (None, None);
        let choice = ExplainedChoice { shards: vec![0, 1], path, gateway, carrier, reason, steps };
        let (primary_nid, multi_rail) = (Some(peer.primary_nid), peer.multi_rail);
        Ok(ExplainRecord { nid, primary_nid, multi_rail, choices: vec![choice] })
    }

    async fn cpts_of(&self, nids: Vec<NidText>) -> Result<Vec<CptRecord>> {
        Ok(nids.into_iter().map(|NidText(nid)| CptRecord { nid, cpt: 1 }).collect())
    }

    async fn log_peer(&self, NidText(nid): NidText) -> Result<()> {
        self.0.borrow_mut().peer_mut(nid).map(drop)
    }

    /// It becomes known that a peer is Multi-Rail.
    async fn discover(&self, nid: Nid, is_forced: bool, timeout: Duration) -> Result<PingRecord> {
        let record = self.ping(nid, None, timeout).await?;
        let mut model = self.0.borrow_mut();
        let peer = model.peer_mut(nid)?;
        peer.multi_rail = true;
        peer.state |= peer_state::MULTI_RAIL | if is_forced { 1 << 13 } else { 0 };
        Ok(PingRecord { multi_rail: true, ..record })
    }

    async fn apply(&self, batch: ChangeSet) -> Result<Vec<Effect>> {
        let mut model = self.0.borrow_mut();
        if model.interferences != 0 {
            model.interferences -= 1;
            model.generation += 1;
        }
        if batch.generation.is_some_and(|planned| planned != model.generation) {
            return refuse(Errno::STALE, "planned for what the node was before");
        }
        model.generation += u64::from(!batch.dry_run);
        if batch.dry_run { model.clone().apply(&batch.changes) } else { model.apply(&batch.changes) }
    }

    /// The peers that it knows answer; one whose last number is 66 takes longer than the tool waits.
    async fn ping(&self, nid: Nid, source: Option<Nid>, _: Duration) -> Result<PingRecord> {
        if nid.to_string().contains(".66@") {
            std::future::pending::<()>().await;
        }
        let model = self.0.borrow();
        let nets = model.nets.iter().flatten();
        let local = nets.flat_map(|net| &net.nis).any(|ni| Some(ni.nid) == source);
        if source.is_some() && !local {
            return refuse(Errno::INVAL, "the source is not local");
        }
        let peer = model.peers.iter().find(|peer| peer.nis.iter().any(|ni| ni.nid == nid));
        let Some(peer) = peer else { return refuse(Errno::HOSTUNREACH, "No route to host") };
        let nids = peer.nis.iter().map(|ni| ni.nid).collect();
        Ok(PingRecord {
            primary_nid: peer.primary_nid,
            multi_rail: peer.multi_rail,
            nids,
            shared_nids: vec![],
        })
    }

    async fn frames(&self) -> Result<FramesRecord> {
        Ok(self.0.borrow().frames.clone())
    }

    async fn loads(&self) -> Result<Vec<LoadRecord>> {
        Ok(self.0.borrow().loads.clone())
    }

    async fn stop_load(&self, id: u32) -> Result<LoadRecord> {
        let loads = &self.0.borrow().loads;
        let load = loads.iter().find(|load| load.id == id).cloned();
        load.ok_or_else(|| Refusal::new(Errno::NOENT, format!("there is no load {id}")))
    }

    async fn warnings(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    async fn captures(&self) -> Result<Vec<CaptureRecord>> {
        Ok(self.0.borrow().captures.clone())
    }

    async fn start_capture(&self, spec: CaptureSpec) -> Result<()> {
        let CaptureSpec { path, limit_bytes, .. } = spec;
        if std::path::Path::new(&path).exists() {
            return refuse(Errno::EXIST, format!("{path} is there already"));
        }
        let (is_running, written_bytes, frame_count, missed_count) = (true, 0, 0, 0);
        // The model's disk is full once a capture may fill it.
        let failure = (limit_bytes > 1 << 40).then(|| "No space left: on device".to_owned());
        let record = CaptureRecord {
            path,
            is_running,
            limit_bytes,
            written_bytes,
            frame_count,
            missed_count,
            failure,
        };
        self.0.borrow_mut().captures.push(record);
        Ok(())
    }

    async fn stop_capture(&self, path: String) -> Result<CaptureRecord> {
        let captures = &mut self.0.borrow_mut().captures;
        let position = captures.iter().position(|capture| capture.path == path);
        let position = position.ok_or_else(|| Refusal::new(Errno::NOENT, format!("no capture to {path}")))?;
        Ok(CaptureRecord { is_running: false, ..captures.remove(position) })
    }
}
