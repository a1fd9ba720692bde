//! Portals that all shards serve: who is asked, and who hears of new entries.

use lnet_core::event::EventKind;
use lnet_core::handle::ShardId;
use lnet_core::lnd::{Span, Status, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold, Unlinked};
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::stats::DropReason;
use lnet_wire::steer::Policy;

use crate::common::{poll_mesh, put_header};
use crate::mesh::Shards;

#[test]
fn siblings_are_asked_in_their_order() {
    let mut shards = Shards::new(4, Policy::Rotor);
    let spec = shards.spec(1, MdOptions::PUT);
    let md = shards.post(1, 1, &spec);
    assert_eq!(shards.header(2, 3, &put_header(1, 4)), Verdict::Delay);
    assert_eq!([shards.refused(3, 2), shards.refused(0, 2)], [DropReason::NoMatch; 2]);
    let span = shards.lent(1, 2);
    assert_eq!(span.buffer, md);
    assert_eq!(shards.resume(2), Some((3, Verdict::Deliver(span))));
    shards.received(2, 3, Status::Ok);
    shards.carry(2, 1);
    // No shard has another.
    assert_eq!(shards.header(0, 3, &put_header(1, 4)), Verdict::Delay);
    (1..4).for_each(|shard| assert_eq!(shards.refused(shard, 0), DropReason::NoMatch));
    assert_eq!(shards.resume(0), Some((3, Verdict::Drop)));
    // One that is too long ends the search.
    let spec = MdSpec { length_bytes: 3, ..spec };
    shards.post(1, 1, &spec);
    assert_eq!(shards.header(0, 3, &put_header(1, 4)), Verdict::Delay);
    assert_eq!(shards.refused(1, 0), DropReason::TooLong);
    assert_eq!(shards.resume(0), Some((3, Verdict::Drop)));
    assert_eq!(shards.0[0].shard.counters().drops(DropReason::TooLong).messages, 1);
}

#[test]
fn an_own_entry_goes_first_and_needs_no_sibling() {
    let mut shards = Shards::new(2, Policy::Rotor);
    for shard in 0..2 {
        let spec = shards.spec(shard, MdOptions::PUT);
        shards.post(shard, 1, &spec);
    }
    let Verdict::Deliver(span) = shards.header(0, 0, &put_header(1, 4)) else { panic!("not delivered") };
    assert_eq!(span.buffer.0.shard(), ShardId(0));
    assert_eq!(poll_mesh(&mut shards.0[0].shard), None);
}

#[test]
fn a_message_by_another_rail_of_its_initiator_finds_the_entry_where_it_was_steered() {
    for home in 0..4 {
        // Its frames were steered by its node's primary NID, which its header does not tell.
        let mut shards = Shards::new(4, Policy::Initiator);
        let spec = shards.spec(home, MdOptions::PUT);
        let md = shards.post(home, 1, &spec);
        let delivered = Verdict::Deliver(Span { buffer: md.into(), offset_bytes: 0, length_bytes: 4 });
        assert_eq!(shards.header(home, 3, &put_header(1, 4)), delivered);
    }
}

/// A PUT waits on the lazy portal 4 of shard 0, all siblings asked.
fn waiting(shards: &mut Shards, rx: u32, match_bits: u64) {
    shards.0.iter_mut().for_each(|node| node.shard.set_lazy(4).unwrap());
    assert_eq!(shards.header(0, rx, &put_header(match_bits, 4)), Verdict::Delay);
    for shard in 1..shards.0.len() {
        shards.refused(shard as u8, 0);
    }
    assert_eq!(shards.resume(0), None);
}

#[test]
fn what_waits_hears_of_an_entry_on_any_shard() {
    for home in 0..3 {
        let mut shards = Shards::new(3, Policy::Rotor);
        waiting(&mut shards, 7, 1);
        let spec = shards.spec(home, MdOptions::PUT);
        let md = shards.post(home, 1, &spec);
        if home > 0 {
            assert_eq!(shards.carry(home as u8, 0), MeshMessage::Attached { portal: 4 });
            shards.lent(home as u8, 0);
        }
        let taken = Span { buffer: md.into(), offset_bytes: 0, length_bytes: 4 };
        assert_eq!(shards.resume(0), Some((7, Verdict::Deliver(taken))));
        shards.received(0, 7, Status::Ok);
        if home > 0 {
            shards.carry(0, home as u8);
        }
        assert_eq!(shards.0[home].event().kind(), EventKind::Put);
    }
}

