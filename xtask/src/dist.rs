//! `cargo xtask dist`: what is to be installed, in one directory: programs, man pages, completions, a systemd
//! unit.

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

/// What users start.
pub(crate) const PROGRAMS: [&str; 5] = ["lctl", "lnet-nettest", "lnetctl", "lnetd", "lst"];

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
    lay_out(root, &out, "release")?;
    println!("{}", out.display());
    Ok(())
}

/// Builds everything with a profile and lays it out in `out`, as below `/usr`.
///
/// # Errors
/// Those of [`dist`].
pub(crate) fn lay_out(root: &Path, out: &Path, profile: &str) -> Result<()> {
    let directory = |name: &str| -> Result<PathBuf> {
        let path = out.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    };
    build_ebpf::refresh(root)?;
    let bin = directory("bin")?;
    copy(&root.join("lnetd/lnetd.service"), &directory("lib/systemd/system")?)?;
    copy(&root.join("lnetd/grafana/lnet.json"), &directory("share/lnet/grafana")?)?;
    copy(&root.join("lnetctl/wireshark/lnet-xdp.lua"), &directory("share/lnet/wireshark")?)?;
    for (program, built) in PROGRAMS.into_iter().zip(cargo::build_programs(root, profile, PROGRAMS)?) {
        let path = built.to_str().with_context(|| format!("{} is no text", built.display()))?;
        install(&built, &bin, &directory("lib/debug/usr/bin")?)?;
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
    Ok(())
}

/// Copies a file to a directory and says where it is then.
fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    let to = to.join(from.file_name().context("a file has a name")?);
    fs::copy(from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(to)
}

/// Copies a program to `bin` without its names. They go to a file of their own, where debuggers look for it:
/// `/usr/lib/debug/usr/bin`, or beside the program.
fn install(built: &Path, bin: &Path, names: &Path) -> Result<()> {
    let program = copy(built, bin)?;
    let mut name = program.file_name().context("a file has a name")?.to_owned();
    name.push(".debug");
    let names = names.join(name);
    let objcopy = |arguments: &[&str], files: &[&Path]| -> Result<()> {
        let mut command = Command::new("objcopy");
        succeed(command.args(arguments).args(files))
            .context("`objcopy`, of binutils, takes the names out of programs")
    };
    objcopy(&["--only-keep-debug"], &[&program, &names])?;
    objcopy(&["--strip-all"], &[&program])?;
    let names = names.to_str().with_context(|| format!("{} is no text", names.display()))?;
    objcopy(&[&format!("--add-gnu-debuglink={names}")], &[&program])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::{PROGRAMS, install};

    #[test]
    fn an_installed_program_runs_and_names_the_file_with_its_names() {
        let folder = std::env::temp_dir().join(format!("lnet-dist-{}", std::process::id()));
        for program in PROGRAMS {
            let [built, bin, names] = ["built", "bin", "names"].map(|name| folder.join(name));
            for directory in [&built, &bin, &names] {
                fs::create_dir_all(directory).unwrap();
            }
            let built = built.join(program);
            let whole_bytes = fs::copy(std::env::current_exe().unwrap(), &built).unwrap();
            install(&built, &bin, &names).unwrap();
            let stripped = fs::read(bin.join(program)).unwrap();
            let has = |text: &str| stripped.windows(text.len()).any(|part| part == text.as_bytes());
            assert!((stripped.len() as u64) < whole_bytes / 2, "{} of {whole_bytes} bytes", stripped.len());
            let names_file = format!("{program}.debug");
            assert!(has(".gnu_debuglink") && has(&names_file));
            assert!(names.join(names_file).metadata().unwrap().len() > stripped.len() as u64);
            assert!(Command::new(bin.join(program)).arg("--list").output().unwrap().status.success());
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
