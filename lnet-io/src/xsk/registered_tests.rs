use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::xsk::plain::{KernelRegistered, KernelSent, rings};
use crate::xsk::{Census, FRAGMENTS_MAX, PushError, RingDescriptor, RingSizes, UmemConfig};

const CHUNK: usize = CHUNK_BYTES as usize;
const SIZES: RingSizes = RingSizes { fill: 8, completion: 8, rx: 4, tx: 8 };

fn umem(chunk_count: u32, registered_chunks: u64) -> (Arc<Umem>, Vec<crate::xsk::Frame>) {
    let registered_bytes = registered_chunks * u64::from(CHUNK_BYTES);
    Umem::plain_with(&UmemConfig { registered_bytes, ..UmemConfig::new(chunk_count) }).unwrap()
}

#[test]
fn without_a_size_nothing_is_registered() {
    let (umem, _frames) = Umem::plain(4).unwrap();
    assert_eq!(umem.registered_bytes(), 0);
    assert!(umem.register(1).is_none());
    let (umem, _frames) =
        Umem::plain_with(&UmemConfig { registered_bytes: 1, ..UmemConfig::new(4) }).unwrap();
    assert_eq!((umem.chunk_count(), umem.registered_bytes()), (4, u64::from(CHUNK_BYTES)));
    assert!(umem.register(0).is_none());
    assert_eq!(umem.register(CHUNK).unwrap().len(), CHUNK);
}

#[test]
fn buffers_have_their_bytes_to_themselves() {
    let (umem, mut frames) = umem(2, 4);
    let mut first = umem.register(CHUNK + 1).unwrap();
    let mut second = umem.register(2 * CHUNK).unwrap();
    assert!(umem.register(1).is_none());
    for (value, frame) in (1u8..).zip(&mut frames) {
        umem.bytes_mut(frame).fill(value);
    }
    first.fill(3);
    second.fill(4);
    for (value, frame) in (1u8..).zip(&frames) {
        assert!(umem.bytes(frame).iter().all(|byte| *byte == value));
    }
    assert!(first.len() == CHUNK + 1 && first.iter().all(|byte| *byte == 3));
    assert!(second.len() == 2 * CHUNK && second.iter().all(|byte| *byte == 4));
    std::thread::spawn(move || drop(first)).join().unwrap();
    assert!(umem.register(2 * CHUNK).unwrap().iter().all(|byte| *byte == 0), "zeroed again");
}

#[test]
fn a_buffer_outlives_the_last_handle_of_its_umem() {
    let (umem, frames) = umem(1, 1);
    let mut buffer = umem.register(CHUNK).unwrap();
    drop((umem, frames));
    buffer.fill(1);
    assert!(buffer.iter().all(|byte| *byte == 1));
}

#[test]
fn what_rings_had_that_are_gone_is_free() {
    let (umem, _frames) = umem(1, 2);
    let buffer = umem.register(2 * CHUNK).unwrap();
    let queues = [RingsId::of_queue(0), RingsId::of_queue(RingsId::QUEUES_MAX - 1)];
    for queue in queues {
        umem.area().open(queue);
        buffer.runs(5..CHUNK + 5).for_each(|run| umem.area().give(run.address(), queue));
    }
    assert!(!umem.area().take_back(CHUNK as u64, RingsId::of_queue(9)), "it went by other rings");
    umem.take_all_of(queues[0]);
    assert!(buffer.is_in_flight(0..1) && buffer.is_in_flight(2 * CHUNK - 1..2 * CHUNK));
    assert!(umem.area().take_back(CHUNK as u64, queues[1]));
    assert!(!buffer.is_in_flight(0..1) && buffer.is_in_flight(CHUNK..CHUNK + 1));
    umem.take_all_of(queues[1]);
    assert!(!buffer.is_in_flight(0..2 * CHUNK));
}

