//! The part of a frame header that loss recovery is made of, and what stands behind the header besides LNet
//! headers and payload.

use super::{
    ACK_BITS_OFFSET, ACK_OFFSET, FLAG_ACK, FLAG_ACK_NOW, FLAG_BUFFERED, FLAG_BUNDLE, FLAG_PAYLOAD_CRC,
    FLAG_PULLED, FLAG_SHORT, FLAGS_KNOWN, FLAGS_OFFSET, FRAME_HEADER_BYTES, FRAME_NUMBER_OFFSET,
    GRANT_OFFSET, INCARNATION_OFFSET, OLDEST_OFFSET, PAYLOAD_CRC_OFFSET, SESSION_OFFSET, SHARD_OFFSET,
    SHORT_PAYLOAD_CRC_OFFSET, TICKET_OFFSET,
};
use crate::bytes::{get, get_u32, get_u64, put, put_u32, put_u64};
use crate::header::PAYLOAD_BYTES_MAX;
use crate::steer::{PORTALS, PolicyWord, SHARDS_MAX};

/// Which frames have arrived, of those that the addressee has sent to the acknowledging shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// The highest frame number.
    pub highest: u32,
    /// Bit n: the frame n + 1 below the highest.
    pub below: u64,
    /// Bytes of frames that the addressee may have in flight to this shard, each frame counted in whole
    /// chunks of 4096.
    pub grant_bytes: u32,
    /// Whether the acknowledging shard buffers frames of messages that are delayed: what is not acknowledged
    /// may have arrived.
    pub buffered: bool,
}

/// The part of a frame that is for loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Counts the frames from one shard to another that are to be acknowledged, modulo 2^32.
    pub number: u32,
    /// Incarnation of the sending node: the first eight bytes of its public key ([`Certificate`]).
    pub incarnation: u64,
    /// The token that the addressee gave to this incarnation at the address that the frame comes from. In
    /// [`Ack`](super::Kind::Ack) the one that the sender gave out, in [`Reset`](super::Kind::Reset) the one
    /// that is not known.
    pub session: u64,
    /// The message's id less the oldest one that its sender has not finished with.
    pub oldest: u16,
    /// Shard that sends it.
    pub shard: u8,
    /// Whether an acknowledgement is waited for.
    pub ack_now: bool,
    /// The acknowledgement of what has arrived from the addressee.
    pub ack: Option<Ack>,
    /// CRC32C of the payload, records excepted.
    pub payload_crc: Option<u32>,
    /// Ticket that a pulled message is sent for, or that a frame about a deferred one names.
    pub ticket: Option<u32>,
}

impl Transfer {
    /// Whether a short frame can say all of it.
    #[inline]
    #[must_use]
    pub fn fits_short(&self) -> bool {
        self.ack.is_none_or(|ack| ack.below == u64::MAX) && self.ticket.is_none()
    }

    /// Writes the fields into a header that [`FrameHeader::encode`](super::FrameHeader::encode) has made;
    /// into that of a short frame what [fits](Transfer::fits_short).
    #[inline]
    pub fn encode(&self, bytes: &mut [u8; FRAME_HEADER_BYTES]) {
        let [form] = get::<FLAGS_OFFSET, _, _>(bytes);
        let mut flags = form & (FLAG_BUNDLE | FLAG_SHORT);
        put_u32::<FRAME_NUMBER_OFFSET, _>(bytes, self.number);
        put_u64::<INCARNATION_OFFSET, _>(bytes, self.incarnation);
        put_u64::<SESSION_OFFSET, _>(bytes, self.session);
        put::<OLDEST_OFFSET, _, _>(bytes, self.oldest.to_le_bytes());
        put::<SHARD_OFFSET, _, _>(bytes, [self.shard]);
        if let Some(ack) = &self.ack {
            flags |= if ack.buffered { FLAG_ACK | FLAG_BUFFERED } else { FLAG_ACK };
            put_u32::<ACK_OFFSET, _>(bytes, ack.highest);
            put_u32::<GRANT_OFFSET, _>(bytes, ack.grant_bytes);
            if flags & FLAG_SHORT == 0 {
                put_u64::<ACK_BITS_OFFSET, _>(bytes, ack.below);
            }
        }
        if let Some(crc) = self.payload_crc {
            flags |= FLAG_PAYLOAD_CRC;
            match flags & FLAG_SHORT {
                0 => put_u32::<PAYLOAD_CRC_OFFSET, _>(bytes, crc),
                _ => put_u32::<SHORT_PAYLOAD_CRC_OFFSET, _>(bytes, crc),
            }
        }
        if let Some(ticket) = self.ticket {
            flags |= FLAG_PULLED;
            put_u32::<TICKET_OFFSET, _>(bytes, ticket);
        }
        if self.ack_now {
            flags |= FLAG_ACK_NOW;
        }
        put::<FLAGS_OFFSET, _, _>(bytes, [flags]);
    }

