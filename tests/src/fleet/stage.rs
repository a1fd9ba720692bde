//! A stage: a few nodes of the real core between which nothing arrives unless a test says so, one message at
//! a time and in the order of its choice. Each message has a name: what it is, and from which NI of which
//! node to which, as `ping a0>b1`; the nodes are `a`, `b`, `c`, the NIs have the numbers of their rails.
//!
//! Invariants: what is delivered arrives once; what is lost is told to no node; time stands unless a test
//! lets it pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use lnet_core::event::{Event, EventKind};
use lnet_core::lnd::{Cause, Status, TxId, Uplink as _};
use lnet_core::node::{
    Action, Difference, DriverError, NodeChange, Outcome, Peer, PeerEdit, PingId, PingKind, Report, Request,
    RequestError, RequestId,
};
use lnet_core::shard::HealthNote;
use lnet_core::time::Instant;
use lnet_wire::header::Body;
use lnet_wire::ping::{self, Features, PingInfo};
use lnet_wire::{Discovery, Global, Header, Nid, ProcessId};

use super::node::{Member, PUT_BYTES, add_ni, nid, owner};
use crate::bpf::random::Random;

/// Messages after which a run is taken for endless.
const MESSAGES_MAX: usize = 10_000;

/// A message that is under way.
struct Message {
    name: String,
    from: Nid,
    to: Nid,
    what: What,
}

enum What {
    Ping {
        ping: PingId,
        length_bytes: usize,
    },
    Push {
        ping: PingId,
        bytes: Arc<[u8]>,
    },
    /// Bytes of the REPLY to a ping, none for a push.
    Answer {
        ping: PingId,
        bytes: Vec<u8>,
    },
    Lnet {
        header: Box<Header>,
        /// The node whose driver is to learn whether it arrives.
        sender: Option<(usize, TxId)>,
    },
}

/// A few nodes, and what is under way between them.
pub struct Stage {
    members: Vec<Member>,
    /// Whether requests wait until a peer is discovered.
    holds: bool,
    /// Whether drivers learn what arrives, and what does not since the NI is gone that it is for.
    knows_ends: bool,
    /// Nodes that know nothing of Multi-Rail.
    old: BTreeSet<usize>,
    now: Instant,
    under_way: Vec<Message>,
    /// The names of all messages that were ever sent.
    sent: Vec<String>,
    results: BTreeMap<(usize, RequestId), Result<Outcome, RequestError>>,
    puts: u64,
    /// Puts that have arrived, with who they are from by their events, and those that ended, with whether
    /// they were acknowledged.
    arrived: BTreeMap<u64, Nid>,
    ended: BTreeMap<u64, bool>,
}

fn letter(node: usize) -> char {
    char::from(b'a' + node as u8)
}

fn name_of(nid: &Nid) -> String {
    owner(nid).map_or_else(|| nid.to_string(), |(node, rail)| format!("{}{rail}", letter(node as usize)))
}

impl Stage {
    /// Nodes with NIs on these rails each, which take part in discovery.
    #[must_use]
    pub fn new(rails: &[&[u8]]) -> Self {
        Self::of(rails, true)
    }

    /// Nodes whose requests do not wait until a peer is discovered, as those of programs that drive their
    /// node themselves.
    #[must_use]
    pub fn without_waiting(rails: &[&[u8]]) -> Self {
        Self::of(rails, false)
    }

    fn of(rails: &[&[u8]], holds: bool) -> Self {
        let member = |(number, rails): (u32, &&[u8])| {
            let nids = rails.iter().map(|rail| (*rail, nid(number, *rail))).collect();
            Member::new((number, 0), nids, true, holds, number.into())
        };
        let mut stage = Self {
            members: (0..).zip(rails).map(member).collect(),
            holds,
            knows_ends: false,
            old: BTreeSet::new(),
            now: Instant(0),
            under_way: Vec::new(),
            sent: Vec::new(),
            results: BTreeMap::new(),
            puts: 0,
            arrived: BTreeMap::new(),
            ended: BTreeMap::new(),
        };
        stage.settle();
        stage
    }

