//! Two nodes of one or several shards each, and the wire between them.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use lnet_core::collections::Random;
use lnet_core::handle::{BufferHandle, Cookie, CookieKind, MdHandle, ShardId};
use lnet_core::lnd::{
    NiId, PING_PORTAL, Path, PathReport, PeerSlot, PrefetchHints, RxId, Span, Status, Transmit, TxId, Uplink,
    Verdict,
};
use lnet_core::time::Instant;
use lnet_wire::frame::{FRAGMENT_UNIT_BYTES, FrameHeader, HANDSHAKE_BYTES, Handshake, Kind, Transfer};
use lnet_wire::steer::{self, PORTALS, Policy, PolicyWord, SteerKey};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use super::super::*;
use crate::testing::nid;

/// A frame under way.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) ni: NiId,
    pub(super) from: Nid,
    pub(super) to: Nid,
    pub(super) header: FrameHeader,
    pub(super) transfer: Transfer,
    pub(super) lnet: Option<Header>,
    pub(super) payload: Vec<u8>,
    pub(super) records: Vec<(u16, Header, Vec<u8>)>,
    pub(super) handshake: Option<Handshake>,
    /// The shard for which it may leave in a run.
    pub(super) run: Option<u8>,
}

impl Frame {
    /// The same of another node that lives at the same address.
    pub(super) fn of(&self, identity: &Identity) -> Self {
        let mut frame = self.clone();
        frame.transfer.incarnation = identity.incarnation();
        if let Some(handshake) = &mut frame.handshake {
            handshake.certificate = identity.certify(&frame.from);
        }
        frame
    }

    /// Bytes of its datagram.
    pub(super) fn length(&self) -> u32 {
        let body = match self.header.kind {
            Kind::Hello | Kind::Welcome => HANDSHAKE_BYTES,
            _ => self.lnet.map_or(0, |_| 96) + self.payload.len(),
        };
        let records: usize = self.records.iter().map(|(_, _, payload)| 112 + payload.len()).sum();
        (88 + body + records) as u32
    }
}

/// What a shard would do.
#[derive(Default)]
pub(super) struct Up {
    /// Whether interfaces were taken away, or others have their numbers.
    is_incomplete: bool,
    pub(super) sent: Vec<(u32, Status)>,
    /// Messages that have arrived, by what their header carries, with their bytes.
    pub(super) arrived: Vec<(u64, Status)>,
    pub(super) bytes: BTreeMap<u64, Vec<u8>>,
    under_way: BTreeMap<u32, u64>,
    /// The source that each header has named, and the peer NI that it was found to come from.
    pub(super) sources: Vec<(Nid, Nid)>,
    /// What was told of paths, and where another one was asked for.
    pub(super) reports: Vec<(Path, PathReport)>,
    pub(super) reroutes: Vec<(Path, Vec<Path>)>,
    /// Whether no other path is taken.
    pub(super) stays: bool,
    /// Paths to its peer that the shard knows.
    pub(super) known: Vec<Path>,
    /// Portals whose messages are delayed, dropped.
    pub(super) delays: Vec<u32>,
    pub(super) drops: Vec<u32>,
    pub(super) delayed: Vec<(u32, Header)>,
    /// Whether messages go on from here, and how much of each is there, as that was told.
    pub(super) is_router: bool,
    pub(super) there: Vec<(u64, u32)>,
}

/// What the messages of the tests carry as their number.
pub(super) fn number_of(header: &Header) -> u64 {
    match header.body {
        Body::Put { hdr_data, .. } => hdr_data,
        Body::Get { match_bits, .. } => match_bits,
        _ => panic!("{header:?}"),
    }
}

fn md(number: u64) -> MdHandle {
    MdHandle(Cookie::new(CookieKind::MemoryDesc, ShardId(0), number as u32, 1))
}

impl Up {
    pub(super) fn span(header: &Header) -> Span {
        Span { buffer: md(number_of(header)).into(), offset_bytes: 0, length_bytes: header.payload_length }
    }

    fn begin(&mut self, rx: u32, header: &Header) {
        let number = number_of(header);
        assert!(self.under_way.insert(rx, number).is_none(), "rx {rx} is used twice");
        self.bytes.entry(number).or_insert_with(|| vec![0; header.payload_length as usize]);
    }
}

