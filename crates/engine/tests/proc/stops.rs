//! Stops: gentle and forced, of everything a command can do to stay alive.

use std::time::Duration;

use quell_engine::proc::{ProcessHow, ProcessStop};
use quell_engine::scope::StopLevel;
use rstest::rstest;

use crate::bench::{Bench, wait_dead, within};

const PLAIN: &str = "echo ready; sleep 1000";
const PIPELINE: &str = "(echo ready >&2; sleep 1000) | sleep 1000 | sleep 1000";
const SETSID: &str =
    "setsid sleep 1000 & setsid sh -c 'setsid sleep 1000 & sleep 1000' & sleep 0.1; echo ready; sleep 1000";
const DOUBLE_FORK: &str = "(setsid sh -c '(sleep 1000 &) ; exit 0' &); sleep 0.1; echo ready; sleep 1000";
const CLEARED: &str = "env -i setsid sleep 1000 & sleep 0.1; echo ready; sleep 1000";
const SLEEPING: &str = "(kill -STOP $(sh -c 'echo $PPID'); sleep 1000) & sleep 0.1; echo ready; sleep 1000";
const STUBBORN: &str = "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done";
const STUBBORN_SETSID: &str =
    "trap '' TERM INT HUP; setsid sh -c 'while :; do sleep 1; done' & sleep 0.1; echo ready; wait";

#[rstest]
#[case::plain(PLAIN)]
#[case::pipeline(PIPELINE)]
#[case::setsid(SETSID)]
#[case::double_fork(DOUBLE_FORK)]
#[case::cleared_environment(CLEARED)]
#[case::stopped_by_itself(SLEEPING)]
#[tokio::test]
async fn a_gentle_stop_ends_it_at_once(#[case] script: &str) {
    let bench = Bench::patient().await;
    within(Duration::from_millis(250), async || {
        let (end, took) = bench.again().stop(script, StopLevel::Gentle).await;
        assert_eq!((end.how, end.why), (ProcessHow::Term, ProcessStop::Stopped), "{end:?}");
        assert_eq!(end.output.text(), "ready\n", "partial output is kept");
        took
    })
    .await;
}

#[rstest]
#[case::group(STUBBORN)]
#[case::setsid(STUBBORN_SETSID)]
#[tokio::test]
async fn a_gentle_stop_ends_what_ignores_signals_within_700_ms(#[case] script: &str) {
    let bench = Bench::new().await;
    within(Duration::from_millis(700), async || {
        let (end, took) = bench.again().stop(script, StopLevel::Gentle).await;
        assert_eq!((end.how, end.why, end.signal), (ProcessHow::Kill, ProcessStop::Stopped, Some(9)));
        assert!(took > Duration::from_millis(490), "the grace was cut short: {took:?}");
        took
    })
    .await;
}

#[rstest]
#[case::plain(PLAIN)]
#[case::pipeline(PIPELINE)]
#[case::setsid(SETSID)]
#[case::double_fork(DOUBLE_FORK)]
#[case::cleared_environment(CLEARED)]
#[case::stopped_by_itself(SLEEPING)]
#[case::stubborn(STUBBORN)]
#[case::stubborn_setsid(STUBBORN_SETSID)]
#[tokio::test]
async fn a_forced_stop_ends_it_within_50_ms(#[case] script: &str) {
    let bench = Bench::patient().await;
    within(Duration::from_millis(50), async || {
        let (end, took) = bench.again().stop(script, StopLevel::Forced).await;
        assert_eq!((end.how, end.why, end.signal), (ProcessHow::Kill, ProcessStop::Stopped, Some(9)), "{end:?}");
        took
    })
    .await;
}

#[tokio::test]
async fn force_during_the_grace_ends_it_at_once() {
    let bench = Bench::patient().await;
    within(Duration::from_millis(50), async || {
        let bench = bench.again();
        let mut running = bench.start("trap 'echo caught' TERM; echo ready; while :; do sleep 0.01; done");
        running.until("ready").await;
        bench.scope.cancel();
        running.until("caught").await;
        let asked = std::time::Instant::now();
        bench.scope.kill();
        let end = running.handle.await.unwrap().unwrap();
        bench.assert_gone();
        assert_eq!((end.how, end.why), (ProcessHow::Kill, ProcessStop::Stopped));
        asked.elapsed()
    })
    .await;
}

