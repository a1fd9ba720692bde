//! A shard through its public interface: scripts, naive models, and two shards back to back.

mod common;
mod descriptors;
mod drops;
mod initiator;
mod matching;
mod target;
