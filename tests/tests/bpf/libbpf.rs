//! The default object through another loader: it loads there too, and answers alike.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder, ProgramInput};
use lnet_tests::bpf::frames;
use lnet_tests::bpf::model::{Linear, Model, any_policy};
use lnet_tests::bpf::random::{Random, seed};
use lnet_tests::bpf::{idle_socket, load};
use lnet_tests::netns::{NETNS_NODES, require_privilege};
use lnet_wire::packet::{endpoint, ethernet_address};
use lnet_wire::steer::slot_of;
use lnet_xdp::bpf::{self, Action, ObjectKind, TestFrame};

const FRAMES: usize = 5_000;
const SHARDS: u32 = 8;

fn write(object: &mut Object, map: &str, key: &[u8], value: &[u8]) {
    let map = object.maps_mut().find(|candidate| candidate.name() == map).expect(map);
    map.update(key, value, MapFlags::ANY).unwrap();
}

fn run(object: &Object, bytes: &[u8]) -> Action {
    let program = object.progs_mut().find(|program| program.name() == "lnet_xdp").unwrap();
    let input = ProgramInput { data_in: Some(bytes), ..ProgramInput::default() };
    Action::from(program.test_run(input).unwrap().return_value)
}

#[test]
fn the_default_object_answers_alike_in_libbpf_and_aya() {
    const TEST: &str = "the_default_object_answers_alike_in_libbpf_and_aya";
    if !require_privilege(TEST, &NETNS_NODES) {
        return;
    }
    let mut random = Random::new(seed(TEST));
    let endpoints = [(IpAddr::from([10, 0, 0, 1]), 988), (IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 1]), 988)];
    let socket = idle_socket();
    let mut by_aya = load(ObjectKind::Default);
    let mut by_libbpf = ObjectBuilder::default()
        .open_memory(&bpf::Object::of(ObjectKind::Default).bytes().unwrap())
        .unwrap()
        .load()
        .unwrap();
    let mut model = Model::default();

    model.set_mac(&mut by_aya, frames::MAC);
    // The second admission, as the other loader has made it: another entry, and its number.
    let [low, high] = ethernet_address(frames::MAC);
    let admission = [low, high, 0, 0, 0, 0, 0].map(u32::to_ne_bytes);
    write(&mut by_libbpf, "ADMISSIONS", &5_u32.to_ne_bytes(), admission.as_flattened());
    write(&mut by_libbpf, "CONFIG", &2_u32.to_ne_bytes(), &5_u32.to_ne_bytes());
    model.set_shards(&mut by_aya, SHARDS);
    write(&mut by_libbpf, "CONFIG", &0_u32.to_ne_bytes(), &SHARDS.to_ne_bytes());
    for (address, port) in endpoints {
        model.set_endpoint(&mut by_aya, (address, port), true);
        let key = endpoint(address, port).map(u32::to_ne_bytes);
        write(&mut by_libbpf, "ENDPOINTS", key.as_flattened(), &1_u32.to_ne_bytes());
    }
    for portal in 0..64_u8 {
        let policy = any_policy(&mut random);
        model.set_policy(&mut by_aya, portal, policy);
        let word = policy.pack().unwrap().0;
        write(&mut by_libbpf, "POLICIES", &u32::from(portal).to_ne_bytes(), &word.to_ne_bytes());
    }
    // Every other slot is empty.
    for shard in (0..SHARDS).step_by(2) {
        model.set_socket(&mut by_aya, 0, shard, Some(&socket));
        let descriptor = socket.as_fd().as_raw_fd();
        write(&mut by_libbpf, "XSKS", &slot_of(0, shard).to_ne_bytes(), &descriptor.to_ne_bytes());
    }
    let mut bytes = Vec::new();
    let mut redirected = 0;
    for _ in 0..FRAMES {
        frames::any(&mut random, &endpoints, &mut bytes);
        let expected = model.run(&Linear { frame: &bytes, linear_bytes: bytes.len() }, 0);
        assert_eq!(by_aya.test_run(&TestFrame::new(&bytes, 0), None).unwrap(), expected, "aya: {bytes:02x?}");
        assert_eq!(run(&by_libbpf, &bytes), expected, "libbpf: {bytes:02x?}");
        redirected += usize::from(expected == Action::Redirect);
    }
    assert!((FRAMES / 10..FRAMES * 9 / 10).contains(&redirected), "{redirected} of {FRAMES} redirected");
    model.assert_counters(&by_aya.counters().unwrap());
    // Counters of the other loader: per CPU, summed over slots.
    let slots = by_libbpf.maps().find(|map| map.name() == "SLOT_FRAMES").unwrap();
    let total: u64 = (0..slot_of(1, 0))
        .flat_map(|slot| slots.lookup_percpu(&slot.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap())
        .map(|value| u64::from_ne_bytes(value.try_into().unwrap()))
        .sum();
    assert_eq!(total, redirected as u64);
}

#[test]
fn maps_hold_integers_and_arrays_of_them_under_their_names() {
    if !require_privilege("maps_hold_integers_and_arrays_of_them_under_their_names", &NETNS_NODES) {
        return;
    }
    let object = ObjectBuilder::default()
        .open_memory(&bpf::Object::of(ObjectKind::Default).bytes().unwrap())
        .unwrap()
        .load()
        .unwrap();
    let mut maps: Vec<_> = object
        .maps()
        .map(|map| {
            let name = map.name().to_string_lossy().into_owned();
            (name, map.key_size(), map.value_size(), map.max_entries())
        })
        .filter(|(name, ..)| !name.contains('.'))
        .collect();
    maps.sort();
    let expected = [
        ("ADMISSIONS", 4, 28, 16),
        ("CONFIG", 4, 4, 8),
        ("ENDPOINTS", 20, 4, 1024),
        ("FAULTS", 4, 8, 8),
        ("POLICIES", 4, 8, 64),
        ("REASON_FRAMES", 4, 8, 65 * 32),
        ("SLOT_FRAMES", 4, 8, 4096),
        ("XSKS", 4, 4, 4096),
    ];
    assert_eq!(maps, expected.map(|(name, key, value, entries)| (name.to_owned(), key, value, entries)));
}
