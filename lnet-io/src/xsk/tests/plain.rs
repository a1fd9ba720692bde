//! Rings without a kernel, and the kernel's side of them: for tests and simulations of what is above.
//!
//! The kernel's side holds [`KernelFrame`]s, as exclusive as [`Frame`]s, so it can neither write where the
//! user reads nor give a chunk back twice; what a broken kernel might put into a ring is said with the
//! `_raw` methods.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

use super::config::RingSizes;
use super::error::{SocketError, UmemError};
use super::memory::{CACHE_LINE_BYTES, Mapping, PageKind};
use super::ring::{
    CompletionRing, Entry, FLAG_NEED_WAKEUP, FillRing, Half, Layout, OPTION_CONTINUED, RawDescriptor, RxRing,
    Side, TxRing,
};
use super::socket::{Attachment, QueueId};
use super::umem::{CHUNK_BYTES, Frame, RingsId, Umem, UmemConfig};

/// Who holds a chunk that the stand-in for the kernel has.
const STAND_IN: u8 = 1;
/// What the rings give frames by.
const RINGS: RingsId = RingsId::of_queue(0);

impl Umem {
    /// A UMEM on normal pages.
    pub fn plain(chunk_count: u32) -> Result<(Arc<Self>, Vec<Frame>), UmemError> {
        Self::plain_with(&UmemConfig::new(chunk_count))
    }

    /// As [`Umem::plain`], with registered memory, but without a choice of pages.
    pub fn plain_with(config: &UmemConfig) -> Result<(Arc<Self>, Vec<Frame>), UmemError> {
        Self::new(&UmemConfig { huge_pages: false, ..*config })
    }

    /// Takes a chunk from the kernel for a stand-in of it.
    fn take_as_kernel(&self, address: u64) -> Option<Frame> {
        self.pass(address, RINGS, STAND_IN)
    }
}

/// Producer's and consumer's side of a ring of `size` entries, both indices at `start`, its parts on cache
/// lines of their own as the kernel's are.
fn pair<T: Entry>(size: u32, start: u32, attachment: &Arc<Attachment>) -> io::Result<(Half<T>, Half<T>)> {
    let [producer, consumer, flags, entries] = [0, 1, 2, 3].map(|line| line * CACHE_LINE_BYTES as u64);
    let layout = Layout { producer, consumer, flags, entries, size };
    let memory = Arc::new(Mapping::anonymous(layout.length_bytes::<T>(), PageKind::Normal)?);
    let half = |side| Half::over(Arc::clone(&memory), &layout, side, start, Arc::clone(attachment));
    let (producer, consumer) = (half(Side::Producer)?, half(Side::Consumer)?);
    for index in [producer.ours(), consumer.ours()] {
        index.store(start, Ordering::Relaxed);
    }
    Ok((producer, consumer))
}

impl<T: Entry> Half<T> {
    /// Says whether the user has to wake this side.
    fn set_needs_wakeup(&self, needs_wakeup: bool) {
        self.flags().store(if needs_wakeup { FLAG_NEED_WAKEUP } else { 0 }, Ordering::Relaxed);
    }
}

/// The user's side: what [`super::Queue`] holds for one socket.
#[derive(Debug)]
pub struct UserRings {
    /// Frames to receive into.
    pub fill: FillRing,
    /// Sent frames.
    pub completion: CompletionRing,
    /// Received frames.
    pub rx: RxRing,
    /// Frames to send.
    pub tx: TxRing,
}

/// The kernel's side.
#[derive(Debug)]
pub struct KernelRings {
    /// Frames to receive into.
    pub fill: KernelFill,
    /// Sent frames.
    pub completion: KernelCompletion,
    /// Received frames.
    pub rx: KernelRx,
    /// Frames to send.
    pub tx: KernelTx,
}

