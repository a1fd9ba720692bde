//! What the honest peer sends, what it is promised, and what must hold once all has ended.

use std::time::Duration;

use lnet_core::lnd::{Cause, Status, Verdict};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::{EntryError, EntrySpec};
use lnet_core::stats::DropReason;
use lnet_wire::{Body, Header, WireHandle};

use super::{
    Awaited, CREDITS, HONEST, HONEST_PORTAL, HOSTILE_RX, NI, NODE, PORTALS_USED, SHARDS, Scene, process,
};

impl Scene {
    /// The honest peer sends a PUT that asks for an ACK, or a GET, to an entry that waits for it; it arrives
    /// at either shard. It is taken whole, and answered, unless answers of its own have used up its share of
    /// responses.
    pub(super) fn honest_message(&mut self, at: usize, get: bool) {
        const LENGTH: u32 = 100;
        self.honest += 1;
        let number = self.honest;
        let owner = &mut self.lanes[1];
        let entry = EntrySpec { source: process(HONEST), ..EntrySpec::new(HONEST_PORTAL, number) };
        // The application has filled the node's own tables: then there is nothing to send to.
        let entry = match owner.shard.attach_entry(&entry) {
            Err(EntryError::Full) => return,
            entry => entry.expect("an entry for the honest peer"),
        };
        let options = if get { MdOptions::GET } else { MdOptions::PUT };
        let spec = MdSpec {
            user_ptr: number,
            ..MdSpec::new(u64::from(LENGTH), Threshold::Count(1), options, owner.queues[1])
        };
        let Ok(md) = owner.shard.attach(entry, &spec) else {
            let _ = owner.shard.unlink_entry(entry);
            return;
        };
        let handle = WireHandle { interface_cookie: 0x2222, object_cookie: number };
        let (portal, match_bits, offset) = (HONEST_PORTAL, number, 0);
        let body = if get {
            Body::Get { return_md: handle, match_bits, portal, offset, sink_length: LENGTH }
        } else {
            Body::Put { ack_md: handle, match_bits, hdr_data: number, portal, offset }
        };
        let payload_length = if get { 0 } else { LENGTH };
        let header = Header { destination: process(NODE), source: process(HONEST), payload_length, body };
        let verdict = self.header(at, HOSTILE_RX, HONEST, &header);
        self.awaited = Some(Awaited {
            lane: at,
            rx: HOSTILE_RX,
            verdict: Some(verdict).filter(|verdict| *verdict != Verdict::Delay),
        });
        self.settle();
        let verdict = self.awaited.take().and_then(|awaited| awaited.verdict);
        // Its share of responses may be in use by answers of its own, which wait for credits.
        let refused =
            || self.lanes.iter().map(|lane| lane.shard.counters().drops(DropReason::ResponsesFull).messages);
        if verdict == Some(Verdict::Drop)
            && self.taken.len() > self.answers.len()
            && refused().sum::<u64>() != 0
        {
            let _ = self.lanes[1].shard.unlink_entry(entry);
            return;
        }
        let Some(Verdict::Deliver(span)) = verdict else {
            panic!("message {number} of the honest peer (GET: {get}) by shard {at}: {verdict:?}")
        };
        assert_eq!((span.length_bytes, span.offset_bytes), (payload_length, 0), "{span:?}");
        assert_eq!(span.buffer.md(), Some(md), "{span:?}");
        self.received(at, HOSTILE_RX, Status::Ok);
        self.settle();
        // The REPLY to a GET may wait for credits of the NI, and its event for the REPLY.
        if !get {
            self.assert_told(number);
        }
        self.taken.push(number);
    }

    pub(super) fn assert_told(&self, number: u64) {
        let told = self.lanes[1].honest_events.iter().filter(|told| **told == number).count();
        assert_eq!(told, 1, "events of message {number} of the honest peer");
    }

