//! Buffers that datagrams are sent from, and the runs that they leave in.
//!
//! A *run* is one message to the kernel that has several datagrams to one peer: all as long as the first, but
//! the last, which may be shorter. The kernel takes it through its layers as one packet and cuts it up as
//! late as it can, where the device does not (`UDP_SEGMENT`, udp(7)). A kernel or a device that refuses runs
//! gets each datagram alone, and the socket makes no more.
//!
//! Invariant: the kernel may read a buffer, and what describes it, while its send is under way: from
//! [`Sends::next_run`] until [`Sends::end`].

use core::mem::{size_of, zeroed};
use std::collections::VecDeque;
use std::net::SocketAddr;

use rustix::io::{self, Errno};

use super::super::memory::Slots;
use super::super::socket::write_address;
use super::Refusal;

/// Datagrams of a run at most (`UDP_MAX_SEGMENTS` of the kernels that have the fewest).
const RUN_MAX: usize = 64;
/// Bytes of a run at most: those of the longest UDP datagram over IPv4.
const RUN_BYTES_MAX: usize = 65_507;

/// Control data that names the length of a run's datagrams.
#[repr(C)]
struct Cut {
    header: libc::cmsghdr,
    datagram_bytes: u16,
}

/// What the kernel is told of one datagram, or of the run that begins with it.
struct Slot {
    message: libc::msghdr,
    piece: libc::iovec,
    address: libc::sockaddr_in6,
    cut: Cut,
    to: SocketAddr,
    /// Datagrams that have the same number may be in one run.
    run: Option<u8>,
    /// Datagrams of the run that it leads.
    count: u16,
    /// The one behind it in a run.
    next: u16,
    /// Error of the run that it led, if that says nothing of its datagrams.
    proof: Option<Errno>,
    under_way: bool,
}

/// The buffers, those that were sent from last first.
pub(super) struct Sends {
    slots: Slots,
    /// Never moves: the kernel has pointers into it.
    table: Box<[Slot]>,
    /// Where the datagrams of a run lie, by the slot that leads it.
    pieces: Slots,
    free: Vec<u16>,
    /// Slots that were filled and are in no run yet.
    waiting: VecDeque<u16>,
    /// The kernel's refusal of runs: none are made then.
    runs_refused: Option<Errno>,
}

// SAFETY: the pointers lead into memory that belongs to this value alone, and mean the same on every thread.
unsafe impl Send for Sends {}

