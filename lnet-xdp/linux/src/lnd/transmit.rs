//! The sending half of the `xdp` LND.

use std::time::Duration;

use lnet_core::errno;
use lnet_core::lnd::{Cause, Full, Lent, NiId, Status, Transmit, TxId, Uplink};
use lnet_core::time::Instant;
use lnet_io::capture::{Direction, Link};
use lnet_io::memory::Memory;
use lnet_io::netlink::{Asker, Mac, Resolution, Unreachable};
use lnet_io::xsk::RegisteredRuns;
use lnet_wire::Nid;
use lnet_wire::frame::Kind;
use lnet_xdp_proto::{Content, OutgoingFrame, Xfer};

use super::fault::Fate;
use super::frames::Source;
use super::lane::Followed;
use super::path::{End, LANE_PORT_BASE, Path};
use super::paths::PathId;
use super::ports::{Down, RingPort};
use super::unresolved::is_response;
use super::write::{write_frame, write_headers};
use super::{Bulk, CHUNK_BYTES, XdpLnd};

/// How long a message waits for its next hop to be found: three probes of the kernel, one second apart.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(3500);
/// How long a question waits that found no room.
const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// How long an interface may be down before its messages end without it: as long as a device may refuse, and
/// the second that the news of its coming up may take (`netlink`).
const DOWN_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a frame's payload from which on it is sent out of registered memory where it lies: fewer are
/// copied in less time than the kernel takes for one more descriptor (docs/performance-log.md).
const IN_PLACE_BYTES_MIN: u32 = CHUNK_BYTES;
/// Frames that are sent before something else is looked at.
const FLUSH_BUDGET: u32 = 64;
/// Bytes that are written for sockets before the kernel is given them: they are still in this CPU's cache
/// then.
const FLUSH_BYTES: usize = 128 << 10;

/// Why a message goes to no address of the other family than that of its NI.
const OTHER_FAMILY: Cause = Cause::System(errno::EAFNOSUPPORT);
const INTERFACE_DOWN: Resolution = Resolution::Unreachable(Unreachable::InterfaceDown);

/// Where a peer's next hop stands.
enum Hop {
    /// Frames take this path of `paths`.
    Known(PathId),
    Unknown,
    /// The interface is down, or was: the news that it is up again may be later than what arrives by it.
    Down,
    Unreachable,
    /// The peer's address is of the other family than that of the NI.
    OtherFamily,
}

impl XdpLnd {
    #[inline]
    pub(super) fn take_message(
        &mut self,
        now: Instant,
        Lent { transmit, more }: Lent<'_>,
        memory: &Memory,
    ) -> Result<(), Full<TxId>> {
        if let Some(index) = self.nis.socket_of(transmit.ni) {
            // The kernel finds next hops.
            if self.nis.sockets[index].port.is_of_other_family(&transmit.next_hop) {
                self.refuse(transmit, OTHER_FAMILY);
                return Ok(());
            }
            return self.xfer.submit(now, transmit);
        }
        match self.find_path(now, transmit.ni, &transmit.next_hop, asker_of(transmit)) {
            Hop::Known(path) if !more && self.send_alone(now, transmit, path, memory) => {}
            // The message is sent again, like those under way, until the interface is up, or has been down
            // for too long.
            Hop::Known(_) | Hop::Down => return self.transfer(now, transmit),
            Hop::Unknown if self.unresolved.takes(transmit) => {
                self.unresolved.push(now + RESOLVE_TIMEOUT, *transmit)
            }
            Hop::Unknown | Hop::Unreachable => self.refuse(transmit, Cause::Unreachable),
            Hop::OtherFamily => self.refuse(transmit, OTHER_FAMILY),
        }
        Ok(())
    }

    /// Hands a message whose next hop is known, or was and will be, to the transfer protocol.
    #[inline]
    fn transfer(&mut self, now: Instant, transmit: &Transmit) -> Result<(), Full<TxId>> {
        let given_up = |port: usize| {
            let RingPort { lane_index, link_index, .. } = &self.nis.ports[port];
            self.devices.lanes[*lane_index].is_given_up() && self.nis.links[*link_index].neighbours.is_gone()
        };
        let ring = self.nis.ring_of(transmit.ni);
        if ring.map_or_else(|| !self.nis.needs_no_hop(transmit.ni), given_up) {
            self.refuse(transmit, Cause::Device);
            return Ok(());
        }
        self.xfer.submit(now, transmit)
    }

