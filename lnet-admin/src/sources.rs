//! Sources of a node's configuration at its start: files and the command line.
//!
//! Invariants: nothing here asks a node; what is passed over is told.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use lnet_control::client::errno_of;
use lnet_control::document::{self, Document, DocumentError, Instruction};
use lnet_control::file;
use lnet_control::legacy::{LEGACY_BYTES_MAX, LegacyKind, LegacyText, Located, module_options, taken};
use lnet_model::choice::{ChoiceForm, InterfaceRecord};
use lnet_model::ni::NiOptions;
use lnet_model::parameter::ParameterValue;
use lnet_model::request::Change;
use lnet_model::{Errno, Refusal};
use lnet_wire::Net;

/// The kernel module whose options a node has.
const MODULE: &str = "lnet";

/// Sources of a node's configuration at its start, and of `lnetctl lnet configure --all`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct StartUp {
    /// The document.
    pub document: Option<PathBuf>,
    /// Files of modprobe, and directories of them, in the order in which modprobe reads them.
    pub modprobe: Vec<PathBuf>,
    /// Strings as the kernel module has them. They come before those of files.
    pub strings: Vec<(LegacyKind, String)>,
}

/// A part of it that has been read.
pub(super) struct StartSource {
    /// Its name.
    pub(super) origin: String,
    pub(super) document: Document,
    /// Whether it is a string of the kernel module: routes that are of no use are passed over then.
    pub(super) is_legacy: bool,
}

impl StartUp {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.document.is_none() && self.modprobe.is_empty() && self.strings.is_empty()
    }

    /// Reads all of it, and what is to be told of it. Blocks.
    pub(super) fn read(&self) -> Result<(Vec<StartSource>, Vec<String>), Refusal> {
        let mut notes = Vec::new();
        let mut sources = self.read_strings(&mut notes)?;
        if let Some(path) = &self.document {
            let what = "the start-up document";
            let text = read(path, what, document::DOCUMENT_BYTES_MAX)?;
            let origin = path.display().to_string();
            let document = document::parse(&text, document::Mode::Add);
            let document = document.map_err(|errors| wrong(&origin, &errors))?;
            if document.is_blank {
                notes.push(format!("{origin}: the start-up document is empty"));
            }
            sources.push(StartSource { origin, document, is_legacy: false });
        }
        Ok((sources, notes))
    }

    /// Reads the strings of the command line and of files.
    fn read_strings(&self, notes: &mut Vec<String>) -> Result<Vec<StartSource>, Refusal> {
        let mut files = Vec::new();
        for path in self.modprobe_files()? {
            let text = read(&path, "the file of modprobe", LEGACY_BYTES_MAX)?;
            files
                .extend(module_options(&text).into_iter().map(|option| (path.display().to_string(), option)));
        }
        let (options, passed_over) = taken(MODULE, files);
        notes.extend(passed_over);
        let mut sources = Vec::new();
        let mut strings: Vec<(LegacyKind, String, LegacyText)> = Vec::new();
        for (kind, text) in &self.strings {
            strings.push((*kind, format!("--{}", kind.name()), LegacyText::new(text)));
        }
        for (file, option) in options {
            let location = format!("{file}: {}: {}", option.position, option.name);
            if let Some(kind) = LegacyKind::of_name(&option.name) {
                if self.strings.iter().any(|(given, _)| *given == kind) {
                    let name = &option.name;
                    notes.push(format!("{location} is passed over: --{name} stands on the command line"));
                } else {
                    strings.push((kind, file, option.value));
                }
                continue;
            }
            match ParameterValue::named(&option.name) {
                Err(_) => notes.push(format!("{location} is passed over: this node has no such parameter")),
                Ok(parameter) => {
                    let value = ParameterValue::read(parameter, option.value.text());
                    let value =
                        value.map_err(|error| Refusal::new(Errno::INVAL, format!("{file}: {error}")))?;
                    let document = Document::of(option.position, "options", value.change());
                    sources.push(StartSource { origin: file, document, is_legacy: true });
                }
            }
        }
        let of =
            |kind| strings.iter().find(|(known, _, text)| *known == kind && !text.text().trim().is_empty());
        if let (Some((_, networks, _)), Some((_, ip2nets, _))) =
            (of(LegacyKind::Networks), of(LegacyKind::Ip2nets))
        {
            let message =
                format!("networks ({networks}) and ip2nets ({ip2nets}): one of them is expected, not both");
            return Err(Refusal::new(Errno::INVAL, message));
        }
        strings.sort_by_key(|(kind, ..)| LegacyKind::ALL.iter().position(|known| known == kind));
        for (kind, origin, text) in strings {
            let legacy = kind.read(&text).map_err(|errors| wrong(&origin, &errors))?;
            let told = |note: &Located<String>| format!("{origin}: {}: {}", note.position, note.value);
            notes.extend(legacy.notes.iter().map(told));
            let document = legacy.document(ChoiceForm::Module, NiOptions::default());
            sources.push(StartSource { origin, document, is_legacy: true });
        }
        Ok(sources)
    }

    /// The files, those of a directory in the order of their names (modprobe.d(5)).
    fn modprobe_files(&self) -> Result<Vec<PathBuf>, Refusal> {
        let mut files = Vec::new();
        for path in &self.modprobe {
            let cannot = |error: std::io::Error| {
                Refusal::new(
                    errno_of(&error),
                    format!("cannot read the files of {}: {error}", path.display()),
                )
            };
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            let entries = path.read_dir().map_err(cannot)?.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
            let mut found: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
            found.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
            found.sort();
            files.extend(found);
        }
        Ok(files)
    }
}