/// Both sides of a set of rings over `umem`, all indices starting at `start` (to test their wrap).
///
/// # Errors
/// [`SocketError`] if a size is no power of two or too large.
pub fn rings(
    umem: &Arc<Umem>,
    sizes: &RingSizes,
    start: u32,
) -> Result<(UserRings, KernelRings), SocketError> {
    sizes.check()?;
    let fd = eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor in place of a socket");
    let queue = QueueId { namespace: None, interface_index: 0, queue_index: 0 };
    let attachment = Arc::new(Attachment { fd, queue, zero_copy: false });
    umem.registry().attached.push(Arc::downgrade(&attachment));
    let (fill, kernel_fill) = pair::<u64>(sizes.fill, start, &attachment).expect("memory for a ring");
    let (kernel_completion, completion) =
        pair::<u64>(sizes.completion, start, &attachment).expect("memory for a ring");
    let (kernel_rx, rx) = pair::<RawDescriptor>(sizes.rx, start, &attachment).expect("memory for a ring");
    let (tx, kernel_tx) = pair::<RawDescriptor>(sizes.tx, start, &attachment).expect("memory for a ring");
    let own = || Arc::clone(umem);
    let user = UserRings {
        fill: FillRing::new(fill, own(), RINGS),
        completion: CompletionRing::new(completion, own(), RINGS),
        rx: RxRing::new(rx, own(), RINGS),
        tx: TxRing::new(tx, own(), RINGS),
    };
    let kernel = KernelRings {
        fill: KernelFill { half: kernel_fill, umem: own() },
        completion: KernelCompletion { half: kernel_completion, umem: own() },
        rx: KernelRx { half: kernel_rx, umem: own() },
        tx: KernelTx { half: kernel_tx, umem: own() },
    };
    Ok((user, kernel))
}

/// The kernel's exclusive right to a chunk that the user gave it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped frame takes its chunk out of use"]
pub struct KernelFrame(Frame);

impl KernelFrame {
    /// The chunk's bytes, [`CHUNK_BYTES`] of them.
    ///
    /// # Panics
    /// If the frame is another UMEM's.
    #[must_use]
    pub fn bytes<'a>(&'a self, umem: &'a Umem) -> &'a [u8] {
        umem.bytes(&self.0)
    }

    /// The chunk's bytes, [`CHUNK_BYTES`] of them, to write.
    ///
    /// # Panics
    /// If the frame is another UMEM's.
    #[must_use]
    pub fn bytes_mut<'a>(&'a mut self, umem: &'a Umem) -> &'a mut [u8] {
        umem.bytes_mut(&mut self.0)
    }

    /// Number of the chunk in its UMEM.
    #[must_use]
    pub fn chunk_index(&self) -> u32 {
        self.0.chunk_index()
    }
}

/// A run of bytes in a chunk that the kernel holds.
#[derive(PartialEq, Eq, Debug)]
pub struct KernelDescriptor {
    /// The chunk.
    pub frame: KernelFrame,
    /// First byte, from the start of the chunk.
    pub offset: u32,
    /// Number of bytes.
    pub length: u32,
    /// Whether the frame on the wire goes on in the next descriptor.
    pub more: bool,
}

/// A run of registered memory that the user sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelRegistered {
    /// First byte, from the start of the UMEM; what [`KernelCompletion::complete_raw`] gives back.
    pub address: u64,
    /// Number of bytes.
    pub length: u32,
    /// Whether the frame on the wire goes on in the next descriptor.
    pub more: bool,
}

/// What the user sends.
#[derive(PartialEq, Eq, Debug)]
pub enum KernelSent {
    /// Out of a frame.
    Frame(KernelDescriptor),
    /// Out of registered memory.
    Registered(KernelRegistered),
}

/// Takes what the user fills in.
#[derive(Debug)]
pub struct KernelFill {
    half: Half<u64>,
    umem: Arc<Umem>,
}

impl KernelFill {
    /// The next chunk to receive into.
    pub fn take(&mut self) -> Option<KernelFrame> {
        while self.half.available(1) > 0 {
            let address = self.half.read()?;
            self.half.publish();
            // An address that was also given back raw may be with the user again.
            if let Some(frame) = self.umem.take_as_kernel(address) {
                return Some(KernelFrame(frame));
            }
        }
        None
    }

