//! The tool's end of the control socket: blocking, without a runtime.
//!
//! Invariants: one request at a time; a reply that is not of the request's kind is an error, and the
//! connection is not used again after one; closing the connection cancels what is under way, except changes,
//! which the node carries to their end.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lnet_model::capture::{CaptureRecord, CaptureSpec};
use lnet_model::choice::InterfaceRecord;
use lnet_model::fault::{DelayRuleRecord, DropRuleRecord};
use lnet_model::records::{
    ConnectionRecord, CptRecord, ExplainRecord, FramesRecord, Globals, LoadRecord, NetRecord, Parameters,
    PeerPage, PeerQuery, PeerRecord, RecoveryRecord, RoutePage, RouteRecord, RoutingRecord, SelftestAnswer,
    SelftestRequest, Statistics, UsageRecord,
};
use lnet_model::request::{ChangeSet, Effect, PingReply, PingRequest};
use lnet_model::route::RouteSpec;
use lnet_model::steering::SteeringRecord;
use lnet_model::text::NidText;
use lnet_model::udsp::UdspRule;
use lnet_model::{Errno, Refusal};
use lnet_wire::Nid;
use thiserror::Error;

use crate::protocol::{
    self, CHANGES_BYTES_MAX, HEADER_BYTES, PART_BYTES_MAX, ProtocolError, REPLY_BYTES_MAX,
};
use crate::request::{ControlRequest, LoadSpec, Reply, RequestClass};

/// How long a node may take for anything but a ping.
const REPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an order may take: other nodes are waited for, one behind the other where they are many.
const ORDER_TIMEOUT: Duration = Duration::from_hours(1);
/// How long a ping takes that no timeout is given for, at most.
pub const PING_TIMEOUT: Duration = Duration::from_secs(180);
/// What a node may take longer than a ping's timeout.
const PING_SLACK: Duration = Duration::from_secs(1);

/// Why a request was not answered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket cannot be connected to.
    #[error("cannot reach the daemon at {path}: {reason}", path = path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The kernel's answer, in words that help.
        reason: String,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The connection broke.
    #[error("the connection to the daemon broke: {0}")]
    Broken(#[from] io::Error),
    /// The daemon did not answer in time.
    #[error("the daemon did not answer within {0:?}")]
    Timeout(Duration),
    /// What came is no answer.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// What came is the answer to something else.
    #[error("the daemon answered something else than it was asked")]
    Unexpected,
    /// The node does not do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl ClientError {
    /// The error number that tools print for it.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Connect { errno, .. } => *errno,
            Self::Broken(_) | Self::Protocol(_) | Self::Unexpected => Errno::IO,
            Self::Timeout(_) => Errno::TIMEDOUT,
            Self::Refused(refusal) => refusal.errno,
        }
    }
}

