//! Runs the simulator over many seeds; `cargo xtask sim` calls it.
//!
//! Exit status: 0 if no checker found anything (with `--bugs`: if each bug was found by its own checkers), 1
//! otherwise.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use lnet_tests::fleet::{self, Fleet};
use lnet_tests::sim::{self, Bug, Counts, NetKind, Options, Tracing, Violation};

/// Lines of a failed run that are shown.
const LINES: usize = 80;
/// Runs in which a bug must be found by one of its checkers.
const BUG_RUNS: u64 = 1000;

/// Whole nodes over a fabric that loses, doubles, delays and damages frames, or over streams that break, stop
/// and come in pieces.
#[derive(Debug, Parser)]
#[command(name = "lnet-sim")]
struct Arguments {
    /// The first seed; each run takes the next one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// The net of the nodes: xdp, or tcp
    #[arg(long, default_value = "xdp", value_parser = net)]
    net: NetKind,
    /// Nodes, instead of as many as the seed says
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=4))]
    nodes: Option<u8>,
    /// Only runs in which a rail is cut and nothing may be lost, which are a sixth of all of an xdp net
    #[arg(long, conflicts_with = "net")]
    cut: bool,
    /// Switch on a bug that a checker is to find, on its net
    #[arg(long, value_parser = bug, conflicts_with = "net")]
    bug: Option<Bug>,
    /// Switch on each bug in turn, and show which seed and checker find it
    #[arg(long, conflicts_with_all = ["bug", "net"])]
    bugs: bool,
    /// Print all that happens in the run of the first seed
    #[arg(long)]
    trace: bool,
    /// Many nodes that discover each other and talk, as a YAML document says: rails, groups of nodes with
    /// their NIs and links, faults, workload; examples/topologies has some
    #[arg(long, value_name = "FILE", conflicts_with_all = ["net", "cut", "bug", "bugs", "trace", "runs", "nodes"])]
    topology: Option<PathBuf>,
    /// Where the plot of convergence over time goes, with --topology
    #[arg(long, value_name = "FILE.svg", requires = "topology")]
    plot: Option<PathBuf>,
}

fn bug(name: &str) -> Result<Bug, String> {
    let names = Bug::ALL.map(Bug::name).join(", ");
    Bug::named(name).ok_or_else(|| format!("one of {names} is expected"))
}

fn net(name: &str) -> Result<NetKind, String> {
    NetKind::named(name).ok_or_else(|| "xdp or tcp is expected".to_owned())
}

fn measure(of: &mut dyn FnMut()) -> i64 {
    allocation_counter::measure(of).bytes_current
}

/// The most memory that this process ever had, as the kernel says; nothing where it does not.
fn most_memory() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(format!("{:.0} MiB", kibibytes / 1024.0))
}

