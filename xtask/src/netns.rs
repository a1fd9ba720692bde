//! Pairs of network namespaces joined by veth rails.
//!
//! ```text
//!   lnet-<pid>-<tag>a                         lnet-<pid>-<tag>b
//!  +--------------------------+              +--------------------------+
//!  |  lo                      |              |                      lo  |
//!  |  veth-a   10.211.0.1/24  |== rail 0  ===|  10.211.0.2/24   veth-b  |
//!  |           fd00:211:0::1  |              |  fd00:211:0::2           |
//!  |  veth-a1  10.211.1.1/24  |== rail 1  ===|  10.211.1.2/24  veth-b1  |
//!  |  ...                     |              |                     ...  |
//!  +--------------------------+              +--------------------------+
//! ```
//!
//! - The names carry the process that made them: namespaces of a dead process can be told and removed
//!   ([`remove_stale`]).
//! - [`Pair`] removes what it made when it is dropped, also while a panic unwinds.
//! - IPv6 addresses are usable at once: duplicate address detection is off.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::marker::PhantomData;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::command;

/// Where iproute2 keeps the names of network namespaces.
const NAMES: &str = "/run/netns";
/// What the names of all our namespaces begin with.
const PREFIX: &str = "lnet-";
/// The alias of `lo` in namespaces that were left behind on purpose ([`Pair::keep`]).
const KEPT: &str = "kept-on-purpose";

/// How the two namespaces of a [`Pair`] are joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wiring {
    /// Number of veth pairs, at least 1.
    pub rails: u8,
    /// Receive queues, and as many transmit queues, of each interface, at least 1.
    pub queues: u16,
    /// MTU of each interface in bytes, 1280 (the least that IPv6 allows) to 65535.
    pub mtu_bytes: u16,
}

impl Default for Wiring {
    /// One rail with two queues and the MTU of Ethernet.
    fn default() -> Self {
        Self { rails: 1, queues: 2, mtu_bytes: 1500 }
    }
}

/// One end of a veth rail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name, such as `veth-a`.
    pub name: String,
    /// Its address; the prefix has 24 bits.
    pub ipv4: Ipv4Addr,
    /// Its address, the prefix has 64 bits; `None` where the kernel has no IPv6.
    pub ipv6: Option<Ipv6Addr>,
}

/// A network namespace that a [`Pair`] owns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Namespace {
    name: String,
    interfaces: Vec<Interface>,
}

impl Namespace {
    fn new(name: String, side: char, host: u8, rails: u8) -> Self {
        let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
        let interface = |rail: u8| Interface {
            name: if rail == 0 { format!("veth-{side}") } else { format!("veth-{side}{rail}") },
            ipv4: Ipv4Addr::new(10, 211, rail, host),
            ipv6: has_ipv6
                .then(|| Ipv6Addr::new(0xfd00, 0x211, u16::from(rail), 0, 0, 0, 0, u16::from(host))),
        };
        Self { name, interfaces: (0..rails).map(interface).collect() }
    }

    /// The name that `ip netns exec` takes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its end of rail 0.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interfaces[0]
    }

    /// Its ends of all rails, in order.
    #[must_use]
    pub fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    /// A command that runs `program` in the namespace, in a process group of its own: a Ctrl-C at the
    /// terminal reaches its parent only, which then decides. Its pid is that of `program`.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program).process_group(0);
        command
    }

    /// Runs `body` on a fresh thread inside the namespace and gives its result. Threads that it starts are
    /// inside as well, and so are its sockets, wherever they are used later. A panic of `body` goes on in
    /// the caller. Files below `/sys/class/net` still show the caller's namespace: they belong to the
    /// mount, not to the thread.
    ///
    /// # Errors
    /// When the namespace is gone or the process may not enter it (CAP_SYS_ADMIN); `body` did not run.
    pub fn enter<R: Send>(&self, body: impl FnOnce() -> R + Send) -> io::Result<R> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let _inside = self.enter_here()?;
                Ok(body())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Moves the calling thread inside until the guard is dropped. What [`Namespace::enter`] says of
    /// threads, sockets and `/sys/class/net` holds here too.
    ///
    /// # Errors
    /// As [`Namespace::enter`].
    pub fn enter_here(&self) -> io::Result<Inside> {
        let outside = File::open("/proc/thread-self/ns/net")?;
        let inside = File::open(Path::new(NAMES).join(&self.name))?;
        move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(Inside { outside, _of_this_thread: PhantomData })
    }

    /// Runs `ip` on the namespace with `arguments`, words separated by spaces, and gives its output.
    ///
    /// # Errors
    /// When `ip` is missing or fails; the error has what it said.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        command::output("ip", ["-n", &self.name].into_iter().chain(arguments.split_whitespace()))
    }

    fn configure(&self, mtu_bytes: u16) -> Result<()> {
        self.ip("link set lo up")?;
        for interface in &self.interfaces {
            let Interface { name, ipv4, ipv6 } = interface;
            self.ip(&format!("link set {name} mtu {mtu_bytes}"))?;
            self.ip(&format!("address add {ipv4}/24 dev {name}"))?;
            if let Some(ipv6) = ipv6 {
                self.ip(&format!("address add {ipv6}/64 dev {name} nodad"))?;
            }
            self.ip(&format!("link set {name} up"))?;
        }
        Ok(())
    }

    /// Turns duplicate address detection off for interfaces that are made later: their link-local
    /// addresses would wait for it too.
    fn disable_duplicate_address_detection(&self) -> Result<()> {
        if self.interface().ipv6.is_none() {
            return Ok(());
        }
        let write = || fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
        self.enter(write).and_then(|written| written).context("net.ipv6.conf.default.accept_dad")
    }
}

