//! Long messages out of registered buffers, of which frames are lost: every byte arrives, and every buffer
//! comes home.

use std::time::Instant;

use lnet_core::event::EventKind;
use lnet_core::handle::EqHandle;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_load::Pattern;
use lnet_tests::netns::{Netns, Wiring};
use lnet_tests::node::{config, nid_v4, process, start};
use lnet_user::Buffer;
use lnet_user::node::{Carrier, NodeDriver};
use lnet_user::runtime::{Delivery, Worker};
use lnet_wire::{MessageType, ProcessId};

use crate::privileged;
use crate::traffic::PATIENCE;

const PORTAL: u32 = 9;
const LENGTH: usize = 1 << 20;
/// Registered memory of a node: a buffer for the message, one for its answer, in whole chunks.
const REGISTERED_BYTES: u64 = 2 * LENGTH as u64;
const DROPPED_PPM: u32 = 10_000;
const ROUNDS: u64 = 12;

struct End {
    worker: Worker,
    queue: EqHandle,
    node: NodeDriver,
    process: ProcessId,
}

impl End {
    fn spec(&self, options: MdOptions, operations: u32) -> MdSpec {
        MdSpec::new(LENGTH as u64, Threshold::Count(operations), options, self.queue)
    }

    /// A buffer of bytes that tell the round and the place.
    fn filled(&self, mark: u64) -> Buffer {
        let mut buffer = self.node.register(LENGTH).expect("all buffers of the last round came home");
        pattern(mark).fill(0, &mut buffer);
        buffer
    }
}

fn pattern(mark: u64) -> Pattern {
    Pattern::of(0, mark, 0)
}

fn ends(netns: &Netns) -> [End; 2] {
    [netns.a(), netns.b()].map(|namespace| {
        let nid = nid_v4(namespace.interface(), 0);
        let mut config =
            config(namespace, nid).shards(1).policies(Vec::new()).registered_bytes(REGISTERED_BYTES);
        // Rings alone send without a copy.
        config.nis = config.nis.into_iter().map(|ni| ni.carrier(Some(Carrier::Rings))).collect();
        let (node, mut workers) = start(namespace, &config);
        for message_type in [MessageType::Put, MessageType::Get, MessageType::Ack, MessageType::Reply] {
            node.programs()[0].lock().unwrap().set_fault(message_type, DROPPED_PPM, 0).unwrap();
        }
        let mut worker = workers.remove(0);
        let queue = worker.create_event_queue(64).unwrap();
        End { worker, queue, node, process: process(nid) }
    })
}

/// Drives both ends until each has given its buffer home.
fn until_home(ends: &mut [End; 2]) -> [Buffer; 2] {
    let begun = Instant::now();
    let mut home = [None, None];
    while home.iter().any(Option::is_none) {
        for (End { worker, queue, .. }, home) in ends.iter_mut().zip(&mut home) {
            worker.progress();
            while let Some(Delivery { event, buffer, .. }) = worker.poll_event(*queue) {
                assert_eq!(event.status(), Status::Ok, "{event:?}");
                assert!(event.kind() != EventKind::Unlink && home.is_none(), "{event:?}");
                *home = buffer;
            }
        }
        assert!(begun.elapsed() < PATIENCE, "a buffer does not come home");
    }
    home.map(|buffer| buffer.expect("both are there"))
}

/// Frames that both ends have sent again.
fn resent(ends: &[End; 2]) -> u64 {
    ends.iter().map(|end| end.worker.xdp().expect("there is an NI").transfer_counters().frames_resent).sum()
}

#[test]
fn registered_buffers_arrive_and_come_home() {
    if !privileged() {
        return;
    }
    for mtu_bytes in [1500, 9000, 65535] {
        let netns = Netns::new(Wiring { mtu_bytes, ..Wiring::default() });
        let mut ends = ends(&netns);
        // All of a few long frames may get through: more are sent until one has not.
        let mut round = 0;
        while round < ROUNDS || (resent(&ends) == 0 && round < 10 * ROUNDS) {
            let [near, far] = &mut ends;
            let (match_bits, gets) = (round, round % 2 == 1);
            let [from, to] = [near.filled(2 * round), far.filled(2 * round + 1)];
            let options = if gets { MdOptions::GET } else { MdOptions::PUT };
            let entry = EntrySpec::new(PORTAL, match_bits);
            far.worker.attach(&entry, &far.spec(options, 1), to).unwrap();
            let md = near.worker.bind(&near.spec(MdOptions::NONE, 2), from).unwrap();
            let (self_nid, target, portal, offset) = (None, far.process, PORTAL, 0);
            if gets {
                near.worker
                    .get(&GetRequest { md, part: None, self_nid, target, portal, match_bits, offset })
                    .unwrap();
            } else {
                let put = PutRequest {
                    md,
                    part: None,
                    ack: true,
                    self_nid,
                    target,
                    portal,
                    match_bits,
                    offset,
                    hdr_data: 0,
                };
                near.worker.put(&put).unwrap();
            }
            let mark = if gets { 2 * round + 1 } else { 2 * round };
            for buffer in until_home(&mut ends) {
                assert_eq!(pattern(mark).check(0, &buffer), None, "round {round}, MTU {mtu_bytes}");
            }
            round += 1;
        }
        let counters = ends.each_ref().map(|end| *end.worker.xdp().expect("there is an NI").counters());
        let in_place = counters.iter().all(|counters| counters.frames_sent_in_place != 0);
        // Short frames are copied.
        assert_eq!(in_place, mtu_bytes > 1500, "{counters:?}");
        assert_ne!(resent(&ends), 0, "nothing was lost");
        assert!(ends[0].node.register(REGISTERED_BYTES as usize).is_some(), "all of it is free again");
        for End { worker, node, .. } in ends {
            drop((worker, node));
        }
    }
}
