//! Snapshots that change under a shard, step by step.

use std::sync::Arc;
use std::time::Duration;

use lnet_core::event::EventKind;
use lnet_core::fault::DelayRule;
use lnet_core::handle::ShardId;
use lnet_core::lnd::{Cause, Full, NiId, RxId, Status, Transmit, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::{EntryError, EntrySpec};
use lnet_core::shard::PutRequest;
use lnet_core::stats::DropReason;
use lnet_core::topology::{LocalNi, NiStatus, Steering, Topology};
use lnet_core::tunables::Tunables;
use lnet_core::{Limits, ShardConfig};
use lnet_model::fault::Filter;
use lnet_wire::steer::{PORTALS, Policy};
use lnet_wire::{Body, Header, Nid};

use crate::common::{
    MESSAGE_TIMEOUT, NOW, Node, acked_put_header, config, entry, get_header, host, local_ni, nid, poll_mesh,
    put_header, put_request,
};

const FIRST: NiId = NiId(0);
const SECOND: NiId = NiId(1);
const UNREACHABLE: Status = Status::NeverSent(Cause::Unreachable);

/// Host 1 with two NIs on one net, of these credits.
fn rails(credits: u32, peer_credits: u32) -> Vec<Option<LocalNi>> {
    vec![Some(local_ni(nid(1, 1), credits, peer_credits)), Some(local_ni(nid(1, 9), credits, peer_credits))]
}

fn node(slots: &[Option<LocalNi>]) -> Node {
    let limits = Limits { nis: 4, ..config().limits };
    let topology = Arc::new(Topology::with_slots(slots.to_vec()).with_generation(1));
    Node::new(ShardConfig { topology, limits, ..config() })
}

/// The next snapshot.
fn update(node: &mut Node, slots: &[Option<LocalNi>]) {
    let next = node.shard.topology().generation() + 1;
    let topology = Topology::with_slots(slots.to_vec()).with_generation(next);
    node.shard.update(NOW, Arc::new(topology));
}

fn with_status(slots: &[Option<LocalNi>], slot: usize, status: NiStatus) -> Vec<Option<LocalNi>> {
    let mut slots = slots.to_vec();
    slots[slot].as_mut().unwrap().status = status;
    slots
}

fn put(node: &mut Node, to: u8, self_nid: Option<Nid>) {
    let md = node.shard.bind(&node.md(10)).unwrap();
    node.shard.put(NOW, &PutRequest { self_nid, ..put_request(md, to) }).unwrap();
}

fn all(node: &mut Node, ni: NiId) -> Vec<Transmit> {
    std::iter::from_fn(|| node.shard.poll_transmit(NOW, ni).map(|lent| *lent.transmit)).collect()
}

fn statuses(node: &mut Node) -> Vec<Status> {
    node.events().iter().map(|event| event.status()).collect()
}

/// Pings to an NI that goes do not have it stay: other messages to it were sent before its peers knew.
#[test]
fn pings_do_not_count_as_what_comes_by_an_ni_that_goes() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    for portal in [0, 4, 0, 4] {
        let spec = MdSpec { options: MdOptions::GET, ..node.md(8) };
        let entry = node.shard.attach_entry(&EntrySpec::new(portal, 5)).unwrap();
        node.shard.attach(entry, &spec).unwrap();
    }
    update(&mut node, &with_status(&slots, 0, NiStatus::Leaving));
    let arrive = |node: &mut Node, portal| {
        let mut header = get_header(5, 8);
        if let Body::Get { portal: to, .. } = &mut header.body {
            *to = portal;
        }
        let verdict = node.shard.header(NOW, FIRST, &header.source.nid, RxId(0), &header);
        assert!(matches!(verdict, Verdict::Deliver(_)), "{verdict:?}");
        node.shard.received(NOW, RxId(0), Status::Ok);
        all(node, FIRST).iter().for_each(|reply| node.shard.sent(NOW, reply.tx, Status::Ok));
        node.shard.confirmation().arrived_count
    };
    let counts = [0, 4, 0, 4].map(|portal| arrive(&mut node, portal));
    assert_eq!(counts, [0, 1, 1, 2]);
}

