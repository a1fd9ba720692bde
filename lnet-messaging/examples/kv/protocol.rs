//! What requests and replies say. Numbers are little-endian.

use lnet_messaging::BulkDescriptor;

/// Longest request or reply.
pub(crate) const MESSAGE_BYTES: u64 = 1024;
/// Longest key.
const KEY_BYTES_MAX: usize = 255;

/// A request: the client has queued a passive buffer, and the descriptor tells the server where that is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// The reply has the same one.
    pub(crate) number: u64,
    pub(crate) action: Action,
    pub(crate) key: String,
    /// Bytes of the value, or room for it.
    pub(crate) length_bytes: u64,
    pub(crate) descriptor: BulkDescriptor,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// The server reads the value from the passive buffer.
    Put = 1,
    /// The server writes the value to the passive buffer.
    Get = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reply {
    pub(crate) number: u64,
    pub(crate) outcome: Outcome,
    /// Bytes of the value.
    pub(crate) length_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done = 0,
    /// There is no such value.
    Absent = 1,
    /// There is no room for the value, here or there.
    NoRoom = 2,
    /// The bulk operation failed.
    Failed = 3,
}

/// Takes a number from the front of bytes.
fn take(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

impl Request {
    /// `None` for a key that is too long.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let length = u8::try_from(self.key.len()).ok()?;
        let numbers = [self.number, self.length_bytes].map(u64::to_le_bytes).concat();
        let rest = [&[self.action as u8, length], self.key.as_bytes(), self.descriptor.as_bytes()].concat();
        Some([numbers, rest].concat())
    }

    /// `None` for what is no request.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let (number, length_bytes) = (take(&mut bytes)?, take(&mut bytes)?);
        let ([action, length], rest) = bytes.split_first_chunk()?;
        let action = match action {
            1 => Action::Put,
            2 => Action::Get,
            _ => return None,
        };
        let (key, descriptor) = rest.split_at_checked(usize::from(*length).min(KEY_BYTES_MAX))?;
        let key = String::from_utf8(key.to_vec()).ok()?;
        Some(Self { number, action, key, length_bytes, descriptor: BulkDescriptor::from_bytes(descriptor) })
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [self.number, self.outcome as u64, self.length_bytes].map(u64::to_le_bytes).concat()
    }

    /// `None` for what is no reply.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let (number, outcome) = (take(&mut bytes)?, take(&mut bytes)?);
        let outcome = match outcome {
            0 => Outcome::Done,
            1 => Outcome::Absent,
            2 => Outcome::NoRoom,
            3 => Outcome::Failed,
            _ => return None,
        };
        Some(Self { number, outcome, length_bytes: take(&mut bytes)? })
    }
}
