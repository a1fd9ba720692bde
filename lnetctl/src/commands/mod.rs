//! The commands: each module has the words of some and what they do.

mod document;
mod fault;
mod frames;
mod generate;
mod load;
mod net;
mod peer;
mod plot;
mod simple;
mod steering;

use clap::{CommandFactory, Subcommand};

use crate::cli::Cli;
use crate::failure::CommandError;
use crate::session::Daemon;

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
    /// Peers
    #[command(subcommand, arg_required_else_help = true)]
    Peer(peer::PeerCommand),
    /// Ping peers
    #[command(
        after_help = "Examples:\n  lnetctl ping 10.0.0.2@xdp\n  lnetctl ping --timeout 2 10.0.[0-1].[1-9]@tcp"
    )]
    Ping(peer::PingArgs),
    /// Counters of the node
    #[command(subcommand, arg_required_else_help = true)]
    Stats(simple::StatsCommand),
    /// Global tunables
    #[command(subcommand, arg_required_else_help = true)]
    Global(simple::GlobalCommand),
    /// Set a global tunable
    #[command(
        arg_required_else_help = true,
        after_help = "Examples:\n  lnetctl set transaction_timeout 60\n  lnetctl set response_tracking 0"
    )]
    Set(simple::SetArgs),
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
        Command::Peer(command) => peer::run(daemon, command),
        Command::Ping(args) => peer::ping(daemon, &args),
        Command::Stats(command) => simple::stats(daemon, command),
        Command::Global(simple::GlobalCommand::Show { .. }) => simple::globals(daemon),
        Command::Set(args) => simple::set(daemon, &args),
        Command::Fault(command) => fault::run(daemon, command),
        Command::Steering(command) => steering::run(daemon, command),
        Command::Capture(command) => simple::capture(daemon, command),
        Command::Frames(command) => frames::run(daemon, &command),
        Command::Load(command) => load::run(daemon, command),
        Command::Export(args) => document::export(daemon, &args),
        Command::Import(args) => document::import(daemon, &args),
        Command::Completions { shell } => generate::completions(shell),
        Command::Man { directory } => generate::man(&directory),
    }
}

/// The names of the commands, one a line.
pub(crate) fn list() -> String {
    let cli = Cli::command();
    let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| format!("{}\n", command.get_name())).collect()
}
