//! The bodies of messages: which fields they have, and where.

use super::fields::{Field, Name, SessionId, Source, Status};
use super::test::Test;
use super::{BODY_BYTES, Service};

macro_rules! bodies {
    ($($(#[$doc:meta])+ $name:ident: $bytes:literal {
        $($(#[$field_doc:meta])+ $field:ident: $type:ty = $offset:literal,)+
    })+) => {
        $(
            $(#[$doc])+
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $name {
                $($(#[$field_doc])+ pub $field: $type,)+
            }

            impl Field for $name {
                const BYTES: usize = $bytes;

                fn read(source: &Source, offset: usize) -> Self {
                    $(const { assert!($offset + <$type as Field>::BYTES <= $bytes && $bytes <= BODY_BYTES) };)+
                    Self { $($field: Field::read(source, offset + $offset),)+ }
                }

                fn write(&self, body: &mut [u8; BODY_BYTES], offset: usize) {
                    $(self.$field.write(body, offset + $offset);)+
                }
            }
        )+
    };
}

bodies! {
    /// Begins a session.
    MakeSession: 60 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// The session.
        session: SessionId = 8,
        /// Other than 0: instead of another one.
        force: u32 = 24,
        /// Its name.
        name: Name = 28,
    }

    /// The answer to [`MakeSession`] and to [`Join`].
    JoinReply: 56 {
        /// How it ended.
        status: Status = 0,
        /// The session that the node is in.
        session: SessionId = 4,
        /// Seconds without a request after which it ends.
        timeout_s: u32 = 20,
        /// Its name; of a new session nothing that means something.
        name: Name = 24,
    }

    /// Ends a session.
    RemoveSession: 24 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// The session.
        session: SessionId = 8,
    }

    /// The answer to [`RemoveSession`] and to [`AddTest`].
    SessionReply: 20 {
        /// How it ended.
        status: Status = 0,
        /// The session that the node is in.
        session: SessionId = 4,
    }

    /// Asks for the session.
    Debug: 28 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// The session of the one that asks.
        session: SessionId = 8,
        /// 0.
        flags: u32 = 24,
    }

    /// The answer to [`struct@Debug`].
    DebugReply: 60 {
        /// How it ended.
        status: Status = 0,
        /// The session that the node is in.
        session: SessionId = 4,
        /// Seconds without a request after which it ends.
        timeout_s: u32 = 20,
        /// Batches; kernel nodes do not say.
        batches: u32 = 24,
        /// Its name.
        name: Name = 28,
    }

    /// Runs, stops or queries a batch.
    BatchControl: 44 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// The session.
        session: SessionId = 8,
        /// The batch.
        batch: u64 = 24,
        /// A [`BatchOperation`](super::BatchOperation).
        operation: u32 = 32,
        /// 0 for the batch, or the number of one of its tests.
        test_index: u32 = 36,
        /// Manner of a stop: other than 0 cuts off what is under way.
        argument: u32 = 40,
    }

    /// The answer to [`BatchControl`].
    BatchReply: 28 {
        /// How it ended.
        status: Status = 0,
        /// The session that the node is in.
        session: SessionId = 4,
        /// Tests of the batch, or units of the test, that are active.
        active: u32 = 20,
        /// 0.
        time: u32 = 24,
    }

    /// Asks for the counters.
    Stats: 28 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// The session.
        session: SessionId = 8,
        /// 0.
        kind: u32 = 24,
    }

    /// The answer to [`Stats`].
    StatReply: 136 {
        /// How it ended.
        status: Status = 0,
        /// The session that the node is in.
        session: SessionId = 4,
        /// Counters of sessions and tests.
        framework: FrameworkCounters = 20,
        /// Counters of requests.
        rpc: RpcCounters = 40,
        /// Counters of LNet.
        lnet: LnetCounters = 76,
    }

    /// Counters of sessions and tests.
    FrameworkCounters: 20 {
        /// Milliseconds since the session began.
        running_ms: u32 = 0,
        /// Batches that are active.
        active_batches: u32 = 4,
        /// Sessions that have ended and have requests under way.
        zombie_sessions: u32 = 8,
        /// Failed or wrong transfers of bulk data.
        brw_errors: u32 = 12,
        /// Failed or wrong pings.
        ping_errors: u32 = 16,
    }

    /// Counters of requests.
    RpcCounters: 36 {
        /// Failed.
        errors: u32 = 0,
        /// Sent.
        sent: u32 = 4,
        /// Received.
        received: u32 = 8,
        /// Dropped.
        dropped: u32 = 12,
        /// Not answered in time.
        expired: u32 = 16,
        /// Bytes that were got.
        bulk_get_bytes: u64 = 20,
        /// Bytes that were put.
        bulk_put_bytes: u64 = 28,
    }

    /// Counters of LNet.
    LnetCounters: 60 {
        /// Messages that exist.
        messages: u32 = 0,
        /// Most messages that have existed at once.
        messages_max: u32 = 4,
        /// Failures.
        errors: u32 = 8,
        /// Messages sent.
        sent: u32 = 12,
        /// Messages received.
        received: u32 = 16,
        /// Messages forwarded.
        routed: u32 = 20,
        /// Messages dropped.
        dropped: u32 = 24,
        /// Bytes sent.
        sent_bytes: u64 = 28,
        /// Bytes received.
        received_bytes: u64 = 36,
        /// Bytes forwarded.
        routed_bytes: u64 = 44,
        /// Bytes dropped.
        dropped_bytes: u64 = 52,
    }

    /// Adds a test to a batch, which begins with its first one.
    AddTest: 70 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// Match bits of the destinations at the console; 0 on a server.
        bulk_id: u64 = 8,
        /// The session.
        session: SessionId = 16,
        /// The batch.
        batch: u64 = 32,
        /// How often each unit repeats it.
        loop_count: u32 = 44,
        /// Units for each destination.
        concurrency: u32 = 48,
        /// Other than 0: the node sends the requests.
        is_client: u8 = 52,
        /// Other than 0: a unit ends with its first error.
        stops_on_error: u8 = 53,
        /// Destinations.
        destinations: u32 = 54,
        /// The service (at 40) and its parameters (at 58).
        test: Test = 40,
    }

    /// Lets a node into a group of the console's.
    Join: 56 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// The session.
        session: SessionId = 8,
        /// The group.
        group: Name = 24,
    }

    /// A ping.
    Ping: 32 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// [`PING_MAGIC`](super::PING_MAGIC).
        magic: u32 = 8,
        /// Counts the pings of a unit.
        sequence: u32 = 12,
        /// Seconds of the client's clock.
        seconds: u64 = 16,
        /// Nanoseconds thereof.
        nanoseconds: u64 = 24,
    }

    /// The answer to [`Ping`].
    PingReply: 12 {
        /// How it ended.
        status: Status = 0,
        /// The magic number of the request.
        magic: u32 = 4,
        /// The number of the request.
        sequence: u32 = 8,
    }

    /// Reads or writes bulk data.
    Brw: 28 {
        /// Match bits of the reply.
        reply_id: u64 = 0,
        /// Match bits of the data, or of the room for it, at the client.
        bulk_id: u64 = 8,
        /// A [`Direction`](super::Direction).
        direction: u32 = 16,
        /// Bytes of the data.
        length_bytes: u32 = 20,
        /// A [`Check`](super::Check).
        flags: u32 = 24,
    }

    /// The answer to [`Brw`], and the beginning of any other.
    StatusReply: 4 {
        /// How it ended.
        status: Status = 0,
    }
}