#[test]
fn what_waits_leaves_by_another_ni_of_its_net() {
    for status in [NiStatus::Down, NiStatus::Leaving, NiStatus::Closed] {
        let slots = rails(2, 2);
        let mut node = node(&slots);
        // Two to host 2 are ready and one waits for the peer; both to host 3 wait for the NI.
        [2, 2, 2, 3, 3].iter().for_each(|&peer| put(&mut node, peer, None));
        update(&mut node, &with_status(&slots, 0, status));
        assert_eq!(node.shard.ni_credits(FIRST), Some(2), "{status:?}");
        assert_eq!(node.shard.ni_credits(SECOND), Some(-2), "{status:?}");
        assert!(node.shard.is_quiet(FIRST) && !node.shard.is_quiet(SECOND));
        assert_eq!(all(&mut node, FIRST), []);
        for _ in 0..5 {
            let sent = node.shard.poll_transmit(NOW, SECOND).map(|lent| *lent.transmit).unwrap();
            assert_eq!((sent.ni, sent.header.source.nid), (SECOND, nid(1, 9)));
            node.shard.sent(NOW, sent.tx, Status::Ok);
        }
        assert_eq!(statuses(&mut node), [Status::Ok; 5]);
        assert!(node.shard.is_quiet(SECOND));
        assert_eq!(node.shard.ni_credits(SECOND), Some(2));
    }
}

/// Credits that come to an NI go to the messages that wait there, before those of another one come.
#[test]
fn an_ni_gets_credits_in_the_snapshot_in_which_another_one_stops() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    for (own, filler) in [(nid(1, 9), 3), (nid(1, 1), 4)] {
        (0..2).for_each(|_| put(&mut node, filler, Some(own)));
        put(&mut node, 2, (filler == 3).then_some(own));
    }
    assert_eq!([FIRST, SECOND].map(|ni| node.shard.ni_credits(ni)), [Some(-1); 2], "one waits for each");
    let mut slots = with_status(&slots, 0, NiStatus::Closed);
    slots[1] = Some(local_ni(nid(1, 9), 4, 2));
    update(&mut node, &slots);
    assert_eq!(statuses(&mut node), [UNREACHABLE; 2], "they name the NI that is closed");
    assert_eq!([FIRST, SECOND].map(|ni| node.shard.ni_credits(ni)), [Some(2), Some(0)]);
    let to: Vec<Nid> = all(&mut node, SECOND).iter().map(|sent| sent.next_hop).collect();
    assert_eq!(to, [3, 3, 2, 2].map(|host| nid(1, host)));
}

#[test]
fn what_has_no_other_path_ends_unsent() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    put(&mut node, 2, Some(nid(1, 1)));
    put(&mut node, 2, None);
    put(&mut node, 2, Some(nid(1, 1)));
    update(&mut node, &with_status(&slots, 0, NiStatus::Leaving));
    assert_eq!(statuses(&mut node), [UNREACHABLE; 2], "they name the NI");
    let gone = with_status(&with_status(&slots, 0, NiStatus::Leaving), 1, NiStatus::Leaving);
    update(&mut node, &gone);
    assert_eq!(statuses(&mut node), [UNREACHABLE]);
    put(&mut node, 2, None);
    assert_eq!(statuses(&mut node), [UNREACHABLE]);
    update(&mut node, &slots);
    put(&mut node, 2, None);
    assert_eq!(all(&mut node, FIRST).len() + all(&mut node, SECOND).len(), 1, "they are up again");
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(1));
}

