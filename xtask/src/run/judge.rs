//! Whether a run holds: a function of the two reports and of nothing else.

use serde::Serialize;

use super::report::Report;

/// The least share of the target's frames that each of its shards must have taken, in percent.
const SHARE_MIN_PERCENT: u64 = 10;

/// What the judge says.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct Verdict {
    /// Why the run does not hold; empty when it does.
    pub(crate) failures: Vec<String>,
    /// Frames and messages that the counters of both nodes say were dropped.
    pub(crate) explained_losses: u64,
}

/// Judges a run of `count` Puts to a target with `shards` shards.
pub(crate) fn judge(count: u64, shards: u16, initiator: &Report, target: &Report) -> Verdict {
    let explained_losses = [initiator, target].iter().flat_map(|node| node.dropped().into_values()).sum();
    let mut failures = Vec::new();
    judge_puts(count, initiator, target, &mut failures);
    judge_payloads(target, &mut failures);
    judge_losses(initiator, explained_losses, &mut failures);
    judge_steering(shards, initiator, target, &mut failures);
    judge_frames(target, &mut failures);
    Verdict { failures, explained_losses }
}

fn judge_puts(count: u64, initiator: &Report, target: &Report, failures: &mut Vec<String>) {
    let puts = initiator.puts;
    if puts.sent != count {
        failures.push(format!("the initiator sent {} Puts instead of {count}", puts.sent));
    }
    if puts.acked + puts.lost != puts.sent {
        let ended = puts.acked + puts.lost;
        failures.push(format!("of {} Puts sent, {ended} ended as acknowledged or lost", puts.sent));
    }
    if target.puts.received > puts.sent {
        let received = target.puts.received;
        failures.push(format!("the target received {received} Puts of {} sent: some came twice", puts.sent));
    }
    if puts.acked > target.puts.received {
        let received = target.puts.received;
        failures.push(format!("{} Puts were acknowledged, but only {received} received", puts.acked));
    }
}

fn judge_payloads(target: &Report, failures: &mut Vec<String>) {
    let puts = target.puts;
    if puts.corrupt != 0 {
        failures.push(format!("{} payloads were wrong", puts.corrupt));
    }
    if puts.verified + puts.corrupt != puts.received {
        let looked_at = puts.verified + puts.corrupt;
        failures.push(format!("of {} payloads received, {looked_at} were verified", puts.received));
    }
}

fn judge_losses(initiator: &Report, explained: u64, failures: &mut Vec<String>) {
    let lost = initiator.puts.lost;
    if lost > explained {
        failures.push(format!("{lost} Puts were lost, but the drop counters explain {explained} of them"));
    }
}

fn judge_steering(shards: u16, initiator: &Report, target: &Report, failures: &mut Vec<String>) {
    for (role, report) in [("initiator", initiator), ("target", target)] {
        if report.misdirected != 0 {
            failures.push(format!("{} frames arrived at the wrong shard of the {role}", report.misdirected));
        }
    }
    let frames = target.frames();
    if frames == 0 {
        failures.push("no frame reached the target's shards".to_owned());
        return;
    }
    for shard in 0..shards {
        let share = target.shard_frames(shard);
        if share * 100 < frames * SHARE_MIN_PERCENT {
            failures.push(format!(
                "shard {shard} of the target took {share} of {frames} frames, under {SHARE_MIN_PERCENT} %"
            ));
        }
    }
}

