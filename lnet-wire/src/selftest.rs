//! Messages of LNet selftest: requests and replies of 160 bytes, by which a console drives test nodes.
//!
//! Fields are packed, in the byte order of the sender, which the magic tells.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 4 | version |
//! | 8 | 4 | type ([`Service`], request or reply) |
//! | 12 | 8 | reserved, 0 |
//! | 20 | 4 | session features |
//! | 24 | 136 | body |
//!
//! Invariants: a message is read in either byte order and written in little endian; reading judges length,
//! magic and type and nothing else, since a node answers what is wrong beyond them.
//!
//! Source: `lnet/selftest/rpc.h`; `uapi/linux/lnet/lnetst.h`.

mod bodies;
mod fields;
mod test;

#[cfg(test)]
mod tests;

use core::fmt;

use crate::bytes::get_u32;

pub use bodies::{
    AddTest, BatchControl, BatchReply, Brw, Debug, DebugReply, FrameworkCounters, Join, JoinReply,
    LnetCounters, MakeSession, Ping, PingReply, RemoveSession, RpcCounters, SessionReply, StatReply, Stats,
    StatusReply,
};
pub use fields::{NAME_BYTES, Name, SessionId, Status};
pub use test::{BatchOperation, Check, Destination, Direction, Test};

use fields::{Field, Source};

/// Bytes of each message.
pub const MESSAGE_BYTES: usize = 160;
/// Bytes of a body.
pub const BODY_BYTES: usize = 136;
/// The magic, in the sender's byte order.
pub const MAGIC: u32 = 0xEEB0_F00D;
/// The version of the protocol.
pub const VERSION: u32 = 1;

/// Portal of the requests to the framework: all services but [`Service::Brw`] and [`Service::Ping`]. Lazy.
pub const FRAMEWORK_PORTAL: u32 = 51;
/// Portal of the requests of tests. Lazy.
pub const TEST_PORTAL: u32 = 50;
/// Portal of replies and bulk data, under match bits that the request names.
pub const REPLY_PORTAL: u32 = 52;

/// Feature bit of a session: tests have lengths in bytes, not in pages.
pub const FEATURE_VARIABLE_LENGTH: u32 = 1;
/// All feature bits.
pub const FEATURES: u32 = FEATURE_VARIABLE_LENGTH;

/// The word of which the data of a bulk test consists.
pub const SOURCE_WORD: u64 = 0xEEB0_EEB1_EEB2_EEB3;
/// The word of which the room for bulk data consists before the data comes.
pub const SINK_WORD: u64 = 0xBEEF_BEEF_BEEF_BEEF;
/// The magic within ping requests and their replies.
pub const PING_MAGIC: u32 = 0xBABE_FACE;
/// Most bytes of bulk data, and a multiple of [`WORD_BYTES`].
pub const BULK_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a pattern's word: kernel nodes panic at bulk data of any other multiple.
pub const WORD_BYTES: u32 = 8;
/// Most units of a test on one node.
pub const CONCURRENCY_MAX: u32 = 1024;
/// Bytes of a page of bulk data without [`FEATURE_VARIABLE_LENGTH`].
pub const PAGE_BYTES: u32 = 4096;

/// A service of a node. Its number is the match bits of the requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// Tells of the session; keeps it alive.
    Debug = 0,
    /// Begins a session.
    MakeSession = 1,
    /// Ends it.
    RemoveSession = 2,
    /// Runs, stops, queries a batch.
    Batch = 3,
    /// Adds a test to a batch.
    AddTest = 4,
    /// Tells the counters.
    Stat = 5,
    /// Asks a console for a place in its session.
    Join = 6,
    /// Reads or writes bulk data.
    Brw = 11,
    /// Answers.
    Ping = 12,
}

impl Service {
    /// All services.
    pub const ALL: [Self; 9] = [
        Self::Debug,
        Self::MakeSession,
        Self::RemoveSession,
        Self::Batch,
        Self::AddTest,
        Self::Stat,
        Self::Join,
        Self::Brw,
        Self::Ping,
    ];

    /// The match bits of its requests.
    #[must_use]
    pub const fn match_bits(self) -> u64 {
        self as u64
    }

    /// The portal of its requests.
    #[must_use]
    pub const fn portal(self) -> u32 {
        match self {
            Self::Brw | Self::Ping => TEST_PORTAL,
            _ => FRAMEWORK_PORTAL,
        }
    }