#[test]
fn runs_end_with_their_chunks() {
    let (umem, _frames) = umem(3, 4);
    let _before = umem.register(CHUNK).unwrap();
    let buffer = umem.register(3 * CHUNK).unwrap();
    let check = |range: Range<usize>, expected: &[(usize, usize)]| {
        let runs = buffer.runs(range.clone());
        assert_eq!(runs.len(), expected.len(), "{range:?}");
        let found = runs.map(|run| (run.address() as usize, run.length_bytes() as usize));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{range:?}");
    };
    let base = 4 * CHUNK;
    check(0..0, &[]);
    check(CHUNK..CHUNK, &[]);
    check(7..7, &[]);
    check(0..1, &[(base, 1)]);
    check(0..CHUNK, &[(base, CHUNK)]);
    check(100..CHUNK + 1, &[(base + 100, CHUNK - 100), (base + CHUNK, 1)]);
    check(1..3 * CHUNK, &[(base + 1, CHUNK - 1), (base + CHUNK, CHUNK), (base + 2 * CHUNK, CHUNK)]);
    check(3 * CHUNK - 1..3 * CHUNK, &[(base + 3 * CHUNK - 1, 1)]);
}

#[test]
#[should_panic(expected = "registered memory of 5")]
fn runs_stay_inside_the_buffer() {
    let (umem, _frames) = umem(1, 1);
    let _ = umem.register(5).unwrap().runs(1..6);
}

#[test]
#[should_panic(expected = "another UMEM")]
fn a_run_of_another_umem_panics() {
    let (first, _frames) = umem(1, 1);
    let (second, _frames) = umem(1, 1);
    let (mut user, _kernel) = rings(&second, &SIZES, 0).unwrap();
    let buffer = first.register(1).unwrap();
    let _ = user.tx.push_registered(buffer.runs(0..1).next().unwrap(), false);
}

#[test]
fn a_header_goes_out_with_registered_payload() {
    let (umem, mut stock) = umem(1, 2);
    let (mut user, mut kernel) = rings(&umem, &SIZES, u32::MAX - 1).unwrap();
    let mut buffer = umem.register(2 * CHUNK).unwrap();
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = (index / 7) as u8;
    }
    let mut head = stock.pop().unwrap();
    umem.bytes_mut(&mut head)[..4].copy_from_slice(b"head");
    user.tx.push(RingDescriptor { frame: head, offset: 0, length: 4, more: true }).unwrap();
    let range = 5..CHUNK + 9;
    let mut runs = buffer.runs(range.clone());
    while let Some(run) = runs.next() {
        user.tx.push_registered(run, runs.len() != 0).unwrap();
    }
    user.tx.commit();
    assert!(buffer.is_in_flight(0..1) && buffer.is_in_flight(2 * CHUNK - 1..2 * CHUNK));

    let Some(KernelSent::Frame(head)) = kernel.tx.take_sent() else { panic!("the header comes first") };
    assert!(head.more && &head.frame.bytes(&umem)[..4] == b"head");
    let mut sent: Vec<u8> = Vec::new();
    let mut addresses = Vec::new();
    while let Some(KernelSent::Registered(KernelRegistered { address, length, more })) = kernel.tx.take_sent()
    {
        let start = address as usize - CHUNK;
        sent.extend(&buffer[start..start + length as usize]);
        addresses.push((address, more));
    }
    assert_eq!(sent, buffer[range]);
    assert_eq!(addresses, [(CHUNK as u64 + 5, true), (2 * CHUNK as u64, false)]);

    kernel.completion.complete(head.frame).unwrap();
    for (address, _) in &addresses {
        assert!(kernel.completion.complete_raw(*address));
    }
    assert_eq!(user.completion.drain(2, |frame| stock.push(frame)), 1);
    assert!(!buffer.is_in_flight(0..CHUNK) && buffer.is_in_flight(0..CHUNK + 1));
    assert_eq!(user.completion.drain(64, |frame| stock.push(frame)), 0);
    assert_eq!((stock.len(), user.completion.registered(), umem.bad_descriptors()), (1, 2, 0));
    assert_eq!(umem.census(), Census { user: 1, kernel: 0 });
    assert!(!buffer.is_in_flight(0..2 * CHUNK));
}

