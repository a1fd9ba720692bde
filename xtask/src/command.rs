//! Programs run to their end, with what they said when they failed; and words to the user.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Runs `program` with `arguments` to its end and gives its standard output.
///
/// The program runs in a process group of its own: a Ctrl-C at the terminal reaches this process only, so
/// that the commands of a cleanup run to their end.
///
/// # Errors
/// When the program is not found, or when it fails: the error then holds its exit status, standard output
/// and standard error.
pub fn output<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> Result<String> {
    output_of(Command::new(program).args(arguments))
}

/// Runs a command to its end and gives its standard output, as [`output`] does.
///
/// # Errors
/// Those of [`output`].
pub fn output_of(command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null()).process_group(0);
    let words = words(command);
    let output = command.output().with_context(|| format!("`{words}` did not start"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{words}` failed, {}\nstdout: {}\nstderr: {}", output.status, stdout.trim(), stderr.trim());
    }
    Ok(stdout.into_owned())
}

/// Runs `command` to its end; what it prints goes where this process prints.
///
/// # Errors
/// When the program is not found, or when it fails.
pub fn succeed(command: &mut Command) -> Result<()> {
    let words = words(command);
    let status = command.status().with_context(|| format!("`{words}` did not start"))?;
    ensure!(status.success(), "`{words}` failed, {status}");
    Ok(())
}

/// The command line of `command` as one would type it, with the program's name for its path.
#[must_use]
pub fn words(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for argument in command.get_args() {
        words.push(' ');
        words.push_str(&argument.to_string_lossy());
    }
    words
}

/// Tells the user something, on standard error. Never fails and never panics: a cleanup goes on when the
/// terminal is gone.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_output_of_a_program_that_succeeds() {
        assert_eq!(output("sh", ["-c", "echo yes; echo no >&2"]).unwrap(), "yes\n");
    }

    #[test]
    fn a_failure_carries_the_command_its_status_and_both_streams() {
        let error = output("sh", ["-c", "echo out; echo err >&2; exit 3"]).unwrap_err().to_string();
        for part in ["`sh -c ", "exit status: 3", "stdout: out", "stderr: err"] {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output("lnet-no-such-program", [""; 0]).unwrap_err();
        assert!(format!("{error:#}").contains("lnet-no-such-program"), "{error:#}");
    }

    #[test]
    fn a_command_line_names_the_program_without_its_directory() {
        let mut command = Command::new("/a/b/program");
        assert_eq!(words(command.args(["-x", "/c/d"])), "program -x /c/d");
    }

    #[test]
    fn a_command_must_succeed() {
        succeed(Command::new("sh").args(["-c", "true"])).unwrap();
        let error = succeed(Command::new("sh").args(["-c", "exit 5"])).unwrap_err().to_string();
        assert_eq!(error, "`sh -c exit 5` failed, exit status: 5");
    }
}
