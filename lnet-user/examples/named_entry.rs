//! Entries that name who may put there: all of a peer's messages match the peer's primary NID, whichever of
//! its NIs they come from. Without arguments a node puts to itself; as root, `named_entry PEER_NID PORTAL
//! INTERFACE NID [INTERFACE NID]...` waits for the first PUT of that peer to that portal.
#![allow(missing_docs, reason = "an example")]

use std::error::Error;

use lnet_user::{Ack, Buffer, EntrySpec, Event, Lnet, MdOptions, MdSpec, NiConfig, NodeConfig, ProcessId};
use lnet_user::{Nid, Target, Threshold};

/// Bytes that a PUT may have here.
const ROOM_BYTES: u32 = 4096;

pub fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().skip(1).collect::<Vec<_>>())
}

pub fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let (config, peer, portal) = match arguments {
        [] => (NodeConfig::loopback(), Nid::LO, 4),
        [peer, portal, nis @ ..] if !nis.is_empty() && nis.len().is_multiple_of(2) => {
            let nis = nis.chunks(2).map(|ni| Ok(NiConfig::new(ni[1].parse()?, &ni[0])));
            let nis = nis.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
            (NodeConfig::new(nis), peer.parse()?, portal.parse()?)
        }
        _ => return Err("expected: [PEER_NID PORTAL INTERFACE NID [INTERFACE NID]...]".into()),
    };
    let lnet = Lnet::start(&config)?;
    let mut events = lnet.create_event_queue(64)?;
    let named = EntrySpec {
        source: ProcessId { nid: peer, pid: ProcessId::ANY_PID },
        ignore_bits: u64::MAX,
        ..EntrySpec::new(portal, 0)
    };
    let options = MdOptions::PUT | MdOptions::TRUNCATE;
    let md = MdSpec::new(u64::from(ROOM_BYTES), Threshold::Count(1), options, events.handle());
    lnet.attach(&named, &md, Buffer::zeroed(ROOM_BYTES as usize))?.detach();
    lnet.open()?;
    println!("{peer} may put to portal {portal}");
    if arguments.is_empty() {
        let md = MdSpec::new(5, Threshold::Count(1), MdOptions::NONE, events.handle());
        let source = lnet.bind(&md, Buffer::from(b"hello".to_vec()))?;
        source.put(&Target::new(peer, portal, 7), Ack::NotWanted, 0).queue()?;
        source.detach();
    }
    loop {
        let Some(queued) = events.next_blocking(None)? else { continue };
        if let Event::Put { origin, manipulated_bytes, .. } = queued.event {
            let (initiator, source) = (origin.initiator.nid, origin.source);
            println!("{initiator} has put {manipulated_bytes} bytes, from {source}");
            return Ok(());
        }
    }
}
