//! Ten thousand live sessions that nobody uses: what each costs in memory, and what a sweep costs that lets all of them go.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use quell_testkit::daemon::{Api, Daemon};
use quell_testkit::model::{Behaviour, ScriptedModel};
use serde_json::json;

use crate::many::rss_kib;
use crate::report::{Report, Target};
use crate::{config, quell};

const SESSIONS: usize = 10_000;
/// Requests at the same time.
const AT_ONCE: usize = 64;
/// Longer than making them takes: none goes before all are there.
const IDLE_S: u64 = 45;

pub(crate) async fn measure(report: &mut Report) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, _| Behaviour::text("That is done."));
    let text = format!("{}\n[sessions]\nidle_s = {IDLE_S}\nsweep_s = 1\n", config(&model.base_url()));
    let daemon = Daemon::start(quell(), &text).await;
    let http = daemon.http();
    // What the first ones bring along is not theirs alone: connections, buffers, pages of the database.
    open(&http, "warm", 200).await;
    let before = rss_kib(daemon.pid());
    let begun = Instant::now();
    open(&http, "user", SESSIONS).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(IDLE_S), "the first ones went before the last came: {took:?}");
    assert!(metric(&http, "quell_sessions_live ").await >= f64::from(u32::try_from(SESSIONS).unwrap()));
    let each = (rss_kib(daemon.pid()) - before) / f64::from(u32::try_from(SESSIONS).unwrap());
    let note = format!("{SESSIONS} made over HTTP in {:.1} s, each with settings of its own", took.as_secs_f64());
    report.target("memory of an idle live session", each, Target(8.0, "KiB"), note);
    while metric(&http, "quell_sessions_live ").await > 0.0 {
        // Sweeps come every second; nobody is told of their end.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let slowest = 1000.0 * metric(&http, "quell_session_sweep_seconds{quantile=\"1\"} ").await;
    report.target(
        &format!("sweep of {SESSIONS} sessions, slowest"),
        slowest,
        Target(100.0, "ms"),
        "those that expire leave the table in it; their clean-up follows".to_owned(),
    );
    daemon.stop().await;
}

async fn open(http: &Api, user: &str, count: usize) {
    let requests = (0..count).map(|chat| {
        let body = json!({
            "userId": user, "chatId": chat.to_string(), "provider": "scripted", "instruction": "Be brief.",
        });
        async move { http.post("/api/sessions", &body).await.expect_status(201) }
    });
    let made = stream::iter(requests).buffer_unordered(AT_ONCE).count().await;
    assert_eq!(made, count);
}

/// A number of `/metrics`; 0 when it is not there.
async fn metric(http: &Api, name: &str) -> f64 {
    let text = http.get("/metrics").await.body;
    let text = text.as_str().unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
}
