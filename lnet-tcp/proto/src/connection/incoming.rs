//! The receiving half of a connection: bytes that are collected, and one message.

use core::time::Duration;

use lnet_core::lnd::Span;
use lnet_core::time::Instant;
use lnet_wire::Header;
use lnet_wire::socklnd::{Checksum, Parsed};

use super::HEAD_BYTES_MAX;

/// Bytes of the longest thing that is collected before it is looked at: a HELLO of protocol 1 with 16
/// addresses.
const INPUT_BYTES_MAX: usize = 136;
const _: () = assert!(HEAD_BYTES_MAX <= INPUT_BYTES_MAX);

/// Meaning of the next bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reading {
    /// A handshake, or the head of a message.
    Head,
    /// The head of a short message was read, and its payload is to be there before it is matched.
    Short(Header),
    /// Payload of a short message that waits elsewhere.
    Shelving { left_bytes: u32 },
    /// The head of a request was read that comes when those in front of it have come again.
    Behind,
    /// The shard has not decided about the message.
    Delayed { length_bytes: u32 },
    /// Payload, then some that is passed over.
    Payload { span: Span, skip_bytes: u32 },
    /// Passed over: of a message that was dropped, or is larger than its place.
    Skip { left_bytes: u32 },
}

/// The receiving half of a connection.
pub(crate) struct Incoming {
    /// Bytes that are collected.
    input: [u8; INPUT_BYTES_MAX],
    input_bytes: u8,
    reading: Reading,
    /// The cookie of the message under way; 0 if none is to be acknowledged.
    cookie: u64,
    /// The checksum that the message under way should have, and the sum so far.
    checksum: Option<(u32, Checksum)>,
    /// When something last arrived.
    received_at: Instant,
}

