//! Memory that clients hold together, and how others are served meanwhile. The tests are a program of their
//! own, since they measure the process and take its descriptors away. They go one behind the other.
#![expect(clippy::unwrap_used, reason = "helpers outside of test functions fail the test as well")]

#[path = "../socket/harness.rs"]
mod harness;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use harness::Server;
use lnet_control::ControlRequest;
use lnet_control::protocol::{self, HEADER_BYTES, MAGIC, REPLY_BYTES_MAX, REQUEST_BYTES_MAX, VERSION};
use lnet_control::server::ServerLimits;
use lnet_model::records::PeerQuery;
use lnet_model::request::{Change, ChangeSet};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PEERS: usize = 5000;
const HOSTILE: usize = 120;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory of this process, in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn server(peers: usize) -> Server {
    let server = Server::start();
    server.model.peer_count.store(peers, Ordering::SeqCst);
    server
}

fn message(request: &ControlRequest) -> Vec<u8> {
    protocol::encode(request, REQUEST_BYTES_MAX).unwrap()
}

/// Reads a reply, and returns how many bytes it has.
fn read_reply(stream: &mut UnixStream) -> usize {
    let (mut header, mut bytes) = ([0; HEADER_BYTES], 0);
    loop {
        stream.read_exact(&mut header).unwrap();
        let mut json = vec![0; protocol::read_header(&header, REPLY_BYTES_MAX).unwrap()];
        stream.read_exact(&mut json).unwrap();
        bytes += json.len();
        if !protocol::has_more(&header) {
            return bytes;
        }
    }
}

/// Many clients that ask for much and read nothing; what the daemon takes for them, in bytes, while a friend
/// is served.
fn taken_by(server: &Server, bytes: &[u8], friend: impl Fn(&Server)) -> u64 {
    let before = resident();
    let mut silent: Vec<_> = (0..HOSTILE).map(|_| server.stream()).collect();
    let mut most = 0;
    for stream in &mut silent {
        stream.set_nonblocking(true).unwrap();
        // The kernel takes as much of it as it has room for.
        let _ = stream.write(bytes);
        most = most.max(resident().saturating_sub(before));
    }
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(10));
        most = most.max(resident().saturating_sub(before));
    }
    friend(server);
    most.max(resident().saturating_sub(before))
}

fn all_peers(server: &Server) {
    let begun = Instant::now();
    assert_eq!(server.client().peers().unwrap().len(), PEERS);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn clients_that_do_not_read_hold_little_and_hold_no_other_up() {
    let _alone = alone();
    let server = server(PEERS);
    all_peers(&server);
    // Ahead of the first reply there is room for many requests.
    let asked = message(&ControlRequest::PeerPage(PeerQuery::default())).repeat(2000);
    let taken = taken_by(&server, &asked, all_peers);
    assert!(taken < 100 << 20, "{} MiB", taken >> 20);
}

/// Long replies, of which the budget holds a few at a time: those that read nothing go for those that wait.
#[test]
fn long_replies_that_are_not_read_make_room() {
    let _alone = alone();
    let limits = ServerLimits { budget_bytes: 4 << 20, ..ServerLimits::default() };
    let server = Server::with_limits(limits);
    server.model.cpt_count.store(1 << 14, Ordering::SeqCst);
    let friend = |server: &Server| {
        let begun = Instant::now();
        let cpts = server.client().cpts_of(Vec::new()).unwrap();
        assert_eq!(cpts.len(), 1 << 14);
        // Each time as many as there is room for wait out the stall time, of one second.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        // A short request waits for none of them.
        let begun = Instant::now();
        server.client().globals().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    };
    friend(&server);
    let taken = taken_by(&server, &message(&ControlRequest::CptsOf(Vec::new())), friend);
    assert!(taken < 64 << 20, "{} MiB", taken >> 20);
}

/// Requests that are long and stop before their end, and long ones that wait for others.
#[test]
fn long_requests_that_do_not_end_make_room() {
    let _alone = alone();
    let server = server(0);
    let changes = || vec![Change::Unconfigure; 60_000];
    let request =
        message(&ControlRequest::Apply(ChangeSet { changes: changes(), dry_run: true, generation: None }));
    let friend = |server: &Server| {
        let begun = Instant::now();
        let batch = ChangeSet { changes: changes(), dry_run: true, generation: None };
        let refused = server.client().apply(batch).unwrap_err();
        assert!(refused.to_string().contains("globals only"), "{refused}");
        // Silent clients wait out the stall time here too.
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    };
    friend(&server);
    let taken = taken_by(&server, &request[..request.len() - 1], friend);
    assert!(taken < 150 << 20, "{} MiB", taken >> 20);
}

#[test]
fn a_hundred_clients_that_ask_for_all_peers_at_once_are_all_served() {
    let _alone = alone();
    let server = server(1000);
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| assert_eq!(server.client().peers().unwrap().len(), 1000));
        }
    });
}

