//! Benches of the project.
//!
//! Machine output goes to stdout as JSON lines, words and progress to stderr.

pub mod bulk;
pub mod link;
pub mod machine;
pub mod netns;
pub mod output;
pub mod put;
pub mod raw;
pub mod report;