/// The calling thread's stay in a namespace ([`Namespace::enter_here`]); dropped, it moves the thread back.
#[derive(Debug)]
pub struct Inside {
    outside: File,
    /// Dropped by another thread, it would move that one.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        // Where this fails, the thread stays inside: no harm to others, and a panic here would hide another.
        let _ = move_into_link_name_space(self.outside.as_fd(), Some(LinkNameSpaceType::Network));
    }
}

/// Two network namespaces joined by veth rails; removed when dropped.
#[derive(Debug)]
pub struct Pair {
    /// Hosts the addresses that end in 1.
    pub a: Namespace,
    /// Hosts the addresses that end in 2.
    pub b: Namespace,
    kept: bool,
}

impl Pair {
    /// Makes the namespaces `lnet-<pid>-<tag>a` and `lnet-<pid>-<tag>b`; `tag` tells the pairs of one
    /// process apart. All interfaces are up and have their addresses when this returns.
    ///
    /// # Errors
    /// When `wiring` is out of range, `ip` is missing or fails, or such a namespace exists. What was made
    /// before the failure is removed.
    pub fn create(tag: &str, wiring: Wiring) -> Result<Self> {
        ensure!(wiring.rails >= 1, "a pair of namespaces needs at least 1 rail, not 0");
        ensure!(wiring.queues >= 1, "an interface needs at least 1 queue, not 0");
        ensure!(wiring.mtu_bytes >= 1280, "the mtu {} is below 1280", wiring.mtu_bytes);
        let name = |side: char| format!("{PREFIX}{}-{tag}{side}", std::process::id());
        let [a, b] = [('a', 1), ('b', 2)].map(|(side, host)| {
            let name = name(side);
            ensure!(!Path::new(NAMES).join(&name).exists(), "the network namespace {name} exists already");
            Ok(Namespace::new(name, side, host, wiring.rails))
        });
        // From here on a drop removes whatever exists under these names.
        let pair = Self { a: a?, b: b?, kept: false };
        pair.make(wiring).context("making a pair of network namespaces")?;
        Ok(pair)
    }

    fn make(&self, wiring: Wiring) -> Result<()> {
        for namespace in [&self.a, &self.b] {
            command::output("ip", ["netns", "add", &namespace.name])?;
            namespace.disable_duplicate_address_detection()?;
        }
        let queues = wiring.queues;
        for (near, far) in self.a.interfaces.iter().zip(&self.b.interfaces) {
            self.a.ip(&format!(
                "link add {} numrxqueues {queues} numtxqueues {queues} type veth peer name {} \
                 numrxqueues {queues} numtxqueues {queues} netns {}",
                near.name, far.name, self.b.name
            ))?;
        }
        self.a.configure(wiring.mtu_bytes)?;
        self.b.configure(wiring.mtu_bytes)
    }

    /// Leaves the namespaces behind, marked so that [`remove_stale`] leaves them alone; the caller says so
    /// to the user.
    ///
    /// # Errors
    /// When they cannot be marked; they are removed then.
    pub fn keep(mut self) -> Result<()> {
        for namespace in [&self.a, &self.b] {
            namespace.ip(&format!("link set dev lo alias {KEPT}"))?;
        }
        self.kept = true;
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        for namespace in [&self.a, &self.b] {
            if let Err(error) = remove(&namespace.name) {
                let name = &namespace.name;
                command::say(format_args!("the network namespace {name} was not removed: {error:#}"));
            }
        }
    }
}

