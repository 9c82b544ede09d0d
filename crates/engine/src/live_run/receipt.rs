//! Build a run's receipt from its ledger.

use quell_kernel::{Debts, Moment};
use quell_protocol::{
    Amendment, Instant, Leftover, Receipt, Resource, ResourceKind, RunId, Rung, TurnRecord, Usage, Verdict,
};
use quell_scope::clock::Clock;
use quell_scope::{LedgerRow, Release, RowState};

use super::LiveRun;

pub(super) struct ReceiptSource<'a> {
    pub(super) run_id: &'a RunId,
    pub(super) verdict: &'a Verdict,
    pub(super) clock: Clock,
    pub(super) stop_requested: Option<Moment>,
    pub(super) stop_delivered: Option<Moment>,
    pub(super) settled: Moment,
    pub(super) ledger_rows: Vec<LedgerRow>,
    pub(super) usage: Usage,
    pub(super) is_recorded: bool,
    pub(super) amendments: Vec<Amendment>,
    pub(super) debts: Debts,
}

pub(super) fn build_receipt(source: ReceiptSource<'_>) -> Receipt {
    let instant = instant_formatter(source.clock, source.stop_requested);
    Receipt {
        run_id: source.run_id.clone(),
        verdict: source.verdict.clone(),
        requested_at: source.stop_requested.map(&instant),
        delivered_at: source.stop_delivered.map(&instant),
        settled_at: instant(source.settled),
        rung: highest_rung(&source),
        leftovers: collect_leftovers(&source.ledger_rows),
        resources: source.ledger_rows.iter().map(|row| resource_from_row(row, &instant)).collect(),
        usage: source.usage,
        turn: TurnRecord { recorded: source.is_recorded },
        amendments: source.amendments,
        recovered: false,
    }
}

/// Formats moments for a receipt: wall clock time, and milliseconds since the stop was requested.
pub(super) fn instant_formatter(clock: Clock, stop_requested: Option<Moment>) -> impl Fn(Moment) -> Instant {
    move |moment| Instant {
        at: clock.rfc3339(moment),
        ms: stop_requested.map(|requested| Clock::ms_between(requested, moment)),
    }
}

pub(super) fn resource_from_row(row: &LedgerRow, instant: impl Fn(Moment) -> Instant) -> Resource {
    let (released_at, how) = match row.state {
        RowState::Held => (None, "held"),
        RowState::Released { at, how } => (Some(instant(at)), how.as_str()),
    };
    Resource {
        kind: row.kind,
        id: row.id,
        label: row.label.clone(),
        opened_at: instant(row.opened),
        released_at,
        how: how.to_owned(),
        process: row.process.clone(),
    }
}

impl LiveRun {
    /// The receipt, once the run is over.
    pub fn receipt(&self) -> Option<Receipt> {
        self.lock_state().receipt.clone()
    }

    /// Adds a late fact about a call that was already released. Returns the amendment if the receipt exists; otherwise
    /// the receipt will include it.
    pub fn add_amendment(&self, amendment: impl FnOnce(Instant) -> Amendment) -> Option<Amendment> {
        let mut state = self.lock_state();
        let amendment = amendment(instant_formatter(self.clock, state.timestamps.stop_requested)(self.clock.now()));
        state.amendments.push(amendment.clone());
        state.receipt.as_mut()?.amendments.push(amendment.clone());
        Some(amendment)
    }
}

/// The highest rung that any resource needed after the stop was requested.
fn highest_rung(source: &ReceiptSource<'_>) -> Rung {
    if source.debts.release || source.ledger_rows.iter().any(|row| row.is_held() || !row.leftovers.is_empty()) {
        return Rung::Abandoned;
    }
    let Some(requested) = source.stop_requested else { return Rung::None };
    let rung_of = |row: &LedgerRow| match row.state {
        RowState::Released { at, how } if at >= requested => rung_of_release(how),
        RowState::Held | RowState::Released { .. } => Rung::None,
    };
    source.ledger_rows.iter().map(rung_of).max().unwrap_or_default()
}

fn rung_of_release(how: Release) -> Rung {
    match how {
        Release::Term => Rung::Term,
        Release::Kill => Rung::Kill,
        Release::Closed | Release::Cancelled | Release::Unconfirmed => Rung::Cancel,
        Release::Finished
        | Release::Failed
        | Release::Exited
        | Release::Withheld
        | Release::Undelivered
        | Release::PartlyDelivered
        | Release::UnknownDelivery
        | Release::Kept
        | Release::Lost => Rung::None,
    }
}

fn collect_leftovers(rows: &[LedgerRow]) -> Vec<Leftover> {
    let mut leftovers = Vec::new();
    for row in rows {
        leftovers.extend(row.leftovers.iter().map(|name| Leftover { kind: row.kind, name: name.clone() }));
        if row.is_held() && row.leftovers.is_empty() {
            leftovers.push(Leftover { kind: row.kind, name: unreleased_name(row) });
        }
    }
    leftovers
}

fn unreleased_name(row: &LedgerRow) -> String {
    match &row.process {
        // Its descendants have not been listed: whoever would list them has not ended.
        Some(process) if row.kind == ResourceKind::Process && process.pid > 0 => {
            format!("pid {} ({}) with all processes that it started", process.pid, process.command)
        }
        _ => row.label.clone(),
    }
}
