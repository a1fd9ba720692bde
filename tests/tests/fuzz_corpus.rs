//! Replays the corpus of the fuzz targets, and some thousand mutations of each of its files.

use std::fmt::Write;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use lnet_tests::fuzz_targets::{TARGETS, Target};

const MUTATIONS_PER_FILE: u64 = 3000;

/// The files of a target's corpus, in the order of their names.
fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> =
        fs::read_dir(&directory).expect("a corpus").map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", directory.display());
    files.into_iter().map(|path| (path.clone(), fs::read(&path).expect("a readable file"))).collect()
}

/// A fixed sequence of numbers (xorshift64*).
struct Sequence(u64);

impl Sequence {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

/// Changes `bytes` in one to four places.
fn mutate(bytes: &mut Vec<u8>, sequence: &mut Sequence) {
    for _ in 0..=sequence.below(4) {
        let place = sequence.below(bytes.len() + 1);
        match sequence.below(6) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, sequence.next() as u8),
            2 if place < bytes.len() => drop(bytes.remove(place)),
            3 if place < bytes.len() => bytes[place] = [0, 1, 0x7F, 0x80, 0xFF][sequence.below(5)],
            4 if place < bytes.len() => bytes[place] ^= 1 << sequence.below(8),
            5 => bytes.extend_from_within(place..),
            _ => bytes.push(sequence.next() as u8),
        }
    }
    bytes.truncate(4096);
}

/// Runs a target; when it panics, says on which bytes.
fn run(target: Target, what: &str, bytes: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| target(bytes))).is_err() {
        let hexadecimal = bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        panic!("{what} fails on {hexadecimal}");
    }
}

fn replay(name: &str) {
    let (_, target) = TARGETS.into_iter().find(|(other, _)| *other == name).expect("a target");
    for (file_index, (path, bytes)) in corpus(name).into_iter().enumerate() {
        run(target, &path.display().to_string(), &bytes);
        let mut sequence = Sequence(0x9E37_79B9_7F4A_7C15 ^ file_index as u64);
        // Mutations of whole conversations take long.
        let mutations = if matches!(name, "control" | "shard" | "socklnd" | "transfer") {
            MUTATIONS_PER_FILE / 8
        } else {
            MUTATIONS_PER_FILE
        };
        for number in 0..mutations {
            let mut mutated = bytes.clone();
            mutate(&mut mutated, &mut sequence);
            run(target, &format!("mutation {number} of {}", path.display()), &mutated);
        }
    }
}

/// A test for each target, and their names.
macro_rules! replays {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )*

        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
    };
}

replays! {
    connection_request control document frame header hello nid_text ping prefix request rpc_message rpc_record selftest
    shard socklnd transfer
}

/// Each target is replayed here, and has a file for the fuzzer and a corpus.
#[test]
fn targets_are_complete() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let names = |directory: &str| {
        let entries = fs::read_dir(fuzz.join(directory)).expect("a directory");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into()
            })
            .collect();
        names.sort();
        names
    };
    let mut targets = TARGETS.map(|(name, _)| name.to_string());
    targets.sort();
    assert_eq!(targets, REPLAYED);
    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("corpus"), targets);
}
