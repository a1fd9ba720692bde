//! Word of a device about XDP: the family `netdev` of generic netlink, which kernels have from Linux 6.3 on
//! (Documentation/netlink/specs/netdev.yaml).

use std::io;

use super::NetlinkError;
use super::generic::{ask, attribute, attribute_of, family, number};

/// Bit of `xdp-features`: programs run in the driver (`NETDEV_XDP_ACT_BASIC`).
const BASIC: u64 = 1;
/// Bit of `xdp-features`: zero copy (`NETDEV_XDP_ACT_XSK_ZEROCOPY`).
const XSK_ZEROCOPY: u64 = 8;

/// The command of `netdev` that asks for a device (`NETDEV_CMD_DEV_GET`), and attributes of the device.
const DEVICE_GET: u8 = 1;
const INTERFACE_INDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;
const ZERO_COPY_SEGMENTS_MAX: u16 = 4;

/// Abilities of a device with XDP, by its own word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpFeatures {
    /// Whether programs run in the driver.
    pub native: bool,
    /// Descriptors of a frame at most with zero copy, 1 or more; `None` without it.
    pub zero_copy_segments: Option<u32>,
}

/// Asks a device of the calling thread's network namespace about XDP; `None` where the kernel does not
/// tell.
///
/// # Errors
/// [`NetlinkError::Kernel`] when the device is gone, or the kernel says something else than expected.
pub fn xdp_features(interface_index: u32) -> Result<Option<XdpFeatures>, NetlinkError> {
    let failed = |source| NetlinkError::Kernel { what: "ask what a device can do with XDP", source };
    let family = family("netdev").map_err(|errno| failed(errno.into()))?;
    let Some(family) = family else { return Ok(None) };
    let asked = attribute(INTERFACE_INDEX, &interface_index.to_ne_bytes());
    let answer = ask(family, DEVICE_GET, &asked).map_err(|errno| failed(errno.into()))?;
    features(&answer).map(Some).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))
}

/// Reads the answer about a device.
fn features(answer: &[u8]) -> Option<XdpFeatures> {
    let bits = number(attribute_of(answer, XDP_FEATURES)?)?;
    // Kernels tell of segments from Linux 6.6 on, as they have frames of several.
    let segments = attribute_of(answer, ZERO_COPY_SEGMENTS_MAX).and_then(number).unwrap_or(1).max(1);
    Some(XdpFeatures {
        native: bits & BASIC != 0,
        zero_copy_segments: (bits & XSK_ZEROCOPY != 0).then_some(segments as u32),
    })
}

#[cfg(test)]
mod tests {
    use super::super::generic::tests::answered;
    use super::*;

    #[test]
    fn what_a_device_says_is_read() {
        let bits = |bits: u64| attribute(XDP_FEATURES, &bits.to_ne_bytes());
        let segments = |count: u32| attribute(ZERO_COPY_SEGMENTS_MAX, &count.to_ne_bytes());
        let index = attribute(INTERFACE_INDEX, &3_u32.to_ne_bytes());
        let read = |attributes: &[Vec<u8>]| features(&answered(&attributes.concat()));
        let found = |native, zero_copy_segments| Some(XdpFeatures { native, zero_copy_segments });
        assert_eq!(read(&[index.clone(), bits(0)]), found(false, None));
        assert_eq!(read(&[index.clone(), bits(3)]), found(true, None));
        assert_eq!(read(&[index.clone(), bits(3), segments(5)]), found(true, None));
        assert_eq!(read(&[index.clone(), bits(11)]), found(true, Some(1)));
        assert_eq!(read(&[bits(11), index.clone(), segments(8)]), found(true, Some(8)));
        assert_eq!(read(&[index]), None);
    }

    #[test]
    fn the_kernel_is_asked() {
        // The loopback device has no driver for XDP, on any kernel.
        let lo = xdp_features(1).unwrap();
        assert!(lo.is_none_or(|features| features.zero_copy_segments.is_none()), "{lo:?}");
        let gone = xdp_features(i32::MAX as u32);
        assert!(gone.is_err() || lo.is_none(), "{gone:?}");
    }
}
