//! Test messages, and the bytes that are sent to and fro.

use lnet_load::Pattern;
use lnet_messaging::{BulkDescriptor, Memory};

/// Bytes before those of the pattern: magic, sequence number.
pub(crate) const HEADER_BYTES: usize = 16;
const PING: u64 = u64::from_le_bytes(*b"NetPing1");
const BULK: u64 = u64::from_le_bytes(*b"NetBulk1");

/// A test message.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Message {
    /// A ping, which comes back as it is.
    Ping { sequence: u64 },
    /// Bulk exchanges, at least one.
    Bulk(Vec<Exchange>),
}

/// A bulk exchange, as its server needs to know it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Exchange {
    pub(crate) length_bytes: u64,
    /// The buffer that the server reads.
    pub(crate) from: BulkDescriptor,
    /// The buffer that the server writes to.
    pub(crate) to: BulkDescriptor,
}

/// Tells the bytes of tests from those of other loads.
const SALT: u64 = PING;

/// Fills memory with the pattern of a sequence number.
pub(crate) fn fill(memory: &mut Memory, sequence: u64) {
    let (pattern, mut offset) = (Pattern::of(0, sequence, SALT), 0);
    for segment in memory.segments_mut() {
        pattern.fill(offset, segment);
        offset += segment.len() as u64;
    }
}

/// Whether bytes are those of the pattern, but for the first `skip`.
pub(crate) fn is_pattern<'a>(mut pieces: impl Iterator<Item = &'a [u8]>, skip: usize, sequence: u64) -> bool {
    let (pattern, mut offset, mut skip) = (Pattern::of(0, sequence, SALT), 0, skip);
    pieces.all(|piece| {
        let skipped = skip.min(piece.len());
        let begin = offset + skipped as u64;
        (offset, skip) = (offset + piece.len() as u64, skip - skipped);
        pattern.check(begin, &piece[skipped..]).is_none()
    })
}

/// The begin of a ping message.
pub(crate) fn ping_header(sequence: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&PING.to_le_bytes());
    header[8..].copy_from_slice(&sequence.to_le_bytes());
    header
}

/// The message of these exchanges.
pub(crate) fn bulk_message(exchanges: &[Exchange]) -> Vec<u8> {
    let mut bytes = [BULK.to_le_bytes(), (exchanges.len() as u64).to_le_bytes()].concat();
    bytes.extend(exchanges.iter().flat_map(Exchange::encode));
    bytes
}

impl Exchange {
    /// Encodes the part of a message that is this exchange.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.length_bytes.to_le_bytes().to_vec();
        for descriptor in [&self.from, &self.to] {
            let descriptor = descriptor.as_bytes();
            // Transports have far shorter ones.
            bytes.extend((descriptor.len() as u16).to_le_bytes());
            bytes.extend(descriptor);
        }
        bytes
    }

    /// The exchange that begins here, and what is behind it.
    fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (length_bytes, mut rest) = bytes.split_first_chunk::<8>()?;
        let mut descriptor = || {
            let (length, behind) = rest.split_first_chunk::<2>()?;
            let (bytes, behind) = behind.split_at_checked(u16::from_le_bytes(*length).into())?;
            rest = behind;
            Some(BulkDescriptor::from_bytes(bytes))
        };
        let (from, to) = (descriptor()?, descriptor()?);
        Some((Self { length_bytes: u64::from_le_bytes(*length_bytes), from, to }, rest))
    }
}

impl Message {
    /// `None` for bytes that are no message of a test.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (number, mut rest) = rest.split_first_chunk::<8>()?;
        let number = u64::from_le_bytes(*number);
        match u64::from_le_bytes(*magic) {
            PING => Some(Self::Ping { sequence: number }),
            // The bytes bound what is made, whatever the number.
            BULK if number > 0 => {
                let mut exchanges = Vec::new();
                for _ in 0..number {
                    let (exchange, behind) = Exchange::decode(rest)?;
                    exchanges.push(exchange);
                    rest = behind;
                }
                Some(Self::Bulk(exchanges))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nt_07_messages_are_what_they_were_made_from() {
        let exchange = |length_bytes: u64| {
            let [from, to] = [&[length_bytes as u8; 48][..], &[2; 40]].map(BulkDescriptor::from_bytes);
            Exchange { length_bytes, from, to }
        };
        let mut former = bulk_message(&[]).len();
        for count in 1..64 {
            let exchanges: Vec<_> = (0..count).map(exchange).collect();
            let bytes = bulk_message(&exchanges);
            // Each takes as many bytes as the others.
            assert_eq!(bytes.len() - former, exchange(0).encode().len());
            former = bytes.len();
            assert_eq!(Message::decode(&bytes), Some(Message::Bulk(exchanges)));
            for end in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..end]), None);
            }
        }
        for number in [0, u64::MAX] {
            let mut bytes = bulk_message(&[exchange(1)]);
            bytes[8..16].copy_from_slice(&number.to_le_bytes());
            assert_eq!(Message::decode(&bytes), None);
        }
        assert_eq!(Message::decode(&ping_header(7)), Some(Message::Ping { sequence: 7 }));
        assert_eq!(Message::decode(&[0; 64]), None);
    }

    #[test]
    fn nt_05_a_ping_has_its_number_and_a_magic_one() {
        for sequence in [0, 1, u64::MAX] {
            let header = ping_header(sequence);
            assert_eq!(Message::decode(&header), Some(Message::Ping { sequence }));
            for at in 0..8 {
                let mut wrong = header;
                wrong[at] ^= 1;
                assert_ne!(Message::decode(&wrong), Some(Message::Ping { sequence }));
            }
        }
    }

    #[test]
    fn contents_are_told_apart() {
        let mut memory = Memory::zeroed(2, 90_000).unwrap();
        fill(&mut memory, 5);
        let check = |memory: &Memory, skip, sequence| is_pattern(memory.segments(), skip, sequence);
        assert!(check(&memory, 0, 5) && !check(&memory, 0, 6) && !check(&memory, 0, 5 + 1000));
        for at in [0, 15, 16, 65_521, 89_999, 90_000, 179_999] {
            let byte = memory.bytes(at, 1)[0];
            memory.fill_at(at, &[!byte]);
            assert_eq!((check(&memory, 0, 5), check(&memory, 16, 5)), (false, at < 16), "{at}");
            memory.fill_at(at, &[byte]);
        }
    }
}
