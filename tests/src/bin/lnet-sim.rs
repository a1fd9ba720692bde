//! Runs the simulator over many seeds; `cargo xtask sim` calls it.
//!
//! Exit status: 0 if no checker found anything (with `--bugs`: if each bug was found by its own checkers), 1
//! otherwise.

use std::io::Write;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;
use lnet_tests::fleet::{self, Fleet};
use lnet_tests::seeds::{End, Seeds};
use lnet_tests::sim::{self, Bug, Counts, Hostile, Hostility, NetKind, Options, Tracing, Violation};

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
    /// Run seeds for so many minutes, from a random one on, and show each that fails
    #[arg(long, conflicts_with_all = ["seed", "runs", "bug", "bugs", "trace", "plot"])]
    minutes: Option<u64>,
    /// The first seed of these, instead of a random one: what an earlier run printed
    #[arg(long, value_name = "SEED", requires = "minutes")]
    from: Option<u64>,
    /// CPUs, instead of all
    #[arg(long)]
    cpus: Option<NonZeroUsize>,
    /// The net of the nodes: xdp, or tcp
    #[arg(long, default_value = "xdp", value_parser = net)]
    net: NetKind,
    /// Nodes, instead of as many as the seed says
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=4))]
    nodes: Option<u8>,
    /// Only runs in which a rail is cut and nothing may be lost, which are a sixth of all of an xdp net
    #[arg(long, conflicts_with = "net")]
    cut: bool,
    /// Only runs in which a link drops long datagrams and nothing may be lost; with `=false` only others. Of
    /// all runs of an xdp net an eighth have such a link
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        conflicts_with_all = ["net", "hostile"]
    )]
    narrow: Option<bool>,
    /// Only runs with hostile nodes, beside which the others answer each other in their time: deaf (read
    /// nothing), halving (send halves of messages), names (many, which acknowledge nothing), lies (push
    /// NIDs of others), silence (answer no HELLO), or any, as the seed draws
    #[arg(
        long,
        value_name = "CLASS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "any",
        value_parser = hostile,
        conflicts_with = "cut"
    )]
    hostile: Option<Hostile>,
    /// Only runs in which the nodes are on two nets, with up to three routers between them that are slow, die
    /// and return, and have few buffers and credits
    #[arg(long, conflicts_with_all = ["cut", "hostile"])]
    routers: bool,
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
    #[arg(long, value_name = "FILE", conflicts_with_all = ["net", "cut", "narrow", "hostile", "routers", "bug", "bugs", "trace", "runs", "nodes"])]
    topology: Option<PathBuf>,
    /// Where the plot of convergence over time goes, with --topology
    #[arg(long, value_name = "FILE.svg", requires = "topology")]
    plot: Option<PathBuf>,
}

fn bug(name: &str) -> Result<Bug, String> {
    let names = Bug::ALL.map(Bug::name).join(", ");
    Bug::named(name).ok_or_else(|| format!("one of {names} is expected"))
}

fn hostile(name: &str) -> Result<Hostile, String> {
    let names = Hostility::ALL.map(Hostility::name).join(", ");
    Hostile::named(name).ok_or_else(|| format!("any or one of {names} is expected"))
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

fn read_fleet(path: &Path) -> Result<Fleet, String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    Fleet::parse(&text).map_err(|error| format!("{name}: {error}"))
}

