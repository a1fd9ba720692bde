//! The command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Parser};
use lnet_admin::{ControlOptions, ServeOptions, StartUp};
use lnet_control::document::DOCUMENT_BYTES_MAX;
use lnet_control::file;
use lnet_control::legacy::LegacyKind;
use lnet_control::path::{self, DEFAULT_NODE};
use lnet_model::parameter::ParameterValue;
use lnet_user::api::Threads;
use lnet_user::netlink::default_interfaces;
use lnet_user::node::{CHUNK_BYTES, PEER_BYTES, ReactorChoice, XdpMode};
use lnet_user::runtime::Idle;
use lnet_user::{Limits, NodeConfig};

use tracing_subscriber::filter::LevelFilter;

use crate::{group, limits, sock};

/// Most memory of a shard for what it knows of peers.
const PEER_MEMORY_MAX: u64 = 1 << 32;
/// Router buffers that there may be by default: more than LNet's pools have by default.
const ROUTER_BUFFERS: u32 = 1 << 15;

/// Receive queues of the interfaces that there is memory for in any case.
const LEAST_QUEUES: [u32; 2] = [2, 2];

const EXAMPLES: &str = "\
Examples:
  lnetd                                  one shard, not configured; then, for instance,
                                           lnetctl lnet configure
                                           lnetctl net add --net xdp --if eth0
                                           lnetctl ping 10.0.0.2@xdp
  lnetd --config /etc/lnet.yaml          with the nets of a document, as `lnetctl export` prints it
  lnetd --shards 4 --cpus 4-7 --spin 50  four shards on CPUs of their own, which poll a little
  lnetd --name test --mode socket        no privileges: UDP sockets; nets need `--port` from 1024 up
  lnetd --config /etc/lnet.yaml --selftest  and a node that `lst` of others can test
  lnetd --sock accept=all                tcp nets that take peers without a privileged port
  lnetd --modprobe /etc/modprobe.d       with the strings of LNet's kernel module

SIGTERM and SIGINT end it in order, a second one at once. SIGHUP carries out what has changed in the
document and the files.";

/// A node of LNet in userspace.
#[derive(Parser, Debug)]
#[command(version, about, args_override_self = true, after_help = format!("{}\n\n{}\n{EXAMPLES}", *sock::HELP, *limits::HELP))]
#[command(group(ArgGroup::new("start").args(["config", "networks", "ip2nets", "routes", "modprobe"]).multiple(true)
    .conflicts_with("configure")))]
