//! Change of the day at midnight, with paused time.

use std::time::Duration;

use quell_protocol::agents::Price;

use super::*;
use crate::live_run::BillingInfo;
use crate::live_run::tests::live_run_with_id;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn agent() -> AgentId {
    AgentId::parse("main").expect("an agent id")
}

fn uses(live_run: &Arc<LiveRun>, input_tokens: u64) {
    live_run.writer().record_model_usage(Usage { input_tokens, output_tokens: 0, cached_tokens: 0, estimated: false });
}

fn tokens_today(spending: &AgentSpending) -> u64 {
    spending.spent_today(&agent()).usage.input_tokens
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_on_the_day_on_which_its_end_is_stored() {
    let clock = Clock::start();
    let spending = AgentSpending::new(clock);
    let (over, long) = (live_run_with_id(clock, "over"), live_run_with_id(clock, "long"));
    for live_run in [&over, &long] {
        spending.open_run(live_run);
        uses(live_run, 10);
    }
    assert_eq!(tokens_today(&spending), 20);
    let first = spending.spend_of_run(&over);
    assert_eq!((first.day.clone(), first.usage.input_tokens), (clock.day(clock.now()).to_string(), 10));
    spending.count_stored(over.id(), &first);
    assert_eq!(tokens_today(&spending), 20, "counted is spent, not spent again");
    tokio::time::advance(DAY).await;
    assert_eq!(tokens_today(&spending), 10, "what is at work stands against the day that is");
    uses(&long, 5);
    let second = spending.spend_of_run(&long);
    assert_eq!((second.usage.input_tokens, second.already_counted.input_tokens), (15, 0));
    assert_eq!(second.day, clock.day(clock.now()).to_string());
    assert_ne!(second.day, first.day);
    spending.count_stored(long.id(), &second);
    // A late receipt of yesterday's run adds only the new usage.
    uses(&over, 2);
    let late = spending.spend_of_run(&over);
    assert_eq!((late.usage.input_tokens, late.already_counted.input_tokens), (12, 10));
    spending.count_stored(over.id(), &late);
    spending.close_run(over.id());
    spending.close_run(long.id());
    assert_eq!(tokens_today(&spending), 17);
    tokio::time::advance(DAY).await;
    assert_eq!(tokens_today(&spending), 0);
}

#[tokio::test(start_paused = true)]
async fn what_other_nodes_have_spent_counts_for_a_token() {
    let clock = Clock::start();
    let spending = AgentSpending::new(clock);
    let key = Principal::parse("ann").expect("a principal");
    let priced = |tokens: u64, cost_nanos: u64| {
        let usage = Usage { input_tokens: tokens, output_tokens: 0, cached_tokens: 0, estimated: false };
        PricedUsage { usage, cost_nanos }
    };
    let own = live_run_with_id(clock, "own");
    let _ =
        own.billing_info.set(BillingInfo { provider: "p".to_owned(), price: Some(Price { input: 1.0, output: 1.0 }) });
    spending.open_run(&own);
    uses(&own, 10);
    assert_eq!(spending.key_spent_today(&key).1, priced(10, 10_000));
    spending.count_stored(own.id(), &spending.spend_of_run(&own));
    // The database has the part of this node and that of another one, which has a live run besides.
    let stored = vec![(key.clone(), priced(17, 17_000))];
    spending.lock_today().keys.note_foreign(stored, vec![(key.clone(), priced(1, 1000))]);
    assert_eq!(spending.key_spent_today(&key).1, priced(18, 18_000));
    uses(&own, 2);
    spending.close_run(own.id());
    assert_eq!(spending.key_spent_today(&key).1, priced(20, 20_000));
    tokio::time::advance(DAY).await;
    assert_eq!(spending.key_spent_today(&key).1, PricedUsage::default());
}

#[tokio::test(start_paused = true)]
async fn an_end_that_was_never_stored_stays_spent() {
    let clock = Clock::start();
    let spending = AgentSpending::new(clock);
    let lost = live_run_with_id(clock, "lost");
    spending.open_run(&lost);
    uses(&lost, 10);
    spending.close_run(lost.id());
    assert_eq!(tokens_today(&spending), 10);
}
