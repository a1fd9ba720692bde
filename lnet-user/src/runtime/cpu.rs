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
/// The kernel's refusal, with the CPUs that there are: the CPU does not exist, or is not one of
/// [`available_cpus`].
pub fn pin_to_cpu(cpu: usize) -> std::io::Result<()> {
    let mut set = CpuSet::new();
    let bound = if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
        sched_setaffinity(None, &set)
    } else {
        Err(rustix::io::Errno::INVAL)
    };
    bound.map_err(|errno| {
        let cpus: Vec<String> = available_cpus().iter().map(usize::to_string).collect();
        let cpus = cpus.join(", ");
        std::io::Error::other(format!("cannot run on cpu {cpu} ({errno}): this process may run on {cpus}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_that_is_not_there_is_named_with_those_that_are() {
        let last = *available_cpus().last().unwrap();
        for cpu in [last + 1, CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            let text = pin_to_cpu(cpu).unwrap_err().to_string();
            assert!(text.contains(&format!("cpu {cpu} (")) && text.ends_with(&last.to_string()), "{text}");
        }
        std::thread::spawn(move || pin_to_cpu(last).unwrap()).join().unwrap();
    }
}
