//! What is counted of runs that are over, and of the work behind them, for `/metrics`.

use metrics::{counter, histogram};
use quell_kernel::spend::cost;
use quell_protocol::{Receipt, Usage};

use crate::cell::Bill;

/// Counts a run by its verdict, with what it used; of one that was stopped, how long that took. Without a bill it never had a model,
/// and used nothing.
pub(super) fn ended(receipt: &Receipt, bill: Option<&Bill>) {
    counter!("quell_runs_ended_total", "verdict" => receipt.verdict.word()).increment(1);
    if let Some(ms) = receipt.requested_at.as_ref().and(receipt.settled_at.ms) {
        histogram!("quell_stop_seconds").record(ms / 1000.0);
    }
    if !receipt.leftovers.is_empty() {
        counter!("quell_runs_with_leftovers_total").increment(1);
    }
    if let Some(bill) = bill {
        used(bill, receipt.usage);
    }
}

/// Counts tokens, and what they cost where they have a price.
pub(super) fn used(bill: &Bill, usage: Usage) {
    let count = |direction: &'static str, tokens: u64| {
        counter!("quell_tokens_total", "provider" => bill.provider.clone(), "direction" => direction).increment(tokens);
    };
    count("input", usage.input_tokens);
    count("output", usage.output_tokens);
    if let Some(price) = bill.price {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cost is 0 or more; less than a millionth is rounded"
        )]
        let millionths = (cost(price, usage) * 1e6).round() as u64;
        counter!("quell_cost_micros_total", "provider" => bill.provider.clone()).increment(millionths);
    }
}
