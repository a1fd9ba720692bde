//! What the server and the client have in common.
#![allow(dead_code, reason = "each of them uses a part of it")]

pub(crate) mod protocol;
pub(crate) mod transports;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use lnet_messaging::transport::Transport;
use lnet_messaging::{Domain, Event, Events, TmEvent, TmState, TransferMachine};

/// A transfer machine at an address, started, and its events from then on.
pub(crate) fn start(
    transport: &Arc<dyn Transport>,
    address: &str,
) -> Result<(Domain, TransferMachine, Events), Box<dyn Error>> {
    let domain = Domain::new(transport)?;
    let (handler, mut events) = Events::channel();
    let tm = TransferMachine::new(&domain, handler)?;
    tm.start(address)?;
    match events.next_blocking() {
        Some(Event::Tm(TmEvent::StateChange { state: TmState::Started, .. })) => Ok((domain, tm, events)),
        event => Err(format!("{address} does not start: {event:?}").into()),
    }
}

/// What a program ends with. An error is for people to read.
pub(crate) fn conclude(program: &str, result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}
