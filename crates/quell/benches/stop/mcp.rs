//! Stop latency of MCP calls: time until the server has read the cancel, and until the run has ended, on pipes and by
//! URL.

use std::time::{Instant, SystemTime};

use quell_testkit::daemon::TestDaemon;
use quell_testkit::gateway_client::{GatewayTestClient, is_run_ended};
use quell_testkit::mcp::{FakeMcpServer, McpFault};
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use quell_testkit::{leaks, mcp};
use serde_json::json;

use crate::report::{BenchReport, FigureTarget::AtMost, Quantile};
use crate::times::Times;
use crate::{config, quell};

/// Longest wait for a server. It only decides how late a broken bench fails.
const WAIT_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

pub(crate) async fn measure(report: &BenchReport, samples: usize) {
    let folder = tempfile::tempdir().unwrap();
    let (script, log) = (folder.path().join("server.sh"), folder.path().join("log"));
    std::fs::write(&script, mcp::SERVER_SCRIPT).unwrap();
    let http_server = FakeMcpServer::start().await;
    http_server.fault_always("tools/call", McpFault::Silent);
    let sections = format!(
        "\n[mcp.test]\ncommand = \"sh\"\nargs = [{script:?}]\nenv = {{ MCP_LOG = {log:?} }}\nshared = true\nsandbox = \"off\"\n\
         \n[mcp.far]\nurl = {url:?}\nshared = true\n",
        script = script.display().to_string(),
        log = log.display().to_string(),
        url = http_server.url(),
    );
    let model = ScriptedModel::start().await;
    let daemon = TestDaemon::start(quell(), &(config(&model.base_url()) + sections.as_str())).await;
    let mut gateway = GatewayTestClient::connect(&daemon).await;
    let script_calls = |tool: &'static str| {
        model.respond_by_prompt(move |_, request| {
            ScriptedResponse::tool_call(format!("call-{}", request.messages().len()), tool, &json!({}))
        });
    };
    script_calls("test__decline");
    let mut times = Times::default();
    for sample in 1..=samples {
        let run = format!("mcp-{sample}");
        gateway.start_run(&run).await;
        wait_for_message(&log, "tools/call", sample).await;
        let asked = SystemTime::now();
        gateway.send_request("runs.stop", json!({"runId": run})).await;
        let at = wait_for_message(&log, "notifications/cancelled", sample).await;
        times.add(at.duration_since(asked).unwrap_or_default());
        gateway.wait_for_frame(|frame| is_run_ended(frame) && frame["payload"]["runId"] == json!(run)).await;
    }
    // The server takes the time by starting `date`, so the figure contains the cost of that.
    report.add_times("stop -> MCP server has the cancel", (&times, Quantile::Median), AtMost(10.0), "");
    script_calls("far__echo");
    let by_url = time_run_ends(&mut gateway, ("url", samples), async |sample| {
        http_server.wait_received("tools/call", sample).await
    })
    .await;
    script_calls("test__wait");
    let on_pipes = time_run_ends(&mut gateway, ("pipes", samples), async |sample| {
        wait_for_message(&log, "tools/call", samples + sample).await;
    })
    .await;
    // The server does not answer cancelled calls: only its answer to the ping shows that it reads. It starts `date`
    // for each of the three messages.
    let note = format!("by URL in the same run {:.1} ms", by_url.median());
    let what = "stop of an MCP call on pipes -> run.ended";
    report.add_times(what, (&on_pipes, Quantile::Median), AtMost(25.0), &note);
    drop(gateway);
    daemon.stop().await;
}

/// Times from the request of a stop to the end of the run, in calls that are never answered.
async fn time_run_ends(
    gateway: &mut GatewayTestClient,
    (name, samples): (&str, usize),
    called: impl AsyncFn(usize),
) -> Times {
    let mut times = Times::default();
    for sample in 1..=samples {
        let run = format!("mcp-{name}-{sample}");
        gateway.start_run(&run).await;
        called(sample).await;
        let asked = Instant::now();
        gateway.send_request("runs.stop", json!({"runId": run})).await;
        let (at, _) =
            gateway.wait_for_frame(|frame| is_run_ended(frame) && frame["payload"]["runId"] == json!(run)).await;
        times.add(at.duration_since(asked));
    }
    times
}

/// Waits for the message with this number. Returns when the server received it.
async fn wait_for_message(log: &std::path::Path, method: &'static str, number: usize) -> SystemTime {
    let path = log.to_owned();
    leaks::wait_until(WAIT_LIMIT, move || {
        let found = mcp::received_messages_of(&path, method).len();
        if found >= number { Ok(()) } else { Err(format!("{found} of {number} {method}")) }
    })
    .await;
    mcp::received_messages_of(log, method)[number - 1].at
}
