//! Checks of a cell, by what its machines tell.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::cell::{MESSAGES, TAGGED_FRAMES};
use super::outcomes::Seen;
use super::table::{Cell, MIXED};

/// Frames that a queue, or a net, must have received to count as one that loads go by.
const FRAMES_MIN: u64 = 48;
/// The NIC.
const NIC: &str = "eth0";

/// The state of a machine, as `cell state` told it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct State {
    /// The mode of its first NI over xdp that is in force.
    active_mode: String,
    /// The words of `frames check`, if it failed.
    lost: Option<String>,
    /// Receive queues of the NIC.
    queues: u32,
    /// Sockets of rings by interface and queue: those with zero copy, and all.
    sockets: BTreeMap<(String, u32), (u32, u32)>,
}

impl State {
    /// Reads the lines of `cell state`. Facts that the report has are added to `seen`.
    pub(super) fn read(text: &str, seen: &mut Seen) -> Self {
        let mut state = Self::default();
        for (key, value) in text.lines().filter_map(|line| line.split_once(": ")) {
            let value = value.trim();
            match key {
                "active mode" if state.active_mode.is_empty() => {
                    value.clone_into(&mut state.active_mode);
                    value.clone_into(&mut seen.active_mode);
                }
                "active mode" => {}
                "socket" => state.add_socket(value, seen),
                "driver" => value.clone_into(&mut seen.driver),
                "queues" => {
                    state.queues = value.parse().unwrap_or(0);
                    seen.queues = state.queues;
                }
                "frames" => state.lost = Some(value.to_owned()),
                _ => {
                    let said = if key == "log" { without_time(value) } else { format!("{key}: {value}") };
                    if !seen.said.contains(&said) {
                        seen.said.push(said);
                    }
                }
            }
        }
        state
    }

    /// Adds a socket of an interface's queue, with zero copy or without.
    fn add_socket(&mut self, socket: &str, seen: &mut Seen) {
        let words: Vec<_> = socket.split_whitespace().collect();
        let [interface, queue, zero_copy] = words[..] else { return };
        let (Ok(queue), Ok(zero_copy)) = (queue.parse(), zero_copy.parse::<u32>()) else { return };
        let of_queue = self.sockets.entry((interface.to_owned(), queue)).or_default();
        for counts in [of_queue, &mut seen.zero_copy] {
            counts.0 += zero_copy;
            counts.1 += 1;
        }
    }

    /// Checks that all frames are accounted for.
    ///
    /// # Errors
    /// Gives what `frames check` said.
    pub(super) fn check_frames(&self) -> Result<()> {
        ensure!(self.lost.is_none(), "frames check: {}", self.lost.as_deref().unwrap_or_default());
        Ok(())
    }

    /// Checks a machine whose net is there: it is in the mode that was asked for, each queue of the NIC has a
    /// socket of each shard, and zero copy where the table has it.
    ///
    /// # Errors
    /// Says what was seen instead.
    pub(super) fn check(&self, cell: Cell) -> Result<()> {
        let active_mode = self.active_mode.as_str();
        ensure!(
            matches!(cell.mode, "auto" | "tcp") || cell.mode == active_mode,
            "mode {} is expected in force, not {active_mode}",
            cell.mode
        );
        let of_nic = self.of(true);
        if cell.is_on_nic() && cell.tells_sockets() && matches!(active_mode, "native" | "generic") {
            let shards = u32::from(cell.boot.cpus);
            ensure!(
                of_nic.len() == self.queues as usize && of_nic.iter().all(|(_, all)| *all == shards),
                "{NIC} has {} queues, and {shards} sockets each are expected, not {of_nic:?} (with zero copy, all)",
                self.queues
            );
        }
        if cell.with == MIXED {
            let others = self.of(false);
            let copy = !others.is_empty() && others.iter().all(|(zero_copy, _)| *zero_copy == 0);
            ensure!(copy, "sockets of a veth that copy are expected, not {others:?} (with zero copy, all)");
        }
        self.check_zero_copy(cell)
    }

    /// Checks that the sockets of so many queues of the NIC have zero copy as the table has it, and all
    /// others copy.
    ///
    /// # Errors
    /// Says what was seen instead.
    pub(super) fn check_zero_copy(&self, cell: Cell) -> Result<()> {
        let of_nic = self.of(true);
        let expected = cell.zero_copy_queues(of_nic.len() as u32);
        let zero_copy = of_nic.iter().filter(|(zero_copy, all)| zero_copy == all).count();
        let copy = of_nic.iter().filter(|(zero_copy, _)| *zero_copy == 0).count();
        let is_lacking = cell.zero_copy_queues(1) > 0 && of_nic.is_empty();
        ensure!(
            zero_copy == expected as usize && zero_copy + copy == of_nic.len() && !is_lacking,
            "zero copy by {expected} queues of {NIC} is expected, not {of_nic:?} (with zero copy, all)"
        );
        Ok(())
    }

