//! Diallers of the tcp LND that break its rules: what becomes of each, which counter tells it, and that a
//! peer beside them notices nothing.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, enter, ip, require_privilege, wait_until};
use lnet_wire::socklnd::{ByteOrder, ConnectionType, HELLO_BYTES_MAX, PrefixKind, Version};
use lnet_wire::{Body, Header, Nid, WireHandle};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::dialler::{
    Dialler, Greeting, OTHER_MAGICS, OWN_MAGIC, header, message, nid, own_request, ping, prefix, privileged,
    put, request, rest,
};
use crate::run::{Daemon, PATIENCE, Two};

/// A message of the healthy peer ends within this time, whatever others do.
const MESSAGE_MS_MAX: u32 = 5000;

/// Ends a loop of another thread when it goes, after a panic too.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Two daemons on a net, and the addresses of strangers beside the second.
pub(crate) struct Stage {
    pub(crate) two: Two,
    net: &'static str,
    /// The daemon that is dialled, and its healthy peer.
    pub(crate) near: Ipv4Addr,
    pub(crate) far: Ipv4Addr,
}

impl Stage {
    /// A stage on a tcp net with so many strangers; the first daemon is the target of loads.
    pub(crate) fn new(options: &str, strangers: u8) -> Self {
        Self::on("tcp", options, strangers)
    }

    /// A stage on a net of this LND.
    pub(crate) fn on(net: &'static str, options: &str, strangers: u8) -> Self {
        let stage = Self::without_target(net, options, strangers);
        stage.two.a.good("load start target");
        stage
    }

    pub(crate) fn without_target(net: &'static str, options: &str, strangers: u8) -> Self {
        let two = Two::on(&[net], options);
        for number in 0..strangers {
            let name = &two.netns.b().interface().name;
            ip(two.netns.b(), &format!("address add {}/24 dev {name}", stranger(number)));
        }
        let [near, far] = [two.netns.a(), two.netns.b()].map(|side| side.interface().ipv4);
        Self { two, net, near, far }
    }

    /// The NID of an address on the net.
    pub(crate) fn nid(&self, address: Ipv4Addr) -> Nid {
        format!("{address}@{}", self.net).parse().unwrap()
    }

    /// A stream of a stranger from a privileged port.
    pub(crate) fn dial(&self, number: u8) -> std::net::TcpStream {
        enter(self.two.netns.b(), || privileged(stranger(number), self.near, 1024).0)
    }

    /// Has the healthy peer exchange messages, of which each byte is checked and none may be lost or take
    /// long, as long as `body` runs.
    pub(crate) fn beside_a_load(&self, body: impl FnOnce(&Self)) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                let (mut rounds, to) = (0, self.nid(self.near));
                while !is_over.load(Ordering::Acquire) || rounds == 0 {
                    let started = self.two.b.good(&format!(
                        "load start initiator --to {to} --messages 200 --window 8 --timeout-ms {MESSAGE_MS_MAX}"
                    ));
                    let id = load_number(&started);
                    self.two.b.good(&format!("load wait {id}"));
                    self.two.b.good(&format!("load stop {id}"));
                    rounds += 1;
                }
                rounds
            });
            let stop = Stop(&is_over);
            body(self);
            drop(stop);
            assert_ne!(load.join().unwrap(), 0);
        });
    }

    /// Waits until the daemon has counted something more often than `before`.
    #[track_caller]
    pub(crate) fn until_counted(&self, name: &str, before: u64) {
        wait_until(&format!("more than {before} {name}"), PATIENCE, || self.count(name) > before);
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        count(&self.two.a, name)
    }
}

/// The number of a load that was started.
pub(crate) fn load_number(started: &str) -> u32 {
    let number = started.split(|char: char| !char.is_ascii_digit()).find_map(|digits| digits.parse().ok());
    number.unwrap_or_else(|| panic!("{started}"))
}

/// What an administrator sees of a counter.
pub(crate) fn count(daemon: &Daemon, name: &str) -> u64 {
    let shown = daemon.good("frames show");
    let values = shown.lines().filter_map(|line| line.trim().rsplit_once(": "));
    let values = values.filter(|(key, _)| key.trim_matches(['"', '\'']) == name);
    values.map(|(_, value)| value.trim().parse::<u64>().unwrap()).sum()
}

/// Addresses of strangers on the healthy peer's side.
pub(crate) fn stranger(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 211, 0, 50 + number)
}

