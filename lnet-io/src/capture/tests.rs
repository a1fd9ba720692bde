//! Captures without a node: frames go into taps, and are read back from files.

#[allow(dead_code, unreachable_pub, reason = "shared with the tests of other crates")]
pub(crate) mod reading;

use std::os::unix::fs::PermissionsExt;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;

use super::tap::Head;
use super::*;
use reading::{Captured, Contents, Described};

const PATIENCE: Duration = Duration::from_secs(10);
const BOUNDLESS: u64 = 1 << 30;
/// Bytes of a file with one interface of a name of four letters, without frames, by the format's rules.
const EMPTY_BYTES: u64 = SECTION_BYTES + INTERFACE_BYTES + 64;
const SECTION_BYTES: u64 = 28 + (4 + (10 + env!("CARGO_PKG_VERSION").len() as u64).next_multiple_of(4)) + 4;
const INTERFACE_BYTES: u64 = 20 + (4 + 4) + (4 + 4) + 4;

/// A directory that goes with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lnet-capture-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The taps of shards that are not there.
#[derive(Clone, Default)]
struct Shards(Arc<Mutex<Vec<Tap>>>);

impl Shards {
    fn new(count: usize) -> Self {
        let shards = Self::default();
        shards.0.lock().unwrap().resize_with(count, Default::default);
        shards
    }

    fn start(
        &self,
        captures: &mut Captures,
        spec: &CaptureSpec,
        interfaces: &[CaptureInterface],
    ) -> Result<(), CaptureError> {
        let count = self.0.lock().unwrap().len();
        let tap = |ends: Vec<TapEnd>| {
            self.0.lock().unwrap().iter_mut().zip(ends).for_each(|(tap, end)| tap.add(end));
            Ok(())
        };
        let shards = self.clone();
        let untap = move |id| {
            for tap in shards.0.lock().unwrap().iter_mut() {
                tap.remove(id);
            }
        };
        captures.start(spec, (interfaces, count), tap, untap)
    }

    fn record(&self, shard: usize, interface: &CaptureInterface, direction: Direction, frame: &[u8]) {
        let (first, second) = frame.split_at(frame.len() / 3);
        let tap = &mut self.0.lock().unwrap()[shard];
        tap.record((interface.index, interface.link), direction, [first, second].into_iter());
    }

    fn are_tapped(&self) -> bool {
        self.0.lock().unwrap().iter().any(Tap::is_on)
    }
}

fn interface(index: u32, name: &str, link: Link) -> CaptureInterface {
    CaptureInterface { index, name: name.to_owned(), link }
}

fn eth0() -> CaptureInterface {
    interface(2, "eth0", Link::Ethernet)
}

fn frame(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + seed * 31) as u8).collect()
}

