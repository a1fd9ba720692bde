//! The cases of a real file system: a Lustre server and clients in virtual machines, and routers of ours
//! between them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use xtask::command::{output, output_of, say};

use super::host::{Host, Programs, add_last_lines, within};
use super::routing::{CHECKING, RECONNECT, ROUTER};
use super::selftest::{WRITE, judge, script};
use super::{Case, Site};

/// Namespaces of our two routers, and of a node of ours beyond them; their addresses.
const NAMESPACES: [&str; 3] = ["lnet-fs-first", "lnet-fs-second", "lnet-fs-end"];
const ADDRESSES: [[&str; 2]; 3] = [
    ["10.77.0.50,fd77::50", "10.78.0.50,fd78::50"],
    ["10.77.0.51,fd77::51", "10.78.0.51,fd78::51"],
    ["10.77.0.60", "10.78.0.60"],
];
/// NIDs of the routers at the server's net and at the clients' net.
const FIRST: [&str; 2] = ["10.77.0.50@tcp1", "10.78.0.50@tcp2"];
const SECOND: [&str; 2] = ["10.77.0.51@tcp1", "10.78.0.51@tcp2"];
const KERNEL: [&str; 2] = ["10.77.0.14@tcp1", "10.78.0.14@tcp2"];
/// The virtual machine that routes where a kernel shall.
const KERNEL_ROUTER: u8 = 4;
/// The namespace of the virtual machines.
const LAB: &str = "fslan";
/// How often a router is killed, and how long it is away.
const LIVES: u32 = 3;
const AWAY: Duration = Duration::from_secs(3);
/// How long a client may take to all its connections.
const CONNECTED: Duration = Duration::from_secs(180);

/// Machines and settings that a case needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Needs {
    clients: u8,
    is_ipv6: bool,
}

pub(super) struct FileSystem {
    program: PathBuf,
    /// The routers, and an end node.
    hosts: [Host; 3],
    has: Option<Needs>,
}

const PLAIN: Needs = Needs { clients: 2, is_ipv6: false };
const IPV6: Needs = Needs { is_ipv6: true, ..PLAIN };

pub(super) const CASES: &[Case<FileSystem>] = &[
    Case {
        name: "file system",
        what: "two clients mount it through our daemon: files of all sizes are written, read back and compared, also by the \
               other client; then again with RPCs of 4 MiB and without Lustre's own checksums",
        needs: PLAIN,
        run: mounted,
    },
    Case {
        name: "file system, killed",
        what: "the only router, our daemon, is killed under load and comes back after 3 s, three times; the kernel nodes have a \
               transaction_timeout of 30 s",
        needs: PLAIN,
        run: killed,
    },
    Case {
        name: "file system, two routers",
        what: "one of two routers, both our daemons, is killed under load and comes back after 3 s, three times",
        needs: PLAIN,
        run: one_of_two_killed,
    },
    Case {
        name: "file system, loss",
        what: "a client loses 0.5 % of the frames that it sends",
        needs: PLAIN,
        run: loss,
    },
    Case {
        name: "file system, end node",
        what: "the router is an end node over xdp as well, whose bulk data goes on beside that of the file system",
        needs: PLAIN,
        run: end_node,
    },
    Case {
        name: "file system, rates",
        what: "the same through our daemon and through a kernel router, in turns",
        needs: PLAIN,
        run: rates,
    },
    Case {
        name: "file system, IPv6",
        what: "two clients mount it through our daemon by IPv6 NIDs",
        needs: IPV6,
        run: ipv6,
    },
];

impl FileSystem {
    pub(super) fn open(directory: &Path, ours: Programs) -> Result<Self> {
        let program = directory.join("fs");
        let program = program.canonicalize().with_context(|| format!("no lab at {}", program.display()))?;
        let ours = Rc::new(ours);
        let hosts = NAMESPACES.map(|namespace| Host::new(namespace, Rc::clone(&ours)));
        let file_system = Self { program, hosts, has: None };
        file_system.fs(&["down"])?;
        Ok(file_system)
    }

    fn fs(&self, words: &[&str]) -> Result<String> {
        fs(&self.program, words)
    }

