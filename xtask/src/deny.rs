//! `cargo xtask deny`: cargo-deny with the rules of `deny.toml`.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use xtask::command::succeed;

use crate::cargo::ensure_tool;

/// The version that is installed where none is; its checks and `deny.toml` belong together.
const VERSION: &str = "0.20.2";

/// Checks bans, licences and sources of all dependencies, on request advisories too. Installs cargo-deny
/// below `target/tools` if it is not there.
///
/// # Errors
/// When the installation fails or a check finds something; cargo-deny's words are on standard error.
pub(crate) fn deny(root: &Path, advisories: bool) -> Result<()> {
    let program = ensure_tool(root, "cargo-deny", VERSION, &[])?;
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
