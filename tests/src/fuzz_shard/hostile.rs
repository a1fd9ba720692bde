//! What a step of an input does: what the hostile peer sends, and what the node does with and against it.

use std::time::Duration;

use lnet_core::fault::DelayRule;
use lnet_core::handle::Cookie;
use lnet_core::lnd::{Cause, Status};
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::{EntrySpec, Position};
use lnet_core::seal::Seals;
use lnet_core::shard::{GetRequest, PutRequest};
use lnet_model::fault::{DropRule, Filter, HealthError};
use lnet_wire::{Body, Header, Nid, ProcessId, WireHandle};

use super::{
    Arriving, HONEST_PORTAL, HOSTILE, HOSTILE_RX, NODE, PORTALS_USED, SEAL_KEY, SHARDS, STEP_BYTES, Scene,
    nid, process,
};

impl Scene {
    /// The hostile peer sends a message: plausible in most fields, wild in some.
    pub(super) fn send(&mut self, at: usize, bytes: &[u8; STEP_BYTES]) {
        let from = HOSTILE[usize::from(bytes[2] & 1)];
        let wild = |bit: u8| bytes[2] >> bit & 1 != 0;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let source = nid(if wild(1) { bytes[4] % 8 } else { from });
        let portal = if wild(2) { word(4) } else { u32::from(bytes[5]) % (HONEST_PORTAL + 1) };
        let match_bits = if wild(3) { u64::from(word(8)) } else { u64::from(bytes[8] % 4) };
        let offset = if wild(4) { word(12) } else { u32::from(bytes[12]) };
        let length = if wild(5) { word(10) } else { u32::from(bytes[10]) };
        let md = if bytes[9] & 1 != 0 {
            let of = &self.lanes[usize::from(bytes[9] >> 1) % SHARDS].mds;
            let any = of.get(usize::from(bytes[8]) % of.len().max(1));
            Seals::new(SEAL_KEY).handle(any.map_or(Cookie(word(8).into()), |md| md.0), &source)
        } else {
            WireHandle { interface_cookie: u64::from(word(6)), object_cookie: u64::from(word(8)) }
        };
        let none = WireHandle::NONE;
        let (body, carries) = match bytes[3] % 6 {
            0 => (Body::Put { ack_md: none, match_bits, hdr_data: 0, portal, offset }, true),
            1 => (Body::Put { ack_md: md, match_bits, hdr_data: 0, portal, offset }, true),
            2 => (Body::Get { return_md: md, match_bits, portal, offset, sink_length: length }, wild(6)),
            3 => (Body::Ack { md, match_bits, manipulated_length: length }, wild(6)),
            4 => (Body::Reply { md }, true),
            _ => (Body::Hello { incarnation: u64::from(word(8)), connection_type: 0 }, wild(6)),
        };
        let destination =
            ProcessId { nid: nid(if wild(7) { bytes[6] } else { NODE }), pid: ProcessId::LUSTRE_PID };
        let source = ProcessId { nid: source, pid: u32::from(bytes[7] % 4) };
        let payload_length = if carries { length } else { 0 };
        let header = Header { destination, source, payload_length, body };
        let Some(rx) = (0..HOSTILE_RX).find(|rx| !self.lanes[at].arriving.contains_key(rx)) else { return };
        self.header(at, rx, from, &header);
    }

    /// The payload of a message of the hostile peer is in place, or never will be.
    pub(super) fn end_arriving(&mut self, at: usize, bytes: &[u8; STEP_BYTES]) {
        let hostile = self.lanes[at].arriving.range(..HOSTILE_RX);
        let Some((rx, arriving)) =
            hostile.map(|(rx, arriving)| (*rx, *arriving)).nth(usize::from(bytes[2]) % 8)
        else {
            return;
        };
        let is_whole = matches!(arriving, Arriving::Delivered(_)) && bytes[3] & 3 != 0;
        self.received(at, rx, if is_whole { Status::Ok } else { Status::Unknown(Cause::Timeout) });
    }

    /// The LND ends a message that is for the hostile peer.
    pub(super) fn end_sending(&mut self, at: usize, bytes: &[u8; STEP_BYTES]) {
        let sending = &self.lanes[at].sending;
        let Some(tx) = sending.keys().copied().nth(usize::from(bytes[2]) % sending.len().max(1)) else {
            return;
        };
        let causes = [Cause::Timeout, Cause::Unreachable, Cause::Device, Cause::Reset];
        let cause = causes[usize::from(bytes[4] % 4)];
        let statuses = [Status::Ok, Status::Ok, Status::NeverSent(cause), Status::Unknown(cause)];
        self.sent(at, tx, statuses[usize::from(bytes[3] % 4)]);
    }

