//! NIs over `AF_XDP` rings.
//!
//! Invariants: the frames of all interfaces lie in one memory, whose size was fixed at the start, and which
//! each interface has registered for itself; an interface is refused for which there are too few; NIs of one
//! interface share its program and its rings; when the last of them is closed, the frames that the kernel has
//! of it go home to their shards.
//!
//! A driver with zero copy wants frames to receive into before it is told of a socket. Those of the first
//! interface are at hand, as shards have none yet. So that there are some for later ones, a few are spared:
//! they never reach a shard, unless by such an interface.

use std::collections::BTreeMap;
use std::sync::Arc;

use lnet_core::handle::ShardSet;
use lnet_io::driver::Part;
use lnet_io::kind::{Host, InterfaceError, NiRequest};
use lnet_io::netlink::{Interface, Neighbours, Role, VlanTags, cuts_runs, queues_now};
use lnet_io::port;
use lnet_io::xsk::{self, Census, Frame, RingSizes, Umem, UmemConfig};
use lnet_model::lnd::{NiOption, ZeroCopy};
use lnet_model::ni::XdpMode;
use lnet_model::pattern::cpts_text;
use lnet_wire::MessageType;
use lnet_wire::steer::{PolicyWord, QUEUES_MAX};

use super::carrier::{Facts, OpenCarrier};
use super::instead::Rung;
use super::link::{Deafness, LinkState};
use super::log::LogThread;
use super::opening::{Dealt, Opened, Opening, RECLAIM_PATIENCE, deal_out, prime, spare};
use super::plan::XdpPlan;
use super::programs::{SharedProgram, lock};
use super::zero_copy::Chosen;
use super::{XdpConfig, XdpError, XdpKind, XdpNet, XdpNi, words_of};
use crate::bpf::{ActiveMode, Object, ObjectKind, XdpProgram};
use crate::lnd::{self, Bulk, FurtherQueues, Port, RingPort, Rings, SharedRuns, UmemShare, XdpLnd, XdpPort};

/// Frames with which a queue that has come can take a burst; with fewer it gets no sockets.
const QUEUE_FRAMES_MIN: u32 = 256;

/// What NIs over rings have in common, while there are any.
#[derive(Debug)]
pub(super) struct RingNet {
    umem: Arc<Umem>,
    links: Vec<RingLink>,
    /// Frames for the rings of interfaces to come.
    spare: Vec<Frame>,
    /// Queues that were closed and that the kernel has not let go of: interface and queue.
    left: Vec<(u32, u32)>,
}

/// An interface with rings.
#[derive(Debug)]
struct RingLink {
    interface: Interface,
    program: SharedProgram,
    mode: ActiveMode,
    /// Why they are as they are, where that is not the best.
    reason: Option<String>,
    zero_copy: Chosen,
    neighbours: Arc<Neighbours>,
    /// The shard that owns each queue that has sockets.
    owners: Vec<usize>,
    /// State that its NIs tell.
    state: Arc<LinkState>,
    /// The shards that have receive rings.
    serving: ShardSet,
    /// VLAN tags stay in frames while there is an XDP program, so that it sees whose frames they are.
    _tags: Option<VlanTags>,
    /// Outlives the program, so that its last lines are printed too.
    _log: Option<LogThread>,
}

impl From<ActiveMode> for XdpMode {
    fn from(mode: ActiveMode) -> Self {
        match mode {
            ActiveMode::Native => Self::Native,
            ActiveMode::Generic => Self::Generic,
        }
    }
}

/// Deals queues out to the shards that serve them, to those first that own fewest; the owner of each.
fn deal(owned: &mut [u32], queues: u32, serving: ShardSet) -> Vec<usize> {
    let serving: Vec<_> = serving.iter().map(|shard| usize::from(shard.0)).collect();
    let owner = |_| {
        let least = serving.iter().copied().min_by_key(|shard| owned[*shard]).unwrap_or(0);
        owned[least] += 1;
        least
    };
    (0..queues).map(owner).collect()
}

/// Has a device leave VLAN tags in frames; says so where it does not.
fn keep_tags(Interface { name, index, .. }: &Interface) -> Option<VlanTags> {
    match VlanTags::keep(*index) {
        Ok(tags) if tags.are_lost() => {
            tracing::info!(
                interface = name,
                "the device takes VLAN tags off frames (rx-vlan-offload): those of a VLAN that it lets in are taken as well"
            );
            None
        }
        Ok(tags) => Some(tags),
        Err(error) => {
            tracing::warn!(interface = name, %error, "frames of other VLANs may be taken");
            None
        }
    }
}