    /// Reads the fields; `None` if the frame comes from a shard or has flags that cannot be.
    #[inline]
    #[must_use]
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<Self> {
        let [shard, flags] = get::<SHARD_OFFSET, _, _>(bytes);
        if u32::from(shard) >= SHARDS_MAX || flags & !FLAGS_KNOWN != 0 {
            return None;
        }
        let has = |flag: u8| flags & flag != 0;
        let short = has(FLAG_SHORT);
        if short && has(FLAG_PULLED) || has(FLAG_BUFFERED) && !has(FLAG_ACK) {
            return None;
        }
        Some(Self {
            number: get_u32::<FRAME_NUMBER_OFFSET, _>(bytes),
            incarnation: get_u64::<INCARNATION_OFFSET, _>(bytes),
            session: get_u64::<SESSION_OFFSET, _>(bytes),
            oldest: u16::from_le_bytes(get::<OLDEST_OFFSET, _, _>(bytes)),
            shard,
            ack_now: has(FLAG_ACK_NOW),
            ack: has(FLAG_ACK).then(|| Ack {
                highest: get_u32::<ACK_OFFSET, _>(bytes),
                below: if short { u64::MAX } else { get_u64::<ACK_BITS_OFFSET, _>(bytes) },
                grant_bytes: get_u32::<GRANT_OFFSET, _>(bytes),
                buffered: has(FLAG_BUFFERED),
            }),
            payload_crc: has(FLAG_PAYLOAD_CRC).then(|| match short {
                true => get_u32::<SHORT_PAYLOAD_CRC_OFFSET, _>(bytes),
                false => get_u32::<PAYLOAD_CRC_OFFSET, _>(bytes),
            }),
            ticket: has(FLAG_PULLED).then(|| get_u32::<TICKET_OFFSET, _>(bytes)),
        })
    }
}

/// The proof that a node of some incarnation lives at an address: its public key, whose first eight bytes
/// are the incarnation, and the signature of the address by it (Ed25519, RFC 8032).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// The public key.
    pub key: [u8; 32],
    /// The signature.
    pub signature: [u8; 64],
}

/// Bytes of a [`Certificate`].
const CERTIFICATE_BYTES: usize = 32 + 64;
/// Bit of the options in a [`Handshake`]: payloads need no checksum. Bits without a name are not looked at.
const OPTION_NO_CHECKSUM: u8 = 1 << 0;
/// Bit of the options: datagrams may come in runs.
const OPTION_RUNS: u8 = 1 << 1;
/// Offset of the certificate in a [`Handshake`].
const CERTIFICATE_OFFSET: usize = 8 + 8 * PORTALS;
/// Bytes behind the header of a HELLO and a WELCOME: a [`Handshake`].
pub const HANDSHAKE_BYTES: usize = CERTIFICATE_OFFSET + CERTIFICATE_BYTES;

/// The words of a node about itself when it asks for a session, and when it gives one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handshake {
    /// Its shards, 1 to [`SHARDS_MAX`].
    pub shards: u8,
    /// Whether it wants a checksum with each payload that it takes by the NI that sends this.
    pub checksum: bool,
    /// Whether datagrams may come to that NI in runs, as one packet, which its kernel cuts up.
    pub runs: bool,
    /// Longest UDP payload that it takes by that NI.
    pub datagram_max_bytes: u32,
    /// The policies of its portals.
    pub policies: [PolicyWord; PORTALS],
    /// The proof that the node lives at the address of that NI.
    pub certificate: Certificate,
}

impl Handshake {
    /// Writes it.
    pub fn encode(&self, bytes: &mut [u8; HANDSHAKE_BYTES]) {
        *bytes = [0; HANDSHAKE_BYTES];
        let checksum = if self.checksum { 0 } else { OPTION_NO_CHECKSUM };
        let runs = if self.runs { OPTION_RUNS } else { 0 };
        put::<0, _, _>(bytes, [self.shards, checksum | runs]);
        put_u32::<4, _>(bytes, self.datagram_max_bytes);
        for (word, policy) in self.policies.iter().zip(bytes[8..].as_chunks_mut::<8>().0) {
            *policy = word.0.to_le_bytes();
        }
        put::<CERTIFICATE_OFFSET, _, _>(bytes, self.certificate.key);
        put::<{ CERTIFICATE_OFFSET + 32 }, _, _>(bytes, self.certificate.signature);
    }