pub(crate) struct Options {
    /// The node's name: its control socket is NAME.sock in /run/lnet, or in $XDG_RUNTIME_DIR/lnet for others
    /// than root
    #[arg(long, default_value = DEFAULT_NODE)]
    pub(crate) name: String,
    /// The control socket, instead of the name's
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Group that may use the control socket, by name or number; changes are for root and the daemon's user
    #[arg(long)]
    group: Option<String>,
    /// Tell metrics for Prometheus at http://ADDR/metrics: a port of 127.0.0.1, or an address with a port,
    /// such as `[::]:9989`; all who reach it may read
    #[arg(long, value_name = "ADDR", value_parser = metrics_address)]
    metrics: Option<SocketAddr>,
    /// Configure the node at the start by this YAML document; `lnetctl lnet configure --all` does it again,
    /// after `lnet unconfigure`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Nets at the start, as LNet's kernel module has them: tcp(eth0),xdp(eth1)
    #[arg(long, value_name = "STRING", conflicts_with = "ip2nets")]
    networks: Option<String>,
    /// Nets at the start by the addresses of the host: 'tcp(eth0) 10.0.0.*; xdp 10.1.*.*'
    #[arg(long, value_name = "STRING")]
    ip2nets: Option<String>,
    /// Routes at the start: 'o2ib 10.0.0.[1-4]@tcp; tcp2 2 10.0.0.9@tcp:1'
    #[arg(long, value_name = "STRING")]
    routes: Option<String>,
    /// File of modprobe whose `options lnet` the node has at the start, or a directory of them, such as
    /// /etc/modprobe.d; as often as there are some
    #[arg(long, value_name = "PATH")]
    modprobe: Vec<PathBuf>,
    /// Seconds that the start waits for interfaces and addresses which are not there yet; clients are served
    /// meanwhile
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    wait: u32,
    /// Configure the node at the start, with nothing but `lo`
    #[arg(long)]
    configure: bool,
    /// Shards, 1 to 64: one for each CPU that the node shall use
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    shards: u32,
    /// CPUs that the threads of the shards are bound to, in their order, such as 2,4-6 [default: none is
    /// bound]
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// How frames reach the shards where a net does not say: auto, native, generic or socket
    #[arg(long, default_value_t, value_parser = PossibleValuesParser::new(XdpMode::NAMES).try_map(|name| name.parse::<XdpMode>()),
          hide_possible_values = true)]
    mode: XdpMode,
    /// How shards wait, and move the bytes of sockets: auto, io_uring or epoll; auto takes epoll where the
    /// kernel refuses io_uring, as in containers, or lacks an operation
    #[arg(long, default_value_t,
          value_parser = PossibleValuesParser::new(ReactorChoice::NAMES).try_map(|name| name.parse::<ReactorChoice>()),
          hide_possible_values = true)]
    reactor: ReactorChoice,
    /// Memory for frames of all nets over rings: bytes, also with K, M or G behind, or auto, enough for the
    /// interfaces that the host has at the start, and for two with two receive queues each at least
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "auto")]
    memory: FrameMemory,
    /// Memory of each shard for what it knows of peers, taken as they come: bytes, also with K, M or G
    /// behind; 16M is for some 4,700 peers that are busy at once, 72M for 20,000
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "16M")]
    peer_memory: u64,
    /// Router buffers that there may be, in all pools together; their memory is taken while the node routes,
    /// and without any it is no router
    #[arg(long, default_value_t = ROUTER_BUFFERS, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    router_buffers: u32,
    /// Memory of nets over rings that router buffers lie in as far as it goes, the large ones first: frames
    /// leave out of it without a copy. Bytes, also with K, M or G behind, locked from the start, besides
    /// --memory
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    router_memory: u64,
    /// A limit of the node or of each shard, as often as there are some to be set; they are listed below
    #[arg(long, value_name = "NAME=COUNT", value_parser = limits::LimitParser, hide_possible_values = true)]
    limit: Vec<limits::LimitSetting>,
    /// Receive queues of nets over rings, and NIs over sockets, that there may be at once
    #[arg(long, default_value_t = NodeConfig::loopback().queues_max, value_name = "COUNT")]
    queues_max: u32,
    /// Microseconds that an idle shard polls at most before it sleeps
    #[arg(long, visible_alias = "idle", default_value_t = spin_us(), value_name = "MICROSECONDS")]
    spin: u64,
    /// Seconds that a message may be under way on an xdp net; the same on all its nodes
    #[arg(long, default_value_t = lnd_timeout_s(), value_name = "SECONDS",
          value_parser = clap::value_parser!(u32).range(1..))]
    lnd_timeout: u32,
    /// A tunable of the tcp LND, as often as there are some to be set; they are listed below
    #[arg(long, value_name = "NAME=VALUE", value_parser = sock::SettingParser, hide_possible_values = true)]
    sock: Vec<sock::Setting>,
    /// A parameter by its name in LNet's kernel module, as `lnetctl param` has it, as often as there are some
    /// to be set; with check_routers_before_use=1 the start waits for the first checks of all gateways
    #[arg(long, value_name = "NAME=VALUE")]
    param: Vec<ParameterValue>,
    /// Take part in tests of LNet selftest as server and client, and be a console of `lst`
    #[arg(long)]
    pub(crate) selftest: bool,
    /// Seconds that what is under way may take when an NI is deleted, or the daemon stops
    #[arg(long, default_value_t = ControlOptions::default().drain.as_secs() as u32, value_name = "SECONDS")]
    drain: u32,
    /// Frames of a million that XDP drops as they arrive: for tests of loss recovery
    #[arg(long, default_value_t = 0, value_name = "COUNT", hide = true,
          value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    frame_loss: u32,
    /// What is logged on standard error: error, warn, info, debug, trace, or a filter such as
    /// warn,lnet_user=debug
    #[arg(long, default_value = "info", value_name = "FILTER")]
    log: String,
    /// Log frames for this node that XDP passes up to the kernel, with their reason and source; nets over
    /// sockets cannot be added then
    #[arg(long)]
    log_refusals: bool,
    /// Log more, as with --log debug
    #[arg(long, short, conflicts_with = "log")]
    verbose: bool,
    /// Write the man page to this directory, and do nothing else
    #[arg(long, hide = true, value_name = "DIR")]
    pub(crate) generate_man: Option<PathBuf>,
    /// Print completions for a shell, and do nothing else
    #[arg(long, hide = true, value_name = "SHELL")]
    pub(crate) generate_completions: Option<clap_complete::Shell>,
}

