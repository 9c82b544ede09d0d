//! One stop at a time: the model's socket, and the `aborted` event at a WebSocket client.

use std::time::{Duration, Instant};

use quell_testkit::daemon::Daemon;
use quell_testkit::gateway::{Gateway, is_aborted, is_ended};
use quell_testkit::model::{Behaviour, ScriptedModel};
use serde_json::json;

use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, floor, quell};

/// What the machine does besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// Nothing.
    Idle,
    /// Two runs of the same daemon search files without end.
    Searching,
}

pub(crate) async fn measure(report: &mut Report, samples: usize, load: Load) {
    let model = ScriptedModel::start().await;
    let files = forest();
    let place = files.path().display().to_string();
    model.by_prompt(move |text, _| {
        if text.contains("marker:load") {
            let arguments = json!({"pattern": "[a-z]+needle[0-9]{4}", "path": "."});
            return Behaviour::tool_call(format!("search {}", place.len()), "search_files", &arguments);
        }
        Behaviour::tokens_forever(Duration::from_millis(20))
    });
    let text = format!("{}\n", config(&model.base_url())).replace(
        "model = \"scripted/model\"",
        &format!("model = \"scripted/model\"\nworkdir = \"{}\"", files.path().display()),
    );
    let daemon = Daemon::start(quell(), &text).await;
    let mut gateway = Gateway::connect(&daemon).await;
    if load == Load::Searching {
        for load in ["load-1", "load-2"] {
            gateway.begin(load).await;
            // The model has asked for the search; the next thing that the run does is to search.
            model.marked(load).await.finished().await;
        }
    }
    let (mut bare, mut socket, mut aborted, mut ended) = <(Times, Times, Times, Times)>::default();
    for sample in 0..samples {
        bare.add(floor::sample(&model, &format!("floor-{load:?}-{sample}")).await);
        let run = format!("run-{load:?}-{sample}");
        gateway.begin(&run).await;
        let request = model.marked(&run).await;
        request.streaming().await;
        gateway.until(|frame| frame["event"] == json!("chat") && frame["payload"]["runId"] == json!(run)).await;
        let begun = Instant::now();
        gateway.send("chat.abort", json!({"sessionKey": format!("s-{run}"), "runId": run})).await;
        let (at, _) = gateway.until(|frame| is_aborted(frame) && frame["payload"]["runId"] == json!(run)).await;
        aborted.add(at.saturating_duration_since(begun));
        socket.add(request.client_left().await.saturating_duration_since(begun));
        let (at, _) = gateway.until(|frame| is_ended(frame) && frame["payload"]["runId"] == json!(run)).await;
        ended.add(at.saturating_duration_since(begun));
    }
    let name = if load == Load::Idle { "" } else { " (cores busy searching)" };
    let note = format!("floor median {:.3}, p99 {:.3}, n {}", bare.median(), bare.p99(), bare.len());
    let (median, p99) = (2.0 * bare.median() + 0.3, 2.0 * bare.p99() + 3.0);
    report.target(
        &format!("stop -> model socket closed, median{name}"),
        socket.median(),
        Target(median, "ms"),
        note.clone(),
    );
    report.target(&format!("stop -> model socket closed, p99{name}"), socket.p99(), Target(p99, "ms"), note);
    if load == Load::Idle {
        report.target(
            "stop -> `aborted` at a WebSocket client, median",
            aborted.median(),
            Target(1.5, "ms"),
            format!("p99 {:.3}", aborted.p99()),
        );
        report.figure("stop -> `run` ended with receipt, median", ended.median(), format!("p99 {:.3}", ended.p99()));
    } else {
        report.figure(
            "stop -> `aborted`, median (cores busy searching)",
            aborted.median(),
            format!("p99 {:.3}", aborted.p99()),
        );
    }
    drop(gateway);
    daemon.stop().await;
}

/// Files to search: 2,000 of 32 KiB.
fn forest() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let line = "the quick brown fox jumps over the lazy dog and never finds a needle here\n";
    let text = line.repeat(32 * 1024 / line.len());
    for number in 0..2000 {
        let place = folder.path().join(format!("part{}", number / 100));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join(format!("file{number}.txt")), &text).unwrap();
    }
    folder
}
