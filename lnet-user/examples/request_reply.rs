//! A service: a client puts a request that names a buffer of its own, the server gets the bytes from there in
//! bulk, and puts a reply. Without arguments both are on one node; as root, `request_reply INTERFACE NID` serves, and
//! `request_reply INTERFACE NID SERVER_NID` asks a node that serves.
#![allow(missing_docs, reason = "an example")]

use std::error::Error;

use lnet_user::{
    Ack, Buffer, EntrySpec, Event, EventQueue, Lnet, MdOptions, NiConfig, Nid, NodeConfig, QueuedEvent,
};
use lnet_user::{Status, Target, Threshold};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Portals of requests, of replies and of bulk data.
const REQUESTS: u32 = 4;
const REPLIES: u32 = 5;
const BULK: u32 = 6;
/// A request is the length of its bulk data; a reply is their sum.
const REQUEST_BYTES: usize = 8;
const REPLY_BYTES: usize = 8;

pub fn main() -> Result<()> {
    run(&std::env::args().skip(1).collect::<Vec<_>>())
}

pub fn run(arguments: &[String]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let node = |interface: &str, nid: &str| -> Result<Lnet> {
        Ok(Lnet::start(&NodeConfig::new(vec![NiConfig::new(nid.parse()?, interface)]))?)
    };
    match arguments {
        [] => {
            let lnet = Lnet::start(&NodeConfig::loopback())?;
            let mut requests = post_requests(&lnet)?;
            let both = async { tokio::try_join!(serve(&lnet, &mut requests, 3), ask_thrice(&lnet, Nid::LO)) };
            runtime.block_on(both).map(drop)
        }
        [interface, nid] => {
            let lnet = node(interface, nid)?;
            let mut requests = post_requests(&lnet)?;
            lnet.open()?;
            runtime.block_on(serve(&lnet, &mut requests, u32::MAX))
        }
        [interface, nid, server] => {
            let lnet = node(interface, nid)?;
            lnet.open()?;
            runtime.block_on(ask_thrice(&lnet, server.parse()?))
        }
        _ => Err("expected: [INTERFACE NID [SERVER_NID]]".into()),
    }
}

async fn ask_thrice(lnet: &Lnet, server: Nid) -> Result<()> {
    for number in 1..=3_u8 {
        let bulk = vec![number; 100_000 * usize::from(number)];
        let expected = sum(&bulk);
        let reply = ask(lnet, server, u64::from(number), bulk).await?;
        println!("request {number}: the sum is {reply}, {expected} was expected");
        if reply != expected {
            return Err("a wrong sum".into());
        }
    }
    Ok(())
}

/// The client's side: one request. `number` is one that no other request under way has.
async fn ask(lnet: &Lnet, server: Nid, number: u64, bulk: Vec<u8>) -> Result<u64> {
    let mut events = lnet.create_event_queue(16)?;
    let once = Threshold::Count(1);
    let request = Buffer::from((bulk.len() as u64).to_le_bytes().to_vec());
    // What the server finds: the bytes that it gets, and room for its reply. They go when this function ends.
    let bulk = Buffer::from(bulk);
    let spec = bulk.spec(once, MdOptions::GET, events.handle());
    let _bulk = lnet.attach(&EntrySpec::new(BULK, number), &spec, bulk)?;
    let reply = Buffer::zeroed(REPLY_BYTES);
    let spec = reply.spec(once, MdOptions::PUT, events.handle());
    let reply_entry = lnet.attach(&EntrySpec::new(REPLIES, number), &spec, reply)?;

    let spec = request.spec(once, MdOptions::NONE, events.handle());
    let sent =
        lnet.bind(&spec, request)?.put(&Target::new(server, REQUESTS, number), Ack::NotWanted, 0).await?;
    succeeded(&sent.event)?;
    loop {
        let queued = events.next().await?;
        succeeded(&queued.event)?;
        if queued.event.md() == reply_entry.handle() {
            return number_in(&queued);
        }
    }
}

/// Room for requests of any number, many at a time.
fn post_requests(lnet: &Lnet) -> Result<EventQueue> {
    let events = lnet.create_event_queue(128)?;
    let room = Buffer::zeroed(64 * REQUEST_BYTES);
    let spec = room.spec(Threshold::Count(64), MdOptions::PUT, events.handle());
    let any_number = EntrySpec { ignore_bits: u64::MAX, ..EntrySpec::new(REQUESTS, 0) };
    lnet.attach(&any_number, &spec, room)?.detach();
    Ok(events)
}

/// The server's side: answers so many requests.
async fn serve(lnet: &Lnet, requests: &mut EventQueue, count: u32) -> Result<()> {
    let mut served = 0;
    while served < count {
        let queued = requests.next().await?;
        if let Event::Put { match_bits, .. } = queued.event {
            served += 1;
            if let Err(error) = answer(lnet, requests, &queued, match_bits).await {
                println!("request {match_bits} is not answered: {error}");
            }
        }
        if queued.event.unlinked() {
            *requests = post_requests(lnet)?;
        }
    }
    Ok(())
}

async fn answer(lnet: &Lnet, events: &EventQueue, queued: &QueuedEvent, number: u64) -> Result<()> {
    let (bulk, replies) = Target::reply_to(&queued.event, BULK, number)
        .zip(Target::reply_to(&queued.event, REPLIES, number))
        .ok_or("no sender")?;
    let length_bytes = number_in(queued)?.min(1 << 20);
    let sink = Buffer::zeroed(length_bytes as usize);
    // A Get and its REPLY.
    let spec = sink.spec(Threshold::Count(2), MdOptions::TRACK_RESPONSE, events.handle());
    let got = lnet.bind(&spec, sink)?.get(&bulk).await?;
    succeeded(&got.event)?;
    let sum = sum(got.payload().ok_or("no bulk data")?);
    let reply = Buffer::from(sum.to_le_bytes().to_vec());
    let spec = reply.spec(Threshold::Count(1), MdOptions::NONE, events.handle());
    succeeded(&lnet.bind(&spec, reply)?.put(&replies, Ack::NotWanted, 0).await?.event)
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// The number that a request or a reply is.
fn number_in(queued: &QueuedEvent) -> Result<u64> {
    Ok(u64::from_le_bytes(queued.payload().ok_or("no payload")?.try_into()?))
}

fn succeeded(event: &Event) -> Result<()> {
    if event.status() == Status::Ok { Ok(()) } else { Err(format!("{event:?}").into()) }
}
