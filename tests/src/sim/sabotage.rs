//! The bugs that the core has hooks for.
//!
//! Invariant: without its hooks the core is given no bug, and a run that asks for one fails.

use lnet_core::Shard;
#[cfg(feature = "sabotage")]
use lnet_core::shard::TurnsBug;
use lnet_tcp_proto::Socklnd;
use lnet_xdp_proto::Xfer;

use super::{Bug, Bugs};

/// Switches on those of a transfer machine.
#[cfg(feature = "sabotage")]
pub(super) fn switch_on(bugs: &Bugs, xfer: &mut Xfer) {
    xfer.sabotage(lnet_xdp_proto::Sabotage {
        no_duplicate_window: bugs.has(Bug::NoDuplicateWindow),
        early_ack: bugs.has(Bug::AckBeforeData),
        no_failover: bugs.has(Bug::FailoverOff),
    });
}

/// Switches on those of the protocol of the tcp LND.
#[cfg(feature = "sabotage")]
pub(super) fn switch_on_sock(bugs: &Bugs, sock: &mut Socklnd) {
    sock.sabotage(lnet_tcp_proto::Sabotage {
        resent_after_cut: bugs.has(Bug::ResentAfterCut),
        end_lost: bugs.has(Bug::EndLost),
        offset_stuck: bugs.has(Bug::OffsetStuck),
        sent_early: bugs.has(Bug::SentEarly),
        stall_unnoticed: bugs.has(Bug::StallUnnoticed),
    });
}

/// Switches on those of a shard.
#[cfg(feature = "sabotage")]
pub(super) fn switch_on_shard(bugs: &Bugs, shard: &mut Shard) {
    if bugs.has(Bug::CreditLost) {
        shard.lose_credit();
    }
    let turns = [
        (Bug::OneTurn, TurnsBug::OneTurn),
        (Bug::NothingLent, TurnsBug::NothingLent),
        (Bug::ReserveAlone, TurnsBug::ReserveAlone),
    ];
    turns.into_iter().filter(|(bug, _)| bugs.has(*bug)).for_each(|(_, bug)| shard.break_turns(bug));
}

#[cfg(not(feature = "sabotage"))]
pub(super) fn switch_on(bugs: &Bugs, _: &mut Xfer) {
    refuse(bugs, &[Bug::NoDuplicateWindow, Bug::AckBeforeData, Bug::FailoverOff]);
}

#[cfg(not(feature = "sabotage"))]
pub(super) fn switch_on_sock(bugs: &Bugs, _: &mut Socklnd) {
    let hooked = [Bug::ResentAfterCut, Bug::EndLost, Bug::OffsetStuck, Bug::SentEarly, Bug::StallUnnoticed];
    refuse(bugs, &hooked);
}

#[cfg(not(feature = "sabotage"))]
pub(super) fn switch_on_shard(bugs: &Bugs, _: &mut Shard) {
    refuse(bugs, &[Bug::CreditLost, Bug::OneTurn, Bug::NothingLent, Bug::ReserveAlone]);
}

#[cfg(not(feature = "sabotage"))]
fn refuse(bugs: &Bugs, hooked: &[Bug]) {
    assert!(!hooked.iter().any(|bug| bugs.has(*bug)), "{bugs:?} needs the feature `sabotage`");
}