/// Runs a fleet; says what came of it.
fn run_fleet(path: &Path, seed: u64, plot: Option<&Path>) -> Result<bool, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let fleet = Fleet::parse(&text).map_err(|error| format!("{name}: {error}"))?;
    let start = Instant::now();
    let report = fleet::run(&fleet, seed, measure, |sample| {
        eprint!("\r{:8.1} s  {:6.2} % of the pairs up to date", sample.seconds, sample.converged * 100.0);
    });
    eprintln!();
    println!("{report}");
    println!(
        "{:<34}{:>14.1} s",
        "seed {seed}, simulated in".replace("{seed}", &seed.to_string()),
        start.elapsed().as_secs_f64()
    );
    println!("{:<34}{:>14}", "resident memory at most", most_memory().unwrap_or_default());
    if let Some(plot) = plot {
        report.plot(plot).map_err(|error| format!("{}: {error}", plot.display()))?;
    }
    report.violations.iter().for_each(|violation| println!("VIOLATION {violation}"));
    Ok(report.violations.is_empty())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.topology {
        return match run_fleet(path, arguments.seed, arguments.plot.as_deref()) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("lnet-sim: {error}");
                ExitCode::FAILURE
            }
        };
    }
    // A panic is reported as what a checker found.
    std::panic::set_hook(Box::new(|_| {}));
    let options = Options {
        net: arguments.bug.map_or(arguments.net, Bug::net),
        nodes: arguments.nodes.map(usize::from),
        cut: arguments.cut,
        bug: arguments.bug,
        tracing: if arguments.trace { Tracing::Print } else { Tracing::Off },
    };
    let passed = if arguments.trace {
        let outcome = sim::run(arguments.seed, &options);
        println!("{}", outcome.counts);
        outcome.violation.inspect(|violation| tell(arguments.seed, &options, violation)).is_none()
    } else if arguments.bugs {
        find_bugs(arguments.seed, &options)
    } else {
        run_all(arguments.seed, arguments.runs, &options)
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_all(seed: u64, runs: u64, options: &Options) -> bool {
    let start = Instant::now();
    let (counts, found) = run_seeds(seed, runs, options, true, |_| true);
    if let Some((seed, violation)) = &found {
        let kept = Options { tracing: Tracing::Last(LINES), ..*options };
        sim::run(*seed, &kept).lines.iter().for_each(|line| println!("{line}"));
        tell(*seed, options, violation);
    }
    println!("\n{counts}");
    println!("{} runs in {:.1} s", counts.runs, start.elapsed().as_secs_f64());
    found.is_none()
}

/// Whether each bug is found by one of the checkers that are there for it.
fn find_bugs(seed: u64, options: &Options) -> bool {
    let find = |bug: Bug| {
        let options = Options { net: bug.net(), bug: Some(bug), ..*options };
        let by_its_own = |violation: &Violation| bug.checkers().contains(&violation.checker);
        match run_seeds(seed, BUG_RUNS, &options, false, by_its_own).1 {
            Some((seed, violation)) => {
                println!("{:<22} seed {seed:>4}: {}", bug.name(), violation.checker);
                true
            }
            None => {
                println!("{:<22} NOT FOUND in {BUG_RUNS} runs by: {}", bug.name(), bug.checkers().join(", "));
                false
            }
        }
    };
    Bug::ALL.map(find).into_iter().all(|found| found)
}

/// Runs seeds on all CPUs; the first one that fails in a way that is `sought` ends that.
fn run_seeds(
    seed: u64,
    runs: u64,
    options: &Options,
    progress: bool,
    sought: impl Fn(&Violation) -> bool + Sync,
) -> (Counts, Option<(u64, Violation)>) {
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let sums = Mutex::new((Counts::default(), None::<(u64, Violation)>));
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= runs {
                break;
            }
            let outcome = sim::run(seed.wrapping_add(index), options);
            let Ok(mut sums) = sums.lock() else { break };
            sums.0 += &outcome.counts;
            if let Some(violation) = outcome.violation.filter(&sought) {
                failed.store(true, Ordering::Relaxed);
                // The first of several that fail at once is told.
                if sums.1.as_ref().is_none_or(|(former, _)| *former > seed.wrapping_add(index)) {
                    sums.1 = Some((seed.wrapping_add(index), violation));
                }
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut told_at = Instant::now();
        while progress && !handles.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(20));
            if told_at.elapsed() > Duration::from_secs(2) {
                told_at = Instant::now();
                let _ =
                    writeln!(std::io::stderr(), "{} of {runs} runs", next.load(Ordering::Relaxed).min(runs));
            }
        }
    });
    sums.into_inner().unwrap_or_default()
}

fn tell(seed: u64, options: &Options, violation: &Violation) {
    println!("\nseed {seed} fails: {}\n  {}", violation.checker, violation.found);
    let nodes = options.nodes.map_or(String::new(), |nodes| format!(" --nodes {nodes}"));
    let cut = if options.cut { " --cut" } else { "" };
    let bug = options.bug.map_or(String::new(), |bug| format!(" --bug {}", bug.name()));
    let net = if options.net == NetKind::Tcp && options.bug.is_none() { " --net tcp" } else { "" };
    println!("again, with all that happens: cargo xtask sim --seed {seed}{net}{nodes}{cut}{bug} --trace");
}
