//! The commands: each module has the words of some and what they do.

mod captured;
mod cli;
mod convert;
mod debug;
mod document;
pub(crate) mod fault;
mod frames;
pub(crate) mod generate;
mod load;
mod net;
mod peer;
mod ping;
mod plot;
mod route;
mod selection;
mod simple;
mod steering;
pub(crate) mod tables;
mod top;
mod udsp;
mod watch;

use clap::{CommandFactory, Subcommand};

use crate::daemon::Daemon;
use crate::failure::CommandError;

pub(crate) use cli::{Cli, unknown_command};

type Result<T> = std::result::Result<T, CommandError>;

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring the node up or down
    #[command(subcommand, arg_required_else_help = true)]
    Lnet(simple::LnetCommand),
    /// Nets and local NIs
    #[command(subcommand, arg_required_else_help = true)]
    Net(net::NetCommand),
    /// Routes to nets that other nodes are on
    #[command(subcommand, arg_required_else_help = true)]
    Route(route::RouteCommand),
    /// Routing: whether the node forwards messages between nets, and its pools of buffers
    #[command(subcommand, arg_required_else_help = true)]
    Routing(route::RoutingCommand),
    /// Peers
    #[command(subcommand, arg_required_else_help = true)]
    Peer(peer::PeerCommand),
    /// Ping peers
    #[command(
        after_help = "Examples:\n  lnetctl ping 10.0.0.2@xdp\n  lnetctl ping --timeout 2 10.0.[0-1].[1-9]@tcp"
    )]
    Ping(ping::PingArgs),
    /// Find out which NIDs peers have, and tell them those of this node
    #[command(
        after_help = "Examples:\n  lnetctl discover 10.0.0.2@tcp\n  lnetctl discover --force 10.0.[0-1].[1-9]@tcp"
    )]
    Discover(ping::DiscoverArgs),
    /// Show by which path requests to a NID would go at this moment, and why
    #[command(after_help = "Examples:\n  lnetctl explain 10.0.0.2@tcp")]
    Explain(debug::ExplainArgs),
    /// Selection policies: which nets and NIs are used before others
    #[command(subcommand, arg_required_else_help = true)]
    Udsp(udsp::UdspCommand),
    /// Selection policies in the older form, as kinds of priorities
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Examples:\n  lnetctl selection net add --net tcp[1-3] --priority 0\n  lnetctl selection peer add --local \
                      10.0.*.*@tcp --remote 10.1.*.*@tcp"
    )]
    Selection(selection::SelectionCommand),
    /// What the node is about to do by itself
    #[command(subcommand, arg_required_else_help = true)]
    Debug(debug::DebugCommand),
    /// Show the CPTs (shards) that NIDs belong to
    #[command(after_help = "Examples:\n  lnetctl cpt-of-nid 10.0.0.[1-8]@tcp")]
    CptOfNid(debug::CptArgs),
    /// Counters of the node
    #[command(subcommand, arg_required_else_help = true)]
    Stats(simple::StatsCommand),
    /// Show what the node uses of what it may have: memory, NIs, peers, and the objects and CPUs of shards
    Usage,
    /// Global tunables
    #[command(subcommand, arg_required_else_help = true)]
    Global(simple::GlobalCommand),
    /// Set a global tunable
    #[command(
        arg_required_else_help = true,
        after_help = "Examples:\n  lnetctl set transaction_timeout 60\n  lnetctl set response_tracking 0"
    )]
    Set(simple::SetArgs),
    /// Parameters of the node, by the names that LNet's kernel module has for them
    #[command(subcommand, arg_required_else_help = true)]
    Param(simple::ParamCommand),
    /// Simulated faults
    #[command(subcommand, arg_required_else_help = true)]
    Fault(fault::FaultCommand),
    /// Which shard serves the messages of a portal
    #[command(subcommand, arg_required_else_help = true)]
    Steering(steering::SteeringCommand),
    /// Captures of the node's own frames, as pcapng
    #[command(subcommand, arg_required_else_help = true)]
    Capture(simple::CaptureCommand),
    /// Where the frames of xdp nets went
    #[command(subcommand, arg_required_else_help = true)]
    Frames(frames::FramesCommand),
    /// Loads: messages of which every byte is checked
    #[command(subcommand, arg_required_else_help = true)]
    Load(load::LoadCommand),
    /// Print the state of the node as YAML
    #[command(after_help = "Examples:\n  lnetctl export\n  lnetctl export --backup node.yaml")]
    Export(document::ExportArgs),
    /// Carry out a YAML document, all of it or nothing
    #[command(
        after_help = "Examples:\n  lnetctl import node.yaml\n  lnetctl import --dry-run < node.yaml\n  lnetctl import --del \
                      node.yaml"
    )]
    Import(document::ImportArgs),
    /// Read a YAML document as `import` would, without a daemon, and tell its mistakes
    #[command(after_help = "Examples:\n  lnetctl check node.yaml\n  lnetctl check < node.yaml")]
    Check {
        /// The document [default: standard input]
        file: Option<std::path::PathBuf>,
    },
    /// Print what changes on the node, as it does: NIs, health, peers, routes, rules, tunables
    #[command(after_help = "Examples:\n  lnetctl watch\n  lnetctl watch --json --seconds 60")]
    Watch(watch::WatchArgs),
    /// Show NIs, peers and routes with what goes by them, as it goes; q ends it
    #[command(after_help = "Examples:\n  lnetctl top\n  lnetctl top --once --interval 5000")]
    Top(top::TopArgs),
    /// Convert start-up strings of LNet's kernel module into a YAML document
    #[command(after_help = "Examples:\n  lnetctl convert 'tcp(eth0) 10.0.0.*; o2ib 10.0.0.[1-4]@tcp'\n  \
                            lnetctl convert --resolve -m /etc/modprobe.d/lustre.conf -o /etc/lnet.yaml\n\n\
                            Status: 0, 1 where there is nothing to convert, 2 for what makes no sense or cannot \
                            be read")]
    Convert(convert::ConvertArgs),
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
        directory: std::path::PathBuf,
    },
}

