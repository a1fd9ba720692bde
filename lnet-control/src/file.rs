//! Files that are read whole and replaced whole.
//!
//! Invariants: no file that is read can block, or take more memory than a limit; a file that is written has
//! all of its new text or all of its former.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Mode of a new file, less what the process masks.
const MODE: u32 = 0o666;
/// Links that are followed at most (Linux `MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// The bytes of a regular file of at most so many.
///
/// # Errors
/// The system's; [`ErrorKind::InvalidInput`] for what is no regular file, [`ErrorKind::FileTooLarge`] for one
/// that is longer.
pub fn read_regular(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() {
        let found = match kind {
            kind if kind.is_dir() => "a directory",
            kind if kind.is_fifo() => "a FIFO",
            kind if kind.is_char_device() || kind.is_block_device() => "a device",
            _ => "a socket",
        };
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("{found}: a regular file is expected")));
    }
    read(file, bytes_max)
}

/// All bytes of a reader, of at most so many.
///
/// # Errors
/// The reader's; [`ErrorKind::FileTooLarge`] where there are more.
pub fn read(reader: impl Read, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max {
        let message = format!("more than {bytes_max} bytes, which are the most that are expected");
        return Err(io::Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// Writes a file: one that is there keeps its bytes until the new ones are on disk, and then its mode and
/// owner. A device or a pipe is written to as it is.
///
/// # Errors
/// The system's; the file is as it was then, or is not there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let former = match fs::metadata(path) {
        Ok(former) => Some(former),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if former.as_ref().is_some_and(|former| !former.is_file()) {
        return OpenOptions::new().write(true).open(path)?.write_all(bytes);
    }
    // A file that may not be written is not replaced either.
    if former.is_some() {
        OpenOptions::new().write(true).open(path)?;
    }
    let target = end_of_links(path)?;
    let directory = match target.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    // The library's own way tells its path, and no errno.
    let make = |path: &Path| OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
    let mut fresh = tempfile::Builder::new().prefix(".lnet-").suffix(".new").make_in(directory, make)?;
    if let Some(former) = &former {
        // A file may be written by more than may give it away.
        let _ = fchown(fresh.as_file(), Some(former.uid()), Some(former.gid()));
        fresh.as_file().set_permissions(former.permissions())?;
    }
    fresh.as_file_mut().write_all(bytes)?;
    fresh.as_file().sync_all()?;
    fresh.persist(&target).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

/// Path of the file that a path leads to, which need not be there: a link is followed, and stays.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    let mut target = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(next) = fs::read_link(&target) else { return Ok(target) };
        target = target.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(Errno::LOOP.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        replace(&path, b"first").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let former = File::open(&path).unwrap();
        replace(&path, b"2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        assert_eq!(read(former, 9).unwrap(), b"first");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        // A link stays one.
        let link = directory.path().join("link");
        symlink(&path, &link).unwrap();
        replace(&link, b"third").unwrap();
        assert_eq!((fs::read(&path).unwrap(), link.is_symlink()), (b"third".to_vec(), true));
        // A link that leads nowhere stays too, and its target is made.
        let dangling = directory.path().join("x");
        symlink("y", &dangling).unwrap();
        replace(&dangling, b"fourth").unwrap();
        assert_eq!(fs::read(directory.path().join("y")).unwrap(), b"fourth");
        assert_eq!(
            (dangling.is_symlink(), names(directory.path())),
            (true, ["a", "link", "x", "y"].map(str::to_owned).into())
        );
        symlink("loop", directory.path().join("loop")).unwrap();
        let refused = |path: &str| replace(&directory.path().join(path), b"a").unwrap_err().raw_os_error();
        assert_eq!(
            [refused("loop"), refused("no/a")],
            [Errno::LOOP, Errno::NOENT].map(|errno| Some(errno.raw_os_error()))
        );
        assert_eq!(replace(Path::new("/dev/full"), b"a").unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(replace(directory.path(), b"a").is_err() && replace(Path::new("/no/a"), b"a").is_err());
    }

    #[test]
    fn what_has_no_end_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        let refused = |path: &Path| read_regular(path, 4).unwrap_err().to_string();
        assert_eq!(refused(&fifo), "a FIFO: a regular file is expected");
        assert_eq!(refused(Path::new("/dev/zero")), "a device: a regular file is expected");
        assert_eq!(refused(directory.path()), "a directory: a regular file is expected");
        let path = directory.path().join("a");
        replace(&path, b"12345").unwrap();
        assert!(refused(&path).starts_with("more than 4 bytes"));
        assert_eq!(read_regular(&path, 5).unwrap(), b"12345");
    }
}
