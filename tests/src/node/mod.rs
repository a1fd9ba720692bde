//! Nodes in the namespaces of a [`Netns`](crate::netns::Netns), and traffic between them that checks
//! everything about itself.
//!
//! A [`Plan`] says which Puts and Gets there are; the [`Sink`]s of one node post an entry for each, the
//! [`Source`]s of the other start them; [`Driven`] is a shard with its thread, of either kind.

mod account;
mod checked;
mod drive;
mod flood;
pub mod message;
mod plan;
mod puts;
mod sink;
mod source;
mod steady;
mod stranger;

use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_io::xsk::RingSizes;
use lnet_user::node::{NiConfig, NodeConfig, NodeDriver, NodeError};
use lnet_user::runtime::Worker;
use lnet_wire::nid::{Net, NetType};
use lnet_wire::steer::{Policy, Spread};
use lnet_wire::{Nid, ProcessId};
use lnet_xdp::XdpDrop;

pub use account::Account;
pub use checked::{Arrivals, Checked};
pub use drive::{By, Driven, settle, settle_both, stop_all};
pub use flood::{FLOOD_PORTALS, FLOOD_WINDOW, Flood, Flooded, Flooder, UNANSWERED};
pub use plan::{Kind, Operation, Plan, WINDOW};
pub use puts::{PINNED_PORTALS, PUT_BYTES, Putter, Receiver};
pub use sink::Sink;
pub use source::Source;
pub use steady::{Outcome, Serving, Steady};
pub use stranger::{Stranger, Voice};

use crate::netns::{Interface, Namespace, enter};

/// A portal of each policy that there is, with the policy; others are pinned to shard 0.
#[must_use]
pub fn policies(shards: u8) -> Vec<(u8, Policy)> {
    let mut table = [0; 8];
    for (index, shard) in table.iter_mut().enumerate() {
        *shard = (index as u8 + 1) % shards;
    }
    vec![
        (10, Policy::MatchBits { shift: 0, bits: 16, spread: Spread::Hash }),
        (11, Policy::MatchBits { shift: 3, bits: 2, spread: Spread::Hash }),
        (12, Policy::MatchBits { shift: 0, bits: 3, spread: Spread::Table(table) }),
        (13, Policy::MatchBits { shift: 1, bits: 1, spread: Spread::Table(table) }),
        (14, Policy::Pin(shards - 1)),
        (15, Policy::Initiator),
        (16, Policy::Rotor),
    ]
}

/// What a shard of a test holds: enough for the plans here, and quick to make.
pub const LIMITS: Limits = Limits {
    match_entries: 1 << 11,
    memory_descs: 1 << 12,
    event_queues: 8,
    events: 1 << 15,
    unlimited_events: 1 << 7,
    spare_events: 1 << 12,
    requests: 1 << 10,
    responses: 1 << 10,
    forwards: 0,
    incoming: 1 << 10,
    delayed: 1 << 8,
    peers: 1 << 9,
    nis: 4,
};

/// How long a message of a test may be under way.
pub const LND_TIMEOUT: Duration = Duration::from_secs(4);

/// The NID of an interface's IPv4 address on net `xdp<number>`.
///
/// # Panics
/// Never: an IPv4 address makes a NID.
#[must_use]
pub fn nid_v4(interface: &Interface, number: u16) -> Nid {
    Nid::new_ip(Net::new(NetType::XDP, number), interface.ipv4.into()).expect("an address on an xdp net")
}

/// The NID of an interface's IPv6 address on net `xdp`.
///
/// # Panics
/// Where the kernel has no IPv6.
#[must_use]
pub fn nid_v6(interface: &Interface) -> Nid {
    let address = interface.ipv6.expect("these tests need a kernel with IPv6");
    Nid::new_ip(Net::new(NetType::XDP, 0), address.into()).expect("an address on an xdp net")
}

/// The process of a node.
#[must_use]
pub fn process(nid: Nid) -> ProcessId {
    ProcessId::lustre(nid)
}

