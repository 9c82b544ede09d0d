//! Counters, latencies and faults.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::plan::{RoundPlan, SoakScene, StopMethod};
use crate::times::Times;

/// Kinds of faults, in the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    Process,
    Socket,
    Descriptor,
    Task,
    InvalidHistory,
    DoubleEnd,
    MissingEnd,
    Leftover,
    EventOrder,
    Verdict,
    UnexpectedAnswer,
    BrokenRound,
}

/// Each kind with its label in the table.
pub(crate) const FAULT_KINDS: [(FaultKind, &str); 12] = [
    (FaultKind::Process, "leaked processes"),
    (FaultKind::Socket, "leaked sockets"),
    (FaultKind::Descriptor, "leaked descriptors"),
    (FaultKind::Task, "leaked runs, tasks, threads"),
    (FaultKind::InvalidHistory, "invalid histories"),
    (FaultKind::DoubleEnd, "double ends"),
    (FaultKind::MissingEnd, "missing ends"),
    (FaultKind::Leftover, "leftovers in receipts"),
    (FaultKind::EventOrder, "events out of order"),
    (FaultKind::Verdict, "wrong or unexplained verdicts"),
    (FaultKind::UnexpectedAnswer, "wrong answers"),
    (FaultKind::BrokenRound, "rounds that failed"),
];

impl FaultKind {
    pub(crate) fn name(self) -> &'static str {
        FAULT_KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct SoakFault {
    pub(crate) kind: FaultKind,
    /// The run id, or another subject.
    pub(crate) about: String,
    pub(crate) detail: String,
}

/// All counters, latencies and faults.
#[derive(Debug, Default)]
pub(crate) struct SoakCounts {
    pub(crate) rounds: u64,
    /// Runs that the driver sent; the audit finds sub-runs.
    pub(crate) sent_runs: u64,
    pub(crate) audited: u64,
    pub(crate) sub_runs: u64,
    pub(crate) stops: BTreeMap<(SoakScene, StopMethod), u64>,
    pub(crate) forced: u64,
    pub(crate) doubled: u64,
    pub(crate) deserted: u64,
    /// Rounds whose stop ended at least one run.
    pub(crate) effective_stops: u64,
    /// Stops of work that the planned stop did not end.
    pub(crate) cleanup_stops: u64,
    pub(crate) ends: BTreeMap<String, u64>,
    /// Times from a stop to its answer, for stops that do not wait for the end.
    pub(crate) answer_times: Times,
    /// Times from a stop to its answer, for stops that wait for the end.
    pub(crate) settle_times: Times,
    /// How long processes stayed that the first scan after the run's end still found.
    pub(crate) late_exits: Times,
    pub(crate) marker_checks: u64,
    pub(crate) audits: u64,
    pub(crate) histories_read: u64,
    /// Runs that an answer to a stop named.
    pub(crate) named_runs: BTreeSet<String>,
    /// Runs, and keys of sessions, whose stop may not have arrived: both verdicts are correct.
    pub(crate) maybe_stopped: BTreeSet<String>,
    /// Since the last audit, a stop of several sessions was answered before all nodes had.
    pub(crate) all_maybe_stopped: bool,
    /// Stops that were answered before all nodes had: they are stored for the others.
    pub(crate) unconfirmed_stops: u64,
    /// The stops since the last audit with their answers, to explain a verdict.
    pub(crate) stop_answers: Vec<String>,
    pub(crate) faults: Vec<SoakFault>,
}

impl SoakCounts {
    pub(crate) fn stops(&self) -> u64 {
        self.stops.iter().filter(|((_, surface), _)| *surface != StopMethod::NoStop).map(|(_, count)| count).sum()
    }

    pub(crate) fn fault_count(&self, fault: FaultKind) -> usize {
        self.faults.iter().filter(|finding| finding.kind == fault).count()
    }
}

/// The results, shared by all tasks.
#[derive(Debug, Default)]
pub(crate) struct SoakResults(Mutex<SoakCounts>);

impl SoakResults {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SoakCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_fault(&self, fault: FaultKind, about: &str, detail: impl Into<String>) {
        let finding = SoakFault { kind: fault, about: about.to_owned(), detail: detail.into() };
        let mut facts = self.lock();
        // Print the first faults only; count the rest.
        if facts.faults.len() < 40 {
            eprintln!("fault: {} at {}: {}", fault.name(), finding.about, finding.detail);
        }
        facts.faults.push(finding);
    }

    pub(crate) fn count_stop(&self, plan: &RoundPlan) {
        let mut facts = self.lock();
        *facts.stops.entry((plan.scene, plan.stop_method)).or_default() += 1;
        let is_sent = !matches!(plan.stop_method, StopMethod::NoStop | StopMethod::TimeOut);
        facts.forced += u64::from(plan.forced && is_sent);
        facts.doubled += u64::from(plan.stop_twice && is_sent);
        facts.deserted += u64::from(plan.reader_leaves);
    }

    /// Records the time until a stop was answered.
    pub(crate) fn add_answer_time(&self, plan: &RoundPlan, took: Duration) {
        let waits = match plan.stop_method {
            StopMethod::HttpRun | StopMethod::HttpSession | StopMethod::HttpAll => plan.wait_for_end,
            StopMethod::AgentAbort => true,
            _ => false,
        };
        let mut facts = self.lock();
        let times = if waits { &mut facts.settle_times } else { &mut facts.answer_times };
        times.add(took);
    }

    pub(crate) fn add_stop_answer(&self, request: &str, answer: &Value) {
        self.lock().stop_answers.push(format!("{request} -> {answer}"));
    }

    pub(crate) fn add_named_runs(&self, runs: &[String]) {
        self.lock().named_runs.extend(runs.iter().cloned());
    }
}

/// Returns the verdict of a run's view: the kind, with the reason of an abort or the code of a failure.
pub(crate) fn verdict_text(view: &Value) -> String {
    let verdict = &view["verdict"];
    let kind = verdict["kind"].as_str().unwrap_or("none");
    match verdict["reason"].as_str().or_else(|| verdict["code"].as_str()) {
        Some(why) => format!("{kind}: {why}"),
        None => kind.to_owned(),
    }
}
