//! Puts of application-driven nodes with checksums of payloads beside Puts without, in turns.

use std::time::Duration;

use lnet_bench::figure::{Bound, Check, Figure, beside_heading, beside_row};
use lnet_bench::link::Side;
use lnet_bench::measure;
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_user::node::Switch;
use serde::Serialize;

use super::{Cli, NAME_WIDTH, UNACKNOWLEDGED_PUT};

/// The words of `--only` for the checksums.
pub(super) const CHECKSUMS: &str = "checksums";
/// Sizes and MTUs that have bounds: of half a round trip, and of the rate.
const SMALL_BYTES: usize = 64;
const LONG: (usize, usize) = (1 << 20, 9000);

/// A figure with checksums of payloads, and without.
#[derive(Serialize)]
pub(super) struct ChecksumRow {
    size_bytes: usize,
    /// Name of the figure: half a round trip of one Put alone, or Puts a second, many at once.
    what: String,
    #[serde(skip)]
    is_time: bool,
    with: Figure,
    without: Figure,
    ratio: Figure,
}

/// Sets Puts with checksums of payloads beside Puts without.
pub(super) fn measure(cli: &Cli) -> anyhow::Result<Vec<ChecksumRow>> {
    let Cli { options, sizes, at_once, .. } = cli;
    let (link, time) = (&options.link, options.report.time(Duration::from_secs(1)));
    let pings = options.report.rounds(20_000);
    let cases = || sizes.iter().flat_map(|bytes| [true, false].map(|is_time| (*bytes, is_time)));
    let mut figures = vec![[Figure::default(), Figure::default()]; cases().count()];
    options.report.turns(|| {
        for ((bytes, is_time), figures) in cases().zip(&mut figures) {
            // A long Put is not to take the time of a hundred short ones.
            let pings = pings / (1 + bytes as u64 / 16384);
            for (figure, checksum) in figures.iter_mut().zip([Switch::On, Switch::Off]) {
                let end = |side: Side<'_>, operation, window| {
                    let config = EndConfig { operation, window, checksum, ..EndConfig::puts(bytes) };
                    messages::End::open(side, config)
                };
                figure.add(if is_time {
                    let open = |side: Side<'_>| end(side, UNACKNOWLEDGED_PUT, 4);
                    measure::ping(link, open, pings, |_| {})?.quantile(0.5) as f64 / 1000.0
                } else {
                    let open = |side: Side<'_>| end(side, Operation::Put { ack: true }, *at_once);
                    measure::flood(link, open, time)?.received_per_second()
                });
            }
        }
        Ok(())
    })?;
    let row = |((size_bytes, is_time), [with, without]): ((usize, bool), [Figure; 2])| {
        let what = if is_time { "half a round trip, us".to_owned() } else { format!("{at_once} at once/s") };
        let ratio = with.over(&without);
        ChecksumRow { size_bytes, what, is_time, with, without, ratio }
    };
    Ok(cases().zip(figures).map(row).collect())
}

/// The rows that have bounds.
pub(super) fn checks(rows: &[ChecksumRow], mtu_bytes: usize) -> impl Iterator<Item = Check> {
    rows.iter().filter_map(move |row| {
        let bound = match (row.is_time, row.size_bytes) {
            (true, SMALL_BYTES) => Bound::AtMost(1.03),
            (false, bytes) if (bytes, mtu_bytes) == LONG => Bound::AtLeast(0.93),
            _ => return None,
        };
        let name = format!("Put with checksums / without, {} bytes, {}", row.size_bytes, row.what);
        Check::new(name, row.ratio.clone(), bound)
    })
}

/// Appends the medians over the turns, and of the ratios the range as well.
pub(super) fn append_table(text: &mut String, rows: &[ChecksumRow]) {
    if rows.is_empty() {
        return;
    }
    let heading = beside_heading(NAME_WIDTH, "Put, checksums of payload", ["with", "without", "ratio"]);
    *text += &format!("\n{heading}");
    for ChecksumRow { size_bytes, what, is_time, with, without, ratio } in rows {
        let digits = if *is_time { 2 } else { 0 };
        let name = format!("{size_bytes} bytes, {what}");
        *text += &beside_row(NAME_WIDTH, &name, [(with, digits), (without, digits), (ratio, 3)]);
    }
}
