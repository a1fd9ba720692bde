//! Which capabilities this process has, and who needs which.
//!
//! What cannot run for want of a capability fails and names it. Only the variable [`UNPRIVILEGED`] leaves
//! such work out: its user asks for that.

use std::fs;

use anyhow::{Context, Result, bail};

/// Environment variable: `1` leaves out the tests that need privileges.
pub const UNPRIVILEGED: &str = "LNET_TESTS_UNPRIVILEGED";

/// A capability (capabilities(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capability {
    /// Its name, such as `CAP_BPF`.
    pub name: &'static str,
    /// Its number in `include/uapi/linux/capability.h`.
    pub bit: u32,
}

/// Interfaces, addresses, XDP attachment.
pub const NET_ADMIN: Capability = Capability { name: "CAP_NET_ADMIN", bit: 12 };
/// `AF_XDP` sockets.
pub const NET_RAW: Capability = Capability { name: "CAP_NET_RAW", bit: 13 };
/// `setns` and the mounts that name a network namespace.
pub const SYS_ADMIN: Capability = Capability { name: "CAP_SYS_ADMIN", bit: 21 };
/// `bpf(2)`: maps and programs.
pub const BPF: Capability = Capability { name: "CAP_BPF", bit: 39 };

/// What nodes over veth in network namespaces need.
pub const NETNS_NODES: [Capability; 4] = [NET_ADMIN, NET_RAW, SYS_ADMIN, BPF];

/// Checks that this process has `needed`, for `what`.
///
/// # Errors
/// Names `what`, the missing capabilities and a way to get them.
pub fn require(what: &str, needed: &[Capability]) -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").context("capabilities of this process")?;
    let effective = effective(&status).context("no CapEff line in /proc/self/status")?;
    let missing = missing(effective, needed);
    if missing.is_empty() {
        return Ok(());
    }
    bail!("{what} needs {}, which this process does not have: run it as root", missing.join(", "))
}

/// Whether the user asked to leave out what needs privileges ([`UNPRIVILEGED`]).
#[must_use]
pub fn left_out() -> bool {
    std::env::var_os(UNPRIVILEGED).is_some_and(|value| value == "1")
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing(effective: u64, needed: &[Capability]) -> Vec<&'static str> {
    needed.iter().filter(|one| effective >> one.bit & 1 == 0).map(|one| one.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: &str, expected: Option<&[&'static str]>) {
        let found = effective(status).map(|set| missing(set, &NETNS_NODES));
        assert_eq!(found.as_deref(), expected, "{status:?}");
    }

    #[test]
    fn missing_capabilities_are_named() {
        let head = "Name:\tx\nCapPrm:\t000001ffffffffff\n";
        check(&format!("{head}CapEff:\t000001ffffffffff\n"), Some(&[]));
        check(
            &format!("{head}CapEff:\t0000000000000000\n"),
            Some(&["CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN", "CAP_BPF"]),
        );
        check(&format!("{head}CapEff:\t0000008000203000\n"), Some(&[]));
        check(&format!("{head}CapEff:\t0000000000203000\n"), Some(&["CAP_BPF"]));
        check(&format!("{head}CapEff:\t0000008000200000\n"), Some(&["CAP_NET_ADMIN", "CAP_NET_RAW"]));
        check(head, None);
        check("CapEff:\tno number\n", None);
    }
}
