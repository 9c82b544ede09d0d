//! The control of the page that shares a session, seen from the page and by the holder of another token.

use quell_testkit::browser::Key;

use super::PageFixture;
use crate::prelude::*;

const CONTROL: &str = "#session-sharing";

/// The accessible state of the control: `aria-checked`, label, disabled.
async fn control_state(fixture: &PageFixture) -> Value {
    let read = "(b => [b.getAttribute('aria-checked'), b.getAttribute('aria-label'), b.disabled])";
    fixture.eval(&format!("{read}(document.querySelector('{CONTROL}'))")).await
}

async fn share(fixture: &PageFixture) {
    fixture.click_until_visible(CONTROL, "#share-dialog").await;
    fixture.click_until_text("#share-dialog .primary", CONTROL, "Shared").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_press_shares_no_session() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.open_session("ours").await;
    fixture.model.script(ScriptedResponse::text("an answer"));
    fixture.send_message("a question").await;
    fixture.wait_text(CONTROL, "Private").await;
    fixture.click_until_visible(CONTROL, "#share-dialog").await;
    fixture.wait_text("#share-dialog", "Every token can then read it").await;
    // The same key again leaves it private, and so does Esc.
    for key in [Key::Enter, Key::Escape] {
        fixture.press_key(key).await;
        fixture.wait_hidden("#share-dialog").await;
        fixture.wait_focused(CONTROL).await;
        assert_eq!(fixture.http.get("/api/sessions/ours").await.expect_status(200)["shared"], false);
        fixture.press_key(Key::Enter).await;
        fixture.wait_visible("#share-dialog").await;
    }
    fixture.click_until_text("#share-dialog .primary", CONTROL, "Shared").await;
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_shared_and_made_private() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let made = fixture.http.post("/api/tokens", &json!({"name": "bob", "scope": "write"})).await.expect_status(201);
    let bob = fixture.http.with_token(made["token"].as_str().unwrap());
    fixture.open_session("ours").await;
    fixture.wait_hidden(CONTROL).await;
    fixture.model.script(ScriptedResponse::text("an answer"));
    fixture.send_message("a question").await;
    fixture.wait_text("article.turn[data-role=assistant]", "an answer").await;
    fixture.wait_text(CONTROL, "Private").await;
    assert_eq!(control_state(&fixture).await, json!(["false", "Sharing: Private", false]));
    assert_problem(&bob.get("/api/sessions/ours/history").await, 404, "session_not_found");

    share(&fixture).await;
    fixture.wait_toast("success", "every token can read it").await;
    assert_eq!(control_state(&fixture).await, json!(["true", "Sharing: Shared", false]));
    assert_eq!(bob.get("/api/sessions/ours/history").await.status, 200);
    // What somebody else changes is shown, too.
    let _ = fixture.http.put("/api/sessions/ours/sharing", &json!({"shared": false})).await.expect_status(200);
    fixture.wait_text(CONTROL, "Private").await;
    share(&fixture).await;
    fixture.reload().await;
    fixture.wait_text(CONTROL, "Shared").await;
    fixture.click_until_text(CONTROL, CONTROL, "Private").await;
    fixture.wait_toast("success", "private now").await;
    assert_problem(&bob.get("/api/sessions/ours/history").await, 404, "session_not_found");
    fixture.assert_no_page_errors(&[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_sees_that_a_session_is_shared_and_cannot_change_it() {
    let Some(fixture) = PageFixture::start_with(&super::PageConfig::default()).await else { return };
    fixture.model.script(ScriptedResponse::text("an answer"));
    let run = fixture.http.send_message("theirs", "a question").await;
    fixture.http.wait_ended(&run).await;
    let _ = fixture.http.put("/api/sessions/theirs/sharing", &json!({"shared": true})).await.expect_status(200);
    fixture.sign_in_as("bob", &["write"]).await;
    fixture.open_session("theirs").await;
    fixture.wait_text("article.turn[data-role=assistant]", "an answer").await;
    fixture.wait_text(CONTROL, "Shared").await;
    assert_eq!(control_state(&fixture).await, json!(["true", "Sharing: Shared", true]));
    fixture.assert_no_page_errors(&[super::UNAUTHORIZED_ENTRY]).await;
}
