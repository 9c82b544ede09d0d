//! Start to ready on an existing database, and the size of an idle daemon.

use quell_testkit::daemon::Home;
use quell_testkit::model::ScriptedModel;

use crate::many::rss_kib;
use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};

pub(crate) async fn measure(report: &mut Report) {
    let model = ScriptedModel::start().await;
    let home = Home::new(&config(&model.base_url()));
    // The first start makes the database and is not counted.
    home.start(quell()).await.stop().await;
    let (mut ready, mut idle) = (Times::default(), f64::MAX);
    for _ in 0..20 {
        let daemon = home.start(quell()).await;
        ready.add(daemon.ready_after());
        idle = idle.min(rss_kib(daemon.pid()));
        daemon.stop().await;
    }
    let note = format!("max {:.1}, n {}", ready.max(), ready.len());
    report.target("start to ready, median", ready.median(), Target(50.0, "ms"), note);
    report.target("idle daemon, resident", idle / 1024.0, Target(20.0, "MiB"), String::new());
}
