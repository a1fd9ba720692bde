//! NIDs, nets and process ids.
//!
//! A [`Nid`] is always in the large (20-byte) form; [`Nid::to_small`] gives the 64-bit form of those that
//! have one. Invariants: at most 20 bytes are in use (`size` is 12 or less), and the wildcard has one
//! representation, [`Nid::ANY`]: equality, order and hash go by all 20 bytes, as LNet compares them.

mod text;

#[cfg(test)]
mod tests;

use core::fmt;
use core::net::IpAddr;

use crate::bytes::{get, put};

pub use text::{Expected, ParseError};

/// Bytes of a NID in its large form.
pub const NID_BYTES: usize = 20;
/// Largest value of the `size` byte: NID bytes in use, less 8.
const SIZE_MAX: u8 = 12;
/// `size` of a NID with a 4-byte address, the only ones that have a small form.
const SIZE_SMALL: u8 = 0;
/// `size` of a NID with a 16-byte address.
const SIZE_LARGE: u8 = 12;
/// The net type byte that makes a NID the wildcard, whatever its other bytes hold.
const TYPE_ANY: u8 = 0xFF;

/// A network identifier: net and address of one NI of one node, in its large (20-byte) form.
///
/// | offset | size | field |
/// |---|---|---|
/// | 0 | 1 | NID bytes in use, less 8: 0 for a 4-byte address, 12 for a 16-byte one |
/// | 1 | 1 | net type; 0xFF makes it the wildcard |
/// | 2 | 2 | net number, big endian |
/// | 4 | 16 | address in network order, zero behind the bytes in use |
///
/// The order is that of the 20 bytes, which decides connection races between nodes.
///
/// Source: `uapi/linux/lnet/lnet-idl.h`, `struct lnet_nid`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
// The order is that of the wire. Aligned, so that it is moved in words, in whatever it stands.
#[repr(C, align(4))]
pub struct Nid {
    /// The first four bytes of the form.
    head: [u8; 4],
    pub(crate) address: [u8; 16],
}

/// The text of the NID.
impl fmt::Debug for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of network that a net is of: the LND family that serves it.
///
/// Source: `uapi/linux/lnet/nidstr.h`. Numbers 1, 3, 4, 6 to 8 and 10 to 12 are retired.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NetType(pub u16);

impl NetType {
    /// TCP, spoken by socklnd.
    pub const TCP: Self = Self(2);
    /// InfiniBand verbs.
    pub const O2IB: Self = Self(5);
    /// Loopback: the node itself.
    pub const LO: Self = Self(9);
    /// Cray Gemini and Aries.
    pub const GNI: Self = Self(13);
    /// `gip`.
    pub const GIP: Self = Self(14);
    /// Portals 4.
    pub const PTLF: Self = Self(15);
    /// Kernel fabric interface.
    pub const KFI: Self = Self(16);
    /// Elastic fabric adapter.
    pub const EFA: Self = Self(18);
    /// Bull interconnect, third generation.
    pub const BXI3F: Self = Self(19);
    /// Our own: frames over UDP, on `AF_XDP` or plain sockets. Unknown to kernel nodes.
    pub const XDP: Self = Self(88);
}

/// A net: `(type << 16) | number`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Net(pub u32);

impl Net {
    /// The wildcard, `LNET_NET_ANY`.
    pub const ANY: Self = Self(u32::MAX);
    /// The loopback net, `lo`.
    pub const LO: Self = Self::new(NetType::LO, 0);
    /// The net `tcp`.
    pub const TCP: Self = Self::new(NetType::TCP, 0);
    /// The net `xdp`.
    pub const XDP: Self = Self::new(NetType::XDP, 0);

    /// The net of this type and number.
    #[must_use]
    pub const fn new(net_type: NetType, number: u16) -> Self {
        Self((net_type.0 as u32) << 16 | number as u32)
    }

    /// The kind of network.
    #[must_use]
    pub const fn net_type(self) -> NetType {
        NetType((self.0 >> 16) as u16)
    }

    /// The number that tells nets of one type apart.
    #[must_use]
    pub const fn number(self) -> u16 {
        (self.0 & 0xFFFF) as u16
    }

    /// Whether it is the wildcard.
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.0 == Self::ANY.0
    }
}

/// Why a value is no NID.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NidError {
    /// A 20-byte form that claims to be longer than it is; holds its first byte.
    Size(u8),
    /// A 64-bit form with something in its top byte, or of the wildcard's net type.
    Small(u64),
    /// A net whose type no NID can hold (255 is the wildcard's, more does not fit).
    Net(Net),
    /// An IP address on a net whose addresses are of another kind.
    Address {
        /// The net.
        net: Net,
        /// The address.
        address: IpAddr,
    },
    /// A plain number as address on a net whose addresses are of another kind.
    Number {
        /// The net.
        net: Net,
        /// The number.
        address: u32,
    },
}

