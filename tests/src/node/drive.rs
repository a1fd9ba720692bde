//! Shards and what drives them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lnet_user::runtime::{Idle, ShardThread, Worker};

/// How long an application thread of ours sleeps at most.
const NAP: Duration = Duration::from_millis(5);

/// Who drives a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// A thread of the application: progress, events, wait.
    Application,
    /// A [`ShardThread`].
    ShardThread,
}

/// A shard that is being driven, with what takes its events.
pub enum Driven<S> {
    /// A thread of the application drives it.
    Application {
        /// Set to end the thread.
        stop: Arc<AtomicBool>,
        /// Gives everything back.
        thread: JoinHandle<(Worker, S)>,
    },
    /// A [`ShardThread`] drives it.
    ShardThread(ShardThread<S>),
}

impl<S> std::fmt::Debug for Driven<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Application { .. } => "Application",
            Self::ShardThread(_) => "ShardThread",
        })
    }
}

impl<S: Send + 'static> Driven<S> {
    /// Has the shard driven; `turn` is called after each of its turns.
    ///
    /// # Panics
    /// When there is no thread.
    #[must_use]
    pub fn start(
        by: By,
        mut worker: Worker,
        mut state: S,
        mut turn: impl FnMut(&mut Worker, &mut S) + Send + 'static,
    ) -> Self {
        match by {
            By::ShardThread => {
                let idle = Idle::new(Duration::ZERO);
                Self::ShardThread(ShardThread::spawn(worker, None, idle, state, turn).expect("a thread"))
            }
            By::Application => {
                let stop = Arc::new(AtomicBool::new(false));
                let stopped = Arc::clone(&stop);
                let thread = std::thread::spawn(move || {
                    while !stopped.load(Ordering::Acquire) {
                        let busy = worker.progress();
                        turn(&mut worker, &mut state);
                        if !busy && !worker.progress() {
                            worker.wait(Some(NAP)).expect("a shard that can sleep");
                        }
                    }
                    (worker, state)
                });
                Self::Application { stop, thread }
            }
        }
    }

    /// Ends the driving and gives everything back.
    ///
    /// # Panics
    /// When the thread has panicked.
    pub fn stop(self) -> (Worker, S) {
        match self {
            Self::Application { stop, thread } => {
                stop.store(true, Ordering::Release);
                thread.join().expect("the thread of a shard panicked, see above")
            }
            Self::ShardThread(thread) => thread.stop().expect("the thread of a shard panicked, see above"),
        }
    }
}

/// Ends the driving of all shards of a node.
///
/// # Panics
/// Where [`Driven::stop`] does.
#[must_use]
pub fn stop_all<S: Send + 'static>(driven: Vec<Driven<S>>) -> (Vec<Worker>, Vec<S>) {
    driven.into_iter().map(Driven::stop).unzip()
}

/// Drives the shards on the calling thread until no message of theirs is under way: all credits, buffers
/// and frames for sending are home.
///
/// # Panics
/// When that does not happen within `patience`.
pub fn settle(workers: &mut [Worker], patience: Duration) {
    let begun = Instant::now();
    loop {
        let busy = workers.iter_mut().fold(false, |busy, worker| worker.progress() | busy);
        let under_way: u32 = workers.iter().map(|worker| worker.usage().messages).sum();
        if !busy && under_way == 0 {
            return;
        }
        assert!(begun.elapsed() < patience, "{under_way} messages are under way after {patience:?}");
    }
}

/// Drives the shards of two nodes until no message is under way and nothing has come for a while: the last
/// acknowledgements included.
///
/// # Panics
/// When that does not happen within `patience`.
pub fn settle_both(a: &mut [Worker], b: &mut [Worker], patience: Duration) {
    const QUIET: Duration = Duration::from_millis(100);
    let begun = Instant::now();
    let mut quiet_since = begun;
    while quiet_since.elapsed() < QUIET {
        let workers = a.iter_mut().chain(b.iter_mut());
        let (busy, under_way) = workers.fold((false, 0), |(busy, under_way), worker| {
            (worker.progress() | busy, under_way + worker.usage().messages)
        });
        if busy || under_way != 0 {
            quiet_since = Instant::now();
        }
        assert!(begun.elapsed() < patience, "{under_way} messages are under way after {patience:?}");
    }
}
