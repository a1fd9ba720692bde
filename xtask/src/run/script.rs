//! What is done with the two nodes, one `lnetctl` after the other.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtask::netns::Pair;

use super::nodes::{Role, Said, Session};
use super::progress::Progress;
use super::{Report, Setup, document, namespace};

/// How long a daemon may take until it answers, and a command that changes something: XDP programs are
/// loaded, memory is registered.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long each ping may take, in seconds.
const PING_TIMEOUT_S: u32 = 10;
/// How often a daemon that starts is asked whether it is there.
const READY_INTERVAL: Duration = Duration::from_millis(20);
/// Messages that are sent one after the other, to see how long each takes by itself.
const ALONE_COUNT: u64 = 2000;
/// The least share of an end's messages and frames that each of its shards must have taken, in percent.
const SHARE_MIN_PERCENT: u32 = 10;
/// Frames of a million that may be sent again where none is lost on purpose: a receiver that is not scheduled
/// for long may have too few buffers in its rings.
const RESENT_MAX_PER_MILLION: u32 = 5_000;
/// Frames of a million that may be sent once more: a target that is not scheduled for long runs out of slots
/// for events, and defers messages of which frames are under way.
const ANEW_MAX_PER_MILLION: u32 = 30_000;
/// The files of the load's scheme and of the initiator's result.
const SCHEME: &str = "scheme.json";
const SENT: &str = "sent.json";

/// Starts both daemons, configures them, lets them ping each other and one load the other: with one message
/// in flight, then with many. What `lnetctl` says of that goes to the report.
pub(super) fn measure(setup: &Setup, pair: &Pair, session: &mut Session, report: &mut Report) -> Result<()> {
    let options = setup.options;
    let mut script = Script { setup, session, report };
    for role in Role::ALL {
        let log = setup.directory.join(format!("{}.log", role.letter()));
        script.session.start(role, setup.daemon(role, pair), &log)?;
    }
    for role in Role::ALL {
        script.await_ready(role)?;
        let file = format!("{}.yaml", role.letter());
        write(setup, &file, &document::node(namespace(role, pair), options))?;
        script.tell(role, &format!("import {file}"))?;
    }
    let [ours, theirs] = [&pair.a, &pair.b].map(document::nids);
    script.ping(Role::Initiator, &theirs)?;
    script.ping(Role::Target, &ours)?;
    script.report.title(&format!(
        "{} -> {}: {} messages, mtu {}",
        ours.join(","),
        theirs.join(","),
        options.count,
        options.mtu
    ))?;
    script.load(&theirs, options.count.min(ALONE_COUNT), true)?;
    script.load(&theirs, options.count, false)?;
    for role in Role::ALL {
        let loss = options.loss_per_million();
        let mut words = format!("frames check --share-min {SHARE_MIN_PERCENT} --loss-per-million {loss}");
        if loss == 0 {
            words += &format!(
                " --resent-per-million {RESENT_MAX_PER_MILLION} --anew-per-million {ANEW_MAX_PER_MILLION}"
            );
        }
        script.judge(role, &format!("frames of the {role}"), &words)?;
    }
    Ok(())
}

fn write(setup: &Setup, name: &str, text: &str) -> Result<()> {
    let path = setup.directory.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

struct Script<'a, 'b, 'c> {
    setup: &'a Setup<'a>,
    session: &'b mut Session<'c>,
    report: &'b mut Report,
}

impl Script<'_, '_, '_> {
    /// Runs `lnetctl` on a node, which must do all that it is asked; what it says.
    fn tell(&mut self, role: Role, words: &str) -> Result<String> {
        self.call(role, words)?.done().with_context(|| format!("the {role}"))
    }

    fn call(&mut self, role: Role, words: &str) -> Result<Said> {
        let command = self.setup.lnetctl(role, words);
        self.session
            .call(command, Instant::now() + PATIENCE, |_| false)
            .with_context(|| format!("the {role}"))
    }

    /// Runs a command that shows and judges what was measured.
    fn judge(&mut self, role: Role, name: &str, words: &str) -> Result<()> {
        let said = self.call(role, &(words.to_owned() + self.json()))?;
        self.report.take(name, &said)
    }

    fn json(&self) -> &'static str {
        if self.setup.options.json { " --json" } else { "" }
    }

    /// Waits until a daemon answers.
    fn await_ready(&mut self, role: Role) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let socket = self.setup.directory.join(self.setup.socket(role));
        loop {
            // No request is possible before there is a socket.
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

    /// A load, from its beginning to its end: of one message after the other, or as it comes.
    fn load(&mut self, to: &[String], count: u64, is_alone: bool) -> Result<()> {
        let options = self.setup.options;
        let mut scheme = format!("--seed {}", options.seed);
        if let Some(text) = document::scheme(options) {
            write(self.setup, SCHEME, &text)?;
            scheme += &format!(" --scheme {SCHEME}");
        }
        let target = self.begin(Role::Target, &format!("target {scheme}"))?;
        let mut plan = format!("initiator {scheme} --to {} --messages {count}", to.join(","));
        let mut wait = "--progress".to_owned() + self.json();
        let mut name = "initiator";
        if is_alone {
            plan += " --window 1";
            name = "one message in flight";
        } else {
            wait += &format!(" --share-min {SHARE_MIN_PERCENT}");
        }
        let initiator = self.begin(Role::Initiator, &plan)?;

        let mut progress = Progress::new(count);
        let mut wait = self.setup.lnetctl(Role::Initiator, &format!("load wait {initiator} {wait}"));
        if let Some(path) = options.plot.as_ref().filter(|_| !is_alone) {
            wait.arg("--plot").arg(std::path::absolute(path)?);
        }
        let deadline = Instant::now() + options.timeout();
        let said = self.session.call(wait, deadline, |line| progress.take(line)).context("the initiator")?;
        drop(progress);
        self.report.take(name, &said)?;

        // What it found wrong has been said.
        let sent = self.call(Role::Initiator, &format!("load stop {initiator} --json"))?;
        write(self.setup, SENT, &sent.text)?;
        let mut stop = format!("load stop {target} --sent {SENT}");
        let mut name = "target, one message in flight";
        if !is_alone {
            stop += &format!(" --share-min {SHARE_MIN_PERCENT}");
            name = "target";
        }
        self.judge(Role::Target, name, &stop)
    }

    /// Begins a load; its number.
    fn begin(&mut self, role: Role, words: &str) -> Result<u32> {
        let said = self.tell(role, &format!("load start {words}"))?;
        said.trim().parse().with_context(|| format!("the {role}: no number of a load: {said:?}"))
    }
}
