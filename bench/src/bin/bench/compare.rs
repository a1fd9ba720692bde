//! Puts and Gets of application-driven and of threaded nodes beside raw `AF_XDP` frames and beside what other
//! programs find on the same link, for three sizes, one message alone and many at once; bulk data of LNet
//! selftest, 8 transfers at once; and Puts with and without checksums of payloads, in turns: all in one run,
//! over one veth pair.
//!
//! `cargo xtask bench --compare` makes the namespaces and calls this.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use lnet_bench::link::{Link, Side};
use lnet_bench::measure::{self, Endpoint, Flood};
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::options::{Options, Setup};
use lnet_bench::others::{Found, Other};
use lnet_bench::{raw, segments, selftest, threaded};
use lnet_load::Distribution;
use lnet_user::api::Threads;
use lnet_user::node::{Carrier, NiConfig, Switch, XdpMode};
use lnet_user::runtime::Idle;
use lnet_wire::NetType;
use serde::Serialize;

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
    /// Rows whose names have one of these words in them, and no pauses; `checksums` is the table of these.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    only: Vec<String>,
}

impl Cli {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|words| name.contains(words))
    }
}

/// Transfers of LNet selftest that are under way at once.
const CONCURRENCY: u32 = 8;
const ETHERNET_BYTES: usize = 14;
const KINDS: [(&str, Operation); 3] =
    [("Put", Operation::Put { ack: true }), (UNACKNOWLEDGED, UNACKNOWLEDGED_PUT), ("Get", Operation::Get)];
/// The Put that is over with its SEND, and its payload bytes: a longer one takes as long as its payload, with
/// an ACK or without.
const UNACKNOWLEDGED: &str = "Put without ACK";
const UNACKNOWLEDGED_PUT: Operation = Operation::Put { ack: false };
const UNACKNOWLEDGED_BYTES: usize = 64;
/// The size beside which it stands how soon entries are posted: buffers of a byte each.
const POSTING_BYTES: usize = 64;
/// The row of what a link carries at most by datagrams of the kernel.
const LIMIT: &str = "physical limit, segmented datagrams";
/// Ways of frames of threaded nodes on an xdp net, besides the one that they choose.
const WAYS: [(&str, XdpMode, Carrier); 2] = [
    ("threaded, over sockets", XdpMode::Socket, Carrier::Auto),
    ("threaded, by rings alone", XdpMode::Auto, Carrier::Rings),
];
/// Rows over which ratios are: the first that was measured.
const BASES: [&str; 2] = ["Put, application-driven", "iperf3, TCP"];
const CONGESTION_CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
/// Columns of a row's name.
const NAME_WIDTH: usize = 36;

#[derive(Serialize)]
struct Row {
    name: String,
    size_bytes: usize,
    /// Microseconds of one message alone, until its initiator knows that it is over: of a Put without ACK,
    /// that it was sent. One of each turn, sorted.
    alone_us: Vec<f64>,
    /// Messages a second, many at once; of LNet selftest 8 transfers; of other programs, as they stream. One
    /// of each turn, sorted.
    per_second: Vec<f64>,
}

impl Row {
    fn new(name: String, size_bytes: usize) -> Self {
        Self { name, size_bytes, alone_us: Vec::new(), per_second: Vec::new() }
    }

    fn add(&mut self, Found { round_trip_us, per_second }: Found) {
        let both = [(&mut self.alone_us, round_trip_us), (&mut self.per_second, per_second)];
        for (turns, found) in both {
            turns.extend(found);
            turns.sort_by(f64::total_cmp);
        }
    }
}

/// The median of figures that are sorted.
fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

/// A way to send messages of a size, and its name.
type Subject<'a> = (String, Box<dyn Fn() -> anyhow::Result<Found> + 'a>);

/// Small Puts with pauses in between, in which both ends sleep.
#[derive(Serialize)]
struct PauseRow {
    name: &'static str,
    pause_us: u64,
    /// Microseconds of half a round trip.
    p50_us: f64,
    p99_us: f64,
}

