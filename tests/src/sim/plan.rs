//! What a seed makes of a run: how many nodes, how bad a wire, how hasty an application.

use std::net::IpAddr;

use lnet_core::handle::ShardSet;
use lnet_core::lnd::{LndFacts, NiId, PING_PORTAL};
use lnet_wire::NetType;

use super::node::address;
use super::{Hostile, Hostility, NetKind, Options};
use crate::bpf::random::Random;

/// The unit of the rates of a [`Plan`]: one in this many.
pub(super) const CERTAIN: u32 = 10_000;

/// A millisecond, in the simulator's nanoseconds.
pub(super) const MS: u64 = 1_000_000;
/// A microsecond.
pub(super) const US: u64 = 1000;

/// How long a message may take in the transfer protocol, and wait for credits.
const MESSAGE_NS: u64 = 1000 * MS;
/// How long it may under an attack that lasts: longer than any credit and any answer stays with the silent.
const MESSAGE_UNDER_ATTACK_NS: u64 = 5000 * MS;
/// Nodes that are not hostile, where others are.
const FRIENDS: usize = 2;
/// How long a message of such a node to another one may take while it is attacked.
pub(super) const FRIENDLY_NS: u64 = 100 * MS;

/// How long a response may take; under an attack that lasts.
const TRANSACTION_NS: u64 = 3000 * MS;
const TRANSACTION_UNDER_ATTACK_NS: u64 = 6000 * MS;

/// Routers of a run between two nets, at most, and of a ring, at least: one of four runs has so many nets,
/// each with a host, and with a router to the next one.
const ROUTERS_MAX: usize = 3;
const RING_MIN: usize = 4;
/// How long a message may take where it goes by routers, whose buffers it waits for for ten seconds; and a
/// response.
const MESSAGE_BY_ROUTERS_NS: u64 = 12_000 * MS;
const TRANSACTION_BY_ROUTERS_NS: u64 = 15_000 * MS;

/// Names of each NI of a hostile node; those of one that lies while an attack lasts.
const NAMES: u8 = 24;
const NAMES_THAT_LIE: u8 = 80;
/// Time from what a name says to what it says next, at most; as much longer as there are more names, and as
/// the attack lasts longer.
const PAUSE_NS: u64 = 8 * MS;
/// How long an attack of names goes on that does not last.
const ATTACK_NS: u64 = 100 * MS;
/// Bytes that are on their way on a stream, at most, beside names that read nothing; and where the attack
/// lasts: soon no more is sent to these.
const WINDOW_BESIDE_NAMES_BYTES: usize = 1 << 12;
const WINDOW_UNDER_ATTACK_BYTES: usize = 1 << 14;

