//! `cargo xtask test`: every test level that this machine can run.
//!
//! - A level that cannot run is a failure that names what is missing; only `--unprivileged` and `--no-vm`
//!   leave levels out, and the summary says so. No level counts as passed that did not run.
//! - A level whose tests are none fails: a filter that matches nothing proves nothing.
//! - Clippy and tests see the whole workspace with all features, so that cargo builds each crate once for
//!   either. What is built for tests is told apart from their run.
//! - One level's failure does not keep the others from running.

mod cargo_test;
mod without_uring;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use xtask::command::{say, succeed, words};
use xtask::privilege::{self, Capability, NETNS_NODES, UNPRIVILEGED};

use crate::cargo::{TEST_FEATURES, build_programs, build_tested, cargo};
use crate::{bare, build_ebpf, cards, fuzz, package, run, setup, tidy};
use cargo_test::{SecondRuns, run_all};

/// Features that need no C toolchain.
const UNPRIVILEGED_FEATURES: &str = "lnet-tests/sabotage";
/// Packages with such hooks.
const HOOKED: [&str; 3] = ["lnet-core", "lnet-xdp-proto", "lnet-tcp-proto"];
/// Programs that tests start.
const PROGRAMS: [&str; 4] = ["lnetd", "lnetctl", "lst", "lnet-nettest"];
/// Tells tests that the programs are built.
const PROGRAMS_BUILT: &str = "LNET_TESTS_PROGRAMS_BUILT";
/// Messages of the run that comes last.
const RUN_COUNT: u64 = 20_000;
/// Inputs of each fuzz target.
const FUZZ_COUNT: u32 = 20_000;

/// A profile with some optimisation: all of release's takes minutes longer to build.
const QUICK: &str = "quick";

/// A test level.
struct Level {
    name: &'static str,
    /// Capabilities that it needs.
    needs: &'static [Capability],
    /// Runs it in the workspace and gives a note for the summary; the second argument is whether what needs
    /// privileges is left out.
    run: fn(&Path, bool) -> Result<String>,
}

const LEVELS: &[Level] = &[
    Level { name: "tools", needs: &NETNS_NODES, run: |root, _| tools(root) },
    Level { name: "format", needs: &[], run: |root, _| lint(root, &["fmt", "--all", "--check"], None) },
    Level { name: "clippy", needs: &[], run: clippy },
    Level {
        name: "documentation",
        needs: &[],
        run: |root, _| lint(root, &["doc", "--no-deps"], Some(("RUSTDOCFLAGS", "-D warnings"))),
    },
    Level { name: "tidy", needs: &[], run: |root, _| Ok(format!("{} files", tidy::tidy(root)?)) },
    Level { name: "test hooks", needs: &[], run: |root, _| no_test_hooks(root) },
    Level { name: "tests", needs: &[], run: tests },
    Level { name: "without io_uring", needs: &NETNS_NODES, run: |root, _| without_uring::run(root) },
    Level { name: "other targets", needs: &NETNS_NODES, run: |root, _| bare::check(root) },
    Level { name: "XDP program", needs: &NETNS_NODES, run: |root, _| xdp_program(root) },
    // A C++ compiler is needed, which root can install.
    Level { name: "fuzz", needs: &NETNS_NODES, run: |root, _| short_fuzz(root) },
    Level { name: "run", needs: &NETNS_NODES, run: |root, _| short_run(root) },
    Level { name: "package", needs: &NETNS_NODES, run: |root, _| package::check(root, QUICK) },
    Level { name: CARDS, needs: &NETNS_NODES, run: |root, _| short_cards(root) },
];

/// The level that boots virtual machines.
const CARDS: &str = "cards";

/// Levels that the user leaves out.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// Leave out what needs privileges: the XDP program, network namespaces, the run, virtual machines
    #[arg(long)]
    unprivileged: bool,
    /// Leave out what boots virtual machines: another kernel, and the driver of a NIC
    #[arg(long)]
    no_vm: bool,
}

impl Options {
    /// The option that leaves a level out.
    fn leaves_out(self, level: &Level) -> Option<&'static str> {
        if self.unprivileged && !level.needs.is_empty() {
            Some("--unprivileged")
        } else {
            (self.no_vm && level.name == CARDS).then_some("--no-vm")
        }
    }
}