/// Runs a fleet; says what came of it.
fn run_fleet(path: &Path, seed: u64, plot: Option<&Path>) -> Result<bool, String> {
    let fleet = read_fleet(path)?;
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
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lnet-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does what is asked for; whether all is well.
fn run(arguments: &Arguments) -> Result<bool, String> {
    let cpus = arguments.cpus.or_else(|| std::thread::available_parallelism().ok());
    let cpus = cpus.map_or(1, NonZeroUsize::get);
    let seeds = Seeds { first: arguments.seed, end: End::Runs(arguments.runs), cpus };
    if let (Some(path), None) = (&arguments.topology, arguments.minutes) {
        return run_fleet(path, arguments.seed, arguments.plot.as_deref());
    }
    // A panic is reported as what a checker found.
    std::panic::set_hook(Box::new(|_| {}));
    let options = Options {
        net: arguments.bug.map_or(arguments.net, Bug::net),
        nodes: arguments.nodes.map(usize::from),
        cut: arguments.cut,
        narrow: arguments.narrow,
        hostile: arguments.hostile.or_else(|| arguments.bug.and_then(Bug::hostile)),
        routers: arguments.routers || arguments.bug.is_some_and(Bug::has_routers),
        bug: arguments.bug,
        tracing: if arguments.trace { Tracing::Print } else { Tracing::Off },
    };
    Ok(if let Some(minutes) = arguments.minutes {
        let first = arguments.from.unwrap_or_else(Seeds::random_start);
        let campaign = Campaign { minutes, first, cpus };
        match &arguments.topology {
            Some(path) => {
                let fleet = read_fleet(path)?;
                let what = format!("--topology {}", path.display());
                campaign.run(&what, "", |seed| run_fleet_quietly(&fleet, seed))
            }
            None => campaign.run(&words(&options), " --trace", |seed| {
                let violation = sim::run(seed, &options).violation?;
                Some(format!("{}\n  {}", violation.checker, violation.found))
            }),
        }
    } else if arguments.trace {
        let outcome = sim::run(arguments.seed, &options);
        println!("{}", outcome.counts);
        outcome.violation.inspect(|violation| tell(arguments.seed, &options, violation)).is_none()
    } else if arguments.bugs {
        find_bugs(seeds, &options)
    } else {
        run_all(seeds, &options)
    })
}

/// Seeds from a random one on, for as long as there is time.
struct Campaign {
    minutes: u64,
    first: u64,
    cpus: usize,
}

impl Campaign {
    /// Runs seeds for the time; whether all passed. `what` and `trace` are the words of a command line that
    /// runs one again, before and after its number; `run` says what went wrong.
    fn run(&self, what: &str, trace: &str, run: impl Fn(u64) -> Option<String> + Sync) -> bool {
        let &Self { minutes, first, cpus } = self;
        let separator = if what.is_empty() { "" } else { " " };
        println!("from seed {first} on, for {minutes} min on {cpus} CPUs");
        let start = Instant::now();
        let seeds =
            Seeds { first, end: End::At(start + Duration::from_secs(minutes.saturating_mul(60))), cpus };
        let failed = Mutex::new(0_u64);
        let try_one = |seed| {
            if let Some(found) = run(seed) {
                let mut failed = failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *failed += 1;
                println!("\nseed {seed} fails: {found}");
                println!("again: cargo xtask sim {what}{separator}--seed {seed}{trace}");
            }
            ControlFlow::Continue(())
        };
        let per_second = |runs: u64| runs as f64 / start.elapsed().as_secs_f64();
        let runs = seeds.run(try_one, |runs| {
            let next = first.wrapping_add(runs);
            let line = format!("{runs} runs, {:.1} a second; go on with --from {next}", per_second(runs));
            let _ = writeln!(std::io::stderr(), "{line}");
        });
        let failed = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let next = first.wrapping_add(runs);
        println!("\n{runs} runs from seed {first} on, {:.1} a second, {failed} failed", per_second(runs));
        println!("go on: cargo xtask sim {what}{separator}--minutes {minutes} --from {next}");
        failed == 0
    }
}

/// Runs a fleet; what went wrong.
fn run_fleet_quietly(fleet: &Fleet, seed: u64) -> Option<String> {
    let run = || fleet::run(fleet, seed, measure, |_| {}).violations;
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(violations) => (!violations.is_empty()).then(|| violations.join("\n  ")),
        Err(panic) => Some(format!("nothing panics\n  {}", sim::panic_text(panic.as_ref()))),
    }
}

fn run_all(seeds: Seeds, options: &Options) -> bool {
    let start = Instant::now();
    let (counts, found) = run_seeds(seeds, options, true, |_| true);
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
fn find_bugs(seeds: Seeds, options: &Options) -> bool {
    let seeds = Seeds { end: End::Runs(BUG_RUNS), ..seeds };
    let find = |bug: Bug| {
        let hostile = options.hostile.or(bug.hostile());
        let routers = options.routers || bug.has_routers();
        let options = Options { net: bug.net(), hostile, routers, bug: Some(bug), ..*options };
        let by_its_own = |violation: &Violation| bug.checkers().contains(&violation.checker);
        match run_seeds(seeds, &options, false, by_its_own).1 {
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

/// Runs seeds; the first one that fails in a way that is `sought` ends that.
fn run_seeds(
    seeds: Seeds,
    options: &Options,
    progress: bool,
    sought: impl Fn(&Violation) -> bool + Sync,
) -> (Counts, Option<(u64, Violation)>) {
    let sums = Mutex::new((Counts::default(), None::<(u64, Violation)>));
    let run = |seed: u64| {
        let outcome = sim::run(seed, options);
        let Ok(mut sums) = sums.lock() else { return ControlFlow::Break(()) };
        sums.0 += &outcome.counts;
        let Some(violation) = outcome.violation.filter(&sought) else { return ControlFlow::Continue(()) };
        // The first of several that fail at once is told.
        if sums.1.as_ref().is_none_or(|(former, _)| *former > seed) {
            sums.1 = Some((seed, violation));
        }
        ControlFlow::Break(())
    };
    seeds.run(run, |runs| {
        if progress {
            let _ = writeln!(std::io::stderr(), "{runs} runs, from seed {} on", seeds.first);
        }
    });
    sums.into_inner().unwrap_or_default()
}

/// The words of a command line that asks for runs with these options.
fn words(options: &Options) -> String {
    let mut words = Vec::new();
    if options.net == NetKind::Tcp && options.bug.is_none() {
        words.push("--net tcp".to_owned());
    }
    words.extend(options.nodes.map(|nodes| format!("--nodes {nodes}")));
    words.extend(options.cut.then(|| "--cut".to_owned()));
    words.extend(options.narrow.map(|narrow| format!("--narrow={narrow}")));
    words.extend(options.hostile.map(|hostile| format!("--hostile={}", hostile.name())));
    words.extend(options.routers.then(|| "--routers".to_owned()));
    words.extend(options.bug.map(|bug| format!("--bug {}", bug.name())));
    words.join(" ")
}

fn tell(seed: u64, options: &Options, violation: &Violation) {
    println!("\nseed {seed} fails: {}\n  {}", violation.checker, violation.found);
    let (words, seed) = (words(options), format!("--seed {seed} --trace"));
    let words = if words.is_empty() { seed } else { format!("{words} {seed}") };
    println!("again, with all that happens: cargo xtask sim {words}");
}