impl PrefetchHints for Up {}

impl Uplink for Up {
    fn header(&mut self, _: Instant, ni: NiId, from: &Nid, rx: RxId, header: &Header) -> Verdict {
        self.sources.push((header.source.nid, *from));
        let is_addressed = header.destination.nid.net() == nid(ni.0 + 1, 1).net();
        assert!(is_addressed || self.is_incomplete, "the interface is the one that was addressed");
        let Body::Put { portal, .. } = header.body else { return Verdict::Drop };
        if self.drops.contains(&portal) {
            return Verdict::Drop;
        }
        self.begin(rx.0, header);
        if self.delays.contains(&portal) {
            self.delayed.push((rx.0, *header));
            return Verdict::Delay;
        }
        let span = Self::span(header);
        let buffer = BufferHandle(Cookie::new(CookieKind::Buffer, ShardId(0), span.buffer.0.slot(), 1));
        let buffer = if self.is_router { buffer.into() } else { span.buffer };
        Verdict::Deliver(Span { buffer, ..span })
    }

    fn arrived(&mut self, _: Instant, rx: RxId, bytes: u32) {
        assert!(self.is_router);
        self.there.push((self.under_way[&rx.0], bytes));
    }

    fn received(&mut self, _: Instant, rx: RxId, status: Status) {
        let number = self.under_way.remove(&rx.0).expect("a message that arrives");
        self.delayed.retain(|(delayed, _)| *delayed != rx.0);
        self.arrived.push((number, status));
    }

    fn sent(&mut self, _: Instant, tx: TxId, status: Status) {
        self.sent.push((tx.0, status));
    }

    fn path_health(&mut self, _: Instant, path: &Path, report: PathReport) {
        self.reports.push((*path, report));
    }

    fn reroute(&mut self, _: Instant, silent: &Path, candidates: &[Path]) -> Option<usize> {
        self.reroutes.push((*silent, candidates.to_vec()));
        candidates.iter().position(|candidate| candidate != silent).filter(|_| !self.stays)
    }

    fn another_path(&self, path: &Path, has: impl Fn(NiId) -> bool) -> Option<Path> {
        self.known.iter().copied().find(|other| other != path && has(other.ni))
    }
}

pub(super) struct Shard {
    pub(super) xfer: Xfer,
    pub(super) up: Up,
    /// Payloads by message number.
    pub(super) payloads: BTreeMap<u64, Vec<u8>>,
    buffered: BTreeMap<BufferId, Frame>,
    /// Longest datagram that the node takes.
    datagram_max_bytes: u32,
    policies: [PolicyWord; PORTALS],
}

pub(super) struct Node {
    pub(super) nids: Vec<Nid>,
    pub(super) shards: Vec<Shard>,
    /// Whether NIs that are added want checksums with payloads.
    pub(super) checksum: bool,
    /// Whether NIs that are added take runs.
    pub(super) runs: bool,
    policies: [PolicyWord; PORTALS],
    next_tx: u32,
}

pub(super) const ROTOR: u32 = 9;
pub(super) const DATAGRAM: u32 = 1500 - 28;

/// An NI of a node.
fn ni(nid: Nid) -> XferNi {
    XferNi { nid, datagram_max_bytes: DATAGRAM, checksum: true, runs: false }
}

pub(super) fn limits() -> XferLimits {
    XferLimits { messages: 256, incoming: 64, partials: 16, peers: 8, streams: 16, frames: 1024, buffered: 8 }
}

fn policies() -> [PolicyWord; PORTALS] {
    let mut policies = [PolicyWord::default(); PORTALS];
    policies[ROTOR as usize] = Policy::Rotor.pack().unwrap();
    policies
}

/// A life of a host.
pub(super) fn identity(host: u8, life: u64) -> Identity {
    let mut secret = [host; 32];
    secret[..8].copy_from_slice(&life.to_le_bytes());
    Identity::new(secret)
}

impl Node {
    /// Node `host` with so many shards, on two nets, whose messages take two seconds at most.
    pub(super) fn new(host: u8, life: u64, shards: u8) -> Self {
        Self::patient(host, life, shards, Duration::from_secs(2))
    }

