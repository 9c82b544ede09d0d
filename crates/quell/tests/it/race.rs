//! A stop that crosses completion, a thousand times: one verdict, one end, and an answer that matches them.

use std::time::{Duration, Instant};

use quell_kernel::Push;
use quell_protocol::{By, EventKind, StopReason, Verdict};
use quell_testkit::Behaviour;

use crate::harness::{House, PATIENCE, Watcher, alice, ask, message_as, of_run, run_id};

const RACES: u32 = 1000;
/// How the delay before the stop moves towards the crossing.
const STEP: Duration = Duration::from_micros(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_crosses_completion_agrees_with_the_verdict_a_thousand_times() {
    let house = House::shared().await;
    house.model.by_prompt(|_, _| Behaviour::text("ok"));
    let mut delay = Duration::ZERO;
    let mut stopped = 0;
    for race in 0..RACES {
        // A won race makes the next stop later, a lost one earlier: so most of them really cross.
        if cross(&house, race, delay).await {
            stopped += 1;
            delay += STEP;
        } else {
            delay = delay.saturating_sub(STEP);
        }
    }
    println!("{RACES} races: {stopped} stopped, {} completed before the stop", RACES - stopped);
    assert!(
        (RACES / 20..=RACES - RACES / 20).contains(&stopped),
        "only {stopped} of {RACES} were stopped: no crossing"
    );
    house.close().await;
}

/// One race. True when the stop won.
async fn cross(house: &House, race: u32, delay: Duration) -> bool {
    let run = run_id(&format!("race-{race}"));
    let mut watcher = Watcher::of(&house.engine);
    house.send(message_as(&run, &format!("race {}", race % 10), "hello")).await;
    watcher.until(&run, "text", |event| matches!(event.kind, EventKind::TextDelta { .. })).await;
    let (engine, id) = (house.engine.clone(), run.clone());
    let thread = std::thread::spawn(move || {
        let begin = Instant::now();
        while begin.elapsed() < delay {
            std::hint::spin_loop();
        }
        engine.stop(&alice(), &of_run(&id), &ask(Push::Gentle))
    });
    let stop = tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
    let waiting = async {
        for ticket in &stop.tickets {
            ticket.settled().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the stop does not settle");
    watcher.until_ended(&run).await;
    let view = house.ended(&run).await;
    let events = watcher.events(&run);
    let verdicts: Vec<&Verdict> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Ending { verdict } | EventKind::Ended { verdict, .. } => Some(verdict),
            _ => None,
        })
        .collect();
    let won = stop.aborted.contains(&run);
    let by = By { principal: alice().principal, surface: alice().surface };
    let expected = if won { Verdict::Aborted { reason: StopReason::User, by: Some(by) } } else { Verdict::Completed };
    assert_eq!(verdicts, [&expected, &expected], "race {race}");
    assert!(matches!(events.last().unwrap().kind, EventKind::Ended { .. }), "race {race}: {events:#?}");
    assert_eq!(view.verdict, Some(expected), "race {race}");
    let receipt = view.receipt.unwrap();
    assert!(receipt.leftovers.is_empty() && receipt.turn.recorded, "race {race}: {receipt:#?}");
    won
}
