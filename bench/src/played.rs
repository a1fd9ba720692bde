//! Many peers, played by one thread: for each address of a network an incarnation of its own, with the real
//! transfer protocol, that takes Puts, acknowledges them, and answers with an LNet ACK where one is wanted.
//!
//! A played peer is no node: nothing is matched or copied, and all peers share one UDP socket, to which the
//! kernel delivers what goes to any address of the network. What a sender sees of them is what it sees of so
//! many nodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use lnet_core::handle::{BufferRef, Cookie, ShardId};
use lnet_core::lnd::{NiId, PeerSlot, PrefetchHints, RxId, Span, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_wire::frame::{
    CRC_OFFSET, FRAME_HEADER_BYTES, HANDSHAKE_BYTES, Handshake, Kind, RECORD_BYTES, RECORD_CRC_OFFSET,
    Record, Transfer,
};
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::steer::{PORTALS, PolicyWord, initiator_hash};
use lnet_wire::{Body, FrameHeader, Header, Net, Nid, ProcessId, WireHandle};
use lnet_xdp_proto::{
    Arrived, Content, Disposition, Identity, MetAddresses, OutgoingFrame, Xfer, XferConfig, XferLimits,
    XferNi, XferTimes,
};
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt, sockopt,
};

/// The network of the peers; `cargo xtask bench` has it routed.
pub const FIRST: Ipv4Addr = Ipv4Addr::new(10, 212, 0, 1);
const NI: NiId = NiId(0);
const DATAGRAM_BYTES_MAX: u32 = 1472;
/// Datagrams that are taken between two looks at the clock.
const BATCH: usize = 32;
/// Bytes that wait in the socket at most.
const SOCKET_BYTES: usize = 1 << 23;

/// The NID of a peer.
///
/// # Panics
/// Never: IPv4 addresses are those of the net.
#[must_use]
pub fn nid(index: u32) -> Nid {
    let address = Ipv4Addr::from(u32::from(FIRST) + index);
    Nid::new_ip(Net::XDP, address.into()).expect("xdp NIDs are IP addresses")
}

/// A played peer.
struct Peer {
    xfer: Xfer,
    taken: Taken,
    /// When it is looked at next at the latest.
    due: Option<Instant>,
}

/// What a peer has taken, and is to answer.
#[derive(Default)]
struct Taken {
    /// ACKs that messages are answered with, by the names under which the messages arrived.
    answers: Vec<Option<(Nid, Header)>>,
    /// ACKs to be sent.
    ready: Vec<(Nid, Header)>,
    /// Names of messages that may be sent.
    free: Vec<TxId>,
    count: u64,
}

impl PrefetchHints for Taken {}

impl Uplink for Taken {
    fn header(&mut self, _now: Instant, _ni: NiId, from: &Nid, RxId(rx): RxId, header: &Header) -> Verdict {
        let Body::Put { ack_md, match_bits, .. } = header.body else { return Verdict::Drop };
        let ack = Header {
            destination: header.source,
            source: header.destination,
            payload_length: 0,
            body: Body::Ack { md: ack_md, match_bits, manipulated_length: header.payload_length },
        };
        self.answers[rx as usize] = (ack_md != WireHandle::NONE).then_some((*from, ack));
        // There is no such buffer, and nothing is written to it.
        let buffer = BufferRef(Cookie(0));
        Verdict::Deliver(Span { buffer, offset_bytes: 0, length_bytes: header.payload_length })
    }

    fn received(&mut self, _now: Instant, RxId(rx): RxId, _status: Status) {
        self.count += 1;
        self.ready.extend(self.answers[rx as usize].take());
    }

    fn sent(&mut self, _now: Instant, tx: TxId, _status: Status) {
        self.free.push(tx);
    }
}

impl Peer {
    /// A peer that takes so many messages at once.
    fn new(index: u32, messages: u32) -> Self {
        let mut secret = [0x5A; 32];
        secret[..4].copy_from_slice(&index.to_le_bytes());
        let nid = nid(index);
        let xfer = Xfer::new(XferConfig {
            shard: ShardId(0),
            shard_count: 1,
            identity: Identity::new(secret),
            secret: [index.into(), 7],
            seed: index.into(),
            initiator_hash: initiator_hash(&nid),
            policies: [PolicyWord(0); PORTALS],
            met: Arc::new(MetAddresses::new(2, 1)),
            // Payloads are not looked at.
            nis: vec![XferNi { nid, datagram_max_bytes: DATAGRAM_BYTES_MAX, checksum: false, runs: false }],
            receive_bytes: 1 << 20,
            limits: XferLimits {
                messages,
                incoming: messages,
                partials: 1,
                peers: 2,
                streams: 2,
                frames: 4 * messages,
                buffered: 1,
            },
            times: XferTimes::DEFAULT,
        });
        let answers = vec![None; messages as usize];
        let free = (0..messages).map(TxId).collect();
        Self { xfer, taken: Taken { answers, free, ..Taken::default() }, due: None }
    }

