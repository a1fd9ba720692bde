//! `cargo xtask setup`: finds or installs what building the XDP program and running the privileged tests
//! take.
//!
//! The XDP program needs a compiler with `core` for [`BPF_TARGET`] and `bpf-linker`, linked with an LLVM
//! no older than that compiler's. Two ways lead there:
//!
//! 1. Debian and Ubuntu package both: `rustc-web` with a prebuilt `core` for BPF, and `llvm-N-dev` of the
//!    same LLVM.
//! 2. Elsewhere a rustup nightly with `rust-src` builds `core` itself.
//!
//! What is there already is used; nothing is looked up on the network then. `bpf-linker` goes into the
//! workspace's `target/tools`, packages through the system's package manager; nothing else is touched.

mod apt;
mod programs;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

pub(crate) use programs::cargo;
use programs::{answer, find_program, run, runs, scrub};

/// The target that the XDP program compiles for.
pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";
/// Oldest compiler, as major and minor version, that this workspace takes (`rust-version`).
const RUST_OLDEST: (u32, u32) = (1, 95);
/// The `bpf-linker` that is installed where there is none.
const LINKER_VERSION: &str = "0.13.0";
/// LLVM majors that this `bpf-linker` can be built with.
const LINKER_LLVM: std::ops::RangeInclusive<u32> = 21..=23;
/// The rustup toolchain of the second way.
const NIGHTLY: &str = "nightly";

/// What the XDP program is built with.
#[derive(Debug)]
pub(crate) struct BpfToolchain {
    /// The compiler.
    pub(crate) compiler: Compiler,
    /// `bpf-linker`.
    pub(crate) linker: PathBuf,
}

impl BpfToolchain {
    /// What the compiler and the linker say of themselves, in one line.
    pub(crate) fn version(&self) -> String {
        let mut rustc = match &self.compiler {
            Compiler::Distribution { rustc } => Command::new(rustc),
            Compiler::Rustup => rustup_rustc("--version"),
        };
        if matches!(self.compiler, Compiler::Distribution { .. }) {
            rustc.arg("--version");
        }
        let linker = answer(Command::new(&self.linker).arg("--version"));
        [answer(&mut rustc), linker].map(|text| text.unwrap_or_default().trim().to_owned()).join(", ")
    }
}

/// A compiler that can build `core` programs for BPF.
#[derive(Debug)]
pub(crate) enum Compiler {
    /// A distribution's, with `core` prebuilt.
    Distribution {
        /// Path of `rustc`.
        rustc: PathBuf,
    },
    /// A rustup toolchain that builds `core` from source.
    Rustup,
}

impl Compiler {
    /// The cargo to build with, in a clean environment.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = match self {
            Self::Distribution { .. } => Command::new(cargo()),
            Self::Rustup => Command::new("rustup"),
        };
        if matches!(self, Self::Rustup) {
            command.args(["run", NIGHTLY, "cargo"]);
        }
        scrub(&mut command);
        command
    }

    /// Has a command of [`Self::cargo`] use this compiler, with what of it is a nightly feature.
    pub(crate) fn configure(&self, command: &mut Command) {
        if let Self::Distribution { rustc } = self {
            command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
        }
    }
}

/// Version and LLVM major of a compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CompilerVersion {
    rust: (u32, u32),
    llvm: u32,
}

/// Finds the BPF toolchain, and installs what is missing of it.
///
/// # Errors
/// Names what is missing, why it could not be installed, and the commands that would do it.
pub(crate) fn ensure(root: &Path) -> anyhow::Result<BpfToolchain> {
    let (compiler, version) = ensure_compiler()?;
    // Lines of core's sources stand in the object where the compiler finds them: it would be another one.
    ensure_sources()?;
    let linker = ensure_linker(root, version.llvm)?;
    let name = match &compiler {
        Compiler::Distribution { rustc } => rustc.display().to_string(),
        Compiler::Rustup => format!("rustup toolchain {NIGHTLY}"),
    };
    let (major, minor) = version.rust;
    eprintln!("setup: BPF compiler {name} {major}.{minor} (LLVM {}), {}", version.llvm, linker.display());
    Ok(BpfToolchain { compiler, linker })
}

