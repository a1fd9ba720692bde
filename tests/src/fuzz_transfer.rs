//! The body of the fuzz target `transfer`: a peer with a session of its own that sends whatever it likes, in
//! any order. It uses `lnet-wire` and `lnet-core` alone, so that the fuzzer has little to instrument.
//!
//! What must hold: nothing panics, what the node keeps stays within its limits, another peer's messages
//! arrive once and are acknowledged all the same, and once the peer falls silent everything ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lnet_core::handle::{Cookie, Kind as Object, MdHandle, ShardId};
use lnet_core::lnd::{NiId, PrefetchHints, RxId, Span, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_core::xfer::{
    Action, Arrived, Content, HoldId, Identity, Outgoing, Replay, Xfer, XferConfig, XferLimits, XferTimes,
    XferUsage,
};
use lnet_wire::frame::{Ack, Certificate, FrameHeader, Handshake, Kind, Transfer};
use lnet_wire::steer::{PORTALS, PolicyWord, SteerKey};
use lnet_wire::{Body, Header, MessageType, Nid, ProcessId, WireHandle};

/// Bytes of one step of an input.
const STEP_BYTES: usize = 24;
/// Steps of an input that count.
const STEPS_MAX: usize = 160;
/// Portals whose messages the node delays, and drops.
const DELAYING: u32 = 3;
const DROPPING: u32 = 5;
const DATAGRAM_BYTES: u32 = 1472;

const LIMITS: XferLimits =
    XferLimits { messages: 16, incoming: 16, partials: 4, peers: 8, flows: 16, frames: 128, held: 4 };

/// What the node's shard would do.
#[derive(Default)]
struct Up {
    under_way: BTreeMap<u32, u64>,
    delayed: Vec<u32>,
    /// Messages of the honest peer that have arrived.
    honest: Vec<u64>,
    sent: Vec<(u32, Status)>,
}

impl PrefetchHints for Up {}

impl Uplink for Up {
    fn header(&mut self, _: Instant, _: NiId, _: &Nid, rx: RxId, header: &Header) -> Verdict {
        let Body::Put { portal, hdr_data, .. } = header.body else { return Verdict::Drop };
        if portal == DROPPING {
            return Verdict::Drop;
        }
        assert!(self.under_way.insert(rx.0, hdr_data).is_none(), "{rx:?} is used twice");
        if portal == DELAYING {
            self.delayed.push(rx.0);
            return Verdict::Delay;
        }
        Verdict::Deliver(span(header.payload_length))
    }

    fn received(&mut self, _: Instant, rx: RxId, status: Status) {
        let number = self.under_way.remove(&rx.0).expect("a message that arrives");
        self.delayed.retain(|delayed| *delayed != rx.0);
        if number >> 32 != 0 && status == Status::Ok {
            self.honest.push(number);
        }
    }

    fn sent(&mut self, _: Instant, tx: TxId, status: Status) {
        self.sent.push((tx.0, status));
    }
}

fn span(length_bytes: u32) -> Span {
    let md = MdHandle(Cookie::new(Object::MemoryDesc, ShardId(0), 1, 1));
    Span { buffer: md.into(), offset_bytes: 0, length_bytes }
}

/// The NID of a host.
fn nid(host: u8) -> Nid {
    Nid::from_small(2 << 48 | 1 << 32 | 10 << 24 | u64::from(host)).expect("a NID")
}

struct Node {
    xfer: Xfer,
    up: Up,
    held: BTreeMap<HoldId, (FrameHeader, Transfer, Option<Header>, u32, Nid)>,
    host: u8,
}

impl Node {
    fn new(host: u8) -> Self {
        let xfer = Xfer::new(XferConfig {
            shard: ShardId(0),
            shard_count: 1,
            identity: Identity::new([host; 32]),
            secret: [u64::from(host), 99],
            seed: u64::from(host),
            initiator_hash: u32::from(host),
            policies: [PolicyWord::default(); PORTALS],
            nids: vec![nid(host)],
            datagram_max_bytes: vec![DATAGRAM_BYTES],
            receive_bytes: 1 << 18,
            limits: LIMITS,
            times: XferTimes { message: Duration::from_secs(1), ..XferTimes::DEFAULT },
        });
        Self { xfer, up: Up::default(), held: BTreeMap::new(), host }
    }

    fn put(&mut self, now: Instant, to: u8, portal: u32, number: u64, length: u32) -> bool {
        let header = Header {
            destination: ProcessId { nid: nid(to), pid: 1 },
            source: ProcessId { nid: nid(self.host), pid: 1 },
            payload_length: length,
            body: Body::Put {
                ack_md: WireHandle::NONE,
                match_bits: number,
                hdr_data: number,
                portal,
                offset: 0,
            },
        };
        let payload = (length != 0).then(|| span(length));
        self.xfer
            .submit(
                now,
                &Transmit {
                    tx: TxId(number as u32),
                    ni: NiId(0),
                    next_hop: header.destination.nid,
                    header,
                    payload,
                },
            )
            .is_ok()
    }

    fn receive(
        &mut self,
        now: Instant,
        (header, transfer, lnet, payload_bytes, from): &(FrameHeader, Transfer, Option<Header>, u32, Nid),
        handshake: Option<&Handshake>,
    ) {
        let arrived = Arrived {
            ni: NiId(0),
            from: *from,
            header,
            transfer,
            lnet: lnet.as_ref(),
            payload_bytes: *payload_bytes,
            handshake,
        };
        match self.xfer.receive(now, &arrived, &mut self.up) {
            Action::Write => {
                let length_bytes = self.xfer.destination().length_bytes;
                assert!(length_bytes <= *payload_bytes, "more is to be written than has come");
                self.xfer.written(now, &mut self.up);
            }
            Action::Hold(hold) => {
                let frame = (*header, *transfer, *lnet, *payload_bytes, *from);
                assert!(
                    hold.0 < LIMITS.held && self.held.insert(hold, frame).is_none(),
                    "{hold:?} is in use"
                );
            }
            Action::Done => {}
            Action::Drop(_) => return self.replay(now),
        }
        if header.bundled {
            // A record that repeats the first message.
            if let Some(lnet) = lnet.as_ref() {
                for id_delta in [0, 1] {
                    if let Action::Write =
                        self.xfer.receive_record(now, &arrived, id_delta, lnet, &mut self.up)
                    {
                        self.xfer.written(now, &mut self.up);
                    }
                }
            }
            self.xfer.end_bundle(now, &arrived);
        }
        self.replay(now);
    }

    fn replay(&mut self, now: Instant) {
        while let Some(replay) = self.xfer.poll_replay() {
            match replay {
                Replay::Again(hold) => {
                    let frame = self.held.remove(&hold).expect("a frame that is kept");
                    self.receive(now, &frame, None);
                }
                Replay::Forget(hold) => drop(self.held.remove(&hold).expect("a frame that is kept")),
            }
        }
    }

    fn resume(&mut self, now: Instant, deliver: bool) {
        for rx in std::mem::take(&mut self.up.delayed) {
            let verdict = if deliver { Verdict::Deliver(span(64)) } else { Verdict::Drop };
            if !deliver {
                self.up.under_way.remove(&rx);
            }
            self.xfer.resume(now, RxId(rx), verdict, &mut self.up);
        }
        self.replay(now);
    }

    fn assert_bounded(&self) {
        let usage = self.xfer.usage();
        let XferUsage { messages, incoming, partials, frames, held, peers, flows, inflows } = usage;
        let within = messages <= LIMITS.messages
            && incoming <= LIMITS.incoming
            && partials <= LIMITS.partials
            && frames <= LIMITS.frames
            && held <= LIMITS.held
            && peers <= LIMITS.peers
            && flows <= LIMITS.flows
            && inflows <= LIMITS.flows;
        assert!(within, "{usage:?}");
    }
}

/// The node, the honest peer, and what the hostile one knows.
struct Scene {
    now: Instant,
    /// The node, and the honest peer.
    nodes: [Node; 2],
    /// The tokens that the node gave to the hostile peer at its addresses, and the one of it that the node shows.
    tokens: [u64; 2],
    shown: u64,
    last: Transfer,
    id: u64,
    number: u32,
    /// What the hostile peer says of itself when it asks, and when it is asked, but for the certificate.
    handshake: Handshake,
    /// Who it is, and a certificate that it shows in place of its own.
    lives: [Identity; LIVES],
    lie: Option<Certificate>,
    /// Tokens and nonces that the two others have told each other. Who knows them can read their frames.
    secrets: BTreeSet<u64>,
}

const NODE: u8 = 1;
const HONEST: u8 = 2;
/// The addresses of the hostile peer.
const HOSTILE: [u8; 2] = [3, 4];
/// Lives of the hostile peer.
const LIVES: usize = 3;
/// The honest peer's messages.
const FIRST: u64 = 1 << 32 | 6;
const SECOND: u64 = 1 << 32 | 7;

impl Scene {
    fn new() -> Self {
        let lives: [_; LIVES] = std::array::from_fn(|life| Identity::new([100 + life as u8; 32]));
        let blank = Transfer {
            number: 0,
            incarnation: lives[0].incarnation(),
            session: 0,
            oldest: 0,
            shard: 0,
            ack_now: false,
            ack: None,
            payload_crc: None,
            ticket: None,
        };
        let mut scene = Self {
            now: Instant(1 << 40),
            nodes: [Node::new(NODE), Node::new(HONEST)],
            tokens: [0; 2],
            shown: 77,
            last: blank,
            id: 1,
            number: 1,
            handshake: Handshake {
                shards: 1,
                datagram_max_bytes: DATAGRAM_BYTES,
                policies: [PolicyWord::default(); PORTALS],
                certificate: lives[0].certify(&nid(HOSTILE[0])),
            },
            lives,
            lie: None,
            secrets: BTreeSet::new(),
        };
        // The honest peer has a session before the attack begins.
        scene.nodes[1].put(scene.now, NODE, 1, FIRST, 100);
        scene.exchange();
        let hello = (FrameHeader::other(Kind::Hello, 0, 5), blank, None, 0, nid(HOSTILE[0]));
        scene.nodes[0].receive(scene.now, &hello, Some(&scene.handshake));
        scene.exchange();
        scene
    }

    /// Carries what the nodes have to send until there is nothing more.
    fn exchange(&mut self) {
        for _ in 0..1000 {
            let mut moved = false;
            for at in 0..2 {
                let node = &mut self.nodes[at];
                node.xfer.handle_timeout(self.now, &mut node.up);
                node.replay(self.now);
                while let Some(out) = self.nodes[at].xfer.poll_transmit(self.now) {
                    moved = true;
                    self.carry(at, &out);
                }
            }
            if !moved {
                return;
            }
        }
        panic!("the nodes never stop sending at one moment");
    }

    fn carry(&mut self, at: usize, out: &Outgoing) {
        let from = nid(self.nodes[at].host);
        let handshake =
            matches!(out.content, Content::Handshake).then(|| self.nodes[at].xfer.handshake(out.ni));
        let place = HOSTILE.iter().position(|host| out.destination == nid(*host));
        if let Some(place) = place {
            self.last = out.transfer;
            match out.header.kind {
                Kind::Welcome => self.tokens[place] = out.transfer.session,
                Kind::Hello => {
                    // It answers, with a token of its own.
                    let header = FrameHeader::other(Kind::Welcome, 0, out.header.key.message_id);
                    let incarnation = self.lives[0].incarnation();
                    let transfer = Transfer { incarnation, session: self.shown, ..out.transfer };
                    let frame = (header, transfer, None, 0, out.destination);
                    let handshake = self.says(0, &out.destination);
                    self.nodes[0].receive(self.now, &frame, Some(&handshake));
                }
                _ => {}
            }
            return;
        }
        let Some(to) = [NODE, HONEST].iter().position(|host| out.destination == nid(*host)) else { return };
        let (lnet, payload_bytes) = match out.content {
            Content::Message { lnet, payload, .. } => (lnet, payload.map_or(0, |span| span.length_bytes)),
            _ => (None, 0),
        };
        if at != to {
            self.secrets.extend(match out.header.kind {
                Kind::Hello => Some(out.header.key.message_id),
                // The hostile one may have chosen it.
                Kind::Reset => None,
                _ => Some(out.transfer.session),
            });
        }
        let frame = (out.header, out.transfer, lnet, payload_bytes, from);
        self.nodes[to].receive(self.now, &frame, handshake.as_ref());
    }

    /// One step of the input.
    fn step(&mut self, bytes: &[u8; STEP_BYTES]) {
        match bytes[0] % 8 {
            7 if bytes[0] == 0xFF => {
                let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"));
                self.handshake = Handshake {
                    shards: 1 + bytes[1] % 64,
                    datagram_max_bytes: 704 + (word(2) >> (word(2) % 60)) as u32 % 70_000,
                    policies: [PolicyWord(word(10)); PORTALS],
                    ..self.handshake
                };
                self.lie = match bytes[19] % 4 {
                    // That of the honest one, which it was shown once, and one that is wrong.
                    1 => Some(Identity::new([HONEST; 32]).certify(&nid(HONEST))),
                    2 => Some(Certificate { signature: [bytes[20]; 64], ..self.handshake.certificate }),
                    _ => None,
                };
            }
            0 => {
                let power = u32::from(bytes[1] % 34);
                self.now = self.now + Duration::from_nanos(1 << power);
            }
            1 => {
                let portal = u32::from(bytes[1] % 8);
                self.nodes[0].put(
                    self.now,
                    HOSTILE[usize::from(bytes[4] & 1)],
                    portal,
                    u64::from(bytes[2]),
                    u32::from(bytes[3]) * 40,
                );
            }
            2 => self.nodes[0].resume(self.now, bytes[1] & 1 != 0),
            _ => self.send(bytes),
        }
        self.exchange();
        self.nodes[0].assert_bounded();
    }

    /// The hostile peer sends a frame: plausible in most fields, wild in some.
    fn send(&mut self, bytes: &[u8; STEP_BYTES]) {
        let kinds = [
            Kind::Data,
            Kind::Data,
            Kind::Data,
            Kind::Ack,
            Kind::Hello,
            Kind::Welcome,
            Kind::Reset,
            Kind::Parked,
            Kind::Pull,
            Kind::Discard,
            Kind::Ping,
            Kind::Gone,
            Kind::Lost,
        ];
        let kind = kinds[usize::from(bytes[1]) % kinds.len()];
        let wild = |bit: u8| bytes[2] >> bit & 1 != 0;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        self.number = self.number.wrapping_add(if wild(0) { word(4) } else { u32::from(bytes[4] % 4) });
        self.id = self.id.wrapping_add(if wild(1) {
            u64::from(word(8)) << (bytes[8] % 40)
        } else {
            u64::from(bytes[8] % 3)
        });
        let portal = u32::from(bytes[12] % 8);
        let total = if wild(2) { word(12) % (1 << 20) } else { u32::from(bytes[13]) * 16 };
        let offset = if wild(3) { word(16) % (1 << 20) } else { u32::from(bytes[16] % 4) * 1280 };
        let length = u32::from(bytes[17]) * 64 % 1281;
        let bundled = bytes[3] & 1 != 0 && kind == Kind::Data;
        let (offset, length) = if bundled || offset >= total {
            (0, total.min(1280))
        } else {
            (offset, length.min(total - offset))
        };
        let lnet = Header {
            destination: ProcessId { nid: nid(NODE), pid: 1 },
            source: ProcessId { nid: nid(HOSTILE[0]), pid: 1 },
            payload_length: total,
            body: Body::Put { ack_md: WireHandle::NONE, match_bits: 0, hdr_data: 0, portal, offset: 0 },
        };
        let mut header = if kind == Kind::Data {
            let key = SteerKey {
                message_type: MessageType::Put,
                portal: portal as u8,
                key: 0,
                message_id: self.id,
                initiator_hash: 0,
            };
            FrameHeader::data(key, offset, total)
        } else {
            FrameHeader::other(kind, 0, if bytes[3] & 2 != 0 { self.id } else { u64::from(word(4)) })
        };
        header.bundled = bundled && length == total;
        let place = usize::from(bytes[23] >> 4 & 1);
        let session = match (bytes[3] >> 2 & 3, kind) {
            (0, _) => u64::from(word(20)) << 32,
            (1, _) => self.last.session,
            (_, Kind::Ack | Kind::Reset) => self.shown,
            _ => self.tokens[place],
        };
        let ack = (bytes[3] & 16 != 0).then(|| Ack {
            highest: if bytes[3] & 32 != 0 {
                word(18)
            } else {
                self.last.number.wrapping_add(u32::from(bytes[18] % 4))
            },
            below: u64::from(word(20)).wrapping_mul(0x1_0001),
            grant_bytes: word(19),
        });
        let name = if wild(4) { usize::from(bytes[5] % 8) } else { 0 };
        let life = if name < LIVES { name } else { 0 };
        let incarnation = match name {
            6 => u64::from(word(16)),
            7 => Identity::new([HONEST; 32]).incarnation(),
            _ => self.lives[life].incarnation(),
        };
        let transfer = Transfer {
            number: self.number,
            incarnation,
            session,
            oldest: if wild(5) { word(6) as u16 } else { u16::from(bytes[6] % 8).min(self.id as u16) },
            shard: if wild(6) { bytes[7] % 64 } else { 0 },
            ack_now: bytes[3] & 64 != 0,
            ack,
            payload_crc: None,
            ticket: (kind != Kind::Data || bytes[3] & 128 != 0)
                .then(|| if wild(7) { word(20) } else { self.last.ticket.unwrap_or_else(|| word(20) % 32) }),
        };
        let from = nid(if bytes[23].is_multiple_of(16) { bytes[22] } else { HOSTILE[place] });
        let is_answer = kind == Kind::Welcome;
        if self.secrets.contains(&session) || (is_answer && self.secrets.contains(&header.key.message_id)) {
            return;
        }
        let handshake = matches!(kind, Kind::Hello | Kind::Welcome).then(|| self.says(life, &from));
        let first = kind == Kind::Data && offset == 0;
        let payload_bytes = if kind == Kind::Data { length } else { 0 };
        self.nodes[0].receive(
            self.now,
            &(header, transfer, first.then_some(lnet), payload_bytes, from),
            handshake.as_ref(),
        );
    }

    /// What the hostile peer says of itself, in one of its lives, from an address.
    fn says(&self, life: usize, address: &Nid) -> Handshake {
        let certificate = self.lie.unwrap_or_else(|| self.lives[life].certify(address));
        Handshake { certificate, ..self.handshake }
    }

    /// The honest peer, and the end.
    fn conclude(mut self) {
        let usage = self.nodes[0].xfer.usage();
        let room =
            usage.incoming < LIMITS.incoming && usage.peers < LIMITS.peers && usage.inflows < LIMITS.flows;
        self.nodes[1].put(self.now, NODE, 1, SECOND, 3000);
        for _ in 0..100 {
            self.exchange();
            self.now = self.now + Duration::from_millis(5);
        }
        if room && usage.partials < LIMITS.partials {
            assert_eq!(
                self.nodes[0].up.honest,
                [FIRST, SECOND],
                "the honest peer's messages have not arrived once"
            );
            assert_eq!(self.nodes[1].up.sent, [(FIRST as u32, Status::Ok), (SECOND as u32, Status::Ok)]);
        }
        for _ in 0..60 {
            self.now = self.now + Duration::from_secs(1);
            self.nodes[0].resume(self.now, true);
            self.exchange();
        }
        let usage = self.nodes[0].xfer.usage();
        let XferUsage { messages, incoming, partials, frames, held, .. } = usage;
        assert_eq!([messages, incoming, partials, frames, held], [0; 5], "{usage:?}");
        assert!(self.nodes[0].up.under_way.is_empty());
    }
}

/// Runs an input: steps of `STEP_BYTES`.
pub fn transfer(bytes: &[u8]) {
    let mut scene = Scene::new();
    for step in bytes.as_chunks::<STEP_BYTES>().0.iter().take(STEPS_MAX) {
        scene.step(step);
    }
    scene.conclude();
}
