//! A stand-in for `storage` that tells loom of each access to a byte and of the end of the bytes.
//!
//! The bytes themselves outlive the storage, so that an access which comes too late is found and does no
//! harm. Loom runs the threads of a model on one, so nothing here is atomic.

use core::ops::Range;
use std::rc::Rc;

use loom::cell::UnsafeCell;

#[derive(Debug)]
struct Tracked {
    bytes: Box<[core::cell::UnsafeCell<u8>]>,
    /// Tell loom who touches the byte of the same number.
    touched: Box<[UnsafeCell<()>]>,
    /// Whether the storage lives.
    alive: UnsafeCell<bool>,
}

/// A run of a storage's bytes, without any right to them.
#[derive(Clone, Debug)]
pub(super) struct View {
    tracked: Rc<Tracked>,
    range: Range<usize>,
}

impl View {
    /// Takes the box apart, like `storage`.
    pub(super) fn leak(bytes: Box<[u8]>) -> Self {
        let range = 0..bytes.len();
        let touched = bytes.iter().map(|_| UnsafeCell::new(())).collect();
        let bytes = bytes.into_iter().map(core::cell::UnsafeCell::new).collect();
        Self { tracked: Rc::new(Tracked { bytes, touched, alive: UnsafeCell::new(true) }), range }
    }

    /// Bytes from the first to the last.
    pub(super) fn length_bytes(&self) -> usize {
        self.range.len()
    }

    /// Bytes of the view from `range.start` to `range.end`.
    pub(super) fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.range.len());
        let start = self.range.start;
        Self { tracked: Rc::clone(&self.tracked), range: start + range.start..start + range.end }
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: reading a flag of which loom says that no thread writes it meanwhile.
        self.tracked.alive.with(|alive| assert!(unsafe { *alive }, "bytes are used that were freed"));
        self.tracked.bytes[self.range.clone()].as_ptr().cast_mut().cast()
    }

    /// The bytes.
    ///
    /// # Safety
    /// As in `storage`; loom checks it.
    pub(super) unsafe fn bytes<'a>(&self) -> &'a [u8] {
        let base = self.base();
        self.tracked.touched[self.range.clone()].iter().for_each(|touched| touched.with(|_| ()));
        // SAFETY: the bytes live as long as the model's run.
        unsafe { core::slice::from_raw_parts(base, self.range.len()) }
    }

    /// The bytes, to write.
    ///
    /// # Safety
    /// As in `storage`; loom checks it.
    pub(super) unsafe fn bytes_mut<'a>(&self) -> &'a mut [u8] {
        let base = self.base();
        self.tracked.touched[self.range.clone()].iter().for_each(|touched| touched.with_mut(|_| ()));
        // SAFETY: as for `bytes`.
        unsafe { core::slice::from_raw_parts_mut(base, self.range.len()) }
    }
}

/// Bytes that are as good as freed when this value goes.
#[derive(Debug)]
pub(super) struct Storage(Rc<Tracked>);

impl Storage {
    /// Owns the bytes of a view, like `storage`.
    ///
    /// # Safety
    /// As in `storage`; loom checks it.
    pub(super) unsafe fn boxed(view: View) -> Self {
        Self(view.tracked)
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        // A model that has failed is not to fail again while it is cleaned up.
        if std::thread::panicking() {
            return;
        }
        self.0.touched.iter().for_each(|touched| touched.with_mut(|_| ()));
        self.0.alive.with_mut(|alive| {
            // SAFETY: a flag of which loom says that no other thread uses it meanwhile.
            let alive = unsafe { &mut *alive };
            assert!(core::mem::replace(alive, false), "bytes are freed twice");
        });
    }
}
