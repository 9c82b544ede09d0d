//! A stop in an MCP call: how soon the server has read the cancel.

use std::time::SystemTime;

use quell_testkit::daemon::Daemon;
use quell_testkit::gateway::{Gateway, is_ended};
use quell_testkit::model::{Behaviour, ScriptedModel};
use quell_testkit::{leaks, mcp};
use serde_json::json;

use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};

/// Longest wait for a server. It decides only how late a broken bench fails.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

pub(crate) async fn measure(report: &mut Report, samples: usize) {
    let model = ScriptedModel::start().await;
    model.by_prompt(|_, request| {
        Behaviour::tool_call(format!("call-{}", request.messages().len()), "test__decline", &json!({}))
    });
    let folder = tempfile::tempdir().unwrap();
    let (script, log) = (folder.path().join("server.sh"), folder.path().join("log"));
    std::fs::write(&script, mcp::SERVER).unwrap();
    let section = format!(
        "\n[mcp.test]\ncommand = \"sh\"\nargs = [{script:?}]\nenv = {{ MCP_LOG = {log:?} }}\nshared = true\n",
        script = script.display().to_string(),
        log = log.display().to_string(),
    );
    let daemon = Daemon::start(quell(), &(config(&model.base_url()) + section.as_str())).await;
    let mut gateway = Gateway::connect(&daemon).await;
    let mut times = Times::default();
    for sample in 1..=samples {
        let run = format!("mcp-{sample}");
        gateway.begin(&run).await;
        got(&log, "tools/call", sample).await;
        let asked = SystemTime::now();
        gateway.send("runs.stop", json!({"runId": run})).await;
        let at = got(&log, "notifications/cancelled", sample).await;
        times.add(at.duration_since(asked).unwrap_or_default());
        gateway.until(|frame| is_ended(frame) && frame["payload"]["runId"] == json!(run)).await;
    }
    // The server notes the time by starting `date`, which the figure contains.
    let note = format!("p99 {:.1}, n {}", times.p99(), times.len());
    report.target("stop -> MCP server has the cancel, median", times.median(), Target(10.0, "ms"), note);
    drop(gateway);
    daemon.stop().await;
}

/// Waits for the message of this number; answers when the server had it.
async fn got(log: &std::path::Path, method: &'static str, number: usize) -> SystemTime {
    let path = log.to_owned();
    leaks::settled(PATIENCE, move || {
        let found = mcp::received_of(&path, method).len();
        if found >= number { Ok(()) } else { Err(format!("{found} of {number} {method}")) }
    })
    .await;
    mcp::received_of(log, method)[number - 1].at
}