/// A connection to a node.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let stream = UnixStream::connect(path).map_err(|error| connect_error(path, &error))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self { stream })
    }

    /// All peers, page by page: one that comes or goes meanwhile may be among them or not.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn peers(&mut self) -> Result<Vec<PeerRecord>, ClientError> {
        let mut peers = Vec::new();
        self.peer_pages(PeerQuery::default(), |page| peers.extend(page))?;
        Ok(peers)
    }

    /// The peers that these NIDs are shown with, each once: the node looks at no others.
    ///
    /// # Errors
    /// [`ClientError`]. A NID that no peer has is none.
    pub fn peers_of(&mut self, nids: &[Nid]) -> Result<Vec<PeerRecord>, ClientError> {
        let (mut peers, mut known) = (Vec::new(), HashSet::new());
        for nids in nids.chunks(PeerQuery::NIDS_MAX) {
            let of = Some(nids.iter().copied().map(NidText).collect());
            self.peer_pages(PeerQuery { of, after: None }, |page| {
                peers.extend(page.into_iter().filter(|peer| known.insert(peer.primary_nid)));
            })?;
        }
        Ok(peers)
    }

    /// Peers page by page; `told` gets each page as it comes.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn peer_pages(
        &mut self,
        mut query: PeerQuery,
        mut told: impl FnMut(Vec<PeerRecord>),
    ) -> Result<(), ClientError> {
        loop {
            let PeerPage { peers, next } = self.peer_page(query.clone())?;
            told(peers);
            match (next, query.after) {
                (None, _) => return Ok(()),
                // A page that leads back would be asked for without end.
                (Some(NidText(next)), Some(NidText(before))) if next <= before => {
                    return Err(ClientError::Unexpected);
                }
                _ => query.after = next,
            }
        }
    }

    /// All routes, page by page: one that comes or goes meanwhile may be among them or not.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn routes(&mut self) -> Result<Vec<RouteRecord>, ClientError> {
        let name = |spec: &RouteSpec| (spec.net, spec.gateway);
        let (mut routes, mut after) = (Vec::new(), None);
        loop {
            let RoutePage { routes: page, has_more } = self.route_page(after)?;
            let last = page.last().map(|last| last.spec);
            routes.extend(page);
            if !has_more {
                return Ok(routes);
            }
            // A page that leads back would be asked for without end.
            if last.as_ref().map(name) <= after.as_ref().map(name) {
                return Err(ClientError::Unexpected);
            }
            after = last;
        }
    }

    /// Pings NIDs; `answered` gets what becomes of each as soon as it is known, in their order.
    ///
    /// # Errors
    /// [`ClientError`]. A NID that does not answer is none.
    pub fn ping(
        &mut self,
        request: PingRequest,
        mut answered: impl FnMut(PingReply),
    ) -> Result<(), ClientError> {
        let timeout = request.timeout_ms.map_or(PING_TIMEOUT, Duration::from_millis) + PING_SLACK;
        self.send(&ControlRequest::Ping(request))?;
        loop {
            match self.receive(timeout)? {
                Reply::Ping(Some(reply)) => answered(reply),
                Reply::Ping(None) => return Ok(()),
                Reply::Refused(refusal) => return Err(refusal.into()),
                _ => return Err(ClientError::Unexpected),
            }
        }
    }

    /// The reply to a request that has one, unless it is a refusal.
    fn ask(&mut self, request: &ControlRequest) -> Result<Reply, ClientError> {
        self.send(request)?;
        let timeout = if request.kind() == RequestClass::Order { ORDER_TIMEOUT } else { REPLY_TIMEOUT };
        match (self.receive(timeout)?, request) {
            (Reply::Refused(refusal), _) => Err(refusal.into()),
            (Reply::Apply(outcomes), ControlRequest::Apply(batch))
                if outcomes.len() != batch.changes.len() =>
            {
                Err(ClientError::Unexpected)
            }
            (reply, _) => Ok(reply),
        }
    }

    fn send(&mut self, request: &ControlRequest) -> Result<(), ClientError> {
        let message = protocol::encode(request, CHANGES_BYTES_MAX)?;
        // A daemon that refuses the connection says why before it closes: that is worth more than the
        // broken pipe.
        match self.stream.write_all(&message) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn receive(&mut self, timeout: Duration) -> Result<Reply, ClientError> {
        self.stream.set_read_timeout(Some(timeout))?;
        let late = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Timeout(timeout),
            _ => error.into(),
        };
        let mut json = Vec::new();
        loop {
            let mut header = [0; HEADER_BYTES];
            self.stream.read_exact(&mut header).map_err(late)?;
            let begin = json.len();
            let length = protocol::read_header(&header, PART_BYTES_MAX.min(REPLY_BYTES_MAX - begin))?;
            json.resize(begin + length, 0);
            self.stream.read_exact(json.get_mut(begin..).unwrap_or_default()).map_err(late)?;
            if !protocol::has_more(&header) {
                return Ok(protocol::decode(&json)?);
            }
        }
    }
}

