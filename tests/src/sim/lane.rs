//! A shard with the driver of its LND: what lanes of all nets have in common.

use std::collections::VecDeque;
use std::sync::Arc;

use lnet_core::Shard;
use lnet_core::handle::{EqHandle, ShardId};
use lnet_core::lnd::{Cause, Full, Lent, NiId, Transmit, Verdict};
use lnet_core::shard::PoolUsage;
use lnet_core::shard::mesh::MeshMessage;
use lnet_core::time::Instant;
use lnet_core::topology::{NiStatus, Topology};
use lnet_wire::Nid;

use super::Bugs;
use super::datagrams::{Arrival, Leaving};
use super::driver::{Fresh, LaneDriver};
use super::ledger::Ledger;
use super::memory::Memory;
use super::plan::Plan;
use super::pool::Pool;
use super::report::Counts;
use super::sock::Letter;
use super::streams::Streams;
use super::trace::Trace;
use super::uplink::{Delayed, Desk, Receiving, Up, unmatched};
use crate::bpf::random::Random;

/// What a lane works with besides what is its own.
pub(super) struct Surroundings<'a> {
    pub(super) memory: &'a mut Memory,
    pub(super) send_pool: &'a mut Pool,
    pub(super) receive_pool: &'a mut Pool,
    pub(super) streams: &'a mut Streams,
    pub(super) ledger: &'a mut Ledger,
    pub(super) random: &'a mut Random,
    pub(super) counts: &'a mut Counts,
    pub(super) trace: &'a mut Trace,
    pub(super) plan: &'a Plan,
    pub(super) bugs: &'a mut Bugs,
    /// Rails that are open.
    pub(super) open: [bool; 2],
    /// Frames to be sent.
    pub(super) leaving: &'a mut Vec<Leaving>,
    /// Frames of sibling shards.
    pub(super) handed_over: &'a mut Vec<(u8, Arrival)>,
    /// What goes to the drivers of sibling shards.
    pub(super) letters: &'a mut Vec<(u8, Letter)>,
    /// How much each sibling can be said now, and what is.
    pub(super) mesh_room: &'a mut [usize],
    pub(super) said: &'a mut Vec<(u8, MeshMessage)>,
}

/// A shard and the driver of its LND.
pub(super) struct Lane {
    pub(super) shard: Shard,
    pub(super) driver: LaneDriver,
    /// Event queues of the application, and one of the node where it takes pushes.
    pub(super) queues: Vec<EqHandle>,
    pub(super) desk: Desk,
    /// What siblings have said.
    pub(super) heard: VecDeque<(ShardId, MeshMessage)>,
    /// When its next turn is.
    pub(super) turn_at: Option<u64>,
    /// Whether its events will be looked at.
    pub(super) is_polled: bool,
    /// Until when the driver of a slow node rests.
    pub(super) rests_until: u64,
    name: String,
}

impl Lane {
    pub(super) fn new(
        shard: Shard,
        driver: LaneDriver,
        (queues, rails): ([EqHandle; 2], &[Nid]),
        mut desk: Desk,
        name: String,
    ) -> Self {
        desk.set_slots(&shard, rails);
        Self {
            shard,
            driver,
            queues: queues.to_vec(),
            desk,
            heard: VecDeque::new(),
            turn_at: None,
            is_polled: false,
            rests_until: 0,
            name,
        }
    }

    /// Lets go of all delays.
    pub(super) fn end_delays(&mut self) {
        self.desk.delays = false;
        self.desk.delayed.iter_mut().for_each(|delayed| delayed.until = 0);
    }

    /// Does something with the driver, which sees the shard as an uplink.
    fn with_driver<T>(
        &mut self,
        around: &mut Surroundings<'_>,
        act: impl FnOnce(&mut LaneDriver, &mut Up<'_, '_>) -> T,
    ) -> T {
        let Self { shard, driver, desk, name, .. } = self;
        act(driver, &mut Up { shard, desk, around, name })
    }

    /// One round of the driver's loop.
    pub(super) fn turn(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        self.shard.handle_timeout(now);
        while let Some((from, message)) = self.heard.pop_front() {
            let name = &self.name;
            around.trace.say(|| format!("{name} hears of {} {message:?}", from.0));
            let before = unmatched(&self.shard);
            self.shard.handle_mesh(now, from, message);
            let missed = unmatched(&self.shard) != before;
            self.resume_kept(now, missed, around);
        }
        self.write_late(now, around);
        self.with_driver(around, |driver, up| driver.receive(now, up));
        self.resume(now, around);
        self.with_driver(around, |driver, up| driver.settle(now, up));
        self.submit(now, around);
        self.with_driver(around, |driver, up| driver.transmit(now, up));
        self.talk(around);
    }

    /// What the shard has to say goes to its siblings, as far as they have room.
    fn talk(&mut self, around: &mut Surroundings<'_>) {
        for to in 0..around.mesh_room.len() {
            while around.mesh_room[to] != 0
                && let Some(message) = self.shard.poll_mesh_to(ShardId(to as u8))
            {
                around.mesh_room[to] -= 1;
                around.counts.mesh += 1;
                around.said.push((to as u8, message));
            }
        }
    }

    /// A driver with a bug writes into spans of siblings that it has returned.
    fn write_late(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        while let Some((_, span, bytes)) = self.desk.leased.pop_front_if(|(until, ..)| *until <= now.0) {
            match around.memory.bytes_mut(&span) {
                Some(to) => to.copy_from_slice(&bytes),
                None => around
                    .ledger
                    .fail("a descriptor lives as long as its spans", || format!("{span:?} is written")),
            }
        }
    }

