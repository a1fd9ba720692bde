//! Tests of nodes, run where the kernel refuses `io_uring`, as in containers: nodes go by `epoll` then.
//!
//! The launcher has the kernel refuse it to cargo and to all that cargo starts, checks that, and names the
//! reactor that tests are to find. Each test that starts a node asserts that it has this one.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::PROGRAMS_BUILT;
use super::cargo_test::{SecondRuns, run_all};
use crate::cargo::{TEST_FEATURES, build_tested};
use crate::setup;

const LAUNCHER: &str = "lnet-without-uring";

/// Tests of one target.
struct Selection {
    target: &'static str,
    /// Modules whose tests run; all do where there are none.
    modules: &'static [&'static str],
    /// Modules whose tests do not run, and why.
    left_out: &'static [(&'static str, &'static str)],
}

/// The API over its own nets; rings, sockets and tcp over veth; selftest by daemons.
const SELECTIONS: [Selection; 3] = [
    Selection { target: "api", modules: &[], left_out: &[] },
    Selection {
        target: "node",
        modules: &[
            "helping",
            "lent_tcp",
            "messaging",
            "modes",
            "names_tcp",
            "placed_tcp",
            "registered",
            "served",
            "tcp",
            "traffic",
            "waiting_tcp",
            "wakeups",
        ],
        // The name `shared_tcp` has that of `tcp` in it.
        left_out: &[("shared_tcp", "asks for each reactor by itself, io_uring among them")],
    },
    Selection { target: "control", modules: &["selftest"], left_out: &[] },
];

impl Selection {
    /// Arguments of test programs that choose these tests.
    fn arguments(&self) -> Vec<String> {
        let modules = self.modules.iter().map(|module| format!("{module}::"));
        let skip = |(module, _): &(&str, _)| ["--skip".to_owned(), format!("{module}::")];
        modules.chain(self.left_out.iter().flat_map(skip)).collect()
    }
}

/// Runs all selections. Gives a note: how many tests passed of each.
///
/// # Errors
/// When tests fail, or the launcher finds that `io_uring` is not refused.
pub(super) fn run(root: &Path) -> Result<String> {
    let [launcher] = build_tested(root, [LAUNCHER])?;
    let seconds = SecondRuns::read(root)?;
    let mut notes = Vec::new();
    for selection in &SELECTIONS {
        let target = selection.target;
        let command = || {
            let mut command = Command::new(&launcher);
            command.arg(setup::cargo()).current_dir(root).env(PROGRAMS_BUILT, "1");
            command.args(["test", "--features", TEST_FEATURES, "--test", target]);
            command
        };
        let arguments = selection.arguments();
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let passed = run_all(command, &arguments, &seconds).with_context(|| target)?;
        notes.push(format!("{target}: {passed}"));
    }
    Ok(notes.join("; "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A name that matches nothing would have fewer tests run in silence.
    #[test]
    fn the_modules_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for Selection { target, modules, left_out } in &SELECTIONS {
            assert!(left_out.iter().all(|(_, why)| !why.is_empty()));
            for module in modules.iter().chain(left_out.iter().map(|(module, _)| module)) {
                let path = root.join("tests/tests").join(target).join(format!("{module}.rs"));
                assert!(fs::read_to_string(path).unwrap().contains("#[test]"), "{target} {module}");
            }
        }
    }
}
