//! Bulk descriptors of lnet: 48 bytes, little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | match bits |
//! | 8 | 8 | NID of the passive transfer machine |
//! | 16 | 4 | its pid |
//! | 20 | 4 | its portal |
//! | 24 | 4 | its identifier |
//! | 28 | 4 | queue of the passive buffer, 2 or 3 |
//! | 32 | 8 | bytes to be read, or room |
//! | 40 | 8 | the exclusive or of the five words before |

use lnet_user::{Nid, ProcessId};

use super::address::{LnetAddress, split};
use crate::errno::{Errno, Error};
use crate::operation::BulkDescriptor;
use crate::queue::QueueType;

pub(crate) const DESCRIPTOR_BYTES: usize = 48;
const WORDS: usize = DESCRIPTOR_BYTES / 8;

/// A passive buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LnetDescriptor {
    pub(crate) match_bits: u64,
    pub(crate) address: LnetAddress,
    pub(crate) queue: QueueType,
    pub(crate) size_bytes: u64,
}

/// The bytes that an active operation moves, and their place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bulk {
    pub(crate) address: LnetAddress,
    pub(crate) match_bits: u64,
    pub(crate) length_bytes: u64,
}

impl LnetDescriptor {
    /// # Errors
    /// `EINVAL` where the NID has no small form, or no identifier was chosen.
    pub(crate) fn encode(&self) -> Result<BulkDescriptor, Error> {
        let Self { match_bits, address: LnetAddress { process, portal, tmid }, queue, size_bytes } = *self;
        let nid = process.nid.to_small().ok_or_else(|| {
            Error::invalid(format!("NID {}: one of IPv4 is expected in a descriptor", process.nid))
        })?;
        let tmid =
            tmid.ok_or_else(|| Error::invalid("no identifier: a started transfer machine is expected"))?;
        let words = [
            match_bits,
            nid,
            u64::from(process.pid) | u64::from(portal) << 32,
            u64::from(tmid) | u64::from(queue.number()) << 32,
            size_bytes,
        ];
        let checksum = words.iter().fold(0, |sum, word| sum ^ word);
        let bytes: Vec<u8> = words.into_iter().chain([checksum]).flat_map(u64::to_le_bytes).collect();
        Ok(BulkDescriptor::from_bytes(&bytes))
    }

    /// # Errors
    /// `EINVAL` names what is wrong.
    pub(crate) fn decode(descriptor: &BulkDescriptor) -> Result<Self, Error> {
        let found = descriptor.as_bytes();
        let (chunks, rest) = found.as_chunks::<8>();
        let Ok(chunks) = <&[[u8; 8]; WORDS]>::try_from(chunks)
            .map_err(drop)
            .and_then(|chunks| if rest.is_empty() { Ok(chunks) } else { Err(()) })
        else {
            let found = format!("a descriptor of {} bytes: {DESCRIPTOR_BYTES} are expected", found.len());
            return Err(Error::invalid(found));
        };
        let words = chunks.map(u64::from_le_bytes);
        let [match_bits, nid, process, passive, size_bytes, _] = words;
        if words.iter().fold(0, |sum, word| sum ^ word) != 0 {
            return Err(Error::invalid(
                "a descriptor whose checksum is wrong: one of lnet, unchanged, is expected",
            ));
        }
        let [low, high] = [passive as u32, (passive >> 32) as u32];
        let queue = QueueType::from_number(high).filter(|queue| queue.is_passive());
        let queue = queue.ok_or_else(|| {
            Error::invalid(format!("a descriptor of queue {high}: a passive one is expected"))
        })?;
        let nid = Nid::from_small(nid).ok().filter(|nid| !nid.is_any());
        let nid = nid.ok_or_else(|| Error::invalid("a descriptor with the NID of no NI"))?;
        let tmid = u16::try_from(low).ok();
        let address = LnetAddress {
            process: ProcessId { nid, pid: process as u32 },
            portal: (process >> 32) as u32,
            tmid,
        };
        Ok(Self { match_bits, address, queue, size_bytes })
    }

    /// The transfer of an operation of `active` with this buffer, by so many bytes of data or of room.
    ///
    /// # Errors
    /// `EPERM` in the wrong direction, `EFBIG` where the sizes do not fit, `EINVAL` where the match bits are
    /// none of a passive buffer.
    pub(crate) fn bulk(&self, active: QueueType, local_bytes: u64) -> Result<Bulk, Error> {
        let Self { match_bits, address, queue, size_bytes } = *self;
        if queue.inverse() != Some(active) {
            let found = format!("{active:?} with a descriptor of {queue:?}: the other direction is expected");
            return Err(Error::new(Errno::NotPermitted, found));
        }
        let reads = active == QueueType::ActiveReceive;
        let (data, room) = if reads { (size_bytes, local_bytes) } else { (local_bytes, size_bytes) };
        if data > room {
            let found = format!("{data} bytes for a buffer of {room}: as many at most are expected");
            return Err(Error::new(Errno::TooBig, found));
        }
        let (tmid, name) = split(match_bits);
        if name == 0 || Some(tmid) != address.tmid || tmid == 0 {
            let found = format!("match bits {match_bits:#x}: those of a passive buffer are expected");
            return Err(Error::invalid(found));
        }
        Ok(Bulk { address, match_bits, length_bytes: data })
    }
}
