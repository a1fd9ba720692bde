//! The tcp LND of a node: NIs, which share what listens at an address.
//!
//! Linux has what goes to an IPv4 address of the same host by `lo`. A tcp NI listens there too, and a dialler
//! of such an address is bound to `lo`. An IPv6 address is dialled from itself. So NIs of one node, and nodes
//! of one host, reach each other across interfaces.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use lnet_core::handle::{ShardId, ShardSet};
use lnet_core::lnd::NiId;
use lnet_io::driver::Part;
use lnet_io::kind::{Host, InterfaceError, LndKind, NiRequest, OpenNi, check_address, usable_interface};
use lnet_io::netlink::{Interface, Neighbours, NetlinkError, link_speed_mbits};
use lnet_io::port;
use lnet_io::random::{self, NoRandom};
use lnet_io::reactor::tcp::TcpError;
use lnet_io::reactor::tcp::socket::SocketOptions;
use lnet_model::lnd::{LndRow, NiFact, NiOption, TCP};
use lnet_model::ni::NiOptions;
use lnet_tcp_proto::{Accept, SockTunables};
use thiserror::Error;

use crate::lnd::{TcpCommon, TcpLnd, TcpPort, socket_options};

/// Connections of a peer by type at most (LNet `ksnr_conn_count`).
const CONNS_PER_PEER_MAX: u32 = NiOption::ConnsPerPeer.row().values.greatest() as u32;