/// Queues of an interface that are dealt out.
struct Dealing {
    /// The shard that owns each.
    owners: Vec<usize>,
    /// Queues that the shard owns which owns most.
    most_owned: u32,
    /// Frames that each queue has at most.
    fill: u32,
    /// Words for a lack of frames.
    scarce: Option<String>,
}

impl RingNet {
    /// Counts the frames by who has them, but for those that are spared.
    pub(super) fn census(&self) -> Census {
        let Census { user, kernel } = self.umem.census();
        Census { user: user - self.spare.len() as u32, kernel }
    }
}

impl XdpKind {
    /// Opens an NI over rings: sockets and rings first, the XDP program last, so that no frame is steered to
    /// a shard that is not there.
    pub(super) fn open_rings(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
        plan: &XdpPlan,
        why: Option<&str>,
    ) -> Result<(XdpNi, Vec<Part<XdpLnd>>), XdpError> {
        if plan.interface.mac.is_none() {
            return Err(InterfaceError::NotEthernet(plan.interface.name.clone()).into());
        }
        let index = plan.interface.index;
        let known =
            self.rings().and_then(|net| net.links.iter().position(|link| link.interface.index == index));
        match known {
            Some(link) => self.share_link(host, link, request, plan),
            None => self.open_link(host, request, plan, why),
        }
    }

    /// One more NI on an interface that has rings.
    fn share_link(
        &mut self,
        host: &Host,
        index: usize,
        request: &NiRequest<'_>,
        plan: &XdpPlan,
    ) -> Result<(XdpNi, Vec<Part<XdpLnd>>), XdpError> {
        let none = (0..host.shard_count()).map(|_| (None, None));
        let Some(net) = self.rings() else { unreachable!("the link was found") };
        let link = &net.links[index];
        let how = (link.mode, &link.zero_copy);
        let (ports, carrier) = ring_ports(&self.config, host, (request, plan), how, none);
        if plan.mode != XdpMode::Auto && plan.mode != link.mode.into() {
            let present = format!(
                "the XDP program of another NI in {active} mode: NIs of one interface share it, so mode {active} or auto is \
                 expected",
                active = link.mode
            );
            return Err(InterfaceError::Unsuitable { interface: plan.interface.name.clone(), present }.into());
        }
        if plan.serving != link.serving {
            let shards: Vec<_> = link.serving.iter().map(|shard| u32::from(shard.0)).collect();
            let present = format!(
                "the rings of another NI, on CPT {}: NIs of one interface share them, so the same CPTs are expected",
                cpts_text(&shards)
            );
            return Err(InterfaceError::Unsuitable { interface: plan.interface.name.clone(), present }.into());
        }
        let has = link.zero_copy.binding.zero_copy;
        let other = if has { ZeroCopy::Off } else { ZeroCopy::On };
        if plan.zero_copy == other {
            let present = format!(
                "the rings of another NI with zero copy {}: NIs of one interface share them, so zero_copy {} or auto is \
                 expected",
                link.zero_copy,
                if has { ZeroCopy::On } else { ZeroCopy::Off }
            );
            return Err(InterfaceError::Unsuitable { interface: plan.interface.name.clone(), present }.into());
        }
        let reserved = port::reserve(plan.port.udp_address())?;
        lock(&link.program).add_endpoint(plan.port.address, plan.port.udp_port)?;
        let (neighbours, mode) = (Arc::clone(&link.neighbours), link.mode.into());
        let state = Arc::clone(&link.state);
        if !plan.is_auto {
            state.retain();
        }
        state.note_address(&plan.port.address);
        let (reason, zero_copy) = (link.reason.clone(), Some(link.zero_copy.to_string()));
        let (_, parts) = self.keep(None, ports);
        let open = plan.opened(mode, (neighbours, state), Some(reserved));
        Ok((XdpNi { reason, zero_copy, carrier: Box::new(carrier), ..open }, parts))
    }

