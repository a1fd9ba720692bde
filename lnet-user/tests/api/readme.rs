//! The program on the first page of the project.

use lnet_user::{Ack, Buffer, Lnet, MdOptions, MdSpec, NiConfig, NodeConfig, QueuedEvent, Target, Threshold};

/// Lines of the page, so that they compile. The NI is of an interface that a test does not have.
async fn program() -> Result<QueuedEvent, Box<dyn std::error::Error>> {
    let lnet = Lnet::start(&NodeConfig::new(vec![NiConfig::new("10.0.0.1@xdp".parse()?, "eth0")]))?;
    let events = lnet.create_event_queue(64)?;
    let spec = MdSpec::new(11, Threshold::Count(2), MdOptions::NONE, events.handle()); // a Put and its ACK
    let source = lnet.bind(&spec, Buffer::from(b"what is put".to_vec()))?;
    lnet.open()?;
    let put = source.put(&Target::new("10.0.0.2@xdp".parse()?, 4, 1), Ack::Wanted, 0);
    let acked = put.await?; // or put.queue()?, and an event of the queue tells
    Ok(acked)
}

#[test]
fn the_program_on_the_first_page_compiles() {
    let _ = program;
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).unwrap();
    let (_, rest) = page.split_once("```rust\n").unwrap();
    let (lines, _) = rest.split_once("```").unwrap();
    let indented: String = lines.lines().map(|line| format!("    {line}\n")).collect();
    assert!(include_str!("readme.rs").contains(&indented), "{lines}");
}
