//! The free buffers of a pool in their orders: by the time since they came back, and by colour.
//!
//! Invariants: each free buffer is in the list of all, oldest first; one that came back with a colour is in
//! that colour's list as well. All operations take the same time however many there are.

use crate::buffer::Buffer;

/// Neighbours in a list, by slot.
#[derive(Clone, Copy, Default)]
struct Links {
    older: Option<usize>,
    newer: Option<usize>,
}

/// The ends of a list.
#[derive(Clone, Copy, Default)]
struct Ends {
    oldest: Option<usize>,
    newest: Option<usize>,
}

/// Which of the two lists that a slot is in.
#[derive(Clone, Copy)]
enum Order {
    All = 0,
    Colour = 1,
}

struct Slot {
    buffer: Buffer,
    colour: Option<usize>,
    links: [Links; 2],
}

/// The free buffers.
pub(super) struct FreeLists {
    slots: Vec<Option<Slot>>,
    vacant: Vec<usize>,
    all: Ends,
    colours: Vec<Ends>,
    count: usize,
}

impl FreeLists {
    pub(super) fn new(colours: usize) -> Self {
        let colours = vec![Ends::default(); colours];
        Self { slots: Vec::new(), vacant: Vec::new(), all: Ends::default(), colours, count: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn colour_count(&self) -> usize {
        self.colours.len()
    }

    /// Adds a buffer as the newest of all, and of its colour.
    pub(super) fn push(&mut self, buffer: Buffer, colour: Option<usize>) {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(Slot { buffer, colour, links: [Links::default(); 2] });
        self.append(slot, Order::All);
        if colour.is_some() {
            self.append(slot, Order::Colour);
        }
        self.count += 1;
    }

    /// Takes the newest of a colour.
    pub(super) fn pop_newest(&mut self, colour: usize) -> Option<Buffer> {
        let slot = self.colours.get(colour)?.newest?;
        self.take(slot)
    }

    /// Takes the oldest of all.
    pub(super) fn pop_oldest(&mut self) -> Option<Buffer> {
        self.take(self.all.oldest?)
    }

    fn take(&mut self, slot: usize) -> Option<Buffer> {
        self.unlink(slot, Order::All);
        if self.slots[slot].as_ref().is_some_and(|taken| taken.colour.is_some()) {
            self.unlink(slot, Order::Colour);
        }
        self.count -= 1;
        self.vacant.push(slot);
        self.slots[slot].take().map(|taken| taken.buffer)
    }

    fn ends(&mut self, slot: usize, order: Order) -> &mut Ends {
        match (order, self.slots[slot].as_ref().and_then(|slot| slot.colour)) {
            (Order::Colour, Some(colour)) => &mut self.colours[colour],
            _ => &mut self.all,
        }
    }

    fn links(&mut self, slot: usize, order: Order) -> Option<&mut Links> {
        self.slots[slot].as_mut().map(|slot| &mut slot.links[order as usize])
    }

    fn append(&mut self, slot: usize, order: Order) {
        let ends = self.ends(slot, order);
        let older = ends.newest.replace(slot);
        match older {
            None => ends.oldest = Some(slot),
            Some(older) => {
                if let Some(links) = self.links(older, order) {
                    links.newer = Some(slot);
                }
            }
        }
        if let Some(links) = self.links(slot, order) {
            *links = Links { older, newer: None };
        }
    }

    fn unlink(&mut self, slot: usize, order: Order) {
        let Links { older, newer } = self.links(slot, order).copied().unwrap_or_default();
        match older {
            Some(older) => {
                if let Some(links) = self.links(older, order) {
                    links.newer = newer;
                }
            }
            None => self.ends(slot, order).oldest = newer,
        }
        match newer {
            Some(newer) => {
                if let Some(links) = self.links(newer, order) {
                    links.older = older;
                }
            }
            None => self.ends(slot, order).newest = older,
        }
    }
}
