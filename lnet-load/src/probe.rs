//! Whether a target of a load is there.
//!
//! A kernel node whose portal never had an entry dies of a GET, and nothing that LNet tells of a tcp node
//! says whether it is one. An ACK does: an entry for just that has taken an empty PUT, which a target posts
//! beside those for GETs.

use std::time::Duration;

use lnet_user::Buffer;
use lnet_user::EventKind;
use lnet_user::Nid;
use lnet_user::Status;
use lnet_user::api::{Ack, EventQueue, QueuedEvent, Target};
use lnet_user::{MdOptions, MdSpec, Threshold};

use super::plan::Posting;

/// How often it is looked at whether it is late.
const TICK: Duration = Duration::from_millis(20);

/// Whether an empty PUT to a target's entry for it is acknowledged before it is late. The queue has no other
/// events.
pub(super) fn is_answered(
    queue: &mut EventQueue,
    probe: &Posting,
    nid: Nid,
    is_late: impl Fn() -> bool,
) -> bool {
    let md = MdSpec::new(0, Threshold::Count(2), MdOptions::NONE, queue.handle());
    let Ok(descriptor) = queue.shard().bind(&md, Buffer::default()) else { return false };
    let put = descriptor.put(&Target::new(nid, probe.portal, probe.match_bits), Ack::Wanted, 0).start();
    let mut descriptor = Some(descriptor);
    let mut is_answered = false;
    loop {
        if put.is_err() || is_late() {
            // Unlinks it; the last event follows.
            drop(descriptor.take());
        }
        match queue.next_blocking(Some(TICK)) {
            Ok(Some(QueuedEvent { event, .. })) => {
                is_answered |= event.kind() == EventKind::Ack && event.status() == Status::Ok;
                if event.unlinked() {
                    return is_answered;
                }
                if event.status() != Status::Ok {
                    drop(descriptor.take());
                }
            }
            Ok(None) => {}
            Err(_) => return false,
        }
    }
}
