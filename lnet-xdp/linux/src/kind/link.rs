//! Queues of an interface with rings: what its NIs tell of them, and the alarms.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};

use lnet_io::locks::Mutex;
use lnet_io::netlink::LinkPackets;

use super::spread::Spread;
use crate::lnd::{RingTraffic, Tuples};

/// Queues of an interface with rings. The NIs of the interface share it.
#[derive(Debug)]
pub(super) struct LinkState(Mutex<Queues>);

#[derive(Debug)]
struct Queues {
    /// Receive queues that have sockets.
    served: u32,
    /// Receive and transmit queues that were counted when the sockets were last seen to.
    counted: Option<(u32, u32)>,
    /// Why some queues have no sockets.
    unserved: Option<String>,
    /// Whether queues got sockets since the last look: frames may have come by them before.
    has_grown: bool,
    /// Counts of the last look at frames, and how many there were.
    seen: Option<Seen>,
    looks: u32,
    /// Looks in a row at which frames were steered and none was received.
    deaf_looks: u32,
    /// Fate of frames that arrived nowhere, and the looks since.
    lost: Option<(String, u32)>,
    /// Whether a frame has ever come by the rings: they are not deaf then.
    has_received: bool,
    /// Looks that told of deaf rings, with none between that told otherwise, and what the last one told.
    evidence: u32,
    sign: Option<Deafness>,
    /// Why the rings are given up, once that is found.
    deaf: Option<Deafness>,
    /// Looks at an interface by which frames have left and nothing has ever come, of any kind.
    silent_looks: u32,
    /// Whether something else may carry the frames.
    is_replaceable: bool,
    /// Spread of the frames over the queues.
    spread: Spread,
    /// Queues that are empty while one is busy, and the remedy.
    idle: Option<String>,
    /// Whether it was logged that some queues have none.
    is_spread_logged: bool,
    /// Kinds of flows that a card is told to spread, by the addresses of the NIs.
    hash_kinds: Vec<&'static str>,
}

/// Frames of an interface.
#[derive(Clone, Default, Debug)]
pub(super) struct Seen {
    /// Frames that the program found no socket for.
    pub(super) no_socket: u64,
    /// Frames that it steered, by receive queue.
    pub(super) steered: Vec<u64>,
    /// Frames that it saw, whatever became of them; told while none has been received.
    pub(super) examined: u64,
    /// Traffic of the shards.
    pub(super) traffic: RingTraffic,
    /// Packets that the kernel counts on the interface, where it was asked and the driver runs the program.
    pub(super) packets: Option<LinkPackets>,
}

impl Seen {
    fn steered(&self) -> u64 {
        self.steered.iter().sum()
    }
}

/// How rings that have never received a frame are found to be deaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deafness {
    /// The program steers frames that no socket receives.
    Lost,
    /// The program finds no socket for frames.
    NoSocket,
    /// The interface receives, and the program sees nothing of it.
    Unseen,
    /// The rings take frames that do not leave by the interface.
    Unsent,
}

impl Deafness {
    /// Judges what has happened between two looks: whether it tells of deaf rings, or that the program at
    /// least hears.
    fn judge(former: &Seen, seen: &Seen) -> Result<Self, bool> {
        let grown = |of: fn(&Seen) -> u64| of(seen).saturating_sub(of(former));
        let packets = |of: fn(&LinkPackets) -> u64| match (&former.packets, &seen.packets) {
            (Some(former), Some(now)) => Some(of(now).saturating_sub(of(former))),
            _ => None,
        };
        if grown(Seen::steered) != 0 {
            return Ok(Self::Lost);
        }
        if grown(|seen| seen.no_socket) != 0 {
            return Ok(Self::NoSocket);
        }
        let is_examined = grown(|seen| seen.examined) != 0;
        let has_sent = seen.traffic.sendings != 0;
        if has_sent && !is_examined && packets(|packets| packets.received).is_some_and(|count| count != 0) {
            return Ok(Self::Unseen);
        }
        let sendings = grown(|seen| seen.traffic.sendings);
        if packets(|packets| packets.sent).is_some_and(|count| count < sendings) {
            return Ok(Self::Unsent);
        }
        Err(is_examined)
    }
}

