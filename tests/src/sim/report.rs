//! What runs have counted: faults that were injected, and what the code under test did about them.

use std::fmt;
use std::ops::AddAssign;

use lnet_core::stats::{Counters, DelayReason, DropReason};
use lnet_tcp_proto::{SocklndCounters, SocklndEvent};
use lnet_xdp_proto::{XferCounters, XferDrop};

use super::NetKind;

/// What the simulator does to the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Fault {
    /// A frame is lost.
    Lost,
    /// A frame arrives twice.
    Doubled,
    /// A frame arrives later than those after it.
    Late,
    /// Bits of a frame are turned over.
    Corrupted,
    /// A frame arrives at another shard than its own.
    Misdirected,
    /// A rail goes down.
    Outage,
    /// A rail is cut, and nothing may be lost.
    Cut,
    /// Hostile nodes begin.
    Attack,
    /// A hostile node sends no more than the beginning of a message.
    Withheld,
    /// A name of a hostile node says something.
    Spoken,
    /// A frame is lost because a rail is down or cut.
    Unplugged,
    /// A node starts anew.
    Restart,
    /// A frame of a former life of its sender, or to one of its receiver, arrives.
    Stale,
    /// A frame finds no buffer at its receiver.
    NoBuffer,
    /// A verdict is delayed.
    Delayed,
    /// The application unlinks something.
    Unlinked,
    /// An operation finds no room, other than in an event queue.
    Refused,
    /// An operation finds its event queue full.
    QueueFull,
    /// A message waits until events of its descriptor are polled.
    SlotAwaited,
    /// A driver does not go round for a while.
    Stalled,
    /// The MTU of the fabric changes.
    MtuChanged,
    /// A frame is lost because it is longer than the MTU.
    TooLong,
    /// A link drops a frame that is longer than it carries, and tells of it to neither end.
    Narrow,
    /// A driver gives up a device.
    DeviceGivenUp,
    /// A portal becomes lazy, or ceases to be.
    LazyChanged,
    /// An NI is deleted, and added again later.
    InterfaceDeleted,
    /// All NIs of a node were deleted, and one is added again.
    AllDeleted,
    /// An NI does not open.
    OpenFailed,
    /// A frame comes by an NI that is deleted, or would leave by it.
    NoInterface,
    /// An event waited for its poll for longer than a millisecond.
    SlowPoll,
    /// A stream is broken, with what is under way on it.
    StreamBroken,
    /// Nothing arrives by a stream for a while, in one direction or in both.
    StreamSilent,
    /// A stream is refused.
    DialRefused,
    /// A stream is connected late, or after its dialler has given up.
    DialLate,
    /// A router dies, and begins anew later.
    RouterDead,
}

impl Fault {
    /// All of them, in the order of their counters.
    pub const ALL: [Self; Self::NAMES.len()] = [
        Self::Lost,
        Self::Doubled,
        Self::Late,
        Self::Corrupted,
        Self::Misdirected,
        Self::Outage,
        Self::Cut,
        Self::Attack,
        Self::Withheld,
        Self::Spoken,
        Self::Unplugged,
        Self::Restart,
        Self::Stale,
        Self::NoBuffer,
        Self::Delayed,
        Self::Unlinked,
        Self::Refused,
        Self::QueueFull,
        Self::SlotAwaited,
        Self::Stalled,
        Self::MtuChanged,
        Self::TooLong,
        Self::Narrow,
        Self::DeviceGivenUp,
        Self::LazyChanged,
        Self::InterfaceDeleted,
        Self::AllDeleted,
        Self::OpenFailed,
        Self::NoInterface,
        Self::SlowPoll,
        Self::StreamBroken,
        Self::StreamSilent,
        Self::DialRefused,
        Self::DialLate,
        Self::RouterDead,
    ];

