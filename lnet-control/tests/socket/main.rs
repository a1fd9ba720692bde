//! The control socket over real sockets: clients that behave, and clients that do not.
#![expect(clippy::unwrap_used, reason = "helpers outside of test functions fail the test as well")]

mod harness;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use harness::{Directory, Server, runtime};
use lnet_control::client::ClientError;
use lnet_control::protocol::{
    self, CHANGES_BYTES_MAX, HEADER_BYTES, PART_BYTES_MAX, REPLY_BYTES_MAX, REQUEST_BYTES_MAX,
};
use lnet_control::server::{Access, BindError, Listener, ServerLimits};
use lnet_control::{ControlRequest, Reply};
use lnet_model::records::{Globals, SelftestCommand, SelftestRequest};
use lnet_model::request::{Change, ChangeSet, Effect, PingPurpose, PingRequest};
use lnet_model::{Errno, Refusal};
use lnet_wire::{Global, Nid};
use xtask::privilege::Capability;
use xtask::testing::require_privilege;

fn set(global: Global, value: u32) -> ChangeSet {
    ChangeSet { changes: vec![Change::SetGlobal { global, value }], dry_run: false, generation: None }
}

fn nid(last: u8) -> Nid {
    format!("10.0.0.{last}@tcp").parse().unwrap()
}

fn ping(lasts: &[u8]) -> PingRequest {
    PingRequest {
        nids: lasts.iter().map(|&last| nid(last)).collect(),
        source: None,
        timeout_ms: Some(300),
        purpose: PingPurpose::Ping,
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The reply that the server sends without being asked well, after which it must close.
fn last_words(stream: &mut UnixStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let (header, json) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
    assert_eq!(protocol::read_header(header, REPLY_BYTES_MAX).unwrap(), json.len());
    protocol::decode(json).unwrap()
}

fn refused(reply: Reply, errno: Errno, words: &str) {
    let Reply::Refused(refusal) = reply else { panic!("{reply:?}") };
    assert_eq!(refusal.errno, errno);
    assert!(refusal.message.contains(words), "{refusal}");
}

#[test]
fn requests_are_answered_one_after_the_other() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.globals().unwrap(), Globals::default());
    assert_eq!(client.statistics().unwrap().send_count, u64::MAX);
    assert_eq!(client.steering().unwrap().shard_count, 2);
    assert_eq!(client.apply(set(Global::RetryCount, 7)).unwrap(), [Effect::Changed]);
    assert_eq!(client.apply(set(Global::RetryCount, 7)).unwrap(), [Effect::Unchanged]);
    assert_eq!(client.globals().unwrap().get(Global::RetryCount), 7);
    let error = client.nets().unwrap_err();
    assert_eq!((error.errno(), error.to_string().as_str()), (Errno::NETDOWN, "the node is not configured"));
    let error = client
        .apply(ChangeSet { changes: vec![Change::Unconfigure], dry_run: true, generation: None })
        .unwrap_err();
    assert!(matches!(error, ClientError::Refused(Refusal { change: Some(0), .. })), "{error:?}");
    assert_eq!(client.peers().unwrap(), []);
    let error = client.stop_load(7).unwrap_err();
    assert_eq!(error.to_string(), "stop load: this node has no such service");
    assert_eq!(error.errno(), Errno::OPNOTSUPP);
}

#[test]
fn pings_are_streamed_in_order_and_have_an_end() {
    let server = Server::start();
    let mut client = server.client();
    let mut replies = Vec::new();
    // The first answers last, the third never.
    client.ping(ping(&[1, 9, 4, 8]), |reply| replies.push(reply)).unwrap();
    let nids: Vec<_> = replies.iter().map(|reply| reply.nid).collect();
    assert_eq!(nids, [nid(1), nid(9), nid(4), nid(8)]);
    let failed: Vec<_> = replies.iter().map(|reply| reply.result.as_ref().err().map(|e| e.errno)).collect();
    assert_eq!(failed, [None, None, Some(Errno::TIMEDOUT), None]);
    client.ping(ping(&[]), |reply| panic!("{reply:?}")).unwrap();
    assert_eq!(client.peers().unwrap(), []);
}

