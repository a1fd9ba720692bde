//! Record marking (RFC 5531, 11): messages on a stream, as fragments behind a word that has their length.
//!
//! Invariants: a record that is being received takes as much memory as bytes of it have come, and no more
//! than its bound; neither a record nor a reply takes longer than its deadline, however slowly the other end
//! reads or writes.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The fragment is the last one of its record.
pub(super) const LAST: u32 = 1 << 31;
/// Bytes of the word before a fragment.
pub(super) const MARK_BYTES: usize = 4;
/// Fragments of a record, empty ones included.
const FRAGMENTS_MAX: usize = 1 << 12;
/// Bytes by which a record grows.
const STEP_BYTES: usize = 1 << 16;

/// How long the socket may still wait.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Tells a timeout of a socket, of which Linux says `EAGAIN`.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

fn read_exact(stream: &mut TcpStream, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(timed_out(error)),
        }
    }
    Ok(())
}

/// A whole record of `most` bytes at most, without its marks.
///
/// # Errors
/// `InvalidData` for one that is longer or has too many fragments, `TimedOut` behind the deadline, and what
/// the socket says.
pub(super) fn read(stream: &mut TcpStream, most: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    assemble(most, |bytes| read_exact(stream, bytes, deadline))
}

/// A whole record of `most` bytes at most, of what `fill` brings, piece by piece.
///
/// # Errors
/// `InvalidData` for one that is longer or has too many fragments, and those of `fill`.
pub(super) fn assemble(
    most: usize,
    mut fill: impl FnMut(&mut [u8]) -> io::Result<()>,
) -> io::Result<Vec<u8>> {
    let mut record = Vec::new();
    for _ in 0..FRAGMENTS_MAX {
        let mut mark = [0; MARK_BYTES];
        fill(&mut mark)?;
        let mark = u32::from_be_bytes(mark);
        let mut length = (mark & !LAST) as usize;
        if length > most - record.len() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        while length > 0 {
            let step = length.min(STEP_BYTES);
            let begin = record.len();
            record.resize(begin + step, 0);
            fill(&mut record[begin..])?;
            length -= step;
        }
        if mark & LAST != 0 {
            return Ok(record);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Waits until a record begins, for as long as that takes.
///
/// # Errors
/// `UnexpectedEof` where the other end has closed, and what the socket says.
pub(super) fn wait(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(None)?;
    match stream.peek(&mut [0])? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// Why a record was not written.
pub(super) struct NotWritten {
    pub(super) error: io::Error,
    /// Whether a part of it was.
    pub(super) has_begun: bool,
}

/// Writes a record whose mark stands before it already.
pub(super) fn write(stream: &mut TcpStream, record: &[u8], deadline: Instant) -> Result<(), NotWritten> {
    let mut written = 0;
    while written < record.len() {
        let wrote = left(deadline).and_then(|left| {
            stream.set_write_timeout(Some(left))?;
            stream.write(&record[written..])
        });
        match wrote {
            Ok(count) if count > 0 => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) => {
                return Err(NotWritten { error: io::ErrorKind::WriteZero.into(), has_begun: written > 0 });
            }
            Err(error) => return Err(NotWritten { error: timed_out(error), has_begun: written > 0 }),
        }
    }
    Ok(())
}

/// A record that is being put together: `fill` appends what stands behind the mark.
pub(super) fn build(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut record = vec![0; MARK_BYTES];
    fill(&mut record);
    // Limits of the transport keep it far below the mark's own bound.
    let mark = (record.len() - MARK_BYTES) as u32 | LAST;
    record[..MARK_BYTES].copy_from_slice(&mark.to_be_bytes());
    record
}
