//! LNet's start-up strings as YAML documents: what `lnet_legacy2yaml` does, with its options and its status,
//! and more: ranges written out, rules carried out for this host, several gateways in a rule.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use lnet_control::client::errno_of;
use lnet_control::document::{DocumentError, Failure};
use lnet_control::file;
use lnet_control::legacy::{
    Conversion, FileOption, LEGACY_BYTES_MAX, Legacy, LegacyKind, LegacyText, inline_option, module_options,
    taken,
};
use lnet_model::Errno;
use lnet_model::choice::InterfaceRecord;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;

use super::Result;
use crate::daemon::Daemon;
use crate::failure::{CommandError, Task, UNSOUND, USAGE};
use crate::output::{eprint_text, print_lasting};

const TASK: Task = Task::new("convert", "legacy");

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Rules of ip2nets and routes, or a string with its name, such as `networks="tcp(eth0)"` [default:
    /// standard input, where nothing else is given]
    pub(crate) text: Vec<String>,
    /// File of ip2nets, as often as there are some
    #[arg(long, short, value_name = "FILE")]
    pub(crate) ip2nets: Vec<PathBuf>,
    /// File of routes, also in the form of lnet_routes.conf
    #[arg(long, short, value_name = "FILE")]
    pub(crate) routes: Vec<PathBuf>,
    /// File of networks
    #[arg(long, short, value_name = "FILE")]
    pub(crate) networks: Vec<PathBuf>,
    /// File of modprobe, whose `options lnet` are taken; of several values of a parameter the last
    #[arg(long, short, value_name = "FILE")]
    pub(crate) modprobe: Vec<PathBuf>,
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Hops of routes that say none: 1 to 255, and 1 without a number
    #[arg(long, value_name = "HOPS", num_args = 0..=1, default_missing_value = "1",
          value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) default_hop: Option<u8>,
    /// Write ranges of gateways out, a route for each
    #[arg(long)]
    pub(crate) expand: bool,
    /// Carry rules out for this host: its nets and interfaces instead of rules
    #[arg(long)]
    pub(crate) resolve: bool,
}

/// Strings that were read, and what is wrong with others.
#[derive(Default)]
struct Input {
    legacy: Legacy,
    failures: Vec<Failure>,
}

impl Input {
    /// Takes what was read of a source; tells what its author may not have meant.
    fn take(&mut self, name: &str, read: core::result::Result<Legacy, Vec<DocumentError>>) {
        match read {
            Ok(legacy) => {
                for note in &legacy.notes {
                    warn(&format!("{name}: {}: {}", note.position, note.value));
                }
                self.legacy.append(legacy);
            }
            Err(errors) => self.failures.extend(errors.iter().map(|error| failure(name, error))),
        }
    }

    /// Takes the options of the module `lnet`, of those in files.
    fn take_options(&mut self, options: Vec<FileOption>) {
        let (options, notes) = taken("lnet", options);
        notes.iter().for_each(|note| warn(note));
        for (name, option) in options {
            match LegacyKind::of_name(&option.name) {
                Some(kind) => self.take(&name, kind.read(&option.value)),
                None => {
                    let position = option.position;
                    warn(&format!(
                        "{name}: {position}: {} is passed over: a document has no such key",
                        option.name
                    ));
                }
            }
        }
    }

    /// Takes a text of which nothing is known.
    fn take_text(&mut self, name: &str, text: &str) {
        let options = module_options(text);
        if !options.is_empty() {
            return self.take_options(options.into_iter().map(|option| (name.to_owned(), option)).collect());
        }
        match inline_option(text) {
            Some((kind, value)) => self.take(name, kind.read(&value)),
            None => self.take(name, Legacy::read(&LegacyText::new(text))),
        }
    }
}

fn warn(text: &str) {
    eprint_text(&format_args!("lnetctl: warning: {text}\n"));
}

fn failure(name: &str, error: &DocumentError) -> Failure {
    let message = format!("{name}: {error}");
    Failure { entity: TASK.entity, seq_no: None, errno: error.errno, message }
}

/// The error of input that cannot be read or makes no sense.
fn bad(failures: Vec<Failure>) -> CommandError {
    CommandError::several(TASK.operation, failures).with_status(USAGE)
}

