//! A stop that races completion, again and again: one verdict, one end, and a stop answer that agrees with them.

use std::sync::{Barrier, mpsc};
use std::time::Instant;

use quell_engine::engine::StopResult;
use quell_protocol::Requester;

use crate::prelude::*;

const RACES: u32 = 200;
/// The delays of the stops that cross completion: so many, each this much longer than the one before. The longest is
/// several times what a run needs from its last point to its verdict.
const DELAYS: u32 = 100;
const DELAY_STEP: Duration = Duration::from_micros(5);

/// When the stop of a race comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopMoment {
    /// At the last point of the run: the stop wins.
    LastPoint,
    /// After the verdict: the stop loses.
    AfterVerdict,
    /// On another thread, from the last point on. Either wins.
    Crossing { delay: Duration },
}

impl StopMoment {
    fn of_race(race: u32) -> Self {
        match race % 10 {
            0 => Self::LastPoint,
            1 => Self::AfterVerdict,
            _ => Self::Crossing { delay: DELAY_STEP * (race % DELAYS) },
        }
    }

    /// Whether the stop must win; `None` where both may.
    fn must_win(self) -> Option<bool> {
        match self {
            Self::LastPoint => Some(true),
            Self::AfterVerdict => Some(false),
            Self::Crossing { .. } => None,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_crosses_completion_agrees_with_the_verdict() {
    let test = TestEngine::start_shared().await;
    test.model.respond_by_prompt(|_, _| ScriptedResponse::text("ok"));
    let (mut crossings, mut stopped) = (0, 0);
    for race in 0..RACES {
        let moment = StopMoment::of_race(race);
        let won = run_race(&test, race, moment).await;
        match moment.must_win() {
            Some(must_win) => assert_eq!(won, must_win, "race {race}, {moment:?}"),
            None => (crossings, stopped) = (crossings + 1, stopped + u32::from(won)),
        }
    }
    println!("{crossings} crossings: {stopped} stopped, {} completed before the stop", crossings - stopped);
    test.close().await;
}

/// Runs one race. Returns true when the stop won.
async fn run_race(test: &TestEngine, race: u32, moment: StopMoment) -> bool {
    let run = parse_run_id(&format!("race-{race}"));
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let stopping = arm_stop(test, &run, moment);
    test.send(submission_as(&run, &format!("race {}", race % 10), "hello")).await;
    if moment == StopMoment::AfterVerdict {
        watcher.wait_event(&run, "verdict", |event| matches!(event.kind, EventKind::Ending { .. })).await;
    }
    let stop = tokio::task::spawn_blocking(stopping).await.unwrap();
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

/// Prepares the stop of a run that is not sent yet. The result carries it out, or waits for it, and returns its answer.
fn arm_stop(test: &TestEngine, run: &RunId, moment: StopMoment) -> Box<dyn FnOnce() -> StopResult + Send> {
    let (engine, run) = (test.engine.clone(), run.clone());
    let stop = move || engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(StopLevel::Gentle));
    match moment {
        StopMoment::AfterVerdict => Box::new(stop),
        StopMoment::LastPoint => {
            let (answer, answered) = mpsc::channel();
            test.point_hook.arm(Point::AfterModel, 1, move || answer.send(stop()).unwrap());
            Box::new(move || answered.recv_timeout(WAIT_TIMEOUT).expect("the run reaches its last point"))
        }
        StopMoment::Crossing { delay } => {
            let start = Arc::new(Barrier::new(2));
            let at_last_point = Arc::clone(&start);
            test.point_hook.arm(Point::AfterModel, 1, move || {
                at_last_point.wait();
            });
            Box::new(move || {
                start.wait();
                let begin = Instant::now();
                while begin.elapsed() < delay {
                    std::hint::spin_loop();
                }
                stop()
            })
        }
    }
}
