//! Errors that hinder a load.

use lnet_user::api::LnetError;
use lnet_user::runtime::SteeringError;
use thiserror::Error;

use super::plan::PlanError;

/// Why a load does not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The plan makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The node refuses something.
    #[error(transparent)]
    Lnet(#[from] LnetError),
    /// The node has no room for an entry.
    #[error("the entry for match bits {match_bits:#x} of portal {portal}: {error}")]
    Entry {
        /// The portal.
        portal: u32,
        /// The match bits.
        match_bits: u64,
        /// Why.
        #[source]
        error: LnetError,
    },
    /// An entry cannot be posted under its portal's policy.
    #[error(transparent)]
    Steering(#[from] SteeringError),
    /// No thread for it.
    #[error("a thread for the load: {0}")]
    Thread(#[from] std::io::Error),
}