    /// Sends a message that none follows, if nothing is in its way: its frame goes out first, and the books
    /// are kept while it is under way. Whether it did.
    #[inline]
    fn send_alone(&mut self, now: Instant, transmit: &Transmit, path: PathId, memory: &Memory) -> bool {
        let Some(lane_index) = self.clear_lane(transmit.ni) else { return false };
        // Looked at where it stands: what was put together just now is dear to move.
        let preview = self.xfer.preview(now, transmit);
        let Some(outgoing) = &preview else { return false };
        self.write(outgoing, path, memory);
        self.push(lane_index, &[]);
        self.flush_devices();
        if self.xfer.submit(now, transmit).is_err() {
            unreachable!("what has a preview is taken");
        }
        let polled = self.xfer.poll_transmit(now);
        debug_assert_eq!(polled, preview, "a preview is the frame that is polled");
        true
    }

    /// The lane of an NI, if nothing is in the way there.
    #[inline]
    fn clear_lane(&mut self, ni: NiId) -> Option<usize> {
        let lane_index = self.nis.ports[self.nis.ring_of(ni)?].lane_index;
        let is_clear = !self.faults.are_set() && !self.devices.lanes[lane_index].refuses() && self.has_room();
        is_clear.then_some(lane_index)
    }

    fn refuse(&mut self, transmit: &Transmit, cause: Cause) {
        self.counters.messages_refused += 1;
        self.ended.push_back((transmit.tx, Status::NeverSent(cause)));
    }

    /// Tries again what was waiting for a next hop when one has changed; ends what waited too long. Called
    /// once a turn.
    pub(super) fn follow_neighbours(&mut self, now: Instant) {
        self.refresh_paths();
        if self.unresolved.take_retry(now) {
            for _ in 0..self.unresolved.count() {
                let Some((deadline, transmit)) = self.unresolved.pop() else { break };
                match self.find_path(now, transmit.ni, &transmit.next_hop, asker_of(&transmit)) {
                    Hop::Known(_) | Hop::Down => {
                        if self.transfer(now, &transmit).is_err() {
                            self.unresolved.push(deadline, transmit);
                            self.unresolved.is_full = true;
                        }
                    }
                    Hop::Unknown => self.unresolved.push(deadline, transmit),
                    Hop::Unreachable => self.refuse(&transmit, Cause::Unreachable),
                    Hop::OtherFamily => self.refuse(&transmit, OTHER_FAMILY),
                }
            }
        }
        while self.unresolved.deadline().is_some_and(|deadline| deadline <= now) {
            if let Some((_, transmit)) = self.unresolved.pop() {
                self.refuse(&transmit, Cause::Unreachable);
            }
        }
    }

    /// Forgets all paths when a next hop that they were made of has changed, or an interface; tries what is
    /// parked again at each answer.
    #[inline]
    fn refresh_paths(&mut self) {
        if self.links_have_changed() {
            let mut is_past = false;
            for link in &mut self.nis.links {
                // Before anything is looked up; the generation first, which is raised after the epoch.
                link.generation = link.neighbours.generation();
                let epoch = link.neighbours.epoch();
                is_past |= std::mem::replace(&mut link.epoch, epoch) != epoch;
            }
            self.unresolved.retry = true;
            if is_past {
                self.paths.clear();
                self.follow_interfaces();
            }
        }
    }

    /// Whether there are answers that the shard has not looked at, or an interface has changed.
    #[inline]
    pub(super) fn links_have_changed(&self) -> bool {
        self.nis.links.iter().any(|link| link.generation != link.neighbours.generation())
    }

    /// Takes in the Ethernet addresses of the interfaces, and tells the transfer protocol how long datagrams
    /// may be now.
    pub(super) fn follow_interfaces(&mut self) {
        for RingPort { port, link_index, frame_max_bytes, .. } in &mut self.nis.ports {
            let neighbours = &self.nis.links[*link_index].neighbours;
            port.mac = neighbours.mac().unwrap_or(port.mac);
            let mtu = neighbours.mtu_bytes();
            if let Some(mtu_bytes) = mtu.filter(|bytes| *bytes as usize != port.mtu_bytes) {
                port.mtu_bytes = mtu_bytes as usize;
                self.xfer.set_datagram_max(port.ni, port.ring_datagram_max_bytes(*frame_max_bytes));
            }
        }
        let frames_bytes = self.nis.ports.iter().map(|open| open.port.frame_max_bytes(open.frame_max_bytes));
        self.devices.chunks_max = frames_bytes.max().unwrap_or(1).div_ceil(CHUNK_BYTES as usize);
    }

    /// The way to a peer, if its next hop is known.
    #[inline]
    fn find_path(&mut self, now: Instant, ni: NiId, nid: &Nid, asker: Asker) -> Hop {
        self.refresh_paths();
        self.paths.find(ni, nid).map_or_else(|| self.make_path(now, ni, nid, asker), Hop::Known)
    }