/// Finds or installs a compiler with `core` for BPF.
fn ensure_compiler() -> anyhow::Result<(Compiler, CompilerVersion)> {
    let mut obstacles = String::new();
    let mut attempt = |install: fn() -> anyhow::Result<(Compiler, CompilerVersion)>| match install() {
        Ok(found) => Some(found),
        Err(error) => {
            let _ = write!(obstacles, "\n- {error:#}");
            None
        }
    };
    let found = find_distribution()
        .or_else(find_rustup)
        .or_else(|| attempt(install_distribution))
        .or_else(|| attempt(install_rustup));
    let Some(found) = found else {
        bail!(
            "no Rust compiler with `core` for {BPF_TARGET}. Either of these gives one, and neither worked:{obstacles}"
        );
    };
    Ok(found)
}

/// Finds or installs the compiler that builds the XDP program, with the sources of its libraries.
///
/// # Errors
/// Names what is missing, why it could not be installed, and the commands that would do it.
pub(crate) fn ensure_sources() -> anyhow::Result<Compiler> {
    let (compiler, _) = ensure_compiler()?;
    if let Compiler::Distribution { rustc } = &compiler {
        let sources = || {
            let sysroot = answer(Command::new(rustc).args(["--print", "sysroot"]))?;
            let library = Path::new(&sysroot).join("lib/rustlib/src/rust/library");
            library.join("alloc/src/lib.rs").exists().then_some(())
        };
        if sources().is_none() {
            apt::install(&["rust-web-src"], "the sources of core, alloc and std, for other targets")
                .with_context(|| format!("{} has no sources of its libraries", rustc.display()))?;
        }
        sources().with_context(|| format!("no library sources in the sysroot of {}", rustc.display()))?;
    }
    Ok(compiler)
}

/// Finds or installs what the privileged tests need besides: a C toolchain and libelf for libbpf-rs, `ip`
/// for network namespaces, `rpcinfo` as a client of the rpc transport, `tshark` as a reader of tcp nets,
/// `promtool` as a reader of metrics.
///
/// # Errors
/// Names what is missing, why it could not be installed, and the command that would do it.
pub(crate) fn ensure_test_tools() -> anyhow::Result<()> {
    const TOOLS: [(&str, &[&str]); 8] = [
        ("gcc", &["gcc", "libc6-dev"]),
        ("make", &["make"]),
        ("pkg-config", &["pkg-config"]),
        ("ip", &["iproute2"]),
        ("ethtool", &["ethtool"]),
        ("rpcinfo", &["rpcbind"]),
        ("tshark", &["tshark"]),
        ("promtool", &["prometheus"]),
    ];
    const LIBRARIES: [(&str, &str); 2] = [("libelf", "libelf-dev"), ("zlib", "zlib1g-dev")];
    let mut missing = Vec::new();
    for (tool, packages) in TOOLS {
        if find_program(tool).is_none() {
            missing.extend_from_slice(packages);
        }
    }
    for (library, package) in LIBRARIES {
        let known = Command::new("pkg-config").args(["--exists", library]).status();
        if !known.is_ok_and(|status| status.success()) {
            missing.push(package);
        }
    }
    if !missing.is_empty() {
        apt::install(
            &missing,
            "libbpf-rs (second loader in the tests), network namespaces, rpcinfo, tshark and promtool",
        )
        .context(
            "the privileged tests need gcc, make, pkg-config, libelf and zlib with headers \
             (Fedora: elfutils-libelf-devel, zlib-devel), iproute2, rpcbind, tshark and prometheus",
        )?;
    }
    eprintln!("setup: test tools gcc, make, pkg-config, libelf, zlib, ip, rpcinfo, tshark, promtool");
    Ok(())
}

