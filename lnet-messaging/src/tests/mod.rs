//! The front over a transport that does what a test says (`fake`), pools over it, and the addresses that all
//! share.

mod buffers;
mod fake;
mod lifecycle;
#[cfg(debug_assertions)]
mod locks;
mod pools;
mod provisioning;
