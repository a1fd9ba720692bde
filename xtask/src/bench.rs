//! `cargo xtask bench`: what a Put costs beside raw `AF_XDP`, over veth between two network namespaces.
//!
//! The namespaces go when the bench ends, however it ends; the bench itself ends with a signal that asks this
//! process to.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use xtask::command::words;
use xtask::netns::{Namespace, Pair, Wiring};
use xtask::privilege;

use crate::run::Interrupted;
use crate::{build_ebpf, cargo, run};

/// How often it is looked whether the bench has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// The addresses of peers that one thread plays.
const PEERS_NETWORK: &str = "10.212.0.0/16";

/// What to measure.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench
  cargo xtask bench --quick --size 1024
  cargo xtask bench --bulk --mtu 1500
  cargo xtask bench --bulk -- --loss 5
  cargo xtask bench --compare --net tcp
  cargo xtask bench --compare --only checksums
  cargo xtask bench --compare --only sockets,limit,iperf3 --size 1048576 --mtu 1500
  cargo xtask bench --compare --net tcp --size 1048576 --only lst,iperf3
  cargo xtask bench --posted 1000000
  cargo xtask bench --peers 1000 -- --mode socket
  cargo xtask bench --rails
  cargo xtask bench --paths
  cargo xtask bench --match-cost
  cargo xtask bench --awaits
  cargo xtask bench --reactors --mtu 1500
  cargo xtask bench --routed --net tcp
  cargo xtask bench --shards --only alone
  cargo xtask bench --messaging
  cargo xtask bench --idle
  cargo xtask bench --sweep --mtu 1500
  cargo xtask bench --json > result.json

