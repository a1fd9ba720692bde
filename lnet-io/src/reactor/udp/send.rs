//! Buffers that datagrams are sent from.
//!
//! Invariant: the kernel may read a buffer, and what describes it, while its send is under way: from
//! [`Sends::begin`] until [`Sends::end`].

use core::mem::zeroed;
use std::net::SocketAddr;

use rustix::io;

use super::super::memory::Slots;
use super::super::socket::write_address;

/// What the kernel is told of one datagram.
struct Slot {
    message: libc::msghdr,
    piece: libc::iovec,
    address: libc::sockaddr_in6,
    to: SocketAddr,
    under_way: bool,
}

/// The buffers, those that were sent from last first.
pub(super) struct Sends {
    slots: Slots,
    /// Never moves: the kernel has pointers into it.
    table: Box<[Slot]>,
    free: Vec<u16>,
}

// SAFETY: the pointers lead into memory that belongs to this value alone, and mean the same on every thread.
unsafe impl Send for Sends {}

impl Sends {
    /// `count` buffers of `bytes`.
    pub(super) fn new(count: u16, bytes: usize) -> io::Result<Self> {
        let slots = Slots::new(usize::from(count), bytes)?;
        let slot = |_| Slot {
            // SAFETY: all zeros is a message without anything.
            message: unsafe { zeroed() },
            piece: libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 },
            // SAFETY: all zeros is an address of no family.
            address: unsafe { zeroed() },
            to: SocketAddr::from(([0; 4], 0)),
            under_way: false,
        };
        Ok(Self { slots, table: (0..count).map(slot).collect(), free: (0..count).rev().collect() })
    }

    /// Whether a buffer is free.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// How many sends are under way.
    pub(super) fn under_way(&self) -> usize {
        self.table.len() - self.free.len()
    }

    /// Has `write` fill a free buffer and returns its slot, whose message has as many bytes as that says.
    ///
    /// # Panics
    /// If no buffer is free, or more bytes were written than there are.
    #[inline]
    pub(super) fn begin(&mut self, to: SocketAddr, write: impl FnOnce(&mut [u8]) -> usize) -> u16 {
        let index = *self.free.last().expect("a buffer to send from is free");
        // SAFETY: no send of a free slot is under way.
        let bytes = unsafe { self.slots.bytes_mut(usize::from(index)) };
        let length = write(bytes);
        assert!(length <= bytes.len(), "{length} bytes in a buffer of {}", bytes.len());
        self.free.pop();
        let slot = &mut self.table[usize::from(index)];
        (slot.to, slot.under_way) = (to, true);
        slot.piece = libc::iovec { iov_base: self.slots.address(usize::from(index)).cast(), iov_len: length };
        slot.message.msg_namelen = write_address(&mut slot.address, to);
        slot.message.msg_name = (&raw mut slot.address).cast();
        slot.message.msg_iov = &raw mut slot.piece;
        slot.message.msg_iovlen = 1;
        index
    }

    /// The message of a slot.
    #[inline]
    pub(super) fn message(&self, index: u16) -> &libc::msghdr {
        &self.table[usize::from(index)].message
    }

    /// A send has ended; where it went.
    ///
    /// # Panics
    /// If it was not under way.
    #[inline]
    pub(super) fn end(&mut self, index: u16) -> SocketAddr {
        let slot = &mut self.table[usize::from(index)];
        assert!(core::mem::take(&mut slot.under_way), "send {index} has ended twice");
        self.free.push(index);
        slot.to
    }
}
