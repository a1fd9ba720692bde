//! The command `frames`: where the frames of xdp nets went, and whether all are accounted for.

use std::thread::sleep;
use std::time::Duration;

use clap::Subcommand;
use lnet_control::client::Client;
use lnet_control::document;
use lnet_model::records::FramesRecord;

use super::Result;
use super::load::unfair_shares;
use crate::daemon::Daemon;
use crate::failure::Task;

/// How often, and how many times, frames are counted until none is under way: late acknowledgements,
/// greetings.
const QUIET_INTERVAL: Duration = Duration::from_millis(100);
const QUIET_LOOKS: u32 = 50;
/// Frames that must have been due to be dropped before it is judged how many were, and that may be sent again
/// however few were sent.
const DROPS_MIN: u64 = 20;

#[derive(Debug, Subcommand)]
pub(crate) enum FramesCommand {
    /// Show frames by queue and shard, what was passed up, recovered, dropped
    Show,
    /// Wait until no frame is under way, and fail where one is not accounted for or reached the wrong shard
    #[command(
        after_help = "Example:\n  lnetctl frames check --share-min 10 --resent-per-million 1000 --anew-per-million 20000"
    )]
    Check {
        /// Percent of the frames that each shard must have taken
        #[arg(long, value_name = "PERCENT")]
        share_min: Option<String>,
        /// Frames of a million that a fault rule is to have dropped
        #[arg(long, value_name = "COUNT")]
        loss_per_million: Option<String>,
        /// Frames of a million that may have been sent again since they counted as lost
        #[arg(long, value_name = "COUNT")]
        resent_per_million: Option<String>,
        /// Frames of a million that may have been sent once more since their message was deferred
        #[arg(long, value_name = "COUNT")]
        anew_per_million: Option<String>,
    },
}

pub(super) fn run(daemon: &mut Daemon<'_>, command: &FramesCommand) -> Result<()> {
    match command {
        FramesCommand::Show => {
            let frames = daemon.ask(Task::new("show", "frames"), Client::frames)?;
            daemon.print_record(&frames, document::frames);
            Ok(())
        }
        FramesCommand::Check { share_min, loss_per_million, resent_per_million, anew_per_million } => {
            let task = Task::new("check", "frames");
            let share_min = task.optional("share-min", share_min.as_ref(), 0..=100)?.unwrap_or(0);
            let loss = task.optional("loss-per-million", loss_per_million.as_ref(), 0..=1_000_000)?;
            let resent = task.optional("resent-per-million", resent_per_million.as_ref(), 0..=1_000_000)?;
            let anew = task.optional("anew-per-million", anew_per_million.as_ref(), 0..=1_000_000)?;
            let frames = quiet(daemon, task)?;
            daemon.print_record(&frames, document::frames);
            let mut failures = failures(&frames, share_min, loss.unwrap_or(0));
            failures.extend(resent.and_then(|most| twice_failure(&frames, "frames resent", most)));
            failures.extend(anew.and_then(|most| twice_failure(&frames, "frames sent anew", most)));
            task.judged(failures)
        }
    }
}

/// The frames, once each that arrived was handled; what does not get quiet is judged as it is.
fn quiet(daemon: &mut Daemon<'_>, task: Task) -> Result<FramesRecord> {
    let mut looks = 0;
    loop {
        let frames = daemon.ask(task, Client::frames)?;
        looks += 1;
        if frames.arrived() == frames.accounted() || looks == QUIET_LOOKS {
            return Ok(frames);
        }
        sleep(QUIET_INTERVAL);
    }
}

/// What is wrong with the frames. Shards and fault rules are those of XDP.
fn failures(frames: &FramesRecord, share_min: u64, loss_per_million: u64) -> Vec<String> {
    let mut failures = frames.alarms.clone();
    let (arrived, accounted) = (frames.arrived(), frames.accounted());
    if frames.misdirected != 0 {
        failures.push(format!("{} frames arrived at the wrong shard", frames.misdirected));
    }
    if arrived != accounted {
        failures.push(format!("of {arrived} frames that arrived {accounted} are accounted for"));
    }
    if share_min > 0 && frames.has_rings() {
        failures.extend(unfair_shares("frames", &frames.by_shard(), share_min));
    }
    let (steered, dropped) = (frames.steered(), frames.fault_dropped());
    let due = u128::from(steered + dropped) * u128::from(loss_per_million) / 1_000_000;
    let (due, is_judged) = (due as u64, due >= u128::from(DROPS_MIN));
    if loss_per_million == 0 && dropped != 0 || is_judged && !(due / 2..=due * 2).contains(&dropped) {
        failures.push(format!("about {due} frames were to be dropped by a fault rule, {dropped} were"));
    }
    failures
}

/// Whether too many frames were sent twice, by rings or sockets, as this counter has it.
fn twice_failure(frames: &FramesRecord, counter: &str, most_per_million: u64) -> Option<String> {
    let count = |name: &str| frames.recovery.get(name).copied().unwrap_or(0);
    let (sent, twice) = (count("frames sent"), count(counter));
    let most = u128::from(sent) * u128::from(most_per_million) / 1_000_000;
    (u128::from(twice) > most.max(u128::from(DROPS_MIN)))
        .then(|| format!("{counter}: {twice} of {sent}, more than {most_per_million} of a million"))
}

