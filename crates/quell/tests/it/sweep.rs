//! Stop a run at every cancellation point and in every way, then check the same properties ([`checks`]). Cases and stop
//! modes are data: a new waiting point is one more row in [`cases`].

mod case_run;
mod cases;
pub(crate) mod channel_origin;
mod checks;
mod crash;
mod earlier_turns;
mod hook_case;
mod mcp_cases;
mod steer_case;
mod stop_modes;

use std::collections::BTreeSet;

use quell_scope::Point;
use rstest::rstest;

use case_run::SweepEngine;
use cases::{StopMoment, SweepCase};
use checks::StopFigures;
use stop_modes::SweepStopMode;

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
        let figures = case_run::run_case(&sweep, &case, mode).await;
        table.push((case.name.clone(), figures));
    }
    print_table(mode, &table);
    let stopped_at: BTreeSet<Point> = cases::all_cases().iter().filter_map(SweepCase::point).collect();
    let missed: Vec<&Point> = cases::swept_points().filter(|point| !stopped_at.contains(point)).collect();
    assert!(missed.is_empty(), "no case stops at {missed:?}");
    sweep.close().await;
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