Each table has five turns, with --quick two, and after each of them tells how many seconds it still takes; at
the end it is told how many all took.")]
pub(crate) struct Options {
    /// Two turns instead of five, and a tenth of the rounds and of the time
    #[arg(long)]
    quick: bool,
    /// Throughput of long Puts and Gets by rings and by what nodes choose, with and without loss, out of
    /// ordinary and of registered memory, instead of latency and message rate
    #[arg(long, group = "bench")]
    bulk: bool,
    /// Puts and Gets of 64 bytes, 4 KiB and 1 MiB (or of --size), one alone and 64 at once (or --at-once), of
    /// application-driven and threaded nodes, and bulk data of LNet selftest, beside raw frames, bare
    /// sockets, ucx_perftest, fi_pingpong, sockperf and iperf3, as far as they are installed; long ones
    /// beside segmented datagrams with one copy a side, the limit of the link; how soon entries are posted;
    /// messages between ends that sleep; and Puts with and without checksums of payloads
    #[arg(long, group = "bench")]
    compare: bool,
    /// Rate of small Puts with 1 and with so many exact match entries posted
    #[arg(long, value_name = "ENTRIES", group = "bench",
          value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    posted: Option<u32>,
    /// Cost of small Puts to 1, 10, 100 ... and so many peers in turn, which one thread plays
    #[arg(long, value_name = "PEERS", group = "bench",
          value_parser = clap::value_parser!(u32).range(1..=65_000))]
    peers: Option<u32>,
    /// What transfer machines of the messaging layer add to bare Puts and Gets, and what their queues, pools
    /// and event rings cost
    #[arg(long, group = "bench")]
    messaging: bool,
    /// What two rails carry beside one, in what shares, how long no message ends when one of them is cut, and
    /// what a Put costs to a peer that is discovered
    #[arg(long, group = "bench")]
    rails: bool,
    /// What the choice of a path costs, by the number of NIs at either end
    #[arg(long, group = "bench")]
    paths: bool,
    /// Cost of a match, by the number of exact entries posted
    #[arg(long, group = "bench")]
    match_cost: bool,
    /// Cost of Puts that tasks await, beside those that a blocked thread waits for, over the link and of a
    /// node to itself
    #[arg(long, group = "bench")]
    awaits: bool,
    /// What nodes with the reactor epoll cost beside nodes with io_uring: Puts and Gets of 64 bytes, 4 KiB
    /// and 1 MiB, over sockets, or with --net tcp over streams
    #[arg(long, group = "bench")]
    reactors: bool,
    /// Cost of a router: CPU time of a forwarded message beside that of both ends, and what a hop adds
    /// to half a round trip; with --net tcp between tcp nets
    #[arg(long, group = "bench")]
    routed: bool,
    /// Cost of nodes with 2 and 16 shards beside nodes with one: a Put of 64 bytes to its ACK, alone and 64
    /// at once
    #[arg(long, group = "bench")]
    shards: bool,
    /// Memory, CPU time at the start and wake-ups a second of daemons that have nothing to do, of 64 shards
    /// with rings and of 8
    #[arg(long, group = "bench")]
    idle: bool,
    /// The time of a Put by its size, 1 byte to 1 MiB, with 64 at once (or --at-once), beside other programs,
    /// as a table and a plot; steps in it are told
    #[arg(long, group = "bench")]
    sweep: bool,
    /// Payload bytes of each message [default: 64, with --bulk 1048576, with --rails 4096]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    size: Option<u32>,
    /// Largest IP packet of the link [default: 1500; with --awaits, --bulk, --compare, --messaging, --rails,
    /// --reactors, --routed, --shards and --sweep 9000]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1500..))]
    mtu: Option<u16>,
    /// Type of the net that nodes are on, with --awaits, --compare, --reactors, --routed, --shards
    /// and --sweep [default: xdp]
    #[arg(long, value_name = "TYPE", value_parser = ["xdp", "tcp"], hide_possible_values = true)]
    net: Option<String>,
    /// Messages that are under way at once, with --compare and --sweep [default: 64]
    #[arg(long, value_name = "MESSAGES", value_parser = clap::value_parser!(u16).range(1..=128))]
    at_once: Option<u16>,
    /// Rows whose names have one of these words in them, and no others, with --compare and --shards; of
    /// --compare, pauses and checksums are the tables of these
    #[arg(long, value_name = "WORDS", value_delimiter = ',')]
    only: Vec<String>,
    /// Print one JSON object instead of the tables
    #[arg(long)]
    json: bool,
    /// Where the figures go as JSON, and the histograms (.hgrm) and plots (.svg) [default: target/bench]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Options of the bench itself, behind --: such as those of `bench peers --help`
    #[arg(last = true, value_name = "OPTIONS")]
    rest: Vec<String>,
}

/// A bench: a subcommand of the program `bench`.
#[derive(PartialEq, Eq, Debug)]
struct Bench {
    /// The option that asks for it.
    option: &'static str,
    subcommand: &'static str,
    /// Payload bytes and MTU, where options do not say; `None`: it needs no link.
    defaults: Option<(u32, u16)>,
    /// Options that it takes, besides those that all take.
    takes: &'static [&'static str],
}

impl Bench {
    /// The bench as messages name it.
    fn told(&self) -> String {
        if self.option.is_empty() { "the plain bench".to_owned() } else { format!("--{}", self.option) }
    }
}

const fn over_link(
    option: &'static str,
    subcommand: &'static str,
    defaults: (u32, u16),
    takes: &'static [&'static str],
) -> Bench {
    Bench { option, subcommand, defaults: Some(defaults), takes }
}

/// All of them, the first where no option asks for one.
const BENCHES: [Bench; 15] = [
    over_link("", "xdp", (64, 1500), &["size", "mtu"]),
    over_link("awaits", "awaits", (64, 9000), &["size", "mtu", "net"]),
    over_link("bulk", "bulk", (1 << 20, 9000), &["size", "mtu"]),
    over_link("compare", "compare", (64, 9000), &["size", "mtu", "net", "at-once", "only"]),
    over_link("idle", "idle", (0, 1500), &["mtu"]),
    Bench { option: "match-cost", subcommand: "match-cost", defaults: None, takes: &[] },
    over_link("messaging", "messaging", (64, 9000), &["size", "mtu"]),
    Bench { option: "paths", subcommand: "path-cost", defaults: None, takes: &[] },
    over_link("peers", "peers", (64, 1500), &["size", "mtu"]),
    over_link("posted", "posted", (64, 1500), &["size", "mtu"]),
    over_link("rails", "rails", (4096, 9000), &["size", "mtu"]),
    over_link("reactors", "reactors", (64, 9000), &["size", "mtu", "net"]),
    over_link("routed", "routed", (64, 9000), &["size", "mtu", "net"]),
    over_link("shards", "shards", (64, 9000), &["size", "mtu", "net", "only"]),
    over_link("sweep", "sweep", (1 << 20, 9000), &["mtu", "net", "at-once"]),
];