    /// An entry that the hostile peer may use.
    pub(super) fn post(&mut self, at: usize, bytes: &[u8; STEP_BYTES]) {
        let flag = |bit: u8| bytes[2] >> bit & 1 != 0;
        let lane = &mut self.lanes[at];
        let entry = EntrySpec {
            source: if flag(0) { process(HOSTILE[usize::from(bytes[3] & 1)]) } else { ProcessId::ANY },
            ignore_bits: if flag(1) { u64::from(bytes[4]) } else { 0 },
            position: if flag(2) { Position::First } else { Position::Last },
            auto_unlink: flag(3),
            ..EntrySpec::new(u32::from(bytes[5]) % PORTALS_USED, u64::from(bytes[6] % 4))
        };
        let Ok(entry) = lane.shard.attach_entry(&entry) else { return };
        let mut options =
            [MdOptions::PUT, MdOptions::GET, MdOptions::PUT | MdOptions::GET][usize::from(bytes[7] % 3)];
        for (bit, option) in
            [(0, MdOptions::TRUNCATE), (1, MdOptions::MANAGE_REMOTE), (2, MdOptions::ACK_DISABLE)]
        {
            if bytes[8] >> bit & 1 != 0 {
                options = options | option;
            }
        }
        let length_bytes = u64::from(bytes[9]);
        let spec = MdSpec {
            length_bytes,
            max_size_bytes: flag(4).then_some(length_bytes / 2),
            threshold: if flag(5) { Threshold::Infinite } else { Threshold::Count(u32::from(bytes[10] % 4)) },
            options,
            auto_unlink: flag(6),
            event_queue: (!flag(7)).then_some(lane.queues[0]),
            user_ptr: 0,
        };
        match lane.shard.attach(entry, &spec) {
            Ok(md) => lane.mds.push(md),
            Err(_) => {
                let _ = lane.shard.unlink_entry(entry);
            }
        }
    }

    /// The node sends something to the hostile peer.
    pub(super) fn request(&mut self, at: usize, bytes: &[u8; STEP_BYTES]) {
        let lane = &mut self.lanes[at];
        let spec = MdSpec {
            length_bytes: u64::from(bytes[4]),
            max_size_bytes: None,
            threshold: Threshold::Count(u32::from(bytes[5] % 3)),
            options: MdOptions::NONE,
            auto_unlink: bytes[6] & 1 != 0,
            event_queue: Some(lane.queues[0]),
            user_ptr: 0,
        };
        let Ok(md) = lane.shard.bind(&spec) else { return };
        lane.mds.push(md);
        let target = process(HOSTILE[usize::from(bytes[2] & 1)]);
        let (portal, match_bits) = (u32::from(bytes[7] % 70), u64::from(bytes[8]));
        let refused = if bytes[3] & 1 != 0 {
            lane.shard.get(
                self.now,
                &GetRequest { md, part: None, self_nid: None, target, portal, match_bits, offset: 0 },
            )
        } else {
            let ack = bytes[3] & 2 != 0;
            let put = PutRequest {
                md,
                part: None,
                ack,
                self_nid: None,
                target,
                portal,
                match_bits,
                offset: 0,
                hdr_data: 0,
            };
            lane.shard.put(self.now, &put)
        };
        if let Err(error) = refused {
            assert!(!error.to_string().is_empty());
        }
    }

    pub(super) fn unlink(&mut self, at: usize, bytes: &[u8; STEP_BYTES]) {
        let lane = &mut self.lanes[at];
        if let Some(md) = lane.mds.get(usize::from(bytes[2]) % lane.mds.len().max(1)).copied() {
            let _ = lane.shard.unlink(md);
        }
    }

    pub(super) fn change_portal(&mut self, at: usize, bytes: &[u8; STEP_BYTES]) {
        let portal = u32::from(bytes[2]) % PORTALS_USED;
        let shard = &mut self.lanes[at].shard;
        let changed = if bytes[3] & 1 != 0 { shard.set_lazy(portal) } else { shard.clear_lazy(portal) };
        changed.expect("a portal that exists");
    }

    /// Rules for what the hostile peer sends, or is sent.
    pub(super) fn change_rules(&mut self, at: usize, bytes: &[u8; STEP_BYTES]) {
        let hostile = nid(HOSTILE[usize::from(bytes[2] & 1)]);
        let (source, destination) = if bytes[2] & 2 != 0 { (hostile, Nid::ANY) } else { (Nid::ANY, hostile) };
        let filter = Filter { source, destination, ..Filter::EVERYTHING };
        let shard = &mut self.lanes[at].shard;
        let rate = 1 + u32::from(bytes[4] % 4);
        // Bit n is the status of number n, and 0 is that of none.
        let mask = (bytes[5] & 15) * (bytes[6] & 1);
        let named = HealthError::ALL.into_iter().zip(1..4).filter(|(_, number)| mask >> number & 1 != 0);
        let drop_rule = DropRule {
            filter,
            rate,
            interval_s: 0,
            random: false,
            drop_all: bytes[7] & 1 != 0,
            health_errors: named.map(|(error, _)| error).collect(),
        };
        let latency = Duration::from_millis(1 + u64::from(bytes[8]) * 8);
        let _ = match bytes[3] % 4 {
            0 if mask & 1 == 0 => shard.faults_mut().add_drop_rule(self.now, &drop_rule, u64::from(bytes[9])),
            1 => {
                let rule = DelayRule { filter, rate, interval: Duration::ZERO, latency };
                shard.faults_mut().add_delay_rule(self.now, &rule, u64::from(bytes[9]))
            }
            2 => {
                shard.delete_delay_rules(self.now, &source, &destination);
                Ok(())
            }
            _ => {
                shard.faults_mut().delete_drop_rules(&source, &destination);
                Ok(())
            }
        };
    }
}
