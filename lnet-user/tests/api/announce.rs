//! Peers that a program announces, and primary NIDs, over the in-process LND.

use std::time::Instant;

use lnet_core::node::{Peer, peer_state};
use lnet_user::{Limits, Lnet, LnetError, Net, NetType, NiConfig, Nid, PeerEdit, PeerSpec};
use lnet_wire::Global;

use crate::common::{PATIENCE, config};

fn nid(net: u16, host: u8) -> Nid {
    Nid::new_ip(Net::new(NetType::XDP, net), [10, 9, 60 + net as u8, host].into()).unwrap()
}

/// A node with an NI on each of two nets, the first one's NID primary.
fn node(fabric: &str, host: u8, is_locking: bool) -> Lnet {
    let ni = |net| NiConfig::new(nid(net, host), &format!("in-process:{fabric}-{net}"));
    let limits = Limits { nis: 2, ..config(1).limits };
    let config = config(1).nis(vec![ni(0), ni(1)]).limits(limits).lock_prim_nid(is_locking);
    let lnet = Lnet::start(&config).unwrap();
    lnet.open().unwrap();
    lnet
}

/// Waits until a node's peer is as expected.
#[track_caller]
fn await_peer(lnet: &Lnet, is_expected: impl Fn(&Peer) -> bool) {
    let begun = Instant::now();
    loop {
        let peers = lnet.peers().unwrap();
        if let [peer] = &peers[..]
            && is_expected(peer)
        {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{peers:?}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[test]
fn an_announced_peer_is_found_out_about_and_goes_by_the_nid_that_was_named_first() {
    let [near, far] = [1, 2].map(|host| node("announce", host, true));
    // Its own account begins with the other one.
    let nids = [nid(7, 2), nid(1, 2), nid(0, 2)];
    let known = near.announce_peer(&nids).unwrap();
    assert_eq!((known.primary, known.is_multi_rail), (nids[1], true));
    await_peer(&near, |peer| {
        peer.nids() == [nids[1], nids[2]] && peer.is(peer_state::DISCOVERED | peer_state::LOCK_PRIMARY)
    });
    for nid in &nids[1..] {
        assert_eq!(near.primary_nid(*nid).unwrap(), nids[1]);
    }
    // The other node knows this one by what it tells.
    assert_eq!(far.primary_nid(nid(1, 1)).unwrap(), nid(0, 1));
    let refused = near.announce_peer(&nids[..1]).unwrap_err();
    assert!(matches!(refused, LnetError::Refused(_)), "{refused:?}");
    assert!(refused.to_string().contains("on a net of this one"), "{refused}");
}

#[test]
fn without_the_lock_an_announced_peer_goes_by_what_it_tells() {
    let [near, _far] = [1, 2].map(|host| node("announce-open", host, false));
    near.announce_peer(&[nid(1, 2), nid(0, 2)]).unwrap();
    await_peer(&near, |peer| {
        peer.nids() == [nid(0, 2), nid(1, 2)]
            && peer.is(peer_state::DISCOVERED)
            && !peer.is(peer_state::LOCK_PRIMARY)
    });
}

#[test]
fn a_primary_nid_is_discovered_or_stands_for_itself() {
    let [near, far] = [1, 2].map(|host| node("announce-ask", host, true));
    assert_eq!(near.primary_nid(nid(1, 2)).unwrap(), nid(0, 2), "it is discovered first");
    assert_eq!(near.primary_nid(nid(1, 1)).unwrap(), nid(0, 1), "its own");
    assert_eq!(near.primary_nid(Nid::LO).unwrap(), Nid::LO);
    let refused = near.primary_nid(nid(7, 2)).unwrap_err();
    assert!(refused.to_string().contains("No route to host"), "{refused}");
    far.set(Global::Discovery, 0).unwrap();
    near.set(Global::Discovery, 0).unwrap();
    assert_eq!(near.primary_nid(nid(7, 2)).unwrap(), nid(7, 2), "nothing is found out");
    // Each NID is a peer then.
    let other = node("announce-ask", 3, true);
    other.set(Global::Discovery, 0).unwrap();
    let known = other.announce_peer(&[nid(1, 1), nid(0, 1)]).unwrap();
    assert_eq!((known.primary, known.is_multi_rail), (nid(1, 1), false));
    assert_eq!(other.primary_nid(nid(0, 1)).unwrap(), nid(0, 1));
}

#[test]
fn a_program_edits_peers_as_an_administrator_does_all_at_once_or_not_at_all() {
    let near = node("edited", 1, true);
    let spec =
        PeerSpec { primary_nid: nid(0, 2), nids: vec![nid(1, 2)], multi_rail: true, lock_primary: false };
    let add = PeerEdit::Add(spec.clone());
    near.edit_peers(std::slice::from_ref(&add)).unwrap();
    await_peer(&near, |peer| peer.nids() == [nid(0, 2), nid(1, 2)] && peer.is(peer_state::CONFIGURED));
    // The second cannot be made, so the first is not made either.
    let delete = |primary| PeerEdit::Delete { primary, nids: Vec::new(), is_forced: false };
    let refused = near.edit_peers(&[delete(spec.primary_nid), delete(nid(0, 3))]).unwrap_err();
    assert!(matches!(refused, LnetError::Refused(_)), "{refused:?}");
    assert_eq!(near.peers().unwrap().len(), 1);
    near.edit_peers(&[delete(spec.primary_nid)]).unwrap();
    assert!(near.peers().unwrap().is_empty());
}