impl Options {
    /// What is logged. Other libraries tell what an administrator wants to know in warnings, and all else in
    /// a trace.
    pub(crate) fn log(&self) -> String {
        let filter = if self.verbose { "debug" } else { &self.log };
        match filter.parse() {
            Ok(LevelFilter::INFO | LevelFilter::DEBUG) => format!("warn,lnet={filter}"),
            _ => filter.to_owned(),
        }
    }

    /// Peers that each shard remembers, twice those whose messages may wait at least.
    fn peers(&self, limits: &Limits) -> Result<u32> {
        let Limits { delayed, .. } = *limits;
        let (bytes, least) = (self.peer_memory, PEER_BYTES as u64 * 2 * u64::from(delayed));
        ensure!(
            (least..=PEER_MEMORY_MAX).contains(&bytes),
            "--peer-memory {bytes}: {least} to {PEER_MEMORY_MAX} bytes are expected with --limit \
             delayed={delayed}"
        );
        Ok(Limits::peers_in(bytes, PEER_BYTES))
    }

    pub(crate) fn node(&self) -> Result<NodeConfig> {
        let lnd_timeout = Duration::from_secs(self.lnd_timeout.into());
        let limits = limits::limits(&self.limit).map_err(|error| anyhow!("--limit {error}"))?;
        let sock = sock::tunables(&self.sock, lnd_timeout).map_err(|error| anyhow!("--sock {error}"))?;
        let mut config = NodeConfig::loopback()
            .shards(self.shards)
            .mode(self.mode)
            .queues_max(self.queues_max)
            .reactor(self.reactor)
            .lnd_timeout(lnd_timeout)
            .sock(sock)
            .frame_loss_per_million(self.frame_loss)
            .log_refusals(self.log_refusals)
            .limits(Limits { peers: self.peers(&limits)?, ..limits })
            .router_buffers(self.router_buffers)
            .registered_bytes(self.router_memory);
        let frames = match self.memory {
            FrameMemory::Auto => auto_frames(&config),
            FrameMemory::Bytes(bytes) => u32::try_from(bytes / u64::from(CHUNK_BYTES))
                .ok()
                .filter(|frames| *frames > 0)
                .with_context(|| format!("--memory {bytes}: {CHUNK_BYTES} bytes to 16 T are expected"))?,
        };
        config.xdp.frames = Some(frames);
        Ok(config)
    }

    pub(crate) fn threads(&self) -> Result<Threads> {
        let mut threads = Threads::new().idle(Idle::new(Duration::from_micros(self.spin)));
        if let Some(list) = &self.cpus {
            let cpus = cpus(list).with_context(|| format!("--cpus {list}"))?;
            ensure!(
                cpus.len() == self.shards as usize,
                "--cpus {list}: {} CPUs for {} shards; one for each is expected",
                cpus.len(),
                self.shards
            );
            threads.cpus = cpus;
        }
        Ok(threads)
    }