impl Sends {
    /// `count` buffers of `bytes`.
    pub(super) fn new(count: u16, bytes: usize) -> io::Result<Self> {
        let slots = Slots::new(usize::from(count), bytes)?;
        let pieces = Slots::new(usize::from(count), RUN_MAX * size_of::<libc::iovec>())?;
        let slot = |_| Slot {
            // SAFETY: all zeros is a message without anything.
            message: unsafe { zeroed() },
            piece: libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 },
            // SAFETY: all zeros is an address of no family.
            address: unsafe { zeroed() },
            cut: Cut {
                // SAFETY: all zeros is a header of no control data.
                header: unsafe { zeroed() },
                datagram_bytes: 0,
            },
            to: SocketAddr::from(([0; 4], 0)),
            run: None,
            count: 0,
            next: 0,
            proof: None,
            under_way: false,
        };
        Ok(Self {
            slots,
            table: (0..count).map(slot).collect(),
            pieces,
            free: (0..count).rev().collect(),
            waiting: VecDeque::with_capacity(count.into()),
            runs_refused: None,
        })
    }

    /// Whether a buffer is free.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Whether datagrams are to be handed to the kernel.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The kernel's refusal of a run whose datagrams it takes: no more are made.
    #[inline]
    pub(super) fn runs_refused(&self) -> Option<Errno> {
        self.runs_refused
    }

    /// Makes no runs, which the kernel refuses.
    pub(super) fn end_runs(&mut self, errno: Errno) {
        self.runs_refused = Some(errno);
    }

    /// How many datagrams were filled, and have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.table.len() - self.free.len()
    }

    /// Has `write` fill a free buffer, whose datagram has as many bytes as that says. Datagrams to one peer
    /// with the same number may be in one run.
    ///
    /// # Panics
    /// If no buffer is free, or more bytes were written than there are.
    #[inline]
    pub(super) fn begin(&mut self, to: SocketAddr, run: Option<u8>, write: impl FnOnce(&mut [u8]) -> usize) {
        let index = *self.free.last().expect("a buffer to send from is free");
        // SAFETY: no send of a free slot is under way.
        let bytes = unsafe { self.slots.bytes_mut(usize::from(index)) };
        let length = write(bytes);
        assert!(length <= bytes.len(), "{length} bytes in a buffer of {}", bytes.len());
        self.free.pop();
        let slot = &mut self.table[usize::from(index)];
        (slot.to, slot.run, slot.proof, slot.under_way) = (to, run, None, true);
        slot.piece = libc::iovec { iov_base: self.slots.address(usize::from(index)).cast(), iov_len: length };
        slot.message.msg_namelen = write_address(&mut slot.address, to);
        slot.message.msg_name = (&raw mut slot.address).cast();
        self.waiting.push_back(index);
    }

    /// Takes the datagrams that wait longest and may leave together, and describes them: the slot that leads
    /// them.
    #[inline]
    pub(super) fn next_run(&mut self) -> Option<u16> {
        let leader = self.waiting.pop_front()?;
        let count = self.gather(leader);
        let pieces = self.pieces.address(usize::from(leader)).cast::<libc::iovec>();
        let slot = &mut self.table[usize::from(leader)];
        slot.count = count;
        slot.message.msg_iovlen = count as _;
        if count == 1 {
            slot.message.msg_iov = &raw mut slot.piece;
            (slot.message.msg_control, slot.message.msg_controllen) = (core::ptr::null_mut(), 0);
            return Some(leader);
        }
        slot.cut.datagram_bytes = slot.piece.iov_len as u16;
        slot.cut.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _;
        (slot.cut.header.cmsg_level, slot.cut.header.cmsg_type) = (libc::SOL_UDP, libc::UDP_SEGMENT);
        slot.message.msg_iov = pieces;
        slot.message.msg_control = (&raw mut slot.cut).cast();
        slot.message.msg_controllen = size_of::<Cut>() as _;
        Some(leader)
    }

    /// Puts those that wait and fit behind a datagram into its run; how many it has then.
    #[inline]
    fn gather(&mut self, leader: u16) -> u16 {
        let Self { table, pieces, waiting, .. } = self;
        let &Slot { to, run, piece: first, .. } = &table[usize::from(leader)];
        let each = first.iov_len;
        let (mut count, mut bytes, mut last) = (1, each, leader);
        if self.runs_refused.is_some() || run.is_none() || each == 0 {
            return 1;
        }
        let pieces = pieces.address(usize::from(leader)).cast::<libc::iovec>();
        while count < RUN_MAX
            && bytes == count * each
            && let Some(next) = waiting.front().copied()
        {
            let &Slot { piece, to: next_to, run: next_run, .. } = &table[usize::from(next)];
            let length = piece.iov_len;
            let fits = next_run == run
                && next_to == to
                && (1..=each).contains(&length)
                && bytes + length <= RUN_BYTES_MAX;
            if !fits {
                break;
            }
            if count == 1 {
                // SAFETY: the position is the leader's first, of as many as a run has datagrams.
                unsafe { pieces.write(first) };
            }
            // SAFETY: the count is below that of the positions.
            let position = unsafe { pieces.add(count) };
            // SAFETY: the position belongs to a run that the kernel does not have yet.
            unsafe { position.write(piece) };
            table[usize::from(last)].next = next;
            waiting.pop_front();
            (count, bytes, last) = (count + 1, bytes + length, next);
        }
        count as u16
    }

    /// The message of the run that a slot leads.
    #[inline]
    pub(super) fn message(&self, leader: u16) -> &libc::msghdr {
        &self.table[usize::from(leader)].message
    }

    /// A run has ended, taken by the kernel or refused. The datagrams of one that was refused go alone, so
    /// that each has an answer of its own: only that is told.
    ///
    /// # Panics
    /// If it was not under way.
    #[inline]
    pub(super) fn end(&mut self, leader: u16, refusal: Option<Errno>, mut tell: impl FnMut(Refusal)) {
        let &Slot { count, proof, .. } = &self.table[usize::from(leader)];
        if let (2.., Some(errno)) = (count, refusal) {
            return self.send_alone(leader, errno);
        }
        if refusal.is_none() {
            self.runs_refused = self.runs_refused.or(proof);
        }
        let mut index = leader;
        for _ in 0..count {
            let slot = &mut self.table[usize::from(index)];
            assert!(core::mem::take(&mut slot.under_way), "send {index} has ended twice");
            self.free.push(index);
            if let Some(errno) = refusal {
                tell(Refusal { to: slot.to, errno });
            }
            index = slot.next;
        }
    }

    #[cold]
    fn send_alone(&mut self, leader: u16, errno: Errno) {
        let mut index = leader;
        for _ in 0..self.table[usize::from(leader)].count {
            let slot = &mut self.table[usize::from(index)];
            assert!(slot.under_way, "send {index} has ended twice");
            slot.run = None;
            self.waiting.push_back(index);
            index = slot.next;
        }
        // Without such a device, or with a socket that leaves checksums out, the kernel has one of these.
        // Old kernels have the second for datagrams that are too long, too.
        let leader = &mut self.table[usize::from(leader)];
        leader.proof =
            Some(errno).filter(|errno| matches!(*errno, Errno::IO | Errno::INVAL | Errno::OPNOTSUPP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9);

    /// Begins four datagrams that leave in one run, and has the kernel refuse that. They leave alone then,
    /// and the first of them ends as is said. What that says of runs.
    fn refused_after(refusal: Errno, first: Option<Errno>) -> Option<Errno> {
        let mut sends = Sends::new(8, 100).unwrap();
        (0..4).for_each(|_| sends.begin(TO, Some(1), |_| 50));
        let leader = sends.next_run().unwrap();
        assert!(!sends.is_waiting(), "one run has all");
        sends.end(leader, Some(refusal), |told| panic!("{told:?}"));
        let mut told = 0;
        for outcome in [first, None, None, None] {
            let alone = sends.next_run().unwrap();
            sends.end(alone, outcome, |_| told += 1);
        }
        assert_eq!((sends.under_way(), told), (0, usize::from(first.is_some())));
        sends.runs_refused()
    }

    #[test]
    fn a_refused_run_is_proof_where_its_first_datagram_is_taken() {
        for device in [Errno::IO, Errno::INVAL, Errno::OPNOTSUPP] {
            assert_eq!(refused_after(device, None), Some(device));
            assert_eq!(
                refused_after(device, Some(Errno::MSGSIZE)),
                None,
                "{device}: the datagram was too long"
            );
        }
        assert_eq!(refused_after(Errno::ACCESS, None), None, "a filter's word is none about runs");
    }
}
