//! Tunables of the tcp LND that an operator may set, with the names and defaults of socklnd.

use core::time::Duration;

use lnet_core::tunables::NetTunables;

/// Who may connect to this node (socklnd's `accept`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Accept {
    /// Peers with a privileged source port: their system vouches for who they are.
    #[default]
    Secure,
    /// Every peer. One without a privileged port is known by its address.
    All,
    /// No peers: this node does not listen.
    None,
}

/// The tunables of the tcp LND of a node, with the names and defaults of socklnd's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SockTunables {
    /// How long a connection, a message or its progress may take (`sock_timeout`).
    pub timeout: Duration,
    /// Silence after which a peer is told that this end lives (`keepalive`); zero for never.
    pub keepalive: Duration,
    /// The first pause after a connection could not be made (`min_reconnectms`).
    pub min_reconnect: Duration,
    /// The longest one (`max_reconnectms`).
    pub max_reconnect: Duration,
    /// Who may connect (`accept`).
    pub accept: Accept,
    /// The port of acceptors, this node's and its peers', for connections of type CONTROL (`accept_port`).
    pub accept_port: u16,
    /// Port of peers for connections of other types; this node listens at both (`accept_port_bulk`).
    pub accept_port_bulk: u16,
    /// Connections that may wait to be accepted (`accept_backlog`).
    pub accept_backlog: u32,
    /// How long a handshake may take (`accept_timeout`).
    pub accept_timeout: Duration,
    /// Bytes of a message, with its heads, from which on it goes by a connection for large ones (`min_bulk`).
    pub min_bulk_bytes: u32,
    /// Whether messages of protocol 2 leave with checksums (`enable_csum`); other protocols have none.
    pub sends_checksums: bool,
    /// Whether the first checksum that a shard sends is wrong, for tests of peers (`inject_csum_error`).
    pub injects_checksum_error: bool,
    /// Whether small segments wait for acknowledgements (`nagle`).
    pub nagle: bool,
    /// Silence after which TCP probes a connection, in seconds; 0 for never (`keepalive_idle`).
    pub keepalive_idle_s: u32,
    /// Seconds between probes (`keepalive_intvl`).
    pub keepalive_interval_s: u32,
    /// Probes without an answer that end a connection (`keepalive_count`).
    pub keepalive_count: u32,
    /// Bytes of a stream's send buffer; 0 for the system's choice (`tx_buffer_size`).
    pub tx_buffer_bytes: u32,
    /// Bytes of a stream's receive buffer; 0 for the system's choice (`rx_buffer_size`).
    pub rx_buffer_bytes: u32,
    /// The least payload that is sent without being copied (`zc_min_payload`).
    pub zero_copy_min_bytes: u32,
    /// Tunables of a new net where nothing is asked for (`credits`, `peer_credits`, `peer_buffer_credits`,
    /// `peer_timeout`).
    pub net: NetTunables,
    /// Connections of an NI that does not say how many with a peer for messages of each direction; 0 for as
    /// many as the speed of its link wants (`conns_per_peer`).
    pub conns_per_peer: u8,
    /// The IP type of service of an NI that does not say which; `None` for the system's (`tos`).
    pub tos: Option<u8>,
}

impl SockTunables {
    /// Defaults of socklnd: [`SockTunables::default`].
    pub const DEFAULT: Self = Self {
        timeout: Duration::from_secs(50),
        keepalive: Duration::from_secs(30),
        min_reconnect: Duration::from_secs(1),
        max_reconnect: Duration::from_secs(60),
        accept: Accept::Secure,
        accept_port: 988,
        accept_port_bulk: 988,
        accept_backlog: 127,
        accept_timeout: Duration::from_secs(5),
        min_bulk_bytes: 1024,
        sends_checksums: false,
        injects_checksum_error: false,
        nagle: false,
        keepalive_idle_s: 30,
        keepalive_interval_s: 5,
        keepalive_count: 5,
        tx_buffer_bytes: 0,
        rx_buffer_bytes: 0,
        zero_copy_min_bytes: 64 << 10,
        net: NetTunables::LNET,
        conns_per_peer: 0,
        tos: None,
    };
}

impl Default for SockTunables {
    fn default() -> Self {
        Self::DEFAULT
    }
}
