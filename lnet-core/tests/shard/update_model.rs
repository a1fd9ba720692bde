//! NIs that come, go and change under load, against a naive model.

use std::collections::BTreeMap;
use std::sync::Arc;

use lnet_core::event::Event;
use lnet_core::lnd::{Cause, NiId, RxId, Status, TxId, Uplink, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_core::shard::PutRequest;
use lnet_core::topology::{LocalNi, NiStatus, Topology};
use lnet_core::{Limits, ShardConfig};
use lnet_wire::{Body, Header, Nid, ProcessId};
use proptest::prelude::*;

use crate::common::{FOREIGN, NOW, Node, config, local_ni, nid};

const SLOTS: usize = 4;
const REQUESTS: u32 = 24;
const RESPONSES: u32 = 24;
const UNREACHABLE: Status = Status::NeverSent(Cause::Unreachable);

#[derive(Clone, Debug)]
enum Operation {
    /// An NI comes, if the slot is empty.
    Add {
        slot: usize,
        net: u16,
        credits: u32,
        peer_credits: u32,
    },
    /// Its status or credits change, or it goes if it is closed and quiet.
    NodeChange {
        slot: usize,
        status: NiStatus,
        credits: u32,
        peer_credits: u32,
    },
    Remove {
        slot: usize,
    },
    /// A PUT, which may name an NI.
    Put {
        net: u16,
        peer: u8,
        bound: Option<usize>,
    },
    /// A GET of a peer arrives, and is answered.
    Get {
        slot: usize,
        peer: u8,
    },
    Transmit {
        slot: usize,
    },
    Sent {
        which: usize,
        well: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Message {
    peer: Nid,
    /// The slot that it leaves by and no other.
    bound: Option<usize>,
    is_response: bool,
    flying: Option<(TxId, usize)>,
}

struct Run {
    node: Node,
    slots: Vec<Option<LocalNi>>,
    generation: u64,
    /// What has not ended, by number.
    messages: BTreeMap<u64, Message>,
    next: u64,
    peer_credits: BTreeMap<Nid, u32>,
    /// What ended since it was last compared.
    ended: Vec<(u64, Status)>,
}

fn peer_share(ni: &LocalNi) -> u32 {
    ni.peer_credits.min(ni.credits).max(1)
}

impl Run {
    fn new() -> Self {
        let limits = Limits {
            requests: REQUESTS,
            responses: RESPONSES,
            peers: 64,
            nis: SLOTS as u16,
            unlimited_events: 200,
            ..config().limits
        };
        let mut node = Node::new(ShardConfig { topology: Arc::default(), limits, ..config() });
        let options = MdOptions::GET | MdOptions::MANAGE_REMOTE;
        let spec = MdSpec { threshold: Threshold::Infinite, options, ..node.md(100) };
        let entry = EntrySpec { ignore_bits: u64::MAX, ..crate::common::entry(0) };
        let entry = node.shard.attach_entry(&entry).unwrap();
        node.shard.attach(entry, &spec).unwrap();
        Self {
            node,
            slots: vec![None; SLOTS],
            generation: 0,
            messages: BTreeMap::new(),
            next: 1,
            peer_credits: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    fn up_on(&self, net: u16) -> Option<usize> {
        let net = nid(net, 1).net();
        self.slots.iter().position(|slot| slot.is_some_and(|ni| ni.net == net && ni.status == NiStatus::Up))
    }

    /// Whether a request may leave by an NI, or wait for its link.
    fn takes(ni: &LocalNi) -> bool {
        matches!(ni.status, NiStatus::Up | NiStatus::Down)
    }

    /// An NI whose link is down, on a net of which none is up.
    fn down_on(&self, net: u16) -> Option<usize> {
        let net = nid(net, 1).net();
        self.slots.iter().position(|slot| slot.is_some_and(|ni| ni.net == net && Self::takes(&ni)))
    }

    /// Whether a message that was not sent yet has still a way.
    fn has_path(&self, message: &Message) -> bool {
        let status = |slot: usize| self.slots[slot].map(|ni| ni.status);
        match message.bound {
            Some(slot) if message.is_response => {
                status(slot).is_some_and(|status| status != NiStatus::Closed)
            }
            Some(slot) => self.slots[slot].is_some_and(|ni| Self::takes(&ni)),
            None => (1..3).any(|net| nid(net, 1).net() == message.peer.net() && self.down_on(net).is_some()),
        }
    }

    fn end(&mut self, number: u64, status: Status) {
        self.messages.remove(&number).unwrap();
        self.ended.push((number, status));
    }

    fn update(&mut self, slot: usize, ni: Option<LocalNi>) {
        let is_changed = std::mem::replace(&mut self.slots[slot], ni) != ni;
        self.generation += 1;
        let topology = Topology::with_slots(self.slots.clone()).with_generation(self.generation);
        self.node.shard.update(NOW, Arc::new(topology));
        let lost: Vec<u64> = self
            .messages
            .iter()
            .filter(|(_, message)| message.flying.is_none() && !self.has_path(message))
            .map(|(number, _)| *number)
            .collect();
        lost.into_iter().for_each(|number| self.end(number, UNREACHABLE));
        // Peers get what is due on their net now, which may be more than what the NI gave that met them
        // first.
        for (peer, credits) in self.peer_credits.iter_mut().filter(|_| is_changed) {
            if let Some(ni) = self.slots.iter().flatten().find(|ni| ni.net == peer.net()) {
                *credits = peer_share(ni);
            }
        }
    }

    fn is_quiet(&self, slot: usize) -> bool {
        self.messages.values().all(|message| {
            message
                .flying
                .map_or_else(|| !message.is_response || message.bound != Some(slot), |(_, by)| by != slot)
        })
    }

    fn put(&mut self, net: u16, peer: u8, bound: Option<usize>) {
        let bound = bound.filter(|&slot| self.slots[slot].is_some());
        let self_nid = bound.map(|slot| self.slots[slot].unwrap().nid);
        let requests = self.messages.values().filter(|message| !message.is_response).count();
        if requests == REQUESTS as usize {
            return;
        }
        let number = self.next;
        self.next += 1;
        let target = ProcessId::lustre(nid(net, peer));
        let md = self.node.shard.bind(&MdSpec { user_ptr: number, ..self.node.md(1) }).unwrap();
        let (match_bits, offset, hdr_data) = (number, 0, 0);
        let put = PutRequest {
            md,
            part: None,
            ack: false,
            self_nid,
            target,
            portal: 4,
            match_bits,
            offset,
            hdr_data,
        };
        self.node.shard.put(NOW, &put).unwrap();
        let serves = bound.map_or_else(
            || self.up_on(net).or_else(|| self.down_on(net)),
            |slot| {
                self.slots[slot]
                    .is_some_and(|ni| ni.net == target.nid.net() && Self::takes(&ni))
                    .then_some(slot)
            },
        );
        self.messages.insert(number, Message { peer: target.nid, bound, is_response: false, flying: None });
        match serves {
            Some(_) if !self.peer_credits.contains_key(&target.nid) => {
                // Which of the NIs that serve on its net a peer is met by is the shard's affair.
                let credits = self.node.shard.peer_credits(&target.nid).unwrap() + 1;
                let shares: Vec<_> = self.slots.iter().flatten().map(peer_share).collect();
                let share = shares.into_iter().find(|share| i64::from(*share) == credits);
                self.peer_credits.insert(target.nid, share.expect("the share of an NI"));
            }
            Some(_) => {}
            None => self.end(number, UNREACHABLE),
        }
    }

    fn get(&mut self, slot: usize, peer: u8) {
        let Some(ni) = self.slots[slot] else { return };
        let number = self.next;
        self.next += 1;
        let net = if ni.net == nid(1, 1).net() { 1 } else { 2 };
        let source = ProcessId::lustre(nid(net, peer));
        let body = Body::Get { return_md: FOREIGN, match_bits: number, portal: 4, offset: 0, sink_length: 8 };
        let destination = ProcessId::lustre(ni.nid);
        let header = Header { destination, source, payload_length: 0, body };
        let by = NiId(slot as u16);
        let responses = self.messages.values().filter(|message| message.is_response);
        let to_peer = responses.clone().filter(|message| message.peer == source.nid).count();
        let free = RESPONSES as usize - responses.count();
        let verdict = self.node.shard.header(NOW, by, &header.source.nid, RxId(0), &header);
        if ni.status == NiStatus::Closed || to_peer >= free {
            assert_eq!(verdict, Verdict::Drop);
            return;
        }
        assert!(matches!(verdict, Verdict::Deliver(_)), "{verdict:?}");
        assert!(!self.node.shard.is_quiet(by));
        self.node.shard.received(NOW, RxId(0), Status::Ok);
        let message = Message { peer: source.nid, bound: Some(slot), is_response: true, flying: None };
        self.messages.insert(number, message);
        self.peer_credits.entry(source.nid).or_insert(peer_share(&ni));
    }

    fn transmit(&mut self, slot: usize) {
        let Some(transmit) = self.node.shard.poll_transmit(NOW, NiId(slot as u16)).map(|lent| *lent.transmit)
        else {
            return;
        };
        let ni = self.slots[slot].expect("nobody sends by an empty slot");
        let header = transmit.header;
        let number = self.messages.iter().find(|(number, message)| match header.body {
            Body::Put { match_bits, .. } => match_bits == **number,
            // REPLYs to a peer by one NI are all alike.
            _ => {
                message.is_response
                    && message.flying.is_none()
                    && message.peer == header.destination.nid
                    && message.bound == Some(slot)
            }
        });
        let (&number, message) = number.expect("a message that has not ended");
        assert_eq!(message.flying, None, "it is sent twice");
        assert!(message.bound.is_none_or(|bound| bound == slot));
        assert_eq!((header.source.nid, header.destination.nid), (ni.nid, message.peer));
        let serves = if message.is_response { ni.status != NiStatus::Closed } else { Self::takes(&ni) };
        assert!(serves, "a message leaves by an NI that is {:?}", ni.status);
        self.messages.get_mut(&number).unwrap().flying = Some((transmit.tx, slot));
    }

    fn sent(&mut self, which: usize, well: bool) {
        let flying: Vec<_> = self
            .messages
            .iter()
            .filter_map(|(number, message)| message.flying.map(|(tx, _)| (*number, tx)))
            .collect();
        if flying.is_empty() {
            return;
        }
        let (number, tx) = flying[which % flying.len()];
        let status = if well { Status::Ok } else { Status::Unknown(Cause::Device) };
        self.node.shard.sent(NOW, tx, status);
        self.end(number, status);
    }

    fn run(&mut self, operation: &Operation) {
        match *operation {
            Operation::Add { slot, net, credits, peer_credits } if self.slots[slot].is_none() => {
                let ni = local_ni(nid(net, 100 + slot as u8), credits, peer_credits);
                self.update(slot, Some(ni));
            }
            Operation::NodeChange { slot, status, credits, peer_credits } => {
                if let Some(ni) = self.slots[slot]
                    && ni.status != NiStatus::Closed
                {
                    self.update(slot, Some(LocalNi { status, credits, peer_credits, ..ni }));
                }
            }
            Operation::Remove { slot } => {
                let is_closed = self.slots[slot].is_some_and(|ni| ni.status == NiStatus::Closed);
                if is_closed && self.node.shard.is_quiet(NiId(slot as u16)) {
                    self.update(slot, None);
                }
            }
            Operation::Put { net, peer, bound } => self.put(net, peer, bound),
            Operation::Get { slot, peer } => self.get(slot, peer),
            Operation::Transmit { slot } => self.transmit(slot),
            Operation::Sent { which, well } => self.sent(which, well),
            Operation::Add { .. } => {}
        }
        self.check();
    }

    fn check(&mut self) {
        let mut seen: Vec<_> = self
            .node
            .events()
            .iter()
            .map(|event| match event {
                Event::Get { match_bits, .. } => (*match_bits, event.status()),
                _ => (event.user_ptr(), event.status()),
            })
            .collect();
        // What ends at once ends in the order of its queues, which the model does not know.
        let mut expected = std::mem::take(&mut self.ended);
        assert_eq!(seen.len(), expected.len(), "{seen:?} ended, {expected:?} should have");
        seen.sort_by_key(|(number, status)| (format!("{status:?}"), *number));
        expected.sort_by_key(|(number, status)| (format!("{status:?}"), *number));
        assert_eq!(seen, expected);
        for (peer, credits) in &self.peer_credits {
            let unended = self.messages.values().filter(|message| message.peer == *peer).count();
            let available = self.node.shard.peer_credits(peer);
            assert_eq!(available, Some(i64::from(*credits) - unended as i64), "{peer}");
        }
        for (slot, ni) in self.slots.iter().enumerate() {
            let by = NiId(slot as u16);
            let Some(ni) = ni else { continue };
            let flying =
                self.messages.values().filter(|message| message.flying.is_some_and(|(_, at)| at == slot));
            let available = self.node.shard.ni_credits(by).unwrap();
            assert!(available <= i64::from(ni.credits) - flying.count() as i64, "credits were made up");
            if !Self::takes(ni) {
                assert_eq!(self.node.shard.is_quiet(by), self.is_quiet(slot), "{by:?}");
            }
        }
    }

    /// Lets everything end; all credits are home then.
    fn rest(&mut self) {
        while !self.messages.is_empty() {
            let before = self.messages.len();
            for slot in 0..SLOTS {
                self.run(&Operation::Transmit { slot });
            }
            self.run(&Operation::Sent { which: 0, well: true });
            assert!(self.messages.len() < before, "nothing moves any more: {:?}", self.messages);
        }
        for (slot, ni) in self.slots.iter().enumerate() {
            let expected = ni.map(|ni| i64::from(ni.credits));
            let available = self.node.shard.ni_credits(NiId(slot as u16)).filter(|_| ni.is_some());
            assert_eq!(available, expected);
            assert!(self.node.shard.is_quiet(NiId(slot as u16)));
        }
        let usage = self.node.shard.usage();
        assert_eq!((usage.messages, usage.memory_descs), (0, 1));
    }
}

fn operations() -> impl Strategy<Value = Operation> {
    let credits = || (1_u32..6, 1_u32..4);
    let status = prop_oneof![
        3 => Just(NiStatus::Up),
        2 => Just(NiStatus::Down),
        2 => Just(NiStatus::Leaving),
        1 => Just(NiStatus::Closed),
    ];
    prop_oneof![
        3 => (0..SLOTS, 1_u16..3, credits())
            .prop_map(|(slot, net, (credits, peer_credits))| Operation::Add { slot, net, credits, peer_credits }),
        3 => (0..SLOTS, status, credits()).prop_map(|(slot, status, (credits, peer_credits))| {
            Operation::NodeChange { slot, status, credits, peer_credits }
        }),
        2 => (0..SLOTS).prop_map(|slot| Operation::Remove { slot }),
        12 => (1_u16..3, 2_u8..5, proptest::option::weighted(0.2, 0..SLOTS))
            .prop_map(|(net, peer, bound)| Operation::Put { net, peer, bound }),
        4 => (0..SLOTS, 2_u8..5).prop_map(|(slot, peer)| Operation::Get { slot, peer }),
        8 => (0..SLOTS).prop_map(|slot| Operation::Transmit { slot }),
        6 => (any::<usize>(), any::<bool>()).prop_map(|(which, well)| Operation::Sent { which, well }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn nis_come_and_go_as_in_the_model(operations in proptest::collection::vec(operations(), 1..200)) {
        let mut run = Run::new();
        for operation in &operations {
            run.run(operation);
        }
        run.rest();
    }
}
