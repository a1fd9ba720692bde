//! Session tokens: what a node gives to the nodes that ask for a session, and recognises without having kept
//! it.
//!
//! A token says when it was made and for whom, authenticated by a key of this life of the node. So one from
//! a former life is worth nothing, and one that was never given cannot be guessed. It is given to an
//! incarnation at one of its addresses, sent there, and good for frames from there: who shows it has heard
//! what is said to that node.
//!
//! Tokens are keyed by the portals' policies: numbers of frames that other policies steered mean nothing to
//! their new shard. They name whether checksums were wanted and runs were taken, so an NI of which something
//! else is true from now on is asked anew.

use core::hash::Hasher;

use lnet_core::time::Instant;
use lnet_wire::Nid;
use lnet_wire::frame::Transfer;
use lnet_wire::steer::{PORTALS, PolicyWord};
use siphasher::sip::SipHasher13;

use super::Sessions;
use crate::contract::Arrived;

/// Tokens count time in units of 2^30 ns.
const UNIT_SHIFT: u32 = 30;
const TIME_BITS: u32 = 20;
const MAC_BITS: u32 = 64 - TIME_BITS;
/// Units in which a token can make a receiver remember its sender. Afterwards it is good only where the
/// sender is remembered still, so a frame that was long under way never finds an empty window.
const FRESH_UNITS: u64 = 4;
/// A token is fresh for less than this time.
pub(crate) const FRESH_NS: u64 = (FRESH_UNITS + 1) << UNIT_SHIFT;
/// A sender asks for a new one in time.
pub(crate) const RENEWAL_NS: u64 = 2 << UNIT_SHIFT;

/// What a token is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Worth {
    /// Nothing.
    Invalid,
    /// The token was given to this sender, too long ago to begin with it.
    Aged,
    Fresh,
}

/// Whom a token is for.
pub(crate) struct Holder<'a> {
    pub(crate) incarnation: u64,
    pub(crate) shard: u8,
    /// Where its frames come from.
    pub(crate) address: &'a Nid,
    /// Whether the NI that they come to wants checksums with payloads.
    pub(crate) checksum: bool,
    /// Whether that NI takes runs.
    pub(crate) runs: bool,
}

impl Sessions {
    /// The sender of a frame, whom a token is for.
    pub(crate) fn holder<'a>(&self, frame: &'a Arrived<'_>) -> Holder<'a> {
        let &Transfer { incarnation, shard, .. } = frame.transfer;
        let (checksum, runs) = (self.wants_checksum(frame.ni), self.takes_runs(frame.ni));
        Holder { incarnation, shard, address: &frame.from, checksum, runs }
    }
}

/// Makes and recognises the tokens of this life of the node.
pub(crate) struct Tokens {
    key: SipHasher13,
}

impl Tokens {
    /// Keyed by a secret of this node, and by the policies that go with the sessions.
    pub(crate) fn new([low, high]: [u64; 2], policies: &[PolicyWord; PORTALS]) -> Self {
        let mut hasher = SipHasher13::new_with_keys(low, high);
        policies.iter().for_each(|word| hasher.write_u64(word.0));
        let low = hasher.finish();
        hasher.write_u64(low);
        Self { key: SipHasher13::new_with_keys(low, hasher.finish()) }
    }

    /// A token for a shard of a node, at one of its addresses.
    pub(crate) fn make(&self, now: Instant, holder: &Holder<'_>) -> u64 {
        self.token(now.0 >> UNIT_SHIFT, holder)
    }

    /// What a token is worth that a shard of a node shows.
    pub(crate) fn worth(&self, now: Instant, holder: &Holder<'_>, token: u64) -> Worth {
        let time = token >> MAC_BITS;
        if self.token(time, holder) != token {
            return Worth::Invalid;
        }
        // Another shard that made it may have looked at the clock a little later.
        let age = ((now.0 >> UNIT_SHIFT) + 1).wrapping_sub(time) & ((1 << TIME_BITS) - 1);
        if age <= FRESH_UNITS + 1 { Worth::Fresh } else { Worth::Aged }
    }

