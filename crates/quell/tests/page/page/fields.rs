//! What Esc and Enter do in fields, and where the focus goes.

use quell_testkit::browser::Key;

use super::{PageConfig, PageFixture};
use crate::prelude::*;

const ASKS: PageConfig<'static> =
    PageConfig { main: "approvals = { shell = \"ask\" }", others: &[], tables: "", max_retries: 0 };

/// The parts of a card that allow by a pattern, and deny with a reason.
const PATTERN: &str = ".approval-remember:has(.allow-pattern)";
const REASON: &str = ".approval-remember:has(.deny)";

/// Opens a part of the first card below `list`, and waits until a key in its field is no accident any more.
async fn open_part(fixture: &PageFixture, list: &str, part: &str) {
    fixture.click(&format!("{list} {part} summary")).await;
    fixture.wait_focused(&format!("{list} {part} input")).await;
    fixture.wait_visible(&format!("{list} [data-approval]:first-child:not(.click-guard)")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn esc_in_a_field_leaves_it_and_stops_nothing() {
    let Some(fixture) = PageFixture::start_signed_in_with(&ASKS).await else { return };
    fixture.model.script(shell_call("echo hi"));
    fixture.send_message("please").await;
    fixture.wait_visible("#chat-approvals [data-approval]").await;
    for part in [PATTERN, REASON] {
        open_part(&fixture, "#chat-approvals", part).await;
        fixture.type_text("half a thought").await;
        fixture.press_key(Key::Escape).await;
        fixture.wait_focused(&format!("#chat-approvals {part} summary")).await;
        let text = fixture.eval(&format!("document.querySelector('#chat-approvals {part} input').value")).await;
        assert!(text.as_str().unwrap().ends_with("half a thought"), "{text}");
    }
    fixture.click("#session-search").await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_focused("#message").await;
    assert_eq!(fixture.eval("document.querySelector('#send').dataset.mode").await, "stop");
    fixture.press_key(Key::Escape).await;
    fixture.wait_receipts(1).await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn enter_in_a_field_answers_the_call_and_the_focus_goes_on() {
    let Some(fixture) = PageFixture::start_signed_in_with(&ASKS).await else { return };
    let mut runs = Vec::new();
    fixture.go_to("#/approvals").await;
    for number in 1..=2 {
        fixture.model.script(shell_call(format!("echo {number}")));
        runs.push(fixture.http.send_message(&format!("asker {number}"), "please").await);
        fixture.wait_visible(&format!("#approvals [data-approval]:nth-child({number})")).await;
    }
    open_part(&fixture, "#approvals", REASON).await;
    fixture.model.script(ScriptedResponse::text("I see."));
    fixture.type_text("not on Friday").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_hidden("#approvals [data-approval]:nth-child(2)").await;
    fixture.wait_focused("#approvals [data-approval]").await;
    // Pressed twice, it answers no second call.
    fixture.press_key(Key::Enter).await;
    let waiting = fixture.http.get("/api/approvals").await.expect_status(200);
    assert_eq!(waiting["items"].as_array().unwrap().len(), 1, "{waiting:#}");

    open_part(&fixture, "#approvals", PATTERN).await;
    fixture.model.script(ScriptedResponse::text("I see."));
    fixture.press_key(Key::Enter).await;
    fixture.wait_focused("#approvals .empty").await;
    for run in runs {
        assert_eq!(fixture.http.wait_ended(&run).await["output"], "I see.");
    }
    let told: Vec<_> = fixture.model.recorded_requests().iter().map(|sent| sent.body["messages"].to_string()).collect();
    assert!(told.iter().any(|messages| messages.contains("not on Friday")), "{told:#?}");
    let rules = fixture.http.get("/api/approval-rules").await.expect_status(200);
    assert_eq!(rules["items"].as_array().unwrap().len(), 1, "{rules:#}");

    // In the chat, the message field is what comes after the last call.
    fixture.open_session("asker 3").await;
    fixture.model.script(shell_call("echo 3")).script(ScriptedResponse::text("As you wish."));
    fixture.send_message("and this?").await;
    fixture.wait_visible("#chat-approvals [data-approval]").await;
    open_part(&fixture, "#chat-approvals", REASON).await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_text("article.turn[data-role=assistant]", "As you wish.").await;
    fixture.wait_focused("#message").await;
    fixture.assert_no_page_errors(&[]).await;
}
