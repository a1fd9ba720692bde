//! Nets and their local NIs.

use std::fmt;
use std::str::FromStr;

use lnet_wire::{Net, Nid};
use serde::{Deserialize, Serialize};

use super::{MessageCounts, Traffic};
use crate::text;

/// A net with its local NIs, in order of creation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NetRecord {
    /// The net.
    #[serde(with = "text")]
    pub net: Net,
    /// Its local NIs: at least one.
    pub nis: Vec<NiRecord>,
}

/// A local NI.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NiRecord {
    /// Its NID.
    #[serde(with = "text")]
    pub nid: Nid,
    /// Whether it serves.
    pub status: NiStatus,
    /// The network interface; `lo` has none.
    pub interface: Option<String>,
    /// Whether `nid` is not the address that the interface's name alone would choose.
    pub is_chosen_by_nid: bool,
    /// Traffic.
    pub statistics: Traffic,
    /// What selection policies give it.
    pub udsp: UdspInfo,
    /// Messages sent, by type.
    pub sent: MessageCounts,
    /// Messages received, by type.
    pub received: MessageCounts,
    /// Messages dropped, by type.
    pub dropped: MessageCounts,
    /// Health.
    pub health: NiHealth,
    /// The net's tunables.
    pub tunables: NetTunables,
    /// The LND's tunables; `lo` has none.
    pub lnd: Option<LndTunables>,
    /// CPT (shard) of the device, -1 if unknown or if there is only one.
    pub device_cpt: i32,
    /// CPTs (shards) that serve it, each of them where it is not restricted.
    pub cpts: Vec<u32>,
}

/// Whether a local NI serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NiStatus {
    /// It does.
    Up,
    /// Its link is down, its interface is gone, or its health is 0.
    Down,
}

impl fmt::Display for NiStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Down => "down",
        })
    }
}

/// The priorities that selection policies (UDSP) give; -1 where none does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UdspInfo {
    /// The net's.
    pub net_priority: i64,
    /// The NID's.
    pub nid_priority: i64,
}

impl Default for UdspInfo {
    fn default() -> Self {
        Self { net_priority: -1, nid_priority: -1 }
    }
}

counters! {
    /// Health of a local NI.
    NiHealth {
        /// Whether the LND says that it cannot go on: 0 or 1.
        fatal_error: u32 = "fatal_error",
        /// 0 to 1000.
        health_value: u32 = "health value",
        /// Sends that ended so.
        interrupts: u64 = "interrupts",
        /// Sends that ended so.
        dropped: u64 = "dropped",
        /// Sends that ended so.
        aborted: u64 = "aborted",
        /// Sends that ended so.
        no_route: u64 = "no route",
        /// Sends that ended so.
        timeouts: u64 = "timeouts",
        /// Sends that ended so.
        error: u64 = "error",
        /// Recovery pings since it was healthy.
        ping_count: u64 = "ping_count",
        /// When the next one is due, monotonic seconds.
        next_ping_s: u64 = "next_ping",
    }
}

counters! {
    /// What an NI has from its net, fixed by the net's first NI. All zero for `lo`.
    NetTunables {
        /// Seconds without a sign of life after which a peer counts as dead; 0 is never.
        peer_timeout_s: i32 = "peer_timeout",
        /// Messages in flight to one peer NI.
        peer_credits: u32 = "peer_credits",
        /// Router buffers for one peer NI.
        peer_buffer_credits: u32 = "peer_buffer_credits",
        /// Messages in flight by the NI.
        credits: u32 = "credits",
    }
}

/// What drives the NIs of a net.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lnd {
    /// The protocol of LNet's socklnd.
    Tcp,
    /// Our frames, over `AF_XDP` rings or UDP sockets.
    Xdp,
}

/// How the frames of an xdp NI are to reach the shards.
#[derive(Clone, Copy, PartialEq, Eq, Default, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The first of the others that works.
    #[default]
    Auto,
    /// Rings, with the XDP program in the driver.
    Native,
    /// Rings, with the XDP program in the kernel's network stack.
    Generic,
    /// UDP sockets.
    Socket,
}

/// How the frames of an xdp NI do reach the shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActiveMode {
    /// As [`Mode::Native`].
    Native,
    /// As [`Mode::Generic`].
    Generic,
    /// As [`Mode::Socket`].
    Socket,
}

/// Gives an enum of plain words its text, both ways, and the list of its values.
macro_rules! words {
    ($name:ident: $($variant:ident = $word:literal),+) => {
        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// Their names, in the same order.
            pub const NAMES: &[&str] = &[$($word),+];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|one| one.name() == text);
                found.copied().ok_or_else(|| format!("{text:?}: one of {} is expected", Self::NAMES.join(", ")))
            }
        }
    };
}

words!(Lnd: Tcp = "tcp", Xdp = "xdp");
words!(Mode: Auto = "auto", Native = "native", Generic = "generic", Socket = "socket");
words!(ActiveMode: Native = "native", Generic = "generic", Socket = "socket");

/// What an NI has from its LND.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "lnd", rename_all = "snake_case")]
pub enum LndTunables {
    /// Of a net of socklnd.
    Tcp {
        /// Connections of each kind to a peer.
        conns_per_peer: u32,
        /// Transmit timeout, seconds.
        timeout_s: u32,
        /// IP type of service, -1 to inherit.
        tos: i32,
    },
    /// Of an xdp net.
    Xdp(XdpTunables),
}

/// What an xdp NI has from its LND.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct XdpTunables {
    /// Transmit timeout, seconds.
    pub timeout_s: u32,
    /// The mode that was asked for.
    pub mode: Mode,
    /// The mode that it has.
    pub active_mode: ActiveMode,
    /// UDP port of the NI and its peers.
    pub port: u16,
    /// Receive queues asked for; 0 takes the interface as it is.
    pub queues: u32,
    /// Receive queues that it has: 0 in mode `socket`.
    pub active_queues: u32,
}
