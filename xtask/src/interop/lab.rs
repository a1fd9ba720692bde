//! The lab: virtual machines with kernel LNet, and our daemon in a network namespace beside them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use xtask::command::{output, output_of, say};

use super::host::{Host, PATIENCE, Programs, add_last_lines, within};
use super::{Site, selftest};

/// Our network namespace, and its addresses.
const NAMESPACE: &str = "lnet-interop";
pub(super) const OURS: &str = "10.77.0.50@tcp";
pub(super) const OURS_LARGE: &str = "fd77::50@tcp";
/// CPUs of a kernel node. With one, QEMU before 8.1 leaves out the guest's memory barriers where it emulates
/// the CPU (its commit c914d46d). Most likely that is why a NIC stood still once in some minutes: a virtio
/// device can miss a notification without them.
pub(super) const CPUS: &str = "2";

/// What a case needs of the kernel nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Needs {
    /// How many.
    pub(super) nodes: u8,
    /// Whether they have IPv6 NIDs.
    pub(super) large: bool,
    /// MTU of their interfaces.
    pub(super) mtu_bytes: u16,
    /// Memory of each, in MiB.
    pub(super) memory_mib: u16,
    /// Options of their modules.
    pub(super) options: &'static str,
    /// The nets of each kernel node and of our daemon, with the interfaces of their NIs.
    pub(super) nets: &'static [(&'static str, &'static str)],
}

/// Whose frames a silent cut takes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Silence {
    FromKernel,
    FromUs,
    Both,
}

impl Silence {
    pub(super) const ALL: [Self; 3] = [Self::FromKernel, Self::FromUs, Self::Both];
}

pub(super) struct Lab {
    program: PathBuf,
    ours: Rc<Programs>,
    /// Our daemon, and those in further namespaces.
    host: Rc<Host>,
    joined: Vec<Rc<Host>>,
    has: Option<Needs>,
}

impl Lab {
    pub(super) fn open(directory: &Path, ours: Programs) -> Result<Self> {
        let program = directory.join("lab");
        let program = program.canonicalize().with_context(|| format!("no lab at {}", program.display()))?;
        let ours = Rc::new(ours);
        let host = Rc::new(Host::new(NAMESPACE, Rc::clone(&ours)));
        let lab = Self { program, ours, host, joined: Vec::new(), has: None };
        lab.lab(["down"])?;
        Ok(lab)
    }

    fn lab<const N: usize>(&self, arguments: [&str; N]) -> Result<String> {
        output(&self.program.to_string_lossy(), arguments)
    }

    /// Boots a kernel node, and configures it.
    fn up(&self, node: u8, needs: Needs) -> Result<()> {
        let mut up = Command::new(&self.program);
        let (memory_mib, node_number) = (needs.memory_mib.to_string(), node.to_string());
        up.args(["up", "--mem", &memory_mib, "--cpus", CPUS, &node_number]);
        up.args(needs.options.split_whitespace());
        output_of(up.env("MTU", needs.mtu_bytes.to_string()))?;
        self.configure(node, needs)
    }

    fn configure(&self, node: u8, needs: Needs) -> Result<()> {
        let how = if needs.large { " --large" } else { "" };
        let mut words = format!("lnetctl lnet configure{how}");
        for (net, interfaces) in needs.nets {
            let _ = write!(words, " && lnetctl net add --net {net} --if {interfaces}");
        }
        self.on(node, &words).map(drop)
    }

    fn has(&self) -> Result<Needs> {
        self.has.context("no kernel node is up")
    }

    /// Kills a kernel node. Its log goes with it, and is checked before.
    pub(super) fn kill(&self, node: u8) -> Result<()> {
        self.check()?;
        self.lab(["down", &node.to_string()]).map(drop)
    }

    /// Boots a kernel node that was killed.
    pub(super) fn boot(&self, node: u8) -> Result<()> {
        self.up(node, self.has()?)
    }

    /// Kills a kernel node, and boots it again.
    pub(super) fn reboot(&self, node: u8) -> Result<()> {
        self.kill(node)?;
        self.boot(node)
    }

