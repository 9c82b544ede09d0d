//! Row B8, and the first property of row B10: the stop button of an agent is visible if and only if the agent is `waiting_llm`.
//!
//! It is checked in two worlds. In one the daemon's own agents go through statuses as random acts drive them. In the other a
//! relay tells the page random sequences of statuses, faster than a daemon would. In both a watcher inside the page looks at
//! every change of the tree, so that no state in between goes unseen.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use quell_testkit::browser::is_skipped;
use quell_testkit::commands::{self, Marker};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use super::relay::Relay;
use super::{Plan, Scene};
use crate::doors::escape;

const STATUSES: [&str; 4] = ["idle", "waiting_llm", "processing", "stopping"];
const AGENTS: [&str; 3] = ["main", "scout", "team/writer"];

/// Looks at the tree after every change of it, and keeps what breaks the rule.
const WATCH: &str = r"
  window.__broken = [];
  window.__changes = 0;
  const seen = (element) => !!element && element.checkVisibility({ visibilityProperty: true });
  window.__row = (id) => {
    const row = [...document.querySelectorAll('#agents [data-agent]')].find((row) => row.dataset.agent === id);
    const own = (css) => [...row.querySelectorAll(css)].filter((e) => e.closest('[data-agent]') === row).filter(seen);
    const shown = { waiting: '.compute-status.waiting', processing: '.compute-status.processing',
      stopping: '.compute-status.stopping', button: 'button.abort-btn' };
    return row && Object.fromEntries(Object.keys(shown).sort().map((name) => [name, own(shown[name]).length]));
  };
  window.__history = [];
  const look = () => {
    window.__changes += 1;
    const main = JSON.stringify(window.__row('main'));
    if (window.__history.at(-1) !== main) window.__history.push(main);
    for (const { dataset: { agent } } of document.querySelectorAll('#agents [data-agent]')) {
      const row = window.__row(agent);
      if (row.button !== row.waiting || row.waiting + row.processing + row.stopping > 1) {
        window.__broken.push(`${agent}: ${JSON.stringify(row)}`);
      }
    }
  };
  look();
  const tree = document.querySelector('#agents');
  new MutationObserver(look).observe(tree, { subtree: true, childList: true, attributes: true });
";

