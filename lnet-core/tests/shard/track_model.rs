//! Awaited responses against a naive model: all descriptors are looked through for the next deadline.

use std::time::Duration;

use lnet_core::event::EventKind;
use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Cause, Status, TxId, Uplink, Verdict};
use lnet_core::md::{MdSpec, Threshold, Unlinked};
use lnet_core::shard::PutRequest;
use lnet_core::time::Instant;
use lnet_core::tunables::Tunables;
use proptest::prelude::*;

use crate::common::{Node, ack_header, config, get_request, put_request, reply_header};

const LATE: Status = Status::Unknown(Cause::Timeout);

#[derive(Clone, Debug)]
enum Operation {
    Bind { threshold: Option<u32>, auto_unlink: bool },
    Request { which: usize, get: bool },
    Sent { which: usize },
    Respond { which: usize, reply: bool },
    Unlink { which: usize },
    Advance { seconds: u64 },
}

/// A descriptor that exists.
struct ModelMd {
    handle: MdHandle,
    number: u64,
    /// `None` without end.
    left: Option<u32>,
    auto_unlink: bool,
    /// Requests that the LND has.
    flying: Vec<TxId>,
    aborted: bool,
    /// Whether a PUT was started from it: a REPLY waits while anything is under way then.
    is_source: bool,
    acks: u32,
    replies: u32,
    /// Responses of either kind that may still come.
    responses: u32,
    /// Deadline, and the count of requests when it was set: what came first expires first.
    due: Option<(Instant, u64)>,
}

impl ModelMd {
    fn start(&mut self) {
        self.left = self.left.map(|left| left - 1);
    }

    fn ends_when_idle(&self) -> bool {
        self.aborted || self.auto_unlink && self.left == Some(0)
    }
}

struct Run {
    node: Node,
    now: Instant,
    mds: Vec<ModelMd>,
    bound_count: u64,
    request_count: u64,
    timeouts: u64,
    /// Events to come: number of the descriptor, kind, status, unlinked.
    expected: Vec<(u64, EventKind, Status, bool)>,
}

impl Run {
    fn new() -> Self {
        Self {
            node: Node::new(config()),
            now: Instant(0),
            mds: Vec::new(),
            bound_count: 0,
            request_count: 0,
            timeouts: 0,
            expected: Vec::new(),
        }
    }

    fn bind(&mut self, threshold: Option<u32>, auto_unlink: bool) {
        let number = self.bound_count;
        let spec = MdSpec {
            threshold: threshold.map_or(Threshold::Infinite, Threshold::Count),
            auto_unlink,
            user_ptr: number,
            ..self.node.md(10)
        };
        // The event slots may be used up by descriptors with high thresholds: that is tested elsewhere.
        let Ok(handle) = self.node.shard.bind(&spec) else { return };
        self.bound_count += 1;
        self.mds.push(ModelMd {
            handle,
            number,
            left: threshold,
            auto_unlink,
            flying: Vec::new(),
            aborted: false,
            is_source: false,
            acks: 0,
            replies: 0,
            responses: 0,
            due: None,
        });
    }

    fn request(&mut self, which: usize, get: bool) {
        let md = &mut self.mds[which];
        let shard = &mut self.node.shard;
        let started = if get {
            shard.get(self.now, &get_request(md.handle))
        } else {
            shard.put(self.now, &PutRequest { ack: true, ..put_request(md.handle, 2) })
        };
        let has_room = md.left.is_none_or(|left| left >= 2 + md.responses);
        assert_eq!(started.is_ok(), !md.aborted && has_room, "{started:?}");
        if started.is_err() {
            return;
        }
        self.request_count += 1;
        md.responses += 1;
        md.is_source |= !get;
        md.start();
        md.due = Some((self.now + Tunables::DEFAULT.transaction_timeout, self.request_count));
        if get {
            md.replies += 1;
        } else {
            md.acks += 1;
        }
        md.flying.push(self.node.transmit().unwrap().tx);
    }

    fn sent(&mut self, which: usize) {
        let md = &mut self.mds[which];
        let Some(tx) = md.flying.pop() else { return };
        self.node.shard.sent(self.now, tx, Status::Ok);
        let status = if md.aborted { LATE } else { Status::Ok };
        self.end(which, EventKind::Send, status);
    }

