//! What a node or an NI is to be, checked before anything is built: first what the configuration says by
//! itself, then what the kernel says of its interfaces.

use std::net::IpAddr;

use lnet_core::handle::ShardSet;
use lnet_core::lnd::NiId;
use lnet_core::node::policy_word;
use lnet_io::kind::NiRequest;
use lnet_io::reactor::WATCHES_MAX;
use lnet_model::lnd::NiOption;
use lnet_wire::Nid;
use lnet_wire::steer::{PORTALS, PolicyWord, SHARDS_MAX};

use super::{ConfigError, LO, NiConfig, NodeConfig, NodeError};
use crate::lnd::{Kinds, NiPlan};

/// An NI as its LND is asked for it.
pub(super) fn request<'a>(ni: NiId, config: &'a NiConfig, shards: u32) -> Result<NiRequest<'a>, ConfigError> {
    let (nid, address) = (config.nid, address(config.nid)?);
    let serving = serving(config, shards)?;
    let interface = &*config.interface;
    let options = &config.options;
    Ok(NiRequest { ni, nid, address, interface, options, serving })
}

/// Checks an NI, and has its LND look at its interface.
pub(super) fn plan(kinds: &Kinds, ni: NiId, config: &NiConfig, shards: u32) -> Result<NiPlan, NodeError> {
    check_ni(config)?;
    Ok(kinds.plan(&request(ni, config, shards)?)?)
}

/// Checks what a configuration says by itself and the state machine does not know; the words of its policies.
pub(super) fn check(config: &NodeConfig) -> Result<[PolicyWord; PORTALS], ConfigError> {
    check_numbers(config)?;
    let mut words = [PolicyWord::default(); PORTALS];
    for (index, (portal, policy)) in config.policies.iter().enumerate() {
        if config.policies[..index].iter().any(|(other, _)| other == portal) {
            return Err(ConfigError::DuplicatePolicy(*portal));
        }
        let word = policy_word((*portal).into(), policy, config.shards as u8)?;
        words[usize::from(*portal)] = word;
    }
    Ok(words)
}

/// The NIs that a node has at first.
pub(super) fn first(kinds: &Kinds, config: &NodeConfig) -> Result<Vec<NiPlan>, NodeError> {
    let numbered = (LO.0 + 1..).map(NiId).zip(&config.nis);
    numbered.map(|(id, ni)| plan(kinds, id, ni, config.shards)).collect()
}

/// Checks the NIs that a node has at first, each by itself and beside the others.
pub(super) fn check_nis(config: &NodeConfig) -> Result<(), ConfigError> {
    let nis = &config.nis;
    nis.iter().enumerate().try_for_each(|(index, ni)| {
        check_ni(ni)?;
        serving(ni, config.shards)?;
        check_address(ni, nis[..index].iter(), config.xdp.udp_port)
    })
}

/// The shards that serve an NI, of so many.
fn serving(ni: &NiConfig, shards: u32) -> Result<ShardSet, ConfigError> {
    if let Some(&shard) = ni.serving_shards.iter().find(|shard| **shard >= shards) {
        return Err(ConfigError::NoShard { nid: ni.nid, shard, last: shards - 1 });
    }
    Ok(ShardSet::of(ni.serving_shards.iter().copied()).unwrap_or(ShardSet::all(shards as u8)))
}

/// Checks what an NI's configuration says by itself: its options are those of its LND, which drives the net.
pub(super) fn check_ni(ni: &NiConfig) -> Result<(), ConfigError> {
    ni.options.check(ni.nid.net(), Some(&ni.interface))?;
    address(ni.nid).map(drop)
}

fn check_numbers(config: &NodeConfig) -> Result<(), ConfigError> {
    if config.shards == 0 || config.shards > SHARDS_MAX {
        return Err(ConfigError::Shards(config.shards));
    }
    if !config.limits.is_valid() || !super::shard_limits(config).is_valid() {
        return Err(ConfigError::Limits(config.limits));
    }
    if config.queues_max == 0 || config.queues_max > WATCHES_MAX {
        return Err(ConfigError::QueuesMax(config.queues_max));
    }
    config.xdp.check().map_err(ConfigError::Xdp)
}

/// Checks the address of an NI that is to stand beside others. NIs share one where senders name the NID that
/// they mean to either, and where they have different ports.
pub(super) fn check_address<'a>(
    ni: &NiConfig,
    mut others: impl Iterator<Item = &'a NiConfig>,
    default_port: u16,
) -> Result<(), ConfigError> {
    let own = address(ni.nid)?;
    let is_named =
        |ni: &NiConfig| ni.options.lnd_on(ni.nid.net(), &ni.interface).is_some_and(|row| row.names_nids);
    let port = |ni: &NiConfig| ni.options.number(NiOption::Port).unwrap_or(default_port);
    let is_told_apart = |other: &NiConfig| {
        other.nid != ni.nid && (is_named(ni) || is_named(other) || port(ni) != port(other))
    };
    let first = others.find(|other| other.nid.ip() == Some(own) && !is_told_apart(other));
    first.map_or(Ok(()), |first| Err(ConfigError::DuplicateAddress { first: first.nid, second: ni.nid }))
}

fn address(nid: Nid) -> Result<IpAddr, ConfigError> {
    nid.ip().ok_or(ConfigError::NoAddress(nid))
}
