//! Integration tests.

pub mod netns;