/// Finds or installs what makes and checks packages, and runs containers of them.
///
/// # Errors
/// Names what is missing, why it could not be installed, and the command that would do it.
pub(crate) fn ensure_package_tools() -> anyhow::Result<()> {
    const TOOLS: [(&str, &str); 4] =
        [("dpkg-shlibdeps", "dpkg-dev"), ("xz", "xz-utils"), ("lintian", "lintian"), ("crun", "crun")];
    let is_missing = |(tool, _): &&(&str, &str)| find_program(tool).is_none();
    let missing: Vec<_> = TOOLS.iter().filter(is_missing).map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        apt::install(&missing, "packages for Debian, and containers")
            .context("packages are made and tested on Debian and Ubuntu, with dpkg-dev, lintian and crun")?;
    }
    eprintln!("setup: packages with dpkg-dev, lintian, crun");
    Ok(())
}

/// Finds or installs what virtual machines are made and run with.
///
/// # Errors
/// Names what is missing, why it could not be installed, and the command that would do it.
pub(crate) fn ensure_machine_tools() -> anyhow::Result<()> {
    const TOOLS: [(&str, &str); 8] = [
        ("dpkg-deb", "dpkg"),
        ("depmod", "kmod"),
        ("ethtool", "ethtool"),
        ("ip", "iproute2"),
        ("setpriv", "util-linux"),
        ("strip", "binutils"),
        ("xz", "xz-utils"),
        ("zstd", "zstd"),
    ];
    // Programs of root are not on every user's PATH.
    let is_missing = |tool: &str| {
        let in_sbin = ["/usr/sbin", "/sbin"].map(|directory| Path::new(directory).join(tool));
        find_program(tool).is_none() && !in_sbin.iter().any(|path| path.is_file())
    };
    let mut missing: Vec<_> =
        TOOLS.iter().filter(|(tool, _)| is_missing(tool)).map(|(_, package)| *package).collect();
    if !Path::new("/usr/share/keyrings/debian-archive-keyring.gpg").exists() {
        missing.push("debian-archive-keyring");
    }
    if !missing.is_empty() {
        let needs = "virtual machines need Debian's packages of QEMU and kernels (`--no-vm` does without)";
        apt::install(&missing, "virtual machines with other kernels and NICs").context(needs)?;
    }
    eprintln!("setup: virtual machines with QEMU and kernels by apt");
    Ok(())
}

/// Finds or installs a C++ compiler, for libFuzzer.
///
/// # Errors
/// Names what is missing, why it could not be installed, and the command that would do it.
pub(crate) fn ensure_cpp() -> anyhow::Result<()> {
    if find_program("c++").is_none() {
        apt::install(&["g++"], "libFuzzer").context("the fuzzer needs a C++ compiler")?;
    }
    Ok(())
}

/// Finds or installs clippy of the compiler's own version; gives the command that takes `clippy` as its verb.
///
/// # Errors
/// Names what is missing, why it could not be installed, and the command that would do it.
pub(crate) fn ensure_clippy(compiler: &Compiler) -> anyhow::Result<Command> {
    match compiler {
        Compiler::Distribution { rustc } => {
            let linter = rustc.with_file_name("cargo-clippy");
            if !runs(&linter) {
                apt::install(&["rust-web-clippy"], "clippy for the XDP program")
                    .with_context(|| format!("no clippy beside {}", rustc.display()))?;
            }
            let mut command = Command::new(linter);
            scrub(&mut command);
            // The cargo that it calls in turn.
            command.env("CARGO", cargo());
            Ok(command)
        }
        Compiler::Rustup => {
            if answer(compiler.cargo().args(["clippy", "--version"])).is_none() {
                let mut command = Command::new("rustup");
                command.args(["component", "add", "clippy", "--toolchain", NIGHTLY]);
                run("clippy for the XDP program", &mut command)?;
            }
            Ok(compiler.cargo())
        }
    }
}

/// A Rust compiler of the distribution that comes with `core` for BPF.
fn find_distribution() -> Option<(Compiler, CompilerVersion)> {
    let rustc = PathBuf::from("/usr/bin/rustc");
    let version = compiler_version(Command::new(&rustc).arg("-vV"))?;
    let mut libraries = Command::new(&rustc);
    libraries.args(["--print", "target-libdir", "--target", BPF_TARGET]);
    let directory = PathBuf::from(answer(&mut libraries)?);
    let has_core = directory.read_dir().ok()?.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libcore-") && name.ends_with(".rlib")
    });
    (has_core && version.rust >= RUST_OLDEST).then_some((Compiler::Distribution { rustc }, version))
}

