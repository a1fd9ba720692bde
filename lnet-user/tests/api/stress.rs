//! All that programs do at once, from several threads.

use lnet_user::{Ack, Buffer, EntrySpec, EventQueue, MdOptions};

use crate::common::{PINNED, await_idle, next, spec, start, to_self};

/// What each thread does so often.
const ROUNDS: u64 = 300;
const THREADS: u64 = 4;

/// Waits until so many descriptors have ended.
fn ends(queue: &mut EventQueue, mut count: u32) {
    while count > 0 {
        count -= u32::from(next(queue).event.unlinked());
    }
}

/// Threads put, get, post and unlink on both shards. None waits for another one for ever, and no handle is
/// left. Where a lock is taken against the order in which others were, its thread panics (`locks`).
#[test]
fn sm_06_puts_gets_posts_and_unlinks_of_several_threads() {
    let lnet = start(2);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let lnet = &lnet;
            scope.spawn(move || {
                let portal = PINNED[(thread % 2) as usize];
                let own = lnet.shard((thread % 2) as usize).unwrap();
                let other = lnet.shard(1 - (thread % 2) as usize).unwrap();
                let mut posted = own.create_event_queue(64).unwrap();
                let mut sent = other.create_event_queue(64).unwrap();
                for round in 0..ROUNDS {
                    let match_bits = thread << 32 | round;
                    // The GET reads behind what the PUT has written.
                    let md = spec(&posted, 16, 2, MdOptions::PUT | MdOptions::GET);
                    let room = EntrySpec::new(portal, match_bits);
                    let entry = own.attach(&room, &md, Buffer::zeroed(16)).unwrap();
                    let md = spec(&sent, 8, 2, MdOptions::NONE);
                    let source = other.bind(&md, Buffer::from(vec![round as u8; 8])).unwrap();
                    let sink = other.bind(&spec(&sent, 8, 2, MdOptions::NONE), Buffer::zeroed(8)).unwrap();
                    source.put(&to_self(portal, match_bits), Ack::Wanted, 0).start().unwrap();
                    // In a third of the rounds all is unlinked while the message is under way.
                    if round % 3 == 0 {
                        drop((entry, source, sink));
                        ends(&mut posted, 1);
                        ends(&mut sent, 2);
                        continue;
                    }
                    sink.get(&to_self(portal, match_bits)).start().unwrap();
                    // Each descriptor ends once, used up or unlinked.
                    ends(&mut posted, 1);
                    ends(&mut sent, 2);
                }
            });
        }
    });
    lnet.shards().for_each(|shard| await_idle(&shard));
}