fn stop(captures: &mut Captures, spec: &CaptureSpec) -> (CaptureRecord, Contents) {
    let state = captures.take(Path::new(&spec.path)).unwrap().stop();
    (state, Contents::read_complete(&std::fs::read(&spec.path).unwrap()))
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[test]
fn what_was_captured_is_read_back() {
    let directory = Directory::new("read_back");
    let (mut captures, shards) = (Captures::default(), Shards::new(2));
    let spec = CaptureSpec::new(directory.file("a.pcapng"), BOUNDLESS);
    let (ethernet, raw) = (eth0(), interface(5, "lan1", Link::RawIp));
    let begun_ns = now_ns();
    shards.start(&mut captures, &spec, &[ethernet.clone(), raw.clone()]).unwrap();
    let mut recorded = Vec::new();
    for (number, length) in (0..2000).zip([0, 1, 3, 4, 60, 1514, 9014, 65_549].into_iter().cycle()) {
        let (number_of, interface) = if number % 3 == 0 { (1, &raw) } else { (0, &ethernet) };
        let direction = if number % 5 < 2 { Direction::Received } else { Direction::Sent };
        let bytes = frame(number, length);
        shards.record(number % 2, interface, direction, &bytes);
        recorded.push((number_of, direction == Direction::Received, bytes));
        if number % 100 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    // Others are none of its business.
    shards.record(0, &interface(7, "eth7", Link::Ethernet), Direction::Sent, &[1; 60]);
    shards.record(0, &interface(2, "eth0", Link::RawIp), Direction::Sent, &[1; 60]);
    let (state, contents) = stop(&mut captures, &spec);
    let described = |name: &str, link| Described { name: name.to_owned(), link, snap_bytes: 0 };
    assert_eq!(contents.interfaces, [described("eth0", 1), described("lan1", 101)]);
    let read = |frame: &Captured| {
        assert_eq!(frame.frame_bytes as usize, frame.bytes.len());
        (frame.interface, frame.is_received, frame.bytes.clone())
    };
    assert!(contents.frames.iter().map(read).eq(recorded), "each frame once, in order");
    assert!(contents.frames.is_sorted_by_key(|frame| frame.time_ns));
    let slack_ns = 100_000_000;
    let times = contents.frames.iter().map(|frame| frame.time_ns);
    assert!(
        times.min().unwrap() + slack_ns > begun_ns && contents.frames[1999].time_ns < now_ns() + slack_ns
    );
    assert_eq!((state.is_running, state.frame_count, state.missed_count), (false, 2000, 0));
    let metadata = std::fs::metadata(&spec.path).unwrap();
    assert_eq!(state.written_bytes, metadata.len());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(!shards.are_tapped() && captures.states().is_empty());
}

#[test]
fn the_limit_holds_to_the_byte() {
    let directory = Directory::new("limit");
    let lengths = [60, 61, 1514, 0, 9000];
    let mut exact = EMPTY_BYTES;
    for (fitting, length) in lengths.iter().enumerate() {
        exact += 44 + (*length as u64).next_multiple_of(4);
        for (limit_bytes, frames) in [(exact, fitting + 1), (exact - 1, fitting), (exact + 43, fitting + 1)] {
            let (mut captures, shards) = (Captures::default(), Shards::new(1));
            let spec = CaptureSpec::new(directory.file(&format!("{fitting}-{limit_bytes}")), limit_bytes);
            shards.start(&mut captures, &spec, &[eth0()]).unwrap();
            for (number, length) in lengths.iter().enumerate() {
                shards.record(0, &eth0(), Direction::Sent, &frame(number, *length));
            }
            if frames < lengths.len() {
                wait_until("it ends by itself", || !captures.states()[0].is_running);
                assert!(!shards.are_tapped());
            }
            // Ended or not, it is stopped once.
            let (state, contents) = stop(&mut captures, &spec);
            assert_eq!(contents.frames.len(), frames, "{limit_bytes} bytes");
            assert!(state.written_bytes <= limit_bytes);
            if limit_bytes == exact {
                assert_eq!(state.written_bytes, exact);
            }
            assert!(
                matches!(captures.take(Path::new(&spec.path)), Err(CaptureError::NoCapture(path)) if path == Path::new(&spec.path))
            );
        }
    }
}

#[test]
fn what_finds_no_room_is_missed() {
    const COUNT: u64 = 20_000;
    let directory = Directory::new("missed");
    let (mut captures, shards) = (Captures::default(), Shards::new(1));
    let spec = CaptureSpec { buffer_bytes: 4096, ..CaptureSpec::new(directory.file("a.pcapng"), BOUNDLESS) };
    shards.start(&mut captures, &spec, &[eth0()]).unwrap();
    for number in 0..COUNT {
        shards.record(0, &eth0(), Direction::Sent, &frame(number as usize, 100 + number as usize % 2000));
    }
    // Longer than the buffer.
    shards.record(0, &eth0(), Direction::Sent, &[0; 4096]);
    let (state, contents) = stop(&mut captures, &spec);
    assert!(state.missed_count > 1 && state.frame_count > 0, "{state:?}");
    assert_eq!(state.missed_count + state.frame_count, COUNT + 1);
    assert_eq!(contents.counted[0].missed, state.missed_count);
}

#[test]
fn frames_are_cut() {
    let directory = Directory::new("cut");
    let (mut captures, shards) = (Captures::default(), Shards::new(1));
    let spec =
        CaptureSpec { frame_bytes: Some(130), ..CaptureSpec::new(directory.file("a.pcapng"), BOUNDLESS) };
    shards.start(&mut captures, &spec, &[eth0()]).unwrap();
    for length in [129, 130, 131, 9000] {
        shards.record(0, &eth0(), Direction::Sent, &frame(length, length));
    }
    let (_, contents) = stop(&mut captures, &spec);
    assert_eq!(contents.interfaces[0].snap_bytes, 130);
    for (captured, length) in contents.frames.iter().zip([129, 130, 131, 9000]) {
        assert_eq!(captured.frame_bytes as usize, length);
        assert!(captured.bytes == frame(length, length)[..length.min(130)]);
    }
}

/// Two captures at once, one of them of one interface, which goes and comes back under another index.
#[test]
fn interfaces_come_and_go() {
    let directory = Directory::new("interfaces");
    let (mut captures, shards) = (Captures::default(), Shards::new(1));
    let all = CaptureSpec::new(directory.file("all"), BOUNDLESS);
    let of_eth1 = CaptureSpec {
        interfaces: vec!["eth1".to_owned()],
        ..CaptureSpec::new(directory.file("eth1"), BOUNDLESS)
    };
    let (eth1, again) = (interface(3, "eth1", Link::Ethernet), interface(9, "eth1", Link::Ethernet));
    for spec in [&all, &of_eth1] {
        shards.start(&mut captures, spec, &[eth0(), eth1.clone()]).unwrap();
    }
    let record = |interface: &CaptureInterface| shards.record(0, interface, Direction::Sent, &[0; 60]);
    record(&eth0());
    record(&eth1);
    // Not known yet.
    record(&again);
    captures.add_interface(&again);
    captures.add_interface(&interface(10, "eth2", Link::Ethernet));
    record(&again);
    record(&interface(10, "eth2", Link::Ethernet));
    let names = |contents: &Contents| {
        let name = |frame: &Captured| contents.interfaces[frame.interface as usize].name.clone();
        contents.frames.iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&stop(&mut captures, &all).1), ["eth0", "eth1", "eth1", "eth2"]);
    assert!(shards.are_tapped());
    let (_, contents) = stop(&mut captures, &of_eth1);
    assert_eq!(names(&contents), ["eth1", "eth1"]);
    assert_eq!(contents.interfaces.len(), 2);
    assert!(!shards.are_tapped());
}

#[test]
fn refusals_leave_nothing() {
    let directory = Directory::new("refusals");
    let (mut captures, shards) = (Captures::default(), Shards::new(1));
    let spec = CaptureSpec::new(directory.file("a.pcapng"), BOUNDLESS);
    let mut refused = |spec: &CaptureSpec, words: &str| {
        let error = shards.start(&mut captures, spec, &[eth0()]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(captures.states().is_empty() && !shards.are_tapped());
    };
    let at = |path: String| CaptureSpec { path, ..spec.clone() };
    refused(&at("a.pcapng".into()), "no absolute path");
    refused(&at(directory.file("absent/a.pcapng")), "its directory is not there");
    std::fs::write(directory.file("there"), "kept").unwrap();
    std::os::unix::fs::symlink("nowhere", directory.file("link")).unwrap();
    refused(&at(directory.file("there/a.pcapng")), "its directory is not there");
    refused(&at(directory.file("there")), "exists");
    refused(&at(directory.file("link")), "exists");
    // Where not even root may make files.
    refused(&at("/sys/kernel/a.pcapng".into()), "may not write");
    refused(&CaptureSpec { limit_bytes: EMPTY_BYTES - 1, ..spec.clone() }, &format!("takes {EMPTY_BYTES}"));
    refused(&CaptureSpec { frame_bytes: Some(0), ..spec.clone() }, "1 at least");
    refused(&CaptureSpec { buffer_bytes: 0, ..spec.clone() }, "1 at least");
    let interfaces = vec!["eth0".to_owned(), "eth1".to_owned()];
    refused(&CaptureSpec { interfaces, ..spec.clone() }, "no NI on interface eth1; it has some on: eth0");
    assert_eq!(std::fs::read_to_string(directory.file("there")).unwrap(), "kept");
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 2);

    // Shards that have ended.
    let tap = |_: Vec<TapEnd>| Err(CaptureError::Nothing);
    captures.start(&spec, (&[eth0()], 1), tap, |_| {}).unwrap_err();
    assert!(!Path::new(&spec.path).exists());

    for number in 0..CAPTURES_MAX {
        shards.start(&mut captures, &at(directory.file(&number.to_string())), &[]).unwrap();
    }
    let error = shards.start(&mut captures, &spec, &[]).unwrap_err();
    assert!(matches!(error, CaptureError::TooMany));
    // All of them end with the node.
    drop(captures);
    assert!(!shards.are_tapped());
    Contents::read_complete(&std::fs::read(directory.file("3")).unwrap());
}

#[test]
fn a_full_disk_ends_a_capture() {
    let shared = Arc::new(Shared::new());
    assert!(shared.add(&eth0()));
    let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Output::begin(file, BOUNDLESS, 0, &shared).unwrap();
    let untapped = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&untapped);
    let untap: Untap = Arc::new(move |id| told.lock().unwrap().push(id));
    let real_time = RealTime::measure();
    Writer { id: 7, output, sources: Vec::new(), shared: Arc::clone(&shared), real_time, untap }.run();
    assert_eq!(*untapped.lock().unwrap(), [7]);
    assert!(!shared.is_running.load(Ordering::Acquire));
    assert!(shared.failure().unwrap().contains("No space left"));
}

