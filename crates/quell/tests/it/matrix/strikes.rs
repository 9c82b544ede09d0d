//! The rows: ways to stop a run, and how each is made.

use std::process::Stdio;

use quell_testkit::daemon::Daemon;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Site;
use super::scenes::{Scene, Up};
use crate::cli::exe;
use crate::doors::escape;
use crate::ws::Client;

/// A way to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Surface {
    HttpRun,
    HttpSession,
    HttpAll,
    AgentAbort,
    WsRun,
    WsSession,
    WsSessionsAbort,
    StopText,
    CtrlC,
    TimeOut,
    Budget,
    Sigterm,
    Kill9,
}

/// Time of runs that are to run out of it: enough to bring all states up, in milliseconds.
const TIME: u64 = 6000;

impl Surface {
    /// True when one strike meets all runs.
    pub(super) fn takes_all(self) -> bool {
        matches!(self, Self::HttpAll | Self::TimeOut | Self::Sigterm | Self::Kill9)
    }

    /// True when it stops a run and not its session.
    pub(super) fn takes_one_run(self) -> bool {
        matches!(self, Self::HttpRun | Self::AgentAbort | Self::WsRun | Self::CtrlC | Self::TimeOut | Self::Budget)
    }

    /// The reason in the verdict.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::StopText => "command",
            Self::TimeOut => "timeout",
            Self::Budget => "max_steps",
            Self::Sigterm => "shutdown",
            Self::Kill9 => "daemon_stopped",
            Self::HttpRun
            | Self::HttpSession
            | Self::HttpAll
            | Self::AgentAbort
            | Self::WsRun
            | Self::WsSession
            | Self::WsSessionsAbort
            | Self::CtrlC => "user",
        }
    }
}

pub(super) fn up(surface: Surface, scene: &Scene) -> Up {
    let name = format!("{surface:?}-{}", scene.agent());
    Up { run: name.clone(), marker: name.clone(), session: name, marks: Vec::new(), in_its_way: None, client: None }
}

/// Sends the message of a state and waits until the state is reached.
pub(super) async fn bring_up(site: &Site, scene: &Scene, surface: Surface) -> Up {
    let mut up = up(surface, scene);
    (scene.prepare)(site, &mut up).await;
    match surface {
        Surface::CtrlC => send_by_client(site, scene, &mut up).await,
        Surface::TimeOut => send(site, scene, &up, &json!(TIME)).await,
        _ => send(site, scene, &up, &Value::Null).await,
    }
    (scene.reached)(site, &up).await;
    up
}

pub(super) async fn send(site: &Site, scene: &Scene, up: &Up, timeout: &Value) {
    let mut body = json!({"text": text(up), "agent": scene.agent(), "idempotencyKey": up.run});
    if !timeout.is_null() {
        body["timeoutMs"] = timeout.clone();
    }
    let path = format!("/api/sessions/{}/runs", escape(&up.session));
    let answer = site.daemon.http().post(&path, &body).await;
    assert_eq!(answer.status, 202, "{}: {:#}", scene.name, answer.body);
}

fn text(up: &Up) -> String {
    format!("please marker:{}", up.marker)
}

/// `quell send`, as a person starts it.
async fn send_by_client(site: &Site, scene: &Scene, up: &mut Up) {
    let mut command = site.home.command(exe());
    command.args(["send", "--session", &up.session, "--agent", &scene.agent(), &text(up)]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    up.client = Some(tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap());
    // The id is the client's choice.
    up.run = loop {
        let list = site.daemon.http().get("/api/runs?state=active").await.expect_status(200);
        let run = list["items"].as_array().unwrap().iter().find(|run| run["text"] == text(up)).cloned();
        if let Some(run) = run.and_then(|run| run["runId"].as_str().map(str::to_owned)) {
            break run;
        }
    };
}

/// Stops one run.
pub(super) async fn strike(site: &Site, surface: Surface, scene: &Scene, up: &mut Up) {
    let (http, session) = (site.daemon.http(), escape(&up.session));
    match surface {
        Surface::HttpRun => {
            let answer = http.post(&format!("/api/runs/{}/stop?wait=1", up.run), &json!({})).await.expect_status(200);
            assert_eq!(answer["aborted"], true, "{}: {answer:#}", scene.name);
        }
        Surface::HttpSession => {
            let answer = http.post(&format!("/api/sessions/{session}/stop?wait=1"), &json!({})).await;
            assert_stopped(scene, up, &answer.expect_status(200));
        }
        Surface::AgentAbort => {
            let answer = http.post(&format!("/api/agent/{}/abort?scope=run", scene.agent()), &json!({})).await;
            assert_stopped(scene, up, &answer.expect_status(200));
        }
        Surface::WsRun => chat_abort(site, scene, up, json!({"sessionKey": up.session, "runId": up.run})).await,
        Surface::WsSession => chat_abort(site, scene, up, json!({"sessionKey": up.session})).await,
        Surface::WsSessionsAbort => {
            let mut client = Client::at(site.daemon.url(), site.daemon.token()).await;
            let answer = client.call("sessions.abort", json!({"key": up.session})).await;
            assert_ne!(answer["status"], "no-active-run", "{}: {answer:#}", scene.name);
        }
        Surface::StopText => {
            let answer = http.post(&format!("/api/sessions/{session}/runs"), &json!({"text": " /STOP "})).await;
            assert_stopped(scene, up, &answer.expect_status(200));
        }
        Surface::CtrlC => press_ctrl_c(scene, up).await,
        Surface::HttpAll | Surface::TimeOut | Surface::Budget | Surface::Sigterm | Surface::Kill9 => {
            unreachable!("{surface:?} takes all")
        }
    }
}

fn assert_stopped(scene: &Scene, up: &Up, answer: &Value) {
    let stopped = answer["runIds"].as_array().unwrap().iter().any(|run| run == up.run.as_str());
    assert!(answer["aborted"] == true && stopped, "{}: {answer:#}", scene.name);
}

async fn chat_abort(site: &Site, scene: &Scene, up: &Up, params: Value) {
    let mut client = Client::at(site.daemon.url(), site.daemon.token()).await;
    assert_stopped(scene, up, &client.call("chat.abort", params).await);
}

async fn press_ctrl_c(scene: &Scene, up: &mut Up) {
    let client = up.client.as_mut().unwrap();
    let pid = client.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).unwrap())).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let status = tokio::time::timeout(crate::harness::PATIENCE, client.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(130), "{}", scene.name);
}

/// Stops all runs at once.
pub(super) async fn strike_all(site: &mut Site, surface: Surface, ups: &[Up]) {
    match surface {
        Surface::HttpAll => {
            let http = site.daemon.http();
            let answer = http.send(http.request(Method::POST, "/api/stop?wait=1").json(&json!({}))).await;
            let answer = answer.expect_status(200);
            let stopped: Vec<&str> = answer["runIds"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let missed: Vec<&Up> = ups.iter().filter(|up| !stopped.contains(&up.run.as_str())).collect();
            assert!(missed.is_empty(), "{answer:#}");
        }
        // Their time passes by itself.
        Surface::TimeOut => {}
        Surface::Sigterm => {
            let status = site.daemon.stop().await;
            assert!(status.success(), "{status:?}\n{}", site.daemon.output());
            site.daemon = again(site).await;
        }
        Surface::Kill9 => {
            site.daemon.kill9().await;
            site.daemon = again(site).await;
        }
        _ => unreachable!("{surface:?} takes one"),
    }
}

async fn again(site: &Site) -> Daemon {
    site.home.start(exe()).await
}
