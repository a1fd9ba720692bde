//! What a node and its NIs are to be. Either is made by `new`, changed by the methods named like its fields,
//! and checked by `build`, and at the start again.
//!
//! Configurations are `#[non_exhaustive]` and built by methods, so that a new field breaks no program.

use std::path::PathBuf;
use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_core::lnd::{LndFacts, NiId};
use lnet_core::node::NetOptions;
use lnet_core::tunables::NetTunables;
use lnet_io::reactor::ReactorChoice;
use lnet_io::xsk::RingSizes;
use lnet_model::lnd::{LndRow, NiOption, TCP};
use lnet_model::ni::{Lnd, NiOptions};
use lnet_model::pool::PoolKind;
use lnet_tcp_proto::SockTunables;
use lnet_wire::Nid;
use lnet_wire::steer::Policy;
use lnet_xdp_proto::XferTimes;

use super::{Carrier, ConfigError, SendFault, Switch, XdpConfig, XdpMode, ZeroCopy, plan, setters, start};

/// The number of the NI `lo`, on every node. Other NIs have numbers from 1 to [`Limits::nis`].
pub const LO: NiId = NiId(0);

/// Bytes of memory that a peer of one shard takes, which messages go to and come from.
pub const PEER_BYTES: usize = lnet_core::shard::PEER_BYTES + lnet_xdp_proto::PEER_BYTES;

/// Objects of each shard of a node that serves and measures rather than stores: with two shards it takes less
/// than 32 MiB, besides the frames of its NIs over rings.
pub const DAEMON_LIMITS: Limits = Limits {
    match_entries: 1 << 12,
    memory_descs: 1 << 13,
    event_queues: 64,
    events: 3 << 12,
    unlimited_events: 1 << 7,
    spare_events: 1 << 11,
    requests: 1 << 10,
    responses: 1 << 10,
    forwards: Limits::DEFAULT.forwards,
    incoming: 1 << 10,
    delayed: 1 << 8,
    peers: Limits::peers_in(16 << 20, PEER_BYTES),
    nis: 16,
};

const _: () = assert!(DAEMON_LIMITS.is_valid());
const _: () = assert!(DAEMON_LIMITS.peers >= 2 * DAEMON_LIMITS.delayed);

/// A local NI to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NiConfig {
    /// Its NID: an address of the interface, on a net of type xdp or tcp.
    pub nid: Nid,
    /// The network interface; or `in-process:` and a name, by which nodes of one process reach each other
    /// without privileges.
    pub interface: String,
    /// Its options; what is missing is the choice of its net and its node. A net of type tcp may have the
    /// LND xdp.
    pub options: NiOptions,
    /// Numbers of the shards that receive by it, for the others as well; none for all of the node's.
    pub serving_shards: Vec<u32>,
}

impl NiConfig {
    /// An NI with the defaults of its net and node.
    #[must_use]
    pub fn new(nid: Nid, interface: &str) -> Self {
        let interface = interface.to_owned();
        Self { nid, interface, options: NiOptions::default(), serving_shards: Vec::new() }
    }

    setters! {
        interface: String,
        options: NiOptions,
        serving_shards: Vec<u32>,
    }

    /// Sets the value of an option; `None` leaves it open.
    #[must_use]
    pub fn option(mut self, option: NiOption, value: Option<i64>) -> Self {
        self.options.set(option, value);
        self
    }

    /// Sets how many messages the NI may have in flight.
    #[must_use]
    pub fn credits(self, credits: Option<u32>) -> Self {
        self.option(NiOption::Credits, credits.map(i64::from))
    }

    /// Sets how many messages the NI may have in flight to one peer NI.
    #[must_use]
    pub fn peer_credits(self, credits: Option<u32>) -> Self {
        self.option(NiOption::PeerCredits, credits.map(i64::from))
    }

    /// Sets the LND.
    #[must_use]
    pub fn lnd(self, lnd: Option<Lnd>) -> Self {
        self.option(NiOption::Lnd, lnd.map(|lnd| lnd as i64))
    }

    /// Sets how its frames reach the shards.
    #[must_use]
    pub fn mode(self, mode: Option<XdpMode>) -> Self {
        self.option(NiOption::Mode, mode.map(|mode| mode as i64))
    }

    /// Sets the UDP port of the NI and its peers.
    #[must_use]
    pub fn udp_port(self, port: Option<u16>) -> Self {
        self.option(NiOption::Port, port.map(i64::from))
    }

    /// Sets how many receive queues the interface must have at least; all of its queues are used.
    #[must_use]
    pub fn queues(self, count: Option<u32>) -> Self {
        self.option(NiOption::Queues, count.map(i64::from))
    }

