//! Linux for the drivers of LNet nodes: packet memory and its rings, reactors, netlink, memory that is lent
//! between threads, captures of frames.
//!
//! | module | what | knows |
//! |---|---|---|
//! | [`locks`] | mutexes whose order is checked with debug assertions | nothing |
//! | [`xsk`] | UMEM, rings, sockets of `AF_XDP`; frames are tokens that cannot be copied | `locks` |
//! | [`region`] | owned bytes of which parts can be lent to other threads | `xsk` |
//! | [`memory`] | the buffers that descriptors have borrowed; spans lent and adopted; registered buffers | `region`, `xsk` |
//! | `epoll` | readiness: waits, datagrams and streams without an `io_uring` | nothing |
//! | [`reactor`] | the only blocking point, by rings or readiness, and wakers; datagrams and streams | `epoll`, `region` |
//! | [`blocking`] | work that may block, on threads of its own | nothing |
//! | [`netlink`] | interfaces, next hops, ports | `blocking`, `locks` |
//! | [`capture`] | copies of frames, from taps in the LNDs to pcapng files | `locks` |
//! | [`mailbox`] | what threads have for a shard, in bounded queues | `reactor` |
//! | [`port`] | ports of NIs, which no other node may have | `netlink`, `reactor` |
//! | [`driver`] | what the runtime knows of an LND besides the contract of the core | `memory`, `capture` |
//! | [`kind`] | what an LND does for a whole node: plans, opens and closes NIs | `driver`, `netlink`, `reactor` |
//! | [`random`] | numbers that no peer can guess | nothing |
//!
//! Invariants: modules know what the table says, never the other way; no LND is named here; unsafe code of a
//! node is in `xsk`, `reactor`, `epoll` and `region` alone. The rings of `AF_XDP` are here and not with the
//! one LND that uses them, because a frame is a right to memory that rings take and give back: what keeps
//! that right single is private to one module.

pub mod blocking;
pub mod capture;
pub mod driver;
mod epoll;
pub mod kind;
pub mod locks;
pub mod mailbox;
pub mod memory;
pub mod netlink;
pub mod port;
pub mod random;
pub mod reactor;
pub mod region;
pub mod xsk;