/// A rustup nightly with the sources of `core`.
fn find_rustup() -> Option<(Compiler, CompilerVersion)> {
    let version = compiler_version(&mut rustup_rustc("-vV"))?;
    let sysroot = answer(rustup_rustc("--print").arg("sysroot"))?;
    let has_source = Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/src/lib.rs").exists();
    (has_source && version.rust >= RUST_OLDEST).then_some((Compiler::Rustup, version))
}

fn rustup_rustc(argument: &str) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", NIGHTLY, "rustc", argument]);
    command.env_remove("RUSTUP_TOOLCHAIN").env("RUSTUP_AUTO_INSTALL", "0");
    command
}

fn install_distribution() -> anyhow::Result<(Compiler, CompilerVersion)> {
    const PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];
    let (major, minor) = RUST_OLDEST;
    let what = format!(
        "Debian, Ubuntu: packages {} (rustc {major}.{minor} or later with `core` for {BPF_TARGET})",
        PACKAGES.join(" ")
    );
    // An older release, or its lists of long ago, may offer the packages in a version that cannot build this.
    let too_old = || {
        let candidate = apt::candidate(PACKAGES[0])?;
        (parse_version(&candidate).unwrap_or_default() < RUST_OLDEST).then_some(candidate)
    };
    if let Some(old) = too_old() {
        apt::update(&format!("they offer {} {old}, {major}.{minor} is needed", PACKAGES[0]))?;
    }
    if let Some(old) = too_old() {
        bail!("{what}: this release offers {old}");
    }
    apt::install(&PACKAGES, "a Rust compiler with `core` for BPF").context(what)?;
    find_distribution().with_context(|| {
        format!("the packages {} are installed but hold no `core` for {BPF_TARGET}", PACKAGES.join(" "))
    })
}

fn install_rustup() -> anyhow::Result<(Compiler, CompilerVersion)> {
    let what = "anywhere: rustup with a nightly toolchain and rust-src";
    if find_program("rustup").is_none() {
        bail!("{what}: there is no rustup on PATH (https://rustup.rs installs it)");
    }
    let mut command = Command::new("rustup");
    command.args(["toolchain", "install", NIGHTLY, "--profile", "minimal", "--component", "rust-src"]);
    command.arg("--no-self-update").env_remove("RUSTUP_TOOLCHAIN");
    run("a nightly compiler and the sources of `core`, to build it for BPF", &mut command).context(what)?;
    find_rustup().with_context(|| format!("{what}: installed, but `rustup run {NIGHTLY} rustc` fails"))
}

/// `bpf-linker` for bitcode of LLVM `llvm` and older.
fn ensure_linker(root: &Path, llvm: u32) -> anyhow::Result<PathBuf> {
    let tools = root.join("target/tools");
    let own = tools.join("bin/bpf-linker");
    if runs(&own) && installed_llvm(&tools).is_none_or(|installed| installed >= llvm) {
        return Ok(own);
    }
    // The user's own linker says nothing about its LLVM, and linking fails loudly if that is old.
    if let Some(path) = find_program("bpf-linker").filter(|path| runs(path)) {
        return Ok(path);
    }
    match install_linker_from_source(&tools, llvm) {
        Ok(()) => {}
        Err(error) if find_program("cargo-binstall").is_some() => {
            eprintln!("setup: {error:#}");
            let mut command = Command::new("cargo-binstall");
            command.args(["--no-confirm", "--root"]).arg(&tools).arg(format!("bpf-linker@{LINKER_VERSION}"));
            run("bpf-linker, prebuilt", &mut command)?;
        }
        Err(error) => {
            return Err(error.context(format!(
                "bpf-linker for LLVM {llvm} is missing and could not be built (one on PATH does as well: \
                 `cargo binstall bpf-linker`, or a release of github.com/aya-rs/bpf-linker)"
            )));
        }
    }
    if !runs(&own) {
        bail!("{} was installed and does not run", own.display());
    }
    Ok(own)
}

