//! The interface for applications, over nodes that talk to themselves.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod allocation;
mod announce;
mod bursts;
mod calls;
mod common;
mod discovery;
mod ends;
mod events;
mod faults;
mod fragments;
mod handlers;
mod in_process;
mod kernel;
mod parts;
mod pushes;
mod queues;
mod readme;
mod requests;
mod router;
mod rpc;
mod stress;
mod tasks;
mod topology;
mod wakers;

#[path = "../../examples/named_entry.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example is a program of its own")]
mod named_entry;

#[path = "../../examples/put_get.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example is a program of its own")]
mod put_get;

#[path = "../../examples/request_reply.rs"]
#[allow(dead_code, unreachable_pub, reason = "an example is a program of its own")]
mod request_reply;

#[test]
fn the_service_runs() {
    request_reply::run(&[]).unwrap_or_else(|error| panic!("{error}"));
    let error = request_reply::run(&["veth0".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("SERVER_NID"), "{error}");
}

#[test]
fn the_entry_is_put_to() {
    named_entry::run(&[]).unwrap_or_else(|error| panic!("{error}"));
    let error = named_entry::run(&["0@lo".to_owned(), "4".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("PEER_NID PORTAL"), "{error}");
}

#[test]
fn the_example_runs() {
    put_get::run(&[]).unwrap_or_else(|error| panic!("{error}"));
    let error = put_get::run(&["veth0".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("INTERFACE NID"), "{error}");
}
