//! Debian's packages, fetched and unpacked into a cache; none is installed.
//!
//! - An apt of its own has its lists and its archive in the cache: suites of other releases never reach the
//!   system's apt.
//! - Unpacked packages stay. Nothing is looked up on the network while they are there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use xtask::command::{output, output_of, say};

/// Where Debian's keys are.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Mirrors where apt knows no others: of releases, and of their security updates.
const MIRRORS: [&str; 2] = ["http://deb.debian.org/debian", "http://deb.debian.org/debian-security"];

/// dpkg's list of what is installed.
const INSTALLED: &str = "/var/lib/dpkg/status";

/// Suites that packages come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Suites {
    /// Debian 11.
    Old,
    /// Debian 12 with its security updates.
    Stable,
    /// Debian 12 with its backports, which come first, and security updates.
    Backports,
    /// Newest packages.
    Unstable,
}

impl Suites {
    const fn name(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::Stable => "stable",
            Self::Backports => "backports",
            Self::Unstable => "unstable",
        }
    }

    /// Lines for apt, for mirrors of releases and of security updates.
    fn sources(self, mirrors: &[String; 2]) -> String {
        let [releases, security] = mirrors;
        let line = |mirror: &str, suite: &str| format!("deb [signed-by={KEYS}] {mirror} {suite} main\n");
        match self {
            Self::Old => line(releases, "bullseye"),
            Self::Stable => line(releases, "bookworm") + &line(security, "bookworm-security"),
            Self::Backports => line(releases, "bookworm-backports") + &Self::Stable.sources(mirrors),
            Self::Unstable => line(releases, "sid"),
        }
    }

    /// The suite whose packages come before newer ones of the others.
    const fn first(self) -> &'static str {
        match self {
            Self::Old => "bullseye",
            Self::Stable => "bookworm",
            Self::Backports => "bookworm-backports",
            Self::Unstable => "sid",
        }
    }
}

/// The cache: packages, what was unpacked of them, images.
pub(super) struct Cache {
    directory: PathBuf,
}

impl Cache {
    /// The cache of this user: `lnet-cards` in `$XDG_CACHE_HOME`, or in `.cache` of the home directory.
    ///
    /// # Errors
    /// When there is no home directory, or the cache cannot be made.
    pub(super) fn open() -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        let directory = caches.context("neither XDG_CACHE_HOME nor HOME is set")?.join("lnet-cards");
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        Ok(Self { directory })
    }

    /// A path in the cache.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Removes the files whose names begin so.
    ///
    /// # Errors
    /// When one cannot be removed.
    pub(super) fn remove(&self, beginning: &str) -> Result<()> {
        for entry in fs::read_dir(&self.directory)?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(beginning) {
                fs::remove_file(entry.path()).with_context(|| entry.path().display().to_string())?;
            }
        }
        Ok(())
    }

    /// The directory into which the newest packages of these names are unpacked, one package for each
    /// pattern of a name (grep's extended regular expressions).
    ///
    /// # Errors
    /// Names the package that could not be had, and why.
    pub(super) fn unpacked(&self, what: &str, suites: Suites, patterns: &[&str]) -> Result<PathBuf> {
        self.unpack(what, patterns, |archives| {
            let apt = self.apt(suites)?;
            let names = output_of(apt("apt-cache").arg("pkgnames"))?;
            for pattern in patterns {
                let Some(name) = newest(&names, pattern)? else {
                    bail!("no package {pattern} in Debian's {} suites", suites.name())
                };
                output_of(apt("apt-get").args(["-q", "download", &name]).current_dir(archives))?;
            }
            Ok(())
        })
    }

    /// The directory into which these packages are unpacked, with all that they depend on and that this
    /// system lacks. Nothing of the source packages `sources` counts as installed, in whatever version.
    ///
    /// # Errors
    /// Names the packages that could not be had, and why.
    pub(super) fn unpacked_with_needs(
        &self,
        what: &str,
        suites: Suites,
        packages: &[&str],
        sources: &[&str],
    ) -> Result<PathBuf> {
        self.unpack(what, packages, |archives| {
            let apt = self.apt(suites)?;
            let installed = fs::read_to_string(INSTALLED).with_context(|| INSTALLED.to_owned())?;
            let status = archives.join("status");
            fs::write(&status, without(&installed, sources))?;
            fs::create_dir_all(archives.join("partial"))?;
            let mut command = apt("apt-get");
            command.arg(option("Dir::State::status", &status)).arg(option("Dir::Cache::archives", archives));
            command.args(["-q", "-y", "--no-install-recommends", "--download-only", "-t", suites.first()]);
            output_of(command.arg("install").args(packages))?;
            Ok(())
        })
    }

    /// Has packages fetched into a directory, and unpacks them, unless that was done before.
    fn unpack(
        &self,
        what: &str,
        packages: &[&str],
        fetch: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let directory = self.path("unpacked").join(what);
        if directory.exists() {
            return Ok(directory);
        }
        let archives = self.path(&format!("archives-{}", std::process::id()));
        let part = directory.with_extension(format!("{}.part", std::process::id()));
        let unpack = || {
            for directory in [&archives, &part] {
                fs::create_dir_all(directory)?;
            }
            fetch(&archives)?;
            let (mut count, mut bytes) = (0, 0);
            for package in fs::read_dir(&archives)?.flatten().map(|entry| entry.path()) {
                if package.extension().is_some_and(|end| end == "deb") {
                    output_of(Command::new("dpkg-deb").arg("-x").args([&package, &part]))?;
                    (count, bytes) = (count + 1, bytes + fs::metadata(&package)?.len());
                }
            }
            ensure!(count > 0, "apt-get fetched nothing");
            say(format_args!("cards: fetched {what}, {:.1} MB", bytes as f64 / 1e6));
            Ok(fs::rename(&part, &directory)?)
        };
        let unpacked: Result<()> = unpack();
        // The error that is told is the first one.
        let _ = fs::remove_dir_all(&archives);
        let _ = fs::remove_dir_all(&part);
        let missing =
            || format!("missing for virtual machines: {what} (Debian's packages {})", packages.join(", "));
        unpacked.map(|()| directory).with_context(missing)
    }

    /// Programs of apt with lists and archives of their own, the lists being there.
    fn apt(&self, suites: Suites) -> Result<impl Fn(&str) -> Command> {
        ensure!(Path::new(KEYS).exists(), "missing: debian-archive-keyring ({KEYS})");
        let own = self.path("apt").join(suites.name());
        let (sources, text) = (own.join("sources.list"), suites.sources(&mirrors()));
        if fs::read_to_string(&sources).ok().as_ref() != Some(&text) && own.exists() {
            // The lists are of other sources.
            fs::remove_dir_all(&own)?;
        }
        for directory in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(own.join(directory))?;
        }
        fs::write(&sources, text)?;
        let options = [
            option("Dir::Etc::sourcelist", &sources),
            "-oDir::Etc::sourceparts=-".to_owned(),
            option("Dir::State::lists", &own.join("lists")),
            option("Dir::Cache", &own),
            "-oAPT::Sandbox::User=root".to_owned(),
            "-oAcquire::Languages=none".to_owned(),
            "-oAcquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "-oAPT::Architecture=amd64".to_owned(),
        ];
        let apt = move |program: &str| {
            let mut command = Command::new(program);
            command.env("LC_ALL", "C").args(&options);
            command
        };
        let is_list = |entry: fs::DirEntry| entry.file_name().to_string_lossy().contains("_Packages");
        if !fs::read_dir(own.join("lists"))?.flatten().any(is_list) {
            say(format_args!("cards: package lists of Debian's {} suites", suites.name()));
            output_of(apt("apt-get").args(["-q", "update", "--error-on=any"]))?;
        }
        Ok(apt)
    }
}

