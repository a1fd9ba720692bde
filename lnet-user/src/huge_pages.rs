//! Large tables in huge pages.

// An allocator is unsafe code by its trait.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;

use rustix::mm::{Advice, madvise};

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The system's allocator, which has the kernel put what takes a huge page (2 MiB) or more into huge pages, where that
/// is left to programs (`/sys/kernel/mm/transparent_hugepage/enabled`: `madvise`).
///
/// For tables that are made at their full size, as those of a shard are: what grows is copied, where the system's allocator
/// alone would have had its pages moved.
///
/// For programs that post many entries: the tables of a million take 200 MB, and half of what it takes to look one up
/// is finding out where its page lies.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: lnet_user::HugePages = lnet_user::HugePages;
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HugePages;

// SAFETY: all is the system's allocator's doing; advice changes how the kernel keeps the bytes, not what they are.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps what both ask for.
        advised(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        advised(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above; `memory` is the system's allocator's.
        advised(unsafe { System.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Asks for huge pages for all that lies in whole ones.
#[inline]
fn advised(memory: *mut u8, length: usize) -> *mut u8 {
    if length >= HUGE_PAGE_BYTES {
        advise(memory, length);
    }
    memory
}

#[cold]
fn advise(memory: *mut u8, length: usize) {
    let Some(memory) = NonNull::new(memory) else { return };
    let before = memory.align_offset(HUGE_PAGE_BYTES);
    let whole = length.saturating_sub(before) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole != 0 {
        // SAFETY: these bytes lie within the allocation.
        let start = unsafe { memory.add(before) };
        // SAFETY: they belong to this process, and the advice changes nothing that it can see. Without it the pages
        // are ordinary ones.
        let _ = unsafe { madvise(start.as_ptr().cast(), whole, Advice::LinuxHugepage) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the kernel was asked for huge pages for the mapping that an address lies in. (Whether it has some to give
    /// is its own affair.)
    fn is_advised(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_its = false;
        for line in maps.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let bounds =
                range.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)));
            if let Some((Ok(from), Ok(to))) = bounds {
                is_its = (from..to).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_its) {
                return flags.split_whitespace().any(|flag| flag == "hg");
            }
        }
        panic!("no mapping has the address {address:x}");
    }

    #[test]
    fn what_is_large_lies_in_huge_pages() {
        // A kernel without huge pages refuses the advice.
        let is_offered = std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap();
        for (bytes, is_large) in [(8 * HUGE_PAGE_BYTES, true), (HUGE_PAGE_BYTES / 2, false)] {
            let layout = Layout::from_size_align(bytes, 64).unwrap();
            // SAFETY: the layout has a size.
            let memory = unsafe { HugePages.alloc_zeroed(layout) };
            assert!(!memory.is_null());
            // SAFETY: so many bytes were given, zeroed.
            let given = unsafe { std::slice::from_raw_parts_mut(memory, bytes) };
            assert!(given.iter().all(|byte| *byte == 0));
            given.fill(7);
            if is_offered {
                assert_eq!(is_advised(memory as usize + bytes / 2), is_large, "{bytes} bytes");
            }
            // SAFETY: as above.
            let grown = unsafe { HugePages.realloc(memory, layout, 2 * bytes) };
            // SAFETY: so many bytes were given, of which the first ones are those from before.
            let kept = unsafe { std::slice::from_raw_parts(grown, bytes) };
            assert!(kept.iter().all(|byte| *byte == 7));
            // SAFETY: it has this layout now.
            unsafe { HugePages.dealloc(grown, Layout::from_size_align(2 * bytes, 64).unwrap()) };
        }
    }
}
