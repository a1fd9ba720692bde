//! NIDs, lists of NIDs, NIDs of fault rules.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use core::net::IpAddr;

use lnet_wire::nid::ParseError;
use lnet_wire::{Net, Nid};

use super::expression::Expression;
use super::{invalid, quoted, split_list};
use crate::errno::{Errno, Refusal};

/// Most NIDs of one list.
pub const NIDS_MAX: usize = 128;
/// Most nodes of a session of selftest, and so of one list of them.
pub const NODES_MAX: usize = 4096;

/// Refusal of a NID that can name no NI, behind that NID.
pub const NO_NI: &str = "the nid of one NI is expected, with an address by which other hosts reach it";

/// Lookup of a host's name, for an address of the kind wanted; `None` where names are not looked up.
pub type Resolve<'a> = &'a dyn Fn(&str, Net) -> Result<Option<IpAddr>, Refusal>;

/// One NID; without `@` it is on net `tcp`.
///
/// # Errors
/// [`Refusal`]: what is no NID, and the wildcard.
pub fn nid(text: &str) -> Result<Nid, Refusal> {
    let whole = if text.contains('@') { text.to_owned() } else { format!("{text}@tcp") };
    let nid: Nid = whole.parse()?;
    if nid.is_any() {
        return Err(invalid(text, "one nid, not a wildcard"));
    }
    Ok(nid)
}

/// The NIDs of a list such as `10.0.[1-2].1@tcp,10.0.0.9@tcp1`: every combination, the last part varying
/// fastest. Members without `@` are on net `tcp`. Names of hosts are not looked up.
///
/// # Errors
/// [`Refusal`]: what is no such list, what enumerates more than [`NIDS_MAX`] NIDs.
pub fn nids(text: &str) -> Result<Vec<Nid>, Refusal> {
    nids_resolved(text, NIDS_MAX, &|_, _| Ok(None))
}

/// The NIDs of nodes of selftest: such a list, but of up to [`NODES_MAX`].
///
/// # Errors
/// As [`nids`].
pub fn nodes(text: &str) -> Result<Vec<Nid>, Refusal> {
    nids_resolved(text, NODES_MAX, &|_, _| Ok(None))
}

/// The NIDs of such a list, at most `most` of them. `resolve` looks names of hosts up.
///
/// # Errors
/// [`Refusal`]: what is no such list, what enumerates more NIDs.
pub fn nids_resolved(text: &str, most: usize, resolve: Resolve<'_>) -> Result<Vec<Nid>, Refusal> {
    let expected = "nids such as 10.0.0.1@tcp or 10.0.[1-2].[5,7]@tcp, separated by commas";
    let parts = split_list(text).ok_or_else(|| invalid(text, expected))?;
    let mut nids = Vec::new();
    for part in parts {
        let found = spec(part, nids.len(), most, resolve)?;
        nids.extend(found);
    }
    Ok(nids)
}

/// The NIDs of one member of a list, if with those before it they are at most `most`.
fn spec(text: &str, before: usize, most: usize, resolve: Resolve<'_>) -> Result<Vec<Nid>, Refusal> {
    let (address, net) = text.rsplit_once('@').unwrap_or((text, "tcp"));
    if text.contains('*') || text.contains("<?>") {
        return Err(invalid(text, "nids that can be counted, not a wildcard"));
    }
    let net: Net = net
        .parse()
        .map_err(|error: ParseError| Refusal::new(Errno::INVAL, format!("{}: {error}", quoted(text))))?;
    let is_ipv6 = address.contains(':');
    let (parts, tail) = parts(address, is_ipv6)
        .ok_or_else(|| invalid(text, "a range such as [1-4], [1-9/2] or [1,3] as a whole part"))?;
    let count = parts.iter().fold(1_u64, |count, (_, numbers)| count.saturating_mul(numbers.count()));
    if count > (most - before) as u64 {
        let message = format!("{}: {count} nids, expected at most {most} nids in all", quoted(text));
        return Err(Refusal::new(Errno::TOOBIG, message));
    }
    let with = |address: &str, before: &str, number: u32| match is_ipv6 {
        true => format!("{address}{before}{number:x}"),
        false => format!("{address}{before}{number}"),
    };
    let mut addresses = vec![String::new()];
    for (before, numbers) in &parts {
        let extended =
            addresses.iter().flat_map(|address| numbers.values().map(|it| with(address, before, it)));
        addresses = extended.collect();
    }
    addresses.iter().map(|address| one(&format!("{address}{tail}"), net, resolve)).collect()
}

/// The NID of one address or host.
fn one(address: &str, net: Net, resolve: Resolve<'_>) -> Result<Nid, Refusal> {
    let parsed = format!("{address}@{net}").parse::<Nid>();
    parsed.or_else(|error| {
        let resolved = if is_host(address) { resolve(address, net)? } else { None };
        let nid = resolved.and_then(|ip| Nid::new_ip(net, ip).ok());
        nid.ok_or_else(|| error.into())
    })
}

/// Whether it can be the name of a host: an address is not looked up for a mistake in it.
fn is_host(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    text.bytes().all(fits) && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// The brackets of an address, each with the text before it, and the text behind the last one.
fn parts(address: &str, is_ipv6: bool) -> Option<(Vec<(&str, Expression)>, &str)> {
    let (max, radix) = match (is_ipv6, address.contains('.')) {
        (true, _) => (0xFFFF, 16),
        (false, true) => (255, 10),
        (false, false) => (u32::MAX, 10),
    };
    let mut parts = Vec::new();
    let mut rest = address;
    while let Some((before, tail)) = rest.split_once('[') {
        let (inside, after) = tail.split_once(']')?;
        // A range is a whole number, not some of its digits.
        let begins = before.is_empty() && parts.is_empty() || before.ends_with(['.', ':']);
        let ends = after.is_empty() || after.starts_with(['.', ':']);
        if !begins || !ends {
            return None;
        }
        parts.push((before, Expression::parse(inside, max, radix)?));
        rest = after;
    }
    Some((parts, rest))
}

/// The NID of a fault rule: a NID, `*@net` for all of a net, or `*`; also in the forms in which rules are
/// printed.
///
/// # Errors
/// [`Refusal`]: what is none of these.
pub fn fault_nid(text: &str) -> Result<Nid, Refusal> {
    if text == "*" || text == "<?>" {
        return Ok(Nid::ANY);
    }
    match text.strip_prefix("*@") {
        Some(net) => nid(&format!("255.255.255.255@{net}")),
        None if text.contains('@') => nid(text),
        None => Err(invalid(text, "a nid, *@net or *")),
    }
}

/// The text of a fault rule's NID, as it would be given.
#[must_use]
pub fn fault_nid_text(nid: &Nid) -> String {
    if nid.is_any() {
        return "*".to_owned();
    }
    let text = nid.to_string();
    match text.strip_prefix("255.255.255.255@") {
        Some(net) => format!("*@{net}"),
        None => text,
    }
}
