//! A peer that is no node: it has a session with one, and says what it likes.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use lnet_user::node::DEFAULT_PORT;
use lnet_wire::Nid;
use lnet_wire::frame::{
    Certificate, FRAME_HEADER_BYTES, FrameHeader, HANDSHAKE_BYTES, Handshake, KIND_OFFSET, Kind,
    MESSAGE_ID_OFFSET, SESSION_OFFSET, SHARD_OFFSET, Transfer,
};
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_xdp_proto::Identity;

use super::message::{Message, NO_TRANSFER, seal};
use crate::netns::{Namespace, enter};

const PATIENCE: Duration = Duration::from_secs(10);

/// Words of a peer that is no node to one that is, with all that loss recovery wants to see of them.
#[derive(Debug)]
pub struct Voice {
    nid: Nid,
    /// The node's token, for this life.
    session: u64,
    life: u8,
    /// Counts messages, and frames.
    next: u32,
    incarnation: u64,
    certificate: Certificate,
}

impl Voice {
    /// The voice of a NID, in its first life and without a session.
    #[must_use]
    pub fn new(nid: Nid) -> Self {
        Self::of_life(nid, 0)
    }

    fn of_life(nid: Nid, life: u8) -> Self {
        // No two NIDs have an identity in common.
        let mut seed = [life; 32];
        let name = nid.to_bytes();
        seed[..name.len()].iter_mut().zip(name).for_each(|(seed, byte)| *seed ^= byte);
        let identity = Identity::new(seed);
        let (incarnation, certificate) = (identity.incarnation(), identity.certify(&nid));
        Self { nid, session: 0, life, next: 1, incarnation, certificate }
    }

    /// Begins another life, which has no session yet.
    pub fn begin_life(&mut self) {
        *self = Self::of_life(self.nid, self.life + 1);
    }

    /// Whether it has a session.
    #[must_use]
    pub const fn has_session(&self) -> bool {
        self.session != 0
    }

    /// Takes the session that a datagram may bring.
    pub fn hear(&mut self, datagram: &[u8]) {
        if datagram.len() > FRAME_HEADER_BYTES && datagram[KIND_OFFSET] == Kind::Welcome as u8 {
            let token = datagram[SESSION_OFFSET..].first_chunk().expect("a whole header");
            self.session = u64::from_le_bytes(*token);
        }
    }

    /// The answer that gives a session to a shard of the node, if a datagram asks for one.
    #[must_use]
    pub fn welcome(&self, datagram: &[u8]) -> Option<Vec<u8>> {
        const ANY_TOKEN: u64 = 1;
        if datagram.len() <= FRAME_HEADER_BYTES || datagram[KIND_OFFSET] != Kind::Hello as u8 {
            return None;
        }
        let nonce = datagram[MESSAGE_ID_OFFSET..].first_chunk().expect("a whole header");
        let mut frame = [0; FRAME_HEADER_BYTES];
        FrameHeader::other(Kind::Welcome, datagram[SHARD_OFFSET], u64::from_le_bytes(*nonce))
            .encode(&mut frame);
        Transfer { session: ANY_TOKEN, ..self.transfer() }.encode(&mut frame);
        let mut bytes = [&frame[..], &self.handshake()].concat();
        seal(&mut bytes);
        Some(bytes)
    }

    /// Body of a HELLO or WELCOME.
    fn handshake(&self) -> [u8; HANDSHAKE_BYTES] {
        let (policies, certificate) = ([PolicyWord::default(); PORTALS], self.certificate);
        let mut body = [0; HANDSHAKE_BYTES];
        Handshake { shards: 1, checksum: true, runs: false, datagram_max_bytes: 1400, policies, certificate }
            .encode(&mut body);
        body
    }

    /// Gives a message the next id and frame number of the session.
    #[must_use]
    pub fn sign(&mut self, mut message: Message) -> Message {
        message.frame.key.message_id = self.next.into();
        message.transfer = self.transfer();
        self.next += 1;
        message
    }

