//! The fields of bodies; their offsets stand where the bodies are defined.
//!
//! Invariant: that each field lies within the body is checked at compile time, where the body is defined.

use core::fmt::{self, Write};

use super::BODY_BYTES;

/// Bytes of a name, the NUL behind it included.
pub const NAME_BYTES: usize = 32;

/// A body to be read.
pub(super) struct Source {
    pub(super) body: [u8; BODY_BYTES],
    pub(super) is_swapped: bool,
    pub(super) features: u32,
}

impl Source {
    /// The bytes at an offset; zeros where the body ends, which no offset of a field reaches.
    fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.body.get(offset..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    /// The bytes of an integer in little endian.
    fn ordered<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = self.bytes(offset);
        if self.is_swapped {
            bytes.reverse();
        }
        bytes
    }
}

fn put<const N: usize>(body: &mut [u8; BODY_BYTES], offset: usize, bytes: &[u8; N]) {
    if let Some(field) = body.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        *field = *bytes;
    }
}

/// A value at an offset of a body.
pub(super) trait Field: Sized {
    /// Its bytes.
    const BYTES: usize;

    fn read(source: &Source, offset: usize) -> Self;

    fn write(&self, body: &mut [u8; BODY_BYTES], offset: usize);
}

macro_rules! integers {
    ($($integer:ty)+) => {
        $(impl Field for $integer {
            const BYTES: usize = size_of::<Self>();

            fn read(source: &Source, offset: usize) -> Self {
                Self::from_le_bytes(source.ordered(offset))
            }

            fn write(&self, body: &mut [u8; BODY_BYTES], offset: usize) {
                put(body, offset, &self.to_le_bytes());
            }
        })+
    };
}

integers! { u8 u16 u32 u64 i64 }

/// How a request ended: 0, or an error number of Linux, which is positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Status(pub u32);

impl Status {
    /// Success.
    pub const OK: Self = Self(0);
    /// There is no such batch, test or session (`ENOENT`).
    pub const NO_ENTRY: Self = Self(2);
    /// There is no such session (`ESRCH`).
    pub const NO_SESSION: Self = Self(3);
    /// No memory is left for it (`ENOMEM`).
    pub const NO_MEMORY: Self = Self(12);
    /// Another session or a running batch forbids it (`EBUSY`).
    pub const BUSY: Self = Self(16);
    /// A value is out of its range (`EINVAL`).
    pub const INVALID: Self = Self(22);
    /// Features or a version that the node does not have (`EPROTO`).
    pub const PROTOCOL: Self = Self(71);
    /// Bulk data is not what was expected (`EBADMSG`).
    pub const BAD_DATA: Self = Self(74);
}

impl Field for Status {
    const BYTES: usize = 4;

    fn read(source: &Source, offset: usize) -> Self {
        Self(u32::read(source, offset))
    }

    fn write(&self, body: &mut [u8; BODY_BYTES], offset: usize) {
        self.0.write(body, offset);
    }
}

/// A session: the console's NID and when it began.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId {
    /// The console's NID, in its small form.
    pub nid: u64,
    /// Milliseconds of the console's clock.
    pub stamp: i64,
}

impl SessionId {
    /// Stands for no session.
    pub const NONE: Self = Self { nid: u64::MAX, stamp: -1 };

    /// Whether its NID is the wildcard, which no session has.
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.nid == u64::MAX
    }
}

impl Field for SessionId {
    const BYTES: usize = 16;

    fn read(source: &Source, offset: usize) -> Self {
        Self { nid: u64::read(source, offset), stamp: i64::read(source, offset + 8) }
    }

    fn write(&self, body: &mut [u8; BODY_BYTES], offset: usize) {
        self.nid.write(body, offset);
        self.stamp.write(body, offset + 8);
    }
}

/// The name of a session or group: up to 31 bytes, and a NUL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME_BYTES]);

impl Name {
    /// No byte at all.
    pub const EMPTY: Self = Self([0; NAME_BYTES]);

    /// The name of this text; `None` if the text is longer than 31 bytes or has a NUL.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; NAME_BYTES];
        if text.len() >= NAME_BYTES || text.contains('\0') {
            return None;
        }
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// The bytes in front of the first NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// The text; bytes that are no UTF-8 are replaced.
impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.as_bytes().utf8_chunks() {
            formatter.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                formatter.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Name({self})")
    }
}

impl Field for Name {
    const BYTES: usize = NAME_BYTES;

    fn read(source: &Source, offset: usize) -> Self {
        Self(source.bytes(offset))
    }

    fn write(&self, body: &mut [u8; BODY_BYTES], offset: usize) {
        put(body, offset, &self.0);
    }
}
