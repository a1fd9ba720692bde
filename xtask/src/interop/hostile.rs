//! Diallers that break the rules of the protocol, from a third address, beside a kernel node under load.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The lab's own node in the nets of the kernel nodes.
pub(super) const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 50);
pub(super) const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 11);
const PORT: u16 = 988;
/// Ports of privileged diallers: LNet takes connections from these alone.
pub(super) const RESERVED: std::ops::Range<u16> = 600..1000;
/// Connections that say nothing, held open at once.
const SILENT: usize = 32;

const REQUEST_MAGIC: u32 = 0xACCE_7100;
const HELLO_MAGIC: u32 = 0x4572_6963;
/// The process id of every node.
pub(super) const PID: u32 = 12345;
/// Net of NIDs on `tcp`.
const TCP_NET: u64 = 2 << 48;

/// A NID in its small form.
pub(super) fn nid(address: Ipv4Addr) -> [u8; 8] {
    (TCP_NET | u64::from(u32::from(address))).to_le_bytes()
}

pub(super) fn request(target: Ipv4Addr) -> Vec<u8> {
    [&REQUEST_MAGIC.to_le_bytes()[..], &1_u32.to_le_bytes(), &nid(target)].concat()
}

/// A request and a HELLO of version 3 in the name of a node, for a connection of a type.
fn greeting(name: Ipv4Addr, connection: u32, address_count: u32) -> Vec<u8> {
    let mut bytes = request(OURS);
    bytes.extend(hello(3, [name, OURS], connection));
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&address_count.to_le_bytes());
    bytes
}

/// A HELLO of a version, 2 or 3, from one node to another, for a connection of a type, without addresses.
pub(super) fn hello(version: u32, [name, target]: [Ipv4Addr; 2], connection: u32) -> Vec<u8> {
    let mut bytes = HELLO_MAGIC.to_le_bytes().to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(nid(name));
    bytes.extend(nid(target));
    bytes.extend(PID.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes.extend(7_u64.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    bytes.extend(connection.to_le_bytes());
    bytes.extend(0_u32.to_le_bytes());
    bytes
}

/// What diallers say, one after the other.
fn words() -> Vec<Vec<u8>> {
    let half = greeting(STRANGER, 1, 0)[..30].to_vec();
    // A head of a message that tells of more payload than there may be.
    let lie = [greeting(STRANGER, 1, 0), vec![0xC1, 0, 0, 0], vec![0; 20], vec![0xFF; 72]].concat();
    vec![
        vec![],
        vec![0x55; 64],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        0x0BE9_1B91_u32.to_le_bytes().repeat(16),
        REQUEST_MAGIC.to_be_bytes().repeat(16),
        request(Ipv4Addr::new(10, 77, 0, 99)),
        half,
        [request(OURS), vec![0x55; 56]].concat(),
        greeting(STRANGER, 9, 0),
        greeting(STRANGER, 1, u32::MAX),
        // The name of the kernel node, which is connected from its own address.
        greeting(KERNEL, 1, 0),
        greeting(KERNEL, 3, 0),
        lie,
    ]
}

/// A stream from a reserved port, if one is free and the acceptor takes it.
pub(super) fn dial(port: u16, to: Ipv4Addr) -> Option<TcpStream> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()?;
    set_socket_reuseaddr(&socket, true).ok()?;
    bind(&socket, &SocketAddr::from((STRANGER, port))).ok()?;
    connect(&socket, &SocketAddr::from((to, PORT))).ok()?;
    Some(TcpStream::from(socket))
}

/// Has the calling thread be in a network namespace.
pub(super) fn enter(namespace: &str) -> Result<()> {
    let path = Path::new("/run/netns").join(namespace);
    let inside = File::open(&path).with_context(|| format!("no namespace {}", path.display()))?;
    move_into_link_name_space(inside.as_fd(), Some(LinkNameSpaceType::Network)).context("not moved there")
}

/// Dials until it is stopped, and counts.
fn dials(namespace: &str, stop: &AtomicBool, count: &AtomicU64) -> Result<()> {
    enter(namespace)?;
    let words = words();
    let mut silent = VecDeque::new();
    for (said, port) in words.iter().cycle().zip(RESERVED.cycle()) {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Some come from ports that LNet refuses.
        let port = if port.is_multiple_of(4) { 0 } else { port };
        let Some(mut stream) = dial(port, OURS) else { continue };
        count.fetch_add(1, Ordering::Relaxed);
        // The node may have closed the stream by then.
        let _ = stream.write_all(said);
        if said.len() < 40 {
            silent.push_back(stream);
            if silent.len() > SILENT {
                silent.pop_front();
            }
            continue;
        }
        stream.set_read_timeout(Some(Duration::from_millis(20)))?;
        let _ = stream.read(&mut [0; 256]);
    }
    Ok(())
}

/// Has diallers disturb our daemon as long as `body` runs: what that gives, and how often it was dialled.
pub(super) fn beside_diallers<T>(namespace: &str, body: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let dialler = scope.spawn(|| dials(namespace, &stop, &count));
        let done = body();
        stop.store(true, Ordering::Relaxed);
        let dialled = dialler.join().map_err(|_| anyhow::anyhow!("the dialler has panicked"))?;
        let done = done?;
        dialled?;
        let count = count.load(Ordering::Relaxed);
        ensure!(count > words().len() as u64, "only {count} diallers came through");
        Ok((done, count))
    })
}
