//! A transfer machine from its initialisation to its end.

use std::sync::atomic::Ordering;

use super::{StopMode, TransferMachine};
use crate::errno::{Errno, Error};
use crate::transport::{Report, TmFront, TmState};

impl TransferMachine {
    /// Initialises it once more, after it was finished.
    ///
    /// # Errors
    /// `EPERM` in any other state; the transport's.
    pub fn initialize(&self) -> Result<(), Error> {
        self.shared.domain.add_tm(|transport| self.shared.initialize(transport))
    }

    /// Confines the transport's threads to these CPUs. A later call replaces an earlier one.
    ///
    /// # Errors
    /// `EPERM` unless initialised and not started; `ENOSYS` where the transport cannot; `EINVAL` without
    /// CPUs.
    pub fn confine(&self, cpus: &[usize]) -> Result<(), Error> {
        let mut locked = self.shared.lock();
        locked.front.expect_state(&[TmState::Initialized], "its threads are confined")?;
        if cpus.is_empty() {
            return Err(Error::invalid("no CPUs: one at least is expected"));
        }
        locked.parts()?.1.confine(cpus)
    }

    /// Has buffer events wait until the application delivers them ([`TransferMachine::deliver_all`]), until
    /// it is finished.
    ///
    /// # Errors
    /// `EPERM` unless initialised and not started; `EBUSY` the second time; `ENOSYS` where the transport
    /// cannot.
    pub fn deliver_synchronously(&self) -> Result<(), Error> {
        let mut locked = self.shared.lock();
        locked.front.expect_state(&[TmState::Initialized], "synchronous delivery is asked for")?;
        if locked.front.delivers_synchronously {
            return Err(Error::new(Errno::Busy, "it delivers synchronously already: this is asked for once"));
        }
        locked.parts()?.1.deliver_synchronously()?;
        locked.front.delivers_synchronously = true;
        Ok(())
    }

    /// Starts it under an address of its transport. Returns at once; an event on another thread says whether
    /// it has started or failed.
    ///
    /// # Errors
    /// `EPERM` unless initialised, and nothing has changed. With other errors the transfer machine has failed
    /// already, without an event: `EINVAL` for what is no address; what the transport says else.
    pub fn start(&self, address: &str) -> Result<(), Error> {
        let mut locked = self.shared.lock();
        locked.front.expect_state(&[TmState::Initialized], "it is started")?;
        locked.front.set_state(TmState::Starting);
        let link = self.link();
        let started = locked.parts().and_then(|(_, transport)| transport.start(&link, address));
        if started.is_err() {
            locked.front.set_state(TmState::Failed);
        }
        started
    }

    /// Stops it. Returns at once; an event on another thread says that it has stopped, when no buffer is
    /// queued and no callback runs any more.
    ///
    /// # Errors
    /// `EPERM` unless initialised, starting or started; what the transport says, and it goes on.
    pub fn stop(&self, mode: StopMode) -> Result<(), Error> {
        let mut locked = self.shared.lock();
        let before = locked.front.state();
        let allowed = [TmState::Initialized, TmState::Starting, TmState::Started];
        locked.front.expect_state(&allowed, "it is stopped")?;
        locked.front.set_state(TmState::Stopping);
        let stopped = if before == TmState::Initialized {
            // The transport has no thread that could post it.
            let link = self.link();
            let thread = std::thread::Builder::new().name("tm-stop".to_owned());
            let spawned = thread.spawn(move || link.report(Report::Stopped));
            spawned.map(drop).map_err(|error| Error::new(Errno::NoMemory, format!("no thread: {error}")))
        } else {
            locked.stop(mode)
        };
        match stopped {
            Ok(()) => self.shared.deficit.store(0, Ordering::Relaxed),
            Err(_) => locked.front.set_state(before),
        }
        stopped
    }

    /// Ends it: waits for its callbacks, and joins the transport's threads. It may be initialised again.
    ///
    /// # Errors
    /// `EPERM` unless it is stopped, has failed or was never started; `EBUSY` from inside one of its
    /// callbacks, and while buffers are queued or end points besides its own are in use.
    pub fn finish(&self) -> Result<(), Error> {
        let allowed = [TmState::Initialized, TmState::Stopped, TmState::Failed];
        self.shared.lock().front.expect_state(&allowed, "it is finished")?;
        if self.shared.is_calling() {
            return Err(Error::new(
                Errno::Busy,
                "it is finished by its own callback: any other thread is expected",
            ));
        }
        // Buffers that were queued when it failed end by themselves, but where the application delivers.
        let is_left = |front: &TmFront| {
            front.state() == TmState::Failed && !front.delivers_synchronously && !front.ids().is_empty()
        };
        self.wait(None, |front| front.callback_count == 0 && !is_left(front));
        let mut locked = self.shared.lock();
        locked.front.expect_state(&allowed, "it is finished")?;
        let queued = locked.front.ids().len();
        let own = locked.front.own.take();
        let others = self.shared.end_points.addresses().len() - usize::from(own.is_some());
        let references = own.as_ref().map_or(0, |own| own.reference_count() - 1);
        if queued != 0 || others != 0 || references != 0 {
            locked.front.own = own;
            let found = format!(
                "{queued} buffers are queued, {others} end points and {references} references to its own are in \
                 use: none are expected"
            );
            return Err(Error::new(Errno::Busy, found));
        }
        locked.front.set_state(TmState::Undefined);
        // Dropped without the lock: with a pool go its buffers.
        let attachment = locked.provision.attachment.take();
        let transport = locked.transport.take();
        drop(locked);
        drop((own, attachment));
        if let Some(transport) = transport {
            transport.finish();
        }
        self.shared.domain.remove_tm();
        Ok(())
    }
}