    /// Sockets by queue, of the NIC or of what is beside it.
    fn of(&self, nic: bool) -> Vec<(u32, u32)> {
        let of = self.sockets.iter().filter(|((interface, _), _)| (interface == NIC) == nic);
        of.map(|(_, counts)| *counts).collect()
    }
}

/// The carrier of long messages, and the frames that have left by the socket beside rings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Carried {
    /// The choice, and why.
    pub(super) carrier: String,
    frames: u64,
}

impl Carried {
    /// Reads the lines of `cell beside_rings`.
    ///
    /// # Errors
    /// When these are others.
    pub(super) fn read(shown: &str) -> Result<Self> {
        let value = |key: &str| {
            let found = shown.lines().find_map(|line| line.trim().strip_prefix(key));
            found.map(str::trim).with_context(|| format!("no {key} {shown:?}"))
        };
        // YAML has some values in quotes.
        let carrier = value("active carrier:")?.trim_matches('"').to_owned();
        Ok(Self { carrier, frames: value("frames beside rings:")?.parse()? })
    }

    fn is_socket(&self) -> bool {
        self.carrier.starts_with("socket")
    }

    /// Checks that long messages left by what was chosen `before`, and by the rings since then.
    ///
    /// # Errors
    /// Says by what they left.
    pub(super) fn check_by_rings(&self, before: &Self) -> Result<()> {
        ensure!(
            before.is_socket() == (before.frames >= FRAMES_MIN)
                && !self.is_socket()
                && self.frames == before.frames,
            "long messages are to leave by what is chosen, and then by rings, not {before:?} and {self:?}"
        );
        Ok(())
    }
}

/// Frames by the reason why an XDP program did not steer them.
#[derive(Default, Debug)]
pub(super) struct Reasons(BTreeMap<String, u64>);

impl Reasons {
    /// Reads `lnetctl --json frames show`.
    ///
    /// # Errors
    /// When that is something else.
    pub(super) fn read(shown: &str) -> Result<Self> {
        #[derive(serde::Deserialize)]
        struct Frames {
            reasons: BTreeMap<String, u64>,
        }
        let frames: Frames = serde_json::from_str(shown.trim()).with_context(|| shown.to_owned())?;
        Ok(Self(frames.reasons))
    }

    /// Checks that all frames of another VLAN were passed up since `before`, and none was looked into.
    ///
    /// # Errors
    /// Says how many were.
    pub(super) fn check_passed(&self, before: &Self) -> Result<()> {
        let more = |name: &str| {
            let [after, before] = [self, before].map(|reasons| reasons.0.get(name).copied().unwrap_or(0));
            after.saturating_sub(before)
        };
        let (passed, looked_into) = (more("not_ours"), more("bad_magic"));
        ensure!(
            passed >= u64::from(TAGGED_FRAMES) && looked_into == 0,
            "{TAGGED_FRAMES} frames of another VLAN are to be passed up, not {passed}, and none looked into, not {looked_into}"
        );
        Ok(())
    }
}

/// Checks that a load went through netem, by what `tc` tells.
///
/// # Errors
/// Gives what `tc` told.
pub(super) fn check_harmed(shown: &str) -> Result<()> {
    let words = shown.split_whitespace();
    let sent = words.clone().zip(words.skip(1)).find(|(_, unit)| *unit == "pkt");
    let packets = sent.and_then(|(count, _)| count.parse::<u32>().ok());
    let is_netem = shown.contains("qdisc netem");
    ensure!(
        is_netem && packets.is_some_and(|packets| packets >= MESSAGES),
        "the load did not go through netem: {}",
        shown.trim()
    );
    Ok(())
}

/// Frames by queue, in what `net show` tells.
pub(super) fn frames_of(shown: &str) -> Vec<u64> {
    let counts = shown.lines().filter_map(|line| line.split_once(": "));
    counts.filter_map(|(_, count)| count.trim().parse().ok()).collect()
}

/// Checks that each of so many queues has received its share of frames, by what `net show` tells.
///
/// # Errors
/// Says what each has received.
pub(super) fn check_spread(shown: &str, queues: usize) -> Result<()> {
    let counts = frames_of(shown);
    ensure!(
        counts.len() == queues && counts.iter().all(|count| *count >= FRAMES_MIN),
        "{FRAMES_MIN} frames and more by each of {queues} queues are expected, not {counts:?}"
    );
    Ok(())
}

/// Checks that both the NIC and the veth have received frames, by the frames by queue of each.
///
/// # Errors
/// Says what each has received.
pub(super) fn check_shared(nic: Vec<u64>, veth: Vec<u64>) -> Result<()> {
    let has_any = |counts: &[u64]| counts.iter().sum::<u64>() >= FRAMES_MIN;
    ensure!(
        has_any(&nic) && has_any(&veth),
        "{FRAMES_MIN} frames and more by the NIC and by the veth are expected, not {nic:?} and {veth:?}"
    );
    Ok(())
}

