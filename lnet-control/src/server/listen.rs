//! The socket's file: whose it is, who may open it.
//!
//! Invariants: a file that is no socket, a socket of another user and one with a server are left alone; the
//! file is never open to more people than it will be in the end; two daemons that start at the same time do
//! not both get it.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;

/// Why there is no socket to serve.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BindError {
    /// Something else is there.
    #[error("{0} is there and is no socket: remove it or choose another path")]
    NotASocket(PathBuf),
    /// Another user's socket is there.
    #[error("the socket {path} belongs to user {uid}: choose another path")]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Another daemon serves it.
    #[error("another daemon serves {0}: stop it, or give this one another node name")]
    Live(PathBuf),
    /// The file system or the kernel refuses.
    #[error("cannot {what} {path}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// The path that it was tried on.
        path: PathBuf,
        /// The refusal.
        error: io::Error,
    },
}

/// Who may open the socket besides root and the daemon's user.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Access {
    /// The group; `None` is the daemon's own.
    pub gid: Option<u32>,
}

/// A socket on which clients may connect. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    listener: UnixListener,
    path: PathBuf,
    owner: u32,
    /// Device and inode of the file.
    identity: (u64, u64),
    /// Held while the socket is ours.
    _lock: File,
}

impl Listener {
    /// Makes the socket at `path`, in place of one whose daemon has died, and the directory it is in. To be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`]; what was at the path is as before.
    pub fn bind(path: &Path, access: Access) -> Result<Self, BindError> {
        let failed = |what| move |error| BindError::Io { what, path: path.to_owned(), error };
        let owner = rustix::process::geteuid().as_raw();
        // Before anything is made that would stay.
        let address = SocketAddrUnix::new(path).map_err(|error| failed("make the socket")(error.into()))?;
        make_directory(path)?;
        // First look, so that the lock file appears beside nothing that is not ours.
        check_file(path, owner)?;
        let lock = take_lock(path)?;
        if check_file(path, owner)? == Found::Stale {
            fs::remove_file(path).map_err(failed("remove"))?;
        }
        let socket = bind_socket(&address).map_err(|error| failed("make the socket")(error.into()))?;
        chown(path, None, access.gid).map_err(failed("set the group of"))?;
        fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(failed("set the mode of"))?;
        let metadata = fs::symlink_metadata(path).map_err(failed("look at"))?;
        listen(&socket, BACKLOG).map_err(|error| failed("listen on")(error.into()))?;
        let listener =
            UnixListener::from_std(net::UnixListener::from(socket)).map_err(failed("listen on"))?;
        let identity = (metadata.dev(), metadata.ino());
        Ok(Self { listener, path: path.to_owned(), owner, identity, _lock: lock })
    }

    /// The user whose daemon it is.
    pub(super) fn owner(&self) -> u32 {
        self.owner
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A file that another process has put there stays.
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What is at the path of the socket.
#[derive(PartialEq, Eq)]
enum Found {
    Nothing,
    /// A socket of this user without a server.
    Stale,
}

fn check_file(path: &Path, owner: u32) -> Result<Found, BindError> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(BindError::Io { what: "look at", path: path.to_owned(), error }),
    };
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    if metadata.uid() != owner {
        return Err(BindError::Foreign { path: path.to_owned(), uid: metadata.uid() });
    }
    match net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Found::Stale),
        // Also one whose backlog is full, or that serves another kind of socket.
        _ => Err(BindError::Live(path.to_owned())),
    }
}

fn make_directory(path: &Path) -> Result<(), BindError> {
    let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) else {
        return Ok(());
    };
    match DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(BindError::Io { what: "make the directory", path: directory.to_owned(), error })
        }
        _ => Ok(()),
    }
}

/// The lock of the path: a file beside it, which stays.
fn take_lock(path: &Path) -> Result<File, BindError> {
    let mut name = OsString::from(path);
    name.push(".lock");
    let lock_path = PathBuf::from(name);
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let opened =
        OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags).open(&lock_path);
    let file = opened.map_err(|error| BindError::Io { what: "open", path: lock_path.clone(), error })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(BindError::Live(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(BindError::Io { what: "lock", path: lock_path, error }),
    }
}

/// A bound socket whose file is ours alone: the kernel takes the file's mode from the socket's.
fn bind_socket(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, address)?;
    Ok(socket)
}
