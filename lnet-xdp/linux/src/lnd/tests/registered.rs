//! Payloads that are sent out of registered memory.

use lnet_core::lnd::{Cause, Status, TxId};
use lnet_io::driver::Driver;
use lnet_wire::header::PAYLOAD_BYTES_MAX;

use super::super::{FaultInjector, InPlaceUplink, SendFault};
use super::node::{Plan, Shard, span};
use super::wire::Wire;
use super::{acquainted, carry, pattern};

fn plan(host: u8) -> Plan {
    Plan { registered: true, ..Plan::new(host) }
}

fn in_place(wire: &Wire) -> u64 {
    wire.nodes[0].shards.iter().map(|shard| shard.lnd.counters().frames_sent_in_place).sum()
}

/// Every byte arrives, at whatever offset in its chunk a payload begins, and long frames are not copied. IPv6
/// wants a checksum of all bytes, so there they are, as short ones are.
#[test]
fn what_is_registered_is_not_copied() {
    for mtu_bytes in [1500, 9000, 65535] {
        for (ipv6, checksum) in [(false, true), (false, false), (true, false)] {
            let plan = |host| Plan { ipv6, mtu_bytes, checksum, ..plan(host) };
            let mut wire = Wire::new(plan(1), plan(2));
            for length_bytes in [0, 1, 1023, 1024, 1400, 8800, 65_200, 65_400, 200_001, PAYLOAD_BYTES_MAX] {
                carry(&mut wire, length_bytes);
            }
            for offset in [1, 100, 4095, 4096, 9001] {
                let [a, b] = &mut wire.nodes;
                pattern(a, 0, offset as u8);
                b.shards[0].buffer().fill(0);
                let put = a.put_at(1, &b.plan, 9, offset, 150_000);
                wire.submit(0, 0, put);
                wire.run();
                let [a, b] = &mut wire.nodes;
                let range = offset as usize..offset as usize + 150_000;
                assert!(a.shards[0].buffer()[range.clone()] == b.shards[0].buffer()[range], "at {offset}");
                a.shards[0].up.sent.clear();
            }
            wire.assert_frames_conserved();
            assert_eq!(in_place(&wire) != 0, !ipv6 && mtu_bytes > 1500);
        }
    }
}

/// A frame that must lie in one buffer is copied there, and is no longer than that.
#[test]
fn frames_of_one_buffer_are_copied_and_fit() {
    for (ipv6, registered) in [(false, true), (false, false), (true, true)] {
        let plan = |host| Plan { ipv6, registered, one_buffer: true, ..Plan::new(host) };
        let mut wire = Wire::new(plan(1), plan(2));
        let mut longest = 0;
        for length_bytes in [0, 64, 3000, 4000, 9000, 200_001, PAYLOAD_BYTES_MAX] {
            longest = carry(&mut wire, length_bytes).into_iter().max().unwrap().max(longest);
        }
        // Fragments begin at multiples of 64 bytes.
        assert!((3840 - 64..=3840).contains(&longest), "{longest} bytes");
        assert_eq!(in_place(&wire), 0);
        wire.assert_frames_conserved();
    }
}

/// The kernel still has descriptors of a payload when its acknowledgement comes: the message has not ended.
#[test]
fn a_message_ends_when_the_kernel_has_done_with_it() {
    for status in [Status::Ok, Status::Unknown(Cause::Device)] {
        let mut wire = acquainted(plan(1), plan(2));
        wire.nodes[0].keep_back(true);
        let [a, b] = &mut wire.nodes;
        let put = a.put(1, &b.plan, 9, 100_000);
        wire.submit(0, 0, put);
        if status == Status::Ok {
            wire.run();
            assert_eq!(wire.nodes[1].shards[0].up.received, 1);
        } else {
            let a = &mut wire.nodes[0];
            a.take_sent(0);
            let shard = &mut a.shards[0];
            let mut in_place = shard.lnd.in_place.take();
            let wrapped = &mut InPlaceUplink { up: &mut shard.up, in_place: in_place.as_deref_mut() };
            shard.lnd.xfer.fail_ni(wire.now, put.ni, Cause::Device, wrapped);
            shard.lnd.in_place = in_place;
        }
        let a = &mut wire.nodes[0];
        assert_eq!(a.under_way(), 0, "the transfer protocol is done with it");
        a.settle_at(wire.now);
        assert_eq!(a.shards[0].up.sent, [], "its buffer would come home too early");
        assert!(a.shards[0].lnd.awaits_completions() && a.shards[0].memory.is_in_flight(&span(100_000)));
        a.keep_back(false);
        a.settle_at(wire.now);
        assert_eq!(a.shards[0].up.sent, [(TxId(1), status)]);
        wire.run();
        assert_eq!(wire.nodes[0].shards[0].up.sent.len(), 1, "it ends once");
        wire.assert_frames_conserved();
        assert!(!wire.nodes[0].shards[0].lnd.awaits_completions());
    }
}

