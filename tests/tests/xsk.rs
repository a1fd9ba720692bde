//! AF_XDP sockets on a veth pair: what is sent arrives, frames are conserved, refusals say why.
//!
//! ```text
//!   namespace "...a"                      namespace "...b"
//!   AF_XDP sockets -> veth-a ============ veth-b -> packet socket
//!                     2 queues             2 queues
//! ```

#![allow(clippy::unwrap_used, reason = "a test says what failed by panicking")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lnet_io::netlink::Interface;
use lnet_io::reactor::{Reactor, Token, Waiter};
use lnet_io::xsk::{
    Binding, CHUNK_BYTES, Census, Frame, Kick, Queue, QueueConfig, QueueLabel, ReclaimError, RingDescriptor,
    RingSizes, Socket, SocketError, Umem, UmemConfig, open_queue, open_queue_with,
};
use lnet_tests::netns::{
    Inside, NET_ADMIN, NET_RAW, Netns, SYS_ADMIN, Wiring, enter, enter_here, ip, require_privilege,
};
use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RawProtocol, RecvFlags, SocketFlags, SocketType};
use rustix::thread::{CapabilitySet, capabilities};

/// An EtherType for experiments (IEEE 802, local experimental 1).
const ETHERTYPE: u16 = 0x88b5;
const ETHERNET_HEADER_BYTES: usize = 14;

/// A veth pair between two namespaces; the thread is in the first one until this value is dropped.
struct Wire {
    _inside: Inside,
    netns: Netns,
}

impl Wire {
    /// `None` where this machine's user asked to leave privileged tests out.
    fn new(mtu_bytes: u16) -> Option<Self> {
        if !require_privilege("AF_XDP sockets", &[NET_ADMIN, NET_RAW, SYS_ADMIN]) {
            return None;
        }
        let netns = Netns::new(Wiring { mtu_bytes, ..Wiring::default() });
        Some(Self { _inside: enter_here(netns.a()), netns })
    }

    /// The index of the interface on our side.
    fn interface_index(&self) -> u32 {
        Interface::by_name(&self.netns.a().interface().name).unwrap().index
    }

    /// A packet socket on the far side, with room for `buffer_bytes`.
    fn listen(&self, buffer_bytes: usize) -> OwnedFd {
        let protocol = Protocol::from_raw(RawProtocol::new(u32::from(ETHERTYPE.to_be())).unwrap());
        let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
        let open = || rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol));
        let socket = enter(self.netns.b(), open).unwrap();
        set_socket_recv_buffer_size_force(&socket, buffer_bytes).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(5))).unwrap();
        socket
    }
}

fn umem(chunk_count: u32) -> (Arc<Umem>, Vec<Frame>) {
    Umem::new(&UmemConfig::new(chunk_count)).unwrap()
}

/// An Ethernet frame of `length` bytes that no other `seed` gives.
fn ethernet(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 1]);
    bytes.extend(ETHERTYPE.to_be_bytes());
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    bytes.extend((ETHERNET_HEADER_BYTES..length).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    }));
    bytes
}

/// Pushes a frame in pieces of at most `piece` bytes that start at `offset` of their chunks.
fn push(umem: &Umem, socket: &mut Socket, stock: &mut Vec<Frame>, bytes: &[u8], piece: usize, offset: u16) {
    let count = bytes.chunks(piece).count();
    assert!(socket.tx.free_slots() as usize >= count);
    for (index, run) in bytes.chunks(piece).enumerate() {
        let mut frame = stock.pop().expect("a free frame");
        umem.bytes_mut(&mut frame)[usize::from(offset)..][..run.len()].copy_from_slice(run);
        let descriptor = RingDescriptor { frame, offset, length: run.len() as u32, more: index + 1 < count };
        socket.tx.push(descriptor).unwrap();
    }
    socket.tx.commit();
}