    const NAMES: [&'static str; 35] = [
        "frames lost",
        "frames doubled",
        "frames late",
        "frames corrupted",
        "frames misdirected",
        "rails down",
        "rails cut",
        "attacks",
        "frames withheld",
        "times that hostile names spoke",
        "frames on a rail that is down or cut",
        "nodes restarted",
        "frames of or to a former life",
        "frames without a buffer",
        "verdicts delayed",
        "descriptors unlinked",
        "requests refused",
        "requests without an event slot",
        "messages that waited for an event slot",
        "drivers stalled",
        "changes of the mtu",
        "frames longer than the mtu",
        "frames too long for a link",
        "devices given up",
        "portals made lazy or not",
        "interfaces deleted",
        "nodes without interfaces",
        "interfaces that did not open",
        "frames on an interface that is deleted",
        "slow polls of events",
        "streams broken",
        "streams silent",
        "streams refused",
        "streams connected late",
        "routers dead",
    ];

    /// Whether it can happen on a net.
    #[must_use]
    pub const fn can_happen(self, net: NetKind) -> bool {
        if matches!(self, Self::Attack | Self::Withheld | Self::Spoken | Self::RouterDead) {
            // Only where there are hostile nodes, or routers.
            return false;
        }
        let is_of_streams =
            matches!(self, Self::StreamBroken | Self::StreamSilent | Self::DialRefused | Self::DialLate);
        let is_of_frames = matches!(
            self,
            Self::Lost
                | Self::Doubled
                | Self::Late
                | Self::Corrupted
                | Self::Misdirected
                | Self::Cut
                | Self::Unplugged
                | Self::Stale
                | Self::NoBuffer
                | Self::MtuChanged
                | Self::TooLong
                | Self::Narrow
                | Self::DeviceGivenUp
                | Self::NoInterface
        );
        match net {
            NetKind::Xdp => !is_of_streams,
            NetKind::Tcp => !is_of_frames,
        }
    }
}

/// How often each fault was injected.
#[derive(Clone, Debug)]
struct Injected([u64; Fault::NAMES.len()]);

impl Default for Injected {
    fn default() -> Self {
        Self([0; Fault::NAMES.len()])
    }
}

/// Messages that shards have dropped, by reason.
#[derive(Clone, Debug)]
struct ShardDrops([u64; DropReason::ALL.len()]);

impl Default for ShardDrops {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

/// What one run, or several, have counted.
#[derive(Clone, Default, Debug)]
pub struct Counts {
    faults: Injected,
    /// Runs.
    pub runs: u64,
    /// PUTs and GETs that were started.
    pub operations: u64,
    /// Messages that their receiver has had: PUTs, GETs, ACKs, REPLYs.
    pub messages: u64,
    /// Frames that were sent.
    pub frames: u64,
    /// Frames that were not as they were sent, found by their receiver.
    pub refused: u64,
    /// The longest time that a message took where nothing happened that may make it fail.
    pub longest_ns: u64,
    /// Messages that the shards of a node have exchanged.
    pub mesh: u64,
    /// Fragments that were written into a descriptor of a sibling shard.
    pub lent: u64,
    /// Frames that arrived at another shard, since their own does not serve the NI.
    pub unserved: u64,
    /// Messages that a shard delayed and decided on later.
    pub resumed: u64,
    /// Paths that were tried in the end.
    pub proven: u64,
    /// Pushes that nodes have taken.
    pub pushes: u64,
    /// NIs of shards at which messages had to wait for a credit, or were lent one.
    pub short_interfaces: u64,
    /// Credits of NIs that were passed on.
    pub passed_on: u64,
    /// Responses that made room for others.
    pub evicted_responses: u64,
    /// Visits of peers that made room for others.
    pub evicted_visits: u64,
    /// Messages that their shard delayed, for whatever reason.
    pub delayed: u64,
    /// Messages that routers have sent on.
    pub forwarded: u64,
    /// Messages that routers began to send before all of them had arrived.
    pub cuts: u64,
    /// Messages that had to wait for a router credit or a buffer.
    pub awaited_buffers: u64,
    shard_drops: ShardDrops,
    /// Messages that were never sent.
    pub never_sent: u64,
    /// Messages of which it is unknown whether they arrived.
    pub unknown: u64,
    /// Messages that were sent before the transfer machine had them.
    pub previewed: u64,
    resent: u64,
    probes: u64,
    bundled: u64,
    deferred: u64,
    pulled: u64,
    buffered: u64,
    hellos: u64,
    resets: u64,
    pub(super) peers_restarted: u64,
    /// Times that a stream was asked whether what it had taken was acknowledged.
    pub(super) streams_asked: u64,
    backoffs: u64,
    paths_lossy: u64,
    paths_slow: u64,
    /// Times that a path was found to be narrow.
    pub paths_narrowed: u64,
    drops: [u64; XferDrop::ALL.len()],
    connections: [u64; SocklndEvent::ALL.len()],
}

impl Counts {
    pub(super) fn of_one_run() -> Self {
        Self { runs: 1, ..Self::default() }
    }

