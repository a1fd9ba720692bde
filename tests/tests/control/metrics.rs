//! Metrics: `lnetd --metrics`, what Prometheus' own tools and Lustre's exporters make of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lnet_tests::netns::{NETNS_NODES, enter, require_privilege};
use prometheus_parse::{Sample, Scrape, Value};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value as Json;

use crate::run::{Daemon, Directory, PATIENCE, Two};

const OPEN_METRICS: &str = "Accept: application/openmetrics-text; version=1.0.0\r\n";

/// The address that a daemon with `--metrics` tells in its log.
fn address(daemon: &Daemon) -> SocketAddr {
    let log = daemon.directory.log();
    let told = log.lines().find_map(|line| line.split_once("metrics address="));
    told.unwrap_or_else(|| panic!("no address in {log}")).1.trim().parse().unwrap()
}

fn alone() -> Daemon {
    Daemon::alone_with("--shards 2 --configure --metrics 127.0.0.1:0")
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Sends a request, and returns the answer with its head.
fn asked(to: SocketAddr, request: &str, headers: &str) -> String {
    let mut stream = connect(to);
    write!(stream, "{request} HTTP/1.1\r\nHost: node\r\n{headers}\r\n").unwrap();
    read(stream)
}

fn page(to: SocketAddr, headers: &str) -> String {
    let answer = asked(to, "GET /metrics", headers);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

fn scraped(to: SocketAddr) -> Scrape {
    Scrape::parse(page(to, "").lines().map(|line| Ok(line.to_owned()))).unwrap()
}

/// The number of the only sample with this name and these labels.
#[track_caller]
fn number(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
    let fits = |sample: &&Sample| {
        sample.metric == name && labels.iter().all(|(key, value)| sample.labels.get(key) == Some(*value))
    };
    let found: Vec<_> = scrape.samples.iter().filter(fits).collect();
    let [sample] = found.as_slice() else { panic!("{name} {labels:?}: {found:?}") };
    match &sample.value {
        Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => *value,
        Value::Histogram(buckets) => buckets.last().unwrap().count,
        Value::Summary(_) => panic!("{name} is a summary"),
    }
}

/// The names of the metrics on a page, as `# TYPE` has them.
fn names(page: &str) -> BTreeSet<String> {
    let told = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    told.map(str::to_owned).collect()
}

/// The words of a text that could be names of our metrics.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|one: char| !one.is_ascii_alphanumeric() && one != '_');
    words.filter(|word| word.starts_with("lnet_") || word.starts_with("lustre_")).map(str::to_owned).collect()
}

/// Has `promtool` check a page.
fn check_by_promtool(page: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("missing: promtool, which `cargo xtask setup` installs");
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_node_tells_metrics_as_soon_as_it_is_ready() {
    let node = Daemon::alone_with("--shards 2 --metrics 127.0.0.1:0");
    let to = address(&node);
    assert_eq!(number(&scraped(to), "lnet_configured", &[]), 0.0);
    node.good("lnet configure");
    node.good("ping 0@lo");
    std::thread::sleep(Duration::from_millis(250));
    let scrape = scraped(to);
    let lo = [("nid", "0@lo")];
    for (name, labels, expected) in [
        ("lnet_configured", &[][..], 1.0),
        ("lnet_shards", &[], 2.0),
        ("lustre_send_count_total", &lo, 2.0),
        ("lustre_receive_count_total", &lo, 2.0),
        ("lustre_drop_count_total", &lo, 0.0),
        ("lustre_health_sensitivity", &[], 100.0),
        ("lnet_ni_messages_total", &[("direction", "sent"), ("type", "get")], 2.0),
        ("lnet_send_total", &[], 2.0),
    ] {
        assert_eq!(number(&scrape, name, labels), expected, "{name} {labels:?}");
    }
    assert!(number(&scrape, "lustre_lnet_mem_used", &[]) > 1e6);
    node.stop();
}

#[test]
fn either_form_is_one_page_that_promtool_takes() {
    let node = alone();
    let to = address(&node);
    let prometheus = asked(to, "GET /metrics", "");
    assert!(prometheus.contains("content-type: text/plain; version=0.0.4"), "{prometheus}");
    let open = asked(to, "GET /metrics", OPEN_METRICS);
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("# EOF\n") && open.contains("# TYPE lnet_send counter\nlnet_send_total 0\n"));
    check_by_promtool(&page(to, ""));
    node.stop();
}

#[test]
fn other_requests_are_answered_so() {
    let node = alone();
    let to = address(&node);
    for (request, status) in [
        ("GET /", "404 Not Found"),
        ("GET /metrics/", "404 Not Found"),
        ("POST /metrics", "405 Method Not Allowed"),
        ("HEAD /metrics", "200 OK"),
        ("GET", "400 Bad Request"),
        ("\0\u{e4}", "400 Bad Request"),
    ] {
        let answer = asked(to, request, "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
    }
    let long = format!("X: {}\r\n", "a".repeat(100_000));
    let mut stream = connect(to);
    // The daemon may end the connection before all is written.
    let _ = write!(stream, "GET /metrics HTTP/1.1\r\n{long}\r\n");
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(number(&scraped(to), "lnet_configured", &[]), 1.0);
    let (status, said) = Directory::new().ends(&format!("--metrics {to}"));
    assert!(status == 1 && said.contains(&format!("cannot tell metrics at {to}: ")), "{status} {said}");
    node.stop();
}

fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Resident memory of a daemon, bytes.
fn resident(daemon: &Daemon) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_thousand_clients_at_once_are_all_answered() {
    // Each has a descriptor here.
    raise_limit();
    let node = alone();
    let to = address(&node);
    page(to, "");
    let before = resident(&node);
    let mut clients: Vec<_> = (0..1000).map(|_| connect(to)).collect();
    for client in &mut clients {
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
    }
    // The control socket serves meanwhile.
    node.good("net show");
    for client in clients {
        let answer = read(client);
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("lnet_configured 1"), "{answer:?}");
    }
    let grown = resident(&node).saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    node.stop();
}

#[test]
fn clients_that_say_nothing_hold_up_no_other_for_long() {
    // Each has a descriptor here.
    raise_limit();
    let node = alone();
    let to = address(&node);
    let begun = Instant::now();
    let silent: Vec<_> = (0..300).map(|_| connect(to)).collect();
    page(to, "");
    assert!(begun.elapsed() < Duration::from_secs(12), "{:?}", begun.elapsed());
    node.good("ping 0@lo");
    drop(silent);
    node.stop();
}

/// The queries of all panels of a dashboard.
fn queries(dashboard: &Json) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

/// Two nodes with traffic, a route and failures have samples of each metric that there is.
#[test]
fn all_metrics_are_documented_and_those_of_the_dashboard_are_told() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["xdp", "tcp"], "--metrics 127.0.0.1:0");
    let gateway = format!("{}@tcp", two.netns.b().interfaces()[1].ipv4);
    for rail in ["xdp", "tcp"] {
        let number = usize::from(rail == "tcp");
        two.a.good(&format!("ping {}@{rail}", two.netns.b().interfaces()[number].ipv4));
    }
    two.a.good(&format!("route add --net tcp7 --gateway {gateway}"));
    two.b.good("load start target");
    two.a.good(&format!("load start initiator --to {gateway} --messages 50"));
    two.a.good("load wait 1");
    let to = address(&two.a);
    let [first, second] = enter(two.netns.a(), || {
        let first = page(to, "");
        std::thread::sleep(Duration::from_millis(250));
        [first, page(to, "")]
    });
    check_by_promtool(&second);
    let scrape = Scrape::parse(second.lines().map(|line| Ok(line.to_owned()))).unwrap();
    let nid = format!("{}@tcp", two.netns.a().interfaces()[1].ipv4);
    let own = [("nid", nid.as_str())];
    assert!(number(&scrape, "lnet_put_ack_seconds", &own) >= 1.0, "{second}");
    assert!(number(&scrape, "lnet_get_rtt_seconds", &own) >= 1.0, "{second}");
    assert_eq!(number(&scrape, "lnet_ni_up", &own), 1.0);
    let peer = [("nid", gateway.as_str())];
    assert_eq!(number(&scrape, "lnet_peer_health", &peer), 1000.0);
    assert_eq!(number(&scrape, "lnet_peers", &[]), number(&scrape, "lnet_peers_shown", &[]));
    let route = [("net", "tcp7"), ("gateway", gateway.as_str())];
    assert!(number(&scrape, "lnet_route_up", &route) <= 1.0);

    // No name has two sets of labels, and none comes and goes.
    for name in names(&second) {
        let keys = scrape.samples.iter().filter(|sample| sample.metric == name);
        let keys: BTreeSet<Vec<&String>> = keys
            .map(|sample| {
                let mut keys: Vec<_> = sample.labels.keys().collect();
                keys.sort();
                keys
            })
            .collect();
        assert!(keys.len() <= 1, "{name}: {keys:?}");
    }
    let told = names(&second);
    assert_eq!(names(&first), told);
    let documented = include_str!("../../../docs/metrics.md");
    let tables = documented.lines().filter(|line| line.starts_with("| `"));
    let documented: BTreeSet<_> = tables.flat_map(|line| named(line.split('|').nth(1).unwrap())).collect();
    assert_eq!(told, documented, "docs/metrics.md has the names of all metrics, and no others");

    let dashboard = include_str!("../../../lnetd/grafana/lnet.json");
    let queries = queries(&serde_json::from_str(dashboard).unwrap());
    assert!(queries.len() >= 12, "{queries:?}");
    for query in queries {
        let used = named(&query);
        let is_told = |name: &String| {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part));
            told.contains(name) || family.is_some_and(|family| told.contains(family))
        };
        assert!(!used.is_empty() && used.iter().all(is_told), "{query}");
    }
}

