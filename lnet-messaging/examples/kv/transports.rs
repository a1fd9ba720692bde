//! The transports by the words of a command line. Nothing else of server and client depends on which it is.

use std::error::Error;
use std::sync::Arc;

use lnet_messaging::lnet::portal_policy;
use lnet_messaging::transport::Transport;
use lnet_messaging::{LnetTransport, RpcTransport};
use lnet_user::{Lnet, NiConfig, NodeConfig};

/// A transport that is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Chosen<'a> {
    Rpc,
    /// Over a node on this interface.
    Lnet(&'a str),
}

/// The transport that words begin with, and the words behind it.
pub(crate) fn of<'a, 'b>(words: &'b [&'a str]) -> Option<(Chosen<'a>, &'b [&'a str])> {
    match words {
        ["rpc", rest @ ..] => Some((Chosen::Rpc, rest)),
        ["lnet", interface, rest @ ..] => Some((Chosen::Lnet(interface), rest)),
        _ => None,
    }
}

impl Chosen<'_> {
    /// The transport, for a transfer machine at this address.
    pub(crate) fn open(self, address: &str) -> Result<Arc<dyn Transport>, Box<dyn Error>> {
        Ok(match self {
            Self::Rpc => RpcTransport::default().shared(),
            Self::Lnet(interface) => {
                let mut parts = address.rsplit(':').skip(1);
                let (portal, nid) = (parts.next(), parts.nth(1));
                let (portal, nid) = portal.zip(nid).ok_or("an address of lnet is NID:PID:PORTAL:TMID")?;
                let config = NodeConfig::new(vec![NiConfig::new(nid.parse()?, interface)]);
                let lnet = Lnet::start(&config.policies(vec![(portal.parse()?, portal_policy())]))?;
                lnet.open()?;
                LnetTransport::new(&lnet).shared()
            }
        })
    }
}
