//! A stop that races completion, a thousand times: one verdict, one end, and a stop answer that agrees with them.

use std::time::Instant;

use quell_protocol::Requester;

use crate::prelude::*;

const RACES: u32 = 1000;
/// How much the delay before the stop changes after each race.
const DELAY_STEP: Duration = Duration::from_micros(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_crosses_completion_agrees_with_the_verdict_a_thousand_times() {
    let test = TestEngine::start_shared().await;
    test.model.respond_by_prompt(|_, _| ScriptedResponse::text("ok"));
    let mut delay = Duration::ZERO;
    let mut stopped = 0;
    for race in 0..RACES {
        // A stop that won comes later in the next race, one that lost comes earlier: so most stops really cross
        // completion.
        if run_race(&test, race, delay).await {
            stopped += 1;
            delay += DELAY_STEP;
        } else {
            delay = delay.saturating_sub(DELAY_STEP);
        }
    }
    println!("{RACES} races: {stopped} stopped, {} completed before the stop", RACES - stopped);
    assert!(
        (RACES / 20..=RACES - RACES / 20).contains(&stopped),
        "only {stopped} of {RACES} were stopped: no crossing"
    );
    test.close().await;
}

/// Runs one race. Returns true when the stop won.
async fn run_race(test: &TestEngine, race: u32, delay: Duration) -> bool {
    let run = parse_run_id(&format!("race-{race}"));
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.send(submission_as(&run, &format!("race {}", race % 10), "hello")).await;
    watcher.wait_event(&run, "text", |event| matches!(event.kind, EventKind::TextDelta { .. })).await;
    let (engine, id) = (test.engine.clone(), run.clone());
    let thread = std::thread::spawn(move || {
        let begin = Instant::now();
        while begin.elapsed() < delay {
            std::hint::spin_loop();
        }
        engine.stop(&alice(), &run_stop_scope(&id), &stop_ask(StopLevel::Gentle))
    });
    let stop = tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
    tokio::time::timeout(WAIT_TIMEOUT, stop.wait_settled()).await.expect("the stop does not settle");
    watcher.wait_ended(&run).await;
    let view = test.wait_ended(&run).await;
    let events = watcher.run_events(&run);
    let verdicts: Vec<&Verdict> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Ending { verdict } | EventKind::Ended { verdict, .. } => Some(verdict),
            _ => None,
        })
        .collect();
    let won = stop.aborted.contains(&run);
    let by = Requester { principal: alice().principal, surface: alice().surface };
    let expected = if won { Verdict::Aborted { reason: StopReason::User, by: Some(by) } } else { Verdict::Completed };
    assert_eq!(verdicts, [&expected, &expected], "race {race}");
    assert!(matches!(events.last().unwrap().kind, EventKind::Ended { .. }), "race {race}: {events:#?}");
    assert_eq!(view.verdict, Some(expected), "race {race}");
    let receipt = view.receipt.unwrap();
    assert!(receipt.leftovers.is_empty() && receipt.turn.recorded, "race {race}: {receipt:#?}");
    won
}
