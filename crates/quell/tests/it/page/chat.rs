//! A conversation: a message streams and is rendered, tools and thinking fold, messages queue and are withdrawn.

use quell_testkit::browser::{Key, is_skipped};
use quell_testkit::model::{Behaviour, Stream};
use serde_json::json;

use super::Scene;

const ANSWER: &str = "# A plan\n\nFirst **look**, then `act`:\n\n- one\n- two\n\n```rust\nfn main() {}\n```\n\n\
    | a | b |\n|---|---|\n| 1 | 2 |\n\nSee [the manual](https://example.org/manual).";

#[tokio::test(flavor = "multi_thread")]
async fn a_message_streams_and_its_markdown_is_rendered() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    browser.shown("#message").await;
    let (begun, rest) = ANSWER.split_at(ANSWER.find("| 1").unwrap());
    let look = Stream::new().thinking("Let me see what is here.").text("I look around. ");
    let look = look.tool_call("c1", "shell", &json!({"command": "printf 'line %s\\n' one two"}));
    scene.model.script(look);
    scene.model.script(Stream::new().text(begun).wait_for("rest").text(rest));
    browser.fill("#message", "plan").await;
    browser.press_with(Key::Shift, Key::Enter).await;
    browser.keys("please").await;
    browser.press(Key::Enter).await;

    browser.reads("article.turn[data-role=user]", "plan\nplease").await;
    browser.reads("article.turn[data-role=assistant] .markdown strong", "look").await;
    scene.mode("stop").await;
    assert_eq!(browser.value("document.querySelector('#message').value").await, "", "what was sent has left the field");
    scene.model.open_gate("rest");
    scene.mode("send").await;

    let answer = "article.turn[data-role=assistant] .markdown";
    for (css, text) in [
        (":is(h1, h2, h3, h4)", "A plan"),
        ("li", "two"),
        ("pre > code", "fn main() {}"),
        ("td", "2"),
        ("p code", "act"),
        ("a", "manual"),
    ] {
        browser.reads(&format!("{answer} {css}"), text).await;
    }
    let link = browser.value(&format!("(a => [a.href, a.rel])(document.querySelector('{answer} a'))")).await;
    assert_eq!(link[0], "https://example.org/manual");
    assert!(link[1].as_str().unwrap().contains("noopener"), "{link}");
    assert_eq!(browser.count(&format!("{answer} pre .copy, {answer} pre + .copy, {answer} .copy")).await, 1);
    the_call_unfolds(&scene).await;
    browser.assert_quiet(&[]).await;
    // All of it is still there for who comes later.
    browser.reload().await;
    browser.reads(&format!("{answer} strong"), "look").await;
    browser.reads("details.call summary", "shell").await;
    scene.model.assert_histories_valid();
    browser.assert_quiet(&[]).await;
}

async fn the_call_unfolds(scene: &Scene) {
    let browser = &scene.browser;
    browser.reads("details.call[data-call] summary", "shell").await;
    assert_eq!(browser.value("document.querySelector('details.call').open").await, false);
    browser.click("details.call summary").await;
    browser.reads("details.call .call-output", "line one\nline two").await;
    assert_eq!(browser.value("document.querySelector('details.thinking').open").await, false);
    browser.reads("details.thinking", "Let me see what is here.").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_are_withdrawn_and_come_back_by_a_stop() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    browser.shown("#message").await;
    scene.streaming("begun").await;
    scene.say("first in the queue").await;
    scene.say("second in the queue").await;
    browser.until("document.querySelectorAll('#queue [data-run]').length === 2").await;
    browser.reads("#queue", "first in the queue").await;
    browser.click("#queue [data-run] .withdraw").await;
    browser.until("document.querySelectorAll('#queue [data-run]').length === 1").await;
    browser.reads("#queue", "second in the queue").await;
    // What was withdrawn by hand is not lost, and neither is what is being typed.
    browser.click("#send").await;
    scene.mode("send").await;
    browser.until("document.querySelector('#message').value.includes('second in the queue')").await;
    assert_eq!(browser.count("#queue [data-run]").await, 0);
    let requests = scene.model.request_count();
    assert_eq!(requests, 1, "nothing of the queue has reached the model");

    // Interrupting takes the place of what runs.
    browser.run("document.querySelector('#message').value = ''", &[]).await;
    scene.streaming("this one is interrupted").await;
    browser.run(CHOOSE, &[json!("interrupt")]).await;
    scene.model.script(Behaviour::text("the successor"));
    scene.say("rather this").await;
    browser.reads("article.turn[data-role=assistant]", "the successor").await;
    browser.reads("article.turn.stopped", "this one is interrupted").await;
    scene.mode("send").await;
    scene.model.assert_histories_valid();
    browser.assert_quiet(&[]).await;
}

/// Chooses an entry of the list of policies, as a person's choice is told to the page.
const CHOOSE: &str = "const list = document.querySelector('#busy-policy'); list.value = arguments[0];
    list.dispatchEvent(new Event('input', {bubbles: true})); list.dispatchEvent(new Event('change', {bubbles: true}));";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_late_leaves_the_session_alone_that_is_open_by_then() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    scene.session("first").await;
    let hold = "const send = window.fetch; window.fetch = (...words) => {
          if (!String(words[0]).endsWith('/first/runs')) return send(...words);
          return new Promise((_, fail) => {
            window.__lose = () => { window.fetch = send; fail(new TypeError('the network is gone')); };
          });
        };";
    browser.run(hold, &[]).await;
    scene.say("for the first").await;
    browser.until("window.__lose").await;
    scene.session("second").await;
    browser.until("document.querySelector('#message').value === ''").await;
    scene.streaming("at work").await;

    browser.run("window.__lose();", &[]).await;
    scene.toast("error", "first: Not sent").await;
    assert_eq!(browser.value("document.querySelector('#send').dataset.mode").await, "stop");
    assert_eq!(browser.value("document.querySelector('#message').value").await, "", "the text is not the second's");
    browser.click("#send").await;
    browser.reads("article.turn.stopped .receipt-line", "stopped in ").await;
    scene.session("first").await;
    browser.until("document.querySelector('#message').value === 'for the first'").await;
    browser.assert_quiet(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_view_keeps_to_its_address_whatever_the_chat_behind_it_does() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let browser = &scene.browser;
    scene.sign_in().await;
    scene.session("one").await;
    scene.model.script(Behaviour::text("The first end.")).script(Behaviour::text("The second end."));
    let first = scene.send("one", "begin").await;
    browser.reads("article.turn[data-role=assistant]", "The first end.").await;
    scene.ended(&first).await;
    scene.go(&format!("#/r/{first}")).await;
    let shows = |run: &str| format!("document.querySelector('#inspector').dataset.run === '{run}'");
    browser.until(&shows(&first)).await;

    let second = scene.send("one", "go on").await;
    scene.ended(&second).await;
    browser.reads("article.turn[data-role=assistant]", "The second end.").await;
    assert_eq!(browser.value(&shows(&first)).await, true);
    scene.session("one").await;
    browser.until(&shows(&second)).await;
    browser.assert_quiet(&[]).await;
}