    fn open_link(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
        plan: &XdpPlan,
        why: Option<&str>,
    ) -> Result<(XdpNi, Vec<Part<XdpLnd>>), XdpError> {
        let Dealing { mut owners, most_owned, fill, scarce } = self.owners_of(host, plan)?;
        let is_replaceable = self.is_replaceable(plan);
        let mut program = self.load_program(host, plan.port)?;
        let neighbours = host.follow(&plan.interface, true)?;
        let reserved = port::reserve(plan.port.udp_address())?;
        // First: some drivers reset the link for that, as they do for an XDP program.
        let tags = keep_tags(&plan.interface);
        let fresh = self.fresh(host)?;
        let (mut fresh_net, frames) = match self.rings() {
            Some(_) => (None, None),
            None => Some(self.make_ring_net(host)?).unzip(),
        };
        let is_first = fresh_net.is_some();
        let further =
            self.frames_per_shard.saturating_sub(self.wanted_for(&owners, host)) / self.config.rings.fill;
        let known = self.net.as_mut().and_then(|net| net.rings.as_mut());
        let Some(net) = fresh_net.as_mut().or(known) else { unreachable!("one was made") };
        let umem = Arc::clone(&net.umem);
        // Frames that the shards have yet to get are at hand.
        let mut frames = frames.map(|frames| deal_out(self.frames_per_shard, host, frames));
        let of_spare = [std::mem::take(&mut net.spare)];
        let mut opening = Opening {
            config: &self.config,
            shards: host.shard_count(),
            umem: Arc::clone(&umem),
            interface: &plan.interface,
            serving: plan.serving,
            neighbours: &neighbours,
            frames: frames.take().unwrap_or(of_spare.into()),
            prime: if is_first { fill } else { prime(&self.config) },
        };
        let dealt = Dealt { first: 0, owners: &owners, most_owned };
        let opened = opening.open(plan, dealt, &mut program);
        if opened.is_err() && !is_first {
            opening.take_back(dealt);
        }
        let mut left = std::mem::take(&mut opening.frames);
        if opened.is_err() && !is_first {
            net.spare = left.pop().unwrap_or_default();
        }
        let Opened { mut rings, mode, reason, zero_copy, log } = opened?;
        if let Some(scarce) = &scarce {
            tracing::warn!(interface = plan.interface.name, "{scarce}");
        }
        let reason = words_of([why.map(str::to_owned), reason, scarce]);
        if is_first {
            net.spare = spare(&mut left, further * prime(&self.config));
        }
        let state = LinkState::new(owners.len() as u32, neighbours.queues(), is_replaceable);
        state.note_address(&plan.port.address);
        // Drivers take further queues for a program (virtio), of which netlink tells nothing.
        let counted = queues_now(&plan.interface.name);
        if let Some((receive, transmit)) = counted {
            let known = (plan.interface.index, owners.as_slice());
            let more =
                self.further_owners(host, known, plan.serving, receive).and_then(|(further, most_owned)| {
                    let dealt = Dealt { first: owners.len() as u32, owners: &further, most_owned };
                    (opening.frames, opening.prime) = (std::mem::take(&mut left), prime(&self.config));
                    let more = opening.queues(dealt, &mut program, &zero_copy.of_further_queues());
                    if more.is_err() {
                        opening.take_back(dealt);
                    }
                    left = std::mem::take(&mut opening.frames);
                    Ok((further, more.map_err(|error| error.to_string())?))
                });
            match more {
                Ok((further, (more, _))) if !further.is_empty() => {
                    rings.iter_mut().zip(more).for_each(|(rings, more)| rings.extend(more));
                    owners.extend(further);
                    state.serve(owners.len() as u32);
                }
                Ok(_) => {}
                Err(lacking) => state.note_unserved(&plan.interface.name, receive, &lacking),
            }
            // Transmit queues that are counted besides are those of the driver's for programs.
            state.note_counted((receive, transmit));
        }
        if let (false, Some(net)) = (is_first, self.rings_mut()) {
            net.spare = left.pop().unwrap_or_default();
        }
        let mut frames = is_first.then(|| left.into_iter());
        let followed = (&neighbours, plan.interface.index);
        let program = self.programs.add(program, followed, (&state, &umem))?;
        follow_mac(&neighbours, &program);
        let interface = plan.interface.clone();
        let (follows, serving) = (Arc::clone(&neighbours), plan.serving);
        let words = Some(zero_copy.to_string());
        let shares = rings.into_iter().map(|rings| {
            let frames = frames.as_mut().and_then(Iterator::next);
            let share = |frames: Vec<_>| UmemShare { umem: Arc::clone(&umem), frames: frames.into() };
            (frames.map(share), Some(rings))
        });
        let how = (mode, &zero_copy);
        let (ports, carrier) = ring_ports(&self.config, host, (request, plan), how, shares);
        let link = RingLink {
            interface,
            program,
            mode,
            reason: reason.clone(),
            zero_copy,
            neighbours: follows,
            owners,
            state: Arc::clone(&state),
            serving,
            _tags: tags,
            _log: log,
        };
        let (xdp, parts) = self.keep(fresh, ports);
        if let Some(net) = fresh_net {
            xdp.rings = Some(net);
        }
        let Some(net) = &mut xdp.rings else { unreachable!("one was there, or was made") };
        net.links.push(link);
        let open = plan.opened(mode.into(), (neighbours, state), Some(reserved));
        Ok((XdpNi { reason, zero_copy: words, carrier: Box::new(carrier), ..open }, parts))
    }

