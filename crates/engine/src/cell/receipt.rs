//! Prints the receipt from the ledger.

use quell_kernel::{Debts, Moment};
use quell_protocol::{
    Amendment, Instant, Leftover, Receipt, Resource, ResourceKind, RunId, Rung, TurnRecord, Usage, Verdict,
};

use super::Cell;
use crate::clock::Clock;
use crate::scope::Row;

/// What a receipt is made from.
pub(super) struct Source<'a> {
    pub(super) run: &'a RunId,
    pub(super) verdict: &'a Verdict,
    pub(super) clock: Clock,
    pub(super) requested: Option<Moment>,
    pub(super) delivered: Option<Moment>,
    pub(super) settled: Moment,
    pub(super) rows: Vec<Row>,
    pub(super) usage: Usage,
    pub(super) recorded: bool,
    pub(super) amendments: Vec<Amendment>,
    pub(super) debts: Debts,
}

pub(super) fn write(source: Source<'_>) -> Receipt {
    let instant = since(source.clock, source.requested);
    Receipt {
        run_id: source.run.clone(),
        verdict: source.verdict.clone(),
        requested_at: source.requested.map(&instant),
        delivered_at: source.delivered.map(&instant),
        settled_at: instant(source.settled),
        rung: rung(&source),
        leftovers: leftovers(&source.rows),
        resources: source.rows.iter().map(|row| resource(row, &instant)).collect(),
        usage: source.usage,
        turn: TurnRecord { recorded: source.recorded },
        amendments: source.amendments,
        recovered: false,
    }
}

/// Moments as they are printed: on the wall clock, and since a stop was requested.
pub(super) fn since(clock: Clock, requested: Option<Moment>) -> impl Fn(Moment) -> Instant {
    move |moment| Instant {
        at: clock.rfc3339(moment),
        ms: requested.map(|requested| Clock::ms_between(requested, moment)),
    }
}

pub(super) fn resource(row: &Row, instant: impl Fn(Moment) -> Instant) -> Resource {
    Resource {
        kind: row.kind,
        id: row.id,
        label: row.label.clone(),
        opened_at: instant(row.opened),
        released_at: row.released.map(instant),
        how: row.how.to_owned(),
        process: row.process.clone(),
    }
}

impl Cell {
    /// The receipt, once ended.
    #[must_use]
    pub fn receipt(&self) -> Option<Receipt> {
        self.facts().receipt.clone()
    }

    /// Notes what became known just now of a call that was given back. Answers the amendment if there is a receipt already;
    /// else it will stand in the receipt.
    pub fn learn(&self, amendment: impl FnOnce(Instant) -> Amendment) -> Option<Amendment> {
        let mut facts = self.facts();
        let amendment = amendment(since(self.clock, facts.times.requested)(self.clock.now()));
        facts.amendments.push(amendment.clone());
        facts.receipt.as_mut()?.amendments.push(amendment.clone());
        Some(amendment)
    }
}

/// The highest rung that anything needed after the stop was requested.
fn rung(source: &Source<'_>) -> Rung {
    if source.debts.release || source.rows.iter().any(|row| row.released.is_none() || !row.leftovers.is_empty()) {
        return Rung::Abandoned;
    }
    let Some(requested) = source.requested else { return Rung::None };
    let needed = |row: &Row| match row.how {
        _ if row.released.is_some_and(|released| released < requested) => Rung::None,
        "term" => Rung::Term,
        "kill" => Rung::Kill,
        "closed" | "cancelled" | "unconfirmed" => Rung::Cancel,
        _ => Rung::None,
    };
    source.rows.iter().map(needed).max().unwrap_or_default()
}

fn leftovers(rows: &[Row]) -> Vec<Leftover> {
    let mut found = Vec::new();
    for row in rows {
        found.extend(row.leftovers.iter().map(|name| Leftover { kind: row.kind, name: name.clone() }));
        if row.released.is_none() && row.leftovers.is_empty() {
            found.push(Leftover { kind: row.kind, name: still_held(row) });
        }
    }
    found
}

fn still_held(row: &Row) -> String {
    match &row.process {
        Some(process) if row.kind == ResourceKind::Process => format!("pid {} ({})", process.pid, process.command),
        _ => row.label.clone(),
    }
}