/// What becomes of a dialler.
enum Expected {
    /// The connection is closed, after these bytes.
    Closed(Vec<u8>),
    /// Its HELLO is answered by NONE, and the connection is closed.
    Refused,
    /// Its HELLO is answered, and the connection is closed for what follows.
    Cut,
    /// Service: a ping is answered at the end.
    Served,
}

/// What a dialler says, and what becomes of that.
struct Case {
    name: &'static str,
    says: Vec<u8>,
    /// What it says once its HELLO is answered.
    then: Vec<u8>,
    /// The greeting of the node in whose name it pings.
    greeting: Greeting,
    expected: Expected,
    /// What counts it.
    counter: &'static str,
}

/// Cases of diallers in names of their own: each has its own peer, so that none meets connections of another
/// one.
struct Cases {
    near: Nid,
    healthy: Nid,
    list: Vec<Case>,
}

impl Cases {
    fn greeting(&self) -> Greeting {
        // Privileged diallers are believed.
        Greeting::new(nid(Ipv4Addr::new(10, 211, 9, self.list.len() as u8 + 1)), self.near)
    }

    /// Instead of a connection request.
    fn begins(&mut self, name: &'static str, says: Vec<u8>, answer: Vec<u8>, counter: &'static str) {
        let (greeting, expected) = (self.greeting(), Expected::Closed(answer));
        self.list.push(Case { name, says, then: vec![], greeting, expected, counter });
    }

    /// Instead of a HELLO.
    fn greets(&mut self, name: &'static str, hello: &[u8], expected: Expected, counter: &'static str) {
        let greeting = self.greeting();
        let says = [&request(&self.near, ByteOrder::Little), hello].concat();
        self.list.push(Case { name, says, then: vec![], greeting, expected, counter });
    }

    /// Behind a HELLO of this version.
    fn says(
        &mut self,
        name: &'static str,
        version: Version,
        then: impl FnOnce(&Greeting) -> Vec<u8>,
        expected: Expected,
        counter: &'static str,
    ) {
        let greeting = Greeting { version, ..self.greeting() };
        let says = [request(&self.near, ByteOrder::Little), greeting.bytes()].concat();
        self.list.push(Case { name, says, then: then(&greeting), greeting, expected, counter });
    }

    fn breaks(&mut self, name: &'static str, says: impl FnOnce(&Greeting) -> Vec<u8>, counter: &'static str) {
        self.says(name, Version::V3, says, Expected::Cut, counter);
    }

    fn is_borne(
        &mut self,
        name: &'static str,
        says: impl FnOnce(&Greeting) -> Vec<u8>,
        counter: &'static str,
    ) {
        self.says(name, Version::V3, says, Expected::Served, counter);
    }
}

