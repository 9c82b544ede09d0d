//! Start time after a kill with 1,000 open runs, each with a finished call and streamed text. The baseline is the
//! same start with nothing to recover.

use quell_testkit::daemon::DaemonHome;
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use serde_json::json;

use crate::concurrent_stops::{second_request_of, slow_stream};
use crate::report::{BenchReport, FigureTarget::AtMost, Quantile};
use crate::times::Times;
use crate::{config, quell};
use quell_testkit::gateway_client::GatewayTestClient;

const RUNS: usize = 1000;
const ROUNDS: usize = 5;

pub(crate) async fn measure(report: &BenchReport) {
    let model = ScriptedModel::start().await;
    model.respond_by_prompt(|_, request| match request.messages().last() {
        Some(last) if last["role"] == "tool" => slow_stream(),
        _ => ScriptedResponse::tool_call("c1", "list_files", &json!({})),
    });
    let home = DaemonHome::new(&config(&model.base_url()));
    home.start(quell()).await.stop().await;
    let (mut floor, mut recovery) = <(Times, Times)>::default();
    for round in 0..ROUNDS {
        let daemon = home.start(quell()).await;
        floor.add(daemon.startup_time());
        let mut gateway = GatewayTestClient::connect(&daemon).await;
        for run in 0..RUNS {
            gateway.start_run(&format!("open-{round}-{run}")).await;
        }
        for run in 0..RUNS {
            second_request_of(&model, &format!("open-{round}-{run}")).await;
        }
        drop(gateway);
        daemon.kill9().await;
        let daemon = home.start(quell()).await;
        recovery.add(daemon.startup_time());
        assert_eq!(daemon.api().get("/api/runs?state=active").await.expect_status(200)["items"], json!([]));
        daemon.stop().await;
    }
    let name = format!("start with {RUNS} open runs to recover");
    let note = format!("baseline {:.1}", floor.median());
    report.add_times(name, (&recovery, Quantile::Median), AtMost(1000.0), &note);
}
