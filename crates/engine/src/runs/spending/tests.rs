//! Change of the day at midnight, with paused time.

use std::time::Duration;

use super::*;
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
async fn an_end_that_was_never_stored_stays_spent() {
    let clock = Clock::start();
    let spending = AgentSpending::new(clock);
    let lost = live_run_with_id(clock, "lost");
    spending.open_run(&lost);
    uses(&lost, 10);
    spending.close_run(lost.id());
    assert_eq!(tokens_today(&spending), 10);
}
