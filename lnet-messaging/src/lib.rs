//! Motr's network layer: transfer machines that move messages and bulk data asynchronously.
//!
//! A [`Domain`] is a network of one [`Transport`]: [`lnet`] over the portals of an LNet node, [`rpc`] over
//! TCP, or [`mem`] within one process. A
//! [`TransferMachine`] has an address there, six queues, and tells of what happens by callbacks ([`Handler`],
//! [`Callback`]) or as a stream ([`Events`]). A [`Buffer`] is memory that is registered with the domain. It
//! is added to a queue by value, and comes back with the event that says what came of it:
//!
//! | queue | operation | at the other end |
//! |---|---|---|
//! | [`Receive`](QueueType::Receive) | messages are received | a send |
//! | [`Send`](QueueType::Send) | a message is sent | a receive |
//! | [`PassiveReceive`](QueueType::PassiveReceive) | waits for bulk data | an active send, with the [`BulkDescriptor`] |
//! | [`PassiveSend`](QueueType::PassiveSend) | offers bulk data | an active receive, likewise |
//! | [`ActiveReceive`](QueueType::ActiveReceive) | fetches bulk data | a passive send |
//! | [`ActiveSend`](QueueType::ActiveSend) | writes bulk data | a passive receive |
//!
//! A [`Pool`] has buffers for the receive queues of several transfer machines, which it fills by itself.
//!
//! ```
//! use lnet_messaging::{Domain, Event, Events, MemTransport, Operation, StopMode, TmEvent, TransferMachine};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let transport = MemTransport::default().shared();
//! let start = |address: &str| -> Result<_, Box<dyn std::error::Error>> {
//!     let domain = Domain::new(&transport)?;
//!     let (handler, mut events) = Events::channel();
//!     let tm = TransferMachine::new(&domain, handler)?;
//!     tm.start(address)?;
//!     assert!(matches!(events.next_blocking(), Some(Event::Tm(TmEvent::StateChange { .. }))));
//!     Ok((domain, tm, events))
//! };
//! let (near_domain, near, _near_events) = start("127.0.0.1:1")?;
//! let (far_domain, far, mut far_events) = start("127.0.0.1:2")?;
//!
//! far.add(far_domain.allocate(1, 64)?, Operation::Receive { min_receive_bytes: 64, max_messages: 1 })?;
//!
//! let mut message = near_domain.allocate(1, 5)?;
//! message.fill(b"hello");
//! let to = near.create_end_point("127.0.0.1:2")?;
//! near.add(message, Operation::Send { to, length_bytes: 5 })?;
//!
//! let Some(Event::Buffer(received)) = far_events.next_blocking() else { panic!("a message was sent") };
//! assert_eq!(received.payload_bytes(), b"hello");
//! assert_eq!(received.end_point.as_ref().map(|from| from.address()), Some("127.0.0.1:1"));
//! near.stop(StopMode::Abort)?;
//! far.stop(StopMode::Abort)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Inside
//! [`transport`] is the contract between the front and transports, and says who calls what under which lock.
//! Modules know those below them alone: the front knows the contract, transports know the contract, and
//! neither knows the other. The crate uses the public API of `lnet-user` alone, and its mutexes, whose order
//! is checked in tests. It has no unsafe code.

#![forbid(unsafe_code)]

pub mod buffer;
mod crew;
pub mod domain;
pub mod end_point;
pub mod errno;
pub mod event;
pub mod lnet;
pub mod mem;
pub mod memory;
pub mod operation;
pub mod queue;
pub mod registry;
pub mod ring;
pub mod rpc;
pub mod stats;
pub mod stream;
pub mod tm;
pub mod transport;

// The crate whose types are in signatures of `lnet`.
pub use lnet_user;

pub use buffer::{Buffer, LockedPool, Pool, PoolHandler, PoolSpec, Reprovision};
pub use domain::Domain;
pub use end_point::EndPoint;
pub use errno::{Errno, Error, Status};
pub use event::{BufferEvent, TmEvent};
pub use lnet::LnetTransport;
pub use mem::MemTransport;
pub use memory::{Limits, Memory};
pub use operation::{BulkDescriptor, Operation};
pub use queue::{BufferId, Flags, QueueType};
pub use registry::{Registry, registry};
pub use rpc::RpcTransport;
pub use stats::QueueStats;
pub use stream::{Event, Events};
pub use tm::{
    Added, Addition, Attachment, Callback, Handler, NotAdded, QueuedState, StopMode, TransferMachine,
};
pub use transport::{TmState, Transport};

#[cfg(test)]
mod tests;