/// What happens in a run. All probabilities are of [`CERTAIN`].
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) net: NetKind,
    pub(super) streams: StreamPlan,
    /// Shards of each node.
    pub(super) shards: Vec<u8>,
    /// NIs of each node.
    pub(super) rails: u8,
    /// The shards that serve each node's rails.
    pub(super) serving: Vec<[ShardSet; 2]>,
    /// Whether all NIs are on one net.
    pub(super) same_net: bool,
    /// Longest datagram of each node by each of its rails.
    pub(super) datagram_max_bytes: Vec<[u32; 2]>,
    pub(super) loss: u32,
    pub(super) duplication: u32,
    pub(super) reordering: u32,
    pub(super) corruption: u32,
    /// A frame arrives at another shard than its own.
    pub(super) misdirection: u32,
    pub(super) latency_ns: u64,
    pub(super) jitter_ns: u64,
    /// How late a reordered or doubled frame is, at most.
    pub(super) late_ns: u64,
    /// Times that a node starts anew.
    pub(super) restarts: u32,
    /// Times that a rail goes down.
    pub(super) outages: u32,
    /// PUTs and GETs.
    pub(super) operations: u32,
    /// How long the application and the faults go on.
    pub(super) active_ns: u64,
    /// A PUT or GET is longer than a few KiB.
    pub(super) long: u32,
    /// The longest.
    pub(super) length_max: u32,
    /// The application looks at its events so often.
    pub(super) poll_ns: u64,
    /// The application unlinks something instead of starting an operation.
    pub(super) unlinks: u32,
    /// A message's verdict is delayed.
    pub(super) delays: u32,
    /// How long a delay lasts at most.
    pub(super) delay_ns: u64,
    /// Frame buffers of each node, for sending and for receiving.
    pub(super) send_frames: u32,
    pub(super) receive_frames: u32,
    /// Whether the NIs of a node want checksums with payloads, by node.
    pub(super) checksums: Vec<bool>,
    /// A shard works off so many frames in one turn.
    pub(super) budget: usize,
    /// Whether the shards of a node hand headers to each other, and lend spans.
    pub(super) mesh: bool,
    /// Portals on which PUTs wait for an entry, a bit each.
    pub(super) lazy: u64,
    /// A shard's driver does not go round for a while.
    pub(super) stalls: u32,
    /// How long a stall lasts at most.
    pub(super) stall_ns: u64,
    /// Times that the MTU of the whole fabric changes.
    pub(super) mtu_changes: u32,
    /// Times that a driver gives up a device.
    pub(super) failures: u32,
    /// Times that portals become lazy, or cease to be.
    pub(super) lazy_changes: u32,
    /// Times that an NI is deleted and added again.
    pub(super) deletions: u32,
    /// NIs of all nodes come and go often, and all paths are in use before.
    pub(super) comes_and_goes: bool,
    /// Slots of a shard's two event queues.
    pub(super) event_slots: [u32; 2],
    /// Whether all tables are small.
    pub(super) tight: bool,
    /// Operations that begin at once, at most.
    pub(super) burst: usize,
    /// Nothing happens that may make a message fail.
    pub(super) gentle: bool,
    /// How long a message may take in the transfer protocol, and wait for credits; and its response.
    pub(super) message_ns: u64,
    pub(super) transaction_ns: u64,
    /// Whether the NIs of nodes that are not hostile have so few credits that hostile ones want more.
    pub(super) few_credits: bool,
    /// Whether such nodes have little room, where none of the others has names.
    pub(super) little_room: bool,
    /// Names of each NI of a hostile node, and the time from what one says to what it says next, at most.
    pub(super) names: u8,
    pub(super) pause_ns: u64,
    /// Behaviour of the last nodes, which are hostile; nothing may befall the others, and no others are asked
    /// for anything.
    pub(super) hostile: Vec<Hostility>,
    /// The rail that is cut while the node's other rail goes on: of a gentle run, so nothing may be lost.
    pub(super) cut: Option<Cut>,
    /// The link that carries shorter datagrams than its ends take, and drops longer ones.
    pub(super) narrow: Option<Narrow>,
    /// Nodes that are routers, the last ones: the others are on one net each, by turns. Routers are on two
    /// nets: all on the same, or each on one of its own and the next one's.
    pub(super) routers: usize,
    /// Buffers of each pool in each shard of a router, and router credits of a peer NI.
    pub(super) pool_buffers: [u32; 3],
    pub(super) router_credits: u32,
    /// Credits of an NI, and what a peer gets of them, where there are routers.
    pub(super) routed_credits: (u32, u32),
    /// A router that is slow, and the time from one turn of its drivers to the next.
    pub(super) slow: Option<(usize, u64)>,
    /// Times that a router dies and begins anew, and how long it is dead at most.
    pub(super) deaths: u32,
    pub(super) dead_ns: u64,
}

/// A link between a node's rail and all others that is narrow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Narrow {
    node: usize,
    rail: usize,
    datagram_bytes: u32,
}

impl Narrow {
    /// Some link, as narrow as an IPv6 network may be, a tunnel, Ethernet, or FDDI.
    fn new(random: &mut Random, nodes: usize, rails: u8) -> Self {
        Self {
            node: random.below(nodes),
            rail: random.below(usize::from(rails)),
            datagram_bytes: random.pick(&[1232, 1372, 1472, 1472, 4052]),
        }
    }

