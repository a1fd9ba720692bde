use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::pipe;

use super::*;

const LONG: Option<Duration> = Some(Duration::from_secs(20));
const SHORT: Option<Duration> = Some(Duration::from_millis(20));

/// Runs a test with each way of waiting. Each has a thread of its own: the end of a ring may interrupt its
/// thread later.
fn each(watches_max: u32, test: impl Fn(Waiter) + Sync) {
    let ring = |flavour| {
        Waiter::by(watches_max, WaitReactor::Ring(Ring::new(watches_max, flavour).unwrap())).unwrap()
    };
    let by_readiness = || Waiter::new(watches_max, Reactor::Epoll).unwrap();
    let makers: [&(dyn Fn() -> Waiter + Sync); 4] =
        [&|| ring(Flavour::Deferred), &|| ring(Flavour::Plain), &by_readiness, &|| by_timer(watches_max)];
    for make in makers {
        let tested = std::thread::scope(|scope| scope.spawn(|| test(make())).join());
        tested.expect("the test has failed");
    }
}

/// A waiter as on kernels that have no timeout in nanoseconds.
fn by_timer(watches_max: u32) -> Waiter {
    let mut poller = Poller::new().unwrap();
    poller.use_timer().unwrap();
    Waiter::by(watches_max, WaitReactor::Readiness(poller)).unwrap()
}

fn wait(waiter: &mut Waiter, timeout: Option<Duration>) -> Vec<u64> {
    let mut tokens = Vec::new();
    let told = waiter.arm().wait(timeout, |token| tokens.push(token.0)).unwrap();
    assert_eq!(told as usize, tokens.len());
    tokens.sort_unstable();
    tokens
}

