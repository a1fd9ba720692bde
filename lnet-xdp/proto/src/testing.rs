//! Helpers that unit tests share.

use lnet_wire::Nid;

/// The NID of host `10.0.0.host` on net `tcp<net>`.
pub(crate) fn nid(net: u16, host: u8) -> Nid {
    Nid::from_small(2 << 48 | u64::from(net) << 32 | 10 << 24 | u64::from(host)).unwrap()
}
