//! The columns: states in which a stop can find a run, and how each is reached.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use quell_testkit::commands::{self, Marker};
use quell_testkit::model::{Behaviour, BlackHole, ModelRequest, Stream};
use quell_testkit::{ScriptedModel, mcp};
use serde_json::{Value, json};

use super::Site;

/// A state.
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// Whether the run has begun, so that its message stays in the history.
    pub(super) started: bool,
    /// Scripts the model, and whatever has to be there before the message.
    pub(super) prepare: for<'a> fn(&'a Site, &'a mut Up) -> Doing<'a>,
    /// Waits until the state is reached.
    pub(super) reached: for<'a> fn(&'a Site, &'a Up) -> Doing<'a>,
}

type Doing<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A run on its way into its state.
pub(super) struct Up {
    /// Its id; for runs that a client starts, known once they are there.
    pub(super) run: String,
    /// What its requests carry.
    pub(super) marker: String,
    pub(super) session: String,
    /// Carried by its processes.
    pub(super) marks: Vec<Marker>,
    /// A run in its way, which a stop of this one leaves alone.
    pub(super) in_its_way: Option<String>,
    /// The client that started it, where that is a process.
    pub(super) client: Option<tokio::process::Child>,
}

impl Scene {
    /// The agent of this state's own.
    pub(super) fn agent(&self) -> String {
        self.name.replace(' ', "-")
    }
}

pub(super) const SCENES: &[Scene] = &[
    Scene { name: "connecting", started: true, prepare: nothing, reached: |site, _| Box::pin(site.hole.connecting(1)) },
    Scene {
        name: "silent",
        started: true,
        prepare: |site, up| says(site, up, [Behaviour::SilentBeforeHeaders]),
        reached: |site, up| Box::pin(async { drop(request(site, up).await) }),
    },
    Scene {
        name: "streaming",
        started: true,
        prepare: |site, up| says(site, up, [Behaviour::tokens_forever(Duration::from_millis(5))]),
        reached: |site, up| {
            Box::pin(async {
                let _since = request(site, up).await.streaming().await;
            })
        },
    },
    Scene {
        name: "back-off",
        started: true,
        prepare: |site, up| says(site, up, [Behaviour::rate_limited("50")]),
        reached: |site, up| {
            Box::pin(async {
                let _finish = request(site, up).await.finished().await;
            })
        },
    },
    Scene {
        name: "plain tool",
        started: true,
        prepare: |site, up| shell(site, up, commands::obedient),
        reached: |_, up| Box::pin(processes(up, 1)),
    },
    Scene {
        name: "TERM-ignoring",
        started: true,
        prepare: |site, up| shell(site, up, commands::deaf_setsid_child),
        reached: |_, up| Box::pin(processes(up, 2)),
    },
    Scene {
        name: "escaped child",
        started: true,
        prepare: |site, up| shell(site, up, commands::setsid_child),
        reached: |_, up| Box::pin(processes(up, 2)),
    },
    Scene {
        name: "background process",
        started: true,
        prepare: |site, up| {
            let start = json!({"command": commands::setsid_child(mark(up)), "background": true});
            says(site, up, [call("shell", &start), Behaviour::silent_mid_stream("I wait")])
        },
        reached: |site, up| {
            Box::pin(async {
                processes(up, 2).await;
                second_request(site, up).await.resting().await;
            })
        },
    },
    Scene {
        name: "MCP call",
        started: true,
        prepare: |site, up| {
            let child = json!({"text": mark(up).as_str()});
            says(site, up, [call("test__fork", &child)])
        },
        reached: |_, up| Box::pin(processes(up, 1)),
    },
    Scene {
        name: "sub-agent",
        started: true,
        prepare: |site, up| {
            let below = format!("below-{}", up.marker);
            site.script(&below, [call("shell", &json!({"command": commands::setsid_child(mark(up))}))]);
            let spawn = json!({"agent": "scout", "prompt": format!("look marker:{below}")});
            says(site, up, [call("spawn_agent", &spawn)])
        },
        reached: |_, up| Box::pin(processes(up, 2)),
    },
    Scene {
        name: "queued message",
        started: false,
        prepare: |site, up| Box::pin(occupy_the_session(site, up)),
        reached: |site, up| Box::pin(is_listed(site, up)),
    },
    Scene {
        name: "pending approval",
        started: true,
        prepare: |site, up| shell(site, up, commands::setsid_child),
        reached: |site, up| Box::pin(is_asked(site, up)),
    },
    Scene {
        name: "compaction",
        started: true,
        prepare: |site, up| Box::pin(a_long_story(site, up)),
        reached: |site, up| Box::pin(async { the_summary(site, up).await.resting().await }),
    },
];

/// The daemon's configuration: an agent for every state, so that a stop of one agent's runs is a stop of one state.
pub(super) fn config(model: &ScriptedModel, hole: &BlackHole) -> String {
    let provider = |name: &str, url: String| format!("[providers.{name}]\nkind = \"openai\"\nbase_url = \"{url}\"\n");
    let mut text = provider("scripted", model.base_url()) + provider("hole", hole.base_url()).as_str();
    let script = json!(mcp::SERVER);
    text.push_str(&format!("[mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {script}]\ngrace_ms = 200\n"));
    for agent in ["main", "scout"] {
        text.push_str(&format!("[agents.{agent}]\nmodel = \"scripted/m\"\nmcp = []\n"));
    }
    for scene in SCENES {
        let model = if scene.name == "connecting" { "hole/m" } else { "scripted/m" };
        text.push_str(&format!("[agents.{}]\nmodel = \"{model}\"\n", scene.agent()));
        if scene.name != "MCP call" {
            text.push_str("mcp = []\n");
        }
        match scene.name {
            "sub-agent" => text.push_str("delegates = [\"scout\"]\n"),
            "pending approval" => text.push_str("approvals.shell = \"ask\"\n"),
            "compaction" => text.push_str("window_tokens = 400\n"),
            _ => {}
        }
    }
    text
}

