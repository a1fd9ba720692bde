//! The readers of the rpc transport: records, and the calls and replies in them.
//!
//! They are those of `lnet-messaging`, compiled once more, so that the fuzzer builds nothing else of it.

#[path = "../../../lnet-messaging/src/rpc/message.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "a module of another crate")]
mod message;
#[path = "../../../lnet-messaging/src/rpc/record.rs"]
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
mod record;
#[path = "../../../lnet-messaging/src/rpc/xdr.rs"]
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
mod xdr;

use std::io::ErrorKind;

use message::{Fault, NoResults};
use xdr::{Decoder, Garbage, put_hyper, put_opaque, put_word};

/// Most bytes of a record of `rpc_record`.
const RECORD_BYTES_MAX: usize = 1024;

/// Bytes of a stream: records come of them as their marks say, until one is wrong or the bytes end.
pub fn rpc_record(input: &[u8]) {
    let mut left = input;
    loop {
        let before = left;
        let read = record::assemble(RECORD_BYTES_MAX, |bytes| {
            let (taken, rest) = left.split_at_checked(bytes.len()).ok_or(ErrorKind::UnexpectedEof)?;
            bytes.copy_from_slice(taken);
            left = rest;
            Ok(())
        });
        assert_eq!(read.as_ref().ok(), by_marks(before).as_ref());
        match read {
            Ok(record) => {
                assert!(record.len() <= RECORD_BYTES_MAX);
                let built = record::build(|to| to.extend_from_slice(&record));
                assert_eq!(by_marks(&built), Some(record));
            }
            Err(error) => {
                return assert!([ErrorKind::UnexpectedEof, ErrorKind::InvalidData].contains(&error.kind()));
            }
        }
    }
}

/// The record that a stream begins with, as the marks of its fragments have it.
fn by_marks(mut stream: &[u8]) -> Option<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let (mark, rest) = stream.split_first_chunk()?;
        let mark = u32::from_be_bytes(*mark);
        let (fragment, rest) = rest.split_at_checked((mark & !record::LAST) as usize)?;
        record.extend_from_slice(fragment);
        if record.len() > RECORD_BYTES_MAX {
            return None;
        }
        if mark & record::LAST != 0 {
            return Some(record);
        }
        stream = rest;
    }
}

/// A record: as a call, as a reply to the call of its number, and as values of XDR.
pub fn rpc_message(input: &[u8]) {
    if let Ok((xid, call)) = message::call(input) {
        assert_eq!(input.first_chunk(), Some(&xid.to_be_bytes()));
        let mut reply = Vec::new();
        match call {
            Ok((procedure, arguments)) => {
                assert!(input.ends_with(arguments));
                let mut again = Vec::new();
                message::put_call(&mut again, xid, procedure);
                again.extend_from_slice(arguments);
                assert_eq!(message::call(&again), Ok((xid, Ok((procedure, arguments)))));
                message::put_reply(&mut reply, xid, Ok(()));
                reply.extend_from_slice(arguments);
                assert_eq!(message::results(&reply, xid), Ok(arguments));
            }
            Err(fault) => {
                message::put_reply(&mut reply, xid, Err(fault));
                assert_eq!(message::results(&reply, xid), Err(told(fault)));
            }
        }
        assert_eq!(message::results(&reply, !xid), Err(NoResults::Unrelated));
    }
    if let Some((xid, _)) = input.split_first_chunk() {
        let results = message::results(input, u32::from_be_bytes(*xid));
        assert!(results.is_err() || message::call(input).is_err(), "a call that is a reply");
        assert!(results.is_ok_and(|results| input.ends_with(results)) || results.is_err());
    }
    values(input);
}

/// The refusal by which a caller learns of a fault.
fn told(fault: Fault) -> NoResults {
    match fault {
        Fault::RpcMismatch
        | Fault::ProgramUnavailable
        | Fault::ProgramMismatch
        | Fault::ProcedureUnavailable => NoResults::Unsupported,
        Fault::Credentials | Fault::Verifier => NoResults::Denied,
        Fault::GarbageArguments => NoResults::Unreadable,
        Fault::System => NoResults::Failed,
    }
}

/// Values of XDR, of the kinds that the first four bytes say: what is read is what can be written.
fn values(input: &[u8]) {
    let Some((kinds, bytes)) = input.split_first_chunk::<4>() else { return };
    let mut decoder = Decoder::new(bytes);
    let mut written = Vec::new();
    for kind in kinds {
        let read = match kind % 4 {
            0 => decoder.word().map(|word| put_word(&mut written, word)),
            1 => decoder.hyper().map(|hyper| put_hyper(&mut written, hyper)),
            2 => decoder.truth().map(|truth| put_word(&mut written, truth.into())),
            _ => {
                let most = usize::from(*kind);
                decoder.opaque(most).map(|opaque| {
                    assert!(opaque.len() <= most);
                    put_opaque(&mut written, opaque.len(), opaque.chunks(7));
                })
            }
        };
        if read == Err(Garbage) {
            return;
        }
    }
    let rest = decoder.rest();
    assert_eq!(written.len() + rest.len(), bytes.len());
    let mut again = Decoder::new(&written);
    for kind in kinds {
        let read = match kind % 4 {
            0 => again.word().is_ok(),
            1 => again.hyper().is_ok(),
            2 => again.truth().is_ok(),
            _ => again.opaque(usize::from(*kind)).is_ok(),
        };
        assert!(read, "what was written");
    }
    assert_eq!(again.end(), Ok(()));
}
