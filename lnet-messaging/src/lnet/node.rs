//! A node as the transport sees it: LNet in userspace.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::Stream;
use lnet_user::api::OwnedRequest;
use lnet_user::{
    Ack, Cause, Descriptor, Entry, EntrySpec, EqHandle, Event, EventKind, EventQueue, Lnet, LnetError,
    MdOptions, MdSpec, Nid, NotLent, ProcessId, QueuedEvent, ShardHandle, Status as LnetStatus, Target,
    Threshold,
};

use super::network::{
    Allowed, Ends, EntryPlan, EventSource, MdPlan, Network, NetworkEvent, NotPosted, Payload, Posted, Poster,
};
use super::refusals::error_of;
use crate::errno::{Errno, Error, Status};
use crate::memory::Memory;
use crate::transport::{NAME_MASK, RetainedPayload};

/// A node, and the event slots of each of its transfer machines.
pub(super) struct NodeNetwork {
    pub(super) lnet: Lnet,
    pub(super) event_slots: u32,
}

impl Network for NodeNetwork {
    fn is_local(&self, nid: &Nid) -> bool {
        self.lnet.distance(nid).is_some_and(|distance| distance.hops == 0)
    }

    fn register(&self, bytes: &[u8]) -> Option<Memory> {
        let mut memory = Memory(self.lnet.register(bytes.len())?);
        memory.fill(bytes);
        Some(memory)
    }

    fn event_slots(&self) -> u32 {
        self.event_slots
    }

    fn open(&self, portal: u32, match_bits: u64) -> Result<Ends, Error> {
        // All match bits of a transfer machine differ in the names of buffers alone.
        let entries = EntrySpec { ignore_bits: NAME_MASK, ..EntrySpec::new(portal, match_bits) };
        let queue =
            self.lnet.create_event_queue_for(&entries, self.event_slots).map_err(|error| error_of(&error))?;
        let poster = NodePoster {
            lnet: self.lnet.clone(),
            shard: queue.shard().clone(),
            is_on_several_shards: queue.is_on_several_shards(),
            queue: queue.handle(),
        };
        Ok((Box::new(poster), Box::new(NodeEvents(queue))))
    }
}

struct NodePoster {
    lnet: Lnet,
    /// The shard of the event queue, or one of its shards.
    shard: ShardHandle,
    /// The portal's policy has messages of one transfer machine on several shards: each entry has its own.
    is_on_several_shards: bool,
    queue: EqHandle,
}

impl NodePoster {
    fn spec(&self, md: &MdPlan, options: MdOptions) -> MdSpec {
        let MdPlan { length_bytes, max_size_bytes, threshold, user_ptr } = *md;
        let spec = MdSpec::new(length_bytes, Threshold::Count(threshold), options, self.queue);
        MdSpec { max_size_bytes, user_ptr, ..spec }
    }

    fn entry(&self, entry: &EntryPlan, md: &MdPlan) -> (EntrySpec, MdSpec) {
        let options = match entry.allowed {
            Allowed::Put => MdOptions::PUT,
            Allowed::Get => MdOptions::GET,
        };
        let mut source = ProcessId::ANY;
        if let Some(nid) = entry.initiator {
            // Any NID of a peer names it. Which of the processes of a node it is, the node alone knows: a pid
            // would prove nothing.
            source.nid = nid;
        }
        let spec = EntrySpec { source, ..EntrySpec::new(entry.portal, entry.match_bits) };
        (spec, self.spec(md, options))
    }

    fn start(&self, message: OwnedRequest) -> Result<Box<dyn Posted>, NotPosted> {
        match self.shard.start(message) {
            Ok(descriptor) => Ok(Box::new(descriptor)),
            // The descriptor was made, and its end brings the memory.
            Err(NotLent { error, buffer: None }) if !matches!(error, LnetError::Ended(_)) => {
                Err(NotPosted { error: error_of(&error), memory: None })
            }
            Err(refused) => Err(not_posted(refused)),
        }
    }
}

impl Poster for NodePoster {
    fn attach(
        &mut self,
        entry: &EntryPlan,
        md: &MdPlan,
        memory: Memory,
    ) -> Result<Box<dyn Posted>, NotPosted> {
        let (entry, spec) = self.entry(entry, md);
        let attached = if self.is_on_several_shards {
            self.lnet.attach(&entry, &spec, memory.0)
        } else {
            self.shard.attach(&entry, &spec, memory.0)
        };
        Ok(Box::new(attached.map_err(not_posted)?))
    }