    /// Drivers learn from now on what arrives, and what does not since the NI is gone that it is for, as
    /// those of xdp nets do.
    pub const fn know_ends(&mut self) {
        self.knows_ends = true;
    }

    /// A node is shut down and comes up again in another version: one that knows of Multi-Rail or one that
    /// does not.
    pub fn restart(&mut self, node: usize, is_old: bool) {
        let nids = self.members[node].nids.clone();
        self.members[node] =
            Member::new((node as u32, 0), nids, true, self.holds && !is_old, self.now.0 + 77);
        let is_there = |nid: &Nid| owner(nid).is_some_and(|(other, _)| other as usize == node);
        self.under_way.retain(|message| !is_there(&message.from) && !is_there(&message.to));
        self.results.retain(|(of, _), _| *of != node);
        if is_old {
            self.old.insert(node)
        } else {
            self.old.remove(&node)
        };
        self.settle();
    }

    /// Asks something of a node.
    pub fn request(&mut self, node: usize, request: Request<()>) -> RequestId {
        let id =
            self.members[node].node.handle_request(self.now, request).expect("there is room for requests");
        self.settle();
        id
    }

    /// How a request has ended.
    #[must_use]
    pub fn result(&self, node: usize, request: RequestId) -> Option<&Result<Outcome, RequestError>> {
        self.results.get(&(node, request))
    }

    /// Has a node make changes; they begin at once, and end as soon as what is under way lets them.
    pub fn change(&mut self, node: usize, change: NodeChange<()>) -> RequestId {
        let drain_timeout = Duration::from_secs(2);
        self.request(node, Request::Batch { changes: vec![change], drain_timeout })
    }

    /// The administrator of a node changes its peers; what is refused panics.
    pub fn edit(&mut self, node: usize, edit: PeerEdit) {
        let request = self.change(node, NodeChange::Peer(edit));
        assert_eq!(self.result(node, request), Some(&Ok(Outcome::Changed)), "the change of a peer");
    }

    /// A node gets an NI.
    pub fn add_ni(&mut self, node: usize, rail: u8) {
        let nid = nid(node as u32, rail);
        self.members[node].nids.push((rail, nid));
        self.change(node, add_ni(rail + 100, nid));
    }

    /// A node loses an NI: no message arrives there from now on.
    pub fn delete_ni(&mut self, node: usize, rail: u8) -> RequestId {
        let nid = nid(node as u32, rail);
        let request = self.change(node, NodeChange::DeleteNi { nid });
        self.members[node].nids.retain(|(its, _)| *its != rail);
        request
    }

    /// What a node does about discovery is set.
    pub fn set_discovery(&mut self, node: usize, discovery: Discovery) {
        self.change(node, NodeChange::Set { setting: Global::Discovery, value: discovery as i64 });
    }

    /// A node is asked to discover the peer with a NID.
    pub fn discover(&mut self, node: usize, nid: Nid, is_forced: bool) -> RequestId {
        self.request(node, Request::Discover { nid, is_forced })
    }

    /// A program puts something to a NID, with ACK; what the put is called.
    pub fn put(&mut self, node: usize, to: Nid) -> u64 {
        self.puts += 1;
        assert!(self.members[node].put(self.now, self.puts, PUT_BYTES, to), "a put");
        self.settle();
        self.puts
    }

    /// Whether a put was acknowledged; `None` while it is under way.
    #[must_use]
    pub fn ended(&self, put: u64) -> Option<bool> {
        self.ended.get(&put).copied()
    }

    /// Who a put is from, by the event of its arrival.
    #[must_use]
    pub fn initiator(&self, put: u64) -> Option<Nid> {
        self.arrived.get(&put).copied()
    }

