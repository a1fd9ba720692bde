//! The memory node of the machine that bytes lie on.

use std::ptr;

/// The memory node that the first of these bytes lies on (`move_pages(2)`, without nodes to move to). `None`
/// where there are no bytes, where nothing was written to their page yet, which has no place then, and where
/// the kernel does not tell.
pub(crate) fn memory_node(bytes: &[u8]) -> Option<u16> {
    let page = bytes.first()?;
    let (pages, mut status) = ([ptr::from_ref(page).cast::<libc::c_void>()], [-1_i32]);
    // SAFETY: one address and room for one status are what the count says. Without nodes the call only tells
    // where the page is: nothing is read or written at the address, and nothing is moved.
    let told = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0_i32,
            1_u64,
            pages.as_ptr(),
            ptr::null::<i32>(),
            status.as_mut_ptr(),
            0_i32,
        )
    };
    if told == 0 { u16::try_from(status[0]).ok() } else { None }
}

#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_lie_on_a_node_and_others_on_none() {
        let written = vec![1_u8; 1 << 16];
        // A kernel without NUMA, or a sandbox, tells nothing.
        if let Some(node) = memory_node(&written) {
            let directory = format!("/sys/devices/system/node/node{node}");
            assert!(node == 0 || std::path::Path::new(&directory).exists(), "{directory}");
        }
        assert_eq!(memory_node(&[]), None);
    }
}