    /// Runs a shell command on a virtual machine.
    fn on(&self, node: u8, words: &str) -> Result<String> {
        self.fs(&["run", &node.to_string(), words])
    }

    fn has(&self) -> Result<Needs> {
        self.has.context("no virtual machine is up")
    }

    fn clients(&self) -> Result<std::ops::Range<u8>> {
        Ok(2..2 + self.has()?.clients)
    }

    /// Starts one of our routers.
    fn route(&self, router: usize) -> Result<()> {
        let options = [&["--shards", "2"], &CHECKING[..]].concat();
        self.hosts[router].start_as(&options, self.has()?.is_ipv6, ROUTER)
    }

    /// Mounts the file system; waits for all connections where it is mounted already.
    fn mount(&self) -> Result<()> {
        let mounted = self.fs(&["mount"])?;
        say(format_args!("  {}", mounted.lines().next().unwrap_or_default()));
        // A client that has not used an OST for a while goes away from it.
        let imports = "lctl get_param -n mdc.*.import osc.*.import mgc.*.import | grep ' state:'";
        for client in self.clients()? {
            within(CONNECTED, || {
                let shown = self.on(client, imports)?;
                let mut states = shown.lines().filter_map(|line| line.split_whitespace().last());
                let is_connected = states.all(|state| ["FULL", "IDLE"].contains(&state));
                ensure!(is_connected, "connections of client {client}: {shown}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Writes, reads back and compares files; fails where data is wrong, and where a kernel complains.
    fn check(&self, files: &str) -> Result<String> {
        let told = self.fs(&["check", "--files", files])?;
        ensure!(told.lines().last() == Some("PASS"), "{told}");
        Ok(told)
    }

    /// Puts load on the file system for so long, and does something meanwhile; fails where data is wrong.
    /// Gives what is told of the load.
    fn loaded(&self, seconds: &str, meanwhile: impl FnOnce() -> Result<()>) -> Result<String> {
        self.beside(&["load", seconds], meanwhile)
    }

    fn beside(&self, words: &[&str], meanwhile: impl FnOnce() -> Result<()>) -> Result<String> {
        let program = self.program.clone();
        let words: Vec<_> = words.iter().map(ToString::to_string).collect();
        let work = std::thread::spawn(move || fs(&program, &words));
        let done = meanwhile();
        let told = work.join().map_err(|_| anyhow!("the work on the file system panicked"))?;
        done.and(told)
    }

    /// Kills one of our routers under load, and has it come back.
    fn kill_thrice(&self, router: usize) -> Result<()> {
        for _ in 0..LIVES {
            std::thread::sleep(Duration::from_secs(15));
            self.hosts[router].kill()?;
            std::thread::sleep(AWAY);
            self.route(router)?;
        }
        Ok(())
    }

    /// Adds or deletes a router at server and clients.
    fn gateway(&self, verb: &str, [near, far]: [&str; 2]) -> Result<()> {
        self.on(1, &format!("lnetctl route {verb} --net tcp2 --gateway {near}"))?;
        for client in self.clients()? {
            self.on(client, &format!("lnetctl route {verb} --net tcp1 --gateway {far}"))?;
        }
        Ok(())
    }

    /// Tells how many messages a router of ours has forwarded; none may be dropped.
    fn forwarded(&self, router: usize) -> Result<String> {
        let host = &self.hosts[router];
        let [messages, bytes, dropped] =
            ["route_count", "route_length", "drop_count"].map(|key| host.counted(key));
        let (messages, mebibytes, dropped) = (messages?, bytes? >> 20, dropped?);
        ensure!(messages > 100 && mebibytes > 10, "{messages} messages and {mebibytes} MiB were forwarded");
        ensure!(dropped == 0, "{dropped} of {messages} messages were dropped");
        Ok(format!("{messages} messages and {mebibytes} MiB forwarded, none dropped"))
    }
}

fn fs<A: AsRef<std::ffi::OsStr>>(program: &Path, words: &[A]) -> Result<String> {
    output_of(Command::new(program).args(words).env("LAB_NETNS", LAB))
}

impl Site for FileSystem {
    type Needs = Needs;

    fn prepare(&mut self, needs: Needs) -> Result<()> {
        if self.has == Some(needs) {
            return Ok(());
        }
        self.fs(&["down"])?;
        self.has = None;
        for (host, [first, second]) in self.hosts.iter().zip(ADDRESSES) {
            self.fs(&["join", host.namespace(), first, second])?;
        }
        let clients = needs.clients.to_string();
        let router = if needs.is_ipv6 { "fd77::50,fd78::50" } else { "10.77.0.50,10.78.0.50" };
        let mut words = vec!["up", "--clients", &clients, "--router", router];
        words.extend(needs.is_ipv6.then_some("--ipv6"));
        let up = self.fs(&words)?;
        say(format_args!("  {}", up.trim()));
        self.has = Some(needs);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        for node in 1..2 + self.has.map_or(0, |has| has.clients) {
            self.fs(&["alive", &node.to_string()])?;
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        let mut words = self.fs(&["stats"]).unwrap_or_default();
        for node in 1..2 + self.has.map_or(0, |has| has.clients) {
            let log = self.fs(&["log", &node.to_string()]).unwrap_or_default();
            add_last_lines(&mut words, &format!("VM {node}"), &log);
        }
        self.hosts.iter().for_each(|host| words += &host.last_words());
        words
    }

    fn forget(&mut self) {
        self.has = None;
    }

    fn stop(&self) {
        self.hosts.iter().for_each(Host::stop);
    }

    fn peers(&self) -> Result<String> {
        let version = self.on(1, "modinfo -F version lustre 2>/dev/null; uname -r")?;
        let version = version.split_whitespace().collect::<Vec<_>>().join(", Linux ");
        Ok(format!("virtual machines with Lustre, {version}"))
    }

    fn notes() -> String {
        String::new()
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        self.stop();
        // The next run tells of machines that are left.
        let _ = self.fs(&["down"]);
    }
}

/// How `load` tells what it has done: one line for each client.
fn rounds(told: &str) -> String {
    let lines: Vec<_> = told.lines().filter(|line| line.contains(" rounds, ")).collect();
    lines.join("; ")
}

fn mounted(fs: &mut FileSystem) -> Result<String> {
    fs.route(0)?;
    fs.mount()?;
    fs.check("300")?;
    for client in fs.clients()? {
        let rpcs = "lctl set_param osc.*.checksums=0 osc.*.max_pages_per_rpc=1024";
        let shown =
            fs.on(client, &format!("{rpcs} && lctl get_param -n osc.*.checksums osc.*.max_pages_per_rpc"))?;
        let set: Vec<_> = shown.lines().filter(|line| !line.contains('=')).collect();
        ensure!(set == ["0", "1024"], "{shown}");
    }
    fs.check("100")?;
    fs.forwarded(0)
}

fn killed(fs: &mut FileSystem) -> Result<String> {
    fs.route(0)?;
    fs.mount()?;
    // A ping that the router had when it was killed is waited for so long, and no other is sent meanwhile.
    for node in 1..2 + fs.has()?.clients {
        fs.on(node, "lnetctl set transaction_timeout 30")?;
    }
    let told = fs.loaded("90", || fs.kill_thrice(0))?;
    ensure!(!told.contains("evict"), "a client was evicted: {told}");
    Ok(format!("no client was evicted; {}", rounds(&told)))
}

fn one_of_two_killed(fs: &mut FileSystem) -> Result<String> {
    fs.route(0)?;
    fs.route(1)?;
    fs.gateway("add", SECOND)?;
    fs.mount()?;
    let told = fs.loaded("90", || fs.kill_thrice(0))?;
    ensure!(!told.contains("evict"), "a client was evicted: {told}");
    let second = fs.hosts[1].counted("route_count")?;
    let first = fs.hosts[0].counted("route_count")?;
    ensure!(first > 100 && second > 100, "{first} and {second} messages were forwarded");
    fs.gateway("del", SECOND)?;
    Ok(format!("no client was evicted; {}", rounds(&told)))
}

fn loss(fs: &mut FileSystem) -> Result<String> {
    fs.route(0)?;
    fs.mount()?;
    fs.on(2, "tc qdisc add dev eth1 root netem loss 0.5%")?;
    let checked = fs.check("100");
    fs.on(2, "tc qdisc del dev eth1 root")?;
    checked?;
    fs.forwarded(0)
}

/// The interface of the xdp net, at both its ends.
const LINK: &str = "bridge0";
const OVER_XDP: &str = "
net:
  - net type: xdp
    local NI(s):
      - interfaces: {0: bridge0}
";

fn end_node(fs: &mut FileSystem) -> Result<String> {
    let [router, _, end] = &fs.hosts;
    router.link(LINK, "10.79.0.50/24", end, "10.79.0.60/24")?;
    let options = [&["--shards", "2", "--selftest"], &CHECKING[..]].concat();
    let document = ROUTER.replacen("\nnet:", OVER_XDP.trim_end(), 1);
    router.start_as(&options, false, &document)?;
    end.start_as(&options, false, OVER_XDP)?;
    fs.mount()?;
    let mut rates = Vec::new();
    fs.beside(&["check", "--files", "100"], || {
        for _ in 0..4 {
            let words = script(&router.console(), "10.79.0.50@xdp", "10.79.0.60@xdp", WRITE, "");
            rates.push(judge(&output("sh", ["-c", &words])?)?);
        }
        Ok(())
    })?;
    let least = rates.into_iter().fold(f64::INFINITY, f64::min);
    Ok(format!("{}; {least:.0} MiB/s and more over xdp meanwhile", fs.forwarded(0)?))
}

fn rates(fs: &mut FileSystem) -> Result<String> {
    fs.route(0)?;
    fs.mount()?;
    let lab = fs.program.with_file_name("lab");
    let vm = KERNEL_ROUTER.to_string();
    let mut up = Command::new(&lab);
    up.args(["up", "--mem", "512", &vm, "large_router_buffers=256"]);
    up.args(super::routing::CHECKS.split_whitespace()).env("LAB_NETNS", LAB);
    output_of(&mut up)?;
    fs.on(
        KERNEL_ROUTER,
        "lnetctl lnet configure && lnetctl net add --net tcp1 --if eth0 && lnetctl net add --net tcp2 --if eth1 && \
         lnetctl set routing 1",
    )?;
    let mut told = Vec::new();
    for (name, gateway, other) in [("ours", FIRST, KERNEL), ("the kernel's", KERNEL, FIRST)].repeat(2) {
        // The first one has the route already.
        if !told.is_empty() {
            fs.gateway("add", gateway)?;
            fs.gateway("del", other)?;
        }
        within(RECONNECT, || fs.on(2, "lnetctl ping 10.77.0.11@tcp1"))?;
        fs.mount()?;
        let checked = fs.check("100")?;
        told.push(format!("{name} {}", shown_rates(&checked)?));
    }
    fs.gateway("add", FIRST)?;
    fs.gateway("del", KERNEL)?;
    output_of(Command::new(&lab).args(["down", &vm]).env("LAB_NETNS", LAB))?;
    Ok(format!("MB/s of 64 MB written, read, written direct, read direct: {}", told.join("; ")))
}

/// Rates in what `check` has told.
fn shown_rates(told: &str) -> Result<String> {
    let lines = told.lines().filter(|line| line.starts_with("VM 2: "));
    let rates: Vec<_> =
        lines.filter_map(|line| line.split_once(" MB/s")?.0.split_whitespace().last()).collect();
    ensure!(rates.len() == 4, "four rates are expected: {told}");
    Ok(rates.join(" "))
}

fn ipv6(fs: &mut FileSystem) -> Result<String> {
    fs.route(0)?;
    fs.mount()?;
    fs.check("100")?;
    fs.forwarded(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_first_client() {
        let line = |label: &str, rate: &str| format!("VM 2: {label:44}    2.00 s {rate:>7} MB/s  ok\n");
        let told = [("write 64 MB, fsync", "32.0"), ("read it", "5.1"), ("write, direct", "7.0")]
            .map(|(label, rate)| line(label, rate))
            .concat();
        assert!(shown_rates(&told).is_err());
        let all =
            told + &line("read it, direct", "8.5") + "VM 3: read 64 MB that VM 2 wrote 1.00 s 9.0 MB/s  ok\n";
        assert_eq!(shown_rates(&all).unwrap(), "32.0 5.1 7.0 8.5");
    }
}
