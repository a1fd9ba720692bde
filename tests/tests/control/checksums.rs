//! Checksums of protocol 2 on the wire, made and verified here by another implementation of that CRC.

use std::io::{Read, Write};

use crc_fast::{CrcAlgorithm, Digest};
use lnet_tests::netns::{NETNS_NODES, require_privilege, wait_until};
use lnet_wire::header::SMALL_HEADER_BYTES;
use lnet_wire::socklnd::{CHECKSUM_RANGE, ConnectionType, PREFIX_BYTES, Version};
use lnet_wire::{Body, Header, WireHandle};

use crate::dialler::{Dialler, Greeting, header, message, nid, ping, put, rest, told};
use crate::hostile_tcp::{Stage, load_number, stranger};
use crate::run::PATIENCE;

/// A message as it was on the stream.
struct Heard {
    /// Prefix and header.
    head: Vec<u8>,
    header: Header,
    payload: Vec<u8>,
}

/// The next message of a dialler that speaks version 2.
fn heard(dialler: &mut Dialler) -> Heard {
    let mut head = vec![0; PREFIX_BYTES + SMALL_HEADER_BYTES];
    dialler.stream.read_exact(&mut head).unwrap();
    let header = Header::decode_small(head[PREFIX_BYTES..].first_chunk().unwrap()).unwrap();
    let mut payload = vec![0; header.payload_length as usize];
    dialler.stream.read_exact(&mut payload).unwrap();
    Heard { head, header, payload }
}

/// The next message of a load: the daemon pings its peer before the first.
fn heard_of_load(dialler: &mut Dialler) -> Heard {
    loop {
        let next = heard(dialler);
        if let Body::Get { return_md, portal: 0, .. } = next.header.body {
            dialler.reply(return_md, &told(dialler.greeting.source));
            continue;
        }
        let (Body::Put { portal, .. } | Body::Get { portal, .. }) = next.header.body else {
            panic!("{:?}", next.header)
        };
        if portal != 0 {
            return next;
        }
    }
}

/// The CRC of a message whose own checksum is zero.
fn crc(head: &[u8], payload: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Jamcrc);
    let (before, after) = (&head[..CHECKSUM_RANGE.start], &head[CHECKSUM_RANGE.end..]);
    [before, &[0; 4], after, payload].into_iter().for_each(|bytes| digest.update(bytes));
    digest.finalize() as u32
}

/// A message with a checksum that differs from the right one by these bits.
fn summed(header: &Header, payload: &[u8], wrong_bits: u32) -> Vec<u8> {
    let mut bytes = message(Version::V2, header);
    let sum = crc(&bytes, payload) ^ wrong_bits;
    bytes[CHECKSUM_RANGE].copy_from_slice(&sum.to_le_bytes());
    bytes.extend(payload);
    bytes
}

fn sum_of(heard: &Heard) -> u32 {
    u32::from_le_bytes(heard.head[CHECKSUM_RANGE].try_into().unwrap())
}

fn connected(stage: &Stage, host: u8, version: Version) -> Dialler {
    // A connection of this type carries all messages in version 2.
    let greeting = Greeting {
        version,
        kind: ConnectionType::Any,
        ..Greeting::new(nid(stranger(host)), nid(stage.near))
    };
    Dialler::connected(stage.dial(host), greeting)
}

/// Has the daemon send or ask for messages of this length.
fn load(stage: &Stage, host: u8, puts_percent: u32, length_bytes: u32, messages: u32) -> u32 {
    let scheme = format!(
        r#"{{"puts_percent":{puts_percent},"sizes":[{{"min_bytes":{length_bytes},"max_bytes":{length_bytes},"weight":1}}]}}"#
    );
    let scheme = stage.two.a.directory.file("scheme.json", &scheme);
    let to = nid(stranger(host));
    let words = format!(
        "load start initiator --to {to} --messages {messages} --window {messages} --timeout-ms 5000 --scheme {}",
        scheme.display()
    );
    load_number(&stage.two.a.good(&words))
}