pub(super) fn convert(daemon: &Daemon<'_>, args: &ConvertArgs) -> Result<()> {
    let mut input = Input::default();
    let mut options = Vec::new();
    for path in &args.modprobe {
        let text = read(Some(path))?;
        options.extend(module_options(&text).into_iter().map(|option| (path.display().to_string(), option)));
    }
    input.take_options(options);
    for (kind, paths) in [
        (LegacyKind::Ip2nets, &args.ip2nets),
        (LegacyKind::Routes, &args.routes),
        (LegacyKind::Networks, &args.networks),
    ] {
        for path in paths {
            let text = read(Some(path))?;
            input.take(&path.display().to_string(), kind.read(&LegacyText::new(&text)));
        }
    }
    for text in &args.text {
        input.take_text("the command line", text);
    }
    let files = [&args.modprobe, &args.ip2nets, &args.routes, &args.networks];
    if args.text.is_empty() && files.iter().all(|files| files.is_empty()) {
        input.take_text("standard input", &read(None)?);
    }
    let Input { legacy, failures } = input;
    if !failures.is_empty() {
        return Err(bad(failures));
    }
    if legacy.is_empty() {
        return Err(TASK.invalid("nothing to convert: no net, rule or route is there").with_status(UNSOUND));
    }
    let host = args.resolve.then(interfaces).transpose()?;
    let conversion = Conversion { default_hop: args.default_hop, expands: args.expand, host };
    let document = conversion
        .document(&legacy)
        .map_err(|errors| bad(errors.iter().map(|error| failure("this host", error)).collect()))?;
    let text = daemon.text(&document);
    match &args.output {
        Some(path) => file::replace(path, text.as_bytes()).map_err(|error| cannot("write", path, &error)),
        None => {
            print_lasting(&text);
            Ok(())
        }
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> CommandError {
    let message = format!("cannot {what} {}: {error}", path.display());
    TASK.error(errno_of(error), message).with_status(USAGE)
}

/// The text of a file, or of standard input.
fn read(path: Option<&Path>) -> Result<String> {
    let name = path.unwrap_or(Path::new("standard input"));
    let reader: Box<dyn Read> = match path {
        Some(path) => Box::new(File::open(path).map_err(|error| cannot("open", path, &error))?),
        None => Box::new(io::stdin()),
    };
    let bytes = file::read(reader, LEGACY_BYTES_MAX).map_err(|error| cannot("read", name, &error))?;
    let no_text = |_| TASK.invalid(format!("{} is not text in UTF-8", name.display())).with_status(USAGE);
    String::from_utf8(bytes).map_err(no_text)
}

/// The interfaces of this host but the loopback, and the labels of aliases.
fn interfaces() -> Result<Vec<InterfaceRecord>> {
    let failed = |errno: nix::Error| {
        let errno = u8::try_from(errno as i32).map_or(Errno::IO, Errno);
        TASK.error(errno, "cannot list the interfaces of this host").with_status(USAGE)
    };
    Ok(records(getifaddrs().map_err(failed)?))
}

/// The interfaces in the kernel's order, as the daemon has them.
fn records(addresses: impl Iterator<Item = InterfaceAddress>) -> Vec<InterfaceRecord> {
    let mut found: Vec<InterfaceRecord> = Vec::new();
    for one in addresses {
        if one.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            continue;
        }
        let address: Option<IpAddr> =
            one.address.and_then(|address| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(address), _) => Some(address.ip().into()),
                (_, Some(address)) => Some(address.ip().into()),
                _ => None,
            });
        let is_up = one.flags.contains(InterfaceFlags::IFF_UP);
        let device = one.interface_name.split(':').next().unwrap_or_default().to_owned();
        // An address with a label is one of its device too.
        let mut names = vec![device, one.interface_name];
        names.dedup();
        for name in names {
            match found.iter_mut().find(|record| record.name == name) {
                Some(record) => record.addresses.extend(address),
                None => {
                    let addresses = address.into_iter().collect();
                    found.push(InterfaceRecord { name, is_up, addresses });
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use nix::sys::socket::SockaddrStorage;

    use super::*;

    #[test]
    fn interfaces_have_the_order_of_the_kernel() {
        let address = |name: &str, last: Option<u8>, flags| InterfaceAddress {
            interface_name: name.to_owned(),
            flags,
            address: last.map(|last| SockaddrStorage::from(SocketAddr::from(([10, 0, 0, last], 0)))),
            netmask: None,
            broadcast: None,
            destination: None,
        };
        let up = InterfaceFlags::IFF_UP;
        let found = records(
            [
                address("lo", Some(9), up | InterfaceFlags::IFF_LOOPBACK),
                address("eth9", None, up),
                address("eth1", None, InterfaceFlags::empty()),
                address("eth9", Some(1), up),
                address("eth9:b", Some(2), up),
                address("eth1", Some(3), InterfaceFlags::empty()),
            ]
            .into_iter(),
        );
        let told: Vec<_> = found
            .iter()
            .map(|one| (one.name.as_str(), one.is_up, one.addresses.iter().map(IpAddr::to_string).collect()))
            .collect::<Vec<(_, _, Vec<_>)>>();
        let ips = |lasts: &[u8]| lasts.iter().map(|last| format!("10.0.0.{last}")).collect::<Vec<_>>();
        assert_eq!(
            told,
            [("eth9", true, ips(&[1, 2])), ("eth1", false, ips(&[3])), ("eth9:b", true, ips(&[2]))]
        );
    }
}
