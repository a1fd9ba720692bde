//! The nodes that are measured: one shard each, driven by the application.

use std::sync::Mutex;

use anyhow::Context;
use lnet_core::limits::Limits;
use lnet_user::node::{Carrier, NiConfig, NodeConfig, NodeDriver, XdpMode};
use lnet_user::runtime::Worker;
use lnet_wire::NetType;

/// What the nodes have room for: descriptors without a threshold may have as many events as the benches have
/// messages under way.
pub const LIMITS: Limits = Limits { unlimited_events: 1 << 10, ..Limits::DEFAULT };

/// An NI with a mode and a carrier of long messages, which those of an xdp net alone have.
#[must_use]
pub fn with_carrier(ni: NiConfig, mode: XdpMode, carrier: Carrier) -> NiConfig {
    match ni.nid.net().net_type() {
        NetType::XDP => ni.mode(Some(mode)).carrier(Some(carrier)),
        _ => ni,
    }
}

/// The modes of all nodes that this process has started, each once.
static MODES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Starts a node of one shard on interfaces of the calling thread's network namespace. One on an xdp net
/// whose frames take another way than XDP programs in the drivers is told of on standard error.
///
/// # Errors
/// What the node refused.
pub fn start(config: &NodeConfig) -> anyhow::Result<(NodeDriver, Worker)> {
    let (node, mut workers) = NodeDriver::start(config)?;
    let worker = workers.pop().context("a node of one shard has one")?;
    let has_frames = config.nis.iter().any(|ni| ni.nid.net().net_type() == NetType::XDP);
    let mode = if has_frames { node.mode().to_string() } else { "tcp".to_owned() };
    let mut modes = lock();
    if !modes.contains(&mode) {
        if has_frames && ![XdpMode::Native, config.xdp.mode].contains(&node.mode()) {
            eprintln!("warning: mode {mode}: AF_XDP with programs in the drivers cannot be had here");
        }
        modes.push(mode);
    }
    Ok((node, worker))
}

/// The modes of the nodes that were started so far, in the order in which they came up: one, if nothing is
/// amiss; of those on a tcp net, `tcp`.
#[must_use]
pub fn modes() -> String {
    lock().join(" and ")
}

fn lock() -> std::sync::MutexGuard<'static, Vec<String>> {
    // A list stays whole when its holder panics.
    MODES.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
