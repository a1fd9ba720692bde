//! Interfaces of NIs that come up, go down and vanish.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::NodeError;
use crate::netlink::{Interface, Neighbours};
use crate::uring::Waker;

/// Follows an interface: the shards are woken when something changes about it or a way by it, and the log says when
/// it comes and goes. `resolves`: whether it is to be asked for next hops.
pub(super) fn follow(
    interface: &Interface,
    resolves: bool,
    wakers: &[Waker],
) -> Result<Arc<Neighbours>, NodeError> {
    let neighbours = Neighbours::start(interface.index, resolves)?;
    let wakers = wakers.to_vec();
    let (name, was_up) = (interface.name.clone(), AtomicBool::new(interface.up));
    // It is called by what it looks at.
    let followed = Arc::downgrade(&neighbours);
    neighbours.subscribe(Box::new(move || {
        for waker in &wakers {
            waker.wake();
        }
        let Some(followed) = followed.upgrade() else { return };
        let is_up = followed.is_up();
        if was_up.swap(is_up, Ordering::Relaxed) != is_up {
            if is_up {
                tracing::info!(interface = name, "the interface is up: its NIs carry messages");
            } else {
                tracing::warn!(interface = name, "the interface is down or gone: its NIs carry nothing");
            }
        }
    }));
    Ok(neighbours)
}