    /// Node `host` whose messages take no longer than this.
    pub(super) fn patient(host: u8, life: u64, shards: u8, message: Duration) -> Self {
        let config = XferConfig {
            shard: ShardId(0),
            shard_count: shards,
            identity: identity(host, life),
            secret: [u64::from(host), life],
            seed: u64::from(host) * 1000 + life,
            initiator_hash: u32::from(host),
            policies: policies(),
            met: Arc::new(MetAddresses::new(limits().peers, life)),
            nis: vec![ni(nid(1, host)), ni(nid(2, host))],
            receive_bytes: 1 << 20,
            limits: limits(),
            times: XferTimes { message, ..XferTimes::DEFAULT },
        };
        let shards = (0..shards).map(|shard| Shard {
            xfer: Xfer::new(XferConfig {
                shard: ShardId(shard),
                seed: config.seed * 64 + u64::from(shard),
                ..config.clone()
            }),
            up: Up::default(),
            payloads: BTreeMap::new(),
            buffered: BTreeMap::new(),
            datagram_max_bytes: DATAGRAM,
            policies: policies(),
        });
        Self {
            nids: vec![nid(1, host), nid(2, host)],
            shards: shards.collect(),
            checksum: true,
            runs: false,
            policies: policies(),
            next_tx: 0,
        }
    }

    /// Puts `length` bytes to a portal by an interface; `number` names the message.
    pub(super) fn put(
        &mut self,
        now: Instant,
        to: &Nid,
        ni: u16,
        portal: u32,
        number: u64,
        length: u32,
    ) -> u32 {
        let ack_md = WireHandle::NONE;
        let body = Body::Put { ack_md, match_bits: number, hdr_data: number, portal, offset: 0 };
        self.send(now, (to, ni), body, number, [length; 2]).tx.0
    }

    /// Puts bytes to a portal by the first interface, of which so many of all are there.
    pub(super) fn put_part(
        &mut self,
        now: Instant,
        to: &Nid,
        portal: u32,
        number: u64,
        [there, length]: [u32; 2],
    ) -> Transmit {
        let ack_md = WireHandle::NONE;
        let body = Body::Put { ack_md, match_bits: number, hdr_data: number, portal, offset: 0 };
        self.send(now, (to, 0), body, number, [there, length])
    }

    /// Pings an address by the first interface; `number` names the message.
    pub(super) fn ping(&mut self, now: Instant, to: &Nid, number: u64) -> u32 {
        let body = Body::Get {
            return_md: WireHandle::NONE,
            match_bits: number,
            portal: PING_PORTAL,
            offset: 0,
            sink_length: 1,
        };
        self.send(now, (to, 0), body, number, [0; 2]).tx.0
    }

    fn send(
        &mut self,
        now: Instant,
        (to, ni): (&Nid, u16),
        body: Body,
        number: u64,
        [there, length]: [u32; 2],
    ) -> Transmit {
        let tx = self.next_tx;
        self.next_tx += 1;
        let header = Header {
            destination: ProcessId { nid: *to, pid: 12345 },
            source: ProcessId { nid: self.nids[usize::from(ni)], pid: 12345 },
            payload_length: length,
            body,
        };
        let shard = number as usize % self.shards.len();
        let payload =
            (length > 0).then_some(Span { buffer: md(number).into(), offset_bytes: 0, length_bytes: there });
        self.shards[shard].payloads.insert(number, content(number, length));
        let transmit = Transmit {
            tx: TxId(tx),
            ni: NiId(ni),
            next_hop: header.destination.nid,
            peer: PeerSlot(0),
            header,
            payload,
        };
        self.shards[shard].xfer.submit(now, &transmit).unwrap();
        transmit
    }

    /// Takes, and sends, datagrams of so many bytes by all interfaces from now on.
    pub(super) fn set_datagram_max(&mut self, bytes: u32) {
        for shard in &mut self.shards {
            shard.datagram_max_bytes = shard.datagram_max_bytes.max(bytes);
            (0..self.nids.len()).for_each(|ni| shard.xfer.set_datagram_max(NiId(ni as u16), bytes));
        }
    }

