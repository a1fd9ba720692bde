//! A peer that is no node: it has a session with one, and says what it likes.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use lnet_user::node::DEFAULT_PORT;
use lnet_wire::Nid;
use lnet_wire::frame::{
    FRAME_HEADER_BYTES, FrameHeader, HANDSHAKE_BYTES, Handshake, KIND_OFFSET, Kind, MESSAGE_ID_OFFSET,
    SESSION_OFFSET, SHARD_OFFSET, Transfer,
};
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_xdp_proto::Identity;

use super::message::{Message, NO_TRANSFER, seal};
use crate::netns::{Namespace, enter};

const PATIENCE: Duration = Duration::from_secs(10);

/// A UDP socket under an address of a namespace, and what loss recovery wants to see of it.
#[derive(Debug)]
pub struct Stranger {
    socket: UdpSocket,
    nid: Nid,
    target: SocketAddr,
    /// The node's token, for this life.
    session: u64,
    life: u8,
    /// Counts messages, and frames.
    next: u32,
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
        Self { socket, nid, target, session: 0, life: 0, next: 1 }
    }

    /// Asks for a session in another life than before; `progress` is called until there is one.
    ///
    /// # Panics
    /// When no answer comes.
    pub fn greet(&mut self, mut progress: impl FnMut()) {
        self.life += 1;
        (self.session, self.next) = (0, 1);
        let begun = Instant::now();
        while self.session == 0 {
            self.send(&self.other(Kind::Hello));
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
            if length > FRAME_HEADER_BYTES && bytes[KIND_OFFSET] == Kind::Welcome as u8 {
                let token = bytes[SESSION_OFFSET..].first_chunk().expect("a whole header");
                self.session = u64::from_le_bytes(*token);
            }
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
            if bytes[KIND_OFFSET] == Kind::Hello as u8 {
                let nonce = bytes[MESSAGE_ID_OFFSET..].first_chunk().expect("a whole header");
                self.send(&self.welcome(bytes[SHARD_OFFSET], u64::from_le_bytes(*nonce)));
            }
        }
        data_count
    }

    /// A session for a shard of the node that has asked for one.
    fn welcome(&self, shard: u8, nonce: u64) -> Vec<u8> {
        const ANY_TOKEN: u64 = 1;
        let mut frame = [0; FRAME_HEADER_BYTES];
        FrameHeader::other(Kind::Welcome, shard, nonce).encode(&mut frame);
        Transfer { session: ANY_TOKEN, ..self.transfer() }.encode(&mut frame);
        let mut bytes = [&frame[..], &self.handshake()].concat();
        seal(&mut bytes);
        bytes
    }

    /// The identity of this life; no two addresses have one in common.
    fn identity(&self) -> Identity {
        let mut seed = [self.life; 32];
        let name = self.nid.to_bytes();
        seed[..name.len()].iter_mut().zip(name).for_each(|(seed, byte)| *seed ^= byte);
        Identity::new(seed)
    }

    /// What it tells of itself.
    fn handshake(&self) -> [u8; HANDSHAKE_BYTES] {
        let policies = [PolicyWord::default(); PORTALS];
        let certificate = self.identity().certify(&self.nid);
        let mut body = [0; HANDSHAKE_BYTES];
        Handshake { shards: 1, checksum: true, datagram_max_bytes: 1400, policies, certificate }
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
        let incarnation = self.identity().incarnation();
        Transfer { number: self.next, incarnation, session: self.session, ..NO_TRANSFER }
    }

    /// Sends a datagram to the node.
    ///
    /// # Panics
    /// When the kernel refuses it.
    pub fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.target).expect("a datagram that can be sent");
    }
}
