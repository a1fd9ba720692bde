//! A thread that runs tasks and drives a shard where it would sleep, so that a message costs no wake-up of
//! another thread.
//!
//! Invariants: what wakes a task ends the drive, whichever thread it is on. A guest drives only while its
//! tasks have been short of late: else the keeper drives, beside them. A guest that neither runs tasks nor
//! drives is one that waits, so that the keeper drives at once.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use lnet_core::time::Instant;
use lnet_io::locks::Mutex;
use lnet_io::reactor;

use super::{ShardHandle, waits};
use crate::runtime::{Clock, WaitKind};

/// Waits in a row, each soon after the one before, after which the thread drives.
const STREAK: u32 = 4;
/// How long tasks take at most between two such waits: while they run nothing drives the shard.
const SOON: Duration = Duration::from_micros(100);
/// How long such a wait takes at most.
const SHORT: Duration = Duration::from_millis(5);
/// How long the thread drives without anything that wakes a task: timers of its runtime are as late.
const DRIVE: Duration = Duration::from_millis(20);
/// How long a keeper that was asked has to leave.
const ASK: Duration = Duration::from_micros(500);

/// A thread that drives a shard, and sleeps in it, between its tasks. Without a guest a thread drives for
/// moments, and sleeps in its runtime: then the shard's own thread wakes it for what takes long to come. The
/// runtime of a guest calls [`Guest::parks`] when the thread is about to sleep, and its tasks are all within
/// [`Guest::run`]:
///
/// ```no_run
/// # use std::sync::Arc;
/// # use lnet_user::api::{Guest, Lnet};
/// # use lnet_user::node::NodeConfig;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let lnet = Lnet::start(&NodeConfig::new(vec![]))?;
/// let guest = Arc::new(Guest::new(&lnet.shard(0)?));
/// let mut builder = tokio::runtime::Builder::new_current_thread();
/// let runtime = builder.enable_time().on_thread_park(guest.parks()).build()?;
/// runtime.block_on(guest.run(async {
///     let mut events = lnet.create_event_queue(64)?;
///     events.next().await
/// }))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Guest {
    shard: ShardHandle,
    woken: Arc<Woken>,
    /// The thread locks it alone.
    state: Mutex<WaitState>,
}

/// Whether a task was woken.
#[derive(Debug)]
struct Woken {
    is_woken: AtomicBool,
    /// The waker of the shard, in which the thread may sleep.
    shard: reactor::Waker,
    thread: OnceLock<Thread>,
    runtime: AtomicWaker,
}

impl Woken {
    fn is_woken(&self) -> bool {
        self.is_woken.load(Ordering::Acquire)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.shard.wake();
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        self.runtime.wake();
    }
}

#[derive(Default, Debug)]
struct WaitState {
    /// When the thread began to wait, if it does.
    waits_since: Option<Instant>,
    /// Whether the shard knows that it waits.
    is_told: bool,
    ended_at: Option<Instant>,
    /// Short waits in a row, with short tasks in between.
    streak: u32,
    #[cfg(test)]
    drives: u32,
}

impl WaitState {
    /// The thread has nothing to run: whether it is to drive.
    fn begin(&mut self) -> bool {
        if self.waits_since.is_none() {
            let now = Clock::of_process().now();
            let is_soon = self.ended_at.is_some_and(|ended| now - ended < SOON);
            self.streak = if is_soon { self.streak + 1 } else { 0 };
            self.waits_since = Some(now);
        }
        self.streak >= STREAK
    }

    /// Ends a wait: the thread has something to run.
    fn end(&mut self, shard: &ShardHandle) {
        if let Some(since) = self.waits_since.take() {
            let now = Clock::of_process().now();
            self.ended_at = Some(now);
            if now - since > SHORT {
                self.streak = 0;
            }
        }
        self.tell(shard, false);
    }

    fn tell(&mut self, shard: &ShardHandle, waits: bool) {
        if std::mem::replace(&mut self.is_told, waits) != waits {
            shard.end().thread.shared().set_waiting(WaitKind::Task, waits);
        }
    }
}

