//! Benches of the project.
//!
//! What was measured goes to stdout, as a table or, with `--json`, as one JSON object; progress goes to
//! stderr.

pub mod figure;
pub mod link;
pub mod machine;
pub mod measure;
pub mod messages;
pub mod messaging;
pub mod node;
pub mod options;
pub mod others;
pub mod output;
pub mod played;
pub mod queues;
pub mod random;
pub mod raw;
pub mod segments;
pub mod selftest;
pub mod sockets;
pub mod threaded;
