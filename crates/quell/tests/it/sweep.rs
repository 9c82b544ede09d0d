//! The sweep: a run is stopped at every place where it can stand, in every way in which one can stop it; after each stop the
//! same is demanded ([`proof`]). Cases and modes are data, so a new waiting point is one more row in [`cases`].

mod cases;
pub(crate) mod chat;
mod crash;
mod hooked;
mod proof;
mod scene;
mod servers;
mod steered;
mod strike;
mod summary;

use std::collections::BTreeSet;

use quell_engine::scope::Point;
use rstest::rstest;

use cases::{Case, Moment};
use proof::Proven;
use scene::Site;
use strike::Mode;

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_at_any_moment_ends_the_run_for_good(
    #[values(Mode::Gentle, Mode::Forced, Mode::TwoDoors, Mode::CallerGone)] mode: Mode,
) {
    let site = Site::open().await;
    let mut table = Vec::new();
    for case in cases::all() {
        let proven = scene::play(&site, &case, mode).await;
        table.push((case.name.clone(), proven));
    }
    show(mode, &table);
    let stood_at: BTreeSet<Point> = cases::all().iter().filter_map(Case::point).collect();
    let missed: Vec<&Point> = cases::here().filter(|point| !stood_at.contains(point)).collect();
    assert!(missed.is_empty(), "no case stops at {missed:?}");
    site.close().await;
}

impl Case {
    fn point(&self) -> Option<Point> {
        match self.moment {
            Moment::At(point, _) => Some(point),
            Moment::Before | Moment::When(_) => None,
        }
    }
}

#[expect(clippy::print_stdout, reason = "the table is what a person reads of the sweep")]
fn show(mode: Mode, table: &[(String, Proven)]) {
    println!("{:<44} {:<10} {:<9} {:>10} {:>11}", format!("{mode:?}"), "verdict", "rung", "settled ms", "released ms");
    for (name, proven) in table {
        let ms = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
        let rung = format!("{:?}", proven.rung);
        println!(
            "{name:<44} {:<10} {rung:<9} {:>10} {:>11}",
            proven.verdict,
            ms(proven.settled_ms),
            ms(proven.released_ms)
        );
    }
    println!("{} cases, mode {mode:?}: all proven\n", table.len());
}