#[test]
fn a_client_that_goes_takes_its_pings_with_it() {
    let server = Server::start();
    let mut stream = server.stream();
    let request = PingRequest { timeout_ms: Some(60_000), ..ping(&[4, 4, 4]) };
    stream.write_all(&protocol::encode(&ControlRequest::Ping(request), REQUEST_BYTES_MAX).unwrap()).unwrap();
    wait_until("the pings run", || server.model.pings.load(Ordering::SeqCst) == 3);
    drop(stream);
    wait_until("the pings are dropped", || server.model.pings.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_change_is_carried_to_its_end_when_its_client_is_killed() {
    let server = Server::start();
    let mut stream = server.stream();
    let changes = [5, 6, 7].map(|value| Change::SetGlobal { global: Global::RetryCount, value });
    let batch = ChangeSet { changes: changes.to_vec(), dry_run: false, generation: None };
    stream.write_all(&protocol::encode(&ControlRequest::Apply(batch), REQUEST_BYTES_MAX).unwrap()).unwrap();
    wait_until("it changes", || server.model.changed.load(Ordering::SeqCst) == 1);
    drop(stream);
    wait_until("it has changed", || server.model.changed.load(Ordering::SeqCst) == 3);
    assert_eq!(server.client().globals().unwrap().get(Global::RetryCount), 7);
}

#[test]
fn stopping_waits_for_the_change_under_way_alone() {
    let mut server = Server::start();
    let mut stream = server.stream();
    let mut idle = server.stream();
    let changes = [5, 6, 7].map(|value| Change::SetGlobal { global: Global::RetryCount, value });
    let batch = ChangeSet { changes: changes.to_vec(), dry_run: false, generation: None };
    stream.write_all(&protocol::encode(&ControlRequest::Apply(batch), REQUEST_BYTES_MAX).unwrap()).unwrap();
    wait_until("it changes", || server.model.changed.load(Ordering::SeqCst) == 1);
    server.stop();
    assert_eq!(server.model.changed.load(Ordering::SeqCst), 3);
    assert_eq!(last_words(&mut stream), Reply::Apply(vec![Effect::Changed; 3]));
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn orders_that_wait_for_other_nodes_hold_up_neither_changes_nor_the_end() {
    let mut server = Server::start();
    let command = SelftestCommand::AddGroup { name: "dead".to_owned(), nids: vec![nid(4)] };
    let order = ControlRequest::Selftest(SelftestRequest { key: 1, command, timeout_s: None });
    let mut streams = [server.stream(), server.stream()];
    for stream in &mut streams {
        stream.write_all(&protocol::encode(&order, REQUEST_BYTES_MAX).unwrap()).unwrap();
    }
    wait_until("both are under way", || server.model.orders.load(Ordering::SeqCst) == 2);
    assert_eq!(server.client().apply(set(Global::RetryCount, 7)).unwrap(), [Effect::Changed]);
    let [gone, mut waiting] = streams;
    drop(gone);
    wait_until("one has gone with its client", || server.model.orders.load(Ordering::SeqCst) == 1);
    server.stop();
    assert_eq!(waiting.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn ten_clients_change_one_after_the_other() {
    let server = Server::start();
    thread::scope(|scope| {
        for number in 0..10 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                let outcomes = client.apply(set(Global::RetryCount, 100 + number)).unwrap();
                assert_eq!(outcomes, [Effect::Changed]);
                client.globals().unwrap();
            });
        }
    });
    assert_eq!(server.model.changed.load(Ordering::SeqCst), 10);
}

#[test]
fn rubbish_is_told_what_it_is_and_hurts_nobody() {
    let server = Server::start();
    let check = |bytes: &[u8], words: &str| {
        let mut stream = server.stream();
        stream.write_all(bytes).unwrap();
        refused(last_words(&mut stream), Errno::INVAL, words);
        assert_eq!(server.client().peers().unwrap(), []);
    };
    let header = |version: u8, length: u32| {
        let mut bytes = b"LNCT\0\0\0\0".to_vec();
        bytes[5] = version;
        bytes.extend(length.to_be_bytes());
        bytes
    };
    check(b"GET / HTTP/1.1\r\n\r\n", "expected to begin with \"LNCT\"");
    check(b"x", "expected to begin with \"LNCT\"");
    check(b"LNCX", "expected to begin with \"LNCT\"");
    check(&header(5, 0), "protocol version 5, expected 4");
    check(&header(4, REQUEST_BYTES_MAX as u32 + 1), "1048577 bytes, expected at most 1048576");
    check(&header(4, u32::MAX), "4294967295 bytes");
    check(&[header(4, 4), b"null".to_vec()].concat(), "cannot be read");
    check(&[header(4, 6), b"\"frob\"".to_vec()].concat(), "unknown variant `frob`");
    let bad_nid = br#"{"ping":{"nids":["1.2.3@tcp"],"source":null,"timeout_ms":null}}"#;
    check(&[header(4, bad_nid.len() as u32), bad_nid.to_vec()].concat(), "expected an ipv4");
    let deep = "[".repeat(100_000);
    check(&[header(4, deep.len() as u32), deep.into_bytes()].concat(), "cannot be read");
}

#[test]
fn spoilt_requests_hurt_nobody() {
    let limits = ServerLimits { request_time: Duration::from_millis(20), ..ServerLimits::default() };
    let server = Server::with_limits(limits);
    let good: Vec<_> = [
        ControlRequest::Globals,
        ControlRequest::Ping(ping(&[9])),
        ControlRequest::Apply(set(Global::RetryCount, 1)),
    ]
    .iter()
    .map(|request| protocol::encode(request, REQUEST_BYTES_MAX).unwrap())
    .collect();
    // A generator whose every number follows from the one before.
    let mut state = 1_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..400 {
        let mut bytes = good[random(good.len())].clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(3) {
                0 => bytes[at] ^= 1 << random(8),
                1 => bytes.truncate(at + 1),
                _ => bytes.insert(at, random(256) as u8),
            }
        }
        let mut stream = server.stream();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // The connection ends, be it with an answer.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"LNCT"), "{bytes:?}");
    }
    assert_eq!(server.client().peers().unwrap(), []);
}

#[test]
fn a_client_that_has_said_all_is_answered() {
    let server = Server::start();
    let mut stream = server.stream();
    stream.write_all(&protocol::encode(&ControlRequest::Globals, REQUEST_BYTES_MAX).unwrap()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(last_words(&mut stream), Reply::Globals(Globals::default()));
}

#[test]
fn half_a_request_is_not_waited_for_without_end() {
    let limits = ServerLimits { request_time: Duration::from_millis(100), ..ServerLimits::default() };
    let server = Server::with_limits(limits);
    let message = protocol::encode(&ControlRequest::Globals, REQUEST_BYTES_MAX).unwrap();
    for length in [1, HEADER_BYTES - 1, HEADER_BYTES, message.len() - 1] {
        let mut stream = server.stream();
        stream.write_all(&message[..length]).unwrap();
        assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "{length} bytes");
    }
    // One that has not begun may take its time, and may come in pieces.
    let mut stream = server.stream();
    thread::sleep(Duration::from_millis(200));
    for byte in &message {
        stream.write_all(std::slice::from_ref(byte)).unwrap();
    }
    stream.read_exact(&mut [0; HEADER_BYTES]).unwrap();
}

#[test]
fn requests_may_be_sent_ahead() {
    let server = Server::start();
    let mut stream = server.stream();
    let ping = protocol::encode(&ControlRequest::Ping(ping(&[1])), REQUEST_BYTES_MAX).unwrap();
    let globals = protocol::encode(&ControlRequest::Globals, REQUEST_BYTES_MAX).unwrap();
    stream.write_all(&[ping, globals].concat()).unwrap();
    for expected in [r#"{"ping":{"nid"#, r#"{"ping":null}"#, r#"{"globals":"#] {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        let mut json = vec![0; protocol::read_header(&header, REPLY_BYTES_MAX).unwrap()];
        stream.read_exact(&mut json).unwrap();
        let text = String::from_utf8(json).unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_slow_reader_is_let_go() {
    let limits = ServerLimits { reply_time: Duration::from_millis(200), ..ServerLimits::default() };
    let server = Server::with_limits(limits);
    let mut stream = server.stream();
    let globals = protocol::encode(&ControlRequest::Globals, REQUEST_BYTES_MAX).unwrap();
    // Replies pile up until the kernel takes no more of them.
    stream.set_nonblocking(true).unwrap();
    let start = Instant::now();
    let mut gone = false;
    while !gone && start.elapsed() < Duration::from_secs(10) {
        match stream.write(&globals) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                assert_eq!(server.client().peers().unwrap(), []);
                thread::sleep(Duration::from_millis(5));
            }
            Err(_) => gone = true,
        }
    }
    assert!(gone, "the connection is still there");
}

#[test]
fn an_answer_that_is_too_long_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    let error = client.captures().unwrap_err();
    assert!(error.to_string().contains("the answer cannot be sent"), "{error}");
    client.globals().unwrap();
}

