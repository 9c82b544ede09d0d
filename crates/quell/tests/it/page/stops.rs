//! The one stop control of the chat: by button, by Esc, forced by a second press, and for what was started elsewhere.

use std::process::Stdio;

use quell_testkit::browser::{Key, is_skipped};
use quell_testkit::commands::{self, Marker};
use quell_testkit::model::Behaviour;
use serde_json::json;

use super::{PATIENT, Plan, Scene};
use crate::cli::exe;

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_by_button_and_by_esc_ends_in_a_receipt() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    browser.shown("#message").await;
    scene.streaming("The first half").await;
    let place = "(r => [r.x, r.y, r.width, r.height])(document.querySelector('#send').getBoundingClientRect())";
    let while_running = browser.value(place).await;
    browser.click("#send").await;
    scene.model.request(0).client_left().await;
    browser.reads("article.turn.stopped .receipt-line", "stopped in ").await;
    browser.reads("article.turn.stopped .receipt-line", "history valid").await;
    browser.reads("article.turn.stopped .partial.not-seen", "The first half").await;
    scene.mode("send").await;
    assert_eq!(browser.value(place).await, while_running, "one control in one place and size");
    browser.reads("#settling", "stopped in ").await;

    // Esc with nothing to stop stops nothing, and what is being typed stays.
    browser.fill("#message", "a draft").await;
    browser.press(Key::Escape).await;
    assert_eq!(browser.value("document.querySelector('#message').value").await, "a draft");
    browser.run("document.querySelector('#message').value = ''", &[]).await;

    scene.streaming("The second half").await;
    browser.fill("#message", "typed while it runs").await;
    browser.press(Key::Escape).await;
    scene.model.request(1).client_left().await;
    browser.until("document.querySelectorAll('article.turn.stopped .receipt-line').length === 2").await;
    scene.mode("send").await;
    assert_eq!(browser.value("document.querySelector('#message').value").await, "typed while it runs");

    // Esc closes what is open above the chat, and stops nothing then.
    browser.run("document.querySelector('#message').value = ''", &[]).await;
    scene.streaming("The third part").await;
    browser.click("#stop-all").await;
    browser.shown("#stop-all-dialog").await;
    browser.press(Key::Escape).await;
    browser.gone("#stop-all-dialog").await;
    scene.mode("stop").await;
    // From anywhere in the chat, without any field.
    browser.run("document.activeElement.blur()", &[]).await;
    browser.press(Key::Escape).await;
    scene.mode("send").await;
    browser.until("document.querySelectorAll('article.turn.stopped .receipt-line').length === 3").await;

    // Nor does it while it empties a search, and the second half of a double click on Send stops nothing, either.
    scene.streaming("The fourth part").await;
    browser.fill("#session-search", "a word").await;
    browser.press(Key::Escape).await;
    browser.until("document.querySelector('#session-search').value === ''").await;
    let twice = "document.querySelector('#send').dispatchEvent(new MouseEvent('click', {bubbles: true, detail: 2}))";
    browser.run(twice, &[]).await;
    assert_eq!(browser.value("document.querySelector('#send').dataset.mode").await, "stop");
    browser.press(Key::Escape).await;
    browser.until("document.querySelectorAll('article.turn.stopped .receipt-line').length === 4").await;

    scene.model.script(Behaviour::text("Here it is."));
    scene.say("and now?").await;
    browser.reads("article.turn[data-role=assistant]", "Here it is.").await;
    let seen = scene.model.seen().last().map(|request| json!(request.messages()).to_string()).unwrap();
    assert!(!seen.contains("The first half"), "as the page says, the model does not see it: {seen}");
    scene.model.assert_histories_valid();
    browser.assert_quiet(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_text_that_the_model_keeps_is_not_marked_as_unseen() {
    if is_skipped() {
        return;
    }
    let scene = Scene::with(&Plan { main: "partial = \"keep\"", ..Plan::default() }).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    browser.shown("#message").await;
    scene.streaming("Half of it").await;
    browser.press(Key::Escape).await;
    browser.reads("article.turn.stopped .partial", "Half of it").await;
    for round in ["live", "restored"] {
        assert_eq!(browser.count("article.turn.stopped .partial.not-seen").await, 0, "{round}");
        browser.reload().await;
        browser.reads("article.turn.stopped .partial", "Half of it").await;
    }
    browser.assert_quiet(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_press_forces_and_says_so() {
    if is_skipped() {
        return;
    }
    let scene = Scene::with(&Plan { tables: PATIENT, ..Plan::default() }).await;
    let browser = &scene.browser;
    scene.sign_in().await;
    browser.shown("#message").await;
    for press in ["button", "Esc"] {
        let mark = Marker::new();
        let deaf = json!({"command": commands::ignores_signals(&mark)});
        scene.model.script(Behaviour::tool_call("c1", "shell", &deaf));
        scene.say("work").await;
        browser.click(".turn:last-child details.call:not([open]) summary").await;
        browser.reads(".turn:last-child .call-output", "deaf").await;
        let strike = async || match press {
            "button" => browser.click("#send").await,
            _ => browser.press(Key::Escape).await,
        };
        scene.mode("stop").await;
        strike().await;
        scene.mode("force").await;
        browser.until("document.querySelector('#settling').textContent.trim()").await;
        browser.reads("#settling", "process").await;
        assert!(!mark.survivors().is_empty(), "the first press is gentle");
        strike().await;
        scene.mode("send").await;
        browser.reads("#settling", "(kill)").await;
        assert!(mark.survivors().is_empty(), "{:?}", mark.survivors());
    }
    assert_eq!(browser.count("article.turn.stopped .receipt-line").await, 2);
    browser.assert_quiet(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_the_command_line_is_seen_and_stopped_on_the_page() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    scene.model.script(Behaviour::silent_mid_stream("from the terminal"));
    let mut send = scene.daemon.home().command(exe());
    send.args(["send", "--session", "cli/시험:1", "go on"]);
    send.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let send = tokio::process::Command::from(send).kill_on_drop(true).spawn().unwrap();
    // It turns up in the list by itself.
    browser.shown("#sessions [data-session='cli/시험:1']").await;
    browser.click("#sessions [data-session='cli/시험:1']").await;
    browser.reads("article.turn[data-role=user]", "go on").await;
    browser.reads("article.turn[data-role=assistant]", "from the terminal").await;
    scene.mode("stop").await;
    browser.click("#send").await;
    browser.reads("article.turn.stopped .receipt-line", "stopped in ").await;
    let ended = tokio::time::timeout(crate::harness::PATIENCE, send.wait_with_output()).await.unwrap().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && told.contains("stopped"), "{told}");
    browser.assert_quiet(&[]).await;
}
