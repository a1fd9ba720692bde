//! The command `top`: NIs, peers and routes with what goes by them, as it goes.
//!
//! Invariants: what is drawn is what `--once` prints and `--json` tells; rates are those between two looks;
//! of many peers and routes the first page is looked at.

use std::io::{self, IsTerminal, stdout};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use lnet_control::client::{Client, ClientError};
use lnet_model::lnd::NiOption;
use lnet_model::records::{
    NetRecord, NiStatus, NiTraffic, PeerPage, PeerQuery, PeerRecord, RoutePage, RouteState,
};
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, Widget};
use serde::Serialize;
use serde_json::json;

use super::Result;
use crate::daemon::Daemon;
use crate::failure::{CommandError, Task};
use crate::output::{json_line, print_text};

const TASK: Task = Task::new("show", "top");
/// Columns of a terminal that `--once` prints for.
const WIDTH: u16 = 80;
/// Lines of NIs and of routes at most, where there is not room for all.
const NI_LINES: u16 = 8;
const ROUTE_LINES: u16 = 5;
/// Most that a health is.
const HEALTHY: u32 = 1000;

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Print one picture as text and end
    #[arg(long)]
    once: bool,
    /// Milliseconds between looks
    #[arg(long, short, value_name = "MILLISECONDS", default_value = "1000")]
    interval: String,
}

/// Records that a node told at one moment.
struct Look {
    at: Instant,
    nets: Vec<NetRecord>,
    peers: Vec<PeerRecord>,
    routes: RoutePage,
}

impl Look {
    fn take(client: &mut Client) -> std::result::Result<Self, ClientError> {
        let nets = client.nets()?;
        let PeerPage { peers, .. } = client.peer_page(PeerQuery::default())?;
        Ok(Self { nets, peers, routes: client.route_page(None)?, at: Instant::now() })
    }
}

/// Traffic of an NI in a second.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
struct Rates {
    sent: u64,
    received: u64,
    dropped: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Rates {
    fn between(before: Option<&NiTraffic>, now: &NiTraffic, time: Duration) -> Self {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
        // Counters that were reset count from 0.
        let rate = |of: fn(&NiTraffic) -> u64| {
            let begun = before.map(of).filter(|begun| *begun <= of(now)).unwrap_or_default();
            u64::try_from(u128::from(of(now) - begun) * 1000 / u128::from(ms)).unwrap_or(u64::MAX)
        };
        Self {
            sent: rate(|traffic| traffic.sent.total()),
            received: rate(|traffic| traffic.received.total()),
            dropped: rate(|traffic| traffic.dropped.total()),
            sent_bytes: rate(|traffic| traffic.sent_bytes),
            received_bytes: rate(|traffic| traffic.received_bytes),
        }
    }
}

/// An NI, a local one or a peer's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct NiRow {
    nid: String,
    state: &'static str,
    health: u32,
    credits: Option<i64>,
    credits_max: Option<i64>,
    /// Bytes of messages to a peer's NI that are under way or wait.
    queued_bytes: Option<u64>,
    per_second: Rates,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct RouteRow {
    net: String,
    gateway: String,
    state: &'static str,
    hops: u8,
    priority: u32,
}

/// All that is drawn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Picture {
    local: Vec<NiRow>,
    /// NIs of peers; the busiest come first.
    peers: Vec<NiRow>,
    routes: Vec<RouteRow>,
}

