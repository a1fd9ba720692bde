//! The body of the fuzz target `transfer`: a peer with a session of its own that sends whatever it likes, in
//! any order. It uses `lnet-wire` and `lnet-core` alone, so that the fuzzer has little to instrument.
//!
//! What must hold: nothing panics, what the node keeps stays within its limits, an honest peer's messages
//! arrive once and are acknowledged in time, also while the hostile one fills all tables from its addresses,
//! and once that falls silent everything ends.

mod node;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::Duration;

use lnet_core::handle::{Cookie, CookieKind, MdHandle, ShardId};
use lnet_core::lnd::{Span, Status};
use lnet_core::time::Instant;
use lnet_wire::frame::{Ack, Certificate, FrameHeader, Handshake, Kind, Transfer};
use lnet_wire::steer::{PORTALS, PolicyWord, SteerKey};
use lnet_wire::{Body, Header, MessageType, Nid, ProcessId, WireHandle};
use lnet_xdp_proto::{Content, Identity, OutgoingFrame, XferLimits, XferUsage};

use self::node::Node;

/// Bytes of one step of an input.
const STEP_BYTES: usize = 24;
/// Steps of an input that count.
const STEPS_MAX: usize = 160;
/// Portals whose messages the node delays, and drops.
const DELAYING: u32 = 3;
const DROPPING: u32 = 5;
const DATAGRAM_BYTES: u32 = 1472;

const LIMITS: XferLimits =
    XferLimits { messages: 16, incoming: 16, partials: 4, peers: 8, streams: 8, frames: 128, buffered: 4 };

fn span(length_bytes: u32) -> Span {
    let md = MdHandle(Cookie::new(CookieKind::MemoryDesc, ShardId(0), 1, 1));
    Span { buffer: md.into(), offset_bytes: 0, length_bytes }
}

/// The NID of a host.
fn nid(host: u8) -> Nid {
    Nid::from_small(2 << 48 | 1 << 32 | 10 << 24 | u64::from(host)).expect("a NID")
}

/// The node, the honest peer, and what the hostile one knows.
struct Scene {
    now: Instant,
    /// The node, and the honest peer.
    nodes: [Node; 2],
    /// The honest peer's last message.
    honest: u64,
    /// The tokens that the node gave to the hostile peer at its addresses, and the one of it that the node
    /// shows.
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
const LIVES: usize = 8;
/// The honest peer's messages.
const FIRST: u64 = 1 << 32 | 6;

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
            honest: FIRST,
            tokens: [0; 2],
            shown: 77,
            last: blank,
            id: 1,
            number: 1,
            handshake: Handshake {
                shards: 1,
                checksum: true,
                runs: false,
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

    fn carry(&mut self, at: usize, out: &OutgoingFrame) {
        let from = nid(self.nodes[at].host);
        let handshake =
            matches!(out.content, Content::Handshake).then(|| self.nodes[at].xfer.handshake(out.ni));
        let place = HOSTILE.iter().position(|host| out.destination == nid(*host));
        if let Some(place) = place {
            self.last = out.transfer;
            match out.header.kind {
                Kind::Welcome => self.tokens[place] = out.transfer.session,
                Kind::Hello => {
                    // The hostile peer answers, with a token of its own.
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
                    checksum: bytes[1] & 64 == 0,
                    runs: bytes[1] & 128 != 0,
                    datagram_max_bytes: 704 + (word(2) >> (word(2) % 60)) as u32 % 70_000,
                    policies: [PolicyWord(word(10)); PORTALS],
                    ..self.handshake
                };
                self.lie = match bytes[19] % 4 {
                    // The certificate of the honest peer, which it was shown once, and a wrong one.
                    1 => Some(Identity::new([HONEST; 32]).certify(&nid(HONEST))),
                    2 => Some(Certificate { signature: [bytes[20]; 64], ..self.handshake.certificate }),
                    _ => None,
                };
            }
            7 if bytes[0] == 0xF7 => self.honest_message(u32::from(bytes[1]) * 40),
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
            Kind::Deferred,
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
            buffered: bytes[18] & 128 != 0,
        });
        let name = if wild(4) { usize::from(bytes[5] % 16) } else { 0 };
        let life = if name < LIVES { name } else { 0 };
        let incarnation = match name {
            14 => u64::from(word(16)),
            15 => Identity::new([HONEST; 32]).incarnation(),
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

    /// The honest peer sends a message: it arrives once, whatever the hostile one does.
    fn honest_message(&mut self, length: u32) {
        self.honest += 1;
        let number = self.honest;
        assert!(self.nodes[1].put(self.now, NODE, 1, number, length), "the honest peer has no room");
        for _ in 0..100 {
            self.exchange();
            if self.nodes[1].up.sent.last().is_some_and(|(last, _)| *last == number as u32) {
                break;
            }
            self.now = self.now + Duration::from_millis(5);
        }
        let all: Vec<_> = (FIRST..=number).collect();
        assert_eq!(self.nodes[0].up.honest, all, "the honest peer's messages have not arrived once");
        let all: Vec<_> = all.into_iter().map(|number| (number as u32, Status::Ok)).collect();
        assert_eq!(self.nodes[1].up.sent, all);
    }

    /// The honest peer, and the end.
    fn conclude(mut self) {
        self.honest_message(3000);
        for _ in 0..60 {
            self.now = self.now + Duration::from_secs(1);
            self.nodes[0].resume(self.now, true);
            self.exchange();
        }
        let usage = self.nodes[0].xfer.usage();
        let XferUsage { messages, incoming, partials, frames, buffered, .. } = usage;
        assert_eq!([messages, incoming, partials, frames, buffered], [0; 5], "{usage:?}");
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
