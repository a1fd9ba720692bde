//! The tool's end against daemons that do not keep to the protocol.
#![expect(clippy::unwrap_used, reason = "helpers outside of test functions fail the test as well")]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::thread;

use lnet_control::Reply;
use lnet_control::client::{Client, ClientError};
use lnet_control::protocol::{self, REPLY_BYTES_MAX};
use lnet_model::Errno;
use lnet_model::request::{Change, ChangeSet, Effect, PingPurpose, PingRequest};

/// What `ask` becomes of a daemon that answers with these bytes and goes.
fn ask<T>(bytes: Vec<u8>, ask: impl FnOnce(&mut Client) -> Result<T, ClientError>) -> Result<T, ClientError> {
    let directory = std::env::temp_dir();
    let name = format!("lnet-client-{}-{:?}.sock", std::process::id(), thread::current().id());
    let path = directory.join(name);
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        stream.write_all(&bytes).unwrap();
    });
    let mut client = Client::connect(&path).unwrap();
    let answered = ask(&mut client);
    server.join().unwrap();
    std::fs::remove_file(&path).unwrap();
    answered
}

fn reply(reply: &Reply) -> Vec<u8> {
    protocol::encode(reply, REPLY_BYTES_MAX).unwrap()
}

#[test]
fn answers_that_are_none_are_errors() {
    let check = |bytes: Vec<u8>, words: &str| {
        let error = ask(bytes, Client::globals).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.errno(), Errno::IO);
    };
    check(Vec::new(), "the connection to the daemon broke");
    check(b"LNCT\0\x01".to_vec(), "the connection to the daemon broke");
    check(reply(&Reply::StartCapture(()))[..14].to_vec(), "the connection to the daemon broke");
    check(b"HTTP/1.1 400 Bad Request".to_vec(), "expected to begin with \"LNCT\"");
    check(b"LNCT\0\x05\0\0\0\0\0\0".to_vec(), "protocol version 5, expected 4");
    check(b"LNCT\0\x04\0\0\xff\xff\xff\xff".to_vec(), "4294967295 bytes, expected at most");
    check(b"LNCT\0\x04\0\0\0\0\0\x03[1]".to_vec(), "cannot be read");
    check(reply(&Reply::StartCapture(())), "something else than it was asked");
}

#[test]
fn a_batch_has_as_many_outcomes_as_changes() {
    let apply = |outcomes| {
        let batch = ChangeSet { changes: vec![Change::Unconfigure], dry_run: false, generation: None };
        ask(reply(&Reply::Apply(outcomes)), |client| client.apply(batch))
    };
    assert_eq!(apply(vec![Effect::Changed]).unwrap(), [Effect::Changed]);
    assert!(matches!(apply(Vec::new()), Err(ClientError::Unexpected)));
    assert!(matches!(apply(vec![Effect::Changed; 2]), Err(ClientError::Unexpected)));
}

#[test]
fn a_ping_ends_with_its_last_answer_or_with_the_connection() {
    let ping = |bytes| {
        let request = PingRequest {
            nids: Vec::new(),
            source: None,
            timeout_ms: Some(1000),
            purpose: PingPurpose::Ping,
        };
        ask(bytes, |client| client.ping(request, |reply| panic!("{reply:?}")))
    };
    ping(reply(&Reply::Ping(None))).unwrap();
    assert!(matches!(ping(Vec::new()), Err(ClientError::Broken(_))));
    assert!(matches!(ping(reply(&Reply::Nets(Vec::new()))), Err(ClientError::Unexpected)));
}
