//! Captures, read back.
