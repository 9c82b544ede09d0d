//! Gentle and forced stops of commands that try to stay alive.

use std::time::{Duration, Instant};

use quell_process::{ProcessEndMethod, ProcessEndReason};
use quell_scope::{Release, StopLevel};
use rstest::rstest;

use crate::fixture::{CommandFixture, wait_for_death};

pub(crate) const PLAIN: &str = "echo ready; sleep 1000";
pub(crate) const PIPELINE: &str = "(echo ready >&2; sleep 1000) | sleep 1000 | sleep 1000";
pub(crate) const SETSID: &str =
    "setsid sleep 1000 & setsid sh -c 'setsid sleep 1000 & sleep 1000' & sleep 0.1; echo ready; sleep 1000";
pub(crate) const DOUBLE_FORK: &str = "(setsid sh -c '(sleep 1000 &) ; exit 0' &); sleep 0.1; echo ready; sleep 1000";
pub(crate) const CLEARED: &str = "env -i setsid sleep 1000 & sleep 0.1; echo ready; sleep 1000";
pub(crate) const SLEEPING: &str = "(kill -STOP $(sh -c 'echo $PPID'); sleep 1000) & sleep 0.1; echo ready; sleep 1000";
pub(crate) const STUBBORN: &str = "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done";
pub(crate) const STUBBORN_SETSID: &str =
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
    let fixture = CommandFixture::with_long_grace().await;
    let (end, _) = fixture.run_and_stop(script, StopLevel::Gentle).await;
    assert_eq!((end.how, end.reason), (ProcessEndMethod::Term, ProcessEndReason::Stopped), "{end:?}");
    assert_eq!(end.output.text(), "ready\n", "partial output is kept");
}

