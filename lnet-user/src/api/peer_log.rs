//! What the log tells of peers: a line for each change, whatever number of shards has found it out.
//!
//! Invariant: what peers do is logged no faster than a peer can begin new lives in [`INTERVAL`], and takes
//! bounded memory.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use lnet_core::node::Difference;
use lnet_core::shard::PeerChange;
use lnet_core::stats::DropReason;
use lnet_io::driver::Counted;
use lnet_tcp_proto::SocklndEvent;
use lnet_wire::Nid;
use tracing::{info, warn};

use crate::runtime::Worker;

/// How long nothing more is said of the same kind: of refused frames, of refused connections, and of the new
/// lives of a peer.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// How long a peer may be silent that is not said to be so: a frame may be lost, and what goes another way
/// for a while tells nothing of it.
const SILENCE: Duration = Duration::from_secs(2);
/// Peers that are remembered.
const PEERS_MAX: usize = 4096;
/// What is refused since it is wrong, not since it comes late, twice or too fast.
const REFUSED: [&str; 8] = [
    "malformed",
    "bad_ack",
    "bad_identity",
    "unchecked",
    "bad_checksum",
    "bad_header",
    "header_mismatch",
    "payload_corrupt",
];
/// Connections that were refused or ended since the other end did what it may not, or too much of it.
const CONNECTIONS_REFUSED: [SocklndEvent; 14] = [
    SocklndEvent::Unprivileged,
    SocklndEvent::HandshakesFull,
    SocklndEvent::HandshakeTimeout,
    SocklndEvent::ConnectionsFull,
    SocklndEvent::BadRequest,
    SocklndEvent::UnknownTarget,
    SocklndEvent::Impostor,
    SocklndEvent::NamesFull,
    SocklndEvent::BadHello,
    SocklndEvent::BadMessage,
    SocklndEvent::WrongDestination,
    SocklndEvent::UnknownCookie,
    SocklndEvent::BadChecksum,
    SocklndEvent::Overrun,
];

/// Messages that found no room: strangers may have taken it.
const FULL: [DropReason; 4] =
    [DropReason::EventQueueFull, DropReason::ResponsesFull, DropReason::DelayedFull, DropReason::RouterFull];

/// Messages that are not for this node, or could not be answered or forwarded: a peer takes the node for
/// another one, or for a router that leads elsewhere (LNet `lib-move.c: lnet_parse`).
const ASTRAY: [DropReason; 11] = [
    DropReason::Malformed,
    DropReason::NotLocal,
    DropReason::NoSource,
    DropReason::NoRoute,
    DropReason::Portal,
    DropReason::RoutingOff,
    DropReason::NoNextHop,
    DropReason::NextHopSilent,
    DropReason::LeadsBack,
    DropReason::Loop,
    DropReason::RouterTooLong,
];

/// What was told.
#[derive(Debug, Default)]
pub(super) struct PeerLog {
    known: HashSet<Nid>,
    silent: HashMap<Nid, Silence>,
    restarted: HashMap<Nid, Instant>,
    /// Peers that tell something else than is known, and when that was told.
    differing: HashMap<Nid, Instant>,
    /// What was refused, by reason, when that was looked at, and when.
    refused: BTreeMap<Reason, u64>,
    looked: Option<Instant>,
}

/// A peer that does not answer.
#[derive(Clone, Copy, Debug)]
struct Silence {
    since: Instant,
    /// When it did not answer for the last time.
    last: Instant,
    is_told: bool,
}

