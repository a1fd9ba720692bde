//! Why a request has no reply.

use std::time::Duration;

use lnet_user::api::LnetError;
use lnet_user::{Nid, Status};
use lnet_wire::selftest::MessageError;

/// How long a reply may take (LNet `rpc_timeout`).
pub(crate) const CALL_PATIENCE: Duration = Duration::from_secs(64);

/// Why a request has no reply.
#[derive(thiserror::Error, Debug)]
pub(crate) enum CallError {
    /// The node does not start it, or could not send it.
    #[error(transparent)]
    Lnet(#[from] LnetError),
    /// Nothing came in time.
    #[error("no reply within {} s", CALL_PATIENCE.as_secs())]
    Expired,
    /// A message that is no reply.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The body is that of a reply.
    #[error("a reply instead of a request")]
    NoRequest,
    /// Bulk data of another length.
    #[error("{0} bytes of bulk data, {1} were expected")]
    Length(u32, usize),
}

/// The error of a request to this NID that LNet ended so.
pub(crate) fn not_sent(nid: Nid, status: Status) -> CallError {
    LnetError::NotSent { nid, status }.into()
}
