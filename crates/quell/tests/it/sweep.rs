//! Stop a run at every cancellation point and in every way, then check the same properties ([`checks`]). Cases and stop
//! modes are data: a new waiting point is one more row in [`cases`].

mod case_run;
mod cases;
pub(crate) mod channel_origin;
mod checks;
mod crash;
mod earlier_turns;
mod stop_modes;

use std::collections::BTreeSet;

use quell_scope::Point;
use quell_testkit::leaks::{ResourceBaseline, TaskBaseline};
use rstest::rstest;

use crate::test_engine::{NoticeRecorder, WAIT_TIMEOUT};
use case_run::{CaseRun, StopMoment, SweepCase, SweepEngine};
use checks::StopFigures;
use stop_modes::{SweepStopMode, poll_tickets_once};

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_at_any_moment_ends_the_run_for_good(
    #[values(
        SweepStopMode::Gentle,
        SweepStopMode::Forced,
        SweepStopMode::TwoCallers,
        SweepStopMode::CallerGone
    )]
    mode: SweepStopMode,
) {
    let sweep = SweepEngine::start().await;
    let mut table = Vec::new();
    for case in cases::all_cases() {
        let figures = run_case(&sweep, &case, mode).await;
        table.push((case.name.clone(), figures));
    }
    print_table(mode, &table);
    let stopped_at: BTreeSet<Point> = cases::all_cases().iter().filter_map(SweepCase::point).collect();
    let missed: Vec<&Point> = cases::swept_points().filter(|point| !stopped_at.contains(point)).collect();
    assert!(missed.is_empty(), "no case stops at {missed:?}");
    sweep.close().await;
}

async fn run_case(sweep: &SweepEngine, case: &SweepCase, mode: SweepStopMode) -> StopFigures {
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
    let figures = checks::check_stop(&case_run, case, &answers, &mut watcher).await;
    drop(watcher);
    let _back = baseline.assert_restored_with(checks::BLOCKING_POOL_ALLOWANCE, WAIT_TIMEOUT).await;
    let _back = tasks.assert_restored(WAIT_TIMEOUT).await;
    figures
}

impl SweepCase {
    fn point(&self) -> Option<Point> {
        match self.moment {
            StopMoment::AtPoint(point, _) => Some(point),
            StopMoment::BeforeMessage | StopMoment::OnCondition(_) => None,
        }
    }
}

#[expect(clippy::print_stdout, reason = "prints the result table")]
fn print_table(mode: SweepStopMode, table: &[(String, StopFigures)]) {
    println!("{:<44} {:<10} {:<9} {:>10} {:>11}", format!("{mode:?}"), "verdict", "rung", "settled ms", "released ms");
    for (name, figures) in table {
        let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
        let rung = format!("{:?}", figures.rung);
        println!(
            "{name:<44} {:<10} {rung:<9} {:>10} {:>11}",
            figures.verdict,
            ms(figures.settled_ms),
            ms(figures.released_ms)
        );
    }
    println!("{} cases, mode {mode:?}: all proven\n", table.len());
}
