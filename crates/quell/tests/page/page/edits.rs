//! Diffs, plans and the undo button on the page.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_a_diff_and_a_button_takes_it_back() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    let items =
        json!([{"text": "Write <b>it</b>", "status": "completed"}, {"text": "Test it", "status": "in_progress"}]);
    let batch = ScriptedStream::new()
        .tool_call("c1", "write_file", &json!({"path": "made.txt", "content": "<img src=x>\n"}))
        .tool_call("c2", "todo", &json!({"items": items}));
    fixture.model.script(batch);
    fixture.model.script(ScriptedResponse::text("Done."));
    fixture.send_message("write a file").await;
    fixture.wait_text("article.turn[data-role=assistant] .markdown", "Done.").await;
    // An active run cannot be undone.
    fixture.wait_send_mode("send").await;
    let file = fixture.daemon.home().work_dir().join("main/made.txt");
    assert!(file.exists());
    fixture.wait_text(".plan-item[data-status=completed]", "Write <b>it</b>").await;
    fixture.wait_text(".plan-item[data-status=in_progress]", "Test it").await;
    fixture.wait_text("details.call .call-changes", "+1").await;
    fixture.click_until_text("details.call summary", "details.call .diff-added", "+<img src=x>").await;
    fixture.wait_visible("#inspector .undo-button").await;
    fixture.click("#inspector .undo-button").await;
    assert!(file.exists(), "one press is not enough");
    fixture.click("#inspector .undo-button").await;
    fixture.wait_text("#inspector .undo-answer", "1 file was put back.").await;
    assert!(!file.exists());
    fixture.click("#inspector .undo-button").await;
    fixture.click("#inspector .undo-button").await;
    fixture.wait_text("#inspector .undo-answer", "Nothing was undone").await;
    // A reload shows the diff and the plan from the history.
    fixture.reload().await;
    fixture.wait_text(".plan-item[data-status=in_progress]", "Test it").await;
    fixture.click_until_text("details.call summary", "details.call .diff-added", "+<img src=x>").await;
}