    /// Rings that are found to be deaf: their rung, the name of their interface, and how they were found so.
    pub(super) fn deaf_link(&self, index: u32) -> Option<(Rung, String, Deafness)> {
        let link = self.rings()?.links.iter().find(|link| link.interface.index == index)?;
        let rung = Rung::of(link.mode, link.zero_copy.binding.zero_copy);
        Some((rung, link.neighbours.name(), link.state.deaf()?))
    }

    /// Deals the queues out of an interface with so many receive queues that have no sockets yet; with how
    /// many queues the shard owns then that owns most. They share the memory that the node has.
    ///
    /// # Errors
    /// Words for what is lacking, and the way out.
    fn further_owners(
        &self,
        host: &Host,
        (index, owners): (u32, &[usize]),
        serving: ShardSet,
        receive: u32,
    ) -> Result<(Vec<usize>, u32), String> {
        let known = owners.len() as u32;
        if receive > QUEUES_MAX {
            return Err(format!("steering reaches {QUEUES_MAX} queues"));
        }
        let more = receive.saturating_sub(known);
        let others = self.rings().into_iter().flat_map(|net| &net.links);
        let others: Vec<_> = others.filter(|link| link.interface.index != index).collect();
        let mut owned = vec![0; host.shard_count() as usize];
        others.iter().flat_map(|link| &link.owners).chain(owners).for_each(|owner| owned[*owner] += 1);
        let further = deal(&mut owned, more, serving);
        let most = owned.into_iter().max().unwrap_or(1).max(1);
        let sockets = self.open.iter().filter(|open| open.mode == XdpMode::Socket).count() as u32;
        let elsewhere: u32 = others.iter().map(|link| link.owners.len() as u32).sum();
        if elsewhere + receive + sockets > self.queues_max {
            return Err(format!(
                "the node was started for {} queues (`lnetd --queues-max`)",
                self.queues_max
            ));
        }
        let RingSizes { fill, tx, .. } = self.config.rings;
        let out = self.rings().map_or(0, |net| net.left.len() as u32 * fill);
        let fixed = tx * (others.len() as u32 + 1) + self.config.early_chunks_max() + out;
        let share = self.frames_per_shard.saturating_sub(fixed) / most;
        let least = fill.min(QUEUE_FRAMES_MIN);
        if more != 0 && share < least {
            let wanted = u64::from((fixed + least * most) * host.shard_count());
            let megabytes = (wanted * u64::from(xsk::CHUNK_BYTES)).div_ceil(1 << 20);
            return Err(format!("their rings want more memory (`lnetd --memory {megabytes}M`)"));
        }
        Ok((further, most))
    }

