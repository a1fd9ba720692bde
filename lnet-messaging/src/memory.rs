//! Memory in segments, and the shapes of it that transports take.

use crate::errno::{Errno, Error};

/// The most that a transport takes, and what it likes best. Buffers of any alignment are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a buffer.
    pub buffer_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments of a buffer.
    pub segments: usize,
    /// Bytes of a bulk descriptor.
    pub descriptor_bytes: usize,
    /// Alignment of segments in bytes that costs the transport least. A wish, never a precondition.
    pub preferred_alignment_bytes: usize,
    /// Bytes of a segment that cost the transport least. A wish, never a precondition.
    pub preferred_segment_bytes: u64,
    /// Bytes of a segment of buffers for messages of an RPC layer.
    pub rpc_segment_bytes: u64,
    /// Segments of such a buffer.
    pub rpc_segments: usize,
}

impl Limits {
    /// Bytes of an RPC layer's longest message, where it would like so many: no fewer than a segment has, and
    /// no more than a buffer; 0 likes the most.
    #[must_use]
    pub const fn rpc_message_bytes(&self, wanted_bytes: u64) -> u64 {
        let fits = wanted_bytes >= self.rpc_segment_bytes;
        let bytes = if fits { wanted_bytes } else { self.rpc_segment_bytes };
        if wanted_bytes == 0 || bytes > self.buffer_bytes { self.buffer_bytes } else { bytes }
    }

    /// Number of such messages that a receive buffer of the most bytes has room for.
    #[must_use]
    pub const fn rpc_messages_per_buffer(&self, wanted_bytes: u64) -> u64 {
        match self.buffer_bytes.checked_div(self.rpc_message_bytes(wanted_bytes)) {
            Some(messages) => messages,
            None => 0,
        }
    }

    /// Checks a shape: so many segments, the longest and all of so many bytes.
    ///
    /// # Errors
    /// `EFBIG` names what is too much, `EINVAL` says that there are no bytes.
    pub(crate) fn check(&self, segments: usize, longest_bytes: u64, size_bytes: u64) -> Result<(), Error> {
        let found = [
            ("bytes in a buffer", size_bytes, self.buffer_bytes),
            ("bytes in a segment", longest_bytes, self.segment_bytes),
            ("segments", segments as u64, self.segments as u64),
        ];
        match found.iter().find(|(_, found, most)| found > most) {
            Some((what, found, most)) => {
                Err(Error::new(Errno::TooBig, format!("{found} {what}: at most {most} are expected")))
            }
            None if size_bytes == 0 => Err(Error::invalid(format!(
                "{segments} segments of {longest_bytes} bytes at most: one of each at least is expected"
            ))),
            None => Ok(()),
        }
    }
}

/// The bytes of a buffer, in one or more segments.
#[derive(Debug, Default)]
pub struct Memory(pub(crate) lnet_user::Buffer);

impl Memory {
    /// Memory of these segments, one behind the other, none of them empty.
    ///
    /// # Errors
    /// `EINVAL` without segments or with an empty one, `EFBIG` where there are more than any transport takes.
    pub fn from_segments(segments: Vec<Vec<u8>>) -> Result<Self, Error> {
        let count = segments.len();
        if count == 0 || segments.iter().any(Vec::is_empty) {
            return Err(Error::invalid(format!(
                "{count} segments, some without bytes: one at least with one byte each is expected"
            )));
        }
        match lnet_user::Buffer::from_fragments(segments) {
            Ok(memory) => Ok(Self(memory)),
            Err(error) => Err(Error::new(Errno::TooBig, error.to_string())),
        }
    }

    /// Zero bytes in so many segments of the same size.
    ///
    /// # Errors
    /// The errors of [`Memory::from_segments`].
    pub fn zeroed(segments: usize, segment_bytes: usize) -> Result<Self, Error> {
        Self::from_segments(vec![vec![0; segment_bytes]; segments])
    }

    /// Number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    /// The segments, in order.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.0.fragments()
    }

    /// The segments, in order, to write.
    pub fn segments_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.0.fragments_mut()
    }

    /// Copies bytes to the beginning, and returns how many: as many as there is room for.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        self.fill_at(0, bytes)
    }

    /// Copies bytes to this offset, and returns how many: as many as there is room for.
    pub fn fill_at(&mut self, offset_bytes: u64, bytes: &[u8]) -> usize {
        let mut left = bytes;
        let mut begin = 0;
        for segment in self.segments_mut() {
            let length = segment.len() as u64;
            let from = offset_bytes.saturating_sub(begin).min(length) as usize;
            begin += length;
            let room = &mut segment[from..];
            let (now, later) = left.split_at(left.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            left = later;
        }
        bytes.len() - left.len()
    }

    /// Some of the bytes, in one piece.
    #[must_use]
    pub fn bytes(&self, offset_bytes: u64, length_bytes: u64) -> Vec<u8> {
        let end = offset_bytes.saturating_add(length_bytes);
        part(self.segments(), offset_bytes, end).flatten().copied().collect()
    }

    /// Copies the first `length_bytes` of another memory to the beginning, across segments of other sizes.
    ///
    /// # Errors
    /// `EFBIG` where one of them is shorter.
    pub fn copy_from(&mut self, source: &Self, length_bytes: u64) -> Result<(), Error> {
        let room = self.size_bytes().min(source.size_bytes());
        if length_bytes > room {
            let found = format!("a copy of {length_bytes} bytes: at most {room} are expected");
            return Err(Error::new(Errno::TooBig, found));
        }
        let mut offset_bytes = 0;
        for piece in part(source.segments(), 0, length_bytes) {
            offset_bytes += self.fill_at(offset_bytes, piece) as u64;
        }
        Ok(())
    }

    /// Checks whether a transport with these limits takes memory of this shape.
    ///
    /// # Errors
    /// The errors of [`Limits::check`].
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), Error> {
        let longest_bytes = self.segments().map(<[u8]>::len).max().unwrap_or(0) as u64;
        limits.check(self.segments().count(), longest_bytes, self.size_bytes())
    }
}

/// The bytes from `start` to `end` of segments, without empty pieces.
pub(crate) fn part<'a>(
    segments: impl Iterator<Item = &'a [u8]>,
    start: u64,
    end: u64,
) -> impl Iterator<Item = &'a [u8]> {
    let mut begin = 0;
    segments.filter_map(move |segment| {
        let length = segment.len() as u64;
        let [from, to] = [start, end].map(|bound| bound.saturating_sub(begin).min(length) as usize);
        begin += length;
        (from < to).then(|| &segment[from..to])
    })
}
