//! Subjects that are set beside each other, and how each is measured.

use std::collections::BTreeSet;
use std::time::Duration;

use lnet_bench::link::{Link, Side};
use lnet_bench::measure::{self, Endpoint, Flood};
use lnet_bench::messages::{self, EndConfig, Operation};
use lnet_bench::others::{Found, Other, Protocol};
use lnet_bench::threaded::{self, Sources, ThreadedConfig};
use lnet_bench::{raw, segments, selftest, sockets};
use lnet_user::node::{Carrier, XdpMode};
use lnet_wire::NetType;

use super::{Cli, UNACKNOWLEDGED_PUT};

/// Payload bytes of the Put that is over with its SEND: a longer one takes as long as its payload, with an
/// ACK or without.
const UNACKNOWLEDGED_BYTES: usize = 64;
/// The size beside which it stands how soon entries are posted: buffers of a byte each.
const POSTING_BYTES: usize = 64;
/// Payload bytes of the floods out of one descriptor, and how many of its messages are under way: few and
/// many beside the event slots that it has by default.
const WINDOWS_BYTES: usize = 64;
pub(super) const WINDOWS: [usize; 2] = [48, 128];
/// Payload bytes of a datagram of bare sockets at most.
const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Transfers of LNet selftest that are under way at once.
const CONCURRENCY: u32 = 8;
const ETHERNET_BYTES: usize = 14;
const KINDS: [(&str, Operation); 3] =
    [("Put", Operation::Put { ack: true }), ("Put without ACK", UNACKNOWLEDGED_PUT), ("Get", Operation::Get)];
/// The row of what a link carries at most by datagrams of the kernel.
pub(super) const LIMIT: &str = "physical limit, segmented datagrams";
/// Paths of frames of threaded nodes on an xdp net, besides the one that they choose.
const PATHS: [(&str, XdpMode, Carrier); 2] = [
    ("threaded, over sockets", XdpMode::Socket, Carrier::Auto),
    ("threaded, by rings alone", XdpMode::Auto, Carrier::Rings),
];

/// A way to send messages of a size, and its name.
pub(super) type Subject<'a> = (String, Box<dyn Fn() -> anyhow::Result<Found> + 'a>);

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

/// Messages of bare sockets that poll, there and back.
fn polling_sockets(link: &Link, protocol: Protocol, bytes: usize, pings: u64) -> anyhow::Result<Found> {
    // A long message is not to take the time of a hundred short ones.
    let pings = (pings / (1 + bytes as u64 / 16384)).max(10);
    let half_ns = sockets::ping(link, protocol, (true, bytes), (pings, Duration::ZERO))?;
    Ok(Found { round_trip_us: Some(half_ns.histogram().mean() / 500.0), per_second: None })
}

/// The ways to send messages of one size that are asked for and can be had.
pub(super) fn subjects<'a>(
    cli: &'a Cli,
    bytes: usize,
    not_installed: &mut BTreeSet<&'static str>,
) -> Vec<Subject<'a>> {
    let Cli { options, at_once, .. } = cli;
    let (link, time, at_once) = (&options.link, options.report.time(Duration::from_secs(1)), *at_once);
    let [pings, posted] = [20_000, 100_000].map(|all| options.report.rounds(all));
    let posted = posted as u32;
    let mut subjects: Vec<Subject<'a>> = Vec::new();
    let is_xdp = link.nid_a.net().net_type() == NetType::XDP;
    let is_long = bytes >= link.mtu;
    subjects.push(("raw AF_XDP".to_owned(), Box::new(move || frames(link, bytes, time, pings))));
    if is_long {
        subjects.push((LIMIT.to_owned(), Box::new(move || limit(link, bytes, time))));
    }
    for (name, protocol, bytes_max) in [
        ("UDP sockets that poll", Protocol::Udp, DATAGRAM_BYTES_MAX),
        ("TCP sockets that poll", Protocol::Tcp, usize::MAX),
    ] {
        if bytes <= bytes_max {
            let measure = move || polling_sockets(link, protocol, bytes, pings);
            subjects.push((name.to_owned(), Box::new(measure)));
        }
    }
    for (name, operation) in KINDS {
        if operation == UNACKNOWLEDGED_PUT && bytes != UNACKNOWLEDGED_BYTES {
            continue;
        }
        let open = move |side: Side<'_>, window| {
            messages::End::open(side, EndConfig::answered(operation, bytes, window))
        };
        let measure = move || messages(link, time, at_once, open);
        subjects.push((format!("{name}, application-driven"), Box::new(measure)));
        let mut add_threaded = |words: &str, change: fn(ThreadedConfig) -> ThreadedConfig| {
            let open = move |side: Side<'_>, window| {
                threaded::End::open(side, change(ThreadedConfig::new(operation, bytes, window)))
            };
            subjects
                .push((format!("{name}, {words}"), Box::new(move || messages(link, time, at_once, open))));
        };
        if operation == Operation::Get {
            add_threaded("threaded, one descriptor", |config| config);
            let each = |config| ThreadedConfig { sources: Sources::Each, ..config };
            add_threaded("threaded, a descriptor each", each);
        } else {
            add_threaded("threaded", |config| config);
        }
        // A short message goes by the rings in any case.
        let is_other = |(_, mode, _): &(_, XdpMode, _)| *mode == XdpMode::Socket || is_long;
        let has_paths = is_xdp && operation != UNACKNOWLEDGED_PUT;
        for (words, mode, carrier) in PATHS.into_iter().filter(|path| has_paths && is_other(path)) {
            let open = move |side: Side<'_>, window| {
                let config = ThreadedConfig::new(operation, bytes, window);
                threaded::End::open(side, ThreadedConfig { mode, carrier, ..config })
            };
            subjects
                .push((format!("{name}, {words}"), Box::new(move || messages(link, time, at_once, open))));
        }
    }
    if bytes == WINDOWS_BYTES {
        for window in WINDOWS {
            let put = ThreadedConfig::new(Operation::Put { ack: true }, bytes, window);
            let measure = move || {
                let flood = measure::flood(link, |side: Side<'_>| threaded::End::open(side, put), time)?;
                Ok(Found { round_trip_us: None, per_second: Some(flood.sent_per_second()) })
            };
            subjects.push((windowed(window), Box::new(measure)));
        }
    }
    if bytes == POSTING_BYTES {
        for (name, by_list) in [("one by one", false), ("by a list", true)] {
            let measure = move || {
                let per_second = threaded::posted_per_second(by_list, posted)?;
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
    for other in Other::POLLING {
        if other.is_installed() {
            subjects.push((other.name().to_owned(), Box::new(move || other.measure(link, bytes, time))));
        } else {
            not_installed.insert(other.package());
        }
    }
    subjects.retain(|(name, _)| cli.wants(name));
    subjects
}

/// The name of the flood out of one descriptor with so many under way.
pub(super) fn windowed(window: usize) -> String {
    format!("Put, threaded, one descriptor, {window} at once")
}
