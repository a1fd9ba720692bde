//! Bulk descriptors of mem: 40 bytes, little-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `LMem` |
//! | 4 | 2 | version, 1 |
//! | 6 | 2 | queue of the passive buffer |
//! | 8 | 8 | name of this use of it |
//! | 16 | 8 | length: to be read, or room |
//! | 24 | 8 | passive address: IPv4 address, port, 0 |
//! | 32 | 8 | address of the only initiator, 0xFFFF behind it; or zeros |

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::crew::Descriptor;
use crate::errno::Error;
use crate::operation::BulkDescriptor;
use crate::queue::QueueType;

pub(super) const DESCRIPTOR_BYTES: usize = 40;
const MAGIC: [u8; 4] = *b"LMem";
const VERSION: u16 = 1;
/// Behind an address that is there.
const PRESENT: u16 = 0xFFFF;

impl Descriptor<SocketAddrV4> {
    pub(super) fn encode(&self) -> BulkDescriptor {
        let mut bytes = Vec::with_capacity(DESCRIPTOR_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((self.queue.number() as u16).to_le_bytes());
        bytes.extend(self.name.to_le_bytes());
        bytes.extend(self.length_bytes.to_le_bytes());
        for address in [Some(self.passive), self.initiator] {
            let (ip, port) = address.map_or((0, 0), |address| (address.ip().to_bits(), address.port()));
            bytes.extend(ip.to_le_bytes());
            bytes.extend(port.to_le_bytes());
            bytes.extend(address.map_or(0, |_| PRESENT).to_le_bytes());
        }
        BulkDescriptor::from_bytes(&bytes)
    }

    /// # Errors
    /// `EINVAL` names what is wrong.
    pub(super) fn decode(descriptor: &BulkDescriptor) -> Result<Self, Error> {
        let found = descriptor.as_bytes();
        let Ok(bytes) = <&[u8; DESCRIPTOR_BYTES]>::try_from(found) else {
            let found = format!("a descriptor of {} bytes: {DESCRIPTOR_BYTES} are expected", found.len());
            return Err(Error::invalid(found));
        };
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if bytes[..4] != MAGIC || half(4) != VERSION {
            return Err(Error::invalid(
                "a descriptor of another transport or version: one of mem is expected",
            ));
        }
        let queue = QueueType::from_number(half(6).into()).filter(|queue| queue.is_passive());
        let queue = queue.ok_or_else(|| {
            Error::invalid(format!("a descriptor of queue {}: a passive one is expected", half(6)))
        })?;
        let address = |at| SocketAddrV4::new(Ipv4Addr::from_bits(word(at)), half(at + 4));
        let initiator = (half(38) == PRESENT).then(|| address(32));
        Ok(Self { queue, name: long(8), length_bytes: long(16), passive: address(24), initiator })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_what_it_was_made_from_and_others_are_refused() {
        let passive = SocketAddrV4::new([127, 0, 0, 1].into(), 7);
        for initiator in [None, Some(SocketAddrV4::new([255; 4].into(), 0))] {
            for queue in [QueueType::PassiveReceive, QueueType::PassiveSend] {
                let made = Descriptor { queue, name: u64::MAX - 1, length_bytes: 5, passive, initiator };
                let encoded = made.encode();
                assert_eq!(encoded.as_bytes().len(), DESCRIPTOR_BYTES);
                assert_eq!(Descriptor::<SocketAddrV4>::decode(&encoded), Ok(made));
                for (at, byte) in [(0, 0), (4, 2), (6, 1), (6, 9)] {
                    let mut wrong = encoded.as_bytes().to_vec();
                    wrong[at] = byte;
                    Descriptor::<SocketAddrV4>::decode(&BulkDescriptor::from_bytes(&wrong)).unwrap_err();
                }
                for length in [0, DESCRIPTOR_BYTES - 1] {
                    let cut = BulkDescriptor::from_bytes(&encoded.as_bytes()[..length]);
                    Descriptor::<SocketAddrV4>::decode(&cut).unwrap_err();
                }
            }
        }
    }
}