    /// Sets whether payloads have checksums. They have them as well where the peer's NI wants them.
    #[must_use]
    pub fn checksum(self, checksum: Option<Switch>) -> Self {
        self.option(NiOption::Checksum, checksum.map(|checksum| checksum as i64))
    }

    /// Sets whether its rings have zero copy.
    #[must_use]
    pub fn zero_copy(self, zero_copy: Option<ZeroCopy>) -> Self {
        self.option(NiOption::ZeroCopy, zero_copy.map(|zero_copy| zero_copy as i64))
    }

    /// Sets what takes long messages, where it has rings.
    #[must_use]
    pub fn carrier(self, carrier: Option<Carrier>) -> Self {
        self.option(NiOption::Carrier, carrier.map(|carrier| carrier as i64))
    }

    /// Sets how many connections there are with a peer for messages of each direction; 0 is as many as the
    /// speed of the link wants.
    #[must_use]
    pub fn conns_per_peer(self, count: Option<u32>) -> Self {
        self.option(NiOption::ConnsPerPeer, count.map(i64::from))
    }

    /// Sets the IP type of service.
    #[must_use]
    pub fn tos(self, tos: Option<i32>) -> Self {
        self.option(NiOption::Tos, tos.map(i64::from))
    }

    /// Checks the configuration and returns it; the interface itself is looked at when the NI is opened.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that is wrong, and what is expected.
    pub fn build(self) -> Result<Self, ConfigError> {
        plan::check_ni(&self)?;
        Ok(self)
    }
}

/// What a node is to be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeConfig {
    /// Its NIs at first but `lo`, which every node has; the first one's NID is the node's primary NID. They
    /// get the numbers 1, 2, 3 ... A node without any reaches only itself, and needs no privileges.
    pub nis: Vec<NiConfig>,
    /// Shards, 1 to 64; one per CPU that the node shall use.
    pub shards: u32,
    /// Configuration that NIs of the xdp LND have in common.
    pub xdp: XdpConfig,
    /// Steering policies of portals; others are pinned to shard 0.
    pub policies: Vec<(u8, Policy)>,
    /// Receive queues of NIs over rings, and NIs over sockets, that the node may ever have at once.
    pub queues_max: u32,
    /// How it waits, and moves the bytes of sockets.
    pub reactor: ReactorChoice,
    /// Objects that each shard may have.
    pub limits: Limits,
    /// How long a message may be under way: one that its peer has not acknowledged by then ends with an
    /// error. The same on all nodes of a net.
    pub lnd_timeout: Duration,
    /// Tunables of the tcp LND.
    pub sock: SockTunables,
    /// Whether the primary NIDs of announced peers are fixed
    /// ([`Lnet::announce_peer`](crate::Lnet::announce_peer)), whatever discovery finds.
    pub lock_prim_nid: bool,
}

/// What the NIs of a node have that do not say otherwise. A timeout of zero follows the global tunables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LndDefaults {
    timeouts: [Duration; Lnd::ALL.len()],
    /// Tunables of the nets of the tcp LND.
    tcp: NetTunables,
}

impl LndDefaults {
    /// The defaults with another timeout of an LND.
    pub const fn with_timeout(mut self, lnd: Lnd, timeout: Duration) -> Self {
        self.timeouts[lnd as usize] = timeout;
        self
    }

    /// How long an LND may take for a message.
    pub const fn timeout(&self, lnd: Lnd) -> Duration {
        self.timeouts[lnd as usize]
    }

    /// Completes what is asked of the net of an NI with this LND by the node's own defaults.
    pub fn complete(&self, asked: NetOptions, nid: Nid, row: Option<&LndRow>) -> NetOptions {
        let lnd = row.and_then(|row| row.asked).unwrap_or(Lnd::Xdp);
        // The options of a net are those of its type, also where another LND drives it.
        let of_net = LndRow::of_net_type(nid.net().net_type()).unwrap_or(&TCP);
        let new_net = if lnd == Lnd::Tcp { self.tcp } else { NetTunables::of(of_net.net_defaults) };
        let facts = LndFacts::of(row.unwrap_or(of_net));
        NetOptions { new_net, lnd_timeout: self.timeout(lnd), facts, ..asked }
    }
}

impl NodeConfig {
    /// The defaults of its NIs.
    pub fn lnd_defaults(&self) -> LndDefaults {
        let timeout = |lnd| if lnd == Lnd::Tcp { self.sock.timeout } else { self.lnd_timeout };
        LndDefaults { timeouts: Lnd::ALL.map(timeout), tcp: self.sock.net }
    }

    /// The options of its NIs that do not say otherwise, where they are the node's to say.
    pub fn option_defaults(&self) -> NiOptions {
        NiOptions::default()
            .with(NiOption::Mode, self.xdp.mode as i64)
            .with(NiOption::Port, self.xdp.udp_port.into())
    }

