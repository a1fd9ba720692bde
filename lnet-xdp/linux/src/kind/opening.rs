//! Queues of an interface that are being opened: sockets and rings on each, with zero copy where that can be
//! had, and frames that the driver begins with.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::{ShardId, ShardSet};
use lnet_io::kind::Host;
use lnet_io::netlink::{Interface, Neighbours, xdp_features};
use lnet_io::xsk::{self, Binding, Frame, QueueConfig, SocketError, Umem};
use lnet_model::lnd::ZeroCopy;
use lnet_model::ni::XdpMode;

use super::log::LogThread;
use super::plan::XdpPlan;
use super::zero_copy::{self, Asked, Chosen, Reason};
use super::{XdpConfig, XdpError};
use crate::bpf::{ActiveMode, XdpProgram, generic_by_role};
use crate::lnd::{Lane, OwnedQueue, Rings};

/// How long the kernel may take to let go of a queue whose sockets were closed.
pub(super) const RECLAIM_PATIENCE: Duration = Duration::from_secs(5);
/// Patience where an XDP program is attached: the process that has the program also has the queues, and
/// lives, unless it is just ending.
const OCCUPIED_PATIENCE: Duration = Duration::from_millis(1500);
/// Part of a fill ring that is spared for an interface that comes later: 128 frames of 2048, twice what a
/// driver takes at once.
const PRIME_SHARE: u32 = 16;

/// Frames of a queue that a driver begins with, where the shards have the others.
pub(super) fn prime(config: &XdpConfig) -> u32 {
    (config.rings.fill / PRIME_SHARE).max(1)
}

/// The frames of each shard.
pub(super) fn deal_out(frames_per_shard: u32, host: &Host, frames: Vec<Frame>) -> Vec<Vec<Frame>> {
    let mut shares: Vec<_> = host.wakers.iter().map(|_| Vec::new()).collect();
    for frame in frames {
        shares[(frame.chunk_index() / frames_per_shard) as usize].push(frame);
    }
    shares
}

/// Takes so many frames of each shard.
pub(super) fn spare(shares: &mut [Vec<Frame>], count: u32) -> Vec<Frame> {
    let take = |share: &mut Vec<Frame>| share.split_off(share.len().saturating_sub(count as usize));
    shares.iter_mut().flat_map(take).collect()
}

/// Queues of an interface from the first of these on, with the shard that owns each; and how many queues the
/// shard owns then that owns most.
#[derive(Clone, Copy)]
pub(super) struct Dealt<'a> {
    pub(super) first: u32,
    pub(super) owners: &'a [usize],
    pub(super) most_owned: u32,
}

/// Means to open queues.
pub(super) struct Opening<'a> {
    pub(super) config: &'a XdpConfig,
    pub(super) shards: u32,
    pub(super) umem: Arc<Umem>,
    pub(super) interface: &'a Interface,
    pub(super) serving: ShardSet,
    pub(super) neighbours: &'a Arc<Neighbours>,
    /// Frames that drivers may begin with: of each shard, or all in one.
    pub(super) frames: Vec<Vec<Frame>>,
    /// Frames that each queue begins with at most.
    pub(super) prime: u32,
}

/// An interface with rings and an XDP program.
pub(super) struct Opened {
    pub(super) rings: Vec<Rings>,
    pub(super) mode: ActiveMode,
    /// Why the mode is generic, where that was not asked for.
    pub(super) reason: Option<String>,
    pub(super) zero_copy: Chosen,
    pub(super) log: Option<LogThread>,
}

