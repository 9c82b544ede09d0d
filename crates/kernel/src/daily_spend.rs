//! Daily token and cost limits of agents, and the amounts that they have spent today.
//!
//! The tokens of a run are booked on the day on which they are counted. Until then, tokens that a live run has used
//! count towards the current day.

use std::collections::{BTreeMap, HashMap};

use quell_protocol::agents::Price;
use quell_protocol::{AgentId, RunId, Usage};

/// Limits of an agent for one UTC day.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DailyLimit {
    /// Tokens, input and output together.
    pub tokens: Option<u64>,
    /// Cost, in the currency of `price`.
    pub cost: Option<f64>,
    /// Price of a million tokens.
    pub price: Option<Price>,
}

/// Cost of these tokens, in the currency of the price.
pub fn cost_of(price: Price, usage: Usage) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 tokens a cost may be rounded")]
    let (input, output) = (usage.input_tokens as f64, usage.output_tokens as f64);
    (input * price.input + output * price.output) / 1e6
}

impl DailyLimit {
    /// True if an agent that has spent this amount today may spend nothing more.
    pub fn is_reached(&self, spent: Usage) -> bool {
        let by_tokens = self.tokens.is_some_and(|limit| total_tokens(spent) >= limit);
        let cost = self.price.map(|price| cost_of(price, spent));
        by_tokens || self.cost.zip(cost).is_some_and(|(limit, cost)| cost >= limit)
    }

    /// The first problem of the limits, with the configuration key that causes it.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let is_valid = |value: f64| value.is_finite() && value >= 0.0;
        if self.tokens == Some(0) {
            return Some(("daily_tokens", "0 would let nothing through; leave the key out for no limit".to_owned()));
        }
        if let Some(cost) = self.cost.filter(|cost| !is_valid(*cost) || *cost == 0.0) {
            return Some(("daily_cost", format!("{cost} is no limit; write a number above 0, or leave the key out")));
        }
        if let Some(price) = self.price.filter(|price| !is_valid(price.input) || !is_valid(price.output)) {
            return Some(("price", format!("{} and {} must be numbers from 0 on", price.input, price.output)));
        }
        let unpriced = self.cost.is_some() && self.price.is_none();
        unpriced.then(|| ("daily_cost", "needs price = { input = ..., output = ... } per million tokens".to_owned()))
    }
}

/// Tokens, input and output together.
pub fn total_tokens(usage: Usage) -> u64 {
    usage.input_tokens.saturating_add(usage.output_tokens)
}

/// Usage of each agent on the current day.
#[derive(Debug, Default)]
pub struct DailySpend(HashMap<AgentId, AgentSpend>);

#[derive(Debug, Default)]
struct AgentSpend {
    /// Usage that was counted on this day.
    counted: Usage,
    /// Live runs, each with the part of its usage that was counted on this day or before.
    open_runs: BTreeMap<RunId, Usage>,
}

impl DailySpend {
    /// Adds usage that an earlier daemon counted on this day.
    pub fn add_stored_usage(&mut self, agent: AgentId, usage: Usage) {
        let account = self.0.entry(agent).or_default();
        account.counted = add_usage(account.counted, usage);
    }

    /// Registers a run: from now on its usage counts towards the current day of its agent.
    pub fn open_run(&mut self, agent: AgentId, run: RunId) {
        self.0.entry(agent).or_default().open_runs.entry(run).or_default();
    }

    /// The part of a run's usage that was already counted.
    pub fn counted_usage(&self, agent: &AgentId, run: &RunId) -> Usage {
        self.0.get(agent).and_then(|account| account.open_runs.get(run)).copied().unwrap_or_default()
    }

    /// Counts the usage of a run so far: the part that is new since the last count is added to the current day.
    pub fn count_usage(&mut self, agent: &AgentId, run: &RunId, used: Usage) {
        let Some(account) = self.0.get_mut(agent) else { return };
        let Some(counted) = account.open_runs.get_mut(run) else { return };
        account.counted = add_usage(account.counted, subtract_usage(used, *counted));
        *counted = used;
    }

    /// Counts the rest of a run's usage and removes the run. The usage stays spent on the current day.
    pub fn close_run(&mut self, agent: &AgentId, run: &RunId, used: Usage) {
        self.count_usage(agent, run, used);
        if let Some(account) = self.0.get_mut(agent) {
            account.open_runs.remove(run);
        }
    }

    /// Starts a new day with nothing counted. Agents without a live run are removed.
    pub fn start_new_day(&mut self) {
        self.0.retain(|_, account| {
            account.counted = Usage::default();
            !account.open_runs.is_empty()
        });
    }

    /// Usage of an agent on the current day. `used` returns the usage of a live run so far.
    pub fn spent(&self, agent: &AgentId, used: impl Fn(&RunId) -> Usage) -> Usage {
        let Some(account) = self.0.get(agent) else { return Usage::default() };
        let open = account.open_runs.iter().map(|(run, counted)| subtract_usage(used(run), *counted));
        open.fold(account.counted, add_usage)
    }
}

#[must_use]
pub fn add_usage(one: Usage, other: Usage) -> Usage {
    Usage {
        input_tokens: one.input_tokens.saturating_add(other.input_tokens),
        output_tokens: one.output_tokens.saturating_add(other.output_tokens),
        cached_tokens: one.cached_tokens.saturating_add(other.cached_tokens),
        estimated: one.estimated || other.estimated,
    }
}

/// The part of `one` that is not in `other`; never negative.
#[must_use]
pub fn subtract_usage(one: Usage, other: Usage) -> Usage {
    Usage {
        input_tokens: one.input_tokens.saturating_sub(other.input_tokens),
        output_tokens: one.output_tokens.saturating_sub(other.output_tokens),
        cached_tokens: one.cached_tokens.saturating_sub(other.cached_tokens),
        estimated: one.estimated,
    }
}

#[cfg(test)]
mod tests;
