//! Scenarios that need traffic of a real net, or time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use lnet_messaging::{
    Addition, Attachment, Callback, Errno, Operation, Pool, PoolSpec, QueueType, Reprovision, TransferMachine,
};

use crate::common::{PATIENCE, Party};
use crate::scenarios::pattern;

const MIB: usize = 1 << 20;

/// Passive and receive buffers of which no operation of the other end takes any: some have a deadline, the
/// others are deleted. Then a bulk operation whose initiator is deleted while it goes on.
pub(crate) fn deadlines_and_cancels([mut near, mut far]: [Party; 2]) {
    let wait = Duration::from_millis(200);
    let operations: [fn() -> Operation; 3] = [
        || Operation::Receive { min_receive_bytes: 8, max_messages: 2 },
        || Operation::PassiveSend { initiator: None, length_bytes: 8 },
        || Operation::PassiveReceive { initiator: None },
    ];
    let begun = Instant::now();
    let late = operations
        .map(|operation| near.add(near.buffer(&[8]), Addition::from(operation()).deadline(begun + wait)));
    let never = operations.map(|operation| near.add(near.buffer(&[8]), operation()));
    for _ in late {
        let event = near.buffer_event();
        assert_eq!((event.status, late.contains(&event.id)), (Err(Errno::TimedOut), true));
        assert!(begun.elapsed() >= wait, "{:?}", begun.elapsed());
    }
    for id in never {
        assert!(near.tm.del(id));
        assert_eq!(near.end_of(id).0, Err(Errno::Canceled));
    }
    for round in 0..20 {
        let mut source = far.buffer(&[MIB]);
        source.fill(&pattern(MIB));
        let send = Operation::PassiveSend { initiator: None, length_bytes: MIB as u64 };
        let passive = far.tm.add(source, send).unwrap();
        let from = passive.descriptor.unwrap();
        let id = near.add(near.buffer(&[MIB]), Operation::ActiveReceive { from });
        std::thread::sleep(Duration::from_micros(100 * round));
        near.tm.del(id);
        let event = near.buffer_event();
        assert!(event.id == id && event.is_last(), "{event:?}");
        match event.status {
            Ok(()) => assert!(event.payload_bytes() == pattern(MIB), "round {round}"),
            status => assert_eq!(status, Err(Errno::Canceled), "round {round}"),
        }
        far.tm.del(passive.id);
        let event = far.buffer_event();
        assert!(event.id == passive.id && event.is_last(), "{event:?}");
    }
    near.end();
    far.end();
}

/// Each buffer is refused while there are no event slots for it, and none is lost.
pub(crate) fn out_of_slots([mut near, mut far]: [Party; 2]) {
    let receive = || Operation::Receive { min_receive_bytes: 8, max_messages: 63 };
    let mut ids = Vec::new();
    let refused = loop {
        match far.tm.add(far.buffer(&[512]), receive()) {
            Ok(added) => ids.push(added.id),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused.error.errno(), ids.len()), (Errno::NoMemory, 8));
    let (first, last) = (ids[0], ids[7]);
    // All that was posted is used up, and then there is room for what was refused.
    for number in 0..8 * 63_u64 {
        let to = far.address();
        let id = near.send(&to, &number.to_le_bytes());
        assert_eq!(near.end_of(id).0, Ok(()));
        let event = far.buffer_event();
        assert_eq!((event.status, event.payload_bytes()), (Ok(()), number.to_le_bytes().to_vec()));
    }
    assert!(far.tm.queued(first).is_none() && far.tm.queued(last).is_none());
    let id = far.add(refused.buffer, receive());
    near.send(&far.address(), b"again");
    let event = far.buffer_event();
    assert_eq!((event.id, event.payload_bytes()), (id, b"again".to_vec()));
    drop(event);
    near.end();
    far.end();
}

/// What one side has of the messages of the other.
struct Seen {
    counts: HashMap<u64, u32>,
    wrong: u64,
}

