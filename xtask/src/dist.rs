//! `cargo xtask dist`: what is to be installed, in one directory: programs, man pages, completions, a systemd unit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use xtask::command::{output, succeed};

use crate::{build_ebpf, cargo};

/// Where it goes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  cargo xtask dist
  cargo xtask dist --out /tmp/lnet && cp -r /tmp/lnet/* /usr/")]
pub(crate) struct Options {
    /// Directory, which is made [default: target/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// How each shell names its completions, and where it looks for them below `share`.
const SHELLS: [(&str, &str, &str); 3] = [
    ("bash", "bash-completion/completions", ""),
    ("zsh", "zsh/site-functions", "_"),
    ("fish", "fish/vendor_completions.d", ".fish"),
];

/// Builds everything in release and lays it out as below `/usr`.
///
/// # Errors
/// When a build fails, or a file cannot be written.
pub(crate) fn dist(root: &Path, options: &Options) -> Result<()> {
    let out = options.out.clone().unwrap_or_else(|| root.join("target/dist"));
    let directory = |name: &str| -> Result<PathBuf> {
        let path = out.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    };
    let copy = |from: &Path, to: &Path| -> Result<()> {
        let name = from.file_name().context("a file has a name")?;
        let to = to.join(name);
        fs::copy(from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        Ok(())
    };
    build_ebpf::refresh(root)?;
    let bin = directory("bin")?;
    copy(&root.join("lnetd/lnetd.service"), &directory("lib/systemd/system")?)?;
    for program in ["lnet-nettest", "lnetctl", "lnetd", "lst"] {
        let built = cargo::build_binary(root, program, program)?;
        let path = built.to_str().with_context(|| format!("{} is no text", built.display()))?;
        copy(&built, &bin)?;
        let is_tool = program != "lnetd";
        let mut pages = Command::new(&built);
        pages.arg(if is_tool { "man" } else { "--generate-man" }).arg(directory("share/man/man8")?);
        succeed(&mut pages)?;
        for (shell, place, mark) in SHELLS {
            let words = if is_tool { ["completions", shell] } else { ["--generate-completions", shell] };
            let script = output(path, words)?;
            let name = if mark == "_" { format!("_{program}") } else { format!("{program}{mark}") };
            let path = directory(&format!("share/{place}"))?.join(name);
            fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    println!("{}", out.display());
    Ok(())
}