/// A link that was reset is back in a moment.
#[test]
fn what_has_no_other_path_waits_for_a_link_that_is_down() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    put(&mut node, 2, Some(nid(1, 1)));
    put(&mut node, 2, None);
    put(&mut node, 2, Some(nid(1, 1)));
    let down = with_status(&with_status(&slots, 0, NiStatus::Down), 1, NiStatus::Down);
    update(&mut node, &down);
    put(&mut node, 3, None);
    put(&mut node, 3, Some(nid(1, 9)));
    assert_eq!(statuses(&mut node), []);
    update(&mut node, &slots);
    let mut count = 0;
    while count < 5 {
        let sent = [FIRST, SECOND].map(|ni| all(&mut node, ni)).concat();
        assert_ne!(sent.len(), 0, "after {count}");
        count += sent.len();
        sent.iter().for_each(|message| node.shard.sent(NOW, message.tx, Status::Ok));
    }
    assert_eq!(statuses(&mut node), [Status::Ok; 5]);
}

#[test]
fn what_the_lnd_has_is_its_own_to_end() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    put(&mut node, 2, None);
    let sent = node.shard.poll_transmit(NOW, FIRST).map(|lent| *lent.transmit).unwrap();
    update(&mut node, &with_status(&slots, 0, NiStatus::Closed));
    assert!(!node.shard.is_quiet(FIRST));
    assert!(!node.shard.confirmation().is_quiet);
    node.shard.give_back(Full(sent.tx));
    let again = node.shard.poll_transmit(NOW, FIRST).map(|lent| *lent.transmit).unwrap();
    node.shard.sent(NOW, again.tx, Status::Unknown(Cause::Device));
    assert!(node.shard.is_quiet(FIRST));
    assert!(node.shard.confirmation().is_quiet);
    assert_eq!(node.event().status(), Status::Unknown(Cause::Device));
}

#[test]
fn responses_go_on_until_their_ni_is_closed() {
    let slots = rails(1, 1);
    let mut node = node(&slots);
    let md = node.md(10);
    let options = MdOptions::GET | MdOptions::MANAGE_REMOTE;
    let spec = MdSpec { threshold: Threshold::Count(6), options, ..md };
    node.post(1, &spec);
    update(&mut node, &with_status(&slots, 0, NiStatus::Leaving));
    let source = host(3);
    let get = |source| Header { source, ..get_header(1, 10) };
    for from in [host(2), host(2), source] {
        assert_ne!(node.arrive(&get(from)), Verdict::Drop, "a leaving NI still takes what arrives");
    }
    let reply = node.shard.poll_transmit(NOW, FIRST).map(|lent| *lent.transmit).unwrap();
    assert!(matches!(reply.header.body, Body::Reply { .. }));
    assert!(!node.shard.is_quiet(FIRST));
    // A fourth has arrived, but is not in place.
    assert_ne!(node.shard.header(NOW, FIRST, &get(source).source.nid, RxId(1), &get(source)), Verdict::Drop);
    update(&mut node, &with_status(&slots, 0, NiStatus::Closed));
    assert_eq!(statuses(&mut node), [UNREACHABLE; 2], "one that waited for its peer, one for the NI");
    assert_eq!(
        node.shard.header(NOW, FIRST, &get(host(2)).source.nid, RxId(0), &get(host(2))),
        Verdict::Drop
    );
    assert_eq!(node.shard.counters().drops(DropReason::NiClosed).messages, 1);
    node.shard.received(NOW, RxId(1), Status::Ok);
    assert_eq!(statuses(&mut node), [UNREACHABLE], "its reply has no way");
    assert!(!node.shard.is_quiet(FIRST));
    node.shard.sent(NOW, reply.tx, Status::Ok);
    assert_eq!(statuses(&mut node), [Status::Ok]);
    assert!(node.shard.is_quiet(FIRST));
    assert_eq!(node.shard.ni_credits(FIRST), Some(1));
    assert_eq!(node.shard.usage().messages, 0);
}

