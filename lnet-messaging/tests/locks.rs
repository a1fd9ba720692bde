//! The layer's locks go in one order, which is checked (`lnet_user::locks`). A program of its own: all that
//! it has locked is its own.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]
#![cfg(debug_assertions)]

mod any;
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{PATIENCE, Party};
use lnet_messaging::transport::Transport;
use lnet_messaging::{LnetTransport, MemTransport, RpcTransport};
use lnet_user::api::Threads;
use lnet_user::runtime::Idle;
use lnet_user::{Lnet, NodeConfig};

/// The order is that of ARCHITECTURE.md: of two that a thread has at once, the first file's is locked first.
const ORDER: [(&str, &str); 10] = [
    ("buffer/pool.rs", "domain.rs"),
    // The lock of all domains, and that of one.
    ("domain.rs", "domain.rs"),
    ("domain.rs", "tm/mod.rs"),
    ("tm/mod.rs", "end_point.rs"),
    ("tm/mod.rs", "crew/work.rs"),
    ("tm/mod.rs", "crew/directory.rs"),
    ("tm/mod.rs", "lnet/tm.rs"),
    ("lnet/tm.rs", "lnet/worker.rs"),
    ("domain.rs", "kind/programs.rs"),
    SKULKER,
];

/// The skulker's list of transfer machines, which it goes through now and then.
const SKULKER: (&str, &str) = ("rpc/mod.rs", "tm/mod.rs");

/// Whether a lock of the second file was taken behind one of the first.
fn stands((first, second): (&str, &str)) -> bool {
    let orders = lnet_user::locks::files();
    orders.iter().any(|(before, behind)| before.ends_with(first) && behind.ends_with(second))
}

#[test]
fn locks_of_every_transport_are_checked() {
    let lnet =
        Lnet::start_on(&NodeConfig::loopback(), &Threads::new().idle(Idle::new(Duration::ZERO))).unwrap();
    let rpc = RpcTransport::default().tick(Duration::from_millis(1)).shared();
    let watched = Party::started(&rpc, "127.9.9.2:17778:9");
    let transports: [(Arc<dyn Transport>, &str, bool); 3] = [
        (LnetTransport::with_event_slots(&lnet, 64).shared(), "0@lo:12345:34:", false),
        (MemTransport::default().shared(), "127.0.0.1:", true),
        (rpc, "127.9.9.2:17778:", true),
    ];
    for (transport, prefix, is_told) in transports {
        let address = |number| format!("{prefix}{number}");
        let pair = [1, 2].map(|number| Party::started(&transport, &address(number)));
        let domain = pair[0].domain.clone();
        any::a_pool_whose_buffers_are_held(pair, &address(3), is_told);
        domain.finish().map_err(|(error, _)| error).unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    while !stands(SKULKER) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    for (first, second) in ORDER {
        let both = lnet_user::locks::files();
        assert!(stands((first, second)), "{first} before {second}: {both:#?}");
        assert!(first == second || !stands((second, first)), "{second} before {first}: {both:#?}");
    }
    watched.end();
}
