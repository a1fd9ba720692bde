//! Features of devices, as `ethtool -k` shows them (Documentation/networking/ethtool-netlink.rst).

use super::NetlinkError;
use super::generic::{ask, attribute, attribute_of, family, number};

/// The command of `ethtool` that asks for the features of a device (`ETHTOOL_MSG_FEATURES_GET`).
const FEATURES_GET: u8 = 11;
/// Attributes of a request and an answer: the device, and the features in force.
pub(super) const OF_DEVICE: u16 = 1;
pub(super) const ACTIVE: u16 = 4;
/// Attribute of a device: its index.
const DEVICE_INDEX: u16 = 1;
/// Attributes of features: the list, an entry of it, and its name.
pub(super) const BITS: u16 = 3;
pub(super) const BIT: u16 = 1;
pub(super) const BIT_NAME: u16 = 2;
/// `NLA_F_NESTED`.
pub(super) const NESTED: u16 = 1 << 15;
/// The kernel's name for cutting up runs of UDP datagrams.
const CUTS_RUNS: &[u8] = b"tx-udp-segmentation\0";

/// Asks whether a device of the calling thread's network namespace cuts up runs of datagrams
/// (`UDP_SEGMENT`); `None` where the kernel does not tell (before Linux 5.8).
///
/// # Errors
/// [`NetlinkError::Kernel`] when the device is gone.
pub fn cuts_runs(interface_index: u32) -> Result<Option<bool>, NetlinkError> {
    let failed =
        |errno: rustix::io::Errno| NetlinkError::Kernel { what: "ask for features", source: errno.into() };
    let Some(family) = family("ethtool").map_err(failed)? else { return Ok(None) };
    match ask(family, FEATURES_GET, &of_device(interface_index)) {
        Ok(answer) => Ok(Some(has_feature(&answer, ACTIVE, CUTS_RUNS))),
        Err(rustix::io::Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(failed(errno)),
    }
}

/// The attribute that names a device.
pub(super) fn of_device(interface_index: u32) -> Vec<u8> {
    nested(OF_DEVICE, &attribute(DEVICE_INDEX, &interface_index.to_ne_bytes()))
}

pub(super) fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(NESTED | kind, value)
}

/// Whether a feature is in the list of this kind of an answer.
pub(super) fn has_feature(answer: &[u8], kind: u16, name: &[u8]) -> bool {
    let list = attribute_of(answer, kind).and_then(|set| attribute_of(set, BITS));
    list.is_some_and(|list| has_name(list, name))
}

/// Whether a feature is in a list.
pub(super) fn has_name(mut list: &[u8], name: &[u8]) -> bool {
    while let Some(bit) = attribute_of(list, BIT) {
        if attribute_of(bit, BIT_NAME) == Some(name) {
            return true;
        }
        let bytes = list.get(..2).and_then(number).unwrap_or_default() as usize;
        let Some(rest) = list.get(bytes.next_multiple_of(4)..).filter(|_| bytes != 0) else { return false };
        list = rest;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked() {
        // The loopback device has it, unless it was switched off.
        assert_ne!(cuts_runs(1).unwrap(), Some(false));
        let gone = cuts_runs(i32::MAX as u32);
        assert!(!matches!(gone, Ok(Some(_))), "{gone:?}");
    }
}
