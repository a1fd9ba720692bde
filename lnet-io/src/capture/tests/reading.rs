//! Capture files, read back by another implementation than ours. Part of the tests, in this crate and others.

use pcap_parser::pcapng::{Block, OptionCode, PcapNGOption, parse_block_le};

/// An interface description block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Described {
    /// The interface's name.
    pub name: String,
    /// What its frames begin with.
    pub link: i32,
    /// Bytes that are kept of each frame, 0 for all.
    pub snap_bytes: u32,
}

/// An enhanced packet block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Captured {
    /// Its interface.
    pub interface: u32,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Whether it arrived; else it was sent.
    pub is_received: bool,
    /// What was kept.
    pub bytes: Vec<u8>,
    /// What there was.
    pub frame_bytes: u32,
}

/// An interface statistics block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// Its interface.
    pub interface: u32,
    /// Frames of the interface.
    pub received: u64,
    /// Those that are not in the file.
    pub missed: u64,
}

/// A file.
#[derive(Default, Debug)]
pub struct Contents {
    /// Its interfaces.
    pub interfaces: Vec<Described>,
    /// Its frames.
    pub frames: Vec<Captured>,
    /// What it ends with.
    pub counted: Vec<Counted>,
    /// Bytes behind its last whole block.
    pub torn_bytes: usize,
}

fn option<'a>(options: &'a [PcapNGOption<'a>], code: u16) -> &'a [u8] {
    let found = options.iter().find(|option| option.code == OptionCode(code));
    let found = found.unwrap_or_else(|| panic!("option {code} in {options:?}"));
    // Without what it is padded with.
    found.as_bytes().expect("as long as it says")
}

fn count(options: &[PcapNGOption<'_>], code: u16) -> u64 {
    u64::from_le_bytes(option(options, code).try_into().expect("8 bytes"))
}

impl Contents {
    /// Reads a file, which may end within a block.
    pub fn read(bytes: &[u8]) -> Self {
        let mut contents = Self::default();
        let mut rest = bytes;
        while let Ok((behind, block)) = parse_block_le(rest) {
            assert_eq!(rest.len() == bytes.len(), matches!(block, Block::SectionHeader(_)));
            contents.take(&block);
            rest = behind;
        }
        contents.torn_bytes = rest.len();
        contents
    }

    /// Reads a file that is complete: statistics of all interfaces stand at its end, and agree with its
    /// frames.
    pub fn read_complete(bytes: &[u8]) -> Self {
        let contents = Self::read(bytes);
        assert_eq!(contents.torn_bytes, 0);
        assert_eq!(contents.counted.len(), contents.interfaces.len());
        for (number, Counted { interface, received, missed }) in (0..).zip(&contents.counted) {
            assert_eq!(*interface, number);
            let frames = contents.frames.iter().filter(|frame| frame.interface == number).count();
            assert_eq!(frames as u64 + missed, *received);
        }
        contents
    }

    fn take(&mut self, block: &Block<'_>) {
        match block {
            Block::SectionHeader(header) => assert_eq!((header.major_version, header.section_len), (1, -1)),
            Block::InterfaceDescription(block) => {
                assert_eq!(block.if_tsresol, 9);
                let name = String::from_utf8(option(&block.options, 2).to_vec()).expect("a name");
                let (link, snap_bytes) = (block.linktype.0, block.snaplen);
                self.interfaces.push(Described { name, link, snap_bytes });
            }
            Block::EnhancedPacket(block) => {
                assert!((block.if_id as usize) < self.interfaces.len(), "an interface that was described");
                assert!(self.counted.is_empty(), "a frame behind the end");
                let flags = u32::from_le_bytes(option(&block.options, 2).try_into().expect("4 bytes"));
                assert!(flags == 1 || flags == 2);
                self.frames.push(Captured {
                    interface: block.if_id,
                    time_ns: u64::from(block.ts_high) << 32 | u64::from(block.ts_low),
                    is_received: flags == 1,
                    bytes: block.data[..block.caplen as usize].to_vec(),
                    frame_bytes: block.origlen,
                });
            }
            Block::InterfaceStatistics(block) => {
                let [received, missed, written] = [4, 5, 8].map(|code| count(&block.options, code));
                assert_eq!(written + missed, received);
                self.counted.push(Counted { interface: block.if_id, received, missed });
            }
            other => panic!("{other:?}"),
        }
    }
}
