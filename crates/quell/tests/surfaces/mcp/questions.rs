//! Questions of servers during a call: shown as approvals, answered, declined, withdrawn by a stop or by the server.

use quell_engine::engine::AnswerError;
use quell_protocol::approval::Decision;
use quell_test_support::mcp_servers::{answer_with_fields as with_fields, user_without_rights as user, wait_question};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_question_does_not_end_the_call() {
    let fixture = McpFixture::start().await;
    let run = fixture.start_call("s", "ask", json!({})).await;
    fixture.model.script(ScriptedResponse::text("fine"));
    let row = wait_question(&fixture).await;
    fixture.engine.answer_approval(&user(), &row.id, Decision::Deny.into()).unwrap();
    fixture.wait_ended(&run).await;
    assert_eq!(last_result(&fixture), "decline ");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_alone_does_not_answer_for_the_user() {
    let fixture = McpFixture::start().await;
    let run = fixture.start_call("s", "ask", json!({})).await;
    let row = wait_question(&fixture).await;
    let refused = fixture.engine.answer_approval(&alice(), &row.id, with_fields("name=Ada"));
    assert!(matches!(refused, Err(AnswerError::NotAllowed(..))), "{refused:?}");
    fixture.stop_to_end(&run).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_withdraws_the_question_and_the_server_is_told() {
    let fixture = McpFixture::start().await;
    let run = fixture.start_call("s", "ask", json!({})).await;
    let row = wait_question(&fixture).await;
    let view = fixture.stop_to_end(&run).await;
    assert_eq!(fixture.engine.pending_approvals(), []);
    let late = fixture.engine.answer_approval(&user(), &row.id, with_fields("name=Ada")).unwrap_err();
    assert!(matches!(&late, AnswerError::AlreadySettled(row) if row.state.decision_str() == "cancelled"), "{late}");
    let is_question = |held: &&Resource| held.kind == ResourceKind::Approval;
    let held = receipt_of(&view).resources.iter().find(is_question).unwrap_or_else(|| panic!("{view:#?}"));
    assert!(held.label.starts_with("test__ask "), "{held:#?}");
    poll_until("the end of the question at the server", async || {
        let told = mcp::received_messages(&fixture.log);
        told.iter().any(|line| line.message["result"]["action"] == "cancel").then_some(())
    })
    .await;
    fixture.wait_messages("notifications/cancelled", 1).await;
    // The next message works.
    assert_eq!(fixture.call_and_answer("s", "echo").await, "hello");
    fixture.close().await;
}

/// The time limit of calls is for servers, not for people.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_does_not_time_out_while_a_person_is_asked() {
    let fixture = McpFixture::start_with(|server| server.call_timeout_s = Some(1)).await;
    let run = fixture.start_call("s", "ask", json!({})).await;
    fixture.model.script(ScriptedResponse::text("fine"));
    let row = wait_question(&fixture).await;
    // A second call times out meanwhile, which shows that the time has passed.
    let other = fixture.start_call("t", "wait", json!({})).await;
    fixture.model.script(ScriptedResponse::text("late"));
    fixture.wait_ended(&other).await;
    assert_eq!(fixture.engine.pending_approvals().len(), 1, "the question was withdrawn");
    fixture.engine.answer_approval(&user(), &row.id, with_fields("name=Ada")).unwrap();
    fixture.wait_ended(&run).await;
    let messages = messages_as_text(&fixture.last_messages());
    assert!(messages.contains("accept Ada"), "{messages}");
    fixture.close().await;
}
