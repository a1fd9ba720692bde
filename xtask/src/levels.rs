//! `cargo xtask test`: every test level that this machine can run.
//!
//! - A level that cannot run is a failure that names the missing capability; only `--unprivileged` leaves
//!   levels out, and the summary says so. No level counts as passed that did not run.
//! - A level whose tests are none fails: a filter that matches nothing proves nothing.
//! - A few tests that fail are run once more, without the others beside them: some wait for threads and for a
//!   kernel that share their CPUs with whatever else the machine does. The summary names those that passed
//!   only then.
//! - One level's failure does not keep the others from running.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use xtask::command::{say, succeed, words};
use xtask::privilege::{self, Capability, NETNS_NODES, UNPRIVILEGED};

use crate::cargo::cargo;
use crate::{build_ebpf, fuzz, run, setup, tidy};

/// The feature that the tests with a second loader are behind.
const LIBBPF: &str = "lnet-tests/libbpf";
/// The feature of the hooks that switch bugs on, for the simulator's checkers to find.
const SABOTAGE: &str = "lnet-tests/sabotage";
/// The packages that have such hooks.
const HOOKED: [&str; 3] = ["lnet-core", "lnet-xdp-proto", "lnet-tcp-proto"];
/// Messages of the run that comes last.
const RUN_COUNT: u64 = 20_000;
/// Inputs of each fuzz target.
const FUZZ_COUNT: u32 = 20_000;

/// Failed tests that are run once more; where more fail it is not for the machine's load.
const AGAIN_MAX: usize = 3;

/// How long tests may print nothing, building included. A test that hangs for longer ends the level, and is
/// named.
const SILENCE_MAX: Duration = Duration::from_secs(20 * 60);
/// How long output may still come when the tests have ended. A process that they left behind may keep the
/// pipe open for ever.
const REST_MAX: Duration = Duration::from_secs(2);

/// A test level.
struct Level {
    name: &'static str,
    /// What it needs; empty: nothing.
    needs: &'static [Capability],
    /// Runs it and gives a note for the summary.
    run: fn(&Path) -> Result<String>,
}

const LEVELS: &[Level] = &[
    Level { name: "format", needs: &[], run: |root| lint(root, &["fmt", "--all", "--check"], None) },
    Level { name: "clippy", needs: &[], run: |root| clippy(root, &[]) },
    Level {
        name: "documentation",
        needs: &[],
        run: |root| lint(root, &["doc", "--no-deps"], Some(("RUSTDOCFLAGS", "-D warnings"))),
    },
    Level { name: "tidy", needs: &[], run: |root| Ok(format!("{} files", tidy::tidy(root)?)) },
    Level { name: "test hooks", needs: &[], run: no_test_hooks },
    Level { name: "unit", needs: &[], run: unit },
    Level { name: "XDP program", needs: &NETNS_NODES, run: xdp_program },
    // A C++ compiler is needed, which root can install.
    Level { name: "fuzz", needs: &NETNS_NODES, run: short_fuzz },
    Level { name: "bpf, netns, lnetd", needs: &NETNS_NODES, run: bpf_and_netns },
    Level { name: "cargo xtask run", needs: &NETNS_NODES, run: run_command },
    Level { name: "run", needs: &NETNS_NODES, run: short_run },
];

/// How a level ended.
enum End {
    Passed(String),
    Failed(String),
    /// The user asked for it.
    LeftOut,
}

