//! Puts and Gets of application-driven and of threaded nodes beside raw `AF_XDP` frames, beside bare sockets
//! and beside what other programs find on the same link, for three sizes, one message alone and many at once;
//! bulk data of LNet selftest, 8 transfers at once; messages between ends that sleep; and Puts with and
//! without checksums of payloads: all in turns, in one run, over one veth pair.
//!
//! `cargo xtask bench --compare` makes the namespaces and calls this.

mod checks;
mod checksums;
mod pauses;
mod subjects;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::Args;
use lnet_bench::figure::{Check, Figure, checks_table};
use lnet_bench::measure::gigabits;
use lnet_bench::messages::Operation;
use lnet_bench::options::{Options, Setup};
use lnet_bench::others::{Found, Other};
use lnet_wire::NetType;
use serde::Serialize;

use checksums::{CHECKSUMS, ChecksumRow};
use pauses::{PAUSES, PauseRow};
use subjects::subjects;

/// Compares Puts and Gets with raw AF_XDP and with other programs over one veth pair.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: cargo xtask bench --compare   (makes the namespaces and the veth pair, then calls this)"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    options: Options,
    /// Payload bytes to measure with.
    #[arg(long, value_delimiter = ',', default_value = "64,4096,1048576")]
    sizes: Vec<usize>,
    /// Messages that are under way at once.
    #[arg(long, default_value_t = 64)]
    at_once: usize,
    /// Rows whose names have one of these words in them; `pauses` and `checksums` are the tables of these.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    only: Vec<String>,
}

impl Cli {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|words| name.contains(words))
    }
}

/// The Put that is over with its SEND.
const UNACKNOWLEDGED_PUT: Operation = Operation::Put { ack: false };
/// Rows over which ratios are: the first that was measured.
const BASES: [&str; 2] = ["Put, application-driven", "iperf3, TCP"];
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Columns of a row's name.
const NAME_WIDTH: usize = 40;

#[derive(Serialize)]
struct Row {
    name: String,
    size_bytes: usize,
    /// Microseconds of one message alone, until its initiator knows that it is over: of a Put without ACK,
    /// that it was sent.
    alone_us: Figure,
    /// Messages a second, many at once; of LNet selftest 8 transfers; of other programs, as they stream.
    per_second: Figure,
}

impl Row {
    fn new(name: String, size_bytes: usize) -> Self {
        Self { name, size_bytes, alone_us: Figure::default(), per_second: Figure::default() }
    }

    fn add(&mut self, Found { round_trip_us, per_second }: Found) {
        self.alone_us.add(round_trip_us);
        self.per_second.add(per_second);
    }
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    /// The net that nodes are on.
    net: String,
    /// Congestion control of TCP, in the namespace of the initiator.
    congestion_control: String,
    at_once: usize,
    rows: Vec<Row>,
    pauses: Vec<PauseRow>,
    checksums: Vec<ChecksumRow>,
    checks: Vec<Check>,
    /// Debian packages of the programs that were not there.
    not_installed: BTreeSet<&'static str>,
}

/// The rows of one size: all subjects once a turn, so that noise of the machine meets all. Another program
/// that fails has no figure in that turn.
fn rows(cli: &Cli, bytes: usize, not_installed: &mut BTreeSet<&'static str>) -> anyhow::Result<Vec<Row>> {
    let subjects = subjects(cli, bytes, not_installed);
    let mut rows: Vec<_> = subjects.iter().map(|(name, _)| Row::new(name.clone(), bytes)).collect();
    if subjects.is_empty() {
        return Ok(rows);
    }
    eprintln!("{bytes} bytes");
    cli.options.report.turns(|| {
        for (row, (name, measure)) in rows.iter_mut().zip(&subjects) {
            match measure() {
                Ok(found) => row.add(found),
                Err(error) if Other::POLLING.iter().any(|other| other.name() == name) => {
                    eprintln!("{name}: {error:#}");
                    row.add(Found::default());
                }
                Err(error) => return Err(error.context(name.clone())),
            }
        }
        Ok(())
    })?;
    Ok(rows)
}

