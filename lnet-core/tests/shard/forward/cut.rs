//! Messages that go on before all of them has arrived.

use std::time::Duration;

use lnet_core::lnd::{Cause, LndFacts, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::shard::{CUT_PATIENCE, CUT_PAUSE, CUT_SOON, CUT_STEP_BYTES, CUTS_MAX};
use lnet_core::topology::{Forwarding, LocalNi, Topology};
use lnet_model::pool::PoolKind;

use super::{Router, locals, over};
use crate::common::NOW;

const LENGTH: u32 = 1 << 20;
const HALF: u32 = LENGTH / 2;

/// The NIs of a router of which that of `tcp2` sends parts.
pub(super) fn taking_parts() -> Vec<LocalNi> {
    let mut nis = locals();
    nis[1].facts = LndFacts { takes_parts: true, ..LndFacts::KERNEL };
    nis[0].router_credits = 32;
    nis
}

fn router() -> Router {
    Router::new(Topology::new(taking_parts()).with_forwarding(Forwarding::On), [0, 16, 32])
}

impl Router {
    /// A long message comes, and so many bytes of it are in place.
    fn begin(&mut self, rx: u32, (source, destination): (u8, u8), bytes: u32) {
        assert!(matches!(self.come(rx, &over(source, destination, LENGTH)), Verdict::Deliver(_)));
        self.arrive(rx, bytes);
    }

    fn arrive(&mut self, rx: u32, bytes: u32) {
        self.node.shard.arrived(self.now, RxId(rx), bytes);
    }

    /// Words to LNDs: how much is there, or that no more comes.
    fn told(&mut self) -> Vec<Option<u32>> {
        let mut told = Vec::new();
        while let Some((transmit, comes)) = self.node.shard.poll_extended() {
            told.push(comes.then(|| there(transmit)));
        }
        told
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now + time;
        self.node.shard.handle_timeout(self.now);
    }

    fn fail(&mut self, rx: u32) {
        self.node.shard.received(self.now, RxId(rx), Status::Unknown(Cause::Reset));
    }

    fn cuts(&self) -> [u64; 2] {
        let counters = self.node.shard.counters();
        [counters.cuts, counters.cuts_slow]
    }
}

/// Bytes of a message that are there.
fn there(transmit: &Transmit) -> u32 {
    transmit.payload.map_or(0, |span| span.length_bytes)
}

const WITHDRAWN: Status = Status::Unknown(Cause::Cancelled);

#[test]
fn what_has_arrived_goes_on_before_the_rest() {
    let mut router = router();
    router.begin(7, (2, 9), HALF - 1);
    assert_eq!(router.sent(), [], "less than half");
    router.arrive(7, HALF + 100);
    let sent = router.one();
    assert_eq!((there(&sent), sent.header), (HALF, over(2, 9, LENGTH)));
    router.arrive(7, HALF + CUT_STEP_BYTES - 1);
    assert_eq!(router.told(), [], "less than a step");
    router.arrive(7, HALF + CUT_STEP_BYTES);
    router.arrive(7, HALF + 2 * CUT_STEP_BYTES + 5);
    assert!(router.node.shard.has_work());
    assert_eq!(router.told(), [Some(HALF + 2 * CUT_STEP_BYTES)]);
    assert_eq!(router.pool(PoolKind::Large).credits, 31);
    router.received(7);
    assert_eq!(router.told(), [Some(LENGTH)]);
    assert_eq!(router.sent(), []);
    router.end(&sent, Status::Ok);
    assert_eq!(router.cuts(), [1, 0]);
    assert_eq!(router.node.shard.counters().routed.bytes, LENGTH.into());
    router.check_rest();
}

/// An LND gets a message with all that is there by then.
#[test]
fn what_arrives_before_a_message_leaves_goes_with_it() {
    let mut router = router();
    for is_whole in [false, true] {
        router.begin(7, (2, 9), HALF);
        router.arrive(7, HALF + CUT_STEP_BYTES);
        if is_whole {
            router.received(7);
        }
        let sent = router.one();
        assert_eq!(there(&sent), if is_whole { LENGTH } else { HALF + CUT_STEP_BYTES });
        assert_eq!(router.told(), []);
        if !is_whole {
            router.received(7);
            assert_eq!(router.told(), [Some(LENGTH)]);
        }
        router.end(&sent, Status::Ok);
        router.check_rest();
    }
}

#[test]
fn others_go_on_when_they_are_whole() {
    let mut router = router();
    let short = 2 * CUT_STEP_BYTES - 1;
    assert!(matches!(router.come(0, &over(2, 9, short)), Verdict::Deliver(_)));
    router.arrive(0, short / 2);
    // A slow one: its half took long.
    router.begin(1, (3, 8), 1);
    router.now = router.now + CUT_SOON + Duration::from_nanos(1);
    router.arrive(1, HALF + 1);
    assert_eq!(router.sent(), []);
    [0, 1].into_iter().for_each(|rx| router.pass_on(rx));
    // The other net's LND takes no parts.
    let back = super::put(crate::common::nid(2, 9), crate::common::nid(1, 2), LENGTH);
    assert!(matches!(router.header(1, back.source.nid, 2, &back), Verdict::Deliver(_)));
    router.arrive(2, LENGTH - 1);
    assert_eq!(router.sent(), []);
    router.pass_on(2);
    assert_eq!(router.cuts(), [0, 0]);
    router.check_rest();
}

/// Nothing leads on when half is there, and something does when all is.
#[test]
fn a_message_that_cannot_go_on_yet_waits() {
    let mut router = router();
    let topology = |status| {
        let mut nis = taking_parts();
        nis[1].status = status;
        Topology::new(nis).with_forwarding(Forwarding::On)
    };
    use lnet_core::topology::NiStatus::{Down, Up};
    router.begin(0, (2, 9), 0);
    router.update(topology(Down));
    router.arrive(0, HALF);
    assert_eq!((router.sent(), router.cuts()), (vec![], [0, 0]));
    router.update(topology(Up));
    router.pass_on(0);
    // An NI that goes down before the message has left ends it, until it is whole.
    router.begin(0, (2, 9), HALF);
    router.update(topology(Down));
    assert_eq!((router.sent(), router.cuts()), (vec![], [1, 0]));
    router.update(topology(Up));
    router.pass_on(0);
    router.check_rest();
}

#[test]
fn a_sender_that_dies_ends_what_went_on() {
    let mut router = router();
    for (is_lent, waits) in [(true, false), (false, false), (false, true)] {
        // The next hop has four credits.
        let others: Vec<_> = (1..5).filter(|_| waits).collect();
        let mut flying = Vec::new();
        for rx in others {
            assert!(matches!(router.come(rx, &over(3, 9, 8)), Verdict::Deliver(_)));
            router.received(rx);
            flying.push(router.one());
        }
        router.begin(0, (2, 9), HALF);
        let mut sent = if is_lent { router.sent() } else { Vec::new() };
        router.fail(0);
        sent.extend(router.sent());
        if waits {
            assert_eq!((sent.len(), router.told()), (0, vec![]), "it waits for a credit");
            flying.iter().for_each(|other| router.end(other, Status::Ok));
        } else {
            assert_eq!(router.told(), [None]);
            router.end(&sent[0], WITHDRAWN);
        }
        router.check_rest();
    }
    assert_eq!(router.cuts(), [3, 0], "none was slow");
    router.check_rest();
}

#[test]
fn a_sender_that_stops_ends_cut_through_for_a_while() {
    let mut router = router();
    router.begin(0, (2, 9), HALF);
    let stopped = router.one();
    assert_eq!(router.node.shard.poll_timeout(), Some(NOW + CUT_PATIENCE));
    router.wait(CUT_PATIENCE - Duration::from_nanos(1));
    assert_eq!(router.cuts(), [1, 0]);
    router.wait(Duration::from_nanos(1));
    assert_eq!((router.told(), router.cuts()), (vec![], [1, 1]), "it may go on yet");
    // Neither from there nor to there, but else.
    for (rx, pair, is_cut) in [(1, (2, 8), false), (2, (3, 9), false), (3, (3, 8), true)] {
        router.begin(rx, pair, HALF);
        assert_eq!(router.sent().len(), usize::from(is_cut), "{pair:?}");
    }
    router.received(3);
    assert_eq!(router.told(), [Some(LENGTH)]);
    router.arrive(0, HALF + CUT_STEP_BYTES);
    router.received(0);
    assert_eq!(router.told(), [Some(LENGTH)]);
    router.end(&stopped, Status::Ok);
    router.now = router.now + CUT_PAUSE;
    router.begin(4, (2, 9), HALF);
    assert_eq!(router.sent().len(), 1, "a while after");
}

#[test]
fn a_next_hop_has_a_few_of_them() {
    let mut few = router();
    few.begin(0, (2, 9), HALF);
    few.begin(1, (3, 9), HALF);
    assert_eq!(few.sent().len(), 1, "a quarter of its credits");
    let mut nis = taking_parts();
    nis[1].peer_credits = 16;
    let mut router = Router::new(Topology::new(nis).with_forwarding(Forwarding::On), [0, 0, 32]);
    for rx in 0..=CUTS_MAX {
        router.begin(rx, (2 + rx as u8, 9), HALF);
    }
    let mut sent = router.sent();
    assert_eq!(sent.len() as u32, CUTS_MAX);
    router.begin(20, (20, 8), HALF);
    sent.push(router.one());
    // A whole message makes room.
    router.received(0);
    router.arrive(CUTS_MAX, HALF + CUT_STEP_BYTES);
    sent.push(router.one());
    for rx in (1..=CUTS_MAX).chain([20]) {
        router.received(rx);
    }
    assert_eq!(router.told().len(), sent.len());
    sent.iter().for_each(|sent| router.end(sent, Status::Ok));
    router.check_rest();
}

/// Nothing is lost that may be sent again: no receiver can have the whole of it.
#[test]
fn a_path_that_dies_in_the_middle_loses_nothing() {
    let unreachable = Status::NeverSent(Cause::Unreachable);
    for status in [unreachable, Status::Unknown(Cause::Timeout), WITHDRAWN, Status::Ok] {
        let mut router = router();
        router.begin(0, (2, 9), HALF);
        let first = router.one();
        router.end(&first, status);
        router.arrive(0, LENGTH - 1);
        assert_eq!(router.sent(), [], "it waits for the rest");
        router.received(0);
        if status == Status::Ok {
            assert_eq!(router.sent(), [], "its receiver did not want it");
        } else {
            let again = router.one();
            assert_eq!((there(&again), again.next_hop), (LENGTH, first.next_hop));
            router.end(&again, Status::Ok);
        }
        assert_eq!(router.pool(PoolKind::Large).credits, 32);
        assert_eq!(router.node.shard.usage().messages, 0);
    }
}

/// A message that is whole by the time that its path fails goes by another one as others do.
#[test]
fn a_message_that_is_whole_is_as_others() {
    let mut router = router();
    router.begin(0, (2, 9), HALF);
    let sent = router.one();
    router.received(0);
    assert_eq!(router.told(), [Some(LENGTH)]);
    router.end(&sent, Status::Unknown(Cause::Timeout));
    assert_eq!(router.node.shard.counters().send_failures, 1, "it may have arrived");
    router.check_rest();
}