#[cfg(test)]
mod tests {
    use lnet_model::ni::XdpMode;
    use lnet_model::records::{FramesNi, SlotFrames};
    use lnet_wire::Nid;

    use super::*;

    fn frames() -> FramesRecord {
        let slot = |queue, shard, frames| SlotFrames { queue, shard, frames };
        FramesRecord {
            nis: vec![FramesNi { nid: Nid::LO, mode: XdpMode::Native }],
            slots: vec![slot(0, 0, 600), slot(0, 1, 0), slot(1, 0, 0), slot(1, 1, 400)],
            handled: [("taken".to_owned(), 1000)].into(),
            ..FramesRecord::default()
        }
    }

    fn check(change: impl FnOnce(&mut FramesRecord), loss_per_million: u64, expected: &[&str]) {
        let mut frames = frames();
        change(&mut frames);
        assert_eq!(failures(&frames, 10, loss_per_million), expected);
    }

    #[test]
    fn every_frame_is_accounted_for() {
        let handle = |name: &'static str, count| {
            move |frames: &mut FramesRecord| {
                frames.handled.insert(name.to_owned(), count);
            }
        };
        check(|_| (), 0, &[]);
        check(handle("taken", 999), 0, &["of 1000 frames that arrived 999 are accounted for"]);
        check(handle("refused", 1), 0, &["of 1000 frames that arrived 1001 are accounted for"]);
        let lost = |frames: &mut FramesRecord| {
            frames.handled.insert("taken".to_owned(), 998);
            frames.rings = [("rx_dropped".to_owned(), 1), ("rx_ring_full".to_owned(), 1)].into();
            frames.rings.insert("rx_fill_ring_empty".to_owned(), 9);
        };
        check(lost, 0, &[]);
        let with_interface = |taken: u64| {
            move |frames: &mut FramesRecord| {
                frames.handled.insert("taken".to_owned(), taken);
                frames.lost_with_interfaces = 30;
            }
        };
        check(with_interface(970), 0, &[]);
        check(with_interface(969), 0, &["of 1000 frames that arrived 999 are accounted for"]);
        check(|frames| frames.misdirected = 2, 0, &["2 frames arrived at the wrong shard"]);
        let unfair = |frames: &mut FramesRecord| {
            frames.slots[3].frames = 60;
            frames.handled.insert("taken".to_owned(), 660);
        };
        check(unfair, 0, &["shard 1 took 60 of 660 frames, under 10 %"]);
    }

    #[test]
    fn what_is_to_be_lost_must_be() {
        let lose = |dropped: u64| {
            move |frames: &mut FramesRecord| {
                frames.reasons.insert("fault_dropped".to_owned(), dropped);
            }
        };
        check(lose(1), 0, &["about 0 frames were to be dropped by a fault rule, 1 were"]);
        check(lose(100), 100_000, &[]);
        check(lose(20), 100_000, &["about 102 frames were to be dropped by a fault rule, 20 were"]);
        check(lose(0), 10_000, &[]);
        check(lose(900), 100_000, &["about 190 frames were to be dropped by a fault rule, 900 were"]);
    }

    /// The kernel chooses the shard of a datagram as well as it can.
    #[test]
    fn frames_of_sockets_are_accounted_for_and_come_to_any_shard() {
        let beside = |taken: u64| {
            move |frames: &mut FramesRecord| {
                frames.handled.insert("taken".to_owned(), taken);
                frames.sockets = [("received", 30), ("misdirected", 9), ("no_room", 5)]
                    .map(|(name, count)| (name.to_owned(), count))
                    .into();
            }
        };
        check(beside(1030), 0, &[]);
        check(beside(1000), 0, &["of 1030 frames that arrived 1000 are accounted for"]);
        let alone = |frames: &mut FramesRecord| {
            beside(30)(frames);
            frames.slots.clear();
            frames.nis[0].mode = XdpMode::Socket;
        };
        check(alone, 0, &[]);
    }

    #[test]
    fn few_frames_may_be_sent_twice() {
        for counter in ["frames resent", "frames sent anew"] {
            let check = |sent: u64, twice: u64, most: u64, expected: Option<&str>| {
                let mut frames = frames();
                frames.recovery = [("frames sent".to_owned(), sent), (counter.to_owned(), twice)].into();
                let words = expected.map(|words| format!("{counter}: {words}"));
                assert_eq!(twice_failure(&frames, counter, most), words);
            };
            check(100_000, 100, 1000, None);
            check(100_000, 101, 1000, Some("101 of 100000, more than 1000 of a million"));
            check(50, 20, 1000, None);
            check(50, 21, 1000, Some("21 of 50, more than 1000 of a million"));
            assert_eq!(twice_failure(&FramesRecord::default(), counter, 0), None);
        }
    }
}
