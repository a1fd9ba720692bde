//! `cargo xtask package`: a package for Debian, made by cargo-deb, and its test.
//!
//! - `lnetd/Cargo.toml` (`package.metadata.deb`) says what the package is; [`lay_out`] says where its files
//!   lie, since man pages and completions are made by the programs.
//! - Lustre's packages own `/usr/sbin/lnetctl`, `lctl` and `lst`, their man pages and `/etc/lnet.conf`. No
//!   file here has such a path: the tools lie in [`HOME`] and have these names as alternatives
//!   (`packaging/debian/postinst`), man pages are of section [`SECTION`], and the document is
//!   `/etc/lnetd.yaml`.

mod container;
mod level;
mod root;
mod transcript;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use xtask::command::output_of;
use xtask::privilege::{self, NETNS_NODES};

use crate::cargo::{cargo, ensure_tool};
use crate::{dist, setup};
pub(crate) use level::check;

/// Options of the command.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask package
  cargo xtask package --test target/debian/lnet-userspace_0.1.0-1_amd64.deb
  cargo xtask package --maintainer 'A Site <root@example.org>' --out /tmp && apt install /tmp/lnet-userspace_*.deb")]
pub(crate) struct Options {
    /// Directory of the package, which is made [default: target/debian]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Who answers for the package, by name and address
    #[arg(long, value_name = "NAME <ADDRESS>")]
    maintainer: Option<String>,
    /// Profile that the programs are built with
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    /// Test a package that is there, as the level `package` of `cargo xtask test` does, and make none (needs
    /// root)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "maintainer"])]
    test: Option<PathBuf>,
}

/// The version that is installed where none is.
const CARGO_DEB: &str = "3.8.0";
/// Where tools lie whose names Lustre's tools have as well.
const HOME: &str = "usr/lib/lnet-userspace";
/// Programs with the names of Lustre's.
const LUSTRES: [&str; 3] = ["lctl", "lnetctl", "lst"];
/// The section of man pages: `man` finds them by name, and in section 8.
const SECTION: &str = "8lnet";
/// Where `cargo xtask dist` has man pages.
const MAN: &str = "share/man/man8";
/// Documents of the package.
const DOCUMENTS: &str = "usr/share/doc/lnet-userspace";

/// Makes the package of programs in release.
///
/// # Errors
/// When a tool cannot be installed, a build fails, a file cannot be written, or a test fails.
pub(crate) fn package(root: &Path, options: &Options) -> Result<()> {
    if let Some(package) = &options.test {
        privilege::require("the test of a package", &NETNS_NODES)?;
        ensure_tools(root)?;
        println!("{}", level::test(root, package)?);
        return Ok(());
    }
    let out = options.out.clone().unwrap_or_else(|| root.join("target/debian"));
    let path = make(root, &options.profile, &out, options.maintainer.as_deref())?;
    println!("{}", path.display());
    Ok(())
}

/// Finds or installs what makes and checks packages.
///
/// # Errors
/// Names what is missing, and why it could not be installed.
pub(crate) fn ensure_tools(root: &Path) -> Result<PathBuf> {
    setup::ensure_package_tools()?;
    // Archives are packed by the system's `xz`.
    ensure_tool(root, "cargo-deb", CARGO_DEB, &["--no-default-features"])
}

/// Makes the package of programs that are built with a profile, and gives its path.
fn make(root: &Path, profile: &str, out: &Path, maintainer: Option<&str>) -> Result<PathBuf> {
    let cargo_deb = ensure_tools(root)?;
    let files = root.join("target/package");
    if files.exists() {
        fs::remove_dir_all(&files).with_context(|| format!("cannot remove {}", files.display()))?;
    }
    let built = root.join("target/dist").join(profile);
    dist::lay_out(root, &built, profile)?;
    lay_out(root, &built, &files)?;
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut command = Command::new(cargo_deb);
    command.current_dir(root).args(["--package", "lnetd", "--no-build", "--no-strip", "--quiet"]);
    command.args(["--compress-system", "--output"]).arg(out);
    command.args(maintainer.map(|maintainer| format!("--maintainer={maintainer}")));
    let made = output_of(&mut command)?;
    let path = PathBuf::from(made.trim());
    ensure!(path.is_file(), "cargo-deb made no package: {made:?}");
    Ok(path)
}

/// Lays out the package's files in `files`, as below `/`.
fn lay_out(root: &Path, built: &Path, files: &Path) -> Result<()> {
    let install = |from: &Path, to: String| copy(from, &files.join(to));
    for path in walk(built)? {
        let name = path.strip_prefix(built)?.to_str().context("names of files are text")?;
        let Some(to) = destination(name) else { continue };
        install(&path, to.clone())?;
        if name.starts_with(MAN) {
            rename_section(&files.join(to))?;
        }
    }
    let packaging = root.join("packaging");
    for folder in ["container", "kubernetes"] {
        for path in walk(&packaging.join(folder))? {
            let name = path.strip_prefix(&packaging)?.display();
            install(&path, format!("usr/share/lnet/{name}"))?;
        }
    }
    for path in walk(&packaging.join("etc"))? {
        install(&path, path.strip_prefix(&packaging)?.display().to_string())?;
    }
    for path in walk(&root.join("docs"))? {
        let name = path.strip_prefix(root)?.display();
        install(&path, format!("{DOCUMENTS}/{name}"))?;
    }
    let crates = files.join(DOCUMENTS).join("crates");
    fs::write(&crates, linked(root)?).with_context(|| format!("cannot write {}", crates.display()))?;
    mode(&crates, 0o644)
}

