//! Credits, wait queues and deadlines against a naive model.

mod model;
mod ni;

use std::sync::Arc;
use std::time::Duration;

use lnet_core::handle::MdHandle;
use lnet_core::lnd::{Cause, Full, NiId, Status, TxId, Uplink};
use lnet_core::md::{MdSpec, Unlinked};
use lnet_core::shard::{PutRequest, SubmitError};
use lnet_core::topology::{LocalNi, NiStatus, Topology};
use lnet_core::{Limits, ShardConfig};
use proptest::prelude::*;

use crate::common::{Node, config, local_ni, nid, put_request};
use model::{Model, NI_CREDITS, NIS, PEER_CREDITS};

const REQUESTS: usize = 24;
const SLOTS: [NiId; NIS] = [NiId(0), NiId(1)];

#[derive(Clone, Debug)]
enum Operation {
    /// A request, which may name its NI.
    Put {
        peer: u8,
        bound: Option<usize>,
    },
    Transmit {
        ni: usize,
    },
    /// The LND of an NI has no room for the message that it got last.
    GiveBack {
        ni: usize,
    },
    Sent {
        which: usize,
        status: Status,
    },
    Unlink {
        which: usize,
    },
    Advance {
        millis: u64,
    },
    Timeout,
    /// A snapshot with so many credits of an NI.
    Credits {
        ni: usize,
        total: u32,
    },
    /// A snapshot in which an NI has another status.
    Change {
        ni: usize,
        status: NiStatus,
    },
}

struct Run {
    node: Node,
    model: Model,
    /// Credits and status of each NI.
    nis: [(u32, NiStatus); NIS],
    mds: Vec<MdHandle>,
    /// Messages that the LNDs have, those that they got last at the end.
    flying: Vec<(usize, NiId, TxId)>,
}

fn topology(nis: [(u32, NiStatus); NIS], generation: u64) -> Arc<Topology> {
    let local = |(host, (total, status))| LocalNi { status, ..local_ni(nid(1, host), total, PEER_CREDITS) };
    Arc::new(Topology::new([101, 102].into_iter().zip(nis).map(local).collect()).with_generation(generation))
}

impl Run {
    fn new() -> Self {
        let nis = [(NI_CREDITS, NiStatus::Up); NIS];
        let limits = Limits { requests: REQUESTS as u32, ..config().limits };
        let node = Node::new(ShardConfig { topology: topology(nis, 0), limits, ..config() });
        Self { node, model: Model::new(), nis, mds: Vec::new(), flying: Vec::new() }
    }

    fn put(&mut self, peer: u8, bound: Option<usize>) {
        let now = self.model.now;
        // Tests of their own look at the choice.
        let path = self.model.path(bound, || {
            let chosen = self.node.shard.explain(now, &nid(1, peer)).choice;
            chosen.map(|choice| usize::from(choice.ni.0))
        });
        let user_ptr = self.mds.len() as u64;
        let md = self.node.shard.bind(&MdSpec { user_ptr, ..self.node.md(1) }).unwrap();
        let self_nid = bound.map(|ni| self.node.shard.topology().ni(SLOTS[ni]).unwrap().nid);
        let result = self.node.shard.put(now, &PutRequest { self_nid, ..put_request(md, peer) });
        if path.is_some() && self.model.messages.len() - self.model.ended.len() == REQUESTS {
            assert_eq!(result, Err(SubmitError::RequestsFull));
            self.node.shard.unlink(md).unwrap();
            self.node.event();
        } else {
            assert_eq!(result, Ok(()));
            self.mds.push(md);
            self.model.put(peer, path, bound.is_some());
        }
    }

    fn transmit(&mut self, ni: usize) {
        let transmit = self.node.shard.poll_transmit(self.model.now, SLOTS[ni]).map(|lent| *lent.transmit);
        let expected = self.model.transmit(ni);
        let sent = transmit.and_then(|transmit| transmit.payload).and_then(|span| span.buffer.md());
        assert_eq!(sent, expected.map(|number| self.mds[number]), "another message's turn");
        if let (Some(transmit), Some(number)) = (transmit, expected) {
            assert_eq!(transmit.ni, SLOTS[ni]);
            self.flying.push((number, transmit.ni, transmit.tx));
        }
    }

    fn give_back(&mut self, ni: usize) {
        if let Some(last) = self.flying.iter().rposition(|(_, by, _)| *by == SLOTS[ni]) {
            let (number, _, tx) = self.flying.remove(last);
            self.model.give_back(number);
            self.node.shard.give_back(Full(tx));
        }
    }

    fn sent(&mut self, which: usize, status: Status) {
        let (number, _, tx) = self.flying.remove(which);
        self.model.end(number, status);
        self.node.shard.sent(self.model.now, tx, status);
    }

