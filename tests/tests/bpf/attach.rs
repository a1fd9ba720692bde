//! Attaching to interfaces, and what stands in the way.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use lnet_io::netlink::{Interface, NetlinkError};
use lnet_tests::bpf::{idle_socket, load, quiet};
use lnet_tests::netns::{NETNS_NODES, enter_here, ip, require_privilege, wait_until};
use lnet_xdp::bpf::{self, ActiveMode, BpfError, Object, ObjectKind, TestFrame};
use rustix::thread::CapabilitySet;

/// The interface that programs are attached to.
const NEAR: &str = "veth-a";
/// Set for the process that is killed; names the interface that it attaches to.
const VICTIM_VARIABLE: &str = "LNET_TEST_BPF_VICTIM";

#[test]
fn veth_is_native_and_a_bridge_generic() {
    if !require_privilege("veth_is_native_and_a_bridge_generic", &NETNS_NODES) {
        return;
    }
    let netns = quiet(8);
    ip(netns.a(), "link add name bridge0 type bridge");
    let _inside = enter_here(netns.a());
    for (interface, mode, expected) in [
        (NEAR, Some(ActiveMode::Native), ActiveMode::Native),
        (NEAR, Some(ActiveMode::Generic), ActiveMode::Generic),
        (NEAR, None, ActiveMode::Native),
        ("bridge0", None, ActiveMode::Generic),
        ("bridge0", Some(ActiveMode::Generic), ActiveMode::Generic),
    ] {
        let mut program = load(ObjectKind::Default);
        assert_eq!((program.interface(), program.mode()), (None, None));
        assert_eq!(program.attach(interface, mode).unwrap(), expected, "{interface} {mode:?}");
        assert_eq!((program.interface(), program.mode()), (Some(interface), Some(expected)));
        assert!(Interface::by_name(interface).unwrap().xdp_program_id.is_some(), "{interface} {mode:?}");
        drop(program);
        assert_eq!(Interface::by_name(interface).unwrap().xdp_program_id, None, "{interface} {mode:?}");
    }
    let mut program = load(ObjectKind::Default);
    match program.attach("bridge0", Some(ActiveMode::Native)).unwrap_err() {
        error @ BpfError::Refused { mode: ActiveMode::Native, .. } => {
            assert!(error.to_string().contains("mode generic works"), "{error}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(program.attach("bridge0", Some(ActiveMode::Generic)).unwrap(), ActiveMode::Generic);
}

#[test]
fn a_driver_that_lacks_channels_refuses_with_a_hint() {
    if !require_privilege("a_driver_that_lacks_channels_refuses_with_a_hint", &NETNS_NODES) {
        return;
    }
    let netns = quiet(1);
    let [narrow, wide] = ["numrxqueues 1 numtxqueues 1", "numrxqueues 4 numtxqueues 4"];
    ip(netns.a(), &format!("link add name narrow0 {narrow} type veth peer name wide0 {wide}"));
    ip(netns.a(), "link set dev narrow0 up");
    let _inside = enter_here(netns.a());
    let mut program = load(ObjectKind::Default);
    let error = program.attach("narrow0", Some(ActiveMode::Native)).unwrap_err();
    assert!(matches!(error, BpfError::Refused { mtu_bytes: 1500, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("narrow0") && text.contains("no fewer rx than the peer's tx queues"), "{text}");
    assert_eq!(program.attach("narrow0", None).unwrap(), ActiveMode::Generic);
}

#[test]
fn an_interface_takes_one_program() {
    if !require_privilege("an_interface_takes_one_program", &NETNS_NODES) {
        return;
    }
    let netns = quiet(1);
    let _inside = enter_here(netns.a());
    let (mut first, mut second) = (load(ObjectKind::Default), load(ObjectKind::Default));
    first.attach(NEAR, Some(ActiveMode::Native)).unwrap();
    for mode in [Some(ActiveMode::Native), Some(ActiveMode::Generic), None] {
        let error = second.attach(NEAR, mode).unwrap_err();
        assert!(matches!(error, BpfError::Occupied { program_id: 1.., .. }), "{error}");
        assert!(error.to_string().contains("ip link set dev veth-a xdp off"), "{error}");
    }
    let error = first.attach("lo", Some(ActiveMode::Generic)).unwrap_err();
    assert!(matches!(&error, BpfError::AlreadyAttached { interface } if interface == NEAR), "{error}");
    first.detach();
    second.attach(NEAR, Some(ActiveMode::Native)).unwrap();
    drop(second);
    first.attach(NEAR, Some(ActiveMode::Native)).unwrap();
    let refused = |interface| load(ObjectKind::Default).attach(interface, None).unwrap_err();
    let error = refused("nosuch0");
    assert!(matches!(error, BpfError::Interface(NetlinkError::NoSuchInterface { .. })), "{error}");
    let error = refused("lo");
    assert!(matches!(error, BpfError::Interface(NetlinkError::Loopback { .. })), "{error}");
}

#[test]
fn a_killed_process_leaves_nothing_attached() {
    if let Ok(interface) = std::env::var(VICTIM_VARIABLE) {
        let mut program = load(ObjectKind::Default);
        program.attach(&interface, Some(ActiveMode::Native)).unwrap();
        println!("\nattached");
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    if !require_privilege("a_killed_process_leaves_nothing_attached", &NETNS_NODES) {
        return;
    }
    let netns = quiet(1);
    let _inside = enter_here(netns.a());
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "attach::a_killed_process_leaves_nothing_attached", "--nocapture"])
        .env(VICTIM_VARIABLE, NEAR)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let attached = lines.map_while(Result::ok).any(|line| line == "attached");
    let mut program = load(ObjectKind::Default);
    let occupied = program.attach(NEAR, Some(ActiveMode::Native));
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(attached, "the victim attached");
    assert!(matches!(occupied, Err(BpfError::Occupied { .. })), "{occupied:?}");
    // The kernel tears the link down behind the process's back.
    wait_until("the program is gone", Duration::from_secs(10), || {
        program.attach(NEAR, Some(ActiveMode::Native)).is_ok()
    });
}

#[test]
fn without_capabilities_loading_names_them() {
    if !require_privilege("without_capabilities_loading_names_them", &NETNS_NODES) {
        return;
    }
    // Capabilities belong to a thread; this one gives its own up.
    let thread = std::thread::spawn(|| {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        bpf::XdpProgram::load(&Object::of(ObjectKind::Default)).unwrap_err()
    });
    let error = thread.join().unwrap();
    assert!(error.is_privilege(), "{error}");
    assert!(error.to_string().contains("CAP_BPF and CAP_NET_ADMIN"), "{error}");
}

#[test]
fn slots_take_sockets_of_one_kind_only() {
    if !require_privilege("slots_take_sockets_of_one_kind_only", &NETNS_NODES) {
        return;
    }
    let mut program = load(ObjectKind::Default);
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let error = program.set_socket(5, 6, &udp).unwrap_err();
    assert!(error.to_string().contains("queue 5, shard 6"), "{error}");
    program.set_socket(5, 6, idle_socket()).unwrap();
    assert!(program.set_socket(64, 0, idle_socket()).is_err());
    assert!(program.set_socket(0, 64, idle_socket()).is_err());
    let error = program.test_run(&TestFrame::new(&[0; 60], 1), None).unwrap_err();
    assert!(error.to_string().contains("60 bytes on queue 1"), "{error}");
}

#[test]
fn an_endpoint_map_that_is_full_says_so() {
    if !require_privilege("an_endpoint_map_that_is_full_says_so", &NETNS_NODES) {
        return;
    }
    let mut program = load(ObjectKind::Default);
    let address = |number: u32| std::net::IpAddr::from((0x0A00_0000 + number).to_be_bytes());
    let taken = (0..5000).take_while(|number| program.add_endpoint(address(*number), 988).is_ok()).count();
    assert_eq!(taken, 1024);
    let error = program.add_endpoint(address(1024), 988).unwrap_err();
    assert!(error.to_string().contains("add 10.0.4.0 port 988 to map ENDPOINTS"), "{error}");
    program.add_endpoint(address(0), 988).unwrap();
    assert!(program.remove_endpoint(address(0), 988).unwrap());
    program.add_endpoint(address(1024), 988).unwrap();
}

#[test]
fn another_object_is_refused_by_what_it_lacks() {
    if !require_privilege("another_object_is_refused_by_what_it_lacks", &NETNS_NODES) {
        return;
    }
    let mut bytes = Object::of(ObjectKind::Default).bytes().unwrap().into_owned();
    // The program's name, wherever it stands.
    let name = b"lnet_xdp\0";
    let places: Vec<_> =
        bytes.windows(name.len()).enumerate().filter(|(_, at)| at == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place] = b'm';
    }
    let path = std::env::temp_dir().join(format!("lnet-tests-renamed-{}.o", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let error = bpf::XdpProgram::load(&Object::File(path.clone())).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(error, BpfError::ObjectInvalid { .. }), "{error}");
}
