//! Tests of limits at their edge, and of exactly-once counting against a naive model.

use proptest::prelude::*;
use quell_protocol::AgentId;
use rstest::rstest;

use super::*;

fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, cached_tokens: 0, estimated: false }
}

fn agent(number: usize) -> AgentId {
    AgentId::parse(format!("agent{number}")).expect("an agent id")
}

fn run(number: usize) -> RunId {
    RunId::parse(format!("run{number}")).expect("a run id")
}

const PRICE: Option<Price> = Some(Price { input: 3.0, output: 15.0 });

#[rstest]
#[case::none(DailyLimit::default(), usage(u64::MAX, 1), false)]
#[case::below(DailyLimit { tokens: Some(10), ..DailyLimit::default() }, usage(4, 5), false)]
#[case::at(DailyLimit { tokens: Some(10), ..DailyLimit::default() }, usage(4, 6), true)]
#[case::no_overflow(DailyLimit { tokens: Some(u64::MAX), ..DailyLimit::default() }, usage(u64::MAX, 9), true)]
#[case::cheaper(DailyLimit { cost: Some(18.0), price: PRICE, tokens: None }, usage(999_999, 1_000_000), false)]
#[case::as_dear(DailyLimit { cost: Some(18.0), price: PRICE, tokens: None }, usage(1_000_000, 1_000_000), true)]
#[case::either(DailyLimit { cost: Some(1.0), price: PRICE, tokens: Some(5) }, usage(5, 0), true)]
#[case::price_alone(DailyLimit { price: PRICE, ..DailyLimit::default() }, usage(1_000_000_000, 0), false)]
fn a_limit_is_reached_at_its_number(#[case] limit: DailyLimit, #[case] spent: Usage, #[case] reached: bool) {
    assert_eq!(limit.is_reached(spent), reached);
    assert_eq!(limit.problem(), None);
}

#[rstest]
#[case::nothing(DailyLimit { tokens: Some(0), ..DailyLimit::default() }, "daily_tokens", "0 would let nothing through")]
#[case::free(DailyLimit { cost: Some(0.0), price: PRICE, tokens: None }, "daily_cost", "0 is no limit")]
#[case::negative(DailyLimit { cost: Some(-1.0), price: PRICE, tokens: None }, "daily_cost", "-1 is no limit")]
#[case::infinite(DailyLimit { cost: Some(f64::INFINITY), price: PRICE, tokens: None }, "daily_cost", "inf is no limit")]
#[case::unpriced(DailyLimit { cost: Some(1.0), ..DailyLimit::default() }, "daily_cost", "needs price")]
#[case::bad_price(
    DailyLimit { price: Some(Price { input: -3.0, output: 1.0 }), ..DailyLimit::default() }, "price", "-3 and 1 must be"
)]
fn a_limit_that_cannot_work_is_named(#[case] limit: DailyLimit, #[case] key: &str, #[case] text: &str) {
    let (problem_key, problem) = limit.problem().expect("a problem");
    assert_eq!(problem_key, key);
    assert!(problem.contains(text), "{problem}");
}

#[derive(Debug, Clone)]
enum SpendOp {
    Use(usize, u64),
    Count(usize),
    Close(usize),
    Midnight,
}

fn op() -> impl Strategy<Value = SpendOp> {
    prop_oneof![
        6 => (0_usize..4, 0_u64..50).prop_map(|(run, tokens)| SpendOp::Use(run, tokens)),
        3 => (0_usize..4).prop_map(SpendOp::Count),
        2 => (0_usize..4).prop_map(SpendOp::Close),
        1 => Just(SpendOp::Midnight),
    ]
}

proptest! {
    /// However often a run is counted: its usage is spent once, by its own agent, on one day.
    #[test]
    fn everything_used_is_spent_exactly_once(ops in proptest::collection::vec(op(), 1..60)) {
        let mut daily_spend = DailySpend::default();
        // Two runs of each agent.
        let owner = |number: usize| agent(number / 2);
        let mut used = [Usage::default(); 4];
        let mut forgotten = [false; 4];
        // The naive model: uncounted tokens of each run, and counted tokens of each agent.
        let mut uncounted = [0_u64; 4];
        let mut today = [0_u64; 2];
        (0..4).for_each(|number| daily_spend.open_run(owner(number), run(number)));
        for op in ops {
            match op {
                SpendOp::Use(number, tokens) if !forgotten[number] => {
                    used[number].input_tokens += tokens;
                    uncounted[number] += tokens;
                }
                SpendOp::Use(..) => {}
                SpendOp::Count(number) => {
                    daily_spend.count_usage(&owner(number), &run(number), used[number]);
                    today[number / 2] += std::mem::take(&mut uncounted[number]);
                }
                SpendOp::Close(number) => {
                    daily_spend.close_run(&owner(number), &run(number), used[number]);
                    today[number / 2] += std::mem::take(&mut uncounted[number]);
                    forgotten[number] = true;
                }
                SpendOp::Midnight => {
                    daily_spend.start_new_day();
                    today = [0; 2];
                }
            }
            for number in 0..2 {
                let live = |id: &RunId| (0..4).find(|number| run(*number) == *id).map_or(Usage::default(), |n| used[n]);
                let wanted = today[number] + uncounted[2 * number] + uncounted[2 * number + 1];
                prop_assert_eq!(total_tokens(daily_spend.spent(&agent(number), live)), wanted);
            }
        }
    }
}

#[test]
fn a_cost_is_counted_to_the_billionth() {
    let one = PricedUsage::new(usage(1, 0), Some(Price { input: 0.001, output: 0.0 }));
    assert_eq!(one.cost_nanos, 1);
    let sum = (0..1_000_000).fold(PricedUsage::default(), |sum, _| sum.add(one));
    assert_eq!((sum.usage.input_tokens, sum.cost_nanos), (1_000_000, 1_000_000));
    assert!((sum.cost() - 0.001).abs() < 1e-12);
    assert_eq!(one.subtract(sum), PricedUsage::default(), "never negative");
    assert_eq!(PricedUsage::new(usage(5, 5), None).cost_nanos, 0, "without a price nothing is known");
}

#[test]
fn stored_usage_of_the_day_counts_as_spent() {
    let mut daily_spend = DailySpend::default();
    daily_spend.add_stored_usage(agent(0), usage(7, 3));
    assert_eq!(daily_spend.spent(&agent(0), |_| Usage::default()), usage(7, 3));
    assert_eq!(daily_spend.spent(&agent(1), |_| Usage::default()), Usage::default(), "another agent's day is its own");
    daily_spend.start_new_day();
    assert_eq!(daily_spend.spent(&agent(0), |_| Usage::default()), Usage::default());
}
