//! What has happened so far: counts, times, and every fault with its circumstances.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use crate::plan::{Plan, Scene, Surface};
use crate::times::Times;

/// What must not be. In the order of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Process,
    Socket,
    Descriptor,
    Task,
    InvalidHistory,
    DoubleEnd,
    MissingEnd,
    Leftover,
    Events,
    Verdict,
    Answer,
    Stuck,
}

impl Fault {
    pub(crate) const ALL: [Self; 12] = [
        Self::Process,
        Self::Socket,
        Self::Descriptor,
        Self::Task,
        Self::InvalidHistory,
        Self::DoubleEnd,
        Self::MissingEnd,
        Self::Leftover,
        Self::Events,
        Self::Verdict,
        Self::Answer,
        Self::Stuck,
    ];

    /// Its line in the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Process => "leaked processes",
            Self::Socket => "leaked sockets",
            Self::Descriptor => "leaked descriptors",
            Self::Task => "leaked runs, tasks, threads",
            Self::InvalidHistory => "invalid histories",
            Self::DoubleEnd => "double ends",
            Self::MissingEnd => "missing ends",
            Self::Leftover => "leftovers in receipts",
            Self::Events => "events out of order",
            Self::Verdict => "wrong or unexplained verdicts",
            Self::Answer => "wrong answers",
            Self::Stuck => "rounds that broke off",
        }
    }
}

/// A fault as it was seen.
#[derive(Debug, Clone)]
pub(crate) struct Finding {
    pub(crate) fault: Fault,
    /// The run, or what else it is about.
    pub(crate) about: String,
    pub(crate) detail: String,
}

/// Everything counted.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) rounds: u64,
    /// Runs that the driver sent; sub-runs are found by the audit.
    pub(crate) sent: u64,
    pub(crate) audited: u64,
    pub(crate) sub_runs: u64,
    pub(crate) stops: BTreeMap<(Scene, Surface), u64>,
    pub(crate) forced: u64,
    pub(crate) doubled: u64,
    pub(crate) deserted: u64,
    /// Rounds whose stop ended at least one run.
    pub(crate) struck: u64,
    /// Stops by which the driver ended what its own left alone.
    pub(crate) tidied: u64,
    pub(crate) ends: BTreeMap<String, u64>,
    /// From asking to the answer, of stops that do not wait for the end.
    pub(crate) answered: Times,
    /// From asking to the answer, of stops that do.
    pub(crate) settled: Times,
    /// Marked processes that the first look after the end still found, and how long they took.
    pub(crate) late: Times,
    pub(crate) looks: u64,
    pub(crate) audits: u64,
    pub(crate) histories_read: u64,
    /// Runs that some answer to a stop named.
    pub(crate) named: BTreeSet<String>,
    /// Runs whose stop nobody may have heard: aborted or not, both are right.
    pub(crate) maybe: BTreeSet<String>,
    pub(crate) findings: Vec<Finding>,
}

impl Facts {
    pub(crate) fn stops(&self) -> u64 {
        self.stops.iter().filter(|((_, surface), _)| *surface != Surface::Nobody).map(|(_, count)| count).sum()
    }

    pub(crate) fn faults(&self, fault: Fault) -> usize {
        self.findings.iter().filter(|finding| finding.fault == fault).count()
    }
}

/// The facts, for everybody.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<Facts>);

impl Tally {
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fault(&self, fault: Fault, about: &str, detail: impl Into<String>) {
        let finding = Finding { fault, about: about.to_owned(), detail: detail.into() };
        let mut facts = self.facts();
        // The first ones say what is wrong; the rest is counted.
        if facts.findings.len() < 40 {
            eprintln!("fault: {} at {}: {}", fault.name(), finding.about, finding.detail);
        }
        facts.findings.push(finding);
    }

    /// A round begins its stop.
    pub(crate) fn asked(&self, plan: &Plan) {
        let mut facts = self.facts();
        *facts.stops.entry((plan.scene, plan.surface)).or_default() += 1;
        let asked = !matches!(plan.surface, Surface::Nobody | Surface::TimeOut);
        facts.forced += u64::from(plan.forced && asked);
        facts.doubled += u64::from(plan.doubled && asked);
        facts.deserted += u64::from(plan.deserted);
    }

    /// A stop was answered.
    pub(crate) fn answered(&self, plan: &Plan, took: Duration) {
        let waits = match plan.surface {
            Surface::HttpRun | Surface::HttpSession | Surface::HttpAll => plan.waits,
            Surface::AgentAbort => true,
            _ => false,
        };
        let mut facts = self.facts();
        let times = if waits { &mut facts.settled } else { &mut facts.answered };
        times.add(took);
    }

    pub(crate) fn name(&self, runs: &[String]) {
        self.facts().named.extend(runs.iter().cloned());
    }
}

/// The verdict of a run's view, in a word: with its reason where it was aborted, with its code where it failed.
pub(crate) fn verdict_word(view: &Value) -> String {
    let verdict = &view["verdict"];
    let kind = verdict["kind"].as_str().unwrap_or("none");
    match verdict["reason"].as_str().or_else(|| verdict["code"].as_str()) {
        Some(why) => format!("{kind}: {why}"),
        None => kind.to_owned(),
    }
}

/// How often each run was told to have ended.
pub(crate) type Ends = HashMap<String, u32>;
