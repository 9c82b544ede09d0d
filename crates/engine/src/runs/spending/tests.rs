//! Change of the day at midnight, with paused time.

use std::time::Duration;

use quell_kernel::registry::NewRun;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::api::OnBusy;
use quell_protocol::{Principal, SessionKey, Surface};
use quell_scope::{PointProbe, Scope};

use super::*;
use crate::journal::Journal;
use crate::live_run::{Hub, LiveRunInit};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn agent() -> AgentId {
    AgentId::parse("main").expect("an agent id")
}

fn new_live_run(clock: Clock, id: &str) -> Arc<LiveRun> {
    let id = RunId::parse(id).expect("a run id");
    let journal = Journal::default().run_journal(id.clone());
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
    let init = LiveRunInit {
        run,
        fingerprint: String::new(),
        partial_policy: policy,
        deadline,
        journal,
        channel_origin: None,
        max_permissions: None,
    };
    Arc::new(LiveRun::new(init, Scope::new(clock, PointProbe::default()), clock, Hub::default()))
}

fn uses(live_run: &Arc<LiveRun>, input_tokens: u64) {
    live_run.writer().record_model_usage(Usage { input_tokens, output_tokens: 0, estimated: false });
}

fn tokens_today(spending: &AgentSpending) -> u64 {
    spending.spent_today(&agent()).usage.input_tokens
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_on_the_day_on_which_its_end_is_stored() {
    let clock = Clock::start();
    let spending = AgentSpending::new(clock);
    let (over, long) = (new_live_run(clock, "over"), new_live_run(clock, "long"));
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
    let lost = new_live_run(clock, "lost");
    spending.open_run(&lost);
    uses(&lost, 10);
    spending.close_run(lost.id());
    assert_eq!(tokens_today(&spending), 10);
}
