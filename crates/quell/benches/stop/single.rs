//! Stop latency of one run, idle and under CPU load: the model's socket, and the `aborted` event at a WebSocket client.

use std::time::{Duration, Instant};

use quell_testkit::daemon::TestDaemon;
use quell_testkit::gateway_client::{GatewayTestClient, is_chat_aborted, is_run_ended};
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use serde_json::json;

use crate::report::{BenchReport, FigureTarget, Quantile};
use crate::times::Times;
use crate::{baseline, config, quell};

/// Other load on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackgroundLoad {
    Idle,
    /// Two runs of the same daemon search files without end.
    Searching,
}

pub(crate) async fn measure(report: &BenchReport, samples: usize, load: BackgroundLoad) {
    let model = ScriptedModel::start().await;
    let files = create_search_files();
    let place = files.path().display().to_string();
    model.respond_by_prompt(move |text, _| {
        if text.contains("marker:load") {
            let arguments = json!({"pattern": "[a-z]+needle[0-9]{4}", "path": "."});
            return ScriptedResponse::tool_call(format!("search {}", place.len()), "search_files", &arguments);
        }
        ScriptedResponse::tokens_forever(Duration::from_millis(20))
    });
    let text = format!("{}\n", config(&model.base_url())).replace(
        "model = \"scripted/model\"",
        &format!("model = \"scripted/model\"\nworkdir = \"{}\"", files.path().display()),
    );
    let daemon = TestDaemon::start(quell(), &text).await;
    let mut gateway = GatewayTestClient::connect(&daemon).await;
    if load == BackgroundLoad::Searching {
        for load in ["load-1", "load-2"] {
            gateway.start_run(load).await;
            // The model has asked for the search, so the run is about to search.
            model.wait_for_marked_request(load).await.wait_finished().await;
        }
    }
    let (mut bare, mut socket, mut aborted, mut ended) = <(Times, Times, Times, Times)>::default();
    for sample in 0..samples {
        bare.add(baseline::time_disconnect(&model, &format!("floor-{load:?}-{sample}")).await);
        let run = format!("run-{load:?}-{sample}");
        gateway.start_run(&run).await;
        let request = model.wait_for_marked_request(&run).await;
        request.wait_streaming().await;
        gateway
            .wait_for_frame(|frame| frame["event"] == json!("chat") && frame["payload"]["runId"] == json!(run))
            .await;
        let begun = Instant::now();
        gateway.send_request("chat.abort", json!({"sessionKey": format!("s-{run}"), "runId": run})).await;
        let (at, _) =
            gateway.wait_for_frame(|frame| is_chat_aborted(frame) && frame["payload"]["runId"] == json!(run)).await;
        aborted.add(at.saturating_duration_since(begun));
        socket.add(request.wait_client_left().await.saturating_duration_since(begun));
        let (at, _) =
            gateway.wait_for_frame(|frame| is_run_ended(frame) && frame["payload"]["runId"] == json!(run)).await;
        ended.add(at.saturating_duration_since(begun));
    }
    let (name, most_aborted) = match load {
        BackgroundLoad::Idle => ("stop", FigureTarget::AtMost(1.5)),
        BackgroundLoad::Searching => ("stop (cores busy searching)", FigureTarget::Free),
    };
    let note = format!("baseline {bare}");
    let (median, p99) = (2.0 * bare.median() + 0.3, 2.0 * bare.p99() + 3.0);
    let what = format!("{name} -> model socket closed");
    report.add_times(&what, (&socket, Quantile::Median), FigureTarget::AtMost(median), &note);
    report.add_times(&what, (&socket, Quantile::P99), FigureTarget::AtMost(p99), &note);
    let what = format!("{name} -> `aborted` at a WebSocket client");
    report.add_times(what, (&aborted, Quantile::Median), most_aborted, "");
    let what = format!("{name} -> `run` ended with receipt");
    report.add_times(what, (&ended, Quantile::Median), FigureTarget::Free, "");
    drop(gateway);
    daemon.stop().await;
}

/// Creates files to search: 2,000 of 32 KiB.
fn create_search_files() -> tempfile::TempDir {
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
