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

/// Suites that packages come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Suites {
    /// Debian 11.
    Old,
    /// Debian 12 with its security updates.
    Stable,
    /// Debian 12 with its backports and security updates.
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
    fn sources(self, [releases, security]: &[String; 2]) -> String {
        let line = |mirror: &str, suite: &str| format!("deb [signed-by={KEYS}] {mirror} {suite} main\n");
        match self {
            Self::Old => line(releases, "bullseye"),
            Self::Stable => line(releases, "bookworm") + &line(security, "bookworm-security"),
            Self::Backports => line(releases, "bookworm-backports") + &line(security, "bookworm-security"),
            Self::Unstable => line(releases, "sid"),
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
        let directory = self.path("unpacked").join(what);
        if directory.exists() {
            return Ok(directory);
        }
        let part = directory.with_extension(format!("{}.part", std::process::id()));
        let unpack = || {
            fs::create_dir_all(&part)?;
            for pattern in patterns {
                let package = self.fetch(suites, pattern)?;
                output_of(Command::new("dpkg-deb").arg("-x").args([&package, &part]))?;
                fs::remove_dir_all(self.archives())?;
            }
            Ok(fs::rename(&part, &directory)?)
        };
        let unpacked: Result<()> = unpack();
        if unpacked.is_err() {
            // The error that is told is the first one.
            let _ = fs::remove_dir_all(&part);
        }
        let missing =
            || format!("missing for virtual machines: {what} (Debian's packages {})", patterns.join(", "));
        unpacked.map(|()| directory).with_context(missing)
    }

    /// Fetches the newest package of a name and gives its path.
    fn fetch(&self, suites: Suites, pattern: &str) -> Result<PathBuf> {
        let apt = self.apt(suites)?;
        let names = output_of(apt("apt-cache").arg("pkgnames"))?;
        let name = newest(&names, pattern)?;
        let Some(name) = name else { bail!("no package {pattern} in Debian's {} suites", suites.name()) };
        let archives = self.archives();
        fs::create_dir_all(&archives)?;
        output_of(apt("apt-get").args(["-q", "download", &name]).current_dir(&archives))?;
        let found = fs::read_dir(&archives)?.flatten().map(|entry| entry.path());
        let package = found.filter(|path| path.extension().is_some_and(|end| end == "deb")).last();
        let package = package.with_context(|| format!("apt-get fetched no {name}"))?;
        let bytes = fs::metadata(&package)?.len();
        say(format_args!("cards: fetched {name}, {:.1} MB", bytes as f64 / 1e6));
        Ok(package)
    }

    /// Where packages lie until they are unpacked.
    fn archives(&self) -> PathBuf {
        self.path(&format!("archives-{}", std::process::id()))
    }

    /// Programs of apt with lists and archives of their own, the lists being there.
    fn apt(&self, suites: Suites) -> Result<impl Fn(&str) -> Command> {
        ensure!(Path::new(KEYS).exists(), "missing: debian-archive-keyring ({KEYS})");
        let own = self.path("apt").join(suites.name());
        for directory in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(own.join(directory))?;
        }
        let sources = own.join("sources.list");
        if !sources.exists() {
            fs::write(&sources, suites.sources(&mirrors()))?;
        }
        let option = |name: &str, path: PathBuf| format!("-o{name}={}", path.display());
        let options = [
            option("Dir::Etc::sourcelist", sources),
            "-oDir::Etc::sourceparts=-".to_owned(),
            option("Dir::State::lists", own.join("lists")),
            option("Dir::Cache", own.clone()),
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
    fn sources_name_the_mirrors_and_the_suites() {
        let mirrors = ["http://a/debian".to_owned(), "http://b/security".to_owned()];
        let lines = Suites::Backports.sources(&mirrors);
        assert!(lines.contains("] http://a/debian bookworm-backports main\n"), "{lines}");
        assert!(lines.contains("] http://b/security bookworm-security main\n"), "{lines}");
        assert_eq!(Suites::Unstable.sources(&mirrors).lines().count(), 1);
    }
}