    /// Takes a datagram in, unless it is no frame.
    fn receive(&mut self, now: Instant, own: &Nid, from: Nid, datagram: &[u8]) -> Option<()> {
        let head = datagram.first_chunk::<FRAME_HEADER_BYTES>()?;
        let header = &FrameHeader::decode(head, datagram.len()).ok()?;
        let transfer = &Transfer::decode(head)?;
        let start = header.covered_bytes();
        let lnet = match header.short {
            Some(short) => Some(Header {
                destination: ProcessId::lustre(*own),
                source: ProcessId::lustre(from),
                payload_length: header.total_length,
                body: Body::Put {
                    ack_md: WireHandle::NONE,
                    match_bits: header.key.key,
                    hdr_data: short.hdr_data,
                    portal: header.key.portal.into(),
                    offset: short.offset,
                },
            }),
            None if header.lnet_header_bytes() != 0 => {
                Some(Header::split_large(&datagram[FRAME_HEADER_BYTES..]).ok()?.0)
            }
            None => None,
        };
        let handshake = match header.kind {
            Kind::Hello | Kind::Welcome => Handshake::decode(datagram[FRAME_HEADER_BYTES..].first_chunk()?),
            _ => None,
        };
        let payload_bytes =
            if header.bundled { header.total_length } else { (datagram.len() - start) as u32 };
        let (lnet, handshake) = (lnet.as_ref(), handshake.as_ref());
        let arrived = Arrived { ni: NI, from, header, transfer, lnet, payload_bytes, handshake };
        let Self { xfer, taken, .. } = self;
        if xfer.receive(now, &arrived, taken) == Disposition::Write {
            xfer.written(now, taken);
        }
        if header.bundled {
            let mut at = start + payload_bytes as usize;
            while at < datagram.len() {
                let Record { id_delta, length, .. } = Record::decode(datagram[at..].first_chunk()?)?;
                let (lnet, _) = Header::split_large(&datagram[at + RECORD_BYTES..]).ok()?;
                if xfer.receive_record(now, &arrived, id_delta, &lnet, taken) == Disposition::Write {
                    xfer.written(now, taken);
                }
                at += RECORD_BYTES + LARGE_HEADER_BYTES + length as usize;
            }
            xfer.end_bundle(now, &arrived);
        }
        Some(())
    }

    /// Does what is due, and writes all frames that there are.
    fn turn(&mut self, now: Instant, bytes: &mut Vec<u8>, mut send: impl FnMut(Nid, &[u8])) {
        let Self { xfer, taken, .. } = self;
        if xfer.poll_timeout().is_some_and(|due| due <= now) {
            xfer.handle_timeout(now, taken);
        }
        while xfer.poll_replay().is_some() {}
        while let (Some(&(next_hop, header)), Some(&tx)) = (taken.ready.last(), taken.free.last())
            && xfer
                .submit(now, &Transmit { tx, ni: NI, next_hop, peer: PeerSlot(0), header, payload: None })
                .is_ok()
        {
            taken.ready.pop();
            taken.free.pop();
        }
        while let Some(outgoing) = xfer.poll_transmit(now) {
            write(&outgoing, xfer, bytes);
            send(outgoing.destination, bytes);
        }
    }
}

/// Writes a frame, which has no payload.
fn write(outgoing: &OutgoingFrame, xfer: &Xfer, bytes: &mut Vec<u8>) {
    let mut head = [0; FRAME_HEADER_BYTES];
    outgoing.header.encode(&mut head);
    outgoing.transfer.encode(&mut head);
    bytes.clear();
    bytes.extend_from_slice(&head);
    let mut covered_bytes = FRAME_HEADER_BYTES;
    match outgoing.content {
        Content::Nothing => {}
        Content::Handshake => {
            let mut body = [0; HANDSHAKE_BYTES];
            xfer.handshake(outgoing.ni).encode(&mut body);
            bytes.extend_from_slice(&body);
            covered_bytes = bytes.len();
        }
        Content::Message { lnet, bundled, .. } => {
            if let Some(lnet) = lnet {
                append(&lnet, bytes);
                covered_bytes = bytes.len();
            }
            for index in 0..bundled {
                let further = xfer.bundled(index);
                let start = bytes.len();
                let mut record = [0; RECORD_BYTES];
                Record { id_delta: further.id_delta, length: 0, payload_crc: 0 }.encode(&mut record);
                bytes.extend_from_slice(&record);
                append(&further.lnet, bytes);
                put_checksum(&mut bytes[start..], RECORD_CRC_OFFSET);
            }
        }
    }
    put_checksum(&mut bytes[..covered_bytes], CRC_OFFSET);
}

fn append(header: &Header, bytes: &mut Vec<u8>) {
    let mut large = [0; LARGE_HEADER_BYTES];
    header.encode_large(&mut large);
    bytes.extend_from_slice(&large);
}

