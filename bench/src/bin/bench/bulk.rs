//! What long Puts and Gets carry beside a flood of raw `AF_XDP` frames as long as the link takes them: all
//! measured in one run, in turns, over one veth pair, with and without loss.
//!
//! `cargo xtask bench --bulk` makes the namespaces and calls this.

use std::time::Duration;

use clap::Args;
use lnet_bench::link::Side;
use lnet_bench::measure::{self, Flood};
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::{Options, Setup};
use lnet_bench::raw;
use serde::Serialize;

/// Measures long Puts and Gets beside a raw AF_XDP flood over one veth pair.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --bulk   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// Frames of a hundred that the lossy rounds lose, at each end.
    #[arg(long, default_value_t = 1.0)]
    loss: f64,
}

/// Messages that are under way at once.
const WINDOW: usize = 8;
const ETHERNET_BYTES: usize = 14;

#[derive(Serialize)]
struct Row {
    name: String,
    gbit_per_second: f64,
    /// Over raw for what was sent without loss out of ordinary memory, else over that.
    ratio: f64,
    /// What the ratio should be at least.
    aim: f64,
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    loss_percent: f64,
    raw_gbit_per_second: f64,
    rows: Vec<Row>,
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(Cli { options, loss }: Cli) -> anyhow::Result<()> {
    let (link, time) = (&options.link, options.time(Duration::from_secs(2)));
    let (put, get) = (Operation::Put { ack: true }, Operation::Get);
    // What is sent, how much of it is lost, and whether it lies in registered memory.
    let kinds = [
        ("Put".to_owned(), put, 0.0, false),
        ("Get".to_owned(), get, 0.0, false),
        (format!("Put, {loss} % lost"), put, loss, false),
        (format!("Get, {loss} % lost"), get, loss, false),
        ("Put, registered".to_owned(), put, 0.0, true),
        ("Get, registered".to_owned(), get, 0.0, true),
    ];
    let frame_bytes = link.mtu + ETHERNET_BYTES;
    let (mut raw, mut floods) = (Flood::default(), [Flood::default(); 6]);
    options.turns(|| {
        raw.add(measure::flood(link, |side: Side<'_>| raw::End::open(side, frame_bytes), time)?);
        for ((_, operation, loss, registered), flood) in kinds.iter().zip(&mut floods) {
            let config = EndConfig {
                operation: *operation,
                window: WINDOW,
                buffers: WINDOW,
                registered: *registered,
                loss_per_million: (loss * 10_000.0) as u32,
                ..EndConfig::puts(options.size)
            };
            let messages = measure::flood(link, |side: Side<'_>| messages::End::open(side, config), time)?;
            // A message counts when it was answered.
            flood.add(Flood { received: messages.sent, ..messages });
        }
        Ok(())
    })?;
    let raw = raw.gbit_per_second(frame_bytes);
    let rates = floods.map(|flood| flood.gbit_per_second(options.size));
    let bases = [raw, raw, rates[0], rates[1], rates[0], rates[1]];
    let aims = [0.6, 0.6, 0.85, 0.85, 1.0, 1.0];
    let rows = kinds.iter().enumerate().map(|(index, (name, ..))| Row {
        name: name.clone(),
        gbit_per_second: rates[index],
        ratio: rates[index] / bases[index],
        aim: aims[index],
    });
    let rows = rows.collect();
    let document = Document { setup: options.setup(), loss_percent: loss, raw_gbit_per_second: raw, rows };
    options.tell("bulk.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document) -> String {
    let Setup { machine, mode, mtu_bytes, size_bytes } = &document.setup;
    let mut text = format!(
        "{machine}\n\nmessages of {size_bytes} bytes, MTU {mtu_bytes}, mode {mode}\n\
         {:<18}{:>10}{:>10}{:>10}\n{:<18}{:>10.2}\n",
        "", "Gbit/s", "ratio", "aim", "raw AF_XDP", document.raw_gbit_per_second,
    );
    for row in &document.rows {
        text +=
            &format!("{:<18}{:>10.2}{:>10.2}{:>10.2}\n", row.name, row.gbit_per_second, row.ratio, row.aim);
    }
    text + "\nratio: of the first two over raw, of the others over the same without loss out of ordinary memory"
}
