use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::xsk::{Census, FRAGMENTS_MAX, PushError, RingDescriptor};

const SMALL: RingSizes = RingSizes { fill: 8, completion: 4, rx: 4, tx: 8 };

fn send(frame: Frame, offset: u16, length: u32) -> RingDescriptor {
    RingDescriptor { frame, offset, length, more: false }
}

#[test]
fn frames_travel_through_all_four_rings() {
    let (umem, mut stock) = Umem::plain(16).unwrap();
    let (mut user, mut kernel) = rings(&umem, &SMALL, 0).unwrap();
    assert_eq!(user.fill.fill(&mut stock), 8);
    assert_eq!(user.fill.fill(&mut stock), 0);
    assert_eq!(umem.census(), Census { user: 8, kernel: 8 });

    let mut frame = kernel.fill.take().unwrap();
    frame.bytes_mut(&umem)[256..261].copy_from_slice(b"hello");
    kernel.rx.deliver(KernelDescriptor { frame, offset: 256, length: 5, more: true }).unwrap();
    let mut received = Vec::new();
    assert_eq!(user.rx.waiting(), 1);
    assert_eq!(user.rx.receive(64, |descriptor| received.push(descriptor)), 1);
    let RingDescriptor { offset: 256, length: 5, more: true, .. } = received[0] else {
        panic!("{received:?}")
    };
    assert_eq!(received[0].bytes(&umem), b"hello");

    user.tx.push(send(received.pop().unwrap().frame, 256, 5)).unwrap();
    assert_eq!(kernel.tx.take(), None, "not visible before commit");
    user.tx.commit();
    let sent = kernel.tx.take().unwrap();
    assert_eq!(&sent.frame.bytes(&umem)[sent.offset as usize..][..sent.length as usize], b"hello");
    kernel.completion.complete(sent.frame).unwrap();
    assert_eq!(user.rx.waiting(), 0);
    assert_eq!(user.completion.drain(64, |frame| stock.push(frame)), 1);
    assert_eq!(umem.census(), Census { user: 9, kernel: 7 });
    assert_eq!(stock.len(), 9);
    assert_eq!(umem.bad_descriptors(), 0);
}

#[test]
fn wake_ups_are_seen() {
    let (umem, mut stock) = Umem::plain(1).unwrap();
    let (mut user, mut kernel) = rings(&umem, &SMALL, 0).unwrap();
    assert!(!user.fill.needs_wakeup());
    kernel.fill.set_needs_wakeup(true);
    assert!(!user.fill.needs_wakeup(), "a driver is woken for nothing");
    assert_eq!(user.fill.fill(&mut stock), 1);
    assert!(user.fill.needs_wakeup());
    assert!(user.fill.needs_wakeup(), "until it has listened");
    assert!(kernel.fill.take().is_some());
    assert!(!user.fill.needs_wakeup(), "the driver has all that there is");
}

#[test]
fn descriptors_outside_of_the_chunk_come_back() {
    let (umem, mut stock) = Umem::plain(1).unwrap();
    let (mut user, _kernel) = rings(&umem, &SMALL, 0).unwrap();
    for (offset, length) in [(0, 0), (0, 4097), (4096, 0), (4095, 2), (1, u32::MAX), (u16::MAX, 1)] {
        let (error, back) = user.tx.push(send(stock.pop().unwrap(), offset, length)).unwrap_err();
        assert_eq!(error, PushError::Bounds, "{offset} {length}");
        stock.push(back.frame);
    }
    assert_eq!(umem.census().user, 1);
    user.tx.push(send(stock.pop().unwrap(), 4095, 1)).unwrap();
}

#[test]
fn a_full_ring_gives_the_descriptor_back() {
    let (umem, mut stock) = Umem::plain(9).unwrap();
    let (mut user, mut kernel) = rings(&umem, &SMALL, u32::MAX).unwrap();
    assert_eq!(user.tx.free_slots(), 8);
    for free_slots in (0..8).rev() {
        user.tx.push(send(stock.pop().unwrap(), 0, 64)).unwrap();
        assert_eq!(user.tx.free_slots(), free_slots);
    }
    let (error, back) = user.tx.push(send(stock.pop().unwrap(), 0, 64)).unwrap_err();
    assert_eq!(error, PushError::Full);
    user.tx.commit();
    let _lost = kernel.tx.take().unwrap();
    user.tx.push(back).unwrap();
}