#[rstest]
#[case::group(STUBBORN)]
#[case::setsid(STUBBORN_SETSID)]
#[tokio::test]
async fn a_gentle_stop_ends_what_ignores_signals_after_the_grace(#[case] script: &str) {
    let fixture = CommandFixture::new().await;
    let (end, took) = fixture.run_and_stop(script, StopLevel::Gentle).await;
    assert_eq!((end.how, end.reason, end.signal), (ProcessEndMethod::Kill, ProcessEndReason::Stopped, Some(9)));
    assert!(took > Duration::from_millis(490), "the grace was cut short: {took:?}");
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
async fn a_forced_stop_ends_it_at_once(#[case] script: &str) {
    let fixture = CommandFixture::with_long_grace().await;
    let (end, _) = fixture.run_and_stop(script, StopLevel::Forced).await;
    assert_eq!(
        (end.how, end.reason, end.signal),
        (ProcessEndMethod::Kill, ProcessEndReason::Stopped, Some(9)),
        "{end:?}"
    );
}

#[tokio::test]
async fn force_during_the_grace_ends_it_at_once() {
    force_during_the_grace(&CommandFixture::with_long_grace().await).await;
}

/// Returns the time until everything has ended.
pub(crate) async fn force_during_the_grace(fixture: &CommandFixture) -> Duration {
    let mut running = fixture.start_script("trap 'echo caught' TERM; echo ready; while :; do sleep 0.01; done");
    running.wait_for_output("ready").await;
    fixture.scope.cancel();
    running.wait_for_output("caught").await;
    let asked = Instant::now();
    fixture.scope.kill();
    let end = running.handle.await.unwrap().unwrap();
    fixture.assert_gone();
    assert_eq!((end.how, end.reason), (ProcessEndMethod::Kill, ProcessEndReason::Stopped));
    asked.elapsed()
}

const CLEANING: &str = "trap 'sleep 0.1; echo end; exit 4' TERM; sleep 1000 & echo ready; wait";
/// The shell starts its second `sleep` after everything got SIGTERM, and waits for it: the second round must reach it.
/// The first `sleep` has replaced its forked shell before the stop, whose handler would take the signal.
const LATE_CHILD: &str = "trap 'echo caught' TERM; sleep 1000 & \
    until read name < /proc/$!/comm && [ $name = sleep ]; do :; done; \
    echo ready; wait; sleep 1000; echo end; exit 4";

#[rstest]
#[case::cleaning_up(CLEANING)]
#[case::late_child(LATE_CHILD)]
#[tokio::test]
async fn a_command_may_finish_on_sigterm(#[case] script: &str) {
    let fixture = CommandFixture::with_grace(Duration::from_secs(10)).await;
    let (end, _) = fixture.run_and_stop(script, StopLevel::Gentle).await;
    assert_eq!((end.code, end.how, end.reason), (Some(4), ProcessEndMethod::Term, ProcessEndReason::Stopped));
    // Some shells also print that their job was terminated.
    assert!(end.output.text().contains("end\n"), "{:?}", end.output);
}

#[tokio::test]
async fn the_count_of_swept_processes_is_true() {
    let fixture = CommandFixture::with_long_grace().await;
    let script = "sleep 1000 & sleep 1000 & setsid sleep 1000 & sleep 0.1; echo ready; wait";
    let (gentle, _) = fixture.run_and_stop(script, StopLevel::Gentle).await;
    assert_eq!(gentle.swept, 3, "{gentle:?}");
    let (forced, _) = fixture.with_new_scope().run_and_stop(script, StopLevel::Forced).await;
    assert_eq!(forced.swept, 3, "{forced:?}");
}

pub(crate) fn fork_storm_script(loop_script: &str) -> String {
    format!("for i in 1 2 3 4 5; do ({loop_script}) & done; echo ready; wait; sleep 1000")
}

#[rstest]
#[case::in_the_group("while :; do (:) & done")]
#[case::in_new_sessions("while :; do setsid sh -c '(sleep 0.01 &)' & wait; done")]
#[tokio::test]
async fn a_fork_storm_is_over_within_the_hard_limit(
    #[case] link: &str,
    #[values(StopLevel::Gentle, StopLevel::Forced)] level: StopLevel,
) {
    let fixture = CommandFixture::new().await;
    let (end, _) = fixture.run_and_stop(&fork_storm_script(link), level).await;
    assert_eq!((end.reason, end.leftovers), (ProcessEndReason::Stopped, Vec::new()));
}

/// A chain of sessions: each link ignores signals, starts the next in a new session and dies.
#[tokio::test]
async fn a_hopping_process_is_caught_within_the_hard_limit() {
    let fixture = CommandFixture::new().await;
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("hop");
    std::fs::write(&link, format!("trap '' TERM INT HUP\nsetsid sh {} &\n", link.display())).unwrap();
    let hop = format!("sh {0} & sh {0} & sh {0} & echo ready; sleep 1000", link.display());
    for level in [StopLevel::Gentle, StopLevel::Forced] {
        let (end, _) = fixture.with_new_scope().run_and_stop(&hop, level).await;
        assert_eq!((end.reason, end.leftovers), (ProcessEndReason::Stopped, Vec::new()));
    }
}

#[tokio::test]
async fn twenty_commands_of_a_run_stop_together() {
    stop_twenty(&CommandFixture::with_long_grace().await).await;
}

/// Returns the time that the cancel itself took, and the time until everything has ended.
pub(crate) async fn stop_twenty(fixture: &CommandFixture) -> (Duration, Duration) {
    let mut all: Vec<_> = (0..20).map(|_| fixture.start_script(PLAIN)).collect();
    for running in &mut all {
        running.wait_for_output("ready").await;
    }
    let asked = Instant::now();
    fixture.scope.cancel();
    let cancelled_after = asked.elapsed();
    for running in all {
        let end = running.handle.await.unwrap().unwrap();
        assert_eq!((end.how, end.reason), (ProcessEndMethod::Term, ProcessEndReason::Stopped));
    }
    fixture.assert_gone();
    (cancelled_after, asked.elapsed())
}

#[tokio::test]
async fn a_dropped_call_is_held_until_its_last_process_is_dead() {
    let fixture = CommandFixture::new().await;
    let mut running =
        fixture.start_script("trap '' TERM; setsid sleep 1000 & echo pid=$!; echo ready; while :; do sleep 1000; done");
    let pids = running.printed_pids().await;
    running.handle.abort();
    assert!(running.handle.await.unwrap_err().is_cancelled());
    assert_eq!(fixture.scope.ledger().open_count(), 1, "released although it ignores SIGTERM");
    let _released = fixture.scope.close().await;
    fixture.assert_gone();
    assert_eq!(fixture.scope.ledger().rows().last().unwrap().release(), Some(Release::Kill));
    pids.into_iter().for_each(wait_for_death);
}
