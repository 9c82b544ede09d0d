//! Formats a receipt as one line, the same on every surface: `stopped in 12 ms · model closed after 0.4 ms · 3
//! processes ended (term) · history valid`.

use super::{Amendment, AmendmentKind, Instant, Leftover, Receipt, Resource, ResourceKind};
use crate::display_text::{format_count, format_millis, one_line};
use crate::verdict::{StopReason, Verdict};

/// Limit for names and labels, which come from outside; longer ones are cut.
const MAX_NAME_CHARS: usize = 200;
/// Value of [`Resource::how`] for an MCP call whose server did not confirm the cancellation.
const HOW_UNCONFIRMED: &str = "unconfirmed";

/// Formats a receipt as one line. It names every leftover.
#[must_use]
pub fn receipt_line(receipt: &Receipt) -> String {
    let mut parts = vec![format_verdict(receipt)];
    parts.extend(format_model_requests(receipt));
    parts.extend(format_processes(receipt));
    parts.extend(RESOURCE_WORDINGS.iter().filter_map(|wording| wording.format_ended(receipt)));
    parts.extend(format_unconfirmed(receipt));
    parts.extend(format_leftovers(&receipt.leftovers));
    parts.extend(receipt.recovered.then(|| "record lost with the daemon".to_owned()));
    parts.push(format_history(receipt).into());
    parts.extend(format_reason(&receipt.verdict));
    parts.join(" · ")
}

fn format_verdict(receipt: &Receipt) -> String {
    match &receipt.verdict {
        Verdict::Completed => with_duration("completed", run_duration_ms(receipt)),
        Verdict::Failed { code, .. } => {
            with_duration(&format!("failed ({})", one_line(code, MAX_NAME_CHARS)), run_duration_ms(receipt))
        }
        Verdict::Aborted { .. } => with_duration("stopped", receipt.settled_at.ms),
    }
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
        resource.kind == kind && resource.released_at.is_some() && if asked { late } else { pushed }
    })
}

fn format_model_requests(receipt: &Receipt) -> Option<String> {
    let ended: Vec<&Resource> = released_at_end(receipt, ResourceKind::ModelRequest).collect();
    let subject = match ended.len() {
        0 => return None,
        1 => "model".to_owned(),
        many => format!("{many} model requests"),
    };
    let last = ended.iter().filter_map(|resource| resource.released_at.as_ref()?.ms).reduce(f64::max);
    Some(last.map_or_else(|| format!("{subject} closed"), |ms| format!("{subject} closed after {}", format_millis(ms))))
}

fn format_processes(receipt: &Receipt) -> Option<String> {
    let mut number = 0;
    let mut hows: Vec<&str> = Vec::new();
    for resource in released_at_end(receipt, ResourceKind::Process) {
        let swept = resource.process.as_ref().map_or(0, |facts| facts.swept);
        number += 1 + u64::from(swept);
        if !hows.contains(&resource.how.as_str()) {
            hows.push(&resource.how);
        }
    }
    // A command that was left to finish may have left children behind that had to be ended.
    if number == 0 {
        let exited = receipt.resources.iter().filter(|resource| resource.how == "exited");
        return match exited.filter_map(|resource| Some(u64::from(resource.process.as_ref()?.swept))).sum() {
            0 => None,
            swept => Some(format!("{} ended", format_count(swept, "left-behind process", "left-behind processes"))),
        };
    }
    Some(format!("{} ended ({})", format_count(number, "process", "processes"), hows.join(", ")))
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
    fn format_ended(&self, receipt: &Receipt) -> Option<String> {
        match released_at_end(receipt, self.kind).filter(|resource| resource.how != HOW_UNCONFIRMED).count() {
            0 => None,
            number => Some(format!("{} {}", format_count(number as u64, self.one, self.many), self.done)),
        }
    }
}

/// Counts the MCP calls whose cancellation was not confirmed.
fn format_unconfirmed(receipt: &Receipt) -> Option<String> {
    match released_at_end(receipt, ResourceKind::McpCall).filter(|resource| resource.how == HOW_UNCONFIRMED).count() {
        0 => None,
        number => {
            Some(format!("{} told to cancel, not confirmed", format_count(number as u64, "MCP call", "MCP calls")))
        }
    }
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

/// Formats the leftovers, grouped by kind: `1 process still alive: pid 4242 (sudo), cannot be signalled`.
fn format_leftovers(leftovers: &[Leftover]) -> Vec<String> {
    let mut kinds: Vec<ResourceKind> = Vec::new();
    for leftover in leftovers {
        if !kinds.contains(&leftover.kind) {
            kinds.push(leftover.kind);
        }
    }
    let part = |kind: ResourceKind| {
        let names: Vec<String> = leftovers
            .iter()
            .filter(|left| left.kind == kind)
            .map(|left| one_line(&left.name, MAX_NAME_CHARS))
            .collect();
        let (one, many, how) = leftover_wording(kind);
        format!("{} still {how}: {}", format_count(names.len() as u64, one, many), names.join("; "))
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

fn format_history(receipt: &Receipt) -> &'static str {
    match receipt.turn.recorded {
        true => "history valid",
        // A queued message that was withdrawn owes no turn, so nothing is missing.
        false if receipt.resources.is_empty() => "no turn recorded",
        false => "history not recorded",
    }
}

/// The reason, unless a person simply asked for the stop.
fn format_reason(verdict: &Verdict) -> Option<String> {
    match verdict {
        Verdict::Aborted { reason: StopReason::User | StopReason::Command, .. } => None,
        Verdict::Aborted { reason, .. } => Some(format!("reason: {}", one_line(reason.as_str(), MAX_NAME_CHARS))),
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