    /// The peer of a node that has a NID.
    #[must_use]
    pub fn peer(&self, node: usize, nid: Nid) -> Option<&Peer> {
        self.members[node].node.peer(&nid)
    }

    /// The peers of a node.
    pub fn peers(&self, node: usize) -> impl Iterator<Item = &Peer> {
        self.members[node].node.peers()
    }

    /// What a node is to warn of, since this was asked last.
    pub fn warnings(&mut self, node: usize) -> Vec<Difference> {
        std::iter::from_fn(|| self.members[node].node.poll_difference()).collect()
    }

    /// The messages that are under way, in the order in which they were sent.
    #[must_use]
    pub fn under_way(&self) -> Vec<&str> {
        self.under_way.iter().map(|message| message.name.as_str()).collect()
    }

    /// How many messages were sent whose names begin so.
    #[must_use]
    pub fn sent(&self, name: &str) -> usize {
        self.sent.iter().filter(|sent| sent.starts_with(name)).count()
    }

    /// Pings and pushes that were sent.
    #[must_use]
    pub fn discovery_traffic(&self) -> usize {
        self.sent("ping") + self.sent("push")
    }

    fn take(&mut self, name: &str) -> Message {
        let at = self.under_way.iter().position(|message| message.name.starts_with(name));
        match at {
            Some(at) => self.under_way.remove(at),
            None => panic!("there is no {name:?} among {:?}", self.under_way()),
        }
    }

    /// Delivers these messages in this order: each the first of those under way whose names begin so.
    pub fn deliver(&mut self, names: &[&str]) {
        for name in names {
            let message = self.take(name);
            self.arrive(message);
        }
    }

    /// A message is lost.
    pub fn lose(&mut self, name: &str) {
        self.take(name);
    }

    /// Puts the second message under way whose name begins so before the first one, from now on.
    pub fn swap_first_two(&mut self, name: &str) {
        let first = self.take(name);
        let at = self.under_way.iter().position(|message| message.name.starts_with(name));
        self.under_way.insert(at.expect("a second one") + 1, first);
    }

    /// Delivers so many messages in an order that follows from a seed.
    pub fn run_some(&mut self, seed: u64, count: usize) {
        let mut random = Random::new(seed);
        for _ in 0..count {
            if !self.under_way.is_empty() {
                let message = self.under_way.remove(random.below(self.under_way.len()));
                self.arrive(message);
            }
        }
    }

    /// Delivers all that is under way, and what comes of it, in the order in which it was sent.
    pub fn run(&mut self) {
        self.run_by(|_| 0);
    }

    /// Delivers all messages, in an order that follows from a seed.
    pub fn run_in_any_order(&mut self, seed: u64) {
        let mut random = Random::new(seed);
        self.run_by(|count| random.below(count));
    }

    /// Delivers all messages; `choose` says which of so many is the next.
    pub fn run_by(&mut self, mut choose: impl FnMut(usize) -> usize) {
        for _ in 0..MESSAGES_MAX {
            if self.under_way.is_empty() {
                return;
            }
            let at = choose(self.under_way.len());
            let message = self.under_way.remove(at);
            self.arrive(message);
        }
        panic!("it does not end: {:?}", self.under_way());
    }

