//! Prometheus metrics of ended runs and token usage.

use metrics::{counter, histogram};
use quell_kernel::daily_spend::cost_of;
use quell_protocol::{Receipt, Usage};

use crate::live_run::{BillingInfo, ProviderChange, usage_by_provider};

/// Counts a run by its verdict, its usage, and for a stopped run the duration of the stop. A run without `bill` never
/// had a model and used nothing.
pub(super) fn count_run_end(receipt: &Receipt, bill: Option<&BillingInfo>, changes: &[ProviderChange]) {
    counter!("quell_runs_ended_total", "verdict" => receipt.verdict.as_str()).increment(1);
    if let Some(ms) = receipt.requested_at.as_ref().and(receipt.settled_at.ms) {
        histogram!("quell_stop_seconds").record(ms / 1000.0);
    }
    if !receipt.leftovers.is_empty() {
        counter!("quell_runs_with_leftovers_total").increment(1);
    }
    if let Some(bill) = bill {
        for (provider, usage) in usage_by_provider(&bill.provider, changes, receipt.usage) {
            count_usage(&BillingInfo { provider, price: bill.price }, usage);
        }
    }
}

/// Counts tokens, and their cost if the model has a price.
pub(super) fn count_usage(bill: &BillingInfo, usage: Usage) {
    let count = |direction: &'static str, tokens: u64| {
        counter!("quell_tokens_total", "provider" => bill.provider.clone(), "direction" => direction).increment(tokens);
    };
    count("input", usage.input_tokens);
    count("output", usage.output_tokens);
    if let Some(price) = bill.price {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cost is 0 or more; fractions of a millionth are rounded"
        )]
        let millionths = (cost_of(price, usage) * 1e6).round() as u64;
        counter!("quell_cost_micros_total", "provider" => bill.provider.clone()).increment(millionths);
    }
}
