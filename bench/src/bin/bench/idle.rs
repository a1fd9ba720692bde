//! Costs of daemons that have nothing to do: memory, CPU time until they serve, and wake-ups a second, of two
//! daemons that are joined by a veth pair and whose nets are over rings; many shards, and some.
//!
//! `cargo xtask bench --idle` builds the daemon, makes the namespaces and calls this.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use lnet_bench::figure::{Bound, Check, Figure, checks_table};
use lnet_bench::link::Side;
use lnet_bench::machine::cpu_time;
use lnet_bench::options::{Document, Options, Setup};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// Measures daemons that have nothing to do.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --idle   (builds the daemon, makes the namespaces, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// The daemon.
    #[arg(long)]
    lnetd: PathBuf,
    /// Shards of both daemons, one measurement each.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 8])]
    counts: Vec<u32>,
}

/// Time that a daemon may take to serve.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time in which a daemon settles before its wake-ups are counted.
const SETTLES: Duration = Duration::from_secs(2);
/// Shards whose memory and start have bounds, and those whose wake-ups have one.
const MANY: u32 = 64;
const SOME: u32 = 8;
const MEMORY_GB: Bound = Bound::AtMost(0.6);
const START_S: Bound = Bound::AtMost(1.0);
const WAKEUPS: Bound = Bound::AtMost(30.0);

#[derive(Serialize)]
struct Row {
    shards: u32,
    /// Memory that is not of files, frames among it, once it serves and has settled.
    memory_gb: Figure,
    /// CPU time of all threads until it serves.
    start_s: Figure,
    /// Times a second that its threads went to sleep, and so woke up.
    wakeups: Figure,
    /// Percent of a CPU that it takes.
    cpu_percent: Figure,
}

/// A daemon that serves. Ends when dropped.
struct Daemon {
    child: Child,
    directory: PathBuf,
    /// CPU time that it took until it served.
    start: Duration,
}

impl Daemon {
    /// Starts a daemon in a namespace, with a net over rings, and waits until it says that it serves.
    fn start(cli: &Cli, netns: &Path, side: Side<'_>, shards: u32) -> anyhow::Result<Self> {
        let directory =
            std::env::temp_dir().join(format!("lnet-bench-{}-{}", std::process::id(), side.interface));
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let notify = directory.join("notify");
        let socket = UnixDatagram::bind(&notify).with_context(|| notify.display().to_string())?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let document = directory.join("node.yaml");
        let interface = side.interface;
        fs::write(
            &document,
            format!(
                "net:\n-     net type: xdp\n      local NI(s):\n      -     interfaces:\n                  0: \
                 {interface}\n            lnd tunables:\n                  lnd: xdp\n                  \
                 mode: native\n"
            ),
        )?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec"]).args(netns.file_name());
        command.args(["setpriv", "--pdeathsig", "TERM"]).arg(&cli.lnetd);
        command.args(["--shards", &shards.to_string(), "--log", "warn", "--config"]).arg(&document);
        command.arg("--socket").arg(directory.join("control")).env("NOTIFY_SOCKET", &notify);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.context("the daemon did not start")?;
        let mut daemon = Self { child, directory, start: Duration::ZERO };
        let mut said = [0; 64];
        let served = socket.recv(&mut said);
        daemon.start = daemon.cpu_time()?;
        let ended = daemon.child.try_wait()?;
        ensure!(ended.is_none(), "the daemon ended, {ended:?}");
        let length = served.with_context(|| format!("the daemon does not serve after {PATIENCE:?}"))?;
        ensure!(said[..length].starts_with(b"READY=1"), "the daemon says {:?}", &said[..length]);
        Ok(daemon)
    }

    fn cpu_time(&self) -> anyhow::Result<Duration> {
        cpu_time(&self.child.id().to_string()).context("the daemon has ended")
    }

    /// Bytes that it has in memory, but for what lies in files.
    fn memory_bytes(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let kib = |name| number_of(&status, name).with_context(|| format!("no {name} in {status}"));
        Ok((kib("RssAnon:")? + kib("RssShmem:")?) << 10)
    }

