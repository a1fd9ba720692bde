//! Operations between two processes, and a process that is killed (RP-01, RP-10).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use lnet_messaging::{BulkDescriptor, Errno, Event, Operation};

use super::common::{PATIENCE, Party};
use super::{Place, free_port, host, rpc};

/// Where the other process is to be.
const ADDRESS: &str = "RPC_FAR_ADDRESS";

/// The other process: a transfer machine that does what it is told, and tells what happens.
struct Far {
    child: Child,
    orders: ChildStdin,
    told: Receiver<String>,
    address: String,
}

impl Far {
    fn start() -> Self {
        let address = format!("{}:{}:5", host(), free_port());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::rp_01_two_processes", "--nocapture", "--test-threads=1"]);
        command.env(ADDRESS, &address).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (teller, told) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, line)) = line.split_once("> ") {
                    let _ = teller.send(line.to_owned());
                }
            }
        });
        let far = Self { orders: child.stdin.take().unwrap(), child, told, address };
        assert_eq!(far.next(), "started");
        far
    }

    fn next(&self) -> String {
        self.told.recv_timeout(PATIENCE).unwrap()
    }

    /// What it answers to an order.
    fn order(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        self.next()
    }

    fn descriptor(&mut self, order: &str) -> BulkDescriptor {
        let text = self.order(order);
        let bytes: Vec<u8> = (0..text.len() / 2)
            .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        BulkDescriptor::from_bytes(&bytes)
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The bytes that the other process fills buffers with, and expects.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index ^ index >> 8) as u8).collect()
}

/// Buffers of so many bytes, in two segments.
fn shape(length: usize) -> [usize; 2] {
    [1, length - 1]
}

/// What the other process does.
fn far_end(address: &str) {
    let mut party = Party::started(&rpc(), address);
    println!("> started");
    let mut last = None;
    for order in std::io::stdin().lines() {
        let order = order.unwrap();
        let (word, length) = order.split_once(' ').unwrap();
        let length: usize = length.parse().unwrap();
        let mut buffer = party.buffer(&shape(length.max(2)));
        buffer.fill(&pattern(length));
        let operation = match word {
            "receive" => Operation::Receive { min_receive_bytes: 1, max_messages: 1 },
            "passive-receive" => Operation::PassiveReceive { initiator: None },
            "passive-send" => Operation::PassiveSend { initiator: None, length_bytes: length as u64 },
            "del" => {
                println!("> {}", party.tm.del(last.unwrap()));
                continue;
            }
            "event" => {
                match party.event() {
                    Event::Tm(event) => println!("> {event:?}"),
                    Event::Buffer(event) => {
                        let bytes = event.payload_bytes();
                        let is_right = bytes == pattern(bytes.len());
                        println!("> {:?} {} {is_right}", event.status, event.length_bytes);
                    }
                }
                continue;
            }
            _ => panic!("{order}"),
        };
        let added = party.tm.add(buffer, operation).unwrap();
        last = Some(added.id);
        let descriptor = added.descriptor.unwrap_or_default();
        let text: String = descriptor.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        println!("> {text}");
    }
    party.end();
}

#[test]
fn rp_01_two_processes() {
    // The other process runs the same test.
    if let Ok(address) = std::env::var(ADDRESS) {
        return far_end(&address);
    }
    let place = Place::new();
    let mut near = Party::started(&rpc(), &place.address(1));
    let mut far = Far::start();
    let to = far.address.clone();
    // ME-05, ME-06.
    let id = near.send(&to, b"hello");
    assert_eq!(near.end_of(id).0, Err(Errno::NoBuffers));
    assert_eq!(far.order("event 0"), "Error(NoBuffers)");
    far.order("receive 10");
    let id = near.send(&to, &[7; 40]);
    assert_eq!(near.end_of(id).0, Err(Errno::MessageSize));
    assert_eq!(far.order("event 0"), "Err(MessageSize) 40 true");
    // ME-07, ME-08, ME-09.
    let descriptor = far.descriptor("passive-receive 8");
    let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from: descriptor.clone() });
    assert_eq!(near.end_of(id).0, Err(Errno::NotPermitted));
    let id = near.add(near.buffer(&[9]), Operation::ActiveSend { to: descriptor, length_bytes: 9 });
    assert_eq!(near.end_of(id).0, Err(Errno::TooBig));
    assert_eq!(far.order("del 0"), "true");
    assert_eq!(far.order("event 0"), "Err(Canceled) 0 true");
    let from = far.descriptor("passive-send 8");
    assert_eq!(far.order("del 0"), "true");
    assert_eq!(far.order("event 0"), "Err(Canceled) 0 true");
    let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
    assert_eq!(near.end_of(id).0, Err(Errno::NotFound));
    // ME-11.
    for length in [2, 1000, 1 << 18] {
        far.order(&format!("receive {length}"));
        let id = near.send(&to, &pattern(length));
        assert_eq!(near.end_of(id).0, Ok(()));
        assert_eq!(far.order("event 0"), format!("Ok(()) {length} true"));

        let from = far.descriptor(&format!("passive-send {length}"));
        near.add(near.buffer(&shape(length)), Operation::ActiveReceive { from });
        let event = near.buffer_event();
        assert_eq!((event.status, event.length_bytes), (Ok(()), length as u64));
        assert!(event.payload_bytes() == pattern(length));
        drop(event);
        assert_eq!(far.order("event 0"), "Ok(()) 0 true");

        let descriptor = far.descriptor(&format!("passive-receive {length}"));
        let mut buffer = near.buffer(&shape(length));
        buffer.fill(&pattern(length));
        let id = near.add(buffer, Operation::ActiveSend { to: descriptor, length_bytes: length as u64 });
        assert_eq!(near.end_of(id).0, Ok(()));
        assert_eq!(far.order("event 0"), format!("Ok(()) {length} true"));
    }
    near.end();
}

#[test]
fn rp_10_a_process_that_is_killed() {
    let place = Place::new();
    let mut near = Party::started(&rpc(), &place.address(1));
    let mut far = Far::start();
    let to = far.address.clone();
    far.order("receive 8");
    let id = near.send(&to, b"hello");
    assert_eq!(near.end_of(id).0, Ok(()));
    let from = far.descriptor("passive-send 8");
    drop(far);
    // Either the connection is known to be gone, and there is no other, or its end is met by the call.
    let gone = [Err(Errno::ConnectionRefused), Err(Errno::ConnectionReset)];
    let id = near.send(&to, b"hello");
    let status = near.end_of(id).0;
    assert!(gone.contains(&status), "{status:?}");
    let id = near.add(near.buffer(&[8]), Operation::ActiveReceive { from });
    let status = near.end_of(id).0;
    assert!(gone.contains(&status), "{status:?}");
    near.end();
}
