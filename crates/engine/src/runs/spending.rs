//! What each agent and each token has used today, and the check of their daily limits.
//!
//! Lock order: run table, then this lock, then a live run.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::civil::Date;
use quell_kernel::admission::AdmissionError;
use quell_kernel::api_key::ApiKey;
use quell_kernel::daily_spend::{DailyLimit, DailySpend, PricedUsage, SpendAmount};
use quell_protocol::{AgentId, Principal, RunId, Usage};
use quell_scope::clock::Clock;
use quell_store::{RunSpend, Store, StoreError};

use super::RunTable;
use crate::access::is_token;
use crate::live_run::LiveRun;

#[derive(Debug)]
pub(super) struct AgentSpending {
    clock: Clock,
    today: Mutex<SpendingDay>,
}

#[derive(Debug)]
struct SpendingDay {
    day: Date,
    live_runs: HashMap<RunId, Arc<LiveRun>>,
    agents: SpenderDay<AgentId, Usage>,
    keys: SpenderDay<Principal, PricedUsage>,
}

/// What spenders of one kind have used on a day.
#[derive(Debug)]
struct SpenderDay<K, A> {
    /// By the runs of this daemon.
    own: DailySpend<K, A>,
    /// What the database counts of this day because of this daemon: its own runs, and what was there at its start.
    own_stored: HashMap<K, A>,
    /// What the other nodes of the cluster have used on this day.
    foreign: HashMap<K, A>,
}

/// What spenders have used on a day: what the database counts, or what it does not count yet.
#[derive(Debug, Clone, Default)]
pub struct DaySums {
    pub agents: Vec<(AgentId, Usage)>,
    pub keys: Vec<(Principal, PricedUsage)>,
}

impl DaySums {
    /// Reads what the database counts of a day.
    pub async fn load(store: &Store, day: String) -> Result<Self, StoreError> {
        let agents = store.spend().on_day(day.clone()).await?;
        Ok(Self { agents, keys: store.spend().by_key(day.clone(), day).await? })
    }
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
        let (agents, keys) = (SpenderDay::default(), SpenderDay::default());
        let today = SpendingDay { day: clock.day(clock.now()), live_runs: HashMap::new(), agents, keys };
        Self { clock, today: Mutex::new(today) }
    }

    /// Counts the usage of this run for its agent and its token from now on.
    pub(super) fn open_run(&self, live_run: &Arc<LiveRun>) {
        let mut today = self.lock_today();
        today.agents.own.open_run(live_run.run.agent.clone(), live_run.run.id.clone());
        if let Some(key) = key_of(live_run) {
            today.keys.own.open_run(key.clone(), live_run.run.id.clone());
        }
        today.live_runs.insert(live_run.run.id.clone(), Arc::clone(live_run));
    }

    /// Counts the final usage of a run that is forgotten.
    pub(super) fn close_run(&self, run: &RunId) {
        let mut today = self.lock_today();
        if let Some(live_run) = today.live_runs.remove(run) {
            today.agents.own.close_run(&live_run.run.agent, run, live_run.usage());
            if let Some(key) = key_of(&live_run) {
                today.keys.own.close_run(key, run, live_run.priced_usage());
            }
        }
    }

    /// The spend to store with the end of a run.
    pub(super) fn spend_of_run(&self, live_run: &LiveRun) -> RunSpend {
        let today = self.lock_today();
        let (agent, key) = (live_run.run.agent.clone(), key_of(live_run).cloned());
        let PricedUsage { usage, cost_nanos } = live_run.priced_usage();
        let already_counted = today.agents.own.counted_usage(&agent, live_run.id());
        let counted_for_key = key.as_ref().map(|key| today.keys.own.counted_usage(key, live_run.id()));
        let cost_already_counted = counted_for_key.unwrap_or_default().cost_nanos;
        let day = today.day.to_string();
        RunSpend { agent, day, usage, already_counted, key, cost: cost_nanos, cost_already_counted }
    }

    pub(super) fn count_stored(&self, run: &RunId, run_spend: &RunSpend) {
        let mut today = self.lock_today();
        let is_today = today.day.to_string() == run_spend.day;
        let new = run_spend.total().subtract(run_spend.counted_before());
        today.agents.own.count_usage(&run_spend.agent, run, run_spend.usage);
        if is_today {
            today.agents.add_stored(&run_spend.agent, new.usage);
        }
        let Some(key) = &run_spend.key else { return };
        today.keys.own.count_usage(key, run, run_spend.total());
        if is_today {
            today.keys.add_stored(key, new);
        }
    }

    fn spent_today(&self, agent: &AgentId) -> SpentToday {
        let today = self.lock_today();
        let used = |run: &RunId| today.live_runs.get(run).map(|live_run| live_run.usage()).unwrap_or_default();
        SpentToday { day: today.day, usage: today.agents.spent(agent, used) }
    }

    /// What the runs of a token have used on the current day, which is returned with it.
    fn key_spent_today(&self, key: &Principal) -> (Date, PricedUsage) {
        let today = self.lock_today();
        let used = |run: &RunId| today.live_runs.get(run).map(|live_run| live_run.priced_usage()).unwrap_or_default();
        (today.day, today.keys.spent(key, used))
    }

    /// Locks the counters of today, and starts a new day at midnight. A clock that is set back starts none.
    fn lock_today(&self) -> MutexGuard<'_, SpendingDay> {
        let mut today = self.today.lock().unwrap_or_else(PoisonError::into_inner);
        let day = self.clock.day(self.clock.now());
        if day > today.day {
            today.day = day;
            today.agents.start_new_day();
            today.keys.start_new_day();
        }
        today
    }
}

