//! Shares of router buffers and credits: no receiver, sender or source takes them all.

use lnet_core::lnd::{Status, Verdict};
use lnet_core::topology::{Forwarding, Topology};
use lnet_model::pool::PoolKind;
use lnet_wire::Nid;

use super::{Router, locals, over, put, topology};
use crate::common::nid;
use crate::routes::{gateway, routes};

/// A router whose peers have so many credits on `tcp1`.
fn generous(credits: u32) -> Topology {
    let mut nis = locals();
    nis[0].router_credits = credits;
    Topology::new(nis).with_forwarding(Forwarding::On)
}

/// Whether messages of these hosts for these others find buffers at once, those of each pair in a row.
fn take(router: &mut Router, first: u32, pairs: &[(u8, u8)]) -> Vec<bool> {
    let come = |(rx, &(from, to)): (u32, &(u8, u8))| {
        matches!(router.come(rx, &over(from, to, 8)), Verdict::Deliver(_))
    };
    (first..).zip(pairs).map(come).collect()
}

/// A message that lies in its buffer goes on and ends.
fn pass(router: &mut Router, rx: u32) {
    router.received(rx);
    let sent = router.one();
    router.end(&sent, Status::Ok);
}

#[test]
fn a_receiver_that_takes_nothing_leaves_half_to_others() {
    let mut router = Router::new(topology(), [0, 8, 0]);
    let taken = take(&mut router, 0, &[(2, 9), (2, 9), (2, 9), (3, 9), (3, 9), (4, 9)]);
    assert_eq!(taken, [true, true, true, true, false, false]);
    for _ in 0..20 {
        assert_eq!(take(&mut router, 10, &[(3, 8), (5, 7)]), [true; 2]);
        [10, 11].into_iter().for_each(|rx| pass(&mut router, rx));
    }
    assert_eq!(router.resumed(), [], "those wait that are for the first one");
    pass(&mut router, 0);
    assert_eq!(router.resumed(), [(4, true)]);
}

/// Messages for other routers may wait for these in a ring; messages for their last node leave.
#[test]
fn a_quarter_is_for_last_hops() {
    let far = [nid(8, 1), nid(9, 1)];
    let by = routes(&[(far[0], gateway(2, 7)), (far[1], gateway(2, 8))]);
    let mut router = Router::new(generous(8).with_net_routes(by), [0, 8, 0]);
    let mut come =
        |rx, source, target| matches!(router.come(rx, &put(nid(1, source), target, 8)), Verdict::Deliver(_));
    let first: Vec<_> = (0..5).map(|rx| come(rx, 2 + rx as u8 % 2, far[0])).collect();
    assert_eq!(first, [true, true, true, true, false], "half for a next hop");
    let second: Vec<_> = (5..8).map(|rx| come(rx, 4, far[1])).collect();
    assert_eq!(second, [true, true, false], "a quarter is left");
    assert!(come(8, 5, nid(2, 9)));
    pass(&mut router, 8);
    assert_eq!(router.resumed(), []);
    pass(&mut router, 5);
    assert_eq!(router.resumed(), [(7, true)]);
}

#[test]
fn a_sender_leaves_half_to_others() {
    let mut router = Router::new(generous(64), [0, 8, 0]);
    let taken = take(&mut router, 0, &[(2, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14)]);
    assert_eq!(taken, [true, true, true, true, false, false]);
    assert_eq!(take(&mut router, 10, &[(3, 20), (4, 21)]), [true; 2]);
    pass(&mut router, 10);
    assert_eq!(router.resumed(), [], "what one has returned is for others");
    pass(&mut router, 0);
    assert_eq!(router.resumed(), [(4, true)]);
}

#[test]
fn next_hops_take_turns() {
    let mut router = Router::new(topology(), [0, 1, 0]);
    assert_eq!(
        take(&mut router, 0, &[(2, 9), (3, 9), (3, 9), (3, 9), (4, 8), (4, 7)]),
        [true, false, false, false, false, false]
    );
    let mut order = vec![0];
    while order.len() < 6 {
        pass(&mut router, order[order.len() - 1]);
        let resumed = router.resumed();
        assert_eq!(resumed.len(), 1);
        order.push(resumed[0].0);
    }
    assert_eq!(order, [0, 1, 4, 5, 2, 3]);
    pass(&mut router, 3);
    router.check_rest();
}

#[test]
fn sources_behind_a_gateway_share_its_credits() {
    let by = routes(&[(nid(9, 1), gateway(1, 7))]);
    let mut router = Router::new(generous(8).with_net_routes(by), [0, 64, 0]);
    let come = |router: &mut Router, rx, source: Nid| {
        matches!(router.header(0, nid(1, 7), rx, &put(source, nid(2, 9 + rx as u8), 8)), Verdict::Deliver(_))
    };
    let flood: Vec<_> = (0..6).map(|rx| come(&mut router, rx, nid(9, 1))).collect();
    assert_eq!(flood, [true, true, true, true, false, false], "half of eight");
    assert!(come(&mut router, 6, nid(9, 2)), "another source has its share");
    assert!(come(&mut router, 7, nid(1, 7)), "and so has the gateway itself");
    pass(&mut router, 6);
    assert_eq!(router.resumed(), [], "that one's credit is for others");
    assert!(come(&mut router, 6, nid(9, 3)));
    [0, 1].into_iter().for_each(|rx| pass(&mut router, rx));
    assert_eq!(router.resumed(), [(4, true)]);
    [2, 3, 4, 6, 7].into_iter().for_each(|rx| pass(&mut router, rx));
    assert_eq!(router.resumed(), [(5, true)]);
    pass(&mut router, 5);
    assert_eq!(router.pool(PoolKind::Small).credits, 64);
    router.check_rest();
}