    /// Whether a datagram of so many bytes between these two NIs is lost on it.
    pub(super) fn drops(&self, ends: [(usize, NiId); 2], bytes: usize) -> bool {
        let is_on_it = |(node, ni): (usize, NiId)| (node, usize::from(ni.0)) == (self.node, self.rail);
        bytes > self.datagram_bytes as usize && ends.into_iter().any(is_on_it)
    }
}

/// How a rail of a node is cut. Neither end is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) node: usize,
    pub(super) rail: usize,
    pub(super) directions: Directions,
    /// After how long, once all shards know all peers.
    pub(super) after_ns: u64,
    /// How long it lasts, if not for ever.
    pub(super) lasts_ns: Option<u64>,
}

/// Which frames of a node's rail are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Directions {
    Both,
    Sent,
    Received,
}

impl Cut {
    fn new(random: &mut Random, nodes: usize, active_ns: u64) -> Self {
        Self {
            node: random.below(nodes),
            rail: random.below(2),
            directions: random.pick(&[Directions::Both, Directions::Sent, Directions::Received]),
            after_ns: random.bits() % active_ns,
            lasts_ns: random.once_in(2).then(|| random.bits() % (2 * active_ns)),
        }
    }
}

/// Which nodes want checksums: all, as is the default, but for one, which has what the others want. Where
/// nothing changes payloads there may be none that wants any.
fn checksums(random: &mut Random, nodes: usize, corruption: u32) -> Vec<bool> {
    let all = corruption != 0 || random.once_in(2);
    (0..nodes).map(|node| all && node != 1).collect()
}

