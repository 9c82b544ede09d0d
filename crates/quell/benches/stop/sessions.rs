//! Memory of 10,000 idle sessions, and the time to sweep them.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use quell_testkit::daemon::{TestApiClient, TestDaemon};
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use serde_json::json;

use crate::report::{BenchReport, FigureTarget::AtMost};
use crate::{config, quell, rss_kib};

const SESSIONS: usize = 10_000;
/// Requests at the same time.
const MAX_CONCURRENT_REQUESTS: usize = 64;
/// Longer than creating them takes: none expires before all exist.
const IDLE_S: u64 = 45;

pub(crate) async fn measure(report: &BenchReport) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| ScriptedResponse::text("That is done."));
    let text = format!("{}\n[sessions]\nidle_s = {IDLE_S}\nsweep_s = 1\n", config(&model.base_url()));
    let daemon = TestDaemon::start(quell(), &text).await;
    let http = daemon.api();
    // The first sessions also open connections, buffers and database pages that all sessions share.
    create_sessions(&http, "warm", 200).await;
    let before = rss_kib(daemon.pid());
    let begun = Instant::now();
    create_sessions(&http, "user", SESSIONS).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(IDLE_S), "the first ones went before the last came: {took:?}");
    assert!(read_metric(&http, "quell_sessions_live ").await >= f64::from(u32::try_from(SESSIONS).unwrap()));
    let each = (rss_kib(daemon.pid()) - before) / f64::from(u32::try_from(SESSIONS).unwrap());
    let note = format!("{SESSIONS} made over HTTP in {:.1} s, each with settings of its own", took.as_secs_f64());
    report.add("memory of an idle live session", (each, "KiB"), AtMost(8.0), note);
    while read_metric(&http, "quell_sessions_live ").await > 0.0 {
        // The sweeper runs every second; nothing reports the end of a session.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let slowest = 1000.0 * read_metric(&http, "quell_session_sweep_seconds{quantile=\"1\"} ").await;
    let note = "the sweep removes expired sessions from the table; their clean-up follows";
    report.add(format!("sweep of {SESSIONS} sessions, slowest"), (slowest, "ms"), AtMost(100.0), note);
    daemon.stop().await;
}

async fn create_sessions(http: &TestApiClient, user: &str, count: usize) {
    let requests = (0..count).map(|chat| {
        let body = json!({
            "userId": user, "chatId": chat.to_string(), "provider": "scripted", "instruction": "Be brief.",
        });
        async move { http.post("/api/sessions", &body).await.expect_status(201) }
    });
    let made = stream::iter(requests).buffer_unordered(MAX_CONCURRENT_REQUESTS).count().await;
    assert_eq!(made, count);
}

/// Reads a number of `/metrics`; 0 when it does not exist.
async fn read_metric(http: &TestApiClient, name: &str) -> f64 {
    let text = http.get("/metrics").await.body;
    let text = text.as_str().unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
}
