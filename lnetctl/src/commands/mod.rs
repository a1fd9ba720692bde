//! What the commands do.

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

use clap::CommandFactory;
use lnet_control::request::{Batch, Change, Outcome};

use crate::cli::{CaptureCommand, Cli, Command, DropCommand, FaultCommand, LnetCommand, NetCommand};
use crate::cli::{GlobalCommand, LoadCommand, PeerCommand, StatsCommand, SteeringCommand};
use crate::failure::{CommandError, Task};
use crate::session::Daemon;

type Result<T> = std::result::Result<T, CommandError>;

/// Carries out a command.
pub(crate) fn run(daemon: &mut Daemon<'_>, command: Command) -> Result<()> {
    match command {
        Command::Lnet(LnetCommand::Configure { all, large }) => simple::configure(daemon, all, large),
        Command::Lnet(LnetCommand::Unconfigure) => simple::unconfigure(daemon),
        Command::Net(command) => match command {
            NetCommand::Add(args) => net::add(daemon, &args),
            NetCommand::Del { net, interfaces, nid } => {
                net::delete(daemon, net.as_deref(), interfaces.as_deref(), nid.as_deref())
            }
            NetCommand::Show { net, verbose } => net::show(daemon, net.as_deref(), verbose.level()),
            NetCommand::Set { nid, all, health, conns_per_peer, net, lnd_timeout } => {
                let what = net::Settings { nid, all, health, conns_per_peer, net, lnd_timeout };
                net::set(daemon, &what)
            }
        },
        Command::Peer(PeerCommand::Show { nid, verbose }) => {
            peer::show(daemon, nid.as_deref(), verbose.level())
        }
        Command::Peer(PeerCommand::List) => peer::list(daemon),
        Command::Ping(args) => peer::ping(daemon, &args),
        Command::Stats(StatsCommand::Show { .. }) => simple::statistics(daemon),
        Command::Stats(StatsCommand::Reset) => simple::reset_statistics(daemon),
        Command::Global(GlobalCommand::Show { .. }) => simple::globals(daemon),
        Command::Set(args) => simple::set(daemon, &args),
        Command::Fault(FaultCommand::Drop(command)) => match command {
            DropCommand::Add(args) => fault::add(daemon, &args),
            DropCommand::Del { source, dest, all } => {
                fault::delete(daemon, source.as_deref(), dest.as_deref(), all)
            }
            DropCommand::Reset => fault::reset(daemon),
            DropCommand::Show => fault::show(daemon),
        },
        Command::Fault(FaultCommand::Delay { .. }) => {
            Err(Task::new("add", "fault").unsupported("rules that hold messages up are").failed())
        }
        Command::Steering(SteeringCommand::Show) => steering::show(daemon),
        Command::Steering(SteeringCommand::Set { portal, policy, shard, shift, bits, table }) => {
            let words = steering::Words { policy, shard, shift, bits, table };
            steering::set(daemon, &portal, &words)
        }
        Command::Capture(CaptureCommand::Start { file, limit, frame_bytes, interfaces }) => {
            simple::start_capture(daemon, &file, &limit, frame_bytes.as_ref(), interfaces.as_deref())
        }
        Command::Capture(CaptureCommand::Stop { file }) => simple::stop_capture(daemon, &file),
        Command::Capture(CaptureCommand::Show) => simple::captures(daemon),
        Command::Frames(command) => frames::run(daemon, &command),
        Command::Load(command) => match command {
            LoadCommand::Start { role } => load::start(daemon, &role),
            LoadCommand::Show { json } => load::show(daemon, json),
            LoadCommand::Wait { id, progress, output } => load::wait(daemon, &id, &output, progress),
            LoadCommand::Stop { id, output } => load::stop(daemon, &id, &output),
        },
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

/// Makes changes, all or none.
fn apply(daemon: &mut Daemon<'_>, task: Task, changes: Vec<Change>) -> Result<Vec<Outcome>> {
    daemon.client(task)?.apply(Batch { changes, dry_run: false }).map_err(task.refused())
}