#[test]
fn an_ack_of_a_closed_ni_is_not_sent() {
    let slots = rails(1, 1);
    let mut node = node(&slots);
    let spec = MdSpec { options: MdOptions::PUT, ..node.md(10) };
    node.post(1, &spec);
    assert_ne!(
        node.shard.header(NOW, FIRST, &acked_put_header(1, 4).source.nid, RxId(0), &acked_put_header(1, 4)),
        Verdict::Drop
    );
    update(&mut node, &with_status(&slots, 0, NiStatus::Closed));
    assert!(!node.shard.is_quiet(FIRST));
    node.shard.received(NOW, RxId(0), Status::Ok);
    assert!(node.shard.is_quiet(FIRST));
    assert_eq!(node.event().kind(), EventKind::Put);
    assert_eq!((node.shard.counters().send_failures, node.shard.usage().messages), (1, 0));
}

#[test]
fn what_a_closed_ni_brought_waits_no_more() {
    let slots = rails(1, 1);
    let mut node = node(&slots);
    node.shard.set_lazy(4).unwrap();
    assert_eq!(
        node.shard.header(NOW, FIRST, &put_header(1, 4).source.nid, RxId(3), &put_header(1, 4)),
        Verdict::Delay
    );
    update(&mut node, &with_status(&slots, 0, NiStatus::Leaving));
    assert_eq!(node.shard.poll_resume(), None);
    assert!(!node.shard.is_quiet(FIRST));
    update(&mut node, &with_status(&slots, 0, NiStatus::Closed));
    assert_eq!(node.shard.poll_resume(), Some((FIRST, RxId(3), Verdict::Drop)));
    assert_eq!(node.shard.counters().drops(DropReason::NiClosed).messages, 1);
    assert!(node.shard.is_quiet(FIRST));
}

#[test]
fn what_a_delay_rule_delays_goes_too() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    let latency = Duration::from_secs(1);
    let interval = Duration::ZERO;
    let rule = DelayRule { filter: Filter::EVERYTHING, rate: 1, interval, latency };
    node.shard.faults_mut().add_delay_rule(NOW, &rule, 1).unwrap();
    put(&mut node, 2, None);
    put(&mut node, 2, Some(nid(1, 1)));
    update(&mut node, &with_status(&slots, 0, NiStatus::Leaving));
    assert_eq!(statuses(&mut node), [UNREACHABLE]);
    assert!(node.shard.is_quiet(FIRST));
    node.shard.handle_timeout(NOW + latency);
    assert_eq!(all(&mut node, SECOND).len(), 1);
    assert_eq!(node.shard.ni_credits(FIRST), Some(2));
}

#[test]
fn more_credits_let_go_and_fewer_are_kept_back() {
    let slots = rails(1, 1);
    let mut node = node(&slots);
    (0..6).for_each(|_| put(&mut node, 2, Some(nid(1, 1))));
    assert_eq!(all(&mut node, FIRST).len(), 1);
    update(&mut node, &rails(5, 4));
    let sent = all(&mut node, FIRST);
    assert_eq!(sent.len(), 3, "four of the peer's five");
    assert_eq!(node.shard.ni_credits(FIRST), Some(1));
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(-2));
    update(&mut node, &rails(2, 2));
    assert_eq!(node.shard.ni_credits(FIRST), Some(-2));
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(-4));
    for (at, transmit) in sent.into_iter().enumerate() {
        node.shard.sent(NOW, transmit.tx, Status::Ok);
        assert_eq!(all(&mut node, FIRST).len(), usize::from(at == 2), "two credits went");
    }
    assert_eq!(node.shard.ni_credits(FIRST), Some(0));
}

