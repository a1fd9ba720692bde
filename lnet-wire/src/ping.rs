//! Ping information: what a node answers to a ping and pushes to its peers.
