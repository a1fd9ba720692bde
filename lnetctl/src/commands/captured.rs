//! The command `capture show FILE`: frames of a capture, a line each, without other programs.
//!
//! Invariants: nothing that a file holds is believed, and no frame takes more than a line; what is none of
//! our frames is told as such.

use std::fmt::Write;
use std::fs::File;
use std::net::IpAddr;
use std::path::Path;

use lnet_control::client::errno_of;
use lnet_model::Errno;
use lnet_wire::Header;
use lnet_wire::frame::{FRAME_HEADER_BYTES, FrameHeader, Kind, RECORD_BYTES, Record, Transfer};
use lnet_wire::header::LARGE_HEADER_BYTES;
use lnet_wire::packet::{self, ETHERNET_BYTES, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapNGReader, traits::PcapReaderIterator};
use serde_json::{Value, json};

use super::Result;
use crate::daemon::Daemon;
use crate::failure::Task;
use crate::output::{json_line, print_text};

const TASK: Task = Task::new("show", "capture");
/// Bytes that a block may have.
const BLOCK_BYTES: usize = 1 << 20;
/// Link types: Ethernet, and IP alone, as of frames that go by sockets.
const ETHERNET: i32 = 1;
const RAW_IP: i32 = 101;

/// A packet of the file.
struct Captured<'a> {
    /// Nanoseconds since 1970.
    time_ns: u64,
    link: i32,
    bytes: &'a [u8],
    /// Bytes that it had on the wire.
    whole_bytes: u32,
}

/// Prints the frames of a file.
pub(super) fn show(daemon: &Daemon<'_>, path: &Path) -> Result<()> {
    let name = path.display();
    let file = File::open(path)
        .map_err(|error| TASK.error(errno_of(&error), format!("cannot open {name}: {error}")).failed())?;
    let wrong = |what: &str| TASK.error(Errno::INVAL, format!("{name}: {what}")).failed();
    let mut reader = PcapNGReader::new(BLOCK_BYTES, file).map_err(|_| wrong("it is no pcapng file"))?;
    let (mut links, mut first_ns) = (Vec::new(), None);
    loop {
        match reader.next() {
            Ok((bytes, block)) => {
                match &block {
                    // Interfaces of each section have numbers of their own.
                    PcapBlockOwned::NG(Block::SectionHeader(_)) => links.clear(),
                    PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                        links.push((interface.linktype.0, interface.ts_resolution().unwrap_or(1_000_000)));
                    }
                    _ => {}
                }
                if let PcapBlockOwned::NG(Block::EnhancedPacket(packet)) = &block
                    && let Some((link, per_second)) = links.get(packet.if_id as usize)
                {
                    let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                    let time_ns = u128::from(ticks) * 1_000_000_000 / u128::from((*per_second).max(1));
                    let time_ns = u64::try_from(time_ns).unwrap_or(u64::MAX);
                    let data = packet.data.get(..packet.caplen as usize).unwrap_or(packet.data);
                    let captured =
                        Captured { time_ns, link: *link, bytes: data, whole_bytes: packet.origlen };
                    let begun = *first_ns.get_or_insert(time_ns);
                    print_text(&if daemon.as_json {
                        json_line(&json!({"frame": told(&captured)}))
                    } else {
                        line(begun, &captured)
                    });
                }
                reader.consume(bytes);
            }
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::Incomplete(_)) => {
                let known = reader.data().len();
                reader.refill().map_err(|_| wrong("it cannot be read"))?;
                if reader.data().len() == known && !reader.reader_exhausted() {
                    return Err(wrong("a block is too long"));
                }
            }
            Err(PcapError::BufferTooSmall) => return Err(wrong("a block is too long")),
            Err(PcapError::UnexpectedEof) => return Err(wrong("it ends within a block")),
            Err(_) => return Err(wrong("a block makes no sense")),
        }
    }
}

fn line(begun: u64, captured: &Captured<'_>) -> String {
    let ns = captured.time_ns.saturating_sub(begun);
    let value = told(captured);
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let mut line = format!("{:>4}.{:06} ", ns / 1_000_000_000, ns / 1000 % 1_000_000);
    match value["from"].as_str() {
        Some(_) => {
            let _ = write!(line, "{} > {}: ", text("from"), text("to"));
        }
        None => line.push_str("? "),
    }
    line.push_str(&text("what"));
    line.push('\n');
    line
}

/// A packet as JSON: its ends, and what it says.
fn told(captured: &Captured<'_>) -> Value {
    let mut packet = Vec::new();
    if captured.link == RAW_IP {
        // Addresses of Ethernet say nothing here.
        packet.resize(ETHERNET_BYTES - 2, 0);
        let is_v6 = captured.bytes.first().is_some_and(|first| first >> 4 == 6);
        packet.extend(if is_v6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 }.to_be_bytes());
    }
    packet.extend_from_slice(captured.bytes);
    let mut value = json!({"at_ns": captured.time_ns, "bytes": captured.whole_bytes});
    if !matches!(captured.link, ETHERNET | RAW_IP) {
        value["what"] = "of another kind of link".into();
        return value;
    }
    if let Some((from, to)) = addresses(&packet) {
        (value["from"], value["to"]) = (from.to_string().into(), to.to_string().into());
    }
    let cut = captured.whole_bytes as usize - captured.bytes.len().min(captured.whole_bytes as usize);
    // Bytes that were not kept count as zero: the headers alone are read.
    packet.resize(packet.len() + cut.min(BLOCK_BYTES), 0);
    value["what"] = match packet::locate(packet.as_slice()) {
        Err(reason) => format!("no frame of ours: {reason}").into(),
        Ok(located) => {
            let end = located.payload_offset + located.payload_length;
            let datagram = packet.get(located.payload_offset..end).unwrap_or_default();
            frame(datagram).into()
        }
    };
    value
}

