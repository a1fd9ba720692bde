//! Connections of tcp nets.

use core::net::{IpAddr, SocketAddr};

use lnet_wire::Nid;
use serde::{Deserialize, Serialize};

use crate::text;

/// A connection by which messages of a tcp net go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// NID of the peer.
    #[serde(with = "text")]
    pub nid: Nid,
    /// Process id of the peer.
    pub pid: u32,
    /// Use of the connection, as this node sees it.
    pub kind: ConnectionUse,
    /// The shard that drives it.
    pub shard: u32,
    /// Address of this node.
    pub local: IpAddr,
    /// Address and port of the peer.
    pub remote: SocketAddr,
}

words! {
    /// Use of a connection, by the letter that LNet's tools have for it.
    ConnectionUse {
        /// Everything.
        Any = "A",
        /// Small messages.
        Control = "C",
        /// Large messages that arrive.
        BulkIn = "I",
        /// Large messages that leave.
        BulkOut = "O",
    }
}