impl fmt::Display for Deafness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Lost => "frames are steered and none is received",
            Self::NoSocket => "frames come by queues without a socket",
            Self::Unseen => "the interface receives, and the XDP program sees nothing of it",
            Self::Unsent => "frames that leave by the rings are not sent",
        })
    }
}

/// Looks at which frames are steered in vain before that is said: some may be on their way.
const DEAF_LOOKS: u32 = 2;
/// Looks that tell of deaf rings until these are given up.
const EVIDENCE_LOOKS: u32 = 3;
/// Looks at rings that have just been opened, which are close to each other.
const YOUNG_LOOKS: u32 = 20;
/// Looks at an interface by which nothing comes until that is said.
const SILENT_LOOKS: u32 = 10;
/// Looks after which an alarm is over.
const CALM_LOOKS: u32 = 10;

impl LinkState {
    /// `is_replaceable`: whether something else may carry the frames of deaf rings.
    pub(super) fn new(served: u32, counted: Option<(u32, u32)>, is_replaceable: bool) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Queues {
            served,
            counted,
            unserved: None,
            has_grown: false,
            seen: None,
            looks: 0,
            deaf_looks: 0,
            lost: None,
            has_received: false,
            evidence: 0,
            sign: None,
            deaf: None,
            silent_looks: 0,
            is_replaceable,
            spread: Spread::default(),
            idle: None,
            is_spread_logged: false,
            hash_kinds: Vec::new(),
        })))
    }

    /// Has the rings stay, whatever they hear: an NI wants them.
    pub(super) fn retain(&self) {
        let mut known = self.known();
        (known.is_replaceable, known.deaf) = (false, None);
    }

    /// Why the rings are to be given up, if they are.
    pub(super) fn deaf(&self) -> Option<Deafness> {
        self.known().deaf
    }

    /// Whether a frame has ever come by the rings.
    pub(super) fn has_received(&self) -> bool {
        self.known().has_received
    }

    /// Whether the rings were opened just now, and nothing has come by them.
    pub(super) fn is_young(&self) -> bool {
        let known = self.known();
        !known.has_received && known.looks < YOUNG_LOOKS
    }

    fn known(&self) -> lnet_io::locks::MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receive queues that have sockets.
    pub(super) fn served(&self) -> u32 {
        self.known().served
    }

    /// An NI of the interface has this address.
    pub(super) fn note_address(&self, address: &IpAddr) {
        let mut known = self.known();
        let hash_kind = if address.is_ipv4() { "udp4" } else { "udp6" };
        if !known.hash_kinds.contains(&hash_kind) {
            known.hash_kinds.push(hash_kind);
        }
    }

    /// Whether the queues that there are now were not seen to yet.
    pub(super) fn differs(&self, counted: Option<(u32, u32)>) -> bool {
        counted.is_some() && self.known().counted != counted
    }

    /// Takes in how many queues were counted; how many there were before.
    pub(super) fn note_counted(&self, counted: (u32, u32)) -> Option<(u32, u32)> {
        self.known().counted.replace(counted)
    }

    /// All queues that there are have sockets: so many. What came by new queues before that was lost with
    /// them, and is sent again by the peers.
    pub(super) fn serve(&self, served: u32) {
        let mut known = self.known();
        if served > known.served {
            (known.has_grown, known.lost) = (true, None);
        }
        (known.served, known.unserved) = (served, None);
    }

    /// Some of the receive queues have no sockets. What is lacking is logged, and told by the NIs.
    pub(super) fn note_unserved(&self, interface: &str, receive: u32, lacking: &str) {
        let mut known = self.known();
        let served = known.served;
        let text = format!(
            "{receive} receive queues, sockets on {served}: tuples on the others never arrive: {lacking}; \
             `ethtool -L {interface} ...` gives it fewer queues"
        );
        tracing::warn!(interface, "{text}");
        known.unserved = Some(text);
    }

    /// Takes in what was counted, every few seconds. Frames that have arrived nowhere since are logged
    /// once, and told by the NIs until there were none for a while. Rings by which nothing has ever come are
    /// found to be deaf where that repeats.
    pub(super) fn note_frames(&self, interface: &str, seen: Seen) {
        let mut known = self.known();
        known.has_received |= seen.traffic.arrived != 0;
        known.looks = known.looks.saturating_add(1);
        if known.note_silence(&seen) {
            tracing::warn!(
                interface,
                "frames leave by the rings and nothing has come since they were opened: the peers are silent, \
                 or the driver is; mode generic or socket tells which"
            );
        }
        let has_grown = std::mem::take(&mut known.has_grown);
        let Some(former) = known.seen.replace(seen.clone()) else { return };
        if !known.has_received {
            known.note_evidence(Deafness::judge(&former, &seen));
        }
        let no_socket = seen.no_socket.saturating_sub(former.no_socket);
        let arrived = seen.traffic.arrived.saturating_sub(former.traffic.arrived);
        let by_queue = (0..seen.steered.len())
            .map(|queue| seen.steered[queue].saturating_sub(former.steered.get(queue).copied().unwrap_or(0)));
        let by_queue: Vec<u64> = by_queue.collect();
        let steered: u64 = by_queue.iter().sum();
        known.note_spread(interface, by_queue, seen.traffic.tuples);
        known.deaf_looks = match (steered, arrived) {
            (0, 0) => known.deaf_looks,
            (_, 0) => known.deaf_looks + 1,
            _ => 0,
        };
        let is_evident = known.evidence >= EVIDENCE_LOOKS && !known.has_received;
        if no_socket != 0 && has_grown {
            tracing::info!(interface, "{no_socket} frames arrived by new queues before these had sockets");
        }
        let text = if no_socket != 0 && !has_grown {
            format!(
                "{no_socket} frames arrived by queues without a socket and were lost: the interface has other \
                 queues than `ethtool -l {interface}` shows, as a bond has; mode socket, or NIs on its slaves"
            )
        } else if steered != 0 && known.deaf_looks >= DEAF_LOOKS {
            "frames are steered and none is received: program and sockets are on different devices, or the driver \
             does not fill its rings; mode generic or socket"
                .to_owned()
        } else if let Some(deafness) = known.sign.filter(|_| is_evident) {
            format!("nothing has come by the rings: {deafness}; another mode")
        } else {
            known.lost = known.lost.take().map(|(text, looks)| (text, looks + 1));
            known.lost.take_if(|(_, looks)| *looks >= CALM_LOOKS);
            return;
        };
        if known.lost.is_none() {
            tracing::warn!(interface, "{text}");
        }
        known.lost = Some((text, 0));
    }

    /// Frames that the program had seen at the last look, if the interface has received nothing since.
    pub(super) fn examined_before(&self, packets: &LinkPackets) -> Option<u64> {
        let known = self.known();
        let former = known.seen.as_ref()?;
        former.packets.filter(|former| former.received == packets.received).map(|_| former.examined)
    }

    /// Frames that were steered until the last look, by receive queue.
    pub(super) fn frames_by_queue(&self) -> Option<Vec<u64>> {
        self.known().seen.as_ref().map(|seen| seen.steered.clone())
    }

    /// Queues that stay empty while one is busy, and the remedy.
    pub(super) fn idle_queues(&self) -> Option<String> {
        self.known().idle.clone()
    }

    /// Alarm, if anything is wrong.
    pub(super) fn alarm(&self) -> Option<String> {
        let known = self.known();
        known.unserved.clone().or_else(|| known.lost.as_ref().map(|(text, _)| text.clone()))
    }
}

