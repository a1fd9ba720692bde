//! The command tree: names, options, help.
//!
//! Invariants: names and short options are those of LNet's `lnetctl`; numbers are texts here and are checked by the
//! commands, which answer in its way.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Commands of LNet's tool that this one knows and cannot carry out, and what they are about.
pub(crate) const UNSUPPORTED: [(&str, &str); 12] = [
    ("route", "routes are"),
    ("routing", "routing between nets is"),
    ("discover", "discovery of peers is"),
    ("udsp", "selection policies are"),
    ("peer add", "making peers by hand is"),
    ("peer del", "deleting peers by hand is"),
    ("peer set", "setting the health of peers is"),
    ("debug", "looking into the node is"),
    ("cpt-of-nid", "asking for the CPT of a nid is"),
    ("service-id", "RDMA is"),
    ("setup-mrrouting", "setting the system's routes is"),
    ("setup-sysctl", "setting the system's variables is"),
];

/// Configures, shows and exercises an LNet node.
///
/// Without a command it reads commands from standard input, one a line.
#[derive(Debug, Parser)]
#[command(name = "lnetctl", version, infer_long_args = true)]
#[command(after_help = "Examples:
  lnetctl lnet configure
  lnetctl net add --net xdp --if eth0 --mode native
  lnetctl ping 10.0.0.[1-4]@xdp
  lnetctl export --backup node.yaml
  lnetctl import --dry-run node.yaml")]
