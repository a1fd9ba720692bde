//! `cargo xtask build-ebpf`: compiles the XDP program, or has clippy read it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use xtask::command::succeed;

use crate::setup::{BPF_TARGET, BpfToolchain, Compiler, ensure_clippy};

/// The XDP program's objects.
#[derive(Debug)]
pub(crate) struct Objects {
    /// Loads in aya and libbpf: `target/bpf/lnet.bpf.o`.
    pub(crate) default: PathBuf,
    /// Logs refusals; loads in aya only: `target/bpf/lnet-log.bpf.o`.
    pub(crate) log: PathBuf,
}

/// A form of the program: a set of features, with a target directory of its own, so that cargo's notes on
/// one form never make it rebuild the other.
struct Form {
    name: &'static str,
    features: &'static [&'static str],
}

const DEFAULT: Form = Form { name: "default", features: &[] };
const LOG: Form = Form { name: "log", features: &["--features", "log"] };

impl Form {
    fn target_directory(&self, root: &Path) -> PathBuf {
        root.join("target/bpf-build").join(self.name)
    }
}

/// Compiles both objects; quick when nothing changed.
///
/// # Errors
/// The compiler's exit status; what it had to say it has printed.
pub(crate) fn build(root: &Path, toolchain: &BpfToolchain) -> anyhow::Result<Objects> {
    let directory = root.join("target/bpf");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let objects = Objects { default: directory.join("lnet.bpf.o"), log: directory.join("lnet-log.bpf.o") };
    for (form, object) in [(DEFAULT, &objects.default), (LOG, &objects.log)] {
        succeed(prepare(&mut toolchain.compiler.cargo(), root, toolchain, "build", &form))?;
        install(&form.target_directory(root).join(BPF_TARGET).join("release/lnet-ebpf"), object)?;
    }
    Ok(objects)
}

/// Runs clippy over the program in both forms.
///
/// # Errors
/// When clippy is not there, or has something to say, which it has printed.
pub(crate) fn clippy(root: &Path, toolchain: &BpfToolchain) -> anyhow::Result<()> {
    for form in [DEFAULT, LOG] {
        let mut command = ensure_clippy(&toolchain.compiler)?;
        succeed(prepare(&mut command, root, toolchain, "clippy", &form).args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}

/// Makes `command`, a cargo of some kind, do `verb` to one form of the program.
fn prepare<'a>(
    command: &'a mut Command,
    root: &Path,
    toolchain: &BpfToolchain,
    verb: &str,
    form: &Form,
) -> &'a mut Command {
    command
        .current_dir(root)
        .args([verb, "--quiet", "--release", "--package", "lnet-ebpf", "--target", BPF_TARGET])
        .args(form.features)
        .env("CARGO_TARGET_DIR", form.target_directory(root))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker)
        // BTF names and types the maps, and is made from the debug information.
        .env("RUSTFLAGS", "-C debuginfo=2 -C link-arg=--btf");
    match &toolchain.compiler {
        // The BPF target is a nightly feature of a compiler that is otherwise stable.
        Compiler::Distribution { rustc } => command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1"),
        Compiler::Rustup => command.args(["-Z", "build-std=core"]),
    }
}

/// Copies `built` to `object` where they differ, in one step, so that a reader sees a whole object.
fn install(built: &Path, object: &Path) -> anyhow::Result<()> {
    let bytes = std::fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    if std::fs::read(object).is_ok_and(|present| present == bytes) {
        return Ok(());
    }
    let fresh = object.with_extension(format!("o.{}", std::process::id()));
    std::fs::write(&fresh, &bytes).with_context(|| format!("cannot write {}", fresh.display()))?;
    std::fs::rename(&fresh, object).with_context(|| format!("cannot write {}", object.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_an_equal_object_leaves_the_file_alone() {
        let directory = std::env::temp_dir().join(format!("xtask-build-ebpf-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (built, object) = (directory.join("built"), directory.join("x.bpf.o"));
        std::fs::write(&built, b"one").unwrap();
        install(&built, &object).unwrap();
        let first = object.metadata().unwrap().modified().unwrap();
        install(&built, &object).unwrap();
        assert_eq!(object.metadata().unwrap().modified().unwrap(), first);
        std::fs::write(&built, b"two").unwrap();
        install(&built, &object).unwrap();
        assert_eq!(std::fs::read(&object).unwrap(), b"two");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
