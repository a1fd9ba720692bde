//! An LND of a whole node, as one value: it looks at the interfaces of NIs, opens them and closes them. Its
//! half on a shard is its [`Driver`].
//!
//! Invariant: what a kind refuses leaves the node as it was.

mod interface;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lnet_core::handle::ShardSet;
use lnet_core::limits::Limits;
use lnet_core::lnd::NiId;
use lnet_core::topology::Steering;
use lnet_model::lnd::{LndRow, NiFact};
use lnet_model::ni::NiOptions;
use lnet_wire::Nid;
use tokio::sync::Notify;

use crate::driver::{Driver, Part};
use crate::netlink::{Interface, Neighbours, NetlinkError};
use crate::reactor::{Reactor, Waker};

pub use interface::{InterfaceError, check_address, usable_interface};

/// A node, as the LNDs see it.
#[derive(Debug)]
pub struct Host {
    /// Its primary NID.
    pub nid: Nid,
    /// How many shards it has, and where messages for each portal belong.
    pub steering: Steering,
    /// Objects that each shard may have.
    pub limits: Limits,
    /// Wakers of the shards, in their order.
    pub wakers: Vec<Waker>,
    /// How it waits, and moves the bytes of sockets.
    pub reactor: Reactor,
    /// Whether the node lets messages in.
    pub opened: Arc<AtomicBool>,
    /// Told whenever something about an interface of an NI, or a next hop by it, is new.
    pub interface_changes: Arc<Notify>,
}

impl Host {
    /// Number of shards.
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        self.steering.shard_count.into()
    }

    /// Follows an interface: the shards are woken when something changes about it or a next hop by it.
    /// `resolves`: whether it is to be asked for next hops.
    ///
    /// # Errors
    /// [`NetlinkError`], the kernel's refusal to tell.
    pub fn follow(&self, interface: &Interface, resolves: bool) -> Result<Arc<Neighbours>, NetlinkError> {
        let neighbours = Neighbours::start(interface.index, resolves)?;
        let (wakers, changes) = (self.wakers.clone(), Arc::clone(&self.interface_changes));
        neighbours.subscribe(Box::new(move || {
            for waker in &wakers {
                waker.wake();
            }
            changes.notify_one();
        }));
        Ok(neighbours)
    }
}

/// An NI that an LND is asked for.
#[derive(Clone, Copy, Debug)]
pub struct NiRequest<'a> {
    /// Its number.
    pub ni: NiId,
    /// Its NID.
    pub nid: Nid,
    /// Its address: that of the NID.
    pub address: IpAddr,
    /// The name of its interface.
    pub interface: &'a str,
    /// Options asked for: those of its LND, and its credits, which the node has completed once it is opened.
    pub options: &'a NiOptions,
    /// The shards that serve it.
    pub serving: ShardSet,
}

/// An NI that is open, as a node keeps it.
pub trait OpenNi: std::fmt::Debug + Send {
    /// The tables that follow its interface, and its address there, if it has one.
    fn followed(&self) -> Option<(&Neighbours, &IpAddr)>;

    /// Options of its LND that it has chosen itself or that were changed; the others are as it was asked to
    /// have them.
    fn options(&self) -> NiOptions {
        NiOptions::default()
    }

    /// Whether something about its interface is so new that its LND has not followed it
    /// ([`LndKind::follow`]).
    fn has_changed(&self) -> bool {
        false
    }

    /// Facts that its LND tells of it, in the order of the LND's row.
    fn facts(&self) -> Vec<Option<NiFact>> {
        Vec::new()
    }
}

/// An NI that was opened, and the parts of the shards.
pub type Opened<K> = (<K as LndKind>::Ni, Vec<Part<<K as LndKind>::Driver>>);

/// An LND, as a node opens and closes NIs of it.
pub trait LndKind: Sized {
    /// The driver that carries its messages on a shard.
    type Driver: Driver;
    /// An NI that was found to be possible.
    type Plan;
    /// An NI that is open.
    type Ni: OpenNi;
    /// Why an NI is not opened; the message names the value and the way out.
    type Error;

    /// The LND's description.
    const ROW: LndRow;

    /// Looks whether an NI can be opened, as far as its interface tells.
    ///
    /// # Errors
    /// A fault of the request, or of the interface.
    fn plan(&self, request: &NiRequest<'_>) -> Result<Self::Plan, Self::Error>;

    /// Takes in which NIs the node has at first, before the first of them is opened.
    fn expect(&mut self, _host: &Host, _plans: &[&Self::Plan]) {}

    /// Opens an NI; the parts are those of the shards, in their order. The calling thread is in the node's
    /// network namespace, here and in [`LndKind::close`].
    ///
    /// # Errors
    /// The kernel's refusal: nothing is left of the NI.
    fn open(
        &mut self,
        host: &Host,
        request: &NiRequest<'_>,
        plan: Self::Plan,
    ) -> Result<Opened<Self>, Self::Error>;

    /// Follows what has changed about the interface of an open NI ([`OpenNi::has_changed`]); what the
    /// shards are to take in, in their order, if there is anything ([`Driver::add_port`]). The calling
    /// thread is in the node's network namespace.
    fn follow(&mut self, _host: &Host, _ni: NiId) -> Vec<Part<Self::Driver>> {
        Vec::new()
    }

    /// Closes an NI, with the parts of the shards that had it.
    fn close(&mut self, host: &Host, ni: Self::Ni, parts: Vec<Part<Self::Driver>>);

    /// Changes those of the options that can be changed while an NI is open; what its shards are to be told
    /// ([`Driver::change`]), if there is anything.
    fn change(&self, _ni: &mut Self::Ni, _asked: &NiOptions) -> Option<NiOptions> {
        None
    }
}