/// Numbers in the place of a HELLO's field.
fn changed(greeting: &Greeting, at: usize, number: u32) -> Vec<u8> {
    let mut bytes = greeting.bytes();
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A message whose header's field is overwritten.
fn forged(greeting: &Greeting, body: Body, at: usize, number: u32) -> Vec<u8> {
    let mut bytes = message(Version::V3, &header(greeting.source, greeting.destination, 0, body));
    bytes[24 + at..24 + at + 4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Offsets in a small header.
const TYPE: usize = 24;
const LENGTH: usize = 28;

fn requests(cases: &mut Cases) {
    for magic in OTHER_MAGICS {
        cases.begins("another magic", [magic.to_le_bytes(); 8].concat(), vec![], "bad_request");
    }
    cases.begins("text", b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![], "bad_request");
    for magic in [OWN_MAGIC.to_le_bytes(), OWN_MAGIC.to_be_bytes()] {
        cases.begins("a query", magic.to_vec(), own_request(), "bad_request");
    }
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for version in [0, 3, u32::MAX] {
            let mut says = request(&cases.near, order);
            let version = if order == ByteOrder::Big { version.to_be_bytes() } else { version.to_le_bytes() };
            says[4..8].copy_from_slice(&version);
            cases.begins("another version", says, own_request(), "bad_request");
        }
    }
    for target in ["10.211.0.99@tcp", "10.211.0.1@tcp7", "10.211.0.1@o2ib", "0@lo"] {
        let says = request(&target.parse().unwrap(), ByteOrder::Little);
        cases.begins("a NID that is not here", says, vec![], "unknown_target");
    }
    let mut says = request(&cases.near, ByteOrder::Little);
    says[15] = 7;
    cases.begins("a target that is no NID", says, vec![], "bad_request");
}

fn hellos(cases: &mut Cases) {
    let closed = || Expected::Closed(vec![]);
    cases.greets("a HELLO of another magic", &[0x55; HELLO_BYTES_MAX], closed(), "bad_hello");
    let greeting = cases.greeting();
    for (name, at, number) in [
        ("a connection type that there is not", 48, 7),
        ("17 addresses", 52, 17),
        ("addresses without end", 52, u32::MAX),
    ] {
        cases.greets(name, &changed(&greeting, at, number), closed(), "bad_hello");
    }
    cases.greets(
        "an address of zero",
        &[changed(&greeting, 52, 1), vec![0; 4]].concat(),
        closed(),
        "bad_hello",
    );
    let mut any = greeting.bytes();
    any[8..16].fill(0xFF);
    cases.greets("the wildcard speaks", &any, closed(), "bad_hello");
    for number in [0, 5, u32::MAX] {
        cases.greets("another version", &changed(&greeting, 4, number), Expected::Refused, "bad_hello");
    }
    // Accepted, as kernel nodes do.
    for version in [Version::V1, Version::V2, Version::V3, Version::V4] {
        cases.says("each version", version, |_| vec![], Expected::Served, "established");
    }
    let mut greeting = cases.greeting();
    greeting.destination = cases.healthy;
    cases.greets("a HELLO for another NID", &greeting.bytes(), Expected::Served, "established");
    for version in [Version::V2, Version::V3, Version::V4] {
        let greeting = Greeting { version, order: ByteOrder::Big, ..cases.greeting() };
        let says = [request(&cases.near, ByteOrder::Big), greeting.bytes()].concat();
        let (expected, counter) = (Expected::Served, "established");
        cases.list.push(Case { name: "big endian", says, then: vec![], greeting, expected, counter });
    }
}

fn heads(cases: &mut Cases) {
    cases.breaks("a prefix of another type", |_| [0xC2_u32.to_le_bytes(); 6].concat(), "bad_message");
    cases.breaks("zeros", |_| vec![0; 96], "bad_message");
    for number in [4, 7, u32::MAX] {
        cases.breaks("another message type", |own| forged(own, put(9, 9), TYPE, number), "bad_message");
    }
    cases.breaks("a GET with payload", |own| forged(own, ping(), LENGTH, 8), "bad_message");
    for number in [(1 << 20) + 1, u32::MAX] {
        cases.breaks("payload beyond 1 MiB", |own| forged(own, put(9, 9), LENGTH, number), "bad_message");
    }
    let too_short = |own: &Greeting| [forged(own, put(9, 9), LENGTH, 4), vec![0xFF; 100]].concat();
    cases.breaks("more payload than was said", too_short, "bad_message");
    for cookies in [[0, 5], [5, 2], [2, u64::MAX]] {
        cases.breaks("cookies never given", |_| prefix(PrefixKind::Noop, 0, cookies), "unknown_cookie");
    }
    let borne = |own: &Greeting| {
        let mut bytes = forged(own, put(9, 9), LENGTH, 0);
        bytes[16..24].copy_from_slice(&5_u64.to_le_bytes());
        bytes
    };
    cases.breaks("a message that brings a cookie never given", borne, "unknown_cookie");
    cases.breaks("a wrong checksum", |_| prefix(PrefixKind::Noop, 77, [0; 2]), "bad_checksum");
    let healthy = cases.healthy;
    let elsewhere = |own: &Greeting| message(Version::V3, &header(own.source, healthy, 0, put(9, 9)));
    cases.breaks("a destination on the same net", elsewhere, "wrong_destination");
}

fn messages(cases: &mut Cases) {
    let (near, healthy) = (cases.near, cases.healthy);
    let say = |header: Header| message(Version::V3, &header);
    let far = "192.0.2.1@tcp9".parse().unwrap();
    let abroad = |own: &Greeting| say(header(own.source, far, 0, put(9, 9)));
    cases.is_borne("a destination on another net", abroad, "routing is off");
    cases.is_borne(
        "a Put that nothing takes",
        |own| say(header(own.source, near, 0, put(9, 9))),
        "no entry matches",
    );
    // The name of a connected peer in a message: the sender of the connection is another one.
    let forged = move |_: &Greeting| say(header(healthy, near, 0, put(9, 9)));
    cases.is_borne("a source that is not the sender", forged, "source is not the sender's");
    for cookie in [0, 1, 2, 7, 0x104, u64::MAX >> 1] {
        let md = WireHandle { interface_cookie: cookie, object_cookie: cookie };
        let ack = Body::Ack { md, match_bits: 9, manipulated_length: u32::MAX };
        cases.is_borne(
            "an ACK of nothing",
            |own| say(header(own.source, near, 0, ack)),
            "unknown descriptor handle",
        );
        let reply =
            |own: &Greeting| [say(header(own.source, near, 50, Body::Reply { md })), vec![1; 50]].concat();
        cases.is_borne("a REPLY of nothing", reply, "unknown descriptor handle");
    }
    // Keepalives and NOOPs that say nothing, however many.
    let noops =
        |_: &Greeting| [prefix(PrefixKind::Noop, 0, [0, 1]), prefix(PrefixKind::Noop, 0, [0; 2])].concat();
    cases.is_borne("keepalives", noops, "established");
    cases.is_borne("a flood of them", move |own| noops(own).repeat(20_000), "established");
    // What wants to be acknowledged is, also where it is dropped.
    let wanting = |own: &Greeting| {
        let mut bytes = say(header(own.source, near, 0, put(9, 9)));
        bytes[8..16].copy_from_slice(&7_u64.to_le_bytes());
        bytes.repeat(1000)
    };
    cases.is_borne("a flood of cookies", wanting, "no entry matches");
}

fn check(stage: &Stage, case: Case) {
    let Case { name, says, then, greeting, expected, counter } = case;
    // Should it fail, this says where.
    println!("{name}");
    let before = stage.count(counter);
    let mut stream = stage.dial(0);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The other end may close it before all is said.
    let _ = stream.write_all(&says);
    let mut dialler = Dialler { stream, greeting };
    match expected {
        Expected::Closed(bytes) => assert_eq!(rest(&mut dialler.stream), bytes, "{name}: {says:02x?}"),
        Expected::Refused => {
            let answer = dialler.hello();
            assert_eq!((answer.connection, answer.version), (None, Version::V3), "{name}");
            assert_eq!(rest(&mut dialler.stream), Vec::<u8>::new(), "{name}");
        }
        Expected::Cut => {
            assert!(dialler.hello().connection.is_some(), "{name}");
            let _ = dialler.stream.write_all(&then);
            let _ = rest(&mut dialler.stream);
        }
        Expected::Served => {
            let answer = dialler.hello();
            assert_eq!(answer.source.nid, nid(stage.near), "{name}");
            assert_eq!(answer.connection, Some(ConnectionType::Control), "{name}");
            dialler.say(&then);
            dialler.ping();
        }
    }
    stage.until_counted(counter, before);
}

#[test]
fn each_broken_dialler_is_turned_away_as_it_should_be_and_counted() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let begun = Instant::now();
    let stage = Stage::new("", 1);
    let mut cases = Cases { near: nid(stage.near), healthy: nid(stage.far), list: Vec::new() };
    for add in [requests, hellos, heads, messages] {
        add(&mut cases);
    }
    stage.beside_a_load(|stage| cases.list.into_iter().for_each(|case| check(stage, case)));
    // One line once a while, however many there were.
    let told = || stage.two.a.directory.log().matches("connections were refused").count();
    wait_until("the log tells of refused connections", PATIENCE, || told() != 0);
    let astray = "that are not for this node";
    wait_until("the log tells of messages for other nodes", PATIENCE, || {
        stage.two.a.directory.log().contains(astray)
    });
    let refused = stage.count("bad_request") + stage.count("bad_hello") + stage.count("bad_message");
    let told_max = begun.elapsed().as_secs() as usize / 10 + 1;
    let log = stage.two.a.directory.log();
    assert!(refused > 25 && told() <= told_max, "{refused} were refused\n{log}");
    assert!(log.matches(astray).count() <= told_max, "{log}");
}

/// A daemon that has no descriptor for a connection says so once in a while, with how often, and goes on once
/// it has.
#[test]
fn a_want_of_descriptors_is_told_once_in_a_while() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::new("", 1);
    let pid = Pid::from_raw(stage.two.a.pid().cast_signed());
    // Descriptors that are open stay so. The daemon has the limits of this process.
    let limit = getrlimit(Resource::Nofile);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    let mut waiting: Vec<_> = (0..3).map(|_| stage.dial(0)).collect();
    let told = || stage.two.a.directory.log().matches("tcp: cannot accept connections").count();
    wait_until("the log tells of it", PATIENCE, || told() != 0);
    // The daemon tries again each second.
    std::thread::sleep(Duration::from_secs(4));
    let log = stage.two.a.directory.log();
    assert!(told() == 1 && log.contains("Too many open files"), "{log}");
    prlimit(pid, Resource::Nofile, limit).unwrap();
    waiting.iter_mut().for_each(|stream| stream.write_all(&[0]).unwrap());
    stage.beside_a_load(|stage| stage.until_counted("accept_errors", 1));
}
