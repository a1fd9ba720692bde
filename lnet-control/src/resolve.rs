//! Lists of NIDs in which names of hosts are looked up, IPv4 first.

use std::net::{IpAddr, ToSocketAddrs};

use lnet_model::pattern::{self, NIDS_MAX, NODES_MAX, nids_resolved, quoted};
use lnet_model::{Errno, Refusal};
use lnet_wire::{Net, Nid};

use crate::output;

/// The NIDs of a list, as [`lnet_model::pattern::nids`] reads it.
///
/// # Errors
/// [`Refusal`]: what is no such list.
pub fn nids(text: &str) -> Result<Vec<Nid>, Refusal> {
    nids_resolved(text, NIDS_MAX, &look_up)
}

/// The NIDs of nodes of selftest, as [`lnet_model::pattern::nodes`] reads them.
///
/// # Errors
/// [`Refusal`]: what is no such list.
pub fn nodes(text: &str) -> Result<Vec<Nid>, Refusal> {
    nids_resolved(text, NODES_MAX, &look_up)
}

/// One NID, as [`lnet_model::pattern::nid`] reads it.
///
/// # Errors
/// [`Refusal`]: what is none.
pub fn nid(text: &str) -> Result<Nid, Refusal> {
    pattern::nid(text).or_else(|error| {
        if text.contains(['*', '<', '[', ',']) {
            return Err(error);
        }
        nids_resolved(text, 1, &look_up)?.pop().ok_or(error)
    })
}

/// The NIDs that a fault rule names, as [`lnet_model::pattern::fault_nid`] reads them.
///
/// # Errors
/// [`Refusal`]: what is no such NID.
pub fn fault_nid(text: &str) -> Result<Nid, Refusal> {
    pattern::fault_nid(text).or_else(|error| if text.contains('@') { nid(text) } else { Err(error) })
}

/// The address of a host. The user is told of further ones: only he knows which of them is meant.
fn look_up(host: &str, _: Net) -> Result<Option<IpAddr>, Refusal> {
    let unknown = |why: &dyn std::fmt::Display| {
        Refusal::new(Errno::INVAL, format!("{}: cannot look the host up: {why}", quoted(host)))
    };
    let found = (host, 0).to_socket_addrs().map_err(|error| unknown(&error))?;
    let (first, note) = chosen(host, found.map(|address| address.ip()).collect());
    let first = first.ok_or_else(|| unknown(&"it has no address"))?;
    if let Some(note) = note {
        output::note(note);
    }
    Ok(Some(first))
}

/// The address that is taken of those of a host, IPv4 before IPv6, and what the user is told where there are
/// others.
fn chosen(host: &str, mut addresses: Vec<IpAddr>) -> (Option<IpAddr>, Option<String>) {
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    let [first, _, ..] = addresses.as_slice() else { return (addresses.first().copied(), None) };
    let list: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let note = format!("{} has the addresses {}: {first} is taken\n", quoted(host), list.join(", "));
    (Some(*first), Some(note))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_looked_up_where_a_nid_stands() {
        let local = Nid::new_ip("tcp".parse().unwrap(), [127, 0, 0, 1].into()).unwrap();
        assert_eq!(nid("localhost"), Ok(local));
        assert_eq!(nid("localhost@tcp"), Ok(local));
        assert_eq!(nids("localhost@tcp,127.0.0.1@tcp"), Ok(vec![local; 2]));
        assert_eq!(nids("localhost,127.0.0.1"), Ok(vec![local; 2]));
        assert_eq!(nodes("localhost"), Ok(vec![local]));
        assert_eq!(fault_nid("localhost@tcp"), Ok(local));
        assert_eq!(fault_nid("*@tcp"), pattern::fault_nid("*@tcp"));
        assert_eq!(fault_nid("rubbish"), pattern::fault_nid("rubbish"));
        assert_eq!(nid("*@tcp"), pattern::nid("*@tcp"));
        assert!(nid("10.0.0.1@nonet").unwrap_err().message.contains("expected a net"));
        let error = nid("no-such-host.invalid@tcp").unwrap_err().message;
        assert!(error.starts_with("\"no-such-host.invalid\": cannot look the host up"), "{error}");
    }

    #[test]
    fn a_host_with_several_addresses_is_told() {
        let check = |addresses: &[&str], taken: Option<&str>, told: Option<&str>| {
            let address = |text: &&str| text.parse::<IpAddr>().unwrap();
            let (first, note) = chosen("h", addresses.iter().map(address).collect());
            assert_eq!((first, note.as_deref()), (taken.map(|text| address(&text)), told), "{addresses:?}");
        };
        check(&[], None, None);
        check(&["fd00::1"], Some("fd00::1"), None);
        check(&["10.0.0.1", "10.0.0.1"], Some("10.0.0.1"), None);
        let both = "\"h\" has the addresses 10.0.0.1, fd00::1: 10.0.0.1 is taken\n";
        check(&["fd00::1", "10.0.0.1"], Some("10.0.0.1"), Some(both));
        let alike = "\"h\" has the addresses 10.0.0.1, 10.0.0.2: 10.0.0.1 is taken\n";
        check(&["10.0.0.1", "10.0.0.2"], Some("10.0.0.1"), Some(alike));
    }
}
