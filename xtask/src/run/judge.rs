//! Whether a run holds: a function of what both ends say and of nothing else.

use serde::Serialize;

use super::report::{Faults, Frames, Initiator, Kind, Target};

/// The least share of an end's frames that each of its shards must have taken, in percent.
const SHARE_MIN_PERCENT: u64 = 10;
/// So many frames must have been due to be dropped before it is judged how many were.
const DROPS_MIN: u64 = 20;

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// Messages.
    pub(crate) count: u64,
    /// Shards of each end.
    pub(crate) shards: u32,
    /// NIs of each end.
    pub(crate) nis: usize,
    /// How their frames are to reach the shards; `auto` leaves it open.
    pub(crate) mode: &'a str,
    /// Frames of a million that XDP is to drop.
    pub(crate) loss_per_million: u32,
}

/// What the judge says.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct Verdict {
    /// Why the run does not hold; empty when it does.
    pub(crate) failures: Vec<String>,
}

/// Judges a run.
pub(crate) fn judge(wanted: &Wanted, initiator: &Initiator, target: &Target) -> Verdict {
    let mut failures = Vec::new();
    judge_messages(wanted.count, initiator, target, &mut failures);
    judge_faults("initiator", &initiator.load.faults, &mut failures);
    judge_faults("target", &target.load.faults, &mut failures);
    for (role, frames, by_shard) in [
        ("initiator", &initiator.frames, &initiator.load.by_shard),
        ("target", &target.frames, &target.load.by_shard),
    ] {
        judge_nis(wanted, role, frames, &mut failures);
        judge_shards(wanted.shards, role, frames, by_shard, &mut failures);
        if frames.has_rings() {
            judge_steering(role, frames, &mut failures);
        }
        judge_loss(wanted, role, frames, &mut failures);
    }
    Verdict { failures }
}

/// Every message has ended, and both ends know the same of them.
fn judge_messages(count: u64, initiator: &Initiator, target: &Target, failures: &mut Vec<String>) {
    let (sent, seen) = (&initiator.load, &target.load);
    let ended = Kind::ALL.map(|kind| sent.tally(kind).messages).iter().sum::<u64>() + sent.faults.count;
    if ended != count {
        failures.push(format!("{ended} messages ended instead of {count}"));
    }
    if sent.is_cancelled || sent.has_given_up {
        failures.push("the initiator did not go on to the end".to_owned());
    }
    for kind in Kind::ALL {
        let (ours, theirs) = (sent.tally(kind), seen.tally(kind));
        if ours != theirs {
            failures.push(format!(
                "the initiator counts {} {}s of {} bytes, the target {} of {} bytes",
                ours.messages,
                kind.name(),
                ours.bytes,
                theirs.messages,
                theirs.bytes
            ));
        }
    }
    if seen.interrupted != 0 {
        failures.push(format!("{} messages were still arriving when the target stopped", seen.interrupted));
    }
    if seen.lost_entries != 0 {
        failures.push(format!("{} entries of the target did not come back", seen.lost_entries));
    }
}

fn judge_faults(role: &str, faults: &Faults, failures: &mut Vec<String>) {
    if faults.count == 0 {
        return;
    }
    let kinds: Vec<String> = faults.by_kind.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
    let first = faults.first.first().map(|fault| format!("; the first: {fault}")).unwrap_or_default();
    failures.push(format!("the {role} found {} faults ({}){first}", faults.count, kinds.join(", ")));
}

fn judge_nis(wanted: &Wanted, role: &str, frames: &Frames, failures: &mut Vec<String>) {
    if frames.nis.len() != wanted.nis {
        failures.push(format!("the {role} has {} NIs instead of {}", frames.nis.len(), wanted.nis));
    }
    for ni in frames.nis.iter().filter(|ni| wanted.mode != "auto" && ni.mode != wanted.mode) {
        failures.push(format!("{} is in mode {} instead of {}", ni.nid, ni.mode, wanted.mode));
    }
}

/// Each shard must have had its share: of frames where they were counted, else of messages.
fn judge_shards(shards: u32, role: &str, frames: &Frames, by_shard: &[u64], failures: &mut Vec<String>) {
    let messages = |shard: u32| by_shard.get(shard as usize).copied().unwrap_or(0);
    let (what, shares): (_, Vec<u64>) = if frames.has_rings() {
        ("frames", (0..shards).map(|shard| frames.shard_frames(shard)).collect())
    } else {
        ("messages", (0..shards).map(messages).collect())
    };
    let total: u64 = shares.iter().sum();
    if total == 0 {
        failures.push(format!("no {what} reached the shards of the {role}"));
        return;
    }
    for (shard, share) in shares.into_iter().enumerate() {
        if share * 100 < total * SHARE_MIN_PERCENT {
            failures.push(format!(
                "shard {shard} of the {role} took {share} of {total} {what}, under {SHARE_MIN_PERCENT} %"
            ));
        }
    }
}

