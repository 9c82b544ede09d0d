//! A page that is loaded again shows what was seen live: thinking, calls with their times, names, ends. And what a daemon left that died,
//! or a provider that does not answer.

use quell_testkit::ScriptedModel;
use quell_testkit::browser::{Browser, Screen, is_skipped};
use quell_testkit::daemon::Home;
use quell_testkit::model::{Behaviour, Stream};
use serde_json::{Value, json};

use super::{Plan, Scene};
use crate::cli::exe;

/// Everything that is said of the turns, but for the times of day: who, how it stands, what was thought, said and called, how it
/// ended.
const SEEN: &str = "[...document.querySelectorAll('article.turn')].map(turn => [turn.dataset.role, turn.dataset.state ?? '',
    ...[...turn.querySelectorAll('.who, .state, .asked-text, .thinking-text, .markdown, .partial-note, .call-tool, .call-line, \
    .call-time, .call-end, .turn-foot')].map(part => part.className.split(' ')[0] + ': ' + part.textContent.trim())])";

async fn seen(scene: &Scene) -> Value {
    scene.browser.value(SEEN).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_shows_what_was_seen_live() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    scene.sign_in().await;
    scene.session("again").await;
    let browser = &scene.browser;
    let command = json!({"command": "echo printed; sleep 0.05; exit 3"});
    let stream = Stream::new().thinking("First I look around.").text("I look.").tool_call("c1", "shell", &command);
    scene.model.script(stream);
    scene.model.script(Stream::new().thinking("Now I know.").text("It **failed**."));
    scene.say("try it").await;
    browser.reads("article.turn[data-role=assistant]", "It failed.").await;
    scene.mode("send").await;
    scene.model.script(Stream::new().thinking("A long thought").text("half an ans").wait_for("never"));
    scene.say("more").await;
    browser.reads("article.turn[data-role=assistant] .markdown", "half an ans").await;
    browser.click("#send").await;
    browser.reads("article.turn.stopped .partial-note", "model").await;
    browser.reads("article.turn.stopped .receipt-line", "stopped in").await;
    let live = seen(&scene).await;
    let text = live.to_string();
    for part in
        ["thinking-text: First I look around.", "thinking-text: A long thought", "who: main", "call-end: exit 3"]
    {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(text.contains(" ms"), "no time of a call in {text}");

    browser.reload().await;
    browser.reads("article.turn.stopped .receipt-line", "stopped in").await;
    let again = seen(&scene).await;
    assert_eq!(again, live, "live: {live:#}\nafter the reload: {again:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_lost_its_daemon_says_what_was_open() {
    if is_skipped() {
        return;
    }
    let mut scene = Scene::open().await;
    scene.sign_in().await;
    scene.session("lost").await;
    scene.model.script(Behaviour::tool_call("c1", "shell", &json!({"command": "echo begun; sleep 600"})));
    scene.say("wait for it").await;
    scene.browser.shown("details.call[data-end=running]").await;
    scene.browser.reads("#inspector", "sleep 600").await;
    scene.daemon.kill9().await;
    scene.browser.until("document.body.classList.contains('stale')").await;
    let (home, address) = (scene.daemon.home().clone(), scene.daemon.address().to_owned());
    scene.daemon = home.start_on(exe(), &address).await;
    let browser = &scene.browser;
    browser.shown("[data-fact=connection][data-state=live]").await;
    scene.mode("send").await;
    browser.reads("#inspector", "the record of what it held was lost with it").await;
    browser.reads("#inspector", "echo begun; sleep 600").await;
    browser.reads("#inspector", "lost").await;
    browser.reads("#inspector .receipt-line", "record lost with the daemon").await;
    assert_eq!(browser.count("#toasts .toast.error").await, 0);
    let inspector = browser.text("#inspector").await;
    assert!(!inspector.contains("It held nothing"), "{inspector}");
    browser.picture(&super::pictures().join("lost.png")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_fails_is_seen_to_be_tried_again() {
    if is_skipped() {
        return;
    }
    let model = ScriptedModel::start().await;
    let config = super::configuration(&Plan::default(), &model).replace("max_retries = 0", "max_retries = 5");
    let daemon = Home::new(&config).start(exe()).await;
    let (http, browser) = (daemon.http(), Browser::start(Screen::WIDE).await);
    let scene = Scene { browser, daemon, model, http };
    scene.sign_in().await;
    scene.session("retried").await;
    scene.model.script(Behaviour::rate_limited("50"));
    scene.say("hello").await;
    let state = "article.turn[data-role=assistant] .state";
    scene.browser.reads(state, "attempt 1 of 6 failed, next in 50 s: ").await;
    scene.browser.picture(&super::pictures().join("retry.png")).await;
    scene.browser.click("#send").await;
    scene.mode("send").await;
    assert!(!scene.browser.text(state).await.contains("attempt"));
}
