//! Receive buffers that several messages come into, over any transport. Each scenario ends both sides.

use lnet_messaging::{Errno, Operation, QueueType, TmState};

use super::Party;

/// Takes the messages of a sender in their order: length, offset, whether the buffer ended.
pub(crate) fn messages(party: &mut Party, count: usize) -> Vec<(u64, u64, bool)> {
    let mut taken = Vec::new();
    for number in 0..count {
        let event = party.buffer_event();
        assert_eq!((event.queue(), event.status), (QueueType::Receive, Ok(())));
        assert_eq!(event.payload_bytes(), vec![number as u8; event.length_bytes as usize]);
        assert!(event.end_point.is_some());
        taken.push((event.length_bytes, event.offset_bytes, event.is_last()));
    }
    taken
}

/// Sends them one after the other, so that they arrive in this order.
pub(crate) fn send_each(from: &mut Party, to: &str, lengths: &[usize]) {
    for (number, length) in lengths.iter().enumerate() {
        let id = from.send(to, &vec![number as u8; *length]);
        assert_eq!(from.end_of(id).0, Ok(()));
    }
}

/// Until the buffer has had as many as it takes.
pub(crate) fn several_messages_in_one_buffer([mut near, mut far]: [Party; 2]) {
    for size in [30, 90] {
        far.post(4 * size, size as u64, 4);
        send_each(&mut near, &far.address(), &[size / 3, size, 1, size]);
        let offsets = [0, size / 3, size / 3 + size, size / 3 + size + 1].map(|offset| offset as u64);
        let lengths = [size / 3, size, 1, size].map(|length| length as u64);
        let expected: Vec<_> = (0..4).map(|index| (lengths[index], offsets[index], index == 3)).collect();
        assert_eq!(messages(&mut far, 4), expected);
        assert_eq!(far.counts(QueueType::Receive), (1, 0, 4, 0));
    }
    far.await_state(TmState::Started);
    assert_eq!(far.tm.end_point_addresses().len(), 1, "no reference is left");
    near.end();
    far.end();
}

/// A second buffer goes on where the first is full.
pub(crate) fn a_second_buffer([mut near, mut far]: [Party; 2]) {
    far.add(far.buffer(&[40, 30, 30]), Operation::Receive { min_receive_bytes: 50, max_messages: 9 });
    far.post(60, 50, 9);
    send_each(&mut near, &far.address(), &[45, 50, 50]);
    // The first buffer has 55 bytes left, and then 5; the second has 10. The message in the second one may be
    // told of before the last one of the first, which waits until the event before it is dropped.
    let mut taken: Vec<_> = (0..3)
        .map(|_| {
            let event = far.buffer_event();
            assert_eq!(event.status, Ok(()));
            (event.payload_bytes()[0], event.length_bytes, event.offset_bytes, event.is_last())
        })
        .collect();
    taken.sort_unstable();
    assert_eq!(taken, [(0, 45, 0, false), (1, 50, 45, true), (2, 50, 0, true)]);
    near.end();
    far.end();
}

/// A buffer that has had messages is deleted: these are told of before its end, and the next buffer takes
/// what comes then. Where a message that has left may still be under way, they are waited for first.
pub(crate) fn a_deletion_behind_messages([mut near, mut far]: [Party; 2], is_under_way: bool) {
    for _ in 0..20 {
        let id = far.post(64, 8, 8);
        send_each(&mut near, &far.address(), &[8, 5]);
        if is_under_way {
            assert_eq!(messages(&mut far, 2), [(8, 0, false), (5, 8, false)]);
        }
        assert!(far.tm.del(id));
        if !is_under_way {
            assert_eq!(messages(&mut far, 2), [(8, 0, false), (5, 8, false)]);
        }
        let end = far.buffer_event();
        assert_eq!((end.id, end.status, end.is_last()), (id, Err(Errno::Canceled), true));
        assert_eq!(end.into_buffer().unwrap().bytes(0, 13), [[0; 8].as_slice(), &[1; 5]].concat());
        far.post(8, 8, 1);
        send_each(&mut near, &far.address(), &[3]);
        assert_eq!(messages(&mut far, 1), [(3, 0, true)]);
    }
    near.end();
    far.end();
}

/// Many messages at once into few buffers: each is told of once, whole, and no two lie in the same bytes.
pub(crate) fn many_messages_in_few_buffers([mut near, mut far]: [Party; 2]) {
    const MESSAGES: usize = 60;
    for _ in 0..3 {
        far.post(20 * 16, 16, 20);
    }
    let to = far.address();
    let sent: Vec<_> = (0..MESSAGES).map(|number| near.send(&to, &[number as u8; 16])).collect();
    let mut seen = vec![0; MESSAGES];
    let mut last = 0;
    for _ in 0..MESSAGES {
        let event = far.buffer_event();
        let bytes = event.payload_bytes();
        assert_eq!((event.status, &bytes[..]), (Ok(()), &[bytes[0]; 16][..]));
        assert_eq!(event.offset_bytes % 16, 0);
        seen[usize::from(bytes[0])] += 1;
        last += usize::from(event.is_last());
    }
    assert_eq!((seen, last), (vec![1; MESSAGES], 3));
    for _ in sent {
        assert_eq!(near.buffer_event().status, Ok(()));
    }
    near.end();
    far.end();
}
