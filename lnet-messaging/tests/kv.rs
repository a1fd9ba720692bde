//! The key-value server of the examples, over every transport that wants no wire.
#![allow(clippy::duplicate_mod, reason = "client and server are programs with the same parts")]
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

#[path = "../examples/kv_client.rs"]
mod client;
#[path = "../examples/kv_server.rs"]
mod server;

use std::net::TcpListener;
use std::sync::Arc;

use client::Client;
use client::kv::protocol::{Action, Outcome, Reply, Request};
use lnet_messaging::transport::Transport;
use lnet_messaging::{BulkDescriptor, LnetTransport, MemTransport, RpcTransport};
use lnet_user::{Lnet, NiConfig, NodeConfig};
use server::Server;

/// Values go there and back, as large as the transport takes them.
fn check([here, there]: [&Arc<dyn Transport>; 2], own: &str, address: &str) {
    let server = Server::start(there, address).unwrap();
    let mut client = Client::connect(here, own, address).unwrap();
    client.put("first", b"x").unwrap();
    let most = here.limits().buffer_bytes as usize;
    for length in [1, 5000, most] {
        let value: Vec<u8> = (0..length).map(|index| (index ^ index >> 8) as u8).collect();
        client.put("value", &value).unwrap();
        assert!(client.get("value").unwrap() == Some(value), "{length} bytes");
    }
    assert_eq!(client.get("first").unwrap(), Some(b"x".to_vec()));
    assert_eq!(client.get("absent").unwrap(), None);
    client.put(&"k".repeat(256), b"x").unwrap_err();
    client.put("too long", &vec![0; most + 1]).unwrap_err();
    assert_eq!(client.get("value").unwrap().map(|value| value.len()), Some(most));
    drop(server);
}

#[test]
fn over_mem() {
    let transport = MemTransport::default().shared();
    check([&transport; 2], "127.0.0.1:8000", "127.0.0.1:8001");
}

#[test]
fn over_rpc() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let transport = RpcTransport::default().shared();
    check([&transport; 2], &format!("127.0.0.1:{port}:1"), &format!("127.0.0.1:{port}:2"));
}

#[test]
fn over_lnet() {
    let node = |host: u8| {
        let nid = format!("10.9.7.{host}@xdp").parse().unwrap();
        let config = NodeConfig::new(vec![NiConfig::new(nid, "in-process:kv")])
            .policies(vec![(34, lnet_messaging::lnet::portal_policy())]);
        let lnet = Lnet::start(&config).unwrap();
        lnet.open().unwrap();
        LnetTransport::new(&lnet).shared()
    };
    let [here, there] = [node(1), node(2)];
    check([&here, &there], "10.9.7.1@xdp:12345:34:1", "10.9.7.2@xdp:12345:34:1");
}

/// A server that has as many values as may be takes no other one, and other bytes for each.
#[test]
fn a_full_server_takes_another_value_of_a_key() {
    let transport = MemTransport::default().shared();
    let _server = Server::start(&transport, "127.0.0.1:8020").unwrap();
    let mut client = Client::connect(&transport, "127.0.0.1:8021", "127.0.0.1:8020").unwrap();
    for number in 0..1024 {
        client.put(&number.to_string(), b"old").unwrap();
    }
    let refused = client.put("one more", b"new").unwrap_err();
    assert!(refused.to_string().contains("NoRoom"), "{refused}");
    client.put("7", b"new").unwrap();
    assert_eq!(client.get("7").unwrap(), Some(b"new".to_vec()));
}

#[test]
fn requests_and_replies_are_what_they_were_made_from() {
    let descriptor = BulkDescriptor::from_bytes(&[7; 48]);
    for action in [Action::Put, Action::Get] {
        let request =
            Request { number: 3, action, key: "a".into(), length_bytes: 9, descriptor: descriptor.clone() };
        let bytes = request.encode().unwrap();
        assert_eq!(Request::decode(&bytes), Some(request));
        for end in 0..19 {
            assert_eq!(Request::decode(&bytes[..end]), None);
        }
    }
    for outcome in [Outcome::Done, Outcome::Absent, Outcome::NoRoom, Outcome::Failed] {
        let reply = Reply { number: 3, outcome, length_bytes: 9 };
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        assert_eq!(Reply::decode(&reply.encode()[..23]), None);
    }
}

#[test]
fn commands_say_what_is_wrong_with_them() {
    let transport = MemTransport::default().shared();
    let _server = Server::start(&transport, "127.0.0.1:8010").unwrap();
    let mut client = Client::connect(&transport, "127.0.0.1:8011", "127.0.0.1:8010").unwrap();
    assert!(client::command(&mut client, &["put", "colour", "green"]).unwrap().is_none());
    assert_eq!(client::command(&mut client, &["get", "colour"]).unwrap().unwrap(), b"green");
    let absent = client::command(&mut client, &["get", "shape"]).unwrap_err();
    assert_eq!(absent.to_string(), "there is no value of `shape`");
    let empty = client::command(&mut client, &["put", "shape", ""]).unwrap_err();
    assert_eq!(empty.to_string(), "a value of 0 bytes: one at least is expected");
    assert!(client::command(&mut client, &["del", "colour"]).unwrap_err().to_string().starts_with("usage:"));
    let run = |text: &str| client::run(&text.split(' ').collect::<Vec<_>>());
    for wrong in ["", "udp 1 2 get x", "rpc 127.0.0.1:8011:1", "lnet eth0 10.0.0.1@tcp:12345:34:1"] {
        assert!(run(wrong).unwrap_err().to_string().starts_with("usage:"), "{wrong}");
    }
    let wrong = run("lnet eth0 10.0.0.1@tcp 10.0.0.2@tcp get x").unwrap_err();
    assert!(wrong.to_string().contains("NID:PID:PORTAL:TMID"), "{wrong}");
}