impl fmt::Display for NidError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => {
                write!(formatter, "a nid of {} bytes, expected at most {NID_BYTES}", u32::from(*size) + 8)
            }
            Self::Small(value) => {
                write!(
                    formatter,
                    "0x{value:016x} is no nid: expected a zero top byte and a net type below 255"
                )
            }
            Self::Net(net) => write!(formatter, "net {net} is of no type that a nid can have"),
            Self::Address { net, address } => {
                write!(formatter, "net {net} has no addresses such as {address}")
            }
            Self::Number { net, address } => {
                write!(formatter, "net {net} has no addresses such as {address}")
            }
        }
    }
}

impl core::error::Error for NidError {}

impl Nid {
    /// The canonical wildcard: every byte 0xFF.
    pub const ANY: Self = Self::new(0xFF, TYPE_ANY, 0xFFFF, [0xFF; 16]);
    /// `0@lo`: the node itself.
    pub const LO: Self = Self::new(SIZE_SMALL, 9, 0, [0; 16]);
    /// The wildcard in its small form, `LNET_NID_ANY`.
    pub const SMALL_ANY: u64 = u64::MAX;

    /// The NID of an IP address on `net`.
    ///
    /// # Errors
    /// [`NidError::Net`] for a net no NID can be of, [`NidError::Address`] where `net` is of a known type
    /// that has no such addresses.
    pub fn new_ip(net: Net, address: IpAddr) -> Result<Self, NidError> {
        let net_type = nid_type(net)?;
        if !text::takes_ip(net.net_type(), address) {
            return Err(NidError::Address { net, address });
        }
        Ok(Self::new(SIZE_SMALL, net_type, net.number(), [0; 16]).replace_ip(address))
    }

    /// The NID of another IP address of the same family on the same net.
    #[inline]
    #[must_use]
    pub fn with_ip(&self, address: IpAddr) -> Self {
        debug_assert!(self.ip().is_some_and(|own| own.is_ipv4() == address.is_ipv4()), "{self} {address}");
        self.replace_ip(address)
    }

    /// Whether this is that NID [with this IP address](Self::with_ip), in network order.
    #[inline]
    #[must_use]
    pub fn is_with_ip<const N: usize>(&self, other: &Self, octets: &[u8; N]) -> bool {
        self.head == other.head && self.address.first_chunk() == Some(octets)
    }

    fn replace_ip(&self, address: IpAddr) -> Self {
        let [_, net_type, high, low] = self.head;
        let (size, bytes) = match address {
            IpAddr::V4(v4) => {
                let mut bytes = [0; 16];
                put::<0, 4, _>(&mut bytes, v4.octets());
                (SIZE_SMALL, bytes)
            }
            IpAddr::V6(v6) => (SIZE_LARGE, v6.octets()),
        };
        Self { head: [size, net_type, high, low], address: bytes }
    }

    /// The NID of a plain number on `net`, for nets whose addresses are numbers (`gni`, `kfi`, ...).
    ///
    /// # Errors
    /// [`NidError::Net`] for a net no NID can be of, [`NidError::Number`] where `net` is of a known type
    /// that has no such addresses.
    pub fn new_number(net: Net, address: u32) -> Result<Self, NidError> {
        let net_type = nid_type(net)?;
        if !text::takes_number(net, address) {
            return Err(NidError::Number { net, address });
        }
        Ok(Self::with_word(net_type, net.number(), address))
    }

    const fn new(size: u8, net_type: u8, net_number: u16, address: [u8; 16]) -> Self {
        let [high, low] = net_number.to_be_bytes();
        Self { head: [size, net_type, high, low], address }
    }