impl Plan {
    /// The plan of a seed, with what the options ask for.
    pub(super) fn new(random: &mut Random, options: &Options) -> Self {
        let routers = match options.routers {
            false => 0,
            true if random.once_in(4) => RING_MIN + random.below(2),
            true => 1 + random.below(ROUTERS_MAX),
        };
        let is_ring = routers >= RING_MIN;
        let mut nodes = options.nodes.unwrap_or_else(|| 2 + random.below(3)) + routers;
        if is_ring {
            nodes = 2 * routers;
        }
        let is_hostile = options.hostile.is_some();
        if is_hostile {
            nodes = nodes.max(FRIENDS + 1);
        }
        let cuts = (random.once_in(6) || options.cut) && options.net == NetKind::Xdp && routers == 0;
        // In a ring each may wait for the next one.
        let gentle = (random.once_in(3) || cuts || is_hostile || options.is_narrow()) && !is_ring;
        let calm = random.once_in(6);
        let most = if gentle { 500 } else { random.pick(&[2000, 2000, 2000, 5000]) };
        let mut rate =
            |most: usize| if calm || random.once_in(3) { 0 } else { random.below(most + 1) as u32 };
        let (loss, duplication, reordering) = (rate(most), rate(1500), rate(2000));
        let (corruption, misdirection) = (rate(500), rate(3000));
        let (restarts, outages) =
            if gentle { (0, 0) } else { (rate(3).saturating_sub(1), rate(3).saturating_sub(1)) };
        let (unlinks, delays) = (if gentle { 0 } else { rate(2000) }, rate(2000));
        let slow = random.once_in(8) && !cuts;
        let active_ns = if slow { 20_000 * MS } else { random.pick(&[2, 20, 20, 200]) * MS };
        let delay_most = if gentle { 20 * MS } else { random.pick(&[3 * MS, 20 * MS, 3000 * MS]) };
        let large = random.once_in(4);
        let late_most = match (gentle, slow) {
            (true, _) => MS,
            (false, false) => 4000 * MS,
            (false, true) => 15_000 * MS,
        };
        let tight = !gentle && random.once_in(4);
        let rarely = |random: &mut Random, most: usize| {
            if calm || !random.once_in(3) { 0 } else { random.below(most + 1) as u32 }
        };
        let mut plan = Self {
            net: options.net,
            streams: StreamPlan::NONE,
            shards: (0..nodes).map(|_| random.pick(&[1, 1, 2, 3])).collect(),
            rails: if cuts { 2 } else { random.pick(&[1, 1, 2]) },
            serving: Vec::new(),
            same_net: random.once_in(2),
            datagram_max_bytes: datagrams(random, nodes),
            loss,
            duplication,
            reordering,
            corruption,
            misdirection,
            latency_ns: random.pick(&[5, 20, 20, 200]) * US,
            jitter_ns: random.pick(&[0, 1, 10, 100]) * US,
            late_ns: random.pick(&[50 * US, MS, 20 * MS, late_most]),
            restarts,
            outages,
            operations: 10 + random.below(if gentle { 60 } else { 150 }) as u32,
            active_ns,
            long: if large { 500 } else { 50 },
            length_max: random.pick(&[64 << 10, 256 << 10, 1 << 20]),
            poll_ns: random.pick(&[5 * US, 100 * US, 2 * MS, 20 * MS]),
            unlinks,
            delays,
            delay_ns: delay_most,
            send_frames: random.pick(&[8, 32, 64]),
            receive_frames: if gentle { 256 } else { random.pick(&[16, 64, 256]) },
            checksums: checksums(random, nodes, corruption),
            budget: random.pick(&[1, 8, 32]),
            stalls: rarely(random, 500),
            stall_ns: if gentle { 5 * MS } else { random.pick(&[MS, 20 * MS, 500 * MS]) },
            mtu_changes: rarely(random, 3),
            failures: if gentle { 0 } else { rarely(random, 3) },
            lazy_changes: if gentle { 0 } else { rarely(random, 6) },
            deletions: if gentle { 0 } else { rarely(random, 8) },
            comes_and_goes: false,
            event_slots: random.pick(&[[600, 100], [600, 100], [600, 100], [200, 40]]),
            tight,
            burst: if gentle { 8 } else { random.pick(&[1, 8, 8, 50]) },
            mesh: !random.once_in(3),
            // PUTs that wait hold credits, so others may time out.
            lazy: if gentle && (active_ns > MESSAGE_NS / 2 || random.once_in(2)) {
                0
            } else {
                random.bits() & random.bits()
            },
            gentle,
            message_ns: MESSAGE_NS,
            transaction_ns: TRANSACTION_NS,
            few_credits: false,
            little_room: false,
            names: NAMES,
            pause_ns: PAUSE_NS,
            hostile: Vec::new(),
            cut: cuts.then(|| Cut::new(random, nodes, active_ns)),
            narrow: None,
            routers: 0,
            pool_buffers: [0; 3],
            router_credits: 0,
            routed_credits: (0, 0),
            slow: None,
            deaths: 0,
            dead_ns: 0,
        };
        if !gentle && random.once_in(4) {
            plan.comes_and_goes = true;
            (plan.rails, plan.mesh) = (2, true);
            plan.shards.fill_with(|| random.pick(&[2, 3]));
            plan.deletions = 4 + random.below(16) as u32;
        }
        if plan.net == NetKind::Tcp {
            plan.go_by_streams(random);
        }
        if let Some(hostile) = options.hostile {
            plan.make_hostile(random, hostile);
        }
        if routers > 0 {
            plan.go_by_routers(random, routers);
        }
        // Numbers of their own: a run in which all shards serve goes as it would without.
        let own = &mut Random::new(random.clone().bits());
        plan.serving = serving(own, &plan.shards);
        let is_narrow = options.narrow.unwrap_or(own.once_in(8));
        if plan.net == NetKind::Xdp && !is_hostile && is_narrow {
            plan.narrow = Some(Narrow::new(own, nodes, plan.rails));
        }
        if options.is_narrow() {
            (plan.long, plan.length_max) = (2000, 1 << 20);
            plan.datagram_max_bytes.fill([8972; 2]);
        }
        plan
    }

    /// Whether nodes lose what they know of each other, or streams: then all paths are tried in the end,
    /// where there is room for all peers.
    pub(super) const fn is_proven(&self) -> bool {
        let forgets = self.deletions != 0 || self.restarts != 0 || self.routers != 0;
        (forgets || matches!(self.net, NetKind::Tcp)) && !self.tight
    }
}

