//! The cases of two routers of ours between a kernel node and one of ours: one of the two goes and comes
//! back.

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::{Host, within};
use super::lab::Lab;
use super::matrix::LIVES;
use super::routing::{CHECKING, GATEWAYS, RECONNECT, ROUTER, WAIT, end, route};
use super::selftest::{HASTY, PATIENT, READ, WRITE, judge, script};

const KERNEL: &str = "10.77.0.11@tcp1";
const FAR: &str = "10.78.0.60@tcp2";
/// NIDs of the second router.
const SECOND: [&str; 2] = ["10.77.0.51@tcp1", "10.78.0.51@tcp2"];

/// Our daemons.
struct Ours {
    routers: [Rc<Host>; 2],
    far: Rc<Host>,
}

/// A console of LNet selftest.
#[derive(Clone, Copy, Debug)]
enum Console {
    Kernel,
    Ours,
}

impl Console {
    const BOTH: [Self; 2] = [Self::Kernel, Self::Ours];
}

impl Ours {
    /// Starts all, and has both ends reach each other.
    fn start(lab: &mut Lab, patience: Duration) -> Result<Self> {
        route(lab, 1, 0, &[GATEWAYS[0], SECOND[0]], patience)?;
        let second = lab.join("lnet-second", ["10.77.0.51", "10.78.0.51"])?;
        let far = lab.join("lnet-far", ["10.77.0.60", "10.78.0.60"])?;
        let ours = Self { routers: [lab.host(), second], far };
        ours.routers.iter().try_for_each(|router| start(router))?;
        let options = [&["--shards", "2", "--selftest"], &CHECKING[..]].concat();
        ours.far.start_as(&options, false, &end(&[GATEWAYS[1], SECOND[1]]))?;
        within(RECONNECT, || {
            ours.routes_are(lab, 0, "up")?;
            ours.routes_are(lab, 1, "up")
        })?;
        within(RECONNECT, || lab.on(1, &format!("lnetctl ping {FAR}")))?;
        within(WAIT, || ours.far.tool(&["ping", "--timeout", "10", KERNEL]))?;
        Ok(ours)
    }

    /// Fails unless the routes by a router are in this state at both ends.
    fn routes_are(&self, lab: &Lab, router: usize, state: &str) -> Result<()> {
        let [near, far] = if router == 0 { GATEWAYS } else { SECOND };
        let by_kernel = lab.on(1, &format!("lnetctl route show --net tcp2 --gateway {near} -v"))?;
        let by_ours = self.far.tool(&["route", "show", "--net", "tcp1", "--gateway", far, "-v"])?;
        for shown in [by_kernel, by_ours] {
            ensure!(shown.contains(&format!("state: {state}")), "{state} expected: {shown}");
        }
        Ok(())
    }

    /// Says something to a console of selftest; `LST` is its program.
    fn say(&self, lab: &Lab, console: Console, words: &str) -> Result<String> {
        match console {
            Console::Kernel => lab.on(1, &words.replace("LST ", "lst ")),
            Console::Ours => lab.shell(&words.replace("LST ", &format!("{} ", self.far.console()))),
        }
    }

    /// Bulk data without an error, which these routers carry.
    fn carried(&self, lab: &Lab, console: Console, test: &str, routers: &[usize]) -> Result<()> {
        let before = self.counted("route_count")?;
        judge(&self.say(lab, console, &script("LST", KERNEL, FAR, test, ""))?)?;
        let now = self.counted("route_count")?;
        for &router in routers {
            ensure!(now[router] > before[router], "router {router} has carried none of it");
        }
        Ok(())
    }

    /// A number of both routers' `stats show`; 0 of one that does not run.
    fn counted(&self, key: &str) -> Result<[u64; 2]> {
        let [first, second] = &self.routers;
        Ok([first.counted(key).unwrap_or(0), second.counted(key)?])
    }

    /// Waits until load goes by both routers.
    fn is_under_way(&self) -> Result<()> {
        let before = self.counted("route_count")?;
        within(WAIT, || {
            let now = self.counted("route_count")?;
            ensure!(
                now.iter().zip(before).all(|(now, before)| *now > before + 100),
                "{now:?} after {before:?}"
            );
            Ok(())
        })
    }
}

fn start(router: &Host) -> Result<()> {
    router.start_as(&[&["--shards", "2"], &CHECKING[..]].concat(), false, ROUTER)
}

/// A router is killed under load, and comes back.
pub(super) fn killed(lab: &mut Lab) -> Result<String> {
    let ours = Ours::start(lab, HASTY)?;
    for life in 0..LIVES {
        let turn = usize::try_from(life % 2)?;
        let (console, test) = (Console::BOTH[turn], [WRITE, READ][turn]);
        let lived = || {
            ours.say(lab, console, &script("LST", KERNEL, FAR, test, "exit 0;"))?;
            ours.is_under_way()?;
            ours.routers[0].kill()?;
            within(WAIT, || ours.routes_are(lab, 0, "down")).context("the router is dead")?;
            // Requests that the dead router had expire, and end their unit of the test.
            ours.say(lab, console, "export LST_SESSION=1; LST stop b >&2 && LST end_session >&2")?;
            ours.carried(lab, console, test, &[1]).context("by the other router")?;
            start(&ours.routers[0])?;
            within(RECONNECT, || ours.routes_are(lab, 0, "up")).context("the router is back")?;
            ours.carried(lab, console, test, &[0, 1]).context("by both routers")
        };
        lived().with_context(|| format!("life {life}, {console:?}, {test}"))?;
    }
    Ok("bulk data without an error by the other one, then by both, each time".to_owned())
}

/// Routing goes off and on at one router under load: nothing is lost.
pub(super) fn off_and_on(lab: &mut Lab) -> Result<String> {
    let ours = Ours::start(lab, PATIENT)?;
    for (console, test) in [(Console::Kernel, WRITE), (Console::Ours, READ)] {
        let turned = || {
            ours.say(lab, console, &script("LST", KERNEL, FAR, test, "exit 0;"))?;
            for _ in 0..2 {
                ours.is_under_way()?;
                ours.routers[0].tool(&["set", "routing", "0"])?;
                within(WAIT, || ours.routers[0].routing_is("0"))?;
                within(WAIT, || ours.routes_are(lab, 0, "down"))?;
                ours.routers[0].tool(&["set", "routing", "1"])?;
                within(WAIT, || ours.routers[0].routing_is("1"))?;
                within(RECONNECT, || ours.routes_are(lab, 0, "up"))?;
            }
            ours.is_under_way()?;
            let rest = "export LST_SESSION=1; LST stat --delay 2 --count 1 c && LST show_error c s 2>&1 && \
                        LST stop b >&2 && LST end_session >&2";
            judge(&ours.say(lab, console, rest)?)
        };
        turned().with_context(|| format!("{test}, {console:?}"))?;
    }
    let dropped = ours.counted("drop_count")?;
    ensure!(dropped == [0, 0], "{dropped:?} messages were dropped");
    let forwarded = ours.counted("route_count")?;
    Ok(format!("four times; no error, and none of {} messages dropped", forwarded[0] + forwarded[1]))
}
