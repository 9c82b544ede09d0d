//! Stop a run at every cancellation point and in every way, then check the same properties ([`checks`]). Cases and stop
//! modes are data: a new waiting point is one more row in [`cases`].

mod case_run;
mod cases;
mod checks;
mod clients;
mod crash;
mod stop_modes;

use std::collections::BTreeSet;
use std::future::ready;
use std::pin::{Pin, pin};
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use futures_util::{FutureExt, poll};
use quell_engine::Engine;
use quell_engine::engine::{Caller, RunFollow, RunWork, StopResult};
use quell_kernel::approval::ApprovalPolicy;
use quell_kernel::attachment::{MessageFile, MessageFileKind};
use quell_kernel::registry::StopRequest;
use quell_mcp::McpConfig;
use quell_protocol::api::{ComputeStatus, OnBusy};
use quell_protocol::approval::Decision;
use quell_protocol::{Receipt, Requester, RunEvent};
use quell_test_support::channel_origin;
use quell_testkit::audio::FakeAudioServer;
use quell_testkit::leaks::{LeakAllowance, ResourceBaseline, TaskBaseline};
use quell_testkit::mcp::{self, FakeMcpServer, McpFault};
use quell_testkit::model::BlackHole;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::prelude::*;
use crate::test_engine::{background_call, provider_config, shell_call, wait_summary_request};
use case_run::{CaseRun, CaseStep, CaseStepFuture, ExpectedOutcome, StopMoment, SweepCase, SweepEngine, do_nothing};
use stop_modes::{SweepStopAnswers, SweepStopMode, poll_tickets_once, stop_run};

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[ignore = "full: PostgreSQL"]
#[case::postgres(StoreKind::Postgres)]
#[ignore = "full: PostgreSQL"]
#[case::cluster_node(StoreKind::ClusterNode)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_at_any_moment_ends_the_run_for_good(
    #[case] kind: StoreKind,
    #[values(SweepStopMode::Gentle, SweepStopMode::TwoCallers)] mode: SweepStopMode,
) {
    stop_at_every_moment(kind, mode).await;
}

#[rstest]
#[case::sqlite(StoreKind::Sqlite)]
#[case::postgres(StoreKind::Postgres)]
#[case::cluster_node(StoreKind::ClusterNode)]
#[ignore = "full: more modes of a stop"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_in_other_modes_at_any_moment_ends_the_run_for_good(
    #[case] kind: StoreKind,
    #[values(SweepStopMode::Forced, SweepStopMode::CallerGone)] mode: SweepStopMode,
) {
    stop_at_every_moment(kind, mode).await;
}

async fn stop_at_every_moment(kind: StoreKind, mode: SweepStopMode) {
    let Some(database) = kind.start_database() else { return };
    let sweep = SweepEngine::start(database).await;
    for case in cases::all_cases() {
        run_case(&sweep, &case, mode).await;
    }
    let point_of = |case: &SweepCase| if let StopMoment::AtPoint(point, _) = case.moment { Some(point) } else { None };
    let stopped_at: BTreeSet<Point> = cases::all_cases().iter().filter_map(point_of).collect();
    let missed: Vec<&Point> = cases::swept_points().filter(|point| !stopped_at.contains(point)).collect();
    assert!(missed.is_empty(), "no case stops at {missed:?}");
    sweep.test_engine.close().await;
}

async fn run_case(sweep: &SweepEngine, case: &SweepCase, mode: SweepStopMode) {
    let case_run = CaseRun::new(sweep, case, &format!("{mode:?}"));
    let (baseline, tasks) = (ResourceBaseline::capture(std::process::id()), TaskBaseline::capture());
    let mut watcher = NoticeRecorder::subscribe(&sweep.test_engine.engine);
    (case.prepare)(&case_run).await;
    let answers = case_run.stop_at_moment(case, mode).await;
    if mode == SweepStopMode::CallerGone {
        poll_tickets_once(&answers).await;
    }
    (case.check_after)(&case_run).await;
    watcher.wait_ended(&case_run.run).await;
    checks::check_stop(&case_run, case, &answers, &mut watcher).await;
    drop(watcher);
    let _back = baseline.assert_restored(checks::BLOCKING_POOL_ALLOWANCE, WAIT_TIMEOUT).await;
    let _back = tasks.assert_restored(WAIT_TIMEOUT).await;
}