impl Picture {
    fn between(before: &Look, now: &Look) -> Self {
        let time = now.at - before.at;
        let of_net =
            |look: &'_ Look| -> Vec<_> { look.nets.iter().flat_map(|net| net.nis.clone()).collect() };
        let (known, nis) = (of_net(before), of_net(now));
        let local = nis.iter().map(|ni| {
            let begun = known.iter().find(|known| known.nid == ni.nid).map(|known| &known.traffic);
            NiRow {
                nid: ni.nid.to_string(),
                state: ni.status.name(),
                health: if ni.nid.is_loopback() { HEALTHY } else { ni.health.health_value },
                credits: ni.available_credits,
                credits_max: ni.options.get(NiOption::Credits),
                queued_bytes: None,
                per_second: Rates::between(begun, &ni.traffic, time),
            }
        });
        let of_peers =
            |look: &'_ Look| -> Vec<_> { look.peers.iter().flat_map(|peer| peer.nis.clone()).collect() };
        let (known, nis) = (of_peers(before), of_peers(now));
        let peers = nis.iter().map(|ni| {
            let begun = known.iter().find(|known| known.nid == ni.nid).map(|known| &known.traffic);
            let is_down = ni.is_alive == Some(false);
            NiRow {
                nid: ni.nid.to_string(),
                state: if is_down { NiStatus::Down.name() } else { NiStatus::Up.name() },
                health: ni.health.health_value,
                credits: Some(ni.credits.available_tx_credits),
                credits_max: Some(ni.credits.max_ni_tx_credits),
                queued_bytes: Some(ni.credits.tx_queue_bytes),
                per_second: Rates::between(begun, &ni.traffic, time),
            }
        });
        let mut peers: Vec<_> = peers.collect();
        let weight = |row: &NiRow| {
            let Rates { sent, received, sent_bytes, received_bytes, .. } = row.per_second;
            (sent_bytes + received_bytes, sent + received, row.queued_bytes)
        };
        peers.sort_by_key(|row| std::cmp::Reverse(weight(row)));
        let routes = now.routes.routes.iter().map(|route| RouteRow {
            net: route.spec.net.to_string(),
            gateway: route.spec.gateway.to_string(),
            state: route.state.name(),
            hops: route.spec.distance(),
            priority: route.spec.priority,
        });
        Self { local: local.collect(), peers, routes: routes.collect() }
    }

    /// Lines that all of it takes.
    fn height(&self) -> u16 {
        let of = |rows: usize| if rows == 0 { 0 } else { rows + 1 };
        let lines = 1 + of(self.local.len()) + of(self.peers.len()) + of(self.routes.len());
        u16::try_from(lines).unwrap_or(u16::MAX)
    }

    /// Draws it; peers get the lines that the rest does not take.
    fn render(&self, area: Rect, buffer: &mut Buffer) {
        let is_all = self.height() <= area.height;
        let lines = |rows: usize, most: u16| {
            let lines = u16::try_from(rows).unwrap_or(u16::MAX);
            if rows == 0 { 0 } else { 1 + if is_all { lines } else { lines.min(most) } }
        };
        let heights = [
            Constraint::Length(1),
            Constraint::Length(lines(self.local.len(), NI_LINES)),
            Constraint::Length(lines(self.routes.len(), ROUTE_LINES)),
            Constraint::Fill(1),
        ];
        let [head, local, routes, peers] = Layout::vertical(heights).areas(area);
        let sum = |of: fn(&Rates) -> u64| short(self.local.iter().map(|row| of(&row.per_second)).sum());
        let (sent, received) = (sum(|rates| rates.sent_bytes), sum(|rates| rates.received_bytes));
        let counts = [self.local.len(), self.peers.len(), self.routes.len()];
        let [nis, nids, count] = counts;
        let text = format!(
            "LNet: {nis} NIs, {nids} NIDs of peers, {count} routes; payload out {sent}B/s, in {received}B/s"
        );
        Line::from(text).style(Style::new().add_modifier(Modifier::BOLD)).render(head, buffer);
        ni_table("local NI", "drops/s", &self.local).render(local, buffer);
        ni_table("peer NI", "queued", &self.peers).render(peers, buffer);
        let widths = [
            Constraint::Length(12),
            Constraint::Fill(1),
            Constraint::Length(5),
            Constraint::Length(4),
            Constraint::Length(8),
        ];
        let rows = self.routes.iter().map(|row| {
            let cells = [
                row.net.clone(),
                row.gateway.clone(),
                row.state.to_owned(),
                row.hops.to_string(),
                row.priority.to_string(),
            ];
            Row::new(cells).style(style(row.state == RouteState::Up.name(), HEALTHY))
        });
        Table::new(rows, widths)
            .header(header(&["route to", "by gateway", "state", "hops", "priority"]))
            .render(routes, buffer);
    }
}

