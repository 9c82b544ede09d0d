//! Stop latency of a run with 99 sub-runs, all streaming; time of a run that waits for two sub-agents at once.

use std::time::{Duration, Instant};

use quell_testkit::daemon::TestDaemon;
use quell_testkit::gateway_client::{GatewayTestClient, is_run_ended};
use quell_testkit::model::{ScriptedModel, ScriptedResponse, ScriptedStream};
use serde_json::{Value, json};

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

/// Time of each sub-agent whose calls run at the same time.
const SUB_AGENT_TIME: Duration = Duration::from_millis(1500);
const PARALLEL_ROUNDS: usize = 5;

/// Measures runs that call two sub-agents in one message and wait for both.
pub(crate) async fn measure_parallel_calls(report: &BenchReport) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, request| match request.markers.last() {
        Some(marker) if marker.starts_with("pair") && request.messages().len() <= 2 => call_two_sub_agents(marker),
        Some(marker) if marker.starts_with("leaf") => {
            ScriptedStream::new().wait_for_gate(marker.as_str()).text("Seen.").into()
        }
        _ => ScriptedResponse::text("Both are done."),
    });
    let daemon = TestDaemon::start(quell(), &config(&model.base_url())).await;
    let mut times = Times::default();
    for round in 0..PARALLEL_ROUNDS {
        let mut watcher = GatewayTestClient::connect(&daemon).await;
        let top = format!("pair-{round}");
        let begun = Instant::now();
        watcher.start_run(&top).await;
        let is_end = |frame: &Value| is_run_ended(frame) && frame["payload"]["runId"] == top.as_str();
        let leaf = async |number: u32| {
            let marker = format!("leaf-{number}-of-{top}");
            model.wait_for_marked_request(&marker).await;
            tokio::time::sleep(SUB_AGENT_TIME).await;
            model.open_gate(&marker);
        };
        let ((), (), (ended, _)) = tokio::join!(leaf(1), leaf(2), watcher.wait_for_frame(is_end));
        times.add(ended.saturating_duration_since(begun));
    }
    report.add_times("two waiting sub-agents of 1.5 s each", (&times, Quantile::Median), AtMost(1600.0), "");
    daemon.stop().await;
}

fn call_two_sub_agents(marker: &str) -> ScriptedResponse {
    let call = |stream: ScriptedStream, leaf: usize| {
        let arguments = json!({"agent": "main", "prompt": format!("marker:leaf-{leaf}-of-{marker}")});
        stream.tool_call(format!("c{leaf}"), "spawn_agent", &arguments)
    };
    (1..=2).fold(ScriptedStream::new(), call).into()
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
