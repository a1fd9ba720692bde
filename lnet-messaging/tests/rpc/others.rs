//! Clients that are not ours: one that shows the program is what it says, and those that mean ill.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lnet_messaging::rpc::{PROGRAM, VERSION};
use lnet_messaging::{Added, BulkDescriptor, Errno, Operation, RpcTransport, TmEvent};
use rustix::net::{AddressFamily, SocketType, bind, socket};
use xtask::privilege::{self, UNPRIVILEGED};

use super::common::{PATIENCE, Party};
use super::{Place, host, rpc, wait_until};

/// Where `rpcinfo` is, if it is installed.
fn rpcinfo() -> Option<&'static str> {
    let places = ["rpcinfo", "/usr/sbin/rpcinfo"];
    let runs = |place: &&str| {
        let mut command = Command::new(place);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    places.into_iter().find(runs)
}

/// An independent client calls the NULL procedure.
#[test]
fn rpcinfo_sees_the_program() {
    let Some(rpcinfo) = rpcinfo() else {
        assert!(
            privilege::left_out(),
            "missing: rpcinfo, of Debian's package rpcbind (or leave such tests out with {UNPRIVILEGED}=1)"
        );
        eprintln!("left out, as {UNPRIVILEGED}=1 asks: rpcinfo, of Debian's package rpcbind, is missing");
        return;
    };
    let place = Place::new();
    let party = Party::started(&rpc(), &place.address(1));
    // A universal address: the port in two bytes.
    let address = format!("{}.{}.{}", host(), place.port >> 8, place.port & 0xFF);
    let ask = |program: u32, version: u32| {
        let mut command = Command::new(rpcinfo);
        command.args(["-a", &address, "-T", "tcp", &program.to_string(), &version.to_string()]);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let (good, text) = ask(PROGRAM, VERSION);
    assert!(good && text.contains("ready and waiting"), "{text}");
    for (program, version) in [(PROGRAM, VERSION + 1), (PROGRAM + 1, VERSION)] {
        let (good, text) = ask(program, version);
        assert!(!good && text.contains("not available"), "{text}");
    }
    party.end();
}

fn connect(place: &Place) -> TcpStream {
    let stream = TcpStream::connect((host(), place.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Writes bytes, and returns what comes back until the server closes.
fn play(place: &Place, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(place);
    // The server may close before all is written.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn null_call() -> Vec<u8> {
    words(&[40 | 1 << 31, 9, 0, 2, PROGRAM, 1, 0, 0, 0, 0, 0])
}

/// What a peer puts on the stream for a call: the mark, the header with the number 9, the arguments.
fn call(procedure: u32, arguments: &[u32]) -> Vec<u8> {
    let length = 4 * (10 + arguments.len()) as u32;
    words(&[&[length | 1 << 31, 9, 0, 2, PROGRAM, 1, procedure, 0, 0, 0, 0], arguments].concat())
}

/// The answer to that.
fn success(results: &[u32]) -> Vec<u8> {
    let length = 4 * (6 + results.len()) as u32;
    words(&[&[length | 1 << 31, 9, 1, 0, 0, 0, 0], results].concat())
}

/// Calls of each procedure, word by word as RFC 4506 has them, and each word of the replies.
#[test]
fn rp_08_byte_vectors_of_the_server() {
    let place = Place::new();
    let mut party = Party::started(&rpc(), &place.address(1));
    let (ip, port) = (host().to_bits(), u32::from(place.port));
    // A message of five bytes, from a service 2 at the same place.
    party.post(8, 8, 1);
    let message = call(1, &[ip, port, 2, ip, port, 1, 5, 0x6865_6C6C, 0x6F00_0000]);
    assert_eq!(play(&place, &message), success(&[0]));
    let event = party.buffer_event();
    assert_eq!((event.status, event.payload_bytes()), (Ok(()), b"hello".to_vec()));
    assert_eq!(event.end_point.as_ref().unwrap().address(), place.address(2));
    drop(event);
    // Without a buffer: the number of ENOBUFS.
    assert_eq!(play(&place, &message), success(&[-105_i32 as u32]));
    assert_eq!(party.tm_event(), TmEvent::Error(Errno::NoBuffers));
    let described = |added: &Added| {
        let bytes = added.descriptor.as_ref().unwrap().as_bytes();
        bytes.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect::<Vec<_>>()
    };
    // What is read comes segment by segment, with padding, and the last part says so.
    let mut buffer = party.buffer(&[5, 2]);
    buffer.fill(b"abcdefg");
    let send = Operation::PassiveSend { initiator: None, length_bytes: 7 };
    let added = party.tm.add(buffer, send).unwrap();
    let descriptor = described(&added);
    assert_eq!(descriptor[2..], [0, 0, 0, ip, port, 1, 3, 7]);
    let get = |offset: u32| play(&place, &call(2, &[&descriptor[..], &[offset]].concat()));
    assert_eq!(get(0), success(&[0, 0, 5, 0x6162_6364, 0x6500_0000]));
    assert_eq!(get(5), success(&[0, 1, 2, 0x6667_0000]));
    assert_eq!(party.end_of(added.id).0, Ok(()));
    assert_eq!(get(5), success(&[-2_i32 as u32, 0, 0]));
    // What is written comes in parts, of a length that the caller says.
    let room = Operation::PassiveReceive { initiator: None };
    let added = party.tm.add(party.buffer(&[8]), room).unwrap();
    let mut descriptor = described(&added);
    assert_eq!(descriptor[2..9], [0, 0, 0, ip, port, 1, 2]);
    descriptor[9] = 7;
    let put = |part: &[u32]| play(&place, &call(3, &[&descriptor[..], part].concat()));
    assert_eq!(put(&[0, 5, 0x6162_6364, 0x6500_0000]), success(&[0]));
    assert_eq!(put(&[5, 3, 0x6667_6800]), success(&[-22_i32 as u32]), "one byte too many");
    assert_eq!(put(&[5, 2, 0x6667_0000]), success(&[0]));
    let event = party.buffer_event();
    assert_eq!((event.status, event.payload_bytes()), (Ok(()), b"abcdefg".to_vec()));
    drop(event);
    assert_eq!(put(&[5, 2, 0x6667_0000]), success(&[-2_i32 as u32]));
    party.end();
}

/// Each word of the calls, seen by a server that is not ours.
#[test]
fn rp_08_byte_vectors_of_the_client() {
    let place = Place::new();
    let mut party = Party::started(&rpc(), &place.address(1));
    let (own_ip, own_port) = (host().to_bits(), u32::from(place.port));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let far_port = listener.local_addr().unwrap().port();
    let far = [0x7F00_0001, u32::from(far_port), 4];
    let descriptor = |queue: u32, total: u32| [&[1, 2, 0, 0, 0], &far[..], &[queue, total]].concat();
    let named = |queue, total| BulkDescriptor::from_bytes(&words(&descriptor(queue, total)));
    // Each call with the number that its caller has chosen, which is no part of the vector, and what it is
    // answered.
    let played: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (
            call(1, &[&[own_ip, own_port, 1], &far[..], &[5, 0x6865_6C6C, 0x6F00_0000]].concat()),
            success(&[0]),
        ),
        (call(2, &[&descriptor(3, 7)[..], &[0]].concat()), success(&[0, 0, 4, 0x6162_6364])),
        (call(2, &[&descriptor(3, 7)[..], &[4]].concat()), success(&[0, 1, 3, 0x6566_6700])),
        (call(3, &[&descriptor(2, 7)[..], &[0, 5, 0x6162_6364, 0x6500_0000]].concat()), success(&[0])),
        (call(3, &[&descriptor(2, 7)[..], &[5, 2, 0x6667_0000]].concat()), success(&[0])),
    ];
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        for (expected, mut answer) in played {
            let mut found = vec![0; expected.len()];
            stream.read_exact(&mut found).unwrap();
            answer[4..8].copy_from_slice(&found[4..8]);
            found[4..8].copy_from_slice(&9_u32.to_be_bytes());
            assert_eq!(found, expected);
            stream.write_all(&answer).unwrap();
        }
    });
    let id = party.send(&format!("127.0.0.1:{far_port}:4"), b"hello");
    assert_eq!(party.end_of(id).0, Ok(()));
    party.add(party.buffer(&[3, 4]), Operation::ActiveReceive { from: named(3, 7) });
    let event = party.buffer_event();
    assert_eq!((event.status, event.payload_bytes()), (Ok(()), b"abcdefg".to_vec()));
    drop(event);
    let mut buffer = party.buffer(&[5, 2]);
    buffer.fill(b"abcdefg");
    // There is more room than what is written.
    let write = Operation::ActiveSend { to: named(2, 9), length_bytes: 7 };
    let id = party.add(buffer, write);
    assert_eq!(party.end_of(id).0, Ok(()));
    server.join().unwrap();
    party.end();
}

/// A connection from another loopback address.
fn connect_from(place: &Place, source: [u8; 4]) -> TcpStream {
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &SocketAddrV4::new(source.into(), 0)).unwrap();
    rustix::net::connect(&stream, &SocketAddrV4::new(host(), place.port)).unwrap();
    let stream = TcpStream::from(stream);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Calls NULL on a connection; whether it was answered.
fn is_served(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 28];
    stream.write_all(&null_call()).is_ok() && stream.read_exact(&mut answer).is_ok()
}