    /// Follows the queues of an interface: those that have come get sockets, on all shards. Queues that the
    /// driver has given up keep theirs, since the kernel does not take queues away that have some; no frame
    /// arrives there or leaves by them.
    pub(super) fn follow_queues(&mut self, host: &Host, port: &Port) -> Vec<Part<XdpLnd>> {
        let (index, shards) = (port.interface_index, host.shard_count());
        let Some(net) = self.rings() else { return Vec::new() };
        let Some(link) = net.links.iter().find(|link| link.interface.index == index) else {
            return Vec::new();
        };
        let Some((receive, transmit)) = link.neighbours.queues() else { return Vec::new() };
        let former = link.state.note_counted((receive, transmit));
        let (state, umem, program) =
            (Arc::clone(&link.state), Arc::clone(&net.umem), Arc::clone(&link.program));
        let (mut interface, neighbours) = (link.interface.clone(), Arc::clone(&link.neighbours));
        interface.name = neighbours.name();
        // A driver that counts others than it sends by does so from the attach on.
        if former.is_some_and(|(_, before)| before != transmit) {
            interface.tx_queues = transmit;
        }
        let first = link.owners.len() as u32;
        let dealt = self.further_owners(host, (index, &link.owners), link.serving, receive);
        let (serving, zero_copy) = (link.serving, link.zero_copy.of_further_queues());
        let Some(net) = self.rings_mut() else { unreachable!("the link was found") };
        let of_spare = std::mem::take(&mut net.spare);
        let mut opening = Opening {
            config: &self.config,
            shards,
            umem,
            interface: &interface,
            serving,
            neighbours: &neighbours,
            frames: vec![of_spare],
            prime: prime(&self.config),
        };
        let opened = dealt.and_then(|(further, most_owned)| {
            let mut program = lock(&program);
            let dealt = Dealt { first, owners: &further, most_owned };
            let opened = opening.queues(dealt, &mut program, &zero_copy);
            if opened.is_err() {
                opening.take_back(dealt);
            }
            let (rings, _) = opened.map_err(|error| error.to_string())?;
            if interface.role == Role::Veth && !further.is_empty() {
                program.attach_anew().map_err(|error| error.to_string())?;
            }
            Ok((further, rings))
        });
        let (further, rings) = opened.unwrap_or_else(|lacking| {
            state.note_unserved(&interface.name, receive, &lacking);
            let most_owned = 0;
            (Vec::new(), (0..shards).map(|_| opening.none(most_owned)).collect())
        });
        let spare = opening.frames.pop().unwrap_or_default();
        let Some(net) = self.rings_mut() else { unreachable!("the link was found") };
        net.spare = spare;
        let Some(link) = net.links.iter_mut().find(|link| link.interface.index == index) else {
            unreachable!("the link was found");
        };
        let is_same = further.is_empty() && link.interface.tx_queues == interface.tx_queues;
        link.interface.tx_queues = interface.tx_queues;
        link.owners.extend(further);
        if link.owners.len() as u32 >= receive {
            state.serve(link.owners.len() as u32);
        }
        if is_same {
            return Vec::new();
        }
        let (queues, interface) = (link.owners.len(), interface.name);
        tracing::info!(
            interface,
            queues,
            transmit,
            "the queues of an interface are others: all have sockets"
        );
        let transmit_queues = link.interface.tx_queues;
        let further = |rings| XdpPort::Queues(FurtherQueues { port: *port, rings, transmit_queues });
        let ports = rings.into_iter().map(further);
        Part::of_shards(Vec::new(), ports.collect())
    }

    /// Deals the queues of an interface out to the shards that serve it; with how many queues the shard owns
    /// that owns most. Where frames are too few, queues share those that there are if the mode is `auto`, and
    /// these are enough for a burst; else the interface is refused.
    fn owners_of(
        &mut self,
        host: &Host,
        XdpPlan { interface, serving, is_auto, .. }: &XdpPlan,
    ) -> Result<Dealing, XdpError> {
        self.reclaim_left();
        let links = self.rings().into_iter().flat_map(|net| &net.links);
        let mut owned = vec![0; host.shard_count() as usize];
        let mut count = 1;
        for link in links {
            count += 1;
            link.owners.iter().for_each(|owner| owned[*owner] += 1);
        }
        let owners = deal(&mut owned, interface.rx_queues, *serving);
        let most = owned.into_iter().max().unwrap_or(0);
        let RingSizes { fill, tx, .. } = self.config.rings;
        let out = self.rings().map_or(0, |net| net.left.len() as u32 * fill);
        let wanted = self.config.frames_per_shard(count, most).saturating_add(out);
        if wanted <= self.frames_per_shard {
            return Ok(Dealing { owners, most_owned: most, fill, scarce: None });
        }
        let fixed = tx * count + self.config.early_chunks_max() + out;
        let share = self.frames_per_shard.saturating_sub(fixed) / most.max(1);
        let refused = XdpError::Frames {
            interface: interface.name.clone(),
            queues: interface.rx_queues,
            wanted: wanted.saturating_mul(host.shard_count()),
            present: self.frames_per_shard * host.shard_count(),
        };
        if !is_auto || share < fill.min(QUEUE_FRAMES_MIN) {
            return Err(refused);
        }
        let scarce = Some(format!("{share} frames for a queue instead of {fill}: {refused}"));
        Ok(Dealing { owners, most_owned: most, fill: share, scarce })
    }

