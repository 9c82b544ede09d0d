//! Start to ready on an existing database, and idle memory.

use quell_testkit::daemon::DaemonHome;
use quell_testkit::model::ScriptedModel;

use crate::report::{BenchReport, FigureTarget::AtMost, Quantile};
use crate::times::Times;
use crate::{config, quell, rss_kib};

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
    report.add_times("start to ready", (&ready, Quantile::Median), AtMost(50.0), "");
    report.add("idle daemon, resident", (idle / 1024.0, "MiB"), AtMost(20.0), "");
}
