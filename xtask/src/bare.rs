//! Builds for other targets: the pure crates for one without an operating system, and the programs for arm64.
//!
//! Core, alloc and std are built from the sources that the distribution packages with its compiler, which
//! spares libraries for each target. Nothing is linked.

use std::path::Path;

use anyhow::Result;
use xtask::command::succeed;

use crate::setup;

/// A build for another target.
struct Build {
    target: &'static str,
    /// `build`, or `check` where code would have to be made of much that is not ours.
    verb: &'static str,
    /// The libraries that are built for it.
    libraries: &'static str,
    packages: &'static [&'static str],
    /// Flags of the compiler.
    flags: &'static str,
}

const BUILDS: [Build; 2] = [
    Build {
        target: "x86_64-unknown-none",
        verb: "build",
        libraries: "core,alloc",
        packages: &["lnet-wire", "lnet-model", "lnet-core", "lnet-xdp-proto", "lnet-tcp-proto"],
        // Signatures are computed by vector instructions elsewhere, which this target has none of: LLVM dies
        // of them.
        flags: "--cfg curve25519_dalek_backend=\"serial\"",
    },
    Build {
        target: "aarch64-unknown-linux-gnu",
        verb: "check",
        libraries: "std,panic_abort",
        packages: &["lnetd", "lnetctl", "lst", "lnet-nettest"],
        flags: "",
    },
];

/// Builds, or checks, for all of them. Gives a note: what for.
///
/// # Errors
/// When the compiler's sources are missing, or something does not compile.
pub(crate) fn check(root: &Path) -> Result<String> {
    let compiler = setup::ensure_sources()?;
    for build in &BUILDS {
        let mut command = compiler.cargo();
        command.current_dir(root).args([build.verb, "--quiet", "--target", build.target]);
        command.args(["-Z", &format!("build-std={}", build.libraries)]);
        command.args(build.packages.iter().flat_map(|package| ["--package", package]));
        compiler.configure(&mut command);
        command.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", build.flags);
        succeed(command.env("CARGO_TARGET_DIR", root.join("target/bare")))?;
    }
    Ok(BUILDS.map(|build| build.target).join(", "))
}
