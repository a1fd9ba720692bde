//! `lnet-without-uring COMMAND...`: runs a command where `io_uring` is refused, such as tests of nodes, which
//! then go by `epoll` and assert that ([`REACTOR`]). `cargo xtask test` does so.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use lnet_io::reactor::{Reactor, ReactorChoice};
use lnet_tests::confined::{REACTOR, refuse_io_uring};
use rustix::io::Errno;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("lnet-without-uring COMMAND...");
        return ExitCode::from(2);
    };
    refuse_io_uring(Errno::PERM);
    let reactor = ReactorChoice::Auto.choose().reactor;
    if reactor != Reactor::Epoll {
        eprintln!("a node goes by {reactor} all the same");
        return ExitCode::FAILURE;
    }
    let error = Command::new(&program).args(words).env(REACTOR, reactor.name()).exec();
    eprintln!("{}: {error}", program.display());
    ExitCode::from(127)
}