/// Carries out a command.
pub(crate) fn run(daemon: &mut Daemon<'_>, command: Command) -> Result<()> {
    match command {
        Command::Lnet(command) => simple::lnet(daemon, command),
        Command::Net(command) => net::run(daemon, command),
        Command::Route(command) => route::run(daemon, command),
        Command::Routing(command) => route::routing(daemon, &command),
        Command::Peer(command) => peer::run(daemon, command),
        Command::Ping(args) => ping::ping(daemon, &args),
        Command::Discover(args) => ping::discover(daemon, &args),
        Command::Explain(args) => debug::explain(daemon, &args),
        Command::Udsp(command) => udsp::run(daemon, command),
        Command::Selection(command) => selection::run(daemon, command),
        Command::Debug(command) => debug::run(daemon, command),
        Command::CptOfNid(args) => debug::cpts_of(daemon, &args),
        Command::Stats(command) => simple::stats(daemon, command),
        Command::Usage => simple::usage(daemon),
        Command::Global(command) => simple::globals(daemon, &command),
        Command::Set(args) => simple::set(daemon, &args),
        Command::Param(command) => simple::parameters(daemon, &command),
        Command::Fault(command) => fault::run(daemon, command),
        Command::Steering(command) => steering::run(daemon, command),
        Command::Capture(command) => simple::capture(daemon, command),
        Command::Frames(command) => frames::run(daemon, &command),
        Command::Load(command) => load::run(daemon, command),
        Command::Export(args) => document::export(daemon, &args),
        Command::Import(args) => document::import(daemon, &args),
        Command::Check { file } => document::check(daemon, file.as_deref()),
        Command::Watch(args) => watch::run(daemon, &args),
        Command::Top(args) => top::run(daemon, &args),
        Command::Convert(args) => convert::convert(daemon, &args),
        Command::Completions { shell } => {
            generate::completions(Cli::command(), shell);
            Ok(())
        }
        Command::Man { directory } => generate::man(Cli::command(), &directory),
    }
}

/// The names of the commands, one a line.
pub(crate) fn list() -> String {
    let cli = Cli::command();
    let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| format!("{}\n", command.get_name())).collect()
}
