//! Many stops at once, and what a streaming run costs in memory.

use std::time::{Duration, Instant};

use quell_testkit::daemon::Daemon;
use quell_testkit::gateway::{Gateway, is_aborted, is_ended};
use quell_testkit::model::{Behaviour, ModelRequest, ScriptedModel, Step, Stream};
use serde_json::json;

use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, floor, quell};

pub(crate) async fn measure(report: &mut Report, runs: usize) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, _| slow_stream());
    let rounds = if runs > 100 { 3 } else { 20 };
    let daemon = Daemon::start(quell(), &config(&model.base_url())).await;
    let (mut bare, mut socket, mut aborted, mut ended) = <(Times, Times, Times, Times)>::default();
    for round in 0..rounds {
        bare.add(drop_at_once(&model, runs, round).await);
        let (last_socket, last_aborted, last_ended) = stop_at_once(&daemon, &model, runs, round).await;
        socket.add(last_socket);
        aborted.add(last_aborted);
        ended.add(last_ended);
    }
    let note = format!("floor median {:.2}, rounds {rounds}", bare.median());
    if runs == 50 {
        report.target("50 runs at once: last model socket, median", socket.median(), Target(10.0, "ms"), note.clone());
        report.target("50 runs at once: last `aborted`, median", aborted.median(), Target(10.0, "ms"), note);
        report.figure("50 runs at once: last `run.ended`, median", ended.median(), format!("max {:.1}", ended.max()));
    } else {
        let most = 2.0 * bare.median() + 20.0;
        report.target(
            &format!("{runs} runs at once: last model socket, median"),
            socket.median(),
            Target(most, "ms"),
            note.clone(),
        );
        report.target(
            &format!("{runs} runs at once: last `aborted`, median"),
            aborted.median(),
            Target(most, "ms"),
            note,
        );
        report.target(
            &format!("{runs} runs at once: last `run.ended`, median"),
            ended.median(),
            Target(150.0, "ms"),
            format!("max {:.1}", ended.max()),
        );
    }
    daemon.stop().await;
}

/// One token at once, further ones rarely, so that the stops are measured and not the stream.
pub(crate) fn slow_stream() -> Behaviour {
    Stream::new().text("begun ").step(Step::TokensForever { every: Duration::from_millis(500) }).into()
}

/// Bare clients that drop their sockets at once: when the server saw the last one leave.
async fn drop_at_once(model: &ScriptedModel, runs: usize, round: usize) -> Duration {
    let name = |run: usize| format!("floor-{round}-{run}");
    let mut streams = Vec::with_capacity(runs);
    for run in 0..runs {
        streams.push(floor::open(model.address(), &name(run)));
    }
    let requests = named(model, &format!("floor-{round}-"), runs).await;
    let begun = Instant::now();
    drop(streams);
    last_left(&requests, begun).await
}

async fn stop_at_once(
    daemon: &Daemon,
    model: &ScriptedModel,
    runs: usize,
    round: usize,
) -> (Duration, Duration, Duration) {
    let mut watcher = Gateway::connect(daemon).await;
    for run in 0..runs {
        watcher.begin(&format!("many-{round}-{run}")).await;
    }
    let requests = named(model, &format!("many-{round}-"), runs).await;
    let begun = Instant::now();
    watcher.send("stop.all", json!({})).await;
    let (mut aborted, mut ended) = (0, 0);
    let (mut last_aborted, mut last_ended) = (begun, begun);
    while aborted < runs || ended < runs {
        let (at, frame) = watcher.until(|frame| is_aborted(frame) || is_ended(frame)).await;
        if is_aborted(&frame) {
            aborted += 1;
            last_aborted = at;
        } else {
            ended += 1;
            last_ended = at;
        }
    }
    let socket = last_left(&requests, begun).await;
    (socket, last_aborted.saturating_duration_since(begun), last_ended.saturating_duration_since(begun))
}

/// The requests whose marker begins with `prefix`, all streaming.
pub(crate) async fn named(model: &ScriptedModel, prefix: &str, runs: usize) -> Vec<ModelRequest> {
    let mut found = Vec::with_capacity(runs);
    for run in 0..runs {
        let request = model.marked(&format!("{prefix}{run}")).await;
        request.streaming().await;
        found.push(request);
    }
    found
}

pub(crate) async fn last_left(requests: &[ModelRequest], begun: Instant) -> Duration {
    let mut last = begun;
    for request in requests {
        last = last.max(request.client_left().await);
    }
    last.saturating_duration_since(begun)
}

/// Resident memory of the daemon per streaming run.
pub(crate) async fn memory(report: &mut Report, runs: usize) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, _| slow_stream());
    let daemon = Daemon::start(quell(), &config(&model.base_url())).await;
    let mut gateway = Gateway::connect(&daemon).await;
    gateway.begin("warm-up").await;
    model.marked("warm-up").await.streaming().await;
    let before = rss_kib(daemon.pid());
    for run in 0..runs {
        gateway.begin(&format!("memory-{run}")).await;
    }
    named(&model, "memory-", runs).await;
    let after = rss_kib(daemon.pid());
    #[expect(clippy::cast_precision_loss, reason = "a count of runs")]
    let each = (after - before) / runs as f64;
    let note = format!("{before:.0} KiB before, {after:.0} KiB with {runs}");
    report.target("a streaming run", each, Target(64.0, "KiB"), note);
    gateway.send("stop.all", json!({})).await;
    daemon.stop().await;
}

/// Resident memory of a process.
pub(crate) fn rss_kib(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse().unwrap()
}
