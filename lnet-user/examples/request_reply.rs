//! A service: a client sends a request that names a buffer of its own, the server gets the bytes from there
//! in bulk, and replies. Without arguments both are on one node; as root, `request_reply INTERFACE NID`
//! serves, and `request_reply INTERFACE NID SERVER_NID` asks a node that serves. Bulk data lies in registered
//! memory where the node has rings, and leaves without a copy.
#![allow(missing_docs, reason = "an example")]

use std::error::Error;
use std::time::Duration;

use lnet_user::rpc::{Client, ReceivedRequest, Server, ServiceSpec};
use lnet_user::{
    Buffer, EntrySpec, Lnet, MdOptions, NiConfig, Nid, NodeConfig, PAYLOAD_BYTES_MAX, Status, Target,
    Threshold,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Requests go to portal 4, replies to portal 5. A request is the length of its bulk data and the match bits
/// where that is; a reply is the sum of its bytes.
const SERVICE: ServiceSpec = ServiceSpec::new(4, 5);
/// Portal of bulk data.
const BULK: u32 = 6;
/// Registered memory of a node.
const REGISTERED_BYTES: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn main() -> Result<()> {
    run(&std::env::args().skip(1).collect::<Vec<_>>())
}

pub fn run(arguments: &[String]) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let node = |interface: &str, nid: &str| -> Result<Lnet> {
        let config = NodeConfig::new(vec![NiConfig::new(nid.parse()?, interface)]);
        Ok(Lnet::start(&config.registered_bytes(REGISTERED_BYTES))?)
    };
    match arguments {
        [] => {
            let lnet = Lnet::start(&NodeConfig::loopback())?;
            let mut server = Server::start(&lnet, &SERVICE)?;
            let both = async { tokio::try_join!(serve(&lnet, &mut server, 3), ask_thrice(&lnet, Nid::LO)) };
            runtime.block_on(both).map(drop)
        }
        [interface, nid] => {
            let lnet = node(interface, nid)?;
            let mut server = Server::start(&lnet, &SERVICE)?;
            lnet.open()?;
            runtime.block_on(serve(&lnet, &mut server, u32::MAX))
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
    let client = Client::new(lnet, &SERVICE)?;
    for number in 1..=3_u8 {
        let length_bytes = 100_000 * usize::from(number);
        // Registered memory is there while an NI is over rings.
        let (memory, mut bulk) = match lnet.register(length_bytes) {
            Some(bulk) => ("registered", bulk),
            None => ("ordinary", Buffer::zeroed(length_bytes)),
        };
        bulk.fill(number);
        let expected = sum(&bulk);
        let reply = ask(lnet, &client, server, u64::from(number), bulk).await?;
        println!(
            "request {number}: {length_bytes} bytes of {memory} memory, the sum is {reply}, {expected} was expected"
        );
        if reply != expected {
            return Err("a wrong sum".into());
        }
    }
    Ok(())
}

/// The client's side: one request. `number` is one that no other request under way has.
async fn ask(lnet: &Lnet, client: &Client, server: Nid, number: u64, bulk: Buffer) -> Result<u64> {
    let events = lnet.create_event_queue(2)?;
    let request = [(bulk.len() as u64).to_le_bytes(), number.to_le_bytes()].concat();
    // What the server gets. It goes when this function ends.
    let spec = bulk.spec(Threshold::Count(1), MdOptions::GET, events.handle());
    let _bulk = lnet.attach(&EntrySpec::new(BULK, number), &spec, bulk)?;
    let reply = client.call(server, Buffer::from(request), PATIENCE).await?;
    Ok(u64::from_le_bytes(reply.payload().ok_or("no payload")?.try_into()?))
}

/// The server's side: answers so many requests.
async fn serve(lnet: &Lnet, server: &mut Server, count: u32) -> Result<()> {
    for _ in 0..count {
        let call = server.next().await?;
        let client = call.client();
        if let Err(error) = answer(lnet, call).await {
            println!("a request of {client} is not answered: {error}");
        }
    }
    Ok(())
}

async fn answer(lnet: &Lnet, call: ReceivedRequest) -> Result<()> {
    let (length_bytes, number) = call.request().split_first_chunk().ok_or("a short request")?;
    let length_bytes = u64::from_le_bytes(*length_bytes).min(PAYLOAD_BYTES_MAX.into());
    let number = u64::from_le_bytes(number.try_into()?);
    let events = lnet.create_event_queue(3)?;
    let sink = Buffer::zeroed(length_bytes as usize);
    // A Get and its REPLY.
    let spec = sink.spec(Threshold::Count(2), MdOptions::TRACK_RESPONSE, events.handle());
    let bulk = Target::reply_to(call.event(), BULK, number).ok_or("no sender")?;
    let got = lnet.bind(&spec, sink)?.get(&bulk).await?;
    if got.event.status() != Status::Ok {
        return Err(format!("{:?}", got.event).into());
    }
    let sum = sum(got.payload().ok_or("no bulk data")?);
    Ok(call.reply(Buffer::from(sum.to_le_bytes().to_vec())).await?)
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}
