//! XDR (RFC 4506), as far as the program needs it: integers, and opaque bytes of variable length.
//!
//! Invariants: what is decoded is borrowed from the bytes that came, so that a length that lies allocates
//! nothing.

/// The bytes are not what was expected: too few, too many, or a length beyond its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Garbage;

/// Bytes of a unit.
const UNIT_BYTES: usize = 4;

fn padding_bytes(length: usize) -> usize {
    length.next_multiple_of(UNIT_BYTES) - length
}

pub(super) fn put_word(to: &mut Vec<u8>, word: u32) {
    to.extend_from_slice(&word.to_be_bytes());
}

pub(super) fn put_hyper(to: &mut Vec<u8>, hyper: u64) {
    to.extend_from_slice(&hyper.to_be_bytes());
}

/// Opaque bytes, given in pieces of `length` bytes together.
pub(super) fn put_opaque<'a>(to: &mut Vec<u8>, length: usize, pieces: impl Iterator<Item = &'a [u8]>) {
    to.reserve(2 * UNIT_BYTES + length);
    // Whatever has bytes here has been bounded by a limit of the transport.
    put_word(to, length as u32);
    let begin = to.len();
    pieces.for_each(|piece| to.extend_from_slice(piece));
    debug_assert_eq!(to.len() - begin, length, "pieces of another length than was said");
    to.resize(to.len() + padding_bytes(length), 0);
}

/// The bytes that are left to decode.
pub(super) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Garbage> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Garbage)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn word(&mut self) -> Result<u32, Garbage> {
        let bytes = self.take(UNIT_BYTES)?;
        Ok(u32::from_be_bytes(bytes.try_into().map_err(|_| Garbage)?))
    }

    pub(super) fn hyper(&mut self) -> Result<u64, Garbage> {
        Ok(u64::from(self.word()?) << 32 | u64::from(self.word()?))
    }

    /// # Errors
    /// A truth value is 0 or 1.
    pub(super) fn truth(&mut self) -> Result<bool, Garbage> {
        match self.word()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    /// Opaque bytes, `most` at most. Their padding may have any value.
    pub(super) fn opaque(&mut self, most: usize) -> Result<&'a [u8], Garbage> {
        let length = self.word()? as usize;
        if length > most {
            return Err(Garbage);
        }
        let bytes = self.take(length)?;
        self.take(padding_bytes(length))?;
        Ok(bytes)
    }

    /// The bytes that are left, undecoded.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// # Errors
    /// Bytes are left.
    pub(super) fn end(self) -> Result<(), Garbage> {
        if self.0.is_empty() { Ok(()) } else { Err(Garbage) }
    }
}
