//! Local NIs that an NI of a peer prefers.

use alloc::boxed::Box;

use lnet_wire::Nid;

/// The local NIDs that messages to an NI of a peer come from before others do, each with a rank: the lower
/// one comes first. Without any there is no preference.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PreferredSources(Box<[(Nid, u32)]>);

impl PreferredSources {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The NIDs.
    pub fn nids(&self) -> impl ExactSizeIterator<Item = Nid> {
        self.0.iter().map(|(nid, _)| *nid)
    }

    /// The rank of a NID, if it is preferred.
    #[must_use]
    pub fn rank(&self, nid: &Nid) -> Option<u32> {
        self.0.iter().find(|(its, _)| its == nid).map(|(_, rank)| *rank)
    }

    /// The NID with the best rank, the first of several.
    #[must_use]
    pub fn best(&self) -> Option<Nid> {
        self.0.iter().min_by_key(|(_, rank)| *rank).map(|(nid, _)| *nid)
    }
}

impl FromIterator<(Nid, u32)> for PreferredSources {
    fn from_iter<I: IntoIterator<Item = (Nid, u32)>>(ranked: I) -> Self {
        Self(ranked.into_iter().collect())
    }
}

/// All of the same rank.
impl FromIterator<Nid> for PreferredSources {
    fn from_iter<I: IntoIterator<Item = Nid>>(nids: I) -> Self {
        nids.into_iter().map(|nid| (nid, 0)).collect()
    }
}

impl<const N: usize> From<[Nid; N]> for PreferredSources {
    fn from(nids: [Nid; N]) -> Self {
        nids.into_iter().collect()
    }
}
