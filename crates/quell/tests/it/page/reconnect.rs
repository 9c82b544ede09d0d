//! The daemon dies and comes back: the page says that what it shows is old, connects again by itself, is still signed in, and
//! goes on where it was.

use quell_testkit::browser::{Key, is_skipped};
use quell_testkit::model::Behaviour;

use super::Scene;
use crate::cli::exe;

#[tokio::test(flavor = "multi_thread")]
async fn a_page_outlives_its_daemon() {
    if is_skipped() {
        return;
    }
    let mut scene = Scene::open().await;
    scene.sign_in().await;
    scene.browser.shown("#message").await;
    scene.session("long-lived").await;
    scene.streaming("what was said before").await;
    scene.browser.fill("#message", "half a thou").await;

    scene.daemon.kill9().await;
    let browser = &scene.browser;
    browser.until("document.body.classList.contains('stale')").await;
    browser.until("document.querySelector('[data-fact=connection]').dataset.state !== 'live'").await;
    let mark = browser.until("document.querySelector('[data-fact=connection]').textContent.trim()").await;
    assert!(mark.is_string(), "the connection says so in words");
    // What is known stays in sight.
    browser.reads("article.turn[data-role=assistant]", "what was said before").await;
    assert_eq!(browser.value("document.querySelector('#message').value").await, "half a thou");
    // A stop that nobody answers is not silent, and is not said to have failed: it waits.
    browser.click("#send").await;
    browser.reads("#settling", "waits for the connection").await;
    assert_eq!(browser.count("#toasts .toast.error").await, 0);

    let (home, address) = (scene.daemon.home().clone(), scene.daemon.address().to_owned());
    scene.daemon = home.start_on(exe(), &address).await;
    scene.http = scene.daemon.http();
    let browser = &scene.browser;
    browser.shown("[data-fact=connection][data-state=live]").await;
    browser.until("!document.body.classList.contains('stale')").await;
    assert_eq!(browser.value("document.body.dataset.view").await, "chat", "the cookie survives");
    // The run was sealed by the new daemon: it is over, and the page has heard.
    scene.mode("send").await;
    browser.reads("article.turn.stopped", "what was said before").await;
    browser.reads("#settling", "ended before the stop arrived").await;
    assert_eq!(browser.count("article.turn[data-role=user]").await, 1, "nothing is shown twice");
    assert_eq!(browser.count("#toasts .toast.error").await, 0);
    assert_eq!(browser.value("document.querySelector('#message').value").await, "half a thou");
    scene.model.script(Behaviour::text("I am back."));
    browser.fill("#message", "ght").await;
    browser.press(quell_testkit::browser::Key::Enter).await;
    browser.reads("article.turn[data-role=user]", "half a thought").await;
    browser.reads("article.turn[data-role=assistant]", "I am back.").await;
    scene.model.assert_histories_valid();
    browser
        .assert_quiet(&["ERR_CONNECTION", "WebSocket connection to", "ERR_EMPTY_RESPONSE", "Failed to load resource"])
        .await;
}

/// The connection breaks in the middle of a stream, and the stream goes on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_where_it_was() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let relay = super::relay::Relay::before(scene.daemon.url()).await;
    let browser = &scene.browser;
    browser.open(&scene.link().replace(scene.daemon.url(), &relay.url)).await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    scene.session("resumed").await;
    let stream = quell_testkit::model::Stream::new().text("one ").wait_for("two").text("two ");
    scene.model.script(stream.wait_for("three").text("three"));
    scene.say("count").await;
    browser.reads("article.turn[data-role=assistant]", "one").await;
    relay.cut().await;
    browser.until("document.body.classList.contains('stale')").await;
    scene.model.open_gate("two");
    relay.mend();
    browser.shown("[data-fact=connection][data-state=live]").await;
    browser.reads("article.turn[data-role=assistant]", "one two").await;
    scene.mode("stop").await;
    scene.model.open_gate("three");
    scene.mode("send").await;
    let text = browser.text("article.turn[data-role=assistant] .markdown").await;
    assert_eq!(text.trim(), "one two three", "nothing is lost and nothing is doubled");
    browser.assert_quiet(&["WebSocket connection to", "/api/sessions/resumed"]).await;
}

/// What a person does without a connection: Esc, on a run that goes on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_a_connection_is_sent_when_it_is_back() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let relay = super::relay::Relay::before(scene.daemon.url()).await;
    let browser = &scene.browser;
    browser.open(&scene.link().replace(scene.daemon.url(), &relay.url)).await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    scene.session("cut-off").await;
    for times in 1..=3 {
        scene.streaming(&format!("Part {times} goes on")).await;
        browser.offline(true).await;
        relay.cut().await;
        browser.until("document.body.classList.contains('stale')").await;
        browser.press(Key::Escape).await;
        browser.reads("#settling", "waits for the connection").await;
        scene.mode("force").await;
        assert_eq!(browser.count("#toasts .toast.error").await, 0);
        browser.offline(false).await;
        relay.mend();
        scene.model.request(times - 1).client_left().await;
        scene.mode("send").await;
        browser.reads("#settling", "stopped in ").await;
        let stopped = format!("document.querySelectorAll('article.turn.stopped .receipt-line').length === {times}");
        browser.until(&stopped).await;
    }
    // A message that follows is not stopped by any of them.
    scene.model.script(Behaviour::text("I am not stopped."));
    scene.say("and now?").await;
    browser.reads("article.turn[data-role=assistant]", "I am not stopped.").await;
    scene.mode("send").await;
    assert_eq!(browser.count("article.turn.stopped").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_outlives_a_reload_and_not_the_sending() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    scene.sign_in().await;
    scene.session("drafted").await;
    let browser = &scene.browser;
    browser.fill("#message", "half a thought").await;
    browser.reload().await;
    browser.until("document.querySelector('#message')?.value === 'half a thought'").await;
    scene.model.script(Behaviour::text("Whole."));
    browser.press(Key::Enter).await;
    browser.reads("article.turn[data-role=assistant]", "Whole.").await;
    browser.reload().await;
    browser.reads("article.turn[data-role=assistant]", "Whole.").await;
    assert_eq!(browser.value("document.querySelector('#message').value").await, "");
}