/// Nothing is under way to the target when it ends.
fn judge_frames(target: &Report, failures: &mut Vec<String>) {
    let (steered, accounted) = (target.frames(), target.accounted());
    if steered != accounted {
        failures.push(format!("of {steered} frames steered at the target, {accounted} are accounted for"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::report::{Puts, Slot};

    const COUNT: u64 = 1000;

    /// The reports of a run that holds.
    fn good() -> (Report, Report) {
        let puts = Puts { sent: COUNT, acked: COUNT, ..Puts::default() };
        let initiator = Report { puts, ..Report::default() };
        let slot = |queue, shard, frames| Slot { queue, shard, frames };
        let target = Report {
            puts: Puts { received: COUNT, verified: COUNT, ..Puts::default() },
            slots: vec![slot(0, 0, 600), slot(0, 1, 0), slot(1, 0, 0), slot(1, 1, 400)],
            handled: [("taken".to_owned(), COUNT)].into(),
            ..Report::default()
        };
        (initiator, target)
    }

    /// Changes the reports of a run that holds; each of `expected` must be part of one failure, in order.
    fn check(change: impl FnOnce(&mut Report, &mut Report), expected: &[&str]) {
        let (mut initiator, mut target) = good();
        change(&mut initiator, &mut target);
        let failures = judge(COUNT, 2, &initiator, &target).failures;
        assert_eq!(failures.len(), expected.len(), "{failures:?}");
        for (failure, part) in failures.iter().zip(expected) {
            assert!(failure.contains(part), "{part:?} is not in {failure:?}");
        }
    }

    fn lose(initiator: &mut Report, target: &mut Report, lost: u64) {
        initiator.puts.acked -= lost;
        initiator.puts.lost += lost;
        target.puts.received -= lost;
        target.puts.verified -= lost;
    }

    #[test]
    fn a_good_run_holds() {
        check(|_, _| (), &[]);
    }

    #[test]
    fn each_shard_of_the_target_must_take_its_share() {
        let check = |change: fn(&mut Report), expected: &[&str]| {
            let and_account = |_: &mut Report, target: &mut Report| {
                change(target);
                target.handled = [("taken".to_owned(), target.frames())].into();
            };
            check(and_account, expected);
        };
        check(|target| target.slots[3].frames = 67, &[]);
        check(|target| target.slots[3].frames = 66, &["shard 1 of the target took 66 of 666 frames"]);
        check(|target| target.slots[0].frames = 0, &["shard 0 of the target took 0 of 400 frames"]);
        check(|target| target.slots.truncate(2), &["shard 1 of the target took 0 of 600"]);
        check(|target| target.slots.clear(), &["no frame reached"]);
        // The share is a shard's, not a socket's.
        check(|target| target.slots[3] = Slot { queue: 0, shard: 1, frames: 400 }, &[]);
    }

    #[test]
    fn each_frame_must_be_accounted_for() {
        let handle = |target: &mut Report, name: &str, count| {
            target.handled.insert(name.to_owned(), count);
        };
        check(|_, target| handle(target, "taken", COUNT - 1), &["of 1000 frames steered at the target, 999"]);
        check(|_, target| handle(target, "refused", 1), &["of 1000 frames steered at the target, 1001"]);
        let lost = |_: &mut Report, target: &mut Report| {
            handle(target, "taken", COUNT - 2);
            target.rings = [("rx_dropped".to_owned(), 1), ("rx_ring_full".to_owned(), 1)].into();
        };
        check(lost, &[]);
    }

    #[test]
    fn no_frame_may_be_misdirected() {
        check(|_, target| target.misdirected = 1, &["1 frames arrived at the wrong shard of the target"]);
        check(|initiator, _| initiator.misdirected = 2, &["wrong shard of the initiator"]);
    }

    #[test]
    fn each_payload_must_be_verified() {
        check(|_, target| target.puts.verified -= 1, &["of 1000 payloads received, 999 were verified"]);
        check(
            |_, target| {
                target.puts.verified -= 2;
                target.puts.corrupt += 2;
            },
            &["2 payloads were wrong"],
        );
    }

    #[test]
    fn losses_must_be_explained_by_counters_of_either_node() {
        check(|initiator, target| lose(initiator, target, 3), &["3 Puts were lost, but"]);
        let explain = |initiator: &mut Report, target: &mut Report| {
            lose(initiator, target, 4);
            initiator.drops.insert("no_buffer".into(), 1);
            target.drops.insert("crc".into(), 1);
            target.reasons.insert("fault_dropped".into(), 1);
            initiator.rings.insert("rx_ring_full".into(), 1);
        };
        check(explain, &[]);
        let (mut initiator, mut target) = good();
        explain(&mut initiator, &mut target);
        assert_eq!(judge(COUNT, 2, &initiator, &target).explained_losses, 4);
        let explain_fewer = |initiator: &mut Report, target: &mut Report| {
            explain(initiator, target);
            target.drops.clear();
        };
        check(explain_fewer, &["4 Puts were lost, but the drop counters explain 3 of them"]);
    }

    #[test]
    fn a_frame_without_a_buffer_is_counted_once() {
        let explain = |initiator: &mut Report, target: &mut Report| {
            lose(initiator, target, 2);
            target.rings.insert("rx_fill_ring_empty".into(), 2);
        };
        check(explain, &["explain 0 of them"]);
    }

    #[test]
    fn frames_that_the_program_passed_up_explain_no_loss() {
        let explain = |initiator: &mut Report, target: &mut Report| {
            lose(initiator, target, 1);
            target.reasons.insert("not_ip".into(), 9);
        };
        check(explain, &["explain 0 of them"]);
    }

    #[test]
    fn the_puts_must_add_up() {
        check(
            |initiator, target| {
                initiator.puts = Puts { sent: 999, acked: 999, ..Puts::default() };
                target.puts = Puts { received: 999, verified: 999, ..Puts::default() };
            },
            &["sent 999 Puts instead of 1000"],
        );
        check(|initiator, _| initiator.puts.acked -= 1, &["999 ended as acknowledged or lost"]);
        check(
            |_, target| target.puts = Puts { received: 1001, verified: 1001, ..Puts::default() },
            &["some came twice"],
        );
        check(
            |_, target| target.puts = Puts { received: 998, verified: 998, ..Puts::default() },
            &["1000 Puts were acknowledged, but only 998 received"],
        );
        check(
            |initiator, target| {
                initiator.puts = Puts::default();
                target.puts = Puts::default();
            },
            &["sent 0 Puts instead of 1000"],
        );
    }
}