#[test]
fn a_slot_is_used_again() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    put(&mut node, 2, None);
    let sent = node.shard.poll_transmit(NOW, FIRST).map(|lent| *lent.transmit).unwrap();
    node.shard.sent(NOW, sent.tx, Status::Ok);
    update(&mut node, &with_status(&slots, 0, NiStatus::Closed));
    update(&mut node, &[None, slots[1]]);
    assert_eq!(node.shard.ni_credits(FIRST), Some(0));
    put(&mut node, 2, None);
    assert_eq!(all(&mut node, SECOND).len(), 1);
    update(&mut node, &[Some(local_ni(nid(2, 1), 7, 3)), slots[1], Some(local_ni(nid(1, 5), 1, 1))]);
    assert_eq!(node.shard.ni_credits(FIRST), Some(7));
    assert_eq!(node.shard.ni_credits(NiId(2)), Some(1));
    assert_eq!(node.shard.peer_credits(&nid(1, 2)), Some(1), "the one under way is still counted");
}

#[test]
fn older_snapshots_change_nothing() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    let other = Topology::with_slots(vec![]).with_generation(1);
    node.shard.update(NOW, Arc::new(other));
    assert_eq!(node.shard.topology().nis(), slots);
    let tunables = Tunables { transaction_timeout: Duration::from_secs(1), ..Tunables::DEFAULT };
    let other = Topology::with_slots(slots).with_generation(2).with_tunables(tunables);
    node.shard.update(NOW, Arc::new(other));
    assert_eq!(*node.shard.topology().tunables(), tunables);
    assert_eq!(node.shard.confirmation().generation, 2);
}

#[test]
#[should_panic(expected = "NiId(0) goes before it is quiet")]
fn an_ni_in_use_does_not_go() {
    let slots = rails(2, 2);
    let mut node = node(&slots);
    put(&mut node, 2, None);
    update(&mut node, &[None, slots[1]]);
}

#[test]
#[should_panic(expected = "5 slots of NIs exceed the limit, 4")]
fn slots_are_limited() {
    update(&mut node(&[]), &[None; 5]);
}

#[test]
fn the_node_knows_itself_as_long_as_an_ni_lives() {
    let lo = Some(LocalNi::loopback(MESSAGE_TIMEOUT));
    let (own, other) = (Some(local_ni(nid(1, 1), 1, 1)), Some(local_ni(nid(1, 9), 1, 1)));
    let mut node = node(&[lo, other]);
    put(&mut node, 1, None);
    put(&mut node, 1, None);
    assert_eq!(node.shard.peer_credits(&nid(1, 1)), Some(-1), "somebody else");
    update(&mut node, &[lo, other, own]);
    assert!(node.shard.peer_credits(&nid(1, 1)).unwrap() > 1, "this node");
    put(&mut node, 1, None);
    assert_eq!(all(&mut node, FIRST).len(), 1, "by lo");
    update(&mut node, &[lo, other]);
    assert_eq!(node.shard.peer_credits(&nid(1, 1)), Some(-2));
    let sent = node.shard.poll_transmit(NOW, SECOND).map(|lent| *lent.transmit).unwrap();
    node.shard.sent(NOW, sent.tx, Status::Ok);
    assert_eq!(node.shard.peer_credits(&nid(1, 1)), Some(-1));
}

#[test]
fn own_nis_find_room_among_busy_peers() {
    let lo = Some(LocalNi::loopback(MESSAGE_TIMEOUT));
    let limits = Limits { nis: 4, peers: 3, ..config().limits };
    let slots = [lo, Some(local_ni(nid(1, 1), 8, 4))];
    let topology = Arc::new(Topology::with_slots(slots.to_vec()));
    let mut node = Node::new(ShardConfig { topology, limits, ..config() });
    put(&mut node, 2, None);
    update(&mut node, &[lo, slots[1], Some(local_ni(nid(1, 9), 8, 4))]);
    put(&mut node, 9, None);
    assert_eq!(all(&mut node, FIRST).len(), 1);
}