    fn make_path(&mut self, now: Instant, ni: NiId, nid: &Nid, asker: Asker) -> Hop {
        let (Some(index), Some(address)) = (self.nis.ring_of(ni), nid.ip()) else {
            return if self.nis.needs_no_hop(ni) { Hop::Down } else { Hop::Unreachable };
        };
        let RingPort { port, link_index, down, .. } = &mut self.nis.ports[index];
        if port.is_of_other_family(nid) {
            return Hop::OtherFamily;
        }
        let neighbours = &self.nis.links[*link_index].neighbours;
        let resolution = neighbours.lookup(address, asker);
        let news = Down { since: now, address, is_given_up: false };
        *down = (resolution == INTERFACE_DOWN).then(|| down.unwrap_or(news));
        let mac = match resolution {
            Resolution::Mac(mac) => mac,
            // Ask again all the same: the way may be back by the next message.
            Resolution::Unreachable(_) => {
                self.counters.hops_unasked += u64::from(!neighbours.request(address, asker));
                let waits = down.is_some_and(|down| !down.is_given_up);
                return if waits { Hop::Down } else { Hop::Unreachable };
            }
            Resolution::Unknown => {
                if !neighbours.request(address, asker) {
                    self.counters.hops_unasked += 1;
                    self.unresolved.ask_again_at = Some(now + ASK_INTERVAL);
                }
                return Hop::Unknown;
            }
        };
        match self.path_of(index, nid, mac) {
            Some(path) => Hop::Known(self.paths.insert((ni, *nid), path)),
            None => Hop::OtherFamily,
        }
    }

    /// The path by a port to a peer whose next hop has this Ethernet address.
    fn path_of(&self, index: usize, nid: &Nid, mac: Mac) -> Option<Path> {
        let RingPort { port, lane_index, .. } = &self.nis.ports[index];
        let lane_port = LANE_PORT_BASE + self.devices.lanes[*lane_index].queue as u16;
        let local = End { mac: port.mac, port: lane_port, nid: port.nid };
        Path::new(&local, &End { mac, port: port.udp_port, nid: *nid })
    }

    /// The path of an answer to a frame that showed no good token, for that answer alone: a stranger may have
    /// made its source up. A RESET goes back to where the frame came from, and says nothing that others may
    /// not know. A WELCOME has a token, which only the host that has the address may learn, so the kernel
    /// is asked for that, in the queue for strangers.
    fn path_back(&mut self, is_reset: bool, ni: NiId, nid: &Nid) -> Option<PathId> {
        self.refresh_paths();
        if let Some(known) = self.paths.find(ni, nid) {
            return Some(known);
        }
        let (index, address) = (self.nis.ring_of(ni)?, nid.ip()?);
        let neighbours = &self.nis.links[self.nis.ports[index].link_index].neighbours;
        let mac = match neighbours.lookup(address, Asker::Stranger) {
            Resolution::Mac(mac) => mac,
            _ if is_reset => self.refused_senders.take(ni, nid)?,
            _ => {
                self.counters.hops_unasked += u64::from(!neighbours.request(address, Asker::Stranger));
                return None;
            }
        };
        let path = self.path_of(index, nid, mac)?;
        Some(self.paths.insert_passing(path))
    }

    /// Sends what the transfer protocol has, while there is room and at most the budget.
    #[inline]
    pub(super) fn send_ready(&mut self, now: Instant, memory: &Memory) {
        self.wants_room = false;
        let mut written_bytes = 0;
        for _ in 0..FLUSH_BUDGET {
            if !self.xfer.has_transmit() {
                return;
            }
            if !self.has_room() || written_bytes >= FLUSH_BYTES {
                // What was pushed may have been sent by now.
                written_bytes = 0;
                self.flush_devices();
                self.take_completions(FLUSH_BUDGET);
                if !self.has_room() {
                    self.wants_room = true;
                    return;
                }
            }
            let Some(outgoing) = self.xfer.poll_transmit(now) else { return };
            if let Some(socket) = self.nis.socket_of(outgoing.ni) {
                written_bytes += self.send_datagram(socket, &outgoing, memory);
            } else if let Some(ring) = self.bulk_of(&outgoing) {
                written_bytes += self.send_bulk(ring, &outgoing, memory);
            } else {
                self.send(now, &outgoing, memory);
            }
        }
    }