    fn unlink(&mut self, number: usize) {
        let has_ended = self.model.ended.iter().any(|&(other, _)| other == number as u64);
        let message = &mut self.model.messages[number];
        let is_gone = has_ended || message.is_aborted;
        let expected = if is_gone { Err(self.mds[number]) } else { Ok(Unlinked::Pending) };
        assert_eq!(self.node.shard.unlink(self.mds[number]), expected);
        message.is_aborted = true;
    }

    fn timeout(&mut self) {
        let mut sent = self.flying.clone();
        sent.sort_by_key(|&(.., tx)| tx);
        self.model.timeout(&sent.iter().map(|&(number, ..)| number).collect::<Vec<_>>());
        self.node.shard.handle_timeout(self.model.now);
    }

    fn update(&mut self) {
        self.model.update(self.nis);
        let generation = self.node.shard.topology().generation() + 1;
        self.node.shard.update(self.model.now, topology(self.nis, generation));
    }

    fn run(&mut self, operation: &Operation) {
        let seen = self.model.ended.len();
        match *operation {
            Operation::Put { peer, bound } => self.put(peer, bound),
            Operation::Transmit { ni } => self.transmit(ni),
            Operation::GiveBack { ni } => self.give_back(ni),
            Operation::Sent { which, status } if !self.flying.is_empty() => {
                self.sent(which % self.flying.len(), status);
            }
            Operation::Unlink { which } if !self.mds.is_empty() => {
                self.unlink(which % self.mds.len());
            }
            Operation::Sent { .. } | Operation::Unlink { .. } => {}
            Operation::Advance { millis } => {
                self.model.now = self.model.now + Duration::from_millis(millis);
            }
            Operation::Timeout => self.timeout(),
            Operation::Credits { ni, total } => {
                self.nis[ni].0 = total;
                self.update();
            }
            Operation::Change { ni, status } => {
                self.nis[ni].1 = status;
                self.update();
            }
        }
        let ended: Vec<_> =
            self.node.events().iter().map(|event| (event.user_ptr(), event.status())).collect();
        assert_eq!(ended, self.model.ended[seen..]);
        for (ni, slot) in SLOTS.into_iter().enumerate() {
            assert_eq!(self.node.shard.ni_credits(slot), Some(self.model.ni_credits(ni)));
        }
        for (peer, available) in self.model.peer_credits() {
            assert_eq!(self.node.shard.peer_credits(&nid(1, peer)), Some(available));
        }
        assert_eq!(self.node.shard.poll_timeout(), self.model.next_deadline());
        let counters = self.node.shard.counters();
        let counts = (counters.resends, counters.credits_passed_on);
        assert_eq!(counts, (self.model.resends, self.model.passed_on));
        self.model.check();
    }
}

fn operations() -> impl Strategy<Value = Operation> {
    let bound = prop_oneof![3 => Just(None), 1 => (0..NIS).prop_map(Some)];
    let status = prop_oneof![
        3 => Just(Status::Ok),
        1 => Just(Status::Unknown(Cause::Device)),
        2 => Just(Status::NeverSent(Cause::Unreachable)),
    ];
    let changed = prop_oneof![
        4 => Just(NiStatus::Up),
        2 => Just(NiStatus::Down),
        1 => Just(NiStatus::Leaving),
    ];
    let millis = prop_oneof![3 => 0_u64..3_000, 1 => 0_u64..30_000];
    prop_oneof![
        14 => (2_u8..8, bound).prop_map(|(peer, bound)| Operation::Put { peer, bound }),
        10 => (0..NIS).prop_map(|ni| Operation::Transmit { ni }),
        3 => (0..NIS).prop_map(|ni| Operation::GiveBack { ni }),
        8 => (any::<usize>(), status).prop_map(|(which, status)| Operation::Sent { which, status }),
        2 => any::<usize>().prop_map(|which| Operation::Unlink { which }),
        3 => millis.prop_map(|millis| Operation::Advance { millis }),
        3 => Just(Operation::Timeout),
        1 => (0..NIS, PEER_CREDITS..2 * NI_CREDITS).prop_map(|(ni, total)| Operation::Credits { ni, total }),
        2 => (0..NIS, changed).prop_map(|(ni, status)| Operation::Change { ni, status }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn credits_go_as_in_the_model(operations in proptest::collection::vec(operations(), 1..200)) {
        let mut run = Run::new();
        for operation in &operations {
            run.run(operation);
        }
        while run.model.ended.len() < run.model.messages.len() {
            (0..NIS).for_each(|ni| run.run(&Operation::Transmit { ni }));
            prop_assert!(!run.flying.is_empty(), "nothing moves any more");
            run.run(&Operation::Sent { which: 0, status: Status::Ok });
        }
        for (ni, (total, _)) in run.nis.into_iter().enumerate() {
            prop_assert_eq!(run.node.shard.ni_credits(SLOTS[ni]), Some(i64::from(total)));
        }
        prop_assert_eq!(run.node.shard.usage().memory_descs, 0);
    }
}