impl<K, A> Default for SpenderDay<K, A> {
    fn default() -> Self {
        Self { own: DailySpend::default(), own_stored: HashMap::new(), foreign: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash, A: SpendAmount> SpenderDay<K, A> {
    fn spent(&self, spender: &K, used: impl Fn(&RunId) -> A) -> A {
        self.own.spent(spender, used).add(self.foreign.get(spender).copied().unwrap_or_default())
    }

    fn start_new_day(&mut self) {
        self.own.start_new_day();
        self.own_stored.clear();
        self.foreign.clear();
    }

    fn add_stored(&mut self, spender: &K, usage: A) {
        add_to(&mut self.own_stored, spender, usage);
    }

    /// Adds what the database counted before this daemon.
    fn load(&mut self, stored: Vec<(K, A)>) {
        for (spender, usage) in stored {
            self.add_stored(&spender, usage);
            self.own.add_stored_usage(spender, usage);
        }
    }

    fn note_foreign(&mut self, stored: Vec<(K, A)>, uncounted: Vec<(K, A)>) {
        self.foreign.clear();
        for (spender, usage) in stored {
            let own = self.own_stored.get(&spender).copied().unwrap_or_default();
            self.foreign.insert(spender, usage.subtract(own));
        }
        for (spender, usage) in uncounted {
            add_to(&mut self.foreign, &spender, usage);
        }
    }
}

fn add_to<K: Clone + Eq + Hash, A: SpendAmount>(sums: &mut HashMap<K, A>, spender: &K, usage: A) {
    let sum = sums.entry(spender.clone()).or_default();
    *sum = sum.add(usage);
}

/// The token that pays for a run; `None` for that of a person in a chat.
fn key_of(live_run: &LiveRun) -> Option<&Principal> {
    let principal = &live_run.run.principal;
    is_token(principal).then_some(principal)
}

/// The time at which the day after `day` begins, RFC 3339.
fn begin_of_next_day(day: Date) -> String {
    format!("{}T00:00:00Z", day.tomorrow().unwrap_or(Date::MAX))
}

impl RunTable {
    /// The day, and what live runs have used on it that the database does not count yet.
    pub fn uncounted_spending(&self) -> (String, DaySums) {
        let today = self.spending().lock_today();
        let (mut agents, mut keys) = (HashMap::new(), HashMap::new());
        for (run, live_run) in &today.live_runs {
            let (agent, used) = (&live_run.run.agent, live_run.priced_usage());
            add_to(&mut agents, agent, used.usage.subtract(today.agents.own.counted_usage(agent, run)));
            if let Some(key) = key_of(live_run) {
                add_to(&mut keys, key, used.subtract(today.keys.own.counted_usage(key, run)));
            }
        }
        let sums = DaySums { agents: agents.into_iter().collect(), keys: keys.into_iter().collect() };
        (today.day.to_string(), sums)
    }

    /// Notes what the other nodes have used on a day: what the database counts besides the part of this node, and what
    /// their live runs have used.
    pub fn note_foreign_spend(&self, day: &str, stored: DaySums, uncounted: DaySums) {
        let mut today = self.spending().lock_today();
        if today.day.to_string() == day {
            today.agents.note_foreign(stored.agents, uncounted.agents);
            today.keys.note_foreign(stored.keys, uncounted.keys);
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
            today.agents.own.add_stored_usage(agent.clone(), usage);
            today.agents.add_stored(agent, usage);
            today.day.to_string()
        };
        // waits: in a task of the engine, after the run.
        self.store().spend().add(agent.clone(), day, usage).await
    }

    /// Loads the stored usage of a day, if that day is today.
    pub fn load_spend(&self, day: Date, stored: DaySums) {
        let mut today = self.spending().lock_today();
        if today.day == day {
            today.agents.load(stored.agents);
            today.keys.load(stored.keys);
        }
    }

    /// What the runs of a token have used on the current day, which is returned with it.
    pub fn key_spent_today(&self, key: &Principal) -> (Date, PricedUsage) {
        self.spending().key_spent_today(key)
    }

    /// True if the runs of a token may spend nothing more today.
    pub fn is_daily_cost_reached(&self, principal: &Principal, key: &ApiKey) -> bool {
        key.daily_cost().is_some() && key.is_daily_cost_reached(self.key_spent_today(principal).1.cost_nanos)
    }

    /// Refuses a new run of a token that has reached its daily cost.
    pub(super) fn check_daily_cost(&self, live_run: &LiveRun) -> Result<(), AdmissionError> {
        let key = &live_run.run.principal;
        if !self.is_daily_cost_reached(key, &live_run.key) {
            return Ok(());
        }
        let (day, _) = self.key_spent_today(key);
        Err(AdmissionError::KeySpendLimit { key: key.clone(), opens: begin_of_next_day(day) })
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
        Err(AdmissionError::SpendLimit { agent: agent.clone(), opens: begin_of_next_day(today.day) })
    }
}

#[cfg(test)]
mod tests;
