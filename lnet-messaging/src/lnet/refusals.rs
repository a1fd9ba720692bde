//! The error numbers of what a node refuses.

use lnet_user::runtime::LendError;
use lnet_user::{EntryError, EqError, LnetError, MdError, SubmitError};

use super::node::status_of;
use crate::errno::{Errno, Error};

/// A node's refusal as an error of this layer.
pub(super) fn error_of(error: &LnetError) -> Error {
    Error::new(errno_of(error), error.to_string())
}

fn errno_of(error: &LnetError) -> Errno {
    match error {
        LnetError::Thread { .. } | LnetError::Watch(_) => Errno::NoMemory,
        LnetError::Lend(error) => lend_errno(error),
        LnetError::Portal(error) => entry_errno(error),
        LnetError::Request(error) => request_errno(error),
        LnetError::Queue(error) => queue_errno(error),
        LnetError::NoShard { .. } | LnetError::EachShard(_) | LnetError::NoEventQueue => Errno::Invalid,
        LnetError::Awaited => Errno::Busy,
        LnetError::NotSent { status, .. } => status_of(*status).err().unwrap_or(Errno::Io),
        LnetError::NoReply { .. } => Errno::TimedOut,
        LnetError::LongReply { .. } => Errno::MessageSize,
        LnetError::Refused(_) => Errno::Invalid,
        _ => Errno::Io,
    }
}

fn lend_errno(error: &LendError) -> Errno {
    match error {
        LendError::Entry(error) => entry_errno(error),
        LendError::Md(error) => match error {
            MdError::EventSlots { .. } | MdError::Full => Errno::NoMemory,
            MdError::EntryInUse(_) => Errno::Busy,
            MdError::UnknownEntry(_) | MdError::UnknownEventQueue(_) => Errno::NotFound,
            MdError::TooLong { .. } => Errno::TooBig,
            _ => Errno::Invalid,
        },
        _ => Errno::Invalid,
    }
}

fn entry_errno(error: &EntryError) -> Errno {
    match error {
        EntryError::Kind { .. } | EntryError::Position { .. } => Errno::NotPermitted,
        EntryError::Frozen { .. } => Errno::Busy,
        EntryError::Gone(_) => Errno::NotFound,
        EntryError::Full => Errno::NoMemory,
        _ => Errno::Invalid,
    }
}

fn queue_errno(error: &EqError) -> Errno {
    match error {
        EqError::Unknown => Errno::NotFound,
        EqError::Busy { .. } => Errno::Busy,
        _ => Errno::NoMemory,
    }
}

fn request_errno(error: &SubmitError) -> Errno {
    match error {
        SubmitError::UnknownMd(_) | SubmitError::MdExhausted(_) | SubmitError::MdAttached(_) => {
            Errno::NotFound
        }
        SubmitError::EventQueueFull(_) | SubmitError::RequestsFull | SubmitError::PeersFull => {
            Errno::NoMemory
        }
        SubmitError::MdLent(_) => Errno::Busy,
        SubmitError::PeerFailed(_) => Errno::Io,
        SubmitError::OnlyPuts(_) => Errno::NotPermitted,
        _ => Errno::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use lnet_user::runtime::Fate;

    use super::*;

    #[test]
    fn refusals_have_the_number_of_their_reason() {
        let portal = 34;
        let slots = EqError::Slots { wanted: 2, free: 1 };
        let cases: [(LnetError, Errno); 13] = [
            (LendError::from(EntryError::Full).into(), Errno::NoMemory),
            (LendError::from(EntryError::Frozen { portal }).into(), Errno::Busy),
            (LendError::from(EntryError::Kind { portal }).into(), Errno::NotPermitted),
            (LendError::from(EntryError::Portal(99)).into(), Errno::Invalid),
            (LendError::from(MdError::Full).into(), Errno::NoMemory),
            (LendError::from(MdError::EventSlots { wanted: 2, free: 1 }).into(), Errno::NoMemory),
            (LendError::from(MdError::TooLong { length_bytes: 1 << 21 }).into(), Errno::TooBig),
            (LendError::ShortBuffer { buffer_bytes: 1, length_bytes: 2 }.into(), Errno::Invalid),
            (slots.into(), Errno::NoMemory),
            (EqError::Full.into(), Errno::NoMemory),
            (SubmitError::RequestsFull.into(), Errno::NoMemory),
            (Fate::default().why().into(), Errno::Io),
            (LnetError::NoEventQueue, Errno::Invalid),
        ];
        for (error, errno) in cases {
            assert_eq!(error_of(&error).errno(), errno, "{error}");
        }
    }
}