/// How a level ended.
enum End {
    Passed(String),
    Failed(String),
    /// The user asked for it, by this option.
    LeftOut(&'static str),
}

/// Runs all levels and prints a summary.
///
/// # Errors
/// When a level fails or cannot run.
pub(crate) fn test(root: &Path, options: Options) -> Result<()> {
    let unprivileged = options.unprivileged;
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    let mut interrupted = None;
    for level in LEVELS {
        say(format_args!("\n== {} ==", level.name));
        let start = Instant::now();
        let end = if let Some(option) = options.leaves_out(level) {
            End::LeftOut(option)
        } else {
            match privilege::require("this level", level.needs).and_then(|()| (level.run)(root, unprivileged))
            {
                Ok(note) => End::Passed(note),
                Err(error) => {
                    let why = format!("{error:#}");
                    interrupted = error.downcast_ref::<run::Interrupted>().copied();
                    End::Failed(why)
                }
            }
        };
        rows.push(row(level.name, &end, start.elapsed()));
        say(format_args!("== {} ==", rows[rows.len() - 1][..3].join(": ")));
        if let End::Failed(why) = &end {
            say(why);
            failed.push(level.name);
        }
        if let Some(interrupted) = interrupted {
            return Err(interrupted.into());
        }
    }
    let line =
        |[name, result, time, note]: &[String; 4]| format!("{name:<28} {result:<8} {time:>9}  {note}\n");
    let summary: String = rows.iter().map(line).collect();
    write!(std::io::stdout(), "\n{summary}").context("writing the summary")?;
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn row(name: &str, end: &End, time: Duration) -> [String; 4] {
    let first_line = |why: &String| why.lines().next().unwrap_or_default().to_owned();
    let (result, note) = match end {
        End::Passed(note) => ("passed", note.clone()),
        End::Failed(why) => ("FAILED", first_line(why)),
        End::LeftOut(option) => ("left out", format!("as {option} asks")),
    };
    [name.to_owned(), result.to_owned(), format!("{:.1} s", time.as_secs_f64()), note]
}

fn lint(root: &Path, arguments: &[&str], variable: Option<(&str, &str)>) -> Result<String> {
    let mut command = cargo(root);
    succeed(command.args(arguments).envs(variable))?;
    Ok(String::new())
}

/// Clippy over all targets. Its warnings are errors with the compiler that the workspace names as its own
/// (`rust-version`); a newer one has lints that are unknown here, and only shows what they find.
fn clippy(root: &Path, unprivileged: bool) -> Result<String> {
    let (ours, present) = (minor_version(include_str!("../../../Cargo.toml")), cargo_version(root)?);
    let strict = ours.is_some() && ours >= minor_version(&present);
    let mut command = cargo(root);
    command.args(["clippy", "--all-targets", "--features", features(unprivileged)]);
    if strict {
        command.args(["--", "-D", "warnings"]);
    }
    succeed(&mut command)?;
    Ok(if strict {
        "no warnings".to_owned()
    } else {
        format!("no errors; warnings of {present} are only shown")
    })
}

fn cargo_version(root: &Path) -> Result<String> {
    let output = cargo(root).arg("--version").output().context("`cargo --version` did not start")?;
    Ok(String::from_utf8_lossy(&output.stdout).split(" (").next().unwrap_or_default().trim().to_owned())
}

/// The minor version of Rust in `rust-version = "1.N"` of a manifest, or in `cargo 1.N.P`.
fn minor_version(text: &str) -> Option<u32> {
    let named = text.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    let version = named.or_else(|| text.strip_prefix("cargo "))?;
    let digits = version.strip_prefix("1.")?.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn features(unprivileged: bool) -> &'static str {
    if unprivileged { UNPRIVILEGED_FEATURES } else { TEST_FEATURES }
}

/// Installs the programs that the other levels use.
fn tools(root: &Path) -> Result<String> {
    setup::ensure(root)?;
    setup::ensure_test_tools()?;
    Ok(String::new())
}

/// All tests. Where privileges are missing, those that need some are left out, and the level fails in the end
/// unless the user asked for that.
fn tests(root: &Path, unprivileged: bool) -> Result<String> {
    let privileges = privilege::require("the rest of the tests", &NETNS_NODES);
    let features = ["--features", features(unprivileged)];
    let seconds = SecondRuns::read(root)?;
    let begun = Instant::now();
    let mut build = cargo(root);
    build.args(["build", "--tests", "--examples"]).args(features);
    build.args(PROGRAMS.iter().flat_map(|program| ["--bin", program]));
    succeed(&mut build)?;
    let built = begun.elapsed();
    let command = || {
        let mut command = cargo(root);
        command.arg("test").args(features).env(PROGRAMS_BUILT, "1").env_remove(UNPRIVILEGED);
        if unprivileged || privileges.is_err() {
            command.env(UNPRIVILEGED, "1");
        }
        command
    };
    let note = run_all(command, &[], &seconds)?;
    if !unprivileged {
        privileges?;
    }
    Ok(format!("built in {:.0} s; {note}", built.as_secs_f64()))
}

/// Checks that a plain `cargo build` compiles no hooks for tests in.
fn no_test_hooks(root: &Path) -> Result<String> {
    for package in HOOKED {
        let mut command = cargo(root);
        command.args(["tree", "--edges", "normal,build,features", "--invert", package, "--prefix", "none"]);
        let words = words(&command);
        let output = command.output().with_context(|| format!("`{words}` did not start"))?;
        ensure!(output.status.success(), "`{words}` failed, {}", output.status);
        check_hooks(package, &String::from_utf8_lossy(&output.stdout)).with_context(|| words)?;
    }
    Ok("a plain `cargo build` makes none".to_owned())
}

/// Checks what `cargo tree` says of a package's features and of who asks for them.
fn check_hooks(package: &str, tree: &str) -> Result<()> {
    let is_tree = tree.lines().any(|line| line.starts_with(&format!("{package} feature ")));
    ensure!(is_tree, "a line \"{package} feature ...\" is expected, not {tree:?}");
    let mut lines = tree.lines().skip_while(|line| !line.contains("feature \"sabotage\""));
    if let (Some(_), asker) = (lines.next(), lines.next()) {
        let asker = asker.unwrap_or("the command line");
        bail!("{asker} has {package} built with the feature `sabotage`, which is for tests alone");
    }
    Ok(())
}

/// Builds the XDP program, which wants the BPF toolchain, and has clippy read it.
fn xdp_program(root: &Path) -> Result<String> {
    let toolchain = setup::ensure(root)?;
    let same =
        if build_ebpf::check(root, &toolchain)? { "to the carried bytes" } else { "by another compiler" };
    build_ebpf::clippy(root, &toolchain)?;
    Ok(format!("built {same}, and read by clippy"))
}

fn short_fuzz(root: &Path) -> Result<String> {
    let built = fuzz::fuzz(root, &fuzz::Options::all_with_runs(FUZZ_COUNT))?;
    Ok(format!("built in {:.0} s; {FUZZ_COUNT} inputs of each target", built.as_secs_f64()))
}

fn short_run(root: &Path) -> Result<String> {
    let begun = Instant::now();
    let [lnetd, _] = build_programs(root, QUICK, ["lnetd", "lnetctl"])?;
    let built = begun.elapsed();
    let programs = lnetd.parent().map(Path::to_owned);
    run::run(root, &run::Options { programs, ..run::Options::with_count(RUN_COUNT) })?;
    Ok(format!("built in {:.0} s; {RUN_COUNT} messages", built.as_secs_f64()))
}

/// The daemon that the tests started, in virtual machines.
fn short_cards(root: &Path) -> Result<String> {
    cards::short(root, &build_tested(root, ["lnetd", "lnetctl"])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_hooks_in_a_plain_build_are_noticed() {
        let check_hooks = |tree| check_hooks("lnet-core", tree);
        check_hooks("lnet-core v0.1.0\nlnet-core feature \"default\"\nlnetd v0.1.0").unwrap();
        let with = "lnet-core feature \"default\"\nlnet-core feature \"sabotage\"\nlnet-tests v0.1.0 (/t)";
        let error = check_hooks(with).unwrap_err().to_string();
        assert!(error.starts_with("lnet-tests v0.1.0 (/t) has"), "{error}");
        assert!(check_hooks("").unwrap_err().to_string().contains("is expected"));
        no_test_hooks(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
    }

    #[test]
    fn a_level_left_out_or_failed_is_not_passed() {
        let second = Duration::from_secs(1);
        let check = |end: End, expected: [&str; 4]| assert_eq!(row("x", &end, second), expected);
        check(End::Passed("3 tests".into()), ["x", "passed", "1.0 s", "3 tests"]);
        check(End::Failed("why\nmore".into()), ["x", "FAILED", "1.0 s", "why"]);
        check(End::LeftOut("--unprivileged"), ["x", "left out", "1.0 s", "as --unprivileged asks"]);
    }

    #[test]
    fn machines_are_left_out_alone_and_the_option_is_named() {
        let left_out = |unprivileged, no_vm| {
            let options = Options { unprivileged, no_vm };
            let left_out = LEVELS.iter().filter_map(|level| Some((level.name, options.leaves_out(level)?)));
            left_out.collect::<Vec<_>>()
        };
        assert_eq!(left_out(false, false), []);
        assert_eq!(left_out(false, true), [("cards", "--no-vm")]);
        assert!(left_out(true, true).contains(&("cards", "--unprivileged")));
    }

    #[test]
    fn versions_of_rust_are_read_from_manifests_and_from_cargo() {
        assert_eq!(minor_version("[package]\nrust-version = \"1.95\"\n"), Some(95));
        assert_eq!(minor_version("cargo 1.99.1"), Some(99));
        assert_eq!(minor_version("cargo nightly"), None);
        assert!(minor_version(include_str!("../../../Cargo.toml")).is_some());
    }

    #[test]
    fn every_level_that_needs_privileges_says_which() {
        let named = |name: &str| LEVELS.iter().find(|level| level.name == name).unwrap();
        for name in
            ["tools", "without io_uring", "other targets", "XDP program", "fuzz", "run", "package", "cards"]
        {
            assert_eq!(named(name).needs, NETNS_NODES);
        }
        for name in ["format", "clippy", "documentation", "tidy", "test hooks", "tests"] {
            assert!(named(name).needs.is_empty(), "{name}");
        }
    }
}
