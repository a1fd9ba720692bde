//! A server over xdp that kernel nodes reach by a router: a program that links `lnet-user`, and takes part in
//! tests of LNet selftest. As root, `behind_router INTERFACE NID NET GATEWAY`, where the nodes beyond the
//! gateway are on that net; kernel nodes want a NID of a net of type tcp.
#![allow(missing_docs, reason = "an example")]

use std::error::Error;

use lnet_selftest::Selftest;
use lnet_user::lnet_core::node::NodeChange;
use lnet_user::lnet_model::route::RouteSpec;
use lnet_user::{Lnd, Lnet, NiConfig, NodeConfig, Request};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [interface, nid, net, gateway] = &arguments[..] else {
        return Err("expected: INTERFACE NID NET GATEWAY".into());
    };
    let ni = NiConfig::new(nid.parse()?, interface).lnd(Some(Lnd::Xdp));
    let lnet = Lnet::start(&NodeConfig::new(vec![ni]))?;
    let route = NodeChange::AddRoute(RouteSpec::new(net.parse()?, gateway.parse()?));
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(lnet.request(Request::batch(vec![route])))?;
    let _tests = Selftest::start(&lnet)?;
    lnet.open()?;
    println!("{nid} reaches {net} by {gateway}");
    loop {
        std::thread::park();
    }
}