impl Plan {
    /// What is different where the nodes have the tcp LND.
    fn go_by_streams(&mut self, random: &mut Random) {
        let gentle = self.gentle;
        self.mesh |= self.shards.iter().any(|shards| *shards != 1);
        (self.mtu_changes, self.failures) = (0, 0);
        // A message that waits holds up all that come behind it on its connection.
        self.lazy = if gentle || !random.once_in(3) { 0 } else { self.lazy };
        self.lazy_changes = if random.once_in(2) { 0 } else { self.lazy_changes };
        let piece_bytes = random.pick(&[1, 7, 100, 1460, 1460, 1 << 16]);
        let window_bytes = if gentle {
            random.pick(&[1 << 14, 1 << 18])
        } else {
            random.pick(&[64, 1000, 1 << 14, 1 << 18])
        };
        if piece_bytes < 1000 || window_bytes < 1 << 14 {
            (self.long, self.length_max, self.operations) = (0, 1 << 12, self.operations.min(50));
        }
        let harm = |random: &mut Random, most: usize| {
            if gentle || random.once_in(3) { 0 } else { random.below(most + 1) as u32 }
        };
        if !gentle {
            self.active_ns = random.pick(&[20, 200, 2000, 2000, 10_000]) * MS;
        }
        self.restarts = harm(random, 2);
        self.outages = harm(random, 2);
        self.streams = StreamPlan {
            latency_ns: self.latency_ns,
            jitter_ns: self.jitter_ns,
            late_dials: if gentle { 1000 } else { harm(random, 3000) },
            late_ns: if gentle { 20 * MS } else { random.pick(&[20 * MS, 3000 * MS]) },
            refused_dials: harm(random, 3000),
            silent_dials: harm(random, 1000),
            window_bytes,
            piece_bytes,
            gap_ns: if gentle { US } else { random.pick(&[US, 20 * US]) },
            breaks: harm(random, 8),
            silences: harm(random, 6),
            silence_ns: random.pick(&[20 * MS, 500 * MS, 3000 * MS, 10_000 * MS]),
        };
    }

    /// Has the last nodes be routers, which have little room, between the others.
    fn go_by_routers(&mut self, random: &mut Random, routers: usize) {
        self.routers = routers;
        (self.rails, self.same_net, self.mesh) = (2, false, true);
        (self.tight, self.comes_and_goes, self.deletions, self.failures) = (false, false, 0, 0);
        (self.message_ns, self.transaction_ns) = (MESSAGE_BY_ROUTERS_NS, TRANSACTION_BY_ROUTERS_NS);
        self.pool_buffers = random.pick(&[[3, 3, 3], [4, 4, 4], [12, 12, 6], [64, 64, 16]]);
        self.router_credits = random.pick(&[3, 3, 6, 16]);
        self.routed_credits = random.pick(&[(6, 3), (12, 6), (32, 16)]);
        if random.once_in(3) {
            let router = self.hosts() + random.below(routers);
            self.slow = Some((router, random.pick(&[100 * US, MS])));
        }
        // A message goes by several streams, in which each piece is an event.
        self.streams.piece_bytes = self.streams.piece_bytes.max(100);
        if self.gentle {
            (self.lazy, self.lazy_changes) = (0, 0);
            return;
        }
        if self.is_ring() && random.once_in(2) {
            // All at once, and nothing else happens.
            (self.active_ns, self.operations, self.burst) = (5 * MS, 150, 50);
            (self.loss, self.restarts, self.outages, self.unlinks) = (0, 0, 0, 0);
            (self.lazy, self.lazy_changes) = (0, 0);
            self.streams.calm();
            return;
        }
        self.active_ns = random.pick(&[200, 2000, 10_000]) * MS;
        self.deaths = 1 + random.below(3) as u32;
        self.dead_ns = random.pick(&[20, 500, 5000]) * MS;
    }

    /// Whether the nets and the routers between them are a ring.
    pub(super) const fn is_ring(&self) -> bool {
        self.routers >= RING_MIN
    }

    /// Nets, where there are routers.
    pub(super) const fn nets(&self) -> u16 {
        if self.is_ring() { self.routers as u16 } else { 2 }
    }

