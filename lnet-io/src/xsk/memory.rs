//! Mappings that are given back when their owner goes.

use core::ffi::c_void;
use core::ptr::NonNull;
use std::os::fd::BorrowedFd;

use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of a cache line.
pub(super) const CACHE_LINE_BYTES: usize = 64;

/// What pages an anonymous mapping asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageKind {
    /// Pages of 2 MiB out of the system's pool.
    Huge,
    /// Normal pages.
    Normal,
}

/// A run of zeroed or shared bytes, owned by this value.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length_bytes: usize,
}

// SAFETY: the value only names memory and frees it; who may touch the bytes is its users' business.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; no method reads or writes the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length_bytes` of anonymous zeroed memory; a multiple of 2 MiB if `kind` is huge.
    pub(crate) fn anonymous(length_bytes: usize, kind: PageKind) -> io::Result<Self> {
        let mut flags = MapFlags::PRIVATE;
        if kind == PageKind::Huge {
            flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), length_bytes, prot, flags) }?;
        Self::mapped(base, length_bytes)
    }

    /// Maps `length_bytes` of a socket's ring, which the kernel names by `offset`, shared with the kernel.
    pub(super) fn of_socket(fd: BorrowedFd<'_>, length_bytes: usize, offset: u64) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), length_bytes, prot, flags, fd, offset) }?;
        Self::mapped(base, length_bytes)
    }

    fn mapped(base: *mut c_void, length_bytes: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::Errno::FAULT)?;
        Ok(Self { base, length_bytes })
    }

    /// Has the kernel back all of the memory now, with an error where it cannot: a limit on huge pages would
    /// end the process at the first touch.
    pub(super) fn populate(&self) -> io::Result<()> {
        // SAFETY: the range is this value's own mapping, and the advice does not change its contents.
        unsafe {
            rustix::mm::madvise(self.base.as_ptr().cast(), self.length_bytes, Advice::LinuxPopulateWrite)
        }
    }

    /// Asks the kernel to back the memory with transparent huge pages.
    pub(super) fn advise_huge(&self) -> io::Result<()> {
        // SAFETY: the range is this value's own mapping, and the advice does not change its contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.length_bytes, Advice::LinuxHugepage) }
    }

    /// The first byte.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes from the first to the last.
    pub(super) fn length_bytes(&self) -> usize {
        self.length_bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping that this value owns alone.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length_bytes) };
        // The kernel refuses only ranges that are no mapping.
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// Has the cache fetch the line of an address, if there is memory; reads nothing. On architectures other than
/// `x86_64` and `aarch64` it does nothing.
#[inline]
pub fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every CPU of this architecture has SSE, and a prefetch of no memory does nothing.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch of no memory does nothing, and it changes no register and no flag.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, nomem));
    };
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}
