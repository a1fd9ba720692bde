//! The rpc transport (`RP-` of the catalogue of tests), over loopback. A process has one server: the tests go
//! one behind the other.
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

#[path = "../any/mod.rs"]
mod any;
#[path = "../common/mod.rs"]
mod common;

mod connections;
mod operations;
mod others;
mod processes;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{PATIENCE, Party};
use lnet_messaging::transport::Transport;
use lnet_messaging::{Errno, RpcTransport};

static SERIAL: Mutex<()> = Mutex::new(());

/// A port that nothing else in this process listens on at the moment.
struct Place {
    _serial: MutexGuard<'static, ()>,
    port: u16,
}

impl Place {
    fn new() -> Self {
        let serial = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
        Self { _serial: serial, port: free_port() }
    }

    fn address(&self, service: u32) -> String {
        format!("{}:{}:{service}", host(), self.port)
    }

    /// Two transfer machines, with domains of their own.
    fn pair(&self) -> [Party; 2] {
        [1, 2].map(|service| Party::started(&rpc(), &self.address(service)))
    }
}

/// A loopback address that other test processes leave alone.
fn host() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 1 + high, middle, low)
}

/// A port of that address that had no listener before, below those that the kernel gives to connections.
/// Binding one to see that it is free would leave it in use for as long as a child of another test has not
/// called exec.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn rpc() -> Arc<dyn Transport> {
    RpcTransport::default().shared()
}

/// Waits for a condition.
#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Bytes of a call before its arguments.
const CALL_HEAD_BYTES: usize = 40;

/// The next record on a connection, which is in one piece.
fn read_record(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).ok()?;
    let mut record = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    stream.read_exact(&mut record).ok()?;
    Some(record)
}

fn write_record(stream: &mut TcpStream, record: &[u8]) {
    let mark = (record.len() as u32 | 1 << 31).to_be_bytes();
    stream.write_all(&[&mark[..], record].concat()).unwrap();
}

/// The next call on a connection: its number, its procedure and its arguments.
fn read_call(stream: &mut TcpStream) -> Option<(u32, u32, Vec<u8>)> {
    let record = read_record(stream)?;
    let word = |at: usize| u32::from_be_bytes(record[4 * at..4 * at + 4].try_into().unwrap());
    Some((word(0), word(5), record[CALL_HEAD_BYTES..].to_vec()))
}

/// Answers a call with these words.
fn reply(stream: &mut TcpStream, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    write_record(stream, &bytes);
}

/// Answers a call with success, and these words as its results.
fn succeed(stream: &mut TcpStream, xid: u32, results: &[u32]) {
    reply(stream, &[&[xid, 1, 0, 0, 0, 0], results].concat());
}

/// What becomes of buffers that are deleted.
const CANCELED: Result<(), Errno> = Err(Errno::Canceled);
