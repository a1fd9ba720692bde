//! Networks that lose, double, reorder and change frames, and interfaces that change under the traffic:
//! nothing is lost or doubled above.

use std::time::{Duration, Instant};

use lnet_tests::netns::{Netns, Wiring, ip};
use lnet_tests::node::{
    Account, By, LND_TIMEOUT, PINNED_PORTALS, Plan, Putter, config, nid_v4, process, start,
};
use lnet_user::node::{NodeDriver, XdpMode};
use lnet_user::runtime::Worker;
use lnet_wire::MessageType;
use lnet_xdp::{SendFault, XdpDrop};
use lnet_xdp_proto::XferDrop;

use crate::privileged;
use crate::traffic::{Ended, PATIENCE, carry_out_over};
use crate::wakeups::{Joined, spawn_putter};

const TYPES: [MessageType; 4] = [MessageType::Put, MessageType::Get, MessageType::Ack, MessageType::Reply];
const PORTALS: [u32; 6] = [9, 10, 12, 14, 15, 16];
const BY: [By; 3] = [By::Application, By::ShardThread, By::ShardThread];

/// What goes wrong between two nodes.
#[derive(Clone, Copy, Default)]
struct Trouble {
    mode: XdpMode,
    mtu_bytes: u16,
    dropped_ppm: u32,
    corrupted_ppm: u32,
    send_fault: SendFault,
}

fn set_faults(node: &mut NodeDriver, dropped_ppm: u32, corrupted_ppm: u32) {
    for message_type in TYPES {
        node.programs()[0].lock().unwrap().set_fault(message_type, dropped_ppm, corrupted_ppm).unwrap();
    }
}

/// Carries out a plan of these sizes, whatever goes wrong.
fn suffer(trouble: Trouble, sizes: &[u32], meanwhile: impl FnOnce(&Netns) + Send) -> [Ended; 2] {
    let netns = Netns::new(Wiring { mtu_bytes: trouble.mtu_bytes, ..Wiring::default() });
    let nids = [netns.a(), netns.b()].map(|namespace| nid_v4(namespace.interface(), 0));
    let [source, target] = [(netns.a(), nids[0]), (netns.b(), nids[1])].map(|(namespace, nid)| {
        let config = config(namespace, nid)
            .send_fault(trouble.send_fault)
            .lnd_timeout(5 * LND_TIMEOUT)
            .mode(trouble.mode);
        let (mut node, workers) = start(namespace, &config);
        set_faults(&mut node, trouble.dropped_ppm, trouble.corrupted_ppm);
        (node, workers)
    });
    let plan = Plan::of_sizes(vec![(process(nids[0]), process(nids[1]))], &PORTALS, sizes);
    let (source, target) = std::thread::scope(|scope| {
        scope.spawn(|| meanwhile(&netns));
        carry_out_over(&CHANGED[..if trouble.corrupted_ppm == 0 { 0 } else { 5 }], plan, source, target, &BY)
    });
    [source, target]
}

fn sum(ended: &[Ended; 2], count: impl Fn(&Worker) -> u64) -> u64 {
    ended.iter().flat_map(|ended| &ended.workers).map(count).sum()
}

fn resent(ended: &[Ended; 2]) -> u64 {
    sum(ended, |worker| worker.xdp().expect("there is an NI").transfer_counters().frames_resent)
}

fn reason(ended: &[Ended; 2], name: &str) -> u64 {
    ended.iter().map(|ended| Account::of(&ended.node, &ended.workers).reasons[name]).sum()
}

/// What changed frames are counted as.
const CHANGED: [&str; 5] = ["not_ours", "bad_checksum", "bad_header", "header_mismatch", "payload_corrupt"];
const SIZES: [u32; 12] = [0, 1, 64, 64, 1000, 1300, 4000, 9000, 20_000, 66_000, 66_001, 300_000];

#[test]
fn frames_of_all_types_are_lost() {
    if !privileged() {
        return;
    }
    for (mode, mtu_bytes, dropped_ppm) in [
        (XdpMode::Native, 1500, 10_000),
        (XdpMode::Native, 1500, 100_000),
        (XdpMode::Native, 9000, 100_000),
        (XdpMode::Native, 65535, 100_000),
        (XdpMode::Generic, 1500, 10_000),
        (XdpMode::Generic, 9000, 100_000),
    ] {
        let trouble = Trouble { mode, mtu_bytes, dropped_ppm, ..Trouble::default() };
        let ended = suffer(trouble, &SIZES, |_| ());
        let dropped = reason(&ended, "fault_dropped");
        assert!(dropped != 0 && resent(&ended) != 0, "{dropped} dropped, {} sent again", resent(&ended));
    }
}

#[test]
fn the_largest_messages_are_lost_in_part() {
    if !privileged() {
        return;
    }
    for mtu_bytes in [1500, 9000, 65535] {
        let trouble = Trouble { mtu_bytes, dropped_ppm: 20_000, ..Trouble::default() };
        let ended = suffer(trouble, &[1 << 20, (1 << 20) - 1], |_| ());
        assert_ne!(resent(&ended), 0);
    }
}

