//! What kernel nodes said to each other, played again: each node of each capture is a machine of ours in its
//! turn, and the others say byte for byte what they said then. What it answers, and in which order, is what
//! the kernel node answered. No network and no privileges are needed.
#![allow(clippy::unwrap_used, reason = "a capture that cannot be read fails the test")]

mod machine;
#[path = "../../../lnet-wire/tests/captures/pcap.rs"]
mod pcap;
mod said;

use std::path::Path;

use lnet_tcp_proto::SocklndEvent;
use lnet_wire::PingInfo;
use lnet_wire::selftest::Message;

use machine::Machine;
use said::{Said, Unit, units};

fn connections(name: &str) -> Vec<pcap::Connection> {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/captures");
    pcap::connections(&captures.join(name).with_extension("pcap"))
}

/// What happens in a capture, in the order of its packets.
enum Event {
    Dialled { connection: usize },
    Said(usize),
}

/// Plays a capture to a machine that takes the part of node `host`.
fn replay(name: &str, host: u8) -> Machine {
    let connections = connections(name);
    let units: Vec<Unit> = units(&connections);
    let dials = connections.iter().enumerate();
    let dials = dials.map(|(connection, dialled)| (dialled.packet, Event::Dialled { connection }));
    let said = units.iter().enumerate().map(|(index, unit)| (unit.packet, Event::Said(index)));
    let mut events: Vec<(usize, Event)> = dials.chain(said).collect();
    events.sort_by_key(|(packet, _)| *packet);

    let mut machine = Machine::new(host, connections, units);
    for (_, event) in events {
        match event {
            Event::Dialled { connection } => machine.dialled(connection),
            Event::Said(unit) => machine.said(unit),
        }
    }
    machine.check_end();
    machine
}

/// Plays a capture to a machine in the part of node `host`: how many connections of its own and of others it
/// has in the end, and how many messages it has sent and received.
#[track_caller]
fn check(name: &str, host: u8, connections: [u64; 2], messages: [usize; 2]) {
    let machine = replay(name, host);
    let count = |event| machine.count(event);
    assert_eq!([count(SocklndEvent::Dialled), count(SocklndEvent::Accepted)], connections);
    assert_eq!(machine.messages(), messages);
}

#[test]
fn a_ping_and_a_discovery() {
    check("a_single_ping", 1, [3, 0], [5, 5]);
    check("a_single_ping", 2, [0, 3], [5, 5]);
}

#[test]
fn a_discovery_of_several_interfaces() {
    check("b_multirail", 1, [6, 3], [9, 9]);
    check("b_multirail", 2, [3, 6], [9, 9]);
}

#[test]
fn selftest_with_pings() {
    check("c1_lst_ping", 1, [3, 0], [14, 14]);
    check("c1_lst_ping", 2, [0, 3], [14, 14]);
}

#[test]
fn selftest_with_reads() {
    check("c2_brw_read_4k", 1, [3, 0], [12, 15]);
    check("c2_brw_read_4k", 2, [0, 3], [15, 12]);
}

#[test]
fn selftest_with_writes() {
    check("c3_brw_write_4k", 1, [3, 0], [15, 15]);
    check("c3_brw_write_4k", 2, [0, 3], [15, 15]);
}

/// The first node acknowledges the cookies of large messages; the second one's messages ask for nothing.
#[test]
fn selftest_with_reads_of_a_mebibyte() {
    check("c4_brw_read_1m", 1, [3, 0], [11, 13]);
    check("c4_brw_read_1m", 2, [0, 3], [13, 11]);
}

#[test]
fn a_router_and_its_neighbours() {
    check("e_router", 1, [3, 0], [12, 12]);
    check("e_router", 2, [3, 0], [11, 11]);
    check("e_router", 3, [0, 6], [23, 23]);
}

#[test]
fn nodes_that_refuse_connections() {
    let machine = replay("d_down_reject", 1);
    assert_eq!((machine.count(SocklndEvent::Dialled), machine.count(SocklndEvent::DialFailed)), (3, 3));
}

/// How many connection requests, HELLOs, messages and bare acknowledgements a capture holds, how many of the
/// messages bring ping information, and how many a message of selftest.
#[track_caller]
fn check_whole(name: &str, framing: [usize; 4], payloads: [usize; 2]) {
    let connections = connections(name);
    let units = units(&connections);
    let count = |is: fn(&Said) -> bool| units.iter().filter(|unit| is(&unit.said)).count();
    let counted = [
        count(|said| matches!(said, Said::Request(_))),
        count(|said| matches!(said, Said::Hello(_))),
        count(|said| matches!(said, Said::Message { .. })),
        count(|said| matches!(said, Said::Noop(_))),
    ];
    let is_ping = |payload: &[u8]| PingInfo::parse(payload).is_ok();
    let is_selftest = |payload: &[u8]| Message::decode(payload).is_ok();
    let with = |is: fn(&[u8]) -> bool| {
        let payloads = units.iter().filter_map(|unit| unit.said.payload());
        payloads.filter(|payload| is(payload)).count()
    };
    assert_eq!((counted, [with(is_ping), with(is_selftest)]), (framing, payloads));
    let said_bytes: usize = units.iter().map(|unit| unit.bytes.len()).sum();
    let all_bytes =
        connections.iter().flat_map(|connection| &connection.streams).map(Vec::len).sum::<usize>();
    assert_eq!(said_bytes, all_bytes);
}

#[test]
fn captures_have_nothing_that_is_not_decoded() {
    check_whole("a_single_ping", [3, 6, 10, 0], [5, 0]);
    check_whole("b_multirail", [9, 18, 18, 0], [9, 0]);
    check_whole("c1_lst_ping", [3, 6, 28, 0], [3, 22]);
    check_whole("c2_brw_read_4k", [3, 6, 27, 0], [3, 18]);
    check_whole("c3_brw_write_4k", [3, 6, 30, 0], [3, 18]);
    check_whole("c4_brw_read_1m", [3, 6, 24, 2], [3, 16]);
    check_whole("d_down_reject", [0; 4], [0; 2]);
    check_whole("e_router", [6, 12, 46, 0], [23, 0]);
}
