//! NIs over UDP sockets.
//!
//! A socket is bound to its NI's interface, so that the kernel looks for peers on that link even where it has
//! no IPv4 route.

use std::sync::Arc;

use lnet_core::handle::ShardId;
use lnet_io::driver::Part;
use lnet_io::kind::Host;
use lnet_io::port;
use lnet_io::reactor::Reactor;
use lnet_io::reactor::udp::{Endpoint, EndpointConfig, UdpSocket};
use lnet_model::lnd::ZeroCopy;
use lnet_model::ni::XdpMode;

use super::carrier::OpenCarrier;
use super::link::LinkState;
use super::plan::XdpPlan;
use super::{XdpConfig, XdpError, XdpKind, XdpNi};
use crate::lnd::{Port, SendFault, SharedRuns, SocketPort, XdpLnd, XdpPort, reuseport};

/// Most buffers that a shard receives into: more would only spread over its cache.
const RECEIVE_BUFFERS_MAX: u32 = 512;
/// Most datagrams that a shard has with the kernel to be sent: what is sent is done with at once, as a rule.
const SEND_BUFFERS_MAX: u32 = 256;
/// Most bytes of frames that a shard says it can take at once: 512 of up to 4096 bytes, which is what
/// siblings can hand over to it.
const RECEIVE_BYTES_MAX: usize = 2 << 20;
/// Most bytes that arrive in one buffer.
const RUN_BYTES_MAX: u64 = 1 << 16;
/// The least MTU whose datagrams the shards can keep and hand over: that of jumbo frames, whatever the
/// interfaces at first have.
const MTU_BYTES_MIN: usize = 9000;

impl XdpKind {
    /// Opens an NI over sockets; what arrives waits in them until the node is opened.
    pub(super) fn open_sockets(
        &mut self,
        host: &Host,
        plan: &XdpPlan,
    ) -> Result<(XdpNi, Vec<Part<XdpLnd>>), XdpError> {
        let XdpConfig { log_refusals, send_fault, frame_loss_per_million, .. } = &self.config;
        for (option, is_set) in [
            ("log_refusals", *log_refusals),
            ("send_fault", *send_fault != SendFault::default()),
            ("frame_loss_per_million", *frame_loss_per_million != 0),
            ("zero_copy on", plan.zero_copy == ZeroCopy::On),
        ] {
            if is_set {
                return Err(XdpError::OnlyRings { option });
            }
        }
        let neighbours = host.follow(&plan.interface, false)?;
        let port = plan.port;
        let sockets = bind_sockets(host, plan)?;
        let mtu_bytes = self.widest_mtu_bytes.max(port.mtu_bytes).max(MTU_BYTES_MIN);
        let known = self.net.as_ref().and_then(|net| net.buffer_bytes);
        let buffer_bytes = known.unwrap_or_else(|| Port { mtu_bytes, ..port }.datagram_max_bytes(u32::MAX));
        let longest = port.datagram_max_bytes(buffer_bytes);
        let serving = plan.serving;
        let receive_bytes = receive_bytes(&sockets, serving.sharers_max(host.shard_count() as u8), longest);
        let sizes = endpoint_config(&self.config, longest, serving.count() == 1, host.reactor);
        let fresh = self.fresh(host)?;
        let runs = SharedRuns::default();
        let ports = sockets.into_iter().zip((0..).map(ShardId)).map(|(socket, shard)| {
            let receive_buffers = if serving.has(shard) { sizes.receive_buffers } else { 1 };
            let endpoint = Box::new(Endpoint::new(socket, &EndpointConfig { receive_buffers, ..sizes })?);
            let (neighbours, served) = (Arc::clone(&neighbours), (serving, shard));
            let how = (endpoint, &runs);
            let port = SocketPort::new(port, receive_bytes, how, neighbours, buffer_bytes, served);
            Ok(XdpPort::Socket(port))
        });
        let ports = ports.collect::<Result<_, XdpError>>()?;
        let (net, parts) = self.keep(fresh, ports);
        net.buffer_bytes = Some(buffer_bytes);
        let link = LinkState::new(plan.interface.rx_queues, None, false);
        let carrier = Box::new(OpenCarrier::of_sockets(&runs));
        Ok((XdpNi { carrier, ..plan.opened(XdpMode::Socket, (neighbours, link), None) }, parts))
    }
}

/// A socket for each shard, on one address and port: one of its own for each that serves, of which the
/// others have duplicates to send by.
fn bind_sockets(host: &Host, XdpPlan { port, serving, .. }: &XdpPlan) -> Result<Vec<UdpSocket>, XdpError> {
    let shards = host.shard_count();
    let bound = port::bind(port.udp_address(), port.interface_index, serving.count())?;
    bound[0].choose_by(&reuseport::program(&host.steering.policies, shards, *serving))?;
    let mut of_shards: Vec<_> = (0..shards).map(|_| None).collect();
    for (socket, shard) in bound.into_iter().zip(serving.iter()) {
        for other in (0..shards as u8).map(ShardId).filter(|other| !serving.has(*other)) {
            if serving.stand_in(other) == shard {
                of_shards[usize::from(other.0)] = Some(socket.duplicate()?);
            }
        }
        of_shards[usize::from(shard.0)] = Some(socket);
    }
    Ok(of_shards.into_iter().flatten().collect())
}

/// Bytes of frames that a shard can take at once: what the kernel keeps for it while it is not scheduled, by
/// a socket that so many of them have.
fn receive_bytes(sockets: &[UdpSocket], sharers: u32, datagram_max_bytes: u32) -> u32 {
    let buffer_bytes = sockets.iter().map(UdpSocket::receive_buffer_bytes).min().unwrap_or(0);
    let buffer_bytes = buffer_bytes / sharers as usize;
    let least = 2 * datagram_max_bytes.next_multiple_of(4096) + 4096;
    (buffer_bytes.min(RECEIVE_BYTES_MAX) as u32 / 4096 * 4096).max(least)
}

/// Sizes of an endpoint: as many buffers as the rings would have entries, in the memory that the rings of one
/// queue would have. Where datagrams arrive in runs, each buffer to receive into has room for one. They do
/// where one shard serves the NI: a run comes to one socket, and its datagrams may be for several shards.
fn endpoint_config(
    config: &XdpConfig,
    datagram_max_bytes: u32,
    receives_runs: bool,
    reactor: Reactor,
) -> EndpointConfig {
    let room_bytes = u64::from(config.rings.fill) * 4096;
    let buffer_bytes = if receives_runs { RUN_BYTES_MAX } else { datagram_max_bytes.into() };
    let count = (room_bytes / buffer_bytes).clamp(8, RECEIVE_BUFFERS_MAX.into()) as u32;
    let receive_buffers = 1 << count.min(config.rings.rx.max(8)).ilog2();
    let send_buffers = config.rings.tx.min(SEND_BUFFERS_MAX) as u16;
    EndpointConfig { receive_buffers, send_buffers, datagram_max_bytes, receives_runs, reactor }
}