#[test]
fn what_leaves_in_version_2_has_the_checksum_of_all_its_bytes() {
    const MESSAGES: u32 = 6;
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::without_target("tcp", "--sock enable_csum=1", 2);
    stage.two.a.good("set discovery 0");
    let mut dialler = connected(&stage, 0, Version::V2);
    let Greeting { source, destination, .. } = dialler.greeting;
    dialler.say(&message(Version::V2, &header(source, destination, 0, ping())));
    let answer = heard(&mut dialler);
    assert_eq!(sum_of(&answer), crc(&answer.head, &answer.payload), "a ping's answer");
    // Copied, in place, and from several shards.
    for length_bytes in [100, 7000, 60_000, 1 << 20] {
        let number = load(&stage, 0, 100, length_bytes, MESSAGES);
        for _ in 0..MESSAGES {
            let put = heard_of_load(&mut dialler);
            assert_eq!(put.payload.len(), length_bytes as usize);
            assert_ne!(sum_of(&put), 0);
            assert_eq!(sum_of(&put), crc(&put.head, &put.payload), "{length_bytes} bytes");
        }
        // Nothing has answered it.
        stage.two.a.run(&format!("load stop {number}"));
    }
    // Other versions have none.
    let greeting = Greeting::new(nid(stranger(1)), nid(stage.near));
    let mut other = Dialler::connected(stage.dial(1), greeting);
    other.say(&message(Version::V3, &header(greeting.source, greeting.destination, 0, ping())));
    assert_eq!(sum_of(&heard(&mut other)), 0);
}

#[test]
fn what_arrives_in_version_2_is_verified() {
    const LONG: u32 = 1 << 20;
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::without_target("tcp", "", 1);
    // Right, and none: both are served. By default nothing is sent with a checksum.
    stage.two.a.good("set discovery 0");
    let mut dialler = connected(&stage, 0, Version::V2);
    let Greeting { source, destination, .. } = dialler.greeting;
    let question = header(source, destination, 0, ping());
    for asked in [summed(&question, &[], 0), message(Version::V2, &question)] {
        dialler.say(&asked);
        assert_eq!(sum_of(&heard(&mut dialler)), 0);
    }
    // Payload that the daemon has asked for: right, none, then wrong.
    let payload: Vec<u8> = (0..LONG).map(|index| (index % 251) as u8).collect();
    let number = load(&stage, 0, 0, LONG, 3);
    let mut asked = Vec::new();
    while asked.len() < 3 {
        let next = heard_of_load(&mut dialler).header;
        match next.body {
            // Each shard of a load asks for nothing before the target has acknowledged a message.
            Body::Put { ack_md, match_bits, .. } => {
                let ack = Body::Ack { md: ack_md, match_bits, manipulated_length: 0 };
                dialler.say(&message(Version::V2, &header(source, destination, 0, ack)));
            }
            _ => asked.push(next),
        }
    }
    let replies = asked.iter().map(|asked| {
        let Body::Get { return_md, .. } = asked.body else { panic!("{asked:?}") };
        header(source, destination, LONG, Body::Reply { md: return_md })
    });
    let replies: Vec<Header> = replies.collect();
    let copied = stage.count("payload_bytes_copied");
    dialler.say(&summed(&replies[0], &payload, 0));
    // Bytes under a checksum are not placed by the kernel.
    wait_until("the payload is verified", PATIENCE, || {
        stage.count("payload_bytes_copied") >= copied + u64::from(LONG)
    });
    dialler.say(&[message(Version::V2, &replies[1]), payload.clone()].concat());
    dialler.ping();
    assert_eq!(stage.count("bad_checksum"), 0);
    let _ = dialler.stream.write_all(&summed(&replies[2], &payload, 1 << 20));
    let _ = rest(&mut dialler.stream);
    assert_eq!(stage.count("bad_checksum"), 1);
    stage.two.a.run(&format!("load stop {number}"));
    // A head alone, with each of some bits.
    let ack = Body::Ack { md: WireHandle::NONE, match_bits: 9, manipulated_length: 0 };
    for (bit, body) in [(0, put(9, 9)), (8, ping()), (31, ack)] {
        let before = stage.count("bad_checksum");
        let mut dialler = connected(&stage, 0, Version::V2);
        dialler.say(&summed(&header(source, destination, 0, body), &[], 1 << bit));
        assert_eq!(rest(&mut dialler.stream), Vec::<u8>::new());
        assert_eq!(stage.count("bad_checksum"), before + 1);
    }
}
