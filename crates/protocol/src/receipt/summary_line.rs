//! Formats a receipt as one line, the same on every surface: `stopped in 12 ms · model closed after 0.4 ms · 3
//! processes ended (term) · history valid`.

use super::{Amendment, AmendmentKind, Instant, Leftover, Receipt, Resource, ResourceKind};
use crate::display_text::{format_count, format_millis, one_line};
use crate::verdict::{StopReason, Verdict};

/// Limit for names and labels, which come from outside; longer ones are cut.
const MAX_NAME_CHARS: usize = 200;
/// Value of [`Resource::how`] for an MCP call whose server did not confirm the cancellation.
const HOW_UNCONFIRMED: &str = "unconfirmed";
/// Value of [`Resource::how`] for what goes on without the run.
const HOW_KEPT: &str = "kept";

/// A part of a receipt's line, in the order of the line. Names in it are cleaned for display.
#[derive(Debug, Clone, PartialEq)]
pub enum ReceiptPart {
    /// How the run ended, and after how many milliseconds, if that is known.
    Ended {
        verdict: ReceiptVerdict,
        ms: Option<f64>,
    },
    /// Model requests that the end closed; `after_ms` is the time of the last.
    ModelRequestsClosed {
        number: usize,
        after_ms: Option<f64>,
    },
    /// Processes that the end ended, and by which signals.
    ProcessesEnded {
        number: u64,
        hows: Vec<String>,
    },
    /// Children of commands that had finished.
    LeftBehindEnded {
        number: u64,
    },
    /// Resources of another kind that the end released.
    Released {
        kind: ResourceKind,
        number: usize,
    },
    /// MCP calls whose servers did not confirm the cancellation.
    Unconfirmed {
        number: usize,
    },
    /// What could not be released.
    Left {
        kind: ResourceKind,
        names: Vec<String>,
    },
    /// The daemon died during the run, so the record is incomplete.
    RecordLost,
    History(ReceiptHistory),
    /// Why the run was stopped, unless a person simply asked for it.
    Reason(String),
}

/// How a run ended, as its line says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiptVerdict {
    Completed,
    Failed { code: String },
    Stopped,
}

/// What became of the history of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiptHistory {
    Valid,
    /// A queued message that was withdrawn owes no turn, so nothing is missing.
    NoTurn,
    NotRecorded,
}

/// Formats a receipt as one line, in English. It names every leftover.
#[must_use]
pub fn receipt_line(receipt: &Receipt) -> String {
    receipt_parts(receipt).iter().map(ReceiptPart::to_english).collect::<Vec<_>>().join(" · ")
}

/// The parts of a receipt's line, for every language.
#[must_use]
pub fn receipt_parts(receipt: &Receipt) -> Vec<ReceiptPart> {
    let mut parts = vec![ending_part(receipt)];
    parts.extend(model_part(receipt));
    parts.extend(process_part(receipt));
    parts.extend(RESOURCE_WORDINGS.iter().filter_map(|wording| released_part(receipt, wording.kind)));
    parts.extend(unconfirmed_part(receipt));
    parts.extend(leftover_parts(&receipt.leftovers));
    parts.extend(receipt.recovered.then_some(ReceiptPart::RecordLost));
    parts.push(ReceiptPart::History(history_of(receipt)));
    parts.extend(reason_part(&receipt.verdict));
    parts
}

