//! What Wireshark makes of the streams of tcp nets.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lnet_tests::netns::{NETNS_NODES, Namespace, require_privilege, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use xtask::testing::paths;

use crate::hostile_tcp::load_number;
use crate::run::{Directory, PATIENCE, Two};

/// Message types by their numbers (LNet `lnet_msg_type`).
const TYPES: [&str; 4] = ["ack", "put", "get", "reply"];

/// A running capture of what goes through an interface.
struct Capture(Child);

impl Capture {
    /// Captures from now on.
    fn start(inside: &Namespace, file: &Path) -> Self {
        let interface = &inside.interface().name;
        let mut command = inside.command(Path::new("tshark"));
        command.args(["-q", "-B", "64", "-i", interface, "-w"]).arg(file).args(["-f", "tcp port 988"]);
        let missing = "missing: tshark, of Debian's package of this name, which `cargo xtask setup` installs";
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect(missing);
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("Capturing on")), "{missing}, or it does not start");
        std::thread::spawn(move || lines.for_each(drop));
        wait_until("the file of the capture is there", PATIENCE, || {
            file.metadata().is_ok_and(|file| file.len() != 0)
        });
        Self(child)
    }

    /// Ends it in order.
    fn stop(mut self) {
        kill_process(Pid::from_raw(self.0.id().cast_signed()).unwrap(), Signal::INT).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The values of fields in the messages that Wireshark finds, a line for each packet.
fn dissected(file: &Path, filter: &str, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(file).args(["-Y", filter, "-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// How many messages of a type both sides have received on the tcp net, as LNet counts them.
fn received(two: &Two, kind: &str) -> usize {
    let count = |shown: &str| -> usize {
        let entries = paths(shown);
        let end = format!("received_stats/{kind}");
        entries
            .iter()
            .filter(|(path, _)| path.ends_with(&end))
            .map(|(_, value)| value.parse::<usize>().unwrap())
            .sum()
    };
    [&two.a, &two.b].map(|daemon| count(&daemon.good("net show --net tcp -v 4"))).iter().sum()
}

#[test]
fn wireshark_finds_each_message_of_a_tcp_net() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let directory = Directory::new();
    let file = directory.0.join("tcp.pcapng");
    let two = Two::on(&["tcp"], "");
    // A message that began before the capture would hide others.
    let capture = Capture::start(two.netns.a(), &file);
    let other = two.nids(0)[1].replace("@xdp", "@tcp");
    two.a.good(&format!("ping {other}"));
    two.b.good("load start target");
    let id =
        load_number(&two.a.good(&format!("load start initiator --to {other} --messages 200 --window 4")));
    two.a.good(&format!("load wait {id}"));
    let counted = || TYPES.map(|kind| received(&two, kind));
    let mut before = counted();
    // Discovery may go on for a while.
    wait_until("no message is under way", PATIENCE, || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = counted();
        std::mem::replace(&mut before, now) == now
    });
    capture.stop();

    let found = dissected(&file, "lnet.msg_type", &["lnet.msg_type"]);
    let found: Vec<&str> = found.iter().flat_map(|line| line.split(',')).collect();
    let found =
        [0, 1, 2, 3].map(|kind: usize| found.iter().filter(|found| **found == kind.to_string()).count());
    assert_eq!(found, before, "by type: {TYPES:?}");
    assert!(before.iter().all(|count| *count > 20), "{before:?}");
    let ends = dissected(&file, "lnet.msg_type == 2", &["lnet.nid.addr"]).join(",");
    let known = [two.netns.a(), two.netns.b()].map(|side| side.interface().ipv4.to_string());
    assert!(ends.split(',').all(|address| known.iter().any(|known| known == address)), "{ends}");
    // Payloads are no RPCs of Lustre, which Wireshark looks for in them.
    let lengths = dissected(&file, "lnet.msg_type", &["lnet.payload_length"]).join(",");
    let sum: u64 = lengths.split(',').map(|length| length.parse::<u64>().unwrap()).sum();
    let counted = [&two.a, &two.b].map(|daemon| {
        let shown = daemon.good("stats show");
        let length = shown.lines().find_map(|line| line.trim().strip_prefix("recv_length: "));
        length.unwrap().parse::<u64>().unwrap()
    });
    assert_eq!(sum, counted.iter().sum::<u64>());
}

/// Frames of xdp nets are told by `lnetctl capture show`, and by Wireshark with our dissector, alike.
#[test]
fn frames_of_a_capture_are_told_alike() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::configured(1, "");
    let to = format!("{}@xdp", two.netns.b().interface().ipv4);
    let directory = &two.a.directory.0;
    let file = directory.join("capture.pcapng");
    two.a.good(&format!("capture start {}", file.display()));
    two.a.good(&format!("ping {to}"));
    two.b.good("load start target");
    two.a.good(&format!("load start initiator --to {to} --messages 200 --window 16"));
    two.a.good("load wait 1");
    two.a.good(&format!("capture stop {}", file.display()));

    let shown = two.a.good(&format!("capture show {}", file.display()));
    let json = two.a.good(&format!("capture show {} --json", file.display()));
    crate::schema::check(&json);
    assert_eq!(shown.lines().count(), json.lines().count());
    assert!(!shown.contains("no frame of ours"), "{shown}");
    let kinds = ["PUT", "GET", "REPLY", "HELLO", "WELCOME"];
    let count = |kind: &str| shown.lines().filter(|line| line.contains(&format!(": {kind} "))).count();
    assert!(kinds.iter().all(|kind| count(kind) > 0), "{shown}");

    // Wireshark runs no scripts of a user's for root.
    let script = directory.join("lnet-xdp.lua");
    std::fs::write(&script, include_str!("../../../lnetctl/wireshark/lnet-xdp.lua")).unwrap();
    for path in [directory, &script, &file] {
        let mode = if path == directory { 0o755 } else { 0o644 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "tshark", "-X"]);
    command.arg(format!("lua_script:{}", script.display())).env("HOME", directory).arg("-r").arg(&file);
    command.args(["-T", "fields", "-e", "lnetxdp.kind", "-e", "lnetxdp.type", "-e", "lnetxdp.destination"]);
    command.args(["-e", "_ws.malformed", "-e", "lnetxdp.cut", "-e", "_ws.lua.error"]);
    let output = command.output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let fields: Vec<Vec<&str>> = lines.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(fields.len(), shown.lines().count());
    assert!(fields.iter().all(|line| line[3..].iter().all(|wrong| wrong.is_empty())), "{lines}");
    // Kinds by their numbers, and message types of DATA.
    for (kind, number, message_type) in
        [("PUT", "1", "1"), ("GET", "1", "2"), ("REPLY", "1", "3"), ("HELLO", "3", ""), ("WELCOME", "4", "")]
    {
        let found = fields.iter().filter(|line| line[0] == number && line[1] == message_type).count();
        assert_eq!(found, count(kind), "{kind}: {lines}");
    }
    assert!(fields.iter().any(|line| line[2].split(',').any(|nid| nid == to)), "{lines}");

    // A file that ends within a frame is told as far as it goes.
    let whole = std::fs::read(&file).unwrap();
    let torn = directory.join("torn.pcapng");
    std::fs::write(&torn, &whole[..whole.len() / 2]).unwrap();
    let ran = two.a.run(&format!("capture show {}", torn.display()));
    assert!(ran.status == 255 && ran.stderr.contains("it ends within a block"), "{ran:?}");
    assert!(shown.starts_with(&ran.stdout) && ran.stdout.lines().count() > 10, "{ran:?}");
}
