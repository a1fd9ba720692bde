//! The thread of a transfer machine of lnet: its start, events, deadlines and end.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use lnet_user::ProcessId;
use lnet_user::locks::Mutex;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::LnetTransport;
use super::address::{LnetAddress, join};
use super::core::Operations;
use super::network::{EventSource, NetworkEvent};
use super::tm::{Active, Shared};
use crate::errno::{Errno, Error};
use crate::memory::Memory;
use crate::ring;
use crate::transport::{Completion, Report, TmLink, TmState};

/// How long it waits for the next event behind others in a way that nothing else ends: what it is woken for
/// takes so long at most.
const EAGER_MAX: Duration = Duration::from_millis(1);
/// Portals of LNet: the first is its own.
const PORTALS: std::ops::Range<u32> = 1..64;

pub(super) struct Worker {
    pub(super) link: TmLink,
    pub(super) address: LnetAddress,
    pub(super) transport: LnetTransport,
    pub(super) shared: Arc<Shared>,
    pub(super) cpus: Vec<usize>,
}

/// The parts of a transfer machine that is up, as its worker has them: address, events, and the operations
/// that they are about.
type Opened = (LnetAddress, Box<dyn EventSource>, Arc<Mutex<Operations>>);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Worker {
    pub(super) fn run(self) {
        let (address, mut events, operations) = match self.open() {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(address = %self.address, %error, "a transfer machine does not start");
                self.link.report(Report::Failed(error.errno()));
                return;
            }
        };
        self.link.report(Report::Started(&address.to_string()));
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        // More often follows what has come, and a thread that waits for that drives the shard itself.
        let mut is_eager = false;
        loop {
            let has_ended = self.take(&mut *events, &operations, &mut context, &mut is_eager);
            self.deliver();
            if has_ended || self.shared.ends.load(Ordering::Acquire) {
                self.close();
                // The node has ended with the memory of what is queued.
                for id in self.link.with_front(|front| front.ids()) {
                    self.link.post(Completion::new(id, Err(Errno::Io), 0).memory(Memory::default()));
                }
                return self.link.report(Report::Failed(Errno::Io));
            }
            self.link.expire(Instant::now());
            let stops = self.shared.stops.load(Ordering::Acquire);
            let (deadline, is_quiet, diagnostics) = self.link.with_front(|front| {
                let is_quiet = front.state() == TmState::Stopping && front.is_quiet();
                (front.next_deadline(), is_quiet, front.take_diagnostics())
            });
            if !diagnostics.is_empty() {
                diagnostics.iter().for_each(|text| self.link.report(Report::Diagnostic(text)));
                continue;
            }
            if stops && is_quiet {
                self.close();
                return self.link.report(Report::Stopped);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if !std::mem::take(&mut is_eager) {
                // Whatever it is to look at wakes it.
                left.map_or_else(std::thread::park, std::thread::park_timeout);
                continue;
            }
            let longest = left.unwrap_or(EAGER_MAX).min(EAGER_MAX);
            if let Poll::Ready(Some(event)) = events.wait_next(longest) {
                self.take_one(event, &operations);
                is_eager = true;
            }
        }
    }

    /// Brings the transfer machine up.
    fn open(&self) -> Result<Opened, Error> {
        let LnetAddress { process, portal, .. } = self.address;
        if !PORTALS.contains(&portal) {
            return Err(Error::invalid(format!("portal {portal}: one from 1 to 63 is expected")));
        }
        if process.pid != ProcessId::LUSTRE_PID || !self.transport.network.is_local(&process.nid) {
            let found =
                format!("{}: the NID of an NI of this node, with pid 12345, is expected", self.address);
            return Err(Error::new(Errno::NotFound, found));
        }
        self.pin()?;
        let claim = self.transport.addresses.claim(self.address)?;
        let (poster, events) = self.transport.network.open(portal, join(claim.tmid(), 0))?;
        let (producer, ring) = ring::ring();
        let operations = Arc::new(Mutex::new(Operations::new(producer)));
        let address = claim.address();
        let active = Active {
            claim,
            transport: self.transport.clone(),
            poster,
            ring,
            operations: Arc::clone(&operations),
            posted: Default::default(),
        };
        *self.shared.active() = Some(active);
        Ok((address, events, operations))
    }

    /// Confines this thread.
    fn pin(&self) -> Result<(), Error> {
        if self.cpus.is_empty() {
            return Ok(());
        }
        let mut cpus = CpuSet::new();
        for cpu in self.cpus.iter().copied() {
            if cpu >= CpuSet::MAX_CPU {
                let found = format!("CPU {cpu}: one below {} is expected", CpuSet::MAX_CPU);
                return Err(Error::invalid(found));
            }
            cpus.set(cpu);
        }
        sched_setaffinity(None, &cpus)
            .map_err(|error| Error::invalid(format!("CPUs {:?}: {error}", self.cpus)))
    }

    /// Takes the events that are there, and notes if there was one. Returns whether there will be none any
    /// more.
    fn take(
        &self,
        events: &mut dyn EventSource,
        operations: &Mutex<Operations>,
        context: &mut Context<'_>,
        was_one: &mut bool,
    ) -> bool {
        loop {
            match events.poll_next(context) {
                Poll::Ready(Some(event)) => {
                    self.take_one(event, operations);
                    *was_one = true;
                }
                Poll::Ready(None) => return true,
                Poll::Pending => return false,
            }
        }
    }

    fn take_one(&self, event: NetworkEvent, operations: &Mutex<Operations>) {
        if operations.lock().unwrap_or_else(PoisonError::into_inner).take(event) {
            self.shared.tell();
        }
        // A message does not wait for those behind it.
        self.deliver();
    }

    /// Delivers what is pending, unless the application does.
    fn deliver(&self) {
        if self.link.with_front(|front| front.delivers_synchronously()) {
            return;
        }
        while let Some(completion) = self.link.next_pending() {
            self.link.post(completion);
        }
    }

    /// The transfer machine has ended: its address is free.
    fn close(&self) {
        let active = self.shared.active().take();
        drop(active);
    }
}