#[test]
fn time_passes() {
    each(1, |mut waiter| {
        for _ in 0..3 {
            let start = Instant::now();
            assert!(wait(&mut waiter, SHORT).is_empty());
            assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
        }
        let start = Instant::now();
        assert!(wait(&mut waiter, Some(Duration::ZERO)).is_empty());
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}

/// Timers of shards are shorter than a millisecond.
#[test]
fn short_times_are_short() {
    each(1, |mut waiter| {
        let start = Instant::now();
        for _ in 0..100 {
            assert!(wait(&mut waiter, Some(Duration::from_micros(50))).is_empty());
        }
        let took = start.elapsed();
        assert!((5..90).contains(&took.as_millis()), "100 times 50 us took {took:?}");
    });
}

/// A timer that a wake has overtaken is set anew by the next wait.
#[test]
fn a_wake_ends_a_wait_with_a_timeout() {
    each(1, |mut waiter| {
        let start = Instant::now();
        for _ in 0..3 {
            let (waker, armed) = (waiter.waker(), waiter.arm());
            assert!(waker.wake());
            assert_eq!(armed.wait(LONG, |_| {}), Ok(0));
        }
        assert!(start.elapsed() < Duration::from_secs(10));
        let start = Instant::now();
        assert!(wait(&mut waiter, SHORT).is_empty());
        assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
    });
}

#[test]
fn descriptors_report_each_arrival() {
    each(2, |mut waiter| {
        let (first, first_writer) = pipe().unwrap();
        let (second, second_writer) = pipe().unwrap();
        waiter.watch(&first, Token(7)).unwrap();
        waiter.watch(&second, Token(9)).unwrap();
        assert!(wait(&mut waiter, SHORT).is_empty());
        for _ in 0..100 {
            rustix::io::write(&first_writer, b"x").unwrap();
            assert_eq!(wait(&mut waiter, LONG), [7]);
        }
        assert!(wait(&mut waiter, SHORT).is_empty(), "nothing new has arrived");
        rustix::io::write(&first_writer, b"x").unwrap();
        rustix::io::write(&second_writer, b"x").unwrap();
        let mut both = wait(&mut waiter, LONG);
        if both.len() == 1 {
            both.extend(wait(&mut waiter, LONG));
        }
        both.sort_unstable();
        assert_eq!(both, [7, 9]);
        drop(second_writer);
        assert_eq!(wait(&mut waiter, LONG), [9], "the other end is gone");
    });
}

#[test]
fn what_is_there_already_is_reported() {
    each(1, |mut waiter| {
        let (reader, writer) = pipe().unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        waiter.watch(&reader, Token(1)).unwrap();
        assert_eq!(wait(&mut waiter, LONG), [1]);
    });
}

#[test]
fn an_unwatched_descriptor_is_silent_and_closed() {
    each(1, |mut waiter| {
        for token in 1..50 {
            let (reader, writer) = pipe().unwrap();
            let id = waiter.watch(&reader, Token(token)).unwrap();
            let full = waiter.watch(&reader, Token(0)).unwrap_err();
            assert_eq!(full, WaitError::TooManyWatches { watches_max: 1 });
            if token % 3 != 0 {
                assert!(wait(&mut waiter, Some(Duration::ZERO)).is_empty());
            }
            if token % 2 == 0 {
                rustix::io::write(&writer, b"x").unwrap();
            }
            waiter.unwatch(&id).unwrap();
            assert_eq!(waiter.unwatch(&id), Err(WaitError::NotWatched));
            drop(reader);
            assert_eq!(rustix::io::write(&writer, b"x"), Err(Errno::PIPE), "the waiter holds the pipe");
            assert!(wait(&mut waiter, Some(Duration::ZERO)).is_empty());
        }
    });
}

#[test]
fn wakes_cost_nothing_while_nobody_sleeps() {
    each(1, |mut waiter| {
        let waker = waiter.waker();
        assert!(!waker.wake());
        assert!(wait(&mut waiter, SHORT).is_empty(), "an unneeded wake leaves nothing behind");
        assert!(!waker.wake(), "the wait has disarmed");
        let armed = waiter.arm();
        assert!(waker.wake(), "armed");
        assert!(!waker.clone().wake(), "another waker has paid");
        let start = Instant::now();
        assert_eq!(armed.wait(LONG, |_| panic!("the waker has no token")), Ok(0));
        assert!(start.elapsed() < Duration::from_secs(10), "a wake between arming and waiting was lost");
        drop(waiter.arm());
        assert!(!waker.wake(), "dropping disarms");
    });
}

/// Two threads pass a number to and fro, each sleeping without a timeout until it is its turn.
#[test]
fn no_wake_is_lost() {
    const ROUNDS: u32 = 20_000;
    each(1, |mut near| {
        let turn = Arc::new(AtomicU32::new(0));
        // Made here, driven there: the first wait decides whose it is.
        let mut far = Waiter::new(1, Reactor::Epoll).unwrap();
        let (near_waker, far_waker) = (near.waker(), far.waker());
        let play = |waiter: &mut Waiter, peer: &Waker, turn: &AtomicU32, parity: u32| {
            loop {
                let armed = waiter.arm();
                let now = turn.load(Ordering::Acquire);
                if now >= ROUNDS {
                    return;
                }
                if now % 2 == parity {
                    drop(armed);
                    turn.store(now + 1, Ordering::Release);
                    peer.wake();
                } else {
                    let told = armed.wait(LONG, |_| {}).unwrap();
                    assert_eq!(told, 0);
                }
            }
        };
        let start = Instant::now();
        let other = std::thread::spawn({
            let turn = Arc::clone(&turn);
            move || play(&mut far, &near_waker, &turn, 1)
        });
        play(&mut near, &far_waker, &turn, 0);
        other.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(20), "a timeout stood in for a wake");
    });
}

#[test]
fn a_waiter_goes_from_thread_to_thread() {
    each(1, |mut waiter| {
        let (reader, writer) = pipe().unwrap();
        waiter.watch(&reader, Token(7)).unwrap();
        for _ in 0..3 {
            assert!(wait(&mut waiter, Some(Duration::ZERO)).is_empty());
            rustix::io::write(&writer, b"x").unwrap();
            waiter = std::thread::spawn(move || {
                assert_eq!(wait(&mut waiter, LONG), [7]);
                waiter
            })
            .join()
            .unwrap();
            rustix::io::read(&reader, &mut [0; 1]).unwrap();
        }
    });
}

#[test]
fn what_cannot_be_polled_is_named() {
    each(2, |mut waiter| {
        let file = rustix::fs::open("/proc/self/exe", OFlags::PATH, Mode::empty()).unwrap();
        let event = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let id = waiter.watch(&file, Token(3)).unwrap();
        waiter.watch(&event, Token(4)).unwrap();
        let mut told = Vec::new();
        for _ in 0..2 {
            let error = waiter.arm().wait(LONG, |token| told.push(token)).unwrap_err();
            assert!(matches!(error, WaitError::Watch { token: Token(3), .. }), "{error}");
        }
        assert_eq!(told, [Token(4)]);
        waiter.unwatch(&id).unwrap();
        assert!(wait(&mut waiter, SHORT).is_empty());
    });
}

/// Far more arrivals between two waits than the completion ring has room for.
#[test]
fn a_flood_is_reported() {
    each(64, |mut waiter| {
        let pipes: Vec<_> = (0..64).map(|_| pipe().unwrap()).collect();
        for (token, (reader, _)) in (0..).zip(&pipes) {
            waiter.watch(reader, Token(token)).unwrap();
        }
        assert!(wait(&mut waiter, Some(Duration::ZERO)).is_empty());
        for _ in 0..3 {
            for _ in 0..50 {
                for (_, writer) in &pipes {
                    rustix::io::write(writer, b"x").unwrap();
                }
            }
            let mut seen = [false; 64];
            while seen.iter().any(|seen| !seen) {
                let tokens = wait(&mut waiter, LONG);
                assert!(!tokens.is_empty(), "{seen:?}");
                tokens.iter().for_each(|token| seen[*token as usize] = true);
            }
            while !wait(&mut waiter, Some(Duration::ZERO)).is_empty() {}
        }
    });
}

#[test]
fn refusals_say_why() {
    assert_eq!(
        Waiter::new(0, Reactor::IoUring).unwrap_err(),
        WaitError::TooManyWatches { watches_max: WATCHES_MAX }
    );
    assert!(Waiter::new(WATCHES_MAX + 1, Reactor::Epoll).is_err());
    Waiter::new(WATCHES_MAX, Reactor::IoUring).unwrap();
    let error = |errno: Errno| refused(&errno.into());
    let not_permitted = error(Errno::PERM);
    assert!(matches!(not_permitted, WaitError::NotPermitted { .. }));
    let says =
        |sysctl: Option<&str>| WaitError::NotPermitted { sysctl: sysctl.map(str::to_owned) }.to_string();
    assert!(says(Some("2")).contains("kernel.io_uring_disabled is 2; set it to 0"), "{}", says(Some("2")));
    for filtered in [Some("0"), None].map(says) {
        assert!(filtered.contains("seccomp profile") && !filtered.contains("sysctl"), "{filtered}");
    }
    assert_eq!(error(Errno::NOSYS), WaitError::Unsupported { feature: "system calls" });
    let system = WaitError::System { operation: "io_uring_setup", source: Errno::MFILE };
    assert_eq!(error(Errno::MFILE), system);
    let memory = error(Errno::NOMEM).to_string();
    assert!(memory.contains("RLIMIT_MEMLOCK is") && memory.contains("CAP_IPC_LOCK"), "{memory}");
}