/// Twice as many connections as there may be, with a byte of a call each: no client waits for their timeout,
/// and those of another address are not touched.
#[test]
fn connections_with_a_byte_of_a_call_shut_no_client_out() {
    let place = Place::new();
    let party = Party::started(&rpc(), &place.address(1));
    let mut friend = connect_from(&place, [127, 0, 0, 9]);
    assert!(is_served(&mut friend));
    let begun = Instant::now();
    let mut flood = Vec::new();
    for _ in 0..256 {
        let mut stream = connect(&place);
        let _ = stream.write_all(&[0]);
        flood.push(stream);
        // Before and while all are taken, newcomers are served, of this address too.
        if flood.len().is_multiple_of(64) {
            assert!(is_served(&mut connect(&place)), "behind {}", flood.len());
            assert!(is_served(&mut connect_from(&place, [127, 0, 0, 8])), "behind {}", flood.len());
        }
    }
    assert!(is_served(&mut friend), "its address has one connection");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}, half of a call's time", begun.elapsed());
    // Many addresses with one connection each: the longest silent goes.
    for number in 0..200 {
        let mut stream = connect_from(&place, [127, 0, 1, number]);
        let _ = stream.write_all(&[0]);
        flood.push(stream);
    }
    assert!(is_served(&mut connect_from(&place, [127, 0, 0, 10])));
    drop(flood);
    party.end();
}

