//! Configuration of the xdp LND of a node.

use std::path::PathBuf;

use lnet_io::xsk::{FRAGMENTS_MAX, RingSizes};
use lnet_model::ni::XdpMode;

use super::XdpError;
use crate::lnd::SendFault;

/// UDP port of an xdp net unless another is set: that of LNet's acceptor.
pub const DEFAULT_PORT: u16 = 988;

/// Configuration that the NIs of the xdp LND of a node have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct XdpConfig {
    /// Receive queues that each interface must have at least; `None` takes it as it is.
    pub queues: Option<u32>,
    /// UDP port of the node and its peers.
    pub udp_port: u16,
    /// How frames reach the shards.
    pub mode: XdpMode,
    /// Frames of 4 KiB for NIs over rings, of all shards together; they are made with the first such NI, and
    /// later ones have to do with them. `None`: as many as the NIs take that there are at first, or one
    /// interface with one queue.
    pub frames: Option<u32>,
    /// Object file of the XDP program; `None` takes what the variable `LNET_BPF_OBJECT` names, else the one
    /// that is built in.
    pub bpf_object: Option<PathBuf>,
    /// Log frames that XDP refuses, as `tracing` events of target `lnet_xdp`; takes the logging object.
    pub log_refusals: bool,
    /// Bytes of memory that rings send from without a copy, over all shards. They are there and pinned while
    /// the node has NIs over rings, and as long as buffers in them.
    pub registered_bytes: u64,
    /// Entries of the rings of each queue and socket.
    pub rings: RingSizes,
    /// Fault that is made on purpose when frames are sent: for tests.
    pub send_fault: SendFault,
    /// How many of a million frames with messages the XDP programs drop, at random: for tests. Only frames
    /// that arrive by rings count.
    pub frame_loss_per_million: u32,
}

impl Default for XdpConfig {
    /// Port 988 and automatic mode.
    fn default() -> Self {
        Self {
            queues: None,
            udp_port: DEFAULT_PORT,
            mode: XdpMode::Auto,
            frames: None,
            bpf_object: None,
            log_refusals: false,
            registered_bytes: 0,
            rings: RingSizes::default(),
            send_fault: SendFault::default(),
            frame_loss_per_million: 0,
        }
    }
}

impl XdpConfig {
    /// Checks what the configuration says by itself.
    ///
    /// # Errors
    /// [`XdpError::UdpPort`] or [`XdpError::Rings`].
    pub fn check(&self) -> Result<(), XdpError> {
        if self.udp_port == 0 {
            return Err(XdpError::UdpPort);
        }
        self.rings.check().map_err(XdpError::Rings)
    }

    /// Frames that a node of `shards` shards needs for so many interfaces over rings with so many receive
    /// queues in all: a value for [`XdpConfig::frames`].
    #[must_use]
    pub fn frames_for(&self, shards: u32, interfaces: u32, queues: u32) -> u32 {
        self.frames_per_shard(interfaces, queues.div_ceil(shards.max(1))) * shards
    }

    /// Chunks that each shard needs so that it can keep so many queues of its own full, and send by all
    /// interfaces.
    pub(super) fn frames_per_shard(&self, interfaces: u32, owned_queues: u32) -> u32 {
        // Each interface's rings may be full of frames to send, also of one that sends nothing any more.
        owned_queues * self.rings.fill + self.rings.tx * interfaces + self.early_chunks_max()
    }

    /// Chunks of packets that a shard keeps for the transfer protocol at most.
    pub(super) fn early_chunks_max(&self) -> u32 {
        (self.rings.fill / 4).max(FRAGMENTS_MAX)
    }
}