/// The parser of `lustrefs-exporter` takes what `lnetctl` prints, and finds the numbers of the page.
#[test]
fn the_exporter_of_lustre_reads_what_lnetctl_shows() {
    use lustre_collector::lnet_exports::{Global, LNetStatsStatistics, Net, Peer};
    use lustre_collector::{LNetStats, Record, parse_lnetctl_output, parse_lnetctl_stats};
    use std::collections::HashMap;

    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["xdp", "tcp"], "");
    for (rail, net) in ["xdp", "tcp"].iter().enumerate() {
        two.a.good(&format!("ping {}@{net}", two.netns.b().interfaces()[rail].ipv4));
    }
    let (nets, peers) = (two.a.good("net show -v 4"), two.a.good("peer show -v 4"));
    let records = parse_lnetctl_output(nets.as_bytes()).unwrap();
    // Three of each NI.
    assert_eq!(records.len(), 9, "{records:?}");
    let sent = records.iter().filter_map(|record| match record {
        Record::LNetStat(LNetStats::SendCount(stat)) => Some((stat.nid.as_str(), stat.value)),
        _ => None,
    });
    let nid = format!("{}@tcp", two.netns.a().interfaces()[1].ipv4);
    assert!(sent.into_iter().any(|(of, count)| of == nid && count >= 1), "{nets}");
    let statistics = two.a.good("stats show");
    assert_eq!(parse_lnetctl_stats(statistics.as_bytes()).unwrap().len(), 3, "{statistics}");
    // The types of its whole document, to which `lnetctl export` belongs.
    let one: HashMap<String, Vec<Net>> = serde_yaml::from_str(&nets).unwrap();
    assert_eq!(one["net"].len(), 3);
    let one: HashMap<String, Vec<Peer>> = serde_yaml::from_str(&peers).unwrap();
    assert_eq!(one["peer"].len(), 2, "the node itself is not told: {peers}");
    let _: HashMap<String, LNetStatsStatistics> = serde_yaml::from_str(&statistics).unwrap();
    let _: HashMap<String, Global> = serde_yaml::from_str(&two.a.good("global show")).unwrap();
}
