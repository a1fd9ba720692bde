//! What one shard gets of an NI that is opened, and gives back before it is closed.

use std::os::fd::BorrowedFd;

use lnet_core::lnd::NiId;

use super::{AnyLnd, socket, xdp};

/// One shard's part of an NI. It is made by [`Node::open_ni`](crate::node::Node::open_ni), works while a
/// [`Worker`](crate::runtime::Worker) has it, and goes back to [`Node::close_ni`](crate::node::Node::close_ni),
/// whether a worker had it or not.
pub struct ShardPort {
    /// The LND, with the first NI of its kind that the shard gets, and with the last that it gives back.
    pub(crate) lnd: Option<AnyLnd>,
    pub(crate) part: Part,
}

/// What carries the NI.
pub(crate) enum Part {
    Rings(xdp::ShardPort),
    Socket(Box<socket::ShardPort>),
}

/// What a shard watches for an NI or its interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watched {
    /// The rings of an interface, whose index this is.
    Interface(u32),
    /// The socket of an NI.
    Socket(NiId),
}

impl ShardPort {
    /// The NI.
    #[must_use]
    pub fn ni(&self) -> NiId {
        match &self.part {
            Part::Rings(part) => part.port.ni,
            Part::Socket(part) => part.port.ni,
        }
    }

    /// What is to be watched while the shard sleeps, as long as it has this part.
    pub(crate) fn watched(&self) -> Option<(Watched, Vec<BorrowedFd<'_>>)> {
        match &self.part {
            Part::Rings(part) => {
                let rings = part.rings.as_ref()?;
                Some((Watched::Interface(rings.interface_index), rings.sockets().collect()))
            }
            Part::Socket(part) => Some((Watched::Socket(part.port.ni), vec![part.fd()])),
        }
    }
}

impl std::fmt::Debug for ShardPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardPort").field("ni", &self.ni()).finish_non_exhaustive()
    }
}
