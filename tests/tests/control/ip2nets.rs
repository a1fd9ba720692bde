//! Nets that are chosen by the addresses of the host, by rules of the command line, documents and start-up
//! strings: tests 150 to 162, 199, 208 and 255 of the catalogue; and start-ups that wait and that are read
//! again.

use std::path::PathBuf;

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, ip, require_privilege, wait_until};
use rustix::process::Signal;

use crate::run::{Daemon, Directory, PATIENCE, until_shown};

/// Two rails with an IPv6 address beside the IPv4 address of each, and the ends of the near node.
struct Host {
    netns: Netns,
    names: [String; 2],
    ipv4: [String; 2],
}

const IPV6: [&str; 2] = ["2001:db8:77::b", "2001:db8:78::c"];

impl Host {
    fn new() -> Option<Self> {
        if !require_privilege("daemons over veth", &NETNS_NODES) {
            return None;
        }
        let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
        let [first, second] = [0, 1].map(|rail| netns.a().interfaces()[rail].clone());
        let names = [first.name, second.name];
        for (name, address) in names.iter().zip(IPV6) {
            ip(netns.a(), &format!("addr add {address}/64 dev {name} nodad"));
        }
        Some(Self { names, ipv4: [first.ipv4.to_string(), second.ipv4.to_string()], netns })
    }

    fn daemon(&self, options: &str) -> Daemon {
        Daemon::start(Directory::new(), Some(self.netns.a()), options)
    }

    /// The backup of a node that some command or document has made.
    fn backup(&self, made: impl FnOnce(&Daemon)) -> String {
        let node = self.daemon("--configure --mode socket");
        made(&node);
        let backup = node.good("export --backup");
        node.stop();
        backup
    }
}

/// All but the last part of an address.
fn prefix(address: &str) -> &str {
    address.rsplit_once('.').unwrap().0
}

/// The NIDs that a node shows, but for `lo`.
fn nids(node: &Daemon) -> Vec<String> {
    let shown = node.good("net show");
    let nids = shown.lines().filter_map(|line| line.trim().strip_prefix("-     nid: "));
    nids.filter(|nid| *nid != "0@lo").map(str::to_owned).collect()
}

/// Tests 150, 152 to 154 and 156 to 161: whatever way it is said, the NI is that of `net add`.
#[test]
fn an_address_says_what_an_interface_says() {
    let Some(host) = Host::new() else { return };
    let ([name, _], [address, _]) = (&host.names, &host.ipv4);
    let expected = host.backup(|node| drop(node.good(&format!("net add --net tcp --if {name}"))));
    let last: u32 = address.rsplit_once('.').unwrap().1.parse().unwrap();
    let octets: Vec<_> = address.split('.').collect();
    let ranges = [
        (150, address.clone()),
        (152, format!("{}.*", prefix(address))),
        (152, format!("{}.{}.{}.*", octets[0], octets[1], octets[2])),
        (153, format!("{}.[{last}-{}]", prefix(address), last + 3)),
        (154, format!("{}.[{last}-{}/2]", prefix(address), last + 3)),
        (156, format!("{}.[{},{last},{}]", prefix(address), last + 1, last + 2)),
        (161, format!("{}.0/24", prefix(address))),
    ];
    for (test, range) in ranges {
        let document = format!("ip2nets:\n- net-spec: tcp\n  ip-range: {{0: \"{range}\"}}\n");
        let imported = host.backup(|node| {
            node.good_with("import", &document);
            // A document of what is so already changes nothing.
            assert_eq!(node.good_with("import --dry-run", &document), "", "test {test}: {range}");
            node.good_with("import", &document);
        });
        assert_eq!(imported, expected, "test {test}: {range}");
        let rule = format!("tcp {range}");
        let added = host.backup(|node| {
            let mut command = node.lnetctl("net add --ip2net");
            let output = command.arg(&rule).output().unwrap();
            assert!(output.status.success(), "test {test}: {rule}: {output:?}");
        });
        assert_eq!(added, expected, "test {test}: {rule}");
    }
    // Tests 158, 159 and 161: the address that fits is the NI's.
    for range in [IPV6[0].to_owned(), format!("{}/128", IPV6[0]), "2001:db8:77::/64".to_owned()] {
        let node = host.daemon("--configure --mode socket");
        node.good_with("import", &format!("ip2nets:\n- net-spec: tcp\n  ip-range: {{0: \"{range}\"}}\n"));
        assert_eq!(nids(&node), [format!("{}@tcp", IPV6[0])], "{range}");
        node.stop();
    }
}

