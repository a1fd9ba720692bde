//! Mutexes whose order is checked wherever debug assertions are on, so in all tests. They are public for what
//! stands above a node: its locks and a node's are one order.
//!
//! The class of a mutex is the line of the source that makes it. A class that a thread locks while it has
//! locked another one stands behind that one from then on, for all threads. A lock that would close a circle
//! panics, though no other thread may wait at that moment: a deadlock of two threads shows without their
//! meeting. [`Mutex::try_lock`] waits for nothing, and is not checked; what is locked behind it is.
//!
//! Where a constructor is passed as a function, all that it makes there is of one class.
//!
//! Crates for this were looked at: tracing-mutex knows mutexes one by one, and no classes of them, so two
//! nodes of a test must meet; lock-hierarchy and ordered-locks want a level declared for each mutex.
//!
//! Invariants: without debug assertions a mutex is the standard library's, in size and time.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
use std::time::Duration;

/// Mutex like [`std::sync::Mutex`], whose order is checked.
pub struct Mutex<T> {
    class: order::Class,
    inner: std::sync::Mutex<T>,
}

/// Guard like [`std::sync::MutexGuard`].
pub struct MutexGuard<'a, T> {
    // First: the lock goes before the note of it.
    inner: std::sync::MutexGuard<'a, T>,
    taken: order::LockedClass,
}

impl<T> Mutex<T> {
    /// A free one.
    #[track_caller]
    pub const fn new(value: T) -> Self {
        Self { class: order::Class::here(), inner: std::sync::Mutex::new(value) }
    }

    /// # Errors
    /// As the standard library's.
    ///
    /// # Panics
    /// Debug assertions are on, and a lock that this thread has taken stands behind this one.
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        self.class.check();
        match self.inner.lock() {
            Ok(inner) => Ok(MutexGuard::new(inner, &self.class)),
            Err(poisoned) => Err(PoisonError::new(MutexGuard::new(poisoned.into_inner(), &self.class))),
        }
    }

    /// # Errors
    /// As the standard library's.
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(inner) => Ok(MutexGuard::new(inner, &self.class)),
            Err(TryLockError::WouldBlock) => Err(TryLockError::WouldBlock),
            Err(TryLockError::Poisoned(poisoned)) => {
                let guard = MutexGuard::new(poisoned.into_inner(), &self.class);
                Err(TryLockError::Poisoned(PoisonError::new(guard)))
            }
        }
    }
}

impl<'a, T> MutexGuard<'a, T> {
    fn new(inner: std::sync::MutexGuard<'a, T>, class: &order::Class) -> Self {
        Self { inner, taken: class.hold() }
    }

    /// What a condition variable takes, and the class that it gives back as a guard.
    #[track_caller]
    fn lend(self) -> (order::Class, std::sync::MutexGuard<'a, T>) {
        let class = self.taken.into_class();
        class.check();
        (class, self.inner)
    }
}

impl<T: Default> Default for Mutex<T> {
    #[track_caller]
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Condition variable like [`std::sync::Condvar`]. A mutex that is waited with comes back behind all that the
/// thread has locked since, and is checked as such.
#[derive(Debug, Default)]
pub struct Condvar {
    inner: std::sync::Condvar,
}

impl Condvar {
    /// A condition variable that no thread waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self { inner: std::sync::Condvar::new() }
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }

    /// # Errors
    /// As the standard library's.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let (class, inner) = guard.lend();
        match self.inner.wait(inner) {
            Ok(inner) => Ok(MutexGuard::new(inner, &class)),
            Err(poisoned) => Err(PoisonError::new(MutexGuard::new(poisoned.into_inner(), &class))),
        }
    }

    /// # Errors
    /// As the standard library's.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (class, inner) = guard.lend();
        match self.inner.wait_timeout(inner, timeout) {
            Ok((inner, result)) => Ok((MutexGuard::new(inner, &class), result)),
            Err(poisoned) => {
                let (inner, result) = poisoned.into_inner();
                Err(PoisonError::new((MutexGuard::new(inner, &class), result)))
            }
        }
    }
}

