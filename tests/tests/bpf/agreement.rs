//! The program agrees with `steer` on the host: on every queue, for every policy, on valid frames and on
//! anything else.

use std::net::IpAddr;

use lnet_tests::bpf::frames;
use lnet_tests::bpf::model::{Linear, Model, any_policy};
use lnet_tests::bpf::random::{Random, seed};
use lnet_tests::bpf::{idle_socket, load, quiet};
use lnet_tests::netns::{NETNS_NODES, enter_here, require_privilege};
use lnet_wire::packet::Reason;
use lnet_wire::steer::{PORTALS, QUEUES_MAX, SHARDS_MAX};
use lnet_xdp::bpf::{Action, ActiveMode, ObjectKind, TestFrame, XdpProgram};
use rustix::fd::OwnedFd;

/// More queues than steering reaches.
const QUEUES: u32 = QUEUES_MAX + 8;
const BATCHES: usize = 100;
const FRAMES_PER_BATCH: usize = 10_500;

fn endpoints() -> [(IpAddr, u16); 6] {
    [
        (IpAddr::from([10, 0, 0, 1]), 988),
        (IpAddr::from([10, 0, 0, 1]), 989),
        (IpAddr::from([255, 255, 255, 255]), 1),
        (IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 1]), 988),
        (IpAddr::from([0xFE80, 0, 0, 0, 1, 2, 3, 4]), 65_535),
        (IpAddr::from([192, 168, 77, 2]), 40_000),
    ]
}

/// Another configuration: shards, endpoints, policies, filled and empty slots.
fn reconfigure(random: &mut Random, program: &mut XdpProgram, model: &mut Model, socket: &OwnedFd) {
    let shards = random.pick(&[0, 1, 2, 3, 5, 8, 16, 63, 64, 64, 64, 64]);
    model.set_shards(program, shards);
    // Now and then the interface's Ethernet address is another one, or has just changed.
    let mut mac = frames::MAC;
    mac[random.below(6)] ^= u8::from(random.once_in(16));
    model.set_mac(program, mac);
    let mut ours: Vec<_> = endpoints().map(|endpoint| (endpoint, !random.once_in(4))).to_vec();
    // The first stays, so that no batch goes by without a frame of ours.
    ours[0].1 = true;
    for (endpoint, ours) in ours {
        model.set_endpoint(program, endpoint, ours);
    }
    for portal in 0..PORTALS as u8 {
        let policy = any_policy(random);
        model.set_policy(program, portal, policy);
    }
    for _ in 0..600 {
        let queue = random.below(QUEUES_MAX as usize) as u32;
        let shard = random.below(SHARDS_MAX as usize) as u32;
        let filled = random.once_in(2).then_some(socket);
        model.set_socket(program, queue, shard, filled);
    }
}

#[test]
fn a_million_frames_meet_the_verdict_of_the_host() {
    const TEST: &str = "a_million_frames_meet_the_verdict_of_the_host";
    if !require_privilege(TEST, &NETNS_NODES) {
        return;
    }
    let mut random = Random::new(seed(TEST));
    let netns = quiet(QUEUES as u16);
    let _inside = enter_here(netns.a());
    let mut program = load(ObjectKind::Default);
    program.attach(&netns.a().interface().name, Some(ActiveMode::Native)).unwrap();
    let socket = idle_socket();
    let mut model = Model::default();
    for queue in 0..QUEUES_MAX {
        for shard in 0..SHARDS_MAX {
            model.set_socket(&mut program, queue, shard, Some(&socket));
        }
    }
    let mut bytes = Vec::new();
    let (mut frames, mut redirected) = (0, 0);
    for batch in 0..BATCHES {
        reconfigure(&mut random, &mut program, &mut model, &socket);
        for _ in 0..FRAMES_PER_BATCH {
            frames::any(&mut random, &endpoints(), &mut bytes);
            let queue = random.below(QUEUES as usize) as u32;
            let expected = model.run(&Linear { frame: &bytes, linear_bytes: bytes.len() }, queue);
            let answer = program.test_run(&TestFrame::new(&bytes, queue), None).unwrap();
            assert_eq!(answer, expected, "batch {batch}, queue {queue}, {} bytes: {bytes:02x?}", bytes.len());
            frames += 1;
            redirected += u64::from(answer == Action::Redirect);
        }
        model.assert_counters(&program.counters().unwrap());
    }
    let counters = program.counters().unwrap();
    assert_eq!(counters.redirected(), redirected);
    assert!(frames >= 1_000_000 && redirected > frames / 10, "{redirected} of {frames} redirected");
    // The frames reached everything there is to reach.
    for (reason, met) in counters.totals() {
        let never = matches!(reason, Reason::FaultDropped | Reason::FaultCorrupted);
        assert_eq!(met == 0, never, "{reason:?}: {met} frames");
    }
    let queues = counters.slots.iter().map(|slot| slot.queue).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(queues.len(), QUEUES_MAX as usize);
    println!("{TEST}: {frames} frames, {redirected} redirected, {:?}", counters.totals());
}

#[test]
fn headers_beyond_the_linear_part_pass_up() {
    const TEST: &str = "headers_beyond_the_linear_part_pass_up";
    if !require_privilege(TEST, &NETNS_NODES) {
        return;
    }
    let mut random = Random::new(seed(TEST));
    let mut program = load(ObjectKind::Default);
    let socket = idle_socket();
    let mut model = Model::default();
    model.set_mac(&mut program, frames::MAC);
    model.set_shards(&mut program, 1);
    model.set_socket(&mut program, 0, 0, Some(&socket));
    for endpoint in endpoints() {
        model.set_endpoint(&mut program, endpoint, true);
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut answers = [0; 2];
    for _ in 0..20_000 {
        let bytes = frames::valid(&mut random, &endpoints(), 2).bytes();
        let linear_bytes = frames::FRAME_BYTES_MIN + random.below(220.min(bytes.len() - 13));
        let frame = TestFrame { bytes: &bytes, linear_bytes, queue: 0 };
        let answer = match program.test_run(&frame, None) {
            Ok(answer) => answer,
            Err(error) if before_6_18(&kernel) => {
                println!("{TEST}: left out, kernel {kernel} takes no shorter linear part ({error})");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let expected = model.run(&Linear { frame: &bytes, linear_bytes }, 0);
        assert_eq!(answer, expected, "{linear_bytes} of {} bytes: {bytes:02x?}", bytes.len());
        answers[usize::from(answer == Action::Redirect)] += 1;
    }
    model.assert_counters(&program.counters().unwrap());
    assert!(answers.iter().all(|met| *met > 1000), "{answers:?} passed and redirected");
}

fn before_6_18(kernel: &str) -> bool {
    let mut numbers = kernel.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 18)
}

#[test]
fn the_program_stays_small() {
    if !require_privilege("the_program_stays_small", &NETNS_NODES) {
        return;
    }
    let walked = load(ObjectKind::Default).verified_instructions().unwrap();
    assert!((1..8_000).contains(&walked), "the verifier walked {walked} instructions");
}