    /// Has frames between the first kernel node and our daemon vanish, or no more; no interface tells of it.
    pub(super) fn silence(&self, silence: Silence, interface: &str, is_silent: bool) -> Result<()> {
        if silence != Silence::FromUs {
            let verb = if is_silent { "add" } else { "del" };
            let loss = if is_silent { " netem loss 100%" } else { "" };
            self.on(1, &format!("tc qdisc {verb} dev {interface} root{loss}"))?;
        }
        if silence != Silence::FromKernel {
            let address = if interface == "eth0" { "10.77.0.11" } else { "10.78.0.11" };
            // An Ethernet address that no node has.
            let nowhere =
                ["replace", address, "lladdr", "52:54:77:00:00:99", "dev", interface, "nud", "permanent"];
            let again = ["del", address, "dev", interface];
            let words: &[&str] = if is_silent { &nowhere } else { &again };
            self.here(&[&["ip", "neighbour"], words].concat())?;
        }
        Ok(())
    }

    /// Runs a shell command on a kernel node.
    pub(super) fn on(&self, node: u8, words: &str) -> Result<String> {
        self.lab(["run", &node.to_string(), words])
    }

    /// Runs a shell command on a kernel node again and again, until it succeeds.
    pub(super) fn until_on(&self, node: u8, words: &str) -> Result<String> {
        self.until(|| self.on(node, words))
    }

    /// Does something again and again, until it succeeds.
    pub(super) fn until<T>(&self, what: impl Fn() -> Result<T>) -> Result<T> {
        self.within(PATIENCE, what)
    }

    /// Does something again and again, until it succeeds or this time is over.
    pub(super) fn within<T>(&self, limit: Duration, what: impl Fn() -> Result<T>) -> Result<T> {
        within(limit, what)
    }

    /// A further network namespace with these addresses, for a daemon of ours; the same one for the same name
    /// while the kernel nodes are up.
    pub(super) fn join(&mut self, name: &'static str, addresses: [&str; 2]) -> Result<Rc<Host>> {
        if let Some(host) = self.joined.iter().find(|host| host.namespace() == name) {
            return Ok(Rc::clone(host));
        }
        self.lab(["join", name, addresses[0], addresses[1]])?;
        let host = Rc::new(Host::new(name, Rc::clone(&self.ours)));
        self.joined.push(Rc::clone(&host));
        Ok(host)
    }

    /// Our daemon.
    pub(super) fn host(&self) -> Rc<Host> {
        Rc::clone(&self.host)
    }

    /// Starts our daemon with these options, and gives it its NIs with those.
    pub(super) fn start_daemon(&mut self, options: &[&str], ni: &[&str]) -> Result<()> {
        self.start_bare_daemon(options)?;
        for (net, interfaces) in self.has()?.nets {
            self.tool(&[&["net", "add", "--net", net, "--if", interfaces], ni].concat())?;
        }
        Ok(())
    }

    /// Starts our daemon with these options, and with no NI but the loopback one.
    pub(super) fn start_bare_daemon(&self, options: &[&str]) -> Result<()> {
        self.host.start(options, self.has()?.large)
    }

    /// Kills our daemon: it says no farewell.
    pub(super) fn kill_daemon(&self) -> Result<()> {
        self.host.kill()
    }

    /// Ends our daemon, if it runs.
    pub(super) fn stop_daemon(&self) {
        self.host.stop();
    }

    /// Runs our `lnetctl`.
    pub(super) fn tool(&self, words: &[&str]) -> Result<String> {
        self.host.tool(words)
    }

    /// The words that begin a command of our console.
    pub(super) fn console(&self) -> String {
        self.host.console()
    }

    /// Runs a shell command beside our daemon.
    pub(super) fn shell(&self, words: &str) -> Result<String> {
        output("sh", ["-c", words])
    }

    /// The namespace of the lab, in which it has addresses of its own in the nets of all nodes.
    pub(super) fn namespace() -> String {
        std::env::var("LAB_NETNS").unwrap_or_else(|_| "lablan".to_owned())
    }

    /// Runs a program in our namespace.
    pub(super) fn here(&self, words: &[&str]) -> Result<String> {
        self.host.here(words)
    }

    /// Starts a node of ours beside no daemon, with an entry at a portal that names the kernel node by a NID;
    /// what it prints can be read.
    pub(super) fn witness(&self, nid: &str, portal: &str, nis: &[&str]) -> Result<Child> {
        self.host.witness(nid, portal, nis)
    }

    fn log(&self, node: u8) -> Result<String> {
        self.lab(["log", &node.to_string()])
    }
}