/// Runs all levels and prints a summary.
///
/// # Errors
/// When a level fails or cannot run.
pub(crate) fn test(root: &Path, unprivileged: bool) -> Result<()> {
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    let mut interrupted = None;
    for level in LEVELS {
        say(format_args!("\n== {} ==", level.name));
        let start = Instant::now();
        let end = if unprivileged && !level.needs.is_empty() {
            End::LeftOut
        } else {
            match privilege::require("this level", level.needs).and_then(|()| (level.run)(root)) {
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
        End::LeftOut => ("left out", "as --unprivileged asks".to_owned()),
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
fn clippy(root: &Path, arguments: &[&str]) -> Result<String> {
    let (ours, present) = (minor_version(include_str!("../../Cargo.toml")), cargo_version(root)?);
    let strict = ours.is_some() && ours >= minor_version(&present);
    let mut command = cargo(root);
    command.args(["clippy", "--all-targets"]).args(arguments);
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

fn unit(root: &Path) -> Result<String> {
    let unprivileged = || {
        let mut command = cargo(root);
        command.arg("test").env(UNPRIVILEGED, "1");
        command
    };
    let all = tests(unprivileged, &[])?;
    let bugs = || {
        let mut command = unprivileged();
        command.args(["--features", SABOTAGE, "--test", "sim"]);
        command
    };
    let bugs = tests(bugs, &["each_bug"])?;
    Ok(format!("{all}, {bugs} of bugs switched on; privileged ones return at once here, and run below"))
}

/// What a plain `cargo build` makes has no hooks for tests in it.
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
    let start = format!("{package} feature ");
    ensure!(
        tree.lines().any(|line| line.starts_with(&start)),
        "a line \"{start}...\" is expected, not {tree:?}"
    );
    let mut lines = tree.lines().skip_while(|line| !line.contains("feature \"sabotage\""));
    if let (Some(_), asker) = (lines.next(), lines.next()) {
        let asker = asker.unwrap_or("the command line");
        bail!("{asker} has {package} built with the feature `sabotage`, which is for tests alone");
    }
    Ok(())
}

/// What only a machine with the BPF toolchain can build, built and read by clippy.
fn xdp_program(root: &Path) -> Result<String> {
    let toolchain = setup::ensure(root)?;
    let same =
        if build_ebpf::check(root, &toolchain)? { "to the carried bytes" } else { "by another compiler" };
    build_ebpf::clippy(root, &toolchain)?;
    setup::ensure_test_tools()?;
    let note = clippy(root, &["--features", &[LIBBPF, SABOTAGE].join(",")])?;
    Ok(format!("built {same}, and read by clippy as well as the tests behind libbpf and sabotage; {note}"))
}

fn short_fuzz(root: &Path) -> Result<String> {
    fuzz::fuzz(root, &fuzz::Options::all_with_runs(FUZZ_COUNT))?;
    Ok(format!("{FUZZ_COUNT} inputs of each target"))
}

fn bpf_and_netns(root: &Path) -> Result<String> {
    privileged_tests(root, &["--package", "lnet-tests", "--features", LIBBPF])
}

fn run_command(root: &Path) -> Result<String> {
    privileged_tests(root, &["--package", "xtask", "--test", "cleanup"])
}

fn privileged_tests(root: &Path, arguments: &[&str]) -> Result<String> {
    let command = || {
        let mut command = cargo(root);
        command.arg("test").args(arguments).env_remove(UNPRIVILEGED);
        command
    };
    tests(command, &[])
}

fn short_run(root: &Path) -> Result<String> {
    run::run(root, &run::Options::with_count(RUN_COUNT))?;
    Ok(format!("{RUN_COUNT} messages"))
}

/// Runs all tests of a `cargo test` whose names the filters match, and those that fail once more. Gives a
/// note: how many passed, and which only when they ran again.
fn tests(command: impl Fn() -> Command, filters: &[&str]) -> Result<String> {
    let with = |arguments: &[&str]| {
        let mut command = command();
        command.arg("--no-fail-fast").arg("--").args(arguments);
        command
    };
    let first = run_tests(with(filters), &mut std::io::stdout())?;
    if first.error.is_none() {
        return Ok(format!("{} tests", first.passed));
    }
    again(&first, |failed| {
        say(format_args!("\nOnce more: {}", failed.join(", ")));
        let names = failed.iter().map(String::as_str);
        let exactly: Vec<_> = core::iter::once("--exact").chain(names).collect();
        run_tests(with(&exactly), &mut std::io::stdout())
    })
}

/// What comes of tests that failed when they run once more.
fn again(first: &Tests, run: impl FnOnce(&[String]) -> Result<Tests>) -> Result<String> {
    let Some(error) = &first.error else { bail!("nothing failed") };
    let failed = &first.failed;
    ensure!((1..=AGAIN_MAX).contains(&failed.len()), "{error}; failing: {}", failed.join(", "));
    let second = run(failed)?;
    if let Some(error) = second.error {
        bail!("{error}; failing twice: {}", second.failed.join(", "));
    }
    ensure!(second.passed >= failed.len() as u64, "{} did not run again", failed.join(", "));
    let all = first.passed + failed.len() as u64;
    Ok(format!("{all} tests; passed only when run again: {}", failed.join(", ")))
}

/// How a run of `cargo test` ended.
#[derive(Default)]
struct Tests {
    passed: u64,
    /// The names of those that failed, each once.
    failed: Vec<String>,
    /// What is wrong, unless all passed.
    error: Option<String>,
}

impl Tests {
    /// Takes in a line of their output.
    fn take(&mut self, line: &str) {
        self.passed += passed(line).unwrap_or(0);
        if let Some(name) = failed(line).filter(|name| !self.failed.iter().any(|known| known == name)) {
            self.failed.push(name.to_owned());
        }
    }
}

/// Runs `cargo test` and copies what it prints.
fn run_tests(mut command: Command, copy: &mut impl Write) -> Result<Tests> {
    run_tests_within(&mut command, SILENCE_MAX, copy)
}

fn run_tests_within(command: &mut Command, silence_max: Duration, copy: &mut impl Write) -> Result<Tests> {
    let words = words(command);
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("`{words}` did not start"))?;
    let output = child.stdout.take().with_context(|| words.clone())?;
    let (sender, lines) = mpsc::channel();
    // The thread ends with the pipe, or with the first line that is not wanted any more.
    std::thread::spawn(move || BufReader::new(output).lines().try_for_each(|line| sender.send(line)));
    let mut tests = Tests::default();
    let mut slow = Vec::new();
    let mut heard_at = Instant::now();
    let mut ended_at = None;
    loop {
        match lines.recv_timeout(REST_MAX / 4) {
            Ok(line) => {
                let line = line.with_context(|| words.clone())?;
                writeln!(copy, "{line}").context("writing the output of the tests")?;
                heard_at = Instant::now();
                tests.take(&line);
                note_slow(&mut slow, &line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if ended_at.is_none() => {
                ended_at = child.try_wait().with_context(|| words.clone())?.map(|_| Instant::now());
                if heard_at.elapsed() > silence_max {
                    end_with_descendants(child.id());
                    child.wait().with_context(|| words.clone())?;
                    bail!("`{words}` printed nothing for {silence_max:?}; running: {}", slow.join(", "));
                }
            }
            Err(RecvTimeoutError::Timeout) if ended_at.is_some_and(|at| at.elapsed() > REST_MAX) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    let status = child.wait().with_context(|| words.clone())?;
    if !status.success() {
        tests.error = Some(format!("`{words}` failed, {status}"));
    } else if tests.passed == 0 {
        tests.error = Some(format!("`{words}` ran no test at all"));
    }
    Ok(tests)
}

/// Ends a process, so that it starts no other, and then all that it has started: a test program does not end
/// with cargo.
fn end_with_descendants(id: u32) {
    let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let children = threads.flat_map(|thread| fs::read_to_string(thread.path().join("children")));
    let children: Vec<u32> =
        children.flat_map(|ids| ids.split_whitespace().flat_map(str::parse).collect::<Vec<_>>()).collect();
    if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // A process that has ended meanwhile needs no signal.
        let _ = kill_process(pid, Signal::KILL);
    }
    children.into_iter().for_each(end_with_descendants);
}

/// Keeps the names of tests that take long and have not ended.
fn note_slow(slow: &mut Vec<String>, line: &str) {
    let Some(line) = line.strip_prefix("test ") else { return };
    if let Some(name) = line.strip_suffix(" has been running for over 60 seconds") {
        slow.push(name.to_owned());
    } else if let Some((name, _)) = line.split_once(" ... ") {
        slow.retain(|known| known != name);
    }
}

/// The name of a test that failed, in the line that says so.
fn failed(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// The number of tests that passed in a `test result:` line.
fn passed(line: &str) -> Option<u64> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    counts.split_once(" passed;")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn passed_tests_are_counted() {
        let line = "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out";
        assert_eq!(passed(line), Some(12));
        assert_eq!(passed("test result: FAILED. 7 passed; 1 failed;"), Some(7));
        assert_eq!(passed("test a ... ok"), None);
        let two = format!("echo '{line}'; echo; echo '{line}'");
        let mut copy = Vec::new();
        let tests = run_tests(shell(&two), &mut copy).unwrap();
        assert_eq!((tests.passed, tests.error), (24, None));
        assert_eq!(String::from_utf8(copy).unwrap(), format!("{line}\n\n{line}\n"));
    }

    #[test]
    fn failing_tests_and_no_tests_are_failures() {
        let check = |script: &str, part: &str| {
            let tests = run_tests(shell(script), &mut Vec::new()).unwrap();
            let error = again(&tests, |_| panic!("nothing can run again")).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        check("echo 'test result: FAILED. 7 passed; 1 failed;'; exit 101", "exit status: 101");
        check("echo 'test result: ok. 0 passed; 0 failed;'", "ran no test at all");
        let four = "for name in a b c d; do echo \"test $name ... FAILED\"; done; exit 101";
        check(four, "failing: a, b, c, d");
    }

    #[test]
    fn tests_that_hang_are_named_and_ended() {
        let script = "echo 'test a has been running for over 60 seconds'; \
                      echo 'test b has been running for over 60 seconds'; echo 'test a ... ok'; \
                      sh -c 'echo \"child $$\"; sleep 600'; true";
        let mut copy = Vec::new();
        let result = run_tests_within(&mut shell(script), Duration::from_millis(300), &mut copy);
        let error = result.err().unwrap().to_string();
        assert!(error.ends_with("printed nothing for 300ms; running: b"), "{error}");
        let copy = String::from_utf8(copy).unwrap();
        let child = copy.lines().find_map(|line| line.strip_prefix("child ")).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while Path::new("/proc").join(child).join("exe").exists() {
            assert!(Instant::now() < deadline, "{child} still runs");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_tests_leave_behind_is_not_waited_for() {
        let script = "echo 'test result: ok. 3 passed; 0 failed;'; (exec sleep 600) & echo \"left $!\"";
        let mut copy = Vec::new();
        let tests = run_tests(shell(script), &mut copy).unwrap();
        assert_eq!((tests.passed, tests.error), (3, None));
        let copy = String::from_utf8(copy).unwrap();
        let left = copy.lines().find_map(|line| line.strip_prefix("left ")).unwrap();
        end_with_descendants(left.parse().unwrap());
    }

    #[test]
    fn a_test_that_fails_runs_once_more_and_is_named() {
        let failing = "echo 'test m::a ... FAILED'; echo 'test m::a ... FAILED'; \
                       echo 'test result: FAILED. 7 passed; 1 failed;'; exit 101";
        let run = |script: &str| run_tests(shell(script), &mut Vec::new());
        let first = run(failing).unwrap();
        let note = again(&first, |failed| {
            assert_eq!(failed, ["m::a"]);
            run("echo 'test result: ok. 1 passed; 0 failed;'")
        });
        assert_eq!(note.unwrap(), "8 tests; passed only when run again: m::a");
        let twice = again(&first, |_| run(failing)).unwrap_err().to_string();
        assert!(twice.ends_with("failing twice: m::a"), "{twice}");
        let none = again(&first, |_| run("echo 'test result: ok. 0 passed; 0 failed;'"));
        assert!(none.unwrap_err().to_string().contains("ran no test at all"));
    }

    #[test]
    fn test_hooks_in_a_plain_build_are_noticed() {
        check_hooks("lnet-core", "lnet-core v0.1.0\nlnet-core feature \"default\"\nlnetd v0.1.0").unwrap();
        let with = "lnet-core feature \"default\"\nlnet-core feature \"sabotage\"\nlnet-tests v0.1.0 (/t)";
        let error = check_hooks("lnet-core", with).unwrap_err().to_string();
        assert!(error.starts_with("lnet-tests v0.1.0 (/t) has"), "{error}");
        assert!(check_hooks("lnet-core", "").unwrap_err().to_string().contains("is expected"));
        no_test_hooks(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
    }

    #[test]
    fn a_level_left_out_or_failed_is_not_passed() {
        let second = Duration::from_secs(1);
        let check = |end: End, expected: [&str; 4]| assert_eq!(row("x", &end, second), expected);
        check(End::Passed("3 tests".into()), ["x", "passed", "1.0 s", "3 tests"]);
        check(End::Failed("why\nmore".into()), ["x", "FAILED", "1.0 s", "why"]);
        check(End::LeftOut, ["x", "left out", "1.0 s", "as --unprivileged asks"]);
    }

    #[test]
    fn versions_of_rust_are_read_from_manifests_and_from_cargo() {
        assert_eq!(minor_version("[package]\nrust-version = \"1.95\"\n"), Some(95));
        assert_eq!(minor_version("cargo 1.99.1"), Some(99));
        assert_eq!(minor_version("cargo nightly"), None);
        assert!(minor_version(include_str!("../../Cargo.toml")).is_some());
    }

    #[test]
    fn every_level_that_needs_privileges_says_which() {
        let named = |name: &str| LEVELS.iter().find(|level| level.name == name).unwrap();
        for name in ["XDP program", "fuzz", "bpf, netns, lnetd", "cargo xtask run", "run"] {
            assert_eq!(named(name).needs, NETNS_NODES);
        }
        for name in ["format", "clippy", "documentation", "tidy", "test hooks", "unit"] {
            assert!(named(name).needs.is_empty(), "{name}");
        }
    }
}
