//! Other programs: which there are, what they answer, and their environment.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, bail};

/// The cargo that runs this program, or the one on PATH.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Takes out of a command's environment what the cargo that runs this program put in, or a user set for
/// other builds; what says how to reach registries stays.
pub(super) fn scrub(command: &mut Command) {
    const KEPT: [&str; 5] =
        ["CARGO_HOME", "CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_"];
    // RUSTUP_TOOLCHAIN stays: without it rustup obeys the `rust-toolchain.toml` of each crate that cargo
    // compiles in its own folder, and changes the user's toolchains for it.
    const DROPPED: [&str; 7] = [
        "CARGO",
        "RUSTC",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_BOOTSTRAP",
        "RUSTDOC",
        "RUSTFLAGS",
    ];
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let cargo_own = name.starts_with("CARGO_") && !KEPT.iter().any(|kept| name.starts_with(kept));
        if cargo_own || DROPPED.contains(&name.as_ref()) {
            command.env_remove(name.as_ref());
        }
    }
    // cargo prepends its toolchain's libraries for the program that it runs; another rustc must not see them.
    if let Some(paths) = std::env::var_os("LD_LIBRARY_PATH") {
        let foreign = |path: &PathBuf| !path.iter().any(|part| part == "toolchains" || part == "target");
        if let Ok(paths) = std::env::join_paths(std::env::split_paths(&paths).filter(foreign)) {
            command.env("LD_LIBRARY_PATH", paths);
        }
    }
}

/// Says why, shows the command, runs it.
///
/// # Errors
/// The command with the last lines of what it printed.
pub(super) fn run(why: &str, command: &mut Command) -> anyhow::Result<()> {
    let line = command_line(command);
    eprintln!("setup: {why}\n  $ {line}");
    let output = command.output().with_context(|| format!("cannot run `{line}`"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("`{line}` failed ({}):\n{}", output.status, last_lines(&output))
}

fn last_lines(output: &Output) -> String {
    const SHOWN: usize = 25;
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&both);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN)..].join("\n")
}

/// The command as one would type it.
fn command_line(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value.filter(|_| name != "PATH" && name != "LD_LIBRARY_PATH") {
            let _ = write!(line, "{}={} ", name.display(), quoted(value));
        }
    }
    line.push_str(&quoted(command.get_program()));
    for argument in command.get_args() {
        let _ = write!(line, " {}", quoted(argument));
    }
    line
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if word.contains(' ') { format!("'{word}'") } else { word.into_owned() }
}

/// What a command prints, trimmed; `None` when it cannot be run or fails.
pub(super) fn answer(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether a program is there and can be run.
pub(super) fn runs(program: &Path) -> bool {
    answer(Command::new(program).arg("--version")).is_some()
}

/// The program of this name on PATH.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|directory| directory.join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_shown_as_typed() {
        let mut command = Command::new("cargo");
        command.args(["build", "-p", "a b"]).env("RUSTFLAGS", "-C x").env("PATH", "/bin");
        assert_eq!(command_line(&command), "RUSTFLAGS='-C x' cargo build -p 'a b'");
    }

    #[test]
    fn a_failing_command_says_what_it_printed() {
        let error =
            run("test", Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3") && text.contains("out\nerr"), "{text}");
    }
}