    /// Says whether the user has to wake the kernel after filling.
    pub fn set_needs_wakeup(&self, needs_wakeup: bool) {
        self.half.set_needs_wakeup(needs_wakeup);
    }
}

/// Delivers received frames.
#[derive(Debug)]
pub struct KernelRx {
    half: Half<RawDescriptor>,
    umem: Arc<Umem>,
}

impl KernelRx {
    /// Gives the user a run of received bytes.
    ///
    /// # Errors
    /// The descriptor comes back when the ring is full.
    ///
    /// # Panics
    /// If the frame is another UMEM's.
    pub fn deliver(&mut self, descriptor: KernelDescriptor) -> Result<(), KernelDescriptor> {
        if self.half.available(1) == 0 {
            return Err(descriptor);
        }
        let KernelDescriptor { frame, offset, length, more } = descriptor;
        let address = self.umem.give(frame.0, RINGS) + u64::from(offset);
        let options = if more { OPTION_CONTINUED } else { 0 };
        let written = self.half.write(RawDescriptor { address, length, options });
        debug_assert!(written, "the ring has room for an entry");
        self.half.publish();
        Ok(())
    }

    /// Puts any descriptor into the ring; `false` if it is full.
    pub fn deliver_raw(&mut self, address: u64, length: u32, options: u32) -> bool {
        let written =
            self.half.available(1) > 0 && self.half.write(RawDescriptor { address, length, options });
        self.half.publish();
        written
    }
}

/// Takes what the user sends.
#[derive(Debug)]
pub struct KernelTx {
    half: Half<RawDescriptor>,
    umem: Arc<Umem>,
}

impl KernelTx {
    /// The next descriptor to send, of a user that sends out of frames only.
    ///
    /// # Panics
    /// If it is of registered memory.
    pub fn take(&mut self) -> Option<KernelDescriptor> {
        match self.take_sent()? {
            KernelSent::Frame(descriptor) => Some(descriptor),
            KernelSent::Registered(run) => panic!("registered memory was sent: {run:?}"),
        }
    }

    /// The next descriptor to send.
    pub fn take_sent(&mut self) -> Option<KernelSent> {
        while self.half.available(1) > 0 {
            let RawDescriptor { address, length, options } = self.half.read()?;
            self.half.publish();
            let more = options & OPTION_CONTINUED != 0;
            if self.umem.area().chunk_of(address).is_some() {
                return Some(KernelSent::Registered(KernelRegistered { address, length, more }));
            }
            if let Some(frame) = self.umem.take_as_kernel(address) {
                let offset = (address % u64::from(CHUNK_BYTES)) as u32;
                let frame = KernelFrame(frame);
                return Some(KernelSent::Frame(KernelDescriptor { frame, offset, length, more }));
            }
        }
        None
    }
}

/// Gives sent frames back.
#[derive(Debug)]
pub struct KernelCompletion {
    half: Half<u64>,
    umem: Arc<Umem>,
}

impl KernelCompletion {
    /// Gives a sent frame back to the user.
    ///
    /// # Errors
    /// The frame comes back when the ring is full.
    ///
    /// # Panics
    /// If the frame is another UMEM's.
    pub fn complete(&mut self, frame: KernelFrame) -> Result<(), KernelFrame> {
        if self.half.available(1) == 0 {
            return Err(frame);
        }
        let written = self.half.write(self.umem.give(frame.0, RINGS));
        debug_assert!(written, "the ring has room for an entry");
        self.half.publish();
        Ok(())
    }

    /// Puts any address into the ring; `false` if it is full.
    pub fn complete_raw(&mut self, address: u64) -> bool {
        let written = self.half.available(1) > 0 && self.half.write(address);
        self.half.publish();
        written
    }
}

#[cfg(test)]
#[path = "plain_tests.rs"]
mod tests;
