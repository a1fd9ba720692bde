//! Attaching to interfaces, and what stands in the way.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lnet_tests::bpf::netns::{FAR, NEAR, Namespace};
use lnet_tests::bpf::{idle_socket, load, object, privileged};
use lnet_user::bpf::{self, ActiveMode, AttachMode, BpfError, ObjectKind, TestFrame};
use rustix::thread::CapabilitySet;

/// Set for the process that is killed; names the interface that it attaches to.
const VICTIM_VARIABLE: &str = "LNET_TEST_BPF_VICTIM";

#[test]
fn veth_is_native_and_loopback_generic() {
    if !privileged("veth_is_native_and_loopback_generic") {
        return;
    }
    let namespace = Namespace::new();
    namespace.add_veth(8, None);
    let _inside = namespace.enter();
    for (interface, mode, expected) in [
        (NEAR, AttachMode::Native, ActiveMode::Native),
        (NEAR, AttachMode::Generic, ActiveMode::Generic),
        (NEAR, AttachMode::Auto, ActiveMode::Native),
        ("lo", AttachMode::Auto, ActiveMode::Generic),
        ("lo", AttachMode::Generic, ActiveMode::Generic),
    ] {
        let mut program = load(ObjectKind::Default);
        assert_eq!((program.interface(), program.mode()), (None, None));
        assert_eq!(program.attach(interface, mode).unwrap(), expected, "{interface} {mode:?}");
        assert_eq!((program.interface(), program.mode()), (Some(interface), Some(expected)));
        // Dropping it here makes room for the next.
    }
    let mut program = load(ObjectKind::Default);
    match program.attach("lo", AttachMode::Native).unwrap_err() {
        error @ BpfError::Refused { mode: ActiveMode::Native, .. } => {
            assert!(error.to_string().contains("mode generic works"), "{error}");
        }
        other => panic!("{other}"),
    }
    assert_eq!(program.attach("lo", AttachMode::Generic).unwrap(), ActiveMode::Generic);
}

