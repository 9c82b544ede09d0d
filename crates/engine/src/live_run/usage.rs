//! Token usage of a run, counted and estimated, and its billing.

use quell_kernel::daily_spend::{PricedUsage, add_usage, subtract_usage};
use quell_protocol::Usage;
use quell_protocol::agents::Price;

use super::LiveRunState;

/// The provider that bills the tokens of a run.
#[derive(Debug, Clone)]
pub struct BillingInfo {
    /// The provider of its model; `own` if the session brought its own model or endpoint.
    pub provider: String,
    pub price: Option<Price>,
}

/// A fall-back of a run to a model of another provider.
#[derive(Debug, Clone)]
pub struct ProviderChange {
    pub to: String,
    /// Price of its model.
    pub price: Option<Price>,
    /// Usage of the run until then.
    pub usage_before: Usage,
}

/// Divides the usage of a run between the providers that it used, in their order.
pub fn usage_by_provider(first: &str, changes: &[ProviderChange], total: Usage) -> Vec<(String, Usage)> {
    let names = std::iter::once(first).chain(changes.iter().map(|change| change.to.as_str()));
    let ends = changes.iter().map(|change| change.usage_before).chain([total]);
    let mut before = Usage::default();
    names
        .zip(ends)
        .map(|(name, end)| {
            let share = subtract_usage(end, std::mem::replace(&mut before, end));
            (name.to_owned(), share)
        })
        .collect()
}

/// The cost of a run: each part at the price of the model that used it.
pub(super) fn price_usage(first: Option<Price>, changes: &[ProviderChange], total: Usage) -> PricedUsage {
    let prices = std::iter::once(first).chain(changes.iter().map(|change| change.price));
    let ends = changes.iter().map(|change| change.usage_before).chain([total]);
    let mut before = Usage::default();
    let cost_nanos = prices.zip(ends).fold(0, |sum: u64, (price, end)| {
        let share = subtract_usage(end, std::mem::replace(&mut before, end));
        sum.saturating_add(PricedUsage::new(share, price).cost_nanos)
    });
    PricedUsage { usage: total, cost_nanos }
}

impl LiveRunState {
    pub(super) fn current_usage(&self) -> Usage {
        add_usage(self.usage, self.step_usage)
    }

    /// Keeps the estimate of a step whose usage the provider did not count.
    pub(super) fn settle_step_usage(&mut self) {
        self.usage = self.current_usage();
        self.step_usage = Usage::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
        Usage { input_tokens, output_tokens, cached_tokens: 0, estimated: false }
    }

    #[test]
    fn each_part_of_a_run_costs_the_price_of_its_model() {
        let price = |input| Some(Price { input, output: 0.0 });
        let changes = [
            ProviderChange { to: "b".to_owned(), price: None, usage_before: usage(10, 0) },
            ProviderChange { to: "c".to_owned(), price: price(2.0), usage_before: usage(15, 0) },
        ];
        assert_eq!(price_usage(price(1.0), &changes, usage(18, 0)).cost_nanos, 10 * 1000 + 3 * 2000);
        assert_eq!(price_usage(None, &[], usage(18, 0)), PricedUsage { usage: usage(18, 0), cost_nanos: 0 });
    }

    #[test]
    fn each_provider_is_billed_what_the_run_used_of_it() {
        let changes = [
            ProviderChange { to: "b".to_owned(), price: None, usage_before: usage(10, 1) },
            ProviderChange { to: "c".to_owned(), price: None, usage_before: usage(10, 1) },
        ];
        let shares = usage_by_provider("a", &changes, usage(25, 4));
        let expected = [("a", usage(10, 1)), ("b", usage(0, 0)), ("c", usage(15, 3))];
        assert!(shares.iter().map(|(name, share)| (name.as_str(), *share)).eq(expected), "{shares:?}");
    }
}