    /// A node that only itself reaches, by `0@lo`.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new(Vec::new())
    }

    /// A node with these NIs and the defaults: one shard, port 988, automatic mode.
    #[must_use]
    pub fn new(nis: Vec<NiConfig>) -> Self {
        Self {
            nis,
            shards: 1,
            xdp: XdpConfig::default(),
            policies: Vec::new(),
            queues_max: 256,
            reactor: ReactorChoice::Auto,
            limits: Limits { peers: Limits::peers_in(32 << 20, PEER_BYTES), ..Limits::DEFAULT },
            lnd_timeout: XferTimes::DEFAULT.message,
            sock: SockTunables::DEFAULT,
            lock_prim_nid: true,
        }
    }

    setters! {
        nis: Vec<NiConfig>,
        shards: u32,
        xdp: XdpConfig,
        policies: Vec<(u8, Policy)>,
        queues_max: u32,
        reactor: ReactorChoice,
        limits: Limits,
        lnd_timeout: Duration,
        sock: SockTunables,
        lock_prim_nid: bool,
    }

    setters! { of xdp:
        queues: Option<u32>,
        udp_port: u16,
        mode: XdpMode,
        frames: Option<u32>,
        bpf_object: Option<PathBuf>,
        log_refusals: bool,
        registered_bytes: u64,
        rings: RingSizes,
        send_fault: SendFault,
        frame_loss_per_million: u32,
    }

    /// Checks the configuration and returns it: as a start does, but for what the kernel says of its
    /// interfaces.
    ///
    /// # Errors
    /// [`ConfigError`] names the value that is wrong, and what is expected.
    pub fn build(self) -> Result<Self, ConfigError> {
        start::new_machine(&self)?;
        Ok(self)
    }

    /// Sets how many router buffers there may be, in all pools and shards together: [`Limits::forwards`] of
    /// the number of shards that it has now.
    #[must_use]
    pub fn router_buffers(mut self, count: u32) -> Self {
        let share = count.div_ceil(self.shards.max(1));
        self.limits.forwards = if count == 0 { 0 } else { share + self.rounded_buffers() };
        self
    }

    /// Router buffers that there may be, in all pools and shards together.
    pub(super) fn router_buffers_max(&self) -> u32 {
        self.limits.forwards.saturating_sub(self.rounded_buffers()).saturating_mul(self.shards)
    }

    /// Buffers that a shard may have beyond an even share of all, since that of each pool is rounded up.
    const fn rounded_buffers(&self) -> u32 {
        if self.shards > 1 { PoolKind::ALL.len() as u32 - 1 } else { 0 }
    }

    /// Frames that a node of this configuration needs for so many interfaces over rings with so many receive
    /// queues in all: a value for [`XdpConfig::frames`].
    #[must_use]
    pub fn frames_for(&self, interfaces: u32, queues: u32) -> u32 {
        self.xdp.frames_for(self.shards, interfaces, queues)
    }
}

#[cfg(test)]
mod tests {
    use lnet_model::lnd::{IN_PROCESS, XDP};

    use super::*;

    #[test]
    fn all_router_buffers_have_room_whatever_their_shares() {
        for shards in [1, 2, 3, 7, 64] {
            let config = NodeConfig::loopback().shards(shards);
            assert_eq!(config.clone().router_buffers(0).router_buffers_max(), 0);
            for pools in [[1, 1, 1], [2048, 16384, 1024], [5, 64, 65], [1, 129, 193]] {
                let config = config.clone().router_buffers(pools.iter().sum());
                assert!(config.router_buffers_max() >= pools.iter().sum());
                let share: u32 = pools.iter().map(|pool: &u32| pool.div_ceil(shards)).sum();
                assert!(share <= config.limits.forwards, "{shards} shards: {pools:?}");
            }
        }
    }

    #[test]
    fn an_ni_has_the_facts_of_the_lnd_that_drives_it_and_the_options_of_its_net() {
        let defaults = NodeConfig::loopback().lnd_defaults();
        let nid: Nid = "10.0.0.1@tcp".parse().unwrap();
        for (interface, options, row) in [
            ("eth0", NiOptions::default(), &TCP),
            ("eth0", NiOptions::default().with(NiOption::Lnd, Lnd::Xdp as i64), &XDP),
            ("in-process:a", NiOptions::default(), &IN_PROCESS),
        ] {
            let driving = options.lnd_on(nid.net(), interface);
            let complete = defaults.complete(NetOptions::default(), nid, driving);
            assert_eq!(complete.facts, LndFacts::of(row), "{}", row.name);
            assert_eq!(complete.new_net, NetTunables::of(TCP.net_defaults), "{}", row.name);
        }
    }
}