/// Tests 151 and 160: of the items for a net the first that fits is taken, for all interfaces that it names.
#[test]
fn items_of_several_nets_make_several() {
    let Some(host) = Host::new() else { return };
    let [first, second] = &host.names;
    for ranges in [host.ipv4.clone(), IPV6.map(str::to_owned)] {
        let [one, other] = &ranges;
        let document = format!(
            "ip2nets:\n- net-spec: tcp\n  interfaces: {{0: {first}, 1: {second}}}\n  ip-range: {{0: \"{one}\", 1: \
             \"{other}\"}}\n- net-spec: tcp\n  interfaces: {{0: {second}}}\n- net-spec: xdp1\n  interfaces: {{0: \
             {second}}}\n  tunables: {{credits: 99}}\n"
        );
        let node = host.daemon("--configure --mode socket");
        node.good_with("import", &document);
        let expected = [format!("{one}@tcp"), format!("{other}@tcp"), format!("{}@xdp1", host.ipv4[1])];
        assert_eq!(nids(&node), expected, "{document}");
        assert!(node.good("net show --net xdp1 -v").contains("credits: 99"));
        node.stop();
    }
}

/// Tests 155, 157, 162 and 199, and contradictions: nothing has changed, and all names are told.
#[test]
fn rules_that_do_not_fit_are_refused() {
    let Some(host) = Host::new() else { return };
    let ([first, second], [address, other]) = (&host.names, &host.ipv4);
    let node = host.daemon("--configure --mode socket");
    let block = |item: &str| format!("ip2nets:\n- {item}\n");
    for (document, expected) in [
        (
            block("{net-spec: tcp, ip-range: {0: 10.250.*.*}}"),
            ["errno: -22", "no interface that is up has an address of 10.250.*.*"],
        ),
        (block(&format!("{{interfaces: {{0: {first}}}}}")), ["errno: -22", "without 'net-spec'"]),
        (block("{net-spec: tcp, ip-range: {0: '2001:db8:99::/64'}}"), ["errno: -22", "2001:db8:99::/64"]),
        (
            block(&format!("{{net-spec: tcp, interfaces: {{0: {second}}}, ip-range: {{0: {address}}}}}")),
            ["errno: -22", second],
        ),
    ] {
        node.bad_with("import", &document, &expected);
        assert_eq!(nids(&node), [""; 0], "{document}");
    }
    let add = |rules: &str| {
        let output = node.lnetctl("net add --ip2net").arg(rules).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let refused = |rules: &str, expected: &[&str]| {
        let (status, said) = add(rules);
        assert!(status == 234 && expected.iter().all(|part| said.contains(part)), "{rules}: {said}");
    };
    refused("tcp 10.250.*.*", &["errno: -2", "10.250.*.*"]);
    refused("tcp(eth9) *.*.*.*", &["errno: -100", "eth9"]);
    // A rule that names one interface and has the address of another: both are told.
    refused(&format!("tcp({second}) {address}"), &["errno: -22", second, address, other]);
    refused(&format!("tcp({first})"), &["errno: -22", "line 1, column 1", "a rule without addresses"]);
    refused("tcp 10.0.0.300", &["line 1, column 5", "10.0.0.300"]);
    refused("", &["errno: -22", "rules such as"]);
    assert_eq!(nids(&node), [""; 0]);
    // Every rule that fits adds its nets; options are for all of them.
    let rules = format!("tcp({first}) {address}; tcp({second}),xdp3({second}) {other}");
    let output = node.lnetctl("net add --credits 77 --ip2net").arg(&rules).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(nids(&node).len(), 3);
    assert_eq!(node.good("net show -v").matches(" credits: 77").count(), 3);
    // Test 199: what is there already is not added again.
    refused(&format!("tcp {address}"), &["errno: -17"]);
    assert_eq!(nids(&node).len(), 3);
    node.stop();
}

/// A document that a daemon starts with chooses nets too.
#[test]
fn a_start_up_document_chooses_nets() {
    let Some(host) = Host::new() else { return };
    let directory = Directory::new();
    let document = format!("ip2nets:\n- {{net-spec: tcp, ip-range: {{0: {}}}}}\n", host.ipv4[1]);
    let path = directory.file("node.yaml", &document);
    let node = Daemon::start(directory, Some(host.netns.a()), &format!("--config {}", path.display()));
    assert_eq!(nids(&node), [format!("{}@tcp", host.ipv4[1])]);
    node.stop();
}

impl Host {
    /// A daemon with these words behind its options, each as it is.
    fn with_words(&self, words: &[&str]) -> Daemon {
        let directory = Directory::new();
        let mut command = directory.command(Some(self.netns.a()), "--mode socket");
        command.args(words);
        Daemon::spawn(directory, command)
    }

    /// Has a daemon start that cannot, and returns what it says.
    fn refused(&self, words: &[&str]) -> String {
        let directory = Directory::new();
        let mut command = directory.command(Some(self.netns.a()), "--mode socket");
        let mut child = command.args(words).spawn().unwrap();
        let status = crate::run::ended(&mut child).expect("it goes on");
        assert!(!status.success(), "{words:?}");
        directory.log()
    }
}

/// Test 208: rules at the start, with one NID and two, with brackets, and with an interface that is absent.
#[test]
fn a_node_starts_with_rules() {
    let Some(host) = Host::new() else { return };
    let ([first, second], [one, other]) = (&host.names, &host.ipv4);
    let tcp = |address: &str| format!("{address}@tcp");
    for (rules, expected) in [
        (format!("tcp({first}) {one}"), vec![tcp(one)]),
        (format!("tcp({first}) {one}; tcp({second}) {other}"), vec![tcp(one), tcp(other)]),
        (format!("tcp({second}) {other};tcp({first}) {one}"), vec![tcp(other), tcp(one)]),
        (format!("tcp {}.[1-9]", prefix(one)), vec![tcp(one)]),
        // The kernel's module asks the host: any of its addresses is enough.
        (format!("tcp({second}) {one}"), vec![tcp(other)]),
    ] {
        let node = host.with_words(&["--ip2nets", &rules]);
        assert_eq!(nids(&node), expected, "{rules}");
        node.good("lnet unconfigure");
        node.good("lnet configure --all");
        assert_eq!(nids(&node), expected, "{rules}");
        node.stop();
    }
    let said = host.refused(&["--ip2nets", &format!("tcp(eth9) {one}")]);
    assert!(said.contains("--ip2nets: line 1, column 1: net tcp: no interface \"eth9\" here"), "{said}");
    let said = host.refused(&["--ip2nets", "tcp 10.250.*.*; tcp1"]);
    assert!(said.contains("--ip2nets: line 1, column 17: \"tcp1\": a rule without addresses"), "{said}");
    let said = host.refused(&["--networks", "tcp", "--ip2nets", "tcp *.*.*.*"]);
    assert!(said.contains("cannot be used with"), "{said}");
}

/// Test 255: a range of gateways makes a route each; what the kernel's module passes over is told.
#[test]
fn a_node_starts_with_routes() {
    let Some(host) = Host::new() else { return };
    let ([first, _], [one, _]) = (&host.names, &host.ipv4);
    let routes = format!(
        "tcp9 {}.[20-24]@tcp; tcp7 2 {one}@tcp; tcp8 10.0.0.1@tcp5; tcp6 3 {0}.30@tcp:2; tcp6 {0}.30@tcp",
        prefix(one)
    );
    let networks = format!("tcp({first})");
    let node = host.with_words(&["--networks", &networks, "--routes", &routes]);
    let shown = node.good("route show -v");
    assert_eq!(shown.matches("gateway: ").count(), 6, "{shown}");
    assert_eq!(shown.matches("net: tcp9").count(), 5, "{shown}");
    assert!(shown.contains("hop: 3") && shown.contains("priority: 2"), "{shown}");
    let log = node.directory.log();
    // The node forwards then, as the kernel's module does.
    until_shown(&node, "routing show", "enable: 1");
    for part in ["tcp7", "the gateway is this node", "tcp8", "no NI here is on the net of the gateway"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    node.stop();
    let huge = host.refused(&["--networks", &networks, "--routes", "tcp9 10.[0-255].[0-255].[0-255]@tcp"]);
    assert!(huge.contains("16777216 nids"), "{huge}");
}

/// Files of modprobe: the last `networks` of several is taken, and the others are told.
#[test]
fn a_node_starts_with_files_of_modprobe() {
    let Some(host) = Host::new() else { return };
    let ([first, second], [_, other]) = (&host.names, &host.ipv4);
    let directory = Directory::new();
    directory.file("a.conf", &format!("options lnet networks=\"tcp({first})\" check_routers_before_use=0\n"));
    directory.file(
        "z.conf",
        &format!("# nets\noptions lnet networks=\"tcp1({first}),\\\n  tcp2({second})\" foo=1\n"),
    );
    directory.file("other.txt", "options lnet networks=tcp7\n");
    let path = directory.0.display().to_string();
    let node = host.with_words(&["--modprobe", &path]);
    assert_eq!(nids(&node)[1], format!("{other}@tcp2"));
    let log = node.directory.log();
    for part in [
        "a.conf: line 1, column 14: networks is passed over",
        "z.conf: line 2, column 14",
        "foo is passed over",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    node.stop();
    // The command line has the last word.
    let node = host.with_words(&["--modprobe", &path, "--networks", &format!("tcp5({first})")]);
    assert_eq!(nids(&node).len(), 1);
    assert!(
        node.good("net show").contains("tcp5") && node.directory.log().contains("stands on the command line")
    );
    node.stop();
    directory.file("z.conf", &format!("options lnet ip2nets=\"tcp {other}\"\n"));
    let said = host.refused(&["--modprobe", &path]);
    assert!(
        said.contains("a.conf") && said.contains("z.conf") && said.contains("one of them is expected"),
        "{said}"
    );
    directory.file("a.conf", "options lnet \\\nnetworks=\"tcp(eth0\"\n");
    let said = host.refused(&["--modprobe", &directory.0.join("a.conf").display().to_string()]);
    assert!(said.contains("a.conf: line 2, column 14: \"(eth0\": a ( without its )"), "{said}");
}

impl Host {
    /// A daemon that waits for an interface, and its document.
    fn waiting(&self) -> (Daemon, PathBuf) {
        let directory = Directory::new();
        let path = directory.file("node.yaml", "net:\n- net type: tcp\n  interfaces: {0: late0}\n");
        let config = format!("--mode socket --config {}", path.display());
        let command = directory.command(Some(self.netns.a()), &format!("{config} --wait 60"));
        let log = std::fs::File::create(directory.0.join("log")).unwrap();
        let node = Daemon::unheard(directory, command, log.into());
        wait_until("the wait is told", PATIENCE, || {
            node.directory.log().contains("waits for what is absent")
        });
        (node, path)
    }

    /// Makes that interface.
    fn bring_late(&self) {
        ip(self.netns.a(), "link add late0 type veth peer name late1");
        ip(self.netns.a(), "link set late0 up");
        ip(self.netns.a(), "addr add 10.79.0.1/24 dev late0");
    }
}

/// A daemon that starts before its interface serves clients, says what it waits for, and goes on once that is
/// there; without end it waits for nothing.
#[test]
fn a_start_waits_for_what_is_absent() {
    let Some(host) = Host::new() else { return };
    let (node, _) = host.waiting();
    let log = node.directory.log();
    assert!(
        log.contains("node.yaml: line 3, column 19") && log.contains("late0") && !log.contains("ready"),
        "{log}"
    );
    node.bad("net show", &["errno: -100"]);
    host.bring_late();
    wait_until("the daemon is ready", PATIENCE, || node.directory.log().contains("ready"));
    assert_eq!(nids(&node), ["10.79.0.1@tcp"]);
    node.stop();
    ip(host.netns.a(), "link del late0");
    let said = host.refused(&["--config", &path_of(&said_document()), "--wait", "1"]);
    assert!(said.contains("late0") && said.contains("absent for 1s (--wait)"), "{said}");
    // Mistakes are not waited for.
    let said = host.refused(&["--networks", "tcp(", "--wait", "60"]);
    assert!(said.contains("a ( without its )"), "{said}");
}

/// A client configures a node that waits: the log says that the start-up is not carried out, and SIGHUP does
/// that.
#[test]
fn a_client_configures_a_node_that_waits() {
    let Some(host) = Host::new() else { return };
    let (node, path) = host.waiting();
    // Signals meanwhile come to one reload.
    for count in 1..=3 {
        node.signal(Signal::HUP);
        let told = || node.directory.log().matches("SIGHUP: the start-up is read").count() == count;
        wait_until("the signal is told", PATIENCE, told);
    }
    node.good("lnet configure");
    wait_until("the daemon is ready", PATIENCE, || node.directory.log().contains("ready"));
    let log = node.directory.log();
    assert!(log.contains("WARN") && log.contains("the start-up is not carried out until SIGHUP"), "{log}");
    assert_eq!(nids(&node), [""; 0]);
    wait_until("the reload is told", PATIENCE, || node.directory.log().contains("reload: refused"));
    host.bring_late();
    let document = std::fs::read_to_string(&path).unwrap();
    let told = node.reload(&path, &document, "reload: done");
    assert!(told.contains("+ net tcp") && nids(&node) == ["10.79.0.1@tcp"], "{told}");
    let log = node.directory.log();
    assert_eq!(log.matches("reload: refused").count(), 1, "{log}");
    // SIGHUP configures the node that an administrator has unconfigured.
    node.good("lnet unconfigure");
    let told = node.reload(&path, &document, "reload: done");
    assert!(told.contains("+ node") && nids(&node) == ["10.79.0.1@tcp"], "{told}");
    node.stop();
}

/// A document of an interface that is absent, in a directory of its own.
fn said_document() -> Directory {
    let directory = Directory::new();
    directory.file("node.yaml", "net:\n- net type: tcp\n  interfaces: {0: late0}\n");
    directory
}

fn path_of(directory: &Directory) -> String {
    directory.0.join("node.yaml").display().to_string()
}

/// SIGHUP carries out what has changed in a document, whole, and tells it; a broken one changes nothing.
#[test]
fn a_start_up_is_read_again() {
    let Some(host) = Host::new() else { return };
    let ([first, second], [one, _]) = (&host.names, &host.ipv4);
    let directory = Directory::new();
    let net = |name: &str, credits: u32| {
        format!(
            "- net type: tcp\n  local NI(s):\n  - interfaces: {{0: {name}}}\n    tunables: {{credits: {credits}}}\n"
        )
    };
    let route = format!("route:\n- {{net: tcp9, gateway: {}.77@tcp}}\n", prefix(one));
    let global = "global:\n  retry_count: 4\n";
    let path = directory.file("node.yaml", &format!("net:\n{}{route}{global}", net(first, 64)));
    let node =
        Daemon::start(directory, Some(host.netns.a()), &format!("--mode socket --config {}", path.display()));
    let reload = |document: &str, end: &str| node.reload(&path, document, end);
    // Clients' own changes stay.
    node.good("peer add --prim_nid 10.50.0.1@tcp");
    let unchanged = node.good("export --backup");
    let told = reload("net:\n- net tpye: tcp\n", "reload: refused");
    assert!(told.contains("node.yaml: line 2, column 3: unknown key 'net tpye'"), "{told}");
    let told = reload("net:\n- net type: [\n", "reload: refused");
    assert!(told.contains("not YAML"), "{told}");
    let told = reload(
        &format!("net:\n{}{}", net(second, 64), "- net type: tcp5\n  interfaces: {0: none0}\n"),
        "reload: refused",
    );
    assert!(told.contains("node.yaml: line 7, column 19: net: ") && told.contains("none0"), "{told}");
    assert_eq!(node.good("export --backup"), unchanged, "a refused document has changed something");
    // One NI goes and another comes, and a tunable returns to its default.
    let told = reload(&format!("net:\n{}", net(second, 32)), "reload: done");
    for line in [
        format!("- net tcp: ni {one}@tcp"),
        format!("+ net tcp: ni on {second}, credits 32"),
        "- route tcp9".to_owned(),
        "~ global retry_count: 4 -> 2".to_owned(),
    ] {
        assert!(told.contains(&line), "{line}: {told}");
    }
    assert_eq!(nids(&node), [format!("{}@tcp", host.ipv4[1])]);
    assert!(node.good("peer show").contains("10.50.0.1@tcp"));
    // Other tunables make the NI anew; nothing is done where nothing has changed.
    let told = reload(&format!("net:\n{}", net(second, 48)), "reload: done");
    assert!(told.contains("- net tcp") && told.contains("credits 48"), "{told}");
    assert!(node.good("net show -v").contains(" credits: 48"));
    let told = reload(&format!("net:\n{}", net(second, 48)), "reload: done");
    assert!(told.contains("changes=0"), "{told}");
    // A tunable that goes leaves the default; another word for the same NI changes nothing.
    let told = reload(&format!("net:\n- net type: tcp\n  interfaces: {{0: {second}}}\n"), "reload: done");
    assert!(told.contains("- net tcp") && node.good("net show -v").contains(" credits: 256"), "{told}");
    let address = &host.ipv4[1];
    let told =
        reload(&format!("ip2nets:\n- {{net-spec: tcp, ip-range: {{0: {address}}}}}\n"), "reload: done");
    assert!(told.contains("changes=0"), "{told}");
    // Comments alone: what the document has made goes.
    let told = reload("# nothing\n", "reload: done");
    assert!(told.contains("- net tcp") && nids(&node).is_empty(), "{told}");
    node.stop();
}

/// An NI that SIGHUP makes anew is the only one of its net: the routes by its gateways stay, be they of the
/// document or of clients.
#[test]
fn routes_stay_where_an_ni_is_made_anew() {
    let Some(host) = Host::new() else { return };
    let ([first, _], [one, _]) = (&host.names, &host.ipv4);
    let document = |credits: u32| {
        format!(
            "net:\n- net type: tcp\n  interfaces: {{0: {first}}}\n  tunables: {{credits: {credits}}}\nroute:\n\
             - {{net: tcp9, gateway: {}.77@tcp}}\n",
            prefix(one)
        )
    };
    let directory = Directory::new();
    let path = directory.file("node.yaml", &document(64));
    let node =
        Daemon::start(directory, Some(host.netns.a()), &format!("--mode socket --config {}", path.display()));
    node.good(&format!("route add --net tcp8 --gateway {}.78@tcp --hop 2 --priority 3", prefix(one)));
    let told = node.reload(&path, &document(48), "reload: done");
    assert!(told.contains(&format!("- net tcp: ni {one}@tcp")) && told.contains("credits 48"), "{told}");
    let shown = node.good("route show -v");
    assert!(shown.contains("net: tcp9"), "{shown}");
    assert!(
        shown.contains("net: tcp8") && shown.contains("hop: 2") && shown.contains("priority: 3"),
        "{shown}"
    );
    // The net goes for good, and its routes with it.
    let told = node.reload(&path, "# nothing\n", "reload: done");
    assert!(told.contains("- net tcp") && node.good("route show").is_empty(), "{told}");
    node.stop();
}