    /// The driver gives up a device.
    pub(super) fn fail_interface(
        &mut self,
        now: Instant,
        ni: NiId,
        cause: Cause,
        around: &mut Surroundings<'_>,
    ) {
        self.with_driver(around, |driver, up| driver.fail_interface(now, ni, cause, up));
    }

    /// Connections end that speak in a name from other addresses than its own.
    pub(super) fn end_from_elsewhere(&mut self, now: Instant, nid: &Nid, around: &mut Surroundings<'_>) {
        self.with_driver(around, |driver, up| {
            if let LaneDriver::Tcp(driver) = driver {
                driver.end_from_elsewhere(now, nid, up);
            }
        });
    }

    /// A newer snapshot has come. What the driver has for an NI that is closed ends, if no other
    /// carries it; what it needs for one that has opened is in `fresh`.
    pub(super) fn install(
        &mut self,
        now: Instant,
        snapshot: &Arc<Topology>,
        rails: &[Nid],
        fresh: &Fresh,
        around: &mut Surroundings<'_>,
    ) {
        self.shard.update(now, Arc::clone(snapshot));
        self.desk.set_slots(&self.shard, rails);
        for (rail, nid) in rails.iter().enumerate() {
            let ni = NiId(rail as u16);
            let local = snapshot.local_nis().find(|(_, local)| local.nid == *nid);
            let is_there = local.is_some_and(|(_, local)| local.status != NiStatus::Closed);
            self.with_driver(around, |driver, up| match (driver.has_interface(ni), is_there) {
                (true, false) => driver.remove_interface(now, ni, up),
                (false, true) => driver.add_interface(ni, *nid, fresh, up),
                _ => {}
            });
        }
    }

    /// When the next turn is to be, if nothing arrives.
    pub(super) fn next_turn(&self, now: u64, has_frames: bool) -> Option<u64> {
        if !self.heard.is_empty() || self.driver.has_work(has_frames) {
            return Some(now + 1000);
        }
        let timers = [self.shard.poll_timeout(), self.driver.poll_timeout()].into_iter().flatten();
        let late = self.desk.leased.front().map(|(until, ..)| *until);
        let delays = self.desk.delayed.iter().map(|delayed| delayed.until).chain(late);
        timers.map(|at| at.0).chain(delays).min().map(|at| at.max(now + 1))
    }

    /// Whether nothing is on its way in or out.
    pub(super) fn is_at_rest(&self) -> bool {
        let is_home = |pool: &PoolUsage| pool.credits == i64::from(pool.buffers);
        self.driver.is_at_rest()
            && self.heard.is_empty()
            && self.shard.usage().delayed == 0
            && self.shard.router_pools().iter().all(is_home)
    }

    fn resume(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        while let Some(at) = self.desk.delayed.iter().position(|delayed| delayed.until <= now.0) {
            let Delayed { rx, ni, from, header, message, .. } = self.desk.delayed.swap_remove(at);
            self.with_driver(around, |driver, up| {
                let verdict = up.decide(now, (ni, &from), rx, &header, message);
                if verdict != Verdict::Delay {
                    driver.resume(now, rx, verdict, up);
                }
            });
        }
        self.resume_kept(now, false, around);
    }

    /// What the shard has delayed and decided on; `missed`: it has just found no entry for something.
    fn resume_kept(&mut self, now: Instant, missed: bool, around: &mut Surroundings<'_>) {
        while let Some((_, rx, verdict)) = self.shard.poll_resume() {
            let Some(Receiving { message, header, .. }) = self.desk.receiving[rx.0 as usize].take() else {
                let name = &self.name;
                return around.ledger.fail("what is resumed was delayed", || format!("{name}: {rx:?}"));
            };
            around.counts.resumed += 1;
            if missed && verdict == Verdict::Drop {
                around.ledger.expect_no_entry(message, self.desk.life);
            }
            self.with_driver(around, |driver, up| {
                up.conclude(rx, &header, message, verdict);
                driver.resume(now, rx, verdict, up);
            });
        }
        while let Some((&transmit, comes)) = self.shard.poll_extended() {
            self.with_driver(around, |driver, up| driver.follow(now, &transmit, comes, up));
        }
    }

    /// What the shard wants sent goes to the driver.
    fn submit(&mut self, now: Instant, around: &mut Surroundings<'_>) {
        for rail in 0..u16::from(around.plan.rails) {
            let Some(slot) = self.desk.slots[usize::from(rail)] else { continue };
            while let Some(Lent { transmit, more }) = self.shard.poll_transmit(now, slot) {
                let transmit = &Transmit { ni: NiId(rail), ..*transmit };
                around.ledger.note_handle(self.desk.life, &transmit.header);
                let Some(message) = around.ledger.identify(&transmit.header) else {
                    return around
                        .ledger
                        .fail("what is sent was asked for", || format!("{:?}", transmit.header));
                };
                let hop = around.plan.router_at(&transmit.next_hop);
                around.ledger.submitted(message, hop);
                let name = &self.name;
                around.trace.say(|| format!("{name} submits {message:?} {:?}", transmit.header.destination));
                if !self.with_driver(around, |driver, up| driver.submit(now, transmit, more, up)) {
                    self.shard.give_back(Full(transmit.tx));
                    break;
                }
                self.desk.sending[transmit.tx.0 as usize] = Some((message, hop, now.0));
            }
        }
    }
}