/// Portal 4 with this policy, among two shards.
fn steered(policy: Policy, generation: u64, frozen: u64) -> Arc<Topology> {
    let mut policies = [Policy::Pin(0).pack().unwrap(); PORTALS];
    policies[4] = policy.pack().unwrap();
    let topology = Topology::with_slots(vec![Some(local_ni(nid(1, 1), 8, 8))]);
    let topology = topology.with_steering(Steering { shard_count: 2, policies });
    Arc::new(topology.with_generation(generation).with_frozen(frozen))
}

fn pair_of_shards(policy: Policy) -> [Node; 2] {
    [0, 1].map(|shard| {
        let topology = steered(policy, 1, 0);
        Node::new(ShardConfig { topology, shard: ShardId(shard), shard_count: 2, ..config() })
    })
}

fn carry(shards: &mut [Node; 2]) {
    loop {
        let said: Vec<_> = shards.iter_mut().map(|node| poll_mesh(&mut node.shard)).collect();
        for (from, said) in said.iter().enumerate() {
            if let Some((to, message)) = *said {
                shards[usize::from(to.0)].shard.handle_mesh(NOW, ShardId(from as u8), message);
            }
        }
        if said.iter().all(Option::is_none) {
            return;
        }
    }
}

#[test]
fn a_policy_changes_while_its_portal_is_frozen() {
    let mut shards = pair_of_shards(Policy::Pin(0));
    let spec = MdSpec { options: MdOptions::PUT, ..shards[0].md(10) };
    let (entry_handle, _) = shards[0].post(1, &spec);
    shards[0].shard.set_lazy(4).unwrap();
    assert_eq!(shards.each_ref().map(|node| node.shard.confirmation().portals_in_use), [1 << 4, 0]);
    for node in &mut shards {
        node.shard.update(NOW, steered(Policy::Pin(0), 2, 1 << 4));
        assert_eq!(node.shard.attach_entry(&entry(2)), Err(EntryError::Frozen { portal: 4 }));
    }
    shards[0].shard.unlink_entry(entry_handle).unwrap();
    assert_eq!(shards[0].arrive(&put_header(1, 4)), Verdict::Drop, "it does not wait, lazy or not");
    assert_eq!(shards[1].arrive(&put_header(1, 4)), Verdict::Drop, "nor does a sibling hear of it");
    carry(&mut shards);
    assert_eq!(shards.each_ref().map(|node| node.shard.confirmation().portals_in_use), [0, 0]);
    shards.iter_mut().for_each(|node| node.shard.update(NOW, steered(Policy::Pin(1), 3, 0)));
    let spec = MdSpec { options: MdOptions::PUT, ..shards[1].md(10) };
    shards[1].post(1, &spec);
    assert_eq!(
        shards[1].arrive(&put_header(1, 4)),
        Verdict::Deliver(lnet_core::lnd::Span {
            buffer: shards[1].event().md().into(),
            offset_bytes: 0,
            length_bytes: 4
        })
    );
}

#[test]
#[should_panic(expected = "the policies of portals in use change")]
fn a_policy_does_not_change_under_a_message_that_waits() {
    let [mut node, _] = pair_of_shards(Policy::Pin(0));
    node.shard.set_lazy(4).unwrap();
    assert_eq!(
        node.shard.header(NOW, FIRST, &put_header(1, 4).source.nid, RxId(0), &put_header(1, 4)),
        Verdict::Delay
    );
    node.shard.update(NOW, steered(Policy::Pin(1), 2, 0));
}

fn closed(generation: u64) -> Arc<Topology> {
    let mut policies = [Policy::Pin(0).pack().unwrap(); PORTALS];
    policies[4] = Policy::Pin(0).pack().unwrap();
    let ni = LocalNi { status: NiStatus::Closed, ..local_ni(nid(1, 1), 8, 8) };
    let topology = Topology::with_slots(vec![Some(ni)]);
    Arc::new(topology.with_steering(Steering { shard_count: 2, policies }).with_generation(generation))
}