/// A write that claims more bytes than there is room for, by a caller who has the descriptor, or claims to.
#[test]
fn a_write_that_is_refused_ends_no_passive_buffer() {
    let place = Place::new();
    let mut party = Party::started(&rpc(), &place.address(1));
    let room = Operation::PassiveReceive { initiator: None };
    let added = party.tm.add(party.buffer(&[8]), room).unwrap();
    let mut descriptor: Vec<u32> = added
        .descriptor
        .as_ref()
        .unwrap()
        .as_bytes()
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from_be_bytes(*word))
        .collect();
    let put = |descriptor: &[u32], part: &[u32]| play(&place, &call(3, &[descriptor, part].concat()));
    for claimed in [9, 1 << 20, u32::MAX] {
        descriptor[9] = claimed;
        assert_eq!(put(&descriptor, &[0, 1, 0]), success(&[-27_i32 as u32]), "{claimed} bytes");
        assert_eq!(put(&descriptor, &[u32::MAX, 1, 0]), success(&[-27_i32 as u32]), "{claimed} bytes");
    }
    descriptor[9] = 8;
    assert_eq!(put(&descriptor, &[1, 1, 0]), success(&[-22_i32 as u32]), "not the next part");
    // Names near to this one, and the numbers of the first buffers of a process.
    let name = [descriptor[0], descriptor[1]];
    for guess in [[name[0], name[1] ^ 1], [name[0] ^ 1, name[1]], [0, 1], [0, 2], [256, 1]] {
        let guessed = [&guess[..], &descriptor[2..]].concat();
        assert_eq!(put(&guessed, &[0, 1, 0]), success(&[-2_i32 as u32]), "{guess:?}");
    }
    assert!(party.tm.queued(added.id).is_some());
    assert_eq!(put(&descriptor, &[0, 8, 0x6162_6364, 0x6566_6768]), success(&[0]));
    let event = party.buffer_event();
    assert_eq!((event.id, event.status, event.payload_bytes()), (added.id, Ok(()), b"abcdefgh".to_vec()));
    drop(event);
    party.end();
}

#[test]
fn rp_08_hostile_records() {
    let place = Place::new();
    let timeout = Duration::from_secs(1);
    let transport = RpcTransport::default().call_timeout(timeout).connections_max(4).shared();
    let mut party = Party::started(&transport, &place.address(1));
    let good = words(&[24 | 1 << 31, 9, 1, 0, 0, 0, 0]);
    assert_eq!(play(&place, &null_call()), good);
    // Records that are cut, empty, too long, no call at all, or never end.
    for bytes in [
        null_call()[..7].to_vec(),
        null_call()[..43].to_vec(),
        words(&[1 << 31]),
        words(&[0xFFFF_FFFF]),
        words(&[0x7FFF_FFFF]),
        words(&[8 | 1 << 31, 9, 1]),
        words(&[12 | 1 << 31, 9, 0, 2]),
        vec![0; 4 * 5000],
    ] {
        assert_eq!(play(&place, &bytes), [0; 0], "{:?}", &bytes[..bytes.len().min(16)]);
    }
    // Fragments of any length, and two calls one behind the other.
    let call = &null_call()[4..];
    let mut fragments = Vec::new();
    for (index, byte) in call.iter().enumerate() {
        fragments.extend(words(&[0]));
        let last = if index + 1 == call.len() { 1 << 31 } else { 0 };
        fragments.extend(words(&[1 | last]));
        fragments.push(*byte);
    }
    fragments.extend(null_call());
    assert_eq!(play(&place, &fragments), [&good[..], &good].concat());
    // Slow clients, more than the server has connections: they are closed, and others are served.
    let mut slow: Vec<TcpStream> = (0..6).map(|_| connect(&place)).collect();
    for stream in &mut slow {
        let _ = stream.write_all(&null_call()[..9]);
    }
    wait_until("a client is served", || play(&place, &null_call()) == good);
    for mut stream in slow {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    // The server works as before.
    let id = party.send(&party.address(), b"hello");
    party.tm_event_or_end(id);
    party.end();
}

impl Party {
    /// A message without a receive buffer ends at both ends.
    fn tm_event_or_end(&mut self, id: lnet_messaging::BufferId) {
        let mut seen = (false, false);
        while seen != (true, true) {
            match self.event() {
                lnet_messaging::Event::Tm(TmEvent::Error(_)) => seen.0 = true,
                lnet_messaging::Event::Buffer(event) if event.id == id => seen.1 = true,
                event => panic!("{event:?}"),
            }
        }
    }
}