    /// Changes the policy of a portal on some of the shards.
    pub(super) fn set_policy(&mut self, portal: u32, policy: Policy, shards: core::ops::Range<usize>) {
        self.policies[portal as usize] = policy.pack().unwrap();
        let policies = self.policies;
        for shard in &mut self.shards[shards] {
            shard.policies = policies;
            shard.xfer.set_policies(&policies);
        }
    }

    /// Takes an interface away; frames for its NID are lost from now on.
    pub(super) fn remove_ni(&mut self, now: Instant, ni: u16) {
        self.nids[usize::from(ni)] = Nid::ANY;
        for Shard { xfer, up, .. } in &mut self.shards {
            xfer.remove_ni(now, NiId(ni), up);
            up.is_incomplete = true;
        }
    }

    /// Adds an interface in the place of one that was taken away.
    pub(super) fn add_ni(&mut self, number: u16, nid: Nid) {
        self.nids[usize::from(number)] = nid;
        let ni = XferNi { checksum: self.checksum, runs: self.runs, ..ni(nid) };
        self.shards.iter_mut().for_each(|shard| shard.xfer.add_ni(NiId(number), ni));
    }

    /// Messages are numbered anew.
    pub(super) fn reset_numbers(&mut self) {
        self.next_tx = 0;
    }

    pub(super) fn arrived(&self) -> Vec<(u64, Status)> {
        let mut all: Vec<_> = self.shards.iter().flat_map(|shard| shard.up.arrived.clone()).collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }

    pub(super) fn sent(&self) -> Vec<(u32, Status)> {
        let mut all: Vec<_> = self.shards.iter().flat_map(|shard| shard.up.sent.clone()).collect();
        all.sort_by_key(|(tx, _)| *tx);
        all
    }

    pub(super) fn counters(&self) -> Vec<XferCounters> {
        self.shards.iter().map(|shard| *shard.xfer.counters()).collect()
    }

    /// Everything that the shards have to send.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Frame> {
        let mut frames = Vec::new();
        for shard in &mut self.shards {
            shard.xfer.handle_timeout(now, &mut shard.up);
            shard.replay(now);
            while let Some(out) = shard.xfer.poll_transmit(now) {
                // What goes by an interface that is gone is let go.
                if self.nids.get(usize::from(out.ni.0)).is_none_or(|nid| *nid == Nid::ANY) {
                    continue;
                }
                frames.push(shard.frame(&out, self.nids[usize::from(out.ni.0)]));
            }
        }
        frames
    }

    pub(super) fn receive(&mut self, now: Instant, frame: &Frame) -> Option<Disposition> {
        if !self.nids.contains(&frame.to) {
            return None;
        }
        let key = &frame.header.key;
        let place = usize::from(key.portal);
        let shard_by = |policies: &[PolicyWord; PORTALS]| {
            steer::shard_of(key, policies[place], self.shards.len() as u32) as usize
        };
        let shard = shard_by(&self.policies);
        if shard_by(&self.shards[shard].policies) != shard {
            // A shard that knows other policies hands it over, to and fro, until both know the same.
            return None;
        }
        let action = self.shards[shard].receive(now, frame);
        self.shards[shard].replay(now);
        Some(action)
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        self.shards.iter().filter_map(|shard| shard.xfer.poll_timeout()).min()
    }

    /// Asserts that nothing is under way any more.
    pub(super) fn assert_idle(&self) {
        for shard in &self.shards {
            let usage = shard.xfer.usage();
            let busy = [usage.messages, usage.incoming, usage.partials, usage.frames, usage.buffered];
            assert_eq!(busy, [0; 5], "{usage:?}");
            assert!(shard.buffered.is_empty());
            assert!(shard.up.under_way.is_empty());
        }
    }
}

/// The bytes of a message.
pub(super) fn content(number: u64, length: u32) -> Vec<u8> {
    (0..length)
        .map(|at| (number.wrapping_mul(31).wrapping_add(u64::from(at) * 7 + u64::from(at >> 8))) as u8)
        .collect()
}

impl Shard {
    fn bytes(&self, span: &Span) -> Vec<u8> {
        let start = span.offset_bytes as usize;
        self.payloads[&u64::from(span.buffer.0.slot())][start..start + span.length_bytes as usize].to_vec()
    }