    /// Whether there is room for one more frame, whichever it is and wherever it goes.
    #[inline]
    fn has_room(&mut self) -> bool {
        let chunks = self.devices.chunks_max;
        let lanes = &mut self.devices.lanes;
        (self.nis.ports.is_empty() || self.home.stock.len() >= chunks)
            && self.nis.ports.iter_mut().all(|RingPort { lane_index, bulk, .. }| {
                let lane = &mut lanes[*lane_index];
                (lane.refuses() || lane.has_room(chunks)) && bulk.as_mut().is_none_or(Bulk::has_room)
            })
            && self.nis.sockets.iter_mut().all(|socket| socket.endpoint.has_room())
    }

    /// Writes a frame and pushes it on its lane, which has room; lets it go where it cannot be sent.
    fn send(&mut self, now: Instant, outgoing: &OutgoingFrame, memory: &Memory) {
        let lane_index = self.nis.ring_of(outgoing.ni).map(|index| self.nis.ports[index].lane_index);
        let lane_index = lane_index.filter(|lane| !self.devices.lanes[*lane].refuses());
        let (ni, to) = (outgoing.ni, &outgoing.destination);
        let path = match outgoing.header.kind {
            kind @ (Kind::Welcome | Kind::Reset) => self.path_back(kind == Kind::Reset, ni, to),
            _ => match self.find_path(now, ni, to, Asker::Peer) {
                Hop::Known(path) => Some(path),
                _ => None,
            },
        };
        let Some((lane_index, path)) = lane_index.zip(path) else {
            self.counters.frames_let_go += 1;
            return;
        };
        match self.faults.next() {
            Fate::Sent => self.emit(outgoing, path, lane_index, memory),
            Fate::Doubled => {
                self.emit(outgoing, path, lane_index, memory);
                if !self.has_room() {
                    return;
                }
                self.emit(outgoing, path, lane_index, memory);
            }
            Fate::Delayed => {
                self.write(outgoing, path, memory);
                self.faults.delay(lane_index, &mut self.scratch.sending);
                return;
            }
        }
        self.send_overdue();
    }

    /// Writes a frame and pushes it on a lane with room for it.
    #[inline]
    fn emit(&mut self, outgoing: &OutgoingFrame, path: PathId, lane_index: usize, memory: &Memory) {
        match self.in_place(outgoing, path, lane_index, memory) {
            Some(runs) => self.emit_in_place(outgoing, path, lane_index, memory, runs),
            None => {
                self.write(outgoing, path, memory);
                self.push(lane_index, &[]);
            }
        }
    }

