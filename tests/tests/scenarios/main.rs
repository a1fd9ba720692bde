//! The races of discovery, the use cases and the edge cases of the Multi-Rail design document, each with the
//! order of messages that it is about. Which test is which scenario says `docs/multi-rail.md`.
#![allow(clippy::unwrap_used, reason = "where a test cannot unwrap, it has failed")]

mod common;
mod discoveries;
mod edge_cases;
mod one_to_six;
mod seven_to_twelve;
mod use_cases;
mod verification;
mod waiting;
