//! What an agent may spend in a day, and the book of what it has spent: tokens of runs that are over and counted, and those of
//! runs that are not.
//!
//! A run counts on the day on which its end is counted; until then what it has used so far stands against the day that is.

use std::collections::{BTreeMap, HashMap};

use quell_protocol::society::Price;
use quell_protocol::{AgentId, RunId, Usage};

/// What an agent may spend in a day.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DailyLimit {
    /// Tokens, in and out.
    pub tokens: Option<u64>,
    /// Cost, by the price.
    pub cost: Option<f64>,
    /// What tokens cost.
    pub price: Option<Price>,
}

/// What these tokens cost.
#[must_use]
pub fn cost(price: Price, usage: Usage) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "beyond 2^53 tokens a cost may be rounded")]
    let (input, output) = (usage.input_tokens as f64, usage.output_tokens as f64);
    (input * price.input + output * price.output) / 1e6
}

impl DailyLimit {
    /// True when nothing may be spent any more on a day on which this was.
    #[must_use]
    pub fn is_reached(&self, spent: Usage) -> bool {
        let by_tokens = self.tokens.is_some_and(|most| tokens(spent) >= most);
        let cost = self.price.map(|price| cost(price, spent));
        by_tokens || self.cost.zip(cost).is_some_and(|(most, cost)| cost >= most)
    }

    /// What is wrong with it, with the key of the configuration that says so.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let sound = |value: f64| value.is_finite() && value >= 0.0;
        if self.tokens == Some(0) {
            return Some(("daily_tokens", "0 would let nothing through; leave the key out for no limit".to_owned()));
        }
        if let Some(cost) = self.cost.filter(|cost| !sound(*cost) || *cost == 0.0) {
            return Some(("daily_cost", format!("{cost} is no limit; write a number above 0, or leave the key out")));
        }
        if let Some(price) = self.price.filter(|price| !sound(price.input) || !sound(price.output)) {
            return Some(("price", format!("{} and {} must be numbers from 0 on", price.input, price.output)));
        }
        let unpriced = self.cost.is_some() && self.price.is_none();
        unpriced.then(|| ("daily_cost", "needs price = { input = ..., output = ... } per million tokens".to_owned()))
    }
}

/// Tokens in and out.
#[must_use]
pub fn tokens(usage: Usage) -> u64 {
    usage.input_tokens.saturating_add(usage.output_tokens)
}

/// What each agent has spent on the day that is.
#[derive(Debug, Default)]
pub struct Book(HashMap<AgentId, Account>);

#[derive(Debug, Default)]
struct Account {
    /// What is counted of this day.
    settled: Usage,
    /// Runs that may use more, with what of them is counted, on this day or before.
    open: BTreeMap<RunId, Usage>,
}

impl Book {
    /// What was counted of this day before.
    pub fn bring_forward(&mut self, agent: AgentId, usage: Usage) {
        let account = self.0.entry(agent).or_default();
        account.settled = plus(account.settled, usage);
    }

    /// From now on what this run uses stands against its agent's day.
    pub fn open(&mut self, agent: AgentId, run: RunId) {
        self.0.entry(agent).or_default().open.entry(run).or_default();
    }

    /// What of a run is counted already.
    #[must_use]
    pub fn counted(&self, agent: &AgentId, run: &RunId) -> Usage {
        self.0.get(agent).and_then(|account| account.open.get(run)).copied().unwrap_or_default()
    }

    /// What a run has used until now is counted for the day that is: what is new of it joins the rest of the day.
    pub fn count(&mut self, agent: &AgentId, run: &RunId, used: Usage) {
        let Some(account) = self.0.get_mut(agent) else { return };
        let Some(counted) = account.open.get_mut(run) else { return };
        account.settled = plus(account.settled, minus(used, *counted));
        *counted = used;
    }

    /// A run uses nothing more and is forgotten. What was never counted of it stays spent on the day that is.
    pub fn close(&mut self, agent: &AgentId, run: &RunId, used: Usage) {
        self.count(agent, run, used);
        if let Some(account) = self.0.get_mut(agent) {
            account.open.remove(run);
        }
    }

    /// A new day: nothing is counted of it yet. Agents without a run leave the book.
    pub fn turn_page(&mut self) {
        self.0.retain(|_, account| {
            account.settled = Usage::default();
            !account.open.is_empty()
        });
    }

    /// What an agent has spent on the day that is; `used` says what a run has used until now.
    #[must_use]
    pub fn spent(&self, agent: &AgentId, used: impl Fn(&RunId) -> Usage) -> Usage {
        let Some(account) = self.0.get(agent) else { return Usage::default() };
        let open = account.open.iter().map(|(run, counted)| minus(used(run), *counted));
        open.fold(account.settled, plus)
    }
}

/// Both together.
#[must_use]
pub fn plus(one: Usage, other: Usage) -> Usage {
    Usage {
        input_tokens: one.input_tokens.saturating_add(other.input_tokens),
        output_tokens: one.output_tokens.saturating_add(other.output_tokens),
        estimated: one.estimated || other.estimated,
    }
}

/// What is in `one` and not in `other`. Nothing is ever taken back.
#[must_use]
pub fn minus(one: Usage, other: Usage) -> Usage {
    Usage {
        input_tokens: one.input_tokens.saturating_sub(other.input_tokens),
        output_tokens: one.output_tokens.saturating_sub(other.output_tokens),
        estimated: one.estimated,
    }
}

#[cfg(test)]
mod tests;