/// Puts with and without checksums of payloads, of application-driven nodes. Each turn has both.
#[derive(Serialize)]
struct ChecksumRow {
    size_bytes: usize,
    /// Half a round trip of one Put alone, p50.
    half_us: Vec<WithAndWithout>,
    /// Puts a second, many at once.
    per_second: Vec<WithAndWithout>,
}

/// Both figures of a turn.
#[derive(Clone, Copy, Serialize)]
struct WithAndWithout {
    with: f64,
    without: f64,
}

/// The words of `--only` for the checksums.
const CHECKSUMS: &str = "checksums";

/// Payload bytes of a Put with pauses.
const PAUSE_BYTES: usize = 64;
/// How long pauses take, and how many there are.
const PAUSES: [(Duration, u64); 2] = [(Duration::from_millis(1), 2000), (Duration::from_millis(50), 60)];

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    setup: Setup,
    /// Congestion control of TCP, in the namespace of the initiator.
    congestion_control: String,
    at_once: usize,
    rows: Vec<Row>,
    pauses: Vec<PauseRow>,
    checksums: Vec<ChecksumRow>,
    /// Debian packages of the programs that were not there.
    not_installed: BTreeSet<&'static str>,
}

/// Times a message alone, and counts with the window full.
fn messages<E: Endpoint>(
    link: &Link,
    time: Duration,
    at_once: usize,
    open: impl Fn(Side<'_>, usize) -> anyhow::Result<E> + Sync,
) -> anyhow::Result<Found> {
    let per_second = |window| {
        let flood = measure::flood(link, |side: Side<'_>| open(side, window), time)?;
        anyhow::Ok(flood.sent_per_second())
    };
    Ok(Found { round_trip_us: Some(1e6 / per_second(1)?), per_second: Some(per_second(at_once)?) })
}

/// Times a transfer of LNet selftest alone, and counts them 8 at once.
fn transfers(link: &Link, time: Duration, is_write: bool, bytes: usize) -> anyhow::Result<Found> {
    let per_second = |concurrency| selftest::brw(link, is_write, bytes, concurrency, time);
    Ok(Found { round_trip_us: Some(1e6 / per_second(1)?), per_second: Some(per_second(CONCURRENCY)?) })
}

/// Segmented datagrams of the kernel with one copy a side, for messages that a datagram does not hold.
fn limit(link: &Link, bytes: usize, time: Duration) -> anyhow::Result<Found> {
    let flood = segments::flood(link, bytes, time)?;
    Ok(Found { round_trip_us: None, per_second: Some(flood.received_per_second()) })
}

/// Frames of that payload; of more than a frame takes, what full ones carry.
fn frames(link: &Link, bytes: usize, time: Duration, pings: u64) -> anyhow::Result<Found> {
    let full_bytes = link.mtu + ETHERNET_BYTES;
    let frame_bytes = (raw::HEADERS_BYTES + bytes).min(full_bytes);
    let open = |side: Side<'_>| raw::End::open(side, frame_bytes);
    let is_whole = frame_bytes < full_bytes;
    let flood: Flood = measure::flood(link, open, time)?;
    let share = if is_whole { 1.0 } else { full_bytes as f64 / bytes as f64 };
    let half_ns =
        if is_whole { Some(measure::ping(link, open, pings, |_| {})?.histogram().mean()) } else { None };
    Ok(Found {
        round_trip_us: half_ns.map(|half| 2.0 * half / 1000.0),
        per_second: Some(flood.received_per_second() * share),
    })
}

/// Half round trips with pauses, of all kinds of nodes.
fn pauses(link: &Link, quick: bool) -> anyhow::Result<Vec<PauseRow>> {
    eprintln!("pauses");
    const WINDOW: usize = 4;
    let operation = Operation::Put { ack: false };
    let mut rows = Vec::new();
    for (pause, count) in PAUSES {
        let pings = (if quick { count / 10 } else { count }, pause);
        let mut add = |name, half_ns: &Distribution| {
            let us = |quantile| half_ns.quantile(quantile) as f64 / 1000.0;
            rows.push(PauseRow {
                name,
                pause_us: pause.as_micros() as u64,
                p50_us: us(0.5),
                p99_us: us(0.99),
            });
        };
        let config = EndConfig { operation, sleeps: true, ..EndConfig::puts(PAUSE_BYTES) };
        let open = |side: Side<'_>| messages::End::open(side, config);
        add("application-driven, sleeps", &measure::ping_with_pauses(link, open, pings, |_| {})?);
        for (name, threads) in [
            ("threaded", Threads::new()),
            ("threaded, sleeps at once", Threads::new().idle(Idle::new(Duration::ZERO))),
        ] {
            let open =
                |side: Side<'_>| threaded::End::open_on(side, operation, (PAUSE_BYTES, WINDOW), &threads);
            add(name, &measure::ping_with_pauses(link, open, pings, |_| {})?);
        }
    }
    Ok(rows)
}

/// Sets Puts with checksums of payloads beside Puts without.
fn checksums(cli: &Cli) -> anyhow::Result<Vec<ChecksumRow>> {
    let Cli { options, sizes, at_once, .. } = cli;
    let (link, time) = (&options.link, options.time(Duration::from_secs(1)));
    let pings = if options.quick { 2_000 } else { 20_000 };
    let row = |bytes: &usize| ChecksumRow { size_bytes: *bytes, half_us: vec![], per_second: vec![] };
    let mut rows: Vec<_> = sizes.iter().map(row).collect();
    options.turns(|| {
        for row in &mut rows {
            let bytes = row.size_bytes;
            // A long Put is not to take the time of a hundred short ones.
            let pings = pings / (1 + bytes as u64 / 16384);
            let end = |side: Side<'_>, operation, window, checksum| {
                let config = EndConfig { operation, window, checksum, ..EndConfig::puts(bytes) };
                messages::End::open(side, config)
            };
            let half_us = |checksum| {
                let open = |side: Side<'_>| end(side, UNACKNOWLEDGED_PUT, 4, checksum);
                anyhow::Ok(measure::ping(link, open, pings, |_| {})?.quantile(0.5) as f64 / 1000.0)
            };
            let per_second = |checksum| {
                let open = |side: Side<'_>| end(side, Operation::Put { ack: true }, *at_once, checksum);
                anyhow::Ok(measure::flood(link, open, time)?.received_per_second())
            };
            row.half_us.push(WithAndWithout { with: half_us(Switch::On)?, without: half_us(Switch::Off)? });
            row.per_second
                .push(WithAndWithout { with: per_second(Switch::On)?, without: per_second(Switch::Off)? });
        }
        Ok(())
    })?;
    Ok(rows)
}

/// The ways to send messages of one size that are asked for and can be had.
fn subjects<'a>(cli: &'a Cli, bytes: usize, not_installed: &mut BTreeSet<&'static str>) -> Vec<Subject<'a>> {
    let Cli { options, at_once, .. } = cli;
    let (link, time, at_once) = (&options.link, options.time(Duration::from_secs(1)), *at_once);
    let pings = if options.quick { 2_000 } else { 20_000 };
    let mut subjects: Vec<Subject<'a>> = Vec::new();
    let is_xdp = link.nid_a.net().net_type() == NetType::XDP;
    subjects.push(("raw AF_XDP".to_owned(), Box::new(move || frames(link, bytes, time, pings))));
    if bytes >= link.mtu {
        subjects.push((LIMIT.to_owned(), Box::new(move || limit(link, bytes, time))));
    }
    for (name, operation) in KINDS {
        if operation == UNACKNOWLEDGED_PUT && bytes != UNACKNOWLEDGED_BYTES {
            continue;
        }
        let config = EndConfig { operation, ..EndConfig::puts(bytes) };
        let open = move |side: Side<'_>, window| messages::End::open(side, EndConfig { window, ..config });
        let measure = move || messages(link, time, at_once, open);
        subjects.push((format!("{name}, application-driven"), Box::new(measure)));
        let open = move |side: Side<'_>, window| threaded::End::open(side, operation, bytes, window);
        subjects.push((format!("{name}, threaded"), Box::new(move || messages(link, time, at_once, open))));
        if operation == Operation::Get {
            let open = move |side: Side<'_>, window| open(side, window)?.spread(window);
            let measure = move || messages(link, time, at_once, open);
            subjects.push((format!("{name}, threaded, a descriptor each"), Box::new(measure)));
        }
        // A short message goes by the rings in any case.
        let is_other = |(_, mode, _): &(_, XdpMode, _)| *mode == XdpMode::Socket || bytes >= link.mtu;
        let has_ways = is_xdp && operation != UNACKNOWLEDGED_PUT;
        for (words, mode, carrier) in WAYS.into_iter().filter(|way| has_ways && is_other(way)) {
            let open = move |side: Side<'_>, window| {
                let ni = NiConfig::new(side.nid, side.interface).mode(Some(mode)).carrier(Some(carrier));
                threaded::End::open_with(vec![ni], side.peer.nid, operation, (bytes, window), &Threads::new())
            };
            subjects
                .push((format!("{name}, {words}"), Box::new(move || messages(link, time, at_once, open))));
        }
    }
    if bytes == POSTING_BYTES {
        for (name, by_list) in [("one by one", false), ("by a list", true)] {
            let measure = move || {
                let per_second = threaded::posted_per_second(by_list)?;
                Ok(Found { round_trip_us: Some(1e6 / per_second), per_second: Some(per_second) })
            };
            subjects.push((format!("entries posted {name}, threaded"), Box::new(measure)));
        }
    }
    for (name, is_write) in [("read", false), ("write", true)] {
        if selftest::has_length(bytes) {
            let measure = move || transfers(link, time, is_write, bytes);
            subjects.push((format!("lst brw {name}, 8 at once"), Box::new(measure)));
        }
    }
    for other in Other::ALL {
        if other.is_installed() {
            subjects.push((other.name().to_owned(), Box::new(move || other.measure(link, bytes, time))));
        } else {
            not_installed.insert(other.package());
        }
    }
    subjects.retain(|(name, _)| cli.wants(name));
    subjects
}

