//! Names of hostile nodes that are no nodes: they say what they like, over frames or over streams.
//!
//! Each name speaks to one of the nodes that are not hostile, again and again while the attack goes on. What
//! it says is of no operation, so that the ledger says nothing of it; everything that the node does about it
//! ends all the same, and leaves nothing behind.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use lnet_core::lnd::{NiId, PING_MATCH_BITS, PING_PORTAL};
use lnet_wire::frame::Kind;
use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::ping::{self, ENTRIES_MAX, Features, HEADER_BYTES, NiStatus, PingNi, SMALL_ENTRY_BYTES};
use lnet_wire::socklnd::{
    ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, ConnectionType, HELLO_BYTES_MAX, Hello,
    PREFIX_BYTES, Prefix, PrefixKind, Version,
};
use lnet_wire::{Body, Net, NetType, Nid, ProcessId, WireHandle};

use super::fabric::{Packet, Passage};
use super::ledger::{Ledger, STRANGE};
use super::node::{PORTALS_USED, nid};
use super::plan::Plan;
use super::report::Fault;
use super::streams::{EndId, Seat};
use super::world::{Happening, Phase, World};
use super::{Hostility, NetKind};
use crate::bpf::random::Random;
use crate::node::Voice;
use crate::node::message::Message;

/// Messages that a name says at once.
const BURST: usize = 6;
/// Payload of a frame.
const FRAME_PAYLOAD_BYTES: usize = 1200;
/// Length of a message of which no more than the beginning comes.
const CLAIMED_BYTES: usize = 1 << 20;
/// The third byte of addresses that are nowhere.
const NOWHERE: u8 = 200;
/// Multi-Rail, with discovery.
const MULTI_RAIL: Features = Features(0x1E);

/// The address of a name of a hostile node's NI.
fn address(node: usize, rail: u8, number: u8) -> IpAddr {
    Ipv4Addr::new(10, rail, node as u8 + 1, number + 1).into()
}

/// Whether anything is at an address of a hostile node that accepts streams, and streams come from there.
/// Streams of other names come from the address of their node.
const fn is_inhabited(number: u8) -> bool {
    number % 2 == 1
}

/// The hostile node's NI that has an address, and whether anything is there that accepts streams.
pub(super) fn locate(plan: &Plan, address: IpAddr) -> Option<(usize, NiId, bool)> {
    let IpAddr::V4(address) = address else { return None };
    let [_, rail, node, number] = address.octets();
    let hostile = plan.friends()..plan.shards.len();
    let its = usize::from(node).checked_sub(1).filter(|node| hostile.contains(node));
    // Nodes that have no names have no such addresses either.
    let node = its.or_else(|| hostile.clone().next())?;
    Some((node, NiId(rail.min(plan.rails - 1).into()), its.is_some() && is_inhabited(number)))
}

/// A name.
pub(super) struct Stranger {
    /// The node that it is of, and its NI.
    node: usize,
    rail: u8,
    nid: Nid,
    hostility: Hostility,
    /// Node and rail that it speaks to.
    target: (usize, u8),
    voice: Voice,
    /// The stream that it speaks by, and what the stream has had no room for.
    end: Option<EndId>,
    unsaid: Vec<u8>,
    /// Whether it has begun a message there, of which nothing more comes.
    is_silent: bool,
    /// Times that it has spoken.
    turns: u32,
}

impl Stranger {
    /// The names of all hostile nodes.
    pub(super) fn all(plan: &Plan) -> Vec<Self> {
        let mut all = Vec::new();
        let hostile = (0..plan.shards.len()).filter_map(|node| Some((node, plan.hostility(node)?)));
        for (node, hostility) in hostile.filter(|(_, hostility)| hostility.has_names()) {
            for (rail, number) in
                (0..plan.rails).flat_map(|rail| (0..plan.names).map(move |name| (rail, name)))
            {
                let own_net = nid(plan, node, rail).net();
                // Nets that its target is not on are for liars.
                let is_foreign = hostility == Hostility::Lies && plan.net == NetKind::Tcp && number % 8 == 7;
                let net = if is_foreign { Net::new(NetType::TCP, 77) } else { own_net };
                let nid = Nid::new_ip(net, address(node, rail, number)).expect("an address of a net");
                let target = (usize::from(number) / 2 % plan.friends(), rail);
                all.push(Self {
                    node,
                    rail,
                    nid,
                    hostility,
                    target,
                    voice: Voice::new(nid),
                    end: None,
                    unsaid: Vec::new(),
                    is_silent: false,
                    turns: 0,
                });
            }
        }
        all
    }

