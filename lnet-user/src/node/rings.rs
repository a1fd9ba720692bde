//! A node's shards over `AF_XDP` rings.

use std::net::UdpSocket;
use std::sync::Arc;

use lnet_core::xfer::XferConfig;

use super::log::LogThread;
use super::plan::Plan;
use super::{Drivers, NodeConfig, NodeError, wake_all, xfer_config};
use crate::bpf::{self, ActiveMode, AttachMode, ObjectKind, XdpProgram};
use crate::lnd::AnyLnd;
use crate::lnd::xdp::{self, Common, Lane, OwnedQueue, XdpLnd};
use crate::netlink::{self, Neighbours};
use crate::uring::{Waiter, Waker};
use crate::xsk::{self, FRAGMENTS_MAX, QueueConfig, Umem, UmemConfig};

/// Makes the drivers: sockets and rings first, the XDP program last, so that no frame is steered to a shard that
/// is not there.
pub(super) fn drivers(config: &NodeConfig, plan: &Plan, mode: AttachMode) -> Result<Drivers, NodeError> {
    let mut programs = load_programs(config, plan)?;
    let neighbours = Neighbours::start(&plan.interface_indices())?;
    let reserved = reserve_ports(plan, config.udp_port)?;
    let queues = plan.interfaces.iter().map(|interface| interface.rx_queues).sum();
    let waiters: Vec<Waiter> = (0..config.shards).map(|_| Waiter::new(queues)).collect::<Result<_, _>>()?;
    let wakers: Vec<Waker> = waiters.iter().map(Waiter::waker).collect();
    neighbours.subscribe(wake_all(&wakers));
    let lnds = open_rings(config, plan, &mut programs, neighbours, &wakers)?;
    let log = if config.log_refusals { Some(LogThread::start(&mut programs)?) } else { None };
    let mode = attach(plan, mode, &mut programs)?.into();
    let lnds = lnds.into_iter().map(|lnd| Some(AnyLnd::Xdp(Box::new(lnd)))).zip(waiters).collect();
    Ok(Drivers { lnds, mode, queues, programs, reserved, log, opened: None })
}

fn load_programs(config: &NodeConfig, plan: &Plan) -> Result<Vec<XdpProgram>, NodeError> {
    let kind = if config.log_refusals { ObjectKind::Logging } else { ObjectKind::Default };
    let object = match &config.bpf_object {
        Some(path) => path.clone(),
        None => bpf::find_object(kind)?,
    };
    let mut programs = Vec::new();
    for interface in &plan.interfaces {
        let mut program = XdpProgram::load(&object)?;
        for port in plan.ports.iter().filter(|port| port.interface_index == interface.index) {
            program.add_endpoint(port.address, port.udp_port)?;
        }
        for (portal, policy) in &config.policies {
            program.set_policy(*portal, *policy)?;
        }
        if config.log_refusals {
            program.set_logging(true)?;
        }
        programs.push(program);
    }
    Ok(programs)
}

fn reserve_ports(plan: &Plan, udp_port: u16) -> Result<Vec<UdpSocket>, NodeError> {
    plan.ports.iter().map(|port| Ok(netlink::reserve_port(port.address, udp_port)?)).collect()
}

/// Opens a socket per (queue, shard) on one UMEM, puts them into the programs' maps and hands each shard
/// its own. The queues are dealt out to the shards in turn, each to be owned by one.
fn open_rings(
    config: &NodeConfig,
    plan: &Plan,
    programs: &mut [XdpProgram],
    neighbours: Arc<Neighbours>,
    wakers: &[Waker],
) -> Result<Vec<XdpLnd>, NodeError> {
    let shards = config.shards as usize;
    let queues: u32 = plan.interfaces.iter().map(|interface| interface.rx_queues).sum();
    let owned_max = queues.div_ceil(config.shards);
    // What a shard's queues may hold for receiving, what its receive rings may hold back, and its sends.
    // Each interface's rings may be full of frames to send, also of one that sends nothing any more.
    let transmit_reserve = config.rings.tx * plan.interfaces.len() as u32;
    let held_chunks_max = (config.rings.fill / 4).max(FRAGMENTS_MAX);
    let frames_per_shard = owned_max * config.rings.fill + transmit_reserve + held_chunks_max;
    let umem_config = UmemConfig::new(frames_per_shard * config.shards);
    let (umem, frames) = Umem::new(&umem_config)?;
    let frame_max_bytes = xdp::frame_max_bytes(&config.rings);
    let common = Common {
        umem: Arc::clone(&umem),
        neighbours,
        ports: plan.ports.clone(),
        shards: config.shards,
        frames_per_shard,
        transmit_reserve: transmit_reserve as usize,
        held_chunks_max: held_chunks_max as usize,
        frame_max_bytes,
        parked_responses_max: parked_responses_max(config),
        payload_checksum: config.payload_checksum,
        send_fault: config.send_fault,
        xfer: XferConfig {
            datagram_max_bytes: plan
                .ports
                .iter()
                .map(|port| port.datagram_max_bytes(frame_max_bytes))
                .collect(),
            receive_bytes: xdp::receive_bytes(&config.rings, config.shards),
            ..xfer_config(config, plan)?
        },
    };
    let mut rings: Vec<(Vec<Lane>, Vec<OwnedQueue>)> =
        (0..shards).map(|_| (Vec::new(), Vec::new())).collect();
    let mut owners = (0..shards).cycle();
    for (interface, program) in plan.interfaces.iter().zip(programs) {
        for queue in 0..interface.rx_queues {
            let mut queue_config = QueueConfig::new(interface.index, queue);
            queue_config.socket_count = config.shards;
            queue_config.rings = config.rings;
            let opened = xsk::open_queue(&umem, &queue_config)?;
            let owner = owners.next().unwrap_or(0);
            let lane_index = rings[owner].0.len();
            let owned = OwnedQueue::new(lane_index, opened.fill, opened.completion);
            for (shard, socket) in opened.sockets.into_iter().enumerate() {
                program.set_socket(queue, shard as u32, &socket)?;
                let mut lane = Lane::new(interface.index, queue, socket, queue < interface.tx_queues);
                if shard != owner {
                    owned.lend_to(&mut lane, owner);
                }
                rings[shard].0.push(lane);
            }
            rings[owner].1.push(owned);
        }
    }
    Ok(XdpLnd::for_shards(&common, frames, rings, wakers))
}

/// Half of an NI's credits on a shard, or all that one peer may have of them.
fn parked_responses_max(config: &NodeConfig) -> u32 {
    let share = |credits: u32| credits.div_ceil(config.shards);
    config.nis.iter().map(|ni| (share(ni.credits) / 2).max(share(ni.peer_credits))).min().unwrap_or(0)
}

fn attach(plan: &Plan, attach: AttachMode, programs: &mut [XdpProgram]) -> Result<ActiveMode, NodeError> {
    let mut mode = ActiveMode::Native;
    for (interface, program) in plan.interfaces.iter().zip(programs) {
        if program.attach(&interface.name, attach)? == ActiveMode::Generic {
            mode = ActiveMode::Generic;
        }
    }
    Ok(mode)
}
