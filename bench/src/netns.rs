//! Entering a network namespace.

use std::os::fd::AsFd;
use std::path::Path;

use anyhow::Context;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Moves the calling thread into the network namespace at `path` (as in `/run/netns`).
///
/// # Errors
/// When there is none, or the process may not enter it.
pub fn enter(path: &Path) -> anyhow::Result<()> {
    let file =
        std::fs::File::open(path).with_context(|| format!("no network namespace {}", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .with_context(|| format!("cannot enter the network namespace {}", path.display()))
}
