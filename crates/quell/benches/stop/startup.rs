//! Start to ready on an existing database, and idle memory.

use quell_testkit::daemon::DaemonHome;
use quell_testkit::model::ScriptedModel;

use crate::concurrent_stops::rss_kib;
use crate::report::{BenchReport, FigureTarget};
use crate::times::Times;
use crate::{config, quell};

pub(crate) async fn measure(report: &BenchReport) {
    let model = ScriptedModel::start().await;
    let home = DaemonHome::new(&config(&model.base_url()));
    // The first start creates the database and is not counted.
    home.start(quell()).await.stop().await;
    let (mut ready, mut idle) = (Times::default(), f64::MAX);
    for _ in 0..20 {
        let daemon = home.start(quell()).await;
        ready.add(daemon.startup_time());
        idle = idle.min(rss_kib(daemon.pid()));
        daemon.stop().await;
    }
    let note = format!("max {:.1}, n {}", ready.max(), ready.len());
    report.at_most_ms("start to ready, median", ready.median(), 50.0, note);
    report.at_most("idle daemon, resident", idle / 1024.0, FigureTarget(20.0, "MiB"), "");
}