/// Where a file of `cargo xtask dist` lies in the package, below `/`; none for names of symbols, and for the
/// unit, which cargo-deb adds.
fn destination(name: &str) -> Option<String> {
    let (directory, file) = name.rsplit_once('/')?;
    let is_lustres = |file: &str| LUSTRES.contains(&file);
    let completions = |shell: &str, ours: &str, program: &str| {
        let folder =
            if is_lustres(program) { format!("{HOME}/completions/{shell}") } else { ours.to_owned() };
        format!("{folder}/{file}")
    };
    Some(match directory {
        "bin" if is_lustres(file) => format!("{HOME}/bin/{file}"),
        "bin" => format!("usr/bin/{file}"),
        MAN => format!("usr/{MAN}/{}", file.replace(".8", &format!(".{SECTION}"))),
        "share/bash-completion/completions" => {
            completions("bash", "usr/share/bash-completion/completions", file)
        }
        "share/zsh/site-functions" => {
            completions("zsh", "usr/share/zsh/vendor-completions", file.trim_start_matches('_'))
        }
        "share/fish/vendor_completions.d" => {
            completions("fish", "usr/share/fish/vendor_completions.d", file.trim_end_matches(".fish"))
        }
        _ if directory.starts_with("share/lnet/") => format!("usr/{name}"),
        _ => return None,
    })
}

/// Has a man page name its own section.
fn rename_section(page: &Path) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let line = |line: &str| {
        let is_title = line.starts_with(".TH ");
        if is_title { line.replacen(" 8 ", &format!(" {SECTION} "), 1) } else { line.to_owned() }
    };
    let lines: Vec<_> = text.lines().map(line).collect();
    fs::write(page, lines.join("\n") + "\n").with_context(|| format!("cannot write {}", page.display()))
}

/// The libraries that the programs contain, a line each: name and version, licence.
fn linked(root: &Path) -> Result<String> {
    let mut command = cargo(root);
    command.args(["tree", "--edges", "normal", "--prefix", "none", "--no-dedupe", "--format", "{p}\t{l}"]);
    for program in dist::PROGRAMS.into_iter().filter(|program| *program != "lctl") {
        command.args(["--package", program]);
    }
    let shown = output_of(&mut command)?;
    // A path is of this workspace.
    let of_others = shown.lines().filter(|line| !line.is_empty() && !line.contains("(/"));
    let mut lines: Vec<_> = of_others.collect();
    lines.sort_unstable();
    lines.dedup();
    ensure!(!lines.is_empty(), "cargo names no library: {shown:?}");
    Ok(format!("{}\n", lines.join("\n")))
}

/// Files below a directory.
fn walk(directory: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("cannot read {}", directory.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.is_dir() { files.extend(walk(&path)?) } else { files.push(path) }
    }
    files.sort_unstable();
    Ok(files)
}

/// Copies a file to a path, for all to read, and for all to start where its owner may.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file lies in a directory")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    let is_program = fs::metadata(from)?.permissions().mode() & 0o100 != 0;
    mode(to, if is_program { 0o755 } else { 0o644 })
}

fn mode(path: &Path, mode: u32) -> Result<()> {
    let set = fs::set_permissions(path, Permissions::from_mode(mode));
    set.with_context(|| format!("cannot set the mode of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_has_a_path_of_lustres_packages() {
        let check = |name: &str, expected: Option<&str>| assert_eq!(destination(name).as_deref(), expected);
        check("bin/lnetd", Some("usr/bin/lnetd"));
        check("bin/lnetctl", Some("usr/lib/lnet-userspace/bin/lnetctl"));
        check("share/man/man8/lst.8", Some("usr/share/man/man8/lst.8lnet"));
        check("share/man/man8/lnetctl-net-add.8", Some("usr/share/man/man8/lnetctl-net-add.8lnet"));
        check("share/zsh/site-functions/_lctl", Some("usr/lib/lnet-userspace/completions/zsh/_lctl"));
        check("share/zsh/site-functions/_lnetd", Some("usr/share/zsh/vendor-completions/_lnetd"));
        let fish = "share/fish/vendor_completions.d/lnetctl.fish";
        check(fish, Some("usr/lib/lnet-userspace/completions/fish/lnetctl.fish"));
        check("share/lnet/grafana/lnet.json", Some("usr/share/lnet/grafana/lnet.json"));
        check("lib/systemd/system/lnetd.service", None);
        check("lib/debug/usr/bin/lnetd.debug", None);
    }
}
