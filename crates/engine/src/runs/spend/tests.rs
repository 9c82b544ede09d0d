//! The page turns at midnight, with time held still.

use std::time::Duration;

use quell_kernel::registry::NewRun;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::api::OnBusy;
use quell_protocol::{Principal, SessionKey, Surface};

use super::*;
use crate::cell::{Birth, Hub};
use crate::journal::Journal;
use crate::scope::{Probe, Scope};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn agent() -> AgentId {
    AgentId::parse("main").expect("an agent id")
}

fn cell(clock: Clock, id: &str) -> Arc<Cell> {
    let id = RunId::parse(id).expect("a run id");
    let page = Journal::default().page(id.clone());
    let run = NewRun {
        id,
        session: SessionKey::parse("s").expect("a session key"),
        agent: agent(),
        principal: Principal::parse("ann").expect("a principal"),
        admin: false,
        surface: Surface::Http,
        parent: None,
        text: "x".to_owned(),
        on_busy: OnBusy::Queue,
        scope: None,
        expires_at: clock.now(),
    };
    let (policy, deadline) = (PartialPolicy::Discard, clock.now());
    let birth = Birth { run, fingerprint: String::new(), policy, deadline, page, errand: None, ceiling: None };
    Arc::new(Cell::new(birth, Scope::new(clock, Probe::default()), clock, Hub::default()))
}

fn uses(cell: &Arc<Cell>, input_tokens: u64) {
    cell.pen().call_counted(Usage { input_tokens, output_tokens: 0, estimated: false });
}

fn tokens_today(spending: &Spending) -> u64 {
    spending.today(&agent()).usage.input_tokens
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_on_the_day_on_which_its_end_is_stored() {
    let clock = Clock::start();
    let spending = Spending::new(clock);
    let (over, long) = (cell(clock, "over"), cell(clock, "long"));
    for cell in [&over, &long] {
        spending.open(cell);
        uses(cell, 10);
    }
    assert_eq!(tokens_today(&spending), 20);
    let first = spending.of_run(&over);
    assert_eq!((first.day.clone(), first.usage.input_tokens), (clock.day(clock.now()).to_string(), 10));
    spending.count(over.id(), &first);
    assert_eq!(tokens_today(&spending), 20, "counted is spent, not spent again");
    tokio::time::advance(DAY).await;
    assert_eq!(tokens_today(&spending), 10, "what is at work stands against the day that is");
    uses(&long, 5);
    let second = spending.of_run(&long);
    assert_eq!((second.usage.input_tokens, second.counted.input_tokens), (15, 0));
    assert_eq!(second.day, clock.day(clock.now()).to_string());
    assert_ne!(second.day, first.day);
    spending.count(long.id(), &second);
    // A late receipt of yesterday's run brings only what is new.
    uses(&over, 2);
    let late = spending.of_run(&over);
    assert_eq!((late.usage.input_tokens, late.counted.input_tokens), (12, 10));
    spending.count(over.id(), &late);
    spending.close(over.id());
    spending.close(long.id());
    assert_eq!(tokens_today(&spending), 17);
    tokio::time::advance(DAY).await;
    assert_eq!(tokens_today(&spending), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_that_was_never_stored_stays_spent() {
    let clock = Clock::start();
    let spending = Spending::new(clock);
    let lost = cell(clock, "lost");
    spending.open(&lost);
    uses(&lost, 10);
    spending.close(lost.id());
    assert_eq!(tokens_today(&spending), 10);
}