#[test]
fn a_frame_has_at_most_so_many_fragments() {
    let (umem, mut stock) = Umem::plain(2 * FRAGMENTS_MAX).unwrap();
    let sizes = RingSizes { tx: 64, ..SMALL };
    let (mut user, _kernel) = rings(&umem, &sizes, 0).unwrap();
    let more = |frame| RingDescriptor { more: true, ..send(frame, 0, 64) };
    for _ in 1..FRAGMENTS_MAX {
        user.tx.push(more(stock.pop().unwrap())).unwrap();
    }
    let (error, back) = user.tx.push(more(stock.pop().unwrap())).unwrap_err();
    assert_eq!(error, PushError::Fragments);
    user.tx.push(RingDescriptor { more: false, ..back }).unwrap();
    user.tx.push(more(stock.pop().unwrap())).unwrap();
}

#[test]
fn what_a_broken_kernel_says_is_counted_and_not_believed() {
    let (umem, mut stock) = Umem::plain(4).unwrap();
    let (mut user, mut kernel) = rings(&umem, &SMALL, 0).unwrap();
    let mut expected_bad = 0;
    let mut check = |user: &mut UserRings, frames: u32| {
        let mut taken = Vec::new();
        user.rx.receive(64, |descriptor| taken.push(descriptor.frame));
        user.completion.drain(64, |frame| taken.push(frame));
        assert_eq!(taken.len() as u32, frames);
        expected_bad += u64::from(frames == 0);
        assert_eq!(umem.bad_descriptors(), expected_bad);
    };
    // A chunk that the user holds, and addresses beyond the UMEM.
    for address in [0, 4096, 4 * 4096, u64::MAX] {
        assert!(kernel.completion.complete_raw(address));
        check(&mut user, 0);
        assert!(kernel.rx.deliver_raw(address, 64, 0));
        check(&mut user, 0);
    }
    // Chunks that the kernel holds: across the end, then right, then again.
    user.fill.fill(&mut stock);
    for (address, length) in [(256, 3841), (4095, 2), (256, u32::MAX)] {
        assert!(kernel.rx.deliver_raw(address, length, 0));
        check(&mut user, 0);
    }
    assert!(kernel.rx.deliver_raw(256, 3840, 0));
    check(&mut user, 1);
    assert!(kernel.rx.deliver_raw(256, 3840, 0));
    check(&mut user, 0);
    assert!(kernel.completion.complete_raw(0));
    check(&mut user, 0);
    // The stand-in does not take what the user has got by then, and neither gets what the other holds.
    let held = kernel.fill.take().unwrap();
    assert!(kernel.rx.deliver_raw(u64::from(held.chunk_index()) * 4096, 64, 0));
    check(&mut user, 0);
    assert!(kernel.fill.take().is_some() && kernel.fill.take().is_some());
    assert_eq!(kernel.fill.take(), None, "chunk 0 was given back raw");
    assert_eq!(umem.census(), Census { user: 1, kernel: 3 });
}

#[derive(Clone, Debug)]
enum Step {
    Fill(usize),
    Deliver(u32),
    Receive(u32),
    Send(u32),
    Transmit(u32),
    Complete(u32),
    Drain(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..12).prop_map(Step::Fill),
        (0u32..12).prop_map(Step::Deliver),
        (0u32..12).prop_map(Step::Receive),
        (0u32..12).prop_map(Step::Send),
        (0u32..12).prop_map(Step::Transmit),
        (0u32..12).prop_map(Step::Complete),
        (0u32..12).prop_map(Step::Drain),
    ]
}

/// Both sides of a set of rings, with a naive model of who holds which chunk beside them.
struct World {
    umem: Arc<Umem>,
    user: UserRings,
    kernel: KernelRings,
    sizes: RingSizes,
    stock: Vec<Frame>,
    held: VecDeque<KernelFrame>,
    fill: VecDeque<u32>,
    completion: VecDeque<u32>,
    rx: VecDeque<(u32, u32)>,
    tx: VecDeque<(u32, u32)>,
    serial: u32,
    chunk_count: u32,
}

