//! The blocks of a capture file that we write (draft-ietf-opsawg-pcapng), in little-endian order.

use super::table::CaptureInterface;
use super::tap::Head;

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
const NANOSECONDS: u8 = 9;

const END_OF_OPTIONS: u16 = 0;
const SHB_USER_APPLICATION: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TIMESTAMP_RESOLUTION: u16 = 9;
const EPB_FLAGS: u16 = 2;
const ISB_RECEIVED: u16 = 4;
const ISB_DROPPED: u16 = 5;
const ISB_DELIVERED: u16 = 8;

/// Bytes of a block of statistics.
pub(super) const STATISTICS_BYTES: u64 = 64;

/// Bytes of the block of a frame of which so many bytes are kept.
pub(super) fn packet_bytes(captured_bytes: u32) -> u64 {
    u64::from(captured_bytes).next_multiple_of(4) + 44
}

/// A block in the making, at the end of a buffer; whatever ends it puts its length before and behind it.
struct Block<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Block<'a> {
    fn begin(out: &'a mut Vec<u8>, kind: u32) -> Self {
        let start = out.len();
        let mut block = Self { out, start };
        block.word(kind);
        block.word(0);
        block
    }

    fn word(&mut self, word: u32) {
        self.out.extend(word.to_le_bytes());
    }

    fn half(&mut self, half: u16) {
        self.out.extend(half.to_le_bytes());
    }

    /// High half first (pcapng, 4.3).
    fn time(&mut self, time_ns: u64) {
        self.word((time_ns >> 32) as u32);
        self.word(time_ns as u32);
    }

    fn pad(&mut self) {
        let length = (self.out.len() - self.start).next_multiple_of(4);
        self.out.resize(self.start + length, 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.half(code);
        self.half(value.len() as u16);
        self.out.extend(value);
        self.pad();
    }

    fn end(mut self) {
        self.half(END_OF_OPTIONS);
        self.half(0);
        let length = ((self.out.len() - self.start + 4) as u32).to_le_bytes();
        self.out[self.start + 4..self.start + 8].copy_from_slice(&length);
        self.out.extend(length);
    }
}

/// What a file begins with.
pub(super) fn section_header(out: &mut Vec<u8>) {
    let mut block = Block::begin(out, SECTION_HEADER);
    block.word(BYTE_ORDER_MAGIC);
    block.half(1);
    block.half(0);
    // The section is as long as the file.
    block.out.extend(u64::MAX.to_le_bytes());
    block.option(SHB_USER_APPLICATION, concat!("lnet-user ", env!("CARGO_PKG_VERSION")).as_bytes());
    block.end();
}

/// An interface, which has the number of those before it. `frame_bytes` is the snap length, 0 for none.
pub(super) fn interface(out: &mut Vec<u8>, interface: &CaptureInterface, frame_bytes: u32) {
    let mut block = Block::begin(out, INTERFACE_DESCRIPTION);
    block.half(interface.link.number());
    block.half(0);
    block.word(frame_bytes);
    block.option(IF_NAME, interface.name.as_bytes());
    block.option(IF_TIMESTAMP_RESOLUTION, &[NANOSECONDS]);
    block.end();
}

/// A frame, whose bytes are the two slices in a row.
pub(super) fn packet(out: &mut Vec<u8>, head: &Head, (first, second): (&[u8], &[u8])) {
    let mut block = Block::begin(out, ENHANCED_PACKET);
    block.word(head.interface);
    block.time(head.time_ns);
    block.word(head.captured_bytes);
    block.word(head.frame_bytes);
    block.out.extend(first);
    block.out.extend(second);
    block.pad();
    block.option(EPB_FLAGS, &head.flags.to_le_bytes());
    block.end();
}

/// What became of the frames of an interface: those in the file, and those that were missed.
pub(super) fn statistics(out: &mut Vec<u8>, interface: u32, time_ns: u64, written: u64, missed: u64) {
    let mut block = Block::begin(out, INTERFACE_STATISTICS);
    block.word(interface);
    block.time(time_ns);
    block.option(ISB_RECEIVED, &(written + missed).to_le_bytes());
    block.option(ISB_DROPPED, &missed.to_le_bytes());
    block.option(ISB_DELIVERED, &written.to_le_bytes());
    block.end();
}
