//! The receipt in one line, the same on every screen:
//! `stopped in 12 ms · model closed after 0.4 ms · 3 processes ended (term) · history valid`.

use super::{Amendment, AmendmentKind, Instant, Leftover, Receipt, Resource, ResourceKind};
use crate::verdict::{StopReason, Verdict};
use crate::words::{count, millis, one_line};

/// Names and labels come from outside; longer ones are cut.
const MOST_NAME: usize = 200;
/// How an MCP call was given back whose server did not confirm the cancel.
const UNCONFIRMED: &str = "unconfirmed";

/// The receipt in one line. A leftover is always in it, by name.
#[must_use]
pub fn receipt_line(receipt: &Receipt) -> String {
    let mut parts = vec![head(receipt)];
    parts.extend(models(receipt));
    parts.extend(processes(receipt));
    parts.extend(OTHERS.iter().filter_map(|other| other.part(receipt)));
    parts.extend(unconfirmed(receipt));
    parts.extend(leftovers(&receipt.leftovers));
    parts.extend(receipt.recovered.then(|| "record lost with the daemon".to_owned()));
    parts.push(history(receipt).into());
    parts.extend(reason(&receipt.verdict));
    parts.join(" · ")
}

fn head(receipt: &Receipt) -> String {
    match &receipt.verdict {
        Verdict::Completed => within("completed", ran_for(receipt)),
        Verdict::Failed { code, .. } => within(&format!("failed ({})", one_line(code, MOST_NAME)), ran_for(receipt)),
        Verdict::Aborted { .. } => within("stopped", receipt.settled_at.ms),
    }
}

fn within(word: &str, ms: Option<f64>) -> String {
    ms.map_or_else(|| word.into(), |ms| format!("{word} in {}", millis(ms)))
}

/// Milliseconds from the first thing that the run took to its end; the receipt does not know more about its length.
fn ran_for(receipt: &Receipt) -> Option<f64> {
    let opened = receipt.resources.iter().filter_map(|resource| wall_ms(&resource.opened_at)).reduce(f64::min)?;
    Some(wall_ms(&receipt.settled_at)? - opened)
}