    /// Reads it; `None` if it names no shard or too many, or would not take a HELLO.
    #[must_use]
    pub fn decode(bytes: &[u8; HANDSHAKE_BYTES]) -> Option<Self> {
        let [shards, options] = get::<0, _, _>(bytes);
        let (checksum, runs) = (options & OPTION_NO_CHECKSUM == 0, options & OPTION_RUNS != 0);
        let datagram_max_bytes = get_u32::<4, _>(bytes);
        let mut policies = [PolicyWord::default(); PORTALS];
        for (word, policy) in policies.iter_mut().zip(bytes[8..].as_chunks::<8>().0) {
            *word = PolicyWord(u64::from_le_bytes(*policy));
        }
        let certificate = Certificate {
            key: get::<CERTIFICATE_OFFSET, _, _>(bytes),
            signature: get::<{ CERTIFICATE_OFFSET + 32 }, _, _>(bytes),
        };
        let least = FRAME_HEADER_BYTES + HANDSHAKE_BYTES;
        ((1..=SHARDS_MAX).contains(&u32::from(shards)) && datagram_max_bytes as usize >= least)
            .then_some(Self { shards, checksum, runs, datagram_max_bytes, policies, certificate })
    }
}

/// Bytes of the head of a further message in a frame: its LNet header follows, then its payload.
pub const RECORD_BYTES: usize = 16;

/// The head of a further whole message in a frame.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 2 | message id less that of the frame header |
/// | 2 | 2 | zero |
/// | 4 | 4 | payload bytes |
/// | 8 | 4 | CRC32C over this head, with zero in this field, and the LNet header |
/// | 12 | 4 | CRC32C of the payload, if the frame's flag says so, else zero |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its message id less that of the frame header.
    pub id_delta: u16,
    /// Bytes of payload, at most [`PAYLOAD_BYTES_MAX`].
    pub length: u32,
    /// CRC32C of the payload.
    pub payload_crc: u32,
}

/// Offset of a record's checksum in it.
pub const RECORD_CRC_OFFSET: usize = 8;

impl Record {
    /// Writes it with a checksum of zero.
    pub fn encode(&self, bytes: &mut [u8; RECORD_BYTES]) {
        *bytes = [0; RECORD_BYTES];
        put::<0, _, _>(bytes, self.id_delta.to_le_bytes());
        put_u32::<4, _>(bytes, self.length);
        put_u32::<12, _>(bytes, self.payload_crc);
    }

