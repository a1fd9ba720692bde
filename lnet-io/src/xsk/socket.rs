//! AF_XDP sockets: opening those of a queue, waking the kernel, counters.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpMmapOffsets, XdpRingOffset, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, sockopt};
use rustix::process::{Resource, getrlimit};

use super::config::{Binding, QueueConfig};
use super::error::{QueueLabel, SocketError};
use super::memory::Mapping;
use super::ring::{CompletionRing, Entry, FillRing, Half, Layout, RxRing, Side, TxRing};
use super::umem::{CHUNK_BYTES, Frame, RingsId, Umem};

/// A queue of an interface of a network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueueId {
    /// Inode of the network namespace; `None` where there is no /proc to tell.
    pub(super) namespace: Option<u64>,
    pub(super) interface_index: u32,
    pub(super) queue_index: u32,
}

impl QueueId {
    pub(super) fn here(interface_index: u32, queue_index: u32) -> Self {
        use std::os::unix::fs::MetadataExt;
        let namespace = std::fs::metadata("/proc/thread-self/ns/net").map(|metadata| metadata.ino()).ok();
        Self { namespace, interface_index, queue_index }
    }

    #[cold]
    pub(super) fn label(&self) -> QueueLabel {
        QueueLabel { interface: interface_label(self.interface_index), queue_index: self.queue_index }
    }
}

/// What keeps a UMEM in use: a socket, open until its rings and its handle are gone.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) fd: OwnedFd,
    pub(super) queue: QueueId,
    pub(super) zero_copy: bool,
}

/// The rings that the sockets of a queue share, and the sockets.
///
/// The owner of `fill` and `completion` serves all of the queue's sockets: it refills, and passes on what
/// the others sent. Dropping a socket, and with a queue's first socket its shared rings, closes it; frames
/// that the kernel then holds stay there until [`Umem::reclaim_queue`].
#[derive(Debug)]
pub struct Queue {
    /// Frames to receive into.
    pub fill: FillRing,
    /// Sent frames.
    pub completion: CompletionRing,
    /// The sockets, as many as configured.
    pub sockets: Vec<Socket>,
    /// How the sockets have their frames: what was asked for, but without `multi_buffer` on a kernel before
    /// Linux 6.6.
    pub binding: Binding,
}

/// An AF_XDP socket with its own rings. It can move between threads.
#[derive(Debug)]
pub struct Socket {
    /// What the kernel is told of the rings by.
    pub device: Device,
    /// Received frames; `None` if it only sends.
    pub rx: Option<RxRing>,
    /// Frames to send.
    pub tx: TxRing,
}

/// The kernel's side of a socket.
#[derive(Clone, Debug)]
pub struct Device(Arc<Attachment>);

/// What a kick achieved. Only `Done` means that the kernel has taken all that was committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "frames may be left in the transmit ring"]
pub enum Kick {
    /// The transmit ring was worked off, or the driver will do so by itself.
    Done,
    /// The kernel stopped after a batch (32 descriptors), for want of room in the completion ring or of
    /// socket send space: drain the completion ring and kick again (`EAGAIN`).
    Again,
    /// The device dropped a frame, which completes as if sent, and the kernel stopped there: kick again
    /// (`EBUSY`).
    Busy,
    /// The kernel had no memory for a frame, which is still in the ring: kick again later (`ENOBUFS`).
    NoBuffers,
}

/// Counters that the kernel keeps for a socket (`XDP_STATISTICS`), since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Statistics {
    /// Frames dropped for other reasons than the ones below, such as want of a free chunk.
    pub rx_dropped: u64,
    /// Descriptors of the fill ring that the kernel did not take.
    pub rx_invalid_descs: u64,
    /// Descriptors of the transmit ring that the kernel did not take. Their chunks do not come back.
    pub tx_invalid_descs: u64,
    /// Frames dropped because the receive ring was full.
    pub rx_ring_full: u64,
    /// Times that the kernel wanted a chunk and the fill ring was empty, over all sockets of the queue.
    pub rx_fill_ring_empty_descs: u64,
    /// Times that the kernel looked into the transmit ring and found nothing.
    pub tx_ring_empty_descs: u64,
}