impl ReceiptPart {
    fn to_english(&self) -> String {
        match self {
            Self::Ended { verdict, ms } => with_duration(&verdict.to_english(), *ms),
            Self::ModelRequestsClosed { number, after_ms } => {
                let subject = if *number == 1 { "model".to_owned() } else { format!("{number} model requests") };
                after_ms.map_or_else(
                    || format!("{subject} closed"),
                    |ms| format!("{subject} closed after {}", format_millis(ms)),
                )
            }
            Self::ProcessesEnded { number, hows } => {
                format!("{} ended ({})", format_count(*number, "process", "processes"), hows.join(", "))
            }
            Self::LeftBehindEnded { number } => {
                format!("{} ended", format_count(*number, "left-behind process", "left-behind processes"))
            }
            Self::Released { kind, number } => {
                let wording = RESOURCE_WORDINGS.iter().find(|wording| wording.kind == *kind);
                wording.map_or_else(String::new, |wording| wording.format(*number))
            }
            Self::Unconfirmed { number } => {
                format!("{} told to cancel, not confirmed", format_count(*number as u64, "MCP call", "MCP calls"))
            }
            Self::Left { kind, names } => {
                let (one, many, how) = leftover_wording(*kind);
                format!("{} still {how}: {}", format_count(names.len() as u64, one, many), names.join("; "))
            }
            Self::RecordLost => "record lost with the daemon".to_owned(),
            Self::History(ReceiptHistory::Valid) => "history valid".to_owned(),
            Self::History(ReceiptHistory::NoTurn) => "no turn recorded".to_owned(),
            Self::History(ReceiptHistory::NotRecorded) => "history not recorded".to_owned(),
            Self::Reason(reason) => format!("reason: {reason}"),
        }
    }
}

impl ReceiptVerdict {
    fn to_english(&self) -> String {
        match self {
            Self::Completed => "completed".to_owned(),
            Self::Failed { code } => format!("failed ({code})"),
            Self::Stopped => "stopped".to_owned(),
        }
    }
}

fn ending_part(receipt: &Receipt) -> ReceiptPart {
    let (verdict, ms) = match &receipt.verdict {
        Verdict::Completed => (ReceiptVerdict::Completed, run_duration_ms(receipt)),
        Verdict::Failed { code, .. } => {
            (ReceiptVerdict::Failed { code: one_line(code, MAX_NAME_CHARS) }, run_duration_ms(receipt))
        }
        Verdict::Aborted { .. } => (ReceiptVerdict::Stopped, receipt.settled_at.ms),
    };
    ReceiptPart::Ended { verdict, ms }
}

fn with_duration(word: &str, ms: Option<f64>) -> String {
    ms.map_or_else(|| word.into(), |ms| format!("{word} in {}", format_millis(ms)))
}

/// Milliseconds from the first resource that the run opened to its end. The receipt has no better start time.
fn run_duration_ms(receipt: &Receipt) -> Option<f64> {
    let opened = receipt.resources.iter().filter_map(|resource| unix_millis(&resource.opened_at)).reduce(f64::min)?;
    Some(unix_millis(&receipt.settled_at)? - opened)
}

/// Parses [`Instant::at`] into milliseconds since 1970.
#[must_use]
pub fn unix_millis(instant: &Instant) -> Option<f64> {
    let (date, time) = instant.at.strip_suffix('Z')?.split_once('T')?;
    let whole = |part: Option<&str>| part?.parse::<u32>().ok().map(f64::from);
    let (mut date, mut time) = (date.split('-'), time.split(':'));
    let (year, month, day) = (whole(date.next())?, whole(date.next())?, whole(date.next())?);
    let (hour, minute, second) = (whole(time.next())?, whole(time.next())?, time.next()?.parse::<f64>().ok()?);
    // Days in the proleptic Gregorian calendar, with a year that begins in March.
    let (year, month) = if month > 2.0 { (year, month - 3.0) } else { (year - 1.0, month + 9.0) };
    let leap = (year / 4.0).floor() - (year / 100.0).floor() + (year / 400.0).floor();
    let days = year.mul_add(365.0, leap) + ((month.mul_add(153.0, 2.0)) / 5.0).floor() + day - 719_469.0;
    Some((days.mul_add(24.0, hour).mul_add(60.0, minute)).mul_add(60.0, second) * 1000.0)
}