impl World {
    fn new(chunk_count: u32, sizes: &RingSizes, start: u32) -> Self {
        let (umem, stock) = Umem::plain(chunk_count).unwrap();
        let (user, kernel) = rings(&umem, sizes, start).unwrap();
        let (fill, completion) = Default::default();
        let (rx, tx) = Default::default();
        let held = VecDeque::new();
        Self {
            umem,
            user,
            kernel,
            sizes: *sizes,
            stock,
            held,
            fill,
            completion,
            rx,
            tx,
            serial: 0,
            chunk_count,
        }
    }

    fn stamp(bytes: &mut [u8], serial: u32) {
        bytes[256..260].copy_from_slice(&serial.to_ne_bytes());
    }

    fn read(bytes: &[u8]) -> u32 {
        u32::from_ne_bytes(bytes[256..260].try_into().unwrap())
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Fill(count) => self.fill(count),
            Step::Deliver(count) => self.deliver(count),
            Step::Receive(budget) => self.receive(budget),
            Step::Send(count) => self.send(count),
            Step::Transmit(count) => self.transmit(count),
            Step::Complete(count) => self.complete(count),
            Step::Drain(budget) => self.drain(budget),
        }
    }

    fn fill(&mut self, count: usize) {
        let mut some = self.stock.split_off(self.stock.len().saturating_sub(count));
        let chunks: Vec<u32> = some.iter().rev().map(Frame::chunk_index).collect();
        let room = self.sizes.fill as usize - self.fill.len();
        let filled = self.user.fill.fill(&mut some) as usize;
        assert_eq!(filled, room.min(chunks.len()));
        self.fill.extend(&chunks[..filled]);
        self.stock.append(&mut some);
    }

    fn deliver(&mut self, count: u32) {
        for _ in 0..count {
            let Some(mut frame) = self.kernel.fill.take() else {
                assert_eq!(self.fill.len(), 0);
                break;
            };
            assert_eq!(self.fill.pop_front(), Some(frame.chunk_index()));
            self.serial += 1;
            Self::stamp(frame.bytes_mut(&self.umem), self.serial);
            let chunk = frame.chunk_index();
            let descriptor = KernelDescriptor { frame, offset: 256, length: 4, more: false };
            match self.kernel.rx.deliver(descriptor) {
                Ok(()) => self.rx.push_back((chunk, self.serial)),
                Err(full) => {
                    assert_eq!(self.rx.len(), self.sizes.rx as usize);
                    // As a driver would: it recycles the frame as if it had been sent.
                    self.held.push_back(full.frame);
                }
            }
        }
    }

    fn receive(&mut self, budget: u32) {
        let Self { rx, umem, stock, user, .. } = self;
        let expected = rx.len().min(budget as usize);
        let received = user.rx.receive(budget, |descriptor| {
            let serial = u32::from_ne_bytes(descriptor.bytes(umem).try_into().unwrap());
            assert_eq!(rx.pop_front(), Some((descriptor.frame.chunk_index(), serial)));
            stock.push(descriptor.frame);
        });
        assert_eq!(received as usize, expected);
    }

    fn send(&mut self, count: u32) {
        for _ in 0..count {
            let Some(mut frame) = self.stock.pop() else { break };
            self.serial += 1;
            Self::stamp(self.umem.bytes_mut(&mut frame), self.serial);
            let chunk = frame.chunk_index();
            match self.user.tx.push(send(frame, 256, 4)) {
                Ok(()) => self.tx.push_back((chunk, self.serial)),
                Err((error, back)) => {
                    assert_eq!(error, PushError::Full);
                    assert_eq!(self.tx.len(), self.sizes.tx as usize);
                    self.stock.push(back.frame);
                }
            }
        }
        self.user.tx.commit();
    }

    fn transmit(&mut self, count: u32) {
        for _ in 0..count {
            let Some(sent) = self.kernel.tx.take() else {
                assert_eq!(self.tx.len(), 0);
                break;
            };
            let serial = Self::read(sent.frame.bytes(&self.umem));
            assert_eq!(self.tx.pop_front(), Some((sent.frame.chunk_index(), serial)));
            self.held.push_back(sent.frame);
        }
    }

    fn complete(&mut self, count: u32) {
        for _ in 0..count {
            let Some(frame) = self.held.pop_front() else { break };
            let chunk = frame.chunk_index();
            match self.kernel.completion.complete(frame) {
                Ok(()) => self.completion.push_back(chunk),
                Err(frame) => {
                    assert_eq!(self.completion.len(), self.sizes.completion as usize);
                    self.held.push_front(frame);
                }
            }
        }
    }

    fn drain(&mut self, budget: u32) {
        let Self { completion, stock, user, .. } = self;
        let expected = completion.len().min(budget as usize);
        let drained = user.completion.drain(budget, |frame| {
            assert_eq!(completion.pop_front(), Some(frame.chunk_index()));
            stock.push(frame);
        });
        assert_eq!(drained as usize, expected);
    }

    fn check(&self) {
        let kernel =
            self.fill.len() + self.rx.len() + self.tx.len() + self.completion.len() + self.held.len();
        let census = self.umem.census();
        assert_eq!(census.user as usize, self.stock.len());
        assert_eq!(census.kernel as usize, kernel);
        assert_eq!(census.user + census.kernel, self.chunk_count);
        assert_eq!(self.umem.bad_descriptors(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn equals_the_model(
        start in prop_oneof![Just(0u32), (u32::MAX - 40)..=u32::MAX],
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let mut world = World::new(24, &SMALL, start);
        for step in &steps {
            world.apply(step);
            world.check();
        }
    }
}

/// Sends back, with the same serial number, each of the next `total` frames.
fn echo(umem: &Umem, mut kernel: KernelRings, total: u32) {
    fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
        loop {
            match attempt() {
                Some(value) => return value,
                None => std::thread::yield_now(),
            }
        }
    }
    for _ in 0..total {
        let sent = wait_for(|| kernel.tx.take());
        let mut frame = wait_for(|| kernel.fill.take());
        World::stamp(frame.bytes_mut(umem), World::read(sent.frame.bytes(umem)));
        let mut descriptor = KernelDescriptor { frame, offset: 256, length: 4, more: false };
        while let Err(full) = kernel.rx.deliver(descriptor) {
            descriptor = full;
            std::thread::yield_now();
        }
        let mut frame = sent.frame;
        while let Err(full) = kernel.completion.complete(frame) {
            frame = full;
            std::thread::yield_now();
        }
    }
}

/// A stand-in on a thread of its own echoes what is sent; both sides take bursts of uneven length. The
/// indices start shortly before they wrap.
#[test]
fn frames_survive_a_kernel_on_another_thread() {
    let total: u32 = 2_000_000;
    let (umem, mut stock) = Umem::plain(96).unwrap();
    let sizes = RingSizes { fill: 64, completion: 32, rx: 32, tx: 16 };
    let (mut user, kernel) = rings(&umem, &sizes, u32::MAX - total / 2).unwrap();
    let echo = std::thread::spawn({
        let umem = Arc::clone(&umem);
        move || echo(&umem, kernel, total)
    });
    // Half of the chunks to each direction, so that neither starves the other.
    let mut to_fill = stock.split_off(48);
    let (mut sent, mut received) = (0, 0);
    while received < total {
        user.fill.fill(&mut to_fill);
        for _ in 0..(sent % 7 + 1).min(total - sent) {
            let Some(mut frame) = stock.pop() else { break };
            World::stamp(umem.bytes_mut(&mut frame), sent + 1);
            match user.tx.push(send(frame, 256, 4)) {
                Ok(()) => sent += 1,
                Err((_, back)) => {
                    stock.push(back.frame);
                    break;
                }
            }
        }
        user.tx.commit();
        let arrived = user.rx.receive(sent % 5 + 1, |descriptor| {
            received += 1;
            assert_eq!(u32::from_ne_bytes(descriptor.bytes(&umem).try_into().unwrap()), received);
            to_fill.push(descriptor.frame);
        });
        let completed = user.completion.drain(16, |frame| stock.push(frame));
        if arrived == 0 && completed == 0 {
            std::thread::yield_now();
        }
    }
    echo.join().unwrap();
    user.completion.drain(64, |frame| stock.push(frame));
    assert_eq!(stock.len(), 48);
    let waiting = 48 - to_fill.len() as u32;
    assert_eq!(umem.census(), Census { user: 96 - waiting, kernel: waiting });
    assert_eq!(umem.bad_descriptors(), 0);
}
