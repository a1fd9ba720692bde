//! Nothing allocates once traffic flows.

use lnet_core::event::EventKind;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;

use crate::common::{PINNED, ROTOR, Shards, get_request, put_request};

/// Puts and Gets, with ACK and REPLY, until all their events were taken.
fn exchange(shards: &mut Shards, puts: &[lnet_core::handle::MdHandle], portal: u32) -> usize {
    for md in puts {
        shards.workers[0].put(&put_request(*md, portal, 1, true)).unwrap();
        shards.workers[0].get(&get_request(*md, portal, 2)).unwrap();
        shards.settle();
    }
    let mut ended = 0;
    for shard in 0..shards.workers.len() {
        while let Some(delivery) = shards.workers[shard].poll_event(shards.queues[shard]) {
            ended += usize::from(matches!(delivery.event.kind(), EventKind::Ack | EventKind::Reply));
        }
    }
    ended
}

#[test]
fn messages_to_oneself_allocate_nothing() {
    // Messages stay in one shard, go to a sibling by policy, and to one that is found by asking.
    for (count, target, portal) in [(1, 0, PINNED[0]), (3, 1, PINNED[1]), (3, 2, ROTOR)] {
        let mut shards = Shards::new(count);
        let options = MdOptions::MANAGE_REMOTE;
        let spec = MdSpec::new(3000, Threshold::Infinite, options | MdOptions::PUT, shards.queues[target]);
        shards.workers[target].attach(&EntrySpec::new(portal, 1), &spec, Buffer::zeroed(3000)).unwrap();
        let spec = MdSpec { options: options | MdOptions::GET, ..spec };
        shards.workers[target].attach(&EntrySpec::new(portal, 2), &spec, Buffer::zeroed(3000)).unwrap();
        let spec = MdSpec::new(3000, Threshold::Infinite, MdOptions::NONE, shards.queues[0]);
        let bound: Vec<_> =
            (0..3).map(|_| shards.workers[0].bind(&spec, Buffer::zeroed(3000)).unwrap()).collect();
        // Each buffer's books grow to what is out at once.
        for _ in 0..10 {
            assert_eq!(exchange(&mut shards, &bound, portal), 6);
        }
        let mut ended = 0;
        let allocations = allocation_counter::measure(|| {
            for _ in 0..50 {
                ended += exchange(&mut shards, &bound, portal);
            }
        });
        assert_eq!(ended, 300);
        assert_eq!(allocations.count_total, 0, "{count} shards: {allocations:?}");
    }
}
