//! The `lo` LND: what a node sends to itself (LNet `lo.c`).
//!
//! A message goes from its descriptor's buffer into that of its target in one copy; there are no frames, and
//! nothing is lost. Where the target is a sibling shard's, the header goes there and the span comes back
//! ([`lnet_core::shard::mesh`]), as with any other LND.
//!
//! Invariants: messages of a shard arrive in the order in which they were submitted, but for those that have
//! to wait; a message is `sent` when it was received, dropped or cut short, and not before, so its buffer can
//! be read until then; nothing allocates after the start. A message that may have to wait has a name of its
//! own, and there are more names than the shard lets messages wait.
//!
//! The core sends by `lo` what is for a NID of the node, with credits that never run out. A node without
//! other NIs is a configuration like any other.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use lnet_core::limits::Limits;
use lnet_core::lnd::{Full, Lent, Lnd, NiId, Progress, RxId, Span, Status, Transmit, TxId, Uplink, Verdict};
use lnet_core::time::Instant;
use lnet_io::driver::{Counted, Driver, Part, Port};
use lnet_io::kind::{Host, LndKind, NiRequest, OpenNi};
use lnet_io::memory::Memory;
use lnet_io::netlink::Neighbours;
use lnet_model::lnd::{LO, LndRow};
use lnet_wire::steer::{PORTALS, PolicyWord};

/// The `lo` LND of one shard.
#[derive(Debug)]
pub(crate) struct LoLnd {
    ni: NiId,
    is_open: bool,
    first_rx: u32,
    submitted: VecDeque<Transmit>,
    idle: Vec<RxId>,
    /// Messages that the shard has delayed, by name.
    delayed: Box<[Option<Transmit>]>,
    /// Delayed messages that have been given a place.
    resumed: VecDeque<(RxId, Span)>,
}

impl LoLnd {
    /// The LND of a shard with these limits.
    fn new(ni: NiId, limits: &Limits) -> Self {
        let names = Self::names_max(limits);
        Self {
            ni,
            is_open: false,
            first_rx: 0,
            submitted: VecDeque::with_capacity((limits.requests + limits.responses) as usize),
            idle: (0..names).rev().map(RxId).collect(),
            delayed: (0..names).map(|_| None).collect(),
            resumed: VecDeque::with_capacity(names as usize),
        }
    }

    /// A message arrives where it was sent.
    fn arrive(&mut self, now: Instant, transmit: &Transmit, up: &mut impl Uplink, memory: &mut Memory) {
        let Some(rx) = self.idle.pop() else { unreachable!("the caller has seen a free name") };
        match up.header(now, self.ni, &transmit.header.source.nid, rx, &transmit.header) {
            Verdict::Deliver(span) => self.deliver(now, rx, transmit, &span, up, memory),
            Verdict::Delay => *self.delayed(rx) = Some(*transmit),
            Verdict::Drop => self.drop_message(now, rx, transmit, up),
        }
    }

    fn deliver(
        &mut self,
        now: Instant,
        rx: RxId,
        transmit: &Transmit,
        span: &Span,
        up: &mut impl Uplink,
        memory: &mut Memory,
    ) {
        if let Some(payload) = transmit.payload.filter(|_| span.length_bytes != 0) {
            memory.copy(&payload, span);
        }
        up.received(now, rx, Status::Ok);
        self.idle.push(rx);
        up.sent(now, transmit.tx, Status::Ok);
    }

    fn drop_message(&mut self, now: Instant, rx: RxId, transmit: &Transmit, up: &mut impl Uplink) {
        self.idle.push(rx);
        // The end of sending says nothing about the message's reception.
        up.sent(now, transmit.tx, Status::Ok);
    }

    fn delayed(&mut self, rx: RxId) -> &mut Option<Transmit> {
        &mut self.delayed[(rx.0 - self.first_rx) as usize]
    }
}

impl Driver for LoLnd {
    type Port = LoPort;

    // Delayed messages, and one that arrives.
    fn names_max(limits: &Limits) -> u32 {
        limits.delayed + 1
    }

    fn set_first_name(&mut self, first: u32) {
        self.first_rx = first;
        self.idle.iter_mut().for_each(|rx| rx.0 += first);
    }

    fn add_port(&mut self, port: LoPort) {
        (self.ni, self.is_open) = (port.0, true);
    }

