//! VLAN tags of the frames that XDP programs see: a device that takes them off does so before, and frames of
//! all VLANs look untagged (Documentation/networking/ethtool-netlink.rst, `FEATURES_SET`).

use rustix::io::Errno;

use super::NetlinkError;
use super::features::{ACTIVE, BIT, BIT_NAME, BITS, has_feature, nested, of_device};
use super::generic::{GenericSocket, attribute, family};

/// The command of `ethtool` that sets features of a device (`ETHTOOL_MSG_FEATURES_SET`). Its answer has the
/// features that were asked for and are otherwise, and those that are others now.
const FEATURES_SET: u8 = 12;
/// Attribute of a request and an answer: the features that are wanted.
const WANTED: u16 = 3;
/// Attribute of a feature: that it is on.
const BIT_VALUE: u16 = 3;
/// The kernel's name for what `ethtool -k` calls `rx-vlan-offload`.
const TAKES_TAGS_OFF: &[u8] = b"rx-vlan-hw-parse\0";

/// What became of the wish that a device leaves VLAN tags in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TagChange {
    /// The device left them already, or knows of none.
    None,
    /// The device left none before.
    Made,
    /// The device goes on as before.
    Refused,
}

/// A device leaves VLAN tags in the frames that it receives while this lives; after that it does as before.
/// Any thread may drop it, also one of another network namespace.
#[derive(Debug)]
pub struct VlanTags {
    interface_index: u32,
    change: TagChange,
    /// Tells the device to do as before; none where it does so.
    undo: Option<Wish>,
}

impl VlanTags {
    /// Has a device of the calling thread's network namespace leave tags where they are.
    ///
    /// # Errors
    /// [`NetlinkError::Kernel`] when the device is gone, or its driver fails.
    pub fn keep(interface_index: u32) -> Result<Self, NetlinkError> {
        Self::wish(interface_index)
            .map_err(|errno| NetlinkError::Kernel { what: "set rx-vlan-offload", source: errno.into() })
    }

    fn wish(interface_index: u32) -> Result<Self, Errno> {
        let Some([wish, undo]) = Wish::two()? else {
            return Ok(Self { interface_index, change: TagChange::None, undo: None });
        };
        let change = wish.takes_off(interface_index, false)?;
        Ok(Self { interface_index, change, undo: (change == TagChange::Made).then_some(undo) })
    }

    /// Whether the device takes tags off and cannot be told otherwise.
    #[must_use]
    pub fn are_lost(&self) -> bool {
        self.change == TagChange::Refused
    }
}

impl Drop for VlanTags {
    fn drop(&mut self) {
        // A device that has gone has nothing to be put back.
        if let Some(undo) = self.undo.take()
            && let Err(error) = undo.takes_off(self.interface_index, true)
        {
            tracing::debug!(%error, interface_index = self.interface_index, "VLAN tags are left in frames");
        }
    }
}

/// A way to tell a device something, once.
#[derive(Debug)]
struct Wish {
    socket: GenericSocket,
    /// Id of the family `ethtool`.
    family: u16,
}

impl Wish {
    /// Two of them; `None` where the kernel has no such command, as before 5.8.
    fn two() -> Result<Option<[Self; 2]>, Errno> {
        let Some(family) = family("ethtool")? else { return Ok(None) };
        let new = || GenericSocket::open().map(|socket| Self { socket, family });
        Ok(Some([new()?, new()?]))
    }

    /// Tells a device whether to take tags off.
    fn takes_off(self, interface_index: u32, takes_off: bool) -> Result<TagChange, Errno> {
        let mut bit = attribute(BIT_NAME, TAKES_TAGS_OFF);
        if takes_off {
            bit.extend(attribute(BIT_VALUE, &[]));
        }
        let asked = [of_device(interface_index), nested(WANTED, &nested(BITS, &nested(BIT, &bit)))];
        match self.socket.ask(self.family, FEATURES_SET, &asked.concat()) {
            Ok(answer) => Ok(change(&answer)),
            Err(Errno::OPNOTSUPP) => Ok(TagChange::None),
            Err(errno) => Err(errno),
        }
    }
}

/// Reads the answer to a wish.
fn change(answer: &[u8]) -> TagChange {
    let names = |kind| has_feature(answer, kind, TAKES_TAGS_OFF);
    match (names(ACTIVE), names(WANTED)) {
        (true, _) => TagChange::Made,
        (false, true) => TagChange::Refused,
        (false, false) => TagChange::None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::features::{NESTED, OF_DEVICE, has_name};
    use super::super::generic::tests::answered;
    use super::*;

    #[test]
    fn answers_tell_what_has_changed() {
        let bit = |name: &[u8]| attribute(BIT, &attribute(BIT_NAME, name));
        let set = |kind, bits: &[u8]| attribute(NESTED | kind, &attribute(BITS, bits));
        let other = bit(b"rx-gro\0");
        let both = [other.clone(), bit(TAKES_TAGS_OFF)].concat();
        let device = attribute(OF_DEVICE, &attribute(1, &[1, 0, 0, 0]));
        let read = |sets: &[Vec<u8>]| change(&answered(&[device.clone(), sets.concat()].concat()));
        assert_eq!(read(&[set(WANTED, &[]), set(ACTIVE, &both)]), TagChange::Made);
        assert_eq!(read(&[set(WANTED, &both), set(ACTIVE, &other)]), TagChange::Refused);
        assert_eq!(read(&[set(WANTED, &other), set(ACTIVE, &other)]), TagChange::None);
        assert_eq!(read(&[]), TagChange::None);
        for length in 0..both.len() {
            // Whatever is cut short is read to its end, and no further.
            assert!(!has_name(&both[..length], TAKES_TAGS_OFF), "{length}");
        }
    }

    /// The feature is fixed on the loopback device, or absent.
    #[test]
    fn a_device_without_tags_is_left_alone() {
        match VlanTags::keep(1) {
            Ok(tags) => assert_ne!(tags.change, TagChange::Made),
            Err(NetlinkError::Kernel { source, .. }) => {
                assert_eq!(source.kind(), io::ErrorKind::PermissionDenied)
            }
            Err(error) => panic!("{error}"),
        }
    }
}
