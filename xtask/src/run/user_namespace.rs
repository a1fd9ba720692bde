//! A run without privileges: in a user namespace of its own, in which it may make network namespaces. XDP
//! programs cannot be loaded there; the nodes use sockets.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Error, Result, ensure};
use xtask::command::{output, say, words};

use super::Programs;
use super::options::{Mode, Options};

/// A user namespace in which this user is root, with network and mounts of its own.
const UNSHARE: [&str; 4] = ["--user", "--map-root-user", "--net", "--mount"];
/// Network namespaces have their names below `/run`, where this user may not write outside.
const ENTER: &str = r#"mount -t tmpfs tmpfs /run && exec "$0" "$@""#;
/// Set inside: a run that lacks privileges even there must not try again.
const INSIDE: &str = "LNET_RUN_USER_NAMESPACE";

/// Whether a user namespace would do instead of the privileges that are `missing`.
///
/// # Errors
/// `missing`, where the options need them; else what keeps this user from a namespace of his own.
pub(super) fn check(options: &Options, missing: Error) -> Result<()> {
    if !matches!(options.mode, Mode::Auto | Mode::Socket) || options.loss_per_million() > 0 {
        return Err(missing.context("without privileges only `--mode socket`, without loss, can be had"));
    }
    ensure!(!is_inside(), "{missing}, even in a user namespace of its own");
    output("unshare", UNSHARE.iter().chain(&["sh", "-c", ENTER, "true"])).with_context(|| {
        format!(
            "{missing}. Without, it runs in a user namespace, which cannot be had either (is \
             user.max_user_namespaces 0, kernel.unprivileged_userns_clone 0, or \
             kernel.apparmor_restrict_unprivileged_userns 1?)"
        )
    })?;
    Ok(())
}

/// Whether this run is in such a namespace. No process outside knows its network namespaces by name.
pub(super) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Begins this process anew in such a namespace, over sockets, with programs that have been built. Gives an
/// error if that cannot be done.
pub(super) fn exec(programs: &Programs) -> Error {
    say("no privileges: the nodes run in a user namespace, over sockets");
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Error::new(error).context("this program's path"),
    };
    let mut command = Command::new("unshare");
    command.args(UNSHARE).args(["sh", "-c", ENTER]).arg(program);
    command.args(std::env::args_os().skip(1)).arg("--mode=socket").env(INSIDE, "1");
    command.arg("--programs").args(programs.lnetd.parent());
    let words = words(&command);
    Error::new(command.exec()).context(format!("`{words}` did not start"))
}
