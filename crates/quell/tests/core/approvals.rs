//! Tool calls that wait for approval: requested on every surface, answered once, settled by a stop or a timeout.

use quell_engine::engine::{AnswerError, Caller};
use quell_kernel::approval::{ApprovalPolicy, DecisionForbidden};
use quell_protocol::api::Grants;
use quell_protocol::approval::{ApprovalAnswer, ApprovalRow, ApprovalState, Decision};

use crate::prelude::*;
use crate::test_engine::shell_call;

async fn start_engine(change: impl FnOnce(&mut AgentConfig, &mut u64)) -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("shell".to_owned(), ApprovalPolicy::Ask);
        change(main, &mut config.limits.approval_timeout_s);
    })
    .await;
    test.answer_by_marker();
    test
}

async fn wait_approval(test: &TestEngine) -> ApprovalRow {
    poll_until("an approval", async || test.engine.pending_approvals().into_iter().next()).await
}

fn approval_decisions(watcher: &mut NoticeRecorder, run: &RunId) -> Vec<String> {
    let decision = |kind: &EventKind| match kind {
        EventKind::ApprovalResolved { decision, .. } => Some(decision.clone()),
        _ => None,
    };
    watcher.run_events(run).iter().filter_map(|event| decision(&event.kind)).collect()
}

#[tokio::test]
async fn an_allowed_call_runs_and_a_second_answer_is_refused() {
    let test = start_engine(|_, _| {}).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker("go", [shell_call("echo ran"), ScriptedResponse::text("Done.")]);
    let run = test.send(submission("s", "go marker:go")).await;
    let row = wait_approval(&test).await;
    assert_eq!((&row.run_id, row.tool.as_str(), &row.state), (&run, "shell", &ApprovalState::Pending));
    // The owner of the run may not answer without the grant either.
    for (caller, decision) in [(bob(), Decision::Allow), (bob(), Decision::Deny), (alice(), Decision::Allow)] {
        let refused = test.engine.answer_approval(&Caller { grants: Grants::NONE, ..caller }, &row.id, decision.into());
        let expected = AnswerError::NotAllowed(row.id.clone(), DecisionForbidden::MissingApproveScope);
        assert_eq!(refused, Err(expected), "{decision:?}");
    }
    // With the grant, it is still what asked, unless a person verifiably answers.
    let refused = test.engine.answer_approval(&alice(), &row.id, Decision::Allow.into());
    assert_eq!(refused, Err(AnswerError::NotAllowed(row.id.clone(), DecisionForbidden::OwnCall)));
    let unknown = test.engine.answer_approval(&alice(), "nonsense", Decision::Allow.into());
    assert_eq!(unknown, Err(AnswerError::Unknown("nonsense".to_owned())));
    test.engine.answer_approval(&root(), &row.id, Decision::Allow.into()).unwrap();
    let again = test.engine.answer_approval(&alice(), &row.id, Decision::Deny.into()).unwrap_err();
    assert!(matches!(again, AnswerError::AlreadySettled(row) if row.state.decision_str() == "allow"));
    let view = test.wait_ended(&run).await;
    assert_eq!(view.output.as_deref(), Some("Done."));
    let (end, output) = watcher.call_ends(&run).remove(0);
    assert!(end == CallEnd::Ok && output.starts_with("ran"), "{output}");
    assert_eq!(approval_decisions(&mut watcher, &run), ["allow"]);
    let held = receipt_of(&view).resources.iter().find(|row| row.kind == ResourceKind::Approval).unwrap();
    assert_eq!(held.how, "finished");
    test.close().await;
}

#[tokio::test]
async fn a_denied_call_does_not_run_and_the_model_is_told() {
    let test = start_engine(|_, _| {}).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let marker = ProcessMarker::new();
    test.script_marker("go", [shell_call(commands::setsid_child(&marker))]);
    let run = test.send(submission("s", "go marker:go")).await;
    let row = wait_approval(&test).await;
    let because = ApprovalAnswer::denial(Some("use the staging server".to_owned()));
    test.engine.answer_approval(&alice(), &row.id, because).unwrap();
    let view = test.wait_ended(&run).await;
    assert_eq!(watcher.call_ends(&run).remove(0).0, CallEnd::Denied);
    assert!(
        messages_as_text(&test.last_messages())
            .contains("Denied by a person, who says: use the staging server. The call did not run")
    );
    assert!(receipt_of(&view).resources.iter().all(|row| row.kind != ResourceKind::Process));
    test.close().await;
}