macro_rules! calls {
    ($($(#[$doc:meta])+ $kind:ident $variant:ident: $call:ident($($name:ident: $argument:ty)?) -> $answer:ty;)+) => {
        impl Client {
            $(
                $(#[$doc])+
                ///
                /// # Errors
                /// [`ClientError`].
                pub fn $call(&mut self $(, $name: $argument)?) -> Result<$answer, ClientError> {
                    match self.ask(&ControlRequest::$variant $(($name))?)? {
                        Reply::$variant(answer) => Ok(answer),
                        _ => Err(ClientError::Unexpected),
                    }
                }
            )+
        }
    };
}

requests!(calls);

/// The system's errno in an error, or `EIO`.
#[must_use]
pub fn errno_of(error: &io::Error) -> Errno {
    let own = match error.kind() {
        // What `file` says of itself has no number.
        io::ErrorKind::InvalidInput => Errno::INVAL,
        _ => Errno::IO,
    };
    error.raw_os_error().and_then(|number| u8::try_from(number).ok()).map_or(own, Errno)
}

fn connect_error(path: &Path, error: &io::Error) -> ClientError {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "nothing is there; is lnetd running?".to_owned(),
        io::ErrorKind::ConnectionRefused => "no daemon listens there: it has died".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied: root and the socket's owner and group may use it".to_owned()
        }
        _ => error.to_string(),
    };
    let errno = errno_of(error);
    ClientError::Connect { path: path.to_owned(), reason, errno }
}

#[cfg(test)]
mod tests {
    use lnet_model::records::{RouteState, RouteType};

    use super::*;

    /// A client whose node has these pages of peers to tell: primary NIDs, and by what the next is asked for.
    fn asked(pages: &[(&[&str], Option<&str>)]) -> Result<usize, ClientError> {
        let (stream, mut node) = UnixStream::pair().unwrap();
        for (nids, next) in pages {
            let peer = |nid: &&str| PeerRecord {
                primary_nid: nid.parse().unwrap(),
                multi_rail: false,
                state: 0,
                is_gateway: false,
                fsm_state: String::new(),
                shared_nids: Vec::new(),
                nis: Vec::new(),
            };
            let next = next.map(|next| NidText(next.parse().unwrap()));
            let page = PeerPage { peers: nids.iter().map(peer).collect(), next };
            node.write_all(&protocol::encode(&Reply::PeerPage(page), REPLY_BYTES_MAX).unwrap()).unwrap();
        }
        Client { stream }.peers().map(|peers| peers.len())
    }

    #[test]
    fn pages_of_routes_that_lead_back_are_an_error() {
        let route = |(net, gateway): &(&str, &str)| RouteRecord {
            spec: RouteSpec::new(net.parse().unwrap(), gateway.parse().unwrap()),
            state: RouteState::Up,
            r#type: RouteType::SingleHop,
        };
        let asked = |pages: &[&[(&str, &str)]]| {
            let (stream, mut node) = UnixStream::pair().unwrap();
            for (number, page) in pages.iter().enumerate() {
                let page = RoutePage {
                    routes: page.iter().map(route).collect(),
                    has_more: number + 1 < pages.len(),
                };
                node.write_all(&protocol::encode(&Reply::RoutePage(page), REPLY_BYTES_MAX).unwrap()).unwrap();
            }
            Client { stream }.routes().map(|routes| routes.len())
        };
        let [one, two, three] =
            [("tcp1", "10.0.0.2@tcp"), ("tcp1", "10.0.0.3@tcp"), ("tcp2", "10.0.0.1@tcp")];
        assert_eq!(asked(&[&[]]).unwrap(), 0);
        assert_eq!(asked(&[&[one, two], &[three], &[]]).unwrap(), 3);
        for back in [one, two] {
            assert!(matches!(asked(&[&[one, two], &[back], &[]]), Err(ClientError::Unexpected)), "{back:?}");
        }
        assert!(matches!(asked(&[&[one], &[], &[two]]), Err(ClientError::Unexpected)));
    }

    #[test]
    fn pages_of_peers_that_lead_back_are_an_error() {
        let (one, two, three) = ("10.0.0.1@tcp", "10.0.0.2@tcp", "10.0.0.3@tcp");
        // The NID that is shown may be any.
        assert_eq!(asked(&[(&[three], Some(one)), (&[one], None)]).unwrap(), 2);
        // All peers of a page have gone meanwhile, and the next ones have not.
        assert_eq!(asked(&[(&[one], Some(one)), (&[], Some(two)), (&[three], None)]).unwrap(), 2);
        for back in [one, two] {
            let pages: [(&[&str], _); 2] = [(&[two], Some(two)), (&[one], Some(back))];
            assert!(matches!(asked(&pages), Err(ClientError::Unexpected)), "{back}");
        }
    }
}
