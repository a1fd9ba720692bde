//! Receive queues that a pool fills (`PV-` of the catalogue), over any transport.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use lnet_messaging::QueueType::Receive;
use lnet_messaging::{
    Attachment, BufferEvent, Callback, Domain, Events, LockedPool, Pool, PoolHandler, PoolSpec, Reprovision,
    TmState, TransferMachine,
};

use crate::common::Party;

const SPEC: PoolSpec = PoolSpec { threshold: 0, segments: 1, segment_bytes: 64, colours: 4 };

fn attachment(pool: &Pool, callback: Callback) -> Attachment {
    Attachment { pool: pool.clone(), min_receive_bytes: 16, max_messages: 1, callback: Some(callback) }
}

/// A started transfer machine beside another one, whose receive queue has this length, and its pool of so
/// many buffers.
pub(crate) fn party(
    beside: &Party,
    buffers: usize,
    length: usize,
    callback: Callback,
    address: &str,
) -> (Party, Pool) {
    let pool = Pool::new(&beside.domain, SPEC, Arc::new(Reprovision)).unwrap();
    assert_eq!(pool.lock().provision(buffers), buffers);
    let party = Party::in_domain(&beside.domain);
    party.tm.attach_pool(attachment(&pool, callback), length).unwrap();
    (party.start(address), pool)
}

/// A callback that gives buffers back.
fn giving() -> Callback {
    Callback::new(|tm: &TransferMachine, event: BufferEvent| {
        if let Some(buffer) = event.into_buffer() {
            buffer.put_back(tm.colour()).unwrap();
        }
    })
}

/// Counts that the pool was not empty any more.
#[derive(Default)]
struct Count(AtomicUsize);

impl PoolHandler for Count {
    fn not_empty(&self, pool: &mut LockedPool<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
        pool.reprovision();
    }
}

struct Setup {
    domain: Domain,
    pool: Pool,
    count: Arc<Count>,
}

impl Setup {
    fn new(domain: &Domain, buffers: usize) -> Self {
        let count = Arc::new(Count::default());
        let pool = Pool::new(domain, SPEC, count.clone()).unwrap();
        assert_eq!(pool.lock().provision(buffers), buffers);
        Self { domain: domain.clone(), pool, count }
    }

    fn start(&self, address: &str, length: usize, colour: usize, callback: Callback) -> Party {
        let party = Party::in_domain(&self.domain);
        party.tm.attach_pool(attachment(&self.pool, callback), length).unwrap();
        party.tm.set_colour(Some(colour)).unwrap();
        party.start(address)
    }

    fn free(&self) -> usize {
        self.pool.lock().free_count()
    }

    fn end(self, parties: impl IntoIterator<Item = Party>) {
        parties.into_iter().for_each(Party::end);
        self.pool.finish().unwrap();
    }
}

fn provided(party: &Party) -> (usize, usize) {
    (party.tm.queue_length(Receive), party.tm.deficit())
}

/// PV-02 to PV-06: a pool fills the queues of two transfer machines, and what it lacks when it grows.
pub(crate) fn two_queues_of_one_pool([near, far]: [Party; 2], addresses: [&str; 2]) {
    let setup = Setup::new(&far.domain, 8);
    let one = setup.start(addresses[0], 4, 1, giving());
    assert_eq!((provided(&one), setup.free()), ((4, 0), 4));
    one.tm.stats(Receive, true).unwrap();
    one.tm.set_receive_queue_length(10).unwrap();
    assert_eq!((provided(&one), setup.free()), ((8, 2), 0));
    assert_eq!(one.tm.stats(Receive, false).unwrap().num_f_events, 2);
    let before = setup.count.0.load(Ordering::Relaxed);
    setup.pool.lock().provision(2);
    assert!(setup.count.0.load(Ordering::Relaxed) > before);
    assert_eq!((provided(&one), setup.free()), ((10, 0), 0));
    let two = setup.start(addresses[1], 2, 2, giving());
    assert_eq!(provided(&two), (0, 2));
    one.tm.set_receive_queue_length(13).unwrap();
    setup.pool.lock().provision(6);
    assert_eq!((provided(&one), provided(&two), setup.free()), ((13, 0), (2, 0), 1));
    setup.end([one, two]);
    near.end();
    far.end();
}