    pub(super) const fn nid(&self) -> Nid {
        self.nid
    }

    /// Whether it has dialled this end of a stream.
    pub(super) fn has_dialled(&self, end: EndId) -> bool {
        self.end == Some(end)
    }

    /// The address that its streams come from, if that is its own.
    pub(super) fn own_address(&self) -> Option<IpAddr> {
        let address = self.nid.ip()?;
        let IpAddr::V4(octets) = address else { return None };
        is_inhabited(octets.octets()[3]).then_some(address)
    }

    /// An answer in the stead of another node that was asked a moment ago: the name guesses the descriptor,
    /// and knows the seals of what it was asked itself.
    fn answer(&self, plan: &Plan, random: &mut Random, ledger: &Ledger) -> Option<Message> {
        let given = ledger.given.get(random.below(ledger.given.len().max(1)));
        let (_, handle) = given.filter(|(asked, _)| *asked != self.nid)?;
        let own = ledger.given.iter().find(|(asked, _)| *asked == self.nid);
        let interface_cookie = own.map_or_else(|| random.bits(), |(_, own)| own.interface_cookie);
        // Descriptors of several nodes may have one cookie.
        let md = Some(WireHandle { interface_cookie, ..*handle })
            .filter(|md| own.is_none_or(|(_, own)| own != md))?;
        let to = nid(plan, self.target.0, self.target.1);
        Some(if random.once_in(2) {
            let manipulated_length = random.below(4096) as u32;
            let body = Body::Ack { md, match_bits: PING_MATCH_BITS, manipulated_length };
            Message::new(self.nid, to, body, Vec::new())
        } else {
            let payload = if random.once_in(2) { self.lie(plan, random) } else { vec![0xA5; 500] };
            Message::new(self.nid, to, Body::Reply { md }, payload)
        })
    }

    /// A question of the name, or the beginning of a message.
    fn message(&self, plan: &Plan, random: &mut Random, ledger: &Ledger) -> Message {
        let to = nid(plan, self.target.0, self.target.1);
        let handle = WireHandle { interface_cookie: u64::MAX, object_cookie: random.bits() };
        let match_bits = u64::from(STRANGE) << 32 | random.below(8) as u64;
        let portal = random.below(PORTALS_USED) as u32;
        let put = |portal, match_bits, payload| {
            let hdr_data = STRANGE.into();
            let body = Body::Put { ack_md: handle, match_bits, hdr_data, portal, offset: 0 };
            Message::new(self.nid, to, body, payload)
        };
        let get = |portal, match_bits, sink_length| {
            let body = Body::Get { return_md: handle, match_bits, portal, offset: 0, sink_length };
            Message::new(self.nid, to, body, Vec::new())
        };
        let turn = random.below(8);
        if (self.hostility, turn) == (Hostility::Lies, 6)
            && let Some(answer) = self.answer(plan, random, ledger)
        {
            return answer;
        }
        match (self.hostility, turn) {
            (Hostility::Lies, 0..6) => put(PING_PORTAL, PING_MATCH_BITS, self.lie(plan, random)),
            (Hostility::Silence, 0..2) => {
                let portal = if random.once_in(2) { PING_PORTAL } else { portal };
                let bits = if portal == PING_PORTAL { PING_MATCH_BITS } else { match_bits };
                put(portal, bits, vec![0xA5; CLAIMED_BYTES])
            }
            (_, 0..4) => get(PING_PORTAL, PING_MATCH_BITS, 256),
            (_, 4..6) => get(portal, match_bits, 4096),
            _ => put(portal, match_bits, vec![0xA5; 500]),
        }
    }

