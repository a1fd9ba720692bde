//! How a node's frames reach its shards.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::bpf::{ActiveMode, AttachMode};

/// How the frames of a node are to reach its shards.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum XdpMode {
    /// The first of the others that works: sockets where rings cannot be had for want of privileges, of the XDP
    /// program's object, or of support by the kernel.
    #[default]
    Auto,
    /// `AF_XDP` rings, with the XDP program in the driver.
    Native,
    /// `AF_XDP` rings, with the XDP program in the kernel's network stack (SKB mode).
    Generic,
    /// UDP sockets, which need neither the XDP program nor privileges, given a port from 1024 up.
    Socket,
}

/// A word that is no [`XdpMode`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("mode {0:?}: auto, native, generic or socket is expected")]
pub struct UnknownMode(String);

impl FromStr for XdpMode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        match text {
            "auto" => Ok(Self::Auto),
            "native" => Ok(Self::Native),
            "generic" => Ok(Self::Generic),
            "socket" => Ok(Self::Socket),
            other => Err(UnknownMode(other.to_owned())),
        }
    }
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Socket => "socket",
        })
    }
}

impl XdpMode {
    /// How XDP programs are attached; none where there are none.
    pub(super) fn attach(self) -> Option<AttachMode> {
        match self {
            Self::Auto => Some(AttachMode::Auto),
            Self::Native => Some(AttachMode::Native),
            Self::Generic => Some(AttachMode::Generic),
            Self::Socket => None,
        }
    }
}

/// How the frames of a running node reach its shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeMode {
    /// By `AF_XDP` rings, with XDP programs in the drivers.
    Native,
    /// By `AF_XDP` rings, with at least one XDP program in the kernel's network stack.
    Generic,
    /// By UDP sockets.
    Socket,
}

impl From<ActiveMode> for NodeMode {
    fn from(mode: ActiveMode) -> Self {
        match mode {
            ActiveMode::Native => Self::Native,
            ActiveMode::Generic => Self::Generic,
        }
    }
}

impl fmt::Display for NodeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Socket => "socket",
        })
    }
}
