//! MCP servers on the page, with the keyboard: their questions, and the prompts and resources that they offer.

use quell_testkit::mcp::SERVER_SCRIPT;

use super::*;

/// A page whose agent has the MCP server `test`.
async fn start_page() -> Option<PageFixture> {
    let table = format!("[mcp.test]\ncommand = \"sh\"\nargs = [\"-c\", {}]\n", json!(SERVER_SCRIPT));
    PageFixture::start_signed_in_with(&PageConfig::tables(&table)).await
}

/// Starts a run whose server asks the user for a name, and waits for the form.
async fn start_question(fixture: &PageFixture) {
    fixture.model.script(ScriptedResponse::tool_call("c1", "test__ask", &json!({})));
    fixture.model.script(ScriptedResponse::text("Thank you."));
    fixture.send_message("ask me").await;
    fixture.wait_text("[data-approval] .approval-question", "Who are you?").await;
    // A card that has just appeared ignores keys for a moment.
    fixture.wait_for("!document.querySelector('[data-approval]').classList.contains('click-guard')").await;
}

/// The result of the call that the model got.
fn last_result(fixture: &PageFixture) -> String {
    let request = fixture.model.recorded_requests().pop().unwrap();
    let messages = request.body["messages"].as_array().unwrap();
    let result = messages.iter().rfind(|message| message["role"] == "tool").unwrap();
    result["content"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_with_the_keyboard_alone() {
    let Some(fixture) = start_page().await else { return };
    start_question(&fixture).await;
    fixture.tab_until_focused("[data-approval] .approval-fields input").await;
    fixture.type_text("Ada").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown", "Thank you.").await;
    fixture.wait_send_mode("send").await;
    assert_eq!(last_result(&fixture), "accept Ada");
    fixture.wait_hidden("[data-approval]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_declined_by_a_letter_and_withdrawn_by_esc() {
    let Some(fixture) = start_page().await else { return };
    start_question(&fixture).await;
    fixture.tab_until_focused("[data-approval]").await;
    fixture.type_text("n").await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown", "Thank you.").await;
    fixture.wait_send_mode("send").await;
    assert_eq!(last_result(&fixture), "decline ");
    start_question(&fixture).await;
    // In a field of the question, Esc first leaves the field.
    fixture.tab_until_focused("[data-approval] .approval-fields input").await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_focused("[data-approval]").await;
    assert_eq!(fixture.eval("document.querySelector('#send').dataset.mode").await, "stop");
    fixture.press_key(Key::Escape).await;
    fixture.wait_text("article.turn.stopped .receipt-line", "stopped in ").await;
    fixture.wait_hidden("[data-approval]").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_and_a_resource_come_into_the_message_field() {
    let Some(fixture) = start_page().await else { return };
    fixture.tab_until_focused("#mcp-insert").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_text("#mcp-picker .mcp-items", "note://today").await;
    // The filter has the focus, and Enter chooses the first match.
    fixture.type_text("greet").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_visible("#mcp-picker form input").await;
    fixture.type_text("Ada").await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_for("document.querySelector('#message').value === 'Greet Ada.'").await;
    fixture.wait_hidden("#mcp-picker").await;
    fixture.click("#mcp-insert").await;
    fixture.wait_text("#mcp-picker .mcp-items", "note://today").await;
    fixture.click("#mcp-picker button[data-kind=resource]").await;
    fixture.wait_for("document.querySelector('#message').value.includes('Buy milk.')").await;
    // Esc closes the list and asks for nothing more.
    fixture.click("#mcp-insert").await;
    fixture.wait_visible("#mcp-picker").await;
    fixture.press_key(Key::Escape).await;
    fixture.wait_hidden("#mcp-picker").await;
    assert!(fixture.model.recorded_requests().is_empty(), "nothing was sent");
}
