//! The free buffers of a pool in their orders: by the time since they came back, and by colour.
//!
//! Invariant: the buffers of a colour are in the order of all, so the oldest of all is the oldest of its
//! colour.

use std::collections::{BTreeMap, VecDeque};

use super::Buffer;

/// The free buffers of a pool.
pub(super) struct FreeBuffers {
    /// Buffers with their colours, by the number of their return.
    all: BTreeMap<u64, (Buffer, Option<usize>)>,
    /// The numbers of the buffers of each colour, the oldest first.
    colours: Vec<VecDeque<u64>>,
    next_number: u64,
}

impl FreeBuffers {
    pub(super) fn new(colours: usize) -> Self {
        Self { all: BTreeMap::new(), colours: vec![VecDeque::new(); colours], next_number: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn colour_count(&self) -> usize {
        self.colours.len()
    }

    /// Adds a buffer as the newest of all, and of its colour.
    pub(super) fn push(&mut self, buffer: Buffer, colour: Option<usize>) {
        if let Some(colour) = colour {
            self.colours[colour].push_back(self.next_number);
        }
        self.all.insert(self.next_number, (buffer, colour));
        self.next_number += 1;
    }

    /// Takes the newest of a colour.
    pub(super) fn pop_newest(&mut self, colour: usize) -> Option<Buffer> {
        let number = self.colours.get_mut(colour)?.pop_back()?;
        self.all.remove(&number).map(|(buffer, _)| buffer)
    }

    /// Takes the oldest of all.
    pub(super) fn pop_oldest(&mut self) -> Option<Buffer> {
        let (number, (buffer, colour)) = self.all.pop_first()?;
        if let Some(colour) = colour {
            let oldest = self.colours[colour].pop_front();
            debug_assert_eq!(oldest, Some(number), "the oldest of all is the oldest of its colour");
        }
        Some(buffer)
    }
}
