//! What the tests share: small shards, and short ways to say things to them.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::event::{Event, EventMd, Origin};
use lnet_core::handle::{EqHandle, MdHandle, MeHandle, ShardId};
use lnet_core::lnd::{NiId, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::seal::Seals;
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_core::stats::DropReason;
use lnet_core::time::Instant;
use lnet_core::topology::{LocalNi, Topology};
use lnet_core::{Limits, Shard, ShardConfig};
use lnet_wire::{Body, Header, MessageType, Nid, ProcessId, WireHandle};

/// The only NI of most shards here.
pub(crate) const NI: NiId = NiId(0);
/// When it is now, for what does not care.
pub(crate) const NOW: Instant = Instant(0);
/// The pid of everyone.
pub(crate) const PID: u32 = ProcessId::LUSTRE_PID;
/// How long a message waits for credits.
pub(crate) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(50);
/// A process of which nothing is said.
pub(crate) const ANYONE: ProcessId = ProcessId::ANY;

/// The NID of host `10.0.0.host` on net `tcp<net>`.
pub(crate) fn nid(net: u16, host: u8) -> Nid {
    Nid::from_small(2 << 48 | u64::from(net) << 32 | 10 << 24 | u64::from(host)).unwrap()
}

/// The process of a host on net `tcp1`.
pub(crate) fn host(host: u8) -> ProcessId {
    ProcessId::lustre(nid(1, host))
}

/// What a shard has to say next, and to which sibling.
pub(crate) fn poll_mesh(shard: &mut Shard) -> Option<(ShardId, MeshMessage)> {
    let mut siblings = (0..u64::BITS as u8).map(ShardId);
    siblings.find_map(|to| Some((to, shard.poll_mesh_to(to)?)))
}

pub(crate) fn local_ni(nid: Nid, credits: u32, peer_credits: u32) -> LocalNi {
    LocalNi::new(nid, credits, peer_credits, MESSAGE_TIMEOUT)
}

/// Host 1, one shard, one NI on `tcp1` with 8 credits and 4 for each peer.
pub(crate) fn config() -> ShardConfig {
    ShardConfig {
        shard: ShardId(0),
        shard_count: 1,
        seal_key: SEAL_KEY,
        pid: PID,
        limits: Limits {
            match_entries: 64,
            memory_descs: 64,
            event_queues: 4,
            events: 1024,
            unlimited_events: 4,
            spare_events: 0,
            requests: 32,
            responses: 32,
            forwards: 2,
            incoming: 16,
            delayed: 8,
            peers: 8,
            nis: 2,
        },
        topology: Arc::new(Topology::new(vec![local_ni(nid(1, 1), 8, 4)])),
        hash_seed: 7,
    }
}

/// A shard with one event queue.
pub(crate) struct Node {
    pub(crate) shard: Shard,
    pub(crate) queue: EqHandle,
}

impl Node {
    pub(crate) fn new(config: ShardConfig) -> Self {
        let mut shard = Shard::new(config);
        let queue = shard.create_event_queue(512).unwrap();
        Self { shard, queue }
    }

    /// A descriptor with this node's queue that takes one operation.
    pub(crate) fn md(&self, length_bytes: u64) -> MdSpec {
        MdSpec::new(length_bytes, Threshold::Count(1), MdOptions::NONE, self.queue)
    }

    /// Posts a descriptor behind all entries of portal 4, for any initiator that sends these bits.
    pub(crate) fn post(&mut self, match_bits: u64, md: &MdSpec) -> (MeHandle, MdHandle) {
        let entry = self.shard.attach_entry(&entry(match_bits)).unwrap();
        (entry, self.shard.attach(entry, md).unwrap())
    }

    /// The events that wait.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.shard.poll_event(self.queue)).collect()
    }

    /// The only event that waits.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Event {
        let events = self.events();
        assert_eq!(events.len(), 1, "{events:?}");
        events[0]
    }

    /// The oldest event.
    #[track_caller]
    pub(crate) fn event_once(&mut self) -> Event {
        self.shard.poll_event(self.queue).unwrap()
    }

    /// The next message that leaves.
    pub(crate) fn transmit(&mut self) -> Option<Transmit> {
        self.transmit_at(NOW)
    }

    pub(crate) fn transmit_at(&mut self, now: Instant) -> Option<Transmit> {
        self.shard.poll_transmit(now, NI).map(|lent| *lent.transmit)
    }

    /// A message arrives, whole if the shard takes it.
    pub(crate) fn arrive(&mut self, header: &Header) -> Verdict {
        let verdict = self.shard.header(NOW, NI, &header.source.nid, RxId(0), header);
        if verdict != Verdict::Drop {
            self.shard.received(NOW, RxId(0), Status::Ok);
        }
        verdict
    }

    /// A message arrives and is dropped for this reason, which is counted, and nothing else happens.
    #[track_caller]
    pub(crate) fn assert_drop(&mut self, header: &Header, reason: DropReason) {
        let before = *self.shard.counters();
        let usage = self.shard.usage();
        assert_eq!(self.shard.header(NOW, NI, &header.source.nid, RxId(0), header), Verdict::Drop);
        let after = self.shard.counters();
        for other in DropReason::ALL {
            let expected = u64::from(other == reason);
            let (old, new) = (before.drops(other), after.drops(other));
            assert_eq!(new.messages - old.messages, expected, "dropped for {other:?}, expected {reason:?}");
            assert_eq!(new.bytes - old.bytes, expected * u64::from(header.payload_length), "{other:?}");
        }
        assert_eq!(after.received, before.received);
        assert_eq!(self.shard.usage(), usage);
    }
}