impl Statistics {
    /// Frames that were for the socket and that the kernel dropped. `rx_fill_ring_empty_descs` is not among
    /// them: the kernel counts a frame that found no buffer in `rx_dropped` as well (net/xdp/xsk.c:
    /// `__xsk_rcv`).
    #[must_use]
    pub const fn receive_losses(&self) -> u64 {
        self.rx_dropped + self.rx_ring_full
    }

    /// Adds what was counted for another socket.
    pub fn add(&mut self, other: &Self) {
        self.rx_dropped += other.rx_dropped;
        self.rx_invalid_descs += other.rx_invalid_descs;
        self.tx_invalid_descs += other.tx_invalid_descs;
        self.rx_ring_full += other.rx_ring_full;
        self.rx_fill_ring_empty_descs += other.rx_fill_ring_empty_descs;
        self.tx_ring_empty_descs += other.tx_ring_empty_descs;
    }
}

impl Device {
    /// Has the kernel send what was committed to the transmit ring: one `sendto`, which never blocks.
    ///
    /// # Errors
    /// [`SocketError`] when the interface is down or gone.
    #[inline]
    pub fn kick(&self) -> Result<Kick, SocketError> {
        match rustix::net::send(self.as_fd(), &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(Kick::Done),
            Err(Errno::AGAIN) => Ok(Kick::Again),
            Err(Errno::BUSY) => Ok(Kick::Busy),
            Err(Errno::NOBUFS) => Ok(Kick::NoBuffers),
            Err(errno) => Err(self.fault("sendto", errno)),
        }
    }

    /// Wakes a driver that waits for the fill ring ([`FillRing::needs_wakeup`]). Never blocks.
    ///
    /// # Errors
    /// [`SocketError`] when the interface is down or gone.
    pub fn wake_fill(&self) -> Result<(), SocketError> {
        let mut nothing = [0u8; 0];
        match rustix::net::recv(self.as_fd(), &mut nothing[..], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => Ok(()),
            Err(errno) => Err(self.fault("recvfrom", errno)),
        }
    }

    /// The kernel's counters.
    ///
    /// # Errors
    /// [`SocketError::System`] if the kernel does not tell.
    pub fn statistics(&self) -> Result<Statistics, SocketError> {
        let raw =
            sockopt::xdp_statistics(self.as_fd()).map_err(|errno| self.fault("XDP_STATISTICS", errno))?;
        Ok(Statistics {
            rx_dropped: raw.rx_dropped,
            rx_invalid_descs: raw.rx_invalid_descs,
            tx_invalid_descs: raw.tx_invalid_descs,
            rx_ring_full: raw.rx_ring_full.unwrap_or(0),
            rx_fill_ring_empty_descs: raw.rx_fill_ring_empty_descs.unwrap_or(0),
            tx_ring_empty_descs: raw.tx_ring_empty_descs.unwrap_or(0),
        })
    }

    #[cold]
    fn fault(&self, operation: &'static str, errno: Errno) -> SocketError {
        Opening::of(&self.0).fault(operation, errno)
    }
}

