//! Rings that carry the data of sockets.

use io_uring::IoUring;

/// A ring that takes so many operations at once, and has room for so many completions. The kernel interrupts
/// no thread for it, and says when it wants to be entered.
///
/// # Errors
/// The kernel's refusal; `EINVAL` where it is too old for this.
pub(super) fn make(operations: usize, completions: usize) -> std::io::Result<IoUring> {
    let completions = completions.next_power_of_two() as u32;
    let mut builder = IoUring::builder();
    builder.dontfork().setup_coop_taskrun().setup_taskrun_flag().setup_cqsize(completions);
    builder.build(operations.next_power_of_two() as u32)
}
