//! Two nodes with two rails, of which frames are lost by chance: the real control state machines, shards and
//! transfer protocol over a made-up wire, so that what the protocol finds of a rail has its effect on which
//! one messages take.
//!
//! Invariants: a run follows from its seed. Pings and pushes of the state machines are answered at once: the
//! protocol would send them again until they are. What a shard has noted reaches the state machine as its
//! runner would have it: a failure after 20 ms, what went well after half a second.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use lnet_core::event::{Event, EventKind};
use lnet_core::handle::ShardId;
use lnet_core::lnd::{NiId, Status};
use lnet_core::node::{Action, Report};
use lnet_core::shard::HealthNote;
use lnet_core::time::Instant;
use lnet_wire::frame::{FrameHeader, Handshake, Transfer};
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Header, Net, NetType, Nid};
use lnet_xdp_proto::{
    Arrived, BufferId, Content, Disposition, Identity, MetAddresses, OutgoingFrame, Replay, Xfer, XferConfig,
    XferCounters, XferLimits, XferNi, XferTimes,
};

use super::node::{Member, nid, nid_on};
use crate::bpf::random::Random;

const MS: u64 = 1_000_000;
/// Puts of a burst, from one of them to the next, and from one burst to the next.
const BURST: u64 = 16;
const PUT_NS: u64 = MS / 20;
const BURST_NS: u64 = 8 * MS;
/// Puts that are under way at most.
const UNDER_WAY_MAX: u64 = 32;
/// How long a frame is on its way at first.
const LATENCY_NS: u64 = MS / 20;
/// When a failure, and when what went well, reaches the state machine.
const FAILURE_NS: u64 = 20 * MS;
const LOOK_NS: u64 = 500 * MS;
const DATAGRAM_BYTES: u32 = 1472;
const PUT_BYTES: u64 = 64;
/// How long messages under way take beyond the transaction timeout, for which a put waits for its ACK: none
/// comes if the put was dropped because too many ACKs were under way by the rail that was cut.
const PATIENCE_NS: u64 = 2000 * MS;

/// A frame under way; its payload is not.
#[derive(Clone)]
struct Frame {
    /// The rails of the NIs that it leaves and arrives by.
    rails: [usize; 2],
    to: usize,
    from: Nid,
    header: FrameHeader,
    transfer: Transfer,
    lnet: Option<Header>,
    payload_bytes: u32,
    records: Vec<(u16, Header)>,
    handshake: Option<Handshake>,
}

struct End {
    member: Member,
    xfer: Xfer,
    buffered: BTreeMap<BufferId, Frame>,
    /// When the state machine hears of what the shard has noted.
    look_at: u64,
}

/// The two nodes, and the wire between them.
pub struct TwoRails {
    ends: [End; 2],
    now: u64,
    random: Random,
    under_way: BTreeMap<(u64, u64), Frame>,
    order: u64,
    /// How many of a hundred frames each rail loses.
    pub lost_percent: [usize; 2],
    /// How long a frame is on its way by each rail.
    pub latency_ns: [u64; 2],
    /// Whether as many puts are under way as may be, at any time; they come in bursts otherwise.
    pub is_busy: bool,
    next_put_at: u64,
    puts: u64,
    arrived: HashSet<u64>,
    acked: u64,
    /// Puts whose fate the first node did not learn in time: their ACK has gone back by a rail that was cut.
    pub failed: u64,
    /// Puts that the first node has sent by each rail.
    pub sent: [u64; 2],
}