impl AsFd for Device {
    /// The socket, to poll or to put into a map. A duplicate of it keeps the kernel's socket open.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// Opens the sockets of one queue of one interface on `umem`, with an empty fill ring.
///
/// # Errors
/// [`open_queue_with`]'s.
pub fn open_queue(umem: &Arc<Umem>, config: &QueueConfig) -> Result<Queue, SocketError> {
    open_queue_with(umem, config, &mut Vec::new())
}

/// Opens the sockets of one queue of one interface on `umem`.
///
/// The first socket of an interface with zero copy, and the first one without, register the memory and decide
/// the modes of such sockets; each further queue's first socket shares that, with rings of its own for fill
/// and completion; further sockets of a queue share those as well (net/xdp/xsk.c: `xsk_bind`,
/// `XDP_SHARED_UMEM`).
///
/// Frames of `stock` go into the fill ring before the bind, as many as fit, with which a driver fills its own
/// ring: some receive nothing if there is nothing then.
///
/// # Errors
/// [`SocketError`] says what was refused and what helps. `stock` is as before then, unless the kernel has
/// some of its frames ([`Umem::reclaim_queue`]).
pub fn open_queue_with(
    umem: &Arc<Umem>,
    config: &QueueConfig,
    stock: &mut Vec<Frame>,
) -> Result<Queue, SocketError> {
    config.rings.check()?;
    if config.socket_count == 0 {
        return Err(SocketError::NoSockets);
    }
    let queue = QueueId::here(config.interface_index, config.queue_index);
    let mut registry = umem.registry();
    let mut root = None;
    for attachment in registry.alive() {
        if attachment.queue == queue {
            return Err(SocketError::QueueBusy(queue.label()));
        }
        let is_its = (attachment.queue.namespace, attachment.queue.interface_index)
            == (queue.namespace, queue.interface_index);
        if is_its && attachment.zero_copy == config.binding.zero_copy {
            root = Some(attachment);
        }
    }

    let number = registry.number_of(queue)?;
    let id = RingsId::of_queue(number);
    let zero_copy = config.binding.zero_copy;
    let first = Arc::new(Attachment { fd: open()?, queue, zero_copy });
    let opening = Opening::of(&first);
    if root.is_none() {
        opening.register(umem)?;
    }
    let (fill, completion, offsets) = opening.shared_rings(config, &first)?;
    let mut fill = FillRing::new(fill, Arc::clone(umem), id);
    let receives = |number: u32| config.transmit_only.checked_shr(number).unwrap_or(0) & 1 == 0;
    let socket = opening.socket((config, receives(0)), &offsets, (umem, id), &first)?;
    let lent = stock.split_off(stock.len().saturating_sub(config.rings.fill as usize));
    let addresses: Vec<u64> = lent.iter().map(Frame::address).collect();
    let mut lent = lent;
    fill.fill(&mut lent);
    let bound = match &root {
        None => opening.bind_first(config),
        Some(root) => opening.bind_shared(Opening::of(root).fd, config).map(|()| config.binding),
    };
    let binding = match bound {
        Ok(binding) => binding,
        Err(error) => {
            // A socket that is not bound has given the kernel nothing.
            stock.extend(addresses.into_iter().filter_map(|address| umem.take(address, id)));
            return Err(error);
        }
    };
    // Bound from here on: remembered before anything can fail, for `Umem::reclaim_queue`.
    registry.bound[number] = Some(queue);
    registry.attached.push(Arc::downgrade(&first));

    let mut sockets = vec![socket];
    for number in 1..config.socket_count {
        let attachment = Arc::new(Attachment { fd: open()?, queue, zero_copy });
        let further = Opening::of(&attachment);
        let socket = further.socket((config, receives(number)), &offsets, (umem, id), &attachment)?;
        further.bind_shared(opening.fd, config)?;
        registry.attached.push(Arc::downgrade(&attachment));
        sockets.push(socket);
    }
    if binding.zero_copy {
        // A device that is down has no ring to fill, and says so; it fills that as it comes up.
        let _ = sockets[0].device.wake_fill();
    }
    let completion = CompletionRing::new(completion, Arc::clone(umem), id);
    Ok(Queue { fill, completion, sockets, binding })
}

/// A fresh AF_XDP socket.
pub(super) fn open() -> Result<OwnedFd, SocketError> {
    rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).map_err(
        |source| match source {
            Errno::PERM | Errno::ACCESS => SocketError::NotPermitted { source },
            Errno::AFNOSUPPORT | Errno::SOCKTNOSUPPORT => SocketError::NoXdpSockets { source },
            source => SocketError::System {
                operation: "socket(AF_XDP)",
                queue: QueueLabel { interface: "none yet".to_owned(), queue_index: 0 },
                source,
            },
        },
    )
}

/// A socket on its way to being bound.
#[derive(Clone, Copy)]
pub(super) struct Opening<'a> {
    pub(super) fd: BorrowedFd<'a>,
    pub(super) queue: QueueId,
}

impl<'a> Opening<'a> {
    fn of(attachment: &'a Attachment) -> Self {
        Self { fd: attachment.fd.as_fd(), queue: attachment.queue }
    }