#[test]
fn a_driver_that_lacks_channels_refuses_with_a_hint() {
    if !privileged("a_driver_that_lacks_channels_refuses_with_a_hint") {
        return;
    }
    let namespace = Namespace::new();
    let near = ["link", "add", "name", NEAR, "numrxqueues", "1", "numtxqueues", "1", "type", "veth"];
    let far = ["peer", "name", FAR, "numrxqueues", "4", "numtxqueues", "4"];
    namespace.ip(&[near.as_slice(), &far].concat());
    namespace.ip(&["link", "set", "dev", NEAR, "up"]);
    let _inside = namespace.enter();
    let mut program = load(ObjectKind::Default);
    let error = program.attach(NEAR, AttachMode::Native).unwrap_err();
    assert!(matches!(error, BpfError::Refused { mtu: 1500, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(NEAR) && text.contains("no fewer rx than the peer's tx queues"), "{text}");
    assert_eq!(program.attach(NEAR, AttachMode::Auto).unwrap(), ActiveMode::Generic);
}

#[test]
fn receive_queues_are_counted_in_the_threads_namespace() {
    if !privileged("receive_queues_are_counted_in_the_threads_namespace") {
        return;
    }
    let namespace = Namespace::new();
    namespace.add_veth(8, None);
    // The kernel allocates a queue per CPU for these, and uses one.
    namespace.ip(&["link", "add", "name", "plain0", "type", "veth", "peer", "name", "plain1"]);
    assert!(matches!(bpf::rx_queue_count(NEAR), Err(BpfError::UnknownInterface { .. })));
    let _inside = namespace.enter();
    assert_eq!(bpf::rx_queue_count(NEAR).unwrap(), 8);
    assert_eq!(bpf::rx_queue_count("plain0").unwrap(), 1);
    for interface in [NEAR, FAR, "plain1", "lo"] {
        let queues = format!("/sys/class/net/{interface}/queues");
        let command = ["netns", "exec", namespace.name(), "ls", &queues];
        let listed = Command::new("ip").args(command).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let expected = listed.lines().filter(|queue| queue.starts_with("rx-")).count();
        assert_eq!(bpf::rx_queue_count(interface).unwrap() as usize, expected, "{interface}: {listed}");
    }
}

#[test]
fn an_interface_takes_one_program() {
    if !privileged("an_interface_takes_one_program") {
        return;
    }
    let namespace = Namespace::new();
    namespace.add_veth(1, None);
    let _inside = namespace.enter();
    let (mut first, mut second) = (load(ObjectKind::Default), load(ObjectKind::Default));
    first.attach(NEAR, AttachMode::Native).unwrap();
    for mode in [AttachMode::Native, AttachMode::Generic, AttachMode::Auto] {
        let error = second.attach(NEAR, mode).unwrap_err();
        assert!(matches!(error, BpfError::Occupied { program_id: Some(1..), .. }), "{error}");
        assert!(error.to_string().contains("ip link set dev near0 xdp off"), "{error}");
    }
    let error = first.attach("lo", AttachMode::Generic).unwrap_err();
    assert!(matches!(&error, BpfError::AlreadyAttached { interface } if interface == NEAR), "{error}");
    first.detach();
    second.attach(NEAR, AttachMode::Native).unwrap();
    drop(second);
    first.attach(NEAR, AttachMode::Native).unwrap();
    let error = load(ObjectKind::Default).attach("nosuch0", AttachMode::Auto).unwrap_err();
    assert!(matches!(&error, BpfError::UnknownInterface { name } if name == "nosuch0"), "{error}");
}

#[test]
fn a_killed_process_leaves_nothing_attached() {
    if let Ok(interface) = std::env::var(VICTIM_VARIABLE) {
        let mut program = load(ObjectKind::Default);
        program.attach(&interface, AttachMode::Native).unwrap();
        println!("\nattached");
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    if !privileged("a_killed_process_leaves_nothing_attached") {
        return;
    }
    let namespace = Namespace::new();
    namespace.add_veth(1, None);
    let _inside = namespace.enter();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "attach::a_killed_process_leaves_nothing_attached", "--nocapture"])
        .env(VICTIM_VARIABLE, NEAR)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let attached = lines.map_while(Result::ok).any(|line| line == "attached");
    let mut program = load(ObjectKind::Default);
    let occupied = program.attach(NEAR, AttachMode::Native);
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(attached, "the victim attached");
    assert!(matches!(occupied, Err(BpfError::Occupied { .. })), "{occupied:?}");
    // The kernel tears the link down behind the process's back.
    let patience = Instant::now() + Duration::from_secs(10);
    while let Err(error) = program.attach(NEAR, AttachMode::Native) {
        assert!(Instant::now() < patience, "still: {error}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn without_capabilities_loading_names_them() {
    if !privileged("without_capabilities_loading_names_them") {
        return;
    }
    // Capabilities belong to a thread; this one gives its own up.
    let thread = std::thread::spawn(|| {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).unwrap();
        bpf::XdpProgram::load(&object(ObjectKind::Default)).unwrap_err()
    });
    let error = thread.join().unwrap();
    assert!(error.is_privilege(), "{error}");
    assert!(error.to_string().contains("CAP_BPF and CAP_NET_ADMIN"), "{error}");
}

#[test]
fn slots_take_sockets_of_one_kind_only() {
    if !privileged("slots_take_sockets_of_one_kind_only") {
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
    if !privileged("an_endpoint_map_that_is_full_says_so") {
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
    if !privileged("another_object_is_refused_by_what_it_lacks") {
        return;
    }
    let mut bytes = std::fs::read(object(ObjectKind::Default)).unwrap();
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
    let error = bpf::XdpProgram::load(&path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(error, BpfError::ObjectInvalid { .. }), "{error}");
}
