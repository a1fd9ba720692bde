//! Images that a machine boots: a kernel with the modules that cells use, and a root file system of programs
//! of this machine, with the libraries that they need.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use xtask::command::{output, output_of};

use super::archive::Archive;
use super::packages::{Cache, Suites};

/// Modules of cells, with those that they need: NICs, what lies on them, what shows sockets of rings.
const MODULES: [&str; 25] = [
    "virtio_pci",
    "virtio_net",
    "igb",
    "e1000e",
    "vmxnet3",
    "8139cp",
    "8139too",
    "8021q",
    "bridge",
    "bonding",
    "macvlan",
    "vxlan",
    "ipip",
    "team",
    "team_mode_activebackup",
    "tun",
    "wireguard",
    "veth",
    "sch_netem",
    "af_packet",
    "af_packet_diag",
    "xsk_diag",
    "inet_diag",
    "tcp_diag",
    "udp_diag",
];
/// Programs of this machine that cells use. The shell is none of busybox's, which would take its own `ip` for
/// any `ip`.
const PROGRAMS: [(&str, &str); 5] =
    [("sh", "bin/sh"), ("ip", "sbin/ip"), ("tc", "sbin/tc"), ("ss", "sbin/ss"), ("ethtool", "sbin/ethtool")];
/// Programs that devices upon a NIC want, of packages that are unpacked and not installed.
const TOOLS: [&str; 3] = ["usr/bin/socat", "usr/bin/wg", "usr/bin/teamd"];
/// Packages of [`TOOLS`].
const TOOL_PACKAGES: [&str; 3] = ["socat", "wireguard-tools", "libteam-utils"];
/// Directories in which those packages have libraries.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
/// Applets of busybox that hide none of [`PROGRAMS`], and are programs of their own.
const NO_APPLETS: [&str; 7] = ["busybox", "sh", "ash", "ip", "tc", "ss", "init"];

/// A kernel that machines boot.
pub(super) struct Kernel {
    /// Its image.
    pub(super) image: PathBuf,
    /// Archive of its modules.
    pub(super) modules: PathBuf,
    /// Its release, such as `6.12.94+deb12-cloud-amd64`.
    pub(super) release: String,
}

impl Kernel {
    /// The kernel of a label of the table, fetched and made ready unless it is there.
    ///
    /// # Errors
    /// Names the package that is missing and why.
    pub(super) fn prepare(cache: &Cache, label: &str) -> Result<Self> {
        let (suites, patterns): (_, &[_]) = match label {
            "6.12-cloud" => (Suites::Backports, &[r"linux-image-6\.12\.[0-9]+\+deb12-cloud-amd64"]),
            "5.10" => (Suites::Old, &[r"linux-image-5\.10\.0-[0-9]+-amd64"]),
            "6.1" => (Suites::Stable, &[r"linux-image-6\.1\.0-[0-9]+-amd64"]),
            "6.12" => (Suites::Backports, &[r"linux-image-6\.12\.[0-9]+\+deb12-amd64"]),
            "sid" => (
                Suites::Unstable,
                &[r"linux-modules-[0-9.]+\+deb[0-9]+-amd64", r"linux-binary-[0-9.]+\+deb[0-9]+-amd64"],
            ),
            _ => bail!("no kernel is known as {label}"),
        };
        let root = cache.unpacked(&format!("linux-{label}"), suites, patterns)?;
        // depmod looks below `lib`, which newer packages have moved.
        if !root.join("lib").exists() {
            std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
        }
        let modules = root.join("lib/modules");
        let release = fs::read_dir(&modules)?.flatten().next();
        let release = release.with_context(|| format!("no modules in {}", modules.display()))?;
        let release = release.file_name().to_string_lossy().into_owned();
        let places = [root.join(format!("boot/vmlinuz-{release}")), modules.join(&release).join("vmlinuz")];
        let image = places.into_iter().find(|path| path.exists()).context("a kernel without an image")?;
        let archive = cache.path(&format!("modules-{label}.{:x}.cpio", hash_of(&MODULES)));
        if !archive.exists() {
            cache.remove(&format!("modules-{label}."))?;
            let stage = cache.path(&format!("stage-{}", std::process::id()));
            let made = pack_modules(&root, &release, &stage);
            let removed = fs::remove_dir_all(&stage);
            replace(&archive, &made.with_context(|| format!("modules of Linux {release}"))?)?;
            removed?;
        }
        Ok(Self { image, modules: archive, release })
    }
}

