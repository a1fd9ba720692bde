//! LNet in userspace: nodes, their network drivers, and what an application needs to use them.
//!
//! LNet is the network of Lustre: nodes put bytes into, and get bytes from, buffers that other nodes have
//! posted under a portal and match bits, and events tell what happened. A node of this crate carries its
//! messages as UDP datagrams over `AF_XDP` rings, past the kernel's network stack; its shards, one for each
//! CPU, share nothing. A node also reaches itself, by the NID `0@lo`, and without other interfaces needs no
//! privileges:
//!
//! ```
//! use lnet_user::{Buffer, EntrySpec, Lnet, MdOptions, Nid, NodeConfig, Target, Threshold};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let lnet = Lnet::start(&NodeConfig::loopback())?;
//! let mut events = lnet.create_event_queue(16)?;
//!
//! // What others find under portal 4 and match bits 7: ten bytes, to be read once.
//! let posted = Buffer::from(b"0123456789".to_vec());
//! let spec = posted.spec(Threshold::Count(1), MdOptions::GET, events.handle());
//! lnet.attach(&EntrySpec::new(4, 7), &spec, posted)?.detach();
//!
//! // A buffer to get them into: one GET, one REPLY.
//! let sink = Buffer::zeroed(10);
//! let spec = sink.spec(Threshold::Count(2), MdOptions::NONE, events.handle());
//! let reply = lnet.bind(&spec, sink)?.get(&Target::new(Nid::LO, 4, 7)).await?;
//! assert_eq!(reply.payload(), Some(&b"0123456789"[..]));
//!
//! // The other end has an event as well.
//! let get = events.next().await?;
//! assert_eq!(get.event.match_bits(), Some(7));
//! # Ok(())
//! # }
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(example()).unwrap();
//! ```
//!
//! # Where to go next
//! - `examples/put_get.rs`: a Put and a Get, on one node or between two; `examples/request_reply.rs`: a
//!   service with bulk data; `examples/named_entry.rs`: an entry that one peer alone may put to.
//! - [`api`]: shards on threads of their own, handles for any thread; blocking, polling or async. A thread
//!   that waits again and again drives the shard itself, blocked or with tasks that await, and no message
//!   wakes another thread.
//! - [`EventHandler`]: code that runs where an event happens, so that no other thread is woken.
//! - [`Lnet::edit_peers`], [`Lnet::edit_selection_policies`], [`Lnet::edit_faults`]: what administrators do.
//! - [`rpc`]: requests and replies, with a time within which they come.
//! - [`NodeDriver::start`](node::NodeDriver::start) and [`Worker`]: the application's own thread drives a
//!   shard; no hand-over, least latency.
//! - [`NodeConfig`]: interfaces, shards, and [`Policy`], which says where messages belong.
//! - [`Buffer`] and [`Lnet::register`]: buffers, and those that are sent without a copy.
//! - [`UnsentRequest::part`](api::UnsentRequest::part): a descriptor that is bound once and serves many
//!   messages at once; [`Lnet::attach_all`]: many entries by one call.
//! - [`Limits`], for [`NodeConfig::limits`]: how many event queues, entries and peers a shard may have.
//!
//! # Inside
//! Invariants: `runtime` knows `lnd`, never back up; only `runtime` owns a shard; the LNDs and what they need
//! of Linux are crates of their own (`lnet-xdp`, `lnet-tcp`, `lnet-io`), of which `lnd` has the list; `api`
//! knows nothing that another application could not use but for the moment at which a shard may sleep.
#![forbid(unsafe_code)]

pub mod api;
mod lnd;
pub mod node;
#[cfg(test)]
#[path = "../../lnet-io/src/capture/tests/reading.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests of other crates")]
mod reading;
pub mod runtime;

// Crates whose types are in signatures here: a program that depends on this one alone can name all of them.
pub use {lnet_core, lnet_io, lnet_model, lnet_tcp, lnet_tcp_proto, lnet_wire, lnet_xdp, rustix};

pub use lnet_core::event::{EqError, Event, EventKind, EventMd, Origin};
pub use lnet_core::fault::{DelayRule, FaultError};
pub use lnet_core::handle::{EqHandle, MdHandle, MeHandle, ShardId};
pub use lnet_core::health::HealthStatus;
pub use lnet_core::limits::Limits;
pub use lnet_core::lnd::{Cause, NiId, Span, Status};
pub use lnet_core::md::{MdError, MdOptions, MdSpec, Threshold, Unlinked};
pub use lnet_core::node::{Peer, PeerEdit, Pinged, Request, RequestError};
pub use lnet_core::portal::{EntryError, EntrySpec, Position};
pub use lnet_core::shard::{GetRequest, MdPart, PutRequest, SubmitError, Usage};
pub use lnet_core::stats::{Counters, DropReason};
pub use lnet_core::topology::{Distance, Topology};
pub use lnet_core::tunables::NetTunables;
pub use lnet_core::udsp::RuleEdit;
pub use lnet_model::fault::{DropRule, DropRuleRecord, Filter, HealthError, MessageTypes, RuleCounters};
pub use lnet_model::lnd::{Carrier, Switch, ZeroCopy};
pub use lnet_model::lnd::{Lnd, NiOption};
pub use lnet_model::pattern::UdspPattern;
pub use lnet_model::peer::PeerSpec;
pub use lnet_model::udsp::{Selection, SelectionKind, UdspRule};
pub use lnet_tcp_proto::{Accept, SOCK_TUNABLES, SockTunable, SockTunables};
pub use lnet_wire::header::PAYLOAD_BYTES_MAX;
pub use lnet_wire::nid::{Net, NetType};
pub use lnet_wire::steer::{Policy, Spread};
pub use lnet_wire::{Discovery, Global, Nid, ProcessId};

/// Trait of [`EventQueue`] and [`rpc::Server`], as the crate `futures-core` has it.
pub use futures_util::stream::Stream;

pub use api::rpc;
pub use api::{
    Ack, Descriptor, Entry, EventHandler, EventQueue, FaultEdit, FaultRules, Guest, Hold, Lnet, LnetError,
    NotLent, OwnedRequest, QueuedEvent, ShardHandle, Target, Threads, UnsentRequest,
};
pub use lnet_io::blocking;
pub use lnet_io::capture::{CaptureError, CaptureRecord, CaptureSpec};
pub use lnet_io::locks;
pub use lnet_io::memory::{BUFFER_FRAGMENTS_MAX, Buffer, FragmentsError};
pub use lnet_io::netlink;
pub use lnet_io::random;
pub use lnet_io::reactor::{WaitError, Waker};
pub use lnet_io::region::{Fragments, FragmentsMut, LeaseError, ReadLease};
pub use lnet_io::xsk::RingSizes;
pub use node::{ConfigError, LndDefaults, NiConfig, NiState, NodeConfig, NodeDriver, NodeError, XdpMode};
pub use runtime::{Ended, Idle, Worker};
