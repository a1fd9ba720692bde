//! The report: a part of `docs/cards.md` between two marks.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::outcomes::{Outcome, Outcomes, Seen};
use super::table::{Cell, MODES};

/// Beginning of the part of the report.
const BEGIN: &str = "<!-- cells -->";
/// End of that part.
const END: &str = "<!-- end of cells -->";
/// Beginnings of what is told of a cell that works: why mode `auto` took sockets, or lesser rings; changes
/// that the kernel refused; what takes long messages.
const REASONS: [&str; 4] = ["no rings", "reason", "refused", "auto takes"];
/// Characters of a failure in the report, at most.
const FAILURE_CHARACTERS_MAX: usize = 300;

/// The document with the report in the part for it.
///
/// # Errors
/// When a mark is missing.
pub(super) fn put(document: &str, report: &str) -> Result<String> {
    let (before, rest) = document.split_once(BEGIN).with_context(|| format!("no line {BEGIN}"))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("no line {END}"))?;
    Ok(format!("{before}{BEGIN}\n{report}{END}{after}"))
}

/// The report of the cells that have run: a table for each kernel, a row for all modes of one NIC, MTU and
/// device, and the failures behind them.
pub(super) fn report(cells: &[Cell], outcomes: &Outcomes) -> String {
    let ran: Vec<_> =
        cells.iter().filter_map(|cell| Some((*cell, outcomes.of(&cell.to_string())?))).collect();
    let mut text = summary(cells.len(), &ran);
    let mut notes: Vec<String> = Vec::new();
    let mut kernels = Vec::new();
    for (cell, _) in &ran {
        if !kernels.contains(&cell.boot.kernel) {
            kernels.push(cell.boot.kernel);
        }
    }
    for kernel in kernels {
        let of_kernel: Vec<_> = ran.iter().filter(|(cell, _)| cell.boot.kernel == kernel).copied().collect();
        let releases: BTreeSet<_> = of_kernel.iter().map(|(_, outcome)| outcome.release.as_str()).collect();
        let releases = releases.into_iter().collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "\n## Linux {releases}\n");
        let _ = writeln!(text, "| NIC | queues | CPUs | MTU | device | {} | commit |", MODES.join(" | "));
        let _ = writeln!(text, "|---|---|---|---|---|{}", "---|".repeat(MODES.len() + 1));
        let mut rows: Vec<Cell> = Vec::new();
        for (cell, _) in &of_kernel {
            let cell = Cell { mode: "", ..*cell };
            if !rows.contains(&cell) {
                rows.push(cell);
            }
        }
        for row in rows {
            let of_row = of_kernel.iter().filter(|(cell, _)| Cell { mode: "", ..*cell } == row);
            let of_row: Vec<_> = of_row.collect();
            let queues = of_row.iter().map(|(_, outcome)| outcome.seen.queues).max().unwrap_or_default();
            let Cell { boot, mtu_bytes, device, with, .. } = row;
            let device = if with.is_empty() { device.to_owned() } else { format!("{device}, {with}") };
            let _ = write!(text, "| {} | {queues} | {} | {mtu_bytes} | {device} |", boot.nic, boot.cpus);
            for mode in MODES {
                let outcome = of_row.iter().find(|(cell, _)| cell.mode == mode).map(|(_, outcome)| *outcome);
                let _ = write!(text, " {} |", outcome.map_or_else(String::new, |one| entry(one, &mut notes)));
            }
            let commits: BTreeSet<_> = of_row.iter().map(|(_, outcome)| outcome.commit.as_str()).collect();
            let _ = writeln!(text, " {} |", commits.into_iter().collect::<Vec<_>>().join(", "));
        }
    }
    if !notes.is_empty() {
        text += "\n## What failed, is refused or has a reason\n";
        for (index, note) in notes.iter().enumerate() {
            let _ = writeln!(text, "{}. {note}", index + 1);
        }
    }
    text
}

/// When, with what, and how many.
fn summary(count: usize, ran: &[(Cell, &Outcome)]) -> String {
    let each = |part: fn(&Outcome) -> &str| {
        let parts: BTreeSet<_> = ran.iter().map(|(_, outcome)| part(outcome)).collect();
        parts.into_iter().collect::<Vec<_>>().join(", ")
    };
    let passed = ran.iter().filter(|(_, outcome)| outcome.failure.is_none()).count();
    let minutes = ran.iter().map(|(_, outcome)| outcome.seconds).sum::<u64>() / 60;
    format!(
        "Written by `cargo xtask cards`: {passed} of {} cells work or are refused as the kernel wants it, {} of {count} cells have not run. Days: {}. Commits: {}. \
         QEMU {}. The cells took {minutes} minutes.\n",
        ran.len(),
        count - ran.len(),
        each(|outcome| &outcome.date),
        each(|outcome| &outcome.commit),
        each(|outcome| &outcome.qemu),
    )
}

