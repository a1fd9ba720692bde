//! AF_XDP: packet memory shared with the kernel, its rings, and the sockets that own them.
//!
//! One [`Umem`] holds the packet memory of a node; each of its chunks is named by exactly one [`Frame`],
//! and the frame's owner has the chunk's bytes to itself. Frames go to the kernel through a
//! [`FillRing`] or a [`TxRing`] and come back through an [`RxRing`] or a [`CompletionRing`]
//! (kernel, Documentation/networking/af_xdp.rst). [`open_queue`] opens the sockets of one hardware queue.
//! Each interface has the memory registered for itself, so that one may have zero copy beside others that
//! have not.
//!
//! Invariants:
//! - For a chunk that is with the user there is at most one `Frame`; for one that is with the kernel none.
//! - A frame is made only when its UMEM is, or from an address that the kernel returned and that is with
//!   the kernel; any other address is counted in [`Umem::bad_descriptors`] and otherwise ignored. Only a
//!   kernel that brings one chunk by two rings at the very same time is believed twice.
//! - Registered memory ([`Registered`]) lies in the same UMEM and is sent from, never received into: no frame
//!   stands for it, and a completion of its is counted and goes nowhere.
//! - Rings keep their socket open and their UMEM mapped, so no order of dropping leaves the kernel with
//!   memory that is gone.

// Rings and packet memory are shared with the kernel by address: that is what unsafe code is for here.
#![allow(unsafe_code)]

mod config;
mod error;
mod memory;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/plain.rs"]
pub mod plain;
mod reclaim;
mod registered;
pub mod ring;
mod socket;
mod umem;

pub use config::{Binding, QueueConfig, RING_ENTRIES_MAX, RingSizes};
pub use error::{QueueLabel, ReclaimError, SocketError, UmemError};
pub use memory::prefetch;
pub(crate) use memory::{Mapping, PageKind};
pub use registered::{Registered, RegisteredRun, RegisteredRuns};
pub use ring::{CompletionRing, FRAGMENTS_MAX, FillRing, PushError, RingDescriptor, RxRing, TxRing};
pub use socket::{Device, Kick, Queue, Socket, Statistics, open_queue, open_queue_with};
pub use umem::{CHUNK_BYTES, CHUNK_COUNT_MAX, Census, Frame, RECEIVE_BYTES, Umem, UmemConfig};
