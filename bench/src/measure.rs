//! What is measured over a link, whatever messages are made of: half round trips, and the rate of one sender.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::ensure;
use lnet_load::{Distribution, keep_full};

use crate::link::{Link, Side};

/// How long a message may take.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// One end of a link, which sends and receives messages that carry a number.
pub trait Endpoint: Sized {
    /// Sends a message.
    ///
    /// # Errors
    /// What was refused.
    fn send(&mut self, number: u64) -> anyhow::Result<()>;

    /// Takes what has arrived.
    fn receive(&mut self, each: impl FnMut(u64));

    /// Takes back what was sent and received with.
    ///
    /// # Errors
    /// When a message was not sent.
    fn settle(&mut self) -> anyhow::Result<()>;

    /// Answers each message with one until told to stop.
    ///
    /// # Errors
    /// What was refused.
    fn echo(&mut self, stop: &AtomicBool) -> anyhow::Result<()>;

    /// Sends as fast as it can for `time`; messages sent.
    ///
    /// # Errors
    /// What was refused.
    fn flood(&mut self, time: Duration) -> anyhow::Result<u64>;

    /// Takes messages until told to stop, and counts them.
    fn sink(&mut self, stop: &AtomicBool, received: &AtomicU64);

    /// Half round trips of one message after the other, in nanoseconds, with a pause between two; the first
    /// tenth does not count.
    ///
    /// # Errors
    /// When a message does not come back.
    fn ping(&mut self, count: u64, pause: Duration) -> anyhow::Result<Distribution> {
        let mut half_ns = Distribution::measured();
        let warm_up = count / 10;
        for round in 0..count + warm_up {
            let begun = Instant::now();
            self.send(round)?;
            let mut back = false;
            while !back {
                self.receive(|number| back |= number == round);
                ensure!(begun.elapsed() < PATIENCE, "message {round} was not answered");
            }
            let elapsed = begun.elapsed();
            self.settle()?;
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            if round >= warm_up {
                half_ns.record_time(elapsed / 2);
            }
        }
        Ok(half_ns)
    }
}

/// Half round trips over `link`, each end opened by `open`; `after` may look at the sending one.
///
/// # Errors
/// What either end fails with.
pub fn ping<E: Endpoint>(
    link: &Link,
    open: impl Fn(Side<'_>) -> anyhow::Result<E> + Sync,
    count: u64,
    after: impl FnOnce(&mut E) + Send,
) -> anyhow::Result<Distribution> {
    ping_with_pauses(link, open, (count, Duration::ZERO), after)
}

/// Measures half round trips with a pause after each of them.
///
/// # Errors
/// What either end fails with.
pub fn ping_with_pauses<E: Endpoint>(
    link: &Link,
    open: impl Fn(Side<'_>) -> anyhow::Result<E> + Sync,
    (count, pause): (u64, Duration),
    after: impl FnOnce(&mut E) + Send,
) -> anyhow::Result<Distribution> {
    link.pair(
        |ready, stop| {
            let mut end = open(link.far())?;
            ready();
            end.echo(stop)
        },
        || {
            let mut end = open(link.near())?;
            let half_ns = end.ping(count, pause)?;
            after(&mut end);
            Ok(half_ns)
        },
    )
}

/// What a sender sent, in some time, and how much of it arrived.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct Flood {
    /// Messages sent.
    pub sent: u64,
    /// Messages that arrived.
    pub received: u64,
    /// How long that took.
    pub time: Duration,
}

impl Flood {
    /// Messages sent a second.
    #[must_use]
    pub fn sent_per_second(&self) -> f64 {
        self.sent as f64 / self.time.as_secs_f64()
    }

    /// Messages received a second.
    #[must_use]
    pub fn received_per_second(&self) -> f64 {
        self.received as f64 / self.time.as_secs_f64()
    }
}

/// Has one end of `link` flood the other for `time`.
///
/// # Errors
/// What either end fails with.
pub fn flood<E: Endpoint>(
    link: &Link,
    open: impl Fn(Side<'_>) -> anyhow::Result<E> + Sync,
    time: Duration,
) -> anyhow::Result<Flood> {
    let received = AtomicU64::new(0);
    let (sent, time) = link.pair(
        |ready, stop| {
            let mut end = open(link.far())?;
            ready();
            end.sink(stop, &received);
            Ok(())
        },
        || {
            let mut end = open(link.near())?;
            let begun = Instant::now();
            Ok((end.flood(time)?, begun.elapsed()))
        },
    )?;
    Ok(Flood { sent, received: received.into_inner(), time })
}

/// Keeps a window of messages under way for `time`, as [`lnet_load::keep_full`] does; how many there were.
///
/// # Errors
/// What was refused, or a message that does not end.
pub fn flood_for<E>(
    end: &mut E,
    time: Duration,
    start: impl Fn(&mut E, u64) -> anyhow::Result<bool>,
    await_ends: impl Fn(&mut E) -> anyhow::Result<u64>,
) -> anyhow::Result<u64> {
    let begun = Instant::now();
    let goes_on = |_: &E, under_way| {
        let elapsed = begun.elapsed();
        ensure!(elapsed < time + PATIENCE, "{under_way} messages never ended");
        Ok(elapsed < time)
    };
    keep_full(end, goes_on, start, await_ends)
}

/// Gigabits a second of so many messages of so many bytes.
#[must_use]
pub const fn gigabits(per_second: f64, bytes: usize) -> f64 {
    per_second * bytes as f64 * 8.0 / 1e9
}
