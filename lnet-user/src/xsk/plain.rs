//! Rings without a kernel, and the kernel's side of them: for tests and simulations of what is above.
//!
//! The kernel's side holds [`KernelFrame`]s, as exclusive as [`Frame`]s, so it can neither write where the
//! user reads nor give a chunk back twice; what a broken kernel might put into a ring is said with the
//! `_raw` methods.

use std::sync::Arc;

use super::config::RingSizes;
use super::error::SocketError;
use super::ring::{CompletionRing, FillRing, Half, OPTION_CONTINUED, RawDescriptor, RxRing, TxRing, pair};
use super::socket::Attachment;
use super::umem::{CHUNK_BYTES, Frame, RingsId, Umem};

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
/// [`SocketError`] if a size is no power of two or too large, or there is no memory.
pub fn rings(
    umem: &Arc<Umem>,
    sizes: &RingSizes,
    start: u32,
) -> Result<(UserRings, KernelRings), SocketError> {
    sizes.check()?;
    let attachment = Arc::new(Attachment::Plain);
    umem.registry().attached.push(Arc::downgrade(&attachment));
    let fault = |source| SocketError::PlainMemory { source };
    let (fill, kernel_fill) = pair::<u64>(sizes.fill, start, &attachment).map_err(fault)?;
    let (kernel_completion, completion) = pair::<u64>(sizes.completion, start, &attachment).map_err(fault)?;
    let (kernel_rx, rx) = pair::<RawDescriptor>(sizes.rx, start, &attachment).map_err(fault)?;
    let (tx, kernel_tx) = pair::<RawDescriptor>(sizes.tx, start, &attachment).map_err(fault)?;
    let own = || Arc::clone(umem);
    let user = UserRings {
        fill: FillRing::new(fill, own(), RingsId::PLAIN),
        completion: CompletionRing::new(completion, own(), RingsId::PLAIN),
        rx: RxRing::new(rx, own(), RingsId::PLAIN),
        tx: TxRing::new(tx, own(), RingsId::PLAIN),
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
        let address = self.umem.give(frame.0, RingsId::PLAIN) + u64::from(offset);
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
            if self.umem.area().contains(address) {
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

    /// Says whether the user has to kick the kernel after sending.
    pub fn set_needs_wakeup(&self, needs_wakeup: bool) {
        self.half.set_needs_wakeup(needs_wakeup);
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
        let written = self.half.write(self.umem.give(frame.0, RingsId::PLAIN));
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
