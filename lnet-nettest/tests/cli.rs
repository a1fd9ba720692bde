//! The tool as users run it.
#![allow(clippy::unwrap_used, reason = "what is allowed in tests serves their helpers too")]

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

fn tool(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lnet-nettest"));
    command.args(arguments.split_whitespace());
    command
}

/// Runs the tool: whether it succeeded, what it measured, and what it said.
fn run(arguments: &str) -> (bool, Value, String) {
    let output = tool(arguments).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.success(), serde_json::from_slice(&output.stdout).unwrap_or_default(), said)
}

/// A run that goes well: each exchange came back as it was.
#[track_caller]
fn check(arguments: &str, exchanges: u64) {
    let (good, report, said) = run(arguments);
    assert!(good, "{arguments}: {said}");
    assert_eq!(report["done"], exchanges, "{report}");
    for count in ["failed", "bad", "lost"] {
        assert_eq!(report[count], 0, "{report}");
    }
    assert_eq!(report["round_trip_ns"]["count"], exchanges, "{report}");
    // NT-05: a round trip lies within the test.
    let [min, mean, max] = ["min", "mean", "max"].map(|of| report["round_trip_ns"][of].as_f64().unwrap());
    let elapsed_ns = report["elapsed_s"].as_f64().unwrap() * 1e9;
    // The histogram rounds to three digits.
    assert!(0.0 < min && min <= mean && mean <= max && max <= 1.01 * elapsed_ns, "{report}");
}

#[test]
fn nt_01_buffers_go_round_and_round() {
    check("local --concurrency 1 --count 16 --timeout 120", 16);
    check("local --concurrency 512 --count 8192 --size 16 --timeout 120", 8192);
    check("local --concurrency 64 --count 1024 --size 64 --test bulk --timeout 120", 1024);
}

#[test]
fn nt_08_pings_of_many_sizes() {
    for size in (1..9).map(|step| 4096 - 511 * (step - 1)) {
        check(&format!("local --size {size} --count 20 --timeout 60"), 20);
    }
    for transport in ["rpc", "lnet"] {
        check(&format!("local --transport {transport} --size 519 --count 50 --timeout 60"), 50);
    }
    check("local --size 16 --count 1 --concurrency 1 --timeout 60", 1);
}

#[test]
fn nt_08_bulk_of_several_sizes() {
    for (transport, largest) in [("mem", "4m"), ("rpc", "4m"), ("lnet", "1m")] {
        for size in ["1", "4097", largest] {
            let options = "--concurrency 2 --timeout 60 --count 6 --test bulk";
            check(&format!("local --transport {transport} {options} --size {size}"), 6);
        }
    }
}

#[test]
fn a_duration_ends_a_test() {
    let (good, report, said) = run("local --duration 2 --size 64 --timeout 60");
    assert!(good, "{said}");
    assert!(report["done"].as_u64() > Some(0) && report["elapsed_s"].as_f64() >= Some(2.0), "{report}");
    // Progress is shown while it goes on.
    assert!(said.contains("exchanges, ") && said.contains("median"), "{said}");
}

/// A pipe without a reader.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn a_test_goes_on_when_the_readers_of_its_words_have_gone() {
    // The tool shows progress once a second.
    let output = tool("local --duration 2 --size 64 --timeout 60").stderr(unread()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && report["done"].as_u64() > Some(0), "{report}");
    let output = tool("local --count 1 --size 64 --timeout 60").stdout(unread()).output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}

/// A loopback address that other processes leave alone.
fn host() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 1 + high, middle, low)
}

fn free_port() -> u16 {
    TcpListener::bind((host(), 0)).unwrap().local_addr().unwrap().port()
}

/// A server of tests, which serves until this is dropped.
struct Serving(Child);