#[test]
fn a_tap_allocates_nothing() {
    let directory = Directory::new("allocates");
    let (mut captures, shards) = (Captures::default(), Shards::new(1));
    let spec = CaptureSpec { buffer_bytes: 1 << 16, ..CaptureSpec::new(directory.file("a"), BOUNDLESS) };
    shards.start(&mut captures, &spec, &[eth0()]).unwrap();
    let (eth0, bytes) = (eth0(), frame(1, 1514));
    let allocations = allocation_counter::measure(|| {
        for _ in 0..200 {
            shards.record(0, &eth0, Direction::Received, &bytes);
        }
    });
    assert_eq!(allocations.count_total, 0);
    let (state, _) = stop(&mut captures, &spec);
    assert_eq!(state.frame_count + state.missed_count, 200);
}

/// A process that is killed leaves a file whose frames can be read, all but those that were not written yet.
#[test]
fn a_killed_process_leaves_its_frames() {
    const CHILD: &str = "LNET_CAPTURE_CHILD";
    if let Ok(path) = std::env::var(CHILD) {
        let (mut captures, shards) = (Captures::default(), Shards::new(1));
        shards.start(&mut captures, &CaptureSpec::new(path, BOUNDLESS), &[eth0()]).unwrap();
        for number in 0..usize::MAX {
            shards.record(0, &eth0(), Direction::Sent, &frame(number, number % 3000));
            if number % 64 == 0 {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
    let directory = Directory::new("killed");
    let path = directory.file("a.pcapng");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "capture::tests::a_killed_process_leaves_its_frames"])
        .env(CHILD, &path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let length = || std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
    wait_until("it captures", || length() > 1 << 20);
    child.kill().unwrap();
    child.wait().unwrap();
    let contents = Contents::read(&std::fs::read(&path).unwrap());
    assert!(contents.frames.len() > 500 && contents.counted.is_empty());
    for (number, captured) in contents.frames.iter().enumerate() {
        assert!(captured.bytes == frame(number, number % 3000), "frame {number}");
    }
    assert!(contents.torn_bytes <= 3000 + 44, "{} bytes", contents.torn_bytes);
}

proptest! {
    /// What rings hold is written in the order of times, up to the horizon, whatever was pushed when.
    #[test]
    fn rings_are_merged(
        frames in proptest::collection::vec((0_usize..4, 0_u64..50, 0_usize..200), 0..100),
        horizon_ns in 0_u64..120,
    ) {
        let directory = Directory::new("merged");
        let path = directory.file("a.pcapng");
        let shared = Shared::new();
        shared.add(&eth0());
        let mut output = Output::begin(make_file(Path::new(&path)).unwrap(), BOUNDLESS, 0, &shared).unwrap();
        let (mut rings, mut sources): (Vec<_>, Vec<_>) = (0..4).map(|_| {
            let (ring, consumer) = RingBuffer::new(1 << 16);
            (ring, TapReader::new(consumer, Arc::default()))
        }).unzip();
        let mut times = [0; 4];
        let mut model: Vec<(u64, usize, Vec<u8>)> = Vec::new();
        for (number, (index, step_ns, length)) in frames.into_iter().enumerate() {
            times[index] += step_ns / 10;
            let bytes = frame(number, length);
            let length = length as u32;
            let head = Head { time_ns: times[index], interface: 0, flags: 2, captured_bytes: length, frame_bytes: length };
            rings[index].push_entire_slice(&head.encode()).unwrap();
            rings[index].push_entire_slice(&bytes).unwrap();
            model.push((times[index], index, bytes));
        }
        // Half a frame is none.
        rings[0].push_entire_slice(&Head { time_ns: times[0], interface: 0, flags: 2, captured_bytes: 9, frame_bytes: 9 }.encode()).unwrap();
        rings[0].push_entire_slice(&[0; 8]).unwrap();
        model.sort_by_key(|(time_ns, index, _)| (*time_ns, *index));
        for until_ns in [horizon_ns, u64::MAX] {
            let due = model.iter().filter(|(time_ns, ..)| *time_ns <= until_ns);
            writer::write_until(&mut sources, &mut output, &shared, until_ns).unwrap().unwrap();
            output.flush(&shared).unwrap();
            let contents = Contents::read(&std::fs::read(&path).unwrap());
            prop_assert!(contents.frames.iter().map(|frame| (frame.time_ns, &frame.bytes)).eq(due.map(|(time_ns, _, bytes)| (*time_ns, bytes))));
        }
    }
}