    /// The payload of a frame as descriptors can name it, if it is to be sent where it lies: it is long
    /// enough for that to pay, and the whole of it need not be looked at for a checksum of UDP's.
    #[inline]
    fn in_place<'a>(
        &mut self,
        outgoing: &OutgoingFrame,
        path: PathId,
        lane_index: usize,
        memory: &'a Memory,
    ) -> Option<RegisteredRuns<'a>> {
        let Content::Message { payload: Some(span), bundled: 0, .. } = &outgoing.content else { return None };
        if self.in_place.is_none()
            || span.length_bytes < IN_PLACE_BYTES_MIN
            || self.paths[path].needs_udp_checksum()
        {
            return None;
        }
        let runs = memory.registered(span)?;
        // A buffer may be of rings that are gone.
        if !runs.are_of(self.home.umem()) {
            return None;
        }
        let (lane, descriptors) = (&mut self.devices.lanes[lane_index], 1 + runs.len());
        (descriptors <= lane.descriptors_max && lane.has_room(descriptors)).then_some(runs)
    }

    /// Pushes a frame whose headers are written into a chunk, and whose payload lies in `runs`.
    fn emit_in_place(
        &mut self,
        outgoing: &OutgoingFrame,
        path: PathId,
        lane_index: usize,
        memory: &Memory,
        runs: RegisteredRuns<'_>,
    ) {
        if let Some(in_place) = &mut self.in_place {
            in_place.note(self.xfer.polled());
        }
        let ((umem, stock), path) = (self.home.umem_and_stock(), &self.paths[path]);
        let source = Source { xfer: &self.xfer, memory };
        let headers = write_headers(outgoing, path, (umem, &source), stock);
        self.scratch.sending.push(headers);
        let Content::Message { payload: Some(span), .. } = &outgoing.content else {
            unreachable!("what lies in place is a payload")
        };
        let payload = || memory.fragments(span).contiguous().unwrap_or_default();
        self.push(lane_index, if self.tap.is_on() { payload() } else { &[] });
        self.devices.lanes[lane_index].push_registered(runs);
        self.counters.frames_sent_in_place += 1;
        self.counters.payload_bytes_in_place += u64::from(span.length_bytes);
    }

    /// Sends what a test fault has kept back for long enough.
    #[inline]
    fn send_overdue(&mut self) {
        if let Some(lane_index) = self.faults.overdue(&mut self.scratch.sending) {
            if self.devices.lanes[lane_index].has_room(self.scratch.sending.len()) {
                self.push(lane_index, &[]);
                self.counters.frames_overtaken += 1;
            } else {
                self.home.stock.extend(self.scratch.sending.drain(..).map(|part| part.frame));
            }
        }
    }

    #[inline]
    fn write(&mut self, outgoing: &OutgoingFrame, path: PathId, memory: &Memory) {
        let path = &self.paths[path];
        let source = Source { xfer: &self.xfer, memory };
        let (umem, stock) = self.home.umem_and_stock();
        write_frame(outgoing, path, (umem, &source), stock, &mut self.scratch.sending);
        self.counters.payload_bytes_copied_out += source.payload_bytes(outgoing);
    }

    /// Pushes the frame that was written on a lane with room for it. Captures see `in_place` behind it.
    #[inline]
    fn push(&mut self, lane_index: usize, in_place: &[u8]) {
        let lane = &mut self.devices.lanes[lane_index];
        if self.tap.is_on() {
            let umem = self.home.umem();
            let pieces = self.scratch.sending.iter().map(|part| part.bytes(umem));
            let pieces = pieces.chain(std::iter::once(in_place));
            self.tap.record((lane.interface_index, Link::Ethernet), Direction::Sent, pieces);
        }
        lane.borrow(self.scratch.sending.len());
        for part in self.scratch.sending.drain(..) {
            lane.push(part);
        }
        self.counters.frames_sent += 1;
    }

    /// Has the kernel send what was pushed. The owner of a queue is woken to take completions off it only
    /// when they are wanted: to be able to go on.
    pub(super) fn flush_devices(&mut self) {
        self.devices.flush(&self.home, &mut self.exchange);
        self.flush_sockets();
        self.flush_bulk();
    }

    /// Tries devices again that refuse to send. Messages of one that has refused for a while, or of an
    /// interface that has been down for so long, go another way; without one they wait as long as they may,
    /// unless the interface has gone.
    pub(super) fn follow_devices(&mut self, now: Instant, up: &mut impl Uplink) {
        for lane_index in 0..self.devices.lanes.len() {
            match self.devices.lanes[lane_index].follow_refusal(now) {
                Followed::Same => continue,
                Followed::Recovered => {
                    if let Some(owner) = self.devices.lanes[lane_index].owner {
                        self.exchange.wake(owner);
                    }
                    continue;
                }
                Followed::GivenUp => {}
            }
            for RingPort { port, lane_index: its_lane, link_index, .. } in &self.nis.ports {
                if *its_lane == lane_index {
                    let is_gone = self.nis.links[*link_index].neighbours.is_gone();
                    avoid(&mut self.xfer, now, (port.ni, is_gone), up);
                }
            }
        }
        for RingPort { port, link_index, down, .. } in &mut self.nis.ports {
            let is_due = |down: &&mut Down| !down.is_given_up && now - down.since >= DOWN_PATIENCE;
            let Some(Down { address, is_given_up, since }) = down.as_mut().filter(is_due) else { continue };
            let neighbours = &self.nis.links[*link_index].neighbours;
            // The interface may be up again with nothing sent since.
            if neighbours.lookup(*address, Asker::Stranger) == INTERFACE_DOWN {
                *is_given_up = neighbours.is_gone();
                *since = now;
                avoid(&mut self.xfer, now, (port.ni, *is_given_up), up);
            } else {
                *down = None;
            }
        }
    }

    /// When messages are to leave an interface that is down, if there are some.
    pub(super) fn down_until(&self) -> Option<Instant> {
        if self.xfer.usage().messages == 0 {
            return None;
        }
        let downs = self.nis.ports.iter().filter_map(|open| open.down).filter(|down| !down.is_given_up);
        downs.map(|down| down.since + DOWN_PATIENCE).min()
    }
}

/// For whom a message's next hop is asked: a response goes to one that has shown a token.
fn asker_of(transmit: &Transmit) -> Asker {
    if is_response(transmit) { Asker::Peer } else { Asker::Own }
}

/// Has messages leave an NI whose interface is down: all of them where it has gone, else those that have
/// another way.
pub(super) fn avoid(xfer: &mut Xfer, now: Instant, (ni, is_gone): (NiId, bool), up: &mut impl Uplink) {
    if is_gone {
        xfer.fail_ni(now, ni, Cause::Device, up);
    } else {
        xfer.avoid_ni(now, ni, Cause::Device, up);
    }
}
