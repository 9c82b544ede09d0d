//! Tests of `isolate = "pid"`. Where the system permits no namespaces, they check the error and end.

use quell_process::{ProcessEndMethod, ProcessEndReason, SpawnError};
use quell_scope::StopLevel;
use rustix::process::{Signal, kill_process};

use crate::fixture::{CommandFixture, wait_for_death};

pub(crate) const NAMESPACE_STORM: &str =
    "for i in 1 2 3 4 5; do (while :; do setsid sh -c '(sleep 0.01 &)' & wait; done) & done; echo ready; wait";

/// Returns `None` where namespaces are not permitted.
pub(crate) async fn isolating_fixture() -> Option<CommandFixture> {
    let fixture = CommandFixture::isolating().await;
    match fixture.run_spec(&fixture.spec("exit 7")).await {
        Ok(end) => {
            assert_eq!(
                (end.code, end.how, end.reason),
                (Some(7), ProcessEndMethod::Exited, ProcessEndReason::ByItself)
            );
            Some(fixture)
        }
        Err(SpawnError::Isolation(why)) => {
            eprintln!("skipped: namespaces are not permitted: {why}");
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_command_in_a_namespace_tells_its_end_like_any_other() {
    let Some(fixture) = isolating_fixture().await else { return };
    let end = fixture.run_script("echo out; kill -SEGV $$").await;
    assert_eq!((end.code, end.signal, end.output.text().as_str()), (None, Some(11), "out\n"));
    let end = fixture.run_script("sleep 1000 & setsid sleep 1000 & exit 3").await;
    assert_eq!((end.code, end.left_behind, end.how), (Some(3), 2, ProcessEndMethod::Term));
    let mut spec = fixture.spec("");
    spec.argv = vec!["no-such-program-here".into()];
    let error = fixture.run_spec(&spec).await.unwrap_err();
    assert!(matches!(error, SpawnError::Program { .. }), "{error:?}");
}

#[tokio::test]
async fn a_gentle_stop_reaches_everything_in_the_namespace() {
    let Some(fixture) = isolating_fixture().await else { return };
    let script =
        "trap 'echo cleaned; exit 3' TERM; setsid sleep 1000 & (setsid sleep 1000 &); sleep 0.1; echo ready; wait";
    let (end, _) = fixture.run_and_stop(script, StopLevel::Gentle).await;
    assert_eq!(
        (end.code, end.how, end.reason, end.swept),
        (Some(3), ProcessEndMethod::Term, ProcessEndReason::Stopped, 2),
        "{end:?}"
    );
    assert_eq!(end.output.text(), "ready\ncleaned\n");
}

#[tokio::test]
async fn a_storm_in_a_namespace_dies_with_its_init() {
    let Some(fixture) = isolating_fixture().await else { return };
    let (end, _) = fixture.run_and_stop(NAMESPACE_STORM, StopLevel::Forced).await;
    assert_eq!((end.how, end.reason, end.signal), (ProcessEndMethod::Kill, ProcessEndReason::Stopped, Some(9)));
}

#[tokio::test]
async fn a_killed_warden_of_a_namespace_leaves_nothing() {
    let Some(fixture) = isolating_fixture().await else { return };
    let mut running =
        fixture.start_script("setsid sleep 1000 & env -i setsid sleep 1000 & sleep 0.1; echo ready; wait");
    running.wait_for_output("ready").await;
    let warden = fixture.warden_pid().await;
    kill_process(warden, Signal::KILL).unwrap();
    let end = running.handle.await.unwrap().unwrap();
    wait_for_death(warden);
    assert_eq!((end.reason, end.how), (ProcessEndReason::WardenLost, ProcessEndMethod::Kill));
    fixture.assert_gone();
}
