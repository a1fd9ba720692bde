//! Benches of the project.
//!
//! What was measured goes to stdout, as a table or, with `--json`, as one JSON object; progress goes to stderr.

pub mod bulk;
pub mod link;
pub mod machine;
pub mod netns;
pub mod node;
pub mod output;
pub mod put;
pub mod raw;
pub mod report;