/// Source and destination of an IP packet behind an Ethernet header, which may have a tag.
fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (kind, rest) = packet.get(ETHERNET_BYTES - 2..)?.split_first_chunk::<2>()?;
    let rest = if u16::from_be_bytes(*kind) == packet::ETHERTYPE_VLAN { rest.get(4..)? } else { rest };
    let address_v4 = |at: usize| Some(IpAddr::from(*rest.get(at..)?.first_chunk::<4>()?));
    let address_v6 = |at: usize| Some(IpAddr::from(*rest.get(at..)?.first_chunk::<16>()?));
    match rest.first()? >> 4 {
        4 => Some((address_v4(12)?, address_v4(16)?)),
        6 => Some((address_v6(8)?, address_v6(24)?)),
        _ => None,
    }
}

/// Words for a datagram, if it is a frame.
fn frame(datagram: &[u8]) -> String {
    let Some((head, body)) = datagram.split_first_chunk::<FRAME_HEADER_BYTES>() else {
        return "no frame of ours: too short".to_owned();
    };
    let header = match FrameHeader::decode(head, datagram.len()) {
        Ok(header) => header,
        Err(error) => return format!("no frame of ours: {error}"),
    };
    let transfer = Transfer::decode(head);
    let mut text = String::new();
    if header.kind == Kind::Data {
        let _ = write!(text, "{:?}", header.key.message_type);
        text.make_ascii_uppercase();
        let key = &header.key;
        let _ = write!(text, " portal {} key {:#x} id {:#x}", key.portal, key.key, key.message_id);
        let body = body.get(header.lnet_header_bytes()..).unwrap_or_default();
        let here = if header.bundled { header.total_length as usize } else { body.len() };
        let (offset, total) = (header.fragment_offset, header.total_length);
        let _ = write!(text, " bytes {offset}+{here} of {total}");
        if header.short.is_some() {
            text.push_str(" short");
        }
        if header.bundled {
            records(body.get(here..).unwrap_or_default(), &mut text);
        }
    } else {
        let _ = write!(text, "{:?}", header.kind);
        text.make_ascii_uppercase();
        if header.kind != Kind::Ack {
            let _ = write!(text, " id {:#x}", header.key.message_id);
        }
    }
    let Some(transfer) = transfer else { return text };
    let _ = write!(text, " number {} shard {}", transfer.number, transfer.shard);
    if let Some(ack) = transfer.ack {
        let _ = write!(text, " ack {} grant {}", ack.highest, ack.grant_bytes);
    }
    if let Some(ticket) = transfer.ticket {
        let _ = write!(text, " ticket {ticket:#x}");
    }
    text
}

/// The messages that share the frame of another one.
fn records(mut bytes: &[u8], text: &mut String) {
    while let Some((record, rest)) = bytes.split_first_chunk::<RECORD_BYTES>()
        && let Some(record) = Record::decode(record)
        && let Some((header, rest)) = rest.split_first_chunk::<LARGE_HEADER_BYTES>()
        && let Ok(header) = Header::decode_large(header)
    {
        let _ = write!(text, " + {} bytes {}", header.message_type(), record.length);
        bytes = rest.get(record.length as usize..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lnet_wire::SteerKey;
    use lnet_wire::steer::PORTALS;
    use proptest::prelude::*;

    /// The datagram of a frame with this header and so many bytes behind it.
    fn datagram(header: &FrameHeader, bytes: usize) -> Vec<u8> {
        let mut head = [0; FRAME_HEADER_BYTES];
        header.encode(&mut head);
        let mut datagram = head.to_vec();
        datagram.resize(FRAME_HEADER_BYTES + bytes, 0);
        datagram
    }

    #[test]
    fn frames_are_told_by_what_they_carry() {
        let key = SteerKey {
            message_type: lnet_wire::MessageType::Get,
            portal: PORTALS as u8 - 1,
            key: 0x12,
            message_id: 7,
            initiator_hash: 0,
        };
        let get = frame(&datagram(&FrameHeader::data(key, 0, 0), LARGE_HEADER_BYTES));
        assert_eq!(get, "GET portal 63 key 0x12 id 0x7 bytes 0+0 of 0 number 0 shard 0");
        let lost = frame(&datagram(&FrameHeader::other(Kind::Lost, 0, 9), 0));
        assert!(lost.starts_with("LOST id 0x9"), "{lost}");
        assert_eq!(frame(b"LNDX"), "no frame of ours: too short");
        assert!(frame(&[0; 100]).starts_with("no frame of ours: "));
    }

    proptest! {
        #[test]
        fn no_packet_is_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..300), link in 0..3, whole: u32) {
            let link = [ETHERNET, RAW_IP, 7][link as usize];
            let captured = Captured { time_ns: 5, link, bytes: &bytes, whole_bytes: whole };
            prop_assert_eq!(line(5, &captured).lines().count(), 1);
        }
    }
}