/// Kicks until the kernel has taken everything, and drains completions meanwhile.
fn flush(queue: &mut Queue, index: usize, stock: &mut Vec<Frame>) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let kick = queue.sockets[index].device.kick().unwrap();
        queue.completion.drain(u32::MAX, |frame| stock.push(frame));
        if kick == Kick::Done {
            return;
        }
        assert!(Instant::now() < end, "the kernel does not take the frames: {kick:?}");
    }
}

fn drain_all(umem: &Umem, queue: &mut Queue, stock: &mut Vec<Frame>) {
    let end = Instant::now() + Duration::from_secs(10);
    while stock.len() < umem.chunk_count() as usize {
        queue.completion.drain(64, |frame| stock.push(frame));
        assert!(Instant::now() < end, "only {} of {} frames are back", stock.len(), umem.chunk_count());
    }
}

#[test]
fn what_is_sent_arrives() {
    let Some(wire) = Wire::new(65_535) else { return };
    let listener = wire.listen(8 << 20);
    let (umem, mut stock) = umem(64);
    let mut queue = open_queue(&umem, &QueueConfig::new(wire.interface_index(), 1)).unwrap();
    // Length of the frame, bytes of a piece, offset in the chunk.
    let cases = [
        (60, 4096, 0),
        (1514, 4096, 2582),
        (4096, 4096, 0),
        (4097, 4096, 0),
        (9014, 4096, 0),
        (9014, 3840, 256),
        (1500, 100, 7),
        // The most descriptors that a frame may have.
        (1800, 100, 0),
        (65_549, 3856, 240),
        (65_549, 4096, 0),
    ];
    let mut buffer = vec![0; 1 << 17];
    for (seed, (length, piece, offset)) in (1..).zip(cases) {
        let sent = ethernet(length, seed);
        push(&umem, &mut queue.sockets[0], &mut stock, &sent, piece, offset);
        assert_eq!(queue.sockets[0].device.kick().unwrap(), Kick::Done);
        let (count, _) = rustix::net::recv(&listener, &mut buffer[..], RecvFlags::empty()).unwrap();
        assert!(buffer[..count] == sent, "{length} bytes in pieces of {piece}: {count} other ones arrived");
        drain_all(&umem, &mut queue, &mut stock);
    }
    assert_eq!(umem.census(), Census { user: 64, kernel: 0 });
    let statistics = queue.sockets[0].device.statistics().unwrap();
    assert_eq!((statistics.tx_invalid_descs, statistics.rx_dropped), (0, 0));
    assert!(statistics.tx_ring_empty_descs > 0, "each kick ends at an empty ring");
    assert_eq!(umem.bad_descriptors(), 0);
}