/// Writes the checksum of bytes where it is to stand, and zero does.
fn put_checksum(bytes: &mut [u8], offset: usize) {
    let checksum = crc_fast::crc32_iscsi(bytes);
    bytes[offset..offset + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// The peers, and the socket of all of them.
pub struct Peers {
    peers: Vec<Peer>,
    socket: UdpSocket,
    port: u16,
    begun: std::time::Instant,
    /// When peers have something to do; some of them have done it since.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    /// Scratch.
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("count", &self.peers.len()).finish_non_exhaustive()
    }
}

impl Peers {
    /// Plays so many peers in the calling thread's network namespace; each takes so many messages at once.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn open(count: u32, messages: u32, port: u16) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).context("the socket of the peers")?;
        socket.set_nonblocking(true)?;
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BYTES)?;
        Ok(Self {
            peers: (0..count).map(|index| Peer::new(index, messages)).collect(),
            socket,
            port,
            begun: std::time::Instant::now(),
            timers: BinaryHeap::new(),
            bytes: Vec::new(),
        })
    }

    /// Plays until told to stop; the messages that were taken.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn play(&mut self, stop: &AtomicBool) -> anyhow::Result<u64> {
        let mut touched = Vec::with_capacity(BATCH);
        while !stop.load(Ordering::Relaxed) {
            let now = Instant(1 << 40 | self.begun.elapsed().as_nanos() as u64);
            for _ in 0..BATCH {
                match self.receive(now)? {
                    Some(index) => touched.push(index),
                    None => break,
                }
            }
            let is_idle = touched.is_empty();
            while let Some(&Reverse((due, index))) = self.timers.peek()
                && due <= now
            {
                self.timers.pop();
                touched.push(index);
            }
            for index in touched.drain(..) {
                self.turn(now, index)?;
            }
            if is_idle {
                std::thread::yield_now();
            }
        }
        Ok(self.peers.iter().map(|peer| peer.taken.count).sum())
    }

    /// Takes the next datagram; which peer it was for.
    fn receive(&mut self, now: Instant) -> anyhow::Result<Option<u32>> {
        let mut datagram = [0; DATAGRAM_BYTES_MAX as usize];
        let mut control = nix::cmsg_space!(nix::libc::in_pktinfo);
        let mut pieces = [IoSliceMut::new(&mut datagram)];
        let flags = MsgFlags::MSG_DONTWAIT;
        let message =
            match recvmsg::<SockaddrIn>(self.socket.as_raw_fd(), &mut pieces, Some(&mut control), flags) {
                Ok(message) => message,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(error).context("receiving for the peers"),
            };
        let (length, from) = (message.bytes, message.address.context("a datagram has a sender")?);
        let to = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(u32::from_be(info.ipi_addr.s_addr)),
            _ => None,
        });
        let index = to.context("a datagram has an address")?.wrapping_sub(u32::from(FIRST));
        let from = nid(0).with_ip(from.ip().into());
        if let Some(peer) = self.peers.get_mut(index as usize) {
            peer.receive(now, &nid(index), from, &datagram[..length]);
            return Ok(Some(index));
        }
        Ok(None)
    }

    /// Has a peer send what it has, and notes when it has something to do next.
    fn turn(&mut self, now: Instant, index: u32) -> anyhow::Result<()> {
        let Self { peers, socket, port, timers, bytes, .. } = self;
        let peer = &mut peers[index as usize];
        let mut outcome = Ok(());
        peer.turn(now, bytes, |to, bytes| {
            let sent = send(socket, (index, to), *port, bytes);
            outcome = std::mem::replace(&mut outcome, Ok(())).and(sent);
        });
        peer.due.take_if(|due| *due <= now);
        if let Some(next) = peer.xfer.poll_timeout().map(|next| next.max(Instant(now.0 + 1)))
            && peer.due.is_none_or(|due| next < due)
        {
            peer.due = Some(next);
            timers.push(Reverse((next, index)));
        }
        outcome
    }
}

/// Sends a datagram in a peer's name.
fn send(socket: &UdpSocket, (index, to): (u32, Nid), port: u16, bytes: &[u8]) -> anyhow::Result<()> {
    let own = Ipv4Addr::from(u32::from(FIRST) + index);
    let info = nix::libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: nix::libc::in_addr { s_addr: u32::from(own).to_be() },
        ipi_addr: nix::libc::in_addr { s_addr: 0 },
    };
    let Some(std::net::IpAddr::V4(to)) = to.ip() else { return Ok(()) };
    let to = SockaddrIn::from(SocketAddrV4::new(to, port));
    let control = [ControlMessage::Ipv4PacketInfo(&info)];
    match sendmsg(socket.as_raw_fd(), &[IoSlice::new(bytes)], &control, MsgFlags::MSG_DONTWAIT, Some(&to)) {
        Ok(_) => Ok(()),
        // A loss like any other.
        Err(Errno::EAGAIN | Errno::ENOBUFS) => Ok(()),
        Err(error) => Err(error).context("sending for a peer"),
    }
}