/// Nothing is under way when the frames are counted, and the policies have not changed since the NIs came.
fn judge_steering(role: &str, frames: &Frames, failures: &mut Vec<String>) {
    if frames.misdirected != 0 {
        failures.push(format!("{} frames arrived at the wrong shard of the {role}", frames.misdirected));
    }
    let (steered, accounted) = (frames.steered(), frames.accounted());
    if steered != accounted {
        failures.push(format!("of {steered} frames steered at the {role}, {accounted} are accounted for"));
    }
}

/// What was to be lost was, and nothing else by a rule.
fn judge_loss(wanted: &Wanted, role: &str, frames: &Frames, failures: &mut Vec<String>) {
    let dropped = frames.fault_dropped();
    if wanted.loss_per_million == 0 && dropped != 0 {
        failures.push(format!("a fault rule that nobody asked for dropped {dropped} frames of the {role}"));
    }
    let due = (frames.steered() + dropped) * u64::from(wanted.loss_per_million) / 1_000_000;
    if due >= DROPS_MIN && (dropped < due / 2 || dropped > due * 2) {
        failures.push(format!("about {due} frames of the {role} were to be dropped, {dropped} were"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::{
        ClassReport, FramesNi, InitiatorLoad, Latency, SizeClass, Slot, Tally, TargetLoad,
    };

    const COUNT: u64 = 1000;
    const WANTED: Wanted<'_> = Wanted { count: COUNT, shards: 2, nis: 2, mode: "auto", loss_per_million: 0 };

    fn frames() -> Frames {
        let slot = |queue, shard, frames| Slot { queue, shard, frames };
        let ni = |nid: &str| FramesNi { nid: nid.into(), mode: "native".into() };
        Frames {
            nis: vec![ni("10.0.0.1@xdp"), ni("10.0.1.1@xdp1")],
            slots: vec![slot(0, 0, 600), slot(0, 1, 0), slot(1, 0, 0), slot(1, 1, 400)],
            handled: [("taken".to_owned(), 1000)].into(),
            ..Frames::default()
        }
    }

    /// What both ends of a run that holds say.
    fn good() -> (Initiator, Target) {
        let class = SizeClass { min_bytes: 0, max_bytes: 64 };
        let of = |kind, messages, bytes| ClassReport {
            class,
            kind,
            tally: Tally { messages, bytes },
            latency: Latency::default(),
        };
        let load = InitiatorLoad {
            classes: vec![of(Kind::Put, 600, 6000), of(Kind::Get, 400, 4000)],
            by_shard: vec![500, 500],
            ..InitiatorLoad::default()
        };
        let seen = TargetLoad {
            puts: Tally { messages: 600, bytes: 6000 },
            gets: Tally { messages: 400, bytes: 4000 },
            by_shard: vec![700, 300],
            ..TargetLoad::default()
        };
        (Initiator { load, frames: frames() }, Target { load: seen, frames: frames() })
    }

    /// Changes what the ends of a run that holds say; each of `expected` must be part of one failure, in
    /// order.
    fn check_wanted(wanted: &Wanted, change: impl FnOnce(&mut Initiator, &mut Target), expected: &[&str]) {
        let (mut initiator, mut target) = good();
        change(&mut initiator, &mut target);
        let failures = judge(wanted, &initiator, &target).failures;
        assert_eq!(failures.len(), expected.len(), "{failures:?}");
        for (failure, part) in failures.iter().zip(expected) {
            assert!(failure.contains(part), "{part:?} is not in {failure:?}");
        }
    }

    fn check(change: impl FnOnce(&mut Initiator, &mut Target), expected: &[&str]) {
        check_wanted(&WANTED, change, expected);
    }

    #[test]
    fn a_good_run_holds() {
        check(|_, _| (), &[]);
    }

    #[test]
    fn both_ends_must_know_of_every_message() {
        check(|_, target| target.load.puts.messages = 599, &["600 Puts of 6000 bytes, the target 599"]);
        check(|_, target| target.load.gets.bytes = 1, &["400 Gets of 4000 bytes, the target 400 of 1 bytes"]);
        let fewer = |initiator: &mut Initiator, target: &mut Target| {
            initiator.load.classes[0].tally.messages = 599;
            target.load.puts.messages = 599;
        };
        check(fewer, &["999 messages ended instead of 1000"]);
        check(|initiator, _| initiator.load.is_cancelled = true, &["did not go on"]);
        check(|initiator, _| initiator.load.has_given_up = true, &["did not go on"]);
        check(|_, target| target.load.interrupted = 2, &["2 messages were still arriving"]);
        check(|_, target| target.load.lost_entries = 3, &["3 entries of the target"]);
    }

    #[test]
    fn faults_are_told_by_kind() {
        let faults = Faults {
            count: 2,
            by_kind: [("byte".to_owned(), 2)].into(),
            first: vec![serde_json::json!({"number": 7})],
        };
        let ours = faults.clone();
        let of_the_initiator = |initiator: &mut Initiator, _: &mut Target| {
            initiator.load.faults = ours;
            initiator.load.classes[0].tally.messages = 598;
        };
        check(
            of_the_initiator,
            &["598 Puts of", r#"the initiator found 2 faults (byte: 2); the first: {"number":7}"#],
        );
        check(|_, target| target.load.faults = faults, &["the target found 2 faults"]);
    }

    #[test]
    fn each_shard_of_both_ends_must_take_its_share() {
        let check_frames = |change: fn(&mut Frames), expected: &str| {
            let account = |frames: &mut Frames| {
                change(frames);
                frames.handled = [("taken".to_owned(), frames.steered())].into();
            };
            let both = |initiator: &mut Initiator, target: &mut Target| {
                account(&mut initiator.frames);
                account(&mut target.frames);
            };
            let said = ["initiator", "target"].map(|role| expected.replace("ROLE", role));
            let said: Vec<&str> = said.iter().map(String::as_str).filter(|said| !said.is_empty()).collect();
            check(both, &said);
        };
        check_frames(|frames| frames.slots[3].frames = 67, "");
        check_frames(|frames| frames.slots[3].frames = 66, "shard 1 of the ROLE took 66 of 666 frames");
        check_frames(|frames| frames.slots[0].frames = 0, "shard 0 of the ROLE took 0 of 400 frames");
        check_frames(|frames| frames.slots.truncate(2), "shard 1 of the ROLE took 0 of 600");
        check_frames(|frames| frames.slots.clear(), "no frames reached the shards of the ROLE");
        // The share is a shard's, not a socket's.
        check_frames(|frames| frames.slots[3] = Slot { queue: 0, shard: 1, frames: 400 }, "");
    }

    #[test]
    fn over_sockets_messages_are_judged_for_frames() {
        let sockets = |target: &mut Target| {
            target.frames.nis.iter_mut().for_each(|ni| ni.mode = "socket".into());
            target.frames.slots.clear();
            target.frames.misdirected = 5;
        };
        check(|_, target| sockets(target), &[]);
        let idle = |_: &mut Initiator, target: &mut Target| {
            sockets(target);
            target.load.by_shard = vec![950, 50];
        };
        check(idle, &["shard 1 of the target took 50 of 1000 messages"]);
    }

    #[test]
    fn each_frame_must_be_accounted_for_and_none_misdirected() {
        let handle = |target: &mut Target, name: &str, count| {
            target.frames.handled.insert(name.to_owned(), count);
        };
        check(|_, target| handle(target, "taken", 999), &["of 1000 frames steered at the target, 999"]);
        check(|_, target| handle(target, "refused", 1), &["of 1000 frames steered at the target, 1001"]);
        let lost = |_: &mut Initiator, target: &mut Target| {
            handle(target, "taken", 998);
            target.frames.rings = [("rx_dropped".to_owned(), 1), ("rx_ring_full".to_owned(), 1)].into();
        };
        check(lost, &[]);
        check(
            |_, target| target.frames.misdirected = 1,
            &["1 frames arrived at the wrong shard of the target"],
        );
        check(|initiator, _| initiator.frames.misdirected = 2, &["wrong shard of the initiator"]);
    }

    #[test]
    fn the_nis_must_be_as_wanted() {
        check(|_, target| drop(target.frames.nis.pop()), &["the target has 1 NIs instead of 2"]);
        let generic = Wanted { mode: "generic", ..WANTED };
        let is_native = "is in mode native instead of generic";
        check_wanted(&generic, |_, _| (), &[is_native, is_native, is_native, is_native]);
    }

    #[test]
    fn what_is_to_be_lost_must_be() {
        let one_percent = Wanted { loss_per_million: 10_000, ..WANTED };
        let lose = |dropped: u64, frames: &mut Frames| {
            frames.slots[0].frames = 6000 - dropped;
            frames.slots[3].frames = 4000;
            frames.handled = [("taken".to_owned(), frames.steered())].into();
            frames.reasons.insert("fault_dropped".into(), dropped);
        };
        let check_drops = |dropped, expected: &[&str]| {
            let both = |initiator: &mut Initiator, target: &mut Target| {
                lose(100, &mut initiator.frames);
                lose(dropped, &mut target.frames);
            };
            check_wanted(&one_percent, both, expected);
        };
        check_drops(100, &[]);
        check_drops(49, &["about 100 frames of the target were to be dropped, 49 were"]);
        check_drops(201, &["about 100 frames of the target were to be dropped, 201 were"]);
        let unasked = |_: &mut Initiator, target: &mut Target| {
            target.frames.reasons.insert("fault_dropped".into(), 1);
        };
        check(unasked, &["a fault rule that nobody asked for dropped 1 frames of the target"]);
    }
}