const MESSAGE_BYTES: usize = 3000;
const MESSAGES: u64 = 3000;
/// Under way in each direction: a pool of so many buffers has room for all of them.
const WINDOW: u64 = 16;

fn message(number: u64) -> Vec<u8> {
    let length = 8 + (number as usize * 37) % (MESSAGE_BYTES - 8);
    let mut bytes = pattern(length);
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A transfer machine that a pool feeds, and what it is told.
fn pooled(party: &Party, address: &str) -> (Party, Pool, mpsc::Receiver<u64>, Arc<Mutex<Seen>>) {
    let spec = PoolSpec { threshold: 1, segments: 1, segment_bytes: 4 * MESSAGE_BYTES, colours: 1 };
    let pool = Pool::new(&party.domain, spec, Arc::new(Reprovision)).unwrap();
    // A buffer that ends for want of room may have one message under way still.
    assert_eq!(pool.lock().provision(2 * WINDOW as usize), 2 * WINDOW as usize);
    let seen = Arc::new(Mutex::new(Seen { counts: HashMap::new(), wrong: 0 }));
    let (arrived, arrivals) = mpsc::channel();
    let of_callback = Arc::clone(&seen);
    let callback = Callback::new(move |tm: &TransferMachine, event| {
        if event.status.is_ok() {
            let bytes = event.payload_bytes();
            let number = bytes.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number));
            let mut seen = of_callback.lock().unwrap();
            seen.wrong += u64::from(bytes != message(number));
            *seen.counts.entry(number).or_default() += 1;
            let _ = arrived.send(number);
        }
        if let Some(buffer) = event.into_buffer() {
            buffer.put_back(tm.colour()).unwrap();
        }
    });
    let min_receive_bytes = MESSAGE_BYTES as u64;
    let attachment =
        Attachment { pool: pool.clone(), min_receive_bytes, max_messages: 3, callback: Some(callback) };
    let party = Party::in_domain(&party.domain);
    party.tm.attach_pool(attachment, WINDOW as usize).unwrap();
    party.tm.set_colour(Some(0)).unwrap();
    (party.start(address), pool, arrivals, seen)
}

/// Both flood each other, a window at a time, into buffers of pools: every message arrives once and whole.
pub(crate) fn provisioning([near, far]: [Party; 2]) {
    let addresses = [&near, &far].map(|party| {
        let address = party.address();
        format!("{}:8", address.rsplit_once(':').unwrap().0)
    });
    let (mut near_pooled, near_pool, near_arrivals, near_seen) = pooled(&near, &addresses[0]);
    let (mut far_pooled, far_pool, far_arrivals, far_seen) = pooled(&far, &addresses[1]);
    let flood = |from: &mut Party, to: &str, arrivals: mpsc::Receiver<u64>| {
        let (mut sent, mut arrived, mut ended) = (0, 0, 0);
        while arrived < MESSAGES {
            while sent < MESSAGES && sent < arrived + WINDOW {
                from.send(to, &message(sent));
                sent += 1;
            }
            arrivals.recv_timeout(PATIENCE).unwrap();
            arrived += 1;
        }
        while ended < MESSAGES {
            let event = from.buffer_event();
            assert_eq!((event.queue(), event.status), (QueueType::Send, Ok(())));
            ended += 1;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| flood(&mut near_pooled, &addresses[1], far_arrivals));
        flood(&mut far_pooled, &addresses[0], near_arrivals);
    });
    for seen in [near_seen, far_seen] {
        let seen = seen.lock().unwrap();
        assert_eq!((seen.wrong, seen.counts.len() as u64), (0, MESSAGES));
        assert!(seen.counts.values().all(|count| *count == 1), "a message came twice");
    }
    near_pooled.end();
    far_pooled.end();
    near_pool.finish().unwrap();
    far_pool.finish().unwrap();
    near.end();
    far.end();
}
