//! Datagrams as a peer would send them, and as no peer should.

use lnet_wire::frame::{
    CRC_OFFSET, FIRST_HEADERS_BYTES, FRAGMENT_OFFSET_OFFSET, FRAME_HEADER_BYTES, FrameHeader,
    HANDSHAKE_BYTES, KIND_OFFSET, Kind, ShortPut, Transfer,
};
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::steer::{self, SteerKey};
use lnet_wire::{Body, Header, Nid, WireHandle};

use super::process;

/// Header data with this bit are no Put of a [`super::Flood`].
pub const HOSTILE_BIT: u64 = 1 << 63;

/// What a frame without a session says to loss recovery.
pub const NO_TRANSFER: Transfer = Transfer {
    number: 0,
    incarnation: 0,
    session: 0,
    oldest: 0,
    shard: 0,
    ack_now: false,
    ack: None,
    payload_crc: None,
    ticket: None,
};

/// A message of one frame: its two headers may be made to contradict each other.
#[derive(Clone, Debug)]
pub struct Message {
    /// The frame header.
    pub frame: FrameHeader,
    /// The rest of the frame header.
    pub transfer: Transfer,
    /// The LNet header.
    pub header: Header,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Message {
    /// A message with this body and payload, as its sender makes it, but for a session: see
    /// [`super::Stranger::sign`].
    ///
    /// # Panics
    /// The body is one that no frame carries.
    #[must_use]
    pub fn new(source: Nid, target: Nid, body: Body, payload: Vec<u8>) -> Self {
        let payload_length = payload.len() as u32;
        let header = Header { destination: process(target), source: process(source), payload_length, body };
        let key = SteerKey::of(&header, 1, steer::initiator_hash(&source)).expect("a body that frames carry");
        let frame = FrameHeader::data(key, 0, payload_length);
        Self { frame, transfer: NO_TRANSFER, header, payload }
    }

    /// A PUT of `length_bytes`, without an acknowledgement.
    #[must_use]
    pub fn put(source: Nid, target: Nid, portal: u32, match_bits: u64, length_bytes: usize) -> Self {
        let (ack_md, hdr_data, offset) = (WireHandle::NONE, HOSTILE_BIT, 0);
        let body = Body::Put { ack_md, match_bits, hdr_data, portal, offset };
        Self::new(source, target, body, vec![0xA5; length_bytes])
    }

    /// The UDP payload, with its checksum.
    #[must_use]
    pub fn datagram(&self) -> Vec<u8> {
        let mut frame = [0; FRAME_HEADER_BYTES];
        self.frame.encode(&mut frame);
        self.transfer.encode(&mut frame);
        let mut header = [0; LARGE_HEADER_BYTES];
        self.header.encode_large(&mut header);
        let mut bytes = [&frame[..], &header, &self.payload].concat();
        seal(&mut bytes);
        bytes
    }

    /// The UDP payload as a short frame, with its checksum; of what that does not say the LNet header is
    /// ignored.
    #[must_use]
    pub fn short_datagram(&self) -> Vec<u8> {
        let (hdr_data, offset) = match self.header.body {
            Body::Put { hdr_data, offset, .. } => (hdr_data, offset),
            _ => (0, 0),
        };
        let mut frame = [0; FRAME_HEADER_BYTES];
        FrameHeader { short: Some(ShortPut { hdr_data, offset }), ..self.frame }.encode(&mut frame);
        self.transfer.encode(&mut frame);
        let mut bytes = [&frame[..], &self.payload].concat();
        self.seal_short(&mut bytes);
        bytes
    }

    /// Writes the checksum that belongs to the header of a short frame as it is.
    pub fn seal_short(&self, datagram: &mut [u8]) {
        datagram[CRC_OFFSET..CRC_OFFSET + 4].fill(0);
        let ends = [self.header.destination.nid.to_bytes(), self.header.source.nid.to_bytes()].concat();
        let crc = crc32c(&[&ends, &datagram[..FRAME_HEADER_BYTES]].concat());
        datagram[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Writes the checksum that belongs to the headers as they are; of a datagram too short for them none.
pub fn seal(datagram: &mut [u8]) {
    let Some(head) = datagram.first_chunk::<FRAME_HEADER_BYTES>() else { return };
    let is_first = head[FRAGMENT_OFFSET_OFFSET..FRAGMENT_OFFSET_OFFSET + 4] == [0; 4];
    let covered_bytes = match head[KIND_OFFSET] {
        kind if kind == Kind::Data as u8 && is_first => FIRST_HEADERS_BYTES,
        kind if kind == Kind::Hello as u8 || kind == Kind::Welcome as u8 => {
            FRAME_HEADER_BYTES + HANDSHAKE_BYTES
        }
        _ => FRAME_HEADER_BYTES,
    };
    let Some(covered) = datagram.get_mut(..covered_bytes) else { return };
    covered[CRC_OFFSET..CRC_OFFSET + 4].fill(0);
    let crc = crc32c(covered).to_le_bytes();
    covered[CRC_OFFSET..CRC_OFFSET + 4].copy_from_slice(&crc);
}

/// CRC32C (Castagnoli; RFC 3720 section 12.1), a byte at a time.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut index = 0;
        while index < 256 {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { value >> 1 ^ 0x82F6_3B78 } else { value >> 1 };
                bit += 1;
            }
            table[index] = value;
            index += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, byte| TABLE[(crc as u8 ^ byte) as usize] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of CRC-32/ISCSI.
    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }
}
