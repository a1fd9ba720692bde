//! Which way a node waits, and moves the bytes of sockets.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::net::{Ipv4Addr, SocketAddr};

use rustix::io::Errno;

use super::tcp::{Streams, StreamsConfig, TcpError};
use super::udp::{Endpoint, EndpointConfig, UdpError, UdpSocket};
use super::{WaitError, Waiter};

/// How a node waits, and moves the bytes of sockets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Reactor {
    /// By rings, on which the kernel goes on by itself: the fast way.
    #[default]
    IoUring,
    /// By readiness, and system calls for many datagrams at once.
    Epoll,
}

impl Reactor {
    /// Name of the reactor in options and records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        }
    }
}

impl fmt::Display for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reactor that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ReactorChoice {
    /// The best one that works here.
    #[default]
    Auto,
    /// `io_uring`, or no node.
    IoUring,
    /// `epoll`.
    Epoll,
}

impl ReactorChoice {
    const ALL: [Self; 3] = [Self::Auto, Self::IoUring, Self::Epoll];
    /// Names of all choices.
    pub const NAMES: [&'static str; 3] = [Self::ALL[0].name(), Self::ALL[1].name(), Self::ALL[2].name()];

    /// Name of the choice in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::IoUring => Reactor::IoUring.name(),
            Self::Epoll => Reactor::Epoll.name(),
        }
    }

    /// The reactor that a node has by this choice. Automatic, it is `io_uring` unless the kernel refuses that
    /// or lacks an operation that a waiter, a UDP socket or streams need: each of them is made once to find
    /// out.
    #[must_use]
    pub fn choose(self) -> Chosen {
        let asked = |reactor| Chosen { reactor, refusal: None };
        match self {
            Self::IoUring => asked(Reactor::IoUring),
            Self::Epoll => asked(Reactor::Epoll),
            Self::Auto => match try_io_uring() {
                Ok(()) => asked(Reactor::IoUring),
                Err(refusal) => Chosen { reactor: Reactor::Epoll, refusal: Some(refusal) },
            },
        }
    }
}

impl fmt::Display for ReactorChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A word that names no reactor.
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
#[error("reactor {0:?}: auto, io_uring or epoll is expected")]
pub struct UnknownReactor(String);

impl FromStr for ReactorChoice {
    type Err = UnknownReactor;

    fn from_str(word: &str) -> Result<Self, UnknownReactor> {
        let found = Self::ALL.into_iter().find(|choice| choice.name() == word);
        found.ok_or_else(|| UnknownReactor(word.to_owned()))
    }
}

/// The reactor that a node has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Which one.
    pub reactor: Reactor,
    /// Why it is not `io_uring`, where that was tried.
    pub refusal: Option<String>,
}

/// Makes one of each thing that needs a ring; why it cannot be had. Failures of another
/// kind are told when the things themselves are made.
fn try_io_uring() -> Result<(), String> {
    // A seccomp profile may refuse any of the three system calls. A wait takes them all.
    let waited = Waiter::new(1, Reactor::IoUring)
        .and_then(|mut waiter| waiter.arm().wait(Some(Duration::ZERO), |_| {}));
    if let Err(error) = waited {
        return if is_lacking(&error) { Err(error.to_string()) } else { Ok(()) };
    }
    let reactor = Reactor::IoUring;
    let sizes = EndpointConfig {
        receive_buffers: 1,
        send_buffers: 1,
        datagram_max_bytes: 1,
        receives_runs: false,
        reactor,
    };
    let socket = UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), None);
    match socket.and_then(|socket| Endpoint::new(socket, &sizes)) {
        Err(error @ UdpError::Unsupported { .. }) => return Err(error.to_string()),
        Err(UdpError::Ring(error)) if is_lacking(&error) => return Err(error.to_string()),
        _ => {}
    }
    let sizes = StreamsConfig {
        streams_max: 1,
        receive_buffers: 1,
        receive_buffer_bytes: 1,
        zero_copy_min_bytes: u32::MAX,
        reactor,
    };
    match Streams::new(&sizes) {
        Err(error @ TcpError::Unsupported { .. }) => Err(error.to_string()),
        Err(TcpError::Ring(error)) if is_lacking(&error) => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// Whether `io_uring` is refused, or too old. Kernels that count rings among locked memory are too old as
/// well.
const fn is_lacking(error: &WaitError) -> bool {
    matches!(
        error,
        WaitError::NotPermitted { .. }
            | WaitError::Unsupported { .. }
            | WaitError::MemoryLock { .. }
            | WaitError::System { source: Errno::PERM | Errno::ACCESS | Errno::NOSYS, .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_taken_where_they_work() {
        let chosen = ReactorChoice::Auto.choose();
        match Waiter::new(1, Reactor::IoUring) {
            Ok(_) => assert_eq!(chosen, Chosen { reactor: Reactor::IoUring, refusal: None }),
            Err(error) => {
                assert_eq!(chosen, Chosen { reactor: Reactor::Epoll, refusal: Some(error.to_string()) });
            }
        }
    }

    #[test]
    fn choices_are_read_as_they_are_written() {
        for choice in ReactorChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        let unknown = "poll".parse::<ReactorChoice>().unwrap_err().to_string();
        assert!(ReactorChoice::NAMES.iter().all(|name| unknown.contains(name)), "{unknown}");
        assert_eq!(ReactorChoice::Epoll.choose(), Chosen { reactor: Reactor::Epoll, refusal: None });
    }
}
