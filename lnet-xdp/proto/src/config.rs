//! What an [`Xfer`](super::Xfer) is made of.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::limits::Limits;
use lnet_core::lnd::LndFacts;
use lnet_core::tunables::NetTunables;
use lnet_model::lnd::XDP;
use lnet_wire::Nid;
use lnet_wire::steer::{PORTALS, PolicyWord};

use super::identity::Identity;
use super::met::MetAddresses;

/// Defaults of nets of the xdp LND: with the credits of [`NetTunables::LNET`] a peer would be sent no more
/// than 8 messages in a round trip.
pub const NET_TUNABLES: NetTunables = NetTunables::of(XDP.net_defaults);

/// Facts of the xdp LND.
pub const FACTS: LndFacts = LndFacts::of(&XDP);

/// How much of everything an [`Xfer`](super::Xfer) may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XferLimits {
    /// Messages that the shard may have given it to send.
    pub messages: u32,
    /// Messages that arrive: each `RxId` is below this.
    pub incoming: u32,
    /// Messages of several frames that arrive at once.
    pub partials: u32,
    /// Addresses, and incarnations, of peers.
    pub peers: u32,
    /// Shards of peers that are sent to, and as many that are received from.
    pub streams: u32,
    /// Frames that are sent and not acknowledged, or to be sent again.
    pub frames: u32,
    /// Frames that the driver may be asked to keep.
    pub buffered: u32,
}

impl XferLimits {
    /// What suits a shard with these limits.
    #[must_use]
    pub const fn for_shard(limits: &Limits) -> Self {
        let peers = limits.peers;
        Self {
            messages: limits.transmits(),
            incoming: limits.incoming,
            partials: 256,
            peers,
            streams: peers,
            frames: 2 * limits.transmits() + limits.incoming,
            buffered: 128,
        }
    }
}

/// How long things take at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XferTimes {
    /// A message that is not acknowledged whole after this time ends: LNet's LND timeout. It must be the
    /// same on all nodes: a receiver forgets a silent sender after twice this time.
    pub message: Duration,
    /// How long the acknowledgement of a frame of a longer message waits for a frame to travel with.
    pub ack_delay: Duration,
    /// How long the acknowledgement of a frame with whole messages waits, whose sender may wait for it.
    pub ack_soon: Duration,
    /// How long a probe waits for its acknowledgement at least.
    pub probe_min: Duration,
    /// First interval between two HELLOs; it doubles up to a second.
    pub hello: Duration,
    /// How long a frame is buffered by the driver.
    pub buffered: Duration,
}

impl XferTimes {
    /// LNet's LND timeout of 49 s; the rest suits a local network.
    pub const DEFAULT: Self = Self {
        message: Duration::from_secs(49),
        ack_delay: Duration::from_micros(50),
        ack_soon: Duration::from_micros(10),
        probe_min: Duration::from_millis(2),
        hello: Duration::from_millis(10),
        buffered: Duration::from_millis(2),
    };
}

impl Default for XferTimes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A local NI.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XferNi {
    /// The NID. A message that took another way than its own counts as arrived by the NI that its header
    /// names.
    pub nid: Nid,
    /// The longest UDP payload that it can send and take.
    pub datagram_max_bytes: u32,
    /// Whether payloads have checksums, those that it sends and those that it takes. A peer's NI that wants
    /// them gets them all the same.
    pub checksum: bool,
    /// Whether what comes to it may come in runs: datagrams of one peer behind each other in one packet,
    /// which the kernel cuts up for a socket, and before an XDP program of the driver's. One in the kernel's
    /// network stack sees packets as they are on the wire.
    pub runs: bool,
}

/// What an [`Xfer`](super::Xfer) is made of.
#[derive(Clone, Debug)]
pub struct XferConfig {
    /// Its shard.
    pub shard: ShardId,
    /// Shards of the node.
    pub shard_count: u8,
    /// This life of the node; the same for all its shards.
    pub identity: Identity,
    /// Keys session tokens, nonces, and what is remembered of certificates; the same for all shards, known to
    /// no other node, drawn anew in each life.
    pub secret: [u64; 2],
    /// Seeds hash tables; differs from shard to shard.
    pub seed: u64,
    /// Hash of the node's primary NID.
    pub initiator_hash: u32,
    /// The policies of the node's portals.
    pub policies: [PolicyWord; PORTALS],
    /// Where shards of the node have met peers; the same for all shards.
    pub met: Arc<MetAddresses>,
    /// The NIs that there are at first, in their order; others are added later.
    pub nis: Vec<XferNi>,
    /// Bytes of frames that the shard can take at once, in whole chunks of 4096: what it grants its peers.
    pub receive_bytes: u32,
    /// How much of everything it may hold.
    pub limits: XferLimits,
    /// How long things take.
    pub times: XferTimes,
}

/// Bugs that a test switches on, to see whether it would find them.
#[cfg(feature = "sabotage")]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sabotage {
    /// Every id counts as new.
    pub no_duplicate_window: bool,
    /// A frame is acknowledged as soon as its header was read.
    pub early_ack: bool,
    /// No other path is tried.
    pub no_failover: bool,
}

const _: () = assert!(XferTimes::DEFAULT.ack_delay.as_nanos() < XferTimes::DEFAULT.probe_min.as_nanos());
