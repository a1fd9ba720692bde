//! The key-value example of the messaging layer, between nodes on AF_XDP rings.
#![allow(clippy::duplicate_mod, reason = "client and server are programs with the same parts")]

#[path = "../../../lnet-messaging/examples/kv_client.rs"]
#[allow(dead_code, reason = "an example is a program of its own")]
mod client;
#[path = "../../../lnet-messaging/examples/kv_server.rs"]
#[allow(dead_code, reason = "an example is a program of its own")]
mod server;

use lnet_messaging::{LnetTransport, lnet::portal_policy};
use lnet_tests::netns::{Namespace, Netns, Wiring, enter};
use lnet_tests::node::{config, nid_v4, policies};
use lnet_user::Lnet;

use crate::privileged;
use client::Client;
use server::Server;

const PORTAL: u8 = 34;

/// A node of two shards, whose transfer machines each have one of them.
fn node(namespace: &Namespace) -> (Lnet, String) {
    let nid = nid_v4(namespace.interface(), 0);
    let policies = [policies(2), vec![(PORTAL, portal_policy())]].concat();
    let config = config(namespace, nid).policies(policies);
    let lnet = enter(namespace, || Lnet::start(&config).unwrap());
    lnet.open().unwrap();
    (lnet, nid.to_string())
}

#[test]
fn values_go_to_a_key_value_server_and_back() {
    if !privileged() {
        return;
    }
    let netns = Netns::new(Wiring::default());
    let [(near, near_nid), (far, far_nid)] = [netns.a(), netns.b()].map(node);
    let [near, far] = [near, far].map(|lnet| LnetTransport::with_event_slots(&lnet, 256).shared());
    let address = |nid: &str, tmid: u32| format!("{nid}:12345:{PORTAL}:{tmid}");
    // Transfer machines of both shards.
    for tmid in [1, 2, 3] {
        let server = Server::start(&far, &address(&far_nid, tmid)).unwrap();
        let mut client = Client::connect(&near, &address(&near_nid, tmid), &address(&far_nid, tmid)).unwrap();
        for length in [1, 4097, 1 << 20] {
            let value: Vec<u8> = (0..length).map(|index| (index ^ index >> 8) as u8).collect();
            client.put("value", &value).unwrap();
            assert!(client.get("value").unwrap() == Some(value), "{length} bytes");
        }
        assert_eq!(client.get("absent").unwrap(), None);
        drop(server);
    }
}
