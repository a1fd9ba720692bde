//! Seals of wire handles: who answers a request shows that it was asked.
//!
//! Both words of a handle come back as they went out. The second names a descriptor ([`Cookie`]); the first
//! is its seal, a keyed hash of the second and of the NID that is asked. A node that was shown handles can
//! answer by these alone: not in the stead of another node, and by none that it guesses. Kernel nodes have
//! the time of their start there, and compare (LNet `lib-md.c: lnet_wire_handle2md`); what others have there
//! means nothing to them.

use core::hash::Hasher;

use lnet_wire::{Body, Header, Nid, WireHandle};
use siphasher::sip::SipHasher13;

use crate::collections::nid_words;
use crate::handle::Cookie;

/// Makes and knows the seals of this life of the node.
pub struct Seals {
    key: SipHasher13,
    /// The handle that was made last and whom it was for: requests out of one descriptor mostly go to one
    /// node.
    last: (WireHandle, Nid),
}

impl Seals {
    /// Keyed by a secret of this life of the node. All its shards have the same one.
    #[must_use]
    pub fn new([low, high]: [u64; 2]) -> Self {
        Self { key: SipHasher13::new_with_keys(low, high), last: (WireHandle::NONE, Nid::ANY) }
    }

    /// Seals the handle that a request has, if it has one, for the NID that it goes to.
    #[inline]
    pub(crate) fn seal(&mut self, request: &mut Header) {
        let (Body::Put { ack_md: handle, .. } | Body::Get { return_md: handle, .. }) = &mut request.body
        else {
            return;
        };
        if !handle.is_none() {
            *handle = self.handle(Cookie(handle.object_cookie), &request.destination.nid);
        }
    }

    /// The handle of what a cookie names, for the answer of a node.
    #[inline]
    pub fn handle(&mut self, cookie: Cookie, asked: &Nid) -> WireHandle {
        let (last, nid) = &self.last;
        if last.object_cookie != cookie.0 || nid != asked {
            self.last = (
                WireHandle { interface_cookie: self.seal_of(cookie, asked), object_cookie: cookie.0 },
                *asked,
            );
        }
        self.last.0
    }

    /// Whether a handle was made for the answer of a node.
    #[inline]
    #[must_use]
    pub fn is_for(&self, handle: &WireHandle, asked: &Nid) -> bool {
        self.last == (*handle, *asked)
            || handle.interface_cookie == self.seal_of(Cookie(handle.object_cookie), asked)
    }

    fn seal_of(&self, cookie: Cookie, asked: &Nid) -> u64 {
        let mut hasher = self.key;
        hasher.write_u64(cookie.0);
        nid_words(asked).into_iter().for_each(|word| hasher.write_u64(word));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use lnet_wire::{Net, NetType};

    use super::*;

    fn nid(last: u8) -> Nid {
        Nid::new_ip(Net::new(NetType::TCP, 0), core::net::Ipv4Addr::new(10, 0, 0, last).into()).unwrap()
    }

    #[test]
    fn a_handle_is_good_for_the_node_that_it_was_made_for() {
        let mut seals = Seals::new([1, 2]);
        let handles = [(5, 1), (5, 2), (6, 1)].map(|(cookie, host)| seals.handle(Cookie(cookie), &nid(host)));
        for (handle, host) in handles.iter().zip([1, 2, 1]) {
            assert!((1..4).all(|other| seals.is_for(handle, &nid(other)) == (other == host)));
            let other = WireHandle { object_cookie: 7, ..*handle };
            assert!((1..4).all(|host| !seals.is_for(&other, &nid(host))));
            assert!(!Seals::new([1, 3]).is_for(handle, &nid(host)), "of another life");
        }
        assert_eq!(seals.handle(Cookie(5), &nid(1)), handles[0]);
        assert!(!seals.is_for(&WireHandle::NONE, &nid(1)));
        assert!(!Seals::new([1, 2]).is_for(&WireHandle::NONE, &nid(1)));
    }
}
