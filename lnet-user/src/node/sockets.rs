//! A node's shards over UDP sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use lnet_core::xfer::XferConfig;

use super::drivers::{Drivers, Opened, wake_all};
use super::plan::Plan;
use super::{NodeConfig, NodeError, NodeMode, xfer_config};
use crate::lnd::AnyLnd;
use crate::lnd::socket::{Common, Port, SocketLnd, reuseport};
use crate::lnd::xdp::SendFault;
use crate::netlink::{self, Neighbours, NetlinkError};
use crate::uring::udp::{Endpoint, EndpointConfig, UdpSocket};
use crate::uring::{Waiter, Waker};

/// Most buffers that a shard receives into: more would only spread over its cache.
const RECEIVE_BUFFERS_MAX: u32 = 512;
/// Most datagrams that a shard has with the kernel to be sent: what is sent is done with at once, as a rule.
const SEND_BUFFERS_MAX: u32 = 256;
/// Most bytes of frames that a shard says it can take at once: 512 of up to 4096 bytes, which is what siblings can
/// hand over to it.
const RECEIVE_BYTES_MAX: usize = 2 << 20;
/// How long the port of a process may stay taken that was killed just before: the kernel ends what that had under
/// way a little later.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
const PORT_INTERVAL: Duration = Duration::from_millis(20);

/// Makes the drivers; what arrives waits in the sockets until the node is opened.
pub(super) fn drivers(config: &NodeConfig, plan: &Plan) -> Result<Drivers, NodeError> {
    if config.log_refusals {
        return Err(NodeError::OnlyRings { option: "log_refusals" });
    }
    if config.send_fault != SendFault::default() {
        return Err(NodeError::OnlyRings { option: "send_fault" });
    }
    let neighbours = Neighbours::follow_interfaces(&plan.interface_indices())?;
    let waiters: Vec<Waiter> = (0..config.shards).map(|_| Waiter::new(1)).collect::<Result<_, _>>()?;
    let wakers: Vec<Waker> = waiters.iter().map(Waiter::waker).collect();
    neighbours.subscribe(wake_all(&wakers));
    let mtu_bytes = plan.ports.iter().map(|port| port.mtu_bytes).max().unwrap_or(0);
    let ports: Vec<Port> = plan
        .ports
        .iter()
        .map(|port| Port {
            ni: port.ni,
            nid: port.nid,
            udp_port: port.udp_port,
            interface_index: port.interface_index,
            mtu_bytes: port.mtu_bytes,
        })
        .collect();
    let longest = |port: &Port| Port { mtu_bytes, ..*port }.datagram_max_bytes(u32::MAX);
    let datagram_max_bytes = ports.iter().map(longest).max().unwrap_or(0);
    let sockets = open_sockets(config, plan)?;
    let receive_bytes = receive_bytes(&sockets, datagram_max_bytes);
    let opened = Arc::new(AtomicBool::new(false));
    let common = Common {
        neighbours,
        datagram_max_bytes,
        payload_checksum: config.payload_checksum,
        opened: Arc::clone(&opened),
        xfer: XferConfig {
            datagram_max_bytes: ports
                .iter()
                .map(|port| port.datagram_max_bytes(datagram_max_bytes))
                .collect(),
            receive_bytes,
            ..xfer_config(config, plan)?
        },
        ports,
    };
    let sizes = endpoint_config(config, datagram_max_bytes);
    let endpoints =
        sockets.into_iter().map(|sockets| Endpoint::new(sockets, &sizes)).collect::<Result<_, _>>()?;
    let lnds = SocketLnd::for_shards(&common, endpoints, &wakers);
    Ok(Drivers {
        lnds: lnds.into_iter().map(|lnd| Some(AnyLnd::Socket(Box::new(lnd)))).zip(waiters).collect(),
        mode: NodeMode::Socket,
        queues: plan.interfaces.iter().map(|interface| interface.rx_queues).sum(),
        programs: Vec::new(),
        reserved: Vec::new(),
        log: None,
        opened: Some(Opened::new(opened, wakers)),
    })
}

/// The sockets of each shard: one for each port.
fn open_sockets(config: &NodeConfig, plan: &Plan) -> Result<Vec<Vec<UdpSocket>>, NodeError> {
    let mut sockets: Vec<Vec<UdpSocket>> = (0..config.shards).map(|_| Vec::new()).collect();
    let program = reuseport::program(&plan.policies, config.shards);
    for port in &plan.ports {
        await_port(SocketAddr::new(port.address, port.udp_port))?;
        for of_shard in &mut sockets {
            let address = SocketAddr::new(port.address, port.udp_port);
            of_shard.push(UdpSocket::bind(address, Some(port.interface_index))?);
        }
        if let Some(first) = sockets[0].last() {
            first.choose_by(&program)?;
        }
    }
    Ok(sockets)
}

/// Sees to it that nobody else has the port: sockets that share it would let another node of this user in, and the
/// kernel would count that one's in.
fn await_port(address: SocketAddr) -> Result<(), NetlinkError> {
    let begun = Instant::now();
    loop {
        match netlink::reserve_port(address.ip(), address.port()) {
            Err(NetlinkError::PortInUse { .. }) if begun.elapsed() < PORT_PATIENCE => {
                std::thread::sleep(PORT_INTERVAL);
            }
            outcome => return outcome.map(drop),
        }
    }
}

/// Bytes of frames that a shard can take at once: what the kernel keeps for it while it is not scheduled.
fn receive_bytes(sockets: &[Vec<UdpSocket>], datagram_max_bytes: u32) -> u32 {
    let kept = sockets.iter().flatten().map(UdpSocket::receive_buffer_bytes).min().unwrap_or(0);
    let least = 2 * datagram_max_bytes.next_multiple_of(4096) + 4096;
    (kept.min(RECEIVE_BYTES_MAX) as u32 / 4096 * 4096).max(least)
}

/// As many buffers as the rings would have entries, in the memory that the rings of one queue would have.
fn endpoint_config(config: &NodeConfig, datagram_max_bytes: u32) -> EndpointConfig {
    let room_bytes = u64::from(config.rings.fill) * 4096;
    let count = (room_bytes / u64::from(datagram_max_bytes)).clamp(8, RECEIVE_BUFFERS_MAX.into()) as u32;
    let receive_buffers = 1 << count.min(config.rings.rx.max(8)).ilog2();
    let send_buffers = config.rings.tx.min(SEND_BUFFERS_MAX) as u16;
    EndpointConfig { receive_buffers, send_buffers, datagram_max_bytes }
}