impl Options {
    /// The bench that is asked for.
    ///
    /// # Errors
    /// Names an option that it does not take.
    fn bench(&self) -> Result<&'static Bench> {
        let asked = [
            ("awaits", self.awaits),
            ("bulk", self.bulk),
            ("compare", self.compare),
            ("idle", self.idle),
            ("match-cost", self.match_cost),
            ("messaging", self.messaging),
            ("paths", self.paths),
            ("peers", self.peers.is_some()),
            ("posted", self.posted.is_some()),
            ("rails", self.rails),
            ("reactors", self.reactors),
            ("routed", self.routed),
            ("shards", self.shards),
            ("sweep", self.sweep),
        ];
        let option = asked.iter().find(|(_, is_asked)| *is_asked).map_or("", |(option, _)| option);
        let bench = BENCHES.iter().find(|bench| bench.option == option);
        let bench = bench.with_context(|| format!("no bench has the option --{option}"))?;
        let given = [
            ("size", self.size.is_some()),
            ("mtu", self.mtu.is_some()),
            ("net", self.net.is_some()),
            ("at-once", self.at_once.is_some()),
            ("only", !self.only.is_empty()),
        ];
        let ignored = given.iter().find(|(name, is_given)| *is_given && !bench.takes.contains(name));
        if let Some((name, _)) = ignored {
            let takers = BENCHES.iter().filter(|other| other.takes.contains(name));
            let takers: Vec<_> = takers.map(Bench::told).collect();
            bail!("--{name} does nothing with {}: it goes with {}", bench.told(), takers.join(", "));
        }
        Ok(bench)
    }

    fn net(&self) -> &str {
        self.net.as_deref().unwrap_or("xdp")
    }

    /// Arguments of the bench, besides those of the link.
    fn arguments(&self, bench: &Bench, root: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = Vec::new();
        let mut add = |name: &str, value: &dyn ToString| {
            arguments.extend([name.into(), value.to_string().into()]);
        };
        if let Some((size, mtu)) = bench.defaults {
            add("--size", &self.size.unwrap_or(size));
            add("--mtu", &self.mtu.unwrap_or(mtu));
        }
        if let (Some(size), true) = (self.size, self.compare) {
            add("--sizes", &size);
        }
        if let Some(peers) = self.peers {
            add("--peers", &peers);
        }
        if let Some(posted) = self.posted {
            add("--posted", &posted);
        }
        if let Some(at_once) = self.at_once {
            add("--at-once", &at_once);
        }
        if !self.only.is_empty() {
            add("--only", &self.only.join(","));
        }
        let out = self.out.clone().unwrap_or_else(|| root.join("target/bench"));
        arguments.extend(["--out".into(), out.into()]);
        arguments.extend(self.quick.then(|| "--quick".into()));
        arguments.extend(self.json.then(|| "--json".into()));
        arguments.extend(self.rest.iter().map(OsString::from));
        arguments
    }
}

