//! The rung `isolate = "pid"`. Where the system does not permit it, the tests see to it that this is said, and end.

use std::time::Duration;

use quell_engine::proc::{ProcessHow, ProcessStop, SpawnError};
use quell_engine::scope::StopLevel;
use rustix::process::{Signal, kill_process};

use crate::bench::{Bench, wait_dead, within};

/// None where namespaces are not permitted.
async fn bench() -> Option<Bench> {
    let bench = Bench::isolating().await;
    match bench.run_spec(&bench.spec("exit 7")).await {
        Ok(end) => {
            assert_eq!((end.code, end.how, end.why), (Some(7), ProcessHow::Exited, ProcessStop::Own));
            Some(bench)
        }
        Err(SpawnError::Isolation(_)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn a_command_in_a_namespace_tells_its_end_like_any_other() {
    let Some(bench) = bench().await else { return };
    let end = bench.run("echo out; kill -SEGV $$").await;
    assert_eq!((end.code, end.signal, end.output.text().as_str()), (None, Some(11), "out\n"));
    let end = bench.run("sleep 1000 & setsid sleep 1000 & exit 3").await;
    assert_eq!((end.code, end.left_behind, end.how), (Some(3), 2, ProcessHow::Term));
    let mut spec = bench.spec("");
    spec.argv = vec!["no-such-program-here".into()];
    let error = bench.run_spec(&spec).await.unwrap_err();
    assert!(matches!(error, SpawnError::Program { .. }), "{error:?}");
}

#[tokio::test]
async fn a_gentle_stop_reaches_everything_in_the_namespace() {
    let Some(bench) = bench().await else { return };
    let script =
        "trap 'echo cleaned; exit 3' TERM; setsid sleep 1000 & (setsid sleep 1000 &); sleep 0.1; echo ready; wait";
    let (end, took) = bench.stop(script, StopLevel::Gentle).await;
    assert_eq!(
        (end.code, end.how, end.why, end.swept),
        (Some(3), ProcessHow::Term, ProcessStop::Stopped, 2),
        "{end:?}"
    );
    assert_eq!(end.output.text(), "ready\ncleaned\n");
    assert!(took < Duration::from_millis(450), "{took:?}");
}

#[tokio::test]
async fn a_storm_in_a_namespace_dies_with_its_init() {
    let Some(bench) = bench().await else { return };
    let script =
        "for i in 1 2 3 4 5; do (while :; do setsid sh -c '(sleep 0.01 &)' & wait; done) & done; echo ready; wait";
    within(Duration::from_millis(500), async || {
        let (end, took) = bench.again().stop(script, StopLevel::Forced).await;
        assert_eq!((end.how, end.why, end.signal), (ProcessHow::Kill, ProcessStop::Stopped, Some(9)));
        took
    })
    .await;
}

#[tokio::test]
async fn a_killed_warden_of_a_namespace_leaves_nothing() {
    let Some(bench) = bench().await else { return };
    let mut running = bench.start("setsid sleep 1000 & env -i setsid sleep 1000 & sleep 0.1; echo ready; wait");
    running.until("ready").await;
    let warden = bench.warden().await;
    kill_process(warden, Signal::KILL).unwrap();
    let end = running.handle.await.unwrap().unwrap();
    wait_dead(warden);
    assert_eq!((end.why, end.how), (ProcessStop::WardenLost, ProcessHow::Kill));
    bench.assert_gone();
}
