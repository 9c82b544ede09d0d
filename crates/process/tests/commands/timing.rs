//! Measured times of ends, each beside the cost of one process at that moment. They fail only where the end itself is
//! wrong.

use std::process::Command;
use std::time::{Duration, Instant};

use quell_process::{Isolate, OutputSink};
use quell_protocol::ToolOutputStream;
use quell_scope::StopLevel;
use rstest::rstest;

use crate::fixture::{CommandFixture, report_time};
use crate::isolation::{NAMESPACE_STORM, isolating_fixture};
use crate::killed_wardens::force_beside_a_stopped_warden;
use crate::lifetime_limit::{end_now, fixture_with, pass_limit, set_passed_limit};
use crate::stops::{
    CLEARED, DOUBLE_FORK, PIPELINE, PLAIN, SETSID, SLEEPING, STUBBORN, STUBBORN_SETSID, force_during_the_grace,
    fork_storm_script, stop_twenty,
};

/// The target is 250 ms for a gentle stop and 50 ms for a forced one.
#[rstest]
#[case::plain(PLAIN)]
#[case::pipeline(PIPELINE)]
#[case::setsid(SETSID)]
#[case::double_fork(DOUBLE_FORK)]
#[case::cleared_environment(CLEARED)]
#[case::stopped_by_itself(SLEEPING)]
#[tokio::test]
async fn an_obedient_command_stops(
    #[case] script: &str,
    #[values(StopLevel::Gentle, StopLevel::Forced)] level: StopLevel,
) {
    let fixture = CommandFixture::with_long_grace().await;
    let (_, took) = fixture.run_and_stop(script, level).await;
    report_time(&format!("{level:?} stop of {script:?}"), took);
}

/// The target is 700 ms for a gentle stop, of which 500 ms are the grace, and 50 ms for a forced one.
#[rstest]
#[case::group(STUBBORN)]
#[case::setsid(STUBBORN_SETSID)]
#[tokio::test]
async fn a_stubborn_command_stops(
    #[case] script: &str,
    #[values(StopLevel::Gentle, StopLevel::Forced)] level: StopLevel,
) {
    let (_, took) = CommandFixture::new().await.run_and_stop(script, level).await;
    report_time(&format!("{level:?} stop of {script:?}"), took);
}

/// The target is the hard limit of 5 s.
#[rstest]
#[case::in_the_group("while :; do (:) & done")]
#[case::in_new_sessions("while :; do setsid sh -c '(sleep 0.01 &)' & wait; done")]
#[tokio::test]
async fn a_fork_storm_stops(#[case] link: &str, #[values(StopLevel::Gentle, StopLevel::Forced)] level: StopLevel) {
    let (_, took) = CommandFixture::new().await.run_and_stop(&fork_storm_script(link), level).await;
    report_time(&format!("{level:?} stop of a fork storm of {link:?}"), took);
}

/// The target is 500 ms.
#[tokio::test]
async fn a_storm_in_a_namespace_stops() {
    let Some(fixture) = isolating_fixture().await else { return };
    let (_, took) = fixture.run_and_stop(NAMESPACE_STORM, StopLevel::Forced).await;
    report_time("forced stop of a storm in a namespace", took);
}

/// The target is 50 ms.
#[tokio::test]
async fn force_ends_the_grace() {
    let took = force_during_the_grace(&CommandFixture::with_long_grace().await).await;
    report_time("force during the grace", took);
}

/// The target is 250 ms, and a twelfth of it for the cancel.
#[tokio::test]
async fn twenty_commands_stop() {
    let (cancelled_after, took) = stop_twenty(&CommandFixture::with_long_grace().await).await;
    report_time(&format!("stop of twenty commands, cancelled after {cancelled_after:.1?}"), took);
}

/// The target is 150 ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_gets_past_a_stopped_warden() {
    report_time("force beside a stopped warden", force_beside_a_stopped_warden(&CommandFixture::new().await).await);
}

/// The targets are 100 ms after a limit that passes, 1.2 s for a first limit and 50 ms for an end at once.
#[rstest]
#[tokio::test]
async fn a_lifetime_limit_ends_everything(#[values(Isolate::None, Isolate::Pid)] isolate: Isolate) {
    let Some(fixture) = fixture_with(isolate).await else { return };
    report_time("after a first limit", set_passed_limit(&fixture.with_new_wardens()).await);
    report_time("after a limit that passes", pass_limit(&fixture.with_new_wardens()).await);
    report_time("after an end at once", end_now(&fixture.with_new_wardens()).await);
}

/// The target for what a warden adds is 3 ms in a release build.
#[tokio::test]
async fn a_warden_adds_to_a_command() {
    let fixture = CommandFixture::new().await;
    let (mut bare, mut warden) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let begun = Instant::now();
        Command::new("sh").args(["-c", ":"]).output().unwrap();
        bare.push(begun.elapsed());
        let (spec, begun) = (fixture.spec(":"), Instant::now());
        fixture.wardens.run(&spec, &fixture.scope, &mut DiscardedOutput).await.unwrap();
        warden.push(begun.elapsed());
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    report_time(&format!("median of 200 through a warden; bare {:.1?}", median(&mut bare)), median(&mut warden));
}

struct DiscardedOutput;

impl OutputSink for DiscardedOutput {
    fn output(&mut self, _: ToolOutputStream, _: &str) {}
}
