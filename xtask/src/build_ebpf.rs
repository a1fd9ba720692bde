//! `cargo xtask build-ebpf`: compiles the XDP program.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::setup::{BPF_TARGET, BpfToolchain, Compiler, cargo, scrub};

/// The XDP program's objects.
#[derive(Debug)]
pub(crate) struct Objects {
    /// Loads in aya and libbpf: `target/bpf/lnet.bpf.o`.
    pub(crate) default: PathBuf,
    /// Logs refusals; loads in aya only: `target/bpf/lnet-log.bpf.o`.
    pub(crate) log: PathBuf,
}

/// Compiles both objects; quick when nothing changed.
///
/// # Errors
/// The compiler's exit status; what it had to say it has printed.
pub(crate) fn build(root: &Path, toolchain: &BpfToolchain) -> anyhow::Result<Objects> {
    let directory = root.join("target/bpf");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let objects = Objects { default: directory.join("lnet.bpf.o"), log: directory.join("lnet-log.bpf.o") };
    build_one(root, toolchain, "default", &[], &objects.default)?;
    build_one(root, toolchain, "log", &["--features", "log"], &objects.log)?;
    Ok(objects)
}

/// Compiles the program with `features` and puts the object at `object`. Each set of features has a target
/// directory `name` of its own, so that cargo's notes on one never make it rebuild the other.
fn build_one(
    root: &Path,
    toolchain: &BpfToolchain,
    name: &str,
    features: &[&str],
    object: &Path,
) -> anyhow::Result<()> {
    let target = root.join("target/bpf-build").join(name);
    let mut command = match &toolchain.compiler {
        Compiler::Distribution { .. } => Command::new(cargo()),
        Compiler::Rustup { toolchain } => {
            let mut command = Command::new("rustup");
            command.args(["run", toolchain, "cargo"]);
            command
        }
    };
    scrub(&mut command);
    command
        .current_dir(root)
        .args(["build", "--quiet", "--release", "--package", "lnet-ebpf", "--target", BPF_TARGET])
        .args(features)
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", &toolchain.linker)
        // BTF names and types the maps, and is made from the debug information.
        .env("RUSTFLAGS", "-C debuginfo=2 -C link-arg=--btf");
    match &toolchain.compiler {
        // The BPF target is a nightly feature of a compiler that is otherwise stable.
        Compiler::Distribution { rustc } => command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1"),
        Compiler::Rustup { .. } => command.args(["-Z", "build-std=core"]),
    };
    let status =
        command.status().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !status.success() {
        bail!("building {} failed ({status})", object.display());
    }
    install(&target.join(BPF_TARGET).join("release/lnet-ebpf"), object)
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