#[test]
fn a_sibling_takes_nothing_of_a_closed_ni() {
    let mut shards = pair_of_shards(Policy::Pin(0));
    shards[0].shard.set_lazy(4).unwrap();
    for rx in [0, 1] {
        assert_eq!(
            shards[1].shard.header(NOW, FIRST, &put_header(1, 4).source.nid, RxId(rx), &put_header(1, 4)),
            Verdict::Delay
        );
        if rx == 0 {
            // The first waits at the sibling, the second is asked about when that has heard.
            carry(&mut shards);
            assert!(!shards[0].shard.is_quiet(FIRST) && !shards[1].shard.is_quiet(FIRST));
        }
    }
    shards[0].shard.update(NOW, closed(2));
    carry(&mut shards);
    for rx in [0, 1] {
        assert_eq!(shards[1].shard.poll_resume(), Some((FIRST, RxId(rx), Verdict::Drop)));
    }
    assert_eq!(shards[1].shard.counters().drops(DropReason::NiClosed).messages, 2);
    assert!(shards.iter().all(|node| node.shard.is_quiet(FIRST)));
    shards[1].shard.update(NOW, closed(2));
    assert!(shards.iter().all(|node| node.shard.confirmation().is_quiet));
}

#[test]
fn a_lent_span_is_filled_but_not_answered() {
    let mut shards = pair_of_shards(Policy::Pin(0));
    let spec = MdSpec { options: MdOptions::PUT, ..shards[0].md(10) };
    shards[0].post(1, &spec);
    assert_eq!(
        shards[1].shard.header(
            NOW,
            FIRST,
            &acked_put_header(1, 4).source.nid,
            RxId(0),
            &acked_put_header(1, 4)
        ),
        Verdict::Delay
    );
    carry(&mut shards);
    assert!(matches!(shards[1].shard.poll_resume(), Some((FIRST, RxId(0), Verdict::Deliver(_)))));
    shards.iter_mut().for_each(|node| node.shard.update(NOW, closed(2)));
    assert!(shards.iter().all(|node| !node.shard.is_quiet(FIRST)));
    shards[1].shard.received(NOW, RxId(0), Status::Ok);
    carry(&mut shards);
    assert_eq!(shards[0].event().status(), Status::Ok);
    assert_eq!(shards[0].shard.usage().messages, 0);
    assert!(shards.iter().all(|node| node.shard.is_quiet(FIRST)));
}

#[test]
fn a_sibling_may_hear_of_an_ni_later() {
    let mut shards = pair_of_shards(Policy::Pin(0));
    let spec = MdSpec { options: MdOptions::PUT, ..shards[0].md(10) };
    shards[0].post(1, &spec);
    let with_another = |generation| {
        let slots = vec![Some(local_ni(nid(1, 1), 8, 8)), Some(local_ni(nid(1, 3), 8, 8))];
        let policies = [Policy::Pin(0).pack().unwrap(); PORTALS];
        let topology = Topology::with_slots(slots).with_steering(Steering { shard_count: 2, policies });
        Arc::new(topology.with_generation(generation))
    };
    let header = Header { destination: host(3), ..put_header(1, 4) };
    shards[1].shard.update(NOW, with_another(2));
    assert_eq!(shards[1].shard.header(NOW, SECOND, &header.source.nid, RxId(0), &header), Verdict::Delay);
    carry(&mut shards);
    assert_eq!(shards[1].shard.poll_resume(), Some((SECOND, RxId(0), Verdict::Drop)));
    assert_eq!(shards[1].shard.counters().drops(DropReason::NiClosed).messages, 1);
    shards[0].shard.update(NOW, with_another(2));
    assert_eq!(shards[1].shard.header(NOW, SECOND, &header.source.nid, RxId(0), &header), Verdict::Delay);
    carry(&mut shards);
    assert!(matches!(shards[1].shard.poll_resume(), Some((SECOND, RxId(0), Verdict::Deliver(_)))));
}
