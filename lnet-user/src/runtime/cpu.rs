//! CPUs: which there are for this process, and binding a thread to one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may run on, in ascending order.
#[must_use]
pub fn available_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// The kernel's refusal: the CPU does not exist, or is not one of [`available_cpus`].
pub fn pin_to_cpu(cpu: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    if cpu >= CpuSet::MAX_CPU {
        return Err(std::io::Error::from_raw_os_error(rustix::io::Errno::INVAL.raw_os_error()));
    }
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
