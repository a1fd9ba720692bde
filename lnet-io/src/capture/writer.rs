//! The thread of a capture, which writes what the taps have copied.
//!
//! Invariants: the file is at most as long as its limit, to the byte, with the blocks that end it; what is
//! written is whole blocks; frames stand in the order of their times, unless a shard is stopped for
//! [`PATIENCE`] while it copies one.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};

use rtrb::Consumer;

use super::Untap;
use super::pcapng::{self, STATISTICS_BYTES};
use super::table::Shared;
use super::tap::{HEAD_BYTES, Head, RealTime};

/// How long a shard is waited for that copies a frame and does not get on with it.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often it is looked at before that: copies are short.
const IDLE_POLLS: u32 = 200;
/// How often the rings are looked at while frames come, and while none do. The writer is not woken: that
/// would cost the shards a system call.
const BUSY_INTERVAL: Duration = Duration::from_millis(1);
const IDLE_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes that are written at once.
const FLUSH_BYTES: usize = 256 << 10;

/// The file.
pub(super) struct Output {
    file: File,
    /// Whole blocks that are not written yet.
    buffer: Vec<u8>,
    /// Bytes of the file that are.
    written_bytes: u64,
    limit_bytes: u64,
    /// The snap length as the file says it, 0 for none.
    snap_bytes: u32,
    /// Frames of each interface in the file or the buffer.
    frames: Vec<u64>,
}

/// The file has no room for what is to come next.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Full;

impl Output {
    /// An empty file begins as a capture of these interfaces.
    ///
    /// # Errors
    /// The bytes that such a file needs, when that is more than the limit.
    pub(super) fn begin(file: File, limit_bytes: u64, snap_bytes: u32, shared: &Shared) -> Result<Self, u64> {
        let mut buffer = Vec::with_capacity(2 * FLUSH_BYTES);
        pcapng::section_header(&mut buffer);
        let mut output = Self { file, buffer, written_bytes: 0, limit_bytes, snap_bytes, frames: Vec::new() };
        match output.follow_interfaces(shared) {
            Ok(()) if output.length() <= limit_bytes => Ok(output),
            Ok(()) => Err(output.length()),
            Err(needed) => Err(needed),
        }
    }

    /// Bytes of the file if it ended here.
    fn length(&self) -> u64 {
        self.written_bytes + self.buffer.len() as u64 + self.frames.len() as u64 * STATISTICS_BYTES
    }

    /// Describes the interfaces that have come. If there is no room for one: bytes of a file that has it.
    fn follow_interfaces(&mut self, shared: &Shared) -> Result<(), u64> {
        for interface in shared.interfaces().skip(self.frames.len()) {
            let before = self.buffer.len();
            pcapng::interface(&mut self.buffer, interface, self.snap_bytes);
            let needed = self.length() + STATISTICS_BYTES;
            if needed > self.limit_bytes {
                self.buffer.truncate(before);
                return Err(needed);
            }
            self.frames.push(0);
        }
        Ok(())
    }

    fn packet(&mut self, head: &Head, bytes: (&[u8], &[u8]), shared: &Shared) -> Result<(), Full> {
        // The tap knows its number, so it is in the table by now.
        if head.interface as usize >= self.frames.len() {
            self.follow_interfaces(shared).map_err(|_| Full)?;
        }
        if self.length() + pcapng::packet_bytes(head.captured_bytes) > self.limit_bytes {
            return Err(Full);
        }
        pcapng::packet(&mut self.buffer, head, bytes);
        self.frames[head.interface as usize] += 1;
        Ok(())
    }

    fn end(&mut self, time_ns: u64, shared: &Shared) {
        for (number, frames) in self.frames.iter().enumerate() {
            let missed = shared.missed(number);
            pcapng::statistics(&mut self.buffer, number as u32, time_ns, *frames, missed);
        }
    }

    /// Writes what is in the buffer. Where that fails the file ends with the last whole write.
    pub(super) fn flush(&mut self, shared: &Shared) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all(&self.buffer) {
            // If that fails as well, the file ends within a block: readers take what stands before it.
            let _ = self.file.set_len(self.written_bytes);
            return Err(error);
        }
        self.written_bytes += self.buffer.len() as u64;
        self.buffer.clear();
        shared.written_bytes.store(self.written_bytes, Ordering::Relaxed);
        shared.frame_count.store(self.frames.iter().sum(), Ordering::Relaxed);
        Ok(())
    }
}

