//! A transport of which a test decides what it answers and posts, and which notes what it was asked for.

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::errno::{Errno, Error};
use crate::memory::{Limits, Memory};
use crate::operation::BulkDescriptor;
use crate::queue::BufferId;
use crate::transport::{Completion, Report, TmFront, TmLink, Transport, TransportDomain, TransportTm};
use crate::{Domain, Event, Events, Handler, TmEvent, TmState, TransferMachine};

pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) const LIMITS: Limits = Limits {
    buffer_bytes: 1 << 16,
    segment_bytes: 1 << 12,
    segments: 20,
    descriptor_bytes: 8,
    preferred_alignment_bytes: 64,
    preferred_segment_bytes: 4096,
    rpc_segment_bytes: 1 << 12,
    rpc_segments: 16,
};

/// Whether a lock is taken.
pub(super) type IsLocked = Arc<dyn Fn() -> bool + Send + Sync>;

/// What a fake does from now on, and what it was asked for.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) calls: Vec<String>,
    /// The lock under which all is asked for from now on.
    pub(super) is_locked: Option<IsLocked>,
    /// What was asked for without it.
    pub(super) unlocked: Vec<String>,
    pub(super) refuse_domain: Option<Errno>,
    pub(super) refuse_register: Option<Errno>,
    pub(super) refuse_add: Option<Errno>,
    pub(super) refuse_start: Option<Errno>,
    pub(super) refuse_stop: Option<Errno>,
    pub(super) supports_confine: bool,
    pub(super) supports_synchronous: bool,
    /// The start waits until the test posts its outcome.
    pub(super) holds_start: bool,
    /// What is asked to end is left to the test.
    pub(super) ignores_del: bool,
    pub(super) link: Option<TmLink>,
    pub(super) pending: Vec<Completion>,
    pub(super) waker: Option<Waker>,
}

#[derive(Clone, Default)]
pub(super) struct Fake(pub(super) Arc<Mutex<Plan>>);

impl Fake {
    pub(super) fn plan<R>(&self, change: impl FnOnce(&mut Plan) -> R) -> R {
        change(&mut self.0.lock().unwrap())
    }

    fn note(&self, call: impl Into<String>) {
        let call = call.into();
        self.plan(|plan| {
            if plan.is_locked.as_ref().is_some_and(|is_locked| !is_locked()) {
                plan.unlocked.push(call.clone());
            }
            plan.calls.push(call);
        });
    }

    /// Runs something during which all is asked for under this lock, which is free before and behind it.
    #[track_caller]
    pub(super) fn under<R>(
        &self,
        is_locked: impl Fn() -> bool + Send + Sync + 'static,
        run: impl FnOnce() -> R,
    ) -> R {
        let is_locked: IsLocked = Arc::new(is_locked);
        self.plan(|plan| plan.is_locked = Some(Arc::clone(&is_locked)));
        let result = run();
        let unlocked = self.plan(|plan| {
            plan.is_locked = None;
            std::mem::take(&mut plan.unlocked)
        });
        assert!(unlocked.is_empty(), "{unlocked:?} without the lock");
        result
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.plan(|plan| std::mem::take(&mut plan.calls))
    }

    pub(super) fn domain(&self) -> Domain {
        let transport: Arc<dyn Transport> = Arc::new(self.clone());
        Domain::new(&transport).unwrap()
    }

    /// The link of the transfer machine that started last.
    pub(super) fn link(&self) -> TmLink {
        self.plan(|plan| plan.link.clone()).expect("a transfer machine has started")
    }

    /// Posts what came of a buffer, from another thread.
    pub(super) fn post(&self, completion: Completion) {
        self.post_at(&self.link(), completion);
    }

    pub(super) fn post_at(&self, link: &TmLink, completion: Completion) {
        let link = link.clone();
        std::thread::spawn(move || link.post(completion)).join().unwrap();
    }
}

fn refused(errno: Option<Errno>) -> Result<(), Error> {
    errno.map_or(Ok(()), |errno| Err(Error::new(errno, "the test refuses it")))
}

impl Transport for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn limits(&self) -> Limits {
        LIMITS
    }

    fn create_domain(&self) -> Result<Box<dyn TransportDomain>, Error> {
        self.note("create_domain");
        refused(self.plan(|plan| plan.refuse_domain))?;
        Ok(Box::new(self.clone()))
    }
}

impl TransportDomain for Fake {
    fn register(&mut self, memory: Memory) -> Result<Memory, (Error, Memory)> {
        self.note("register");
        match refused(self.plan(|plan| plan.refuse_register)) {
            Ok(()) => Ok(memory),
            Err(error) => Err((error, memory)),
        }
    }

    fn deregister(&mut self) {
        self.note("deregister");
    }

    fn create_tm(&mut self) -> Result<Box<dyn TransportTm>, Error> {
        self.note("create_tm");
        Ok(Box::new(FakeTm { fake: self.clone(), link: None }))
    }
}

struct FakeTm {
    fake: Fake,
    link: Option<TmLink>,
}

impl TransportTm for FakeTm {
    fn confine(&mut self, cpus: &[usize]) -> Result<(), Error> {
        if !self.fake.plan(|plan| plan.supports_confine) {
            return Err(Error::new(Errno::NotSupported, "the fake confines nothing"));
        }
        self.fake.note(format!("confine {cpus:?}"));
        Ok(())
    }