impl Opening<'_> {
    pub(super) fn none(&self, most_owned: u32) -> Rings {
        Rings {
            interface_index: self.interface.index,
            neighbours: Arc::clone(self.neighbours),
            lanes: Vec::new(),
            owned: Vec::new(),
            most_owned,
        }
    }

    /// Opens sockets and rings, then attaches the program.
    pub(super) fn open(
        &mut self,
        plan: &XdpPlan,
        dealt: Dealt<'_>,
        program: &mut XdpProgram,
    ) -> Result<Opened, XdpError> {
        let XdpPlan { interface, mode: asked, port, .. } = plan;
        let is_generic = *asked == XdpMode::Generic || generic_by_role(interface.role).is_some();
        let expected = if is_generic { ActiveMode::Generic } else { ActiveMode::Native };
        let (mut rings, mut zero_copy) = self.open_as_chosen(plan, dealt, program, expected)?;
        let log = self.config.log_refusals.then(|| LogThread::start(program)).transpose()?;
        let wanted =
            [ActiveMode::Native, ActiveMode::Generic].into_iter().find(|mode| *asked == (*mode).into());
        // A slave has that of its bond.
        program.set_mac(self.neighbours.mac().unwrap_or(port.mac))?;
        let mode = program.attach(&interface.name, wanted)?;
        if mode == ActiveMode::Generic && zero_copy.binding.zero_copy {
            // The driver refuses the program, and to send from sockets without it.
            program.detach();
            drop(rings);
            self.take_back(dealt);
            (rings, zero_copy) = self.open_as_chosen(plan, dealt, program, mode)?;
            program.attach(&interface.name, Some(mode))?;
        }
        let zero_copy = zero_copy.given_mode(mode);
        let is_lesser = *asked == XdpMode::Auto && mode == ActiveMode::Generic;
        let by_role = generic_by_role(interface.role).map(str::to_owned);
        let reason = by_role.or_else(|| program.native_refusal()).filter(|_| is_lesser);
        tracing::info!(interface = interface.name, %mode, reason, %zero_copy, "rings are open");
        Ok(Opened { rings, mode, reason, zero_copy, log })
    }

    /// Opens the queues with zero copy where that is chosen and can be had.
    fn open_as_chosen(
        &mut self,
        plan: &XdpPlan,
        dealt: Dealt<'_>,
        program: &mut XdpProgram,
        mode: ActiveMode,
    ) -> Result<(Vec<Rings>, Chosen), XdpError> {
        let XdpPlan { interface, zero_copy: option, port, .. } = plan;
        let must_not = |reason: Reason| XdpError::NoZeroCopy {
            interface: interface.name.clone(),
            reason: reason.to_string(),
        };
        let features = if *option == ZeroCopy::Off { None } else { xdp_features(interface.index)? };
        let asked = Asked { option: *option, mode, mtu_bytes: port.mtu_bytes, features };
        let chosen = match plan.is_zero_copy_deaf {
            true => Chosen::copying(mode, Reason::Deaf),
            false => zero_copy::choose(&asked).map_err(must_not)?,
        };
        match self.queues(dealt, program, &chosen) {
            Err(XdpError::Socket(SocketError::NoZeroCopy { source, .. })) => {
                self.take_back(dealt);
                let reason = Reason::Refused(source);
                if *option == ZeroCopy::On {
                    return Err(must_not(reason));
                }
                self.queues(dealt, program, &Chosen::copying(mode, reason))
            }
            opened => opened,
        }
    }

    /// Takes frames back that drivers began with, of queues that were closed.
    pub(super) fn take_back(&mut self, Dealt { first, owners, .. }: Dealt<'_>) {
        for (queue, &owner) in (first..).zip(owners) {
            match self.umem.reclaim_queue(self.interface.index, queue, RECLAIM_PATIENCE) {
                Ok(frames) => {
                    let share = self.share_of(owner);
                    self.frames[share].extend(frames);
                }
                Err(error) => tracing::warn!(%error, queue, "frames of a closed queue are missing"),
            }
        }
    }

    /// Which of the frames are for a queue of this shard.
    fn share_of(&self, owner: usize) -> usize {
        owner.min(self.frames.len() - 1)
    }

    /// Opens a socket per (queue, shard), puts those of shards that receive into the program's map, also for
    /// the others, and hands each shard its own. Each queue is owned by one.
    pub(super) fn queues(
        &mut self,
        dealt: Dealt<'_>,
        program: &mut XdpProgram,
        chosen: &Chosen,
    ) -> Result<(Vec<Rings>, Chosen), XdpError> {
        let (interface, serving, shards) = (self.interface, self.serving, self.shards);
        let mut rings: Vec<Rings> = (0..shards).map(|_| self.none(dealt.most_owned)).collect();
        let stand_in = |shard: u32| usize::from(serving.stand_in(ShardId(shard as u8)).0);
        let only_send = (0..shards).filter(|shard| !serving.has(ShardId(*shard as u8)));
        let transmit_only = only_send.fold(0, |bits, shard| bits | 1_u64 << shard);
        let patience = if interface.xdp_program_id.is_some() { OCCUPIED_PATIENCE } else { RECLAIM_PATIENCE };
        let mut given = chosen.clone();
        for (queue, &owner) in (dealt.first..).zip(dealt.owners) {
            let mut queue_config = QueueConfig::new(interface.index, queue);
            (queue_config.socket_count, queue_config.transmit_only) = (shards, transmit_only);
            (queue_config.rings, queue_config.binding) = (self.config.rings, given.binding);
            queue_config.patience = patience;
            let share = self.share_of(owner);
            let frames = &mut self.frames[share];
            let mut stock = frames.split_off(frames.len().saturating_sub(self.prime as usize));
            let opened = xsk::open_queue_with(&self.umem, &queue_config, &mut stock);
            frames.append(&mut stock);
            let opened = opened?;
            given = given.given(opened.binding);
            let device = opened.sockets[owner].device.clone();
            let (fill, completion) = (opened.fill, opened.completion);
            let Binding { zero_copy, .. } = opened.binding;
            let owned = OwnedQueue::new(interface.index, Some(device), fill, completion, zero_copy);
            for shard in 0..shards {
                program.set_socket(queue, shard, &opened.sockets[stand_in(shard)].device)?;
            }
            let how = (opened.binding, given.descriptors_max());
            for (shard, socket) in opened.sockets.into_iter().enumerate() {
                let sends = queue < interface.tx_queues;
                let mut lane = Lane::new((interface.index, queue), socket, sends, how);
                owned.lend_to(&mut lane, Some(owner).filter(|owner| *owner != shard));
                rings[shard].lanes.push(lane);
            }
            rings[owner].owned.push(owned);
        }
        Ok((rings, given))
    }
}
