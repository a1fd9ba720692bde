//! Messages that a rule is about.

use alloc::format;
use alloc::string::ToString;
use core::ops::BitOr;

use lnet_wire::{Body, Header, MessageType, Nid};

#[cfg(feature = "serde")]
use serde::{Deserialize, Serialize};

use crate::errno::{Errno, Refusal};
use crate::pattern::no_ni;

/// A set of message types, with the bits of LNet's rules.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "u32", try_from = "u32"))]
pub struct MessageTypes(u8);

impl MessageTypes {
    /// No types; in a filter as good as all.
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

    /// The types that a rule can be about, by name.
    pub const NAMED: [(&'static str, Self); 4] =
        [("ACK", Self::ACK), ("PUT", Self::PUT), ("GET", Self::GET), ("REPLY", Self::REPLY)];

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

impl From<MessageTypes> for u32 {
    fn from(types: MessageTypes) -> Self {
        types.bits()
    }
}

impl TryFrom<u32> for MessageTypes {
    type Error = Refusal;

    fn try_from(bits: u32) -> Result<Self, Refusal> {
        let refused =
            || Refusal::new(Errno::INVAL, format!("message types {bits:#x}: bits of 0xf are expected"));
        Self::from_bits(bits).ok_or_else(refused)
    }
}

impl BitOr for MessageTypes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The messages that a rule is about: those that pass every test. A NID matches if it is equal, or the rule's
/// is the wildcard, or the rule's is `255.255.255.255` on the same net.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize, Deserialize))]
pub struct Filter {
    /// The header's source.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub source: Nid,
    /// The header's destination.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub destination: Nid,
    /// The NI that receives. A rule that names one drops what arrives, and does nothing else.
    #[cfg_attr(feature = "serde", serde(with = "crate::text"))]
    pub local_nid: Nid,
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
        local_nid: Nid::ANY,
        messages: MessageTypes::ALL,
        portals: 0,
    };

    /// The filter in plain terms: with the types that it can really pass.
    ///
    /// # Errors
    /// [`Refusal`]: portals of messages that have none, or a NID that no NI can have.
    pub fn checked(mut self) -> Result<Self, Refusal> {
        let Self { source, destination, local_nid, messages, portals } = self;
        let is_nowhere = |nid: &Nid| !(nid.is_any() || is_whole_net(nid) || nid.can_name_an_ni());
        if let Some(nid) = [source, destination, local_nid].into_iter().find(is_nowhere) {
            return Err(no_ni(&nid.to_string()));
        }
        let messages = if messages == MessageTypes::NONE { MessageTypes::ALL } else { messages };
        self.messages = messages;
        if portals != 0 {
            self.messages = MessageTypes(messages.0 & (MessageTypes::PUT | MessageTypes::GET).0);
            if self.messages == MessageTypes::NONE {
                let message = "portals go with PUT or GET, not with ACK and REPLY alone";
                return Err(Refusal::new(Errno::INVAL, message));
            }
        }
        Ok(self)
    }

    /// Whether it passes a message that arrives by the NI `local`, or that has none to be asked about:
    /// one on its way out, or any if the rule is not one that drops.
    #[must_use]
    pub fn matches(&self, local: Option<&Nid>, header: &Header) -> bool {
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
            && local.map_or(self.local_nid.is_any(), |local| nid_matches(&self.local_nid, local))
    }
}

fn nid_matches(pattern: &Nid, nid: &Nid) -> bool {
    pattern.is_any() || pattern == nid || is_whole_net(pattern) && pattern.net() == nid.net()
}

/// Whether a NID stands for all of its net.
fn is_whole_net(nid: &Nid) -> bool {
    nid.to_small().is_some_and(|small| small as u32 == u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nids_that_no_ni_has_are_refused_and_those_of_a_whole_net_are_not() {
        let named = |text: &str| {
            let nid = crate::pattern::fault_nid(text).unwrap();
            [
                Filter { source: nid, ..Filter::EVERYTHING },
                Filter { destination: nid, ..Filter::EVERYTHING },
                Filter { local_nid: nid, ..Filter::EVERYTHING },
            ]
        };
        for good in ["*", "*@tcp", "*@xdp3", "10.0.0.1@tcp", "2001:db8::1@tcp", "0@lo"] {
            assert!(named(good).into_iter().all(|filter| filter.checked().is_ok()), "{good}");
        }
        for bad in ["127.0.0.1@tcp", "0.0.0.0@tcp", "224.0.0.1@xdp", "::1@tcp"] {
            for filter in named(bad) {
                let refused = filter.checked().unwrap_err().message;
                assert_eq!(refused, no_ni(bad).message);
            }
        }
    }
}