/// A reader that is slow as a whole, and never for as long as it may read nothing.
#[test]
fn a_client_that_reads_on_is_not_cut_off() {
    let _alone = alone();
    let limits = ServerLimits { reply_time: Duration::from_millis(300), ..ServerLimits::default() };
    let server = Server::with_limits(limits);
    server.model.cpt_count.store(1 << 16, Ordering::SeqCst);
    let mut stream = server.stream();
    stream.write_all(&message(&ControlRequest::CptsOf(Vec::new()))).unwrap();
    let (begun, mut header, mut some) = (Instant::now(), [0; HEADER_BYTES], vec![0; 1 << 17]);
    let mut bytes = 0;
    loop {
        stream.read_exact(&mut header).unwrap();
        let mut left = protocol::read_header(&header, REPLY_BYTES_MAX).unwrap();
        bytes += left;
        while left > 0 {
            thread::sleep(Duration::from_millis(100));
            let length = left.min(some.len());
            stream.read_exact(&mut some[..length]).unwrap();
            left -= length;
        }
        if !protocol::has_more(&header) {
            break;
        }
    }
    assert!(bytes > 1 << 20, "{bytes}");
    assert!(begun.elapsed() > 2 * limits.reply_time, "too fast to tell");
    stream.write_all(&message(&ControlRequest::Globals)).unwrap();
    assert!(read_reply(&mut stream) > 0);
}

/// The version and the magic of a message that says that so much follows.
fn header(length: u32) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_be_bytes());
    header.extend([0; 2]);
    header.extend(length.to_be_bytes());
    header
}

/// A process without descriptors accepts no client, and serves those that are there as before.
#[test]
fn without_descriptors_those_that_are_there_are_served_as_before() {
    let _alone = alone();
    let server = server(0);
    let mut client = server.client();
    client.globals().unwrap();
    let mut newcomer_streams: Vec<UnixStream> = Vec::new();
    let limit = getrlimit(Resource::Nofile);
    // Descriptors are taken until none is left, but for the client's end of a newcomer.
    let mut taken = Vec::new();
    let spare = File::open("/dev/null").unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..limit }).unwrap();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    drop(spare);
    newcomer_streams.push(UnixStream::connect(&server.socket).unwrap());
    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    while begun.elapsed() < Duration::from_millis(500) {
        let asked = Instant::now();
        client.globals().unwrap();
        longest = longest.max(asked.elapsed());
    }
    drop(taken);
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(longest < Duration::from_millis(50), "{longest:?}");
    // The newcomer's turn comes.
    let stream = &mut newcomer_streams[0];
    stream.write_all(&message(&ControlRequest::Globals)).unwrap();
    assert!(read_reply(stream) > 0);
    // A length alone takes no room.
    let before = resident();
    let mut hollow: Vec<_> = (0..HOSTILE).map(|_| server.stream()).collect();
    hollow.iter_mut().for_each(|stream| stream.write_all(&header(REQUEST_BYTES_MAX as u32)).unwrap());
    server.client().globals().unwrap();
    assert!(resident().saturating_sub(before) < 32 << 20);
}