/// Resources of one kind that were still held when the run began to end and were then released.
fn released_at_end(receipt: &Receipt, kind: ResourceKind) -> impl Iterator<Item = &Resource> {
    let asked = receipt.requested_at.is_some();
    receipt.resources.iter().filter(move |resource| {
        let late = resource.released_at.as_ref().and_then(|released| released.ms).is_some_and(|ms| ms >= 0.0);
        let pushed = matches!(resource.how.as_str(), "closed" | "cancelled" | HOW_UNCONFIRMED | "term" | "kill");
        // What is kept goes on.
        let ended = resource.released_at.is_some() && resource.how != HOW_KEPT;
        resource.kind == kind && ended && if asked { late } else { pushed }
    })
}

fn model_part(receipt: &Receipt) -> Option<ReceiptPart> {
    let ended: Vec<&Resource> = released_at_end(receipt, ResourceKind::ModelRequest).collect();
    let after_ms = ended.iter().filter_map(|resource| resource.released_at.as_ref()?.ms).reduce(f64::max);
    (!ended.is_empty()).then_some(ReceiptPart::ModelRequestsClosed { number: ended.len(), after_ms })
}

fn process_part(receipt: &Receipt) -> Option<ReceiptPart> {
    let mut number = 0;
    let mut hows: Vec<String> = Vec::new();
    for resource in released_at_end(receipt, ResourceKind::Process) {
        let swept = resource.process.as_ref().map_or(0, |facts| facts.swept);
        number += 1 + u64::from(swept);
        if !hows.contains(&resource.how) {
            hows.push(resource.how.clone());
        }
    }
    // A command that was left to finish may have left children behind that had to be ended.
    if number == 0 {
        let exited = receipt.resources.iter().filter(|resource| resource.how == "exited");
        let swept = exited.filter_map(|resource| Some(u64::from(resource.process.as_ref()?.swept))).sum();
        return (swept > 0).then_some(ReceiptPart::LeftBehindEnded { number: swept });
    }
    Some(ReceiptPart::ProcessesEnded { number, hows })
}

/// Words that count a kind of resource in the line.
struct ResourceWording {
    kind: ResourceKind,
    one: &'static str,
    many: &'static str,
    done: &'static str,
}

const RESOURCE_WORDINGS: [ResourceWording; 7] = [
    ResourceWording { kind: ResourceKind::Run, one: "sub-run", many: "sub-runs", done: "stopped" },
    ResourceWording { kind: ResourceKind::McpCall, one: "MCP call", many: "MCP calls", done: "cancelled" },
    ResourceWording { kind: ResourceKind::HttpRequest, one: "HTTP request", many: "HTTP requests", done: "closed" },
    ResourceWording { kind: ResourceKind::Approval, one: "approval", many: "approvals", done: "withdrawn" },
    ResourceWording { kind: ResourceKind::Task, one: "task", many: "tasks", done: "ended" },
    ResourceWording { kind: ResourceKind::Hook, one: "hook", many: "hooks", done: "ended" },
    ResourceWording { kind: ResourceKind::Delivery, one: "delivery", many: "deliveries", done: "cancelled" },
];

impl ResourceWording {
    fn format(&self, number: usize) -> String {
        format!("{} {}", format_count(number as u64, self.one, self.many), self.done)
    }
}

fn released_part(receipt: &Receipt, kind: ResourceKind) -> Option<ReceiptPart> {
    let number = released_at_end(receipt, kind).filter(|resource| resource.how != HOW_UNCONFIRMED).count();
    (number > 0).then_some(ReceiptPart::Released { kind, number })
}

fn unconfirmed_part(receipt: &Receipt) -> Option<ReceiptPart> {
    let calls = released_at_end(receipt, ResourceKind::McpCall);
    let number = calls.filter(|resource| resource.how == HOW_UNCONFIRMED).count();
    (number > 0).then_some(ReceiptPart::Unconfirmed { number })
}

/// True if an amendment may still come: a call was told to cancel, and its result is not known yet.
#[must_use]
pub fn awaits_amendment(receipt: &Receipt) -> bool {
    let is_settled = |resource: &Resource| {
        let mut amendments = receipt.amendments.iter().filter(|amendment| amendment.resource == resource.id);
        amendments.any(|amendment| amendment.kind != AmendmentKind::LateProgress)
    };
    receipt.resources.iter().any(|resource| resource.how == HOW_UNCONFIRMED && !is_settled(resource))
}

