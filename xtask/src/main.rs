//! Project automation: `cargo xtask <verb>`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod build_ebpf;
mod setup;

/// Project automation.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Finds or installs what the XDP program and the privileged tests need
    Setup,
    /// Builds the XDP program into target/bpf
    BuildEbpf,
}

fn main() -> ExitCode {
    match run(&Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: &Verb) -> anyhow::Result<()> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let root = root.canonicalize()?;
    match verb {
        Verb::Setup => {
            setup::ensure(&root)?;
            setup::ensure_test_tools()
        }
        Verb::BuildEbpf => {
            let objects = build_ebpf::build(&root, &setup::ensure(&root)?)?;
            println!("{}\n{}", objects.default.display(), objects.log.display());
            Ok(())
        }
    }
}
