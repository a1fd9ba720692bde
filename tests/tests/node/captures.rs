//! Captures of what nodes send to each other: over rings and over sockets, while they run, while NIs come and
//! go.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use lnet_core::lnd::NiId;
use lnet_tests::netns::{enter, ip, wait_until};
use lnet_tests::node::{Serving, Steady, nid_v4};
use lnet_user::api::Lnet;
use lnet_user::node::{NiConfig, XdpMode};
use lnet_user::{CaptureRecord, CaptureSpec};
use lnet_wire::frame::{CRC_OFFSET, FrameHeader};
use lnet_wire::packet;

use crate::ports::{Rails, ni};
use crate::privileged;
use crate::traffic::PATIENCE;

#[path = "../../../lnet-io/src/capture/tests/reading.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the unit tests of captures")]
mod reading;

use reading::{Captured, Contents};

const MODES: [XdpMode; 2] = [XdpMode::Native, XdpMode::Socket];
const BOUNDLESS: u64 = 1 << 30;
const LINK_ETHERNET: i32 = 1;

/// A file that goes with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("lnet-node-{}-{name}.pcapng", std::process::id())))
    }

    fn spec(&self, limit_bytes: u64) -> CaptureSpec {
        CaptureSpec { buffer_bytes: 64 << 20, ..CaptureSpec::new(self.0.to_str().unwrap(), limit_bytes) }
    }

    fn state(&self, lnet: &Lnet) -> CaptureRecord {
        lnet.captures().into_iter().find(|state| self.0.to_str() == Some(&state.path)).unwrap()
    }

    fn read(&self) -> (Contents, u64) {
        let bytes = std::fs::read(&self.0).unwrap();
        (Contents::read_complete(&bytes), bytes.len() as u64)
    }

    fn stop(&self, lnet: &Lnet) -> (CaptureRecord, Contents) {
        let state = lnet.stop_capture(&self.0).unwrap();
        let (contents, file_bytes) = self.read();
        assert_eq!((state.written_bytes, state.is_running), (file_bytes, false));
        assert_eq!(state.frame_count, contents.frames.len() as u64);
        assert_eq!(state.failure, None);
        (state, contents)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The frame in a packet, whose checksum is right.
fn decode(frame: &Captured, link: i32) -> &[u8] {
    let mut bytes = frame.bytes.clone();
    let mut added_bytes = 0;
    if link != LINK_ETHERNET {
        added_bytes = 14;
        let ethertype: u16 = if bytes[0] >> 4 == 4 { 0x0800 } else { 0x86DD };
        bytes.splice(0..0, [&[0; 12][..], &ethertype.to_be_bytes()].concat());
    }
    let located = packet::locate(&bytes[..]).unwrap();
    let header: FrameHeader = packet::frame_header(&bytes[..], &located).unwrap();
    let covered = &mut bytes[located.payload_offset..][..header.covered_bytes()];
    let checksum: [u8; 4] = covered[CRC_OFFSET..CRC_OFFSET + 4].try_into().unwrap();
    covered[CRC_OFFSET..CRC_OFFSET + 4].fill(0);
    assert_eq!(u32::from_le_bytes(checksum), crc_fast::crc32_iscsi(covered), "{header:?}");
    &frame.bytes[located.payload_offset - added_bytes..]
}

/// What the LND of a node has counted: frames sent and received, by all interfaces.
fn frames_counted(lnet: &Lnet) -> [u64; 2] {
    let mut sum = [0; 2];
    for shard in 0..lnet.shard_count() {
        let counted = lnet.shard(shard).unwrap().run(|worker| {
            worker.xdp().map(|lnd| [lnd.counters().frames_sent, lnd.counters().frames_received])
        });
        for (sum, counted) in sum.iter_mut().zip(counted.unwrap().unwrap_or_default()) {
            *sum += counted;
        }
    }
    sum
}

/// Verified Puts and Gets on a rail over rings and one over sockets, captured at both ends from their first
/// frame on: every frame is there, once, and the same at both ends, but for the headers in front of it: the
/// kernel makes those of what leaves by the socket beside rings.
#[test]
fn traffic_is_read_back() {
    if !privileged() {
        return;
    }
    let (netns, [near, far]) = Rails::start_nodes(MODES);
    let files = ["near", "far"].map(File::new);
    for (lnet, file) in [&near, &far].into_iter().zip(&files) {
        lnet.start_capture(&file.spec(BOUNDLESS)).unwrap();
        let refused = lnet.start_capture(&file.spec(BOUNDLESS)).unwrap_err().to_string();
        assert!(refused.contains("exists"), "{refused}");
    }
    let serving = Serving::start(&far, 2);
    near.open().unwrap();
    far.open().unwrap();
    let target = |rail: usize| nid_v4(&netns.b().interfaces()[rail], rail as u16);
    let loads = [0, 1].map(|rail| Steady::start(&near, rail, target(rail), PATIENCE));
    for load in &loads {
        wait_until("the load runs", PATIENCE, || load.ok() > 500);
    }
    let failed: u64 = loads.map(|load| load.stop(PATIENCE).failed).into_iter().sum();
    assert_eq!(failed, 0);
    serving.stop();
    // Acknowledgements that are owed.
    std::thread::sleep(Duration::from_millis(100));
    let ended = [&near, &far].into_iter().zip(&files).map(|(lnet, file)| {
        let (state, contents) = file.stop(lnet);
        assert_eq!(state.missed_count, 0);
        assert!(contents.frames.is_sorted_by_key(|frame| frame.time_ns));
        (frames_counted(lnet), contents)
    });
    let ended: Vec<_> = ended.collect();
    let mut multisets = Vec::new();
    for (counted, contents) in &ended {
        assert_eq!(contents.interfaces.iter().map(|interface| interface.link).collect::<Vec<_>>(), [1, 101]);
        let mut captured = [0; 2];
        for (interface, link) in [(0, 1), (1, 101)] {
            for (is_received, captured) in [false, true].into_iter().zip(&mut captured) {
                let mut frames: HashMap<&[u8], i64> = HashMap::new();
                let of_it =
                    |frame: &&Captured| (frame.interface, frame.is_received) == (interface, is_received);
                for frame in contents.frames.iter().filter(of_it) {
                    *frames.entry(decode(frame, link)).or_default() += 1;
                }
                *captured += frames.values().sum::<i64>() as u64;
                assert!(frames.len() > 100, "interface {interface}");
                multisets.push(frames);
            }
        }
        // The LND counts what goes by rings and by sockets together.
        assert_eq!(captured, *counted, "sent, received");
    }
    // Frames by node, interface, direction.
    for interface in [0, 1] {
        for (sender, receiver) in [(0, 1), (1, 0)] {
            let sent = &multisets[sender * 4 + interface * 2];
            let received = &multisets[receiver * 4 + interface * 2 + 1];
            let never_sent = received
                .iter()
                .filter(|(frame, count)| sent.get(*frame).is_none_or(|sent| sent < count))
                .count();
            assert_eq!(never_sent, 0, "interface {interface}");
        }
    }
}

/// Captures of one interface and of all, while the NIs of one interface go with all their LND, come back, and
/// the interface vanishes and another one of its name comes.
#[test]
fn interfaces_come_and_go() {
    if !privileged() {
        return;
    }
    for modes in [MODES, [XdpMode::Socket, XdpMode::Native]] {
        let rails = Rails::start(modes);
        let namespace = rails.netns.a();
        let [of_all, of_one] = ["all", "one"].map(File::new);
        rails.near.start_capture(&of_all.spec(BOUNDLESS)).unwrap();
        let name = namespace.interface().name.clone();
        let of_name = CaptureSpec { interfaces: vec![name.clone()], ..of_one.spec(BOUNDLESS) };
        rails.near.start_capture(&of_name).unwrap();
        let goes_on = |what| {
            let before = of_one.state(&rails.near).frame_count;
            wait_until(what, PATIENCE, || of_one.state(&rails.near).frame_count > before + 100);
        };
        goes_on("frames are captured");
        let config = ni(namespace.interface(), 0, modes[0]);
        enter(namespace, || rails.near.remove_ni(NiId(1), Duration::from_millis(5))).unwrap();
        enter(namespace, || rails.near.add_ni(&config)).unwrap();
        goes_on("frames are captured again");
        ip(namespace, &format!("link delete dev {name}"));
        wait_until("the node notices", PATIENCE, || rails.near.nis()[0].down.is_some());
        rails.netns.restore_rail([2; 2], [2; 2]);
        for (lnet, namespace) in [(&rails.near, rails.netns.a()), (&rails.far, rails.netns.b())] {
            let config = ni(namespace.interface(), 0, modes[0]);
            enter(namespace, || lnet.remove_ni(NiId(1), Duration::ZERO)).unwrap();
            enter(namespace, || lnet.add_ni(&config)).unwrap();
        }
        goes_on("frames of the new interface are captured");
        let (_, contents) = of_one.stop(&rails.near);
        assert!(contents.interfaces.iter().all(|interface| interface.name == name));
        assert_eq!(contents.interfaces.len(), 2, "two interfaces of one name");
        let (state, contents) = of_all.stop(&rails.near);
        assert_eq!((contents.interfaces.len(), rails.near.captures()), (3, Vec::new()));
        for frame in &contents.frames {
            decode(frame, contents.interfaces[frame.interface as usize].link);
        }
        eprintln!("{modes:?}: {state:?}");
        drop(rails.end());
    }
}

/// An NI on an alias shares the rings of the device: captures of either name have the frames of both, as
/// those of one interface, also where the alias alone has an NI.
#[test]
fn aliases_are_captured_as_their_device() {
    if !privileged() {
        return;
    }
    let rails = Rails::start(MODES);
    let namespace = rails.netns.a();
    let name = namespace.interface().name.clone();
    let label = format!("{name}:7");
    ip(namespace, &format!("address add 10.77.0.7/24 dev {name} label {label}"));
    let [of_device, of_label, of_rest] = ["of-device", "of-label", "of-rest"].map(File::new);
    let start = |file: &File, interface: &String| {
        let spec = CaptureSpec { interfaces: vec![interface.clone()], ..file.spec(BOUNDLESS) };
        rails.near.start_capture(&spec).unwrap();
    };
    start(&of_device, &name);
    let alias = NiConfig::new("10.77.0.7@xdp9".parse().unwrap(), &label).mode(Some(MODES[0]));
    enter(namespace, || rails.near.add_ni(&alias)).unwrap();
    start(&of_label, &label);
    for file in [&of_device, &of_label] {
        let before = file.state(&rails.near).frame_count;
        wait_until("frames are captured", PATIENCE, || file.state(&rails.near).frame_count > before + 100);
        let (_, contents) = file.stop(&rails.near);
        let names: Vec<_> = contents.interfaces.into_iter().map(|interface| interface.name).collect();
        assert_eq!(names, [name.as_str()]);
    }
    enter(namespace, || rails.near.remove_ni(NiId(1), Duration::from_millis(5))).unwrap();
    start(&of_rest, &name);
    assert_eq!(of_rest.stop(&rails.near).1.interfaces.len(), 1);
    drop(rails.end());
}

/// Under load: one capture ends by its limit, one misses frames, one ends with its node.
#[test]
fn captures_end() {
    if !privileged() {
        return;
    }
    const LIMIT_BYTES: u64 = 1_000_003;
    let rails = Rails::start(MODES);
    let [limited, missing, whole] = ["limited", "missing", "whole"].map(File::new);
    let tiny = CaptureSpec { buffer_bytes: 4096, ..missing.spec(BOUNDLESS) };
    for spec in
        [&limited.spec(LIMIT_BYTES), &tiny, &CaptureSpec { frame_bytes: Some(200), ..whole.spec(BOUNDLESS) }]
    {
        rails.near.start_capture(spec).unwrap();
    }
    wait_until("one is full", PATIENCE, || !limited.state(&rails.near).is_running);
    let (contents, file_bytes) = limited.read();
    let longest = contents.frames.iter().map(|frame| frame.bytes.len() as u64).max().unwrap();
    assert!(file_bytes <= LIMIT_BYTES && file_bytes + longest + 48 > LIMIT_BYTES, "{file_bytes} bytes");
    assert_eq!(rails.near.captures().len(), 3, "it stays in the list");
    limited.stop(&rails.near);
    wait_until("one misses frames", PATIENCE, || missing.state(&rails.near).missed_count > 100);
    let (state, contents) = missing.stop(&rails.near);
    assert_eq!(contents.counted.iter().map(|counted| counted.missed).sum::<u64>(), state.missed_count);
    let (_netns, [near, _far], _) = rails.end();
    let before = frames_counted(&near);
    drop(near);
    let (contents, _) = whole.read();
    assert!(contents.frames.len() > 500, "of {before:?}");
    assert!(contents.frames.iter().all(|frame| frame.bytes.len() == 200.min(frame.frame_bytes as usize)));
}