impl Guest {
    /// The thread that will call [`Guest::run`], as one that drives this shard.
    #[must_use]
    pub fn new(shard: &ShardHandle) -> Self {
        let woken = Woken {
            is_woken: AtomicBool::new(false),
            shard: shard.end().thread.waker().clone(),
            thread: OnceLock::new(),
            runtime: AtomicWaker::new(),
        };
        Self { shard: shard.clone(), woken: Arc::new(woken), state: Mutex::default() }
    }

    /// Runs a future on the calling thread, as the root of all that this thread runs.
    pub async fn run<F: Future>(&self, future: F) -> F::Output {
        let _ = self.woken.thread.set(std::thread::current());
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut future = pin!(future);
        poll_fn(|context| {
            self.lock(|state| state.end(&self.shard));
            self.woken.runtime.register(context.waker());
            // What wakes it from now on is seen by the next drive. What has woken it before, by the tasks.
            self.woken.is_woken.swap(false, Ordering::AcqRel);
            let mut context = Context::from_waker(&waker);
            waits::as_guest(self.shard.end().thread.shared(), || future.as_mut().poll(&mut context))
        })
        .await
    }

    /// What the runtime of [`Guest::run`] calls before its thread sleeps: it drives the shard meanwhile.
    /// Without effect once the guest was dropped, which it does not keep.
    pub fn parks(self: &Arc<Self>) -> impl Fn() + Send + Sync + use<> {
        // A shard may be the last to have a waker of the runtime, and must not drop its own node with that.
        let guest = Arc::downgrade(self);
        move || {
            if let Some(guest) = guest.upgrade() {
                guest.drive();
            }
        }
    }

    /// Drives the shard until a task of the calling thread is woken, or for some milliseconds at most, if
    /// tasks have been short of late and no other thread waits for events. Returns at once otherwise.
    fn drive(&self) {
        let thread = &self.shard.end().thread;
        if self.lock(WaitState::begin) && !thread.has_waiting() {
            let until = Clock::of_process().now() + DRIVE;
            while !self.woken.is_woken() && !thread.has_waiting() {
                thread.drive(|| self.woken.is_woken(), Some(until), true);
                let left = until - Clock::of_process().now();
                if self.woken.is_woken() || left.is_zero() {
                    break;
                }
                // The driver that was asked to leave wakes this thread, and so does what wakes a task.
                std::thread::park_timeout(left.min(ASK));
            }
            #[cfg(test)]
            self.lock(|state| state.drives += 1);
        }
        if !self.woken.is_woken() {
            self.lock(|state| state.tell(&self.shard, true));
            // A keeper that stands by is woken by the end of this turn.
            thread.drive(|| true, None, false);
        }
    }

    fn lock<R>(&self, change: impl FnOnce(&mut WaitState) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(test)]
    pub(super) fn drives(&self) -> u32 {
        self.lock(|state| state.drives)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.lock(|state| state.tell(&self.shard, false));
    }
}

#[cfg(test)]
mod tests {
    use lnet_core::event::EventKind;
    use lnet_core::md::{MdOptions, MdSpec, Threshold};
    use lnet_core::portal::EntrySpec;
    use lnet_wire::Nid;
    use tokio::runtime::{Builder, Runtime};
    use tokio::sync::mpsc;

    use super::*;
    use crate::Buffer;
    use crate::api::{Ack, Descriptor, EventQueue, Lnet, Target};
    use crate::node::NodeConfig;

    const PORTAL: u32 = 4;
    const PATIENCE: Duration = Duration::from_secs(20);

    fn start() -> (Lnet, Arc<Guest>, Runtime) {
        let lnet = Lnet::start(&NodeConfig::loopback()).unwrap();
        let guest = Arc::new(Guest::new(&lnet.shard(0).unwrap()));
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().on_thread_park(guest.parks()).build().unwrap();
        (lnet, guest, runtime)
    }

    /// A queue, and what puts to the node itself, whose events come by it.
    fn puts(lnet: &Lnet) -> (EventQueue, Descriptor) {
        let shard = lnet.shard(0).unwrap();
        let events = shard.create_event_queue(1 << 10).unwrap();
        let spec = |options| MdSpec::new(4, Threshold::Infinite, options, events.handle());
        let entry = EntrySpec::new(PORTAL, 1);
        let taken = spec(MdOptions::PUT | MdOptions::MANAGE_REMOTE);
        shard.attach(&entry, &taken, Buffer::zeroed(4)).unwrap().detach();
        let md = MdSpec { auto_unlink: false, ..spec(MdOptions::NONE) };
        let md = shard.bind(&md, Buffer::zeroed(4)).unwrap();
        (events, md)
    }

