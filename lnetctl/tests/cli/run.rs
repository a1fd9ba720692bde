//! The real `lnetctl` against a server with a node in memory.

use std::cell::RefCell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use lnet_control::server::{self, Access, Listener, ServerLimits};
use tokio::sync::oneshot;

use crate::model::{Model, Served};
use crate::schema;

/// A node in memory with its server, in a thread of its own.
pub(crate) struct Node {
    pub(crate) directory: PathBuf,
    pub(crate) socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Node {
    pub(crate) fn start(model: Model) -> Self {
        Self::with_access(model, Access::default())
    }

    pub(crate) fn with_access(model: Model, access: Access) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::SeqCst);
        let directory = std::env::temp_dir().join(format!("lnetctl-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("node.sock");
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, bound) = std::sync::mpsc::channel();
        let path = socket.clone();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = Listener::bind(&path, access).unwrap();
                ready.send(()).unwrap();
                let node = Served(RefCell::new(model));
                let stop = async move {
                    let _ = stopped.await;
                };
                server::serve(listener, ServerLimits::default(), &node, stop).await;
            });
        });
        bound.recv().unwrap();
        Self { directory, socket, stop: Some(stop), thread: Some(thread) }
    }

    /// Runs `lnetctl` with these words, split at blanks; `'...'` keeps them together.
    pub(crate) fn run(&self, words: &str) -> Ran {
        self.run_with(words, "")
    }

    pub(crate) fn run_with(&self, words: &str, stdin: &str) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lnetctl"));
        command.args(split(words)).env("LNET_SOCKET", &self.socket);
        ran(&mut command, stdin)
    }

    /// Runs it; it must succeed and say nothing of errors. Returns what it prints.
    pub(crate) fn good(&self, words: &str) -> String {
        self.good_with(words, "")
    }

    pub(crate) fn good_with(&self, words: &str, stdin: &str) -> String {
        let ran = self.run_with(words, stdin);
        assert!(ran.status == 0 && ran.stderr.is_empty(), "lnetctl {words}: {ran:?}");
        if words.ends_with("--json") {
            schema::check(&ran.stdout);
        }
        ran.stdout
    }

    /// Runs it; it must fail with this status, print nothing, and have these words on stderr.
    pub(crate) fn bad(&self, words: &str, status: i32, expected: &[&str]) {
        self.bad_with(words, "", status, expected);
    }

    pub(crate) fn bad_with(&self, words: &str, stdin: &str, status: i32, expected: &[&str]) {
        let ran = self.run_with(words, stdin);
        let fits = expected.iter().all(|expected| ran.stderr.contains(expected));
        assert!(ran.status == status && ran.stdout.is_empty() && fits, "lnetctl {words}: {ran:?}");
        if words.ends_with("--json") {
            schema::check(&ran.stderr);
        }
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        fs::remove_dir_all(&self.directory).unwrap();
    }
}

pub(crate) fn ran(command: &mut Command, stdin: &str) -> Ran {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that does not read its input may be gone by now.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { status: status.code().unwrap(), stdout: text(stdout), stderr: text(stderr) }
}

fn split(words: &str) -> Vec<String> {
    let mut split = Vec::new();
    for (position, part) in words.split('\'').enumerate() {
        match position % 2 {
            0 => split.extend(part.split_ascii_whitespace().map(str::to_owned)),
            _ => split.push(part.to_owned()),
        }
    }
    split
}

/// A file with what LNet's tools print.
pub(crate) fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