#[test]
fn registered_memory_is_sent_from_where_it_lies() {
    let Some(wire) = Wire::new(65_535) else { return };
    let listener = wire.listen(8 << 20);
    let config = UmemConfig { registered_bytes: 1 << 20, ..UmemConfig::new(8) };
    let (umem, mut stock) = Umem::new(&config).unwrap();
    let mut queue = open_queue(&umem, &QueueConfig::new(wire.interface_index(), 0)).unwrap();
    let mut payload = umem.register(200_000).unwrap();
    payload.copy_from_slice(&ethernet(200_000, 1));
    let header = ethernet(ETHERNET_HEADER_BYTES, 0);
    let mut buffer = vec![0; 1 << 17];
    let mut registered = 0;
    for range in [0..46, 100..1500, 4095..4097, 1..65_536, 69_632..69_632 + 65_535, 199_000..200_000] {
        let mut head = stock.pop().unwrap();
        umem.bytes_mut(&mut head)[..header.len()].copy_from_slice(&header);
        let head = RingDescriptor { frame: head, offset: 0, length: header.len() as u32, more: true };
        let tx = &mut queue.sockets[0].tx;
        tx.push(head).unwrap();
        let mut runs = payload.runs(range.clone());
        registered += runs.len() as u64;
        while let Some(run) = runs.next() {
            tx.push_registered(run, runs.len() != 0).unwrap();
        }
        tx.commit();
        assert!(payload.is_in_flight(range.clone()));
        assert_eq!(queue.sockets[0].device.kick().unwrap(), Kick::Done);
        let (count, _) = rustix::net::recv(&listener, &mut buffer[..], RecvFlags::empty()).unwrap();
        let (arrived_header, arrived) = buffer[..count].split_at(header.len());
        assert!(arrived_header == header && arrived == &payload[range.clone()], "{range:?}: {count} bytes");
        drain_all(&umem, &mut queue, &mut stock);
        // Payload completes with the frame that it belongs to.
        assert!(!payload.is_in_flight(range));
        assert_eq!(queue.completion.registered(), registered);
    }
    assert_eq!(queue.sockets[0].device.statistics().unwrap().tx_invalid_descs, 0);
    assert_eq!((umem.bad_descriptors(), umem.census()), (0, Census { user: 8, kernel: 0 }));

    // What the kernel had when its sockets were closed has no owner until the kernel has let go.
    queue.sockets[0].tx.push_registered(payload.runs(0..60).next().unwrap(), false).unwrap();
    drop((payload, queue));
    assert!(umem.register(1 << 20).is_none());
    umem.reclaim_queue(wire.interface_index(), 0, Duration::from_secs(5)).unwrap();
    assert!(umem.register(1 << 20).is_some());
}

/// Frames are in the fill ring before the bind, and are back where that is refused: veth has no zero copy,
/// and no queue of that number. Another interface has the same memory in a mode of its own.
#[test]
fn a_queue_begins_with_frames_in_a_mode_of_its_interface() {
    let Some(wire) = Wire::new(1500) else { return };
    ip(wire.netns.a(), "link add other0 type veth peer name other1");
    ip(wire.netns.a(), "link set other0 up");
    ip(wire.netns.a(), "link set other1 up");
    let (umem, mut stock) = umem(64);
    let good = QueueConfig::new(wire.interface_index(), 0);
    let zero_copy = Binding { zero_copy: true, multi_buffer: false };
    let refused =
        open_queue_with(&umem, &QueueConfig { binding: zero_copy, ..good }, &mut stock).unwrap_err();
    assert!(matches!(refused, SocketError::NoZeroCopy { .. }), "{refused}");
    let nowhere = QueueConfig { queue_index: 9, ..good };
    open_queue_with(&umem, &nowhere, &mut stock).unwrap_err();
    assert_eq!((stock.len(), umem.census()), (64, Census { user: 64, kernel: 0 }));

    let rings = RingSizes { fill: 16, ..good.rings };
    let queue = open_queue_with(&umem, &QueueConfig { rings, ..good }, &mut stock).unwrap();
    assert_eq!((queue.binding, stock.len()), (Binding::COPY, 48));
    let other = Interface::by_name("other0").unwrap().index;
    let one_buffer = Binding { multi_buffer: false, ..Binding::COPY };
    let other_config = QueueConfig { rings, binding: one_buffer, ..QueueConfig::new(other, 0) };
    let other_queue = open_queue_with(&umem, &other_config, &mut stock).unwrap();
    assert_eq!((other_queue.binding, stock.len()), (one_buffer, 32));
    assert_eq!(umem.census(), Census { user: 32, kernel: 32 });
    drop((queue, other_queue));
    for index in [wire.interface_index(), other] {
        assert_eq!(umem.reclaim_queue(index, 0, Duration::from_secs(5)).unwrap().len(), 16);
    }
}