/// Nothing is known of an order.
#[cfg(not(debug_assertions))]
mod order {
    pub(super) struct Class;
    pub(super) struct LockedClass;

    impl Class {
        pub(super) const fn here() -> Self {
            Self
        }

        pub(super) fn check(&self) {}

        pub(super) fn hold(&self) -> LockedClass {
            LockedClass
        }
    }

    impl LockedClass {
        pub(super) fn into_class(self) -> Class {
            Class
        }
    }
}

#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::panic::Location;
    use std::sync::{Mutex, PoisonError};

    type Line = &'static Location<'static>;

    /// What stands behind each class, and where it was first locked there.
    type Orders = BTreeMap<Line, BTreeMap<Line, Line>>;

    static ORDERS: Mutex<Orders> = Mutex::new(BTreeMap::new());

    /// Locks that a thread has at once. They are noted without allocation, since tests of the data path count
    /// those.
    const TAKEN_MAX: usize = 16;

    thread_local! {
        static TAKEN: RefCell<[Option<Line>; TAKEN_MAX]> = const { RefCell::new([None; TAKEN_MAX]) };
    }

    pub(super) struct Class(Line);

    /// A note that this thread has locked this class.
    pub(super) struct LockedClass(Line);

    impl Class {
        #[track_caller]
        pub(super) const fn here() -> Self {
            Self(Location::caller())
        }

        /// Notes that the class is about to be locked behind all that this thread has.
        #[track_caller]
        pub(super) fn check(&self) {
            let at = Location::caller();
            // A thread that is ending has none any more.
            let _ = TAKEN.try_with(|taken| {
                taken.borrow().iter().flatten().for_each(|class| self.stand_behind(class, at));
            });
        }

        /// Notes that the class is about to be locked, at `at`, behind `class`.
        fn stand_behind(&self, class: Line, at: Line) {
            let mut orders = ORDERS.lock().unwrap_or_else(PoisonError::into_inner);
            if orders.get(class).is_some_and(|behind| behind.contains_key(self.0)) {
                return;
            }
            if let Some(known) = known(&orders, self.0, class) {
                drop(orders);
                panic!(
                    "{at}: the mutex of {} is locked behind that of {class}: the order is {known}",
                    self.0
                );
            }
            orders.entry(class).or_default().insert(self.0, at);
        }

        pub(super) fn hold(&self) -> LockedClass {
            let _ = TAKEN.try_with(|taken| {
                let mut taken = taken.borrow_mut();
                let free = taken.iter_mut().find(|class| class.is_none());
                *free.expect("a thread has few locks at once") = Some(self.0);
            });
            LockedClass(self.0)
        }
    }

    impl LockedClass {
        /// The thread has it no more.
        pub(super) fn into_class(self) -> Class {
            Class(self.0)
        }
    }

    impl Drop for LockedClass {
        fn drop(&mut self) {
            let _ = TAKEN.try_with(|taken| {
                let mut taken = taken.borrow_mut();
                if let Some(own) = taken.iter_mut().find(|class| **class == Some(self.0)) {
                    *own = None;
                }
            });
        }
    }

    /// How the second class has come to stand behind the first one, if it has. A class stands behind itself.
    fn known(orders: &Orders, first: Line, second: Line) -> Option<String> {
        let mut seen = BTreeSet::from([first]);
        let mut paths = vec![(first, first.to_string())];
        while let Some((class, path)) = paths.pop() {
            if class == second {
                return Some(path);
            }
            for (next, at) in orders.get(class).into_iter().flatten() {
                if seen.insert(*next) {
                    paths.push((next, format!("{path}, then {next} (at {at})")));
                }
            }
        }
        None
    }

    /// The files of the classes of which one was locked behind the other, by any thread so far.
    pub fn files() -> BTreeSet<(&'static str, &'static str)> {
        let orders = ORDERS.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = orders.iter().flat_map(|(first, behind)| behind.keys().map(|second| (*first, *second)));
        pairs.map(|(first, second)| (first.file(), second.file())).collect()
    }
}

#[cfg(debug_assertions)]
pub use order::files;

