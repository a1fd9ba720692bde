//! What a [`Socklnd`](super::Socklnd) has counted.

use lnet_wire::named;

named! {
    /// What may happen to a connection.
    #[non_exhaustive]
    SocklndEvent {
        /// A peer has opened one.
        Accepted => "accepted",
        /// This node opens one.
        Dialled => "dialled",
        /// Both HELLOs were fine.
        Established => "established",
        /// A connection ended, by the peer or by the network.
        Closed => "closed",
        /// A connection broke: its peer or the network has ended it by an error, or while messages were under
        /// way by it or by another one of the peer.
        Broken => "broken",
        /// A connection could not be opened.
        DialFailed => "dial_failed",
        /// The peer said NONE.
        Refused => "refused",
        /// A peer dialled while this node dialled it, and this node's NID is the larger one.
        RaceLost => "race_lost",
        /// A peer has as many of the type as it may have.
        Duplicate => "duplicate",
        /// A peer has begun a new life, or speaks another protocol by now.
        Restarted => "restarted",
        /// A dialler without a privileged port.
        Unprivileged => "unprivileged",
        /// The oldest handshake ended, since as many as may be were under way.
        HandshakesFull => "handshakes_full",
        /// A handshake was not done in time.
        HandshakeTimeout => "handshake_timeout",
        /// There is no room for another connection.
        ConnectionsFull => "connections_full",
        /// There is no room for another peer.
        PeersFull => "peers_full",
        /// Neither a connection request nor anything that has an answer.
        BadRequest => "bad_request",
        /// A request for a NID that is none of this node's.
        UnknownTarget => "unknown_target",
        /// A HELLO in the name of a peer that is connected from its own address, from another address.
        Impostor => "impostor",
        /// A name ended that was claimed from an address which is not its own, since others were from there.
        NamesFull => "names_full",
        /// No HELLO, or one that breaks a rule or comes from another peer than was dialled.
        BadHello => "bad_hello",
        /// No message, or one that breaks a rule.
        BadMessage => "bad_message",
        /// A message for another node on the same net, or another NI of this one.
        WrongDestination => "wrong_destination",
        /// An acknowledgement that was not asked for.
        UnknownCookie => "unknown_cookie",
        /// A checksum that is wrong.
        BadChecksum => "bad_checksum",
        /// More arrived of or behind a message that waits than the driver can store.
        Overrun => "overrun",
        /// Nothing moved for too long.
        Stalled => "stalled",
    }
}

/// Counts, by what happened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SocklndCounters([u64; SocklndEvent::ALL.len()]);

impl SocklndCounters {
    pub(super) const fn add(&mut self, event: SocklndEvent) {
        self.0[event as usize] += 1;
    }

    /// How often it has happened.
    #[must_use]
    pub const fn get(&self, event: SocklndEvent) -> u64 {
        self.0[event as usize]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SocklndEvent, u64)> + '_ {
        SocklndEvent::ALL.into_iter().map(|event| (event, self.get(event)))
    }
}
