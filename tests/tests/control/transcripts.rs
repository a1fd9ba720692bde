//! What `lst` of a kernel node printed, command for command, beside what ours prints in the same state.
//!
//! The transcripts are `lst_*.txt` of the captures: a command behind `$`, what it printed, lines of stderr
//! behind `!`, and its status behind `=>`. Compared are stdout and the status.

use std::path::Path;
use std::process::{Command, Output};

use lnet_tests::netns::{NETNS_NODES, require_privilege};
use rustix::process::Signal;

use crate::run::{Daemon, Two, program};

/// Names the session of the other transcripts.
const KEY: &str = "export LST_SESSION=4712; ";

/// A command of a transcript, and what came of it.
struct Step {
    words: String,
    printed: String,
    status: i32,
}

fn transcript(name: &str) -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/captures").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let mut steps = Vec::new();
    let (mut words, mut printed) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            (words, printed) = (command.to_owned(), String::new());
        } else if let Some(status) = line.strip_prefix("=> ") {
            let status = status.parse().unwrap();
            let (words, printed) = (std::mem::take(&mut words), std::mem::take(&mut printed));
            steps.push(Step { words, printed, status });
        } else if !line.starts_with("! ") && !line.starts_with('#') {
            printed += line;
            printed.push('\n');
        }
    }
    assert!(steps.len() > 10, "{name}");
    steps
}

/// Commands that do something else here, and why.
fn differs(step: &Step) -> bool {
    let words = step.words.as_str();
    // The reference has another session end, or takes any key.
    ["LST_SESSION=4713; lst end_session", "LST_SESSION=4713; lst new_session other", "LST_SESSION=0", "LST_SESSION=letters"]
        .iter()
        .any(|part| words.contains(part))
        // The kernel's `lst` refuses these, and does not find its nodes.
        || ["lst ping --session", "lst ping servers", "lst ping --timeout 5 --session", "check=none", "c=none"]
            .iter()
            .any(|part| words.contains(part))
        || (words.ends_with("lst ping") && step.status != 0)
        // The kernel's looks up groups alone.
        || ((words.contains("lst stat") || words.contains("show_error")) && words.contains("10.77"))
        // The kernel's lists nodes of any state, and both of these together are none.
        || words.contains("list_group --busy") || words.contains("list_group --down")
        || words.contains("list_group --unknown") || words.contains("list_group --active --down")
        || words.contains("list_group -u") || words.contains("query -a -e")
        // The kernel's loses nodes that are busy.
        || words == "lst ping --group both" || words == "lst add_test --from both --to both ping"
        // The kernel's takes one state, and fails where there is no group.
        || words.contains("--clean active,down") || (words == "lst list_group" && step.status != 0)
        // The kernel's takes a group of no node for one that was made, where ours refuses the NID.
        || words.contains("fd77::12@tcp")
        // The kernel's says nothing where there is no session.
        || (words.starts_with("export") && words.contains("list_group servers"))
        // Its test fails, but one of its groups is at the batch from then on.
        || (words.contains("list_batch") && step.printed.contains("server\t1\t0\t0\t0\t1") && step.printed.contains("client\t0"))
        // The kernel's lists no nodes of a batch that has none.
        || (words.contains("list_batch --") && words.ends_with(" batch") && step.printed.is_empty())
        // The kernel's had errors of requests then.
        || (words.contains("show_error") && step.printed.contains("Total 1 error"))
        || words == "sleep 3" || words.contains('|')
}

/// Text without what is another on each node: NIDs, stamps, rates; names that the reference prints as
/// `(null)`, lines of nodes that it does not have, and how long a batch takes to stop.
fn plain(text: &str, two: &Two, words: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let [near, far] = two.nids(0).map(|nid| nid.replace("@xdp", "@tcp"));
    let names: Vec<&str> = words.split_whitespace().collect();
    for line in text.lines() {
        if line.starts_with("\tLNET_PID_ANY") || line.ends_with("batch in stopping") {
            continue;
        }
        let mut line = line.replace(&near, "10.77.0.11@tcp").replace(&far, "10.77.0.12@tcp");
        for node in
            ["12345-10.77.0.11@tcp", "12345-10.77.0.12@tcp", "12345-10.77.0.44@tcp", "0-200@<0:19722>"]
        {
            line = line.replace(node, "NODE");
        }
        if names.contains(&"list_group") && names.len() > 2 {
            for name in &names[2..] {
                line = line.replace(&format!("[ {name} ]"), "[ (null) ]");
                if let Some(head) = line.strip_suffix(&format!("\t{name}")).map(str::to_owned) {
                    line = format!("{head}\t(null)");
                }
            }
        }
        if let Some((name, rest)) = line.split_once(" ID: ") {
            let (_stamp, rest) = rest.split_once('@').unwrap();
            line = format!("{name} ID: STAMP@{rest}");
        }
        if let Some(at) = line.find("root@") {
            let end = line[at..].find(' ').map_or(line.len(), |end| at + end);
            line.replace_range(at..end, "root@HOST");
        }
        for name in ["Avg: ", "Min: ", "Max: "] {
            if let Some(at) = line.find(name).map(|at| at + name.len()).filter(|_| line.starts_with('[')) {
                // A number of eight columns.
                assert!(line[at..at + 8].trim_end().parse::<f64>().is_ok(), "{line:?}");
                line.replace_range(at..at + 8, "NUMBER  ");
            }
        }
        // The reference tells of a group twice: by its name, without nodes, and by none, with them.
        if line == "No nodes found [ (null) ]" && lines.last().is_some_and(|last| last.starts_with("Group ["))
        {
            lines.pop();
            continue;
        }
        lines.push(line);
    }
    lines.join("\n")
}

