//! Who a node is, and how others know.
//!
//! A node draws a key pair for each of its lives. Its incarnation is the beginning of the public key, and for
//! each of its addresses it has a certificate, the signature of that address. HELLO and WELCOME carry it: so
//! a node is known by all its addresses, and no other node speaks in its name under another.
//!
//! Shards share nothing about peers. Each shard has its own handshakes with each shard of another node, by
//! any rail, and all must reach the same answer without stored state. A signature of each address does that,
//! at the cost of one check for each address of a peer in each shard. A peer has a NID once a token came back
//! from there; a certificate alone does not tell. Signatures come from `ed25519-dalek`: cryptography is not
//! ours to invent.

use alloc::boxed::Box;
use alloc::vec;
use core::hash::Hasher;
use core::time::Duration;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use lnet_core::time::Instant;
use lnet_wire::Nid;
use lnet_wire::frame::Certificate;
use siphasher::sip::SipHasher13;

use crate::stats::XferDrop;

/// What comes before an address in what is signed.
const CONTEXT: [u8; 12] = *b"LNDX address";
/// Certificates that are remembered for each peer that is: they outlive what else is known of a peer, so that
/// one that had to make room is not checked again when it comes back.
const KNOWN_PER_PEER: usize = 4;
/// Bytes that they take.
pub(crate) const KNOWN_BYTES: usize = KNOWN_PER_PEER * size_of::<(u64, u64)>();
/// Addresses share so many allowances to ask, and as many to answer, so that no node uses up all of them from
/// one.
const ALLOWANCES: usize = 256;
/// How long each of these takes to grow by one.
const GROWTH: Duration = Duration::from_millis(64);
/// Checks in a row.
const BURST: u32 = 4;
/// How long the allowance takes to grow that all have together who were not asked. A check takes some 50 us:
/// checks take a fifth of a shard's time, and a millisecond in a row.
const GROWTH_OF_ALL: Duration = Duration::from_micros(250);
const BURST_OF_ALL: u32 = 16;

/// One life of a node: what it signs with.
#[derive(Clone, Debug)]
pub struct Identity {
    key: SigningKey,
}

impl Identity {
    /// Made of a secret of this node, which is drawn anew in each life.
    #[must_use]
    pub fn new(secret: [u8; 32]) -> Self {
        Self { key: SigningKey::from_bytes(&secret) }
    }

    /// Names it on the wire.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        incarnation_of(self.key.verifying_key().as_bytes())
    }

    /// Shows that it lives at an address.
    #[must_use]
    pub fn certify(&self, address: &Nid) -> Certificate {
        Certificate {
            key: self.key.verifying_key().to_bytes(),
            signature: self.key.sign(&signed(address)).to_bytes(),
        }
    }
}

fn incarnation_of([a, b, c, d, e, f, g, h, ..]: &[u8; 32]) -> u64 {
    u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h])
}

fn signed(address: &Nid) -> [u8; 32] {
    let mut message = [0; 32];
    message[..12].copy_from_slice(&CONTEXT);
    message[12..].copy_from_slice(&address.to_bytes());
    message
}

/// Whether a certificate shows that an incarnation lives at an address.
fn shows(certificate: &Certificate, incarnation: u64, address: &Nid) -> bool {
    incarnation_of(&certificate.key) == incarnation
        && VerifyingKey::from_bytes(&certificate.key).is_ok_and(|key| {
            let signature = Signature::from_bytes(&certificate.signature);
            key.verify_strict(&signed(address), &signature).is_ok()
        })
}

/// Checks certificates, and remembers those that were right. Others are checked now and then only: that takes
/// fifty times as long as anything else that a frame brings about.
pub(crate) struct Checks {
    key: SipHasher13,
    /// Hashes of those that were right: a keyed one of incarnation and address, and one of the certificate as
    /// well.
    known: Box<[(u64, u64)]>,
    /// When each allowance has grown to its full again.
    full_at: Box<[Instant]>,
    /// When the one has that all have together.
    all_full_at: Instant,
}

impl Checks {
    /// Keyed by a secret of this node, which remembers so many peers.
    pub(crate) fn new([low, high]: [u64; 2], peers: u32) -> Self {
        Self {
            key: SipHasher13::new_with_keys(high, low),
            known: vec![(0, 0); KNOWN_PER_PEER * peers.max(1) as usize].into(),
            full_at: vec![Instant(0); 2 * ALLOWANCES].into(),
            all_full_at: Instant(0),
        }
    }

    /// Checks that an incarnation lives at an address. It may have been asked; otherwise others may be in its
    /// way.
    pub(crate) fn check(
        &mut self,
        now: Instant,
        (incarnation, address): (u64, &Nid),
        certificate: &Certificate,
        is_asked: bool,
    ) -> Result<(), XferDrop> {
        let mut hasher = self.key;
        hasher.write(&address.to_bytes());
        // Allowances of answers are taken by none but who was asked.
        let share = hasher.finish() as usize % ALLOWANCES + if is_asked { ALLOWANCES } else { 0 };
        let allowance = &mut self.full_at[share];
        hasher.write_u64(incarnation);
        let pair = pair_digest(&hasher);
        hasher.write(&certificate.key);
        hasher.write(&certificate.signature);
        let digests = (pair, hasher.finish());
        let slot = (pair >> 1) as usize % self.known.len();
        if self.known[slot] == digests {
            return Ok(());
        }
        if *allowance > now + GROWTH * (BURST - 1)
            || (!is_asked && self.all_full_at > now + GROWTH_OF_ALL * (BURST_OF_ALL - 1))
        {
            return Err(XferDrop::Unchecked);
        }
        *allowance = now.max(*allowance) + GROWTH;
        if !is_asked {
            self.all_full_at = now.max(self.all_full_at) + GROWTH_OF_ALL;
        }
        if !shows(certificate, incarnation, address) {
            return Err(XferDrop::BadIdentity);
        }
        self.known[slot] = digests;
        Ok(())
    }
}

