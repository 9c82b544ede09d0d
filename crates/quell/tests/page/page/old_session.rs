//! The open session when the list of sessions does not have it.

use super::{PageConfig, PageFixture};
use crate::prelude::*;

/// One more than the first page of the list holds.
const NEWER_SESSIONS: usize = 101;

const ROW: &str = "#sessions [data-session=old]";

/// Requests of the page about sessions, without their origin.
const ASKED_SCRIPT: &str =
    "performance.getEntriesByType('resource').map((entry) => entry.name.replace(location.origin, ''))
    .filter((path) => path.startsWith('/api/sessions'))";

#[tokio::test(flavor = "multi_thread")]
async fn an_old_session_is_not_called_new_and_says_who_sees_it() {
    let config = PageConfig { others: &[("scout", "")], ..PageConfig::default() };
    let Some(fixture) = PageFixture::start_signed_in_with(&config).await else { return };
    fixture.model.script(ScriptedResponse::text("an answer"));
    let run = fixture.http.start_run("old", &json!({"text": "a question", "agent": "scout"})).await;
    fixture.http.wait_ended(&run).await;
    let _ = fixture.http.put("/api/sessions/old/sharing", &json!({"shared": true})).await.expect_status(200);
    // A search for the key finds the newer ones.
    for number in 0..NEWER_SESSIONS {
        let path = format!("/api/sessions/old-{number}");
        let _ = fixture.http.patch(&path, &json!({"agent": "main"})).await.expect_status(200);
    }
    fixture.reload().await;
    fixture.wait_visible(&format!("#sessions [data-session='old-{}']", NEWER_SESSIONS - 1)).await;
    fixture.wait_hidden(ROW).await;

    fixture.open_session("old").await;
    fixture.wait_text("article.turn[data-role=assistant]", "an answer").await;
    fixture.wait_text(&format!("{ROW} .session-facts"), "scout · 1 turn").await;
    fixture.wait_text("#session-sharing", "Shared").await;
    fixture.wait_for("document.querySelector('#session-agent').value === 'scout'").await;
    let asked = fixture.eval(ASKED_SCRIPT).await.to_string();
    assert!(asked.contains("/api/sessions/old?") && !asked.contains("search="), "{asked}");
    // Prompts and resources are those of its agent.
    fixture.click("#mcp-insert").await;
    let prompts =
        "performance.getEntriesByType('resource').some((entry) => entry.name.endsWith('/mcp/prompts?agent=scout'))";
    fixture.wait_for(prompts).await;
    fixture.assert_no_page_errors(&[]).await;
}