/// Two queues, three sockets each, all on one UMEM: 100,000 frames go out, and each comes back.
#[test]
fn frames_are_conserved() {
    let Some(wire) = Wire::new(9000) else { return };
    let (umem, mut all) = umem(512);
    let rings = RingSizes { fill: 64, completion: 128, rx: 64, tx: 64 };
    let config = |queue_index| QueueConfig {
        socket_count: 3,
        rings,
        ..QueueConfig::new(wire.interface_index(), queue_index)
    };
    let mut queues = [0, 1].map(|index| open_queue(&umem, &config(index)).unwrap());
    let mut to_fill = all.split_off(512 - 2 * 20);
    assert_eq!(queues[0].fill.fill(&mut to_fill.split_off(20)), 20);
    assert_eq!(queues[1].fill.fill(&mut to_fill), 20);
    assert_eq!(umem.census(), Census { user: 472, kernel: 40 });

    let mut stocks = [all.split_off(236), all];
    let (mut sent, mut completed) = (0u32, [0u32; 2]);
    let bytes = [ethernet(60, 1), ethernet(5000, 2)];
    while sent < 100_000 {
        for (index, queue) in queues.iter_mut().enumerate() {
            let stock = &mut stocks[index];
            for shard in 0..3 {
                for burst in 0..8 {
                    let socket = &mut queue.sockets[shard];
                    let bytes = &bytes[usize::from(burst == 0)];
                    let count = bytes.len().div_ceil(CHUNK_BYTES as usize);
                    if stock.len() < count || (socket.tx.free_slots() as usize) < count {
                        break;
                    }
                    push(&umem, socket, stock, bytes, CHUNK_BYTES as usize, 0);
                    sent += count as u32;
                }
                let _ = queue.sockets[shard].device.kick().unwrap();
            }
            completed[index] += queue.completion.drain(100, |frame| stock.push(frame));
        }
    }
    for (queue, stock) in queues.iter_mut().zip(&mut stocks) {
        for shard in 0..3 {
            flush(queue, shard, stock);
        }
        let end = Instant::now() + Duration::from_secs(10);
        while stock.len() < 236 {
            queue.completion.drain(100, |frame| stock.push(frame));
            assert!(Instant::now() < end, "only {} of 236 frames are back", stock.len());
        }
        for socket in &queue.sockets {
            assert_eq!(socket.device.statistics().unwrap().tx_invalid_descs, 0);
        }
    }
    assert!(completed.iter().all(|count| *count > 20_000), "{completed:?} of {sent}");
    assert_eq!(umem.census(), Census { user: 472, kernel: 40 });
    assert_eq!(umem.bad_descriptors(), 0);

    drop(queues);
    for queue_index in [0, 1] {
        assert_eq!(
            umem.reclaim_queue(wire.interface_index(), queue_index, Duration::from_secs(5)).unwrap().len(),
            20
        );
    }
    assert_eq!(umem.census(), Census { user: 512, kernel: 0 });
}

#[test]
fn chunks_are_reclaimed_only_when_the_kernel_has_let_go() {
    let Some(wire) = Wire::new(1500) else { return };
    let (umem, mut stock) = umem(8);
    let config = QueueConfig::new(wire.interface_index(), 0);
    let Queue { mut fill, completion, mut sockets, .. } = open_queue(&umem, &config).unwrap();
    assert_eq!(fill.fill(&mut stock), 8);
    let duplicate = sockets[0].device.as_fd().try_clone_to_owned().unwrap();
    let patience = Duration::from_millis(50);
    assert!(matches!(
        umem.reclaim_queue(config.interface_index, 0, patience),
        Err(ReclaimError::InUse { count: 1 })
    ));
    drop(sockets.pop());
    drop(completion);
    assert!(
        matches!(
            umem.reclaim_queue(config.interface_index, 0, patience),
            Err(ReclaimError::InUse { count: 1 })
        ),
        "the fill ring is left"
    );
    drop(fill);
    let refused = umem.reclaim_queue(config.interface_index, 0, patience).unwrap_err();
    assert!(matches!(refused, ReclaimError::StillBound { queue_index: 0, .. }), "{refused}");
    drop(duplicate);
    let from_there = enter(wire.netns.b(), || umem.reclaim_queue(config.interface_index, 0, patience));
    assert_eq!(from_there, Err(ReclaimError::OtherNamespace));
    assert_eq!(umem.census(), Census { user: 0, kernel: 8 });
    let mut stock = umem.reclaim_queue(config.interface_index, 0, Duration::from_secs(5)).unwrap();
    assert_eq!(stock.len(), 8);
    // The UMEM can be registered anew, and the interface may go before the chunks are asked for.
    let mut queue = open_queue(&umem, &config).unwrap();
    queue.fill.fill(&mut stock);
    drop(queue);
    ip(wire.netns.a(), "link del veth-a");
    assert_eq!(umem.reclaim_queue(config.interface_index, 0, Duration::from_secs(5)).unwrap().len(), 8);
}