#[test]
fn there_is_an_end_to_clients() {
    let server =
        Server::with_limits(ServerLimits { connections: 2, owner_connections: 1, ..ServerLimits::default() });
    let mut clients: Vec<_> = (0..3).map(|_| server.client()).collect();
    clients.iter_mut().for_each(|client| {
        client.globals().unwrap();
    });
    let error = server.client().globals().unwrap_err();
    assert_eq!(error.errno(), Errno::BUSY, "{error}");
    drop(clients.pop());
    wait_until("there is room", || server.client().globals().is_ok());
}

#[test]
fn the_socket_is_for_owner_and_group() {
    let server = Server::start();
    let mode = fs::metadata(&server.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

/// What `bind` says of a path.
fn bind(path: &Path) -> Result<(), BindError> {
    let runtime = runtime();
    let _guard = runtime.enter();
    Listener::bind(path, Access::default()).map(drop)
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let mut server = Server::start();
    assert!(matches!(bind(&server.socket), Err(BindError::Live(_))));
    server.client().globals().unwrap();
    // A daemon that knows nothing of our lock.
    let other = server.directory.path("other.sock");
    let listener = UnixListener::bind(&other).unwrap();
    assert!(matches!(bind(&other), Err(BindError::Live(_))));
    drop(listener);
    assert!(other.exists());
    bind(&other).unwrap();
    assert!(!other.exists());
    // Ours is gone with its server, and may come again.
    server.stop();
    assert!(!server.socket.exists());
    bind(&server.socket).unwrap();
}

#[test]
fn what_is_not_a_socket_is_left_alone() {
    let directory = Directory::new();
    let path = directory.path("node.sock");
    fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(&path), Err(BindError::NotASocket(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    fs::remove_file(&path).unwrap();
    let target = directory.path("target.sock");
    let _listener = UnixListener::bind(&target).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    assert!(matches!(bind(&path), Err(BindError::NotASocket(_))));
    assert!(matches!(bind(&directory.path("a/b/c.sock")), Err(BindError::Io { .. })));
    // One that is too long for an address leaves nothing behind.
    let files = || fs::read_dir(path.parent().unwrap()).unwrap().count();
    let before = files();
    assert!(matches!(bind(&directory.path(&"x".repeat(200))), Err(BindError::Io { .. })));
    assert_eq!(files(), before);
}

#[test]
fn a_socket_that_was_replaced_is_not_removed() {
    let directory = Directory::new();
    let path = directory.path("node.sock");
    let runtime = runtime();
    let _guard = runtime.enter();
    let listener = Listener::bind(&path, Access::default()).unwrap();
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(listener);
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    drop(other);
}

/// Needs root, to make another user's socket.
#[test]
fn a_socket_of_another_user_is_left_alone() {
    const CHOWN: Capability = Capability { name: "CAP_CHOWN", bit: 0 };
    if !require_privilege("a socket of another user", &[CHOWN]) {
        return;
    }
    let directory = Directory::new();
    let path = directory.path("node.sock");
    drop(UnixListener::bind(&path).unwrap());
    chown(&path, Some(65534), None).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(bind(&path), Err(BindError::Foreign { uid: 65534, .. })));
    assert!(path.exists());
}

/// A batch that is longer than a part arrives in several, and is one.
#[test]
fn a_batch_of_many_parts_is_one() {
    let server = Server::start();
    let batch = ChangeSet { changes: vec![Change::Unconfigure; 200_000], ..ChangeSet::default() };
    let message = protocol::encode(&ControlRequest::Apply(batch.clone()), CHANGES_BYTES_MAX).unwrap();
    assert!(message.len() > 2 * PART_BYTES_MAX, "{}", message.len());
    // A client that goes before the last part has asked for nothing.
    let changes = vec![set(Global::RetryCount, 5).changes[0].clone(); 100_000];
    let cut = ChangeSet { changes, ..ChangeSet::default() };
    let cut = protocol::encode(&ControlRequest::Apply(cut), CHANGES_BYTES_MAX).unwrap();
    assert!(cut.len() > 2 * PART_BYTES_MAX, "{}", cut.len());
    let mut stream = server.stream();
    stream.write_all(&cut[..cut.len() - 1]).unwrap();
    drop(stream);
    let mut client = server.client();
    for _ in 0..2 {
        let error = client.apply(batch.clone()).unwrap_err();
        assert!(matches!(&error, ClientError::Refused(Refusal { change: Some(0), .. })), "{error}");
    }
    assert_eq!(server.model.changed.load(Ordering::SeqCst), 0);
    let longer = ChangeSet { changes: vec![Change::Unconfigure; 2_000_000], ..batch };
    let error = client.apply(longer).unwrap_err().to_string();
    assert!(error.contains("expected at most 16777216"), "{error}");
    assert_eq!(client.apply(set(Global::RetryCount, 7)).unwrap(), [Effect::Changed]);
    assert_eq!(server.model.changed.load(Ordering::SeqCst), 1);
}

/// Parts that say nothing, and those without an end, are refused.
#[test]
fn parts_without_an_end_are_refused() {
    let server = Server::start();
    let part = |bytes: usize| {
        let mut part = b"LNCT\0\x04\0\x01".to_vec();
        part.extend(u32::try_from(bytes).unwrap().to_be_bytes());
        part.resize(part.len() + bytes, b' ');
        part
    };
    let answered = |parts: &[Vec<u8>]| {
        let mut stream = server.stream();
        for part in parts {
            // The daemon may have gone.
            let _ = stream.write_all(part);
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert!(answered(&[part(0)]).contains("a part of 0 bytes"));
    assert!(answered(&vec![part(PART_BYTES_MAX); 17]).contains("expected at most 0"));
}
