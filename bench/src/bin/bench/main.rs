//! Benches, each with its baseline beside it. `cargo xtask bench` makes what they need, and calls this.

mod awaits;
mod bulk;
mod compare;
mod idle;
mod match_cost;
mod messaging;
mod path_cost;
mod peers;
mod posted;
mod rails;
mod reactors;
mod routed;
mod shards;
mod sweep;
mod xdp;

use clap::{Parser, Subcommand};

/// Measures nodes beside their baselines.
#[derive(Debug, Parser)]
#[command(
    after_help = "Example: cargo xtask bench --compare   (makes the namespaces and the veth pair, then calls this)"
)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    Awaits(awaits::Cli),
    Bulk(bulk::Cli),
    Compare(compare::Cli),
    Idle(idle::Cli),
    MatchCost(match_cost::Cli),
    Messaging(messaging::Cli),
    PathCost(path_cost::Cli),
    Peers(peers::Cli),
    Posted(posted::Cli),
    Rails(rails::Cli),
    Reactors(reactors::Cli),
    Routed(routed::Cli),
    Shards(shards::Cli),
    Sweep(sweep::Cli),
    Xdp(xdp::Cli),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().bench {
        Bench::Awaits(cli) => awaits::run(cli),
        Bench::Bulk(cli) => bulk::run(cli),
        Bench::Compare(cli) => compare::run(cli),
        Bench::Idle(cli) => idle::run(cli),
        Bench::MatchCost(cli) => match_cost::run(cli),
        Bench::Messaging(cli) => messaging::run(cli),
        Bench::PathCost(cli) => path_cost::run(cli),
        Bench::Peers(cli) => peers::run(cli),
        Bench::Posted(cli) => posted::run(cli),
        Bench::Rails(cli) => rails::run(cli),
        Bench::Reactors(cli) => reactors::run(cli),
        Bench::Routed(cli) => routed::run(cli),
        Bench::Shards(cli) => shards::run(cli),
        Bench::Sweep(cli) => sweep::run(cli),
        Bench::Xdp(cli) => xdp::run(cli),
    }
}
