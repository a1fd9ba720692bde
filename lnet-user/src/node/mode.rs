//! How XDP programs are attached, in each mode of an NI.

use lnet_control::records::XdpMode;

use crate::bpf::{ActiveMode, AttachMode};

impl AttachMode {
    /// As a mode wants it; none where there are no programs.
    pub(super) fn of(mode: XdpMode) -> Option<Self> {
        match mode {
            XdpMode::Auto => Some(Self::Auto),
            XdpMode::Native => Some(Self::Native),
            XdpMode::Generic => Some(Self::Generic),
            XdpMode::Socket => None,
        }
    }
}

impl From<ActiveMode> for XdpMode {
    fn from(mode: ActiveMode) -> Self {
        match mode {
            ActiveMode::Native => Self::Native,
            ActiveMode::Generic => Self::Generic,
        }
    }
}