#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// What the panic of a lock says.
    fn refusal<T>(mutex: &Mutex<T>) -> String {
        let lock = AssertUnwindSafe(|| drop(mutex.lock().unwrap()));
        *catch_unwind(lock).unwrap_err().downcast::<String>().unwrap()
    }

    #[test]
    fn a_reversed_order_panics_without_a_deadlock() {
        let first = Mutex::new(1);
        let second = Mutex::new(2);
        for _ in 0..2 {
            let taken = first.lock().unwrap();
            assert_eq!(*taken + *second.lock().unwrap(), 3);
        }
        // Another thread takes both when the first one is free again.
        let thread = std::thread::spawn(move || {
            let taken = second.lock().unwrap();
            let refusal = refusal(&first);
            assert!(refusal.contains("is locked behind that of"), "{refusal}");
            drop(taken);
            // One by one they come in any order.
            drop(second.lock().unwrap());
            drop(first.lock().unwrap());
        });
        thread.join().unwrap();
    }

    #[test]
    fn a_circle_of_three_panics() {
        let one = Mutex::new(());
        let two = Mutex::new(());
        let three = Mutex::new(());
        for (taken, next) in [(&one, &two), (&two, &three)] {
            let taken = taken.lock().unwrap();
            drop(next.lock().unwrap());
            drop(taken);
        }
        let taken = three.lock().unwrap();
        let refusal = refusal(&one);
        assert_eq!(refusal.matches(", then ").count(), 2, "{refusal}");
        drop(taken);
        // What was refused stands nowhere.
        let taken = one.lock().unwrap();
        drop(three.lock().unwrap());
        drop(taken);
    }

    /// Two threads that have one each may wait for each other's.
    #[test]
    fn a_second_one_of_a_class_panics() {
        let both = [1, 2].map(Mutex::new);
        let taken = both[0].lock().unwrap();
        refusal(&both[1]);
        drop(taken);
        drop(both[1].lock().unwrap());
    }

    #[test]
    fn what_does_not_wait_is_not_checked() {
        let first = Mutex::new(());
        let second = Mutex::new(());
        let taken = first.lock().unwrap();
        drop(second.lock().unwrap());
        drop(taken);
        let taken = second.lock().unwrap();
        drop(first.try_lock().unwrap());
        drop(taken);
        // What waits behind it is.
        let tried = second.try_lock().unwrap();
        refusal(&first);
        drop(tried);
    }

    /// A thread that waits has let its mutex go, and takes it again behind the other one that it has.
    #[test]
    fn what_is_waited_with_comes_back_behind_what_the_thread_has() {
        let first = Mutex::new(());
        let second = Mutex::new(());
        let woken = Condvar::new();
        let taken = first.lock().unwrap();
        let next = second.lock().unwrap();
        // The second one was behind the first one, and is so again.
        let (next, result) = woken.wait_timeout(next, Duration::ZERO).unwrap();
        assert!(result.timed_out());
        let wait = AssertUnwindSafe(|| drop(woken.wait_timeout(taken, Duration::ZERO)));
        let refused = *catch_unwind(wait).unwrap_err().downcast::<String>().unwrap();
        assert!(refused.contains("is locked behind that of"), "{refused}");
        drop(next);
        // A waiting thread is woken, and what it has locked is noted.
        let both = std::sync::Arc::new((Mutex::new(false), Condvar::new()));
        let theirs = std::sync::Arc::clone(&both);
        let thread = std::thread::spawn(move || {
            let mut is_set = theirs.0.lock().unwrap();
            while !*is_set {
                is_set = theirs.1.wait(is_set).unwrap();
            }
            // Once more is a deadlock.
            refusal(&theirs.0);
        });
        *both.0.lock().unwrap() = true;
        both.1.notify_all();
        thread.join().unwrap();
    }

    #[test]
    fn locks_are_given_back_in_any_order() {
        let first = Mutex::new(());
        let second = Mutex::new(());
        let third = Mutex::new(());
        let taken = first.lock().unwrap();
        let next = second.try_lock().unwrap();
        drop(taken);
        drop(third.lock().unwrap());
        drop(next);
        // The first was free when the third was locked.
        let taken = third.lock().unwrap();
        drop(first.lock().unwrap());
        drop(taken);
    }
}
