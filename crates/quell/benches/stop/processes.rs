//! Processes: how fast they are gone, and what a warden costs.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quell_engine::clock::Clock;
use quell_engine::proc::{CommandSpec, Isolate, OutputSink, WardenExe, Wardens, base_environment};
use quell_engine::scope::{Probe, Scope};
use quell_kernel::StopTimes;
use quell_protocol::ToolOutputStream;
use quell_testkit::commands::{self, Marker};
use quell_testkit::daemon::{Api, Daemon};
use quell_testkit::gateway::{Gateway, is_ended};
use quell_testkit::model::{Behaviour, ScriptedModel};
use serde_json::json;

use crate::report::{Report, Target};
use crate::times::Times;
use crate::{config, quell};

pub(crate) async fn measure(report: &mut Report, samples: usize) {
    warden_cost(report, samples).await;
    stops(report, samples.min(40)).await;
}

struct Silent;

impl OutputSink for Silent {
    fn output(&mut self, _: ToolOutputStream, _: &str) {}
}

async fn warden_cost(report: &mut Report, samples: usize) {
    let wardens = Wardens::new(WardenExe::Path(quell().to_owned()), StopTimes::default()).unwrap();
    let held = |isolate| CommandSpec {
        argv: vec!["sh".into(), "-c".into(), ":".into()],
        label: ":".to_owned(),
        cwd: std::env::temp_dir(),
        env: base_environment(std::env::vars_os()),
        timeout: None,
        output_limit: 1000,
        isolate,
    };
    let (sweep, namespace) = (held(Isolate::None), held(Isolate::Auto));
    let (mut bare, mut swept, mut isolated) = <(Times, Times, Times)>::default();
    for _ in 0..samples {
        let begun = Instant::now();
        #[expect(clippy::disallowed_methods, reason = "the floor is a bare spawn")]
        let mut command = Command::new("sh");
        command.args(["-c", ":"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().unwrap();
        bare.add(begun.elapsed());
        for (spec, times) in [(&sweep, &mut swept), (&namespace, &mut isolated)] {
            let scope = Scope::new(Clock::start(), Probe::default());
            let begun = Instant::now();
            wardens.run(spec, &scope, &mut Silent).await.unwrap();
            times.add(begun.elapsed());
        }
    }
    let (bare, swept, isolated) = (bare.median(), swept.median(), isolated.median());
    let note = format!("bare {bare:.3} ms, through a warden {swept:.3} ms, n {samples}");
    report.target("a warden adds to a command, median", swept - bare, Target(3.0, "ms"), note);
    let note = format!("in a namespace {isolated:.3} ms, n {samples}");
    report.target("a PID namespace adds to that, median", isolated - swept, Target(1.5, "ms"), note);
}

/// Stops of three kinds of commands, each through a real run.
async fn stops(report: &mut Report, samples: usize) {
    type Make = fn(&Marker) -> String;
    // The name, the command, its processes, whether it says when it is deaf, whether the stop is forced, the limit in milliseconds.
    let kinds: [(&str, Make, usize, bool, bool, f64); 4] = [
        ("obedient command", commands::obedient, 1, false, false, 50.0),
        ("setsid child", commands::setsid_child, 2, false, false, 50.0),
        ("command that ignores TERM, gentle", commands::ignores_signals, 1, true, false, 700.0),
        ("command that ignores TERM, forced", commands::ignores_signals, 1, true, true, 50.0),
    ];
    for (name, make, processes, deaf, force, target) in kinds {
        let mut times = Times::default();
        for _ in 0..samples.min(if target > 100.0 { 10 } else { 40 }) {
            times.add(one_stop((make, processes), deaf, force).await);
        }
        let note = format!("p99 {:.1}, n {}", times.p99(), times.len());
        report.target(
            &format!("stop -> all processes gone: {name}, median"),
            times.median(),
            Target(target, "ms"),
            note,
        );
    }
}

async fn one_stop((make, processes): (fn(&Marker) -> String, usize), deaf: bool, force: bool) -> Duration {
    let mark = Marker::new();
    let model = ScriptedModel::start().await;
    model.script(Behaviour::tool_call("call-1", "shell", &json!({"command": make(&mark)})));
    let daemon = Daemon::start(quell(), &config(&model.base_url())).await;
    let mut gateway = Gateway::connect(&daemon).await;
    gateway.begin("run").await;
    mark.at_least(processes).await;
    if deaf {
        let api = Api::new(daemon.url(), daemon.token());
        api.events("run", 0).await.until("tool.output").await;
    }
    let begun = Instant::now();
    gateway.send("runs.stop", json!({"runId": "run", "force": force})).await;
    let looked = mark.gone(Duration::from_secs(10)).await;
    let gone = begun.elapsed().min(looked + Duration::from_millis(1));
    gateway.until(is_ended).await;
    drop(gateway);
    daemon.stop().await;
    gone
}
