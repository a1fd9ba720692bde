//! Project automation: `cargo xtask <verb>`.

mod bare;
mod bench;
mod build_ebpf;
mod cards;
mod cargo;
mod deny;
mod dist;
mod fuzz;
mod interop;
mod levels;
mod package;
mod run;
mod setup;
mod sim;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use xtask::command::say;

/// Project automation.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,

    /// The workspace to work on instead of the one that this program was built in
    #[arg(long, global = true, hide = true, value_name = "PATH")]
    root: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Find or install what the XDP program, the privileged tests and virtual machines need
    Setup,
    /// Build the XDP program into lnet-xdp/linux/bpf
    BuildEbpf,
    /// Run two nodes over veth in two network namespaces, measure and judge (needs root)
    Run(run::Options),
    /// Measure Puts beside raw AF_XDP over veth between two network namespaces (needs root)
    Bench(bench::Options),
    /// Simulate whole nodes over a fabric that harms frames, or over streams that break
    Sim(sim::Options),
    /// Look for input that breaks the codecs, the steering, the shard, the protocols, documents or requests
    Fuzz(fuzz::Options),
    /// Play captures of kernel nodes; with a lab, run our daemon with kernel nodes in virtual machines, and
    /// report
    Interop(interop::Options),
    /// Run two daemons in virtual machines with other kernels and models of NICs, and report (needs root)
    Cards(cards::Options),
    /// Lay out what is to be installed: programs, man pages, completions, a systemd unit
    Dist(dist::Options),
    /// Make a package for Debian, lnet-userspace, with cargo-deb
    Package(package::Options),
    /// Remove what `run --keep` kept and what killed runs left (needs root)
    Clean,
    /// Check format, lints, documentation and house rules, and run all tests that this machine can
    Test(levels::Options),
    /// Check the house rules
    Tidy {
        /// Print how many lines of code each crate has instead
        #[arg(long)]
        size: bool,
    },
    /// Check the dependencies' licences, sources and duplicates with cargo-deny
    Deny {
        /// Check for security advisories as well; fetches their database by git
        #[arg(long)]
        advisories: bool,
    },
}

fn main() -> ExitCode {
    match dispatch(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {error:#}"));
            let signal = error.downcast_ref::<run::Interrupted>().map(|interrupted| interrupted.signal);
            // Shells report 128 and the signal's number.
            ExitCode::from(signal.and_then(|signal| u8::try_from(128 + signal).ok()).unwrap_or(1))
        }
    }
}

fn dispatch(cli: Cli) -> Result<()> {
    let root = cli.root.map_or_else(root, Ok)?;
    match cli.verb {
        Verb::Setup => {
            setup::ensure(&root)?;
            setup::ensure_test_tools()?;
            package::ensure_tools(&root)?;
            cards::fetch()
        }
        Verb::BuildEbpf => {
            let objects = build_ebpf::build(&root, &setup::ensure(&root)?)?;
            objects.iter().for_each(|object| println!("{}", object.display()));
            Ok(())
        }
        Verb::Run(options) => run::run(&root, &options),
        Verb::Bench(options) => bench::bench(&root, &options),
        Verb::Sim(options) => sim::sim(&root, &options),
        Verb::Fuzz(options) => fuzz::fuzz(&root, &options).map(drop),
        Verb::Interop(options) => interop::interop(&root, &options),
        Verb::Cards(options) => cards::cards(&root, &options),
        Verb::Dist(options) => dist::dist(&root, &options),
        Verb::Package(options) => package::package(&root, &options),
        Verb::Clean => run::clean(&root),
        Verb::Test(options) => levels::test(&root, options),
        Verb::Tidy { size: true } => {
            print!("{}", tidy::size(&root)?);
            Ok(())
        }
        Verb::Tidy { size: false } => {
            let files = tidy::tidy(&root)?;
            say(format_args!("{files} files keep the house rules"));
            Ok(())
        }
        Verb::Deny { advisories } => deny::deny(&root, advisories),
    }
}

/// The workspace's root.
fn root() -> Result<PathBuf> {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().map(Path::to_path_buf).context("the workspace's root")
}