/// The mirrors that this machine's apt uses already, or Debian's own.
fn mirrors() -> [String; 2] {
    let format = ["indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"];
    let known = output("apt-get", format).unwrap_or_default();
    let mirror = |release: &str, otherwise: &str| {
        let mut lines = known.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find_map(|(name, mirror)| (name == release).then_some(mirror));
        found.unwrap_or(otherwise).trim().to_owned()
    };
    [mirror("bookworm", MIRRORS[0]), mirror("bookworm-security", MIRRORS[1])]
}

/// An option of apt that names a path.
fn option(name: &str, path: &Path) -> String {
    format!("-o{name}={}", path.display())
}

/// dpkg's list of what is installed, without the packages of some source packages.
fn without(installed: &str, sources: &[&str]) -> String {
    let source = |paragraph: &str| {
        let field = |name| paragraph.lines().find_map(|line| line.strip_prefix(name));
        let source = field("Source: ").or_else(|| field("Package: "))?;
        source.split_whitespace().next().map(str::to_owned)
    };
    let kept = installed.split_inclusive("\n\n");
    let kept = kept.filter(|text| source(text).is_none_or(|source| !sources.contains(&source.as_str())));
    kept.collect()
}

/// The newest of the names, one a line, that match a pattern as a whole.
fn newest(names: &str, pattern: &str) -> Result<Option<String>> {
    let script = "grep -Ex -- \"$1\" | sort -V | tail -n 1";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", pattern]).stdin(std::process::Stdio::piped());
    command.stdout(std::process::Stdio::piped());
    let mut child = command.spawn().context("sh")?;
    if let Some(mut input) = child.stdin.take() {
        std::io::Write::write_all(&mut input, names.as_bytes()).context("names of packages")?;
    }
    let answer = child.wait_with_output()?;
    let newest = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    Ok((!newest.is_empty()).then_some(newest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_matching_names_is_taken() {
        let names =
            "linux-image-6.1.0-9-amd64\nlinux-image-6.1.0-56-amd64\nlinux-image-6.1.0-56-cloud-amd64\n";
        let check = |pattern: &str, expected: Option<&str>| {
            assert_eq!(newest(names, pattern).unwrap().as_deref(), expected);
        };
        check(r"linux-image-6\.1\.0-[0-9]+-amd64", Some("linux-image-6.1.0-56-amd64"));
        check(r"linux-image-6\.1\.0-[0-9]+-cloud-amd64", Some("linux-image-6.1.0-56-cloud-amd64"));
        check("linux-image", None);
    }

    #[test]
    fn packages_of_a_source_count_as_absent() {
        let kept = "Package: libc6\nSource: glibc\n\n";
        let utils = "Package: qemu-utils\nSource: qemu (1:7.2)\nDepends: libc6\n\n";
        let installed = format!("{utils}{kept}Package: socat\nVersion: 1\n\n");
        let left = without(&installed, &["qemu", "socat"]);
        assert_eq!(left, kept);
        assert_eq!(without(&installed, &["utils"]), installed);
    }

    #[test]
    fn sources_name_the_mirrors_and_the_suites() {
        let mirrors = ["http://a/debian".to_owned(), "http://b/security".to_owned()];
        let lines = Suites::Backports.sources(&mirrors);
        assert!(lines.contains("] http://a/debian bookworm-backports main\n"), "{lines}");
        assert!(lines.contains("] http://a/debian bookworm main\n"), "{lines}");
        assert!(lines.contains("] http://b/security bookworm-security main\n"), "{lines}");
        assert_eq!(Suites::Unstable.sources(&mirrors).lines().count(), 1);
    }
}