/// Measures, and tells what came of it.
///
/// # Errors
/// Says what failed.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { options, at_once, .. } = &cli;
    let (link, mut rows, mut not_installed) = (&options.link, Vec::new(), BTreeSet::new());
    for bytes in &cli.sizes {
        rows.extend(self::rows(&cli, *bytes, &mut not_installed)?);
    }
    let net = link.nid_a.net().net_type();
    let pauses = if cli.wants(PAUSES) { pauses::measure(&cli)? } else { Vec::new() };
    let has_checksums = net == NetType::XDP && cli.wants(CHECKSUMS);
    let checksums = if has_checksums { checksums::measure(&cli)? } else { Vec::new() };
    let here = || Ok(std::fs::read_to_string(CONGESTION_CONTROL)?.trim().to_owned());
    let ready = |is_ready: &dyn Fn(), _: &_| {
        is_ready();
        Ok(())
    };
    let mut checks = checks::of(&rows, net, link.mtu);
    checks.extend(checksums::checks(&checksums, link.mtu));
    let document = Document {
        congestion_control: link.pair(ready, here)?,
        setup: options.setup(),
        net: link.nid_a.net().to_string(),
        at_once: *at_once,
        rows,
        pauses,
        checksums,
        checks,
        not_installed,
    };
    options.report.tell("compare.json", &document, &table(&document))?;
    Ok(())
}

fn table(document: &Document) -> String {
    let Setup { machine, mtu_bytes, .. } = &document.setup;
    let (modes, net) = (document.setup.modes(), &document.net);
    let mut text =
        format!("{machine}\n\nnet {net}, MTU {mtu_bytes}{modes}, TCP with {}\n", document.congestion_control);
    let mut size_bytes = None;
    for row in &document.rows {
        if size_bytes.replace(row.size_bytes) != Some(row.size_bytes) {
            let _ = writeln!(
                text,
                "\n{:<NAME_WIDTH$}{:>10}{:>20}{:>8}{:>14}{:>24}{:>8}{:>9}",
                format!("{} bytes", row.size_bytes),
                "alone us",
                "(range)",
                "ratio",
                format!("{} at once/s", document.at_once),
                "(range)",
                "ratio",
                "Gbit/s"
            );
        }
        let named = |name: &&str| {
            let is_it = |other: &&Row| other.size_bytes == row.size_bytes && other.name == *name;
            document.rows.iter().find(is_it)
        };
        let base = BASES.iter().find_map(named);
        let ratio = |of: fn(&Row) -> &Figure| base.map(|base| of(row).over(of(base))).unwrap_or_default();
        let _ = writeln!(
            text,
            "{:<NAME_WIDTH$}{:>10}{:>20}{:>8}{:>14}{:>24}{:>8}{:>9}",
            row.name,
            row.alone_us.cell(1),
            row.alone_us.range_cell(1),
            ratio(|row| &row.alone_us).cell(2),
            row.per_second.cell(0),
            row.per_second.range_cell(0),
            ratio(|row| &row.per_second).cell(2),
            row.per_second.map(|rate| gigabits(rate, row.size_bytes)).cell(2),
        );
    }
    pauses::append_table(&mut text, &document.pauses);
    checksums::append_table(&mut text, &document.checksums);
    text += &checks_table(&document.checks);
    text += "\nalone: one message from its start until its initiator knows that it is over (a Put by its ACK, one without ACK by its SEND), or a round trip; \
             a transfer of LNet selftest (lst) is bulk data between a request and its answer, of threaded nodes; \
             figures are the medians of the turns, each of which has all rows of a size; ratios, too: over the Put of application-driven nodes, without one over iperf3. \
             Rates are those of messages that arrived or were answered, of sockperf those of what was sent. Threaded nodes are as a program has them that says nothing, and put out of one \
             descriptor; Gets of application-driven nodes have a descriptor each. A frame cannot hold what is longer than the MTU: \
             raw is a flood of full ones then.";
    if !document.not_installed.is_empty() {
        let packages: Vec<_> = document.not_installed.iter().copied().collect();
        let _ = write!(text, "\nnot installed: apt-get install {}", packages.join(" "));
    }
    text
}