    /// What an answer has to repeat: a node that is not asked cannot guess it.
    pub(crate) fn nonce(&self, question: u64, shard: u8, address: &Nid) -> u64 {
        let mut hasher = self.key;
        hasher.write_u64(question);
        // Not as many bytes as a token is made of.
        hasher.write_u8(shard);
        hasher.write(&address.to_bytes());
        hasher.finish()
    }

    fn token(&self, time: u64, holder: &Holder<'_>) -> u64 {
        let &Holder { incarnation, shard, address, checksum, runs } = holder;
        let time = time & ((1 << TIME_BITS) - 1);
        let options = u64::from(checksum) << 1 | u64::from(runs);
        let mut hasher = self.key;
        hasher.write_u64(incarnation);
        hasher.write_u64(options << 62 | time << 8 | u64::from(shard));
        hasher.write(&address.to_bytes());
        time << MAC_BITS | hasher.finish() >> TIME_BITS
    }
}

/// Whether a token was made after another one.
pub(crate) const fn is_newer(token: u64, than: u64) -> bool {
    // The time is at the top, and wraps.
    (token >> MAC_BITS).wrapping_sub(than >> MAC_BITS) << MAC_BITS >> 63 == 0 && token != than
}

const _: () = assert!(RENEWAL_NS < FRESH_UNITS << UNIT_SHIFT);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::nid;

    const POLICIES: [PolicyWord; PORTALS] = [PolicyWord(0); PORTALS];

    fn holder(incarnation: u64, shard: u8, address: &Nid) -> Holder<'_> {
        Holder { incarnation, shard, address, checksum: true, runs: false }
    }

    #[test]
    fn of_two_tokens_one_is_newer() {
        let tokens = Tokens::new([1, 2], &POLICIES);
        let at = |units: u64| tokens.make(Instant(units << UNIT_SHIFT), &holder(77, 3, &nid(1, 1)));
        let last = (1 << TIME_BITS) - 1;
        for (old, new) in [(5, 6), (5, 1000), (last, last + 1), (last - 3, last + 3)] {
            assert!(is_newer(at(new), at(old)) && !is_newer(at(old), at(new)), "{old} {new}");
        }
        assert!(!is_newer(at(5), at(5)));
    }

    #[test]
    fn tokens_are_for_one_sender_at_one_address_one_life_and_some_time() {
        let tokens = Tokens::new([1, 2], &POLICIES);
        let made_at = Instant(5_000_000_000_000);
        let token = tokens.make(made_at, &holder(77, 3, &nid(1, 1)));
        let worth =
            |now, incarnation, shard| tokens.worth(now, &holder(incarnation, shard, &nid(1, 1)), token);
        assert_eq!(worth(made_at, 77, 3), Worth::Fresh);
        assert_eq!(worth(Instant(made_at.0 + RENEWAL_NS), 77, 3), Worth::Fresh);
        assert_eq!(
            worth(Instant(made_at.0 - (1 << UNIT_SHIFT)), 77, 3),
            Worth::Fresh,
            "made by a shard ahead"
        );
        assert_eq!(worth(Instant(made_at.0 - (3 << UNIT_SHIFT)), 77, 3), Worth::Aged);
        assert_eq!(worth(Instant(made_at.0 + 6_000_000_000), 77, 3), Worth::Aged);
        assert_eq!(worth(made_at, 78, 3), Worth::Invalid);
        assert_eq!(worth(made_at, 77, 4), Worth::Invalid);
        for other in [nid(1, 2), nid(2, 1)] {
            assert_eq!(tokens.worth(made_at, &holder(77, 3, &other), token), Worth::Invalid, "{other}");
        }
        let address = nid(1, 1);
        let holder = holder(77, 3, &address);
        for other in [Holder { checksum: false, ..holder }, Holder { runs: true, ..holder }] {
            assert_eq!(tokens.worth(made_at, &other, token), Worth::Invalid);
        }
        assert_eq!(Tokens::new([1, 3], &POLICIES).worth(made_at, &holder, token), Worth::Invalid);
        let others = [PolicyWord(1); PORTALS];
        assert_eq!(Tokens::new([1, 2], &others).worth(made_at, &holder, token), Worth::Invalid);
        for bit in 0..64 {
            assert_eq!(tokens.worth(made_at, &holder, token ^ 1 << bit), Worth::Invalid, "bit {bit}");
        }
    }
}