impl End {
    fn new(number: u32, seed: u64, nids: [Nid; 2]) -> Self {
        let mut member = Member::new((number, 0), (0..).zip(nids).collect(), true, false, seed);
        assert!(member.poll(Instant(0)).is_none_or(|action| !matches!(action, Action::Ping { .. })));
        let mut xfer = Xfer::new(XferConfig {
            shard: ShardId(0),
            shard_count: 1,
            identity: Identity::new([number as u8 + 1; 32]),
            secret: [u64::from(number), seed],
            seed,
            initiator_hash: number,
            policies: [PolicyWord::default(); PORTALS],
            met: Arc::new(MetAddresses::new(8, seed)),
            nis: Vec::new(),
            receive_bytes: 1 << 20,
            limits: XferLimits {
                messages: 256,
                incoming: 64,
                partials: 16,
                peers: 8,
                streams: 16,
                frames: 1024,
                buffered: 8,
            },
            times: XferTimes::DEFAULT,
        });
        for nid in nids {
            let ni = member.slot_of(&nid).expect("the NI is there");
            xfer.add_ni(ni, XferNi { nid, datagram_max_bytes: DATAGRAM_BYTES, checksum: true, runs: false });
        }
        Self { member, xfer, buffered: BTreeMap::new(), look_at: LOOK_NS }
    }

    fn nid(&self, rail: usize) -> Nid {
        self.member.nids[rail].1
    }

    fn ni(&self, rail: usize) -> NiId {
        self.member.slot_of(&self.nid(rail)).expect("the NI is there")
    }

    fn receive(&mut self, now: Instant, frame: &Frame) {
        let arrived = Arrived {
            ni: self.ni(frame.rails[1]),
            from: frame.from,
            header: &frame.header,
            transfer: &frame.transfer,
            lnet: frame.lnet.as_ref(),
            payload_bytes: frame.payload_bytes,
            handshake: frame.handshake.as_ref(),
        };
        let shard = &mut self.member.shard;
        match self.xfer.receive(now, &arrived, shard) {
            Disposition::Write => self.xfer.written(now, shard),
            Disposition::Buffer(id) => assert!(self.buffered.insert(id, frame.clone()).is_none()),
            Disposition::Drop(_) => return,
            Disposition::Done => {}
        }
        if frame.header.bundled {
            for (id_delta, lnet) in &frame.records {
                if self.xfer.receive_record(now, &arrived, *id_delta, lnet, shard) == Disposition::Write {
                    self.xfer.written(now, shard);
                }
            }
            self.xfer.end_bundle(now, &arrived);
        }
    }

    fn replay(&mut self, now: Instant) {
        while let Some(replay) = self.xfer.poll_replay() {
            let (Replay::Again(id) | Replay::Forget(id)) = replay;
            let frame = self.buffered.remove(&id).expect("a frame that is kept");
            if matches!(replay, Replay::Again(_)) {
                self.receive(now, &frame);
            }
        }
    }

    /// What is sent by the node of this number, to the NI of the other one on this rail.
    fn frame(&self, number: usize, out: &OutgoingFrame, to_rail: usize) -> Frame {
        let rail = (0..2).find(|rail| self.ni(*rail) == out.ni).expect("a rail");
        let mut frame = Frame {
            rails: [rail, to_rail],
            to: 1 - number,
            from: self.nid(rail),
            header: out.header,
            transfer: out.transfer,
            lnet: None,
            payload_bytes: 0,
            records: Vec::new(),
            handshake: None,
        };
        match out.content {
            Content::Message { lnet, payload, bundled, .. } => {
                frame.lnet = lnet;
                frame.payload_bytes = payload.map_or(0, |span| span.length_bytes);
                let records = (0..bundled).map(|index| self.xfer.bundled(index));
                frame.records = records.map(|record| (record.id_delta, record.lnet)).collect();
            }
            Content::Handshake => frame.handshake = Some(self.xfer.handshake(out.ni)),
            Content::Nothing => {}
        }
        frame
    }
}

