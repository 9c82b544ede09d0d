//! Track the model requests that are in progress, by agent and run, with a guard that removes its entry on drop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::{AgentId, RunId};

/// The agents and runs with a model call in progress. Clones share one table.
#[derive(Debug, Clone, Default)]
pub struct ActiveRequests(Arc<Mutex<ActiveRequestTable>>);

/// Entries are keyed by a number of their own, so the end of an old call cannot remove the entry of a newer one.
#[derive(Debug, Default)]
struct ActiveRequestTable {
    last: u64,
    entries: BTreeMap<u64, (AgentId, RunId)>,
}

/// One entry. Dropping the guard removes it, however the call ends.
#[derive(Debug)]
pub(super) struct ActiveRequestGuard {
    requests: ActiveRequests,
    number: u64,
}

impl ActiveRequests {
    /// True while the agent waits for an answer of a model, back-off included.
    #[must_use]
    pub fn has_agent(&self, agent: &AgentId) -> bool {
        self.lock().entries.values().any(|(of, _)| of == agent)
    }

    /// True while the run waits for an answer of a model, back-off included.
    #[must_use]
    pub fn has_run(&self, run: &RunId) -> bool {
        self.lock().entries.values().any(|(_, of)| of == run)
    }

    /// The number of calls in progress.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().entries.len()
    }

    pub(super) fn register(&self, agent: &AgentId, run: &RunId) -> ActiveRequestGuard {
        let mut table = self.lock();
        table.last += 1;
        let number = table.last;
        table.entries.insert(number, (agent.clone(), run.clone()));
        drop(table);
        ActiveRequestGuard { requests: self.clone(), number }
    }

    fn lock(&self) -> MutexGuard<'_, ActiveRequestTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ActiveRequestGuard {
    fn drop(&mut self) {
        self.requests.lock().entries.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(id: &str) -> AgentId {
        AgentId::parse(id).unwrap()
    }

    fn run(id: &str) -> RunId {
        RunId::parse(id).unwrap()
    }

    #[test]
    fn a_finishing_old_call_never_removes_a_newer_calls_entry() {
        let active = ActiveRequests::default();
        let old = active.register(&agent("main"), &run("r1"));
        let new = active.register(&agent("main"), &run("r1"));
        drop(old);
        assert!(active.has_agent(&agent("main")) && active.has_run(&run("r1")));
        drop(new);
        assert!(!active.has_agent(&agent("main")) && !active.has_run(&run("r1")));
        assert_eq!(active.count(), 0);
    }

    #[test]
    fn agents_and_runs_are_told_apart() {
        let active = ActiveRequests::default();
        let _entry = active.register(&agent("main"), &run("r1"));
        assert!(!active.has_agent(&agent("other")));
        assert!(!active.has_run(&run("r2")));
        assert_eq!(active.count(), 1);
    }
}