#[tokio::test]
async fn silence_is_a_denial_that_is_recorded_as_a_time_out() {
    let test = start_engine(|_, timeout| *timeout = 0).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker("go", [shell_call("echo ran")]);
    let view = test.run_message("s", "go marker:go").await;
    assert_eq!(approval_decisions(&mut watcher, &view.run_id), ["timeout"]);
    assert_eq!(watcher.call_ends(&view.run_id).remove(0).0, CallEnd::Denied);
    assert!(messages_as_text(&test.last_messages()).contains("Nobody allowed the call in time"));
    test.close().await;
}

#[tokio::test]
async fn a_stop_settles_what_waits_before_it_returns() {
    let test = start_engine(|_, _| {}).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker("go", [shell_call("echo ran")]);
    let run = test.send(submission("s", "go marker:go")).await;
    let row = wait_approval(&test).await;
    let _stop = test.stop(&run);
    assert!(test.engine.pending_approvals().is_empty(), "the stop returned before it settled the approval");
    let late = test.engine.answer_approval(&bob(), &row.id, Decision::Allow.into()).unwrap_err();
    assert!(matches!(late, AnswerError::AlreadySettled(row) if row.state == ApprovalState::Cancelled));
    test.wait_ended(&run).await;
    assert_eq!(approval_decisions(&mut watcher, &run), ["cancelled"]);
    test.close().await;
}

#[tokio::test]
async fn a_tool_that_the_configuration_denies_never_runs_and_asks_nobody() {
    let test = start_engine(|main, _| {
        main.approvals.insert("*".to_owned(), ApprovalPolicy::Deny);
        main.approvals.insert("read_file".to_owned(), ApprovalPolicy::Auto);
    })
    .await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let list = ScriptedResponse::tool_call("c1", "list_files", &json!({}));
    let read = ScriptedResponse::tool_call("c2", "read_file", &json!({"path": "none.txt"}));
    test.script_marker("go", [list, read]);
    let view = test.run_message("s", "go marker:go").await;
    assert_eq!(watcher.call_ends(&view.run_id).remove(0).0, CallEnd::Denied);
    assert!(approval_decisions(&mut watcher, &view.run_id).is_empty());
    let seen = messages_as_text(&test.last_messages());
    assert!(seen.contains("The configuration denies this tool") && seen.contains("none.txt"), "{seen}");
    test.close().await;
}

#[tokio::test]
async fn a_second_person_is_needed_where_the_agent_says_so() {
    let test = start_engine(|main, _| main.approval_quorum = 2).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker("go", [shell_call("echo ran")]);
    let run = test.send(submission("s", "go marker:go")).await;
    let row = wait_approval(&test).await;
    assert_eq!((row.quorum, row.allowed_by.len()), (2, 0));
    let counted = test.engine.answer_approval(&bob(), &row.id, Decision::Allow.into()).unwrap();
    assert_eq!((&counted.state, counted.missing_allowances()), (&ApprovalState::Pending, 1));
    assert_eq!(wait_approval(&test).await.allowed_by[0].principal.as_str(), "bob");
    let again = test.engine.answer_approval(&bob(), &row.id, Decision::Allow.into()).unwrap_err();
    assert!(matches!(again, AnswerError::AlreadyCounted(_)), "{again}");
    assert!(watcher.call_ends(&run).is_empty(), "one person is not enough");
    // The sender counts as a second person only when it verifiably is one.
    let alice_in_person = Caller { verified_person: true, ..alice() };
    test.engine.answer_approval(&alice_in_person, &row.id, Decision::Allow.into()).unwrap();
    let view = test.wait_ended(&run).await;
    assert_eq!(view.verdict, Some(Verdict::Completed));
    let events = watcher.run_events(&run);
    let names = events.iter().map(|event| event.name()).filter(|name| name.starts_with("approval."));
    assert_eq!(names.collect::<Vec<_>>(), ["approval.requested", "approval.updated", "approval.resolved"]);
    test.close().await;
}
