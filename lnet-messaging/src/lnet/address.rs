//! Addresses `nid:pid:portal:tmid`, and the match bits and header data that are made of them.

use std::cmp::Ordering;
use std::fmt;

use lnet_user::{Nid, ProcessId};

use crate::errno::Error;
use crate::transport::NAME_MASK;

/// Longest text of an address: room for a NID over IPv6.
const TEXT_BYTES_MAX: usize = 80;
/// Nets that programs write in addresses.
const NETS: [&str; 3] = ["tcp", "o2ib", "xdp"];
/// Largest identifier of a transfer machine; 0 is none.
pub(crate) const TMID_MAX: u16 = 4095;
/// Bits below the identifier: those of a passive buffer's name, or zero.
const NAME_BITS: u32 = NAME_MASK.trailing_ones();

/// Where a transfer machine is found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LnetAddress {
    pub(crate) process: ProcessId,
    pub(crate) portal: u32,
    /// `None`: to be chosen at the start (`*`).
    pub(crate) tmid: Option<u16>,
}

impl LnetAddress {
    /// # Errors
    /// `EINVAL` with what was expected.
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |what: &str| Error::invalid(format!("address `{text}`: {what} is expected"));
        let whole = "`nid:pid:portal:tmid` of 80 bytes at most";
        if text.len() > TEXT_BYTES_MAX {
            return Err(wrong(whole));
        }
        let (nid, [pid, portal, tmid]) = parts(text).ok_or_else(|| wrong(whole))?;
        if !nid.contains('@') {
            return Err(wrong("a NID with its net"));
        }
        let nid: Nid = nid.parse().map_err(|_| wrong("a NID such as 10.0.0.1@tcp"))?;
        if nid.is_any() {
            return Err(wrong("the NID of one NI"));
        }
        let pid = decimal(pid).ok_or_else(|| wrong("a pid from 0 to 4294967295"))?;
        let portal = decimal(portal).ok_or_else(|| wrong("a portal from 0 to 4294967295"))?;
        let tmid = match tmid {
            "*" => None,
            tmid => {
                let tmid = decimal(tmid).filter(|tmid| (1..=u32::from(TMID_MAX)).contains(tmid));
                Some(tmid.ok_or_else(|| wrong("an identifier from 1 to 4095, or `*`,"))? as u16)
            }
        };
        Ok(Self { process: ProcessId { nid, pid }, portal, tmid })
    }

    /// The address of the transfer machine that has sent a message.
    pub(crate) fn of_sender(process: ProcessId, hdr_data: u64) -> Option<Self> {
        let (tmid, portal) = split(hdr_data);
        let (tmid, portal) = (Some(tmid).filter(|tmid| *tmid != 0)?, u32::try_from(portal).ok()?);
        Some(Self { process, portal, tmid: Some(tmid) })
    }
}

/// The NID of an address, and the three parts behind it.
fn parts(text: &str) -> Option<(&str, [&str; 3])> {
    // The end is split off first: a NID over IPv6 has colons of its own.
    let mut parts = text.rsplitn(4, ':');
    let behind = [parts.next()?, parts.next()?, parts.next()?];
    let [tmid, portal, pid] = behind;
    Some((parts.next()?, [pid, portal, tmid]))
}

/// A number in decimal digits alone.
fn decimal(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

impl fmt::Display for LnetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { process: ProcessId { nid, pid }, portal, tmid } = self;
        write!(f, "{nid}:{pid}:{portal}:")?;
        match tmid {
            Some(tmid) => write!(f, "{tmid}"),
            None => f.write_str("*"),
        }
    }
}

/// An identifier above a name or a portal: match bits, or header data.
pub(crate) const fn join(tmid: u16, low: u64) -> u64 {
    (tmid as u64) << NAME_BITS | low & NAME_MASK
}

/// The reverse of [`join`].
pub(crate) const fn split(bits: u64) -> (u16, u64) {
    ((bits >> NAME_BITS) as u16, bits & NAME_MASK)
}

/// Whether a text is an address as programs write them: `0@lo` or a NID of one host on a net of tcp, o2ib or
/// xdp, over IPv4 or IPv6, whose number has one digit at most; the pid of Lustre; two numbers. Says nothing
/// of whether there is such a node.
#[must_use]
pub fn endpoint_is_valid(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((nid, [pid, portal, tmid])) = parts(text) else { return false };
    pid == "12345" && is_number(portal) && is_number(tmid) && (nid == "0@lo" || is_ip_nid(nid))
}

fn is_ip_nid(text: &str) -> bool {
    let net = text.split_once('@').map(|(_, net)| net);
    let number = net.and_then(|net| NETS.iter().find_map(|name| net.strip_prefix(name)));
    let has_number =
        number.is_some_and(|number| number.len() <= 1 && number.bytes().all(|byte| byte.is_ascii_digit()));
    has_number && text.parse().is_ok_and(|nid: Nid| nid.ip().is_some())
}

/// Compares the NIDs of two addresses as texts; what is no address is less than anything.
#[must_use]
pub fn net_cmp(one: &str, other: &str) -> Ordering {
    match (parts(one), parts(other)) {
        (Some((one, _)), Some((other, _))) => one.cmp(other),
        _ => Ordering::Less,
    }
}
