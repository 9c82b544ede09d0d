//! Questions of a server written with FastMCP.

use quell_engine::engine::AnswerError;
use quell_protocol::approval::ApprovalAnswer;
use quell_test_support::mcp_servers::{answer_with_fields as with_fields, user_without_rights as user, wait_question};

use super::real_servers::{FastMcp, ServerTransport};
use super::*;

#[rstest]
#[case::pipes(ServerTransport::Pipes)]
#[case::http(ServerTransport::Http)]
#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_fastmcp_is_answered_in_its_types(#[case] transport: ServerTransport) {
    let Some(fast) = FastMcp::start(transport).await else { return };
    let test = &fast.test;
    test.model.script(ScriptedResponse::tool_call("c1", "all__ask", &json!({}))).script(ScriptedResponse::text("fine"));
    let run = test.send(submission("s", "ask me")).await;
    let row = wait_question(test).await;
    let question = row.question.as_deref().unwrap();
    assert_eq!(
        (row.tool.as_str(), question.server.as_str(), question.message.as_str()),
        ("all__ask", "all", "Who are you?")
    );
    assert_eq!(row.arguments["answer"]["age"], "integer, required · Age");
    let refused = test.engine.answer_approval(&user(), &row.id, with_fields("name=Ada age=old")).unwrap_err();
    assert!(refused.to_string().contains("the field \"age\" must be: integer"), "{refused}");
    let refused = test.engine.answer_approval(&user(), &row.id, ApprovalAnswer::for_session());
    assert!(matches!(refused, Err(AnswerError::WrongFields(_))), "{refused:?}");
    test.engine.answer_approval(&user(), &row.id, with_fields("name=Ada age=36")).unwrap();
    let view = test.wait_ended(&run).await;
    assert_eq!(last_result(test), "Ada is 36", "{view:#?}");
    // The values are for the server alone.
    let listed = serde_json::to_string(&test.engine.find_approval(&row.id).unwrap()).unwrap();
    assert!(listed.contains("\"state\":\"allowed\"") && !listed.contains("Ada"), "{listed}");
    fast.close().await;
}
