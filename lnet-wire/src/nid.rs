//! NIDs, nets and process ids.

/// A network identifier: net and address of one interface of one node, in its large (20-byte) form.
///
/// Source: `uapi/lnet-idl.h`, `struct lnet_nid`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nid {
    pub(crate) size: u8,
    pub(crate) net_type: u8,
    pub(crate) net_number: u16,
    pub(crate) address: [u8; 16],
}

/// A net: `(type << 16) | number`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Net(pub u32);

/// A process of a node: NID and pid.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProcessId {
    /// The node's NID.
    pub nid: Nid,
    /// The process id; kernel nodes use [`ProcessId::LUSTRE_PID`] throughout.
    pub pid: u32,
}

impl ProcessId {
    /// `LNET_PID_LUSTRE`: the pid of every kernel node in practice, and ours.
    pub const LUSTRE_PID: u32 = 12345;
    /// `LNET_PID_ANY`: the wildcard.
    pub const ANY_PID: u32 = u32::MAX;
}

impl Nid {
    /// The canonical wildcard: every byte 0xFF.
    pub const ANY: Self = Self { size: 0xFF, net_type: 0xFF, net_number: 0xFFFF, address: [0xFF; 16] };

    /// The 20 bytes as they stand on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        bytes[0] = self.size;
        bytes[1] = self.net_type;
        bytes[2..4].copy_from_slice(&self.net_number.to_be_bytes());
        bytes[4..].copy_from_slice(&self.address);
        bytes
    }
}