/// The wall clock of an instant in milliseconds since 1970, from the form that [`Instant::at`] has.
#[must_use]
pub fn wall_ms(instant: &Instant) -> Option<f64> {
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

/// Those of one kind that were still held when the end began and were then given back.
fn ended(receipt: &Receipt, kind: ResourceKind) -> impl Iterator<Item = &Resource> {
    let asked = receipt.requested_at.is_some();
    receipt.resources.iter().filter(move |resource| {
        let late = resource.released_at.as_ref().and_then(|released| released.ms).is_some_and(|ms| ms >= 0.0);
        let pushed = matches!(resource.how.as_str(), "closed" | "cancelled" | UNCONFIRMED | "term" | "kill");
        resource.kind == kind && resource.released_at.is_some() && if asked { late } else { pushed }
    })
}

fn models(receipt: &Receipt) -> Option<String> {
    let ended: Vec<&Resource> = ended(receipt, ResourceKind::ModelRequest).collect();
    let what = match ended.len() {
        0 => return None,
        1 => "model".to_owned(),
        many => format!("{many} model requests"),
    };
    let last = ended.iter().filter_map(|resource| resource.released_at.as_ref()?.ms).reduce(f64::max);
    Some(last.map_or_else(|| format!("{what} closed"), |ms| format!("{what} closed after {}", millis(ms))))
}

fn processes(receipt: &Receipt) -> Option<String> {
    let mut number = 0;
    let mut hows: Vec<&str> = Vec::new();
    for resource in ended(receipt, ResourceKind::Process) {
        let swept = resource.process.as_ref().map_or(0, |facts| facts.swept);
        number += 1 + u64::from(swept);
        if !hows.contains(&resource.how.as_str()) {
            hows.push(&resource.how);
        }
    }
    // A command that was left to finish may still have left children behind that had to go.
    if number == 0 {
        let exited = receipt.resources.iter().filter(|resource| resource.how == "exited");
        return match exited.filter_map(|resource| Some(u64::from(resource.process.as_ref()?.swept))).sum() {
            0 => None,
            swept => Some(format!("{} ended", count(swept, "left-behind process", "left-behind processes"))),
        };
    }
    Some(format!("{} ended ({})", count(number, "process", "processes"), hows.join(", ")))
}

/// How a kind of thing is counted in the line.
struct Other {
    kind: ResourceKind,
    one: &'static str,
    many: &'static str,
    done: &'static str,
}

const OTHERS: [Other; 7] = [
    Other { kind: ResourceKind::Run, one: "sub-run", many: "sub-runs", done: "stopped" },
    Other { kind: ResourceKind::McpCall, one: "MCP call", many: "MCP calls", done: "cancelled" },
    Other { kind: ResourceKind::HttpRequest, one: "HTTP request", many: "HTTP requests", done: "closed" },
    Other { kind: ResourceKind::Approval, one: "approval", many: "approvals", done: "withdrawn" },
    Other { kind: ResourceKind::Task, one: "task", many: "tasks", done: "ended" },
    Other { kind: ResourceKind::Hook, one: "hook", many: "hooks", done: "ended" },
    Other { kind: ResourceKind::Delivery, one: "delivery", many: "deliveries", done: "cancelled" },
];

impl Other {
    fn part(&self, receipt: &Receipt) -> Option<String> {
        match ended(receipt, self.kind).filter(|resource| resource.how != UNCONFIRMED).count() {
            0 => None,
            number => Some(format!("{} {}", count(number as u64, self.one, self.many), self.done)),
        }
    }
}

/// Calls that were told to be cancelled, of which nothing more is known.
fn unconfirmed(receipt: &Receipt) -> Option<String> {
    match ended(receipt, ResourceKind::McpCall).filter(|resource| resource.how == UNCONFIRMED).count() {
        0 => None,
        number => Some(format!("{} told to cancel, not confirmed", count(number as u64, "MCP call", "MCP calls"))),
    }
}

/// Whether an amendment may still come: a call was told to cancel, and nothing says yet what became of it.
#[must_use]
pub fn awaits_amendment(receipt: &Receipt) -> bool {
    let is_settled = |resource: &Resource| {
        let mut of_it = receipt.amendments.iter().filter(|amendment| amendment.resource == resource.id);
        of_it.any(|amendment| amendment.kind != AmendmentKind::LateProgress)
    };
    receipt.resources.iter().any(|resource| resource.how == UNCONFIRMED && !is_settled(resource))
}

/// The amendments of a receipt, each in one line: `620 ms later: the MCP server files went on with the call …`.
#[must_use]
pub fn amendment_lines(receipt: &Receipt) -> Vec<String> {
    let settled = wall_ms(&receipt.settled_at);
    let line = |amendment: &Amendment| {
        let later = wall_ms(&amendment.at).zip(settled).map_or(0.0, |(at, settled)| (at - settled).max(0.0));
        let mut line = format!("{} later: {}", millis(later), one_line(&amendment.text, MOST_NAME));
        for leftover in &amendment.leftovers {
            line.push_str(&format!("; still there: {}", one_line(&leftover.name, MOST_NAME)));
        }
        line
    };
    receipt.amendments.iter().map(line).collect()
}

/// What is still there, grouped by kind: `1 process still alive: pid 4242 (sudo), cannot be signalled`.
fn leftovers(leftovers: &[Leftover]) -> Vec<String> {
    let mut kinds: Vec<ResourceKind> = Vec::new();
    for leftover in leftovers {
        if !kinds.contains(&leftover.kind) {
            kinds.push(leftover.kind);
        }
    }
    let part = |kind: ResourceKind| {
        let names: Vec<String> =
            leftovers.iter().filter(|left| left.kind == kind).map(|left| one_line(&left.name, MOST_NAME)).collect();
        let (one, many, how) = left_words(kind);
        format!("{} still {how}: {}", count(names.len() as u64, one, many), names.join("; "))
    };
    kinds.into_iter().map(part).collect()
}

fn left_words(kind: ResourceKind) -> (&'static str, &'static str, &'static str) {
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

fn history(receipt: &Receipt) -> &'static str {
    match receipt.turn.recorded {
        true => "history valid",
        // A queued message that was withdrawn owes no turn: its absence is no damage.
        false if receipt.resources.is_empty() => "no turn recorded",
        false => "history not recorded",
    }
}

/// The reason, unless it is the ordinary one: that somebody pressed stop.
fn reason(verdict: &Verdict) -> Option<String> {
    match verdict {
        Verdict::Aborted { reason: StopReason::User | StopReason::Command, .. } => None,
        Verdict::Aborted { reason, .. } => Some(format!("reason: {}", one_line(reason.as_str(), MOST_NAME))),
        Verdict::Completed | Verdict::Failed { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_is_read_to_the_microsecond() {
        let ms = |at: &str| wall_ms(&Instant { at: at.to_owned(), ms: None });
        assert_eq!(ms("1970-01-01T00:00:00.000000Z"), Some(0.0));
        assert_eq!(ms("2024-02-29T23:59:59.250000Z"), Some(1_709_251_199_250.0));
        assert_eq!(ms("2026-03-01T12:00:00.000001Z"), Some(1_772_366_400_000.001));
        assert_eq!(ms("2000-12-31T00:00:00Z"), Some(978_220_800_000.0));
        assert_eq!(ms("yesterday"), None);
    }
}
