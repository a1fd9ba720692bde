//! Buffers as the application owns them: payload bytes in one piece or in several fragments.

use std::ops::{Deref, DerefMut, Range};

use lnet_core::handle::EqHandle;
use lnet_core::md::{MdOptions, MdSpec, Threshold};

use super::granted;
use crate::region::{Fragments, FragmentsMut, Region, memory_node};
use crate::xsk::Registered;

/// Fragments of a buffer at most (LNet `LNET_MAX_IOV`).
pub const BUFFER_FRAGMENTS_MAX: usize = 256;

/// Why fragments do not make a buffer. They come back with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FragmentsError {
    /// No fragments, or too many.
    #[error("{} fragments: 1 to {BUFFER_FRAGMENTS_MAX} are expected of a buffer", .0.len())]
    Count(Vec<Buffer>),
    /// One is empty.
    #[error("fragment {index} of {} has no bytes: 1 byte at least is expected", .fragments.len())]
    Empty {
        /// Which one, from 0.
        index: usize,
        /// All of them.
        fragments: Vec<Buffer>,
    },
}

/// An owned run of payload bytes: ordinary memory, or registered with a UMEM (`Lnet::register`), in one piece
/// or in several [fragments](Buffer::from_fragments).
///
/// One in one piece is a slice of bytes. One of several fragments has [`Buffer::fragments`]; used as a slice,
/// it panics.
pub struct Buffer(pub(super) Region);

impl Buffer {
    /// A buffer of `length_bytes` zero bytes.
    #[must_use]
    pub fn zeroed(length_bytes: usize) -> Self {
        Self::from(vec![0; length_bytes])
    }

    /// Buffers of `length_bytes` zero bytes each, at least one of at least one byte. The kernel provides
    /// their memory page by page as it is touched.
    ///
    /// # Errors
    /// The kernel's, where there is no room for them.
    pub fn mapped(count: usize, length_bytes: usize) -> std::io::Result<Vec<Self>> {
        Ok(Region::mapped(count, length_bytes)?.map(Self).collect())
    }

    /// The bytes of 1 to [`BUFFER_FRAGMENTS_MAX`] fragments, none of them empty, one behind the other. A
    /// descriptor takes it as one range. A fragment of several counts as those.
    ///
    /// # Errors
    /// [`FragmentsError`] with the fragments.
    pub fn from_fragments<F: Into<Self>>(
        fragments: impl IntoIterator<Item = F>,
    ) -> Result<Self, FragmentsError> {
        let fragments = fragments.into_iter().flat_map(|fragment| fragment.into().into_fragments());
        let mut fragments: Vec<Self> = fragments.collect();
        if let Some(index) = fragments.iter().position(Self::is_empty) {
            return Err(FragmentsError::Empty { index, fragments });
        }
        match fragments.len() {
            1 => Ok(fragments.remove(0)),
            2..=BUFFER_FRAGMENTS_MAX => {
                Ok(Self(Region::of_fragments(fragments.into_iter().map(|fragment| fragment.0))))
            }
            _ => Err(FragmentsError::Count(fragments)),
        }
    }

    /// The fragments that it was made from; one in one piece is its own.
    #[must_use]
    pub fn into_fragments(self) -> Vec<Self> {
        self.0.into_fragments().into_iter().map(Self).collect()
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.length_bytes()
    }

    /// The memory node of the machine (NUMA) that it begins on, by the kernel's number; `None` where nothing
    /// was written there yet, or the kernel does not tell. It takes a system call.
    #[must_use]
    pub fn memory_node(&self) -> Option<u16> {
        self.fragments().next().and_then(memory_node)
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, one slice for each fragment.
    #[must_use]
    pub fn fragments(&self) -> Fragments<'_> {
        self.part(0..self.len())
    }

    /// Fragments like [`Buffer::fragments`], to write.
    #[must_use]
    pub fn fragments_mut(&mut self) -> FragmentsMut<'_> {
        granted(self.0.fragments_mut(0..self.0.length_bytes()))
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// If the range leaves the buffer.
    pub fn part(&self, range: Range<usize>) -> Fragments<'_> {
        // A buffer lent to a descriptor cannot be got at, and none comes home before its leases are back.
        granted(self.0.fragments(range))
    }

    /// A descriptor of its length that takes so many operations, tells `event_queue` of them, and goes when
    /// they are used up.
    #[must_use]
    pub fn spec(&self, threshold: Threshold, options: MdOptions, event_queue: EqHandle) -> MdSpec {
        MdSpec::new(self.len() as u64, threshold, options, event_queue)
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Region::from(bytes.into_boxed_slice()))
    }
}

impl From<Registered> for Buffer {
    fn from(bytes: Registered) -> Self {
        Self(Region::from(bytes))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        granted(self.0.bytes(0..self.0.length_bytes()))
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        let length_bytes = self.0.length_bytes();
        granted(self.0.bytes_mut(0..length_bytes))
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.fragments().flatten().eq(other.fragments().flatten())
    }
}

impl Eq for Buffer {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.0.length_bytes())
    }
}
