//! Where the frames of a transfer machine come to, and what of them is copied.

use lnet_admin::{Control, ControlOptions};
use lnet_control::server::Handler;
use lnet_messaging::{Operation, QueueType};
use lnet_tests::netns::{Netns, Wiring};

use crate::common::Party;
use crate::nets::{Carrier, Nodes, config_of, privileged, start, transport};
use crate::scenarios::pattern;

/// Transfer machines of both shards: XDP brings each its messages, bulk data and answers, and no shard hands
/// one to the other.
#[test]
fn frames_come_to_the_shard_of_their_transfer_machine() {
    if !privileged() {
        return;
    }
    let nodes = Nodes::start(Carrier::Rings, Wiring::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let frames = |at: usize| {
        let control = Control::new(nodes.lnet(at), ControlOptions::default()).unwrap();
        runtime.block_on(control.frames()).unwrap()
    };
    let before = [0, 1].map(|at| frames(at).misdirected);
    for tmid in 1..=8 {
        let [(near, near_address), (far, far_address)] = nodes.ends([tmid; 2]);
        let mut near = Party::started(&near, &near_address);
        let mut far = Party::started(&far, &far_address);
        for length in [8, 100_000] {
            let bytes = pattern(length);
            far.post(length, length as u64, 1);
            let id = near.send(&far_address, &bytes);
            assert!(far.buffer_event().payload_bytes() == bytes);
            assert_eq!(near.end_of(id).0, Ok(()));
            let send = Operation::PassiveSend { initiator: None, length_bytes: length as u64 };
            let passive = far.tm.add(far.filled(&bytes), send).unwrap();
            let from = passive.descriptor.unwrap();
            near.add(near.buffer(&[length]), Operation::ActiveReceive { from });
            assert!(near.buffer_event().payload_bytes() == bytes);
            assert_eq!(far.end_of(passive.id).0, Ok(()));
        }
        near.end();
        far.end();
    }
    for at in [0, 1] {
        let record = frames(at);
        assert_eq!(record.misdirected, before[at], "{record:?}");
        let shards = [0, 1].map(|shard| {
            record.slots.iter().filter(|slot| slot.shard == shard).map(|slot| slot.frames).sum::<u64>()
        });
        assert!(
            shards.iter().all(|frames| *frames > 100),
            "eight identifiers are on both shards: {shards:?}"
        );
    }
}

/// Buffers that a domain allocates on a node with registered memory, whose long frames go out of them as they
/// are.
#[test]
fn ln_17_bulk_data_in_registered_memory() {
    const BYTES: usize = 1 << 20;
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring { mtu_bytes: 9000, ..Wiring::default() });
    let [mut near, mut far] = [netns.a(), netns.b()].map(|namespace| {
        let config = config_of(namespace, Carrier::Rings).registered_bytes(16 * BYTES as u64);
        let lnet = start(namespace, &config);
        assert!(lnet.register(BYTES).is_some(), "the node has registered memory");
        Party::started(&transport(&lnet).shared(), &crate::nets::address(namespace, Carrier::Rings, 7))
    });
    for round in 0..20 {
        let mut bytes = pattern(BYTES);
        bytes[0] = round;
        let mut source = far.domain.allocate(1, BYTES).unwrap();
        source.fill(&bytes);
        let send = Operation::PassiveSend { initiator: None, length_bytes: BYTES as u64 };
        let passive = far.tm.add(source, send).unwrap();
        let from = passive.descriptor.unwrap();
        near.add(near.domain.allocate(1, BYTES).unwrap(), Operation::ActiveReceive { from });
        let event = near.buffer_event();
        assert_eq!((event.queue(), event.status), (QueueType::ActiveReceive, Ok(())));
        assert!(event.payload_bytes() == bytes, "round {round}");
        assert_eq!(far.end_of(passive.id).0, Ok(()));
    }
    near.end();
    far.end();
}