    /// The honest peer once more, and is answered as soon as the LND is done with what it has; then
    /// everything ends.
    pub(super) fn conclude(mut self) {
        let earlier = self.taken.len();
        for (lane, get) in [(0, false), (1, true)] {
            self.honest_message(lane, get);
        }
        while self.lanes.iter().any(|lane| !lane.sending.is_empty()) {
            self.end_all_sending();
            self.settle();
        }
        for number in &self.taken[earlier..] {
            assert!(self.answers.contains_key(number), "no answer to message {number} of the honest peer");
        }
        for at in 0..SHARDS {
            for portal in 0..PORTALS_USED {
                self.lanes[at].shard.clear_lazy(portal).expect("a portal that exists");
            }
        }
        for _ in 0..3 {
            self.now = self.now + Duration::from_secs(100);
            self.end_all_sending();
            for at in 0..SHARDS {
                for rx in self.lanes[at].arriving.keys().copied().collect::<Vec<_>>() {
                    self.received(at, rx, Status::Unknown(Cause::Timeout));
                }
                for md in self.lanes[at].mds.clone() {
                    let _ = self.lanes[at].shard.unlink(md);
                }
                self.poll_events(at, 0);
            }
            self.settle();
        }
        for number in &self.taken {
            self.assert_told(*number);
        }
        for (number, count) in &self.answers {
            assert_eq!(*count, 1, "answers to message {number} of the honest peer");
        }
        for lane in &self.lanes {
            let usage = lane.shard.usage();
            let left = [usage.memory_descs, usage.delayed, usage.events, usage.messages, usage.trackers];
            assert_eq!(left, [0; 5], "{usage:?}");
            let home = i64::from(CREDITS.0) / SHARDS as i64;
            assert_eq!(lane.shard.ni_credits(NI), Some(home), "credits are not home");
            let home = i64::from(CREDITS.1) / SHARDS as i64;
            for peer in lane.shard.peers() {
                assert_eq!(lane.shard.peer_credits(&peer.nid), Some(home), "{peer:?}");
            }
        }
    }

    fn end_all_sending(&mut self) {
        for at in 0..SHARDS {
            for tx in self.lanes[at].sending.keys().copied().collect::<Vec<_>>() {
                self.sent(at, tx, Status::Ok);
            }
        }
    }
}

/// Scenes in which the node does wrong: the checks have to see it.
#[cfg(test)]
mod tests {
    use lnet_core::shard::PutRequest;
    use lnet_model::fault::{DropRule, Filter};

    use super::super::nid;
    use super::*;

    #[test]
    fn a_node_that_does_right_passes() {
        let mut scene = Scene::new();
        scene.honest_message(0, true);
        scene.conclude();
    }

    #[test]
    #[should_panic(expected = "message 1 of the honest peer (GET: false) by shard 0: Some(Drop)")]
    fn a_message_of_the_honest_peer_that_is_dropped_is_seen() {
        let mut scene = Scene::new();
        let rule = DropRule {
            filter: Filter { source: nid(HONEST), ..Filter::EVERYTHING },
            rate: 1,
            interval_s: 0,
            random: false,
            drop_all: true,
            health_errors: Vec::new(),
        };
        scene.lanes[0].shard.faults_mut().add_drop_rule(scene.now, &rule, 1).unwrap();
        scene.conclude();
    }

    #[test]
    #[should_panic(expected = "length_bytes: 7")]
    fn a_message_of_the_honest_peer_that_ends_elsewhere_is_seen() {
        let mut scene = Scene::new();
        let owner = &mut scene.lanes[1];
        let spec = EntrySpec { source: process(HONEST), ..EntrySpec::new(HONEST_PORTAL, 1) };
        let entry = owner.shard.attach_entry(&spec).unwrap();
        let options = MdOptions::PUT | MdOptions::TRUNCATE;
        let md = MdSpec::new(7, Threshold::Infinite, options, owner.queues[0]);
        owner.shard.attach(entry, &md).unwrap();
        scene.conclude();
    }

    #[test]
    #[should_panic(expected = "events of message 1 of the honest peer")]
    fn an_event_that_comes_twice_is_seen() {
        let mut scene = Scene::new();
        scene.honest_message(0, false);
        scene.lanes[1].honest_events.push(1);
        scene.conclude();
    }

    #[test]
    #[should_panic(expected = "next_hop: 10.0.0.7@tcp1")]
    fn an_answer_to_another_peer_is_seen() {
        let mut scene = Scene::new();
        let spec = MdSpec::new(0, Threshold::Count(1), MdOptions::NONE, scene.lanes[0].queues[0]);
        let md = scene.lanes[0].shard.bind(&spec).unwrap();
        let (target, portal) = (process(7), 0);
        let put = PutRequest {
            md,
            part: None,
            ack: false,
            self_nid: None,
            target,
            portal,
            match_bits: 0,
            offset: 0,
            hdr_data: 0,
        };
        scene.lanes[0].shard.put(scene.now, &put).unwrap();
        scene.conclude();
    }

    #[cfg(feature = "sabotage")]
    #[test]
    #[should_panic(expected = "credits are not home")]
    fn a_credit_that_is_lost_is_seen() {
        let mut scene = Scene::new();
        scene.lanes[1].shard.lose_credit();
        scene.conclude();
    }
}