/// What is refused, and why.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Reason {
    /// A frame.
    Frame(&'static str),
    /// A connection.
    Connection(&'static str),
    /// A message that found no room, or was not answered for that.
    Full(&'static str),
    /// A message that is not for this node, or names what no node has.
    Astray(&'static str),
    /// A message of a peer, or to one, beside as many others as a shard remembers, all of which are busy.
    Peer(&'static str),
}

/// The name under which the xdp LND counts questions for next hops that find no room.
const HOPS_UNASKED: &str = "next hops unasked";

/// The name under which LNDs count a peer that finds no room.
const PEERS_FULL: &str = "peers_full";

/// What a shard has refused, by reason.
pub(super) type Refused = Vec<(Reason, u64)>;

impl PeerLog {
    /// Whether what was refused is to be counted: that is done once a while.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.looked.is_none_or(|looked| now >= looked + INTERVAL)
    }

    /// Tells of peers with which there is traffic for the first time; with each, whether some came from it:
    /// a silence that was not told is over then, and one that was told once no shard has found it for a
    /// while. The shard that found it may have nothing more to send to the peer.
    pub(super) fn note_traffic(&mut self, now: Instant, traffic: impl Iterator<Item = (Nid, bool)>) {
        for (nid, is_incoming) in traffic {
            let is_over = |silence: &Silence| !silence.is_told || now >= silence.last + INTERVAL;
            if is_incoming && self.silent.get(&nid).is_some_and(is_over) {
                self.end_silence(nid);
            }
            if self.known.len() < PEERS_MAX && self.known.insert(nid) {
                info!(%nid, "first traffic with a peer");
            }
        }
    }

    /// Tells what a shard has learned of a peer.
    pub(super) fn note(&mut self, now: Instant, nid: Nid, change: PeerChange) {
        match change {
            PeerChange::Silent => self.note_silence(now, nid),
            PeerChange::Answers => self.end_silence(nid),
            PeerChange::Restarted => {
                self.restarted.retain(|_, told| now < *told + INTERVAL);
                if self.restarted.len() < PEERS_MAX && self.restarted.insert(nid, now).is_none() {
                    warn!(%nid, "a peer has begun a new life: what was under way to it has ended");
                }
            }
        }
    }

    /// Tells how what a peer tells of itself differs from what is known of it.
    pub(super) fn note_difference(&mut self, now: Instant, difference: &Difference) {
        self.differing.retain(|_, told| now < *told + INTERVAL);
        let primary = difference.primary;
        if self.differing.len() < PEERS_MAX && self.differing.insert(primary, now).is_none() {
            warn!(%primary, %difference, "what a peer tells of itself is not taken over, or not all of it");
        }
    }

    /// Tells of a peer that is not silent any more, if its silence was told.
    fn end_silence(&mut self, nid: Nid) {
        if self.silent.remove(&nid).is_some_and(|silence| silence.is_told) {
            info!(%nid, "a peer answers again");
        }
    }

    /// Tells of a peer that has not answered, and still does not when it is asked again.
    fn note_silence(&mut self, now: Instant, nid: Nid) {
        // One silence is no news where none has followed.
        self.silent.retain(|_, silence| silence.is_told || now < silence.last + INTERVAL);
        if self.silent.len() == PEERS_MAX && !self.silent.contains_key(&nid) {
            return;
        }
        let first = Silence { since: now, last: now, is_told: false };
        let silence = self.silent.entry(nid).or_insert(first);
        silence.last = now;
        if !silence.is_told && now >= silence.since + SILENCE {
            silence.is_told = true;
            warn!(%nid, "a peer does not answer");
        }
    }

    /// Tells what was refused since the last time; `told` by the shards, each of which remembers so many
    /// peers.
    pub(super) fn note_refused(
        &mut self,
        now: Instant,
        peers_max: u32,
        told: impl Iterator<Item = (Reason, u64)>,
    ) {
        let mut sums: BTreeMap<Reason, u64> = BTreeMap::new();
        for (reason, count) in told {
            *sums.entry(reason).or_default() += count;
        }
        let [mut frames, mut connections, mut full, mut astray, mut peers] = [const { Vec::new() }; 5];
        for (reason, count) in &sums {
            let more = count.saturating_sub(self.refused.get(reason).copied().unwrap_or(0));
            let (name, list) = match reason {
                Reason::Frame(name) => (name, &mut frames),
                Reason::Connection(name) => (name, &mut connections),
                Reason::Full(name) => (name, &mut full),
                Reason::Astray(name) => (name, &mut astray),
                Reason::Peer(name) => (name, &mut peers),
            };
            if more > 0 {
                list.push(format!("{name} {more}"));
            }
        }
        if !frames.is_empty() {
            warn!(reasons = frames.join(", "), "frames were refused");
        }
        if !connections.is_empty() {
            warn!(
                reasons = connections.join(", "),
                "connections were refused, or ended for what came on them"
            );
        }
        if !full.is_empty() {
            warn!(reasons = full.join(", "), "messages were dropped, or not answered, since tables are full");
        }
        if !astray.is_empty() {
            warn!(reasons = astray.join(", "), "messages were dropped that are not for this node");
        }
        if !peers.is_empty() {
            let refused = peers.join(", ");
            let text = "peers were refused: as many others are busy as a shard remembers; `lnetd --peer-memory`, \
                        or `Limits::peers` of a program, raises that";
            warn!(refused, peers_max, "{text}");
        }
        (self.refused, self.looked) = (sums, Some(now));
    }
}

/// What a shard has refused.
pub(super) fn refused(worker: &Worker) -> Refused {
    let mut counted = Vec::new();
    let told = worker.count(&mut |what, name, count| match what {
        Counted::Connections if name == PEERS_FULL => counted.push((Reason::Peer("connections"), count)),
        _ if name == PEERS_FULL => counted.push((Reason::Peer("frames"), count)),
        Counted::Connections if CONNECTIONS_REFUSED.iter().any(|event| event.name() == name) => {
            counted.push((Reason::Connection(name), count));
        }
        Counted::Connections => {}
        _ if name == HOPS_UNASKED => counted.push((Reason::Full(name), count)),
        _ if REFUSED.contains(&name) => counted.push((Reason::Frame(name), count)),
        _ => {}
    });
    let counters = worker.counters();
    let dropped = |reason: DropReason| counters.drops(reason).messages;
    counted.extend(FULL.map(|reason| (Reason::Full(reason.name()), dropped(reason))));
    counted.extend(ASTRAY.map(|reason| (Reason::Astray(reason.name()), dropped(reason))));
    counted.push((Reason::Full("answers made room for others"), counters.responses_evicted));
    counted.push((Reason::Peer("messages"), dropped(DropReason::PeersFull)));
    counted.push((Reason::Peer("own requests"), counters.peers_refused));
    if let Err(error) = told {
        tracing::debug!(%error, "counters are not told");
    }
    counted
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Keeps the text of lines.
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            struct Line(String);
            impl Visit for Line {
                fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                    self.0 += &format!("{field}={value:?} ");
                }
            }
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn each_change_is_one_line() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let nid = |host: u8| Nid::new_ip(lnet_wire::Net::XDP, [10, 0, 0, host].into()).unwrap();
        let count = |changes: &[(Duration, u8, PeerChange)]| {
            let (mut log, begun) = (PeerLog::default(), Instant::now());
            lines.lock().unwrap().clear();
            tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
                for (after, host, change) in changes {
                    log.note(begun + *after, nid(*host), *change);
                }
            });
            lines.lock().unwrap().len()
        };
        use PeerChange::{Answers, Restarted, Silent};
        let now = Duration::ZERO;
        // Two shards find out the same.
        let late = 2 * SILENCE;
        assert_eq!(count(&[(now, 1, Silent), (late, 1, Silent), (late, 1, Answers), (late, 1, Answers)]), 2);
        assert_eq!(count(&[(now, 1, Silent), (now, 2, Silent), (late, 1, Silent), (late, 2, Silent)]), 2);
        // What went another way then, or came after all, tells nothing of the peer.
        assert_eq!(count(&[(now, 1, Silent), (now, 1, Silent), (late, 3, Silent)]), 0);
        assert_eq!(count(&[(now, 1, Silent), (late, 1, Answers)]), 0);
        assert_eq!(count(&[(now, 1, Silent), (INTERVAL, 1, Silent), (INTERVAL + late, 1, Silent)]), 1);
        assert_eq!(count(&[(now, 1, Silent), (SILENCE / 2, 1, Answers)]), 0);
        assert_eq!(
            count(&[(now, 1, Restarted), (INTERVAL / 2, 1, Restarted), (2 * INTERVAL, 1, Restarted)]),
            2
        );
    }

    #[test]
    fn a_peer_that_speaks_is_not_silent() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let nid = Nid::new_ip(lnet_wire::Net::XDP, [10, 0, 0, 1].into()).unwrap();
        for (is_incoming, told) in [(false, 1), (true, 0)] {
            let (mut log, begun) = (PeerLog::default(), Instant::now());
            log.known.insert(nid);
            lines.lock().unwrap().clear();
            tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
                log.note(begun, nid, PeerChange::Silent);
                log.note_traffic(begun, [(nid, is_incoming)].into_iter());
                log.note(begun + 2 * SILENCE, nid, PeerChange::Silent);
            });
            assert_eq!(lines.lock().unwrap().len(), told, "{is_incoming}");
        }
    }

    /// The shard that found a peer silent sends it nothing more, and another one receives from it.
    #[test]
    fn a_peer_that_speaks_to_another_shard_is_silent_no_more() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let nid = Nid::new_ip(lnet_wire::Net::XDP, [10, 0, 0, 1].into()).unwrap();
        let (mut log, begun) = (PeerLog::default(), Instant::now());
        log.known.insert(nid);
        let told = begun + 2 * SILENCE;
        let mut last_line = |happens: &dyn Fn(&mut PeerLog)| {
            tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || happens(&mut log));
            lines.lock().unwrap().pop().unwrap_or_default()
        };
        last_line(&|log| log.note(begun, nid, PeerChange::Silent));
        assert!(last_line(&|log| log.note(told, nid, PeerChange::Silent)).contains("does not answer"));
        // The peer speaks, and may not receive what is sent to it.
        assert_eq!(last_line(&|log| log.note_traffic(told + INTERVAL / 2, [(nid, true)].into_iter())), "");
        assert_eq!(last_line(&|log| log.note_traffic(told + INTERVAL, [(nid, false)].into_iter())), "");
        let line = last_line(&|log| log.note_traffic(told + INTERVAL, [(nid, true)].into_iter()));
        assert!(line.contains("answers again"), "{line}");
        assert_eq!(last_line(&|log| log.note_traffic(told + INTERVAL, [(nid, true)].into_iter())), "");
    }

    /// More peers than are remembered are silent at once: those that are remembered are told of.
    #[test]
    fn a_silent_peer_is_told_where_no_more_are_remembered() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let nid = |number: usize| {
            let [.., high, low] = number.to_be_bytes();
            Nid::new_ip(lnet_wire::Net::XDP, [10, 0, high, low].into()).unwrap()
        };
        let (mut log, begun) = (PeerLog::default(), Instant::now());
        (0..=PEERS_MAX).for_each(|number| log.note(begun, nid(number), PeerChange::Silent));
        tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
            log.note(begun + 2 * SILENCE, nid(0), PeerChange::Silent);
            log.note(begun + 2 * SILENCE, nid(PEERS_MAX), PeerChange::Silent);
        });
        assert_eq!((lines.lock().unwrap().len(), log.silent.len()), (1, PEERS_MAX));
    }

    #[test]
    fn a_difference_is_told_once_a_while() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let nid = |host: u8| Nid::new_ip(lnet_wire::Net::XDP, [10, 0, 0, host].into()).unwrap();
        let difference = |host, other| Difference {
            primary: nid(host),
            told_primary: None,
            unknown: vec![nid(other)],
            untold: Vec::new(),
            is_multi_rail: None,
            own: Vec::new(),
            cut_count: 0,
        };
        let (mut log, begun) = (PeerLog::default(), Instant::now());
        tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
            for (after, host, other) in [(0, 1, 7), (1, 1, 8), (1, 2, 9), (11, 1, 8)] {
                log.note_difference(begun + Duration::from_secs(after), &difference(host, other));
            }
        });
        let lines = lines.lock().unwrap();
        let told: Vec<_> = [7, 9, 8].map(|other| format!("is not known by, {}", nid(other))).into();
        assert_eq!(lines.len(), told.len(), "{lines:?}");
        assert!(lines.iter().zip(told).all(|(line, told)| line.contains(&told)), "{lines:?}");
    }

    #[test]
    fn what_is_refused_is_told_once_a_while_and_with_how_many_more() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (mut log, begun) = (PeerLog::default(), Instant::now());
        tracing::subscriber::with_default(Lines(Arc::clone(&lines)), || {
            for (round, malformed) in [(0, 2), (1, 2), (2, 9)] {
                let now = begun + INTERVAL * round;
                assert!(log.is_due(now));
                let frames = [("malformed", malformed), ("bad_ack", 0), ("malformed", 1)];
                let frames = frames.map(|(name, count)| (Reason::Frame(name), count));
                let rest = [
                    (Reason::Connection("impostor"), u64::from(round / 2) * 5),
                    (Reason::Astray(DropReason::NotLocal.name()), u64::from(round / 2) * 6),
                    (Reason::Peer("own requests"), u64::from(round / 2) * 7),
                    (Reason::Peer("connections"), 0),
                ];
                log.note_refused(now, 5127, frames.into_iter().chain(rest));
                assert!(!log.is_due(now + INTERVAL / 2));
            }
        });
        let lines = lines.lock().unwrap();
        assert_eq!(lines.len(), 5, "{lines:?}");
        // The line says how many, beside how many there is room for, and what makes more.
        let peers = ["own requests 7\"", "peers_max=5127", "--peer-memory", "Limits::peers"];
        assert!(peers.iter().all(|part| lines[4].contains(part)), "{lines:?}");
        assert!(lines[3].contains("destination is not the receiving NI 6"), "{lines:?}");
        assert!(lines[0].contains("malformed 3") && lines[1].contains("malformed 7"), "{lines:?}");
        assert!(lines[2].contains("connections") && lines[2].contains("impostor 5"), "{lines:?}");
    }
}