#[test]
fn frames_are_doubled_and_late() {
    if !privileged() {
        return;
    }
    let send_fault = SendFault { double_every: 5, delay_every: 7, delay_frames: 4 };
    for (mode, mtu_bytes) in [(XdpMode::Native, 1500), (XdpMode::Native, 9000), (XdpMode::Generic, 1500)] {
        let trouble = Trouble { mode, mtu_bytes, send_fault, ..Trouble::default() };
        let ended = suffer(trouble, &SIZES, |_| ());
        let duplicates = sum(&ended, |worker| {
            worker.xdp().expect("there is an NI").transfer_counters().dropped(XferDrop::Duplicate)
        });
        let late = sum(&ended, |worker| worker.xdp().expect("there is an NI").counters().frames_overtaken);
        println!("MTU {mtu_bytes}: {duplicates} duplicates, {late} overtaken");
        assert!(duplicates != 0 && late != 0, "{duplicates} duplicates, {late} overtaken");
    }
}

#[test]
fn frames_are_changed() {
    if !privileged() {
        return;
    }
    for mtu_bytes in [1500, 65535] {
        let trouble = Trouble { mtu_bytes, corrupted_ppm: 50_000, ..Trouble::default() };
        let ended = suffer(trouble, &SIZES, |_| ());
        let corrupted = reason(&ended, "fault_corrupted");
        let noticed = [XdpDrop::PayloadCorrupt, XdpDrop::BadChecksum].map(|reason| {
            sum(&ended, |worker| worker.xdp().expect("there is an NI").counters().dropped(reason))
        });
        assert!(corrupted != 0 && noticed.iter().sum::<u64>() != 0, "{corrupted}, {noticed:?}");
    }
}

#[test]
fn everything_goes_wrong_at_once() {
    if !privileged() {
        return;
    }
    let send_fault = SendFault { double_every: 9, delay_every: 11, delay_frames: 6 };
    let mode = XdpMode::Native;
    let trouble = Trouble { mode, mtu_bytes: 1500, dropped_ppm: 30_000, corrupted_ppm: 30_000, send_fault };
    let ended = suffer(trouble, &SIZES, |_| ());
    assert_ne!(sum(&ended, |worker| worker.xdp().expect("there is an NI").counters().frames_overtaken), 0);
}

/// The MTU of both ends changes while messages of several frames are under way.
#[test]
fn the_mtu_changes() {
    if !privileged() {
        return;
    }
    let change = |netns: &Netns| {
        // Often: a change that makes frames too long must meet some that are under way.
        for mtu in [1500, 9000, 2000, 6000].repeat(6) {
            for namespace in [netns.a(), netns.b()] {
                ip(namespace, &format!("link set dev {} mtu {mtu}", namespace.interface().name));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let sizes: Vec<u32> = SIZES.iter().copied().cycle().take(160).collect();
    let trouble = Trouble { mtu_bytes: 9000, ..Trouble::default() };
    let ended = suffer(trouble, &sizes, change);
    assert_ne!(resent(&ended), 0, "frames that were too long are sent again");
}

/// Drives a shard for so long, whatever ends meanwhile.
fn drive_for(span: Duration, worker: &mut Worker, putter: &mut Putter) {
    let begun = Instant::now();
    while begun.elapsed() < span {
        worker.progress();
        putter.turn(worker);
        worker.wait(Some(Duration::from_millis(10))).unwrap();
    }
}

/// A link that is down for less than a second: what was under way arrives.
#[test]
fn a_link_is_down_for_a_while() {
    if !privileged() {
        return;
    }
    const COUNT: u32 = 40;
    let mut joined = Joined::new(2);
    let mut worker = joined.sources.remove(0);
    // The target's shards ask both for sessions, in time for the next ACKs.
    let _sibling = spawn_putter(joined.sources.remove(0), joined.target);
    let mut putter = Putter::new(joined.target, &mut worker);
    for _ in 0..3 {
        let acked = putter.acked;
        for number in 0..COUNT {
            putter.put(&mut worker, PINNED_PORTALS[number as usize % 2], true);
        }
        // The Puts are on their way, and none gets there.
        set_faults(&mut joined.nodes[1], 1_000_000, 0);
        worker.progress();
        joined.link("down");
        set_faults(&mut joined.nodes[1], 0, 0);
        drive_for(Duration::from_millis(400), &mut worker, &mut putter);
        joined.link("up");
        assert!(putter.drive_to_end(&mut worker, PATIENCE), "{putter:?}");
        assert_eq!((putter.acked - acked, putter.failed), (COUNT, 0), "{putter:?}");
        // Neighbours are learnt anew.
        drive_for(Duration::from_millis(1500), &mut worker, &mut putter);
    }
}