    /// Frames of each shard that the first interface wants.
    fn wanted_for(&self, owners: &[usize], host: &Host) -> u32 {
        let owned = (0..host.shard_count() as usize)
            .map(|shard| owners.iter().filter(|owner| **owner == shard).count() as u32);
        self.config.frames_per_shard(1, owned.max().unwrap_or(0))
    }

    fn load_program(&self, host: &Host, port: Port) -> Result<XdpProgram, XdpError> {
        let config = &self.config;
        let kind = if config.log_refusals { ObjectKind::Logging } else { ObjectKind::Default };
        let object = config.bpf_object.clone().map_or_else(|| Object::of(kind), Object::File);
        let mut program = XdpProgram::load(&object)?;
        program.add_endpoint(port.address, port.udp_port)?;
        for (portal, word) in (0..).zip(&host.steering.policies) {
            if let Some(policy) = word.unpack().filter(|_| *word != PolicyWord::default()) {
                program.set_policy(portal, policy)?;
            }
        }
        if config.frame_loss_per_million != 0 {
            for message_type in [MessageType::Ack, MessageType::Put, MessageType::Get, MessageType::Reply] {
                program.set_fault(message_type, config.frame_loss_per_million, 0)?;
            }
        }
        if self.programs.logs() {
            program.set_logging(true)?;
        }
        Ok(program)
    }

    /// The memory of the frames, and these.
    fn make_ring_net(&self, host: &Host) -> Result<(RingNet, Vec<Frame>), XdpError> {
        let (umem, frames) = Umem::new(&UmemConfig {
            registered_bytes: self.config.registered_bytes,
            ..UmemConfig::new(self.frames_per_shard * host.shard_count())
        })?;
        Ok((RingNet { umem, links: Vec::new(), spare: Vec::new(), left: Vec::new() }, frames))
    }

    /// Closes an NI over rings.
    pub(super) fn close_rings(&mut self, host: &Host, port: &Port, parts: Vec<Part<XdpLnd>>, is_deaf: bool) {
        let shards = host.shard_count();
        let is_shared = self.any_open(|open| open.has_rings_of(port.interface_index));
        let programs = Arc::clone(&self.programs);
        let Some(net) = self.rings_mut() else { return };
        let Some(index) = net.links.iter().position(|link| link.interface.index == port.interface_index)
        else {
            return;
        };
        if let Err(error) = lock(&net.links[index].program).remove_endpoint(port.address, port.udp_port) {
            tracing::warn!(%error, "frames of an NI that is closed go on being steered");
        }
        if is_shared {
            return;
        }
        let RingLink { interface, program, owners, _tags: tags, _log: log, .. } = net.links.remove(index);
        let queues = 0..owners.len() as u32;
        lock(&program).detach();
        for (queue, shard) in queues.clone().flat_map(|queue| (0..shards).map(move |shard| (queue, shard))) {
            // A map that is about to go holds no sockets either.
            let _ = lock(&program).clear_socket(queue, shard);
        }
        programs.remove(&program, is_deaf);
        // The program sees tags until its end, and its last lines are printed.
        drop(program);
        drop((tags, log));
        drop(parts);
        if net.links.is_empty() {
            // The shards have given up their frames: they go with the memory.
            self.net.iter_mut().for_each(|net| net.rings = None);
        } else {
            net.left.extend(queues.map(|queue| (interface.index, queue)));
            self.reclaim_left();
        }
    }

    /// Sends the frames home that the kernel has let go of.
    fn reclaim_left(&mut self) {
        let prime = prime(&self.config) as usize;
        let Some(XdpNet { rings: Some(net), return_rings, .. }) = &mut self.net else { return };
        let RingNet { umem, left, spare, .. } = net;
        left.retain(|(interface_index, queue)| match umem.reclaim_queue(*interface_index, *queue, RECLAIM_PATIENCE) {
            Ok(mut frames) => {
                spare.extend(frames.drain(..prime.min(frames.len())));
                return_rings.send(frames);
                false
            }
            Err(error) => {
                tracing::warn!(%error, interface_index, queue, "frames of a closed queue are missing until the kernel lets go of it");
                true
            }
        });
    }

