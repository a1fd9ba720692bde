//! Where a figure was measured.

use std::fmt;
use std::process::Command;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The commit that `cargo xtask bench` has built this of.
const BUILT: Option<&str> = option_env!("LNET_COMMIT");

/// Machine, kernel and commit of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Model name of the CPUs.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Kernel release.
    pub kernel: String,
    /// Commit that was built, with `-dirty` if there were changes. What cargo alone has built does not know:
    /// then that of the current directory, which is said, or "unknown" outside a checkout.
    pub commit: String,
}

impl Machine {
    /// The machine that this runs on.
    #[must_use]
    pub fn this() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            cpu: model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()),
            cpus: lnet_user::runtime::available_cpus().len(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            commit: BUILT.map_or_else(commit_here, str::to_owned),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cpu, cpus, kernel, commit } = self;
        write!(f, "{cpu} ({cpus} CPUs), kernel {kernel}, commit {commit}")
    }
}

/// Time that this process has run; nothing where the kernel does not tell (proc(5), `/proc/pid/stat`).
#[must_use]
pub fn process_age() -> Duration {
    let now = time_of(ClockId::Boottime);
    let begun = stat_fields("self").and_then(|fields| fields.get(19)?.parse().ok()).map(ticks);
    begun.map_or(Duration::ZERO, |begun| now.saturating_sub(begun))
}

/// CPU time that a process has taken, all threads together; `None` where there is no such process.
#[must_use]
pub fn cpu_time(process: &str) -> Option<Duration> {
    let fields = stat_fields(process)?;
    let field = |index: usize| fields.get(index)?.parse().ok();
    Some(ticks(field(11)?) + ticks(field(12)?))
}

/// CPU time that this process has taken, all threads together.
#[must_use]
pub fn process_cpu_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// CPU time that the calling thread has taken.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Fields of a process, from its state on: names may have spaces in them.
fn stat_fields(process: &str) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// Time of so many ticks of the kernel, of which each second has 100 (time(7), `USER_HZ`).
const fn ticks(count: u64) -> Duration {
    Duration::from_millis(10 * count)
}

/// The commit of the current directory.
fn commit_here() -> String {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let commit = git.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    commit.map_or_else(
        || "unknown".to_owned(),
        |bytes| format!("{} (of the current directory)", String::from_utf8_lossy(&bytes).trim()),
    )
}