/// An entry of portal 4 for any initiator.
pub(crate) fn entry(match_bits: u64) -> EntrySpec {
    EntrySpec::new(4, match_bits)
}

/// The handle that host 2 gives out.
pub(crate) const FOREIGN: WireHandle = WireHandle { interface_cookie: 0x2222, object_cookie: 0xABCD };

/// A PUT of host 2 to portal 4 of host 1, without ACK.
pub(crate) fn put_header(match_bits: u64, payload_length: u32) -> Header {
    let body = Body::Put { ack_md: WireHandle::NONE, match_bits, hdr_data: 99, portal: 4, offset: 0 };
    Header { destination: host(1), source: host(2), payload_length, body }
}

/// The same with ACK.
pub(crate) fn acked_put_header(match_bits: u64, payload_length: u32) -> Header {
    let body = Body::Put { ack_md: FOREIGN, match_bits, hdr_data: 99, portal: 4, offset: 0 };
    Header { destination: host(1), source: host(2), payload_length, body }
}

/// A GET of host 2 from portal 4 of host 1.
pub(crate) fn get_header(match_bits: u64, sink_length: u32) -> Header {
    let body = Body::Get { return_md: FOREIGN, match_bits, portal: 4, offset: 0, sink_length };
    Header { destination: host(1), source: host(2), payload_length: 0, body }
}

/// The header, from another host.
pub(crate) fn from(peer: u8, header: Header) -> Header {
    Header { source: host(peer), ..header }
}

/// A PUT to portal 4 of a host.
pub(crate) fn put_request(md: MdHandle, to: u8) -> PutRequest {
    PutRequest {
        md,
        part: None,
        ack: false,
        self_nid: None,
        target: host(to),
        portal: 4,
        match_bits: 5,
        offset: 6,
        hdr_data: 7,
    }
}

/// A GET from portal 4 of host 2.
pub(crate) fn get_request(md: MdHandle) -> GetRequest {
    GetRequest { md, part: None, self_nid: None, target: host(2), portal: 4, match_bits: 5, offset: 6 }
}

/// How host 1 names a descriptor to host 2.
pub(crate) fn handle_of(md: MdHandle) -> WireHandle {
    Seals::new(SEAL_KEY).handle(md.0, &host(2).nid)
}

/// Keys the seals of host 1.
pub(crate) const SEAL_KEY: [u64; 2] = [1, 0];

/// An ACK of host 2 for this descriptor.
pub(crate) fn ack_header(md: MdHandle) -> Header {
    ack_of(handle_of(md))
}

/// An ACK of host 2 for what this handle names.
pub(crate) fn ack_of(md: WireHandle) -> Header {
    let body = Body::Ack { md, match_bits: 5, manipulated_length: 77 };
    Header { destination: host(1), source: host(2), payload_length: 0, body }
}

/// A REPLY of host 2 for this descriptor.
pub(crate) fn reply_header(md: MdHandle, payload_length: u32) -> Header {
    reply_of(handle_of(md), payload_length)
}

/// A REPLY of host 2 for what this handle names.
pub(crate) fn reply_of(md: WireHandle, payload_length: u32) -> Header {
    Header { destination: host(1), source: host(2), payload_length, body: Body::Reply { md } }
}

/// What the last event of a descriptor says of it when all went well.
pub(crate) fn event_md(spec: &MdSpec, handle: MdHandle) -> EventMd {
    let MdSpec { user_ptr, options, .. } = *spec;
    EventMd { handle, user_ptr, options, status: Status::Ok, unlinked: true }
}

/// The origin of a message that host 2 sent here.
pub(crate) fn origin() -> Origin {
    Origin { target: host(1), initiator: host(2), source: nid(1, 2), sender: nid(1, 2) }
}

/// The SEND of a PUT of 100 bytes to portal 4 of this process, match bits 5, offset 6.
pub(crate) fn put_sent(md: EventMd, target: ProcessId) -> Event {
    Event::Send {
        md,
        message_type: MessageType::Put,
        target,
        portal: 4,
        match_bits: 5,
        hdr_data: 7,
        length_bytes: 100,
        offset_bytes: 6,
    }
}
