//! A node that lies in its pushes, and in its answers to pings, to a daemon that a healthy peer talks to
//! meanwhile: each lie is counted, moves nothing of others, and costs the healthy peer nothing.

use lnet_tests::netns::{NETNS_NODES, require_privilege, wait_until};
use lnet_wire::Nid;
use lnet_wire::ping::{self, Features, NiStatus, PingNi};
use lnet_wire::socklnd::Version;

use crate::dialler::{Dialler, Greeting, header, message, nid, put};
use crate::hostile_tcp::{Stage, stranger};
use crate::run::{Daemon, PATIENCE};

/// Match bits of pings and pushes, at portal 0.
const PUSH_BITS: u64 = 1 << 63;
/// Multi-Rail, with discovery.
const MULTI_RAIL: Features = Features(0x1E);

fn info(sequence: u32, nids: &[Nid]) -> Vec<u8> {
    let told = nids.iter().map(|nid| PingNi { nid: *nid, status: NiStatus::UP });
    let mut bytes = vec![0; ping::encoded_bytes(told.clone()).unwrap()];
    ping::write(&mut bytes, MULTI_RAIL, 12345, sequence, told).unwrap();
    bytes
}

/// What `stats show` says became of pushes: taken, answered by a ping, contradicted, refused.
fn pushes(daemon: &Daemon) -> [u64; 4] {
    let shown = daemon.good("stats show");
    ["taken", "pinged", "contradicted", "refused"].map(|what| counter(&shown, &format!("pushes_{what}")))
}

/// A counter of those that `stats show` shows.
pub(crate) fn counter(shown: &str, key: &str) -> u64 {
    let rest = shown.split_once(&format!("{key}: ")).unwrap_or_else(|| panic!("{key} is not in {shown}")).1;
    rest.lines().next().unwrap().parse().unwrap()
}

fn push(dialler: &mut Dialler, bytes: &[u8]) {
    let Greeting { source, destination, .. } = dialler.greeting;
    let header = header(source, destination, bytes.len() as u32, put(0, PUSH_BITS));
    dialler.say(&[message(Version::V3, &header), bytes.to_vec()].concat());
}

/// The NIDs of a peer, as an administrator sees them.
fn nids_of(daemon: &Daemon, nid: Nid) -> Vec<String> {
    let shown = daemon.good(&format!("peer show --nid {nid}"));
    let nids = shown.lines().filter_map(|line| line.split_once("-     nid: "));
    nids.map(|(_, nid)| nid.to_owned()).collect()
}

#[test]
fn a_node_that_lies_in_its_pushes_is_counted_and_moves_nothing_of_others() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::new("", 1);
    let [near, far, liar] = [stage.near, stage.far, stranger(0)].map(nid);
    // Each has the other's word, so that no push of theirs comes later.
    stage.two.a.good(&format!("discover {far}"));
    stage.two.b.good(&format!("discover {near}"));
    stage.beside_a_load(|stage| {
        let daemon = &stage.two.a;
        let mut dialler = Dialler::connected(stage.dial(0), Greeting::new(liar, near));
        let changed = |bytes: &[u8], at: usize, with: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[at..at + with.len()].copy_from_slice(with);
            bytes
        };
        let own = info(1, &[liar]);
        for (what, bytes, expected) in [
            ("another magic", changed(&own, 0, &[1, 2, 3, 4]), [0, 0, 0, 1]),
            ("too few bytes", own[..20].to_vec(), [0, 0, 0, 1]),
            ("no entry", changed(&own, 12, &0_u32.to_le_bytes()), [0, 0, 0, 1]),
            ("another node's NIDs alone", info(1, &[far]), [0, 0, 0, 1]),
            ("another node's NID besides", info(1, &[liar, far]), [1, 0, 1, 0]),
            ("a NID of the daemon", info(2, &[liar, near]), [1, 0, 0, 0]),
            ("one NID five times", info(3, &[liar; 5]), [1, 0, 0, 0]),
        ] {
            let before = pushes(daemon);
            push(&mut dialler, &bytes);
            let expected: Vec<_> = before.iter().zip(expected).map(|(before, more)| before + more).collect();
            wait_until(what, PATIENCE, || pushes(daemon)[..] == expected);
            assert_eq!(nids_of(daemon, far), [far.to_string()], "{what}");
        }
        // Ten thousand entries, of which few are there; and then on and on, with another primary NID each
        // time.
        let before = pushes(daemon);
        push(&mut dialler, &changed(&own, 12, &10_000_u32.to_le_bytes()));
        wait_until("ten thousand entries", PATIENCE, || {
            pushes(daemon).iter().sum::<u64>() > before.iter().sum()
        });
        for round in 0..500_u32 {
            let other: Nid = format!("10.9.{}.{}@tcp", round / 250, round % 250 + 1).parse().unwrap();
            push(&mut dialler, &info(10 + round, &[other, liar]));
        }
        dialler.ping();
        assert_eq!(nids_of(daemon, far), [far.to_string()]);
        assert!(nids_of(daemon, liar).len() <= 2, "it has as many as it has told last");
        let shown = daemon.good("peer list");
        assert!(shown.matches("nid: ").count() <= 3, "{shown}");
        daemon.good(&format!("ping {far}"));
        wait_until("the log tells of it", PATIENCE, || {
            let log = daemon.directory.log();
            log.contains("a NID is not that of the peer that tells it") && log.contains(&liar.to_string())
        });
    });
}