    // A node reaches itself as long as it lives.
    fn close_port(&mut self, _: Instant, _: NiId, _: &mut impl Uplink, _: &Memory) {}

    fn remove_port(&mut self, ni: NiId) -> LoPort {
        self.is_open = false;
        LoPort(ni)
    }

    fn is_empty(&self) -> bool {
        !self.is_open
    }

    fn set_policies(&mut self, _: &[PolicyWord; PORTALS]) {}

    fn set_timeout(&mut self, _: Instant, _: Duration) {}

    fn has_work(&mut self) -> bool {
        !self.resumed.is_empty() || !self.submitted.is_empty() && !self.idle.is_empty()
    }

    // Its messages came from this node.
    fn has_arrivals(&mut self) -> bool {
        false
    }

    fn awaits_completions(&self) -> bool {
        false
    }

    fn count(&self, _: &mut dyn FnMut(Counted, &'static str, u64)) -> std::io::Result<()> {
        Ok(())
    }
}

/// One shard's part of the NI.
pub(crate) struct LoPort(NiId);

impl Port for LoPort {
    fn ni(&self) -> NiId {
        self.0
    }
}

/// The `lo` LND of a node. Its one NI is opened with the node and goes with it.
#[derive(Debug)]
pub(crate) struct LoKind;

/// The NI, which has nothing of an interface.
#[derive(Debug)]
pub(crate) struct LoNi;

impl OpenNi for LoNi {
    fn followed(&self) -> Option<(&Neighbours, &IpAddr)> {
        None
    }
}

impl LoKind {
    /// The parts of all shards.
    pub(crate) fn parts(ni: NiId, limits: &Limits, shards: u32) -> Vec<Part<LoLnd>> {
        let lnds = (0..shards).map(|_| LoLnd::new(ni, limits)).collect();
        Part::of_shards(lnds, (0..shards).map(|_| LoPort(ni)).collect())
    }
}

impl LndKind for LoKind {
    type Driver = LoLnd;
    type Plan = ();
    type Ni = LoNi;
    type Error = Infallible;

    const ROW: LndRow = LO;

    fn plan(&self, _: &NiRequest<'_>) -> Result<(), Infallible> {
        Ok(())
    }

    fn open(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
        (): (),
    ) -> Result<(LoNi, Vec<Part<LoLnd>>), Infallible> {
        Ok((LoNi, Self::parts(request.ni, &host.limits, host.shard_count())))
    }

    fn close(&mut self, _: &Host, _: LoNi, _: Vec<Part<LoLnd>>) {}
}

impl Lnd for LoLnd {
    type Memory = Memory;

    fn submit(&mut self, _: Instant, Lent { transmit, .. }: Lent<'_>, _: &Memory) -> Result<(), Full<TxId>> {
        if self.submitted.len() == self.submitted.capacity() {
            return Err(Full(transmit.tx));
        }
        self.submitted.push_back(*transmit);
        Ok(())
    }

    fn flush(&mut self, _: Instant, _: &Memory) {}

    fn drive(&mut self, now: Instant, budget: u32, up: &mut impl Uplink, memory: &mut Memory) -> Progress {
        let mut received = 0;
        while received < budget {
            if let Some((rx, span)) = self.resumed.pop_front() {
                let Some(transmit) = self.delayed(rx).take() else { unreachable!("{rx:?} was not delayed") };
                self.deliver(now, rx, &transmit, &span, up, memory);
            } else if let Some(transmit) = self.submitted.pop_front_if(|_| !self.idle.is_empty()) {
                self.arrive(now, &transmit, up, memory);
            } else {
                break;
            }
            received += 1;
        }
        Progress { received, completed: 0 }
    }

    fn resume(&mut self, now: Instant, rx: RxId, verdict: Verdict, up: &mut impl Uplink) {
        match verdict {
            // The next turn has the buffers at hand.
            Verdict::Deliver(span) => self.resumed.push_back((rx, span)),
            Verdict::Drop => {
                let Some(transmit) = self.delayed(rx).take() else { unreachable!("{rx:?} was not delayed") };
                self.drop_message(now, rx, &transmit, up);
            }
            Verdict::Delay => unreachable!("{rx:?} is resumed to be delayed"),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
