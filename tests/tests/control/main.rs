//! The real `lnetd` and `lnetctl`: alone, without privileges, and in pairs over veth, which needs root and
//! the objects that `cargo xtask build-ebpf` makes.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod absent;
mod carriers;
mod catalogue;
mod checksums;
mod churn;
mod clients;
mod containers;
mod costs;
mod crowd;
#[cfg(feature = "libbpf")]
mod deaf;
mod dialler;
mod dissected;
mod documented;
mod frames;
mod hostile_floods;
mod hostile_pushes;
mod hostile_tcp;
mod hostile_xdp;
mod ip2nets;
mod limits;
mod links;
mod local;
mod metrics;
mod nettest;
mod pair;
#[allow(dead_code, reason = "the tests of the machine use the rest")]
#[path = "../../../lnet-wire/tests/captures/pcap.rs"]
mod pcap;
mod peers;
mod queues;
mod rails;
mod replay;
mod routed_cases;
mod router;
mod routes;
mod run;
#[allow(dead_code, reason = "the tests of the machine use the rest")]
#[path = "../replay/said.rs"]
mod said;
#[path = "../../../lnetctl/tests/cli/schema.rs"]
mod schema;
mod selftest;
mod served;
mod sizes;
mod starts;
mod states;
mod tcp;
mod tcp_tunables;
mod transcripts;