impl Serving {
    /// What it says first begins with `begin`.
    fn start(arguments: &str, begin: &str) -> Self {
        let mut child = tool(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        // The server ends as well where it says something else.
        let serving = Self(child);
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with(begin), "{line}");
        // What it says later goes somewhere.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        serving
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_processes_over_rpc() {
    let server = format!("{}:{}:1", host(), free_port());
    let _serving = Serving::start(&format!("server --transport rpc --address {server}"), "serving at ");
    for test in ["ping --size 64k", "bulk --size 1m"] {
        let own = format!("{}:{}:1", host(), free_port());
        let options = "--count 30 --concurrency 4 --timeout 60 --workers 2";
        check(
            &format!("client --transport rpc --address {own} --server {server} --test {test} {options}"),
            30,
        );
    }
    // A buffer that the server does not have.
    let own = format!("{}:{}:1", host(), free_port());
    let options = "--test bulk --size 2m --count 1 --timeout 1";
    let (good, report, said) =
        run(&format!("client --transport rpc --address {own} --server {server} {options}"));
    assert!(!good && report["lost"] == 1 && report["done"] == 0, "{report} {said}");
}

/// Who tests the server must know it.
#[test]
fn an_identifier_that_was_chosen_is_told() {
    for (role, begin) in [("server", "serving at"), ("node", "waiting for consoles at")] {
        let options = "--transport lnet --interface in-process:chosen --address 10.0.0.1@xdp:12345:34";
        Serving::start(&format!("{role} {options}:*"), &format!("{begin} 10.0.0.1@xdp:12345:34:4095"));
    }
}

#[test]
fn nt_10_a_console_and_nodes_in_processes_of_their_own() {
    let hosts = [0, 1, 2, 3].map(|_| format!("{}:{}", host(), free_port()));
    let _nodes = hosts.clone().map(|host| {
        Serving::start(&format!("node --transport rpc --address {host}:1"), "waiting for consoles")
    });
    let [first, second, third, fourth] = &hosts;
    let console = format!("console --transport rpc --address {}:{}:1", host(), free_port());
    let servers = format!("--servers {first}:1,{second}:1 --server-data {first}:2,{second}:2");
    let clients = format!("--clients {third}:1,{fourth}:1 --client-data {third}:2,{fourth}:2");
    for test in ["ping --size 4k --concurrency 8", "bulk --size 1m --concurrency 2"] {
        let (good, report, said) =
            run(&format!("{console} {servers} {clients} --test {test} --count 20 --timeout 60"));
        assert!(good, "{said}");
        assert_eq!((&report["done"], report["parts"].as_array().unwrap().len()), (&80.into(), 4), "{report}");
        let received = |part: &Value| part["server"]["received"].as_u64();
        let received: u64 = report["parts"].as_array().unwrap().iter().filter_map(received).sum();
        assert_eq!(received, 80, "{report}");
    }
    let (good, report, said) = run(&format!("{console} {servers} {clients} --test stub"));
    assert!(good && report["done"] == 0, "{said}");
    // A client that is not there is named; without any there is no run.
    let nowhere = format!("{}:{}", host(), free_port());
    let clients = |names: &str, data: &str| format!("--clients {names} --client-data {data}");
    let some = clients(&format!("{third}:1,{nowhere}:1"), &format!("{third}:2,{nowhere}:2"));
    let (good, report, said) = run(&format!("{console} {servers} {some} --count 5 --timeout 60"));
    assert!(
        !good && report["done"] == 10 && report["silent"][0] == format!("{nowhere}:1"),
        "{report} {said}"
    );
    let none = clients(&format!("{nowhere}:1"), &format!("{nowhere}:2"));
    let (good, _, said) = run(&format!("{console} {servers} {none} --count 1"));
    assert!(!good && said.contains("ENETUNREACH"), "{said}");
}

#[test]
fn a_man_page_and_completions_are_made() {
    let directory = std::env::temp_dir().join(format!("lnet-nettest-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    assert!(tool("man").arg(&directory).status().unwrap().success());
    let page = std::fs::read_to_string(directory.join("lnet-nettest.8")).unwrap();
    assert!(page.contains("The load tool of the messaging layer") && page.contains("Examples:"), "{page}");
    std::fs::remove_dir_all(&directory).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = tool(&format!("completions {shell}")).output().unwrap();
        let script = String::from_utf8(script.stdout).unwrap();
        assert!(script.contains("console") && script.contains("concurrency"), "{shell}: {script}");
    }
    let nowhere = tool("man /nowhere/at/all").output().unwrap();
    assert!(String::from_utf8(nowhere.stderr).unwrap().contains("/nowhere/at/all"));
}

#[test]
fn wrong_input_is_named() {
    for (arguments, expected) in [
        ("", "Usage"),
        ("local --size 4g", "4096, 4k or 1m"),
        ("local --count 0", "1 at least is expected"),
        ("local --concurrency 0", "--concurrency 0"),
        ("local --size 15", "16 bytes at least"),
        (
            "local --test bulk --size 64m",
            "no bulk buffer of 67108864 bytes: 67108864 bytes in a buffer: at most 4194304",
        ),
        (
            "local --transport lnet --size 2m",
            "no message of 2097152 bytes: 2097152 bytes in a buffer: at most 1048576",
        ),
        ("local --transport lnet --concurrency 500000000", "at most 699050 are expected over lnet"),
        ("local --workers 0", "'--workers"),
        ("server --transport rpc --address 127.0.0.1:1:1 --depth 0", "'--depth"),
        ("node --transport rpc --address 127.0.0.1:1:1 --depth 0", "'--depth"),
        (
            "console --transport mem --address 127.0.0.1:1 --clients x --client-data y --servers a --server-data b --depth 0",
            "'--depth",
        ),
        (
            "console --transport mem --address 127.0.0.1:1 --clients x --client-data y --servers a --server-data b --limit 0",
            "'--limit",
        ),
        ("local --count 1 --duration 1", "cannot be used with"),
        (
            "console --transport mem --address 127.0.0.1:1 --clients x,x --client-data y,z --servers a --server-data b",
            "twice",
        ),
        (
            "console --transport mem --address 127.0.0.1:1 --clients x --client-data y,z --servers a --server-data b",
            "--client-data has 2: the same number",
        ),
        ("client --transport lnet --interface a --address x --server y --mode fast", "native, generic"),
        ("client --transport lnet --address x --server y", "--interface"),
        ("client --transport lnet --interface in-process:a --address x --server y", "nid:12345:portal:tmid"),
        (
            "client --transport lnet --interface in-process:b --address 10.0.0.1@tcp:12345:34:1 --server \
             127.0.0.1@tcp:12345:34:1",
            "a NID by which other hosts reach its NI is expected",
        ),
        (
            "client --transport lnet --interface in-process:c --address 10.0.0.1@tcp:12345:34:1 --server \
             fe80::1@tcp:12345:34:1",
            "a NID by which other hosts reach its NI is expected",
        ),
        ("client --transport rpc --address 127.0.0.1:1 --server y", "a.b.c.d:port:service"),
        ("client --transport mem --address 127.0.0.1:1 --server y", "a.b.c.d:port"),
    ] {
        let (good, _, said) = run(arguments);
        assert!(!good && said.contains(expected), "{arguments}: {said}");
    }
    // No server at all.
    let (good, report, said) =
        run("client --transport mem --address 127.0.0.1:1 --server 127.0.0.1:2 --count 3");
    assert!(!good && report["failed"] == 3, "{report} {said}");
    assert!(
        report["first_error"] == "ENETUNREACH" && said.contains("3 failed (the first with ENETUNREACH)"),
        "{said}"
    );
    let help = tool("--help").output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("Examples:"));
}