    /// Reads it; `None` if its message is longer than any.
    #[must_use]
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let length = get_u32::<4, _>(bytes);
        (length <= PAYLOAD_BYTES_MAX).then(|| Self {
            id_delta: u16::from_le_bytes(get::<0, _, _>(bytes)),
            length,
            payload_crc: get_u32::<12, _>(bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FrameHeader, ShortPut};
    use super::*;
    use proptest::prelude::*;

    fn transfers() -> impl Strategy<Value = Transfer> {
        let ack = any::<(u32, u64, u32, bool)>().prop_map(|(highest, below, grant_bytes, buffered)| Ack {
            highest,
            below,
            grant_bytes,
            buffered,
        });
        let ids = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u16>(), 0..64_u8, any::<bool>());
        (ids, proptest::option::of(ack), any::<Option<u32>>(), any::<Option<u32>>()).prop_map(
            |((number, incarnation, session, oldest, shard, ack_now), ack, payload_crc, ticket)| Transfer {
                number,
                incarnation,
                session,
                oldest,
                shard,
                ack_now,
                ack,
                payload_crc,
                ticket,
            },
        )
    }

    proptest! {
        #[test]
        fn transfer_fields_round_trip(transfer in transfers(), bundled in any::<bool>()) {
            let mut bytes = [0x55; FRAME_HEADER_BYTES];
            let header = FrameHeader { bundled, ..FrameHeader::other(super::super::Kind::Ping, 3, 9) };
            header.encode(&mut bytes);
            transfer.encode(&mut bytes);
            prop_assert_eq!(Transfer::decode(&bytes), Some(transfer));
            prop_assert_eq!(bytes[FLAGS_OFFSET] & FLAG_BUNDLE != 0, bundled);
        }

        #[test]
        fn handshakes_round_trip(
            shards in 1..=64_u8,
            [checksum, runs] in any::<[bool; 2]>(),
            datagram_max_bytes in (FRAME_HEADER_BYTES + HANDSHAKE_BYTES) as u32..=u32::MAX,
            word in any::<u64>(),
            key in any::<[u8; 32]>(),
        ) {
            let handshake = Handshake {
                shards,
                checksum,
                runs,
                datagram_max_bytes,
                policies: core::array::from_fn(|n| PolicyWord(word ^ n as u64)),
                certificate: Certificate { key, signature: core::array::from_fn(|n| key[n / 2] ^ n as u8) },
            };
            let mut bytes = [0; HANDSHAKE_BYTES];
            handshake.encode(&mut bytes);
            prop_assert_eq!(Handshake::decode(&bytes), Some(handshake));
        }

        #[test]
        fn records_round_trip(id_delta in any::<u16>(), length in 0..=PAYLOAD_BYTES_MAX, payload_crc in any::<u32>()) {
            let record = Record { id_delta, length, payload_crc };
            let mut bytes = [0x55; RECORD_BYTES];
            record.encode(&mut bytes);
            prop_assert_eq!(Record::decode(&bytes), Some(record));
        }
    }

    /// Short frames have something else where the bits of an acknowledgement would be, and a checksum in the
    /// place of a ticket.
    #[test]
    fn a_short_frame_acknowledges_without_gaps_and_says_no_more() {
        let short = Some(ShortPut { hdr_data: 0x0102_0304_0506_0708, offset: 0x090A_0B0C });
        let header = FrameHeader { short, ..FrameHeader::other(super::super::Kind::Data, 3, 9) };
        let ack = Ack { highest: 70, below: u64::MAX, grant_bytes: 5, buffered: false };
        let transfer = Transfer {
            number: 1,
            incarnation: 2,
            session: 3,
            oldest: 4,
            shard: 5,
            ack_now: true,
            ack: Some(ack),
            payload_crc: None,
            ticket: None,
        };
        let mut bytes = [0x55; FRAME_HEADER_BYTES];
        header.encode(&mut bytes);
        transfer.encode(&mut bytes);
        assert!(transfer.fits_short());
        assert_eq!(Transfer::decode(&bytes), Some(transfer));
        assert_eq!(bytes[72..], [8, 7, 6, 5, 4, 3, 2, 1, 12, 11, 10, 9, 0, 0, 0, 0]);
        let summed = Transfer { payload_crc: Some(0xA1A2_A3A4), ..transfer };
        header.encode(&mut bytes);
        summed.encode(&mut bytes);
        assert!(summed.fits_short());
        assert_eq!(Transfer::decode(&bytes), Some(summed));
        assert_eq!(bytes[72..], [8, 7, 6, 5, 4, 3, 2, 1, 12, 11, 10, 9, 0xA4, 0xA3, 0xA2, 0xA1]);
        let none = Transfer { ack: None, ..transfer };
        header.encode(&mut bytes);
        none.encode(&mut bytes);
        assert!(none.fits_short());
        assert_eq!(Transfer::decode(&bytes), Some(none));
        for other in [
            Transfer { ack: Some(Ack { below: u64::MAX >> 1, ..ack }), ..transfer },
            Transfer { ticket: Some(0), ..transfer },
        ] {
            assert!(!other.fits_short(), "{other:?}");
        }
        bytes[FLAGS_OFFSET] = FLAG_SHORT | FLAG_PULLED;
        assert_eq!(Transfer::decode(&bytes), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        assert!(Transfer::decode(&bytes).is_some());
        bytes[SHARD_OFFSET] = 64;
        assert_eq!(Transfer::decode(&bytes), None);
        bytes[SHARD_OFFSET] = 0;
        bytes[FLAGS_OFFSET] = 0x40;
        assert_eq!(Transfer::decode(&bytes), None);
        let mut handshake = [0; HANDSHAKE_BYTES];
        handshake[4..8].copy_from_slice(&1500_u32.to_le_bytes());
        for (shards, fits) in [(0, false), (1, true), (64, true), (65, false)] {
            handshake[0] = shards;
            assert_eq!(Handshake::decode(&handshake).is_some(), fits, "{shards} shards");
        }
        handshake[0] = 1;
        for (datagram_max_bytes, fits) in [(703_u32, false), (704, true)] {
            handshake[4..8].copy_from_slice(&datagram_max_bytes.to_le_bytes());
            assert_eq!(Handshake::decode(&handshake).is_some(), fits, "{datagram_max_bytes} bytes");
        }
        let mut record = [0; RECORD_BYTES];
        record[4..8].copy_from_slice(&(PAYLOAD_BYTES_MAX + 1).to_le_bytes());
        assert_eq!(Record::decode(&record), None);
    }
}