impl Incoming {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            input: [0; INPUT_BYTES_MAX],
            input_bytes: 0,
            reading: Reading::Head,
            cookie: 0,
            checksum: None,
            received_at: now,
        }
    }

    pub(crate) const fn reading(&self) -> &Reading {
        &self.reading
    }

    pub(crate) const fn received_at(&self) -> Instant {
        self.received_at
    }

    /// Notes that something arrives.
    pub(crate) const fn note(&mut self, now: Instant) {
        self.received_at = now;
    }

    /// Collects bytes until there are `wanted`; how many of `bytes` that took.
    pub(crate) fn collect(&mut self, bytes: &[u8], wanted: usize) -> usize {
        let have = usize::from(self.input_bytes);
        let count = wanted.saturating_sub(have).min(bytes.len());
        self.input[have..have + count].copy_from_slice(&bytes[..count]);
        self.input_bytes += count as u8;
        count
    }

    pub(crate) fn collected(&self) -> &[u8] {
        &self.input[..usize::from(self.input_bytes)]
    }

    /// Collects anew.
    pub(crate) const fn clear(&mut self) {
        self.input_bytes = 0;
    }

    /// Collects bytes until `parse` says what they are; how many that took.
    pub(crate) fn parse<T, E>(
        &mut self,
        bytes: &[u8],
        parse: impl Fn(&[u8]) -> Result<Parsed<T>, E>,
    ) -> (usize, Option<Result<T, E>>) {
        let mut used = 0;
        loop {
            match parse(self.collected()) {
                Err(error) => return (used, Some(Err(error))),
                Ok(Parsed::Whole(value, _)) => {
                    self.clear();
                    return (used, Some(Ok(value)));
                }
                Ok(Parsed::Needs(wanted)) => {
                    used += self.collect(&bytes[used..], wanted);
                    if self.collected().len() < wanted {
                        return (used, None);
                    }
                }
            }
        }
    }

    /// Bytes that are missing of a message's head of so many; `None` within its payload.
    pub(crate) fn missing_of(&self, head_bytes: usize) -> Option<usize> {
        let is_head = matches!(self.reading, Reading::Head);
        head_bytes.checked_sub(self.collected().len()).filter(|missing| is_head && *missing != 0)
    }

    /// Begins a message whose head was collected.
    pub(crate) const fn begin(&mut self, cookie: u64, checksum: Option<(u32, Checksum)>) {
        self.clear();
        (self.cookie, self.checksum) = (cookie, checksum);
    }

    /// Has the payload of a short message wait until it is whole.
    pub(crate) const fn wait(&mut self, header: Header) {
        self.reading = Reading::Short(header);
    }

    /// Takes the message whose head was read out of the way, but for its payload: its cookie and its
    /// checksum.
    pub(crate) const fn shelve(&mut self, length_bytes: u32) -> (u64, Option<(u32, Checksum)>) {
        self.shelved(length_bytes);
        (core::mem::replace(&mut self.cookie, 0), self.checksum.take())
    }

    /// Has the request whose head was read, and all behind it, stay where they are: its cookie and its
    /// checksum.
    pub(crate) const fn stop(&mut self) -> (u64, Option<(u32, Checksum)>) {
        self.reading = Reading::Behind;
        (core::mem::replace(&mut self.cookie, 0), self.checksum.take())
    }

    /// Bytes that are still to be taken out of the way are so many.
    pub(crate) const fn shelved(&mut self, left_bytes: u32) {
        self.reading = if left_bytes == 0 { Reading::Head } else { Reading::Shelving { left_bytes } };
    }

    /// Leaves the message to the shard.
    pub(crate) const fn delay(&mut self, length_bytes: u32) {
        self.reading = Reading::Delayed { length_bytes };
    }

    /// Whether the shard had not decided about a message, which ends.
    pub(crate) fn end_delayed(&mut self) -> bool {
        let is_delayed = matches!(self.reading, Reading::Delayed { .. });
        if is_delayed {
            self.reading = Reading::Head;
        }
        is_delayed
    }

    /// Has what is left of the payload go here, and so many bytes behind it be passed over.
    pub(crate) const fn deliver(&mut self, span: Span, skip_bytes: u32) {
        if skip_bytes != 0 {
            // A truncated message is not checked: kernel nodes do not either.
            self.checksum = None;
        }
        self.reading = Reading::Payload { span, skip_bytes };
    }

    pub(crate) fn checksum_mut(&mut self) -> Option<&mut Checksum> {
        self.checksum.as_mut().map(|(_, sum)| sum)
    }

    /// Whether the payload that was placed is what its checksum says, if it has one.
    pub(crate) fn is_right(&mut self) -> bool {
        self.checksum.take().is_none_or(|(expected, sum)| expected == sum.value())
    }

    /// Passes over the rest of a message, unchecked. With its last byte: the cookie that is to be
    /// acknowledged, if one is.
    pub(crate) fn skip(&mut self, left_bytes: u32) -> Option<u64> {
        self.checksum = None;
        if left_bytes != 0 {
            self.reading = Reading::Skip { left_bytes };
            return None;
        }
        self.reading = Reading::Head;
        Some(core::mem::take(&mut self.cookie)).filter(|cookie| *cookie != 0)
    }

    /// Whether the shard knows of a message that arrives.
    pub(crate) const fn has_arriving(&self) -> bool {
        matches!(self.reading, Reading::Delayed { .. } | Reading::Payload { .. })
    }

    /// Whether a message has begun to arrive, and waits for nothing but its own bytes.
    pub(crate) const fn is_within_message(&self) -> bool {
        self.input_bytes != 0
            || matches!(
                self.reading,
                Reading::Short(_) | Reading::Shelving { .. } | Reading::Payload { .. } | Reading::Skip { .. }
            )
    }

    /// Whether a message has begun to arrive that has not been received: also one that waits for the shard,
    /// and none that is shelved.
    pub(crate) const fn has_message(&self) -> bool {
        match self.reading {
            Reading::Behind | Reading::Delayed { .. } => true,
            Reading::Shelving { .. } => false,
            _ => self.is_within_message(),
        }
    }

    /// When that has made no progress for too long.
    pub(super) fn stalls_at(&self, timeout: Duration) -> Option<Instant> {
        self.is_within_message().then(|| self.received_at + timeout)
    }
}
