//! Linux drivers and runtime of LNet nodes.

pub mod bpf;
pub mod netlink;
pub mod uring;
pub mod xsk;
