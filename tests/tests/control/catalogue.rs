//! Tests of the catalogue of LNet's own suite (`sanity-lnet`) that a node has to pass, by their numbers:
//! scripts in `catalogue/`. Those of other files name their numbers as well.
//!
//! | line | what |
//! |---|---|
//! | `# NUMBERS WHAT` | begins a case, on a node that is configured anew |
//! | `* WORD ...` | has what follows be done for each word, as `{*}`, each on a node that is configured anew |
//! | `+ WORDS`, `- WORDS` | `lnetctl` with these words succeeds, fails |
//! | `@ WORDS` | that of the other node succeeds |
//! | `< DOCUMENT`, `> DOCUMENT`, `! DOCUMENT` | is imported, is imported with `--del`, is refused |
//! | `~ DOCUMENT` | is carried out (`import --exec`) |
//! | `? WORDS => LINE xCOUNT` | `lnetctl` prints, sooner or later, so many of these lines; a line that ends with a colon stands for all that begin with it |
//! | `=` | a backup, imported into a node that is configured anew, makes the same node |
//! | `$ WORDS` | `ip` in the namespace of the node succeeds |

use std::time::Instant;

use lnet_tests::netns::{NETNS_NODES, Netns, Wiring, ip, require_privilege};

use crate::run::{Daemon, Directory, PATIENCE};

/// The node that a script is about, and what it may name.
struct Stage<'a> {
    node: &'a Daemon,
    other: Option<&'a Daemon>,
    netns: Option<&'a Netns>,
    names: Vec<(&'static str, String)>,
}

impl Stage<'_> {
    fn play(&self, script: &str) {
        for case in script.split("\n# ").skip(1) {
            let (title, lines) = case.split_once('\n').unwrap_or((case, ""));
            let (each, lines) = match lines.strip_prefix("* ").and_then(|rest| rest.split_once('\n')) {
                Some((words, lines)) => (words.split_whitespace().collect(), lines),
                None => (vec![""], lines),
            };
            println!("{title}");
            for word in each {
                self.begin_anew();
                let lines = lines.lines().filter(|line| !line.is_empty());
                lines.for_each(|line| self.take(title, &self.meaning(&line.replace("{*}", word))));
            }
        }
    }

    fn begin_anew(&self) {
        self.node.good("lnet unconfigure");
        self.node.good("lnet configure");
    }

    fn meaning(&self, line: &str) -> String {
        self.names.iter().fold(line.to_owned(), |line, (name, value)| line.replace(name, value))
    }

    /// Does what a line says.
    fn take(&self, title: &str, line: &str) {
        let (kind, words) = line.split_at(1);
        let words = words.trim();
        let is_done = |node: &Daemon, words: &str, stdin: &str, expected: bool| {
            let ran = node.run_with(words, stdin);
            assert_eq!(ran.status == 0, expected, "test {title}: {line}: {ran:?}\n{}", node.directory.log());
        };
        match kind {
            "+" => is_done(self.node, words, "", true),
            "-" => is_done(self.node, words, "", false),
            "@" => is_done(self.other.unwrap(), words, "", true),
            "<" => is_done(self.node, "import", words, true),
            ">" => is_done(self.node, "import --del", words, true),
            "!" => is_done(self.node, "import", words, false),
            "~" => is_done(self.node, "import --exec", words, true),
            "$" => _ = ip(self.netns.unwrap().a(), words),
            "=" => {
                let backup = self.node.good("export --backup");
                self.begin_anew();
                is_done(self.node, "import", &backup, true);
                assert_eq!(self.node.good("export --backup"), backup, "test {title}");
            }
            "?" => self.look(title, words),
            _ => panic!("test {title}: {line}"),
        }
    }

    /// Waits until a command prints so many of some lines.
    fn look(&self, title: &str, words: &str) {
        let (command, expected) = words.split_once(" => ").unwrap();
        let (expected, count) = expected.rsplit_once(" x").unwrap();
        let count: usize = count.parse().unwrap();
        let is_it = |line: &str| {
            let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
            if expected.ends_with(':') { line.starts_with(expected) } else { line == expected }
        };
        let begun = Instant::now();
        loop {
            let ran = self.node.run(command);
            let found = ran.stdout.lines().filter(|line| is_it(line)).count();
            if ran.status == 0 && found == count {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "test {title}: {words}: {found}: {ran:?}");
            std::thread::sleep(PATIENCE / 200);
        }
    }
}

#[test]
fn documents_peers_and_policies() {
    // A router stops as soon as the gateways of others have been checked.
    let node =
        Daemon::alone_with("--configure --param alive_router_check_interval=1 --param router_ping_timeout=3");
    let stage = Stage { node: &node, other: None, netns: None, names: Vec::new() };
    stage.play(include_str!("catalogue/alone.txt"));
    node.stop();
}

#[test]
fn nets_routes_and_pings() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let netns = Netns::new(Wiring { rails: 2, ..Wiring::default() });
    let start = |namespace| Daemon::start(Directory::new(), Some(namespace), "--shards 2 --configure");
    let (node, other) = (start(netns.a()), start(netns.b()));
    for (interface, net) in netns.b().interfaces().iter().zip(["tcp", "tcp1"]) {
        other.good(&format!("net add --net {net} --if {}", interface.name));
    }
    let mut names = Vec::new();
    for (rail, [name, own, far]) in
        [["{if0}", "{ip0}", "{far0}"], ["{if1}", "{ip1}", "{far1}"]].iter().enumerate()
    {
        let [near, peer] = [netns.a(), netns.b()].map(|side| side.interfaces()[rail].clone());
        names.extend([(*name, near.name), (*own, near.ipv4.to_string()), (*far, peer.ipv4.to_string())]);
    }
    let stage = Stage { node: &node, other: Some(&other), netns: Some(&netns), names };
    stage.play(include_str!("catalogue/netns.txt"));
    node.stop();
    other.stop();
}