    async fn put(events: &mut EventQueue, md: &Descriptor) {
        md.put(&Target::new(Nid::LO, PORTAL, 1), Ack::Wanted, 0).queue().unwrap();
        while events.next().await.unwrap().event.kind() != EventKind::Ack {}
    }

    #[test]
    fn a_guest_drives_while_its_tasks_are_short() {
        let (lnet, guest, runtime) = start();
        runtime.block_on(guest.run(async {
            let (mut events, md) = puts(&lnet);
            let begun = Clock::of_process().now();
            while guest.drives() < 100 {
                assert!((Clock::of_process().now() - begun) < PATIENCE, "{} drives", guest.drives());
                put(&mut events, &md).await;
            }
            // The shard has others that drive it while tasks take long, and between messages that are rare.
            let most = guest.drives() + 2 * STREAK;
            for _ in 0..40 {
                put(&mut events, &md).await;
                std::thread::sleep(SOON * 2);
            }
            for _ in 0..20 {
                put(&mut events, &md).await;
                tokio::time::sleep(SHORT * 2).await;
            }
            assert!(guest.drives() <= most, "{} drives, {most} at most", guest.drives());
        }));
    }

    /// A Put that a task of the guest awaits is driven where the thread would sleep, as events are.
    #[test]
    fn a_guest_drives_for_what_its_tasks_await() {
        let (lnet, guest, runtime) = start();
        runtime.block_on(guest.run(async {
            let (_events, md) = puts(&lnet);
            let begun = Clock::of_process().now();
            while guest.drives() < 100 {
                assert!((Clock::of_process().now() - begun) < PATIENCE, "{} drives", guest.drives());
                md.put(&Target::new(Nid::LO, PORTAL, 1), Ack::Wanted, 0).await.unwrap();
            }
        }));
        assert_eq!(lnet.shard(0).unwrap().end().thread.shared().moments(), 0);
    }

    /// What comes from elsewhere does not wait for the end of a drive.
    #[test]
    fn what_another_thread_wakes_ends_a_drive() {
        const ROUNDS: usize = 50;
        let (lnet, guest, runtime) = start();
        let (ask, mut asked) = mpsc::unbounded_channel();
        let (answer, answered) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let late = (0..ROUNDS).filter(|_| {
                let begun = Clock::of_process().now();
                ask.send(()).unwrap();
                answered.recv_timeout(PATIENCE).unwrap();
                let is_late = (Clock::of_process().now() - begun) >= DRIVE * 9 / 10;
                std::thread::sleep(Duration::from_millis(1));
                is_late
            });
            late.count()
        });
        runtime.block_on(guest.run(async {
            let (mut events, md) = puts(&lnet);
            let mut drives = 0;
            while asked.recv().await.is_some() {
                drives = guest.drives();
                // The guest drives when the next question comes.
                for _ in 0..=STREAK {
                    put(&mut events, &md).await;
                }
                answer.send(()).unwrap();
            }
            assert!(drives > 0);
        }));
        let late = other.join().unwrap();
        assert!(late < ROUNDS / 2, "{late} of {ROUNDS} answers came late");
    }

    #[test]
    fn a_shard_that_ends_ends_its_guest() {
        let (lnet, guest, runtime) = start();
        runtime.block_on(guest.run(async {
            let (mut events, md) = puts(&lnet);
            for _ in 0..10 {
                put(&mut events, &md).await;
            }
            let ended = lnet.shard(0).unwrap().end().caller.run(|_, _| panic!("on purpose"));
            ended.unwrap_err();
            while events.next().await.is_ok() {}
        }));
    }

    #[test]
    fn a_guest_goes_with_its_runtime() {
        let (lnet, guest, runtime) = start();
        runtime.block_on(guest.run(async {
            let (mut events, md) = puts(&lnet);
            put(&mut events, &md).await;
        }));
        let weak = Arc::downgrade(&guest);
        drop((runtime, guest));
        assert!(weak.upgrade().is_none());
    }
}