    fn attach_all(
        &mut self,
        entry: &EntryPlan,
        mds: Vec<(MdPlan, Memory)>,
    ) -> Vec<Result<Box<dyn Posted>, NotPosted>> {
        if self.is_on_several_shards {
            return mds.into_iter().map(|(md, memory)| self.attach(entry, &md, memory)).collect();
        }
        let one = |(md, memory): (MdPlan, Memory)| {
            let (entry, spec) = self.entry(entry, &md);
            (entry, spec, memory.0)
        };
        let attached = self.shard.attach_all(mds.into_iter().map(one).collect()).into_iter();
        attached.map(|attached| Ok(Box::new(attached.map_err(not_posted)?) as Box<dyn Posted>)).collect()
    }

    fn put(
        &mut self,
        to: &Target,
        hdr_data: u64,
        md: &MdPlan,
        memory: Memory,
    ) -> Result<Box<dyn Posted>, NotPosted> {
        let spec = self.spec(md, MdOptions::NONE);
        self.start(OwnedRequest::put(&spec, memory.0, to, Ack::NotWanted, hdr_data))
    }

    fn get(&mut self, from: &Target, md: &MdPlan, memory: Memory) -> Result<Box<dyn Posted>, NotPosted> {
        // A peer that has died does not answer.
        let spec = self.spec(md, MdOptions::TRACK_RESPONSE);
        self.start(OwnedRequest::get(&spec, memory.0, from))
    }
}

impl Posted for Entry {
    fn forget(self: Box<Self>) {
        self.detach();
    }
}

impl Posted for Descriptor {
    fn forget(self: Box<Self>) {
        self.detach();
    }
}

struct NodeEvents(EventQueue);

impl EventSource for NodeEvents {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<NetworkEvent>> {
        Pin::new(&mut self.0).poll_next(context).map(|queued| queued.map(network_event))
    }

    fn wait_next(&mut self, longest: Duration) -> Poll<Option<NetworkEvent>> {
        match self.0.next_blocking(Some(longest)) {
            Ok(Some(queued)) => Poll::Ready(Some(network_event(queued))),
            Ok(None) => Poll::Pending,
            Err(_) => Poll::Ready(None),
        }
    }
}

/// A message in a buffer that stays with the node.
#[derive(Debug)]
struct Lease(QueuedEvent);

impl RetainedPayload for Lease {
    fn pieces(&self) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        Box::new(self.0.payload_fragments().into_iter().flatten())
    }
}

fn network_event(queued: QueuedEvent) -> NetworkEvent {
    let event = &queued.event;
    let (kind, length_bytes) = (event.kind(), event.manipulated_bytes().into());
    let (offset_bytes, hdr_data) = match *event {
        Event::Put { offset_bytes, hdr_data, .. } => (offset_bytes, hdr_data),
        Event::Get { offset_bytes, .. } => (offset_bytes, 0),
        _ => (0, 0),
    };
    let status = match queued.refusal() {
        Some(error) => Err(error_of(error).errno()),
        None => status_of(event.status()),
    };
    let (user_ptr, is_unlinked) = (event.user_ptr(), event.unlinked());
    let initiator = event.origin().map(|origin| origin.initiator);
    let payload = match (is_unlinked, kind) {
        (true, _) => queued.into_buffer().map_or(Payload::None, |buffer| Payload::Memory(Memory(buffer))),
        (false, EventKind::Put) => Payload::Retained(Box::new(Lease(queued))),
        _ => Payload::None,
    };
    NetworkEvent {
        user_ptr,
        kind,
        status,
        is_unlinked,
        length_bytes,
        offset_bytes,
        hdr_data,
        initiator,
        payload,
    }
}

pub(super) fn status_of(status: LnetStatus) -> Status {
    let (LnetStatus::NeverSent(cause) | LnetStatus::Unknown(cause)) = status else { return Ok(()) };
    Err(match cause {
        Cause::Unreachable => Errno::HostUnreachable,
        Cause::Timeout | Cause::CreditTimeout => Errno::TimedOut,
        Cause::Cancelled => Errno::Canceled,
        Cause::TooLong => Errno::MessageSize,
        Cause::Reset => Errno::ConnectionReset,
        Cause::Refused => Errno::Invalid,
        Cause::System(errno) | Cause::Undiscovered(errno) => {
            Errno::from_number(errno.into()).unwrap_or(Errno::Io)
        }
        _ => Errno::Io,
    })
}

fn not_posted(refused: NotLent) -> NotPosted {
    // Without a buffer the node has ended, and no event will come: the memory is lost with it.
    let memory = refused.buffer.map(Memory).unwrap_or_default();
    NotPosted { error: error_of(&refused.error), memory: Some(memory) }
}