impl Queues {
    /// Takes in whether the interface is still wholly silent, and whether that is to be said, once. Rings
    /// stay: peers that are not there, and a switch that forwards nothing yet, look the same as a driver that
    /// is deaf.
    fn note_silence(&mut self, seen: &Seen) -> bool {
        let RingTraffic { arrived, sendings, .. } = seen.traffic;
        let is_silent = seen.packets.is_some() && seen.examined == 0 && arrived == 0 && sendings != 0;
        self.silent_looks += u32::from(is_silent);
        is_silent && self.silent_looks == SILENT_LOOKS
    }

    /// Takes in what a look told of rings by which nothing has ever come.
    fn note_evidence(&mut self, judged: Result<Deafness, bool>) {
        match judged {
            Ok(deafness) => {
                self.evidence += 1;
                self.sign = Some(deafness);
                if self.evidence >= EVIDENCE_LOOKS && self.is_replaceable {
                    self.deaf = Some(deafness);
                }
            }
            // The program hears, and no frame for the node has come.
            Err(true) => self.evidence = 0,
            Err(false) => {}
        }
    }

    /// Judges how frames spread over the queues. Queues that stay empty are logged once.
    fn note_spread(&mut self, interface: &str, by_queue: Vec<u64>, tuples: Tuples) {
        self.spread.note(by_queue, tuples);
        let Some(lone) = self.spread.lone() else {
            self.idle = None;
            return;
        };
        if self.idle.is_some() {
            return;
        }
        let command = |hash_kind: &&str| format!("`ethtool -N {interface} rx-flow-hash {hash_kind} sdfn`");
        let commands: Vec<_> = self.hash_kinds.iter().map(command).collect();
        let text = format!("{lone}; {} has it spread by ports too", commands.join(" and "));
        if !std::mem::replace(&mut self.is_spread_logged, true) {
            tracing::warn!(interface, "{text}");
        }
        self.idle = Some(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen([no_socket, steered, arrived]: [u64; 3]) -> Seen {
        let traffic = RingTraffic { arrived, ..RingTraffic::default() };
        Seen { no_socket, steered: vec![0, steered], traffic, ..Seen::default() }
    }

    fn looks(counts: &[[u64; 3]]) -> Arc<LinkState> {
        let state = LinkState::new(2, None, true);
        counts.iter().for_each(|counts| state.note_frames("eth0", seen(*counts)));
        state
    }

    /// Looks at an interface: packets that it received and sent, frames that the program saw and shards
    /// received, and calls that sent some.
    fn deaf_after(looks: &[[u64; 5]]) -> Option<Deafness> {
        let state = LinkState::new(2, None, true);
        for &[received, sent, examined, arrived, sendings] in looks {
            let packets = Some(LinkPackets { received, sent });
            let traffic = RingTraffic { arrived, sendings, ..RingTraffic::default() };
            state.note_frames("eth0", Seen { examined, traffic, packets, ..Seen::default() });
        }
        state.deaf()
    }

    #[test]
    fn rings_are_deaf_where_the_program_sees_nothing_of_what_comes() {
        let growing = |count: u64| (0..count).map(|look| [look, 1, 0, 0, 1]).collect::<Vec<_>>();
        assert_eq!(deaf_after(&growing(3)), None, "after two intervals");
        assert_eq!(deaf_after(&growing(4)), Some(Deafness::Unseen));
        let with_silence = [0, 1, 1, 2, 3].map(|received| [received, 1, 0, 0, 1]);
        assert_eq!(deaf_after(&with_silence), Some(Deafness::Unseen), "silence tells nothing");
        let seen = [[0, 0], [1, 0], [2, 0], [3, 1], [4, 1]].map(|[came, seen]| [came, 1, seen, 0, 1]);
        assert_eq!(deaf_after(&seen), None, "the program hears");
        let unused = [0, 1, 2, 3, 4].map(|received| [received, 0, 0, 0, 0]);
        assert_eq!(deaf_after(&unused), None, "nothing was sent that could be answered");
    }

    #[test]
    fn rings_are_deaf_where_what_leaves_is_not_sent_and_silent_peers_make_none_deaf() {
        let unsent: Vec<_> = (0..4).map(|look| [look, 0, look, 0, look]).collect();
        assert_eq!(deaf_after(&unsent), Some(Deafness::Unsent));
        let silent: Vec<_> = (0..40).map(|look| [look, look, look, 0, look]).collect();
        assert_eq!(deaf_after(&silent), None, "the peer may have no node");
    }

    #[test]
    fn total_silence_is_said_once_and_makes_no_rings_deaf() {
        let said = |looks: &[[u64; 3]]| {
            let state = LinkState::new(2, None, true);
            let look = |&[examined, arrived, sendings]: &[u64; 3]| {
                let traffic = RingTraffic { arrived, sendings, ..RingTraffic::default() };
                let seen =
                    Seen { examined, traffic, packets: Some(LinkPackets::default()), ..Seen::default() };
                state.known().note_silence(&seen)
            };
            let said = looks.iter().filter(|counts| look(counts)).count();
            (said, state.deaf(), state.alarm())
        };
        let looks = SILENT_LOOKS as usize;
        assert_eq!(said(&vec![[0, 0, 1]; looks - 1]), (0, None, None));
        assert_eq!(said(&vec![[0, 0, 1]; 3 * looks]), (1, None, None));
        assert_eq!(said(&vec![[0, 0, 0]; 3 * looks]).0, 0, "nothing has left that could be answered");
        assert_eq!(said(&vec![[1, 0, 1]; 3 * looks]).0, 0, "frames for others come");
        assert_eq!(said(&vec![[0, 1, 1]; 3 * looks]).0, 0, "frames have come");
    }

    #[test]
    fn rings_that_received_once_are_never_deaf() {
        let mut counts = vec![[0, 0, 0, 1, 0]];
        counts.extend((1..20).map(|look| [look, 0, 0, 1, look]));
        assert_eq!(deaf_after(&counts), None);
        let steered = looks(&[[0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 3, 0]]);
        assert_eq!(steered.deaf(), Some(Deafness::Lost));
        assert!(steered.is_young() && !looks(&[[0, 1, 1]]).is_young());
        let no_socket = looks(&[[0, 0, 0], [1, 0, 0], [2, 0, 0], [3, 0, 0]]);
        assert_eq!(no_socket.deaf(), Some(Deafness::NoSocket));
        assert_eq!(looks(&[[0, 0, 0], [0, 1, 0], [0, 2, 1], [0, 3, 1], [0, 4, 1]]).deaf(), None);
    }

    #[test]
    fn rings_that_an_ni_wants_stay_and_raise_an_alarm() {
        let state = LinkState::new(2, None, true);
        state.retain();
        for look in 0..4 {
            let packets = Some(LinkPackets { received: look, sent: 1 });
            let traffic = RingTraffic { sendings: 1, ..RingTraffic::default() };
            state.note_frames("eth0", Seen { packets, traffic, ..Seen::default() });
        }
        assert_eq!(state.deaf(), None);
        assert!(state.alarm().unwrap().contains("the XDP program sees nothing of it"));
    }

    #[test]
    fn queues_that_stay_empty_are_told_with_the_remedy_for_each_kind_of_address() {
        let state = LinkState::new(4, None, true);
        state.note_address(&"10.0.0.1".parse().unwrap());
        let tuple = |lane: u8| Tuples::of([10, 0, 0, 2], [0xC0, lane, 3, 0xDC]);
        let look = |steered: [u64; 4]| {
            let tuples = (0..8).map(tuple).fold(Tuples::default(), Tuples::and);
            let traffic = RingTraffic { arrived: steered.iter().sum(), tuples, sendings: 0 };
            state.note_frames("eth0", Seen { steered: steered.to_vec(), traffic, ..Seen::default() });
        };
        assert_eq!((state.frames_by_queue(), state.idle_queues()), (None, None));
        look([0, 700, 0, 0]);
        look([0, 1699, 0, 0]);
        assert_eq!(state.idle_queues(), None, "what came before the first look may be old");
        look([0, 1700, 0, 0]);
        assert_eq!(state.frames_by_queue(), Some(vec![0, 1700, 0, 0]));
        let told = state.idle_queues().unwrap();
        assert!(told.contains("queue 1 has had all") && told.contains("the other 3 queues none"), "{told}");
        assert!(
            told.contains("`ethtool -N eth0 rx-flow-hash udp4 sdfn`") && !told.contains("udp6"),
            "{told}"
        );
        assert_eq!(state.alarm(), None, "frames arrive");
        look([900, 1800, 900, 900]);
        assert_eq!(state.idle_queues(), None);
        state.note_address(&"fd00::1".parse().unwrap());
        look([0, 0, 0, 0]);
        (1..12).for_each(|count| look([9000, 9000, 9000, 9000 * count]));
        let told = state.idle_queues().unwrap();
        assert!(told.contains("udp4 sdfn` and `ethtool -N eth0 rx-flow-hash udp6 sdfn`"), "{told}");
    }

    #[test]
    fn frames_that_arrive_nowhere_raise_an_alarm_and_others_do_not() {
        let alarm = |counts: &[[u64; 3]]| looks(counts).alarm();
        assert_eq!(alarm(&[[7, 0, 0]]), None, "before the first look");
        assert!(
            alarm(&[[7, 0, 0], [8, 0, 0]]).unwrap().contains("1 frames arrived by queues without a socket")
        );
        assert_eq!(alarm(&[[0, 5, 5], [0, 9, 5]]), None, "those are on their way");
        assert!(alarm(&[[0, 5, 5], [0, 9, 5], [0, 10, 5]]).unwrap().contains("none is received"));
        assert_eq!(alarm(&[[0, 5, 5], [0, 9, 5], [0, 12, 9], [0, 14, 9]]), None, "some arrive");
        assert_eq!(alarm(&[[0, 5, 5], [0, 5, 5], [0, 5, 5], [0, 5, 5]]), None, "nothing comes");
    }

    #[test]
    fn frames_that_come_by_new_queues_before_their_sockets_raise_no_alarm() {
        let state = looks(&[[0, 0, 0]]);
        state.serve(4);
        state.note_frames("eth0", seen([1, 0, 0]));
        assert_eq!(state.alarm(), None, "the queues had no sockets then");
        state.serve(4);
        state.note_frames("eth0", seen([2, 0, 0]));
        assert!(state.alarm().unwrap().contains("1 frames arrived by queues without a socket"));
        state.serve(6);
        assert_eq!(state.alarm(), None, "the look came before the sockets");
    }

    #[test]
    fn an_alarm_is_over_after_a_while() {
        let state = looks(&[[0, 0, 0], [3, 0, 0]]);
        for look in 0..CALM_LOOKS {
            assert!(state.alarm().is_some(), "{look}");
            state.note_frames("eth0", seen([3, 0, 0]));
        }
        assert_eq!(state.alarm(), None);
    }

    #[test]
    fn queues_without_sockets_are_told_until_all_have_some() {
        let state = looks(&[]);
        assert!(state.differs(Some((4, 4))) && !state.differs(None));
        state.note_counted((4, 4));
        assert!(!state.differs(Some((4, 4))));
        state.note_unserved("eth0", 4, "no memory");
        let alarm = state.alarm().unwrap();
        for part in ["4 receive queues, sockets on 2", "no memory", "ethtool -L eth0"] {
            assert!(alarm.contains(part), "{alarm}");
        }
        state.serve(4);
        assert_eq!((state.alarm(), state.served()), (None, 4));
    }
}