#[test]
fn what_is_refused_again_keeps_its_position_and_learns_of_the_next_entry() {
    let mut shards = Shards::new(2, Policy::Rotor);
    waiting(&mut shards, 7, 1);
    waiting(&mut shards, 8, 1);
    let spec = shards.spec(1, MdOptions::PUT);
    shards.post(1, 2, &spec);
    shards.carry(1, 0);
    shards.post(1, 3, &spec);
    assert_eq!(poll_mesh(&mut shards.0[1].shard), None, "once told is enough, until it is asked again");
    assert_eq!([shards.refused(1, 0), shards.refused(1, 0)], [DropReason::NoMatch; 2]);
    shards.post(1, 1, &spec);
    shards.carry(1, 0);
    shards.lent(1, 0);
    assert_eq!(shards.resume(0).unwrap().0, 7, "the first to come");
    assert_eq!(shards.refused(1, 0), DropReason::NoMatch);
    assert_eq!(shards.0[0].shard.usage().delayed, 2);
}

#[test]
fn one_that_is_asked_about_for_longer_keeps_its_position() {
    let mut shards = Shards::new(3, Policy::Rotor);
    shards.0[0].shard.set_lazy(4).unwrap();
    assert_eq!(shards.header(0, 7, &put_header(1, 4)), Verdict::Delay);
    shards.refused(1, 0);
    // News for the first, which means another round; the second has begun later and needs one only.
    let spec = shards.spec(1, MdOptions::PUT);
    shards.post(1, 2, &spec);
    shards.carry(1, 0);
    assert_eq!(shards.header(0, 8, &put_header(1, 4)), Verdict::Delay);
    shards.refused(1, 0);
    (0..2).for_each(|_| assert_eq!(shards.refused(2, 0), DropReason::NoMatch));
    shards.refused(1, 0);
    shards.refused(2, 0);
    shards.assert_delayed(2);
    let spec = MdSpec { threshold: Threshold::Count(2), ..shards.spec(0, MdOptions::PUT) };
    shards.post(0, 1, &spec);
    assert_eq!([shards.resume(0), shards.resume(0)].map(|resumed| resumed.unwrap().0), [7, 8]);
}

#[test]
fn a_message_whose_descriptor_goes_is_asked_about() {
    let mut shards = Shards::new(2, Policy::Rotor);
    let spec = MdSpec { threshold: Threshold::Infinite, ..shards.spec(0, MdOptions::PUT) };
    let md = shards.post(0, 1, &spec);
    (0..3).for_each(|_| assert_ne!(shards.0[0].arrive(&put_header(1, 4)), Verdict::Drop));
    let spec = shards.spec(1, MdOptions::PUT);
    let other = shards.post(1, 1, &spec);
    assert_eq!(shards.header(0, 7, &put_header(1, 4)), Verdict::Delay);
    assert_eq!(poll_mesh(&mut shards.0[0].shard), None, "its own entry goes first, if it has to wait for it");
    assert_eq!(shards.0[0].shard.unlink(md), Ok(Unlinked::Done));
    assert_eq!(shards.lent(1, 0).buffer, other);
}

#[test]
fn an_entry_that_comes_while_others_are_asked_is_not_missed() {
    // The entry comes at a sibling that has refused. The message is dropped if no shard takes it.
    let mut shards = Shards::new(3, Policy::Rotor);
    assert_eq!(shards.header(0, 7, &put_header(1, 4)), Verdict::Delay);
    shards.refused(1, 0);
    let spec = shards.spec(1, MdOptions::PUT);
    let md = shards.post(1, 1, &spec);
    shards.carry(1, 0);
    shards.refused(2, 0);
    assert_eq!(shards.lent(1, 0).buffer, md, "it is asked again");
    // The entry comes at home.
    let mut shards = Shards::new(3, Policy::Rotor);
    assert_eq!(shards.header(0, 7, &put_header(1, 4)), Verdict::Delay);
    let spec = shards.spec(0, MdOptions::PUT);
    let md = shards.post(0, 1, &spec);
    shards.refused(1, 0);
    shards.refused(2, 0);
    let taken = Span { buffer: md.into(), offset_bytes: 0, length_bytes: 4 };
    assert_eq!(shards.resume(0), Some((7, Verdict::Deliver(taken))));
}
