//! What the shards of a node drive, of whichever kind.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::log::LogThread;
use super::plan::Plan;
use super::{NodeConfig, NodeError, NodeMode, XdpMode, rings, sockets};
use crate::bpf::XdpProgram;
use crate::lnd::AnyLnd;
use crate::uring::{Waiter, Waker};

/// The drivers of a node, and what has to live as long as they.
pub(super) struct Drivers {
    /// By shard, with what it waits in.
    /// A node without interfaces has none.
    pub(super) lnds: Vec<(Option<AnyLnd>, Waiter)>,
    pub(super) mode: NodeMode,
    /// Receive queues of all interfaces.
    pub(super) queues: u32,
    pub(super) programs: Vec<XdpProgram>,
    /// Keep the UDP ports ours.
    pub(super) reserved: Vec<UdpSocket>,
    pub(super) log: Option<LogThread>,
    /// What sockets are opened by.
    pub(super) opened: Option<Opened>,
}

impl Drivers {
    /// The drivers of the mode that is asked for.
    pub(super) fn make(config: &NodeConfig, plan: &Plan) -> Result<Self, NodeError> {
        if plan.interfaces.is_empty() {
            return Self::none(config);
        }
        let Some(attach) = config.mode.attach() else { return sockets::drivers(config, plan) };
        match rings::drivers(config, plan, attach) {
            Err(rings) if config.mode == XdpMode::Auto && rings.is_lack(config) => {
                tracing::info!(error = %rings, "no rings: UDP sockets are used");
                sockets::drivers(config, plan).map_err(|sockets| NodeError::NoMode {
                    rings: Box::new(rings),
                    sockets: Box::new(sockets),
                })
            }
            made => made,
        }
    }

    /// Those of a node that reaches nobody but itself.
    fn none(config: &NodeConfig) -> Result<Self, NodeError> {
        let waiters = (0..config.shards).map(|_| Ok((None, Waiter::new(1)?)));
        Ok(Self {
            lnds: waiters.collect::<Result<_, NodeError>>()?,
            mode: NodeMode::Socket,
            queues: 0,
            programs: Vec::new(),
            reserved: Vec::new(),
            log: None,
            opened: None,
        })
    }
}

/// Whether a node with sockets lets frames in.
#[derive(Debug)]
pub(super) struct Opened {
    opened: Arc<AtomicBool>,
    wakers: Vec<Waker>,
}

impl Opened {
    pub(super) fn new(opened: Arc<AtomicBool>, wakers: Vec<Waker>) -> Self {
        Self { opened, wakers }
    }

    /// Lets them in.
    pub(super) fn open(&self) {
        self.opened.store(true, Ordering::Release);
        wake_all(&self.wakers)();
    }
}

/// What wakes all shards.
pub(super) fn wake_all(wakers: &[Waker]) -> Box<dyn Fn() + Send + Sync> {
    let wakers = wakers.to_vec();
    Box::new(move || {
        for waker in &wakers {
            waker.wake();
        }
    })
}
