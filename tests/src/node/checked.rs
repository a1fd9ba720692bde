//! A target that looks at every byte of a flood, and what it remembers beyond its own life.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lnet_core::event::Event;
use lnet_core::handle::EqHandle;
use lnet_core::lnd::Status;
use lnet_core::md::{MdOptions, MdSpec, Threshold};
use lnet_core::portal::EntrySpec;
use lnet_user::Buffer;
use lnet_user::runtime::{Steering, Worker};

use super::drive::{By, Driven};
use super::flood::{FLOOD_MATCH_BITS, FLOOD_PORTALS, entries_of};
use super::plan::Plan;

/// Puts that one descriptor takes, one behind the other.
const ROOM: u32 = 8;
/// Descriptors that wait for the same match bits: one takes Puts while another is replaced.
const SPARE: u32 = 2;

/// Which Puts have arrived, in which life of their target: a file of one byte for each, which outlives a
/// process.
#[derive(Debug)]
pub struct Arrivals {
    file: File,
    count: AtomicU64,
    broken: AtomicU64,
}

impl Arrivals {
    /// Arrivals in a file, which is empty at first.
    #[must_use]
    pub fn new(file: File) -> Arc<Self> {
        Arc::new(Self { file, count: AtomicU64::new(0), broken: AtomicU64::new(0) })
    }

    /// A file without a name.
    ///
    /// # Panics
    /// When there is no room for one.
    #[must_use]
    pub fn file() -> File {
        static FILES: AtomicU32 = AtomicU32::new(0);
        let name = format!("lnet-arrivals-{}-{}", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a new file");
        std::fs::remove_file(path).expect("a file that is there");
        file
    }

    fn note(&self, number: u64, life: u8) {
        let mut before = [0];
        let read = self.file.read_at(&mut before, number).expect("a file that can be read");
        assert!(read == 0 || before == [0], "Put {number} of life {life} arrived in life {before:?}");
        self.file.write_all_at(&[life], number).expect("a file that can be written");
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Puts that arrived while this process was there.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Puts of which only a part came.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.broken.load(Ordering::Acquire)
    }

    /// The life in which each Put arrived, by its number; 0 is none. Those behind the end have not arrived
    /// either.
    ///
    /// # Panics
    /// When the file cannot be read.
    #[must_use]
    pub fn lives(&self) -> Vec<u8> {
        let length_bytes = self.file.metadata().expect("the length of a file").len();
        let mut lives = vec![0; length_bytes as usize];
        self.file.read_exact_at(&mut lives, 0).expect("a file that can be read");
        lives
    }
}

/// A shard that is flooded, and checks that each Put comes once and with its own bytes.
#[derive(Debug)]
pub struct Checked {
    arrivals: Arc<Arrivals>,
    life: u8,
    length_bytes: u32,
    event_queue: EqHandle,
}

impl Checked {
    /// Posts the entries of every worker of a node, for Puts of `length_bytes`, and drives it on a thread of
    /// its own.
    pub fn start_all(
        arrivals: &Arc<Arrivals>,
        life: u8,
        length_bytes: u32,
        steering: &Steering,
        workers: Vec<Worker>,
    ) -> Vec<Driven<Self>> {
        let start = |mut worker: Worker| {
            let puts = (FLOOD_PORTALS.end - FLOOD_PORTALS.start) * FLOOD_MATCH_BITS as u32 * SPARE * ROOM;
            let event_queue = worker.create_event_queue(2 * puts).expect("event queue");
            let checked = Self { arrivals: Arc::clone(arrivals), life, length_bytes, event_queue };
            checked.post(steering, &mut worker);
            Driven::start(By::ShardThread, worker, checked, |worker, checked: &mut Self| checked.turn(worker))
        };
        workers.into_iter().map(start).collect()
    }

    /// Posts the entries that belong to this shard.
    fn post(&self, steering: &Steering, worker: &mut Worker) {
        for entry in entries_of(steering, worker.shard_id()) {
            for _ in 0..SPARE {
                self.attach(&entry, Buffer::zeroed((ROOM * self.length_bytes) as usize), worker);
            }
        }
    }

    fn attach(&self, entry: &EntrySpec, buffer: Buffer, worker: &mut Worker) {
        // No place is written to twice: what an event tells of stays as it is.
        let options = MdOptions::PUT;
        let md = MdSpec {
            user_ptr: entry.match_bits,
            ..MdSpec::new(buffer.len() as u64, Threshold::Count(ROOM), options, self.event_queue)
        };
        worker.attach(entry, &md, buffer).unwrap_or_else(|refused| panic!("{refused}"));
    }

    /// Takes the events of a turn, and checks the payload of each.
    ///
    /// # Panics
    /// When a Put comes twice, or is not as it was sent.
    pub fn turn(&mut self, worker: &mut Worker) {
        while let Some(delivery) = worker.poll_event(self.event_queue) {
            let event = delivery.event;
            let Event::Put { portal, hdr_data, requested_bytes, manipulated_bytes, offset_bytes, .. } = event
            else {
                panic!("{event:?}")
            };
            if event.status() == Status::Ok {
                let (offset, length) = (offset_bytes, self.length_bytes);
                assert_eq!((manipulated_bytes, requested_bytes), (length, length), "{event:?}");
                let bytes = match &delivery.buffer {
                    Some(buffer) => &buffer[offset as usize..][..length as usize],
                    None => worker
                        .payload(event.md(), offset, length)
                        .expect("bytes that no message is written to"),
                };
                assert!(Plan::holds(hdr_data as usize, bytes), "bytes of {event:?}");
            } else {
                assert!(matches!(event.status(), Status::Unknown(_)), "{event:?}");
                self.arrivals.broken.fetch_add(1, Ordering::AcqRel);
            }
            self.arrivals.note(hdr_data, self.life);
            if let Some(mut buffer) = delivery.buffer {
                buffer.fill(0);
                self.attach(&EntrySpec::new(portal, event.user_ptr()), buffer, worker);
            }
        }
    }
}