    #[cold]
    pub(super) fn fault(&self, operation: &'static str, source: Errno) -> SocketError {
        let queue = self.queue.label();
        match source {
            Errno::NODEV => SocketError::NoInterface { interface_index: self.queue.interface_index },
            Errno::BUSY => SocketError::QueueBusy(queue),
            Errno::NETDOWN => SocketError::LinkDown { interface: queue.interface },
            Errno::NXIO => SocketError::Detached(queue),
            source => SocketError::System { operation, queue, source },
        }
    }

    fn register(&self, umem: &Umem) -> Result<(), SocketError> {
        let (addr, len) = umem.extent();
        self.register_memory(addr, len)
    }

    /// Registers memory that stays mapped at least until the kernel has pinned its pages, which is now.
    pub(super) fn register_memory(&self, addr: u64, len: u64) -> Result<(), SocketError> {
        let flags = XdpUmemRegFlags::empty();
        let value = XdpUmemReg { addr, len, chunk_size: CHUNK_BYTES, headroom: 0, flags, tx_metadata_len: 0 };
        sockopt::set_xdp_umem_reg(self.fd, value).map_err(|errno| match errno {
            Errno::NOBUFS => SocketError::MemoryLock {
                length_bytes: len,
                limit_bytes: getrlimit(Resource::Memlock).current,
            },
            errno => self.fault("XDP_UMEM_REG", errno),
        })
    }

    /// The rings of a queue's first socket that its others share, and where the parts of all rings lie.
    fn shared_rings(
        &self,
        config: &QueueConfig,
        attachment: &Arc<Attachment>,
    ) -> Result<(Half<u64>, Half<u64>, XdpMmapOffsets), SocketError> {
        let rings = &config.rings;
        sockopt::set_xdp_umem_fill_ring_size(self.fd, rings.fill)
            .map_err(|errno| self.fault("XDP_UMEM_FILL_RING", errno))?;
        sockopt::set_xdp_umem_completion_ring_size(self.fd, rings.completion)
            .map_err(|errno| self.fault("XDP_UMEM_COMPLETION_RING", errno))?;
        let offsets =
            sockopt::xdp_mmap_offsets(self.fd).map_err(|errno| self.fault("XDP_MMAP_OFFSETS", errno))?;
        let fill = (&offsets.fr, rings.fill, XDP_UMEM_PGOFF_FILL_RING);
        let fill = self.ring(fill, Side::Producer, attachment)?;
        let completion = (&offsets.cr, rings.completion, XDP_UMEM_PGOFF_COMPLETION_RING);
        let completion = self.ring(completion, Side::Consumer, attachment)?;
        Ok((fill, completion, offsets))
    }

    /// The socket with its own rings, not bound yet.
    fn socket(
        &self,
        (config, receives): (&QueueConfig, bool),
        offsets: &XdpMmapOffsets,
        (umem, id): (&Arc<Umem>, RingsId),
        attachment: &Arc<Attachment>,
    ) -> Result<Socket, SocketError> {
        let rings = &config.rings;
        let rx = receives.then(|| {
            sockopt::set_xdp_rx_ring_size(self.fd, rings.rx)
                .map_err(|errno| self.fault("XDP_RX_RING", errno))?;
            let rx = self.ring((&offsets.rx, rings.rx, XDP_PGOFF_RX_RING), Side::Consumer, attachment)?;
            Ok::<_, SocketError>(RxRing::new(rx, Arc::clone(umem), id))
        });
        let rx = rx.transpose()?;
        sockopt::set_xdp_tx_ring_size(self.fd, rings.tx).map_err(|errno| self.fault("XDP_TX_RING", errno))?;
        let tx = self.ring((&offsets.tx, rings.tx, XDP_PGOFF_TX_RING), Side::Producer, attachment)?;
        Ok(Socket { device: Device(Arc::clone(attachment)), rx, tx: TxRing::new(tx, Arc::clone(umem), id) })
    }

