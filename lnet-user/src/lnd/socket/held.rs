//! Frames that are kept for the transfer protocol until it wants them again, or not at all.

use lnet_core::lnd::NiId;
use lnet_core::xfer::HoldId;
use lnet_wire::Nid;

/// A frame that was kept. Give it back with [`Held::give_back`].
pub(super) struct Kept {
    /// The NI that it came to.
    pub(super) ni: NiId,
    /// Where it came from.
    pub(super) from: Nid,
    length: usize,
    bytes: Box<[u8]>,
}

impl Kept {
    /// The frame.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Copies of frames, by the number that the transfer protocol knows them by. Allocates all that it will ever use.
pub(super) struct Held {
    places: Box<[Kept]>,
    /// What a place gets whose frame is being read: its number may be given to another frame meanwhile.
    spare: Option<Kept>,
}

impl Held {
    /// Room for `frames` frames of at most `frame_max_bytes`.
    pub(super) fn new(frames: u32, frame_max_bytes: usize) -> Self {
        let place = || Kept {
            ni: NiId(0),
            from: Nid::ANY,
            length: 0,
            // Pages that are never touched take no memory.
            bytes: vec![0; frame_max_bytes].into_boxed_slice(),
        };
        Self { places: (0..frames).map(|_| place()).collect(), spare: Some(place()) }
    }

    /// Keeps a frame.
    pub(super) fn keep(&mut self, HoldId(id): HoldId, ni: NiId, from: Nid, frame: &[u8]) {
        let place = &mut self.places[id as usize];
        (place.ni, place.from, place.length) = (ni, from, frame.len());
        place.bytes[..frame.len()].copy_from_slice(frame);
    }

    /// Takes a frame out, to be read.
    ///
    /// # Panics
    /// If another one is out.
    pub(super) fn take(&mut self, HoldId(id): HoldId) -> Kept {
        let spare = self.spare.take().expect("one frame is read at a time");
        std::mem::replace(&mut self.places[id as usize], spare)
    }

    /// The frame that was taken out was read.
    pub(super) fn give_back(&mut self, kept: Kept) {
        self.spare = Some(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_while_its_frame_is_read() {
        let mut held = Held::new(2, 10);
        held.keep(HoldId(0), NiId(1), Nid::ANY, b"first");
        held.keep(HoldId(1), NiId(2), Nid::ANY, b"second");
        let first = held.take(HoldId(0));
        held.keep(HoldId(0), NiId(3), Nid::ANY, b"third");
        assert_eq!((first.ni, first.bytes()), (NiId(1), &b"first"[..]));
        held.give_back(first);
        for (id, ni, bytes) in [(0, 3, &b"third"[..]), (1, 2, b"second")] {
            let kept = held.take(HoldId(id));
            assert_eq!((kept.ni, kept.bytes()), (NiId(ni), bytes));
            held.give_back(kept);
        }
    }
}
