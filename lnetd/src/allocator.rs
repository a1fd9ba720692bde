//! Memory that is given back.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Where glibc looks for settings of its own when a process begins.
const VARIABLE: &str = "GLIBC_TUNABLES";
/// Pieces from this size on are mapped and unmapped by themselves. It is glibc's own first value; without
/// being told, it raises that with each large piece that is freed, and then keeps the 20 MiB that loading an
/// XDP program takes for a moment, each time anew.
const SETTING: &str = "glibc.malloc.mmap_threshold=131072";

/// Starts this program anew, in the same process, with an allocator that gives large pieces back; returns if
/// that is so already, if the user has settings, or if it cannot be done: then it merely takes more memory.
pub(crate) fn settle() {
    if env::var_os(VARIABLE).is_some() {
        return;
    }
    if let Ok(program) = env::current_exe() {
        let _ = Command::new(program).args(env::args_os().skip(1)).env(VARIABLE, SETTING).exec();
    }
}
