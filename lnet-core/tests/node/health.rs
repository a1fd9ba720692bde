//! Health of local NIs while a batch of changes is carried out.

use lnet_core::lnd::NiId;
use lnet_core::node::{Action, NodeChange, Report, Request};
use lnet_core::shard::HealthNote;
use lnet_core::topology::HEALTH_MAX;

use crate::common::{Runner, nid, spec};

/// What a shard notes of an NI.
fn note(runner: &mut Runner, failures: u32) {
    let note = HealthNote { nid: nid(1, 1), failures, successes: 0 };
    runner.node.handle_report(runner.now, Report::Health(note));
}

fn health(runner: &Runner) -> u32 {
    runner.node.ni(&nid(1, 1)).unwrap().health
}

/// Carries changes out; while an NI is being opened, messages of another one fail so often.
fn failing_during(changes: &[NodeChange<u32>], failures: u32) -> Runner {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    runner.node.handle_request(runner.now, Request::batch(changes.to_vec())).unwrap();
    let opening = std::iter::from_fn(|| runner.node.poll_action()).find_map(|action| match action {
        Action::Open { ni, .. } => Some(ni),
        _ => None,
    });
    note(&mut runner, failures);
    runner.run();
    let opened = Report::Opened { ni: opening.unwrap(), result: Ok(()) };
    runner.node.handle_report(runner.now, opened);
    runner.run();
    assert_eq!(runner.nids().len(), 2);
    runner
}

#[test]
fn what_messages_say_meanwhile_is_not_undone() {
    let add = NodeChange::AddNi(spec(2, 2));
    let runner = failing_during(std::slice::from_ref(&add), 3);
    assert_eq!(health(&runner), HEALTH_MAX - 300);
    assert_eq!(runner.node.recovering().0.len(), 1, "it is pinged");
    // What the batch sets is what stays.
    let set = NodeChange::SetHealth { nid: Some(nid(1, 1)), value: 800 };
    assert_eq!(health(&failing_during(&[add.clone(), set], 3)), 800);
    let set = NodeChange::SetHealth { nid: Some(nid(2, 2)), value: 7 };
    let runner = failing_during(&[add, set], 1);
    assert_eq!((health(&runner), runner.node.ni(&nid(2, 2)).unwrap().health), (HEALTH_MAX - 100, 7));
}

/// One that is gone has no say in the health of another one in its slot.
#[test]
fn a_health_that_is_set_goes_with_its_ni() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    let set = NodeChange::SetHealth { nid: None, value: 5 };
    runner.batch(&[set, NodeChange::DeleteNi { nid: nid(1, 1) }, NodeChange::AddNi(spec(1, 1))]).unwrap();
    assert_eq!((runner.nids(), health(&runner)), (vec![(1, nid(1, 1))], HEALTH_MAX));
}

#[test]
fn an_ni_that_messages_took_down_is_set_up_by_hand() {
    let mut runner = Runner::new(1);
    runner.batch(&[NodeChange::AddNi(spec(1, 1))]).unwrap();
    note(&mut runner, 10);
    runner.run();
    let ni = runner.node.ni(&nid(1, 1)).unwrap();
    assert_eq!((ni.ni, ni.health, ni.is_failed), (NiId(1), 0, true));
    runner.batch(&[NodeChange::SetHealth { nid: None, value: 500 }]).unwrap();
    assert!(runner.node.ni(&nid(1, 1)).unwrap().is_failed, "not before it is in full health");
    runner.batch(&[NodeChange::SetHealth { nid: None, value: 1000 }]).unwrap();
    assert!(!runner.node.ni(&nid(1, 1)).unwrap().is_failed);
}