/// A watched descriptor is a duplicate of the socket's, so unwatching is part of closing.
#[test]
fn a_watched_socket_is_closed_by_unwatching() {
    let Some(wire) = Wire::new(1500) else { return };
    let (umem, mut stock) = umem(8);
    let config = QueueConfig::new(wire.interface_index(), 0);
    let mut queue = open_queue(&umem, &config).unwrap();
    let mut waiter = Waiter::new(4, Reactor::default()).unwrap();
    let id = waiter.watch(&queue.sockets[0].device, Token(1)).unwrap();
    let timeout = Some(Duration::from_millis(20));
    assert_eq!(waiter.arm().wait(timeout, |_| {}), Ok(0), "nothing was received");
    // Room to send again is no reason to wake up.
    for seed in 0..8 {
        push(&umem, &mut queue.sockets[0], &mut stock, &ethernet(60, seed), 4096, 0);
    }
    flush(&mut queue, 0, &mut stock);
    drain_all(&umem, &mut queue, &mut stock);
    assert_eq!(waiter.arm().wait(timeout, |_| {}), Ok(0), "nothing was received");
    queue.fill.fill(&mut stock);
    drop(queue);
    let refused = umem.reclaim_queue(config.interface_index, 0, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(refused, ReclaimError::StillBound { .. }), "{refused}");
    waiter.unwatch(&id).unwrap();
    assert_eq!(umem.reclaim_queue(config.interface_index, 0, Duration::from_secs(5)).unwrap().len(), 8);
}