    const fn with_word(net_type: u8, net_number: u16, word: u32) -> Self {
        let [a, b, c, d] = word.to_be_bytes();
        let address = [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        Self::new(SIZE_SMALL, net_type, net_number, address)
    }

    /// The NID of a 64-bit form: zero, net type (8 bits), net number (16), address (32).
    ///
    /// # Errors
    /// [`NidError::Small`] for values that stand for no NID.
    #[inline]
    pub const fn from_small(value: u64) -> Result<Self, NidError> {
        if value == Self::SMALL_ANY {
            return Ok(Self::ANY);
        }
        let net_type = (value >> 48) as u8;
        if value >> 56 != 0 || net_type == TYPE_ANY {
            return Err(NidError::Small(value));
        }
        Ok(Self::with_word(net_type, (value >> 32) as u16, value as u32))
    }

    /// The 64-bit form; `None` where there is none that [`Nid::from_small`] turns back into this NID.
    #[inline]
    #[must_use]
    pub fn to_small(&self) -> Option<u64> {
        if self.is_any() {
            return Some(Self::SMALL_ANY);
        }
        let [a, b, c, d, tail @ ..] = self.address;
        if self.size() != SIZE_SMALL || tail != [0; 12] {
            return None;
        }
        let net = u64::from(self.net_type()) << 48 | u64::from(self.net_number()) << 32;
        Some(net | u64::from(u32::from_be_bytes([a, b, c, d])))
    }

    /// Reads the 20-byte form. All bytes count, those behind the address too: LNet compares them. Whatever
    /// has the wildcard's net type becomes [`Nid::ANY`].
    ///
    /// # Errors
    /// [`NidError::Size`] for a NID that claims more than 20 bytes.
    #[inline]
    pub const fn from_bytes(bytes: &[u8; NID_BYTES]) -> Result<Self, NidError> {
        let nid = Self { head: get::<0, 4, _>(bytes), address: get::<4, 16, _>(bytes) };
        if nid.is_any() || nid.size() > SIZE_MAX { nid.odd() } else { Ok(nid) }
    }

    /// The NID that is read where the bytes are not just those of a NID.
    // Apart: with a constant as one of its outcomes, reading a NID would become moves of single bytes.
    #[cold]
    const fn odd(self) -> Result<Self, NidError> {
        if self.is_any() { Ok(Self::ANY) } else { Err(NidError::Size(self.size())) }
    }

    /// The 20 bytes as they stand on the wire.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; NID_BYTES] {
        let mut bytes = [0; NID_BYTES];
        put::<0, 4, _>(&mut bytes, self.head);
        put::<4, 16, _>(&mut bytes, self.address);
        bytes
    }

    /// The net it is on; [`Net::ANY`] for the wildcard.
    #[inline]
    #[must_use]
    pub const fn net(&self) -> Net {
        if self.is_any() { Net::ANY } else { Net::new(NetType(self.net_type() as u16), self.net_number()) }
    }

    /// Its IP address; `None` where the net's addresses are of another kind, or of an unknown one.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        let address = match self.size() {
            SIZE_SMALL => IpAddr::from(get::<0, 4, _>(&self.address)),
            SIZE_LARGE => IpAddr::from(self.address),
            _ => return None,
        };
        let net_type = NetType(u16::from(self.net_type()));
        (!self.is_any() && text::is_known(net_type) && text::takes_ip(net_type, address)).then_some(address)
    }

    /// Whether it is the wildcard.
    #[inline]
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.net_type() == TYPE_ANY
    }

    /// Whether it is `0@lo`.
    #[inline]
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        *self == Self::LO
    }

    /// Whether it has no 64-bit form.
    #[inline]
    #[must_use]
    pub fn is_large(&self) -> bool {
        self.to_small().is_none()
    }

    /// Whether bytes behind those in use are set: such a NID equals none that this module makes.
    pub(crate) fn has_stray_bytes(&self) -> bool {
        !self.is_any() && self.address.iter().skip(self.used_bytes() - 4).any(|byte| *byte != 0)
    }

    /// Bytes of the 20 that are in use, 8 to 20.
    #[inline]
    #[must_use]
    pub const fn used_bytes(&self) -> usize {
        if self.is_any() { NID_BYTES } else { self.size() as usize + 8 }
    }

    pub(crate) const fn size(&self) -> u8 {
        self.head[0]
    }

    const fn net_type(&self) -> u8 {
        self.head[1]
    }

    const fn net_number(&self) -> u16 {
        u16::from_be_bytes([self.head[2], self.head[3]])
    }
}

/// The type byte of NIDs on `net`.
fn nid_type(net: Net) -> Result<u8, NidError> {
    match u8::try_from(net.net_type().0) {
        Ok(net_type) if net_type != TYPE_ANY => Ok(net_type),
        _ => Err(NidError::Net(net)),
    }
}

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
    /// The wildcard for NID and pid.
    pub const ANY: Self = Self { nid: Nid::ANY, pid: Self::ANY_PID };
    /// `LNET_PID_RESERVED`: bits that callers may not use.
    pub const RESERVED_MASK: u32 = 0xF000_0000;
    /// `LNET_PID_USERFLAG`: set by the receiver for peers that connected from an unprivileged port.
    pub const USER_FLAG: u32 = 0x8000_0000;

    /// The process of a kernel node, or of one of ours.
    #[must_use]
    pub const fn lustre(nid: Nid) -> Self {
        Self { nid, pid: Self::LUSTRE_PID }
    }
}
