//! Numbers that no peer can guess.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

/// The kernel has no random numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the kernel gives no random numbers: {0}")]
pub struct NoRandom(pub Errno);

/// Bytes that no peer can guess.
///
/// # Errors
/// [`NoRandom`].
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(length) if length == N => Ok(bytes),
        Ok(_) => Err(NoRandom(Errno::AGAIN)),
        Err(errno) => Err(NoRandom(errno)),
    }
}

/// A number that no peer can guess: the cookie that peers see tells nothing about it.
///
/// # Errors
/// [`NoRandom`].
pub fn number() -> Result<u64, NoRandom> {
    bytes().map(u64::from_ne_bytes)
}