    /// Times that its threads went to sleep so far.
    fn sleeps(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            // A thread may have ended since.
            let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
            sum +=
                number_of(&status, "voluntary_ctxt_switches:").context("no sleeps in a thread's status")?;
        }
        Ok(sum)
    }
}

/// The number behind a name of a status file (proc(5), `/proc/pid/status`).
fn number_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // A daemon that has ended is not asked to.
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Measures one turn of both daemons, and tells of the near one.
fn measure(cli: &Cli, row: &mut Row) -> anyhow::Result<()> {
    let (link, report) = (&cli.options.link, &cli.options.report);
    let _far = Daemon::start(cli, &link.netns_b, link.far(), row.shards)?;
    let near = Daemon::start(cli, &link.netns_a, link.near(), row.shards)?;
    std::thread::sleep(SETTLES);
    let time = report.time(Duration::from_secs(10)).max(Duration::from_secs(2));
    let before = (near.sleeps()?, near.cpu_time()?);
    std::thread::sleep(time);
    let (sleeps, used) = (near.sleeps()? - before.0, near.cpu_time()? - before.1);
    row.memory_gb.add(near.memory_bytes()? as f64 / 1e9);
    row.start_s.add(near.start.as_secs_f64());
    row.wakeups.add(sleeps as f64 / time.as_secs_f64());
    row.cpu_percent.add(100.0 * used.as_secs_f64() / time.as_secs_f64());
    Ok(())
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let row = |shards: &u32| {
        let [memory_gb, start_s, wakeups, cpu_percent] = [(); 4].map(|()| Figure::default());
        Row { shards: *shards, memory_gb, start_s, wakeups, cpu_percent }
    };
    let mut rows: Vec<_> = cli.counts.iter().map(row).collect();
    cli.options.report.turns(|| rows.iter_mut().try_for_each(|row| measure(&cli, row)))?;
    let checks = rows.iter().flat_map(|row| {
        let shards = row.shards;
        let check = |of: u32, what: &str, figure: &Figure, bound| {
            let check = Check::new(format!("{shards} shards: {what}"), figure.clone(), bound);
            check.filter(|_| shards == of)
        };
        [
            check(MANY, "memory, GB", &row.memory_gb, MEMORY_GB),
            check(MANY, "CPU time until it serves, s", &row.start_s, START_S),
            check(SOME, "wake-ups a second", &row.wakeups, WAKEUPS),
        ]
    });
    let checks = checks.flatten().collect();
    // The daemons' mode is what they were told: they do not start otherwise.
    let setup = Setup { mode: "native".to_owned(), ..cli.options.setup() };
    let document = Document { setup, rows, checks };
    cli.options.report.tell("idle.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document<Row>) -> String {
    let Setup { machine, mode, mtu_bytes, .. } = &document.setup;
    let mut text = format!(
        "{machine}\n\nidle daemons with a net over rings, MTU {mtu_bytes}, mode {mode}: medians of the turns\n\
         {:>8}{:>28}{:>28}{:>28}{:>28}\n",
        "shards", "memory, GB", "CPU s until it serves", "wake-ups/s", "% of a CPU"
    );
    for Row { shards, memory_gb, start_s, wakeups, cpu_percent } in &document.rows {
        let _ = writeln!(
            text,
            "{shards:>8}{:>28}{:>28}{:>28}{:>28}",
            memory_gb.cells(3),
            start_s.cells(2),
            wakeups.cells(1),
            cpu_percent.cells(1)
        );
    }
    text + &checks_table(&document.checks)
        + "\nmemory: what is not of files, frames among it; wake-ups: times that threads went to sleep"
}

#[cfg(test)]
mod tests {
    use super::number_of;

    #[test]
    fn numbers_of_a_status_are_read() {
        let status = "Name:\tlnetd\nRssAnon:\t  1234 kB\nvoluntary_ctxt_switches:\t17\n\
                      nonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(number_of(status, "RssAnon:"), Some(1234));
        assert_eq!(number_of(status, "voluntary_ctxt_switches:"), Some(17));
        assert_eq!(number_of(status, "RssShmem:"), None);
    }
}
