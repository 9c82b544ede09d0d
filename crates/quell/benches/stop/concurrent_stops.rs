//! Stop 50 and 1,000 runs at once; memory per streaming run.

use std::time::{Duration, Instant};

use quell_testkit::daemon::TestDaemon;
use quell_testkit::gateway_client::{GatewayTestClient, is_chat_aborted, is_run_ended};
use quell_testkit::model::{ModelRequestHandle, ScriptedModel, ScriptedResponse, ScriptedStream, StreamStep};
use serde_json::json;

use crate::report::{BenchReport, FigureTarget, Quantile};
use crate::times::Times;
use crate::{baseline, config, quell, rss_kib};

pub(crate) async fn measure_few_and_many(report: &BenchReport) {
    measure(report, 50).await;
    measure(report, 1000).await;
}

async fn measure(report: &BenchReport, runs: usize) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| slow_stream());
    let rounds = if runs > 100 { 3 } else { 20 };
    let daemon = TestDaemon::start(quell(), &config(&model.base_url())).await;
    let (mut bare, mut socket, mut aborted, mut ended) = <(Times, Times, Times, Times)>::default();
    for round in 0..rounds {
        bare.add(time_bare_disconnects(&model, runs, round).await);
        let (last_socket, last_aborted, last_ended) = time_stop_all(&daemon, &model, runs, round).await;
        socket.add(last_socket);
        aborted.add(last_aborted);
        ended.add(last_ended);
    }
    let most = FigureTarget::AtMost(if runs == 50 { 10.0 } else { 2.0 * bare.median() + 20.0 });
    let most_ended = if runs == 50 { FigureTarget::Free } else { FigureTarget::AtMost(150.0) };
    let note = format!("baseline median {:.2}", bare.median());
    for (what, times, target) in
        [("model socket", &socket, most), ("`aborted`", &aborted, most), ("`run.ended`", &ended, most_ended)]
    {
        let what = format!("{runs} runs at once: last {what}");
        report.add_times(what, (times, Quantile::Median), target, &note);
    }
    daemon.stop().await;
}

/// One token at once and further ones rarely, so that the cost of the stream does not affect the stops.
pub(crate) fn slow_stream() -> ScriptedResponse {
    ScriptedStream::new().text("begun ").step(StreamStep::TokensForever { every: Duration::from_millis(500) }).into()
}

/// Drops the sockets of bare clients at once. Returns the time until the server saw the last one leave.
async fn time_bare_disconnects(model: &ScriptedModel, runs: usize, round: usize) -> Duration {
    let name = |run: usize| format!("floor-{round}-{run}");
    let mut streams = Vec::with_capacity(runs);
    for run in 0..runs {
        streams.push(baseline::open_stream(model.address(), &name(run)));
    }
    let requests = streaming_requests(model, &format!("floor-{round}-"), runs).await;
    let begun = Instant::now();
    drop(streams);
    time_until_last_left(&requests, begun).await
}

async fn time_stop_all(
    daemon: &TestDaemon,
    model: &ScriptedModel,
    runs: usize,
    round: usize,
) -> (Duration, Duration, Duration) {
    let mut watcher = GatewayTestClient::connect(daemon).await;
    for run in 0..runs {
        watcher.start_run(&format!("many-{round}-{run}")).await;
    }
    let requests = streaming_requests(model, &format!("many-{round}-"), runs).await;
    let begun = Instant::now();
    watcher.send_request("stop.all", json!({})).await;
    let (mut aborted, mut ended) = (0, 0);
    let (mut last_aborted, mut last_ended) = (begun, begun);
    while aborted < runs || ended < runs {
        let (at, frame) = watcher.wait_for_frame(|frame| is_chat_aborted(frame) || is_run_ended(frame)).await;
        if is_chat_aborted(&frame) {
            aborted += 1;
            last_aborted = at;
        } else {
            ended += 1;
            last_ended = at;
        }
    }
    let socket = time_until_last_left(&requests, begun).await;
    (socket, last_aborted.saturating_duration_since(begun), last_ended.saturating_duration_since(begun))
}

/// Waits until all requests whose marker begins with `prefix` are streaming.
pub(crate) async fn streaming_requests(model: &ScriptedModel, prefix: &str, runs: usize) -> Vec<ModelRequestHandle> {
    let mut found = Vec::with_capacity(runs);
    for run in 0..runs {
        let request = model.wait_for_marked_request(&format!("{prefix}{run}")).await;
        request.wait_streaming().await;
        found.push(request);
    }
    found
}

/// Waits until the second request of a run is streaming: the one after its calls.
pub(crate) async fn second_request_of(model: &ScriptedModel, run: &str) -> ModelRequestHandle {
    loop {
        let seen = model.recorded_requests();
        let mut of_run = seen.iter().filter(|request| request.markers.last().is_some_and(|marker| marker == run));
        if let Some(request) = of_run.nth(1) {
            request.wait_streaming().await;
            return request.clone();
        }
        drop(model.wait_for_requests(seen.len() + 1).await);
    }
}

pub(crate) async fn time_until_last_left(requests: &[ModelRequestHandle], begun: Instant) -> Duration {
    let mut last = begun;
    for request in requests {
        last = last.max(request.wait_client_left().await);
    }
    last.saturating_duration_since(begun)
}

/// Measures the daemon's resident memory per streaming run.
pub(crate) async fn measure_memory(report: &BenchReport, runs: usize) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, _| slow_stream());
    let daemon = TestDaemon::start(quell(), &config(&model.base_url())).await;
    let mut gateway = GatewayTestClient::connect(&daemon).await;
    gateway.start_run("warm-up").await;
    model.wait_for_marked_request("warm-up").await.wait_streaming().await;
    let before = rss_kib(daemon.pid());
    for run in 0..runs {
        gateway.start_run(&format!("memory-{run}")).await;
    }
    streaming_requests(&model, "memory-", runs).await;
    let after = rss_kib(daemon.pid());
    #[expect(clippy::cast_precision_loss, reason = "a count of runs")]
    let each = (after - before) / runs as f64;
    let note = format!("{before:.0} KiB before, {after:.0} KiB with {runs}");
    report.add("a streaming run", (each, "KiB"), FigureTarget::AtMost(64.0), note);
    gateway.send_request("stop.all", json!({})).await;
    daemon.stop().await;
}
