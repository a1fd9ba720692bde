//! Captures of a node's own frames.

use alloc::string::String;
use alloc::vec::Vec;

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

/// A capture that runs, or that ended by itself: when its file was full, or could not be written.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct CaptureRecord {
    /// The pcapng file, as the node sees it.
    pub path: String,
    /// Whether frames are still written.
    #[cfg_attr(feature = "serde", serde(rename = "running"))]
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
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub failure: Option<String>,
}

/// A capture to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct CaptureSpec {
    /// The pcapng file to be made: an absolute path of which nothing is there but its directory.
    pub path: String,
    /// Bytes at which the capture ends: the file is never longer.
    pub limit_bytes: u64,
    /// Bytes of each frame that are kept; `None` keeps all.
    pub frame_bytes: Option<u32>,
    /// Network interfaces whose frames are captured; none means all. NIs that are opened later count too.
    pub interfaces: Vec<String>,
    /// Bytes that wait for the writer at most, of each shard's frames. A frame longer than that is always
    /// missed. A program that has the node may choose, not one that asks for a capture.
    #[cfg_attr(feature = "serde", serde(skip, default = "capture_buffer_bytes"))]
    pub buffer_bytes: u32,
}

impl CaptureSpec {
    /// A capture of whole frames of all interfaces, with 4 MiB for those that wait.
    #[must_use]
    pub fn new(path: impl Into<String>, limit_bytes: u64) -> Self {
        let (path, buffer_bytes) = (path.into(), capture_buffer_bytes());
        Self { path, limit_bytes, frame_bytes: None, interfaces: Vec::new(), buffer_bytes }
    }
}

const fn capture_buffer_bytes() -> u32 {
    4 << 20
}