    fn frame(&self, out: &OutgoingFrame, from: Nid) -> Frame {
        let bytes = |span: Option<Span>| span.map_or(Vec::new(), |span| self.bytes(&span));
        let mut frame = Frame {
            ni: out.ni,
            from,
            to: out.destination,
            header: out.header,
            transfer: out.transfer,
            lnet: None,
            payload: Vec::new(),
            records: Vec::new(),
            handshake: None,
            run: None,
        };
        match out.content {
            Content::Message { lnet, payload, bundled, checksum, run, .. } => {
                frame.run = run;
                frame.transfer.payload_crc = checksum.then_some(0);
                frame.lnet = lnet;
                frame.payload = bytes(payload);
                for index in 0..bundled {
                    let record = self.xfer.bundled(index);
                    assert!(record.lnet.payload_length == record.payload.map_or(0, |span| span.length_bytes));
                    frame.records.push((record.id_delta, record.lnet, bytes(record.payload)));
                }
                assert_eq!(out.header.bundled, bundled != 0);
                let total = out.header.total_length as usize;
                let end = out.header.fragment_offset as usize + frame.payload.len();
                assert!(end == total || end.is_multiple_of(FRAGMENT_UNIT_BYTES as usize));
            }
            Content::Handshake => frame.handshake = Some(self.xfer.handshake(out.ni)),
            Content::Nothing => {}
        }
        assert!(frame.length() <= self.datagram_max_bytes, "{} bytes", frame.length());
        frame
    }

    pub(super) fn receive(&mut self, now: Instant, frame: &Frame) -> Disposition {
        let arrived = Arrived {
            ni: frame.ni,
            from: frame.from,
            header: &frame.header,
            transfer: &frame.transfer,
            lnet: frame.lnet.as_ref(),
            payload_bytes: frame.payload.len() as u32,
            handshake: frame.handshake.as_ref(),
        };
        let action = self.xfer.receive(now, &arrived, &mut self.up);
        self.act(now, action, &frame.payload);
        match action {
            Disposition::Buffer(id) => assert!(self.buffered.insert(id, frame.clone()).is_none()),
            Disposition::Drop(_) => return action,
            _ => {}
        }
        if frame.header.bundled {
            for (id_delta, lnet, payload) in &frame.records {
                let action = self.xfer.receive_record(now, &arrived, *id_delta, lnet, &mut self.up);
                assert!(!matches!(action, Disposition::Buffer(_)));
                self.act(now, action, payload);
            }
            self.xfer.end_bundle(now, &arrived);
        }
        action
    }

    fn act(&mut self, now: Instant, action: Disposition, payload: &[u8]) {
        if let Disposition::Write = action {
            let span = *self.xfer.destination();
            let number = u64::from(span.buffer.0.slot());
            let start = span.offset_bytes as usize;
            let count = span.length_bytes as usize;
            assert!(count <= payload.len());
            let bytes = self.up.bytes.get_mut(&number).unwrap();
            bytes[start..start + count].copy_from_slice(&payload[..count]);
            self.xfer.written(now, &mut self.up);
        }
    }

    pub(super) fn replay(&mut self, now: Instant) {
        while let Some(replay) = self.xfer.poll_replay() {
            match replay {
                Replay::Again(id) => {
                    let frame = self.buffered.remove(&id).unwrap();
                    let _ = self.receive(now, &frame);
                }
                Replay::Forget(id) => {
                    self.buffered.remove(&id).unwrap();
                }
            }
        }
    }
}

/// What becomes of frames on the wire, in parts of a thousand.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Delayed by up to 300 us instead of 5.
    pub(super) late: u64,
}

/// Nodes and a wire.
pub(super) struct Network {
    pub(super) now: Instant,
    pub(super) nodes: Vec<Node>,
    pub(super) faults: Faults,
    pub(super) random: Random,
    /// What befalls frames of each rail besides: parts of a thousand that are lost, and a delay in ns.
    pub(super) rails: [(u64, u64); 2],
    /// The longest datagram that each rail carries.
    pub(super) widths: [u32; 2],
    /// Nets that carry nothing.
    pub(super) dead: Vec<u16>,
    /// Addresses to which nothing comes through.
    pub(super) unreached: Vec<Nid>,
    /// A node that does nothing; what comes for it waits.
    pub(super) stalled: Option<usize>,
    under_way: VecDeque<(Instant, Frame)>,
    /// Frames that were put on the wire.
    pub(super) log: Vec<Frame>,
}

