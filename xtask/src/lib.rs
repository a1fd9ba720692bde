//! What `cargo xtask` and the integration tests share: programs run to their end, privileges, and network
//! namespaces that do not outlive their user.
//!
//! Nothing here knows the crates of this workspace, so that `cargo xtask` compiles quickly.

pub mod command;
pub mod netns;
pub mod privilege;
pub mod testing;
