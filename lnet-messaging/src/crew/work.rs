//! The work of a transfer machine's threads: a list of items, and deadlines.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use lnet_user::locks::{Condvar, Mutex, MutexGuard};

use super::directory::Listed;
use super::{Carrier, operate};
use crate::errno::Errno;
use crate::queue::BufferId;
use crate::transport::{Completion, Report, TmState};

/// Something to be done.
pub(crate) enum Item {
    /// The start is over.
    Started,
    /// A buffer is sent, or its bulk operation done.
    Operate(BufferId),
    /// An operation of another transfer machine has ended with a buffer of this one.
    Done(Completion),
    /// A buffer's end was asked for.
    Cancelled(BufferId),
    /// Trouble is told.
    Error(Errno),
    /// Everything has ended.
    Stopped,
}

impl Item {
    /// The buffer of whose events this is one.
    fn buffer(&self) -> Option<BufferId> {
        match self {
            Self::Done(Completion { id, .. }) | Self::Cancelled(id) => Some(*id),
            _ => None,
        }
    }
}

/// The items that a transfer machine's workers are to do.
#[derive(Default)]
pub(crate) struct Work {
    list: Mutex<List>,
    wakes: Condvar,
}

#[derive(Default)]
struct List {
    items: VecDeque<Item>,
    /// Items that workers are at, by the buffers that these are events of.
    running: Vec<Option<BufferId>>,
    /// Changes that workers look for.
    wake_count: u64,
    stops: bool,
    /// Workers end behind the last item.
    ends: bool,
    /// The carrier was opened, and not closed.
    is_open: bool,
}

impl List {
    /// The first item that no other has to end before: events of a buffer come one behind the other.
    fn take(&mut self) -> Option<Item> {
        let is_free = |item: &Item| item.buffer().is_none_or(|buffer| !self.running.contains(&Some(buffer)));
        let index = self.items.iter().position(is_free)?;
        let item = self.items.remove(index)?;
        self.running.push(item.buffer());
        Some(item)
    }

    /// Notes that a worker is done with an item that is an event of this buffer.
    fn end(&mut self, buffer: Option<BufferId>) {
        let index = self.running.iter().position(|running| *running == buffer);
        self.running.swap_remove(index.expect("a worker ends what it has taken"));
    }
}

impl Work {
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut List)) {
        let mut list = self.lock();
        change(&mut list);
        list.wake_count += 1;
        drop(list);
        self.wakes.notify_all();
    }

    pub(crate) fn push(&self, item: Item) {
        self.change(|list| list.items.push_back(item));
    }

    pub(crate) fn wake(&self) {
        self.change(|_| ());
    }

    pub(crate) fn stop(&self) {
        self.change(|list| list.stops = true);
    }

    pub(crate) fn end(&self) {
        self.change(|list| list.ends = true);
    }
}

/// One thread of a transfer machine.
pub(super) struct Worker<C: Carrier> {
    pub(super) own: Listed<C::Address>,
    pub(super) carrier: Arc<C>,
}

impl<C: Carrier> Worker<C> {
    pub(super) fn run(self) {
        let work = Arc::clone(&self.own.work);
        while let Some(item) = self.next() {
            let buffer = item.buffer();
            self.carry_out(item);
            work.change(|list| list.end(buffer));
        }
        // A transfer machine that has failed is finished without a stop.
        self.close();
    }

    /// Closes what the carrier has open for it.
    fn close(&self) {
        if std::mem::take(&mut self.own.work.lock().is_open) {
            self.carrier.close(&self.own);
        }
    }

    /// The next item; `None` at the end.
    fn next(&self) -> Option<Item> {
        let Listed { link, work, .. } = &self.own;
        loop {
            let seen = work.lock().wake_count;
            link.expire(Instant::now());
            let (deadline, has_ended, diagnostics) = link.with_front(|front| {
                let has_ended = front.state() == TmState::Stopping && front.is_quiet();
                (front.next_deadline(), has_ended, front.take_diagnostics())
            });
            if !diagnostics.is_empty() {
                diagnostics.iter().for_each(|text| link.report(Report::Diagnostic(text)));
                continue;
            }
            let mut list = work.lock();
            if let Some(item) = list.take() {
                return Some(item);
            }
            if list.ends && list.items.is_empty() {
                return None;
            }
            if list.wake_count != seen {
                continue;
            }
            if list.stops && has_ended && list.running.is_empty() && list.items.is_empty() {
                list.running.push(None);
                list.stops = false;
                return Some(Item::Stopped);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // Whether the time is over or there is something to do, the next turn finds out.
            match left {
                Some(left) => {
                    drop(work.wakes.wait_timeout(list, left).unwrap_or_else(PoisonError::into_inner));
                }
                None => drop(work.wakes.wait(list).unwrap_or_else(PoisonError::into_inner)),
            }
        }
    }

    fn carry_out(&self, item: Item) {
        let Listed { address, link, work } = &self.own;
        match item {
            Item::Started => self.open(),
            Item::Operate(id) => operate(&*self.carrier, &self.own, id),
            Item::Done(completion) => link.post(completion),
            Item::Cancelled(id) => link.post(Completion::new(id, Err(Errno::Canceled), 0)),
            Item::Error(errno) => link.report(Report::Trouble(errno)),
            Item::Stopped => {
                C::directory().delist(*address, work);
                self.close();
                link.report(Report::Stopped);
                work.end();
            }
        }
    }

    fn open(&self) {
        let Listed { address, link, work } = &self.own;
        // A stop may have overtaken the start.
        if link.with_front(|front| front.state()) != TmState::Starting {
            return;
        }
        match self.carrier.open(&self.own) {
            Ok(()) => {
                work.lock().is_open = true;
                link.report(Report::Started(&address.to_string()));
            }
            Err(errno) => {
                C::directory().delist(*address, work);
                link.report(Report::Failed(errno));
                work.end();
            }
        }
    }
}
