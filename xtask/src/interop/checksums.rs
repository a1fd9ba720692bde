//! A dialler of version 2 of the protocol, in which alone kernel nodes sum what they send: no node dials in
//! it today, and kernel nodes take it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::hostile::{self, KERNEL, PID, STRANGER};
use super::lab::Lab;

/// How long an answer, or the end, may take.
const PATIENCE: Duration = Duration::from_secs(20);
const VERSION: u32 = 2;
/// The type `control` of a connection.
const CONTROL: u32 = 1;
const HELLO_BYTES: usize = 56;
/// Where a HELLO has its version and its type.
const HELLO_VERSION: Range<usize> = 4..8;
const HELLO_TYPE: Range<usize> = 48..52;
/// A prefix and a header.
const HEAD_BYTES: usize = PREFIX_BYTES + 72;
/// Where a message has its checksum, its type and the length of its payload.
const CHECKSUM: Range<usize> = 4..8;
const TYPE: Range<usize> = 48..52;
const LENGTH: Range<usize> = 52..56;
/// Prefixes: with no message behind them, and with one.
const NOOP: u32 = 0xC0;
const MESSAGE: u32 = 0xC1;
/// Types of messages.
const GET: u32 = 2;
const REPLY: u32 = 3;
/// Match bits of pings, at portal 0, and how their answers begin.
const PING_BITS: u64 = 1 << 63;
const PING_MAGIC: u32 = 0x7069_6E67;
/// Room for an answer.
const SINK_BYTES: u32 = 272;
/// What each message of the protocol begins with: a NOOP is no more.
const PREFIX_BYTES: usize = 24;
/// Bits by which checksums are wrong.
const WRONG: [u32; 4] = [1, 1 << 13, 1 << 31, u32::MAX];

/// Pings of a kernel node with right checksums, without any, and with wrong ones.
pub(super) fn version_2(_lab: &mut Lab) -> Result<String> {
    let dialler = std::thread::spawn(|| {
        hostile::enter(&Lab::namespace())?;
        dials(hostile::RESERVED)
    });
    dialler.join().map_err(|_| anyhow::anyhow!("the dialler has panicked"))??;
    Ok(format!("answers have right checksums, and {} wrong ones end the connection", WRONG.len()))
}

fn dials(mut ports: Range<u16>) -> Result<()> {
    let mut dialler = Dialler::connected(&mut ports)?;
    let sum = dialler.ping(Sum::Right)?.context("a ping with a right checksum is not answered")?;
    ensure!(sum != 0, "the answer of a node with enable_csum has no checksum");
    ensure!(dialler.ping(Sum::None)?.is_some(), "a ping without a checksum is not answered");
    for bits in WRONG {
        // A kernel node looks at the checksum once LNet has the message: with a second CPU, the answer may
        // leave before the connection ends.
        dialler.ping(Sum::Wrong(bits))?;
        dialler.ends().with_context(|| format!("after a ping whose checksum is wrong by {bits:#x}"))?;
        dialler = Dialler::connected(&mut ports)?;
        ensure!(dialler.ping(Sum::Right)?.is_some(), "the next connection does not serve");
    }
    Ok(())
}

/// What a ping says of its own bytes.
enum Sum {
    Right,
    None,
    /// Wrong by these bits.
    Wrong(u32),
}

struct Dialler(TcpStream);

