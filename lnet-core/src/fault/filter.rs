//! Which messages a rule is about.

use core::ops::BitOr;

use lnet_wire::{Body, Header, MessageType, Nid};

use super::FaultError;

/// A set of message types, with the bits of LNet's rules.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MessageTypes(u8);

impl MessageTypes {
    /// None of them; in a filter as good as all.
    pub const NONE: Self = Self(0);
    /// ACKs.
    pub const ACK: Self = Self(1);
    /// PUTs.
    pub const PUT: Self = Self(2);
    /// GETs.
    pub const GET: Self = Self(4);
    /// REPLYs.
    pub const REPLY: Self = Self(8);
    /// All of them.
    pub const ALL: Self = Self(15);

    /// The set with these bits; `None` if one of them stands for nothing.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits > Self::ALL.0 as u32 { None } else { Some(Self(bits as u8)) }
    }

    /// The set as bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Whether messages of this type are among them.
    #[must_use]
    pub const fn contains(self, message_type: MessageType) -> bool {
        // The bits stand in the order of the types' numbers.
        self.0 >> message_type as u32 & 1 != 0
    }
}

impl BitOr for MessageTypes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Which messages a rule is about: those that pass every test. A NID matches if it is equal, or the rule's
/// is the wildcard, or the rule's is `255.255.255.255` on the same net.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The header's source.
    pub source: Nid,
    /// The header's destination.
    pub destination: Nid,
    /// The interface that receives. A rule that names one drops what arrives, and does nothing else.
    pub local: Nid,
    /// The types; [`MessageTypes::NONE`] is as good as all.
    pub messages: MessageTypes,
    /// Bit n is portal n; 0 is as good as all. If it is not 0, the rule is about PUTs and GETs only.
    pub portals: u64,
}

impl Filter {
    /// Every message.
    pub const EVERYTHING: Self = Self {
        source: Nid::ANY,
        destination: Nid::ANY,
        local: Nid::ANY,
        messages: MessageTypes::ALL,
        portals: 0,
    };

    /// The filter in plain terms, if it makes sense: the types that it can really pass.
    pub(super) fn checked(mut self) -> Result<Self, FaultError> {
        let Self { messages, portals, .. } = self;
        let messages = if messages == MessageTypes::NONE { MessageTypes::ALL } else { messages };
        self.messages = messages;
        if portals != 0 {
            self.messages = MessageTypes(messages.0 & (MessageTypes::PUT | MessageTypes::GET).0);
            if self.messages == MessageTypes::NONE {
                return Err(FaultError::Portals { portals, messages });
            }
        }
        Ok(self)
    }

    /// Whether it passes a message that arrives by the interface `local`, or that has none to be asked about:
    /// one on its way out, or any if the rule is not one that drops.
    pub(super) fn matches(&self, local: Option<&Nid>, header: &Header) -> bool {
        let portal_fits = match header.body {
            Body::Put { portal, .. } | Body::Get { portal, .. } => {
                self.portals == 0 || self.portals.checked_shr(portal).is_some_and(|bits| bits & 1 != 0)
            }
            Body::Ack { .. } | Body::Reply { .. } | Body::Hello { .. } => true,
        };
        portal_fits
            && self.messages.contains(header.message_type())
            && nid_matches(&self.source, &header.source.nid)
            && nid_matches(&self.destination, &header.destination.nid)
            && local.map_or(self.local.is_any(), |local| nid_matches(&self.local, local))
    }
}

fn nid_matches(pattern: &Nid, nid: &Nid) -> bool {
    pattern.is_any() || pattern == nid || is_whole_net(pattern) && pattern.net() == nid.net()
}

/// Whether a NID stands for all of its net.
fn is_whole_net(nid: &Nid) -> bool {
    nid.to_small().is_some_and(|small| small as u32 == u32::MAX)
}