/// Builds, measures, cleans up.
///
/// # Errors
/// When an option does nothing, a capability or `ip` is missing, a build or the bench fails, or a signal asks
/// to end.
pub(crate) fn bench(root: &Path, options: &Options) -> Result<()> {
    let bench = options.bench()?;
    let arguments = options.arguments(bench, root);
    let Some((_, mtu_bytes)) = bench.defaults else { return measure_alone(root, bench, &arguments) };
    let mtu_bytes = options.mtu.unwrap_or(mtu_bytes);
    let needs = "`cargo xtask bench` makes network namespaces and loads XDP programs; it";
    privilege::require(needs, &privilege::NETNS_NODES)?;
    build_ebpf::refresh(root)?;
    let program = cargo::build_binary(root, "lnet-bench", "bench", &[])?;
    let daemon = options.idle.then(|| cargo::build_binary(root, "lnetd", "lnetd", &[])).transpose()?;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)
            .context("signal handlers")?;
    }
    run::remove_and_say_stale()?;
    let pair = Pair::create(
        "",
        Wiring { rails: 1 + u8::from(options.rails || options.routed), queues: 2, mtu_bytes },
    )?;
    let mut command = Command::new(program);
    command.arg(bench.subcommand);
    if options.peers.is_some() {
        // What goes to any of their addresses is delivered at the far end.
        pair.a.ip(&format!("route add {PEERS_NETWORK} via {}", pair.b.interface().ipv4))?;
        pair.b.ip(&format!("route add local {PEERS_NETWORK} dev lo"))?;
    }
    for (end, namespace) in [("a", &pair.a), ("b", &pair.b)] {
        do_not_pace(namespace)?;
        command.arg(format!("--netns-{end}")).arg(Path::new("/run/netns").join(namespace.name()));
        command.args([&format!("--interface-{end}"), &namespace.interface().name]);
        command.args([&format!("--nid-{end}"), &nid(namespace, options.net())]);
        if let [_, second] = namespace.interfaces() {
            command.args([&format!("--second-interface-{end}"), &second.name]);
            command.args([&format!("--second-nid-{end}"), &format!("{}@{}1", second.ipv4, options.net())]);
        }
    }
    if options.posted.is_some() {
        // The tables of so many entries lie in huge pages.
        command.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
    }
    if let Some(daemon) = daemon {
        command.arg("--lnetd").arg(daemon);
    }
    command.args(arguments);
    let words = words(&command);
    let child = command.spawn().with_context(|| format!("`{words}` did not start"))?;
    wait(child, &words, &signal)
}

/// Has TCP in a namespace send as much as its window allows. A congestion control that paces by timers, as
/// BBR does, has figures of the machine's timers instead: a link between two namespaces has no rate that it
/// could find.
fn do_not_pace(namespace: &Namespace) -> Result<()> {
    let write = || fs::write(CONGESTION_CONTROL, "reno");
    namespace.enter(write).and_then(|written| written).context("net.ipv4.tcp_congestion_control")
}

/// Runs a bench that needs no link.
fn measure_alone(root: &Path, bench: &Bench, arguments: &[OsString]) -> Result<()> {
    let mut command = Command::new(cargo::build_binary(root, "lnet-bench", "bench", &[])?);
    command.arg(bench.subcommand).args(arguments);
    let words = words(&command);
    let status = command.status().with_context(|| format!("`{words}` did not start"))?;
    ensure!(status.success(), "`{words}` failed, {status}");
    Ok(())
}

/// Waits for the bench, and ends it when a signal has come. The namespaces outlive it in any case.
fn wait(mut child: Child, words: &str, signal: &AtomicUsize) -> Result<()> {
    loop {
        let ended = child.try_wait().with_context(|| format!("waiting for `{words}`"))?;
        // The terminal signals the bench as well: that it ended by it is no failure of its own.
        match (signal.load(Ordering::Relaxed), ended) {
            (0, Some(status)) => {
                ensure!(status.success(), "`{words}` failed, {status}");
                return Ok(());
            }
            (0, None) => std::thread::sleep(POLL_INTERVAL),
            (number, ended) => {
                if ended.is_none() {
                    child.kill().and_then(|()| child.wait()).with_context(|| format!("ending `{words}`"))?;
                }
                return Err(Interrupted { signal: number as i32 }.into());
            }
        }
    }
}