/// What an NI has not sent that is closed and whose device refuses is not waited for: its rings go.
#[test]
fn nothing_waits_for_a_device_that_is_given_up() {
    let mut wire = acquainted(plan(1), plan(2));
    wire.nodes[0].keep_back(true);
    let [a, b] = &mut wire.nodes;
    let put = a.put(1, &b.plan, 9, 100_000);
    wire.submit(0, 0, put);
    wire.run();
    let Shard { lnd, up, memory } = &mut wire.nodes[0].shards[0];
    let mut in_place = lnd.in_place.take().unwrap();
    assert_eq!(in_place.report(wire.now, memory, up, |_| false), 0);
    assert_eq!(in_place.report(wire.now, memory, up, |ni| ni == put.ni), 1);
    assert!(up.sent == [(TxId(1), Status::Ok)] && in_place.is_empty());
    assert!(memory.is_in_flight(&span(100_000)), "the kernel has it still, so nobody else is given it");
}

/// A frame goes out twice, and the acknowledgement of the first one comes while the kernel has yet to look at
/// the second: its bytes are not the application's to change.
#[test]
fn what_is_sent_twice_is_waited_for_twice() {
    let send_fault = SendFault { double_every: 1, ..SendFault::default() };
    let mut wire = acquainted(plan(1), plan(2));
    wire.nodes[0].shards[0].lnd.faults = FaultInjector::new(send_fault);
    let now = wire.now;
    let [a, b] = &mut wire.nodes;
    let put = a.put(1, &b.plan, 9, 20_000);
    a.shards[0].submit_at(now, put).unwrap();
    let packets = a.take_sent_at_most(0, 1);
    assert!(b.deliver(0, 0, &packets[0]));
    let mut later = now;
    while a.under_way() != 0 && later.0 < now.0 + 5_000_000 {
        later.0 += 100_000;
        b.settle_at(later);
        for packet in b.take_sent(0) {
            assert!(a.deliver(0, 0, &packet));
        }
        a.settle_at(later);
    }
    assert_eq!((a.under_way(), b.shards[0].up.received), (0, 1), "it was acknowledged");
    assert_eq!(a.shards[0].up.sent, []);
    assert!(!a.take_sent(0).is_empty());
    a.settle_at(later);
    assert_eq!(a.shards[0].up.sent, [(TxId(1), Status::Ok)]);
    wire.run();
    wire.assert_frames_conserved();
}

/// Loss, doubling and reordering on the way, several shards on several queues: everything arrives, ends once
/// and comes back.
#[test]
fn lost_frames_are_sent_again_in_place() {
    let send_fault = SendFault { double_every: 7, delay_every: 11, delay_frames: 3 };
    let plan = |host| Plan { shards: 2, queues: 2, send_fault, mtu_bytes: 9000, ..plan(host) };
    let mut wire = acquainted(plan(1), plan(2));
    let before = in_place(&wire);
    let mut state = 1_u64;
    let mut lossy = move |_: usize, packet| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (state >> 33).is_multiple_of(20) { vec![] } else { vec![packet] }
    };
    for round in 0..20_u32 {
        for shard in 0..2 {
            let [a, b] = &mut wire.nodes;
            let put = a.put_at(round, &b.plan, u64::from(round), 13 * round, 60_000);
            wire.submit(0, shard, put);
        }
        wire.run_with(&mut lossy);
    }
    wire.run();
    for shard in &wire.nodes[0].shards {
        assert_eq!(shard.up.sent.len(), 20);
        assert!(shard.up.sent.iter().all(|(_, status)| *status == Status::Ok));
    }
    assert!(wire.nodes[0].shards.iter().any(|shard| shard.lnd.transfer_counters().frames_resent != 0));
    assert!(in_place(&wire) > before + 200);
    wire.assert_frames_conserved();
}