    pub(crate) fn serve(&self) -> Result<ServeOptions> {
        let socket = match &self.socket {
            Some(socket) => socket.clone(),
            None => path::socket_of(&path::own_directory(), &self.name)?,
        };
        let gid = self.group.as_deref().map(group::number).transpose()?;
        if let Some(path) = &self.config {
            // Told before anything is started.
            file::read_regular(path, DOCUMENT_BYTES_MAX)
                .with_context(|| format!("--config {}", path.display()))?;
        }
        let drain = Duration::from_secs(self.drain.into());
        let start_up = self.start_up();
        Ok(ServeOptions {
            gid,
            configures: self.configure || !start_up.is_empty(),
            wait: Duration::from_secs(self.wait.into()),
            control: ControlOptions { drain, start_up, parameters: self.param.clone() },
            metrics: self.metrics,
            ..ServeOptions::new(socket)
        })
    }

    /// The start-up document.
    pub(crate) fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    pub(crate) fn start_up(&self) -> StartUp {
        let strings = LegacyKind::ALL.map(|kind| {
            let text = match kind {
                LegacyKind::Networks => &self.networks,
                LegacyKind::Ip2nets => &self.ip2nets,
                LegacyKind::Routes => &self.routes,
            };
            Some((kind, text.clone()?))
        });
        StartUp {
            document: self.config.clone(),
            modprobe: self.modprobe.clone(),
            strings: strings.into_iter().flatten().collect(),
        }
    }
}

/// What a node has that is not told: all nodes of a net must have the same.
fn lnd_timeout_s() -> u32 {
    NodeConfig::loopback().lnd_timeout.as_secs() as u32
}

/// What threads do that are not told.
fn spin_us() -> u64 {
    Threads::new().idle.spin.as_micros() as u64
}

/// A number of bytes.
fn size(text: &str) -> Result<u64> {
    let (digits, shift) = match text.char_indices().last() {
        Some((end, 'k' | 'K')) => (&text[..end], 10),
        Some((end, 'm' | 'M')) => (&text[..end], 20),
        Some((end, 'g' | 'G')) => (&text[..end], 30),
        _ => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .context("a number of bytes is expected, such as 64M")
}

/// The address of metrics: a port alone is one of this host's, for itself.
fn metrics_address(text: &str) -> Result<SocketAddr> {
    let port = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    port.or_else(|_| text.parse())
        .context("a port or an address with one is expected, such as 127.0.0.1:9989")
}

/// Memory for frames, as the command line has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameMemory {
    /// Enough for the interfaces of the host.
    Auto,
    Bytes(u64),
}

fn memory(text: &str) -> Result<FrameMemory> {
    if text == "auto" {
        return Ok(FrameMemory::Auto);
    }
    size(text).map(FrameMemory::Bytes).context("auto or a number of bytes is expected, such as 64M")
}

/// Frames for the interfaces that the host has now.
fn auto_frames(config: &NodeConfig) -> u32 {
    let present = default_interfaces().unwrap_or_else(|error| {
        tracing::warn!(%error, "the memory for frames is not sized by the interfaces of this host");
        Vec::new()
    });
    let queues: Vec<u32> = present.iter().map(|interface| interface.rx_queues).collect();
    let info = rustix::system::sysinfo();
    frames_for(config, &queues, info.totalram as u64 * u64::from(info.mem_unit))
}

/// Frames for interfaces with so many receive queues each, on a host with so much memory: at least
/// [`LEAST_QUEUES`], and more than that only within an eighth of the memory.
fn frames_for(config: &NodeConfig, queues: &[u32], memory_bytes: u64) -> u32 {
    let wanted = |queues: &[u32]| {
        let queues_count = queues.iter().sum::<u32>().max(LEAST_QUEUES.iter().sum());
        config.frames_for(queues.len().max(LEAST_QUEUES.len()) as u32, queues_count)
    };
    let most = memory_bytes / 8 / u64::from(CHUNK_BYTES);
    wanted(queues).min(u32::try_from(most).unwrap_or(u32::MAX)).max(wanted(&[]))
}

/// CPUs, such as `2,4-6`.
fn cpus(list: &str) -> Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|cpu| *cpu < CPUS_MAX);
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
            _ => bail!("{part:?}: a CPU's number or a range such as 4-6 is expected, below {CPUS_MAX}"),
        }
    }
    Ok(cpus)
}