    pub(super) const fn add(&mut self, fault: Fault) {
        self.add_many(fault, 1);
    }

    pub(super) const fn add_many(&mut self, fault: Fault, count: u64) {
        self.faults.0[fault as usize] += count;
    }

    /// How often a fault was injected.
    #[must_use]
    pub const fn injected(&self, fault: Fault) -> u64 {
        self.faults.0[fault as usize]
    }

    /// Takes in what a transfer machine has counted.
    pub(super) fn add_xfer(&mut self, xfer: &XferCounters) {
        self.resent += xfer.frames_resent;
        self.probes += xfer.probes;
        self.bundled += xfer.messages_bundled;
        self.deferred += xfer.messages_deferred;
        self.pulled += xfer.messages_pulled;
        self.buffered += xfer.frames_buffered;
        self.hellos += xfer.hellos_sent;
        self.resets += xfer.resets_sent;
        self.peers_restarted += xfer.peers_restarted;
        self.backoffs += xfer.backoffs;
        self.paths_lossy += xfer.paths_lossy;
        self.paths_slow += xfer.paths_slow;
        self.paths_narrowed += xfer.paths_narrowed;
        for (sum, reason) in self.drops.iter_mut().zip(XferDrop::ALL) {
            *sum += xfer.dropped(reason);
        }
    }

    /// Takes in what a shard has counted.
    pub(super) fn add_shard(&mut self, shard: &Counters) {
        self.passed_on += shard.credits_passed_on;
        self.evicted_responses += shard.responses_evicted;
        self.forwarded += shard.routed.messages;
        self.cuts += shard.cuts;
        self.awaited_buffers += shard.delays(DelayReason::RouterBuffer);
        self.delayed += DelayReason::ALL.iter().map(|reason| shard.delays(*reason)).sum::<u64>();
        for (sum, reason) in self.shard_drops.0.iter_mut().zip(DropReason::ALL) {
            *sum += shard.drops(reason).messages;
        }
    }

    /// Messages that shards have dropped for a reason.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.shard_drops.0[reason as usize]
    }

    /// Takes in what the tcp LND of a shard has counted.
    pub(super) fn add_socklnd(&mut self, sock: &SocklndCounters) {
        for (sum, (_, count)) in self.connections.iter_mut().zip(sock.iter()) {
            *sum += count;
        }
    }

    /// How often something happened to a connection.
    #[must_use]
    pub const fn connections(&self, event: SocklndEvent) -> u64 {
        self.connections[event as usize]
    }

