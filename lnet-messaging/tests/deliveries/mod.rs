//! Synchronous delivery by several threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Waker;
use std::time::Duration;

use lnet_messaging::transport::Transport;
use lnet_messaging::{Addition, BufferEvent, Callback, Operation};

use crate::common::{PATIENCE, Party, Unpark};
use crate::scenarios::alone::{end, synchronous};

/// Messages, each with a buffer of its own, and how often so many are sent.
const MESSAGES: u32 = 64;
const ROUNDS: u32 = 30;

/// LN-19, by other threads: two of them have the callbacks run, as they are told. Those run one at a time, in
/// the order of the messages.
pub(crate) fn threads_deliver_in_order(net: &Arc<dyn Transport>, addresses: [&str; 2]) {
    let mut near = Party::started(net, addresses[0]);
    let (domain, far) = synchronous(net, addresses[1]);
    let (told, seen) = mpsc::channel();
    let runs = AtomicBool::new(false);
    let callback = Callback::new(move |_, event: BufferEvent| {
        let is_alone = !runs.swap(true, Ordering::SeqCst);
        let number = event.payload_bytes().try_into().map(u32::from_le_bytes);
        // The other thread has its turn meanwhile.
        std::thread::yield_now();
        runs.store(false, Ordering::SeqCst);
        told.send((is_alone, number)).unwrap();
    });
    let is_over = AtomicBool::new(false);
    let deliver = || {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        while !is_over.load(Ordering::SeqCst) {
            far.deliver_all().unwrap();
            far.notify(waker.clone()).unwrap();
            // Either of both is told, and the test tells none of the end.
            std::thread::park_timeout(Duration::from_millis(1));
        }
    };
    let mut order = Vec::new();
    std::thread::scope(|scope| {
        let threads = [scope.spawn(deliver), scope.spawn(deliver)];
        for _ in 0..ROUNDS {
            for _ in 0..MESSAGES {
                let receive = Operation::Receive { min_receive_bytes: 4, max_messages: 1 };
                let buffer = domain.allocate(1, 4).unwrap();
                far.add(buffer, Addition::from(receive).callback(&callback)).unwrap();
            }
            for number in 0..MESSAGES {
                near.send(addresses[1], &number.to_le_bytes());
            }
            order.extend((0..MESSAGES).map_while(|_| seen.recv_timeout(PATIENCE).ok()));
            (0..MESSAGES).for_each(|_| assert_eq!(near.buffer_event().status, Ok(())));
        }
        is_over.store(true, Ordering::SeqCst);
        for thread in threads {
            thread.join().unwrap();
        }
    });
    let expected: Vec<_> = (0..ROUNDS).flat_map(|_| 0..MESSAGES).map(|number| (true, Ok(number))).collect();
    assert!(order == expected, "{order:?}");
    near.end();
    end(&far);
}
