//! One stop of a run with 99 sub-runs, all streaming.

use std::time::{Duration, Instant};

use quell_testkit::daemon::Daemon;
use quell_testkit::gateway::{Gateway, is_ended};
use quell_testkit::model::{Behaviour, ModelRequest, ScriptedModel, Stream};
use serde_json::json;

use crate::many::{last_left, named, slow_stream};
use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};

/// The run and all below it.
const RUNS: usize = 100;
const ROUNDS: usize = 20;

pub(crate) async fn measure(report: &mut Report) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, request| match request.markers.last() {
        // The first request of the run at the top, with no calls behind it yet.
        Some(marker) if marker.starts_with("tree") && request.messages().len() <= 2 => spawn_all(marker),
        _ => slow_stream(),
    });
    let config = format!("{}sub_runs_per_run = {RUNS}\n", config(&model.base_url()));
    let daemon = Daemon::start(quell(), &config).await;
    let (mut socket, mut ended) = <(Times, Times)>::default();
    for round in 0..ROUNDS {
        let (last_socket, last_ended) = stop_one(&daemon, &model, round).await;
        socket.add(last_socket);
        ended.add(last_ended);
    }
    let note = |times: &Times| format!("max {:.1}, rounds {ROUNDS}", times.max());
    let name = "a run with 99 sub-runs";
    report.target(&format!("{name}: last model socket, median"), socket.median(), Target(50.0, "ms"), note(&socket));
    report.target(&format!("{name}: last `run.ended`, median"), ended.median(), Target(50.0, "ms"), note(&ended));
    daemon.stop().await;
}

fn spawn_all(marker: &str) -> Behaviour {
    let call = |stream: Stream, leaf: usize| {
        let arguments = json!({"agent": "main", "prompt": format!("marker:leaf-of-{marker}-{leaf}"), "wait": false});
        stream.tool_call(format!("c{leaf}"), "spawn_agent", &arguments)
    };
    (0..RUNS - 1).fold(Stream::new(), call).into()
}

async fn stop_one(daemon: &Daemon, model: &ScriptedModel, round: usize) -> (Duration, Duration) {
    let mut watcher = Gateway::connect(daemon).await;
    let top = format!("tree-{round}");
    watcher.begin(&top).await;
    let mut requests = named(model, &format!("leaf-of-{top}-"), RUNS - 1).await;
    requests.push(second_of(model, &top).await);
    let begun = Instant::now();
    watcher.send("runs.stop", json!({"runId": top})).await;
    let mut last_ended = begun;
    for _ in 0..RUNS {
        (last_ended, _) = watcher.until(is_ended).await;
    }
    let socket = last_left(&requests, begun).await;
    (socket, last_ended.saturating_duration_since(begun))
}

/// The request that the run at the top streams from once it has started all others.
async fn second_of(model: &ScriptedModel, top: &str) -> ModelRequest {
    loop {
        let seen = model.seen();
        let mut of_top = seen.iter().filter(|request| request.markers.last().is_some_and(|marker| marker == top));
        if let Some(request) = of_top.nth(1) {
            request.streaming().await;
            return request.clone();
        }
        drop(model.requests(seen.len() + 1).await);
    }
}