    /// How many nodes are no routers: the first ones.
    pub(super) const fn hosts(&self) -> usize {
        self.shards.len() - self.routers
    }

    /// A node, if it is a router.
    pub(super) fn router(&self, node: usize) -> Option<usize> {
        (node >= self.hosts()).then_some(node)
    }

    /// NIs of a node.
    pub(super) fn rails_of(&self, node: usize) -> u8 {
        if self.routers > 0 && self.router(node).is_none() { 1 } else { self.rails }
    }

    /// The number of the net that an NI is on.
    pub(super) fn net_of(&self, node: usize, rail: u8) -> u16 {
        match self.router(node).map(|router| (router - self.hosts()) as u16) {
            _ if self.same_net => 0,
            Some(ordinal) if self.is_ring() => (ordinal + u16::from(rail)) % self.nets(),
            None if self.routers > 0 => node as u16 % self.nets(),
            _ => rail.into(),
        }
    }

    /// Has all nodes but the first ones be hostile, and little else happen.
    fn make_hostile(&mut self, random: &mut Random, hostile: Hostile) {
        let any = |_: &u8| match hostile {
            Hostile::Any => random.pick(&Hostility::ALL),
            Hostile::Each(hostility) => hostility,
        };
        self.hostile = self.shards[FRIENDS..].iter().map(any).collect();
        self.loss = self.loss.min(100);
        (self.delays, self.stalls, self.lazy, self.mtu_changes, self.cut) = (0, 0, 0, 0, None);
        (self.late_ns, self.poll_ns) = (self.late_ns.min(MS), self.poll_ns.min(2 * MS));
        let has_names = self.has_names();
        self.active_ns = if has_names { ATTACK_NS } else { 2 * ATTACK_NS };
        (self.operations, self.burst) = (400, 50);
        self.few_credits = random.once_in(2);
        self.little_room = random.once_in(2) && !has_names;
        if self.hostile.contains(&Hostility::Names) {
            self.streams.window_bytes = WINDOW_BESIDE_NAMES_BYTES;
        }
        if random.once_in(3) {
            self.last(random);
        }
        (self.long, self.length_max, self.send_frames, self.budget) = (500, 64 << 10, 64, 32);
        self.event_slots = [600, 100];
        // A name's lists are long, and each piece of a stream is an event.
        self.streams.piece_bytes = self.streams.piece_bytes.max(1460);
        // A push waits for the entry of its node, which is there again after the one before.
        self.mesh |= self.has_lies();
        if self.has_lies() || self.little_room {
            self.lazy = 1 << PING_PORTAL;
        }
    }

    /// The first portal of the operations of nodes that are not hostile. Their messages are to wait for no
    /// entry that does not come.
    pub(super) fn first_portal(&self) -> u32 {
        u32::from(!self.hostile.is_empty() && self.lazy != 0)
    }

    /// Has an attack last, as long as what is silent is borne with, and longer.
    fn last(&mut self, random: &mut Random) {
        self.active_ns = (3000 + random.below(2000) as u64) * MS;
        (self.message_ns, self.transaction_ns) = (MESSAGE_UNDER_ATTACK_NS, TRANSACTION_UNDER_ATTACK_NS);
        if self.has_lies() {
            self.names = NAMES_THAT_LIE;
        }
        // The names say as much as in a shorter one.
        self.pause_ns = PAUSE_NS * self.active_ns / ATTACK_NS * u64::from(self.names) / u64::from(NAMES);
        self.streams.window_bytes = self.streams.window_bytes.min(WINDOW_UNDER_ATTACK_BYTES);
    }

    /// Once faults have stopped, all operations end within this time.
    pub(super) const fn bound_ns(&self) -> u64 {
        2 * (self.transaction_ns + 2 * self.message_ns) + 16_000 * MS
    }

    /// How many nodes are not hostile: the first ones.
    pub(super) const fn friends(&self) -> usize {
        self.hosts() - self.hostile.len()
    }

