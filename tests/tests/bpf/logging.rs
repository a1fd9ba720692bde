//! Log lines of the logging object.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lnet_tests::bpf::frames::{self, Frame};
use lnet_tests::bpf::load;
use lnet_tests::netns::{NETNS_NODES, require_privilege};
use lnet_wire::header::MessageType;
use lnet_wire::packet::Reason;
use lnet_xdp::bpf::{Action, BpfError, ObjectKind, TestFrame, XdpProgram};
use tracing_subscriber::fmt::MakeWriter;

/// What `tracing` prints, to be looked at.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    /// Runs `body` with all events of this thread captured.
    fn with(body: impl FnOnce(&Self)) {
        let captured = Self::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(captured.clone()).finish();
        tracing::subscriber::with_default(subscriber, || body(&captured));
    }

    fn lines(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }
}

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Captured {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn v4() -> IpAddr {
    IpAddr::from([10, 0, 0, 1])
}

fn v6() -> IpAddr {
    IpAddr::from([0xFD00, 0, 0, 0, 0, 0, 0, 1])
}

fn program() -> XdpProgram {
    let mut program = load(ObjectKind::Logging);
    program.set_shards(1).unwrap();
    program.set_mac(frames::MAC).unwrap();
    program.add_endpoint(v4(), 988).unwrap();
    program.add_endpoint(v6(), 988).unwrap();
    program
}

fn run(program: &XdpProgram, bytes: &[u8]) {
    assert_eq!(program.test_run(&TestFrame::new(bytes, 0), None).unwrap(), Action::Pass);
}

/// A refused frame over IPv4, one over tagged IPv6 that meets an empty slot, one that is not ours.
fn run_three(program: &XdpProgram) {
    let mut refused = Frame::new(v4(), 988, MessageType::Put).bytes();
    refused[42] ^= 1;
    run(program, &refused);
    let mut tagged = Frame::new(v6(), 988, MessageType::Put);
    tagged.vlan = Some(0x2000);
    run(program, &tagged.bytes());
    run(program, &Frame::new(v4(), 989, MessageType::Put).bytes());
}

fn assert_two_lines(lines: &[String]) {
    let [refused, socketless] = lines else { panic!("{lines:?}") };
    for (line, parts) in [
        (refused, ["WARN", "lnet_xdp", "queue=0", "reason=BadMagic", "source=\"10.9.8.7\""]),
        (socketless, ["WARN", "lnet_xdp", "queue=0", "reason=NoSocket", "source=\"fd00::9:8:7:6\""]),
    ] {
        for part in parts {
            assert!(line.contains(part), "{part} is not in {line}");
        }
    }
}

#[test]
fn refusals_are_logged_while_logging_is_on() {
    if !require_privilege("refusals_are_logged_while_logging_is_on", &NETNS_NODES) {
        return;
    }
    let mut program = program();
    let mut log = program.take_log().unwrap();
    assert!(matches!(program.take_log(), Err(BpfError::LogTaken)));
    Captured::with(|captured| {
        run_three(&program);
        log.flush();
        assert_eq!(captured.lines(), [""; 0], "logging is off after loading");
        program.set_logging(true).unwrap();
        run_three(&program);
        log.flush();
        assert_two_lines(&captured.lines());
        program.set_logging(false).unwrap();
        run_three(&program);
        log.flush();
        assert_eq!(captured.lines().len(), 2, "logging is off again");
    });
    let counters = program.counters().unwrap();
    assert_eq!((counters.frames(Reason::BadMagic), counters.frames(Reason::NoSocket)), (3, 3));
}

#[test]
fn a_runtime_pumps_the_log() {
    if !require_privilege("a_runtime_pumps_the_log", &NETNS_NODES) {
        return;
    }
    let mut program = program();
    let log = program.take_log().unwrap();
    program.set_logging(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    Captured::with(|captured| {
        runtime.block_on(async {
            let pump = tokio::spawn(log.pump());
            run_three(&program);
            let patience = tokio::time::Instant::now() + Duration::from_secs(10);
            while captured.lines().len() < 2 && tokio::time::Instant::now() < patience {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            pump.abort();
        });
        assert_two_lines(&captured.lines());
    });
}

#[test]
fn the_default_object_cannot_log() {
    if !require_privilege("the_default_object_cannot_log", &NETNS_NODES) {
        return;
    }
    let mut program = load(ObjectKind::Default);
    assert!(matches!(program.set_logging(true), Err(BpfError::NoLogging)));
    let error = program.take_log().unwrap_err();
    assert!(error.to_string().contains("lnet-log.bpf.o"), "{error}");
}