/// Entry of a cell: the mode in force and whether it has zero copy, or the number of the note of its failure.
fn entry(outcome: &Outcome, notes: &mut Vec<String>) -> String {
    let Seen { active_mode, zero_copy: (zero, all), .. } = &outcome.seen;
    let how = match (zero, all) {
        (0, _) => active_mode.clone(),
        (zero, all) if zero == all => format!("{active_mode}, zero copy"),
        (zero, all) => format!("{active_mode}, {zero} of {all} zero copy"),
    };
    let how = if how.is_empty() { "works".to_owned() } else { how };
    let is_reason = |said: &&str| REASONS.iter().any(|key| said.starts_with(key));
    let reasons: Vec<_> = outcome.seen.said.iter().map(String::as_str).filter(is_reason).collect();
    let reasons = reasons.join("; ");
    let (word, why) = match (&outcome.failure, &outcome.refusal) {
        (Some(failure), _) => ("**fails**", failure),
        (None, Some(refusal)) => ("refused", refusal),
        (None, None) if reasons.is_empty() => return how,
        (None, None) => (how.as_str(), &reasons),
    };
    let words: Vec<_> = why.split_whitespace().collect();
    let mut note: String = words.join(" ").chars().take(FAILURE_CHARACTERS_MAX).collect();
    note = note.replace('|', "/").replace('<', "&lt;");
    let number = notes.iter().position(|known| *known == note).unwrap_or_else(|| {
        notes.push(note);
        notes.len() - 1
    });
    format!("{word} ({})", number + 1)
}

#[cfg(test)]
mod tests {
    use super::super::table::{cells, only, short};
    use super::*;

    fn outcome(cell: Cell, failure: Option<&str>) -> Outcome {
        Outcome {
            cell: cell.to_string(),
            date: "2026-01-02".into(),
            commit: "abc".into(),
            release: "6.12.1".into(),
            qemu: "10.0".into(),
            seconds: 61,
            failure: failure.map(str::to_owned),
            refusal: None,
            seen: Seen { active_mode: "native".into(), zero_copy: (2, 4), queues: 4, ..Seen::default() },
        }
    }

    #[test]
    fn a_report_has_a_row_for_the_modes_of_one_device_and_says_what_failed() {
        let path = std::env::temp_dir().join(format!("lnet-cards-report-{}", std::process::id()));
        let mut outcomes = Outcomes::open(path.clone()).unwrap();
        let words = ["6.12", "virtio", "vlan"].map(str::to_owned);
        let cells = only(&cells(), &words).unwrap();
        outcomes.add(outcome(cells[0], None)).unwrap();
        outcomes.add(outcome(cells[1], Some("ping: no\nanswer | <none>"))).unwrap();
        outcomes.add(outcome(cells[2], Some("ping: no answer / &lt;none>"))).unwrap();
        let mut with_reason = outcome(cells[3], None);
        with_reason.seen.active_mode = "socket".into();
        with_reason.seen.said =
            ["no rings: why", "WARN a: b", "refused: `ethtool`: no"].map(Into::into).to_vec();
        with_reason.commit = "abd".into();
        with_reason.seen.zero_copy = (0, 0);
        outcomes.add(with_reason).unwrap();
        let report = report(&cells, &outcomes);
        std::fs::remove_file(path).unwrap();
        let row = "| virtio | 4 | 2 | 1500 | vlan | native, 2 of 4 zero copy | **fails** (1) | **fails** (1) | socket (2) |  | abc, abd |";
        assert!(report.contains(row), "{report}");
        assert!(report.contains("1. ping: no answer / &lt;none>\n"), "{report}");
        assert!(report.contains("2. no rings: why; refused: `ethtool`: no\n"), "{report}");
        assert!(report.starts_with("Written by `cargo xtask cards`: 2 of 4 cells work or are refused as the kernel wants it, 1 of 5 cells have not run. Days: 2026-01-02."), "{report}");
        assert!(report.contains("\n## Linux 6.12.1\n"), "{report}");
    }

    #[test]
    fn a_report_replaces_the_one_before_it() {
        let document = format!("# Cards\n{BEGIN}\nold\n{END}\nmore\n");
        let expected = format!("# Cards\n{BEGIN}\nnew\n{END}\nmore\n");
        assert_eq!(put(&document, "new\n").unwrap(), expected);
        assert!(put("# Cards\n", "new").unwrap_err().to_string().contains(BEGIN));
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/cards.md");
        put(&std::fs::read_to_string(path).unwrap(), "").unwrap();
        assert_eq!(short().to_string(), "6.12-cloud/virtio/4q/2c/1500/plain/auto");
    }
}