fn header<'a>(names: &[&'a str]) -> Row<'a> {
    Row::new(names.to_vec()).style(Style::new().add_modifier(Modifier::REVERSED))
}

/// Red is what does not serve, yellow what is not in full health.
fn style(is_up: bool, health: u32) -> Style {
    match (is_up, health) {
        (false, _) | (_, 0) => Style::new().fg(Color::Red),
        (true, HEALTHY..) => Style::new(),
        _ => Style::new().fg(Color::Yellow),
    }
}

fn ni_table<'a>(name: &'a str, last: &'a str, rows: &[NiRow]) -> Table<'a> {
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(5),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(7),
    ];
    let rows = rows.iter().map(|row| {
        let Rates { sent, received, dropped, sent_bytes, received_bytes } = row.per_second;
        let credits = match (row.credits, row.credits_max) {
            (Some(credits), Some(max)) => format!("{credits}/{max}"),
            (credits, _) => credits.map(|credits| credits.to_string()).unwrap_or_default(),
        };
        let cells = [
            row.nid.clone(),
            row.state.to_owned(),
            row.health.to_string(),
            credits,
            short(sent),
            short(received),
            short(sent_bytes),
            short(received_bytes),
            short(row.queued_bytes.unwrap_or(dropped)),
        ];
        Row::new(cells).style(style(row.state == NiStatus::Up.name(), row.health))
    });
    let names = [name, "state", "health", "credits", "sent/s", "recv/s", "out B/s", "in B/s", last];
    Table::new(rows, widths).header(header(&names))
}

/// A number in five characters at most, with k, M, G and so on for powers of 1000.
fn short(number: u64) -> String {
    if number < 10_000 {
        return number.to_string();
    }
    let (mut rest, mut unit) = (number, 0);
    while rest >= 1000 && unit < 6 {
        (rest, unit) = (rest / 1000, unit + 1);
    }
    let scale = 1000_u64.pow(unit);
    let tenths = (number % scale) / (scale / 10);
    let letter = ["", "k", "M", "G", "T", "P", "E"][unit as usize];
    if rest < 100 { format!("{rest}.{tenths}{letter}") } else { format!("{rest}{letter}") }
}

pub(super) fn run(daemon: &mut Daemon<'_>, args: &TopArgs) -> Result<()> {
    let interval = Duration::from_millis(TASK.number("interval", &args.interval, 10..=86_400_000)?);
    if args.once || daemon.as_json {
        return once(daemon, interval);
    }
    if !stdout().is_terminal() {
        return Err(TASK.invalid("standard output is no terminal: --once prints text").failed());
    }
    let first = daemon.ask(TASK, Look::take)?;
    let mut terminal = ratatui::try_init().map_err(terminal_error)?;
    let ended = follow(daemon, &mut terminal, first, interval);
    ratatui::restore();
    ended
}

fn terminal_error(error: io::Error) -> CommandError {
    TASK.invalid(format!("the terminal: {error}")).failed()
}

fn once(daemon: &mut Daemon<'_>, interval: Duration) -> Result<()> {
    let before = daemon.ask(TASK, Look::take)?;
    sleep(interval);
    let picture = Picture::between(&before, &daemon.ask(TASK, Look::take)?);
    if daemon.as_json {
        print_text(&json_line(&json!({"top": picture})));
        return Ok(());
    }
    let area = Rect::new(0, 0, WIDTH, picture.height());
    let mut buffer = Buffer::empty(area);
    picture.render(area, &mut buffer);
    for line in lines(&buffer) {
        print_text(&format_args!("{line}\n"));
    }
    Ok(())
}

/// The text of a picture, line by line.
fn lines(buffer: &Buffer) -> impl Iterator<Item = String> {
    let width = usize::from(buffer.area.width.max(1));
    buffer.content().chunks(width).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        line.trim_end().to_owned()
    })
}

/// After so long the first rates are drawn.
const FIRST_INTERVAL: Duration = Duration::from_millis(250);

