//! Bulk descriptors of lnet: 48 bytes, little-endian. One with a NID over IPv6 has other words in the middle,
//! and says so by the uppermost bit of its queue.
//!
//! | offset | bytes | field | with a NID over IPv6 |
//! |---|---|---|---|
//! | 0 | 8 | match bits | the same |
//! | 8 | 8 | NID of the passive transfer machine | IP address, first half |
//! | 16 | 4 | its pid | IP address, second half |
//! | 20 | 4 | its portal | |
//! | 24 | 4 | its identifier | identifier, and above 16 bits the number of the net |
//! | 28 | 4 | queue of the passive buffer, 2 or 3 | queue; from bit 8 on the portal, from bit 16 on the type of the net; bit 31 |
//! | 32 | 8 | bytes to be read, or room | bytes, and above 32 bits the pid |
//! | 40 | 8 | the exclusive or of the five words before | the same |

use std::net::{IpAddr, Ipv6Addr};

use lnet_user::{Net, NetType, Nid, ProcessId};

use super::address::{LnetAddress, split};
use crate::errno::{Errno, Error};
use crate::operation::BulkDescriptor;
use crate::queue::QueueType;

pub(crate) const DESCRIPTOR_BYTES: usize = 48;
const WORDS: usize = DESCRIPTOR_BYTES / 8;
/// The mark of a descriptor with a NID over IPv6, beside its queue.
const IS_LARGE: u32 = 1 << 31;

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
    /// `EINVAL` where no identifier was chosen, or the NID is none of an NI.
    pub(crate) fn encode(&self) -> Result<BulkDescriptor, Error> {
        let Self { match_bits, address: LnetAddress { process, portal, tmid }, queue, size_bytes } = *self;
        let tmid =
            tmid.ok_or_else(|| Error::invalid("no identifier: a started transfer machine is expected"))?;
        let queue = queue.number();
        let words = match process.nid.to_small() {
            Some(nid) => [match_bits, nid, pair(process.pid, portal), pair(tmid.into(), queue), size_bytes],
            None => {
                let (net, portal, size) =
                    (process.nid.net(), u8::try_from(portal), u32::try_from(size_bytes));
                let (Some(IpAddr::V6(ip)), Ok(net_type), Ok(portal), Ok(size)) =
                    (process.nid.ip(), u8::try_from(net.net_type().0), portal, size)
                else {
                    let found = format!("a buffer of {size_bytes} bytes at {}", self.address);
                    return Err(Error::invalid(format!(
                        "{found}: an NI's NID and a portal below 64 are expected"
                    )));
                };
                let ip = ip.to_bits();
                let named = u32::from(tmid) | u32::from(net.number()) << 16;
                let marked = queue | u32::from(portal) << 8 | u32::from(net_type) << 16 | IS_LARGE;
                [match_bits, (ip >> 64) as u64, ip as u64, pair(named, marked), pair(size, process.pid)]
            }
        };
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
        if words.iter().fold(0, |sum, word| sum ^ word) != 0 {
            return Err(Error::invalid(
                "a descriptor whose checksum is wrong: one of lnet, unchanged, is expected",
            ));
        }
        let [match_bits, second, third, passive, fifth, _] = words;
        let [low, high] = halves(passive);
        let (nid, [pid, portal], queue, tmid, size_bytes) = if high & IS_LARGE == 0 {
            (Nid::from_small(second).ok(), halves(third), high, low, fifth)
        } else {
            let [queue, portal, net_type, _] = high.to_le_bytes();
            let [size, pid] = halves(fifth);
            let net = Net::new(NetType(net_type.into()), (low >> 16) as u16);
            let ip = u128::from(second) << 64 | u128::from(third);
            let nid = Nid::new_ip(net, Ipv6Addr::from_bits(ip).into()).ok();
            (nid, [pid, portal.into()], queue.into(), low & 0xffff, size.into())
        };
        let found = queue;
        let queue = QueueType::from_number(queue).filter(|queue| queue.is_passive());
        let queue = queue.ok_or_else(|| {
            Error::invalid(format!("a descriptor of queue {found}: a passive one is expected"))
        })?;
        let nid = nid.filter(Nid::can_name_an_ni);
        let nid = nid.ok_or_else(|| Error::invalid("a descriptor with the NID of no NI"))?;
        let address = LnetAddress { process: ProcessId { nid, pid }, portal, tmid: u16::try_from(tmid).ok() };
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

/// A word of two halves, the lower one first.
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The reverse of [`pair`].
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}