/// Zero is what an empty slot holds.
fn pair_digest(hasher: &SipHasher13) -> u64 {
    hasher.finish() | 1
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;
    use core::net::IpAddr;

    use lnet_wire::Net;

    use super::*;
    use crate::testing::nid;

    const NOW: Instant = Instant(1 << 40);

    /// A node, its address, and its certificate for that.
    fn node(secret: u8, host: u8) -> (u64, Nid, Certificate) {
        let identity = Identity::new([secret; 32]);
        (identity.incarnation(), nid(1, host), identity.certify(&nid(1, host)))
    }

    #[test]
    fn a_certificate_is_for_one_incarnation_and_one_address() {
        let (incarnation, address, certificate) = node(7, 1);
        assert!(shows(&certificate, incarnation, &address));
        assert!(!shows(&certificate, incarnation ^ 1, &address));
        for other in [nid(1, 2), nid(2, 1)] {
            assert!(!shows(&certificate, incarnation, &other), "{other}");
        }
        let (other_incarnation, _, other) = node(8, 1);
        assert!(!shows(&other, incarnation, &address));
        let mixed = Certificate { key: certificate.key, ..other };
        assert!(!shows(&mixed, incarnation, &address) && !shows(&mixed, other_incarnation, &address));
        for bit in 0..8 * 64 {
            let mut bent = certificate;
            bent.signature[bit / 8] ^= 1 << (bit % 8);
            assert!(!shows(&bent, incarnation, &address), "bit {bit} of the signature");
        }
        for bit in 0..8 * 32 {
            let mut bent = certificate;
            bent.key[bit / 8] ^= 1 << (bit % 8);
            assert!(!shows(&bent, incarnation_of(&bent.key), &address), "bit {bit} of the key");
        }
    }

    /// The example of docs/xdp-lnd.md, 13.
    #[test]
    fn a_certificate_is_made_as_is_written() {
        let identity = Identity::new(core::array::from_fn(|at| at as u8));
        let address = Nid::new_ip(Net::XDP, IpAddr::from([10, 0, 0, 1])).unwrap();
        let Certificate { key, signature } = identity.certify(&address);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&key), "03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8");
        assert_eq!(hex(&signature[..32]), "96a065e472d9fae62130a45c18a60ef71e3383905725f39930cb76fc3e043117");
        assert_eq!(hex(&signature[32..]), "5b13ba968d45f4382dd4e3c980fa5bda111c423b7e75959019d193190e51a207");
        assert_eq!(identity.incarnation().to_le_bytes(), key[..8]);
    }

    #[test]
    fn what_was_right_once_costs_nothing_and_what_was_not_is_asked_for_seldom() {
        let mut checks = Checks::new([1, 2], 64);
        let (incarnation, address, certificate) = node(7, 1);
        for _ in 0..1000 {
            assert_eq!(checks.check(NOW, (incarnation, &address), &certificate, false), Ok(()));
        }
        let mut now = NOW;
        let lie = |now, checks: &mut Checks, number: u8| {
            let certificate = Certificate { signature: [number; 64], ..certificate };
            checks.check(now, (incarnation, &address), &certificate, false)
        };
        for number in 1..BURST as u8 {
            assert_eq!(lie(now, &mut checks, number), Err(XferDrop::BadIdentity));
        }
        for round in 0..10 {
            assert_eq!(lie(now, &mut checks, 100 + round), Err(XferDrop::Unchecked));
            // Neither does it hurt who is known, nor who comes from elsewhere.
            assert_eq!(checks.check(now, (incarnation, &address), &certificate, false), Ok(()));
            let (other, elsewhere, its) = node(20 + round, 2 + round);
            assert_eq!(checks.check(now, (other, &elsewhere), &its, false), Ok(()));
            now = now + GROWTH;
            assert_eq!(lie(now, &mut checks, round), Err(XferDrop::BadIdentity));
        }
    }

    #[test]
    fn certificates_outlive_the_peers_that_are_remembered() {
        let mut checks = Checks::new([1, 2], 8);
        let mut later = |round: u64, host: u8| {
            let (incarnation, address, certificate) = node(1 + host % 4, host);
            // Half a second apart, so that none is too much.
            let now = NOW + Duration::from_millis(500) * (round * 16 + u64::from(host)) as u32;
            checks.check(now, (incarnation, &address), &certificate, true).unwrap();
            let full_at = checks.full_at.iter().max().copied().unwrap_or_default();
            full_at > now
        };
        let first = (0..16).filter(|host| later(0, *host)).count();
        let again = (0..16).filter(|host| later(1, *host)).count();
        assert_eq!(first, 16, "each was checked");
        assert!(again <= 8, "{again} of 16 were checked again, although 8 peers are remembered");
    }

    #[test]
    fn so_many_that_none_is_known_take_no_long_time() {
        let mut checks = Checks::new([1, 2], 64);
        let mut check = |now, host: u8, is_asked| {
            let (incarnation, address, certificate) = node(1 + host % 8, host);
            checks.check(now, (incarnation, &address), &certificate, is_asked)
        };
        let checked = (0..200).filter(|host| check(NOW, *host, false).is_ok()).count();
        assert_eq!(checked, BURST_OF_ALL as usize);
        assert_eq!(check(NOW, 201, true), Ok(()), "one that was asked");
        let later = NOW + GROWTH_OF_ALL * 3;
        let checked = (202..=255).filter(|host| check(later, *host, false).is_ok()).count();
        assert_eq!(checked, 3);
    }
}
