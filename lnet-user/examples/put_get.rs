//! A Put and a Get, and the events that they cause. Without arguments a node talks to itself; as root,
//! `put_get INTERFACE NID` waits for a peer, and `put_get INTERFACE NID PEER_NID` talks to one that waits.
#![allow(missing_docs, reason = "an example")]

use std::error::Error;

use lnet_user::{Ack, Buffer, EntrySpec, EventQueue, Lnet, MdOptions, MdSpec, Nid};
use lnet_user::{NiConfig, NodeConfig, Target, Threshold};

const PORTAL: u32 = 4;

pub fn main() -> Result<(), Box<dyn Error>> {
    run(&std::env::args().skip(1).collect::<Vec<_>>())
}

pub fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let (config, peer) = match arguments {
        [] => (NodeConfig::loopback(), Some(Nid::LO)),
        [interface, nid, peer @ ..] => {
            let config = NodeConfig::new(vec![NiConfig::new(nid.parse()?, interface)]);
            (config, peer.first().map(|nid| nid.parse()).transpose()?)
        }
        _ => return Err("expected: [INTERFACE NID [PEER_NID]]".into()),
    };
    let lnet = Lnet::start(&config)?;
    let mut events = lnet.create_event_queue(64)?;
    let md = |count, options| MdSpec::new(16, Threshold::Count(count), options, events.handle());
    // A Put and its ACK, a Get and its REPLY: two operations each.
    let bound = md(2, MdOptions::NONE);
    if arguments.len() < 3 {
        // What peers find: room for a Put under match bits 1, and bytes for a Get under 2.
        lnet.attach(&EntrySpec::new(PORTAL, 1), &md(1, MdOptions::PUT), Buffer::zeroed(16))?.detach();
        let bytes = Buffer::from(b"what was gotten.".to_vec());
        lnet.attach(&EntrySpec::new(PORTAL, 2), &md(1, MdOptions::GET), bytes)?.detach();
    }
    lnet.open()?;
    let Some(peer) = peer else { return print_events(&mut events, 2) };
    // Each message ends a descriptor here, and one at the target.
    let ends = if peer == Nid::LO { 2 } else { 1 };
    let source = lnet.bind(&bound, Buffer::from(b"what was put ...".to_vec()))?;
    source.put(&Target::new(peer, PORTAL, 1), Ack::Wanted, 0).queue()?;
    print_events(&mut events, ends)?;
    let sink = lnet.bind(&bound, Buffer::zeroed(16))?;
    sink.get(&Target::new(peer, PORTAL, 2)).queue()?;
    print_events(&mut events, ends)
}

/// Prints events until so many descriptors are through.
fn print_events(events: &mut EventQueue, mut descriptors: u32) -> Result<(), Box<dyn Error>> {
    while descriptors > 0 {
        let Some(queued) = events.next_blocking(None)? else { continue };
        let text = queued.payload().map(String::from_utf8_lossy).unwrap_or_default();
        println!("{:?} {:?} {text}", queued.event.kind(), queued.event.status());
        descriptors -= u32::from(queued.event.unlinked());
    }
    Ok(())
}
