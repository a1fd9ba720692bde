//! Bare sockets of the kernel, one an end, which poll or sleep: half round trips of messages, beside which
//! nodes over sockets stand.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use lnet_load::Distribution;

use crate::link::Link;
use crate::measure::PATIENCE;
use crate::others::Protocol;

/// Port at which the far end listens, of no protocol of this project's.
const PORT: u16 = 20_989;
/// Time that an end sleeps before it looks whether it is to stop.
const TICK: Duration = Duration::from_millis(10);

/// A connected socket.
#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Socket {
    fn tcp(stream: TcpStream, polls: bool) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(polls)?;
        stream.set_read_timeout(Some(TICK))?;
        Ok(Self::Tcp(stream))
    }

    fn udp(socket: UdpSocket, polls: bool) -> io::Result<Self> {
        socket.set_nonblocking(polls)?;
        socket.set_read_timeout(Some(TICK))?;
        Ok(Self::Udp(socket))
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Udp(socket) => socket.send(bytes),
        }
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(bytes),
            Self::Udp(socket) => socket.recv(bytes),
        }
    }
}

/// Moves as many bytes as a message has, unless the other end has closed the stream; whether it is whole.
fn whole(
    bytes: usize,
    goes_on: &dyn Fn() -> bool,
    mut part: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<bool> {
    let mut done = 0;
    while done < bytes && goes_on() {
        match part(done) {
            Ok(0) => return Ok(false),
            Ok(moved) => done += moved,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                std::hint::spin_loop();
            }
            Err(error) => return Err(error),
        }
    }
    Ok(done == bytes)
}

/// Socket at which the far end is reached.
#[derive(Debug)]
enum Listening {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Listening {
    fn bind(address: SocketAddr, protocol: Protocol) -> io::Result<Self> {
        Ok(match protocol {
            Protocol::Tcp => Self::Tcp(TcpListener::bind(address)?),
            Protocol::Udp => Self::Udp(UdpSocket::bind(address)?),
        })
    }

    /// Waits for a peer; `None` once it is to go on no more.
    fn accept(self, peer: SocketAddr, polls: bool, goes_on: &dyn Fn() -> bool) -> io::Result<Option<Socket>> {
        let listener = match self {
            Self::Tcp(listener) => listener,
            Self::Udp(socket) => {
                socket.connect(peer)?;
                return Socket::udp(socket, polls).map(Some);
            }
        };
        listener.set_nonblocking(true)?;
        while goes_on() {
            match listener.accept() {
                Ok((stream, _)) => return Socket::tcp(stream, polls).map(Some),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// Sends each message back, until told to stop or the other end has gone.
fn echo(
    listening: Listening,
    peer: SocketAddr,
    (polls, bytes): (bool, usize),
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    let goes_on = || !stop.load(Ordering::Relaxed);
    let Some(mut socket) = listening.accept(peer, polls, &goes_on)? else { return Ok(()) };
    let mut message = vec![0; bytes];
    while whole(bytes, &goes_on, |done| socket.receive(&mut message[done..]))?
        && whole(bytes, &goes_on, |done| socket.send(&message[done..]))?
    {}
    Ok(())
}

/// Half round trips of messages between two sockets, in nanoseconds, with a pause after each; the first tenth
/// does not count. Ends that do not poll sleep in the kernel.
///
/// # Errors
/// The kernel's refusal, or a message that does not come back.
pub fn ping(
    link: &Link,
    protocol: Protocol,
    (polls, bytes): (bool, usize),
    (count, pause): (u64, Duration),
) -> anyhow::Result<Distribution> {
    let address = |nid: lnet_wire::Nid| {
        let ip = nid.ip().context("an end of the link has no address")?;
        anyhow::Ok(SocketAddr::new(ip, PORT))
    };
    let (near, far) = (address(link.nid_a)?, address(link.nid_b)?);
    link.pair(
        |ready, stop| {
            let listening = Listening::bind(far, protocol)?;
            ready();
            echo(listening, near, (polls, bytes), stop)
        },
        || {
            let mut socket = match protocol {
                Protocol::Tcp => Socket::tcp(TcpStream::connect(far)?, polls)?,
                Protocol::Udp => {
                    let socket = UdpSocket::bind(near)?;
                    socket.connect(far)?;
                    Socket::udp(socket, polls)?
                }
            };
            let (mut half_ns, mut message) = (Distribution::measured(), vec![7; bytes]);
            let warm_up = count / 10;
            for round in 0..count + warm_up {
                let begun = Instant::now();
                let goes_on = || begun.elapsed() < PATIENCE;
                let is_back = whole(bytes, &goes_on, |done| socket.send(&message[done..]))?
                    && whole(bytes, &goes_on, |done| socket.receive(&mut message[done..]))?;
                ensure!(is_back, "message {round} did not come back");
                let elapsed = begun.elapsed();
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
                if round >= warm_up {
                    half_ns.record_time(elapsed / 2);
                }
            }
            Ok(half_ns)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_whole_however_ends_wait() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        for polls in [true, false] {
            let listener = TcpListener::bind(address(0)).unwrap();
            let far = listener.local_addr().unwrap();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| echo(Listening::Tcp(listener), address(1), (polls, 100_000), &stop).unwrap());
                let mut socket = Socket::tcp(TcpStream::connect(far).unwrap(), polls).unwrap();
                let (sent, mut back) = (vec![3; 100_000], vec![0; 100_000]);
                assert!(whole(sent.len(), &|| true, |done| socket.send(&sent[done..])).unwrap());
                assert!(whole(back.len(), &|| true, |done| socket.receive(&mut back[done..])).unwrap());
                assert_eq!(sent, back);
                stop.store(true, Ordering::Relaxed);
            });
        }
    }
}
