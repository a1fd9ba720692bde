//! Threads and programs as containers have them: without `io_uring`, and without most capabilities.

use std::collections::BTreeMap;

use lnet_io::reactor::ReactorChoice;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, remove_capability_from_bounding_set, set_capabilities};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

/// The numbers of `io_uring_setup`, `io_uring_enter` and `io_uring_register`, on every architecture
/// (include/uapi/asm-generic/unistd.h).
pub const IO_URING_CALLS: [i64; 3] = [425, 426, 427];

/// Environment variable: the reactor that nodes of tests are to have, as `lnet-without-uring` says it.
pub const REACTOR: &str = "LNET_TESTS_REACTOR";

/// Asserts that nodes of this process have the reactor that [`REACTOR`] names, if it names one.
///
/// # Panics
/// When they would have another one.
pub fn assert_reactor() {
    if let Some(expected) = std::env::var_os(REACTOR) {
        assert_eq!(expected, ReactorChoice::Auto.choose().reactor.name());
    }
}

/// Refuses `io_uring` to the calling thread, and to what it starts: with `EPERM` as the default profile of
/// container engines does, or with `ENOSYS` as a kernel of old.
///
/// # Panics
/// When the kernel refuses the filter.
pub fn refuse_io_uring(errno: Errno) {
    refuse_calls(&IO_URING_CALLS, errno);
}

/// Refuses these system calls to the calling thread, and to what it starts.
///
/// # Panics
/// When the kernel refuses the filter.
pub fn refuse_calls(calls: &[i64], errno: Errno) {
    refuse(calls.iter().map(|&call| (call, Vec::new())).collect(), errno);
}

/// Refuses this option of sockets to the calling thread, and to what it starts, as a kernel does that does
/// not know it.
///
/// # Panics
/// When the kernel refuses the filter.
pub fn refuse_option(level: i32, option: i32) {
    let is = |argument, value: i32| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value as u64)
    };
    let conditions = [is(1, level), is(2, option)].into_iter().collect::<Result<_, _>>();
    let rule = conditions.and_then(SeccompRule::new).expect("a rule");
    refuse(BTreeMap::from([(libc::SYS_setsockopt, vec![rule])]), Errno::NOPROTOOPT);
}

fn refuse(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: Errno) {
    let refused = SeccompAction::Errno(errno.raw_os_error().unsigned_abs());
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("an architecture with seccomp");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).expect("a filter");
    let program = BpfProgram::try_from(filter).expect("a program");
    apply_filter(&program).expect("the kernel takes the filter");
}

/// Leaves the calling thread these capabilities alone, and what it starts not more, root included.
///
/// # Panics
/// When it may not give any up.
pub fn leave_capabilities(left: CapabilitySet) {
    for capability in CapabilitySet::all().difference(left).iter() {
        // Kernels of old do not know all of them.
        let dropped = remove_capability_from_bounding_set(capability);
        assert!(matches!(dropped, Ok(()) | Err(Errno::INVAL)), "{capability:?}: {dropped:?}");
    }
    let sets = CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).expect("capabilities can be given up");
}
