//! What the tests of several crates share: whether they may run, waiting, and a look at documents.

use std::panic::Location;
use std::thread;
use std::time::{Duration, Instant};

use crate::privilege::{self, Capability, UNPRIVILEGED};

/// Whether a test that needs `capabilities` is to run: `false` where the user asked to leave such tests
/// out ([`UNPRIVILEGED`]), in which case the test returns at once.
///
/// ```no_run
/// use xtask::privilege::NETNS_NODES;
/// use xtask::testing::require_privilege;
///
/// if !require_privilege("nodes over veth", &NETNS_NODES) {
///     return;
/// }
/// ```
///
/// # Panics
/// When this process lacks one of `capabilities` and the user did not ask to leave the test out: a test that
/// cannot run is no test that passed. The message names `what` and the missing capabilities.
#[must_use]
pub fn require_privilege(what: &str, capabilities: &[Capability]) -> bool {
    if privilege::left_out() {
        eprintln!("left out, as {UNPRIVILEGED}=1 asks: {what}");
        return false;
    }
    if let Err(error) = privilege::require(what, capabilities) {
        panic!("{error} (or leave such tests out with {UNPRIVILEGED}=1)");
    }
    true
}

/// Waits until `condition` holds, looking again every millisecond.
///
/// # Panics
/// The condition does not hold within `timeout`; at the caller's line.
#[track_caller]
pub fn wait_until(description: &str, timeout: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < timeout,
            "waited {timeout:?} in vain until {description} (at {})",
            Location::caller()
        );
        thread::sleep(Duration::from_millis(1));
    }
}

/// The paths of the keys of a document, in order, with the values that stand beside them. It knows the
/// layouts of LNet's tools, and no more of YAML.
#[must_use]
pub fn paths(document: &str) -> Vec<(String, String)> {
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut paths = Vec::new();
    for line in document.lines() {
        let content = line.trim_start_matches([' ', '-']);
        let column = line.len() - content.len();
        let Some((key, value)) = content.split_once(':') else { continue };
        above.retain(|(above, _)| *above < column);
        above.push((column, key.to_owned()));
        let path: Vec<_> = above.iter().map(|(_, key)| key.as_str()).collect();
        paths.push((path.join("/"), value.trim().to_owned()));
    }
    paths
}

/// Keys that our side prints, and LNet's own tool does not; `docs/control.md` tells of them.
const OURS_ALONE: [&str; 18] = [
    "shared NIDs",
    "accept port",
    "Preferred source NIDs",
    "numa distance",
    "fsm state",
    "idle queues",
    "frames by queue",
    "max_intf",
    "pushes_taken",
    "pushes_pinged",
    "pushes_contradicted",
    "pushes_proven",
    "pushes_refused",
    "answers_refused",
    "discoveries_evicted",
    "credits_passed_on",
    "cuts",
    "cuts_slow",
];

/// Whether LNet's own tool prints no such key, or nothing on such a path.
#[must_use]
pub fn is_ours_alone(path: &str) -> bool {
    path.split('/').any(|key| OURS_ALONE.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn what_lies_below_a_key_of_ours_is_ours() {
        assert!(is_ours_alone("fsm state") && is_ours_alone("net/local NI(s)/frames by queue/0"));
        assert!(!is_ours_alone("net/local NI(s)/interfaces/0"));
    }

    #[test]
    fn wait_until_returns_when_the_condition_holds_and_panics_when_it_never_does() {
        let mut looks = 0;
        wait_until("the third look", Duration::from_secs(5), || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
        let panic = catch_unwind(|| wait_until("never", Duration::from_millis(3), || false)).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("3ms") && message.contains("never"), "{message}");
    }
}