#[tokio::test]
async fn a_command_may_clean_up_on_sigterm() {
    let bench = Bench::patient().await;
    let script = "trap 'sleep 0.1; echo cleaned; exit 3' TERM; sleep 1000 & echo ready; wait";
    let (end, _) = bench.stop(script, StopLevel::Gentle).await;
    assert_eq!((end.code, end.how, end.why), (Some(3), ProcessHow::Term, ProcessStop::Stopped));
    // Some shells say besides that their job was terminated.
    assert!(end.output.text().contains("cleaned\n"), "{:?}", end.output);
}

/// The shell starts its second `sleep` after everything got SIGTERM, and waits for it.
#[tokio::test]
async fn a_child_that_comes_too_late_for_the_first_round_gets_the_second() {
    let bench = Bench::patient().await;
    let script = "trap 'echo caught' TERM; sleep 1000 & echo ready; wait; sleep 1000; echo end; exit 4";
    let (end, _) = bench.stop(script, StopLevel::Gentle).await;
    assert_eq!((end.code, end.how, end.why), (Some(4), ProcessHow::Term, ProcessStop::Stopped));
    assert!(end.output.text().contains("end\n"), "{:?}", end.output);
}

#[tokio::test]
async fn the_count_of_swept_processes_is_true() {
    let bench = Bench::patient().await;
    let script = "sleep 1000 & sleep 1000 & setsid sleep 1000 & sleep 0.1; echo ready; wait";
    let (gentle, _) = bench.stop(script, StopLevel::Gentle).await;
    assert_eq!(gentle.swept, 3, "{gentle:?}");
    let (forced, _) = bench.again().stop(script, StopLevel::Forced).await;
    assert_eq!(forced.swept, 3, "{forced:?}");
}

fn storm(link: &str) -> String {
    format!("for i in 1 2 3 4 5; do ({link}) & done; echo ready; wait; sleep 1000")
}

#[rstest]
#[case::in_the_group("while :; do (:) & done")]
#[case::in_new_sessions("while :; do setsid sh -c '(sleep 0.01 &)' & wait; done")]
#[tokio::test]
async fn a_fork_storm_is_over_within_the_hard_limit(
    #[case] link: &str,
    #[values(StopLevel::Gentle, StopLevel::Forced)] level: StopLevel,
) {
    let bench = Bench::new().await;
    let (end, took) = bench.stop(&storm(link), level).await;
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!((end.why, end.leftovers), (ProcessStop::Stopped, Vec::new()));
}

/// A chain of sessions: each link ignores signals, starts the next in a new session and dies.
#[tokio::test]
async fn a_hopping_process_is_caught_within_the_hard_limit() {
    let bench = Bench::new().await;
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("hop");
    std::fs::write(&link, format!("trap '' TERM INT HUP\nsetsid sh {} &\n", link.display())).unwrap();
    let hop = format!("sh {0} & sh {0} & sh {0} & echo ready; sleep 1000", link.display());
    for level in [StopLevel::Gentle, StopLevel::Forced] {
        let (end, took) = bench.again().stop(&hop, level).await;
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!((end.why, end.leftovers), (ProcessStop::Stopped, Vec::new()));
    }
}

#[tokio::test]
async fn twenty_commands_of_a_run_stop_together() {
    let bench = Bench::new().await;
    within(Duration::from_millis(250), async || {
        let bench = bench.again();
        let mut all: Vec<_> = (0..20).map(|_| bench.start(PLAIN)).collect();
        for running in &mut all {
            running.until("ready").await;
        }
        let asked = std::time::Instant::now();
        bench.scope.cancel();
        let told = asked.elapsed();
        for running in all {
            assert_eq!(running.handle.await.unwrap().unwrap().why, ProcessStop::Stopped);
        }
        bench.assert_gone();
        // Telling them waits for nothing: it may take a twelfth of the whole.
        asked.elapsed().max(told * 12)
    })
    .await;
}

#[tokio::test]
async fn a_dropped_call_is_held_until_its_last_process_is_dead() {
    let bench = Bench::new().await;
    let mut running =
        bench.start("trap '' TERM; setsid sleep 1000 & echo pid=$!; echo ready; while :; do sleep 1000; done");
    let pids = running.pids().await;
    running.handle.abort();
    assert!(running.handle.await.unwrap_err().is_cancelled());
    assert_eq!(bench.scope.ledger().open_count(), 1, "released although it ignores SIGTERM");
    let _released = bench.scope.close().await;
    bench.assert_gone();
    assert_eq!(bench.scope.ledger().rows().last().unwrap().how, "kill");
    pids.into_iter().for_each(wait_dead);
}