    /// The behaviour of a node that is hostile.
    pub(super) fn hostility(&self, node: usize) -> Option<Hostility> {
        self.hostile.get(node.checked_sub(self.friends())?).copied()
    }

    /// Whether names that are no nodes speak for hostile ones.
    fn has_names(&self) -> bool {
        self.hostile.iter().any(|hostility| hostility.has_names())
    }

    /// Whether pushes tell lies, so that what nodes say of themselves counts.
    pub(super) fn has_lies(&self) -> bool {
        self.hostile.contains(&Hostility::Lies)
    }

    /// The type of all nets.
    pub(super) const fn net_type(&self) -> NetType {
        match self.net {
            NetKind::Xdp => NetType::XDP,
            NetKind::Tcp => NetType::TCP,
        }
    }

    /// Facts of their LND.
    pub(super) const fn facts(&self) -> LndFacts {
        match self.net {
            NetKind::Xdp => lnet_xdp_proto::FACTS,
            NetKind::Tcp => LndFacts::KERNEL,
        }
    }

    /// The node and the rail with this address.
    pub(super) fn locate(&self, of: IpAddr) -> Option<(usize, NiId)> {
        let rails = |node| (0..self.rails_of(node)).map(move |rail| (node, rail));
        let (node, rail) =
            (0..self.shards.len()).flat_map(rails).find(|(node, rail)| address(*node, *rail) == of)?;
        Some((node, NiId(rail.into())))
    }
}

/// What befalls streams. All probabilities are of [`CERTAIN`].
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPlan {
    pub(super) latency_ns: u64,
    pub(super) jitter_ns: u64,
    /// A stream is connected late, by so much at most.
    pub(super) late_dials: u32,
    pub(super) late_ns: u64,
    /// A stream is refused.
    pub(super) refused_dials: u32,
    /// A stream is silent from its beginning.
    pub(super) silent_dials: u32,
    /// Bytes that are on their way, or wait to be read, at most.
    pub(super) window_bytes: usize,
    /// Bytes that arrive at once, at most, and the time until more do, at most.
    pub(super) piece_bytes: usize,
    pub(super) gap_ns: u64,
    /// Times that a stream breaks.
    pub(super) breaks: u32,
    /// Times that nothing arrives by a stream, and for how long at most.
    pub(super) silences: u32,
    pub(super) silence_ns: u64,
}

impl StreamPlan {
    /// Has nothing befall them.
    const fn calm(&mut self) {
        (self.refused_dials, self.silent_dials, self.breaks, self.silences) = (0, 0, 0, 0);
    }

    /// The plan of nodes without streams.
    pub(super) const NONE: Self = Self {
        latency_ns: US,
        jitter_ns: 0,
        late_dials: 0,
        late_ns: MS,
        refused_dials: 0,
        silent_dials: 0,
        window_bytes: 1,
        piece_bytes: 1,
        gap_ns: US,
        breaks: 0,
        silences: 0,
        silence_ns: MS,
    };
}

/// The shards that serve each rail of nodes with so many: in a third of the runs some, in the others all.
fn serving(random: &mut Random, shards: &[u8]) -> Vec<[ShardSet; 2]> {
    let restricts = random.once_in(3);
    let mut some = |shards: u8| {
        let drawn = ShardSet::of((0..u32::from(shards)).filter(|_| random.once_in(2)));
        drawn.filter(|_| restricts).unwrap_or(ShardSet::all(shards))
    };
    shards.iter().map(|shards| [some(*shards), some(*shards)]).collect()
}

/// The longest datagrams of nodes, by rail.
fn datagrams(random: &mut Random, nodes: usize) -> Vec<[u32; 2]> {
    let rails = [65_507, if random.once_in(3) { 1472 } else { 65_507 }];
    let node = |_| random.pick(&[1472, 1472, 3500, 8972, 65_507]);
    (0..nodes).map(node).map(|bytes| rails.map(|rail: u32| rail.min(bytes))).collect()
}

/// Whether something of this probability happens.
pub(super) fn happens(random: &mut Random, rate: u32) -> bool {
    rate != 0 && (random.below(CERTAIN as usize) as u32) < rate
}