#[test]
fn refusals_say_why() {
    let Some(wire) = Wire::new(1500) else { return };
    let interface_index = wire.interface_index();
    let (first, _frames) = umem(16);
    let good = QueueConfig { patience: Duration::from_millis(20), ..QueueConfig::new(interface_index, 0) };
    let refusal = |umem: &Arc<Umem>, config: QueueConfig| open_queue(umem, &config).unwrap_err();

    for queue_index in [2, 7, u32::MAX] {
        let error = refusal(&first, QueueConfig { queue_index, ..good });
        assert!(matches!(error, SocketError::NoSuchQueue { .. }), "{error}");
        let expected = format!("interface veth-a (index {interface_index}) has no queue {queue_index}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    let error = refusal(&first, QueueConfig { interface_index: 999_999, ..good });
    assert_eq!(error, SocketError::NoInterface { interface_index: 999_999 });
    for (rings, ring, entries) in [
        (RingSizes { rx: 3, ..good.rings }, "rx", 3),
        (RingSizes { tx: 0, ..good.rings }, "tx", 0),
        (RingSizes { fill: 1 << 17, ..good.rings }, "fill", 1 << 17),
        (RingSizes { completion: 2047, ..good.rings }, "completion", 2047),
    ] {
        let error = refusal(&first, QueueConfig { rings, ..good });
        assert_eq!(error, SocketError::RingSize { ring, entries });
        assert!(error.to_string().contains(&format!("{ring} ring of {entries} entries")), "{error}");
    }
    assert_eq!(refusal(&first, QueueConfig { socket_count: 0, ..good }), SocketError::NoSockets);

    // What was refused has left nothing behind: the largest rings are taken.
    let rings = RingSizes { fill: 1 << 16, completion: 1 << 16, rx: 1 << 16, tx: 1 << 16 };
    let queue = open_queue(&first, &QueueConfig { rings, ..good }).unwrap();
    let (second, _frames) = umem(16);
    for busy in [&first, &second] {
        let error = refusal(busy, good);
        assert!(
            matches!(error, SocketError::QueueBusy(_))
                && error.to_string().contains("queue 0 of interface veth-a (index"),
            "{error}"
        );
    }
    let other = open_queue(&first, &QueueConfig { queue_index: 1, ..good }).unwrap();
    let error = refusal(&first, QueueConfig { queue_index: 2, ..good });
    assert!(matches!(error, SocketError::NoSuchQueue(QueueLabel { queue_index: 2, .. })), "{error}");

    // The kernel frees a queue some time after its sockets were closed; patience covers that.
    drop((queue, other));
    drop(open_queue(&second, &QueueConfig { patience: Duration::from_secs(5), ..good }).unwrap());
}

#[test]
fn an_interface_that_goes_is_noticed() {
    let Some(wire) = Wire::new(1500) else { return };
    let (umem, _stock) = umem(16);
    let queue = open_queue(&umem, &QueueConfig::new(wire.interface_index(), 0)).unwrap();
    assert_eq!(queue.sockets[0].device.kick().unwrap(), Kick::Done);
    queue.sockets[0].device.wake_fill().unwrap();
    ip(wire.netns.a(), "link set veth-a down");
    let error = queue.sockets[0].device.kick().unwrap_err();
    assert!(matches!(error, SocketError::LinkDown { .. }), "{error}");
    assert!(matches!(queue.sockets[0].device.wake_fill(), Err(SocketError::LinkDown { .. })));
    ip(wire.netns.a(), "link set veth-a up");
    assert_eq!(queue.sockets[0].device.kick().unwrap(), Kick::Done);
    ip(wire.netns.a(), "link del veth-a");
    let error = queue.sockets[0].device.kick().unwrap_err();
    assert!(matches!(error, SocketError::Detached { .. }), "{error}");
}

/// Capabilities belong to threads, so taking some from this test's does not concern the others.
#[test]
fn missing_privileges_are_named() {
    let Some(wire) = Wire::new(1500) else { return };
    let config = QueueConfig::new(wire.interface_index(), 0);
    let all = capabilities(None).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let without = |capability: CapabilitySet, umem: &Arc<Umem>| {
        let mut sets = all;
        sets.effective -= capability;
        rustix::thread::set_capabilities(None, sets).unwrap();
        let error = open_queue(umem, &config).map(drop);
        rustix::thread::set_capabilities(None, all).unwrap();
        error
    };
    let (small, _frames) = umem(16);
    let error = without(CapabilitySet::NET_RAW, &small).unwrap_err();
    assert!(error.is_not_permitted() && error.to_string().contains("CAP_NET_RAW"), "{error}");
    match limit {
        // Only a limit that a test can afford to exceed.
        Some(limit_bytes) if limit_bytes < 1 << 30 => {
            let chunk_count = (limit_bytes / u64::from(CHUNK_BYTES)) as u32 + 1;
            let huge_pages = false;
            let (large, _frames) =
                Umem::new(&UmemConfig { huge_pages, ..UmemConfig::new(chunk_count) }).unwrap();
            let error = without(CapabilitySet::IPC_LOCK, &large).unwrap_err();
            let length_bytes = u64::from(chunk_count) * u64::from(CHUNK_BYTES);
            assert_eq!(error, SocketError::MemoryLock { length_bytes, limit_bytes: limit });
            assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
        }
        _ => without(CapabilitySet::IPC_LOCK, &small).unwrap(),
    }
}
