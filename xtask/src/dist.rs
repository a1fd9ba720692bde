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
    for program in ["lnetctl", "lnetd"] {
        let built = cargo::build_binary(root, program, program)?;
        let path = built.to_str().with_context(|| format!("{} is no text", built.display()))?;
        copy(&built, &bin)?;
        strip(&bin, program, &directory("lib/debug/usr/bin")?)?;
        let is_tool = program == "lnetctl";
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

/// Moves the names of a program to a file of their own, where debuggers look for it: `/usr/lib/debug/usr/bin`, or beside
/// the program.
fn strip(bin: &Path, program: &str, names: &Path) -> Result<()> {
    let (stripped, names) = (bin.join(program), names.join(format!("{program}.debug")));
    let objcopy = |arguments: &[&str], files: &[&Path]| -> Result<()> {
        let mut command = Command::new("objcopy");
        succeed(command.args(arguments).args(files))
            .context("`objcopy`, of binutils, takes the names out of programs")
    };
    objcopy(&["--only-keep-debug"], &[&stripped, &names])?;
    objcopy(&["--strip-all"], &[&stripped])?;
    let names = names.to_str().with_context(|| format!("{} is no text", names.display()))?;
    objcopy(&[&format!("--add-gnu-debuglink={names}")], &[&stripped])
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::strip;

    #[test]
    fn a_stripped_program_runs_and_names_the_file_with_its_names() {
        let folder = std::env::temp_dir().join(format!("lnet-strip-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        let whole_bytes = std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        strip(&folder, "program", &folder).unwrap();
        let stripped = std::fs::read(&program).unwrap();
        let has = |text: &str| stripped.windows(text.len()).any(|part| part == text.as_bytes());
        assert!((stripped.len() as u64) < whole_bytes / 2, "{} of {whole_bytes} bytes", stripped.len());
        assert!(has(".gnu_debuglink") && has("program.debug"));
        assert!(folder.join("program.debug").metadata().unwrap().len() > stripped.len() as u64);
        assert!(Command::new(&program).arg("--list").output().unwrap().status.success());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