    fn rows(&self) -> Vec<(String, u64)> {
        let mut rows = Vec::new();
        let mut row = |name: &str, count: u64| rows.push((name.to_owned(), count));
        row("runs", self.runs);
        row("operations", self.operations);
        row("messages", self.messages);
        row("frames", self.frames);
        for (name, count) in Fault::NAMES.iter().zip(self.faults.0) {
            row(&format!("injected: {name}"), count);
        }
        row("frames refused by their checksum", self.refused);
        row("longest message of gentle runs, us", self.longest_ns / 1000);
        row("messages between shards of a node", self.mesh);
        row("fragments into lent spans", self.lent);
        row("frames for shards that do not serve", self.unserved);
        row("messages that waited at their shard", self.resumed);
        row("messages that were never sent", self.never_sent);
        row("messages that may have arrived", self.unknown);
        row("messages sent at once", self.previewed);
        row("paths tried in the end", self.proven);
        row("frames resent", self.resent);
        row("probes", self.probes);
        row("messages bundled", self.bundled);
        row("messages deferred", self.deferred);
        row("messages pulled", self.pulled);
        row("frames buffered", self.buffered);
        row("hellos", self.hellos);
        row("resets", self.resets);
        row("restarts noticed", self.peers_restarted);
        row("streams asked for acknowledgements", self.streams_asked);
        row("windows narrowed", self.backoffs);
        row("paths found lossy", self.paths_lossy);
        row("paths found slow", self.paths_slow);
        row("paths found narrow", self.paths_narrowed);
        row("interfaces that were short of credits", self.short_interfaces);
        row("credits passed on", self.passed_on);
        row("responses that made room", self.evicted_responses);
        row("visits that made room", self.evicted_visits);
        row("messages delayed", self.delayed);
        row("messages forwarded", self.forwarded);
        row("messages forwarded while they arrived", self.cuts);
        row("messages that waited to be forwarded", self.awaited_buffers);
        for (reason, count) in DropReason::ALL.iter().zip(self.shard_drops.0) {
            row(&format!("dropped: {}", reason.name()), count);
        }
        for (reason, count) in XferDrop::ALL.iter().zip(self.drops) {
            row(&format!("dropped: {}", reason.name().replace('_', " ")), count);
        }
        for (event, count) in SocklndEvent::ALL.iter().zip(self.connections) {
            row(&format!("connections: {}", event.name().replace('_', " ")), count);
        }
        // The other net has none of it.
        rows.retain(|(_, count)| *count != 0);
        rows
    }
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        let sums = self.faults.0.iter_mut().zip(other.faults.0).chain(self.drops.iter_mut().zip(other.drops));
        let sums = sums.chain(self.connections.iter_mut().zip(other.connections));
        let sums = sums.chain(self.shard_drops.0.iter_mut().zip(other.shard_drops.0));
        sums.for_each(|(sum, count)| *sum += count);
        self.short_interfaces += other.short_interfaces;
        self.passed_on += other.passed_on;
        self.evicted_responses += other.evicted_responses;
        self.evicted_visits += other.evicted_visits;
        self.delayed += other.delayed;
        self.forwarded += other.forwarded;
        self.cuts += other.cuts;
        self.awaited_buffers += other.awaited_buffers;
        self.runs += other.runs;
        self.operations += other.operations;
        self.messages += other.messages;
        self.frames += other.frames;
        self.refused += other.refused;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.mesh += other.mesh;
        self.lent += other.lent;
        self.unserved += other.unserved;
        self.resumed += other.resumed;
        self.never_sent += other.never_sent;
        self.unknown += other.unknown;
        self.previewed += other.previewed;
        self.proven += other.proven;
        self.pushes += other.pushes;
        self.resent += other.resent;
        self.probes += other.probes;
        self.bundled += other.bundled;
        self.deferred += other.deferred;
        self.pulled += other.pulled;
        self.buffered += other.buffered;
        self.hellos += other.hellos;
        self.resets += other.resets;
        self.peers_restarted += other.peers_restarted;
        self.streams_asked += other.streams_asked;
        self.backoffs += other.backoffs;
        self.paths_lossy += other.paths_lossy;
        self.paths_slow += other.paths_slow;
        self.paths_narrowed += other.paths_narrowed;
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows().iter().try_for_each(|(name, count)| writeln!(f, "{name:<50} {count:>12}"))
    }
}
