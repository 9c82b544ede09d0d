//! Daily token and cost limits of agents, and the amounts that agents and the holders of tokens have spent today.
//!
//! The tokens of a run are booked on the day on which they are counted. Until then, tokens that a live run has used
//! count towards the current day.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use quell_protocol::agents::Price;
use quell_protocol::{RunId, Usage};
use serde::{Deserialize, Serialize};

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

/// What is counted: it is added up, and a part can be taken away.
pub trait SpendAmount: Copy + Default {
    #[must_use]
    fn add(self, other: Self) -> Self;

    /// The part of `self` that is not in `other`; never negative.
    #[must_use]
    fn subtract(self, other: Self) -> Self;
}

impl SpendAmount for Usage {
    fn add(self, other: Self) -> Self {
        add_usage(self, other)
    }

    fn subtract(self, other: Self) -> Self {
        subtract_usage(self, other)
    }
}

/// A cost in billionths of the currency of the prices. Whole numbers, so that sums are exact.
pub type CostNanos = u64;

/// Billionths in one unit of the currency.
pub const UNITS_IN_NANOS: f64 = 1e9;

/// Tokens with their cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PricedUsage {
    pub usage: Usage,
    pub cost_nanos: CostNanos,
}

impl PricedUsage {
    /// These tokens at this price; without one they cost nothing.
    #[must_use]
    pub fn new(usage: Usage, price: Option<Price>) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cost is 0 or more; fractions of a billionth are rounded"
        )]
        let cost_nanos = price.map_or(0, |price| (cost_of(price, usage) * UNITS_IN_NANOS).round() as u64);
        Self { usage, cost_nanos }
    }

    /// The cost in the currency of the prices.
    #[must_use]
    pub fn cost(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 billionths a cost may be rounded")]
        let nanos = self.cost_nanos as f64;
        nanos / UNITS_IN_NANOS
    }
}

impl SpendAmount for PricedUsage {
    fn add(self, other: Self) -> Self {
        let cost_nanos = self.cost_nanos.saturating_add(other.cost_nanos);
        Self { usage: add_usage(self.usage, other.usage), cost_nanos }
    }

    fn subtract(self, other: Self) -> Self {
        let cost_nanos = self.cost_nanos.saturating_sub(other.cost_nanos);
        Self { usage: subtract_usage(self.usage, other.usage), cost_nanos }
    }
}

/// What each spender, such as an agent, has used on the current day.
#[derive(Debug)]
pub struct DailySpend<K, A>(HashMap<K, SpendAccount<A>>);

#[derive(Debug)]
struct SpendAccount<A> {
    /// What was counted on this day.
    counted: A,
    /// Live runs, each with the part of its usage that was counted on this day or before.
    open_runs: BTreeMap<RunId, A>,
}

impl<A: Default> Default for SpendAccount<A> {
    fn default() -> Self {
        Self { counted: A::default(), open_runs: BTreeMap::new() }
    }
}

impl<K, A> Default for DailySpend<K, A> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, A: SpendAmount> DailySpend<K, A> {
    /// Adds usage that an earlier daemon counted on this day.
    pub fn add_stored_usage(&mut self, spender: K, usage: A) {
        let account = self.0.entry(spender).or_default();
        account.counted = account.counted.add(usage);
    }

    /// Registers a run: from now on its usage counts towards the current day of its spender.
    pub fn open_run(&mut self, spender: K, run: RunId) {
        self.0.entry(spender).or_default().open_runs.entry(run).or_default();
    }

    /// The part of a run's usage that was already counted.
    pub fn counted_usage(&self, spender: &K, run: &RunId) -> A {
        self.0.get(spender).and_then(|account| account.open_runs.get(run)).copied().unwrap_or_default()
    }

    /// Counts the usage of a run so far: the part that is new since the last count is added to the current day.
    pub fn count_usage(&mut self, spender: &K, run: &RunId, used: A) {
        let Some(account) = self.0.get_mut(spender) else { return };
        let Some(counted) = account.open_runs.get_mut(run) else { return };
        account.counted = account.counted.add(used.subtract(*counted));
        *counted = used;
    }

    /// Counts the rest of a run's usage and removes the run. The usage stays spent on the current day.
    pub fn close_run(&mut self, spender: &K, run: &RunId, used: A) {
        self.count_usage(spender, run, used);
        if let Some(account) = self.0.get_mut(spender) {
            account.open_runs.remove(run);
        }
    }

    /// Starts a new day with nothing counted. Spenders without a live run are removed.
    pub fn start_new_day(&mut self) {
        self.0.retain(|_, account| {
            account.counted = A::default();
            !account.open_runs.is_empty()
        });
    }

    /// Usage of a spender on the current day. `used` returns the usage of a live run so far.
    pub fn spent(&self, spender: &K, used: impl Fn(&RunId) -> A) -> A {
        let Some(account) = self.0.get(spender) else { return A::default() };
        let open = account.open_runs.iter().map(|(run, counted)| used(run).subtract(*counted));
        open.fold(account.counted, A::add)
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
