//! Archives in the `newc` form of cpio, which a kernel unpacks as its first root file system
//! (Linux `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::{fs, io};

use anyhow::{Context, Result};

/// Type bits of a mode: a directory.
const DIRECTORY: u32 = 0o040_000;
/// Type bits of a mode: a regular file.
const FILE: u32 = 0o100_000;
/// Type bits of a mode: a symbolic link.
const LINK: u32 = 0o120_000;
/// The name that ends an archive.
const TRAILER: &str = "TRAILER!!!";
/// Archives one behind the other begin at multiples of so many bytes.
const ALIGNMENT_BYTES: usize = 512;

/// An archive that is being written. Paths have no slash at their head, and a directory comes before what is
/// in it; [`Archive::file`] and [`Archive::link`] add missing directories by themselves.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    count: u32,
    directories: Vec<String>,
}

impl Archive {
    /// Adds a directory with all above it; one that is there already is left alone.
    pub(super) fn directory(&mut self, path: &str) {
        if path.is_empty() || self.directories.iter().any(|known| known == path) {
            return;
        }
        self.parents(path);
        self.directories.push(path.to_owned());
        self.entry(path, DIRECTORY | 0o755, &[]);
    }

    /// Adds a file with these permissions.
    pub(super) fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.parents(path);
        self.entry(path, FILE | permissions, content);
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, LINK | 0o777, target.as_bytes());
    }

    /// Adds a file of this machine, with its permissions.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn copy(&mut self, path: &str, from: &Path) -> Result<()> {
        let read = || -> io::Result<_> { Ok((fs::read(from)?, fs::metadata(from)?.permissions().mode())) };
        let (content, mode) = read().with_context(|| from.display().to_string())?;
        self.file(path, mode & 0o777, &content);
        Ok(())
    }

    /// Adds all files below a directory of this machine.
    ///
    /// # Errors
    /// When one of them cannot be read.
    pub(super) fn tree(&mut self, path: &str, from: &Path) -> Result<()> {
        let mut entries: Vec<_> = fs::read_dir(from)
            .and_then(Iterator::collect::<io::Result<_>>)
            .with_context(|| from.display().to_string())?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let path = format!("{path}/{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                self.directory(&path);
                self.tree(&path, &entry.path())?;
            } else {
                self.copy(&path, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Ends the archive and gives its bytes.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        pad(&mut self.bytes, ALIGNMENT_BYTES);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        if let Some((parent, _)) = path.rsplit_once('/') {
            self.directory(parent);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        let links = if mode & DIRECTORY == 0 { 1 } else { 2 };
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        // Inode, mode, user, group, links, time, bytes, four device numbers, bytes of the name, checksum.
        let (bytes, name_bytes) = (length(content.len()), length(path.len() + 1));
        let fields = [self.count, mode, 0, 0, links, 0, bytes, 0, 0, 0, 0, name_bytes, 0];
        self.count += 1;
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        pad(&mut self.bytes, 4);
        self.bytes.extend_from_slice(content);
        pad(&mut self.bytes, 4);
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: usize) {
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
}

#[cfg(test)]
mod tests {
    use super::Archive;

    /// The paths of an archive with their modes and contents.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            let field = |index: usize| {
                let text = str::from_utf8(&bytes[6 + index * 8..14 + index * 8]).unwrap();
                u32::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&bytes[..6], b"070701");
            let (mode, size, name_bytes) = (field(1), field(6) as usize, field(11) as usize);
            let name = str::from_utf8(&bytes[110..109 + name_bytes]).unwrap().to_owned();
            let content = (110 + name_bytes).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return entries;
            }
            entries.push((name, mode, bytes[content..content + size].to_vec()));
            bytes = &bytes[(content + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn an_archive_has_directories_before_their_files() {
        let mut archive = Archive::default();
        archive.file("usr/bin/a", 0o755, b"program");
        archive.link("usr/bin/b", "a");
        archive.directory("usr");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 512, 0);
        let expected = [
            ("usr", 0o040_755, &b""[..]),
            ("usr/bin", 0o040_755, b""),
            ("usr/bin/a", 0o100_755, b"program"),
            ("usr/bin/b", 0o120_777, b"a"),
        ];
        let expected = expected.map(|(name, mode, content)| (name.to_owned(), mode, content.to_vec()));
        assert_eq!(entries(&bytes), expected);
    }
}
