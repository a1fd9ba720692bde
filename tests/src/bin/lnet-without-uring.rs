//! `lnet-without-uring COMMAND...`: runs a command where `io_uring` is refused, such as a test of nodes,
//! which then goes by `epoll`.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use lnet_tests::confined::refuse_io_uring;
use rustix::io::Errno;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("lnet-without-uring COMMAND...");
        return ExitCode::from(2);
    };
    refuse_io_uring(Errno::PERM);
    let error = Command::new(&program).args(words).exec();
    eprintln!("{}: {error}", program.display());
    ExitCode::from(127)
}
