//! What is done with the two nodes, one `lnetctl` after the other.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtask::netns::Pair;

use super::nodes::{Role, Session};
use super::progress::Progress;
use super::report::{self, End, Frames, Initiator, Target};
use super::{Setup, document, namespace};

/// How long a daemon may take until it answers, and a command that changes something: XDP programs are loaded,
/// memory is registered.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long each ping may take, in seconds.
const PING_TIMEOUT_S: u32 = 10;
/// How often a daemon that starts is asked whether it is there.
const READY_INTERVAL: Duration = Duration::from_millis(20);
/// How often, and how many times, the frames are counted until none is under way.
const QUIET_INTERVAL: Duration = Duration::from_millis(100);
const QUIET_LOOKS: u32 = 50;
/// The file of the load's scheme.
const SCHEME: &str = "scheme.json";

/// Starts both daemons, configures them, lets them ping each other and one load the other; what both ends say.
pub(super) fn measure(setup: &Setup, pair: &Pair, session: &mut Session) -> Result<(Initiator, Target)> {
    let mut script = Script { setup, session };
    for role in Role::ALL {
        let log = setup.directory.join(format!("{}.log", role.letter()));
        script.session.start(role, setup.daemon(role, pair), &log)?;
    }
    for role in Role::ALL {
        script.await_ready(role)?;
        let file = format!("{}.yaml", role.letter());
        write(setup, &file, &document::node(namespace(role, pair), setup.options))?;
        script.tell(role, &format!("import {file}"))?;
    }
    script.ping(Role::Initiator, &document::nids(&pair.b))?;
    script.ping(Role::Target, &document::nids(&pair.a))?;
    let (initiator, target) = script.load(&document::nids(&pair.b))?;
    let [of_initiator, of_target] = script.quiet_frames()?;
    Ok((End { load: initiator, frames: of_initiator }, End { load: target, frames: of_target }))
}

fn write(setup: &Setup, name: &str, text: &str) -> Result<()> {
    let path = setup.directory.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

struct Script<'a, 'b, 'c> {
    setup: &'a Setup<'a>,
    session: &'b mut Session<'c>,
}

impl Script<'_, '_, '_> {
    /// Runs `lnetctl` on a node; what it says.
    fn tell(&mut self, role: Role, words: &str) -> Result<String> {
        let command = self.setup.lnetctl(role, words);
        self.session.call(command, Instant::now() + PATIENCE, |_| ()).with_context(|| format!("the {role}"))
    }

    /// Waits until a daemon answers.
    fn await_ready(&mut self, role: Role) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let socket = self.setup.directory.join(self.setup.socket(role));
        loop {
            // Nobody can be asked before there is a socket.
            if socket.exists() {
                match self.tell(role, "global show") {
                    Err(error) if error.root_cause().is::<super::Interrupted>() => return Err(error),
                    Err(error) if Instant::now() > deadline => return Err(error),
                    Err(_) => {}
                    Ok(_) => return Ok(()),
                }
            }
            ensure!(Instant::now() < deadline, "the {role} has no socket after {} s", PATIENCE.as_secs());
            self.session.pause(READY_INTERVAL)?;
        }
    }

    /// Pings all NIDs of the other node from every net.
    fn ping(&mut self, role: Role, nids: &[String]) -> Result<()> {
        for nid in nids {
            let said = self.tell(role, &format!("ping --timeout {PING_TIMEOUT_S} {nid}"))?;
            ensure!(said.contains("primary nid"), "the {role} pings {nid} and hears no NID:\n{said}");
        }
        Ok(())
    }

    /// The load, from its beginning to its end.
    fn load(&mut self, to: &[String]) -> Result<(report::InitiatorLoad, report::TargetLoad)> {
        let options = self.setup.options;
        let mut scheme = format!("--seed {}", options.seed);
        if let Some(text) = document::scheme(options) {
            write(self.setup, SCHEME, &text)?;
            scheme += &format!(" --scheme {SCHEME}");
        }
        let target = self.begin(Role::Target, &format!("target {scheme}"))?;
        let plan = format!("initiator {scheme} --to {} --messages {}", to.join(","), options.count);
        let initiator = self.begin(Role::Initiator, &plan)?;

        let mut progress = Progress::new(options.count);
        let wait = self.setup.lnetctl(Role::Initiator, &format!("load wait {initiator} --json --progress"));
        let deadline = Instant::now() + options.timeout();
        self.session.call(wait, deadline, |line| progress.take(line)).context("the initiator")?;
        drop(progress);

        let sent = self.tell(Role::Initiator, &format!("load stop {initiator} --json"))?;
        let seen = self.tell(Role::Target, &format!("load stop {target} --json"))?;
        Ok((report::load(&sent)?, report::load(&seen)?))
    }

    /// Begins a load; its number.
    fn begin(&mut self, role: Role, words: &str) -> Result<u32> {
        let said = self.tell(role, &format!("load start {words}"))?;
        said.trim().parse().with_context(|| format!("the {role}: no number of a load: {said:?}"))
    }

    /// Where the frames of both nodes went, once none is under way: late acknowledgements, greetings.
    fn quiet_frames(&mut self) -> Result<[Frames; 2]> {
        let mut looks = 0;
        loop {
            let initiator = report::frames(&self.tell(Role::Initiator, "frames show --json")?)?;
            let target = report::frames(&self.tell(Role::Target, "frames show --json")?)?;
            looks += 1;
            // What never gets quiet is for the judge.
            if (initiator.is_quiet() && target.is_quiet()) || looks == QUIET_LOOKS {
                return Ok([initiator, target]);
            }
            self.session.pause(QUIET_INTERVAL)?;
        }
    }
}
