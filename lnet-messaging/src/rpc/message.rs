//! Calls and replies (RFC 5531, 9), without the arguments and results of procedures.
//!
//! The crate `onc-rpc` writes them. What others send is read here, since that crate reads neither fragments
//! nor credentials of more than 200 bytes, and gives no number to answer what it refuses. Of credentials and
//! verifiers the length alone matters.

use onc_rpc::auth::AuthFlavor;
use onc_rpc::{AcceptedReply, AcceptedStatus, AuthError, CallBody, MessageType, RejectedReply, ReplyBody};

use super::xdr::{Decoder, Garbage, put_word};

/// The program, in the range for users.
pub(super) const PROGRAM: u32 = 0x2c4e_4554;
/// Its version, the only one.
pub(super) const VERSION: u32 = 1;
/// Version of the protocol of calls and replies.
const RPC_VERSION: u32 = 2;
/// Most bytes of credentials, and of a verifier.
const AUTH_BYTES_MAX: usize = 400;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const ACCEPTED: u32 = 0;
const DENIED: u32 = 1;
const RPC_MISMATCH: u32 = 0;
const AUTH_ERROR: u32 = 1;

/// Neither credentials nor a verifier.
const NONE: AuthFlavor<&[u8]> = AuthFlavor::AuthNone(None);
/// No bytes: others append what follows.
const NOTHING: &[u8] = &[];

/// The procedures of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Procedure {
    /// Nothing: shows that the server lives.
    Null = 0,
    /// A message.
    Message = 1,
    /// A part of a passive buffer is read.
    Get = 2,
    /// A part of a passive buffer is written.
    Put = 3,
}

/// A fault of a call, as its reply says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// Another version of the protocol of calls.
    RpcMismatch,
    /// Credentials that are too long.
    Credentials,
    /// A verifier that is.
    Verifier,
    ProgramUnavailable,
    ProgramMismatch,
    ProcedureUnavailable,
    GarbageArguments,
    System,
}

impl From<Garbage> for Fault {
    fn from(_: Garbage) -> Self {
        Self::GarbageArguments
    }
}

fn put(to: &mut Vec<u8>, xid: u32, message: &MessageType<&[u8], &[u8]>) {
    put_word(to, xid);
    message.serialise_into(to).expect("memory takes whatever is written to it");
}

/// The begin of a call: its arguments follow.
pub(super) fn put_call(to: &mut Vec<u8>, xid: u32, procedure: Procedure) {
    let call = CallBody::new(PROGRAM, VERSION, procedure as u32, NONE, NONE, NOTHING);
    put(to, xid, &MessageType::Call(call));
}

/// A call, or what is wrong with it: with its number, to be answered, in either case.
///
/// # Errors
/// No call, which has no answer.
#[allow(clippy::type_complexity, reason = "a name for it would say less than its parts")]
pub(super) fn call(record: &[u8]) -> Result<(u32, Result<(Procedure, &[u8]), Fault>), Garbage> {
    let mut decoder = Decoder::new(record);
    let xid = decoder.word()?;
    if decoder.word()? != CALL {
        return Err(Garbage);
    }
    if decoder.word()? != RPC_VERSION {
        return Ok((xid, Err(Fault::RpcMismatch)));
    }
    let [program, version, procedure] = [decoder.word()?, decoder.word()?, decoder.word()?];
    for fault in [Fault::Credentials, Fault::Verifier] {
        decoder.word()?;
        if decoder.opaque(AUTH_BYTES_MAX).is_err() {
            return Ok((xid, Err(fault)));
        }
    }
    let procedure = match (program, version, procedure) {
        (PROGRAM, VERSION, 0) => Procedure::Null,
        (PROGRAM, VERSION, 1) => Procedure::Message,
        (PROGRAM, VERSION, 2) => Procedure::Get,
        (PROGRAM, VERSION, 3) => Procedure::Put,
        (PROGRAM, VERSION, _) => return Ok((xid, Err(Fault::ProcedureUnavailable))),
        (PROGRAM, _, _) => return Ok((xid, Err(Fault::ProgramMismatch))),
        _ => return Ok((xid, Err(Fault::ProgramUnavailable))),
    };
    Ok((xid, Ok((procedure, decoder.rest()))))
}

/// A reply without results, or its begin: the results follow.
pub(super) fn put_reply(to: &mut Vec<u8>, xid: u32, outcome: Result<(), Fault>) {
    let accepted = |status| ReplyBody::Accepted(AcceptedReply::new(NONE, status));
    let denied = ReplyBody::Denied;
    let reply = match outcome {
        Ok(()) => accepted(AcceptedStatus::Success(NOTHING)),
        Err(Fault::ProgramUnavailable) => accepted(AcceptedStatus::ProgramUnavailable),
        Err(Fault::ProgramMismatch) => {
            accepted(AcceptedStatus::ProgramMismatch { low: VERSION, high: VERSION })
        }
        Err(Fault::ProcedureUnavailable) => accepted(AcceptedStatus::ProcedureUnavailable),
        Err(Fault::GarbageArguments) => accepted(AcceptedStatus::GarbageArgs),
        Err(Fault::System) => accepted(AcceptedStatus::SystemError),
        Err(Fault::RpcMismatch) => {
            denied(RejectedReply::RpcVersionMismatch { low: RPC_VERSION, high: RPC_VERSION })
        }
        Err(Fault::Credentials) => denied(RejectedReply::AuthError(AuthError::BadCredentials)),
        Err(Fault::Verifier) => denied(RejectedReply::AuthError(AuthError::BadVerifier)),
    };
    put(to, xid, &MessageType::Reply(reply));
}

/// Why a reply has no results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoResults {
    /// The record is no reply to the call, after which the connection is of no use.
    Unrelated,
    /// The server speaks another version of the protocol of calls, or has no such program, version or
    /// procedure.
    Unsupported,
    /// The server refuses the credentials.
    Denied,
    /// The server could not read the arguments.
    Unreadable,
    /// The server failed.
    Failed,
    /// The reply says what none says.
    Unknown,
}

/// The results in a reply to the call of this number.
///
/// # Errors
/// Why there are none.
pub(super) fn results(record: &[u8], xid: u32) -> Result<&[u8], NoResults> {
    let mut decoder = Decoder::new(record);
    let mut word = || decoder.word().map_err(|_| NoResults::Unrelated);
    if (word()?, word()?) != (xid, REPLY) {
        return Err(NoResults::Unrelated);
    }
    match word()? {
        ACCEPTED => {}
        DENIED => {
            return Err(match word()? {
                RPC_MISMATCH => NoResults::Unsupported,
                AUTH_ERROR => NoResults::Denied,
                _ => NoResults::Unknown,
            });
        }
        _ => return Err(NoResults::Unknown),
    }
    word()?;
    decoder.opaque(AUTH_BYTES_MAX).map_err(|_| NoResults::Unknown)?;
    match decoder.word().map_err(|_| NoResults::Unknown)? {
        0 => Ok(decoder.rest()),
        1..=3 => Err(NoResults::Unsupported),
        4 => Err(NoResults::Unreadable),
        5 => Err(NoResults::Failed),
        _ => Err(NoResults::Unknown),
    }
}
