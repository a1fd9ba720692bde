//! A node's NIs of the tcp LND.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::lnd::NiId;
use lnet_io::netlink::{Interface, Neighbours, link_speed_mbits};
use lnet_io::port;
use lnet_io::uring::WaitError;
use lnet_io::uring::tcp::socket::SocketOptions;
use lnet_tcp_proto::Accept;
use lnet_wire::Nid;

use super::shards::{incarnation, random_number};
use super::{NiConfig, NodeDriver, NodeError, OpenLnd, TcpNiState};
use crate::lnd::tcp::{TcpCommon, TcpLnd, TcpPort, socket_options};
use crate::lnd::{Part, ShardPort};

/// Connections of a peer by type at most (LNet `ksnr_conn_count`).
const CONNS_PER_PEER_MAX: u32 = 127;

/// An NI of the tcp LND as it is to be opened.
pub(super) struct TcpPlan {
    pub(super) interface: Interface,
    pub(super) address: IpAddr,
    pub(super) serving: ShardSet,
}

/// An NI of the tcp LND that is open.
#[derive(Debug)]
pub(super) struct TcpNi {
    pub(super) address: IpAddr,
    pub(super) conns_per_peer: u8,
    pub(super) tos: Option<u8>,
    interface_index: u32,
    /// What listens at its address. NIs with the same one share them, and they last as long as one of these.
    listeners: Vec<OwnedFd>,
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
    /// Opens an NI: from now on peers may connect to its address, and once the node is open they are listened
    /// to.
    pub(super) fn open_tcp(
        &mut self,
        (ni, nid): (NiId, Nid),
        plan: &TcpPlan,
        config: &NiConfig,
    ) -> Result<(TcpNi, Vec<ShardPort>), NodeError> {
        let neighbours = self.follow(&plan.interface, false)?;
        let tunables = self.config.sock;
        let tos = config.tos.and_then(|tos| u8::try_from(tos).ok()).or(tunables.tos);
        let options = socket_options(&tunables, tos, plan.interface.index);
        let mut listeners = self.listeners(plan, &options)?;
        let own = duplicates(&listeners)?;
        let (rings, lnds) = match &self.tcp {
            Some(net) => (duplicates(&net.rings)?, Vec::new()),
            None => {
                let common = TcpCommon {
                    limits: &self.config.limits,
                    tunables,
                    seed: random_number()?,
                    opened: self.view.opened(),
                };
                let lnds = TcpLnd::for_shards(&common, self.view.wakers())?;
                let fds: Vec<_> = lnds.iter().map(TcpLnd::fd).collect();
                let rings = duplicates(&fds)?;
                self.tcp = Some(TcpNet { rings: duplicates(&fds)? });
                drop(fds);
                (rings, lnds)
            }
        };
        let conns_per_peer = self.conns_per_peer(config.conns_per_peer, &plan.interface.name);
        let incarnation = incarnation();
        let namespace = Arc::new(own_namespace()?);
        let ports = rings.into_iter().zip((0..).map(ShardId)).map(|(ring, shard)| TcpPort {
            ni,
            nid,
            address: plan.address,
            incarnation,
            conns_per_peer,
            serving: plan.serving,
            options,
            namespace: Arc::clone(&namespace),
            listeners: if plan.serving.has(shard) { std::mem::take(&mut listeners) } else { Vec::new() },
            ring,
            listening: Vec::new(),
        });
        let parts = Part::of_shards(lnds, ports.collect()).map(ShardPort::Tcp).collect();
        let (address, interface_index) = (plan.address, plan.interface.index);
        Ok((TcpNi { address, conns_per_peer, tos, interface_index, listeners: own, neighbours }, parts))
    }