    fn respond(&mut self, which: usize, reply: bool) {
        let md = &mut self.mds[which];
        if reply && md.is_source && !md.flying.is_empty() {
            return;
        }
        let header = if reply { reply_header(md.handle, 3) } else { ack_header(md.handle) };
        let taken = self.node.arrive(&header) != Verdict::Drop;
        assert_eq!(taken, !md.aborted && md.left != Some(0));
        if !taken {
            return;
        }
        md.start();
        md.responses = md.responses.saturating_sub(1);
        let awaited = if reply { &mut md.replies } else { &mut md.acks };
        *awaited = awaited.saturating_sub(1);
        if (md.acks, md.replies) == (0, 0) {
            md.due = None;
        }
        self.end(which, if reply { EventKind::Reply } else { EventKind::Ack }, Status::Ok);
    }

    /// An operation has ended.
    fn end(&mut self, which: usize, kind: EventKind, status: Status) {
        let md = &mut self.mds[which];
        let idle = md.flying.is_empty();
        let unlinked = idle && md.ends_when_idle();
        self.expected.push((md.number, kind, status, unlinked));
        if idle && md.left.is_none() {
            (md.due, md.acks, md.replies) = (None, 0, 0);
        }
        if unlinked {
            self.mds.remove(which);
        }
    }

    fn unlink(&mut self, which: usize) {
        let md = &mut self.mds[which];
        let unlinked = self.node.shard.unlink(md.handle);
        if md.aborted {
            assert_eq!(unlinked, Err(md.handle));
            return;
        }
        assert_eq!(unlinked, Ok(if md.flying.is_empty() { Unlinked::Done } else { Unlinked::Pending }));
        let is_lost = md.responses > 0;
        self.abort(which, if is_lost { Status::Unknown(Cause::Cancelled) } else { Status::Ok });
    }

    fn abort(&mut self, which: usize, status: Status) {
        let md = &mut self.mds[which];
        (md.aborted, md.due) = (true, None);
        if md.flying.is_empty() {
            self.expected.push((md.number, EventKind::Unlink, status, true));
            self.mds.remove(which);
        }
    }

    fn next_due(&self) -> Option<(Instant, u64)> {
        self.mds.iter().filter_map(|md| md.due).min()
    }

    fn advance(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        self.node.shard.handle_timeout(self.now);
        while let Some(due) = self.next_due().filter(|due| due.0 <= self.now) {
            self.timeouts += 1;
            let which = self.mds.iter().position(|md| md.due == Some(due)).unwrap();
            self.abort(which, LATE);
        }
    }

    fn run(&mut self, operation: &Operation) {
        let count = self.mds.len().max(1);
        match *operation {
            Operation::Bind { threshold, auto_unlink } => self.bind(threshold, auto_unlink),
            Operation::Advance { seconds } => self.advance(seconds),
            _ if self.mds.is_empty() => {}
            Operation::Request { which, get } => {
                let which = which % count;
                // Without a threshold a descriptor has 3 events under way, and 4 credits lead to the peer.
                if self.mds.iter().map(|md| md.flying.len()).sum::<usize>() < 3 {
                    self.request(which, get);
                }
            }
            Operation::Sent { which } => self.sent(which % count),
            Operation::Respond { which, reply } => {
                let which = which % count;
                if self.mds[which].flying.len() < 3 {
                    self.respond(which, reply);
                }
            }
            Operation::Unlink { which } => self.unlink(which % count),
        }
        let events: Vec<_> = self
            .node
            .events()
            .iter()
            .map(|event| (event.user_ptr(), event.kind(), event.status(), event.unlinked()))
            .collect();
        assert_eq!(events, std::mem::take(&mut self.expected), "after {operation:?}");
        assert_eq!(self.node.shard.poll_timeout(), self.next_due().map(|due| due.0));
        let usage = self.node.shard.usage();
        assert_eq!(usage.memory_descs as usize, self.mds.len());
        assert_eq!(usage.trackers as usize, self.mds.iter().filter(|md| md.due.is_some()).count());
        assert_eq!(self.node.shard.counters().response_timeouts, self.timeouts);
    }
}

fn operations() -> impl Strategy<Value = Operation> {
    let which = any::<usize>;
    prop_oneof![
        4 => (proptest::option::weighted(0.8, 1_u32..6), any::<bool>())
            .prop_map(|(threshold, auto_unlink)| Operation::Bind { threshold, auto_unlink }),
        6 => (which(), any::<bool>()).prop_map(|(which, get)| Operation::Request { which, get }),
        5 => which().prop_map(|which| Operation::Sent { which }),
        4 => (which(), any::<bool>()).prop_map(|(which, reply)| Operation::Respond { which, reply }),
        1 => which().prop_map(|which| Operation::Unlink { which }),
        4 => (0_u64..70).prop_map(|seconds| Operation::Advance { seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn deadlines_go_as_in_the_model(operations in proptest::collection::vec(operations(), 1..120)) {
        let mut run = Run::new();
        for operation in &operations {
            run.run(operation);
        }
    }
}
