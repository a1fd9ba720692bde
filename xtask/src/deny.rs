//! `cargo xtask deny`: cargo-deny with the rules of `deny.toml`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use xtask::command::{say, succeed};

use crate::cargo::cargo;

/// The version that is installed where none is; its checks and `deny.toml` belong together.
const VERSION: &str = "0.20.2";

/// Checks bans, licences and sources of all dependencies, on request advisories too. Installs cargo-deny
/// below `target/tools` if it is not there.
///
/// # Errors
/// When the installation fails or a check finds something; cargo-deny's words are on standard error.
pub(crate) fn deny(root: &Path, advisories: bool) -> Result<()> {
    let program = find_or_install(root)?;
    let mut command = Command::new(program);
    command.current_dir(root).args([
        "--workspace",
        "--all-features",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]);
    if advisories {
        command.arg("advisories");
    }
    succeed(&mut command)
}

fn find_or_install(root: &Path) -> Result<PathBuf> {
    let tools = root.join("target/tools");
    let program = tools.join("bin/cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    say(format_args!("installing cargo-deny {VERSION} into {}; this takes some minutes", tools.display()));
    let mut command = cargo(root);
    command.args(["install", "--locked", "cargo-deny", "--version", VERSION, "--root"]).arg(&tools);
    succeed(&mut command)?;
    Ok(program)
}