/// Why an NI of the tcp LND is not opened: the node is as before then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TcpNiError {
    /// The interface.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The sockets.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// The kernel has no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
    /// A descriptor that cannot be had.
    #[error("{operation}: {source}")]
    Descriptor {
        /// The operation that failed.
        operation: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

impl From<NetlinkError> for TcpNiError {
    fn from(error: NetlinkError) -> Self {
        Self::Interface(error.into())
    }
}

/// An NI of the tcp LND as it is to be opened.
#[derive(Debug)]
pub struct TcpPlan {
    interface: Interface,
    address: IpAddr,
    serving: ShardSet,
}

/// An NI of the tcp LND that is open, as a node keeps it.
#[derive(Debug)]
pub struct TcpNi {
    ni: NiId,
    address: IpAddr,
    conns_per_peer: u8,
    tos: Option<u8>,
    /// Where it listens, and where it dials its peers.
    accept_port: u16,
    /// Follows the interface.
    neighbours: Arc<Neighbours>,
}

impl OpenNi for TcpNi {
    fn followed(&self) -> Option<(&Neighbours, &IpAddr)> {
        Some((&self.neighbours, &self.address))
    }

    fn facts(&self) -> Vec<Option<NiFact>> {
        vec![Some(NiFact::Number(self.accept_port.into()))]
    }

    fn options(&self) -> NiOptions {
        NiOptions::default()
            .with(NiOption::ConnsPerPeer, self.conns_per_peer.into())
            .with(NiOption::Tos, self.tos.map_or(-1, i64::from))
    }
}

/// Listeners at the address of an NI. NIs with the same address share them, and they last as long as one of
/// these NIs.
#[derive(Debug)]
struct Listening {
    ni: NiId,
    address: IpAddr,
    interface_index: u32,
    listeners: Vec<OwnedFd>,
}

/// The tcp LND of a node.
#[derive(Debug)]
pub struct TcpKind {
    tunables: SockTunables,
    /// Descriptors that wake each shard, while there are NIs.
    rings: Vec<OwnedFd>,
    /// Listeners, by NI that is open.
    listening: Vec<Listening>,
}

impl TcpKind {
    /// The LND of a node without NIs.
    #[must_use]
    pub const fn new(tunables: SockTunables) -> Self {
        Self { tunables, rings: Vec::new(), listening: Vec::new() }
    }

    /// Listeners at the address of an NI: those of another NI with the same address, or new ones, two for
    /// each port. One of the two is for peers on this host, which other interfaces may have.
    fn listeners(&self, plan: &TcpPlan, options: &SocketOptions) -> Result<Vec<OwnedFd>, TcpNiError> {
        let tunables = &self.tunables;
        if tunables.accept == Accept::None {
            return Ok(Vec::new());
        }
        let at = (plan.address, plan.interface.index);
        let same = self.listening.iter().find(|other| (other.address, other.interface_index) == at);
        if let Some(other) = same {
            return duplicates(&other.listeners);
        }
        let mut ports = vec![tunables.accept_port, tunables.accept_port_bulk];
        ports.dedup();
        let listen = |port, options: &SocketOptions| {
            port::listen((plan.address, port).into(), tunables.accept_backlog, options)
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
        let asked = [asked.unwrap_or(0), self.tunables.conns_per_peer].into_iter().find(|count| *count > 0);
        let count = asked.unwrap_or_else(|| conns_by_speed(link_speed_mbits(interface).unwrap_or(0)));
        count.min(CONNS_PER_PEER_MAX) as u8
    }
}

impl LndKind for TcpKind {
    type Driver = TcpLnd;
    type Plan = TcpPlan;
    type Ni = TcpNi;
    type Error = TcpNiError;

    const ROW: LndRow = TCP;

    fn plan(&self, request: &NiRequest<'_>) -> Result<TcpPlan, TcpNiError> {
        let interface = usable_interface(request.interface, None)?;
        check_address(&interface, request.nid, request.address)?;
        Ok(TcpPlan { interface, address: request.address, serving: request.serving })
    }

    /// Opens an NI: from now on peers may connect to its address, and once the node is open they are listened
    /// to.
    fn open(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
        plan: TcpPlan,
    ) -> Result<(TcpNi, Vec<Part<TcpLnd>>), TcpNiError> {
        let neighbours = host.follow(&plan.interface, false)?;
        let tunables = self.tunables;
        let tos = request.options.number(NiOption::Tos).or(tunables.tos);
        let options = socket_options(&tunables, tos, plan.interface.index);
        let mut listeners = self.listeners(&plan, &options)?;
        let own = duplicates(&listeners)?;
        let namespace = Arc::new(own_namespace()?);
        let is_first = self.rings.is_empty();
        let lnds = if is_first {
            let common = TcpCommon {
                limits: &host.limits,
                tunables,
                seed: random::number()?,
                opened: &host.opened,
                reactor: host.reactor,
            };
            TcpLnd::for_shards(&common, &host.wakers)?
        } else {
            Vec::new()
        };
        let rings = if is_first { duplicates(&fds_of(&lnds))? } else { duplicates(&self.rings)? };
        if is_first {
            self.rings = duplicates(&rings)?;
        }
        let conns_per_peer =
            self.conns_per_peer(request.options.number(NiOption::ConnsPerPeer), &plan.interface.name);
        let incarnation = incarnation();
        let (ni, address, interface_index) = (request.ni, plan.address, plan.interface.index);
        let ports = rings.into_iter().zip((0..).map(ShardId)).map(|(ring, shard)| TcpPort {
            ni,
            nid: request.nid,
            address,
            incarnation,
            conns_per_peer,
            serving: plan.serving,
            options,
            namespace: Arc::clone(&namespace),
            listeners: if plan.serving.has(shard) { std::mem::take(&mut listeners) } else { Vec::new() },
            ring,
            listening: Vec::new(),
        });
        let parts = Part::of_shards(lnds, ports.collect());
        self.listening.push(Listening { ni, address, interface_index, listeners: own });
        let accept_port = tunables.accept_port;
        Ok((TcpNi { ni, address, conns_per_peer, tos, accept_port, neighbours }, parts))
    }

    fn close(&mut self, _: &Host, ni: TcpNi, parts: Vec<Part<TcpLnd>>) {
        drop(parts);
        self.listening.retain(|listening| listening.ni != ni.ni);
        if self.listening.is_empty() {
            // The shards have given up their LNDs.
            self.rings = Vec::new();
        }
    }

    /// Has an NI connect so many connections of each type with its peers from now on, or as many as its link
    /// wants for 0.
    fn change(&self, ni: &mut TcpNi, asked: &NiOptions) -> Option<NiOptions> {
        let conns_per_peer = asked.number(NiOption::ConnsPerPeer)?;
        ni.conns_per_peer = self.conns_per_peer(Some(conns_per_peer), &ni.neighbours.name());
        Some(NiOptions::default().with(NiOption::ConnsPerPeer, ni.conns_per_peer.into()))
    }
}

/// Connections of a peer by type, as the speed of the link wants them: one more for each four times as fast
/// (LNet `socklnd_modparams.c: conns_per_peer`).
fn conns_by_speed(speed_mbits: u32) -> u32 {
    (speed_mbits / 1000).checked_ilog2().unwrap_or(0) / 2 + 1
}

/// The life of an NI (LNet `socklnd.c: ksocknal_new_incarnation`).
fn incarnation() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |elapsed| elapsed.as_nanos() as u64)
}

/// The network namespace of this thread.
fn own_namespace() -> Result<OwnedFd, TcpNiError> {
    let path = "/proc/thread-self/ns/net";
    let opened = std::fs::File::open(path);
    let failed = |source| TcpNiError::Descriptor { operation: "open /proc/thread-self/ns/net", source };
    Ok(opened.map_err(failed)?.into())
}

/// Descriptors that become readable when streams of each shard have news.
fn fds_of(lnds: &[TcpLnd]) -> Vec<BorrowedFd<'_>> {
    lnds.iter().map(TcpLnd::fd).collect()
}

fn duplicate(fd: &impl AsFd) -> Result<OwnedFd, TcpNiError> {
    let failed = |source| TcpNiError::Descriptor { operation: "dup", source };
    fd.as_fd().try_clone_to_owned().map_err(failed)
}

fn duplicates(fds: &[impl AsFd]) -> Result<Vec<OwnedFd>, TcpNiError> {
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
