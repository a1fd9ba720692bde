//! The paths of a shard to the peers that it sends to.

use std::collections::HashMap;
use std::ops::Index;

use lnet_core::lnd::NiId;
use lnet_wire::Nid;

use super::path::Path;

/// A path's index; good until paths are made or forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PathId(usize);

/// An NI, and a peer that is reached by it.
type Key = (NiId, Nid);

/// Paths by NI and peer. Allocates all that it will ever use.
pub(super) struct Paths {
    /// The most paths that are remembered; past that all are looked up anew, so that peers cannot bloat it.
    capacity: usize,
    paths: Vec<Path>,
    ids: HashMap<Key, PathId>,
    /// What was found last: messages to one peer come in runs.
    last: Option<(Key, PathId)>,
    /// Where paths for one frame alone are.
    passing: Option<PathId>,
}

impl Paths {
    /// Remembers so many.
    pub(super) fn new(capacity: usize) -> Self {
        let (paths, ids) = (Vec::with_capacity(capacity), HashMap::with_capacity(capacity));
        Self { capacity, paths, ids, last: None, passing: None }
    }

    /// The path to a peer.
    #[inline]
    pub(super) fn find(&mut self, ni: NiId, nid: &Nid) -> Option<PathId> {
        match &self.last {
            Some((last, path)) if last.0 == ni && last.1 == *nid => Some(*path),
            _ => self.look_up((ni, *nid)),
        }
    }

    fn look_up(&mut self, key: Key) -> Option<PathId> {
        let path = *self.ids.get(&key)?;
        self.last = Some((key, path));
        Some(path)
    }

    /// Remembers the path to a peer that has none.
    pub(super) fn insert(&mut self, key: Key, path: Path) -> PathId {
        let id = self.push(path);
        self.ids.insert(key, id);
        id
    }

    /// A path that is good until the next one of this kind is made.
    pub(super) fn insert_passing(&mut self, path: Path) -> PathId {
        let id = match self.passing {
            Some(id) => {
                self.paths[id.0] = path;
                id
            }
            None => self.push(path),
        };
        self.passing = Some(id);
        id
    }

    fn push(&mut self, path: Path) -> PathId {
        if self.paths.len() == self.capacity {
            self.clear();
        }
        self.paths.push(path);
        PathId(self.paths.len() - 1)
    }

    /// Forgets all paths.
    pub(super) fn clear(&mut self) {
        self.paths.clear();
        self.ids.clear();
        (self.last, self.passing) = (None, None);
    }
}

impl Index<PathId> for Paths {
    type Output = Path;

    #[inline]
    fn index(&self, PathId(index): PathId) -> &Path {
        &self.paths[index]
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use lnet_wire::nid::Net;

    use super::super::path::End;
    use super::*;

    fn nid(host: u32) -> Nid {
        Nid::new_ip(Net::XDP, IpAddr::from(host.to_be_bytes())).unwrap()
    }

    fn path(mark: u8) -> Path {
        let end = |port| End { mac: [mark; 6], port, nid: nid(mark.into()) };
        Path::new(&end(1), &end(2)).unwrap()
    }

    fn mark(path: &Path) -> u8 {
        let mut out = [0; 64];
        path.write(&mut out, 0);
        out[0]
    }

    #[test]
    fn the_path_found_last_is_not_taken_for_another_nor_kept_too_long() {
        let mut paths = Paths::new(8);
        assert_eq!(paths.find(NiId(0), &nid(1)), None);
        for host in 1..=3 {
            paths.insert((NiId(0), nid(host)), path(host as u8));
        }
        for host in [1, 1, 2, 3, 3, 1] {
            let found = paths.find(NiId(0), &nid(host)).unwrap();
            assert_eq!(u32::from(mark(&paths[found])), host);
        }
        assert_eq!(paths.find(NiId(1), &nid(1)), None, "by another NI");
        paths.clear();
        assert_eq!(paths.find(NiId(0), &nid(1)), None);
    }

    /// Strangers neither take the room of peers nor stand in for each other.
    #[test]
    fn paths_for_one_frame_are_found_by_no_other() {
        let mut paths = Paths::new(4);
        paths.insert((NiId(0), nid(1)), path(1));
        for host in 2..100 {
            let id = paths.insert_passing(path(host));
            assert_eq!(mark(&paths[id]), host);
            assert_eq!(paths.find(NiId(0), &nid(host.into())), None);
        }
        let known = paths.find(NiId(0), &nid(1)).unwrap();
        assert_eq!(mark(&paths[known]), 1);
    }

    #[test]
    fn too_many_peers_are_forgotten_not_stored() {
        const MAX: u32 = 100;
        let mut paths = Paths::new(MAX as usize);
        let capacity = paths.paths.capacity();
        for host in 0..=MAX {
            paths.insert((NiId(0), nid(host)), path(host as u8));
        }
        assert_eq!(paths.paths.capacity(), capacity);
        assert_eq!(paths.find(NiId(0), &nid(0)), None);
        assert!(paths.find(NiId(0), &nid(MAX)).is_some());
    }
}
