//! Frame buffers of a node: a fixed number, each free, with its driver, or with the device.
//!
//! Invariant: every change of hands is checked, so a buffer that is used twice or never comes home is found.

/// Whose a buffer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Nobody,
    Driver,
    /// The device has not read it.
    Device,
}

/// A fixed number of buffers.
pub(super) struct Pool {
    frames: Vec<(Holder, Vec<u8>)>,
    free: Vec<u32>,
    /// What was done wrong first.
    pub(super) wrong: Option<String>,
}

impl Pool {
    pub(super) fn new(count: u32) -> Self {
        let frames = (0..count).map(|_| (Holder::Nobody, Vec::new())).collect();
        Self { frames, free: (0..count).rev().collect(), wrong: None }
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn is_home(&self) -> bool {
        self.free.len() == self.frames.len()
    }

    fn change(&mut self, frame: u32, from: Holder, to: Holder) {
        let holder = &mut self.frames[frame as usize].0;
        if *holder != from && self.wrong.is_none() {
            self.wrong = Some(format!("frame {frame} goes from {from:?} to {to:?} and is with {holder:?}"));
        }
        *holder = to;
        if to == Holder::Nobody {
            self.free.push(frame);
        }
    }

    /// The driver takes a buffer.
    pub(super) fn take(&mut self) -> Option<u32> {
        let frame = self.free.pop()?;
        self.change(frame, Holder::Nobody, Holder::Driver);
        Some(frame)
    }

    /// The driver lets go of a buffer.
    pub(super) fn free(&mut self, frame: u32) {
        self.change(frame, Holder::Driver, Holder::Nobody);
    }

    /// The driver gives a buffer to the device.
    pub(super) fn send(&mut self, frame: u32) {
        self.change(frame, Holder::Driver, Holder::Device);
    }

    /// The device has read a buffer.
    pub(super) fn read(&mut self, frame: u32) {
        self.change(frame, Holder::Device, Holder::Nobody);
    }

    /// A driver with a bug takes a buffer back that the device has.
    pub(super) fn steal(&mut self, frame: u32) {
        self.change(frame, Holder::Device, Holder::Nobody);
    }

    pub(super) fn bytes(&self, frame: u32) -> &[u8] {
        &self.frames[frame as usize].1
    }

    pub(super) fn bytes_mut(&mut self, frame: u32) -> &mut Vec<u8> {
        &mut self.frames[frame as usize].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_used_twice_is_found() {
        let mut pool = Pool::new(2);
        let frame = pool.take().unwrap();
        pool.send(frame);
        pool.read(frame);
        assert!(pool.is_home() && pool.wrong.is_none());
        let frame = pool.take().unwrap();
        pool.send(frame);
        pool.steal(frame);
        pool.read(frame);
        assert!(pool.wrong.is_some());
    }
}
