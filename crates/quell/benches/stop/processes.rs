//! Overhead of a warden, and stop to last process gone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quell_kernel::StopTimeouts;
use quell_process::{CommandSpec, Isolate, OutputSink, SandboxSpec, WardenExe, Wardens, base_environment};
use quell_protocol::{SandboxMode, ToolOutputStream};
use quell_scope::clock::Clock;
use quell_scope::{PointProbe, Scope};
use quell_testkit::commands::{self, ProcessMarker};
use quell_testkit::daemon::{TestApiClient, TestDaemon};
use quell_testkit::gateway_client::{GatewayTestClient, is_run_ended};
use quell_testkit::model::{ScriptedModel, ScriptedResponse};
use serde_json::json;

use crate::report::{BenchReport, FigureTarget::AtMost, Quantile};
use crate::times::Times;
use crate::{config, quell};

pub(crate) async fn measure(report: &BenchReport, samples: usize) {
    measure_warden_cost(report, samples).await;
    measure_stops(report, samples.min(40)).await;
}

struct IgnoreOutput;

impl OutputSink for IgnoreOutput {
    fn output(&mut self, _: ToolOutputStream, _: &str) {}
}

async fn measure_warden_cost(report: &BenchReport, samples: usize) {
    let wardens = Wardens::new(WardenExe::Path(quell().to_owned()), StopTimeouts::default()).unwrap();
    // Not in /tmp, which a sandbox replaces.
    let place = tempfile::tempdir_in(quell().parent().unwrap()).unwrap();
    let command_spec = |isolate, sandbox| CommandSpec {
        argv: vec!["sh".into(), "-c".into(), ":".into()],
        label: ":".to_owned(),
        cwd: place.path().to_owned(),
        env: base_environment(std::env::vars_os()),
        timeout: None,
        output_limit: 1000,
        isolate,
        sandbox,
        network: None,
        session_network: None,
    };
    let (sweep, namespace) = (command_spec(Isolate::None, None), command_spec(Isolate::Auto, None));
    let sandbox = command_spec(Isolate::Auto, Some(sandbox_of_an_agent(place.path()).into()));
    let (mut bare, mut swept, mut isolated, mut sandboxed) = <(Times, Times, Times, Times)>::default();
    for _ in 0..samples {
        let begun = Instant::now();
        #[expect(clippy::disallowed_methods, reason = "the baseline is a bare spawn")]
        let mut command = Command::new("sh");
        command.args(["-c", ":"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap();
        bare.add(begun.elapsed());
        for (spec, times) in [(&sweep, &mut swept), (&namespace, &mut isolated), (&sandbox, &mut sandboxed)] {
            let scope = Scope::new(Clock::start(), PointProbe::default());
            let begun = Instant::now();
            wardens.run(spec, &scope, &mut IgnoreOutput).await.unwrap();
            times.add(begun.elapsed());
        }
    }
    let (bare, swept, isolated, sandboxed) = (bare.median(), swept.median(), isolated.median(), sandboxed.median());
    let note = format!("bare {bare:.3} ms, through a warden {swept:.3} ms, n {samples}");
    report.add("a warden adds to a command, median", (swept - bare, "ms"), AtMost(3.0), note);
    let note = format!("in a namespace {isolated:.3} ms, n {samples}");
    report.add("a PID namespace adds to that, median", (isolated - swept, "ms"), AtMost(1.5), note);
    let note = format!("in a sandbox with its namespaces {sandboxed:.3} ms, n {samples}");
    report.add("a sandbox adds to a warden, median", (sandboxed - swept, "ms"), AtMost(4.0), note);
}

/// As many places as an agent's sandbox has on a machine of a developer: hidden files and directories at the home of a
/// person, secrets of the system, and the directories of the agent.
fn sandbox_of_an_agent(place: &Path) -> SandboxSpec {
    let directory = |name: String| {
        let path = place.join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    SandboxSpec {
        protected: vec![directory("data".into()), "/etc/shadow".into()],
        hidden: (0..30).map(|number| directory(format!("person/hidden-{number}"))).collect(),
        writable: vec![directory("work".into())],
        home: Some(directory("home".into())),
        temporary: Some(directory("data/tmp".into())),
        ..SandboxSpec::new(SandboxMode::Workspace)
    }
}

/// Measures stops of four kinds of commands, each in a real run.
async fn measure_stops(report: &BenchReport, samples: usize) {
    type MakeCommand = fn(&ProcessMarker) -> String;
    // Name, command, number of its processes, whether it prints when it ignores signals, whether the stop is forced,
    // limit in milliseconds.
    let kinds: [(&str, MakeCommand, usize, bool, bool, f64); 4] = [
        ("obedient command", commands::obeys_signals, 1, false, false, 50.0),
        ("setsid child", commands::setsid_child, 2, false, false, 50.0),
        ("command that ignores TERM, gentle", commands::ignores_signals, 1, true, false, 700.0),
        ("command that ignores TERM, forced", commands::ignores_signals, 1, true, true, 50.0),
    ];
    for (name, make, processes, deaf, force, target) in kinds {
        let mut times = Times::default();
        for _ in 0..samples.min(if target > 100.0 { 10 } else { 40 }) {
            times.add(time_one_stop((make, processes), deaf, force).await);
        }
        let what = format!("stop -> all processes gone: {name}");
        report.add_times(what, (&times, Quantile::Median), AtMost(target), "");
    }
}

async fn time_one_stop((make, processes): (fn(&ProcessMarker) -> String, usize), deaf: bool, force: bool) -> Duration {
    let mark = ProcessMarker::new();
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::tool_call("call-1", "shell", &json!({"command": make(&mark)})));
    let daemon = TestDaemon::start(quell(), &config(&model.base_url())).await;
    let mut gateway = GatewayTestClient::connect(&daemon).await;
    gateway.start_run("run").await;
    mark.wait_for_count(processes).await;
    if deaf {
        let api = TestApiClient::new(daemon.url(), daemon.token());
        api.run_events("run", 0).await.wait_for("tool.output").await;
    }
    let begun = Instant::now();
    gateway.send_request("runs.stop", json!({"runId": "run", "force": force})).await;
    let observed = mark.wait_gone(Duration::from_secs(10)).await;
    let gone = begun.elapsed().min(observed + Duration::from_millis(1));
    gateway.wait_for_frame(is_run_ended).await;
    drop(gateway);
    daemon.stop().await;
    gone
}
