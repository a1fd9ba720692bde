//! Roots for tests: the machine's own one with changes in memory, in namespaces of mounts, processes and the
//! network. All of it ends with the [`Root`].

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use xtask::netns::Namespace;

/// Makes the root, says who it is, and stays until its input ends. `$1` is an empty directory. The shell that
/// stays collects the processes that end.
const HOLDER: &str = "
    read -r pid rest < /proc/self/stat
    mount --make-rprivate /
    mount -t tmpfs -o size=1g lnet-package \"$1\"
    mkdir \"$1/upper\" \"$1/work\" \"$1/root\"
    mount -t overlay -o \"lowerdir=/,upperdir=$1/upper,workdir=$1/work\" lnet-package \"$1/root\"
    cd \"$1/root\"
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount --rbind /dev dev
    mount -t tmpfs tmpfs run
    mount -t tmpfs tmpfs tmp
    mkdir run/upper run/bin run/machine
    mount --rbind \"$1/upper\" run/upper
    pivot_root . run/machine
    exec chroot . bash -c 'umount -l /run/machine; rmdir /run/machine; echo $0; cat; :' $pid
";

/// A root of its own.
#[derive(Debug)]
pub(super) struct Root {
    holder: Child,
    /// The holder ends with it.
    input: Option<ChildStdin>,
    pid: u32,
    /// The network namespace of commands, where it is another one than the holder's.
    namespace: Option<String>,
}

/// Words of a command, on both streams, and whether it went well.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) text: String,
    pub(super) is_good: bool,
}

impl Root {
    /// Makes one for the programs of a network namespace, or of the machine's own; `directory` is empty, and
    /// stays so.
    pub(super) fn new(namespace: Option<&Namespace>, directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let mut command = match namespace {
            Some(namespace) => namespace.command(Path::new("unshare")),
            None => Command::new("unshare"),
        };
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", HOLDER, "sh"])
            .arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.spawn().context("`unshare` did not start")?;
        let input = holder.stdin.take();
        let output = holder.stdout.take().context("the holder of a root has an output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("the holder of a root")?;
        let Ok(pid) = line.trim().parse() else {
            let said = holder.wait_with_output().context("the holder of a root")?;
            bail!("no root over the machine's own: {}", String::from_utf8_lossy(&said.stderr).trim());
        };
        Ok(Self { holder, input, pid, namespace: None })
    }

    /// Has what runs in it from then on be in a network namespace.
    pub(super) fn inside(mut self, namespace: &Namespace) -> Self {
        self.namespace = Some(namespace.name().to_owned());
        self
    }

    /// A command of the shell in this root.
    pub(super) fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.pid)).args(["--mount", "--pid", "--root", "--wd"]);
        command.arg(match &self.namespace {
            Some(name) => format!("--net=/run/netns/{name}"),
            None => "--net".to_owned(),
        });
        command.args(["sh", "-c", script]).stdin(Stdio::null());
        command.envs([
            ("PATH", "/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("LC_ALL", "C.UTF-8"),
            ("DEBIAN_FRONTEND", "noninteractive"),
            ("HOME", "/"),
        ]);
        command
    }

    /// Runs it to its end.
    pub(super) fn run(&self, script: &str) -> Result<Said> {
        let both = format!("exec 2>&1\n{script}");
        let output = self.command(&both).output().context("`nsenter` did not start")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(Said { text, is_good: output.status.success() })
    }

    /// Runs it, which must go well, and gives what it said.
    pub(super) fn good(&self, script: &str) -> Result<String> {
        let Said { text, is_good } = self.run(script)?;
        if !is_good {
            bail!("`{script}` failed:\n{text}");
        }
        Ok(text)
    }

    /// Runs it, which must fail.
    pub(super) fn bad(&self, script: &str) -> Result<String> {
        let Said { text, is_good } = self.run(script)?;
        if is_good {
            bail!("`{script}` is to fail, and has said:\n{text}");
        }
        Ok(text)
    }

    /// Writes a file.
    pub(super) fn write(&self, to: &str, text: &str) -> Result<()> {
        let mut child = self.command(&format!("cat > '{to}'")).stdin(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().context("`nsenter` has an input")?;
        input.write_all(text.as_bytes()).with_context(|| format!("cannot write {to}"))?;
        drop(input);
        ensure!(child.wait()?.success(), "cannot write {to}");
        Ok(())
    }

    /// Copies a file of the machine to a path in this root.
    pub(super) fn put(&self, from: &Path, to: &str) -> Result<()> {
        let file = fs::File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
        let mut command = self.command(&format!("cat > '{to}'"));
        let status = command.stdin(file).status().context("`nsenter` did not start")?;
        if !status.success() {
            bail!("{} cannot be copied to {to}", from.display());
        }
        Ok(())
    }

    /// Files that were made or changed, and directories that were made, by their paths, and files that are
    /// gone (`-`); what the system writes about packages is left out.
    pub(super) fn changes(&self) -> Result<Vec<String>> {
        const OF_THE_SYSTEM: [&str; 7] = [
            "var/lib/dpkg/",
            "var/lib/apt/",
            "var/lib/man-db/",
            "var/log/",
            "var/cache/",
            "etc/ld.so.cache",
            "run",
        ];
        let shown = self.good("cd /run/upper && find . -mindepth 1 -printf '%y %P\\n'")?;
        let changed = |line: &str| {
            let (kind, path) = line.split_once(' ')?;
            let is_new = kind != "d" || !Path::new("/").join(path).exists();
            let is_ours = !OF_THE_SYSTEM.iter().any(|prefix| path.starts_with(prefix));
            let mark = if kind == "c" { "- " } else { "" };
            (is_new && is_ours).then(|| format!("{mark}{path}"))
        };
        let mut paths: Vec<_> = shown.lines().filter_map(changed).collect();
        paths.sort_unstable();
        Ok(paths)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // With the first process of the namespace all others end.
        drop(self.input.take());
        let _ = self.holder.wait();
    }
}