    /// Time passes, in which what is sent arrives at once.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.pass_to(end, true);
    }

    /// Time passes, and what is under way stays so.
    pub fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        self.pass_to(end, false);
    }

    fn pass_to(&mut self, end: Instant, delivers: bool) {
        loop {
            if delivers {
                self.run();
            }
            let of = |member: &Member| [member.node.poll_timeout(), member.shard.poll_timeout()];
            let next = self.members.iter().flat_map(of).flatten().min().filter(|at| *at <= end);
            self.now = self.now.max(next.unwrap_or(end));
            let now = self.now;
            for member in &mut self.members {
                if member.node.poll_timeout().is_some_and(|at| at <= now) {
                    member.node.handle_timeout(now);
                }
                if member.shard.poll_timeout().is_some_and(|at| at <= now) {
                    member.shard.handle_timeout(now);
                }
            }
            self.settle();
            if next.is_none() {
                return;
            }
        }
    }

    /// The node that has an NI with a NID.
    fn node_of(&self, nid: &Nid) -> Option<usize> {
        let (node, _) = owner(nid)?;
        let member = self.members.get(node as usize)?;
        member.nids.iter().any(|(_, its)| its == nid).then_some(node as usize)
    }

    fn send(&mut self, kind: &str, from: Nid, to: Nid, what: What) {
        let name = format!("{kind} {}>{}", name_of(&from), name_of(&to));
        self.sent.push(name.clone());
        self.under_way.push(Message { name, from, to, what });
    }

    fn arrive(&mut self, message: Message) {
        let Message { from, to, what, .. } = message;
        let now = self.now;
        let reached = self.node_of(&to);
        if let What::Lnet { sender: Some((sender, tx)), .. } = what {
            let status = reached.map_or(Status::NeverSent(Cause::Unreachable), |_| Status::Ok);
            self.members[sender].shard.sent(now, tx, status);
        }
        let Some(node) = reached else { return self.settle() };
        let is_old = self.old.contains(&node);
        let member = &mut self.members[node];
        match what {
            What::Ping { ping, length_bytes } => {
                let first_ni = member.slot_of(&to);
                member.node.handle_report(now, Report::Traffic { nid: from, is_incoming: true, first_ni });
                let answer = if is_old { old_answer(&member.published) } else { member.published.to_vec() };
                let bytes = answer[..answer.len().min(length_bytes)].to_vec();
                self.send("reply", to, from, What::Answer { ping, bytes });
            }
            // An old node has no portal for that.
            What::Push { .. } if is_old => {}
            What::Push { ping, bytes } => {
                let room = member.node.push_room_bytes().min(bytes.len());
                let length_bytes = bytes.len();
                member.node.handle_report(now, Report::Pushed { from, bytes: &bytes[..room], length_bytes });
                self.send("ack", to, from, What::Answer { ping, bytes: Vec::new() });
            }
            What::Answer { ping, bytes } => {
                let note = HealthNote { nid: from, failures: 0, successes: 1 };
                member.node.handle_report(now, Report::Health(note));
                member.node.handle_report(now, Report::Answered { ping, bytes: &bytes });
            }
            What::Lnet { header, .. } => {
                let ni = member.slot_of(&to);
                member
                    .node
                    .handle_report(now, Report::Traffic { nid: from, is_incoming: true, first_ni: ni });
                member.arrive(now, &from, &to, &header);
            }
        }
        self.settle();
    }

    /// Has all nodes do what they have to do.
    fn settle(&mut self) {
        for node in 0..self.members.len() {
            let member = &mut self.members[node];
            // What goes may be quiet now.
            let confirmation = member.shard.confirmation();
            member.node.handle_report(self.now, Report::Confirmed(confirmation));
            loop {
                while let Some(action) = self.members[node].poll(self.now) {
                    self.carry_out(node, action);
                }
                self.members[node].resume(self.now);
                if !self.take_messages(node) {
                    break;
                }
            }
            self.take_events(node);
        }
    }

    fn carry_out(&mut self, node: usize, action: Action<()>) {
        let member = &mut self.members[node];
        // An old node finds out nothing by itself.
        let is_old = self.old.contains(&node);
        let source =
            |to: &Nid| member.nids.iter().find(|(_, own)| own.net() == to.net()).map(|(_, own)| *own);
        match action {
            Action::Ping { ping, nid, .. } if member.nids.iter().any(|(_, own)| *own == nid) => {
                let bytes = member.published.to_vec();
                member.node.handle_report(self.now, Report::Answered { ping, bytes: &bytes });
            }
            // Whose NIDs are is found out at once: the order of all else is what tests are about.
            Action::Ping { ping, nid, kind: PingKind::Question, .. } => {
                let now = self.now;
                let bytes = self.node_of(&nid).map(|asked| self.members[asked].published.to_vec());
                let node = &mut self.members[node].node;
                match bytes {
                    Some(bytes) => node.handle_report(now, Report::Answered { ping, bytes: &bytes }),
                    None => {
                        let error = DriverError { errno: 110, message: "no answer".to_owned() };
                        node.handle_report(now, Report::Unanswered { ping, error });
                    }
                }
            }
            Action::Ping { ping, nid, source: from, length_bytes, .. } if !is_old => {
                if let Some(from) = from.or_else(|| source(&nid)) {
                    self.send("ping", from, nid, What::Ping { ping, length_bytes });
                }
            }
            Action::Push { ping, nid, bytes, .. } if !is_old => {
                if let Some(from) = source(&nid) {
                    self.send("push", from, nid, What::Push { ping, bytes });
                }
            }
            Action::Done { request, result } => {
                let former = self.results.insert((node, request), result);
                assert_eq!(former, None, "{request:?} of node {} ends twice", letter(node));
            }
            _ => {}
        }
    }

    /// Whether there were any.
    fn take_messages(&mut self, node: usize) -> bool {
        let slots = self.members[node].shard.topology().nis().len() as u16;
        let mut taken = Vec::new();
        let shard = &mut self.members[node].shard;
        for ni in (0..slots).map(lnet_core::lnd::NiId) {
            while let Some(lent) = shard.poll_transmit(self.now, ni) {
                let transmit = *lent.transmit;
                taken.push((transmit.tx, transmit.next_hop, transmit.header));
            }
        }
        for (tx, to, header) in &taken {
            let kind = if matches!(header.body, Body::Ack { .. }) { "done" } else { "put" };
            let sender = self.knows_ends.then_some((node, *tx));
            self.send(kind, header.source.nid, *to, What::Lnet { header: Box::new(*header), sender });
            if !self.knows_ends {
                // The driver is done with it; what becomes of it on the way, nothing tells.
                self.members[node].shard.sent(self.now, *tx, Status::Ok);
            }
        }
        !taken.is_empty()
    }

    fn take_events(&mut self, node: usize) {
        let member = &mut self.members[node];
        while let Some(event) = member.shard.poll_event(member.queue) {
            if let Event::Put { hdr_data, origin, .. } = event {
                let former = self.arrived.insert(hdr_data, origin.initiator.nid);
                assert_eq!(former, None, "put {hdr_data} arrives twice");
                continue;
            }
            let is_acked = event.kind() == EventKind::Ack && event.status() == Status::Ok;
            if event.unlinked() {
                self.ended.insert(event.user_ptr(), is_acked);
            }
        }
    }

    /// What holds once nothing is under way: each put has ended, and every credit is home.
    pub fn check_rest(&self) {
        assert_eq!(self.under_way(), Vec::<&str>::new(), "under way");
        for put in 1..=self.puts {
            assert!(self.ended.contains_key(&put), "put {put} has not ended");
        }
        for (node, member) in self.members.iter().enumerate() {
            assert_eq!(member.shard.usage().messages, 0, "messages of node {}", letter(node));
            for peer in member.shard.peers() {
                assert_eq!(peer.credits, i64::from(peer.credits_max), "node {}: {}", letter(node), peer.nid);
            }
        }
    }
}

/// What a node without Multi-Rail answers to a ping: its NIDs with their statuses.
fn old_answer(published: &[u8]) -> Vec<u8> {
    let info = PingInfo::parse(published).expect("what a node tells");
    let interfaces = info.interfaces().filter(|ni| !ni.nid.is_loopback());
    let mut bytes = vec![0; ping::encoded_bytes(interfaces.clone()).expect("a few interfaces")];
    let features = Features::NI_STATUS.with(Features::ROUTING_DISABLED);
    ping::write(&mut bytes, features, ProcessId::LUSTRE_PID, 0, interfaces).expect("there is room");
    bytes
}