    /// A ring of so many entries, whose parts lie at these offsets behind the page that names it.
    fn ring<T: Entry>(
        &self,
        (offsets, size, page): (&XdpRingOffset, u32, u64),
        side: Side,
        attachment: &Arc<Attachment>,
    ) -> Result<Half<T>, SocketError> {
        let layout =
            Layout::of_kernel(offsets, size).ok_or(SocketError::NoXdpSockets { source: Errno::OPNOTSUPP })?;
        let memory = Mapping::of_socket(self.fd, layout.length_bytes::<T>(), page)
            .map_err(|errno| self.fault("mmap of a ring", errno))?;
        Half::over(Arc::new(memory), &layout, side, 0, Arc::clone(attachment))
            .map_err(|errno| self.fault("layout of a ring", errno))
    }

    /// Binds an interface's first socket, which decides the modes of all; what is in force then. A mode is
    /// always named: without one the kernel takes zero copy where it can, also for a program that runs in
    /// the network stack, where drivers then refuse to send.
    fn bind_first(&self, config: &QueueConfig) -> Result<Binding, SocketError> {
        let Binding { zero_copy, multi_buffer } = config.binding;
        let mode = if zero_copy { SocketAddrXdpFlags::XDP_ZEROCOPY } else { SocketAddrXdpFlags::XDP_COPY };
        let plain = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | mode;
        let asked = if multi_buffer { plain | SocketAddrXdpFlags::XDP_USE_SG } else { plain };
        match self.bind(asked, config.patience) {
            Ok(()) => Ok(config.binding),
            // Either there is no such queue or, before Linux 6.6, the multi-buffer flag is unknown.
            Err(Errno::INVAL) if multi_buffer && !zero_copy => match self.bind(plain, Duration::ZERO) {
                Ok(()) => Ok(Binding { multi_buffer: false, ..config.binding }),
                Err(_) => Err(SocketError::NoSuchQueue(self.queue.label())),
            },
            Err(errno) => Err(self.not_bound(config.binding, errno)),
        }
    }

    /// Why a socket could not be bound. A driver has answers of its own where zero copy is asked for.
    fn not_bound(&self, binding: Binding, errno: Errno) -> SocketError {
        match errno {
            Errno::NODEV | Errno::BUSY | Errno::NETDOWN | Errno::NXIO => self.fault("bind", errno),
            source if binding.zero_copy => SocketError::NoZeroCopy { queue: self.queue.label(), source },
            // Every other cause of this answer was checked before.
            Errno::INVAL => SocketError::NoSuchQueue(self.queue.label()),
            errno => self.fault("bind", errno),
        }
    }

    /// Binds a socket that shares the registration, and on the same queue the rings, of `root`. The kernel
    /// takes no other flags here: they are the first socket's.
    fn bind_shared(&self, root: BorrowedFd<'_>, config: &QueueConfig) -> Result<(), SocketError> {
        let QueueId { interface_index, queue_index, .. } = self.queue;
        let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface_index, queue_index);
        let addr = SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: root };
        let bound = patiently(config.patience, || rustix::net::bind(self.fd, &addr));
        bound.map_err(|errno| self.not_bound(config.binding, errno))
    }

    pub(super) fn bind(&self, flags: SocketAddrXdpFlags, patience: Duration) -> rustix::io::Result<()> {
        let addr = SocketAddrXdp::new(flags, self.queue.interface_index, self.queue.queue_index);
        patiently(patience, || rustix::net::bind(self.fd, &addr))
    }
}

/// Tries again while the answer is `EBUSY`: the kernel frees a queue from a work queue, some time after the
/// last socket was closed (net/xdp/xsk_buff_pool.c: `xp_put_pool`).
fn patiently(
    patience: Duration,
    mut attempt: impl FnMut() -> rustix::io::Result<()>,
) -> rustix::io::Result<()> {
    let end = Instant::now() + patience;
    let mut pause = Duration::from_micros(500);
    loop {
        match attempt() {
            Err(Errno::BUSY) if Instant::now() < end => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
            answer => return answer,
        }
    }
}

/// An interface's name and index, for messages.
#[cold]
fn interface_label(interface_index: u32) -> String {
    // Any socket but one of AF_XDP answers `SIOCGIFNAME`.
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let name = socket.and_then(|socket| netdevice::index_to_name(socket, interface_index));
    match name {
        Ok(name) => format!("{name} (index {interface_index})"),
        Err(_) => format!("with index {interface_index}"),
    }
}