    /// Ping information of which little is true.
    fn lie(&self, plan: &Plan, random: &mut Random) -> Vec<u8> {
        let mut nids = vec![self.nid];
        let net = self.nid.net();
        let any = |net: Net, random: &mut Random| {
            let [_, _, middle, low] = (random.bits() as u32).to_be_bytes();
            Nid::new_ip(net, Ipv4Addr::new(10, NOWHERE, middle, low).into()).expect("an address of a net")
        };
        match random.below(40) {
            // Others' names, those of nodes and those of other names.
            0..10 => {
                let friends =
                    (0..plan.friends()).flat_map(|node| (0..plan.rails).map(move |rail| (node, rail)));
                nids.extend(friends.map(|(node, rail)| nid(plan, node, rail)));
                let number = random.below(plan.names.into()) as u8;
                nids.extend(Nid::new_ip(net, address(self.node, self.rail, number)));
            }
            // A name that one of the friends has alone.
            10..20 => nids.push(nid(plan, random.below(plan.friends()), self.rail)),
            // Names on nets that no node here is on.
            20..30 => nids.extend((0..8).map(|number| any(Net::new(NetType::TCP, 1000 + number), random))),
            // Names that no node has.
            30..39 => nids.extend((0..20).map(|_| any(net, random))),
            _ => {
                let count = random.pick(&[100, 3000, ENTRIES_MAX as usize - 2]);
                nids.extend((0..count).map(|_| any(net, random)));
            }
        }
        let turn = random.below(nids.len());
        nids.rotate_left(turn);
        let told = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
        let mut bytes = vec![0; ping::encoded_bytes(told.clone()).expect("IPv4 addresses")];
        let sequence = if random.once_in(2) { u32::MAX - random.below(9) as u32 } else { self.turns + 1 };
        ping::write(&mut bytes, MULTI_RAIL, ProcessId::LUSTRE_PID, sequence, told).expect("room for all");
        if random.once_in(4) {
            // Nets of a type that there is not.
            let entries = bytes[HEADER_BYTES..].chunks_exact_mut(SMALL_ENTRY_BYTES).skip(1).step_by(2);
            entries.for_each(|entry| entry[6..8].copy_from_slice(&0x0777_u16.to_le_bytes()));
        }
        bytes
    }

    /// The beginning of all that it says by a stream.
    fn greeting(&self, plan: &Plan) -> Vec<u8> {
        let to = nid(plan, self.target.0, self.target.1);
        let mut request = [0; CONNECTION_REQUEST_BYTES_MAX];
        let length = ConnectionRequest { target: to }.encode(&mut request);
        let hello = Hello {
            version: Version::V3,
            order: ByteOrder::Little,
            source: ProcessId::lustre(self.nid),
            destination: ProcessId::lustre(to),
            source_incarnation: 1,
            destination_incarnation: 0,
            connection: Some(ConnectionType::Control),
        };
        let mut bytes = [0; HELLO_BYTES_MAX];
        let hello_length = hello.encode(&mut bytes).expect("NIDs of IPv4 addresses");
        let is_half = self.hostility == Hostility::Silence && self.turns.is_multiple_of(2);
        let said = if is_half { hello_length / 2 } else { hello_length };
        [&request[..length], &bytes[..said]].concat()
    }
}

/// A message as a stream carries it.
fn streamed(message: &Message, is_whole: bool) -> Vec<u8> {
    let mut prefix = [0; PREFIX_BYTES];
    Prefix { kind: PrefixKind::Lnet, checksum: 0, cookies: [0; 2] }.encode(&mut prefix);
    let mut header = [0; SMALL_HEADER_BYTES];
    message.header.encode_small(&mut header).expect("NIDs of IPv4 addresses");
    let said = if is_whole { message.payload.len() } else { message.payload.len() / 1024 };
    [&prefix[..], &header, &message.payload[..said]].concat()
}

impl World {
    /// The names begin.
    pub(super) fn wake_strangers(&mut self) {
        for number in 0..self.strangers.len() as u32 {
            let at = self.now + self.random.bits() % self.plan.pause_ns;
            self.at(at, Happening::Speak(number));
        }
    }

    /// The names fall silent, and let go of their streams.
    pub(super) fn silence_strangers(&mut self) {
        let ends = self.strangers.iter_mut().filter_map(|stranger| stranger.end.take());
        let ends: Vec<_> = ends.chain(self.streams.mute()).collect();
        for end in ends {
            if self.streams.is_open(end) {
                self.streams.close(self.now, end, &mut self.random);
            }
        }
        self.carry_streams();
    }