fn nid(namespace: &Namespace, net: &str) -> String {
    format!("{}@{net}", namespace.interface().ipv4)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        options: Options,
    }

    fn parse(words: &str) -> Result<Options, clap::Error> {
        Program::try_parse_from(["bench"].into_iter().chain(words.split_whitespace()))
            .map(|program| program.options)
    }

    /// The words that ask for a bench.
    fn asked(bench: &Bench) -> String {
        match bench.option {
            "" => String::new(),
            "peers" | "posted" => format!("--{} 7", bench.option),
            option => format!("--{option}"),
        }
    }

    fn arguments(options: &Options, bench: &Bench) -> Vec<String> {
        let arguments = options.arguments(bench, Path::new("/checkout"));
        arguments.into_iter().map(|it| it.into_string().unwrap()).collect()
    }

    /// Options that some benches take, with a value, and the argument that a bench has of it; the net is in
    /// its NIDs.
    const GIVEN: [(&str, &str, Option<&str>); 5] = [
        ("size", "33", Some("--size")),
        ("mtu", "1600", Some("--mtu")),
        ("net", "tcp", None),
        ("at-once", "5", Some("--at-once")),
        ("only", "a,b", Some("--only")),
    ];

    #[test]
    fn each_option_is_refused_or_reaches_the_bench() {
        for bench in &BENCHES {
            assert_eq!(parse(&asked(bench)).unwrap().bench().unwrap(), bench);
            for (name, value, argument) in GIVEN {
                let words = format!("{} --{name} {value}", asked(bench));
                let options = parse(&words).unwrap();
                let found = options.bench();
                assert_eq!(found.is_ok(), bench.takes.contains(&name), "{words}");
                let Ok(found) = found else {
                    let said = found.unwrap_err().to_string();
                    assert!(
                        said.contains(&format!("--{name} does nothing")) && said.contains("--compare"),
                        "{said}"
                    );
                    continue;
                };
                let arguments = arguments(&options, found);
                let has_it =
                    |argument: &str| arguments.windows(2).any(|pair| pair[0] == argument && pair[1] == value);
                assert!(argument.is_none_or(has_it), "{words}: {arguments:?}");
                assert_eq!(options.net(), if name == "net" { "tcp" } else { "xdp" });
            }
        }
        assert!(GIVEN.iter().all(|(name, ..)| BENCHES.iter().any(|bench| bench.takes.contains(name))));
    }

    #[test]
    fn what_all_take_reaches_each_bench() {
        for bench in &BENCHES {
            let options = parse(&format!("{} --quick --json --out /o -- --loss 5", asked(bench))).unwrap();
            let arguments = arguments(&options, options.bench().unwrap()).join(" ");
            assert!(arguments.ends_with("--out /o --quick --json --loss 5"), "{arguments}");
            let options = parse(&asked(bench)).unwrap();
            let arguments = super::tests::arguments(&options, bench).join(" ");
            assert!(arguments.ends_with("--out /checkout/target/bench"), "{arguments}");
        }
    }

    #[test]
    fn one_bench_is_asked_for_at_most() {
        for (index, bench) in BENCHES.iter().enumerate().skip(1) {
            for other in &BENCHES[index + 1..] {
                let words = format!("{} {}", asked(bench), asked(other));
                assert!(parse(&words).unwrap_err().to_string().contains("cannot be used with"), "{words}");
            }
        }
        let subcommands: BTreeSet<_> = BENCHES.iter().map(|bench| bench.subcommand).collect();
        assert_eq!(subcommands.len(), BENCHES.len());
    }

    #[test]
    fn a_size_is_that_of_all_rows_of_a_comparison() {
        let options = parse("--compare --size 33").unwrap();
        let arguments = arguments(&options, options.bench().unwrap()).join(" ");
        assert!(arguments.contains("--size 33") && arguments.contains("--sizes 33"), "{arguments}");
        let options = parse("--bulk").unwrap();
        let arguments = super::tests::arguments(&options, options.bench().unwrap()).join(" ");
        assert!(arguments.contains("--size 1048576 --mtu 9000"), "{arguments}");
    }
}