/// The LLVM major that cargo built the tools' `bpf-linker` with, by its own records; `None` for a
/// prebuilt one.
fn installed_llvm(tools: &Path) -> Option<u32> {
    let records = std::fs::read(tools.join(".crates2.json")).ok()?;
    let records: serde_json::Value = serde_json::from_slice(&records).ok()?;
    let installs = records.get("installs")?.as_object()?;
    let (_, linker) = installs.iter().find(|(name, _)| name.starts_with("bpf-linker "))?;
    let features = linker.get("features")?.as_array()?;
    features.iter().filter_map(|feature| feature.as_str()?.strip_prefix("llvm-")?.parse().ok()).max()
}

fn install_linker_from_source(tools: &Path, llvm: u32) -> anyhow::Result<()> {
    if !LINKER_LLVM.contains(&llvm) {
        let (oldest, newest) = (LINKER_LLVM.start(), LINKER_LLVM.end());
        bail!("bpf-linker {LINKER_VERSION} knows LLVM {oldest} to {newest}, the compiler has LLVM {llvm}");
    }
    let prefix = match find_llvm(llvm) {
        Some(prefix) if find_program("g++").is_some() => prefix,
        _ => {
            let package = format!("llvm-{llvm}-dev");
            apt::install(&[&package, "g++"], "LLVM's libraries, which bpf-linker is built on")
                .with_context(|| format!("bpf-linker needs LLVM {llvm} with headers, and g++"))?;
            find_llvm(llvm).with_context(|| format!("{package} is installed but there is no llvm-config"))?
        }
    };
    let mut paths = vec![prefix.join("bin")];
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut command = Command::new(cargo());
    scrub(&mut command);
    command
        .args(["install", "bpf-linker", "--locked", "--version", LINKER_VERSION, "--no-default-features"])
        .args(["--features", &format!("llvm-{llvm}"), "--force", "--root"])
        .arg(tools)
        .env("PATH", std::env::join_paths(paths)?)
        .env("LLVM_PREFIX", &prefix)
        .env("RUSTFLAGS", format!("-L native={}", prefix.join("lib").display()))
        .env("CARGO_TARGET_DIR", tools.join("build"));
    run("bpf-linker, which makes one object of the program (takes about a minute)", &mut command)?;
    let _ = std::fs::remove_dir_all(tools.join("build"));
    Ok(())
}

/// Where LLVM `major` is installed with its headers.
fn find_llvm(major: u32) -> Option<PathBuf> {
    let debian = format!("/usr/lib/llvm-{major}/bin/llvm-config");
    [debian.as_str(), &format!("llvm-config-{major}"), "llvm-config"].into_iter().find_map(|config| {
        let version = answer(Command::new(config).arg("--version"))?;
        let headers = PathBuf::from(answer(Command::new(config).arg("--includedir"))?);
        let prefix = answer(Command::new(config).arg("--prefix"))?;
        let fits = version.split('.').next()?.parse() == Ok(major);
        (fits && headers.join("llvm-c/Core.h").exists()).then(|| PathBuf::from(prefix))
    })
}

fn compiler_version(command: &mut Command) -> Option<CompilerVersion> {
    parse_compiler_version(&answer(command)?)
}

fn parse_compiler_version(text: &str) -> Option<CompilerVersion> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let llvm = field("LLVM version: ")?.split('.').next()?.parse().ok()?;
    Some(CompilerVersion { rust: parse_version(field("release: ")?)?, llvm })
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiler_versions_are_read() {
        let text =
            "rustc 1.97.0-nightly (e50aa6fba 2026-05-19)\nrelease: 1.97.0-nightly\nLLVM version: 22.1.4";
        assert_eq!(parse_compiler_version(text), Some(CompilerVersion { rust: (1, 97), llvm: 22 }));
        assert_eq!(parse_compiler_version("release: 1.97.0"), None);
    }

    #[test]
    fn package_versions_are_read() {
        assert_eq!(parse_version("1.96.0+dfsg1-1~deb12u2"), Some((1, 96)));
        assert_eq!(parse_version("none"), None);
    }
}