/// Formats each amendment of a receipt as one line: `620 ms later: the MCP server files went on with the call …`.
#[must_use]
pub fn amendment_lines(receipt: &Receipt) -> Vec<String> {
    let settled = unix_millis(&receipt.settled_at);
    let line = |amendment: &Amendment| {
        let later = unix_millis(&amendment.at).zip(settled).map_or(0.0, |(at, settled)| (at - settled).max(0.0));
        let mut line = format!("{} later: {}", format_millis(later), one_line(&amendment.text, MAX_NAME_CHARS));
        for leftover in &amendment.leftovers {
            line.push_str(&format!("; still there: {}", one_line(&leftover.name, MAX_NAME_CHARS)));
        }
        line
    };
    receipt.amendments.iter().map(line).collect()
}

/// The leftovers, grouped by kind: `1 process still alive: pid 4242 (sudo), cannot be signalled`.
fn leftover_parts(leftovers: &[Leftover]) -> Vec<ReceiptPart> {
    let mut kinds: Vec<ResourceKind> = Vec::new();
    for leftover in leftovers {
        if !kinds.contains(&leftover.kind) {
            kinds.push(leftover.kind);
        }
    }
    let part = |kind: ResourceKind| {
        let of_kind = leftovers.iter().filter(|left| left.kind == kind);
        ReceiptPart::Left { kind, names: of_kind.map(|left| one_line(&left.name, MAX_NAME_CHARS)).collect() }
    };
    kinds.into_iter().map(part).collect()
}

fn leftover_wording(kind: ResourceKind) -> (&'static str, &'static str, &'static str) {
    match kind {
        ResourceKind::ModelRequest => ("model request", "model requests", "open"),
        ResourceKind::Process => ("process", "processes", "alive"),
        ResourceKind::McpCall => ("MCP call", "MCP calls", "open"),
        ResourceKind::Run => ("sub-run", "sub-runs", "active"),
        ResourceKind::Approval => ("approval", "approvals", "open"),
        ResourceKind::Timer => ("timer", "timers", "armed"),
        ResourceKind::Permit => ("permit", "permits", "held"),
        ResourceKind::HttpRequest => ("HTTP request", "HTTP requests", "open"),
        ResourceKind::Task => ("task", "tasks", "at work"),
        ResourceKind::Hook => ("hook", "hooks", "at work"),
        ResourceKind::Delivery => ("delivery", "deliveries", "under way"),
    }
}

fn history_of(receipt: &Receipt) -> ReceiptHistory {
    match receipt.turn.recorded {
        true => ReceiptHistory::Valid,
        false if receipt.resources.is_empty() => ReceiptHistory::NoTurn,
        false => ReceiptHistory::NotRecorded,
    }
}

fn reason_part(verdict: &Verdict) -> Option<ReceiptPart> {
    match verdict {
        Verdict::Aborted { reason: StopReason::User | StopReason::Command, .. } => None,
        Verdict::Aborted { reason, .. } => Some(ReceiptPart::Reason(one_line(reason.as_str(), MAX_NAME_CHARS))),
        Verdict::Completed | Verdict::Failed { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_is_read_to_the_microsecond() {
        let ms = |at: &str| unix_millis(&Instant { at: at.to_owned(), ms: None });
        assert_eq!(ms("1970-01-01T00:00:00.000000Z"), Some(0.0));
        assert_eq!(ms("2024-02-29T23:59:59.250000Z"), Some(1_709_251_199_250.0));
        assert_eq!(ms("2026-03-01T12:00:00.000001Z"), Some(1_772_366_400_000.001));
        assert_eq!(ms("2000-12-31T00:00:00Z"), Some(978_220_800_000.0));
        assert_eq!(ms("yesterday"), None);
    }
}
