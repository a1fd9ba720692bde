//! What a node's NIs of the xdp LND have in common, be they over rings or over sockets.

use std::sync::Arc;

use super::plan::XdpPlan;
use super::rings::{RingNet, early_chunks_max};
use super::{NiConfig, NodeDriver, NodeError, XdpMode, XdpNi};
use crate::lnd::xdp::{self, Common, ReturnRings, XdpLnd, XdpPort};
use crate::lnd::{Part, ShardPort};

/// The xdp LND of a node, while it has NIs of it.
#[derive(Debug)]
pub(super) struct XdpNet {
    pub(super) return_rings: ReturnRings,
    /// While there are NIs over rings.
    pub(super) rings: Option<RingNet>,
    /// Bytes of the longest datagram that the shards keep and hand over, once there was an NI over a socket.
    pub(super) buffer_bytes: Option<u32>,
}

/// The LNDs of the shards, if they are made with this NI.
pub(super) type Fresh = Option<(XdpNet, Vec<XdpLnd>)>;

impl NodeDriver {
    /// The LNDs, unless there are some.
    pub(super) fn fresh_xdp(&self) -> Result<Fresh, NodeError> {
        if self.xdp.is_some() {
            return Ok(None);
        }
        let config = &self.config;
        let common = Common {
            shards: config.shards,
            frames_per_shard: self.frames_per_shard,
            rings: config.rings,
            early_chunks_max: early_chunks_max(config) as usize,
            frame_max_bytes: xdp::frame_max_bytes(&config.rings),
            payload_checksum: config.payload_checksum,
            send_fault: config.send_fault,
            opened: Arc::clone(self.view.opened()),
            xfer: self.xfer_config(xdp::receive_bytes(&config.rings, config.shards, 1))?,
        };
        let (lnds, return_rings) = XdpLnd::for_shards(&common, self.view.wakers());
        Ok(Some((XdpNet { return_rings, rings: None, buffer_bytes: None }, lnds)))
    }

    /// Takes the LNDs on that were made with an NI; the parts of the shards.
    pub(super) fn keep_xdp(&mut self, fresh: Fresh, ports: Vec<XdpPort>) -> (&mut XdpNet, Vec<ShardPort>) {
        let (net, lnds) = fresh.unzip();
        if let Some(net) = net {
            self.xdp = Some(net);
        }
        let parts = Part::of_shards(lnds.unwrap_or_default(), ports).map(ShardPort::Xdp).collect();
        let net = self.xdp.as_mut().unwrap_or_else(|| unreachable!("one was there, or was made"));
        (net, parts)
    }

    /// Opens an NI of the xdp LND, as its mode wants it.
    pub(super) fn open_xdp(
        &mut self,
        plan: &XdpPlan,
        config: &NiConfig,
    ) -> Result<(XdpNi, Vec<ShardPort>), NodeError> {
        if plan.mode == XdpMode::Socket {
            return self.open_sockets(plan);
        }
        match self.open_rings(plan, config) {
            Err(rings) if plan.mode == XdpMode::Auto && rings.is_lack() => {
                let lacking = rings.to_string();
                let opened = self.open_sockets(plan).map_err(|sockets| NodeError::NoMode {
                    rings: Box::new(rings),
                    sockets: Box::new(sockets),
                });
                let (mut open, parts) = opened?;
                tracing::warn!(nid = %config.nid, interface = config.interface, lacking, "no AF_XDP rings: UDP sockets are used, which are slower");
                open.no_rings = Some(lacking);
                Ok((open, parts))
            }
            made => made,
        }
    }

    /// Closes an NI of the xdp LND.
    pub(super) fn close_xdp(&mut self, open: &XdpNi, parts: Vec<ShardPort>) {
        if open.mode == XdpMode::Socket {
            drop(parts);
        } else {
            self.close_rings(&open.port, parts);
        }
        if !self.any_xdp(|_| true) {
            // The shards have given up their LNDs.
            self.xdp = None;
        }
    }

    /// What NIs over rings have in common.
    pub(super) fn rings(&self) -> Option<&RingNet> {
        self.xdp.as_ref()?.rings.as_ref()
    }

    pub(super) fn rings_mut(&mut self) -> Option<&mut RingNet> {
        self.xdp.as_mut()?.rings.as_mut()
    }
}
