//! Streams between `Streams` and plain sockets over loopback.
