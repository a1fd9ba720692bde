//! A shard on a pinned thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rtrb::{Producer, RingBuffer};
use thiserror::Error;

use super::cpu::pin_to_cpu;
use super::worker::{Call, Worker};
use crate::uring::Waker;

/// The shard's thread has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the shard's thread has ended")]
pub struct ShardGone;

/// A shard got no thread.
#[derive(Error)]
#[error("shard {} got no thread: {error}", worker.shard_id().0)]
pub struct NotSpawned<S> {
    /// Why.
    #[source]
    pub error: std::io::Error,
    /// The shard.
    pub worker: Worker,
    /// Its service.
    pub service: S,
}

impl<S> std::fmt::Debug for NotSpawned<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NotSpawned").field("error", &self.error).finish_non_exhaustive()
    }
}

/// What a shard's thread does when there is nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Idle {
    /// How long it polls before it sleeps. Zero where shards outnumber CPUs: two spinners on one CPU
    /// only take time from each other.
    pub spin: Duration,
}

/// A shard that a thread of its own drives. Dropping it stops the thread and waits for it.
pub struct ShardThread<S> {
    calls: Producer<Call>,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Option<(Worker, S)>>>,
}

impl<S> std::fmt::Debug for ShardThread<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardThread").field("thread", &self.thread).finish_non_exhaustive()
    }
}

impl<S: Send + 'static> ShardThread<S> {
    /// Starts a thread that drives `worker`, on `cpu` if one is given. `turn` is called with `service`
    /// after every turn of the shard, on the shard's thread: there it takes the shard's events, reads
    /// their payload in place and starts what it likes; it must not block.
    ///
    /// # Errors
    /// [`NotSpawned`] with the kernel's refusal to make the thread or to bind it to `cpu`, and with what was
    /// to be run.
    pub fn spawn(
        worker: Worker,
        cpu: Option<usize>,
        idle: Idle,
        service: S,
        turn: impl FnMut(&mut Worker, &mut S) + Send + 'static,
    ) -> Result<Self, Box<NotSpawned<S>>> {
        Self::spawn_with(worker, cpu, idle, service, |_| false, turn)
    }

    /// As [`ShardThread::spawn`]; the thread does not sleep if `has_work` says so once wake-ups are armed: then
    /// there is something for another turn, of which the [`Waker`] was told when the shard was still awake.
    ///
    /// # Errors
    /// As [`ShardThread::spawn`].
    pub fn spawn_with(
        mut worker: Worker,
        cpu: Option<usize>,
        idle: Idle,
        service: S,
        has_work: impl Fn(&S) -> bool + Send + 'static,
        mut turn: impl FnMut(&mut Worker, &mut S) + Send + 'static,
    ) -> Result<Self, Box<NotSpawned<S>>> {
        let (pinned, is_pinned) = mpsc::sync_channel(1);
        let (start, started) = mpsc::sync_channel::<(Worker, S)>(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let name = format!("lnet-shard-{}", worker.shard_id().0);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // The starter is told of a failure, unless it is gone.
            let _ = pinned.send(cpu.map_or(Ok(()), pin_to_cpu));
            let (mut worker, mut service) = started.recv().ok()?;
            drive(&mut worker, idle, &stopped, &mut service, &has_work, &mut turn);
            Some((worker, service))
        });
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => return Err(Box::new(NotSpawned { error, worker, service })),
        };
        let ended = || Err(std::io::Error::other("the shard's thread has ended"));
        let released = worker.release().map_err(std::io::Error::other);
        if let Err(error) = is_pinned.recv().unwrap_or_else(|_| ended()).and(released) {
            return Err(Box::new(NotSpawned { error, worker, service }));
        }
        // The caller waits for the answer, so there is one call at a time.
        let (calls, consumer) = RingBuffer::new(1);
        worker.take_calls_from(consumer);
        let waker = worker.waker();
        // The thread waits for it and does nothing else meanwhile.
        if let Err(mpsc::SendError((worker, service))) = start.send((worker, service)) {
            let error = std::io::Error::other("the shard's thread has ended");
            return Err(Box::new(NotSpawned { error, worker, service }));
        }
        Ok(Self { calls, waker, stop, thread: Some(thread) })
    }

    /// Runs `call` on the shard's thread between two turns and waits for its result.
    ///
    /// # Errors
    /// [`ShardGone`] if the thread has ended before it could.
    pub fn call<R: Send + 'static>(
        &mut self,
        call: impl FnOnce(&mut Worker) -> R + Send + 'static,
    ) -> Result<R, ShardGone> {
        const PATIENCE: Duration = Duration::from_millis(100);
        if self.is_gone() {
            return Err(ShardGone);
        }
        let (answer, result) = mpsc::sync_channel(1);
        let call: Call = Box::new(move |worker| {
            // A caller that is gone wants no answer.
            let _ = answer.send(call(worker));
        });
        // The last call is still there only if the thread ended before it took it.
        self.calls.push(call).map_err(|_| ShardGone)?;
        self.waker.wake();
        // A call that was not taken any more stays in the ring, and its answer with it.
        loop {
            match result.recv_timeout(PATIENCE) {
                Ok(result) => return Ok(result),
                Err(mpsc::RecvTimeoutError::Timeout) if !self.is_gone() => {}
                Err(_) => return result.try_recv().map_err(|_| ShardGone),
            }
        }
    }

    fn is_gone(&self) -> bool {
        self.calls.is_abandoned() || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the thread and gives the shard back, to be driven by the caller.
    ///
    /// # Errors
    /// [`ShardGone`] if the thread has panicked.
    pub fn stop(mut self) -> Result<(Worker, S), ShardGone> {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        let ended = self.thread.take().and_then(|thread| thread.join().ok()).flatten();
        let (mut worker, service) = ended.ok_or(ShardGone)?;
        if let Err(error) = worker.release() {
            tracing::error!(%error, "the shard that was stopped cannot sleep on another thread");
        }
        Ok((worker, service))
    }
}

impl<S> Drop for ShardThread<S> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the shard's thread has been printed by then.
            let _ = thread.join();
        }
    }
}

fn drive<S>(
    worker: &mut Worker,
    idle: Idle,
    stop: &AtomicBool,
    service: &mut S,
    has_work: &impl Fn(&S) -> bool,
    turn: &mut impl FnMut(&mut Worker, &mut S),
) {
    let mut idle_since = None;
    let mut can_sleep = true;
    while !stop.load(Ordering::Acquire) {
        let busy = worker.progress();
        let events = worker.event_counts();
        turn(worker, service);
        // Events that the turn leaves are for another thread to take, and no reason to stay awake. But where it
        // took one, another may have taken its place that the turn would take too.
        if busy || worker.event_counts() != events {
            idle_since = None;
            continue;
        }
        let since = *idle_since.get_or_insert_with(Instant::now);
        let must_not_sleep = || stop.load(Ordering::Acquire) || has_work(service);
        if since.elapsed() < idle.spin {
            std::hint::spin_loop();
        } else if !can_sleep {
            std::thread::yield_now();
        } else if let Err(error) = worker.wait_unless(must_not_sleep, None) {
            tracing::error!(%error, "a shard cannot sleep; it goes on polling");
            can_sleep = false;
        }
    }
}
