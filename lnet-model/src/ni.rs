//! Local NIs that are to be, and what they can be asked to have.

use alloc::string::String;
use alloc::vec::Vec;

use lnet_wire::{Net, Nid};
#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A local NI to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct NiSpec {
    /// Its net.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub net: Net,
    /// The network interface, by name.
    pub interface: Option<String>,
    /// Its NID: an address of the interface, or, without `interface`, of the interface to take. With neither
    /// the node takes the first interface that is up, is not the loopback device and has an address.
    #[cfg_attr(feature = "serde", serde(with = "crate::text::option"))]
    pub nid: Option<Nid>,
    /// What it is asked to have.
    pub options: NiOptions,
    /// CPTs (shards) that serve it; none means all.
    pub cpts: Vec<u32>,
}

impl NiSpec {
    /// An NI on this net of which all else is the node's choice.
    #[must_use]
    pub fn new(net: Net) -> Self {
        Self { net, interface: None, nid: None, options: NiOptions::default(), cpts: Vec::new() }
    }
}

/// A local NI that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum NiName {
    /// By its net and the name of its interface.
    Interface {
        /// The net.
        #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
        net: Net,
        /// The interface.
        interface: String,
    },
    /// By its NID.
    Nid(#[cfg_attr(feature = "serde", serde(with = "crate::text"))] Nid),
}

/// The options of a local NI: as they are asked for, where `None` is the node's choice, or as an NI has them,
/// where `None` is an option of another LND. Those of the net are fixed by its first NI.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct NiOptions {
    /// Of the net: seconds without a sign of life after which a peer counts as dead; 0 is never.
    #[cfg_attr(feature = "serde", serde(rename = "peer_timeout"))]
    pub peer_timeout_s: Option<u32>,
    /// Of the net: messages in flight to one peer NI; more than 0.
    pub peer_credits: Option<u32>,
    /// Of the net: router buffers for one peer NI; more than 0 where they are asked for.
    pub peer_buffer_credits: Option<u32>,
    /// Of the net: messages in flight by the NI; more than 0.
    pub credits: Option<u32>,
    /// Of socklnd: connections of each kind to a peer, 1 to 127, or 0 for its choice.
    pub conns_per_peer: Option<u32>,
    /// Of socklnd: IP type of service, -1 to 255; -1 inherits it.
    pub tos: Option<i32>,
    /// Which LND; `None` is asked for as that of the net's type.
    pub lnd: Option<Lnd>,
    /// Of the xdp LND: how frames reach the shards.
    pub mode: Option<XdpMode>,
    /// Of the xdp LND: UDP port of the NI and its peers.
    pub port: Option<u16>,
    /// Of the xdp LND: receive queues that the interface must have; 0 takes it as it is.
    pub queues: Option<u32>,
}

impl NiOptions {
    /// How many of [`NiOptions::entries`] are the net's; the LND's follow.
    pub const OF_NET: usize = 4;

    /// Whether an NI with these options is what is asked for.
    #[must_use]
    pub fn fits(&self, asked: &Self) -> bool {
        fn is_as<T: PartialEq>(asked: &Option<T>, found: &Option<T>) -> bool {
            asked.is_none() || asked == found
        }
        let conns_per_peer = asked.conns_per_peer.filter(|count| *count > 0);
        is_as(&asked.peer_timeout_s, &self.peer_timeout_s)
            && is_as(&asked.peer_credits, &self.peer_credits)
            && is_as(&asked.peer_buffer_credits, &self.peer_buffer_credits)
            && is_as(&asked.credits, &self.credits)
            && is_as(&conns_per_peer, &self.conns_per_peer)
            && is_as(&asked.tos, &self.tos)
            && is_as(&asked.lnd, &self.lnd)
            && is_as(&asked.mode, &self.mode)
            && is_as(&asked.port, &self.port)
            && is_as(&asked.queues, &self.queues)
    }
}

words! {
    /// What drives the NIs of a net.
    Lnd {
        /// The protocol of LNet's socklnd.
        Tcp = "tcp",
        /// Our frames, over `AF_XDP` rings or UDP sockets.
        Xdp = "xdp",
    }
}

words! {
    /// How the frames of an xdp NI reach the shards.
    #[derive(Default)]
    XdpMode {
        /// The first of the others that works: it is asked for, and never had.
        #[default]
        Auto = "auto",
        /// Rings, with the XDP program in the driver.
        Native = "native",
        /// Rings, with the XDP program in the kernel's network stack.
        Generic = "generic",
        /// UDP sockets.
        Socket = "socket",
    }
}
