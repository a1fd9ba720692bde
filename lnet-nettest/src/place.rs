//! Where transfer machines are: transports, nodes, addresses.

use std::net::TcpListener;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use lnet_messaging::transport::Transport;
use lnet_messaging::{
    Buffer, BufferEvent, Domain, Event, Events, LnetTransport, MemTransport, Operation, RpcTransport,
    StopMode, TmEvent, TmState, TransferMachine,
};
use lnet_user::{Limits, Lnet, NiConfig, NodeConfig};

use crate::options::{PlaceOptions, TransportName};

/// A transport, and an address there.
#[derive(Clone)]
pub(crate) struct Place {
    transport: Arc<dyn Transport>,
    pub(crate) address: String,
}

impl Place {
    /// A place with room for so many buffers on each queue of a transfer machine.
    pub(crate) fn new(options: &PlaceOptions, depth: u32) -> Result<Self> {
        let PlaceOptions { transport, address, workers, .. } = options;
        let workers = usize::from(*workers);
        let transport = match transport {
            TransportName::Mem => MemTransport::with_workers(workers).shared(),
            TransportName::Rpc => RpcTransport::default().workers(workers).shared(),
            TransportName::Lnet => lnet(options, depth)?,
        };
        Ok(Self { transport, address: address.clone() })
    }

    /// Another address on the same transport.
    pub(crate) fn at(&self, address: &str) -> Self {
        Self { transport: Arc::clone(&self.transport), address: address.to_owned() }
    }

    /// Two that reach each other in this process.
    pub(crate) fn both(transport: TransportName, workers: u16, depth: u32) -> Result<[Self; 2]> {
        let port = match transport {
            // A port that is free at the moment.
            TransportName::Rpc => TcpListener::bind("127.0.0.1:0")?.local_addr()?.port(),
            _ => 0,
        };
        let place = |number: u8| {
            let address = match transport {
                TransportName::Mem => format!("127.0.0.{number}:1"),
                TransportName::Rpc => format!("127.0.0.1:{port}:{number}"),
                TransportName::Lnet => format!("10.0.0.{number}@xdp:12345:34:1"),
            };
            let interface = Some("in-process:nettest".to_owned());
            let options = PlaceOptions::of(transport, address);
            Self::new(&PlaceOptions { interface, workers, ..options }, depth)
        };
        Ok([place(1)?, place(2)?])
    }
}

/// Event slots of a transfer machine for each buffer of a queue: it has four queues at once, and a buffer
/// takes two.
const EVENTS_EACH: u32 = 8;
/// Transfer machines that a node has at once: one for orders, one for tests, and one that is just ending.
const TMS: u32 = 3;

/// Largest depth: each of the node's tables has 2^24 places at most.
const DEPTH_MAX: u32 = (1 << 24) / (EVENTS_EACH * TMS);

/// A node with one NI, whose NID stands in the address.
fn lnet(options: &PlaceOptions, depth: u32) -> Result<Arc<dyn Transport>> {
    let PlaceOptions { address, interface, mode, port, shards, registered, .. } = options;
    let interface = interface.as_deref().context("lnet wants --interface")?;
    let wrong = || anyhow!("address `{address}`: nid:12345:portal:tmid is expected");
    let mut parts = address.rsplitn(4, ':');
    let (_, portal, _, nid) = (parts.next(), parts.next(), parts.next(), parts.next().ok_or_else(wrong)?);
    let portal: u8 = portal.and_then(|portal| portal.parse().ok()).ok_or_else(wrong)?;
    let nid = nid.parse().map_err(|_| wrong())?;
    if depth > DEPTH_MAX {
        bail!("room for {depth} exchanges at once: at most {DEPTH_MAX} are expected over lnet");
    }
    let slots = (depth * EVENTS_EACH).max(1 << 11);
    let tables = depth * EVENTS_EACH;
    let limits = Limits {
        events: Limits::DEFAULT.events.max((slots * TMS).next_power_of_two()),
        match_entries: Limits::DEFAULT.match_entries.max(tables.next_power_of_two()),
        memory_descs: Limits::DEFAULT.memory_descs.max(tables.next_power_of_two()),
        ..Limits::DEFAULT
    };
    let config = NodeConfig::new(vec![NiConfig::new(nid, interface)])
        .policies(vec![(portal, lnet_messaging::lnet::portal_policy())])
        .mode(*mode)
        .udp_port(*port)
        .shards(*shards)
        .registered_bytes(registered.unwrap_or(0))
        .limits(limits);
    let node = Lnet::start(&config).with_context(|| format!("no node on {interface}"))?;
    node.open()?;
    Ok(LnetTransport::with_event_slots(&node, slots).shared())
}

/// A started transfer machine of a domain of its own.
pub(crate) struct Station {
    pub(crate) domain: Domain,
    pub(crate) tm: TransferMachine,
    pub(crate) events: Events,
    /// Where it is: with an identifier that was chosen, where it was to be.
    pub(crate) address: String,
}

impl Station {
    pub(crate) fn start(place: &Place) -> Result<Self> {
        let domain = Domain::new(&place.transport)?;
        let (handler, mut events) = Events::channel();
        let tm = TransferMachine::new(&domain, handler)?;
        tm.start(&place.address)?;
        let address = match events.next_blocking() {
            Some(Event::Tm(TmEvent::StateChange { state: TmState::Started, end_point, .. })) => end_point
                .context("a transfer machine that has started has an end point")?
                .address()
                .to_owned(),
            Some(Event::Tm(TmEvent::StateChange { status: Err(errno), .. })) => {
                bail!("{} does not start: {errno}", place.address)
            }
            event => bail!("{} does not start: {event:?}", place.address),
        };
        Ok(Self { domain, tm, events, address })
    }

    /// A buffer of so many bytes.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Buffer> {
        let segment = bytes.min(self.domain.limits().segment_bytes).max(1);
        // Segments of the same size, as many as it takes.
        Ok(self.domain.allocate(usize::try_from(bytes.div_ceil(segment))?, usize::try_from(segment)?)?)
    }

    /// The next event of a buffer.
    ///
    /// # Errors
    /// The transfer machine is gone, or breaks down.
    pub(crate) async fn next(&mut self) -> Result<BufferEvent> {
        loop {
            match self.events.next().await.context("the transfer machine is gone")? {
                Event::Buffer(event) => return Ok(event),
                Event::Tm(TmEvent::StateChange { state, status, .. }) => {
                    bail!("the transfer machine is {state:?}: {status:?}")
                }
                // Messages without a buffer are lost: their senders count them.
                Event::Tm(_) => {}
            }
        }
    }

    /// Room for messages of its size.
    pub(crate) fn receive(&self, buffer: Buffer) -> Result<()> {
        let min_receive_bytes = buffer.size_bytes();
        self.tm.add(buffer, Operation::Receive { min_receive_bytes, max_messages: 1 })?;
        Ok(())
    }

    /// Stops it, and waits until it has.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.tm.stop(StopMode::Abort)?;
        while let Some(event) = self.events.next_blocking() {
            if matches!(event, Event::Tm(TmEvent::StateChange { .. })) {
                break;
            }
        }
        Ok(())
    }
}
