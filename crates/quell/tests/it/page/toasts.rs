//! Every toast of rows B4 and B9: stopped, nothing to stop, and each way in which a stop can fail, with its reason.
//!
//! A sound daemon hardly ever refuses the stop of a call that its page offers. So the refusals come from a relay, in the very
//! words of the daemon; a lost network is a browser without one.

use quell_testkit::browser::{Entry, is_skipped};
use quell_testkit::model::Behaviour;
use serde_json::{Value, json};

use super::Scene;
use super::relay::Relay;

const BUTTON: &str = "#agents [data-agent='main'] .abort-btn";

fn problem(status: u16, code: &str, title: &str, detail: &str) -> Value {
    json!({"type": "about:blank", "title": title, "status": status, "detail": detail, "code": code, "error": code})
}

/// Each refusal, and a part of its reason that a person must be told.
fn refusals() -> Vec<(u16, Value, &'static str)> {
    let not_ready = problem(500, "society_not_initialized", "The engine is not ready", "the engine is still starting");
    let no_id = problem(400, "missing_agent_id", "No agent id", "the agent id is blank");
    let unknown = problem(404, "agent_not_found", "No such agent", "there is no agent \"main\"");
    let forbidden = problem(403, "forbidden", "Not allowed", "this needs the scope write");
    vec![
        (500, not_ready, "the engine is still starting"),
        (400, no_id, "the agent id is blank"),
        (404, unknown, "there is no agent"),
        (403, forbidden, "needs the scope write"),
        (502, json!("<html>Bad gateway</html>"), ""),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_to_the_stop_of_a_call_is_a_toast() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let relay = Relay::before(scene.daemon.url()).await;
    let browser = &scene.browser;
    browser.open(&scene.link().replace(scene.daemon.url(), &relay.url)).await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    relay.status("main", "waiting_llm");

    relay.answer_abort("main", 200, answer(false, Some("not_waiting_llm")));
    browser.click(BUTTON).await;
    scene.toast("info", "No model call in progress").await;
    relay.answer_abort("main", 200, answer(true, None));
    browser.click(BUTTON).await;
    scene.toast("success", "Model call stopped").await;
    browser.assert_quiet(&[]).await;

    for (status, body, reason) in refusals() {
        relay.answer_abort("main", status, body);
        refused(&scene, &["Could not stop the call: ", reason], &format!("status of {status}")).await;
    }
    browser.offline(true).await;
    refused(&scene, &["Could not stop the call: "], "ERR_INTERNET_DISCONNECTED").await;
    browser.offline(false).await;
}

fn answer(aborted: bool, reason: Option<&str>) -> Value {
    let mut answer = json!({"ok": true, "agentId": "main", "aborted": aborted, "runIds": []});
    if let Some(reason) = reason {
        answer["reason"] = json!(reason);
    }
    answer
}

/// A stop that fails: an error toast with the reason, the same on the console, and the button can be used again.
async fn refused(scene: &Scene, parts: &[&str], network: &str) {
    let browser = &scene.browser;
    browser
        .run("document.querySelectorAll('#toasts .toast.error').forEach(toast => { toast.dataset.old = 1; });", &[])
        .await;
    browser.click(BUTTON).await;
    let text = browser.until("document.querySelector('#toasts .toast.error:not([data-old])')?.textContent").await;
    let text = text.as_str().unwrap();
    assert!(parts.iter().all(|part| text.contains(part)), "{text:?} lacks one of {parts:?}");
    let reason = text.split_once("Could not stop the call: ").unwrap().1;
    let words = reason.split_whitespace().count();
    assert!(
        (2..30).contains(&words) && !reason.contains(['<', '{']) && !reason.trim_end().ends_with(':'),
        "no reason for people: {reason:?}"
    );
    // What the browser says of the request, and what the page says of the failure; nothing else.
    let entries = browser.entries_until(&["Could not stop the call", network]).await;
    let told = |entry: &&Entry| entry.source == "console-api" && entry.text.contains("Could not stop the call");
    assert_eq!(entries.iter().filter(told).count(), 1, "{entries:#?}");
    let loud = entries.iter().filter(|entry| entry.level == "SEVERE" && !told(entry));
    assert!(loud.clone().all(|entry| entry.text.contains(network)), "{:#?}", loud.collect::<Vec<_>>());
    browser.shown(BUTTON).await;
}

/// What the daemon itself answers, as far as a page can bring it about.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_the_daemon_is_stopped_by_its_agents_button() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    browser.gone(BUTTON).await;
    scene.model.script(Behaviour::silent_mid_stream("begun"));
    let run = scene.send("elsewhere", "go on for ever").await;
    browser.shown(BUTTON).await;
    let look = browser.value(LOOK).await;
    assert_eq!(look[0], "Stop this call");
    assert_eq!(look[1], "Waiting for the model");
    assert_eq!(look[2], "rgb(204, 0, 0)", "the base of its red is #cc0000");
    browser.click(BUTTON).await;
    scene.toast("success", "Model call stopped").await;
    browser.gone(BUTTON).await;
    browser.gone("#agents .compute-status").await;
    assert_eq!(scene.ended(&run).await["verdict"]["kind"], "aborted");
    assert!(browser.value("document.querySelector('#toasts').getAttribute('aria-live')").await.is_string());
    browser.assert_quiet(&[]).await;
}

/// A token that may look and not touch: the daemon's own refusal.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_only_look_is_told_why_nothing_was_stopped() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    let made = scene.http.post("/api/tokens", &json!({"name": "guest", "scope": "read"})).await.expect_status(201);
    browser.open(scene.daemon.url()).await;
    browser.fill("#token", made["token"].as_str().unwrap()).await;
    browser.click("#sign-in-button").await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    scene.model.script(Behaviour::silent_mid_stream("begun"));
    let run = scene.send("elsewhere", "go on for ever").await;
    browser.shown(BUTTON).await;
    // What the sign-in itself had to say is no part of it.
    drop(browser.entries().await);
    refused(&scene, &["Could not stop the call: "], "status of 403").await;
    let still = scene.http.get(&format!("/api/runs/{run}")).await.expect_status(200);
    assert!(still["verdict"].is_null(), "{still:#}");
}

/// Tooltips, and the colour of the button.
const LOOK: &str = "(row => [row.querySelector('.abort-btn').title, row.querySelector('.compute-status.waiting').title,
    getComputedStyle(row.querySelector('.abort-btn')).backgroundColor])(document.querySelector('#agents [data-agent=main]'))";
