//! Lines of the log on connections that broke.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lnet_core::time::Instant;
use lnet_tcp_proto::BrokenConnections;
use lnet_wire::Nid;

/// How long nothing more is said of connections with the same peer that break.
const INTERVAL: Duration = Duration::from_secs(10);
/// Peers that are told of in that time: a stranger may connect by many names.
const PEERS_MAX: usize = 64;

/// Connections that broke: with which peers, and what the log is still to tell of them.
#[derive(Default)]
pub(super) struct Breaks {
    peers: HashMap<Nid, Break>,
    /// When the first of what is not told is due.
    due: Option<Instant>,
}

struct Break {
    told: Instant,
    /// Connections and messages since then, and the last of them.
    more: Option<Line>,
}

/// A line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    peer: Nid,
    address: SocketAddr,
    errno: Option<u8>,
    connections: u32,
    messages: u32,
    /// Whether messages that were sent before may not have been read.
    unread: bool,
}

impl Breaks {
    /// Logs that connections with a peer broke: at once, or with the others of the next [`INTERVAL`].
    pub(super) fn note(&mut self, now: Instant, address: SocketAddr, broken: &BrokenConnections) {
        let BrokenConnections { path, errno, connections, messages, has_unread: unread, .. } = *broken;
        let line = Line { peer: path.peer, address, errno, connections, messages, unread };
        if let Some(line) = self.add(now, line) {
            line.log();
        }
    }

    /// Logs what has waited for its time.
    pub(super) fn tell(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.take_due(now).iter().for_each(Line::log);
        }
    }

    /// The line to be logged at once, if it is.
    fn add(&mut self, now: Instant, line: Line) -> Option<Line> {
        if self.peers.len() >= PEERS_MAX {
            self.peers.retain(|_, known| known.more.is_some() || now < known.told + INTERVAL);
        }
        let is_full = self.peers.len() >= PEERS_MAX;
        let known = match self.peers.entry(line.peer) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => return None,
            Entry::Vacant(vacant) => {
                vacant.insert(Break { told: now, more: None });
                return Some(line);
            }
        };
        let line = known.more.take().map_or(line, |more| more.with(line));
        let due = known.told + INTERVAL;
        if due <= now {
            known.told = now;
            return Some(line);
        }
        known.more = Some(line);
        self.due = Some(self.due.map_or(due, |first| first.min(due)));
        None
    }

    fn take_due(&mut self, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        self.due = None;
        for known in self.peers.values_mut().filter(|known| known.more.is_some()) {
            let due = known.told + INTERVAL;
            if due <= now {
                lines.extend(known.more.take());
                known.told = now;
            } else {
                self.due = Some(self.due.map_or(due, |first| first.min(due)));
            }
        }
        lines
    }
}

impl Line {
    /// Gives a later line the connections and messages of this one as well.
    const fn with(self, later: Self) -> Self {
        Self {
            connections: self.connections.saturating_add(later.connections),
            messages: self.messages.saturating_add(later.messages),
            unread: self.unread || later.unread,
            ..later
        }
    }

    fn log(&self) {
        let Self { peer, address, errno, connections, messages, unread } = self;
        let error = errno.map_or_else(
            || "the peer has closed them".to_owned(),
            |errno| io::Error::from_raw_os_error(errno.into()).to_string(),
        );
        tracing::warn!(%peer, %address, error, connections, messages, unread, "connections with a peer broke");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESET: Option<u8> = Some(104);

    fn line(host: u32, connections: u32) -> Line {
        let peer = format!("10.0.{}.{}@tcp", host >> 8, host & 0xff).parse().unwrap();
        let address = ([10, 0, 0, 1], 988).into();
        Line { peer, address, errno: RESET, connections, messages: 1, unread: false }
    }

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn a_line_in_ten_seconds_tells_of_all() {
        let mut breaks = Breaks::default();
        assert_eq!(breaks.add(at(0), line(1, 3)), Some(line(1, 3)));
        assert_eq!(breaks.add(at(1), line(1, 3)), None);
        assert_eq!(breaks.add(at(2), Line { unread: true, ..line(1, 2) }), None);
        assert_eq!(breaks.add(at(3), line(2, 1)), Some(line(2, 1)), "another peer");
        assert_eq!(breaks.due, Some(at(10)));
        assert!(breaks.take_due(at(9)).is_empty());
        assert_eq!(breaks.take_due(at(10)), [Line { messages: 2, unread: true, ..line(1, 5) }]);
        assert_eq!(breaks.due, None);
        assert_eq!(breaks.add(at(11), line(1, 1)), None, "told a second ago");
        assert_eq!(breaks.add(at(20), line(1, 1)), Some(Line { messages: 2, ..line(1, 2) }));
    }

    #[test]
    fn so_many_peers_are_told_of_and_no_more() {
        let mut breaks = Breaks::default();
        let told = (0..200).filter(|host| breaks.add(at(1), line(*host, 1)).is_some()).count();
        assert_eq!(told, PEERS_MAX);
        assert!(breaks.add(at(11), line(199, 1)).is_some());
        assert_eq!(breaks.peers.len(), 1);
    }
}