/// What a row shows when its agent does this, as the watcher writes it.
fn look_of(status: &str) -> String {
    let one = |wanted: &str| u8::from(status == wanted);
    let [waiting, processing, stopping] = ["waiting_llm", "processing", "stopping"].map(one);
    format!(r#"{{"button":{waiting},"processing":{processing},"stopping":{stopping},"waiting":{waiting}}}"#)
}

async fn shows(scene: &Scene, agent: &str, status: &str) {
    scene.browser.until(&format!("JSON.stringify(window.__row('{agent}')) === '{}'", look_of(status))).await;
}

/// Fails when the rule was ever broken, and when nobody looked.
async fn held(scene: &Scene) {
    assert_eq!(scene.browser.value("window.__broken").await, json!([]));
    let looks = scene.browser.value("window.__changes").await.as_u64().unwrap();
    assert!(looks > 8, "only {looks} changes were looked at");
}

fn samples<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>, count: usize) -> Vec<T> {
    // New ones at each run; a failure names the act it failed at.
    let mut runner = TestRunner::new(Config::default());
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

async fn society() -> Scene {
    let others = [("scout", "parent = \"main\""), ("team/writer", "parent = \"scout\"")];
    Scene::with(&Plan { others: &others, ..Plan::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_button_is_visible_if_and_only_if_waiting_llm_whatever_the_page_is_told() {
    if is_skipped() {
        return;
    }
    let scene = society().await;
    let relay = Relay::before(scene.daemon.url()).await;
    let browser = &scene.browser;
    browser.open(&scene.link().replace(scene.daemon.url(), &relay.url)).await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    browser.shown("#agents [data-agent='team/writer']").await;
    browser.run(WATCH, &[]).await;
    let steps = samples((0..AGENTS.len(), 0..STATUSES.len(), prop::bool::weighted(0.7)), 150);
    let mut last = ["idle"; AGENTS.len()];
    for (step, (agent, status, looked_at)) in steps.into_iter().enumerate() {
        relay.status(AGENTS[agent], STATUSES[status]);
        last[agent] = STATUSES[status];
        // Some statuses follow each other faster than anybody can look.
        if looked_at {
            println!("step {step}: {} is {}", AGENTS[agent], STATUSES[status]);
            shows(&scene, AGENTS[agent], STATUSES[status]).await;
        }
    }
    for (agent, status) in AGENTS.iter().zip(last) {
        shows(&scene, agent, status).await;
    }
    held(&scene).await;
    an_old_list_does_not_undo_what_is_newer(&scene, &relay).await;
    browser.assert_quiet(&[]).await;
}

/// A list that was made before an event arrives behind it: what the event told stays.
async fn an_old_list_does_not_undo_what_is_newer(scene: &Scene, relay: &Relay) {
    let browser = &scene.browser;
    for (old, new) in [("waiting_llm", "processing"), ("processing", "waiting_llm"), ("stopping", "idle")] {
        relay.status("main", old);
        shows(scene, "main", old).await;
        relay.hold_lists();
        relay.status("scout", new);
        relay.list_is_held().await;
        relay.status("main", new);
        shows(scene, "main", new).await;
        browser.run("window.__history.length = 0; performance.clearResourceTimings();", &[]).await;
        relay.release_lists();
        // Lists are fetched one after the other: when a second one is here, the first one has been looked at.
        relay.status("scout", old);
        browser
            .until("performance.getEntriesByType('resource').filter(e => e.name.endsWith('/api/agents')).length > 1")
            .await;
        let history = browser.value("window.__history.join('; ')").await;
        assert!(history == "" || history == look_of(new), "{old} came back over {new}: {history}");
    }
}

/// One thing that happens to an agent of the daemon.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// A run begins and waits for the model.
    Wait,
    /// A run begins and is at work in a tool.
    Work,
    /// What waits is answered.
    Answer,
    /// Somebody clicks on the button, if there is one.
    Click,
    /// All runs are stopped past the page.
    Stop,
}

fn act() -> impl Strategy<Value = (usize, Act)> {
    let acts = prop_oneof![3 => Just(Act::Wait), 2 => Just(Act::Work), 2 => Just(Act::Answer), 2 => Just(Act::Click), 1 => Just(Act::Stop)];
    (0..AGENTS.len(), acts)
}

/// What the session of an agent does.
#[derive(Debug, Clone, Default)]
enum Doing {
    #[default]
    Nothing,
    /// It waits for the model, which waits at this gate.
    Waiting(String),
    Working,
}

impl Doing {
    fn status(&self) -> &'static str {
        match self {
            Self::Nothing => "idle",
            Self::Waiting(_) => "waiting_llm",
            Self::Working => "processing",
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_button_is_visible_if_and_only_if_waiting_llm_whatever_agents_do() {
    if is_skipped() {
        return;
    }
    let scene = society().await;
    scene.sign_in().await;
    scene.browser.shown("#agents [data-agent='team/writer']").await;
    scene.browser.run(WATCH, &[]).await;
    let mark = Marker::new();
    let mut doing: [Doing; AGENTS.len()] = Default::default();
    for (number, (agent, act)) in samples(act(), 30).into_iter().enumerate() {
        println!("act {number}: {act:?} of {}", AGENTS[agent]);
        let before = std::mem::take(&mut doing[agent]);
        doing[agent] = play(&scene, &mark, (number, AGENTS[agent]), (act, before)).await;
        for (agent, doing) in AGENTS.iter().zip(&doing) {
            shows(&scene, agent, doing.status()).await;
            let said = scene.http.get(&format!("/api/agents/{}", escape(agent))).await.expect_status(200);
            assert_eq!(said["computeStatus"], doing.status(), "what {agent} does: {said:#}");
        }
    }
    held(&scene).await;
    scene.model.assert_histories_valid();
    scene.browser.assert_quiet(&[]).await;
}

/// Lets an agent act, if it can in what it does; answers what it does then.
async fn play(scene: &Scene, mark: &Marker, (number, agent): (usize, &str), (act, doing): (Act, Doing)) -> Doing {
    let path = format!("/api/sessions/{}", escape(agent));
    let begin = async |behaviour: Behaviour| {
        scene.model.script(behaviour);
        let body = json!({"text": format!("act {number}"), "agent": agent});
        drop(scene.http.post(&format!("{path}/runs"), &body).await.expect_status(202));
    };
    match (act, doing) {
        (Act::Wait, Doing::Nothing) => {
            let gate = format!("gate {number}");
            begin(Stream::new().text("hm").wait_for(&gate).text(".").into()).await;
            Doing::Waiting(gate)
        }
        (Act::Work, Doing::Nothing) => {
            begin(Behaviour::tool_call("c1", "shell", &json!({"command": commands::obedient(mark)}))).await;
            Doing::Working
        }
        (Act::Answer, Doing::Waiting(gate)) => {
            scene.model.open_gate(&gate);
            Doing::Nothing
        }
        (Act::Click, Doing::Waiting(_)) => {
            let before = scene.browser.value("location.href").await;
            scene.browser.click(&format!("#agents [data-agent='{agent}'] .abort-btn")).await;
            assert_eq!(scene.browser.value("location.href").await, before, "the click does not open the row");
            Doing::Nothing
        }
        (Act::Stop, _) => {
            let _ = scene.http.post(&format!("{path}/stop"), &json!({})).await.expect_status(200);
            Doing::Nothing
        }
        (Act::Wait | Act::Work | Act::Answer | Act::Click, doing) => doing,
    }
}
