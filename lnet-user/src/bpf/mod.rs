//! The XDP program of an interface, loaded and driven from userspace.
//!
//! Invariants: aya is known here and nowhere else; one [`XdpProgram`] serves one interface; dropping it,
//! or the death of its process, detaches the program (it hangs on a `bpf_link`); what goes into a map was
//! checked before, so that the program never meets a value out of range.

use std::path::{Path, PathBuf};

mod counters;
mod error;
mod log;
mod program;
mod run;

pub use counters::{Counters, ReasonCount, SlotCount};
pub use error::BpfError;
pub use program::{ActiveMode, XdpProgram};
pub use run::{Action, TestFrame};

/// Names a file that is loaded instead of any other that [`find_object`] would find.
pub const OBJECT_VARIABLE: &str = "LNET_BPF_OBJECT";

/// Which of the two objects of the XDP program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// The one for everyday use.
    Default,
    /// The one that can log refusals.
    Logging,
}

impl ObjectKind {
    /// Its file name.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::Default => "lnet.bpf.o",
            Self::Logging => "lnet-log.bpf.o",
        }
    }
}

/// Finds the object file: [`OBJECT_VARIABLE`], beside the executable, `target/bpf` beneath an ancestor of
/// the executable, `/usr/lib/lnet`, in this order.
///
/// # Errors
/// [`BpfError::ObjectNotFound`] says where it looked. A variable that names no file is an error too.
pub fn find_object(kind: ObjectKind) -> Result<PathBuf, BpfError> {
    let variable = std::env::var_os(OBJECT_VARIABLE).map(PathBuf::from);
    let executable = std::env::current_exe().ok();
    first_file(candidates(kind, variable, executable.as_deref()))
}

fn candidates(kind: ObjectKind, variable: Option<PathBuf>, executable: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = variable {
        return vec![path];
    }
    let directories = executable.map(|path| path.ancestors().skip(1)).into_iter().flatten();
    let mut paths: Vec<_> = directories.map(|path| path.join("target/bpf").join(kind.file_name())).collect();
    if let Some(beside) = executable.and_then(Path::parent) {
        paths.insert(0, beside.join(kind.file_name()));
    }
    paths.push(Path::new("/usr/lib/lnet").join(kind.file_name()));
    paths
}

fn first_file(candidates: Vec<PathBuf>) -> Result<PathBuf, BpfError> {
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => Ok(path.clone()),
        None => Err(BpfError::ObjectNotFound { searched: candidates }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_looked_for_from_near_to_far() {
        let executable = Path::new("/w/target/debug/lnetd");
        let paths = candidates(ObjectKind::Default, None, Some(executable));
        let expected = [
            "/w/target/debug/lnet.bpf.o",
            "/w/target/debug/target/bpf/lnet.bpf.o",
            "/w/target/target/bpf/lnet.bpf.o",
            "/w/target/bpf/lnet.bpf.o",
            "/target/bpf/lnet.bpf.o",
            "/usr/lib/lnet/lnet.bpf.o",
        ];
        assert_eq!(paths, expected.map(PathBuf::from));
        let paths = candidates(ObjectKind::Logging, Some("/x/y.o".into()), Some(executable));
        assert_eq!(paths, [PathBuf::from("/x/y.o")]);
    }

    #[test]
    fn a_missing_object_says_where_it_was_sought_and_how_to_make_it() {
        let error = first_file(candidates(ObjectKind::Logging, None, None)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/usr/lib/lnet/lnet-log.bpf.o"), "{text}");
        assert!(text.contains("cargo xtask build-ebpf"), "{text}");
    }
}