    /// What listens at the address of an NI: that of another NI with the same address, or new ones, two for
    /// each port: one is for peers on this host, which other interfaces may have.
    fn listeners(&self, plan: &TcpPlan, options: &SocketOptions) -> Result<Vec<OwnedFd>, NodeError> {
        let tunables = &self.config.sock;
        if tunables.accept == Accept::None {
            return Ok(Vec::new());
        }
        let at = (plan.address, plan.interface.index);
        let shared = {
            let open = self.view.open_nis();
            let mut others = open.values().filter_map(|open| open.tcp());
            let same = others.find(|other| (other.address, other.interface_index) == at);
            same.map(|other| duplicates(&other.listeners)).transpose()?
        };
        if let Some(shared) = shared {
            return Ok(shared);
        }
        let mut ports = vec![tunables.accept_port, tunables.accept_port_bulk];
        ports.dedup();
        let listen = |port, options: &SocketOptions| {
            Ok::<_, NodeError>(port::listen((plan.address, port).into(), tunables.accept_backlog, options)?)
        };
        let mut listeners = Vec::new();
        for port in ports {
            listeners.push(listen(port, options)?);
            // Another interface may have the same address, and an NI of another node on it this port.
            match listen(port, &options.loopback()) {
                Ok(listener) => listeners.push(listener),
                Err(error) => tracing::warn!(%error, "peers on this host do not reach the NI"),
            }
        }
        Ok(listeners)
    }

    /// Connections of a peer by type, as they are asked for, as the node has them, or as an interface's link
    /// wants them.
    fn conns_per_peer(&self, asked: Option<u32>, interface: &str) -> u8 {
        let of_node = u32::from(self.config.sock.conns_per_peer);
        let asked = asked.filter(|count| *count > 0).or(Some(of_node).filter(|count| *count > 0));
        let count = asked.unwrap_or_else(|| conns_by_speed(link_speed_mbits(interface).unwrap_or(0)));
        count.min(CONNS_PER_PEER_MAX) as u8
    }

    /// Has an NI of the tcp LND connect so many connections of each type with its peers from now on, or as
    /// many as its link wants for 0; how many that are, and its number. `None` if there is no such NI.
    pub(crate) fn set_conns_per_peer(&mut self, nid: &Nid, asked: u32) -> Option<(NiId, u8)> {
        let mut nis = self.view.open_nis();
        let (number, open) = nis.iter_mut().find(|(_, open)| open.config.nid == *nid)?;
        let OpenLnd::Tcp(tcp) = &mut open.lnd else { return None };
        tcp.conns_per_peer = self.conns_per_peer(Some(asked), &tcp.neighbours.name());
        open.config.conns_per_peer = Some(asked);
        Some((NiId(*number), tcp.conns_per_peer))
    }

    /// Closes an NI of the tcp LND.
    pub(super) fn close_tcp(&mut self, parts: Vec<ShardPort>) {
        drop(parts);
        if self.view.open_nis().values().all(|open| open.tcp().is_none()) {
            // The shards have given up their LNDs.
            self.tcp = None;
        }
    }
}

/// Connections of a peer by type, as the speed of the link wants them: one more for each four times as fast
/// (LNet `socklnd_modparams.c: conns_per_peer`).
fn conns_by_speed(speed_mbits: u32) -> u32 {
    (speed_mbits / 1000).checked_ilog2().unwrap_or(0) / 2 + 1
}

/// The network namespace of this thread.
fn own_namespace() -> Result<OwnedFd, NodeError> {
    let opened = std::fs::File::open("/proc/thread-self/ns/net").map_err(|error| WaitError::System {
        operation: "open /proc/thread-self/ns/net",
        source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
    });
    Ok(opened?.into())
}

fn duplicate(fd: &impl AsFd) -> Result<OwnedFd, NodeError> {
    let failed = |error: std::io::Error| WaitError::System {
        operation: "dup",
        source: rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
    };
    Ok(fd.as_fd().try_clone_to_owned().map_err(failed)?)
}

fn duplicates(fds: &[impl AsFd]) -> Result<Vec<OwnedFd>, NodeError> {
    fds.iter().map(duplicate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_links_have_more_connections() {
        let cases =
            [(0, 1), (100, 1), (1000, 1), (3999, 1), (4000, 2), (15_000, 2), (16_000, 3), (63_000, 3)];
        for (speed_mbits, count) in cases.into_iter().chain([(64_000, 4), (255_000, 4), (256_000, 5)]) {
            assert_eq!(conns_by_speed(speed_mbits), count, "{speed_mbits} Mbit/s");
        }
    }
}
