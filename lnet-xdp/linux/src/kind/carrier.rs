//! The choice of what takes the long messages of an NI over rings: these, or a socket beside them. No I/O.
//!
//! A socket hands the kernel many frames at once, a run, which a card cuts up. Over rings each frame costs
//! the kernel as much as a packet. A device of software has the run cut up by the CPU that sends, before an
//! XDP program sees it. Over a veth that costs less all the same, but for the shortest long messages where a
//! frame is as long as a run may be, which take as long by either (docs/performance.md). Other devices of
//! software were not measured.

use std::fmt;

use lnet_io::reactor::udp::NoRuns;
use lnet_model::lnd::Carrier;

use crate::lnd::SharedRuns;

/// Facts about an NI over rings by which it is chosen what takes its long messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Facts {
    /// Whether a device of a bus stands behind the interface.
    pub(super) has_device: bool,
    /// Whether it is one end of a veth pair.
    pub(super) is_veth: bool,
    /// Whether the interface cuts up runs; `None` where the kernel does not tell.
    pub(super) cuts_runs: Option<bool>,
    /// Whether the device reads the frames of the rings itself.
    pub(super) zero_copy: bool,
    /// Reason why there is no socket, where that is so.
    pub(super) no_socket: Option<String>,
}

/// Why long messages go by what they go by.
#[derive(Clone, PartialEq, Eq, Debug)]
enum CarrierReason {
    /// The option says so; each frame goes alone by a socket whose runs the kernel refuses.
    Option(Option<NoRuns>),
    /// There is no socket.
    NoSocket(String),
    /// The device reads the frames of the rings itself.
    ZeroCopy,
    /// The kernel refuses runs.
    Refused(NoRuns),
    /// The interface is one end of a veth pair.
    Veth,
    /// The interface is another one of software.
    Software,
    /// The device does not cut up runs.
    Uncut,
    /// The device cuts up runs.
    Cut,
}

/// Carrier of long messages, and why it is that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CarrierChoice {
    by_socket: bool,
    reason: CarrierReason,
}

/// The carrier of the long messages of an open NI.
#[derive(Default, Debug)]
pub(super) struct OpenCarrier {
    /// The wish for an NI over rings, and the facts about it; one over sockets has nothing to choose.
    beside_rings: Option<(Carrier, Facts)>,
    /// The kernel's refusal of runs, as soon as a shard finds it.
    runs: SharedRuns,
}

impl OpenCarrier {
    /// An NI over sockets, whose shards note in `runs` what they find.
    pub(super) fn of_sockets(runs: &SharedRuns) -> Self {
        Self { beside_rings: None, runs: runs.clone() }
    }

    /// An NI over rings with this wish and these facts, whose shards note in `runs` what they find.
    pub(super) fn beside_rings(option: Carrier, facts: Facts, runs: &SharedRuns) -> Self {
        Self { beside_rings: Some((option, facts)), runs: runs.clone() }
    }

    /// The choice at present, for an NI over rings.
    pub(super) fn choice(&self) -> Option<CarrierChoice> {
        self.beside_rings.as_ref().map(|(option, facts)| choose(*option, facts, self.runs.refused()))
    }

    /// Takes in another wish; the choice then.
    pub(super) fn change(&mut self, asked: Carrier) -> Option<CarrierChoice> {
        self.beside_rings.as_mut()?.0 = asked;
        self.choice()
    }

    /// Words for `net show` and `explain`. Of an NI over sockets there is something to say where each frame
    /// goes alone.
    pub(super) fn words(&self) -> Option<String> {
        let alone = || self.runs.refused().map(|refused| format!("{}, {refused}", Carrier::Socket));
        self.choice().map(|choice| choice.to_string()).or_else(alone)
    }
}

/// Chooses what takes the long messages of an NI.
fn choose(option: Carrier, facts: &Facts, refused: Option<NoRuns>) -> CarrierChoice {
    let rings = |reason| CarrierChoice { by_socket: false, reason };
    if let Some(why) = facts.no_socket.clone().filter(|_| option != Carrier::Rings) {
        return rings(CarrierReason::NoSocket(why));
    }
    let socket = |reason| CarrierChoice { by_socket: true, reason };
    match (option, refused) {
        (Carrier::Rings, _) => rings(CarrierReason::Option(None)),
        (Carrier::Socket, refused) => socket(CarrierReason::Option(refused)),
        (Carrier::Auto, _) if facts.zero_copy => rings(CarrierReason::ZeroCopy),
        (Carrier::Auto, Some(refused)) => rings(CarrierReason::Refused(refused)),
        (Carrier::Auto, None) if facts.is_veth => socket(CarrierReason::Veth),
        (Carrier::Auto, None) if !facts.has_device => rings(CarrierReason::Software),
        (Carrier::Auto, None) if facts.cuts_runs != Some(true) => rings(CarrierReason::Uncut),
        (Carrier::Auto, None) => socket(CarrierReason::Cut),
    }
}

impl CarrierChoice {
    /// The choice as the shards are told it: `auto` is the socket, to peers that take runs.
    pub(super) fn of_shards(&self) -> Carrier {
        match (self.by_socket, &self.reason) {
            (false, _) => Carrier::Rings,
            (true, CarrierReason::Option(_)) => Carrier::Socket,
            (true, _) => Carrier::Auto,
        }
    }
}