/// The rows of one size: all subjects once a turn, so that noise of the machine meets all. Another program
/// that fails has no figure in that turn.
fn rows(cli: &Cli, bytes: usize, not_installed: &mut BTreeSet<&'static str>) -> anyhow::Result<Vec<Row>> {
    let subjects = subjects(cli, bytes, not_installed);
    let mut rows: Vec<_> = subjects.iter().map(|(name, _)| Row::new(name.clone(), bytes)).collect();
    cli.options.turns(|| {
        for (row, (name, measure)) in rows.iter_mut().zip(&subjects) {
            match measure() {
                Ok(found) => row.add(found),
                Err(error) if Other::ALL.iter().any(|other| other.name() == name) => {
                    eprintln!("{name}: {error:#}");
                }
                Err(error) => return Err(error),
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
    let link = &options.link;
    let mut found = Vec::new();
    let mut not_installed = BTreeSet::new();
    for bytes in &cli.sizes {
        eprintln!("{bytes} bytes");
        found.extend(rows(&cli, *bytes, &mut not_installed)?);
    }
    let pauses = if cli.only.is_empty() { pauses(link, options.quick)? } else { Vec::new() };
    let has_checksums = link.nid_a.net().net_type() == NetType::XDP && cli.wants(CHECKSUMS);
    let checksums = if has_checksums { checksums(&cli)? } else { Vec::new() };
    let here = || Ok(std::fs::read_to_string(CONGESTION_CONTROL)?.trim().to_owned());
    let ready = |is_ready: &dyn Fn(), _: &_| {
        is_ready();
        Ok(())
    };
    let congestion_control = link.pair(ready, here)?;
    let setup = options.setup();
    let (at_once, rows) = (*at_once, found);
    let document = Document { setup, congestion_control, at_once, rows, pauses, checksums, not_installed };
    options.tell("compare.json", &document, &table(&document))?;
    Ok(())
}

/// Appends the medians over the turns, and of the ratios the range as well.
fn checksum_table(text: &mut String, document: &Document) {
    if document.checksums.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:<NAME_WIDTH$}{:>12}{:>12}   ratio (least, most)",
        "Put, checksums of payload", "with", "without"
    );
    for ChecksumRow { size_bytes, half_us, per_second } in &document.checksums {
        let rate = format!("{} at once/s", document.at_once);
        for (what, turns, digits) in [("half a round trip, us", half_us, 2), (rate.as_str(), per_second, 0)] {
            let sorted = |of: fn(&WithAndWithout) -> f64| {
                let mut all: Vec<f64> = turns.iter().map(of).collect();
                all.sort_by(f64::total_cmp);
                all
            };
            let (with, without) = (sorted(|turn| turn.with), sorted(|turn| turn.without));
            let ratios = sorted(|turn| turn.with / turn.without);
            let median = |sorted: &[f64]| median(sorted).unwrap_or(f64::NAN);
            let ends = [ratios.first(), ratios.last()].map(|end| end.copied().unwrap_or(f64::NAN));
            let _ = writeln!(
                text,
                "{:<NAME_WIDTH$}{:>12.digits$}{:>12.digits$}   {:.3} ({:.3}, {:.3})",
                format!("{size_bytes} bytes, {what}"),
                median(&with),
                median(&without),
                median(&ratios),
                ends[0],
                ends[1],
            );
        }
    }
}

fn table(document: &Document) -> String {
    let Setup { machine, mtu_bytes, .. } = &document.setup;
    let modes = document.setup.modes();
    let mut text = format!("{machine}\n\nMTU {mtu_bytes}{modes}, TCP with {}\n", document.congestion_control);
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
        let ratio = |of: fn(&Row) -> &[f64]| Some(median(of(row))? / median(of(base?))?);
        let cell = |value: Option<f64>, digits| value.map_or("-".to_owned(), |it| format!("{it:.digits$}"));
        let range = |sorted: &[f64], digits: usize| match sorted {
            [least, .., most] => format!("({least:.digits$}, {most:.digits$})"),
            _ => "-".to_owned(),
        };
        let gigabits = |rate: f64| rate * row.size_bytes as f64 * 8.0 / 1e9;
        let _ = writeln!(
            text,
            "{:<NAME_WIDTH$}{:>10}{:>20}{:>8}{:>14}{:>24}{:>8}{:>9}",
            row.name,
            cell(median(&row.alone_us), 1),
            range(&row.alone_us, 1),
            cell(ratio(|row| &row.alone_us), 2),
            cell(median(&row.per_second), 0),
            range(&row.per_second, 0),
            cell(ratio(|row| &row.per_second), 2),
            cell(median(&row.per_second).map(gigabits), 2),
        );
    }
    if !document.pauses.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<NAME_WIDTH$}{:>12}{:>8}{:>8}",
            "Put of 64 bytes", "pause us", "p50 us", "p99 us"
        );
    }
    for PauseRow { name, pause_us, p50_us, p99_us } in &document.pauses {
        let _ = writeln!(text, "{name:<NAME_WIDTH$}{pause_us:>12}{p50_us:>8.1}{p99_us:>8.1}");
    }
    checksum_table(&mut text, document);
    text += "\npause: half a round trip after a pause, in which both ends have slept.\n\
             alone: one message from its start until its initiator knows that it is over (a Put by its ACK, one without ACK by its SEND), or a round trip; \
             a transfer of LNet selftest (lst) is bulk data between a request and its answer, of threaded nodes; \
             figures are the medians of the turns, each of which has all rows of a size; ratios are over the Put of application-driven nodes, without one over iperf3. A frame cannot hold what is longer than the MTU: \
             raw is a flood of full ones then.";
    if !document.not_installed.is_empty() {
        let packages: Vec<_> = document.not_installed.iter().copied().collect();
        let _ = write!(text, "\nnot installed: apt-get install {}", packages.join(" "));
    }
    text
}
