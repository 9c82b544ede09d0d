//! A conversation on the page: streaming, Markdown, folded calls and thinking, queued and withdrawn messages.

use quell_testkit::browser::Key;

use super::PageFixture;
use crate::prelude::*;

const ANSWER: &str = "# A plan\n\nFirst **look**, then `act`:\n\n- one\n- two\n\n```rust\nfn main() {}\n```\n\n\
    | a | b |\n|---|---|\n| 1 | 2 |\n\nSee [the manual](https://example.org/manual).";

#[tokio::test(flavor = "multi_thread")]
async fn a_message_streams_and_its_markdown_is_rendered() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let (begun, rest) = ANSWER.split_at(ANSWER.find("| 1").unwrap());
    let first = ScriptedStream::new().thinking("Let me see what is here.").text("I look around. ");
    let first = first.tool_call("c1", "shell", &json!({"command": "printf 'line %s\\n' one two"}));
    fixture.model.script(first).script(ScriptedStream::new().text(begun).wait_for_gate("rest").text(rest));
    fixture.fill("#message", "plan").await;
    fixture.press_with_modifier(Key::Shift, Key::Enter).await;
    fixture.type_text("please").await;
    fixture.press_key(Key::Enter).await;

    fixture.wait_text("article.turn[data-role=user]", "plan\nplease").await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown strong", "look").await;
    fixture.wait_send_mode("stop").await;
    assert_eq!(fixture.draft().await, "", "what was sent has left the field");
    fixture.model.open_gate("rest");
    fixture.wait_send_mode("send").await;

    let answer = "article.turn[data-role=assistant] .markdown";
    for (css, text) in [
        (":is(h1, h2, h3, h4)", "A plan"),
        ("li", "two"),
        ("pre > code", "fn main() {}"),
        ("td", "2"),
        ("p code", "act"),
        ("a", "manual"),
    ] {
        fixture.wait_text(&format!("{answer} {css}"), text).await;
    }
    let link = fixture.eval(&format!("(a => [a.href, a.rel])(document.querySelector('{answer} a'))")).await;
    assert_eq!(link[0], "https://example.org/manual");
    assert!(link[1].as_str().unwrap().contains("noopener"), "{link}");
    assert_eq!(fixture.count_matches(&format!("{answer} pre .copy, {answer} pre + .copy, {answer} .copy")).await, 1);
    check_call_unfolds(&fixture).await;
    fixture.assert_no_page_errors(&[]).await;
    // A reload shows all of it again.
    fixture.reload().await;
    fixture.wait_text(&format!("{answer} strong"), "look").await;
    fixture.wait_text("details.call summary", "shell").await;
    fixture.model.assert_histories_valid();
    fixture.assert_no_page_errors(&[]).await;
}

async fn check_call_unfolds(fixture: &PageFixture) {
    fixture.wait_text("details.call[data-call] summary", "shell").await;
    assert_eq!(fixture.eval("document.querySelector('details.call').open").await, false);
    fixture.click_until_text("details.call summary", "details.call .call-output", "line one\nline two").await;
    assert_eq!(fixture.eval("document.querySelector('details.thinking').open").await, false);
    fixture.wait_text("details.thinking", "Let me see what is here.").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_are_withdrawn_and_come_back_by_a_stop() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.start_streaming("begun").await;
    fixture.send_message("first in the queue").await;
    fixture.send_message("second in the queue").await;
    fixture.wait_for("document.querySelectorAll('#queue [data-run]').length === 2").await;
    fixture.wait_text("#queue", "first in the queue").await;
    fixture.click("#queue [data-run] .withdraw").await;
    fixture.wait_for("document.querySelectorAll('#queue [data-run]').length === 1").await;
    fixture.wait_text("#queue", "second in the queue").await;
    // The stop returns the queued text to the input field; the withdrawn message is gone from the queue.
    fixture.click("#send").await;
    fixture.wait_send_mode("send").await;
    fixture.wait_for("document.querySelector('#message').value.includes('second in the queue')").await;
    fixture.wait_for("document.querySelectorAll('#queue [data-run]').length === 0").await;
    let requests = fixture.model.request_count();
    assert_eq!(requests, 1, "nothing of the queue has reached the model");

    // An interrupting message replaces the running one.
    fixture.clear_draft().await;
    fixture.start_streaming("this one is interrupted").await;
    fixture.run_script(CHOOSE_POLICY_SCRIPT, &[json!("interrupt")]).await;
    fixture.model.script(ScriptedResponse::text("the successor"));
    fixture.send_message("rather this").await;
    fixture.wait_text("article.turn[data-role=assistant]", "the successor").await;
    fixture.wait_text("article.turn.stopped", "this one is interrupted").await;
    fixture.wait_send_mode("send").await;
    fixture.model.assert_histories_valid();
    fixture.assert_no_page_errors(&[]).await;
}

/// Chooses a busy policy and fires the events of a real choice.
const CHOOSE_POLICY_SCRIPT: &str = "const list = document.querySelector('#busy-policy'); list.value = arguments[0];
    list.dispatchEvent(new Event('input', {bubbles: true})); list.dispatchEvent(new Event('change', {bubbles: true}));";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_late_leaves_the_session_alone_that_is_open_by_then() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.open_session("first").await;
    let hold = "const send = window.fetch; window.fetch = (...words) => {
          if (!String(words[0]).endsWith('/first/runs')) return send(...words);
          return new Promise((_, fail) => {
            window.__lose = () => { window.fetch = send; fail(new TypeError('the network is gone')); };
          });
        };";
    fixture.run_script(hold, &[]).await;
    fixture.send_message("for the first").await;
    fixture.wait_for("window.__lose").await;
    fixture.open_session("second").await;
    fixture.wait_for("document.querySelector('#message').value === ''").await;
    fixture.start_streaming("at work").await;

    fixture.run_script("window.__lose();", &[]).await;
    fixture.wait_toast("error", "first: Not sent").await;
    assert_eq!(fixture.eval("document.querySelector('#send').dataset.mode").await, "stop");
    assert_eq!(fixture.draft().await, "", "the text is not the second's");
    fixture.click_until_text("#send", "article.turn.stopped .receipt-line", "stopped in ").await;
    fixture.open_session("first").await;
    fixture.wait_for("document.querySelector('#message').value === 'for the first'").await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_view_keeps_to_its_address_whatever_the_chat_behind_it_does() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.open_session("one").await;
    fixture.model.script(ScriptedResponse::text("The first end.")).script(ScriptedResponse::text("The second end."));
    let first = fixture.http.send_message("one", "begin").await;
    fixture.wait_text("article.turn[data-role=assistant]", "The first end.").await;
    fixture.http.wait_ended(&first).await;
    fixture.go_to(&format!("#/r/{first}")).await;
    let shows = |run: &str| format!("document.querySelector('#inspector').dataset.run === '{run}'");
    fixture.wait_for(&shows(&first)).await;

    let second = fixture.http.send_message("one", "go on").await;
    fixture.http.wait_ended(&second).await;
    fixture.wait_text("article.turn[data-role=assistant]", "The second end.").await;
    assert_eq!(fixture.eval(&shows(&first)).await, true);
    fixture.open_session("one").await;
    fixture.wait_for(&shows(&second)).await;
    fixture.assert_no_page_errors(&[]).await;
}
