//! A node of the scene: its transfer protocol, and what its shard and its driver would do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::ShardId;
use lnet_core::lnd::{NiId, PeerSlot, PrefetchHints, RxId, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_wire::frame::{FrameHeader, Handshake, Transfer};
use lnet_wire::steer::{PORTALS, PolicyWord};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};
use lnet_xdp_proto::{
    Arrived, BufferId, Disposition, Identity, MetAddresses, Replay, Xfer, XferConfig, XferNi, XferTimes,
    XferUsage,
};

use super::{DATAGRAM_BYTES, DELAYING, DROPPING, LIMITS, nid, span};

/// What the node's shard would do.
#[derive(Default)]
pub(super) struct Up {
    pub(super) under_way: BTreeMap<u32, u64>,
    pub(super) delayed: Vec<u32>,
    /// Messages of the honest peer that have arrived.
    pub(super) honest: Vec<u64>,
    pub(super) sent: Vec<(u32, Status)>,
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

pub(super) struct Node {
    pub(super) xfer: Xfer,
    pub(super) up: Up,
    pub(super) buffered: BTreeMap<BufferId, (FrameHeader, Transfer, Option<Header>, u32, Nid)>,
    pub(super) host: u8,
}

impl Node {
    pub(super) fn new(host: u8) -> Self {
        let xfer = Xfer::new(XferConfig {
            shard: ShardId(0),
            shard_count: 1,
            identity: Identity::new([host; 32]),
            secret: [u64::from(host), 99],
            seed: u64::from(host),
            initiator_hash: u32::from(host),
            policies: [PolicyWord::default(); PORTALS],
            met: Arc::new(MetAddresses::new(LIMITS.peers, 1)),
            nis: vec![XferNi {
                nid: nid(host),
                datagram_max_bytes: DATAGRAM_BYTES,
                checksum: true,
                runs: false,
            }],
            receive_bytes: 1 << 18,
            limits: LIMITS,
            times: XferTimes { message: Duration::from_secs(1), ..XferTimes::DEFAULT },
        });
        Self { xfer, up: Up::default(), buffered: BTreeMap::new(), host }
    }

    pub(super) fn put(&mut self, now: Instant, to: u8, portal: u32, number: u64, length: u32) -> bool {
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
                    peer: PeerSlot(0),
                    header,
                    payload,
                },
            )
            .is_ok()
    }

    pub(super) fn receive(
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
            Disposition::Write => {
                let length_bytes = self.xfer.destination().length_bytes;
                assert!(length_bytes <= *payload_bytes, "more is to be written than has come");
                self.xfer.written(now, &mut self.up);
            }
            Disposition::Buffer(id) => {
                let frame = (*header, *transfer, *lnet, *payload_bytes, *from);
                assert!(
                    id.0 < LIMITS.buffered && self.buffered.insert(id, frame).is_none(),
                    "{id:?} is in use"
                );
            }
            Disposition::Done => {}
            Disposition::Drop(_) => return self.replay(now),
        }
        if header.bundled {
            // A record that repeats the first message.
            if let Some(lnet) = lnet.as_ref() {
                for id_delta in [0, 1] {
                    if let Disposition::Write =
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

    pub(super) fn replay(&mut self, now: Instant) {
        while let Some(replay) = self.xfer.poll_replay() {
            match replay {
                Replay::Again(id) => {
                    let frame = self.buffered.remove(&id).expect("a frame that is kept");
                    self.receive(now, &frame, None);
                }
                Replay::Forget(id) => drop(self.buffered.remove(&id).expect("a frame that is kept")),
            }
        }
    }

    pub(super) fn resume(&mut self, now: Instant, deliver: bool) {
        for rx in std::mem::take(&mut self.up.delayed) {
            let verdict = if deliver { Verdict::Deliver(span(64)) } else { Verdict::Drop };
            if !deliver {
                self.up.under_way.remove(&rx);
            }
            self.xfer.resume(now, RxId(rx), verdict, &mut self.up);
        }
        self.replay(now);
    }

    pub(super) fn assert_bounded(&self) {
        let usage = self.xfer.usage();
        let XferUsage {
            messages,
            incoming,
            partials,
            frames,
            buffered,
            peers,
            send_streams,
            receive_streams,
        } = usage;
        let within = messages <= LIMITS.messages
            && incoming <= LIMITS.incoming
            && partials <= LIMITS.partials
            && frames <= LIMITS.frames
            && buffered <= LIMITS.buffered
            && peers <= LIMITS.peers
            && send_streams <= LIMITS.streams
            && receive_streams <= LIMITS.streams;
        assert!(within, "{usage:?}");
    }
}
