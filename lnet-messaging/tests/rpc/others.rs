//! Clients that are not ours: one that shows the program is what it says, and those that mean ill.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use lnet_messaging::rpc::{PROGRAM, VERSION};
use lnet_messaging::{RpcTransport, TmEvent};
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
    // It works as before.
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
