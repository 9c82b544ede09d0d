//! Each control that a token may not use is disabled and says why, for tokens of several scopes.

use super::{PageConfig, PageFixture, UNAUTHORIZED_ENTRY};
use crate::prelude::*;

/// Those that can be used, of the controls that need a right, in the order of the document.
const USABLE_SCRIPT: &str =
    "[...document.querySelectorAll('#message, #send, #busy-policy, #mcp-insert, #new-session, #hold, \
    #stop-all, #runs .stop-run, #agents .abort-btn')].filter((control) => !control.disabled)
    .map((control) => control.id || [...control.classList].find((name) => ['stop-run', 'abort-btn'].includes(name)))";

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_offered_only_what_it_may_use() {
    let Some(fixture) = PageFixture::start_with(&PageConfig::default()).await else { return };
    fixture.model.script(ScriptedResponse::silent_mid_stream("begun"));
    let run = fixture.http.send_message("theirs", "go on for ever").await;
    let _ = fixture.http.put("/api/sessions/theirs/sharing", &json!({"shared": true})).await.expect_status(200);
    fixture.model.request_at(0).wait_paused().await;

    check_usable(&fixture, "reader", &["read"], &[]).await;
    let placeholder = fixture.eval("document.querySelector('#message').placeholder").await;
    assert!(placeholder.as_str().unwrap().starts_with("Read only"), "{placeholder}");
    let reason = fixture.eval("document.querySelector('#stop-all').title").await;
    assert!(reason.as_str().unwrap().contains("stop:all"), "{reason}");
    assert_eq!(fixture.count_matches("#agents .compute-status.waiting").await, 1, "the status is for everybody");
    sign_out(&fixture).await;

    // The run belongs to somebody else.
    let writes = ["new-session", "message", "send", "busy-policy", "mcp-insert"];
    check_usable(&fixture, "writer", &["write"], &writes).await;
    let reason = fixture.eval("document.querySelector('#runs .stop-run').title").await;
    assert!(reason.as_str().unwrap().starts_with("Only admin"), "{reason}");
    sign_out(&fixture).await;

    let stops = ["stop-all", "abort-btn", "send", "stop-run"];
    check_usable(&fixture, "stopper", &["read", "stop:all"], &stops).await;
    // A hold needs another right: with it, the stop would be refused.
    fixture.click_until_visible("#stop-all", "#stop-all-dialog").await;
    assert_eq!(fixture.eval("document.querySelector('#stop-all-hold').disabled").await, true);
    fixture.click_until_hidden("#stop-all-cancel", "#stop-all-dialog").await;
    sign_out(&fixture).await;

    let all = [&["hold", "stop-all", "abort-btn"][..], &writes, &["stop-run"]].concat();
    check_usable(&fixture, "boss", &["admin"], &all).await;
    fixture.assert_no_page_errors(&[UNAUTHORIZED_ENTRY]).await;
    fixture.http.stop_run(&run).await;
}

/// Signs in with a token of these scopes, looks at the shared session and its run, and checks what can be used.
async fn check_usable(fixture: &PageFixture, name: &str, scopes: &[&str], usable: &[&str]) {
    fixture.sign_in_as(name, scopes).await;
    fixture.open_session("theirs").await;
    fixture.wait_text("article.turn[data-role=assistant]", "begun").await;
    fixture.wait_send_mode("stop").await;
    fixture.go_to("#/runs").await;
    fixture.wait_visible("#runs tr[data-run]").await;
    fixture.wait_visible("#agents .compute-status.waiting").await;
    fixture.wait_for(&format!("JSON.stringify({USABLE_SCRIPT}) === '{}'", json!(usable))).await;
}

async fn sign_out(fixture: &PageFixture) {
    fixture.click("#sign-out").await;
    fixture.wait_view("sign-in").await;
}