    /// Chunks of each shard: what was asked for, or what the NIs need that there are at first.
    pub(super) fn first_frames_per_shard(&self, host: &Host, plans: &[&XdpPlan]) -> u32 {
        if let Some(frames) = self.config.frames {
            return frames / host.shard_count();
        }
        let with_rings = plans.iter().filter(|plan| plan.mode != XdpMode::Socket);
        let mut links = BTreeMap::<u32, &XdpPlan>::new();
        for plan in with_rings {
            // The first NI of an interface brings its rings.
            links.entry(plan.interface.index).or_insert(plan);
        }
        let mut owned = vec![0; host.shard_count() as usize];
        for plan in links.values() {
            deal(&mut owned, plan.interface.rx_queues, plan.serving);
        }
        let most = owned.into_iter().max().unwrap_or(1).max(1);
        self.config.frames_per_shard(links.len().max(1) as u32, most)
    }

    /// Receive queues of interfaces with rings.
    pub(super) fn ring_queues(&self) -> u32 {
        self.rings().into_iter().flat_map(|net| &net.links).map(|link| link.owners.len() as u32).sum()
    }
}

/// Has a program take frames to the Ethernet address that the interface has, whenever that changes.
fn follow_mac(neighbours: &Neighbours, program: &SharedProgram) {
    let program = Arc::downgrade(program);
    neighbours.subscribe_mac(Box::new(move |mac| {
        if let Some(program) = program.upgrade()
            && let Err(error) = lock(&program).set_mac(mac)
        {
            tracing::warn!(%error, "frames to the interface's new Ethernet address are not steered");
        }
    }));
}

/// The port of each shard, and what takes long messages.
fn ring_ports(
    config: &XdpConfig,
    host: &Host,
    (request, plan): (&NiRequest<'_>, &XdpPlan),
    (mode, zero_copy): (ActiveMode, &Chosen),
    shares: impl Iterator<Item = (Option<UmemShare>, Option<Rings>)>,
) -> (Vec<XdpPort>, OpenCarrier) {
    let shards = host.shard_count();
    let unresolved_responses_max = unresolved_responses_max(request, shards);
    let sharers = plan.serving.sharers_max(shards as u8);
    let receive_bytes = lnd::receive_bytes(&config.rings, shards, sharers);
    let frame_max_bytes = zero_copy.frame_max_bytes(lnd::frame_max_bytes(&config.rings));
    let runs = SharedRuns::default();
    let sockets: Result<Vec<_>, _> =
        (0..shards).map(|_| Bulk::open(&plan.port, frame_max_bytes, &runs)).collect();
    let is_veth = plan.interface.role == Role::Veth;
    let facts = Facts {
        has_device: plan.interface.has_device,
        is_veth,
        cuts_runs: cuts_runs(plan.interface.index).unwrap_or_default(),
        zero_copy: zero_copy.binding.zero_copy,
        no_socket: sockets.as_ref().err().map(ToString::to_string),
    };
    let carrier = OpenCarrier::beside_rings(request.options.carrier(), facts, &runs);
    let of_shards = carrier.choice().map(|chosen| chosen.of_shards());
    // Runs are cut up before a card, or by the other end of a veth. A tap hands its program whole runs
    // (`tun_xdp_one` in drivers/net/tun.c).
    let is_cut_up = plan.interface.has_device || is_veth;
    let sees_no_runs = mode == ActiveMode::Native && is_cut_up;
    let mut sockets = sockets.unwrap_or_default().into_iter();
    let port = |(frames, rings)| {
        let mut bulk = sockets.next();
        bulk.iter_mut().zip(of_shards).for_each(|(bulk, carrier)| bulk.set_carrier(carrier));
        let port = RingPort::new(plan.port, receive_bytes, frame_max_bytes, unresolved_responses_max);
        let port = port.with_bulk(bulk).with_runs(sees_no_runs);
        XdpPort::Rings { port, frames, rings }
    };
    let ports = shares.map(port).collect();
    (ports, carrier)
}

/// ACKs and REPLYs of a shard that may wait for a next hop by an NI: half of its credits on a shard, or all
/// that one peer may have of them.
fn unresolved_responses_max(request: &NiRequest<'_>, shards: u32) -> u32 {
    let share = |credits: Option<u32>| credits.unwrap_or(1).div_ceil(shards);
    (share(request.options.number(NiOption::Credits)) / 2)
        .max(share(request.options.number(NiOption::PeerCredits)))
}
