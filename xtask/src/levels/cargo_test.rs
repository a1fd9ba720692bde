//! `cargo test`, read while it runs: what passed, what failed, what hangs, and what runs once more.
//!
//! - A few tests that fail are run once more, without the others beside them: some wait for threads and for a
//!   kernel that share their CPUs with whatever else the machine does. Those that pass then are named.
//! - A test that needs a second run twice is a defect that CI refuses ([`SecondRuns`]).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use xtask::command::{say, words};

/// Lists tests that have needed a second run.
const SECOND_RUNS: &str = "tests/second-runs.txt";
/// Failed tests that are run once more; where more fail it is not for the machine's load.
const AGAIN_MAX: usize = 3;

/// How long tests may print nothing, doctests being built included. A test that hangs for longer ends the
/// level, and is named.
const SILENCE_MAX: Duration = Duration::from_secs(20 * 60);
/// How long output may still come when the tests have ended. A process that they left behind may keep the
/// pipe open for ever.
const REST_MAX: Duration = Duration::from_secs(2);

/// The tests that have needed a second run before.
pub(super) struct SecondRuns {
    names: Vec<String>,
    /// Whether a test among them may need none again, as in CI.
    is_strict: bool,
}

impl SecondRuns {
    /// The list that is checked in.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let text = fs::read_to_string(root.join(SECOND_RUNS)).context(SECOND_RUNS)?;
        let names = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let is_strict = std::env::var_os("CI").is_some_and(|value| value == "true");
        Ok(Self { names: names.map(str::to_owned).collect(), is_strict })
    }

    /// Judges tests that passed only when they ran again.
    fn judge(&self, again: &[String]) -> Result<String> {
        let (known, first): (Vec<_>, Vec<_>) = again.iter().partition(|name| self.names.contains(name));
        let known = known.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
        ensure!(
            known.is_empty() || !self.is_strict,
            "passed only when run again, as before ({SECOND_RUNS}): {known}"
        );
        for name in first {
            say(format_args!(
                "\n*** {name} passed only when it ran again. A test that does is a defect. Unless it is mended \
                 now, {SECOND_RUNS} gets this line, after which CI fails where that happens again:\n{name}\n"
            ));
        }
        Ok(format!("passed only when run again: {}", again.join(", ")))
    }
}

/// Runs all tests of a `cargo test`, or those that these arguments choose, and those that fail once more.
/// Gives a note: how many passed, and which only when they ran again.
///
/// # Errors
/// When tests fail, run for too long in silence, or are none.
pub(super) fn run_all(
    command: impl Fn() -> Command,
    chosen: &[&str],
    seconds: &SecondRuns,
) -> Result<String> {
    let with = |arguments: &[&str]| {
        let mut command = command();
        command.arg("--no-fail-fast").arg("--").args(arguments);
        command
    };
    let first = run_tests(with(chosen), &mut std::io::stdout())?;
    if first.error.is_none() {
        return Ok(format!("{} tests", first.passed));
    }
    again(&first, seconds, |failed| {
        say(format_args!("\nOnce more: {}", failed.join(", ")));
        let names = failed.iter().map(String::as_str);
        let exactly: Vec<_> = core::iter::once("--exact").chain(names).collect();
        run_tests(with(&exactly), &mut std::io::stdout())
    })
}

/// Runs tests that failed once more, and says what comes of them.
fn again(
    first: &Tests,
    seconds: &SecondRuns,
    run: impl FnOnce(&[String]) -> Result<Tests>,
) -> Result<String> {
    let Some(error) = &first.error else { bail!("nothing failed") };
    let failed = &first.failed;
    ensure!((1..=AGAIN_MAX).contains(&failed.len()), "{error}; failing: {}", failed.join(", "));
    let second = run(failed)?;
    if let Some(error) = second.error {
        bail!("{error}; failing twice: {}", second.failed.join(", "));
    }
    ensure!(second.passed >= failed.len() as u64, "{} did not run again", failed.join(", "));
    let all = first.passed + failed.len() as u64;
    Ok(format!("{all} tests; {}", seconds.judge(failed)?))
}

/// How a run of `cargo test` ended.
#[derive(Default)]
struct Tests {
    passed: u64,
    /// The names of those that failed, each once.
    failed: Vec<String>,
    /// The error, unless all passed.
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

    const NONE: SecondRuns = SecondRuns { names: Vec::new(), is_strict: true };

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
            let error = again(&tests, &NONE, |_| panic!("nothing can run again")).unwrap_err().to_string();
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
        let note = again(&first, &NONE, |failed| {
            assert_eq!(failed, ["m::a"]);
            run("echo 'test result: ok. 1 passed; 0 failed;'")
        });
        assert_eq!(note.unwrap(), "8 tests; passed only when run again: m::a");
        let twice = again(&first, &NONE, |_| run(failing)).unwrap_err().to_string();
        assert!(twice.ends_with("failing twice: m::a"), "{twice}");
        let none = again(&first, &NONE, |_| run("echo 'test result: ok. 0 passed; 0 failed;'"));
        assert!(none.unwrap_err().to_string().contains("ran no test at all"));
    }

    #[test]
    fn what_needed_a_second_run_before_fails_in_ci() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let judge = |is_strict, again: &[&str]| {
            let seconds = SecondRuns { names: names(&["m::a", "m::b"]), is_strict };
            seconds.judge(&names(again)).map_err(|error| error.to_string())
        };
        assert_eq!(judge(false, &["m::a"]), Ok("passed only when run again: m::a".to_owned()));
        assert_eq!(judge(true, &["m::c"]), Ok("passed only when run again: m::c".to_owned()));
        let error = judge(true, &["m::c", "m::b"]).unwrap_err();
        assert_eq!(error, "passed only when run again, as before (tests/second-runs.txt): m::b");
    }

    #[test]
    fn the_list_of_second_runs_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let names = SecondRuns::read(root).unwrap().names;
        assert!(names.iter().all(|name| !name.contains(char::is_whitespace)), "{names:?}");
    }
}