/// What comes from one tap.
pub(super) struct TapReader {
    ring: Consumer<u8>,
    /// Whether the shard is copying a frame.
    is_recording: Arc<AtomicBool>,
    /// The head of the frame that comes next, once it was read.
    head: Option<Head>,
}

impl TapReader {
    pub(super) fn new(ring: Consumer<u8>, is_recording: Arc<AtomicBool>) -> Self {
        Self { ring, is_recording, head: None }
    }

    /// Whether all its frames are in the ring that have a time before the one that was read last.
    fn is_settled(&self) -> bool {
        (0..IDLE_POLLS).any(|_| {
            std::hint::spin_loop();
            !self.is_recording.load(Ordering::SeqCst)
        })
    }

    /// When its next frame came, if that is there as a whole.
    fn next_time(&mut self) -> Option<u64> {
        if self.head.is_none() {
            let mut bytes = [0; HEAD_BYTES];
            self.ring.pop_entire_slice(&mut bytes).ok()?;
            self.head = Some(Head::decode(&bytes));
        }
        let head = self.head.as_ref()?;
        (self.ring.slots() >= head.captured_bytes as usize).then_some(head.time_ns)
    }

    /// Writes its next frame, which is there.
    fn write_next(&mut self, output: &mut Output, shared: &Shared) -> Result<(), Full> {
        let Some(head) = self.head.take() else { return Ok(()) };
        let Ok(chunk) = self.ring.read_chunk(head.captured_bytes as usize) else { return Ok(()) };
        output.packet(&head, chunk.as_slices(), shared)?;
        chunk.commit_all();
        Ok(())
    }
}

/// Why a capture ends.
enum StopCause {
    /// Its owner has stopped the capture.
    Stopped,
    Full,
}

/// What the thread has.
pub(super) struct Writer {
    pub(super) id: u64,
    pub(super) output: Output,
    pub(super) sources: Vec<TapReader>,
    pub(super) shared: Arc<Shared>,
    pub(super) real_time: RealTime,
    pub(super) untap: Untap,
}

impl Writer {
    /// Writes until the capture is told to end, the file is full, or it cannot be written.
    pub(super) fn run(mut self) {
        let ended = self.write_until_end();
        // Nothing comes any more from here on.
        (self.untap)(self.id);
        let Self { mut output, mut sources, shared, real_time, .. } = self;
        let outcome = ended.and_then(|end| {
            if matches!(end, StopCause::Stopped) {
                // Whether there is room for all is the same now.
                let _ = write_until(&mut sources, &mut output, &shared, u64::MAX)?;
            }
            output.end(real_time.now_ns(), &shared);
            output.flush(&shared)
        });
        if let Err(error) = outcome {
            tracing::warn!(%error, "a capture ends early");
            shared.set_failure(error.to_string());
        }
        shared.is_running.store(false, Ordering::Release);
    }

    fn write_until_end(&mut self) -> io::Result<StopCause> {
        let mut settled_at = Instant::now();
        loop {
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(StopCause::Stopped);
            }
            let horizon_ns = self.real_time.now_ns();
            fence(Ordering::SeqCst);
            if self.sources.iter().all(TapReader::is_settled) || settled_at.elapsed() >= PATIENCE {
                settled_at = Instant::now();
            } else {
                std::thread::park_timeout(BUSY_INTERVAL);
                continue;
            }
            if self.output.follow_interfaces(&self.shared).is_err() {
                return Ok(StopCause::Full);
            }
            let written = write_until(&mut self.sources, &mut self.output, &self.shared, horizon_ns)?;
            self.output.flush(&self.shared)?;
            let Ok(frames) = written else { return Ok(StopCause::Full) };
            std::thread::park_timeout(if frames == 0 { IDLE_INTERVAL } else { BUSY_INTERVAL });
        }
    }
}

/// Writes the frames up to a time, in the order of their times; how many, if there was room for all.
pub(super) fn write_until(
    sources: &mut [TapReader],
    output: &mut Output,
    shared: &Shared,
    horizon_ns: u64,
) -> io::Result<Result<u64, Full>> {
    let mut frames = 0;
    loop {
        let times =
            sources.iter_mut().enumerate().filter_map(|(index, source)| Some((source.next_time()?, index)));
        let Some((time_ns, index)) = times.min() else { return Ok(Ok(frames)) };
        if time_ns > horizon_ns {
            return Ok(Ok(frames));
        }
        if let Err(full) = sources[index].write_next(output, shared) {
            return Ok(Err(full));
        }
        frames += 1;
        if output.buffer.len() >= FLUSH_BYTES {
            output.flush(shared)?;
        }
    }
}