/// Draws until a key ends it.
fn follow(
    daemon: &mut Daemon<'_>,
    terminal: &mut ratatui::DefaultTerminal,
    mut before: Look,
    interval: Duration,
) -> Result<()> {
    // Rates of a few milliseconds say nothing.
    let mut due = before.at + interval.min(FIRST_INTERVAL);
    let mut picture = None;
    loop {
        if Instant::now() >= due {
            let now = daemon.ask(TASK, Look::take)?;
            picture = Some(Picture::between(&before, &now));
            (before, due) = (now, Instant::now() + interval);
        }
        if let Some(picture) = &picture {
            let draw = |frame: &mut ratatui::Frame<'_>| picture.render(frame.area(), frame.buffer_mut());
            terminal.draw(draw).map_err(terminal_error)?;
        }
        let rest = due.saturating_duration_since(Instant::now());
        if event::poll(rest).map_err(terminal_error)?
            && let Event::Key(key) = event::read().map_err(terminal_error)?
        {
            let is_break = key.modifiers == KeyModifiers::CONTROL && key.code == KeyCode::Char('c');
            if is_break || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(nid: &str, state: &'static str, sent_bytes: u64) -> NiRow {
        let per_second = Rates { sent: 3, sent_bytes, ..Rates::default() };
        let (credits, credits_max) = (Some(7), Some(8));
        NiRow {
            nid: nid.to_owned(),
            state,
            health: HEALTHY,
            credits,
            credits_max,
            queued_bytes: None,
            per_second,
        }
    }

    fn drawn(picture: &Picture, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, WIDTH, height);
        let mut buffer = Buffer::empty(area);
        picture.render(area, &mut buffer);
        lines(&buffer).collect()
    }

    #[test]
    fn a_picture_fits_a_terminal_of_80_by_24() {
        let peers =
            (0..300).map(|number| row(&format!("10.0.{}.{}@tcp", number / 256, number % 256), "up", 1));
        let route = RouteRow {
            net: "tcp9".into(),
            gateway: "10.0.0.9@tcp".into(),
            state: "down",
            hops: 1,
            priority: 0,
        };
        let picture = Picture {
            local: (0..20).map(|number| row(&format!("10.1.0.{number}@tcp"), "up", 1_234_567)).collect(),
            peers: peers.collect(),
            routes: vec![route; 20],
        };
        let shown = drawn(&picture, 24);
        assert!(shown.len() == 24 && shown.iter().all(|line| line.chars().count() <= 80), "{shown:#?}");
        let count = |what: &str| shown.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!((count("10.1.0."), count("tcp9 "), count("10.0.")), (8, 5, 7), "{shown:#?}");
        assert!(
            shown[0].contains("20 NIs, 300 NIDs of peers, 20 routes; payload out 24.6MB/s"),
            "{}",
            shown[0]
        );
        assert!(shown[2].contains("7/8") && shown[2].contains("1.2M"), "{}", shown[2]);
        // A picture without a limit has all rows.
        assert_eq!(
            drawn(&picture, picture.height()).iter().filter(|line| line.starts_with("10.0.")).count(),
            300
        );
        assert_eq!(drawn(&picture, 0).len(), 0);
    }

    #[test]
    fn rates_are_those_of_the_time_between() {
        let traffic = |bytes| NiTraffic { sent_bytes: bytes, ..NiTraffic::default() };
        let rate = |before, now| {
            Rates::between(Some(&traffic(before)), &traffic(now), Duration::from_millis(500)).sent_bytes
        };
        assert_eq!((rate(100, 200), rate(200, 200), rate(200, 50)), (200, 0, 100));
        assert_eq!(Rates::between(None, &traffic(7), Duration::ZERO).sent_bytes, 7000);
    }

    #[test]
    fn numbers_are_short() {
        for (number, expected) in [
            (0, "0"),
            (9999, "9999"),
            (10_000, "10.0k"),
            (123_456, "123k"),
            (1_250_000, "1.2M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(short(number), expected);
        }
    }
}
