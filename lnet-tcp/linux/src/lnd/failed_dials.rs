//! Lines of the log on connections that could not be made.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lnet_core::time::Instant;
use lnet_wire::Nid;

/// How long nothing more is said of dials of the same peer that fail by the same errno.
const INTERVAL: Duration = Duration::from_secs(60);
/// Peers that are told apart.
const PEERS_MAX: usize = 1024;

/// Failures that the log has told: of which peers, with which errno, and when.
#[derive(Default)]
pub(super) struct FailedDials(HashMap<Nid, (u8, Instant)>);

impl FailedDials {
    /// Logs that a connection with a peer could not be made, unless that was logged not long ago.
    pub(super) fn note(&mut self, now: Instant, nid: Nid, address: SocketAddr, errno: u8) {
        if self.is_news(now, nid, errno) {
            let error = io::Error::from_raw_os_error(errno.into());
            tracing::warn!(peer = %nid, %address, %error, "a connection with a peer cannot be made");
        }
    }

    fn is_news(&mut self, now: Instant, nid: Nid, errno: u8) -> bool {
        if self.0.len() >= PEERS_MAX {
            self.0.retain(|_, (_, told)| now < *told + INTERVAL);
        }
        match self.0.get(&nid) {
            Some((known, told)) if *known == errno && now < *told + INTERVAL => return false,
            None if self.0.len() >= PEERS_MAX => return false,
            _ => {}
        }
        self.0.insert(nid, (errno, now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nid(host: u32) -> Nid {
        format!("10.0.{}.{}@tcp", host >> 8, host & 0xff).parse().unwrap()
    }

    #[test]
    fn a_failed_dial_is_told_once_in_a_while_and_when_it_fails_otherwise() {
        let mut dials = FailedDials::default();
        let mut at = |seconds: u64, errno| dials.is_news(Instant(seconds * 1_000_000_000), nid(1), errno);
        assert!(at(0, 111));
        assert!(!at(1, 111));
        assert!(at(2, 113));
        assert!(!at(61, 113));
        assert!(at(62, 113));
    }

    #[test]
    fn so_many_peers_are_told_of_and_no_more() {
        let mut dials = FailedDials::default();
        let told = (0..2000).filter(|host| dials.is_news(Instant(1), nid(*host), 111)).count();
        assert_eq!(told, PEERS_MAX);
        let later = Instant(1) + INTERVAL;
        assert!(dials.is_news(later, nid(1999), 111));
        assert_eq!(dials.0.len(), 1);
    }
}