    fn start(&mut self, link: &TmLink, address: &str) -> Result<(), Error> {
        self.fake.note(format!("start {address}"));
        self.link = Some(link.clone());
        self.fake.plan(|plan| plan.link = Some(link.clone()));
        refused(self.fake.plan(|plan| plan.refuse_start))?;
        if !self.fake.plan(|plan| plan.holds_start) {
            let (link, address) = (link.clone(), address.to_owned());
            std::thread::spawn(move || link.report(Report::Started(&address)));
        }
        Ok(())
    }

    fn stop(&mut self, _: &mut TmFront) -> Result<(), Error> {
        self.fake.note("stop");
        refused(self.fake.plan(|plan| plan.refuse_stop))?;
        // Its own reference goes with the thread, so that nothing keeps the transfer machine.
        let link = self.link.clone().unwrap();
        std::thread::spawn(move || {
            while !link.with_front(|front| front.is_quiet()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            link.report(Report::Stopped);
        });
        Ok(())
    }

    fn wake(&mut self) {}

    fn canonical_address(&self, address: &str) -> Result<String, Error> {
        if address.is_empty() {
            return Err(Error::new(Errno::NotSupported, "no address"));
        }
        Ok(address.to_owned())
    }

    fn add(&mut self, front: &mut TmFront, id: BufferId) -> Result<Option<BulkDescriptor>, Error> {
        self.fake.note(format!("add {:?}", id.queue()));
        refused(self.fake.plan(|plan| plan.refuse_add))?;
        assert!(front.queued(id).unwrap().is_usable());
        Ok(id.queue().is_passive().then(|| BulkDescriptor::from_bytes(&id.number.to_le_bytes())))
    }

    fn del(&mut self, front: &mut TmFront, id: BufferId) {
        self.fake.note(format!("del {:?}", id.queue()));
        let queued = front.queued(id).unwrap();
        if queued.flags.in_use || queued.flags.cancelled || self.fake.plan(|plan| plan.ignores_del) {
            return;
        }
        queued.flags.cancelled = !queued.flags.timed_out;
        let link = self.link.clone().unwrap();
        std::thread::spawn(move || link.post(Completion::new(id, Err(Errno::Canceled), 0)));
    }

    fn deliver_synchronously(&mut self) -> Result<(), Error> {
        self.fake.note("deliver_synchronously");
        let supported = self.fake.plan(|plan| plan.supports_synchronous);
        refused((!supported).then_some(Errno::NotSupported))
    }

    fn is_pending(&self) -> bool {
        self.fake.note("is_pending");
        self.fake.plan(|plan| !plan.pending.is_empty())
    }

    fn next_pending(&mut self, _: &mut TmFront) -> Option<Completion> {
        self.fake.note("next_pending");
        self.fake.plan(|plan| plan.pending.pop())
    }

    fn notify(&mut self, waker: Waker) {
        self.fake.note("notify");
        self.fake.plan(|plan| plan.waker = Some(waker));
    }

    fn finish(self: Box<Self>) {
        self.fake.note("finish");
        self.fake.plan(|plan| plan.link = None);
    }
}

/// A transfer machine of a fake, with its events.
pub(super) struct Made {
    pub(super) fake: Fake,
    pub(super) domain: Domain,
    pub(super) tm: TransferMachine,
    pub(super) events: Events,
}

impl Made {
    pub(super) fn new() -> Self {
        Self::of(Fake::default())
    }

    pub(super) fn of(fake: Fake) -> Self {
        let domain = fake.domain();
        let (handler, events) = Events::channel();
        let tm = TransferMachine::new(&domain, handler).unwrap();
        Self { fake, domain, tm, events }
    }

    pub(super) fn started() -> Self {
        let mut made = Self::new();
        made.tm.start("own").unwrap();
        assert!(matches!(made.tm_event(), TmEvent::StateChange { state: TmState::Started, .. }));
        made.await_state(TmState::Started);
        made.fake.calls();
        made
    }

    pub(super) fn tm_event(&mut self) -> TmEvent {
        match self.events.next_blocking().unwrap() {
            Event::Tm(event) => event,
            Event::Buffer(event) => panic!("{event:?}"),
        }
    }

    pub(super) fn buffer_event(&mut self) -> crate::BufferEvent {
        match self.events.next_blocking().unwrap() {
            Event::Buffer(event) => event,
            Event::Tm(event) => panic!("{event:?}"),
        }
    }

    /// Waits until it has a state, and no callback runs.
    pub(super) fn await_state(&self, state: TmState) {
        await_state(&self.tm, state);
    }

    pub(super) fn end(self) {
        let Self { fake, tm, events, .. } = self;
        drop(events);
        fake.plan(|plan| plan.link = None);
        if tm.state() == TmState::Started {
            tm.stop(crate::StopMode::Abort).unwrap();
        }
        await_state(&tm, TmState::Stopped);
        tm.finish().unwrap();
    }
}

pub(super) fn await_state(tm: &TransferMachine, state: TmState) {
    let reached = tm
        .wait(Some(Instant::now() + PATIENCE), |front| front.state() == state && front.callback_count() == 0);
    assert!(reached, "{:?} instead of {state:?}", tm.state());
}

/// A handler that ignores everything.
pub(super) struct Ignore;

impl Handler for Ignore {}