/// The text of a file. Blocks.
fn read(path: &Path, what: &str, bytes_max: usize) -> Result<String, Refusal> {
    let cannot = |errno, error: &dyn std::fmt::Display| {
        Refusal::new(errno, format!("cannot read {what} {}: {error}", path.display()))
    };
    let bytes = file::read_regular(path, bytes_max).map_err(|error| cannot(errno_of(&error), &error))?;
    let no_text = |error| cannot(Errno::INVAL, &format_args!("text in UTF-8 is expected: {error}"));
    String::from_utf8(bytes).map_err(no_text)
}

/// The refusal of what is wrong in a source.
pub(super) fn wrong(origin: &str, errors: &[DocumentError]) -> Refusal {
    let errno = errors.first().map_or(Errno::INVAL, |error| error.errno);
    let lines: Vec<_> = errors.iter().map(|error| format!("{origin}: {error}")).collect();
    Refusal::new(errno, lines.join("\n"))
}

/// Routes of the kernel module's strings without those that it passes over: by gateways that are on no net
/// here, and by this node, which is a gateway itself then (LNet `config.c: lnet_parse_route`).
pub(super) fn passable(
    document: Document,
    nets: &HashSet<Net>,
    host: &[InterfaceRecord],
) -> (Document, Vec<String>) {
    let is_own = |ip| host.iter().any(|interface| interface.addresses.contains(&ip));
    let mut told = Vec::new();
    let mut items = document.items;
    let mut own = None;
    items.retain(|item| {
        let Instruction::Change(change) = &item.action else { return true };
        let Change::AddRoute(spec) = &**change else { return true };
        let why = match spec.gateway.ip() {
            _ if nets.contains(&spec.net) => "the net is this node's own",
            _ if !nets.contains(&spec.gateway.net()) => "no NI here is on the net of the gateway",
            Some(ip) if is_own(ip) => {
                own = own.or(Some(item.position));
                "the gateway is this node, which is a router then"
            }
            _ => return true,
        };
        told.push(format!("{}: route {spec} is passed over: {why}", item.position));
        false
    });
    if let Some(position) = own {
        items.extend(Document::of(position, "routes", Change::SetRouting { on: true }).items);
    }
    (Document { items, ..document }, told)
}