/// Removes a namespace with its interfaces; one that does not exist is none to remove.
///
/// # Errors
/// When `ip` fails although the namespace exists.
pub fn remove(name: &str) -> Result<()> {
    let exists = || Path::new(NAMES).join(name).exists();
    if !exists() {
        return Ok(());
    }
    match command::output("ip", ["netns", "delete", name]) {
        // Another process may have removed it at the same moment.
        Err(error) if exists() => Err(error),
        _ => Ok(()),
    }
}

/// The processes inside a namespace.
///
/// # Errors
/// When `ip` fails, as it does for a namespace that does not exist.
pub fn processes(name: &str) -> Result<Vec<i32>> {
    let pids = command::output("ip", ["netns", "pids", name])?;
    pids.split_whitespace().map(|pid| pid.parse().with_context(|| format!("no pid: {pid:?}"))).collect()
}

/// What [`remove_stale`] found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Stale {
    /// Namespaces that were removed.
    pub removed: Vec<String>,
    /// Namespaces of dead processes that have other processes in them, and these processes.
    pub in_use: Vec<(String, Vec<i32>)>,
    /// Namespaces of dead processes that were kept on purpose.
    pub kept: Vec<String>,
}

/// Removes the namespaces of processes that are no more, unless other processes are inside or they were
/// kept on purpose ([`Pair::keep`]).
///
/// # Errors
/// When `ip` cannot remove one.
pub fn remove_stale() -> Result<Stale> {
    let mut stale = Stale::default();
    for (name, pid) in named()? {
        if is_alive(pid) {
            continue;
        }
        // The namespace may be gone by now: several programs may do this at once.
        let Ok(lo) = command::output("ip", ["-n", &name, "link", "show", "dev", "lo"]) else { continue };
        let Ok(inside) = processes(&name) else { continue };
        if lo.contains(KEPT) {
            stale.kept.push(name);
        } else if inside.is_empty() {
            remove(&name)?;
            stale.removed.push(name);
        } else {
            stale.in_use.push((name, inside));
        }
    }
    Ok(stale)
}

/// The namespaces of this naming scheme, and the process that made each.
fn named() -> Result<BTreeSet<(String, u32)>> {
    let entries = match fs::read_dir(NAMES) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => bail!("{NAMES}: {error}"),
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter_map(|name| Some((name.clone(), maker(&name)?))).collect())
}

/// The process in a namespace's name, if the name is one of ours.
fn maker(name: &str) -> Option<u32> {
    let (pid, tag) = name.strip_prefix(PREFIX)?.split_once('-')?;
    (!tag.is_empty()).then(|| pid.parse().ok()).flatten()
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_scheme_have_a_maker() {
        let check = |name: &str, expected: Option<u32>| assert_eq!(maker(name), expected, "{name}");
        check("lnet-17-a", Some(17));
        check("lnet-17-3b", Some(17));
        check("lnet-17-", None);
        check("lnet-17", None);
        check("lnet-x-a", None);
        check("lnet--a", None);
        check("other-17-a", None);
    }

    #[test]
    fn rails_have_names_and_addresses_of_their_own() {
        let b = Namespace::new("lnet-1-b".into(), 'b', 2, 2);
        let names: Vec<_> = b.interfaces().iter().map(|one| (one.name.as_str(), one.ipv4)).collect();
        let first = ("veth-b", Ipv4Addr::new(10, 211, 0, 2));
        assert_eq!(names, [first, ("veth-b1", Ipv4Addr::new(10, 211, 1, 2))]);
        if let Some(ipv6) = b.interfaces()[1].ipv6 {
            assert_eq!(ipv6.to_string(), "fd00:211:1::2");
        }
    }

    #[test]
    fn a_wiring_out_of_range_is_refused_before_anything_is_made() {
        let check = |wiring: Wiring, part: &str| {
            let error = Pair::create("refused", wiring).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        let fine = Wiring::default();
        check(Wiring { rails: 0, ..fine }, "at least 1 rail");
        check(Wiring { queues: 0, ..fine }, "at least 1 queue");
        check(Wiring { mtu_bytes: 1279, ..fine }, "1279 is below 1280");
    }
}
