//! Error numbers of Linux that the core judges by, positive.

/// The other end has closed the stream.
pub const EPIPE: u8 = 32;
/// The other end does not speak the protocol.
pub const EPROTO: u8 = 71;
/// No connection leads from this address to one of that family.
pub const EAFNOSUPPORT: u8 = 97;
/// The network is down.
pub const ENETDOWN: u8 = 100;
/// No route leads to the other end's network.
pub const ENETUNREACH: u8 = 101;
/// The connection was given up.
pub const ECONNABORTED: u8 = 103;
/// The other end has reset the connection.
pub const ECONNRESET: u8 = 104;
/// No room for it.
pub const ENOBUFS: u8 = 105;
/// Not in time.
pub const ETIMEDOUT: u8 = 110;
/// The other end's host has nothing at that port.
pub const ECONNREFUSED: u8 = 111;
/// The other end's host is down.
pub const EHOSTDOWN: u8 = 112;
/// No route leads to the other end's host, or it does not answer there.
pub const EHOSTUNREACH: u8 = 113;

/// Whether the other end, or the network on the way there, is what the number speaks of (LNet `socklnd_cb.c:
/// ksocknal_txlist_done`), and not this host.
#[must_use]
pub const fn is_remote(errno: u8) -> bool {
    matches!(
        errno,
        EPIPE
            | EPROTO
            | EAFNOSUPPORT
            | ENETDOWN
            | ENETUNREACH
            | ECONNABORTED
            | ECONNRESET
            | ETIMEDOUT
            | ECONNREFUSED
            | EHOSTDOWN
            | EHOSTUNREACH
    )
}
