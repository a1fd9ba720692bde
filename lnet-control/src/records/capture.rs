//! Captures of a node's own frames.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A capture that runs, or that ended by itself: when its file was full, or could not be written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CaptureRecord {
    /// The pcapng file, as the node sees it.
    pub path: PathBuf,
    /// Whether frames are still written.
    #[serde(rename = "running")]
    pub is_running: bool,
    /// Size at which the capture ends.
    pub limit_bytes: u64,
    /// Size of the file.
    pub written_bytes: u64,
    /// Frames in the file.
    pub frame_count: u64,
    /// Frames that came faster than they could be written.
    pub missed_count: u64,
    /// Why it ended early, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