pub(crate) struct Cli {
    /// Control socket of the daemon [default: that of the only node there is; LNET_SOCKET overrides it]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Name of the node whose daemon to talk to
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "socket")]
    pub(crate) node: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring the node up or down
    #[command(subcommand, arg_required_else_help = true)]
    Lnet(LnetCommand),
    /// Nets and local NIs
    #[command(subcommand, arg_required_else_help = true)]
    Net(NetCommand),
    /// Peers
    #[command(subcommand, arg_required_else_help = true)]
    Peer(PeerCommand),
    /// Ping peers
    #[command(
        after_help = "Examples:\n  lnetctl ping 10.0.0.2@xdp\n  lnetctl ping --timeout 2 10.0.[0-1].[1-9]@tcp"
    )]
    Ping(PingArgs),
    /// Counters of the node
    #[command(subcommand, arg_required_else_help = true)]
    Stats(StatsCommand),
    /// Global tunables
    #[command(subcommand, arg_required_else_help = true)]
    Global(GlobalCommand),
    /// Set a global tunable
    #[command(
        arg_required_else_help = true,
        after_help = "Examples:\n  lnetctl set transaction_timeout 60\n  lnetctl set response_tracking 0"
    )]
    Set(SetArgs),
    /// Simulated faults
    #[command(subcommand, arg_required_else_help = true)]
    Fault(FaultCommand),
    /// Which shard serves the messages of a portal
    #[command(subcommand, arg_required_else_help = true)]
    Steering(SteeringCommand),
    /// Captures of the node's own frames, as pcapng
    #[command(subcommand, arg_required_else_help = true)]
    Capture(CaptureCommand),
    /// Where the frames of xdp nets went
    #[command(subcommand, arg_required_else_help = true)]
    Frames(FramesCommand),
    /// Loads: messages of which every byte is checked
    #[command(subcommand, arg_required_else_help = true)]
    Load(LoadCommand),
    /// Print the state of the node as YAML
    #[command(after_help = "Examples:\n  lnetctl export\n  lnetctl export --backup node.yaml")]
    Export(ExportArgs),
    /// Carry out a YAML document, all of it or nothing
    #[command(
        after_help = "Examples:\n  lnetctl import node.yaml\n  lnetctl import --dry-run < node.yaml\n  lnetctl import --del \
                      node.yaml"
    )]
    Import(ImportArgs),
    /// Print completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages
    #[command(hide = true)]
    Man {
        /// The directory to write them to
        directory: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LnetCommand {
    /// Bring the node up, with the loopback net
    Configure {
        /// Also carry out the start-up file of the daemon
        #[arg(long, short)]
        all: bool,
        /// Where an interface has addresses of both families, prefer IPv6
        #[arg(long, short)]
        large: bool,
    },
    /// Take down all nets, peers and rules
    Unconfigure,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NetCommand {
    /// Add local NIs, one for each interface
    #[command(after_help = "Examples:
  lnetctl net add --net xdp --if eth0
  lnetctl net add --net xdp1 --if eth0,eth1[0] --mode socket --port 1988
  lnetctl net add --nid 10.0.0.1@xdp --credits 512")]
    Add(Box<NetAddArgs>),
    /// Delete a net, or some of its NIs
    #[command(
        after_help = "Examples:\n  lnetctl net del --net xdp\n  lnetctl net del --net xdp --if eth0,eth1"
    )]
    Del {
        /// The net
        #[arg(long, short)]
        net: Option<String>,
        /// Only the NIs of these interfaces
        #[arg(long = "if", short = 'i')]
        interfaces: Option<String>,
        /// NIs by their addresses, instead of a net
        #[arg(long)]
        nid: Option<String>,
    },
    /// Show nets and their NIs
    #[command(after_help = "Examples:\n  lnetctl net show\n  lnetctl net show --net xdp -v 4")]
    Show {
        /// Only this net
        #[arg(long, short)]
        net: Option<String>,
        #[command(flatten)]
        verbose: Verbose,
    },
    /// Set the health of NIs, or what their LND does
    Set {
        /// The NI; all if it is not given
        #[arg(long, short)]
        nid: Option<String>,
        /// All NIs
        #[arg(long, short)]
        all: bool,
        /// Health, 0 to 1000
        #[arg(long, short = 't', allow_hyphen_values = true)]
        health: Option<String>,
        /// Connections of each kind to a peer, 0 to 127
        #[arg(long, short = 'm', allow_hyphen_values = true)]
        conns_per_peer: Option<String>,
        /// A net of the type for whose LND the timeout is
        #[arg(long, short = 'i')]
        net: Option<String>,
        /// Transmit timeout of the LND in seconds; 0 follows the global one
        #[arg(long, short = 'l', allow_hyphen_values = true)]
        lnd_timeout: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct NetAddArgs {
    /// The net
    #[arg(long, short)]
    pub(crate) net: Option<String>,
    /// Interfaces; CPTs may stand in brackets behind each
    #[arg(long = "if", short = 'i')]
    pub(crate) interfaces: Option<String>,
    /// NIs by their addresses, instead of a net and interfaces
    #[arg(long)]
    pub(crate) nid: Option<String>,
    /// Seconds without a sign of life after which a peer counts as dead; 0 is never
    #[arg(long, short = 't', allow_hyphen_values = true)]
    pub(crate) peer_timeout: Option<String>,
    /// Messages in flight to one peer
    #[arg(long, short = 'c', allow_hyphen_values = true)]
    pub(crate) peer_credits: Option<String>,
    /// Router buffers for one peer
    #[arg(long, short = 'b', allow_hyphen_values = true)]
    pub(crate) peer_buffer_credits: Option<String>,
    /// Messages in flight
    #[arg(long, short = 'r', allow_hyphen_values = true)]
    pub(crate) credits: Option<String>,
    /// CPTs (shards) that serve the interfaces
    #[arg(long, short = 's')]
    pub(crate) cpt: Option<String>,
    /// Connections of each kind to a peer, 0 to 127
    #[arg(long, short = 'm', allow_hyphen_values = true)]
    pub(crate) conns_per_peer: Option<String>,
    /// IP type of service, -1 to 255
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) tos: Option<String>,
    /// What drives the net: tcp or xdp [default: that of the net's type]
    #[arg(long)]
    pub(crate) lnd: Option<String>,
    /// How the frames of an xdp NI reach the shards: auto, native, generic or socket
    #[arg(long)]
    pub(crate) mode: Option<String>,
    /// UDP port of an xdp NI and its peers
    #[arg(long)]
    pub(crate) port: Option<String>,
    /// Receive queues that the interface of an xdp NI must have; 0 takes it as it is
    #[arg(long)]
    pub(crate) queues: Option<String>,
    /// Choosing nets by address
    #[arg(long, short = 'p', hide = true)]
    pub(crate) ip2net: Option<String>,
    /// The system's routes are left alone in any case
    #[arg(long, short = 'k', hide = true)]
    pub(crate) skip_mr_route_setup: bool,
    /// Of an LND that is not here
    #[arg(long, short = 'a', hide = true)]
    pub(crate) auth_key: Option<String>,
    /// Of an LND that is not here
    #[arg(long, short = 'T', hide = true)]
    pub(crate) traffic_class: Option<String>,
}

/// How much is shown.
#[derive(Debug, Args)]
pub(crate) struct Verbose {
    /// How much to show, 0 to 4; 1 if no number follows
    #[arg(long, short, num_args = 0..=1, default_missing_value = "1", value_name = "LEVEL")]
    verbose: Option<String>,
}

impl Verbose {
    /// The level. A word that is no number counts as none.
    pub(crate) fn level(&self) -> u8 {
        let Some(text) = &self.verbose else { return 0 };
        let text = text.strip_prefix('=').unwrap_or(text);
        lnet_control::pattern::integer(text).map_or(1, |level| level.clamp(0, 4) as u8)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum PeerCommand {
    /// Show peers and their NIs
    #[command(after_help = "Examples:\n  lnetctl peer show\n  lnetctl peer show --nid 10.0.0.2@xdp -v 4")]
    Show {
        /// Only the peer with this NID
        #[arg(long)]
        nid: Option<String>,
        #[command(flatten)]
        verbose: Verbose,
    },
    /// List the primary NIDs of the peers
    List,
}

#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    /// Local NI to ping from
    #[arg(long, short)]
    pub(crate) source: Option<String>,
    /// Seconds that each peer may take [default: 180]
    #[arg(long, short, allow_hyphen_values = true)]
    pub(crate) timeout: Option<String>,
    /// NIDs, with ranges and commas
    #[arg(required = true, value_name = "NIDS")]
    pub(crate) nids: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StatsCommand {
    /// Show the counters of the node
    Show {
        /// Taken for the sake of scripts
        #[arg(long, short, num_args = 0..=1, hide = true)]
        verbose: Option<Option<String>>,
    },
    /// Set the counters of the node, of its NIs and of its peers to zero
    Reset,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GlobalCommand {
    /// Show the global tunables
    Show {
        /// Taken for the sake of scripts
        #[arg(long, short, num_args = 0..=1, hide = true)]
        verbose: Option<Option<String>>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Name of the tunable, as `global show` prints it
    pub(crate) name: String,
    /// Its value
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FaultCommand {
    /// Rules by which messages are dropped
    #[command(subcommand, arg_required_else_help = true)]
    Drop(DropCommand),
    /// Rules by which messages are held up
    #[command(hide = true)]
    Delay {
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DropCommand {
    /// Add a rule
    #[command(after_help = "Examples:
  lnetctl fault drop add --source '*@xdp' --dest 10.0.0.2@xdp --rate 10
  lnetctl fault drop add -s '*' -d '*' --interval 1 --random --message GET")]
    Add(DropAddArgs),
    /// Delete rules
    Del {
        /// Source of the rules
        #[arg(long, short)]
        source: Option<String>,
        /// Destination of the rules
        #[arg(long, short)]
        dest: Option<String>,
        /// All rules
        #[arg(long, short)]
        all: bool,
    },
    /// Set the counters of all rules to zero
    Reset,
    /// Show the rules and what they did
    Show,
}

#[derive(Debug, Args)]
pub(crate) struct DropAddArgs {
    /// Source of the messages: a NID, *@net or *
    #[arg(long, short)]
    pub(crate) source: Option<String>,
    /// Destination of the messages: a NID, *@net or *
    #[arg(long, short)]
    pub(crate) dest: Option<String>,
    /// Drop one message in so many
    #[arg(long, short)]
    pub(crate) rate: Option<String>,
    /// Drop one message in so many seconds
    #[arg(long, short)]
    pub(crate) interval: Option<String>,
    /// Message type: PUT, ACK, GET or REPLY; may be repeated
    #[arg(long, short)]
    pub(crate) message: Vec<String>,
    /// Portal, 0 to 63; may be repeated
    #[arg(long, short)]
    pub(crate) portal: Vec<String>,
    /// How the send is to fail, such as local_error; may be repeated
    #[arg(long, short = 'e')]
    pub(crate) health_error: Vec<String>,
    /// Drop messages by chance; goes with an interval
    #[arg(long, short = 'n')]
    pub(crate) random: bool,
    /// Drop every message that matches
    #[arg(long, short = 'x')]
    pub(crate) drop_all: bool,
    /// Local NI that the messages arrive by
    #[arg(long, short = 'o')]
    pub(crate) local_nid: Option<String>,
    /// The kind of rule is the command's
    #[arg(long, short = 't', hide = true)]
    pub(crate) rule_type: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SteeringCommand {
    /// Show the portals that are not pinned to shard 0
    Show,
    /// Set the policy of portals that have no entries
    #[command(after_help = "Examples:
  lnetctl steering set --portal 4 --policy match_bits --bits 3
  lnetctl steering set --portal 4 --policy match_bits --bits 1 --table 0,1
  lnetctl steering set --portal 8-15 --policy pin --shard 1
  lnetctl steering set --portal 50 --policy rotor")]
    Set {
        /// Portals, such as 4 or 8-15
        #[arg(long, short)]
        portal: String,
        /// pin, match_bits, initiator or rotor
        #[arg(long, short = 'y')]
        policy: String,
        /// The shard of pin
        #[arg(long, short)]
        shard: Option<String>,
        /// Lowest match bit that counts
        #[arg(long)]
        shift: Option<String>,
        /// How many match bits count
        #[arg(long)]
        bits: Option<String>,
        /// Shard of each value of the match bits; they are hashed over all shards without it
        #[arg(long)]
        table: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CaptureCommand {
    /// Begin to write frames to a file
    #[command(after_help = "Examples:\n  lnetctl capture start /tmp/node.pcapng --limit 16M --if eth0")]
    Start {
        /// The pcapng file; nothing may be there
        file: PathBuf,
        /// Size at which the capture ends, in bytes or with K, M or G
        #[arg(long, short, default_value = "64M")]
        limit: String,
        /// Bytes of each frame that are kept [default: all]
        #[arg(long, short = 'b')]
        frame_bytes: Option<String>,
        /// Interfaces [default: all]
        #[arg(long = "if", short = 'i')]
        interfaces: Option<String>,
    },
    /// End a capture
    Stop {
        /// The file that it writes
        file: PathBuf,
    },
    /// Show the captures
    Show,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FramesCommand {
    /// Show frames by queue and shard, what was passed up, recovered, dropped
    Show {
        /// As one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Wait until no frame is under way, and fail where one is not accounted for or reached the wrong shard
    Check {
        /// As one JSON object
        #[arg(long)]
        json: bool,
        /// Percent of the frames that each shard must have taken
        #[arg(long)]
        share_min: Option<String>,
        /// Frames of a million that a fault rule is to have dropped
        #[arg(long)]
        loss_per_million: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoadCommand {
    /// Begin a load; prints its number
    Start {
        /// Which end of it
        #[command(subcommand)]
        role: LoadRoleCommand,
    },
    /// Show the loads, running and ended
    Show {
        /// As a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Wait for the end of a load, show what came of it, and fail if a message was lost or wrong
    Wait {
        /// Its number
        id: String,
        /// Say how far it is, one line each time, even where standard error is no terminal
        #[arg(long)]
        progress: bool,
        #[command(flatten)]
        output: LoadOutput,
    },
    /// End a load, show what came of it, and fail if a message was lost or wrong
    #[command(after_help = "Example:
  lnetctl --node a load stop 1 --json > sent.json
  lnetctl --node b load stop 1 --sent sent.json")]
    Stop {
        /// Its number
        id: String,
        #[command(flatten)]
        output: LoadOutput,
    },
}

/// How what came of a load is shown and judged.
#[derive(Debug, Args)]
pub(crate) struct LoadOutput {
    /// As a JSON array
    #[arg(long)]
    pub(crate) json: bool,
    /// Also draw the latencies of each size
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Fail where the initiator's result, as `--json` prints it, counts other messages
    #[arg(long, value_name = "FILE")]
    pub(crate) sent: Option<PathBuf>,
    /// Percent of the messages that each shard must have had
    #[arg(long)]
    pub(crate) share_min: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LoadRoleCommand {
    /// Take messages, until it is stopped
    #[command(after_help = "Example:\n  lnetctl load start target --seed 7")]
    Target {
        #[command(flatten)]
        args: LoadArgs,
    },
    /// Send messages to targets of the same scheme
    #[command(
        after_help = "Example:\n  lnetctl load start initiator --seed 7 --to 10.0.0.2@xdp,10.1.0.2@xdp1 --messages 100000"
    )]
    Initiator {
        #[command(flatten)]
        args: LoadArgs,
        /// NIDs of the target, all of which are used
        #[arg(long)]
        to: String,
        /// Messages in all [default: 100000]
        #[arg(long)]
        messages: Option<String>,
        /// Messages in flight [default: 64]
        #[arg(long)]
        window: Option<String>,
        /// How long a message may take before it counts as failed [default: 60000]
        #[arg(long)]
        timeout_ms: Option<String>,
        /// Puts ask for no acknowledgement
        #[arg(long)]
        no_ack: bool,
    },
}

/// The scheme of a load, the same at both ends.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// From what all bytes and choices follow [default: 0]
    #[arg(long)]
    pub(crate) seed: Option<String>,
    /// How many of a hundred messages are Puts; the others are Gets [default: 50]
    #[arg(long)]
    pub(crate) puts_percent: Option<String>,
    /// A JSON file with the whole scheme: seed, layout, sizes, puts_percent
    #[arg(long)]
    pub(crate) scheme: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only what it takes to build the node anew
    #[arg(long, short)]
    pub(crate) backup: bool,
    /// The file to write [default: standard output]
    pub(crate) file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// Make what the document says (the default)
    #[arg(long, short)]
    pub(crate) add: bool,
    /// Delete what the document names
    #[arg(long, short, conflicts_with = "add")]
    pub(crate) del: bool,
    /// Carry out the pings of the document
    #[arg(long, short, conflicts_with_all = ["add", "del", "dry_run"])]
    pub(crate) exec: bool,
    /// Change nothing, and print what would change
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,
    /// Makes no difference here
    #[arg(long, short, hide = true)]
    pub(crate) old_api: bool,
    /// The document [default: standard input]
    pub(crate) file: Option<PathBuf>,
}
