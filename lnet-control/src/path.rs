//! Where the control sockets of nodes are.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::{env, fs};

use thiserror::Error;

/// Directory of the sockets of nodes that root started.
pub const SYSTEM_DIRECTORY: &str = "/run/lnet";
/// Name of a node without a name of its own.
pub const DEFAULT_NODE: &str = "lnet";
/// Environment variable with the path of the socket to use.
pub const SOCKET_VARIABLE: &str = "LNET_SOCKET";

/// Why no socket was found.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum PathError {
    /// A node's name that could not be a file's.
    #[error("node {0:?}: letters, digits, '-', '_' and '.' are expected, and no '.' in front")]
    Name(String),
    /// There are several nodes.
    #[error("several nodes run here ({}): choose one with --node or --socket", .0.join(", "))]
    Several(Vec<String>),
    /// Nothing answers at any of several paths.
    #[error("no node runs here: nothing answers at {}", .0.iter().map(|path| path.display().to_string())
        .collect::<Vec<_>>().join(", "))]
    Dead(Vec<PathBuf>),
}

/// The directories in which sockets are looked for, the user's own first.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    let own = env::var_os("XDG_RUNTIME_DIR").filter(|path| Path::new(path).is_absolute());
    let own = own.map(|path| Path::new(&path).join("lnet"));
    own.into_iter().chain([PathBuf::from(SYSTEM_DIRECTORY)]).collect()
}

/// The directory in which a daemon of this user makes its socket.
#[must_use]
pub fn own_directory() -> PathBuf {
    let system = PathBuf::from(SYSTEM_DIRECTORY);
    if rustix::process::geteuid().is_root() {
        return system;
    }
    directories().into_iter().next().unwrap_or(system)
}

/// The path of a node's socket in `directory`.
///
/// # Errors
/// [`PathError::Name`].
pub fn socket_of(directory: &Path, node: &str) -> Result<PathBuf, PathError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if node.is_empty() || node.len() > 64 || node.starts_with('.') || !node.bytes().all(fits) {
        return Err(PathError::Name(node.to_owned()));
    }
    Ok(directory.join(format!("{node}.sock")))
}

/// The socket to talk to: `socket` if given, else that of `node`, else what [`SOCKET_VARIABLE`] says, else
/// that of the only node there is, or of [`DEFAULT_NODE`].
///
/// # Errors
/// [`PathError`]: a bad name, several nodes to choose from, or only what several have left.
pub fn find(socket: Option<PathBuf>, node: Option<&str>) -> Result<PathBuf, PathError> {
    if let Some(socket) = socket {
        return Ok(socket);
    }
    let directories = directories();
    if let Some(node) = node {
        let paths = directories.iter().map(|directory| socket_of(directory, node));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        let first = paths.iter().find(|path| path.exists()).or(paths.first());
        return first.cloned().ok_or_else(|| PathError::Name(node.to_owned()));
    }
    if let Some(socket) = env::var_os(SOCKET_VARIABLE).filter(|socket| !socket.is_empty()) {
        return Ok(socket.into());
    }
    only_one(&directories)
}

/// The only socket in these directories, or the default one's path if there is none. Of several files those
/// count at which a daemon answers.
fn only_one(directories: &[PathBuf]) -> Result<PathBuf, PathError> {
    let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    let mut sockets: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "sock"))
        .collect();
    sockets.sort();
    if sockets.len() > 1 {
        let served: Vec<_> = sockets.iter().filter(|path| is_served(path)).cloned().collect();
        if served.is_empty() {
            return Err(PathError::Dead(sockets));
        }
        sockets = served;
    }
    match sockets.as_slice() {
        [] => socket_of(&own_directory(), DEFAULT_NODE),
        [one] => Ok(one.clone()),
        several => {
            let names = several.iter().filter_map(|path| path.file_stem());
            Err(PathError::Several(names.map(|name| name.to_string_lossy().into_owned()).collect()))
        }
    }
}

/// Whether a daemon listens there, be it that it may not be spoken to.
fn is_served(path: &Path) -> bool {
    if !fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        return false;
    }
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes_are_names_of_files() {
        let directory = Path::new("/run/lnet");
        assert_eq!(socket_of(directory, "a-1.b_2").unwrap(), Path::new("/run/lnet/a-1.b_2.sock"));
        for bad in ["", ".", "..", ".hidden", "a/b", "a b", "ü", &"x".repeat(65)] {
            assert_eq!(socket_of(directory, bad), Err(PathError::Name(bad.to_owned())));
        }
    }

    #[test]
    fn one_node_needs_no_name() {
        let directory = env::temp_dir().join(format!("lnet-path-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let directories = [directory.join("absent"), directory.clone()];
        assert!(only_one(&directories).unwrap().ends_with("lnet.sock"));
        fs::write(directory.join("one.sock"), "").unwrap();
        fs::write(directory.join("one.sock.lock"), "").unwrap();
        assert_eq!(only_one(&directories), Ok(directory.join("one.sock")));
        fs::write(directory.join("two.sock"), "").unwrap();
        let dead = only_one(&directories).unwrap_err();
        assert_eq!(dead, PathError::Dead(["one.sock", "two.sock"].map(|name| directory.join(name)).into()));
        let told = dead.to_string();
        assert!(told.starts_with("no node runs here: nothing answers at /"), "{told}");
        assert!(told.contains("one.sock, ") && told.ends_with("two.sock"), "{told}");
        // A daemon that answers is the only one beside what dead ones have left.
        let listens = |name: &str| std::os::unix::net::UnixListener::bind(directory.join(name)).unwrap();
        drop(listens("dead.sock"));
        fs::create_dir(directory.join("directory.sock")).unwrap();
        let _three = listens("three.sock");
        assert_eq!(only_one(&directories), Ok(directory.join("three.sock")));
        let _four = listens("four.sock");
        assert_eq!(only_one(&directories), Err(PathError::Several(vec!["four".into(), "three".into()])));
        fs::remove_dir_all(&directory).unwrap();
    }
}