    /// The message type of its requests; that of its replies is one more.
    #[must_use]
    pub const fn request_type(self) -> u32 {
        match self {
            Self::MakeSession => 0,
            Self::RemoveSession => 2,
            Self::Batch => 4,
            Self::Stat => 6,
            Self::AddTest => 8,
            Self::Debug => 10,
            Self::Brw => 12,
            Self::Ping => 14,
            Self::Join => 16,
        }
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MessageError {
    /// Not [`MESSAGE_BYTES`].
    Length(usize),
    /// Another magic, in either byte order.
    Magic(u32),
    /// No type of any service.
    Type(u32),
}

impl fmt::Display for MessageError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => {
                write!(formatter, "{length} bytes of a selftest message, expected {MESSAGE_BYTES}")
            }
            Self::Magic(magic) => write!(formatter, "selftest magic 0x{magic:08x}, expected 0x{MAGIC:08x}"),
            Self::Type(kind) => write!(formatter, "selftest message type {kind}, expected 0 to 17"),
        }
    }
}

impl core::error::Error for MessageError {}

/// A request or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Whether the sender has the other byte order: then its bulk data has as well. Writing is not
    /// influenced.
    pub is_swapped: bool,
    /// The version, [`VERSION`] of messages that are understood.
    pub version: u32,
    /// Features of the session.
    pub features: u32,
    /// The rest.
    pub body: Body,
}

macro_rules! messages {
    ($($(#[$doc:meta])+ $kind:literal $name:ident($body:ty);)+) => {
        /// The contents of a message, by its type.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Body {
            $($(#[$doc])+ $name($body),)+
        }

        impl Body {
            /// The message type.
            #[must_use]
            pub const fn message_type(&self) -> u32 {
                match self {
                    $(Self::$name(_) => $kind,)+
                }
            }

            fn read(kind: u32, source: &Source) -> Option<Self> {
                match kind {
                    $($kind => Some(Self::$name(<$body>::read(source, 0))),)+
                    _ => None,
                }
            }

            fn write(&self, bytes: &mut [u8; BODY_BYTES]) {
                match self {
                    $(Self::$name(body) => body.write(bytes, 0),)+
                }
            }
        }
    };
}

messages! {
    /// Begins a session.
    0 MakeSession(MakeSession);
    /// Whether it has begun.
    1 MakeSessionReply(JoinReply);
    /// Ends a session.
    2 RemoveSession(RemoveSession);
    /// Whether it has ended.
    3 RemoveSessionReply(SessionReply);
    /// Runs, stops or queries a batch.
    4 Batch(BatchControl);
    /// How that went, and what is active.
    5 BatchReply(BatchReply);
    /// Asks for the counters.
    6 Stat(Stats);
    /// The counters.
    7 StatReply(StatReply);
    /// Adds a test.
    8 AddTest(AddTest);
    /// Whether it was added.
    9 AddTestReply(SessionReply);
    /// Asks for the session.
    10 Debug(Debug);
    /// The session.
    11 DebugReply(DebugReply);
    /// Reads or writes bulk data.
    12 Brw(Brw);
    /// Whether that was done.
    13 BrwReply(StatusReply);
    /// Asks for an answer.
    14 Ping(Ping);
    /// The answer.
    15 PingReply(PingReply);
    /// Lets a node into a group of the console's.
    16 Join(Join);
    /// The session that it is in then.
    17 JoinReply(JoinReply);
}

impl Message {
    /// A message of this version.
    #[must_use]
    pub const fn new(features: u32, body: Body) -> Self {
        Self { is_swapped: false, version: VERSION, features, body }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`MessageError`]: such bytes are dropped without an answer.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let bytes: &[u8; MESSAGE_BYTES] = bytes.try_into().map_err(|_| MessageError::Length(bytes.len()))?;
        let is_swapped = match get_u32::<0, _>(bytes) {
            MAGIC => false,
            magic if magic.swap_bytes() == MAGIC => true,
            magic => return Err(MessageError::Magic(magic)),
        };
        let ordered = |word: u32| if is_swapped { word.swap_bytes() } else { word };
        let (version, kind) = (ordered(get_u32::<4, _>(bytes)), ordered(get_u32::<8, _>(bytes)));
        let features = ordered(get_u32::<20, _>(bytes));
        let body = crate::bytes::get::<24, BODY_BYTES, _>(bytes);
        let source = Source { body, is_swapped, features };
        let body = Body::read(kind, &source).ok_or(MessageError::Type(kind))?;
        Ok(Self { is_swapped, version, features, body })
    }

    /// Writes the message, in little endian.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        crate::bytes::put_u32::<0, _>(&mut bytes, MAGIC);
        crate::bytes::put_u32::<4, _>(&mut bytes, self.version);
        crate::bytes::put_u32::<8, _>(&mut bytes, self.body.message_type());
        crate::bytes::put_u32::<20, _>(&mut bytes, self.features);
        let mut body = [0; BODY_BYTES];
        self.body.write(&mut body);
        crate::bytes::put::<24, BODY_BYTES, _>(&mut bytes, body);
        bytes
    }
}
