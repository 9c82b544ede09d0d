//! What each agent has used today, and the check of its daily limit.
//!
//! Lock order: run table, then this lock, then a live run.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::civil::Date;
use quell_kernel::admission::AdmissionError;
use quell_kernel::daily_spend::{DailyLimit, DailySpend, add_usage, subtract_usage};
use quell_protocol::{AgentId, RunId, Usage};
use quell_scope::clock::Clock;
use quell_store::{RunSpend, StoreError};

use super::RunTable;
use crate::live_run::LiveRun;

#[derive(Debug)]
pub(super) struct AgentSpending {
    clock: Clock,
    today: Mutex<SpendingDay>,
}

#[derive(Debug)]
struct SpendingDay {
    day: Date,
    daily_spend: DailySpend,
    live_runs: HashMap<RunId, Arc<LiveRun>>,
    /// What the database counts of this day because of this daemon: its own runs, and what was there at its start.
    own_stored: HashMap<AgentId, Usage>,
    /// What the other nodes of the cluster have used on this day.
    foreign: HashMap<AgentId, Usage>,
}

/// What an agent has used on a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpentToday {
    /// The day, in UTC.
    pub day: Date,
    /// Tokens of its runs, including active ones.
    pub usage: Usage,
}

impl AgentSpending {
    pub(super) fn new(clock: Clock) -> Self {
        let today = SpendingDay {
            day: clock.day(clock.now()),
            daily_spend: DailySpend::default(),
            live_runs: HashMap::new(),
            own_stored: HashMap::new(),
            foreign: HashMap::new(),
        };
        Self { clock, today: Mutex::new(today) }
    }

    /// Counts the usage of this run for its agent from now on.
    pub(super) fn open_run(&self, live_run: &Arc<LiveRun>) {
        let mut today = self.lock_today();
        today.daily_spend.open_run(live_run.run.agent.clone(), live_run.run.id.clone());
        today.live_runs.insert(live_run.run.id.clone(), Arc::clone(live_run));
    }

    /// Counts the final usage of a run that is forgotten.
    pub(super) fn close_run(&self, run: &RunId) {
        let mut today = self.lock_today();
        if let Some(live_run) = today.live_runs.remove(run) {
            today.daily_spend.close_run(&live_run.run.agent, run, live_run.usage());
        }
    }

    /// The spend to store with the end of a run.
    pub(super) fn spend_of_run(&self, live_run: &LiveRun) -> RunSpend {
        let today = self.lock_today();
        let agent = live_run.run.agent.clone();
        let counted = today.daily_spend.counted_usage(&agent, live_run.id());
        RunSpend { agent, day: today.day.to_string(), usage: live_run.usage(), already_counted: counted }
    }

    pub(super) fn count_stored(&self, run: &RunId, run_spend: &RunSpend) {
        let mut today = self.lock_today();
        today.daily_spend.count_usage(&run_spend.agent, run, run_spend.usage);
        if today.day.to_string() == run_spend.day {
            today.add_stored(&run_spend.agent, subtract_usage(run_spend.usage, run_spend.already_counted));
        }
    }

    fn spent_today(&self, agent: &AgentId) -> SpentToday {
        let today = self.lock_today();
        let used = |run: &RunId| today.live_runs.get(run).map(|live_run| live_run.usage()).unwrap_or_default();
        let foreign = today.foreign.get(agent).copied().unwrap_or_default();
        SpentToday { day: today.day, usage: add_usage(today.daily_spend.spent(agent, used), foreign) }
    }

    /// Locks the counters of today, and starts a new day at midnight. A clock that is set back starts none.
    fn lock_today(&self) -> MutexGuard<'_, SpendingDay> {
        let mut today = self.today.lock().unwrap_or_else(PoisonError::into_inner);
        let day = self.clock.day(self.clock.now());
        if day > today.day {
            today.day = day;
            today.daily_spend.start_new_day();
            today.own_stored.clear();
            today.foreign.clear();
        }
        today
    }
}

impl SpendingDay {
    fn add_stored(&mut self, agent: &AgentId, usage: Usage) {
        let stored = self.own_stored.entry(agent.clone()).or_default();
        *stored = add_usage(*stored, usage);
    }
}

impl RunTable {
    /// The day, and what live runs have used on it that the database does not count yet, by agent.
    pub fn uncounted_spending(&self) -> (String, BTreeMap<AgentId, Usage>) {
        let today = self.spending().lock_today();
        let mut uncounted: BTreeMap<AgentId, Usage> = BTreeMap::new();
        for (run, live_run) in &today.live_runs {
            let agent = &live_run.run.agent;
            let new = subtract_usage(live_run.usage(), today.daily_spend.counted_usage(agent, run));
            let sum = uncounted.entry(agent.clone()).or_default();
            *sum = add_usage(*sum, new);
        }
        (today.day.to_string(), uncounted)
    }

    /// Notes what the other nodes have used on a day: what the database counts besides the part of this node, and what
    /// their live runs have used.
    pub fn note_foreign_spend(&self, day: &str, stored: Vec<(AgentId, Usage)>, uncounted: Vec<(AgentId, Usage)>) {
        let mut today = self.spending().lock_today();
        if today.day.to_string() != day {
            return;
        }
        today.foreign.clear();
        for (agent, usage) in stored {
            let own = today.own_stored.get(&agent).copied().unwrap_or_default();
            today.foreign.insert(agent, subtract_usage(usage, own));
        }
        for (agent, usage) in uncounted {
            let foreign = today.foreign.entry(agent).or_default();
            *foreign = add_usage(*foreign, usage);
        }
    }

    /// What an agent has used today, including active runs.
    pub fn spent_today(&self, agent: &AgentId) -> SpentToday {
        self.spending().spent_today(agent)
    }

    /// Counts usage of an agent outside of its runs, at once, and then stores it.
    pub(super) async fn charge_usage(&self, agent: &AgentId, usage: Usage) -> Result<(), StoreError> {
        let day = {
            let mut today = self.spending().lock_today();
            today.daily_spend.add_stored_usage(agent.clone(), usage);
            today.add_stored(agent, usage);
            today.day.to_string()
        };
        // waits: in a task of the engine, after the run.
        self.store().spend().add(agent.clone(), day, usage).await
    }

    /// Loads the stored usage of a day, if that day is today.
    pub fn load_spend(&self, day: Date, stored_spend: Vec<(AgentId, Usage)>) {
        let mut today = self.spending().lock_today();
        if today.day == day {
            for (agent, usage) in stored_spend {
                today.add_stored(&agent, usage);
                today.daily_spend.add_stored_usage(agent, usage);
            }
        }
    }

    /// Refuses a new run of an agent that has reached its daily limit.
    pub(super) fn check_daily_limit(&self, agent: &AgentId) -> Result<(), AdmissionError> {
        let limit = self.services().agents.get(agent).map(|agent| agent.config.daily_limit()).unwrap_or_default();
        if limit == DailyLimit::default() {
            return Ok(());
        }
        let today = self.spent_today(agent);
        if !limit.is_reached(today.usage) {
            return Ok(());
        }
        let opens = today.day.tomorrow().unwrap_or(Date::MAX);
        Err(AdmissionError::SpendLimit { agent: agent.clone(), opens: format!("{opens}T00:00:00Z") })
    }
}

#[cfg(test)]
mod tests;
