//! A node's NIs of the tcp LND.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lnet_core::lnd::NiId;
use lnet_core::tunables::Accept;
use lnet_wire::Nid;

use super::shards::{incarnation, random_number};
use super::{NiConfig, NodeDriver, NodeError, TcpNiState, link, port};
use crate::lnd::tcp::{TcpCommon, TcpLnd, TcpPort, socket_options};
use crate::lnd::{Part, ShardPort};
use crate::netlink::{Interface, Neighbours};
use crate::uring::WaitError;

/// Connections of a peer by type at most (LNet `ksnr_conn_count`).
const CONNS_PER_PEER_MAX: u32 = 127;

/// An NI of the tcp LND as it is to be opened.
pub(super) struct TcpPlan {
    pub(super) interface: Interface,
    pub(super) address: IpAddr,
}

/// An NI of the tcp LND that is open.
#[derive(Debug)]
pub(super) struct TcpNi {
    pub(super) address: IpAddr,
    pub(super) conns_per_peer: u8,
    pub(super) tos: Option<u8>,
    /// Follows the interface.
    pub(super) neighbours: Arc<Neighbours>,
}

impl TcpNi {
    pub(super) fn state(&self) -> TcpNiState {
        let Self { conns_per_peer, tos, .. } = *self;
        TcpNiState { conns_per_peer, tos, mtu_bytes: self.neighbours.mtu_bytes() }
    }
}

/// The tcp LND of a node, while it has NIs of it: what wakes each shard.
#[derive(Debug)]
pub(super) struct TcpNet {
    rings: Vec<OwnedFd>,
}

impl NodeDriver {
    /// Opens an NI: from now on peers may connect to its address, and once the node is open they are listened to.
    pub(super) fn open_tcp(
        &mut self,
        (ni, nid): (NiId, Nid),
        plan: &TcpPlan,
        config: &NiConfig,
    ) -> Result<(TcpNi, Vec<ShardPort>), NodeError> {
        let neighbours = link::follow(&plan.interface, false, &self.wakers)?;
        let tunables = self.config.sock;
        let tos = config.tos.and_then(|tos| u8::try_from(tos).ok());
        let options = socket_options(&tunables, tos, plan.interface.index);
        let mut listener = None;
        if tunables.accept != Accept::None {
            let address = (plan.address, tunables.accept_port).into();
            listener = Some(port::listen(address, tunables.accept_backlog, &options)?);
        }
        let (rings, lnds) = match &self.tcp {
            Some(net) => (duplicates(&net.rings)?, Vec::new()),
            None => {
                let common = TcpCommon {
                    limits: &self.config.limits,
                    tunables,
                    seed: random_number()?,
                    opened: &self.opened,
                };
                let lnds = TcpLnd::for_shards(&common, &self.wakers)?;
                let fds: Vec<_> = lnds.iter().map(TcpLnd::fd).collect();
                let rings = duplicates(&fds)?;
                self.tcp = Some(TcpNet { rings: duplicates(&fds)? });
                drop(fds);
                (rings, lnds)
            }
        };
        let conns_per_peer = config.conns_per_peer.unwrap_or(1).clamp(1, CONNS_PER_PEER_MAX) as u8;
        let incarnation = incarnation();
        let ports = rings.into_iter().map(|ring| TcpPort {
            ni,
            nid,
            address: plan.address,
            incarnation,
            conns_per_peer,
            options,
            listener: listener.take(),
            ring,
            listening: None,
        });
        let parts = Part::of_shards(lnds, ports.collect()).map(ShardPort::Tcp).collect();
        Ok((TcpNi { address: plan.address, conns_per_peer, tos, neighbours }, parts))
    }

    /// Closes an NI of the tcp LND.
    pub(super) fn close_tcp(&mut self, parts: Vec<ShardPort>) {
        drop(parts);
        if self.nis.values().all(|open| open.tcp().is_none()) {
            // The shards have given up their LNDs.
            self.tcp = None;
        }
    }
}

fn duplicates(fds: &[impl AsFd]) -> Result<Vec<OwnedFd>, NodeError> {
    let duplicate = |fd: &_| AsFd::as_fd(fd).try_clone_to_owned();
    let failed = |error: std::io::Error| WaitError::System {
        operation: "dup",
        source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
    };
    Ok(fds.iter().map(duplicate).collect::<Result<_, _>>().map_err(failed)?)
}
