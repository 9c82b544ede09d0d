//! The surface matrix: every way to stop, through the real binary, in every state that a run can be in; after each the same is
//! demanded. Rows are surfaces, columns are states; both are tables.

mod scenes;
mod strikes;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use quell_testkit::ScriptedModel;
use quell_testkit::daemon::{Daemon, EventStream, Home};
use quell_testkit::model::{Behaviour, BlackHole};
use rstest::rstest;
use serde_json::{Value, json};

use crate::cli::exe;
use crate::doors::escape;
use crate::harness::PATIENCE;
use scenes::{SCENES, Scene, Up};
use strikes::Surface;

/// A daemon with everything that can keep a run waiting around it.
pub(super) struct Site {
    pub(super) home: Home,
    pub(super) daemon: Daemon,
    pub(super) model: ScriptedModel,
    pub(super) hole: BlackHole,
    scripts: Scripts,
}

/// Answers of the model by the last marker of the request.
type Scripts = Arc<Mutex<HashMap<String, VecDeque<Behaviour>>>>;

impl Site {
    async fn open(more: &str) -> Self {
        let (model, hole) = (ScriptedModel::start().await, BlackHole::open().await);
        let scripts = Scripts::default();
        let answers = Arc::clone(&scripts);
        model.by_prompt(move |_, request| {
            let marker = request.markers.last().cloned().unwrap_or_default();
            let scripted = answers.lock().unwrap().get_mut(&marker).and_then(VecDeque::pop_front);
            scripted.unwrap_or_else(|| Behaviour::text("That is done."))
        });
        let home = Home::new(&format!("{}{more}", scenes::config(&model, &hole)));
        let daemon = home.start(exe()).await;
        Self { home, daemon, model, hole, scripts }
    }

    pub(super) fn script(&self, marker: &str, answers: impl IntoIterator<Item = Behaviour>) {
        self.scripts.lock().unwrap().insert(marker.to_owned(), answers.into_iter().collect());
    }

    async fn events(&self, run: &str) -> EventStream {
        self.daemon.http().events(run, 0).await
    }

    async fn view(&self, run: &str) -> Value {
        self.daemon.http().get(&format!("/api/runs/{run}")).await.expect_status(200)
    }

    /// The next message of the session is answered on a valid history.
    async fn next_message_works(&self, scene: &Scene, up: &Up) {
        let marker = format!("next-{}", up.run);
        let body = json!({"text": format!("and now? marker:{marker}"), "agent": "main"});
        let path = format!("/api/sessions/{}/runs", escape(&up.session));
        let sent = self.daemon.http().post(&path, &body).await.expect_status(202);
        let log = self.events(sent["runId"].as_str().unwrap()).await.to_end().await;
        log.assert_sound();
        assert_eq!(log.verdict(), "completed", "{}: the message after it", scene.name);
    }
}

#[rstest]
#[case(Surface::HttpRun)]
#[case(Surface::HttpSession)]
#[case(Surface::HttpAll)]
#[case(Surface::AgentAbort)]
#[case(Surface::WsRun)]
#[case(Surface::WsSession)]
#[case(Surface::WsSessionsAbort)]
#[case(Surface::StopText)]
#[case(Surface::CtrlC)]
#[case(Surface::TimeOut)]
#[case(Surface::Sigterm)]
#[case(Surface::Kill9)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_works_in_every_state(#[case] surface: Surface) {
    let mut site = Site::open("").await;
    let mut ups = Vec::new();
    for scene in SCENES {
        ups.push(strikes::bring_up(&site, scene, surface).await);
    }
    // All states stand at the same time: whatever a stop does to one, it does nothing to the others.
    let mut streams = Vec::new();
    for up in &ups {
        streams.push(site.events(&up.run).await);
    }
    if surface.takes_all() {
        strikes::strike_all(&mut site, surface, &ups).await;
    } else {
        for (scene, up) in SCENES.iter().zip(&mut ups) {
            strikes::strike(&site, surface, scene, up).await;
        }
    }
    for ((scene, up), stream) in SCENES.iter().zip(&ups).zip(streams) {
        prove(&site, surface, (scene, up), stream).await;
    }
    for run in ups.iter().filter_map(|up| up.in_its_way.as_ref()) {
        let over =
            site.daemon.http().post(&format!("/api/runs/{run}/stop?wait=1"), &json!({})).await.expect_status(200);
        // A stop of one run leaves its session's others alone.
        assert_eq!(over["aborted"], json!(surface.takes_one_run()), "{surface:?}: {over:#}");
    }
    site.model.connections(0).await;
    site.hole.connecting(0).await;
    for (scene, up) in SCENES.iter().zip(&ups) {
        site.next_message_works(scene, up).await;
    }
    site.model.assert_histories_valid();
    show(surface, &site, &ups).await;
    assert!(site.daemon.stop().await.success(), "{}", site.daemon.output());
}

/// A budget is looked at between steps: what a run left in the background until then ends with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_ends_what_its_run_had_started() {
    let site = Site::open("[limits]\nmax_steps = 2\n").await;
    for name in ["background process", "sub-agent"] {
        let scene = SCENES.iter().find(|scene| scene.name == name).unwrap();
        let up = scenes::in_background(&site, scene).await;
        let stream = site.events(&up.run).await;
        site.model.open_gate(&up.run);
        prove(&site, Surface::Budget, (scene, &up), stream).await;
        site.next_message_works(scene, &up).await;
    }
    site.model.assert_histories_valid();
    assert!(site.daemon.stop().await.success(), "{}", site.daemon.output());
}

/// What is demanded of every cell.
async fn prove(site: &Site, surface: Surface, (scene, up): (&Scene, &Up), stream: EventStream) {
    let what = format!("{surface:?} x {}", scene.name);
    if surface == Surface::Kill9 {
        drop(stream);
    } else {
        let log = stream.to_end().await;
        log.assert_sound();
        assert_eq!(log.verdict(), "aborted", "{what}: {:?}", log.kinds());
    }
    for mark in &up.marks {
        mark.gone(PATIENCE).await;
    }
    let view = site.view(&up.run).await;
    assert_eq!((&view["state"], &view["verdict"]["kind"]), (&json!("ended"), &json!("aborted")), "{what}: {view:#}");
    assert_eq!(view["verdict"]["reason"], surface.reason(), "{what}: {view:#}");
    assert_eq!(view["receipt"]["leftovers"], json!([]), "{what}: {view:#}");
    assert_eq!(view["receipt"]["turn"]["recorded"], json!(scene.started), "{what}: {view:#}");
    for row in view["receipt"]["resources"].as_array().unwrap() {
        assert!(row["releasedAt"].is_object(), "{what}: {row:#}");
    }
}

#[expect(clippy::print_stdout, reason = "the table is what a person reads of the matrix")]
async fn show(surface: Surface, site: &Site, ups: &[Up]) {
    for (scene, up) in SCENES.iter().zip(ups) {
        let receipt = site.view(&up.run).await["receipt"].clone();
        let ms = receipt["settledAt"]["ms"].as_f64().map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
        println!("{:<16} {:<20} rung {:<8} settled ms {ms:>8}", format!("{surface:?}"), scene.name, receipt["rung"]);
    }
    println!("{} cells of {surface:?}: all proven", ups.len());
}
