//! A stop in an MCP call: how soon the server has read the cancel, and how soon the run is over, on pipes and by URL.

use std::time::{Instant, SystemTime};

use quell_testkit::daemon::Daemon;
use quell_testkit::gateway::{Gateway, is_ended};
use quell_testkit::mcp::{HttpServer, Manner};
use quell_testkit::model::{Behaviour, ScriptedModel};
use quell_testkit::{leaks, mcp};
use serde_json::json;

use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};

/// Longest wait for a server. It decides only how late a broken bench fails.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

pub(crate) async fn measure(report: &mut Report, samples: usize) {
    let folder = tempfile::tempdir().unwrap();
    let (script, log) = (folder.path().join("server.sh"), folder.path().join("log"));
    std::fs::write(&script, mcp::SERVER).unwrap();
    let far = HttpServer::start().await;
    far.always("tools/call", Manner::Silent);
    let sections = format!(
        "\n[mcp.test]\ncommand = \"sh\"\nargs = [{script:?}]\nenv = {{ MCP_LOG = {log:?} }}\nshared = true\n\
         \n[mcp.far]\nurl = {url:?}\nshared = true\n",
        script = script.display().to_string(),
        log = log.display().to_string(),
        url = far.url(),
    );
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(quell(), &(config(&model.base_url()) + sections.as_str())).await;
    let mut gateway = Gateway::connect(&daemon).await;
    let calls = |tool: &'static str| {
        model.by_prompt(move |_, request| {
            Behaviour::tool_call(format!("call-{}", request.messages().len()), tool, &json!({}))
        });
    };
    calls("test__decline");
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
    calls("far__echo");
    let by_url = ends(&mut gateway, ("url", samples), async |sample| far.has_got("tools/call", sample).await).await;
    calls("test__wait");
    let on_pipes = ends(&mut gateway, ("pipes", samples), async |sample| {
        got(&log, "tools/call", samples + sample).await;
    })
    .await;
    // The server answers no cancelled call: only its ping says that it reads. It starts `date` for each of the three messages.
    let note =
        format!("p99 {:.1}, n {}; by URL in the same run {:.1} ms", on_pipes.p99(), on_pipes.len(), by_url.median());
    report.target("stop of an MCP call on pipes -> run.ended, median", on_pipes.median(), Target(25.0, "ms"), note);
    drop(gateway);
    daemon.stop().await;
}

/// From the request of a stop to the end of the run, in calls that nobody answers.
async fn ends(gateway: &mut Gateway, (name, samples): (&str, usize), called: impl AsyncFn(usize)) -> Times {
    let mut times = Times::default();
    for sample in 1..=samples {
        let run = format!("mcp-{name}-{sample}");
        gateway.begin(&run).await;
        called(sample).await;
        let asked = Instant::now();
        gateway.send("runs.stop", json!({"runId": run})).await;
        let (at, _) = gateway.until(|frame| is_ended(frame) && frame["payload"]["runId"] == json!(run)).await;
        times.add(at.duration_since(asked));
    }
    times
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
