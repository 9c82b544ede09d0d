//! Limits at their edge, and the book against a list of everything that was ever used.

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn usage(input_tokens: u64, output_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens, estimated: false }
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
    let (at, problem) = limit.problem().expect("a problem");
    assert_eq!(at, key);
    assert!(problem.contains(text), "{problem}");
}

/// One thing that happens to the book.
#[derive(Debug, Clone)]
enum Op {
    Use(usize, u64),
    Count(usize),
    Close(usize),
    Midnight,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0_usize..4, 0_u64..50).prop_map(|(run, tokens)| Op::Use(run, tokens)),
        3 => (0_usize..4).prop_map(Op::Count),
        2 => (0_usize..4).prop_map(Op::Close),
        1 => Just(Op::Midnight),
    ]
}

proptest! {
    /// However often a run is counted, and whenever: what it used is spent once, by its own agent, on one day.
    #[test]
    fn everything_used_is_spent_exactly_once(ops in proptest::collection::vec(op(), 1..60)) {
        let mut book = Book::default();
        // Two runs of each agent.
        let owner = |number: usize| agent(number / 2);
        let mut used = [Usage::default(); 4];
        let mut forgotten = [false; 4];
        // The model: tokens of each run by where they stand.
        let mut floating = [0_u64; 4];
        let mut today = [0_u64; 2];
        (0..4).for_each(|number| book.open(owner(number), run(number)));
        for op in ops {
            match op {
                Op::Use(number, tokens) if !forgotten[number] => {
                    used[number].input_tokens += tokens;
                    floating[number] += tokens;
                }
                Op::Use(..) => {}
                Op::Count(number) => {
                    book.count(&owner(number), &run(number), used[number]);
                    today[number / 2] += std::mem::take(&mut floating[number]);
                }
                Op::Close(number) => {
                    book.close(&owner(number), &run(number), used[number]);
                    today[number / 2] += std::mem::take(&mut floating[number]);
                    forgotten[number] = true;
                }
                Op::Midnight => {
                    book.turn_page();
                    today = [0; 2];
                }
            }
            for number in 0..2 {
                let live = |id: &RunId| (0..4).find(|number| run(*number) == *id).map_or(Usage::default(), |n| used[n]);
                let wanted = today[number] + floating[2 * number] + floating[2 * number + 1];
                prop_assert_eq!(tokens(book.spent(&agent(number), live)), wanted);
            }
        }
    }
}

#[test]
fn what_the_database_knew_of_the_day_is_spent_already() {
    let mut book = Book::default();
    book.bring_forward(agent(0), usage(7, 3));
    assert_eq!(book.spent(&agent(0), |_| Usage::default()), usage(7, 3));
    assert_eq!(book.spent(&agent(1), |_| Usage::default()), Usage::default(), "another agent's day is its own");
    book.turn_page();
    assert_eq!(book.spent(&agent(0), |_| Usage::default()), Usage::default());
}
