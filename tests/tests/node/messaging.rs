//! The key-value example of the messaging layer, between nodes on AF_XDP rings.
#![allow(clippy::duplicate_mod, reason = "client and server are programs with the same parts")]

#[path = "../../../lnet-messaging/examples/kv_client.rs"]
#[allow(dead_code, reason = "an example is a program of its own")]
mod client;
#[path = "../../../lnet-messaging/examples/kv_server.rs"]
#[allow(dead_code, reason = "an example is a program of its own")]
mod server;

use std::sync::Arc;

use lnet_messaging::lnet::{LnetTransport, portal_policy};
use lnet_messaging::transport::Transport;
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

/// A client's transport and a server's, with the addresses of their transfer machines by identifier.
struct Pair {
    _netns: Netns,
    near: Arc<dyn Transport>,
    far: Arc<dyn Transport>,
    nids: [String; 2],
}

impl Pair {
    fn new() -> Self {
        let netns = Netns::new(Wiring::default());
        let [(near, near_nid), (far, far_nid)] = [netns.a(), netns.b()].map(node);
        let [near, far] = [near, far].map(|lnet| LnetTransport::with_event_slots(&lnet, 256).shared());
        Self { _netns: netns, near, far, nids: [near_nid, far_nid] }
    }

    fn addresses(&self, tmid: u32) -> [String; 2] {
        self.nids.each_ref().map(|nid| format!("{nid}:12345:{PORTAL}:{tmid}"))
    }

    fn server(&self, tmid: u32) -> Server {
        Server::start(&self.far, &self.addresses(tmid)[1]).unwrap()
    }

    fn client(&self, tmid: u32, server_tmid: u32) -> Client {
        Client::connect(&self.near, &self.addresses(tmid)[0], &self.addresses(server_tmid)[1]).unwrap()
    }
}

fn value(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index ^ index >> 8 ^ seed) as u8).collect()
}

#[test]
fn values_go_to_a_key_value_server_and_back() {
    if !privileged() {
        return;
    }
    let pair = Pair::new();
    // Transfer machines of both shards.
    for tmid in [1, 2, 3] {
        let server = pair.server(tmid);
        let mut client = pair.client(tmid, tmid);
        for length in [1, 4097, 1 << 20] {
            let value = value(length, 0);
            client.put("value", &value).unwrap();
            assert!(client.get("value").unwrap() == Some(value), "{length} bytes");
        }
        assert_eq!(client.get("absent").unwrap(), None);
        drop(server);
    }
}

/// Once a client is told that a value is stored, all of them read that one, however long the one before was.
#[test]
fn the_value_that_was_stored_last_is_read() {
    if !privileged() {
        return;
    }
    const LENGTHS: [usize; 4] = [1 << 20, 1, 60_000, 4097];
    let pair = Pair::new();
    let _server = pair.server(1);
    let mut clients = [1, 2, 3].map(|tmid| pair.client(tmid, 1));
    for (round, length) in LENGTHS.into_iter().cycle().take(24).enumerate() {
        let value = value(length, round);
        clients[round % 3].put("of all", &value).unwrap();
        for (reader, client) in clients.iter_mut().enumerate() {
            assert!(client.get("of all").unwrap().as_ref() == Some(&value), "{reader} in round {round}");
        }
    }
    // And while others store theirs.
    std::thread::scope(|scope| {
        for (number, client) in clients.iter_mut().enumerate() {
            scope.spawn(move || {
                let key = number.to_string();
                for (round, length) in LENGTHS.into_iter().cycle().skip(number).take(40).enumerate() {
                    let value = value(length, 3 * round + number);
                    client.put(&key, &value).unwrap();
                    assert!(client.get(&key).unwrap() == Some(value), "{number} in round {round}");
                }
            });
        }
    });
}
