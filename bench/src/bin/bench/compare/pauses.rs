//! Half round trips of small Puts between ends that sleep, back to back and with pauses in between, beside
//! sockets that sleep.

use std::fmt::Write as _;
use std::time::Duration;

use lnet_bench::figure::Figure;
use lnet_bench::link::{Link, Side};
use lnet_bench::measure;
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::others::{Other, Protocol, sockperf_with_pauses};
use lnet_bench::sockets;
use lnet_bench::threaded::{self, ThreadedConfig};
use lnet_load::Distribution;
use serde::Serialize;

use super::{Cli, NAME_WIDTH};

/// The words of `--only` for the pauses.
pub(super) const PAUSES: &str = "pauses";
/// Payload bytes of a message.
const BYTES: usize = 64;
/// Puts that may be under way: one, and its events.
const WINDOW: usize = 4;
/// Lengths of pauses, and how many there are in a turn.
const LENGTHS: [(Duration, u64); 3] =
    [(Duration::ZERO, 5000), (Duration::from_millis(1), 400), (Duration::from_millis(50), 20)];
const SUBJECTS: [(&str, Subject); 5] = [
    ("application-driven, sleeps", Subject::Driven),
    ("threaded", Subject::Threaded { sleeps: false }),
    ("threaded, sleeps at once", Subject::Threaded { sleeps: true }),
    ("UDP sockets that sleep", Subject::Sockets),
    ("sockperf that sleeps, UDP", Subject::Sockperf),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Subject {
    Driven,
    Threaded { sleeps: bool },
    Sockets,
    Sockperf,
}

/// Small messages with pauses in between, in which both ends sleep.
#[derive(Serialize)]
pub(super) struct PauseRow {
    name: &'static str,
    pause_us: u64,
    /// Microseconds of half a round trip, by its quantiles in each turn.
    p50_us: Figure,
    p99_us: Figure,
}

impl Subject {
    /// The p50 and p99 of a turn; `None` where it is not installed.
    fn measure(self, link: &Link, pings: (u64, Duration)) -> anyhow::Result<Option<[f64; 2]>> {
        let operation = Operation::Put { ack: false };
        let quantiles =
            |half_ns: Distribution| [0.5, 0.99].map(|share| half_ns.quantile(share) as f64 / 1000.0);
        let half_ns = match self {
            Self::Driven => {
                let config = EndConfig { operation, sleeps: true, ..EndConfig::puts(BYTES) };
                let open = |side: Side<'_>| messages::End::open(side, config);
                measure::ping_with_pauses(link, open, pings, |_| {})?
            }
            Self::Threaded { sleeps } => {
                let config = ThreadedConfig { sleeps, ..ThreadedConfig::new(operation, BYTES, WINDOW) };
                let open = |side: Side<'_>| threaded::End::open(side, config);
                measure::ping_with_pauses(link, open, pings, |_| {})?
            }
            Self::Sockets => sockets::ping(link, Protocol::Udp, (false, BYTES), pings)?,
            Self::Sockperf if !(Other::Sockperf { polls: false }).is_installed() => return Ok(None),
            Self::Sockperf => {
                return sockperf_with_pauses(link, BYTES, pings.1, Duration::from_secs(1)).map(Some);
            }
        };
        Ok(Some(quantiles(half_ns)))
    }
}

pub(super) fn measure(cli: &Cli) -> anyhow::Result<Vec<PauseRow>> {
    let (link, report) = (&cli.options.link, &cli.options.report);
    eprintln!("pauses");
    let row = |name, pause: Duration| PauseRow {
        name,
        pause_us: pause.as_micros() as u64,
        p50_us: Figure::default(),
        p99_us: Figure::default(),
    };
    let cases = || LENGTHS.into_iter().flat_map(|length| SUBJECTS.map(|subject| (length, subject)));
    let mut rows: Vec<_> = cases().map(|((pause, _), (name, _))| row(name, pause)).collect();
    report.turns(|| {
        for (((pause, count), (name, subject)), row) in cases().zip(&mut rows) {
            let found = match subject.measure(link, (report.rounds(count).max(10), pause)) {
                Err(error) if subject == Subject::Sockperf => {
                    eprintln!("{name}: {error:#}");
                    None
                }
                found => found?,
            };
            row.p50_us.add(found.map(|[p50, _]| p50));
            row.p99_us.add(found.map(|[_, p99]| p99));
        }
        Ok(())
    })?;
    Ok(rows)
}

/// Appends the medians and ranges.
pub(super) fn append_table(text: &mut String, rows: &[PauseRow]) {
    if rows.is_empty() {
        return;
    }
    let name = format!("{BYTES} bytes, ends that sleep");
    let _ = writeln!(
        text,
        "\n{name:<NAME_WIDTH$}{:>10}{:>10}{:>20}{:>10}{:>20}",
        "pause us", "p50 us", "(range)", "p99 us", "(range)"
    );
    for PauseRow { name, pause_us, p50_us, p99_us } in rows {
        let [p50, p99] = [p50_us, p99_us].map(|of| (of.cell(1), of.range_cell(1)));
        let _ = writeln!(
            text,
            "{name:<NAME_WIDTH$}{pause_us:>10}{:>10}{:>20}{:>10}{:>20}",
            p50.0, p50.1, p99.0, p99.1
        );
    }
    *text += "pause: half a round trip after a pause, in which both ends have slept; sockperf's client polls the \
              clock in it\n";
}
