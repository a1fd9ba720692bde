//! How XDP programs are attached, as the mode of an NI.

use lnet_model::ni::XdpMode;

use crate::bpf::ActiveMode;

impl From<ActiveMode> for XdpMode {
    fn from(mode: ActiveMode) -> Self {
        match mode {
            ActiveMode::Native => Self::Native,
            ActiveMode::Generic => Self::Generic,
        }
    }
}
