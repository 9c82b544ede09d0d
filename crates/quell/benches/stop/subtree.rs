//! Stop latency of a run with 99 sub-runs, all streaming.

use std::time::{Duration, Instant};

use quell_testkit::daemon::TestDaemon;
use quell_testkit::gateway_client::{GatewayTestClient, is_run_ended};
use quell_testkit::model::{ScriptedModel, ScriptedResponse, ScriptedStream};
use serde_json::json;

use crate::concurrent_stops::{second_request_of, slow_stream, streaming_requests, time_until_last_left};
use crate::report::{BenchReport, FigureTarget::AtMost, Quantile};
use crate::times::Times;
use crate::{config, quell};

/// The top run and its sub-runs.
const RUNS: usize = 100;
const ROUNDS: usize = 20;

pub(crate) async fn measure(report: &BenchReport) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, request| match request.markers.last() {
        // The first request of the top run: it has no calls yet.
        Some(marker) if marker.starts_with("tree") && request.messages().len() <= 2 => spawn_sub_runs(marker),
        _ => slow_stream(),
    });
    let config = format!("{}sub_runs_per_run = {RUNS}\n", config(&model.base_url()));
    let daemon = TestDaemon::start(quell(), &config).await;
    let (mut socket, mut ended) = <(Times, Times)>::default();
    for round in 0..ROUNDS {
        let (last_socket, last_ended) = time_one_stop(&daemon, &model, round).await;
        socket.add(last_socket);
        ended.add(last_ended);
    }
    report.add_times("a run with 99 sub-runs: last model socket", (&socket, Quantile::Median), AtMost(50.0), "");
    report.add_times("a run with 99 sub-runs: last `run.ended`", (&ended, Quantile::Median), AtMost(50.0), "");
    daemon.stop().await;
}

fn spawn_sub_runs(marker: &str) -> ScriptedResponse {
    let call = |stream: ScriptedStream, leaf: usize| {
        let arguments = json!({"agent": "main", "prompt": format!("marker:leaf-of-{marker}-{leaf}"), "wait": false});
        stream.tool_call(format!("c{leaf}"), "spawn_agent", &arguments)
    };
    (0..RUNS - 1).fold(ScriptedStream::new(), call).into()
}

async fn time_one_stop(daemon: &TestDaemon, model: &ScriptedModel, round: usize) -> (Duration, Duration) {
    let mut watcher = GatewayTestClient::connect(daemon).await;
    let top = format!("tree-{round}");
    watcher.start_run(&top).await;
    let mut requests = streaming_requests(model, &format!("leaf-of-{top}-"), RUNS - 1).await;
    requests.push(second_request_of(model, &top).await);
    let begun = Instant::now();
    watcher.send_request("runs.stop", json!({"runId": top})).await;
    let mut last_ended = begun;
    for _ in 0..RUNS {
        (last_ended, _) = watcher.wait_for_frame(is_run_ended).await;
    }
    let socket = time_until_last_left(&requests, begun).await;
    (socket, last_ended.saturating_duration_since(begun))
}
