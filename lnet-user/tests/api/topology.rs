//! The topology of an embedded node: its state machine answers requests and pings, and knows of its NIs.

use std::time::Duration;

use lnet_core::lnd::NiId;
use lnet_user::{EntrySpec, Lnet, LnetError, MdOptions, NiConfig, Nid, Policy};

use crate::common::{PATIENCE, PINNED, config, spec, start};

#[test]
fn an_embedded_node_answers_its_own_ping() {
    let lnet = start(2);
    let pinged = lnet.ping(Nid::LO, None, PATIENCE).unwrap();
    assert_eq!((pinged.nid, pinged.primary), (Nid::LO, Nid::LO));
    assert_eq!(lnet.peers().unwrap(), [], "it is no peer of its own");
}

#[test]
fn pings_that_lead_nowhere_are_refused_with_the_reason() {
    let lnet = start(1);
    let ping = |nid: &str, source: Option<&str>| {
        let source = source.map(|source| source.parse().unwrap());
        lnet.ping(nid.parse().unwrap(), source, PATIENCE).unwrap_err().to_string()
    };
    assert!(ping("10.0.0.2@xdp", None).contains("failed to ping 10.0.0.2@xdp: No route to host"));
    assert!(ping("10.0.0.2@xdp", Some("10.0.0.1@xdp")).contains("cannot ping from 10.0.0.1@xdp"));
}

#[test]
fn what_cannot_be_of_an_embedded_node_is_refused_by_its_state_machine() {
    let lnet = start(1);
    let before = lnet.topology();
    let refused = |nid: &str, part: &str| {
        let error = lnet.add_ni(&NiConfig::new(nid.parse().unwrap(), "nosuch0")).unwrap_err();
        assert!(matches!(error, LnetError::Refused(_)), "{error:?}");
        assert!(error.to_string().contains(part), "{error}");
        assert_eq!(lnet.topology().nis(), before.nis());
        assert_eq!(lnet.nis(), []);
    };
    refused("10.0.0.1@o2ib", "LND type not supported");
    refused("10.0.0.1@xdp", "\"nosuch0\"");
    let error = lnet.remove_ni(NiId(1), Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("no NI 1"), "{error}");
    let error = lnet.set_policy(4, Policy::Pin(9)).unwrap_err();
    assert!(error.to_string().contains("shard 9 of a node with 1"), "{error}");
    let error = lnet.set_policy(64, Policy::Rotor).unwrap_err();
    assert!(error.to_string().contains("portals are 0 to 63"), "{error}");
}

#[test]
fn a_policy_changes_while_its_portal_is_empty() {
    let lnet = start(2);
    let queue = lnet.shard(0).unwrap().create_event_queue(16).unwrap();
    let md = spec(&queue, 4, 1, MdOptions::PUT);
    let entry = EntrySpec::new(PINNED[0], 1);
    let entry = lnet.shard(0).unwrap().attach(&entry, &md, vec![0; 4].into()).unwrap();
    let error = lnet.set_policy(PINNED[0] as u8, Policy::Pin(1)).unwrap_err();
    assert!(error.to_string().contains("portal 4 has entries"), "{error}");
    drop(entry);
    lnet.set_policy(PINNED[0] as u8, Policy::Pin(1)).unwrap();
    let entry = EntrySpec::new(PINNED[0], 1);
    let refused = lnet.shard(0).unwrap().attach(&entry, &md, vec![0; 4].into()).unwrap_err();
    assert!(refused.to_string().contains("steered to shard 1"), "{refused}");
}

#[test]
fn a_node_whose_last_handle_goes_ends_while_it_is_pinging() {
    let lnet = Lnet::start(&config(1)).unwrap();
    for _ in 0..20 {
        // Given up at once, or just when it is over.
        let ping = lnet.ping_async(Nid::LO, None, PATIENCE);
        let mut ping = std::pin::pin!(ping);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = ping.as_mut().poll(&mut context);
    }
    drop(lnet);
}
