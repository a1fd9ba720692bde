//! Transfer machines with their events, over any transport.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod received;

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use lnet_messaging::transport::Transport;
use lnet_messaging::{
    Addition, Buffer, BufferEvent, BufferId, Domain, Errno, Event, Events, Memory, Operation, QueueStats,
    QueueType, StopMode, TmEvent, TmState, TransferMachine,
};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Wakes a thread.
pub(crate) struct Unpark(pub(crate) Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A started transfer machine of a domain of its own.
pub(crate) struct Party {
    pub(crate) domain: Domain,
    pub(crate) tm: TransferMachine,
    pub(crate) events: Events,
}

impl Party {
    pub(crate) fn new(transport: &Arc<dyn Transport>) -> Self {
        Self::in_domain(&Domain::new(transport).unwrap())
    }

    pub(crate) fn in_domain(domain: &Domain) -> Self {
        let (handler, events) = Events::channel();
        let tm = TransferMachine::new(domain, handler).unwrap();
        Self { domain: domain.clone(), tm, events }
    }

    pub(crate) fn started(transport: &Arc<dyn Transport>, address: &str) -> Self {
        Self::new(transport).start(address)
    }

    pub(crate) fn start(mut self, address: &str) -> Self {
        self.tm.start(address).unwrap();
        match self.tm_event() {
            TmEvent::StateChange { state: TmState::Started, status: Ok(()), .. } => {}
            event => panic!("{event:?}"),
        }
        self.await_state(TmState::Started);
        self
    }

    pub(crate) fn address(&self) -> String {
        self.tm.end_point().unwrap().address().to_owned()
    }

    /// The next event. One that does not come in time is a failure, and no test waits for ever.
    #[track_caller]
    pub(crate) fn event(&mut self) -> Event {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let (mut context, deadline) = (Context::from_waker(&waker), Instant::now() + PATIENCE);
        loop {
            let next = std::pin::pin!(self.events.next()).poll(&mut context);
            match next {
                Poll::Ready(event) => return event.unwrap(),
                Poll::Pending => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    assert!(!left.is_zero(), "no event in {PATIENCE:?}");
                    std::thread::park_timeout(left);
                }
            }
        }
    }

    #[track_caller]
    pub(crate) fn tm_event(&mut self) -> TmEvent {
        match self.event() {
            Event::Tm(event) => event,
            Event::Buffer(event) => panic!("{event:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn buffer_event(&mut self) -> BufferEvent {
        match self.event() {
            Event::Buffer(event) => event,
            Event::Tm(event) => panic!("{event:?}"),
        }
    }

    /// The next event of a buffer, behind ends of messages that have gone well: in which order those come is
    /// open.
    #[track_caller]
    pub(crate) fn buffer_event_of(&mut self, queue: QueueType) -> BufferEvent {
        loop {
            let event = self.buffer_event();
            if event.queue() == queue {
                return event;
            }
            assert_eq!((event.queue(), event.status), (QueueType::Send, Ok(())), "{event:?}");
        }
    }

    /// The next event of a buffer, which ends that.
    #[track_caller]
    pub(crate) fn end_of(&mut self, id: BufferId) -> (Result<(), Errno>, u64) {
        let event = self.buffer_event();
        assert_eq!((event.id, event.is_last()), (id, true), "{event:?}");
        (event.status, event.length_bytes)
    }

    #[track_caller]
    pub(crate) fn await_state(&self, state: TmState) {
        let reached = self.tm.wait(Some(Instant::now() + PATIENCE), |front| {
            front.state() == state && front.callback_count() == 0
        });
        assert!(reached, "{:?} instead of {state:?}", self.tm.state());
    }

    /// A buffer of so many bytes, in segments like these.
    pub(crate) fn buffer(&self, segments: &[usize]) -> Buffer {
        let segments = segments.iter().map(|length| vec![0; *length]).collect();
        self.domain.register(Memory::from_segments(segments).unwrap()).unwrap()
    }

    pub(crate) fn filled(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.buffer(&[bytes.len()]);
        buffer.fill(bytes);
        buffer
    }

    #[track_caller]
    pub(crate) fn add(&self, buffer: Buffer, addition: impl Into<Addition>) -> BufferId {
        self.tm.add(buffer, addition).unwrap().id
    }

    /// Room for messages in one piece.
    #[track_caller]
    pub(crate) fn post(&self, bytes: usize, min_receive_bytes: u64, max_messages: u32) -> BufferId {
        self.add(self.buffer(&[bytes]), Operation::Receive { min_receive_bytes, max_messages })
    }

    #[track_caller]
    pub(crate) fn send(&self, to: &str, bytes: &[u8]) -> BufferId {
        let to = self.tm.create_end_point(to).unwrap();
        self.add(self.filled(bytes), Operation::Send { to, length_bytes: bytes.len() as u64 })
    }

    /// Adds, dels, successes, failures, and the counters are set back.
    pub(crate) fn counts(&self, queue: QueueType) -> (u64, u64, u64, u64) {
        let QueueStats { num_adds, num_dels, num_s_events, num_f_events, .. } =
            self.tm.stats(queue, true).unwrap();
        (num_adds, num_dels, num_s_events, num_f_events)
    }

    /// Stops it, and waits until nothing is left of it.
    pub(crate) fn end(mut self) {
        self.tm.stop(StopMode::Abort).unwrap();
        loop {
            match self.event() {
                Event::Tm(TmEvent::StateChange { state: TmState::Stopped, .. }) => break,
                Event::Tm(event) => panic!("{event:?}"),
                Event::Buffer(event) => drop(event),
            }
        }
        self.await_state(TmState::Stopped);
        self.tm.finish().unwrap();
    }
}