impl fmt::Display for CarrierChoice {
    /// Writes the choice as `net show` and `explain` have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let carrier = if self.by_socket { Carrier::Socket } else { Carrier::Rings };
        write!(f, "{carrier}, ")?;
        match &self.reason {
            CarrierReason::Option(None) => write!(f, "carrier is {carrier}"),
            CarrierReason::Option(Some(refused)) => write!(f, "carrier is {carrier}, each frame alone: {refused}"),
            CarrierReason::Refused(refused) => write!(f, "{refused}"),
            CarrierReason::NoSocket(why) => write!(f, "a socket cannot be had: {why}"),
            CarrierReason::ZeroCopy => f.write_str("they have zero copy"),
            CarrierReason::Veth => f.write_str(
                "a run of frames costs a veth less than each alone (mode socket carries more still where the MTU is \
                 short, small messages take twice as long); rings to peers in generic mode, which take no runs",
            ),
            CarrierReason::Software => f.write_str("no device stands behind the interface that could cut up runs"),
            CarrierReason::Uncut => f.write_str("the device does not cut up runs (tx-udp-segmentation)"),
            CarrierReason::Cut => f.write_str(
                "the device cuts up runs (tx-udp-segmentation); rings to peers in generic mode, which take none",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    const CARD: Facts =
        Facts { has_device: true, is_veth: false, cuts_runs: Some(true), zero_copy: false, no_socket: None };

    fn check(option: Carrier, facts: &Facts, of_shards: Carrier, words: &str) {
        let chosen = choose(option, facts, None);
        assert_eq!(chosen.of_shards(), of_shards, "{option} {facts:?}");
        assert_eq!(chosen.to_string().split(" (").next(), Some(words), "{option} {facts:?}");
    }

    #[test]
    fn auto_is_the_socket_where_a_card_cuts_up_runs_and_the_kernel_would_copy() {
        check(Carrier::Auto, &CARD, Carrier::Auto, "socket, the device cuts up runs");
        let software = "rings, no device stands behind the interface that could cut up runs";
        check(Carrier::Auto, &Facts { has_device: false, ..CARD }, Carrier::Rings, software);
        let zero_copy = Facts { zero_copy: true, ..CARD };
        check(Carrier::Auto, &zero_copy, Carrier::Rings, "rings, they have zero copy");
        for cuts_runs in [Some(false), None] {
            let uncut = Facts { cuts_runs, ..CARD };
            check(Carrier::Auto, &uncut, Carrier::Rings, "rings, the device does not cut up runs");
        }
    }

    #[test]
    fn auto_is_the_socket_over_a_veth_whatever_that_cuts_up() {
        let words = "socket, a run of frames costs a veth less than each alone";
        for cuts_runs in [Some(true), Some(false), None] {
            let veth = Facts { has_device: false, is_veth: true, cuts_runs, ..CARD };
            check(Carrier::Auto, &veth, Carrier::Auto, words);
            check(Carrier::Rings, &veth, Carrier::Rings, "rings, carrier is rings");
            let without = Facts { no_socket: Some("too many files".to_owned()), ..veth };
            let refused = "rings, a socket cannot be had: too many files";
            check(Carrier::Auto, &without, Carrier::Rings, refused);
        }
    }

    /// A refusal that a shard finds when it sends changes the choice of an open NI.
    #[test]
    fn runs_that_the_kernel_refuses_leave_auto_to_the_rings() {
        let refused = NoRuns { option: "UDP_SEGMENT", errno: Errno::IO };
        let words = "the kernel refuses runs of frames (UDP_SEGMENT): Input/output error";
        let runs = SharedRuns::default();
        let mut open = OpenCarrier::beside_rings(Carrier::Auto, CARD, &runs);
        let sockets = OpenCarrier::of_sockets(&runs);
        assert!(open.words().unwrap().starts_with("socket, the device cuts up runs"));
        assert_eq!(sockets.words(), None);
        assert!(runs.refuse(refused), "the first to find it");
        assert!(!runs.refuse(refused));
        let begins = |open: &OpenCarrier, words: String| {
            let told = open.words().unwrap();
            assert!(told.starts_with(&words), "{told}");
        };
        begins(&open, format!("rings, {words}"));
        begins(&sockets, format!("socket, {words}"));
        assert_eq!(open.change(Carrier::Auto).unwrap().of_shards(), Carrier::Rings);
        assert_eq!(open.change(Carrier::Socket).unwrap().of_shards(), Carrier::Socket);
        begins(&open, format!("socket, carrier is socket, each frame alone: {words}"));
        let zero_copy = Facts { zero_copy: true, ..CARD };
        let chosen = choose(Carrier::Auto, &zero_copy, Some(refused));
        assert_eq!(chosen.to_string(), "rings, they have zero copy");
    }

    #[test]
    fn what_is_asked_for_is_had_where_it_can_be() {
        let software = Facts { has_device: false, cuts_runs: None, zero_copy: true, ..CARD };
        for facts in [&CARD, &software] {
            check(Carrier::Socket, facts, Carrier::Socket, "socket, carrier is socket");
            check(Carrier::Rings, facts, Carrier::Rings, "rings, carrier is rings");
        }
        let without = Facts { no_socket: Some("too many files".to_owned()), ..CARD };
        for option in [Carrier::Auto, Carrier::Socket] {
            check(option, &without, Carrier::Rings, "rings, a socket cannot be had: too many files");
        }
        check(Carrier::Rings, &without, Carrier::Rings, "rings, carrier is rings");
    }
}