/// PV-07 and PV-10: a message uses a buffer up; in its callback the queue is full again, and the buffer comes
/// back by its colour.
pub(crate) fn a_message_is_made_up_for([mut near, far]: [Party; 2], address: &str) {
    let setup = Setup::new(&far.domain, 4);
    let (told, seen) = mpsc::channel();
    let told = Mutex::new(told);
    let callback = Callback::new(move |tm: &TransferMachine, event: BufferEvent| {
        let length = tm.queue_length(Receive);
        let buffer = event.into_buffer().unwrap();
        let is_pooled = buffer.pool().is_some();
        buffer.put_back(tm.colour()).unwrap();
        let _ = told.lock().unwrap().send((length, is_pooled));
    });
    let party = setup.start(address, 3, 2, callback);
    for _ in 0..3 {
        let id = near.send(address, b"message");
        assert_eq!(near.end_of(id).0, Ok(()));
        assert_eq!(seen.recv().unwrap(), (3, true));
    }
    party.await_state(TmState::Started);
    assert_eq!((provided(&party), setup.free()), ((3, 0), 1));
    setup.end([party]);
    near.end();
    far.end();
}

/// PV-08: each gets the buffer of its own colour.
pub(crate) fn buffers_by_their_colours([near, far]: [Party; 2], addresses: [&str; 2]) {
    let setup = Setup::new(&far.domain, 6);
    let parties = [0, 1].map(|at| setup.start(addresses[at], 2, at + 1, giving()));
    let mut out: Vec<_> = std::iter::from_fn(|| setup.pool.lock().get(None)).collect();
    assert_eq!(out.len(), 2);
    for (buffer, colour) in out.iter_mut().zip([1, 2]) {
        buffer.user_data = colour;
    }
    // The other colour comes back last, and would be taken by age or by being newest.
    for buffer in out {
        let colour = buffer.user_data as usize;
        buffer.put_back(Some(colour)).unwrap();
    }
    for at in [1, 0] {
        parties[at].tm.set_receive_queue_length(3).unwrap();
        let left = setup.pool.lock().get(None);
        assert_eq!(
            left.as_ref().map(|left| left.user_data),
            (at == 1).then_some(1),
            "the other one's is left"
        );
        left.into_iter().for_each(|left| left.put_back(Some(1)).unwrap());
    }
    setup.end(parties);
    near.end();
    far.end();
}

/// PV-09: what one returns when it stops another one gets.
pub(crate) fn a_stop_feeds_another([near, far]: [Party; 2], addresses: [&str; 2]) {
    let setup = Setup::new(&far.domain, 12);
    let one = setup.start(addresses[0], 10, 1, giving());
    let two = setup.start(addresses[1], 12, 2, giving());
    assert_eq!((provided(&one), provided(&two)), ((10, 0), (2, 10)));
    one.end();
    assert_eq!((provided(&two), setup.free()), ((12, 0), 0));
    setup.end([two]);
    near.end();
    far.end();
}

/// PV-13: starts, lengths and stops of several threads do not wait for each other, and no buffer is lost.
pub(crate) fn starts_and_stops_share_a_pool([near, far]: [Party; 2], addresses: [&str; 2]) {
    let setup = Setup::new(&far.domain, 7);
    std::thread::scope(|scope| {
        for (colour, address) in addresses.into_iter().enumerate() {
            let setup = &setup;
            scope.spawn(move || {
                for round in 0..10 {
                    let party = setup.start(address, 2 + round % 3, colour, giving());
                    for length in [3, 5, 2] {
                        party.tm.set_receive_queue_length(length).unwrap();
                        // The order matters: a pass between the two makes the sum larger.
                        let deficit = party.tm.deficit();
                        assert!(party.tm.queue_length(Receive) + deficit >= length);
                    }
                    party.end();
                }
            });
        }
    });
    assert_eq!(setup.free(), 7);
    setup.end([]);
    near.end();
    far.end();
}

/// PV-02: in the callback of the start the queue is empty.
pub(crate) fn the_queue_is_filled_behind_the_start([near, far]: [Party; 2], address: &str) {
    struct Length(Mutex<mpsc::Sender<usize>>);
    impl lnet_messaging::Handler for Length {
        fn tm_event(&self, tm: &TransferMachine, _: &lnet_messaging::TmEvent) {
            let _ = self.0.lock().unwrap().send(tm.queue_length(Receive));
        }
    }
    let setup = Setup::new(&far.domain, 8);
    let (told, length) = mpsc::channel();
    let tm = TransferMachine::new(&far.domain, Arc::new(Length(Mutex::new(told)))).unwrap();
    tm.attach_pool(attachment(&setup.pool, giving()), 0).unwrap();
    tm.start(address).unwrap();
    assert_eq!(length.recv().unwrap(), 0);
    let party = Party { domain: far.domain.clone(), tm, events: Events::channel().1 };
    party.await_state(TmState::Started);
    assert_eq!((provided(&party), setup.free()), ((2, 0), 6));
    party.tm.stop(lnet_messaging::StopMode::Abort).unwrap();
    party.await_state(TmState::Stopped);
    party.tm.finish().unwrap();
    drop(party);
    setup.end([]);
    near.end();
    far.end();
}
