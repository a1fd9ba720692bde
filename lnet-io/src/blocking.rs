//! Work that may block, each on a thread of its own.
//!
//! Invariant: where no thread can be made, the work is not done, and an error says so. The functions of the
//! standard library and of tokio for this panic then, and would take the shard or the control thread along.

use std::io;
use std::thread::Builder;

use tokio::sync::oneshot;

const NAME: &str = "lnet-blocking";

/// Does the work on another thread, and waits for it without blocking this one. Once begun, the
/// work goes on to its end, also when its caller is dropped.
///
/// # Errors
///
/// There is no room for a thread, or the work has panicked.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, outcome) = oneshot::channel();
    // The caller may be gone.
    Builder::new().name(NAME.to_owned()).spawn(move || drop(done.send(work())))?;
    outcome.await.map_err(|_| io::Error::other("work on another thread has panicked"))
}

/// Does the work on another thread while this one waits.
///
/// # Errors
///
/// There is no room for a thread.
///
/// # Panics
///
/// The panic of the work.
pub fn wait<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = Builder::new().name(NAME.to_owned()).spawn_scoped(scope, work)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, setrlimit};

    use super::*;

    fn run_here<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run(work))
    }

    #[test]
    fn work_is_done_on_another_thread() {
        let here = std::thread::current().id();
        assert_ne!(run_here(|| std::thread::current().id()).unwrap(), here);
        assert_ne!(wait(|| std::thread::current().id()).unwrap(), here);
        let error = run_here(|| panic!("as a test has it")).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    /// A process of its own has no room for the stack of one more thread.
    #[test]
    fn where_no_thread_can_be_made_the_work_fails() {
        const CHILD: &str = "LNET_TESTS_WITHOUT_THREADS";
        if std::env::var_os(CHILD).is_none() {
            let name = "blocking::tests::where_no_thread_can_be_made_the_work_fails";
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args([name, "--exact", "--test-threads=1"]).env(CHILD, "1");
            let output = child.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split_whitespace().next().unwrap().parse().unwrap();
        let limit = Some(pages * 4096 + (512 << 10));
        setrlimit(Resource::As, Rlimit { current: limit, maximum: limit }).unwrap();
        for outcome in [run_here(|| ()), wait(|| ())] {
            assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
    }
}