/// Runs a command of a transcript with our console: its status, what it printed, and what it complained of.
fn run(daemon: &Daemon, two: &Two, words: &str) -> (i32, String, String) {
    let mut command = Command::new(program("lst"));
    command.arg("--socket").arg(daemon.socket()).env_remove("LST_SESSION");
    let mut words = words;
    if let Some(rest) = words.strip_prefix("export LST_SESSION=") {
        let (key, rest) = rest.split_once("; ").unwrap();
        command.env("LST_SESSION", key);
        words = rest;
    }
    if let Some(rest) = words.strip_prefix("LST_FEATURES=") {
        let (features, rest) = rest.split_once(' ').unwrap();
        command.env("LST_FEATURES", features);
        words = rest;
    }
    let [near, far] = two.nids(0).map(|nid| nid.replace("@xdp", ""));
    let (subnet, _) = near.rsplit_once('.').unwrap();
    let last = |nid: &str| nid.rsplit_once('.').unwrap().1.to_owned();
    let words = words
        .replace("10.77.0.[11-12]", &format!("{subnet}.[{},{}]", last(&near), last(&far)))
        .replace("10.77.0.11", &near)
        .replace("10.77.0.12", &far)
        .replace("10.77.0.44", &format!("{subnet}.44"));
    let words = words.strip_prefix("lst ").unwrap();
    let Output { status, stdout, stderr } = command.args(words.split_whitespace()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let spoken = text(stdout)
        .replace(&format!("{subnet}.44"), "10.77.0.44")
        .replace(&format!("{subnet}.[{},{}]", last(&near), last(&far)), "10.77.0.[11-12]")
        .replace(&format!("{far} are"), "10.77.0.12 are");
    (status.code().unwrap_or(-1), spoken, text(stderr))
}

/// Commands that tell in which state nodes are: of one that has died, the reference still says active where
/// ours says down, and prints a number for the error.
fn tells_of_states(words: &str) -> bool {
    ["lst ping", "lst list_group", "lst list_batch", "query --all", "query -e -a"]
        .iter()
        .any(|part| words.contains(part))
}

/// Plays a transcript; `begin` is done before, and the second node is killed after the command `last`, if
/// that is given.
fn check(name: &str, begin: impl Fn(&Two), last: Option<&str>) {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let two = Two::on(&["tcp"], "--selftest");
    begin(&two);
    let mut wrong = Vec::new();
    let (mut compared, mut is_killed) = (0, false);
    for step in transcript(name) {
        let differs = differs(&step);
        if differs && !step.words.contains("lst list") && !step.words.contains("end_session") {
            continue;
        }
        // The transcript of sessions names keys itself.
        let key = if name == "lst_sessions.txt" { "" } else { KEY };
        let (status, printed, said) = run(&two.a, &two, &format!("{key}{}", step.words));
        if last == Some(step.words.as_str()) {
            two.b.signal(Signal::KILL);
            is_killed = true;
        }
        if differs {
            continue;
        }
        compared += 1;
        // How commands are used is told elsewhere, in other words.
        let expected = if step.printed.starts_with("Usage:") { "" } else { &step.printed };
        let (expected, printed) = (plain(expected, &two, &step.words), plain(&printed, &two, &step.words));
        let is_printed = expected == printed || is_killed && tells_of_states(&step.words);
        // The status of `stat` is that of its last group there.
        let is_ended =
            status == step.status || is_killed && step.words.starts_with("lst stat") && status == 254;
        if !is_printed || !is_ended {
            wrong.push(format!(
                "{}\nexpected ({}):\n{expected}\nprinted ({status}):\n{printed}\n{said}",
                step.words, step.status
            ));
        }
    }
    assert!(compared > 10 && is_killed == last.is_some(), "{compared} commands");
    assert!(wrong.is_empty(), "{} of {compared} commands differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn lst_prints_of_sessions_what_the_reference_printed() {
    check("lst_sessions.txt", |_| {}, None);
}

#[test]
fn lst_prints_of_groups_what_the_reference_printed() {
    check("lst_groups.txt", |_| {}, None);
}

#[test]
fn lst_prints_of_batches_and_rates_what_the_reference_printed() {
    check("lst_batches.txt", |_| {}, None);
}

#[test]
fn lst_has_the_short_options_of_the_reference() {
    check("lst_options.txt", |_| {}, None);
}

#[test]
fn lst_prints_of_nodes_in_another_session_what_the_reference_printed() {
    let begin = |two: &Two| {
        for words in ["lst new_session holder", "lst add_group me 10.77.0.12@tcp"] {
            let (status, _, said) = run(&two.b, two, &format!("{KEY}{words}"));
            assert!(status == 0, "{words}: {said}");
        }
    };
    check("lst_busy.txt", begin, None);
}

#[test]
fn lst_prints_of_a_node_that_dies_what_the_reference_printed() {
    check("lst_down.txt", |_| {}, Some("lst run b"));
}