impl TwoRails {
    /// Two nodes that know each other by all their NIDs, with a net for each rail.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with(seed, nid)
    }

    /// Two rails with both NIs of a node on one net: each reaches both of the other node. A frame takes the
    /// time of the first node's NI that it leaves or arrives by.
    #[must_use]
    pub fn on_one_net(seed: u64) -> Self {
        Self::with(seed, |number, rail| nid_on(Net::new(NetType::XDP, 0), number, rail))
    }

    fn with(seed: u64, nid: impl Fn(u32, u8) -> Nid) -> Self {
        let end = |number| End::new(number, seed, [nid(number, 0), nid(number, 1)]);
        let mut this = Self {
            ends: [0, 1].map(end),
            now: MS,
            random: Random::new(seed),
            under_way: BTreeMap::new(),
            order: 0,
            lost_percent: [0; 2],
            latency_ns: [LATENCY_NS; 2],
            is_busy: false,
            next_put_at: MS,
            puts: 0,
            arrived: HashSet::new(),
            acked: 0,
            failed: 0,
            sent: [0; 2],
        };
        for number in 0..2 {
            for rail in 0..2 {
                let nid = this.ends[1 - number].nid(rail);
                let report = Report::Traffic { nid, is_incoming: true, first_ni: None };
                this.ends[number].member.node.handle_report(Instant(this.now), report);
            }
            this.ends[number].look_at = 0;
        }
        this.settle();
        this
    }

    /// The first node puts by whichever rail for so long.
    ///
    /// # Panics
    /// If a put arrives twice.
    pub fn run(&mut self, time: std::time::Duration) {
        let end = self.now + time.as_nanos() as u64;
        while self.step(end, true) {}
    }

    /// What is under way ends; all that was put has arrived and is acknowledged, or counts as failed.
    ///
    /// # Panics
    /// If that is not so.
    pub fn finish(&mut self) {
        let timeout = self.ends[0].member.shard.topology().tunables().transaction_timeout;
        let end = self.now + timeout.as_nanos() as u64 + PATIENCE_NS;
        while self.step(end, false) && self.acked + self.failed < self.puts {}
        let arrived = self.arrived.len() as u64;
        assert_eq!(self.acked + self.failed, self.puts, "lost");
        assert!(arrived >= self.acked, "{arrived} of {} that are acknowledged have arrived", self.acked);
    }

    /// The health of the peer's NI on a rail, as the first node has it.
    #[must_use]
    pub fn health(&self, rail: usize) -> u32 {
        self.ends[0].member.shard.topology().peer_health(&self.ends[1].nid(rail))
    }

    /// What the protocol of the first node has counted.
    #[must_use]
    pub fn counters(&self) -> XferCounters {
        *self.ends[0].xfer.counters()
    }

    /// The next thing happens, if one does until then.
    fn step(&mut self, end: u64, puts: bool) -> bool {
        let timers = self.ends.iter().flat_map(|end| {
            let core =
                [end.xfer.poll_timeout(), end.member.shard.poll_timeout(), end.member.node.poll_timeout()];
            core.into_iter().flatten().map(|at| at.0).chain([end.look_at])
        });
        let wire = self.under_way.keys().next().map(|(at, _)| *at);
        let put = puts.then_some(self.next_put_at);
        let next = timers.chain(wire).chain(put).min().filter(|at| *at <= end);
        self.now = self.now.max(next.unwrap_or(end));
        if next.is_none() {
            return false;
        }
        if puts && self.next_put_at <= self.now {
            self.put();
        }
        while let Some(entry) = self.under_way.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let frame = entry.remove();
            self.ends[frame.to].receive(Instant(self.now), &frame);
        }
        let now = Instant(self.now);
        for End { member, xfer, .. } in &mut self.ends {
            xfer.handle_timeout(now, &mut member.shard);
            if member.shard.poll_timeout().is_some_and(|at| at <= now) {
                member.shard.handle_timeout(now);
            }
            if member.node.poll_timeout().is_some_and(|at| at <= now) {
                member.node.handle_timeout(now);
            }
        }
        self.settle();
        true
    }

    fn put(&mut self) {
        if self.puts - self.acked - self.failed >= UNDER_WAY_MAX {
            self.next_put_at = self.now + if self.is_busy { PUT_NS } else { BURST_NS };
            return;
        }
        self.puts += 1;
        let ends_burst = !self.is_busy && self.puts.is_multiple_of(BURST);
        self.next_put_at = self.now + if ends_burst { BURST_NS } else { PUT_NS };
        let to = self.ends[1].nid(0);
        let is_started = self.ends[0].member.put(Instant(self.now), self.puts, PUT_BYTES, to);
        assert!(is_started, "a put");
    }

    /// Has both nodes do what they have to do.
    fn settle(&mut self) {
        for number in 0..2 {
            if self.ends[number].look_at <= self.now {
                while let Some(action) = self.ends[number].member.poll(Instant(self.now)) {
                    self.carry_out(number, action);
                }
                self.ends[number].look_at = self.now + LOOK_NS;
            }
            self.transmit(number);
            self.take_events(number);
            let end = &mut self.ends[number];
            let is_urgent = end.member.shard.has_failures()
                || end.member.node.poll_timeout().is_some_and(|at| at.0 <= self.now);
            if is_urgent {
                end.look_at = end.look_at.min(self.now + FAILURE_NS);
            }
        }
    }

    fn transmit(&mut self, number: usize) {
        let now = Instant(self.now);
        let theirs = [0, 1].map(|rail| self.ends[1 - number].nid(rail));
        let end = &mut self.ends[number];
        while let Some((_, rx, verdict)) = end.member.shard.poll_resume() {
            end.xfer.resume(now, rx, verdict, &mut end.member.shard);
        }
        end.replay(now);
        for rail in 0..2 {
            let ni = end.ni(rail);
            while let Some(lent) = end.member.shard.poll_transmit(now, ni) {
                let transmit = *lent.transmit;
                self.sent[rail] += u64::from(number == 0);
                end.xfer.submit(now, &transmit).expect("there is room");
            }
        }
        while let Some(out) = end.xfer.poll_transmit(now) {
            let to_rail = theirs.iter().position(|nid| *nid == out.destination);
            let frame = end.frame(number, &out, to_rail.expect("an NI of the other node"));
            let rail = frame.rails[number];
            if self.random.below(100) >= self.lost_percent[rail] {
                self.order += 1;
                self.under_way.insert((self.now + self.latency_ns[rail], self.order), frame);
            }
        }
    }

    fn carry_out(&mut self, number: usize, action: Action<()>) {
        let now = Instant(self.now);
        let answer = |end: &mut End, ping, nid, bytes: &[u8]| {
            let node = &mut end.member.node;
            node.handle_report(now, Report::Health(HealthNote { nid, failures: 0, successes: 1 }));
            node.handle_report(now, Report::Answered { ping, bytes });
        };
        match action {
            Action::Ping { ping, nid, length_bytes, .. } => {
                let is_own = |end: &&End| end.member.nids.iter().any(|(_, own)| *own == nid);
                let Some(asked) = self.ends.iter().find(is_own) else { return };
                let bytes = asked.member.published.to_vec();
                answer(&mut self.ends[number], ping, nid, &bytes[..bytes.len().min(length_bytes)]);
            }
            Action::Push { ping, nid: to, bytes, .. } => {
                let from = self.ends[number].nid(0);
                let other = &mut self.ends[1 - number];
                let report = Report::Pushed { from, bytes: &bytes, length_bytes: bytes.len() };
                other.member.node.handle_report(now, report);
                other.look_at = other.look_at.min(self.now);
                answer(&mut self.ends[number], ping, to, &[]);
            }
            _ => {}
        }
    }

    fn take_events(&mut self, number: usize) {
        let member = &mut self.ends[number].member;
        while let Some(event) = member.shard.poll_event(member.queue) {
            if event.status() != Status::Ok {
                assert!(event.unlinked(), "{event:?}");
                self.failed += 1;
                continue;
            }
            if let Event::Put { hdr_data, .. } = event {
                assert!(self.arrived.insert(hdr_data), "put {hdr_data} arrives twice");
            }
            self.acked += u64::from(event.kind() == EventKind::Ack);
        }
    }
}