#[test]
fn the_kernel_never_has_what_another_buffer_has_become() {
    let (umem, _frames) = umem(1, 2);
    let (mut user, mut kernel) = rings(&umem, &SIZES, 0).unwrap();
    let buffer = umem.register(2 * CHUNK).unwrap();
    let first = buffer.runs(0..8).next().unwrap();
    // Twice: both descriptors have to come back.
    user.tx.push_registered(first, false).unwrap();
    user.tx.push_registered(first, false).unwrap();
    user.tx.commit();
    drop(buffer);
    for _ in 0..2 {
        assert!(umem.register(1).is_none(), "the kernel has a descriptor of the run");
        let Some(KernelSent::Registered(run)) = kernel.tx.take_sent() else { panic!("two were sent") };
        kernel.completion.complete_raw(run.address);
        user.completion.drain(64, |_| ());
    }
    assert!(umem.register(2 * CHUNK).is_some());
}

#[test]
fn completions_of_what_was_not_sent_are_not_believed() {
    let (umem, _frames) = umem(1, 2);
    let (mut user, mut kernel) = rings(&umem, &SIZES, 0).unwrap();
    let buffer = umem.register(1).unwrap();
    user.tx.push_registered(buffer.runs(0..1).next().unwrap(), false).unwrap();
    let chunk = u64::from(CHUNK_BYTES);
    for (bad, address) in (1..).zip([2 * chunk, 3 * chunk - 1, 3 * chunk, u64::MAX]) {
        assert!(kernel.completion.complete_raw(address));
        assert_eq!(user.completion.drain(64, |_| ()), 0);
        assert_eq!((umem.bad_descriptors(), user.completion.registered()), (bad, 0), "{address:#x}");
    }
    // Received into registered memory.
    assert!(kernel.rx.deliver_raw(chunk, 64, 0));
    assert_eq!(user.rx.receive(64, |_| ()), 0);
    assert!(kernel.completion.complete_raw(chunk) && kernel.completion.complete_raw(chunk));
    user.completion.drain(64, |_| ());
    assert_eq!((umem.bad_descriptors(), user.completion.registered()), (6, 1));
}

#[test]
fn a_ring_without_room_takes_no_registered_run() {
    let (umem, _frames) = umem(1, 1);
    let sizes = RingSizes { tx: 32, ..SIZES };
    let (mut user, _kernel) = rings(&umem, &sizes, 0).unwrap();
    let buffer = umem.register(1).unwrap();
    let run = buffer.runs(0..1).next().unwrap();
    for _ in 1..FRAGMENTS_MAX {
        user.tx.push_registered(run, true).unwrap();
    }
    assert_eq!(user.tx.push_registered(run, true), Err(PushError::Fragments));
    for _ in FRAGMENTS_MAX - 1..sizes.tx {
        user.tx.push_registered(run, false).unwrap();
    }
    assert_eq!(user.tx.push_registered(run, false), Err(PushError::Full));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    /// Runs against a map of who has which chunk.
    #[test]
    fn runs_equal_a_map(steps in prop::collection::vec((any::<bool>(), 0usize..9), 0..80)) {
        const CHUNKS: u32 = 16;
        let area = Area::new(3, CHUNKS);
        let mut taken: BTreeMap<u32, Chunks> = BTreeMap::new();
        for (take, number) in steps {
            let used = |chunk: u32| taken.values().any(|run| (run.first..run.end()).contains(&chunk));
            if take && number != 0 {
                let count = number as u32;
                let first_fit = (0..=CHUNKS - count).find(|first| !(*first..first + count).any(used));
                let run = area.take(count);
                prop_assert_eq!(run.map(|run| run.first), first_fit);
                taken.extend(run.map(|run| (run.first, run)));
            } else if let Some(first) = taken.keys().nth(number).copied() {
                area.give_back(taken.remove(&first).unwrap());
            }
        }
        for run in taken.into_values() {
            area.give_back(run);
        }
        prop_assert_eq!(&area.runs().free, &[Chunks { first: 0, count: CHUNKS }]);
    }
}