/// Number that is another one once cells use other modules or packages.
fn hash_of(names: &[&str]) -> u64 {
    let mut hasher = DefaultHasher::new();
    names.hash(&mut hasher);
    hasher.finish()
}

/// Writes a file at once: another run may read it meanwhile.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let part = path.with_extension(format!("{}.part", std::process::id()));
    fs::write(&part, content)
        .and_then(|()| fs::rename(&part, path))
        .with_context(|| path.display().to_string())
}

/// Archive of the modules of a kernel that cells use.
fn pack_modules(root: &Path, release: &str, stage: &Path) -> Result<Vec<u8>> {
    let depmod = |base: &Path| output_of(Command::new("depmod").arg("-b").args([base, Path::new(release)]));
    let (from, to) = (root.join("lib/modules").join(release), stage.join("lib/modules").join(release));
    depmod(root)?;
    fs::create_dir_all(to.join("kernel"))?;
    let dependencies = fs::read_to_string(from.join("modules.dep"))?;
    for path in wanted(&dependencies, &MODULES) {
        let name = path.rsplit('/').next().unwrap_or(path);
        let (name, unpack) = match name.rsplit_once('.') {
            Some((stem, "xz")) => (stem, Some("xz")),
            Some((stem, "zst")) => (stem, Some("zstd")),
            Some((stem, "gz")) => (stem, Some("gzip")),
            _ => (name, None),
        };
        let (source, target) = (from.join(path), to.join("kernel").join(name));
        match unpack {
            None => drop(fs::copy(&source, &target)?),
            Some(program) => {
                let output = Command::new(program).args(["-dc"]).arg(&source).output();
                let output = output.with_context(|| format!("missing: {program}"))?;
                if !output.status.success() {
                    bail!("`{program}` unpacks no {}", source.display());
                }
                fs::write(&target, output.stdout)?;
            }
        }
    }
    for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        if from.join(list).exists() {
            fs::copy(from.join(list), to.join(list))?;
        }
    }
    depmod(stage)?;
    let mut archive = Archive::default();
    archive.directory("lib");
    archive.tree("lib", &stage.join("lib"))?;
    Ok(archive.finish())
}

/// Paths of the modules of these names and of all that they need, by lines of `modules.dep`. A name without a
/// module is a part of the kernel.
fn wanted<'a>(dependencies: &'a str, names: &[&str]) -> BTreeSet<&'a str> {
    let is_named = |path: &str| {
        let name = path.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap_or_default();
        let name = name.replace('-', "_");
        names.contains(&name.as_str())
    };
    let lines = dependencies.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.filter(|(path, _)| is_named(path));
    lines.flat_map(|(path, needs)| [path].into_iter().chain(needs.split_whitespace())).collect()
}