    /// A name says something.
    pub(super) fn speak(&mut self, number: u32) {
        // Afterwards the names are silent, until all that was asked for has ended.
        if self.phase != Phase::Active {
            return;
        }
        self.strangers[number as usize].turns += 1;
        match self.plan.net {
            NetKind::Xdp => self.speak_by_frames(number as usize),
            NetKind::Tcp => self.speak_by_stream(number as usize),
        }
        self.counts.add(Fault::Spoken);
        let at = self.now + 1 + self.random.bits() % self.plan.pause_ns;
        self.at(at, Happening::Speak(number));
    }

    fn speak_by_frames(&mut self, number: usize) {
        let Self { strangers, random, plan, ledger, .. } = self;
        let stranger = &mut strangers[number];
        // A session may have been forgotten.
        let mut frames = Vec::new();
        if !stranger.voice.has_session() || stranger.turns.is_multiple_of(16) {
            frames.push(stranger.voice.other(Kind::Hello));
        }
        if stranger.voice.has_session() {
            for _ in 0..BURST {
                let mut message = stranger.message(plan, random, ledger);
                if message.payload.len() == CLAIMED_BYTES {
                    message.payload.truncate(FRAME_PAYLOAD_BYTES);
                }
                frames.extend(stranger.voice.cut(message, FRAME_PAYLOAD_BYTES));
            }
        }
        frames.into_iter().for_each(|bytes| self.send_strange(number, bytes));
    }

    /// A frame of a name is on its way.
    fn send_strange(&mut self, number: usize, bytes: Vec<u8>) {
        let Stranger { node: sender, nid: from, target: (node, rail), .. } = self.strangers[number];
        let lives = (self.nodes[sender].life, self.nodes[node].life);
        let (ni, bytes) = (NiId(rail.into()), Rc::new(bytes));
        let packet = Packet { bytes, node, ni, from, sender, lives, flips: [None; 2], astray: None };
        let slot = self.fabric.insert(Passage::Packet(packet));
        let at = self.now + self.plan.latency_ns + self.random.bits() % (self.plan.jitter_ns + 1);
        self.at(at, Happening::Pass(slot));
    }

    /// The name that frames to a NID reach.
    pub(super) fn listener(&self, nid: &Nid) -> Option<usize> {
        self.strangers.iter().position(|stranger| stranger.nid == *nid)
    }

    /// A frame reaches a name, which acknowledges nothing.
    pub(super) fn listen(&mut self, number: usize, bytes: &[u8]) {
        let stranger = &mut self.strangers[number];
        stranger.voice.hear(bytes);
        let Some(mut answer) = stranger.voice.welcome(bytes) else { return };
        if stranger.hostility == Hostility::Silence {
            if stranger.turns.is_multiple_of(2) {
                return;
            }
            answer.truncate(answer.len() / 2);
        }
        if !self.fabric.attack.is_empty() {
            self.send_strange(number, answer);
        }
    }

    fn speak_by_stream(&mut self, number: usize) {
        let now = self.now;
        let Self { strangers, streams, random, counts, plan, ledger, .. } = self;
        let stranger = &mut strangers[number];
        let Stranger { node, rail, target: (target, target_rail), .. } = *stranger;
        let Some(end) = stranger.end else {
            let seat = Seat { node, rail: NiId(rail.into()), shard: 0 };
            let end = streams.dial(now, seat, (target, NiId(target_rail.into())), random, counts);
            (stranger.end, stranger.unsaid, stranger.is_silent) = (Some(end), stranger.greeting(plan), false);
            return self.carry_streams();
        };
        if streams.has_ended(end) {
            streams.close(now, end, random);
            stranger.end = None;
            return self.carry_streams();
        }
        if !streams.is_open(end.other()) {
            return;
        }
        let is_whole = stranger.hostility != Hostility::Silence;
        if stranger.unsaid.is_empty() && !stranger.is_silent {
            for _ in 0..BURST {
                let message = stranger.message(plan, random, ledger);
                stranger.unsaid.extend(streamed(&message, is_whole));
                stranger.is_silent = !is_whole && !message.payload.is_empty();
                if stranger.is_silent {
                    break;
                }
            }
        }
        let count = streams.room_bytes(end).min(stranger.unsaid.len());
        if count != 0 {
            let said: Vec<u8> = stranger.unsaid.drain(..count).collect();
            streams.write(now, end, &said, random);
        }
        self.carry_streams();
    }
}
