//! The bytes of a packet that an XDP program reads directly: its linear part.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_get_buff_len;
use aya_ebpf::programs::XdpContext;
use lnet_wire::packet::Packet;

/// Largest offset that is looked at: headers lie in front, and the verifier wants to see a bound.
const OFFSET_MAX: usize = 0x7FFF;

/// The linear part of a packet. A frame of several buffers continues behind it, out of reach.
pub(crate) struct Linear {
    start: usize,
    end: usize,
    context: *mut xdp_md,
}

impl Linear {
    #[inline(always)]
    pub(crate) fn new(context: &XdpContext) -> Self {
        Self { start: context.data(), end: context.data_end(), context: context.ctx }
    }

    /// Bytes of the linear part.
    #[inline(always)]
    pub(crate) fn linear_length(&self) -> usize {
        self.end - self.start
    }

    /// Changes the bits `change` of the byte at `offset`; false where the linear part ends before.
    #[inline(always)]
    pub(crate) fn change(&self, offset: usize, change: u8) -> bool {
        if offset > OFFSET_MAX {
            return false;
        }
        let address = self.start + offset;
        // Kept apart from `address`: "address below end" says the same, but the verifier does not see it.
        if core::hint::black_box(address + 1) > self.end {
            return false;
        }
        let byte = address as *mut u8;
        // SAFETY: the byte lies within the linear part, by the comparison above, and is ours to write.
        let value = unsafe { byte.read() };
        // SAFETY: as above.
        unsafe { byte.write(value ^ change) };
        true
    }

    /// The address of `size` bytes at `offset`, checked in the form that the verifier follows: pointer plus
    /// bounded offset plus constant against the end.
    #[inline(always)]
    fn address(&self, offset: usize, size: usize) -> Option<usize> {
        if offset > OFFSET_MAX {
            return None;
        }
        let address = self.start + offset;
        if address + size > self.end { None } else { Some(address) }
    }
}

impl Packet for Linear {
    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let address = self.address(offset, N)?;
        // SAFETY: `address` checked that all N bytes lie within the linear part; bytes need no alignment.
        Some(unsafe { (address as *const [u8; N]).read() })
    }

    #[inline(always)]
    fn has(&self, bytes: usize) -> bool {
        // Most packets are linear, which spares the call.
        // SAFETY: the context is the one that the kernel passed to this run of the program.
        bytes <= self.linear_length() || bytes <= unsafe { bpf_xdp_get_buff_len(self.context) } as usize
    }
}
