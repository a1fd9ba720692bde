//! Calls of the cargo that runs this program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use xtask::command::{say, succeed, words};

use crate::setup;

/// `cargo` in the workspace's root.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(setup::cargo());
    command.current_dir(root);
    command
}

/// Tells a build which commit it is of; the benches keep it.
const COMMIT_VARIABLE: &str = "LNET_COMMIT";

/// The commit that is checked out, with `-dirty` if there are changes; `None` where git tells none.
fn commit(root: &Path) -> Option<String> {
    let mut git = Command::new("git");
    let output = git.args(["describe", "--always", "--dirty"]).current_dir(root).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Builds a binary in release, with further arguments for cargo, and gives its path, wherever the target
/// directory is.
///
/// # Errors
/// When cargo does not start or the build fails; cargo's own words are on standard error then.
pub(crate) fn build_binary(root: &Path, package: &str, binary: &str, arguments: &[&str]) -> Result<PathBuf> {
    let mut command = cargo(root);
    command.args(["build", "--release", "--package", package, "--bin", binary]).args(arguments);
    build(root, &mut command, [binary]).map(|[path]| path)
}

/// Builds programs, each the only one of a package of its name, with a profile, and gives their paths.
///
/// # Errors
/// Builds several programs, each as [`build_binary`] does.
pub(crate) fn build_programs<const N: usize>(
    root: &Path,
    profile: &str,
    names: [&str; N],
) -> Result<[PathBuf; N]> {
    let mut command = cargo(root);
    command.args(["build", "--profile", profile]);
    for name in names {
        // A package has a program of its name, and one has another besides.
        let package = if name == "lctl" { "lnetctl" } else { name };
        command.args(["--package", package, "--bin", name]);
    }
    build(root, &mut command, names)
}

/// Features of the whole workspace in tests: a second loader, and the hooks that switch bugs on for the
/// simulator's checkers to find. Clippy, tests and what tests start have the same ones, so that each crate is
/// built once.
pub(crate) const TEST_FEATURES: &str = "lnet-tests/libbpf,lnet-tests/sabotage";

/// Builds programs as the tests' build does, which has built them already if it came before. A test is among
/// what is built: without one cargo has dependencies lack the features that tests alone want of them, and
/// builds them anew.
///
/// # Errors
/// Builds as [`build_binary`] does.
pub(crate) fn build_tested<const N: usize>(root: &Path, names: [&str; N]) -> Result<[PathBuf; N]> {
    let mut command = cargo(root);
    command.args(["build", "--features", TEST_FEATURES, "--test", "control"]);
    command.args(names.iter().flat_map(|name| ["--bin", name]));
    build(root, &mut command, names)
}

/// Builds an example with a profile, and gives its path.
///
/// # Errors
/// Builds as [`build_binary`] does.
pub(crate) fn build_example(root: &Path, profile: &str, package: &str, example: &str) -> Result<PathBuf> {
    let mut command = cargo(root);
    command.args(["build", "--profile", profile, "--package", package, "--example", example]);
    build(root, &mut command, [example]).map(|[path]| path)
}

/// The program of this name below `target/tools`, which cargo installs where there is none.
///
/// # Errors
/// When the installation fails; cargo's own words are on standard error then.
pub(crate) fn ensure_tool(root: &Path, name: &str, version: &str, arguments: &[&str]) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let program = tools.join("bin").join(name);
    if program.is_file() {
        return Ok(program);
    }
    say(format_args!("installing {name} {version} into {}", tools.display()));
    let mut command = cargo(root);
    command.args(["install", "--locked", name, "--version", version]).args(arguments);
    command.arg("--root").arg(&tools);
    succeed(&mut command)?;
    Ok(program)
}

/// Runs a build and gives the executables of this name.
fn build<const N: usize>(root: &Path, command: &mut Command, names: [&str; N]) -> Result<[PathBuf; N]> {
    command.envs(commit(root).map(|commit| (COMMIT_VARIABLE, commit)));
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let words = words(command);
    let output = command.output().with_context(|| format!("`{words}` did not start"))?;
    ensure!(output.status.success(), "`{words}` failed, {}", output.status);
    let messages = String::from_utf8_lossy(&output.stdout);
    let paths: Vec<_> = names.iter().filter_map(|name| executable(&messages, name)).collect();
    paths.try_into().map_err(|_| anyhow!("`{words}` named no executable of {}", names.join(", ")))
}

/// The executable that cargo's messages name for `binary`.
fn executable(messages: &str, binary: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == binary)
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::executable;

    #[test]
    fn the_executable_is_found_among_the_messages_of_cargo() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"lnet_control"},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","target":{"name":"lnetctl"},"executable":"/t/lnetctl"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executable(messages, "lnetctl"), Some("/t/lnetctl".into()));
        assert_eq!(executable(messages, "lnet_control"), None);
        assert_eq!(executable("", "lnetctl"), None);
    }
}