impl Dialler {
    /// Dials a connection that the kernel node takes in version 2.
    fn connected(ports: &mut Range<u16>) -> Result<Self> {
        let stream = ports.find_map(|port| hostile::dial(port, KERNEL));
        let mut stream = stream.context("the kernel node is not reached")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&hostile::request(KERNEL))?;
        stream.write_all(&hostile::hello(VERSION, [STRANGER, KERNEL], CONTROL))?;
        let mut answer = [0; HELLO_BYTES];
        stream.read_exact(&mut answer).context("the HELLO is not answered")?;
        let (version, kind) = (number(&answer, HELLO_VERSION), number(&answer, HELLO_TYPE));
        ensure!(
            (version, kind) == (VERSION, CONTROL),
            "a HELLO of version {version} and type {kind:#x} answers"
        );
        Ok(Self(stream))
    }

    /// Pings: the checksum of the answer, which is right if there is one; `None` if the connection ends
    /// instead.
    fn ping(&mut self, sum: Sum) -> Result<Option<u32>> {
        let mut bytes = ping();
        let right = checksum(&bytes);
        let said = match sum {
            Sum::Right => right,
            Sum::None => 0,
            Sum::Wrong(bits) => right ^ bits,
        };
        bytes[CHECKSUM].copy_from_slice(&said.to_le_bytes());
        self.0.write_all(&bytes)?;
        loop {
            let mut bytes = vec![0; PREFIX_BYTES];
            if !self.read(&mut bytes)? {
                return Ok(None);
            }
            if number(&bytes, 0..4) == NOOP {
                continue;
            }
            bytes.resize(HEAD_BYTES, 0);
            if !self.read(&mut bytes[PREFIX_BYTES..])? {
                return Ok(None);
            }
            bytes.resize(HEAD_BYTES + number(&bytes, LENGTH) as usize, 0);
            if !self.read(&mut bytes[HEAD_BYTES..])? {
                return Ok(None);
            }
            let said = number(&bytes, CHECKSUM);
            ensure!(said == 0 || said == checksum(&bytes), "the checksum of the answer is wrong: {said:#x}");
            if number(&bytes, TYPE) == REPLY {
                let is_ping = bytes[HEAD_BYTES..].starts_with(&PING_MAGIC.to_le_bytes());
                ensure!(is_ping, "this answers a ping: {bytes:02x?}");
                return Ok(Some(said));
            }
        }
    }

    /// Waits for the end of the connection.
    fn ends(&mut self) -> Result<()> {
        let mut head = [0; PREFIX_BYTES];
        while self.read(&mut head)? {
            ensure!(number(&head, 0..4) == NOOP, "a message comes instead of the end: {head:02x?}");
        }
        Ok(())
    }

    /// Fills `bytes`; false if the connection ends first.
    fn read(&mut self, bytes: &mut [u8]) -> Result<bool> {
        match self.0.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => {
                Ok(false)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                bail!("neither bytes nor the end of the connection within {PATIENCE:?}")
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn number(bytes: &[u8], at: Range<usize>) -> u32 {
    bytes[at].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The GET of a ping, without a checksum.
fn ping() -> Vec<u8> {
    let mut bytes = MESSAGE.to_le_bytes().to_vec();
    bytes.extend([0; 20]);
    bytes.extend(hostile::nid(KERNEL));
    bytes.extend(hostile::nid(STRANGER));
    for word in [PID, PID, GET, 0] {
        bytes.extend(word.to_le_bytes());
    }
    // The handle of what the answer goes to.
    bytes.extend([1; 16]);
    bytes.extend(PING_BITS.to_le_bytes());
    for word in [0, 0, SINK_BYTES] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize(HEAD_BYTES, 0);
    bytes
}

/// The checksum of a message, as it is with none in its prefix: CRC-32 without the final inversion.
fn checksum(message: &[u8]) -> u32 {
    let summed = message.iter().enumerate().map(|(at, byte)| if CHECKSUM.contains(&at) { 0 } else { *byte });
    summed.fold(u32::MAX, |sum, byte| {
        let bit = |sum: u32, _| if sum & 1 == 0 { sum >> 1 } else { sum >> 1 ^ 0xEDB8_8320 };
        (0..8).fold(sum ^ u32::from(byte), bit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_summed_without_its_own_checksum() {
        // CRC-32 of "1234", which ends with an inversion.
        assert_eq!(checksum(b"1234"), !0x9BE3_E0A3);
        let mut message = ping();
        let sum = checksum(&message);
        message[CHECKSUM].fill(0xFF);
        assert_eq!(checksum(&message), sum);
        message[HEAD_BYTES - 1] ^= 1;
        assert_ne!(checksum(&message), sum);
        assert_eq!(ping().len(), HEAD_BYTES);
    }
}
