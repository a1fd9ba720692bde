//! What became of the frames that arrived at a node: every one is counted somewhere.

use std::collections::BTreeMap;

use lnet_core::stats::DropReason;
use lnet_user::node::NodeDriver;
use lnet_user::runtime::Worker;
use lnet_wire::packet::Reason;
use lnet_xdp::XdpDrop;
use lnet_xdp_proto::XferDrop;

/// Frames and messages of a node by what became of them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Account {
    /// Frames that XDP gave to a ring.
    pub steered: u64,
    /// Frames that XDP did not, by reason.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Frames that a ring had no room for, or that were lost with their interface.
    pub ring_losses: u64,
    /// Frames that the LNDs took off the rings.
    pub received: u64,
    /// What became of those: taken, refused or forgotten by loss recovery, or dropped before.
    pub handled: u64,
    /// Messages that the shards took.
    pub taken: u64,
    /// Frames and messages that LNDs, loss recovery and shards dropped, by reason.
    pub drops: BTreeMap<String, u64>,
}

impl Account {
    /// What a node has counted so far.
    ///
    /// # Panics
    /// When the kernel does not give its counters.
    #[must_use]
    pub fn of(node: &NodeDriver, workers: &[Worker]) -> Self {
        let frames = node.xdp_frames().expect("counters of XDP");
        let mut account = Self { reasons: frames.reasons, ..Self::default() };
        account.steered = frames.slots.iter().map(|slot| slot.frames).sum();
        for worker in workers {
            account.add(worker);
        }
        let arrived = workers.iter().map(|worker| worker.xdp().expect("there is an NI").arrived_by_gone());
        let arrived: u64 = arrived.map(|count| count.expect("statistics of a socket")).sum();
        account.ring_losses += frames.steered_by_gone.saturating_sub(arrived);
        account
    }

    fn add(&mut self, worker: &Worker) {
        let counters = worker.xdp().expect("there is an NI").counters();
        self.received += counters.frames_received;
        self.handled += counters.frames_taken + counters.frames_refused + counters.frames_forgotten;
        for drop in XferDrop::ALL {
            *self.drops.entry(drop.name().to_owned()).or_default() +=
                worker.xdp().expect("there is an NI").transfer_counters().dropped(drop);
        }
        for drop in XdpDrop::ALL {
            self.handled += counters.dropped(drop);
            *self.drops.entry(drop.name().to_owned()).or_default() += counters.dropped(drop);
        }
        for ring in worker.xdp().expect("there is an NI").ring_statistics().expect("statistics of a socket") {
            self.ring_losses += ring.receive_losses();
        }
        let counters = worker.counters();
        self.taken += counters.received.messages + counters.receive_failures;
        for reason in DropReason::ALL {
            *self.drops.entry(reason.to_string()).or_default() += counters.drops(reason).messages;
        }
    }

    /// Frames that XDP has seen. A fault rule's corruption counts a frame that is steered as well.
    #[must_use]
    pub fn seen(&self) -> u64 {
        let corrupted = self.reasons.get(Reason::FaultCorrupted.name()).copied().unwrap_or(0);
        self.steered + self.reasons.values().sum::<u64>() - corrupted
    }

    /// Checks that what was steered arrived or was lost to a ring, and that what arrived was handled.
    ///
    /// # Panics
    /// When a frame is missing, or one too many.
    pub fn check(&self) {
        assert_eq!(self.steered, self.received + self.ring_losses, "{self:?}");
        assert_eq!(self.received, self.handled, "{self:?}");
    }

    /// What has been counted since `before`, by name, without what others send besides: ARP, ICMP and
    /// multicast reports.
    #[must_use]
    pub fn since(&self, before: &Self) -> BTreeMap<String, u64> {
        let noise = [Reason::NotIp, Reason::NotUdp, Reason::IpOptions].map(Reason::name);
        let reasons = self.reasons.iter().filter(|(reason, _)| !noise.contains(reason));
        let mut changes = BTreeMap::new();
        for (reason, count) in reasons {
            changes.insert((*reason).to_owned(), count - before.reasons.get(reason).unwrap_or(&0));
        }
        for (reason, count) in &self.drops {
            changes.insert(reason.clone(), count - before.drops.get(reason).unwrap_or(&0));
        }
        changes.insert("taken".to_owned(), self.taken - before.taken);
        changes.insert("lost to a ring".to_owned(), self.ring_losses - before.ring_losses);
        changes.retain(|_, count| *count != 0);
        changes
    }
}