/// CPUs that a kernel can have (`CONFIG_NR_CPUS`).
const CPUS_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use lnet_user::node::DAEMON_LIMITS;

    use super::*;

    fn options(words: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(["lnetd"].into_iter().chain(words.split_whitespace()))
    }

    /// Completions for bash.
    fn completions() -> String {
        use clap::CommandFactory;
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut Options::command(), "lnetd", &mut script);
        String::from_utf8(script).unwrap()
    }

    #[test]
    fn the_options_are_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        assert!(options("--config a --configure").is_err());
    }

    #[test]
    fn metrics_are_for_this_host_unless_told_otherwise() {
        let address = |text: &str| options(&format!("--metrics {text}")).map(|options| options.metrics);
        let at = |text: &str| Some(text.parse().unwrap());
        assert_eq!(address("9989").unwrap(), at("127.0.0.1:9989"));
        assert_eq!(address("[::]:9989").unwrap(), at("[::]:9989"));
        assert_eq!(options("").unwrap().metrics, None);
        assert!(["", ":9989", "70000", "host:1", "127.0.0.1"].iter().all(|text| address(text).is_err()));
    }

    #[test]
    fn sizes_and_lists_of_cpus_are_read() {
        assert_eq!(size("4096").unwrap(), 4096);
        assert_eq!(size("64M").unwrap(), 64 << 20);
        assert_eq!(size("2g").unwrap(), 2 << 30);
        assert!(["", "M", "x", "-1", "99999999999G"].iter().all(|text| size(text).is_err()));
        assert_eq!(cpus("2,4-6").unwrap(), [2, 4, 5, 6]);
        assert!(["", "a", "3-1", "1-", "0-99999999999"].iter().all(|list| cpus(list).is_err()));
    }

    #[test]
    fn memory_for_frames_follows_the_interfaces() {
        let config = NodeConfig::loopback().shards(2);
        let least = config.frames_for(2, 4);
        let frames = |queues: &[u32], memory_bytes| frames_for(&config, queues, memory_bytes);
        assert_eq!(frames(&[], 1 << 34), least);
        assert_eq!(frames(&[1], 1 << 34), least);
        assert_eq!(frames(&[8], 1 << 34), config.frames_for(2, 8));
        assert_eq!(frames(&[8, 4, 1], 1 << 34), config.frames_for(3, 13));
        // An eighth of a GiB.
        assert_eq!(frames(&[64, 64], 1 << 30), (1 << 27) / CHUNK_BYTES);
        assert_eq!(frames(&[64, 64], 1 << 20), least);
        assert_eq!(
            [memory("auto"), memory("148M")].map(Result::unwrap),
            [FrameMemory::Auto, FrameMemory::Bytes(148 << 20)]
        );
        assert!(memory("much").is_err());
    }

    #[test]
    fn other_libraries_are_silent() {
        let log = |words: &str| options(words).unwrap().log();
        assert_eq!((log(""), log("-v")), ("warn,lnet=info".to_owned(), "warn,lnet=debug".to_owned()));
        for filter in ["error", "trace", "info,aya=debug"] {
            assert_eq!(log(&format!("--log {filter}")), filter);
        }
        assert!(options("-v --log info").is_err());
    }

    #[test]
    fn modes_are_offered_and_checked() {
        assert!(completions().contains("auto native generic socket"));
        assert_eq!(options("--mode generic").unwrap().mode, XdpMode::Generic);
        assert!(options("--mode natve").unwrap_err().to_string().contains("native"));
    }

    #[test]
    fn memory_for_peers_decides_how_many_are_remembered() {
        let peers = |words: &str| options(words).unwrap().node().unwrap().limits.peers;
        assert_eq!(peers(""), DAEMON_LIMITS.peers);
        assert_eq!(peers("--peer-memory 72M"), Limits::peers_in(72 << 20, PEER_BYTES));
        // The help says so.
        let (usual, large) = (peers(""), peers("--peer-memory 72M"));
        assert!(usual >= 4700 && large >= 20_000, "{usual}, {large}: a peer takes {PEER_BYTES} bytes");
        // Peers whose messages wait are remembered (`Limits::peers`).
        let waiting = "--limit delayed=100000 --limit responses=200000";
        assert!(peers(&format!("{waiting} --peer-memory 1G")) >= 200_000);
        let least = PEER_BYTES * 200_000;
        let error = options(waiting).unwrap().node().unwrap_err().to_string();
        let told = format!(
            "--peer-memory 16777216: {least} to 4294967296 bytes are expected with --limit delayed=100000"
        );
        assert_eq!(error, told);
    }

    #[test]
    fn the_docs_say_how_many_peers_are_remembered() {
        let library = Limits::peers_in(32 << 20, PEER_BYTES);
        let told = [
            (
                include_str!("../../docs/xdp-lnd.md"),
                "receive streams: of each as many as that holds | some ",
                library,
            ),
            (include_str!("../../docs/strangers.md"), "`--peer-memory` holds: some ", DAEMON_LIMITS.peers),
            (include_str!("../../docs/control.md"), "`--peer-memory` holds (some ", DAEMON_LIMITS.peers),
        ];
        for (page, before, peers) in told {
            let (_, behind) = page.split_once(before).unwrap();
            let digits = behind.split([' ', '|']).next().unwrap().replace(',', "");
            let said: u32 = digits.parse().unwrap();
            assert!(said.abs_diff(peers) < 100, "{said} for {peers}: a peer takes {PEER_BYTES} bytes");
        }
    }

    #[test]
    fn the_help_tells_what_threads_do_by_themselves() {
        use clap::CommandFactory;
        let threads = |words: &str| options(words).unwrap().threads().unwrap();
        assert_eq!(threads(""), Threads::new());
        assert_eq!(threads("--idle 7"), Threads::new().idle(Idle::new(Duration::from_micros(7))));
        let help = Options::command().render_help().to_string();
        let (_, spin) = help.split_once("--spin").unwrap();
        let (spin, _) = spin.split_once("--").unwrap();
        assert!(spin.contains(&format!("[default: {}]", spin_us())), "{spin}");
    }

    #[test]
    fn lists_in_the_help_are_not_wrapped() {
        // Columns that clap fills at most.
        for line in sock::HELP.lines().chain(limits::HELP.lines()).chain(EXAMPLES.lines()) {
            assert!(line.len() <= 100, "{line}");
        }
    }

    #[test]
    fn tunables_of_the_tcp_lnd_are_offered() {
        let script = completions();
        assert!(script.contains("accept= accept_port= ") && script.contains(" credits= "), "{script}");
    }

    #[test]
    fn loss_is_for_tests() {
        let loss =
            |words: &str| options(words).map(|options| options.node().unwrap().xdp.frame_loss_per_million);
        assert_eq!((loss("").unwrap(), loss("--frame-loss 5000").unwrap()), (0, 5000));
        assert!(loss("--frame-loss 1000001").is_err());
    }

    #[test]
    fn what_makes_no_sense_is_told_with_its_value() {
        let error = |words: &str| {
            let options = options(words).unwrap();
            let node = options.node().map(|_| ());
            let failed = node.and(options.threads().map(|_| ())).and(options.serve().map(|_| ()));
            format!("{:#}", failed.unwrap_err())
        };
        assert!(error("--shards 2 --cpus 1").contains("1 CPUs for 2 shards"));
        assert!(error("--memory 12").contains("--memory 12"));
        assert!(error("--peer-memory 1K").contains("--peer-memory 1024"));
        assert!(error("--peer-memory 5G").contains("4294967296 bytes are expected"));
        assert!(error("--name a/b").contains("a/b"));
        assert!(error("--config /no/such/file").contains("/no/such/file"));
        assert!(options("--lnd-timeout 0").is_err());
    }

    #[test]
    fn the_lnd_timeout_is_that_of_other_nodes_of_the_net() {
        let timeout = |words: &str| options(words).unwrap().node().unwrap().lnd_timeout;
        assert_eq!(timeout(""), NodeConfig::loopback().lnd_timeout);
        assert_eq!(timeout("--lnd-timeout 7"), Duration::from_secs(7));
    }
}
