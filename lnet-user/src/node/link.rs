//! Interfaces of NIs that come up, go down, vanish and come back.
//!
//! A link goes down for a node, not for a shard: netlink tells the control state machine, and the shards
//! learn it from the next snapshot.
//!
//! An interface that goes takes nothing of its NI's configuration along. An `Lnet` looks for an interface of
//! the same name with the NI's address. Then it closes the NI and opens it again in one batch
//! (`NodeChange::ReopenNi`), so that no shard has two NIs in a slot. An NI that cannot be opened yet is
//! *absent*: shown and told as down, unknown to the shards.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use lnet_io::netlink::{Interface, Neighbours};
use tokio::sync::Notify;

use super::NodeDriver;

/// Why an NI cannot carry messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DownReason {
    /// Its interface was deleted, or moved to another network namespace. An `Lnet` opens the NI anew when
    /// there is one of that name with its address again.
    Gone,
    /// Its interface is switched off, or has no carrier.
    NoLink,
    /// Its interface does not have its address any more.
    NoAddress,
}

impl DownReason {
    /// Why an NI with this address is down, if it is.
    pub(super) fn of(followed: &Neighbours, address: &IpAddr) -> Option<Self> {
        match followed {
            _ if followed.is_gone() => Some(Self::Gone),
            _ if !followed.is_up() => Some(Self::NoLink),
            _ if !followed.has_address(address) => Some(Self::NoAddress),
            _ => None,
        }
    }
}

impl fmt::Display for DownReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Gone => "its interface has gone",
            Self::NoLink => "its interface is switched off or has no carrier",
            Self::NoAddress => "its interface does not have its address",
        })
    }
}

/// Whether there is an interface of this name that carries frames and has this address. It blocks for a
/// moment.
pub(crate) fn is_back(name: &str, address: IpAddr) -> bool {
    let has_address = |interface: &Interface| interface.addresses.iter().any(|(other, _)| *other == address);
    Interface::by_name(name).is_ok_and(|interface| interface.up && has_address(&interface))
}

impl NodeDriver {
    /// What is told whenever something about an interface of an NI, or a next hop by it, is new.
    pub(crate) fn interface_changes(&self) -> Arc<Notify> {
        Arc::clone(&self.host.interface_changes)
    }
}