/// The root file system with the daemon and its tool; with the tools that devices upon a NIC want, if cells
/// have any.
///
/// # Errors
/// Names the program that is missing.
pub(super) fn root_file_system(cache: &Cache, programs: &[PathBuf], has_devices: bool) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for directory in ["bin", "sbin", "dev", "etc", "proc", "sys", "run", "tmp", "root", "usr/bin"] {
        archive.directory(directory);
    }
    let busybox = cache.unpacked("busybox", Suites::Stable, &["busybox-static"])?.join("bin/busybox");
    archive.copy("bin/busybox", &busybox)?;
    for applet in output(&busybox.to_string_lossy(), ["--list"])?.lines() {
        if !NO_APPLETS.contains(&applet) {
            archive.link(&format!("bin/{applet}"), "/bin/busybox");
        }
    }
    archive.link("sbin/modprobe", "/bin/busybox");
    let (mut libraries, mut further) = (BTreeSet::new(), Vec::new());
    for (name, path) in PROGRAMS {
        let program = find(name).with_context(|| format!("missing for virtual machines: {name}"))?;
        archive.copy(path, &program)?;
        libraries.extend(libraries_of(&program)?);
    }
    for program in programs {
        let name = program.file_name().context("a program without a name")?.to_string_lossy();
        let stripped = cache.path(&format!("{name}.{}", std::process::id()));
        output_of(Command::new("strip").args(["--strip-debug", "-o"]).args([&stripped, program]))?;
        let copied = archive.copy(&format!("usr/bin/{name}"), &stripped);
        fs::remove_file(&stripped)?;
        copied?;
        libraries.extend(libraries_of(program)?);
    }
    if has_devices {
        let unpacked = cache.unpacked_with_needs(
            &format!("tools.{:x}", hash_of(&TOOL_PACKAGES)),
            Suites::Stable,
            &TOOL_PACKAGES,
            &["socat", "wireguard", "libteam"],
        )?;
        for path in TOOLS {
            let program = unpacked.join(path);
            archive.copy(path, &program)?;
            let search = std::env::join_paths(LIBRARIES.map(|directory| unpacked.join(directory)))?;
            let answer = output_of(Command::new("ldd").env("LD_LIBRARY_PATH", search).arg(&program))?;
            for library in libraries_in(&answer) {
                match Path::new(&library).strip_prefix(&unpacked) {
                    Ok(own) => further.push((own.to_string_lossy().into_owned(), library.clone())),
                    Err(_) => drop(libraries.insert(library)),
                }
            }
        }
    }
    further.sort();
    further.dedup();
    for (own, library) in &further {
        archive.copy(own, Path::new(library))?;
    }
    for library in libraries {
        archive.copy(library.trim_start_matches('/'), Path::new(&library))?;
    }
    archive.file("init", 0o755, include_bytes!("guest/init.sh"));
    archive.file("bin/cell", 0o755, include_bytes!("guest/cell.sh"));
    Ok(archive.finish())
}

/// A program of this machine: `sbin` is not on every user's PATH.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let found = std::env::split_paths(&paths).chain(more).map(|directory| directory.join(name));
    found.filter_map(|path| path.canonicalize().ok()).find(|path| path.is_file())
}

/// The libraries of a program, and its loader.
fn libraries_of(program: &Path) -> Result<Vec<String>> {
    Ok(libraries_in(&output("ldd", [program])?))
}

/// The libraries, and the loader, that `ldd` tells.
fn libraries_in(answer: &str) -> Vec<String> {
    let paths = answer.lines().map(|line| line.split_once("=>").map_or(line, |(_, path)| path));
    let paths = paths.filter_map(|path| path.split_whitespace().next());
    paths.filter(|path| path.starts_with('/')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_with_what_they_need() {
        let dependencies = "kernel/a/net-failover.ko.xz: kernel/a/failover.ko.xz\n\
                            kernel/a/failover.ko.xz:\n\
                            kernel/a/virtio_net.ko.xz: kernel/a/net-failover.ko.xz kernel/a/failover.ko.xz\n\
                            kernel/a/other.ko.xz: kernel/a/more.ko.xz\n";
        let found = wanted(dependencies, &["virtio_net", "built_in"]);
        let expected =
            ["kernel/a/failover.ko.xz", "kernel/a/net-failover.ko.xz", "kernel/a/virtio_net.ko.xz"];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
        let found = wanted(dependencies, &["net_failover"]);
        assert!(found.contains("kernel/a/net-failover.ko.xz"), "{found:?}");
    }

    #[test]
    fn programs_have_libraries() {
        let libraries = libraries_of(&find("ip").unwrap()).unwrap();
        assert!(libraries.iter().any(|path| path.contains("libc.so")), "{libraries:?}");
        assert!(find("no-such-program-of-cards").is_none());
    }
}