impl Network {
    pub(super) fn new(nodes: Vec<Node>, seed: u64) -> Self {
        Self {
            now: Instant(1_000_000_000),
            nodes,
            faults: Faults::default(),
            random: Random::new(seed),
            rails: [(0, 0); 2],
            widths: [u32::MAX; 2],
            dead: Vec::new(),
            unreached: Vec::new(),
            stalled: None,
            under_way: VecDeque::new(),
            log: Vec::new(),
        }
    }

    pub(super) fn launch(&mut self, frame: Frame) {
        self.log.push(frame.clone());
        let is_lost = self.dead.contains(&frame.ni.0)
            || self.unreached.contains(&frame.to)
            || frame.length() > self.widths[usize::from(frame.ni.0)];
        let (lost, delay) = self.rails[usize::from(frame.ni.0)];
        if is_lost || self.random.below(1000) < self.faults.lost + lost {
            return;
        }
        let copies = 1 + u64::from(self.random.below(1000) < self.faults.doubled);
        for _ in 0..copies {
            let late = self.random.below(1000) < self.faults.late;
            let delay = delay + if late { self.random.below(300_000) } else { 5_000 };
            self.under_way.push_back((Instant(self.now.0 + delay), frame.clone()));
        }
    }

    /// One step: what is due happens. False when nothing is left to happen before `end`.
    pub(super) fn step(&mut self, end: Instant) -> bool {
        let asleep = self.stalled;
        for node in (0..self.nodes.len()).filter(|node| asleep != Some(*node)) {
            for frame in self.nodes[node].poll(self.now) {
                self.launch(frame);
            }
        }
        let stalled = self.stalled.map(|node| self.nodes[node].nids.clone()).unwrap_or_default();
        let comes = |frame: &Frame| !stalled.contains(&frame.to);
        let wire = self.under_way.iter().filter(|(_, frame)| comes(frame)).map(|(at, _)| *at).min();
        let awake = self.nodes.iter().enumerate().filter(|(node, _)| asleep != Some(*node));
        let timers = awake.filter_map(|(_, node)| node.timeout()).min();
        let Some(next) = wire.into_iter().chain(timers).min().filter(|next| *next <= end) else {
            self.now = end;
            return false;
        };
        self.now = self.now.max(next);
        let now = self.now;
        let due: Vec<Frame> = {
            let due = |(at, frame): &(Instant, Frame)| *at <= now && comes(frame);
            let (due, rest) = self.under_way.drain(..).partition::<VecDeque<_>, _>(due);
            self.under_way = rest;
            due.into_iter().map(|(_, frame)| frame).collect()
        };
        for frame in due {
            for node in &mut self.nodes {
                node.receive(self.now, &frame);
            }
        }
        true
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
    }

    pub(super) fn frames(&self, kind: Kind) -> usize {
        self.log.iter().filter(|frame| frame.header.kind == kind).count()
    }

    /// Checks that messages 0 to `count` have each arrived once, with their bytes, and that all are done.
    pub(super) fn assert_all_arrived(&self, from: usize, to: usize, count: u64) {
        let arrived: Vec<_> = self.nodes[to].arrived();
        let expected: Vec<_> = (0..count).map(|number| (number, Status::Ok)).collect();
        assert_eq!(arrived, expected);
        for shard in &self.nodes[to].shards {
            for (number, bytes) in &shard.up.bytes {
                assert!(*bytes == content(*number, bytes.len() as u32), "message {number}");
            }
        }
        assert!(self.nodes[from].sent().iter().all(|(_, status)| *status == Status::Ok));
        assert_eq!(self.nodes[from].sent().len() as u64, count);
        self.nodes.iter().for_each(Node::assert_idle);
    }
}

/// The key of a message that a test makes up.
pub(super) fn put_key(portal: u8, message_id: u64) -> SteerKey {
    SteerKey { message_type: lnet_wire::MessageType::Put, portal, key: 1, message_id, initiator_hash: 1 }
}