impl super::Body {
    /// Match bits of the reply to a request, and its service; `None` of a reply.
    #[must_use]
    pub const fn request(&self) -> Option<(Service, u64)> {
        Some(match self {
            Self::MakeSession(request) => (Service::MakeSession, request.reply_id),
            Self::RemoveSession(request) => (Service::RemoveSession, request.reply_id),
            Self::Batch(request) => (Service::Batch, request.reply_id),
            Self::Stat(request) => (Service::Stat, request.reply_id),
            Self::AddTest(request) => (Service::AddTest, request.reply_id),
            Self::Debug(request) => (Service::Debug, request.reply_id),
            Self::Brw(request) => (Service::Brw, request.reply_id),
            Self::Ping(request) => (Service::Ping, request.reply_id),
            Self::Join(request) => (Service::Join, request.reply_id),
            _ => return None,
        })
    }

    /// How a request ended, by its reply; `None` of a request.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        Some(match self {
            Self::MakeSessionReply(reply) | Self::JoinReply(reply) => reply.status,
            Self::RemoveSessionReply(reply) | Self::AddTestReply(reply) => reply.status,
            Self::BatchReply(reply) => reply.status,
            Self::StatReply(reply) => reply.status,
            Self::DebugReply(reply) => reply.status,
            Self::BrwReply(reply) => reply.status,
            Self::PingReply(reply) => reply.status,
            _ => return None,
        })
    }
}
