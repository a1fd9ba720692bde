//! NIDs of a peer that are none of its NIs.

use alloc::boxed::Box;
use alloc::vec::Vec;

use lnet_wire::Nid;

use super::{Peer, TOLD_MAX};

/// NIDs of a peer that are none of its NIs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Aside {
    /// NIDs that it has told last and that were this node's own: both nodes have the address.
    shared: Box<[Nid]>,
    /// NIDs that it had on nets that this node has left, at most [`TOLD_MAX`]: while it is Multi-Rail, what
    /// goes to one of them goes to its NIs.
    left: Box<[Nid]>,
}

impl Peer {
    /// NIDs that it tells to be its own and that were this node's own when it told them: it is not reached by
    /// them, and they are none of its NIs.
    #[must_use]
    pub fn shared_nids(&self) -> &[Nid] {
        self.aside.as_deref().map_or(&[], |aside| &aside.shared)
    }

    /// NIDs that it had on nets that this node has left.
    pub(in crate::node) fn left(&self) -> &[Nid] {
        self.aside.as_deref().map_or(&[], |aside| &aside.left)
    }

    pub(in crate::node) fn set_shared(&mut self, shared: &[Nid]) {
        self.set_aside(Aside { shared: shared.into(), left: self.left().into() });
    }

    pub(super) fn set_left(&mut self, left: impl IntoIterator<Item = Nid>) {
        let left = left.into_iter().take(TOLD_MAX).collect();
        self.set_aside(Aside { shared: self.shared_nids().into(), left });
    }

    /// Has it keep those alone of the NIDs that it had on nets that this node has left.
    pub(in crate::node) fn retain_left(&mut self, stays: impl Fn(&Nid) -> bool) {
        if !self.left().is_empty() {
            let left: Vec<Nid> = self.left().iter().filter(|nid| stays(nid)).copied().collect();
            self.set_left(left);
        }
    }

    fn set_aside(&mut self, aside: Aside) {
        self.aside = (aside != Aside::default()).then(|| Box::new(aside));
    }
}