/// There is one place for a push on a shard: it is not that of a push that has not come.
#[test]
fn pushes_of_which_some_has_come_hold_up_no_others() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::new("", 8);
    let [near, far] = [stage.near, stage.far].map(nid);
    // Each has the other's word, so that no push of theirs comes later.
    stage.two.a.good(&format!("discover {far}"));
    stage.two.b.good(&format!("discover {near}"));
    let daemon = &stage.two.a;
    let connected =
        |number: u8| Dialler::connected(stage.dial(number), Greeting::new(nid(stranger(number)), near));
    let begin = |dialler: &mut Dialler| {
        let Greeting { source, destination, .. } = dialler.greeting;
        let bytes = info(1, &[source]);
        let (begun, rest) = bytes.split_at(20);
        let header = header(source, destination, bytes.len() as u32, put(0, PUSH_BITS));
        dialler.say(&[&message(Version::V3, &header), begun].concat());
        rest.to_vec()
    };
    let heard = || pushes(daemon).iter().sum::<u64>();
    stage.beside_a_load(|_| {
        let before = heard();
        let mut slow = connected(0);
        let rest = begin(&mut slow);
        for number in 2..8 {
            begin(&mut connected(number));
        }
        let mut other = connected(1);
        let told = info(1, &[other.greeting.source]);
        push(&mut other, &told);
        other.ping();
        wait_until("the other one's push is heard", PATIENCE, || heard() == before + 1);
        slow.say(&rest);
        slow.ping();
        wait_until("the slow one's push is heard", PATIENCE, || heard() == before + 2);
    });
}

#[test]
fn a_node_that_lies_in_its_answers_is_counted_and_moves_nothing_of_others() {
    if !require_privilege("daemons over veth", &NETNS_NODES) {
        return;
    }
    let stage = Stage::new("", 1);
    let [near, far, liar] = [stage.near, stage.far, stranger(0)].map(nid);
    let daemon = &stage.two.a;
    daemon.good(&format!("discover {far}"));
    let refused = || counter(&daemon.good("stats show"), "answers_refused");
    let mut dialler = Dialler::connected(stage.dial(0), Greeting::new(liar, near));
    let own = info(1, &[liar]);
    let other_magic = [&[1, 2, 3, 4], &own[4..]].concat();
    for (command, what, bytes, expected) in [
        ("discover", "another magic", &other_magic, 1),
        ("discover", "too few bytes", &own[..20].to_vec(), 1),
        ("discover", "another node's NIDs alone", &info(1, &[far]), 1),
        ("ping", "another magic", &other_magic, 1),
        ("ping", "the truth", &own, 0),
    ] {
        let before = refused();
        std::thread::scope(|scope| {
            let ran = scope.spawn(|| daemon.run(&format!("{command} {liar}")));
            dialler.answer(bytes);
            let ran = ran.join().unwrap();
            assert_eq!(ran.status == 0, expected == 0, "{command}, {what}: {ran:?}");
        });
        assert_eq!(refused() - before, expected, "{command}, {what}");
        assert_eq!(nids_of(daemon, far), [far.to_string()], "{what}");
    }
    assert_eq!(pushes(daemon)[3], 0, "no push was refused");
    daemon.good("stats reset");
    assert_eq!(refused(), 0);
}
