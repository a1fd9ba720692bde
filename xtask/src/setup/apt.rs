//! Debian's packages.

use std::process::Command;

use anyhow::bail;

use super::programs::{answer, find_program, run};

/// Installs packages with apt, without removing or upgrading any other.
///
/// # Errors
/// Names the packages, and the command that root can install them with, or what apt said.
pub(super) fn install(packages: &[&str], why: &str) -> anyhow::Result<()> {
    let list = packages.join(" ");
    if find_program("apt-get").is_none() {
        bail!("missing: {list} (Debian's names; there is no apt-get here to install them)");
    }
    if !is_root() {
        bail!(
            "missing: {list}; run as root: apt-get update && apt-get install --no-install-recommends {list}"
        );
    }
    for package in packages {
        if candidate(package).is_none() {
            update(&format!("apt does not know {package}"))?;
        }
        if candidate(package).is_none() {
            bail!("this release has no package {package}");
        }
    }
    let install = || {
        let mut command = apt_get();
        command.args(["install", "-y", "--no-install-recommends", "--no-remove"]).args(packages);
        run(why, &mut command)
    };
    // Lists of long ago name files that the mirror no longer has.
    install().or_else(|error| {
        update(&format!("they may be out of date ({})", first_line(&error)))?;
        install()
    })
}

/// The version of `package` that apt would install, as far as its lists know.
pub(super) fn candidate(package: &str) -> Option<String> {
    let policy = answer(Command::new("apt-cache").env("LC_ALL", "C").args(["policy", package]))?;
    let candidate = policy.lines().find_map(|line| line.trim().strip_prefix("Candidate: "))?;
    (candidate != "(none)").then(|| candidate.to_owned())
}

/// Refreshes the package lists, where this process may.
///
/// # Errors
/// What apt said.
pub(super) fn update(why: &str) -> anyhow::Result<()> {
    if is_root() && find_program("apt-get").is_some() {
        run(&format!("package lists: {why}"), apt_get().arg("update"))?;
    }
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=300"]);
    command
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn first_line(error: &anyhow::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().trim_end_matches(':').to_owned()
}