/// The same state with its run still able to take a further step, once the gate of its name opens.
pub(super) async fn in_background(site: &Site, scene: &Scene) -> Up {
    let mut up = super::strikes::up(super::strikes::Surface::Budget, scene);
    let mark = Marker::new();
    let command = json!({"command": commands::setsid_child(&mark)});
    let first = match scene.name {
        "sub-agent" => {
            let below = format!("below-{}", up.marker);
            site.script(&below, [call("shell", &command)]);
            json!({"agent": "scout", "prompt": format!("look marker:{below}"), "wait": false})
        }
        _ => json!({"command": commands::setsid_child(&mark), "background": true}),
    };
    let tool = if scene.name == "sub-agent" { "spawn_agent" } else { "shell" };
    let second = Stream::new().text("on").wait_for(&up.run).tool_call("c2", "list_files", &json!({}));
    site.script(&up.marker, [call(tool, &first), second.into()]);
    up.marks.push(mark);
    super::strikes::send(site, scene, &up, &Value::Null).await;
    processes(&up, 2).await;
    second_request(site, &up).await.resting().await;
    up
}

fn nothing<'a>(_: &'a Site, _: &'a mut Up) -> Doing<'a> {
    Box::pin(std::future::ready(()))
}

fn says<'a>(site: &'a Site, up: &'a mut Up, answers: impl IntoIterator<Item = Behaviour>) -> Doing<'a> {
    site.script(&up.marker, answers);
    nothing(site, up)
}

fn call(tool: &str, arguments: &Value) -> Behaviour {
    Behaviour::tool_call("c1", tool, arguments)
}

/// A new marker for processes of this run.
fn mark(up: &mut Up) -> &Marker {
    up.marks.push(Marker::new());
    up.marks.last().unwrap()
}

fn shell<'a>(site: &'a Site, up: &'a mut Up, command: fn(&Marker) -> String) -> Doing<'a> {
    let arguments = json!({"command": command(mark(up))});
    says(site, up, [call("shell", &arguments)])
}

async fn processes(up: &Up, count: usize) {
    up.marks.last().unwrap().at_least(count).await;
}

async fn request(site: &Site, up: &Up) -> ModelRequest {
    site.model.marked(&up.marker).await
}

/// The second request of the run itself.
async fn second_request(site: &Site, up: &Up) -> ModelRequest {
    find(site, |seen| seen.iter().filter(|request| request.markers.last() == Some(&up.marker)).nth(1).cloned()).await
}

async fn find(site: &Site, wanted: impl Fn(&[ModelRequest]) -> Option<ModelRequest>) -> ModelRequest {
    loop {
        let seen = site.model.seen();
        match wanted(&seen) {
            Some(request) => return request,
            None => drop(site.model.requests(seen.len() + 1).await),
        }
    }
}

/// Another run is at work in the session, silently.
async fn occupy_the_session(site: &Site, up: &mut Up) {
    let first = format!("first-{}", up.marker);
    site.script(&first, [Behaviour::silent_mid_stream("busy")]);
    let body = json!({"text": format!("first marker:{first}"), "agent": "main", "timeoutMs": 600_000});
    let path = format!("/api/sessions/{}/runs", up.session);
    let sent = site.daemon.http().post(&path, &body).await.expect_status(202);
    up.in_its_way = sent["runId"].as_str().map(str::to_owned);
    site.model.marked(&first).await.resting().await;
}

async fn is_listed(site: &Site, up: &Up) {
    let (http, session) = (site.daemon.http(), up.session.clone());
    loop {
        let list = http.get("/api/runs?state=active").await.expect_status(200);
        let waits = |run: &&Value| run["sessionKey"] == session.as_str() && run["state"] == "queued";
        if list["items"].as_array().unwrap().iter().any(|run| waits(&run)) {
            return;
        }
    }
}

async fn is_asked(site: &Site, up: &Up) {
    let http = site.daemon.http();
    loop {
        let list = http.get("/api/approvals").await.expect_status(200);
        if list["items"].as_array().unwrap().iter().any(|row| row["sessionKey"] == up.session.as_str()) {
            return;
        }
    }
}

/// A turn that fills the agent's window, before the run that is stopped.
async fn a_long_story(site: &Site, up: &mut Up) {
    let before = format!("before-{}", up.marker);
    site.script(&before, [Behaviour::text("And on it went. ".repeat(200))]);
    let body = json!({"text": format!("tell me a story marker:{before}"), "agent": "main"});
    let sent = site.daemon.http().post(&format!("/api/sessions/{}/runs", up.session), &body).await.expect_status(202);
    drop(site.daemon.http().events(sent["runId"].as_str().unwrap(), 0).await.until("run.ended").await);
    site.script(&before, [Behaviour::silent_mid_stream("So far")]);
}

/// The summary's request shows the story alone.
async fn the_summary(site: &Site, up: &Up) -> ModelRequest {
    let before = format!("before-{}", up.marker);
    find(site, |seen| {
        let of_it = |request: &&ModelRequest| request.markers == [before.clone()] && request.messages().len() > 2;
        seen.iter().rev().find(of_it).cloned()
    })
    .await
}
