//! NIs of a shard that come and go, and snapshots of the topology that it takes.
//!
//! An NI that goes: a snapshot says that it is leaving, then that it is closed; then its LND ends what it
//! still has, and once the shard is quiet about it it can be removed.
//!
//! An NI is opened as one port for each shard. The port travels to the shard's worker, and back before the NI
//! is closed. A shard takes its port once its topology has the NI, so that no frame comes by an unknown NI.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use lnet_core::lnd::NiId;
use lnet_core::shard::Confirmation;
use lnet_core::topology::{NiStatus, Topology};
use lnet_io::capture::TapEnd;
use lnet_io::reactor::{Token, WaitError};
use lnet_model::ni::NiOptions;
use lnet_wire::Nid;

use super::worker::Worker;
use crate::lnd::ShardPort;

impl Worker {
    /// Gets its part of an NI, and takes part once its topology has the NI ([`Worker::update`]), or at once
    /// if it has: frames that have come meanwhile are taken in then.
    ///
    /// # Errors
    /// Why, with the port, when the process has no descriptors left, or the shard watches as many as it can;
    /// nothing has changed.
    ///
    /// # Panics
    /// If the shard has an NI of this number.
    pub(crate) fn add_port(&mut self, port: ShardPort) -> Result<(), (WaitError, Box<ShardPort>)> {
        let ni = port.ni();
        assert!(!self.has_port(ni), "the shard has an NI {}", ni.0);
        let outcome = port.watched().into_iter().try_for_each(|fd| {
            let watch = self.waiter().watch(fd, Token(ni.0.into()))?;
            self.watches.push((fd.as_raw_fd(), watch));
            Ok(())
        });
        if let Err(error) = outcome {
            self.unwatch(&port);
            return Err((error, Box::new(port)));
        }
        self.early.push(port);
        self.take_early();
        Ok(())
    }

    /// Whether the shard takes part in an NI: it has its part, and its topology had the NI.
    pub(crate) fn takes_part_in(&self, ni: NiId) -> bool {
        self.nis.contains(&ni)
    }

    /// Takes in what has come to an NI that it [takes part in](Worker::takes_part_in).
    pub(crate) fn extend_port(&mut self, port: ShardPort) {
        let token = Token(port.ni().0.into());
        for fd in port.watched() {
            match self.waiter().watch(fd, token) {
                Ok(watch) => self.watches.push((fd.as_raw_fd(), watch)),
                Err(error) => tracing::error!(%error, "what arrives by a queue that has come is seen late"),
            }
        }
        self.lnd.add_port(port);
    }

    /// Gives up what carries the frames of an NI that it takes part in, until something else comes
    /// ([`Worker::extend_port`]).
    pub(crate) fn suspend_port(&mut self, ni: NiId) -> Option<ShardPort> {
        let port = self.lnd.suspend_port(ni)?;
        self.unwatch(&port);
        Some(port)
    }

    /// Takes part in NIs that the topology has, each with the timeout that it has there.
    fn take_early(&mut self) {
        let topology = Arc::clone(self.shard.topology());
        for port in self.early.extract_if(.., |port| topology.ni(port.ni()).is_some()) {
            self.nis.push(port.ni());
            self.lnd.add_port(port);
        }
        let now = self.clock.now();
        for (ni, local) in topology.local_nis() {
            if let Some(timeout) = local.lnd_timeout {
                self.lnd.set_timeout(now, ni, timeout);
            }
        }
    }

    /// Whether the shard has its part of an NI.
    pub(crate) fn has_port(&self, ni: NiId) -> bool {
        self.nis.contains(&ni) || self.early.iter().any(|port| port.ni() == ni)
    }

    /// Gives up an NI. What its LND still has of it goes by another NI to the same peer, or ends; see
    /// [`lnet_core::shard::Shard::is_quiet`] for when there is nothing left. Call it on the thread that waits
    /// in this worker, if one does.
    ///
    /// # Panics
    /// If the shard has no NI of this number.
    pub(crate) fn remove_port(&mut self, ni: NiId) -> ShardPort {
        let port = match self.early.iter().position(|port| port.ni() == ni) {
            Some(index) => self.early.swap_remove(index),
            None => {
                self.close_port(ni);
                self.nis.retain(|other| *other != ni);
                self.first_ni = 0;
                self.lnd.remove_port(ni)
            }
        };
        self.unwatch(&port);
        port
    }

    fn unwatch(&mut self, port: &ShardPort) {
        let fds: Vec<RawFd> = port.watched().iter().map(AsRawFd::as_raw_fd).collect();
        let unwatched: Vec<_> = self.watches.extract_if(.., |(fd, _)| fds.contains(fd)).collect();
        for (_, id) in unwatched {
            if let Err(error) = self.waiter().unwatch(&id) {
                tracing::error!(%error, "a descriptor stays open that is not needed any more");
            }
        }
    }

    fn close_port(&mut self, ni: NiId) {
        let now = self.clock.now();
        self.lnd.close_port(now, ni, &mut self.shard, &self.memory);
    }

    /// Copies frames for one more capture from now on.
    pub(crate) fn tap(&mut self, end: TapEnd) {
        self.lnd.tap_mut().add(end);
    }

    /// Copies frames for a capture no longer. Its tap is to be dropped on another thread: that may free
    /// memory.
    pub(crate) fn untap(&mut self, id: u64) -> Option<TapEnd> {
        self.lnd.tap_mut().remove(id)
    }

    /// Has an NI go by other options from now on, those that can be changed while it is open.
    pub(crate) fn change_options(&mut self, ni: NiId, options: &NiOptions) {
        self.lnd.change(ni, options);
    }

    /// Ends what comes in the name of a NID from other addresses than its own.
    pub(crate) fn end_from_elsewhere(&mut self, nid: &Nid) {
        self.lnd.end_from_elsewhere(self.clock.now(), nid, &mut self.shard);
    }

    /// What the shard says of the snapshot that it has.
    pub(crate) fn confirmation(&self) -> Confirmation {
        self.shard.confirmation()
    }

    /// Takes a newer snapshot of the topology ([`lnet_core::shard::Shard::update`]). NIs that are closed in
    /// it are ended by their LND, and its policies hold from now on. Messages for NIs of which the shard has
    /// no part wait.
    ///
    /// # Panics
    /// As [`lnet_core::shard::Shard::update`].
    pub(crate) fn update(&mut self, topology: Arc<Topology>) {
        self.shard.update(self.clock.now(), topology);
        self.take_early();
        let topology = Arc::clone(self.shard.topology());
        for (ni, local) in topology.local_nis() {
            if local.status == NiStatus::Closed && !self.lnd.is_lo(ni) {
                self.close_port(ni);
            }
        }
        if let Some(steering) = topology.steering() {
            self.lnd.set_policies(&steering.policies);
        }
    }
}