/// A node of two shards at `nid` of rail 0, with [`policies`]. Its fill rings are large, so that a shard
/// which is not scheduled for a while loses nothing.
#[must_use]
pub fn config(namespace: &Namespace, nid: Nid) -> NodeConfig {
    NodeConfig::new(vec![NiConfig::new(nid, &namespace.interface().name)])
        .shards(2)
        .policies(policies(2))
        .rings(RingSizes { fill: 4096, completion: 2048, rx: 2048, tx: 1024 })
        .limits(LIMITS)
        .lnd_timeout(LND_TIMEOUT)
}

/// Starts a node inside a namespace; its shards may be driven anywhere.
///
/// # Errors
/// The errors of [`NodeDriver::start`].
pub fn try_start(namespace: &Namespace, config: &NodeConfig) -> Result<(NodeDriver, Vec<Worker>), NodeError> {
    enter(namespace, || NodeDriver::start(config))
}

/// Starts a node inside a namespace and lets frames in.
///
/// # Panics
/// The node does not start; the message is its error.
#[must_use]
pub fn start(namespace: &Namespace, config: &NodeConfig) -> (NodeDriver, Vec<Worker>) {
    let (mut node, workers) = try_start(namespace, config).unwrap_or_else(|error| panic!("{error}"));
    node.open().unwrap_or_else(|error| panic!("{error}"));
    (node, workers)
}

/// Checks that nothing is under way at any of these shards.
///
/// # Panics
/// When something is.
pub fn assert_nothing_left(workers: &[Worker]) {
    for worker in workers {
        let usage = worker.usage();
        assert_eq!((usage.messages, usage.events, usage.delayed), (0, 0, 0), "{usage:?}");
        let usage = worker.xdp().expect("there is an NI").transfer_usage();
        let left = (usage.messages, usage.frames, usage.incoming, usage.partials, usage.buffered);
        assert_eq!(left, (0, 0, 0, 0, 0), "{usage:?}");
    }
}

/// Everything that the shards of a node, their drivers and their rings have counted as lost, by name.
///
/// Not what the kernel dropped because a fill ring was empty. Its owner alone refills it: when that shard
/// gets no CPU for a while, its siblings use up what is there, and what finds none comes again.
///
/// # Panics
/// When the kernel does not give its counters.
#[must_use]
pub fn losses(workers: &[Worker]) -> Vec<(String, u64)> {
    let mut losses = Vec::new();
    for worker in workers {
        let counters = worker.xdp().expect("there is an NI").counters();
        losses.extend(XdpDrop::ALL.iter().map(|drop| (drop.name().to_owned(), counters.dropped(*drop))));
        losses.push(("misdirected".to_owned(), counters.frames_misdirected));
        losses.push(("refused".to_owned(), counters.messages_refused));
        let dropped = worker.xdp().expect("there is an NI").datagrams_dropped();
        losses.push(("socket dropped".to_owned(), dropped));
        let counters = worker.counters();
        let drops = lnet_core::stats::DropReason::ALL.iter();
        losses.extend(drops.map(|reason| (reason.to_string(), counters.drops(*reason).messages)));
        losses.push(("not sent".to_owned(), counters.send_failures));
        losses.push(("not received".to_owned(), counters.receive_failures));
        for ring in worker.xdp().expect("there is an NI").ring_statistics().expect("statistics of a socket") {
            let dropped = ring.rx_dropped.saturating_sub(ring.rx_fill_ring_empty_descs);
            losses.push(("ring dropped".to_owned(), dropped));
            losses.push(("ring full".to_owned(), ring.rx_ring_full));
            losses.push(("bad fill descriptor".to_owned(), ring.rx_invalid_descs));
            losses.push(("bad transmit descriptor".to_owned(), ring.tx_invalid_descs));
        }
    }
    losses.retain(|(_, count)| *count != 0);
    losses
}