impl Site for Lab {
    type Needs = Needs;

    fn prepare(&mut self, needs: Needs) -> Result<()> {
        if self.has == Some(needs) {
            return Ok(());
        }
        self.joined.clear();
        self.lab(["down"])?;
        self.has = None;
        for node in 1..=needs.nodes {
            self.up(node, needs)?;
        }
        let mtu = needs.mtu_bytes.to_string();
        // Its leg of the bridge has the MTU as well.
        let join = ["join", NAMESPACE, "10.77.0.50,fd77::50", "10.78.0.50"];
        output_of(Command::new(&self.program).args(join).env("MTU", &mtu))?;
        self.here(&["ip", "link", "set", "eth0", "mtu", &mtu])?;
        self.has = Some(needs);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        for node in 1..=self.has.map_or(0, |has| has.nodes) {
            self.lab(["alive", &node.to_string()])?;
            let log = self.log(node)?;
            let odd = odd_lines(&log);
            ensure!(odd.is_empty(), "kernel node {node} says: {}", odd.join("\n"));
            // Complaints that are let through are told.
            log.lines()
                .filter(|line| is_complaint(line))
                .for_each(|line| say(format_args!("  ordinary: {line}")));
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let mut words = String::new();
        for node in 1..=self.has.map_or(0, |has| has.nodes) {
            add_last_lines(&mut words, &format!("kernel node {node}"), &self.log(node).unwrap_or_default());
        }
        for host in [&self.host].into_iter().chain(&self.joined) {
            words += &host.last_words();
        }
        words
    }

    fn forget(&mut self) {
        self.has = None;
    }

    fn stop(&self) {
        [&self.host].into_iter().chain(&self.joined).for_each(|host| host.stop());
    }

    fn peers(&self) -> Result<String> {
        let version = self.on(1, "modinfo -F version lnet 2>/dev/null; uname -r")?;
        let version = version.split_whitespace().collect::<Vec<_>>().join(", Linux ");
        Ok(format!("virtual machines of {CPUS} CPUs with Lustre's LNet, {version}"))
    }

    fn notes() -> String {
        format!(
            "\nKernel nodes' requests of LNet selftest have {} s, {} s in the cases of kills: one that expires ends its unit of the test, and what comes \
             for it later is not counted. While a link is down all units may wait for it, since a kernel node may go on choosing a rail whose far link is \
             down ([multi-rail.md](multi-rail.md), *With kernel nodes*): what the other rail carries is bulk data that begins meanwhile.\n\n\
             LNet selftest (`lst`) has no case with large NIDs: its messages name nodes by NIDs of 8 bytes, and kernel nodes \
             run no tests between IPv6 NIDs among themselves either.\n",
            selftest::PATIENT.as_secs(),
            selftest::HASTY.as_secs()
        )
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
        // What is left is told by the next run.
        let _ = self.lab(["down"]);
    }
}

/// Whether a line of a kernel node's console is a complaint.
fn is_complaint(line: &str) -> bool {
    ["LNetError", "LustreError", "WARNING: "].iter().any(|mark| line.contains(mark))
}

/// Complaints in a log that are not ordinary.
fn odd_lines(log: &str) -> Vec<&str> {
    let lines: Vec<_> = log.lines().collect();
    let is_unexplained = |(at, line): &(usize, &&str)| {
        let before = &lines[..*at];
        is_odd(line) && !is_late_ack(before, line) && !is_repetition(before, line)
    };
    lines.iter().enumerate().filter(is_unexplained).map(|(_, line)| *line).collect()
}

/// An acknowledgement that one of a node's CPUs still reads comes this soon after another CPU has found a
/// connection to be reset.
const LATE_ACK_S: f64 = 1.0;

/// Whether a line is of an acknowledgement by our daemon, read just after one of its connections was found to
/// be reset. The node has ended all that waits for acknowledgements by then.
fn is_late_ack(before: &[&str], line: &str) -> bool {
    let is_reset = |line: &&&str| {
        line.contains("Host 10.77.0.50 reset our connection")
            || line.contains("] Error -104 on read from 12345-10.77.0.50@tcp")
    };
    let reset_s = before.iter().rev().find(is_reset).and_then(|reset| seconds(reset));
    let is_soon = reset_s.zip(seconds(line)).is_some_and(|(reset_s, at_s)| at_s - reset_s <= LATE_ACK_S);
    is_soon && line.contains("12345-10.77.0.50@tcp: Unknown ZC-ACK cookie")
}

/// Stands behind the place of complaints that were left out.
const SKIPPED: &str = ") Skipped ";

/// Whether a line tells how many complaints of one place in LNet's source were left out. The first of a place
/// is printed, and judged by itself.
fn is_repetition(before: &[&str], line: &str) -> bool {
    let Some((head, _)) = line.split_once(SKIPPED) else { return false };
    let place = head.rsplit_once(":(").map(|(_, place)| place);
    place.is_some_and(|place| before.iter().any(|line| line.contains(place) && !line.contains(SKIPPED)))
}

/// When a kernel has said a line, since it booted.
fn seconds(line: &str) -> Option<f64> {
    line.trim_start().strip_prefix('[')?.split_once(']')?.0.trim().parse().ok()
}

/// Whether a line is a complaint that is not ordinary by itself.
fn is_odd(line: &str) -> bool {
    let is_known = |(parts, _): &(&[&str], &str)| {
        // Each part behind the one before it.
        let rest = parts.iter().try_fold(line, |rest, part| rest.split_once(part).map(|(_, rest)| rest));
        // An error's number ends where its digits do.
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
    };
    is_complaint(line) && !ORDINARY.iter().any(is_known)
}

/// Complaints of kernel nodes that are to be expected, by their parts, and why.
const ORDINARY: [(&[&str], &str); 11] = [
    (
        &["LNetError: ", "lnet_router_discovery_ping_reply()) Peer 10.7", "routing feature is not turned on"],
        "a daemon is a gateway and does not route, or not yet",
    ),
    (
        &["LNetError: ", "lnet_set_route_aliveness()) route to tcp", " has gone from "],
        "a daemon goes on and off as a router",
    ),
    (
        &["LNetError: ", "lnet_handle_find_routed_path()) no route to 10.7", " from "],
        "a node is pinged while the daemon between does not route",
    ),
    (
        &["LustreError: ", "brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed with -110"],
        "a request that a daemon had when it was killed expires",
    ),
    (
        &["LustreError: ", "brw_client_done_rpc()) BRW RPC to 12345-10.78.0.60@tcp2 failed with -110"],
        "a request that a router had when it was killed expires",
    ),
    (
        &["LustreError: ", "brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed with -4"],
        "a request that was under way when its batch was stopped is interrupted",
    ),
    (
        &["LustreError: ", "brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed with -5"],
        "bulk data was on its way to a daemon when that was killed",
    ),
    (
        &["LustreError: ", "brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed with -111"],
        "a request is dialled for where a daemon was killed, and nobody listens there",
    ),
    (
        &["LNetError: ", "ksocknal_process_receive()) [", "] Error -104 on read from 12345-10.77.0.50@tcp"],
        "a daemon that is killed while data waits for it resets the connection; lost messages are told by the ledger",
    ),
    (
        &[
            "LNetError: ",
            "ksocknal_destroy_conn()) Completing partial receive from 12345-10.77.0.50@tcp[",
            "], ip 10.77.0.50:",
            ", with error, wanted:",
        ],
        "a daemon that is killed may have sent half of a message",
    ),
    (
        &["LNetError: ", "ksocknal_process_receive()) 12345-10.77.0.1@tcp: Checksum error, wire"],
        "a dialler of ours sends wrong checksums",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_odd_but_for_those_that_are_known() {
        for line in [
            "[    3.5] LNet: Added LNI 10.77.0.11@tcp [8/256/0/180]",
            "[   12.0] LNet: Host 10.77.0.50 reset our connection while we were sending data; it may have rebooted",
            "[   24.6] LustreError: 9:0:(brw_test.c:328:brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed \
             with -110",
            "[  140.4] LustreError: 27:0:(brw_test.c:328:brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed with -4",
            "[  215.5] LustreError: 24:0:(brw_test.c:328:brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed with -5",
            "[   15.2] LustreError: 9:0:(brw_test.c:328:brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed with -111",
            "[   69.0] LNetError: 132:0:(socklnd_cb.c:1108:ksocknal_process_receive()) [000000006d461575] Error -104 on \
             read from 12345-10.77.0.50@tcp ip 10.77.0.50:1022",
            "[   40.2] LNetError: 132:0:(socklnd_cb.c:1247:ksocknal_process_receive()) 12345-10.77.0.1@tcp: Checksum \
             error, wire:0x2DCC7C13 data:0x2DCC7C12",
            "[  273.602713] LNetError: 734:0:(socklnd.c:1543:ksocknal_destroy_conn()) Completing partial receive from \
             12345-10.77.0.50@tcp[1], ip 10.77.0.50:1023, with error, wanted: 160, left: 160, last alive is 0 secs ago",
        ] {
            assert!(!is_odd(line), "{line}");
        }
        for line in [
            "[   24.6] LustreError: 9:0:(brw_test.c:328:brw_client_done_rpc()) BRW RPC to 12345-10.77.0.12@tcp failed \
             with -110",
            "[   24.6] LustreError: 9:0:(brw_test.c:328:brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp failed with -42",
            "[   24.6] LustreError: 9:0:(brw_test.c:228:brw_check_page()) Bad data in page",
            "[    8.1] LNetError: 9:0:(socklnd_proto.c:1:f()) Unexpected error -104 from 10.77.0.50@tcp",
            "[   40.2] LNetError: 132:0:(socklnd_cb.c:1247:ksocknal_process_receive()) 12345-10.77.0.50@tcp: Checksum \
             error, wire:0x2DCC7C13 data:0x2DCC7C12",
            "[  273.602713] LNetError: 734:0:(socklnd.c:1543:ksocknal_destroy_conn()) Completing partial receive from \
             12345-10.77.0.12@tcp[1], ip 10.77.0.12:1023, with error, wanted: 160, left: 160, last alive is 0 secs ago",
            "[    8.1] WARNING: CPU: 0 PID: 9 at lnet/lib-move.c:1 lnet_send",
        ] {
            assert!(is_odd(line), "{line}");
        }
    }

    #[test]
    fn acknowledgements_of_unknown_messages_are_odd_but_just_after_a_reset_by_their_sender() {
        let unknown = |at_s: u32, from: &str| {
            format!(
                "[  {at_s}.258523] LNetError: 784:0:(socklnd_cb.c:1155:ksocknal_process_receive()) 12345-{from}@tcp: \
                 Unknown ZC-ACK cookie: 0, 49"
            )
        };
        let sending = |host: &str| {
            format!(
                "[  297.255302] LNet: Host {host} reset our connection while we were sending data; rc = -104"
            )
        };
        let reading = "[  297.255302] LNetError: 132:0:(socklnd_cb.c:1108:ksocknal_process_receive()) [000000006d461575] \
                       Error -104 on read from 12345-10.77.0.50@tcp ip 10.77.0.50:1022";
        let between = "[  297.257000] LNet: Added LNI";
        let late = unknown(297, "10.77.0.50");
        for reset in [&sending("10.77.0.50"), reading] {
            assert!(odd_lines(&format!("{reset}\n{between}\n{late}\n{late}\n")).is_empty());
        }
        let reset = sending("10.77.0.50");
        for (log, odd) in [
            (format!("{late}\n{reset}\n"), &late),
            (format!("{}\n{late}\n", sending("10.77.0.12")), &late),
            (format!("{reset}\n{}\n", unknown(299, "10.77.0.50")), &unknown(299, "10.77.0.50")),
            (format!("{reset}\n{}\n", unknown(297, "10.77.0.12")), &unknown(297, "10.77.0.12")),
        ] {
            assert_eq!(odd_lines(&log), [odd]);
        }
    }

    #[test]
    fn complaints_that_were_left_out_are_those_of_a_place_that_was_told() {
        let told = "[   24.6] LustreError: 9:0:(brw_test.c:328:brw_client_done_rpc()) BRW RPC to 12345-10.77.0.50@tcp \
                    failed with -110";
        let skipped = |line| {
            format!(
                "[   40.5] LustreError: 8:0:(brw_test.c:{line}:brw_client_done_rpc()) Skipped 3 previous similar messages"
            )
        };
        assert!(odd_lines(&format!("{told}\n{}\n{}\n", skipped(328), skipped(328))).is_empty());
        for log in [format!("{told}\n{}\n", skipped(228)), skipped(328)] {
            assert_eq!(odd_lines(&log).len(), 1, "{log}");
        }
    }
}
