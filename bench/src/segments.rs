//! The limit of a link for datagrams of the kernel: one socket an end and one copy a side. Datagrams of the
//! MTU leave as one run, which the kernel cuts up as late as it can, and arrive as one where it has them
//! together (udp(7): `UDP_SEGMENT`, `UDP_GRO`).

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBufForce, UdpGroSegment, UdpGsoSegment};

use crate::link::{Link, Side};
use crate::measure::Flood;

/// Where the far end listens, of no protocol of this project's.
const PORT: u16 = 20_988;
/// Bytes of an IP packet at most.
const PACKET_BYTES_MAX: usize = 65_535;
/// Datagrams of a run at most (`UDP_MAX_SEGMENTS` of Linux before 6.9, `include/linux/udp.h`).
const SEGMENTS_MAX: usize = 64;
/// Bytes of datagrams that may wait for the far end.
const RECEIVE_BYTES: usize = 8 << 20;
const UDP_HEADER_BYTES: usize = 8;

/// Payload bytes of a datagram, and of a run, over a link of that MTU.
fn lengths(mtu_bytes: usize, is_ipv4: bool) -> (usize, usize) {
    let headers_bytes = UDP_HEADER_BYTES + if is_ipv4 { 20 } else { 40 };
    let datagram_bytes = mtu_bytes.min(PACKET_BYTES_MAX) - headers_bytes;
    // The headers of the first of them are in the length of the whole.
    let fit = (PACKET_BYTES_MAX - headers_bytes) / datagram_bytes;
    (datagram_bytes, datagram_bytes * fit.min(SEGMENTS_MAX))
}

fn ip(side: Side<'_>) -> anyhow::Result<IpAddr> {
    side.nid.ip().context("an end of the link has no address")
}

/// Floods the far end out of a buffer of so many bytes into another one: such messages, as if they had ends.
///
/// # Errors
/// The kernel's refusal.
pub fn flood(link: &Link, message_bytes: usize, time: Duration) -> anyhow::Result<Flood> {
    let (far, near) = (ip(link.far())?, ip(link.near())?);
    let (datagram_bytes, run_bytes) = lengths(link.mtu, far.is_ipv4());
    let received = AtomicU64::new(0);
    let (sent, time) = link.pair(
        |ready, stop| {
            let socket = UdpSocket::bind((far, PORT))?;
            setsockopt(&socket, RcvBufForce, &RECEIVE_BYTES).context("SO_RCVBUFFORCE")?;
            setsockopt(&socket, UdpGroSegment, &true).context("UDP_GRO")?;
            socket.set_nonblocking(true)?;
            ready();
            sink(&socket, message_bytes, (stop, &received));
            Ok(())
        },
        || {
            let socket = UdpSocket::bind((near, 0))?;
            socket.connect(SocketAddr::new(far, PORT))?;
            setsockopt(&socket, UdpGsoSegment, &(datagram_bytes as i32)).context("UDP_SEGMENT")?;
            let (message, mut run) = (vec![7; message_bytes.max(run_bytes)], vec![0; run_bytes]);
            let (begun, mut sent) = (Instant::now(), 0);
            while begun.elapsed() < time {
                for part in message.chunks_exact(run_bytes) {
                    run.copy_from_slice(part);
                    sent += socket.send(&run).context("a run of datagrams")? as u64;
                }
            }
            Ok((sent, begun.elapsed()))
        },
    )?;
    let messages = |bytes: u64| bytes / message_bytes as u64;
    Ok(Flood { sent: messages(sent), received: messages(received.into_inner()), time })
}

/// Copies what arrives into a buffer as long as a message, until told to stop.
fn sink(socket: &UdpSocket, message_bytes: usize, (stop, received): (&AtomicBool, &AtomicU64)) {
    let (mut run, mut message) = (vec![0; PACKET_BYTES_MAX], vec![0; message_bytes.max(PACKET_BYTES_MAX)]);
    let mut at = 0;
    while !stop.load(Ordering::Relaxed) {
        // Nothing is there, or what the other end has caused: it says so itself.
        let Ok(bytes) = socket.recv(&mut run) else {
            std::hint::spin_loop();
            continue;
        };
        if at + bytes > message.len() {
            at = 0;
        }
        message[at..at + bytes].copy_from_slice(&run[..bytes]);
        at += bytes;
        received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
    std::hint::black_box(&message);
}

#[cfg(test)]
mod tests {
    use super::lengths;

    #[test]
    fn runs_are_as_long_as_a_packet_may_be() {
        assert_eq!(lengths(1500, true), (1472, 44 * 1472));
        assert_eq!(lengths(9000, true), (8972, 7 * 8972));
        assert_eq!(lengths(9000, false), (8952, 7 * 8952));
        assert_eq!(lengths(65_535, true), (65_507, 65_507));
        assert_eq!(lengths(576, true), (548, 64 * 548));
    }
}
