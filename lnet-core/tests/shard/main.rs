//! A shard through its public interface: scripts, naive models, and two shards back to back.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod common;
mod counters;
mod credits;
mod delay_rules;
mod delayed;
mod descriptors;
mod drops;
mod events;
mod faults;
mod faults_model;
mod forward;
mod gate;
mod identity;
mod initiator;
mod kernel;
mod lookahead;
mod loopback;
mod lost_nids;
mod matching;
mod mesh;
mod model;
mod multi_rail;
mod names;
mod pair;
mod parts;
mod quota_model;
mod resend;
mod select;
mod stealing;
mod target;
mod track;
mod track_model;
mod traffic;
mod update;
mod update_model;
