//! The table of model requests that are under way (row B1). It knows who asked, not what.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_protocol::{AgentId, RunId};

/// Which agents and runs have a model call under way. Clones are the same table.
#[derive(Debug, Clone, Default)]
pub struct ActiveRequests(Arc<Mutex<Table>>);

/// Entries are keyed by their own number, so that the end of an old call cannot take a newer call's entry.
#[derive(Debug, Default)]
struct Table {
    last: u64,
    entries: BTreeMap<u64, (AgentId, RunId)>,
}

/// One entry; it is in the table for as long as this lives, however the call ends.
#[derive(Debug)]
pub(super) struct Entry {
    table: ActiveRequests,
    number: u64,
}

impl ActiveRequests {
    /// True while the agent waits for an answer of a model, back-off included.
    #[must_use]
    pub fn has_agent(&self, agent: &AgentId) -> bool {
        self.table().entries.values().any(|(of, _)| of == agent)
    }

    /// True while the run waits for an answer of a model, back-off included.
    #[must_use]
    pub fn has_run(&self, run: &RunId) -> bool {
        self.table().entries.values().any(|(_, of)| of == run)
    }

    /// How many calls are under way.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table().entries.len()
    }

    pub(super) fn enter(&self, agent: &AgentId, run: &RunId) -> Entry {
        let mut table = self.table();
        table.last += 1;
        let number = table.last;
        table.entries.insert(number, (agent.clone(), run.clone()));
        drop(table);
        Entry { table: self.clone(), number }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.table.table().entries.remove(&self.number);
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
        let old = active.enter(&agent("main"), &run("r1"));
        let new = active.enter(&agent("main"), &run("r1"));
        drop(old);
        assert!(active.has_agent(&agent("main")) && active.has_run(&run("r1")));
        drop(new);
        assert!(!active.has_agent(&agent("main")) && !active.has_run(&run("r1")));
        assert_eq!(active.count(), 0);
    }

    #[test]
    fn agents_and_runs_are_told_apart() {
        let active = ActiveRequests::default();
        let _entry = active.enter(&agent("main"), &run("r1"));
        assert!(!active.has_agent(&agent("other")));
        assert!(!active.has_run(&run("r2")));
        assert_eq!(active.count(), 1);
    }
}
