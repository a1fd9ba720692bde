//! Ten thousand connections of the tcp LND to one daemon.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, enter, require_privilege};
use lnet_user::ProcessId;
use lnet_wire::socklnd::{
    ByteOrder, CONNECTION_REQUEST_BYTES_MAX, ConnectionRequest, ConnectionType, HELLO_BYTES_MAX, Hello,
    PREFIX_BYTES, Version,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::costs::{processor_time, resident_bytes};
use crate::run::{Two, until_shown};

/// Number of peers that are idle at first.
const FEW: usize = 1000;
const MANY: usize = 9000;
/// What those may cost in all.
const FEW_BYTES_MAX: u64 = 100 << 20;
/// While the daemon is watched: a keepalive is said on each connection, as in every ten seconds at most.
const WATCH: Duration = Duration::from_secs(12);
/// Descriptors of other tests of this process, and of a daemon beside its connections.
const OTHERS: u64 = 2000;
const PATIENCE: Duration = Duration::from_secs(20);

/// Raises the limit of descriptors of this process, and of daemons that it starts from now on, so far that
/// there is room for so many connections.
///
/// # Panics
/// If the system does not allow that.
pub(crate) fn make_room_for(connections: usize) {
    let wanted = connections as u64 + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    // Root may raise what it was started with.
    let maximum = limit.maximum.map(|most| most.max(wanted));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    raised.unwrap_or_else(|error| panic!("{wanted} descriptors, where {limit:?} is allowed: {error}"));
}

/// Connects as a peer of one connection; both sides have said HELLO then.
fn connect(to: (std::net::Ipv4Addr, u16), source: ProcessId, target: ProcessId) -> TcpStream {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut request, mut hello) = ([0; CONNECTION_REQUEST_BYTES_MAX], [0; HELLO_BYTES_MAX]);
    let length = ConnectionRequest { target: target.nid }.encode(&mut request);
    let said = Hello {
        version: Version::V3,
        order: ByteOrder::Little,
        source,
        destination: target,
        source_incarnation: 1,
        destination_incarnation: 0,
        connection: Some(ConnectionType::Control),
    };
    let hello_length = said.encode(&mut hello).unwrap();
    stream.write_all(&[&request[..length], &hello[..hello_length]].concat()).unwrap();
    let mut answer = vec![0; hello_length];
    stream.read_exact(&mut answer).unwrap();
    stream
}

#[test]
fn ten_thousand_connections_are_taken_and_idle_ones_cost_little() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    make_room_for(FEW + MANY);
    let two = Two::on(&["tcp"], "--peer-memory 64M --sock accept=all --sock keepalive=5");
    let [near, far] = [two.netns.a(), two.netns.b()].map(|side| side.interface().ipv4);
    let lustre = |address| ProcessId::lustre(format!("{address}@tcp").parse().unwrap());
    let dial = |count| {
        // Each has a port, and so a process, of its own.
        let connect = |_| connect((near, 988), lustre(far), lustre(near));
        enter(two.netns.b(), move || (0..count).map(connect).collect::<Vec<_>>())
    };
    let before = resident_bytes(two.a.pid());
    let few = dial(FEW);
    let (resident, begun_at) = (resident_bytes(two.a.pid()), processor_time(two.a.pid()));
    assert!(resident - before < FEW_BYTES_MAX, "{} bytes for {FEW} connections", resident - before);
    std::thread::sleep(WATCH);
    let taken = processor_time(two.a.pid()) - begun_at;
    assert!(taken < WATCH / 20, "{taken:?} of processor time in {WATCH:?} without a message");
    let many = dial(MANY);
    // A peer beside them notices nothing.
    let other = format!("{near}@tcp");
    let begun = Instant::now();
    until_shown(&two.b, &format!("ping {other}"), &other);
    assert!(begun.elapsed() < Duration::from_secs(5), "a ping took {:?}", begun.elapsed());
    let heard = |stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let mut keepalives = Vec::new();
        let end = (&mut &*stream).read_to_end(&mut keepalives);
        assert!(
            end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
            "a connection has ended"
        );
        keepalives.len()
    };
    assert!(
        few.iter().all(|stream| heard(stream) >= PREFIX_BYTES),
        "keepalives while the daemon was watched"
    );
    many.iter().for_each(|stream| assert_eq!(heard(stream) % PREFIX_BYTES, 0));
}