    /// The datagrams of a message that has more payload than one of so many bytes carries.
    #[must_use]
    pub fn cut(&mut self, message: Message, payload_bytes: usize) -> Vec<Vec<u8>> {
        let mut first = self.sign(message);
        let rest = first.payload.split_off(first.payload.len().min(payload_bytes));
        let later = rest.chunks(payload_bytes).enumerate().map(|(index, payload)| {
            let offset = (index + 1) * payload_bytes;
            let mut frame = [0; FRAME_HEADER_BYTES];
            FrameHeader::data(first.frame.key, offset as u32, first.frame.total_length).encode(&mut frame);
            self.transfer().encode(&mut frame);
            self.next += 1;
            let mut bytes = [&frame[..], payload].concat();
            seal(&mut bytes);
            bytes
        });
        let later: Vec<_> = later.collect();
        [vec![first.datagram()], later].concat()
    }

    /// A datagram of another kind than data, to shard 0.
    #[must_use]
    pub fn other(&self, kind: Kind) -> Vec<u8> {
        let mut frame = [0; FRAME_HEADER_BYTES];
        FrameHeader::other(kind, 0, 77).encode(&mut frame);
        self.transfer().encode(&mut frame);
        let mut bytes = frame.to_vec();
        if kind == Kind::Hello {
            bytes.extend_from_slice(&self.handshake());
        }
        seal(&mut bytes);
        bytes
    }

    fn transfer(&self) -> Transfer {
        let &Self { next, incarnation, session, .. } = self;
        Transfer { number: next, incarnation, session, ..NO_TRANSFER }
    }
}

/// A voice with a UDP socket under an address of a namespace.
#[derive(Debug)]
pub struct Stranger {
    socket: UdpSocket,
    voice: Voice,
    target: SocketAddr,
}

impl Stranger {
    /// A stranger without a session.
    ///
    /// # Panics
    /// When the address is not there, or its port is taken.
    #[must_use]
    pub fn new(namespace: &Namespace, nid: Nid, target: Nid) -> Self {
        let [own, target] =
            [nid, target].map(|nid| SocketAddr::new(nid.ip().expect("an IP address"), DEFAULT_PORT));
        let socket = enter(namespace, || UdpSocket::bind(own).expect("an address with a free port"));
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("a timeout");
        Self { socket, voice: Voice::new(nid), target }
    }

    /// Asks for a session in another life than before; `progress` is called until there is one.
    ///
    /// # Panics
    /// When no answer comes.
    pub fn greet(&mut self, mut progress: impl FnMut()) {
        self.voice.begin_life();
        let begun = Instant::now();
        while !self.voice.has_session() {
            self.send(&self.voice.other(Kind::Hello));
            for _ in 0..20 {
                progress();
                self.take_answers();
            }
            assert!(begun.elapsed() < PATIENCE, "{} gives no session", self.target);
        }
    }

    fn take_answers(&mut self) {
        let mut bytes = [0; 2000];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            self.voice.hear(&bytes[..length]);
        }
    }

    /// Reads for about a millisecond: gives a session to every node that asks for one, and acknowledges
    /// nothing. Returns how many frames with data came.
    ///
    /// # Panics
    /// When the kernel refuses an answer.
    pub fn stay_silent(&mut self) -> u64 {
        let mut bytes = [0; 2000];
        let mut data_count = 0;
        while let Ok(length) = self.socket.recv(&mut bytes) {
            if length <= FRAME_HEADER_BYTES {
                continue;
            }
            data_count += u64::from(bytes[KIND_OFFSET] == Kind::Data as u8);
            if let Some(answer) = self.voice.welcome(&bytes[..length]) {
                self.send(&answer);
            }
        }
        data_count
    }

    /// Gives a message the next id and frame number of the session.
    #[must_use]
    pub fn sign(&mut self, message: Message) -> Message {
        self.voice.sign(message)
    }

    /// A datagram of another kind than data, to shard 0.
    #[must_use]
    pub fn other(&self, kind: Kind) -> Vec<u8> {
        self.voice.other(kind)
    }

    /// Sends a datagram to the node.
    ///
    /// # Panics
    /// When the kernel refuses it.
    pub fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.target).expect("a datagram that can be sent");
    }
}
