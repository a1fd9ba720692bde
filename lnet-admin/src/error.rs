//! What goes wrong, and with which error number it is told.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use lnet_control::server::BindError;
use lnet_core::node::RequestError;
use lnet_model::{Errno, Refusal};
use lnet_user::api::LnetError;
use lnet_user::netlink::NetlinkError;
use lnet_wire::Nid;
use thiserror::Error;

/// Why a node cannot be managed (any more).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The control socket cannot be had.
    #[error(transparent)]
    Socket(#[from] BindError),
    /// The start-up document cannot be read.
    #[error("cannot read the start-up document {path}: {error}")]
    Document {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// There can be no metrics at the address that was given.
    #[error("cannot tell metrics at {address}: {error}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// What the start-up document says cannot be done.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A shard has ended, or frames cannot be let in.
    #[error(transparent)]
    Lnet(#[from] LnetError),
    /// The kernel gives no async runtime.
    #[error("cannot start the control thread's runtime: {0}")]
    Runtime(#[source] io::Error),
}

/// Where a change for the core comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ChangeLocation {
    /// The change of the batch.
    pub(super) position: usize,
    /// Where the start-up document says it.
    pub(super) in_document: Option<String>,
}

/// The refusal of a request, with the location of the change that it is about.
pub(super) fn refusal(error: &RequestError, locations: &[ChangeLocation]) -> Refusal {
    let errno = errno(error.errno());
    match error.index().and_then(|index| locations.get(index)) {
        Some(ChangeLocation { position, in_document: Some(location) }) => {
            Refusal::new(errno, format!("{location}: {error}")).of_change(*position)
        }
        Some(ChangeLocation { position, .. }) => Refusal::new(errno, error.to_string()).of_change(*position),
        None => Refusal::new(errno, error.to_string()),
    }
}

/// Refusal by a node that may have ended.
pub(super) fn refusal_of(error: &LnetError, locations: &[ChangeLocation]) -> Refusal {
    match error {
        LnetError::Refused(error) => refusal(error, locations),
        error => stopped(error),
    }
}

pub(super) fn stopped(error: &LnetError) -> Refusal {
    Refusal::new(Errno::SHUTDOWN, error.to_string())
}

pub(super) fn netlink_errno(error: &NetlinkError) -> Errno {
    errno(lnet_user::api::netlink_errno(error).raw_os_error())
}

fn errno(number: i32) -> Errno {
    u8::try_from(number).map_or(Errno::IO, Errno)
}

/// Runs what may block on another thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    lnet_user::blocking::run(work).await.map_err(|error| Refusal::new(Errno::IO, error.to_string()))
}

/// Refuses what can be no NI's name, as a ping of it is refused.
pub(super) fn check_name(nid: &Nid) -> Result<(), Refusal> {
    if nid.can_name_an_ni() {
        return Ok(());
    }
    let refused = refusal(&RequestError::PingWildcard(*nid), &[]);
    let message = refused.message.trim_start_matches("failed to ping ").to_owned();
    Err(Refusal { message, ..refused })
}
