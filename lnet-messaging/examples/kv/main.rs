//! A small key-value server and its client: requests and replies are messages, values go as bulk data.
//!
//! ```text
//! cargo run -p lnet-messaging --example kv -- server 127.0.0.1:9000:1
//! cargo run -p lnet-messaging --example kv -- client 127.0.0.2:9001:1 127.0.0.1:9000:1 put colour green
//! cargo run -p lnet-messaging --example kv -- client 127.0.0.2:9001:1 127.0.0.1:9000:1 get colour
//! ```
//!
//! Addresses are those of the rpc transport here. Over LNet nothing but the transport is another one: see
//! `tests/tests/node/messaging.rs`, which runs this server and client over AF_XDP.

mod client;
mod protocol;
mod server;

use std::error::Error;

use lnet_messaging::RpcTransport;

const USAGE: &str =
    "usage: kv server ADDRESS | kv client ADDRESS SERVER put KEY VALUE | kv client ADDRESS SERVER get KEY
       an ADDRESS is a.b.c.d:port:service";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let transport = RpcTransport::default().shared();
    match words[..] {
        ["server", address] => server::Server::start(&transport, address)?.join(),
        ["client", address, server, "put", key, value] => {
            client::Client::connect(&transport, address, server)?.put(key, value.as_bytes())?;
        }
        ["client", address, server, "get", key] => {
            match client::Client::connect(&transport, address, server)?.get(key)? {
                Some(value) => println!("{}", String::from_utf8_lossy(&value)),
                None => return Err(format!("there is no value of `{key}`").into()),
            }
        }
        _ => return Err(USAGE.into()),
    }
    Ok(())
}