/// Checks three answers to requests out of registered memory, and the zero copy of both ends.
///
/// # Errors
/// Gives what was answered, or the sockets.
pub(super) fn check_registered(cell: Cell, asked: &str, served: &str) -> Result<()> {
    let answers = asked.lines().filter(|line| line.contains("bytes of registered memory, the sum is "));
    ensure!(answers.count() == 3, "three answers out of registered memory are expected: {asked}");
    for (end, text) in [("asks", asked), ("serves", served)] {
        let state = State::read(text, &mut Seen::default());
        state.check_zero_copy(cell).with_context(|| format!("the program that {end}"))?;
    }
    Ok(())
}

/// A line of the log from its level on.
fn without_time(line: &str) -> String {
    let begins = ["WARN ", "ERROR "].iter().filter_map(|level| line.find(level)).min();
    line[begins.unwrap_or(0)..].to_owned()
}

/// Checks that a cell has gone as the one in `cargo xtask test` is to go: over rings in a driver's own mode.
///
/// # Errors
/// Says what was seen instead.
pub(super) fn check_native(seen: &Seen) -> Result<()> {
    ensure!(seen.active_mode == "native", "mode `native` is expected in force, not {seen:?}");
    ensure!(seen.zero_copy.1 > 0, "sockets of rings are expected, not {seen:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::table::{cells, only};
    use super::*;

    /// The first cell with these parts in its name.
    fn cell(words: &str) -> Cell {
        let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
        only(&cells(), &words).unwrap()[0]
    }

    /// Lines of sockets of an interface: so many by each queue with zero copy, and without.
    fn sockets(interface: &str, by_queue: &[(u32, u32)]) -> String {
        let line = |queue: usize, zero_copy: u32| format!("socket: {interface} {queue} {zero_copy}\n");
        let of_queue = |(queue, (zero, copy)): (usize, &(u32, u32))| {
            line(queue, 1).repeat(*zero as usize) + &line(queue, 0).repeat(*copy as usize)
        };
        by_queue.iter().enumerate().map(of_queue).collect()
    }

    /// Whether a machine with these sockets of the NIC passes.
    fn passes(words: &str, mode: &str, queues: u32, by_queue: &[(u32, u32)]) -> bool {
        let text = format!("active mode: {mode}\nqueues: {queues}\n{}", sockets(NIC, by_queue));
        State::read(&text, &mut Seen::default()).check(cell(words)).is_ok()
    }

    #[test]
    fn a_load_is_harmed_where_netem_has_sent_its_packets() {
        let shown = |packets: u32| {
            format!(
                "qdisc netem 8001: root refcnt 5 limit 1000 loss 1%\n Sent 52166 bytes {packets} pkt (dropped 4, overlimits 0)\n"
            )
        };
        check_harmed(&shown(MESSAGES)).unwrap();
        assert!(check_harmed(&shown(MESSAGES - 1)).unwrap_err().to_string().contains("399 pkt"));
        check_harmed(&shown(9000).replace("netem", "mq")).unwrap_err();
    }

    #[test]
    fn a_load_is_spread_where_each_queue_has_its_share_of_frames() {
        check_spread("  0: 48\n  1: 700\n", 2).unwrap();
        for shown in ["0: 700\n1: 47\n", "0: 700\n", ""] {
            check_spread(shown, 2).unwrap_err();
        }
        assert!(check_spread("0: 90\n1: 1\n", 2).unwrap_err().to_string().contains("not [90, 1]"));
        check_shared(vec![40, 8], vec![48]).unwrap();
        check_shared(vec![400, 8], vec![47]).unwrap_err();
        check_shared(vec![], vec![48]).unwrap_err();
    }

    #[test]
    fn frames_of_another_vlan_are_not_looked_into() {
        let read = |ours: u32, bad: u32| {
            Reasons::read(&format!(r#"{{"reasons":{{"not_ours":{ours},"bad_magic":{bad}}},"slots":[]}}"#))
                .unwrap()
        };
        let before = read(7, 3);
        read(7 + TAGGED_FRAMES, 3).check_passed(&before).unwrap();
        for after in [read(6 + TAGGED_FRAMES, 3), read(7 + TAGGED_FRAMES, 4), Reasons::default()] {
            after.check_passed(&before).unwrap_err();
        }
    }

    #[test]
    fn each_queue_has_a_socket_of_each_shard() {
        let igb = "6.12 igb 2c grows";
        assert!(passes(igb, "native", 3, &[(0, 2), (0, 2), (0, 2)]));
        assert!(!passes(igb, "native", 3, &[(0, 2), (0, 2)]));
        assert!(!passes(igb, "native", 2, &[(0, 2), (0, 1)]));
        assert!(!passes(igb, "generic", 1, &[]));
        // Sockets of UDP are not among them.
        assert!(passes(igb, "socket", 2, &[]));
        assert!(!passes("6.12 igb socket", "native", 1, &[(0, 2)]));
        // A kernel that cannot tell tells nothing.
        assert!(passes("6.1 igb rings", "native", 2, &[]));
    }

    #[test]
    fn a_cell_that_loses_zero_copy_fails() {
        assert!(passes("sid igb changes", "native", 2, &[(2, 0), (2, 0)]));
        assert!(!passes("sid igb changes", "native", 2, &[(2, 0), (0, 2)]));
        assert!(!passes("sid igb changes", "native", 2, &[(2, 0), (1, 1)]));
        assert!(!passes("sid igb changes", "socket", 2, &[]));
        let virtio = "sid virtio-iommu 2c lives";
        assert!(passes(virtio, "native", 4, &[(2, 0), (2, 0), (0, 2), (0, 2)]));
        assert!(!passes(virtio, "native", 4, &[(0, 2), (0, 2), (0, 2), (0, 2)]));
        assert!(!passes("6.12 igb changes", "native", 1, &[(2, 0)]));
    }

    #[test]
    fn rings_of_a_veth_copy_beside_those_with_zero_copy() {
        let check = |veth: &[(u32, u32)]| {
            let rings = sockets(NIC, &[(2, 0)]) + &sockets("upper", veth);
            let text = format!("active mode: native\nactive mode: generic\nqueues: 1\n{rings}");
            State::read(&text, &mut Seen::default()).check(cell("sid igb mixed"))
        };
        check(&[(0, 2)]).unwrap();
        check(&[]).unwrap_err();
        assert!(check(&[(1, 1)]).unwrap_err().to_string().contains("not [(1, 2)]"));
    }

    #[test]
    fn registered_memory_is_checked_at_both_ends() {
        let answer =
            |memory: &str| format!("request 1: 100 bytes of {memory} memory, the sum is 1, 1 was expected\n");
        let cell = cell("sid virtio-iommu registered");
        let rings = sockets(NIC, &[(1, 0), (1, 0), (0, 1), (0, 1)]);
        let asked = answer("registered").repeat(3) + &rings;
        check_registered(cell, &asked, &rings).unwrap();
        let ordinary = answer("registered").repeat(2) + &answer("ordinary") + &rings;
        check_registered(cell, &ordinary, &rings).unwrap_err();
        let copy = sockets(NIC, &[(0, 1); 4]);
        for served in [&copy, ""] {
            check_registered(cell, &asked, served).unwrap_err();
        }
        check_registered(cell, &(answer("registered").repeat(3) + &copy), &rings).unwrap_err();
    }

    #[test]
    fn long_messages_leave_by_what_is_chosen_and_then_by_rings() {
        let carried = |carrier: &str, frames: u32| {
            let shown = format!("  active carrier: {carrier}, why\nframes beside rings: {frames}\n");
            Carried::read(&shown).unwrap()
        };
        let check = |before: (&str, u32), after: (&str, u32)| {
            carried(after.0, after.1).check_by_rings(&carried(before.0, before.1)).is_ok()
        };
        assert!(check(("socket", 300), ("rings", 300)) && check(("rings", 0), ("rings", 0)));
        assert!(!check(("socket", 0), ("rings", 0)) && !check(("rings", 300), ("rings", 300)));
        assert!(!check(("socket", 300), ("rings", 301)) && !check(("socket", 300), ("socket", 300)));
        Carried::read("active carrier: rings, why\n").unwrap_err();
        let quoted = Carried::read("active carrier: \"socket, why\"\nframes beside rings: 9\n").unwrap();
        assert!(quoted.is_socket());
    }

    #[test]
    fn the_state_of_both_machines_is_added_up() {
        let mut seen = Seen::default();
        let told = format!(
            "active mode: native\n{}driver: igb\nqueues: 4\nlog: 2026-01-01T00:00:00Z  WARN a: b\n",
            sockets(NIC, &[(1, 2)])
        );
        State::read(&told, &mut seen).check_frames().unwrap();
        let told = format!("{told}no rings: why\nframes: 3 frames are missing\n");
        let lost = State::read(&told, &mut seen).check_frames().unwrap_err().to_string();
        assert_eq!(lost, "frames check: 3 frames are missing");
        let said = ["WARN a: b", "no rings: why"].map(str::to_owned).to_vec();
        let expected =
            Seen { active_mode: "native".into(), zero_copy: (2, 6), driver: "igb".into(), queues: 4, said };
        assert_eq!(seen, expected);
        check_native(&seen).unwrap();
        check_native(&Seen::default()).unwrap_err();
    }
}
