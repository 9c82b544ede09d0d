//! Approvals of sub-runs in the events of the runs above: at every depth, after a stop, to late readers, and only to those
//! who may see them.

use quell_engine::engine::RunFollow;
use quell_kernel::approval::ApprovalPolicy;
use quell_protocol::RunEvent;
use quell_protocol::approval::{ApprovalRow, ApprovalState, Decision};

use crate::prelude::*;

/// An engine whose agent `scout` asks before each command.
async fn start_engine() -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, |config| {
        let (role, parent) = (Some("scout".to_owned()), Some(parse_agent_id("main")));
        let mut scout = AgentConfig { role, parent, ..config.agents[&parse_agent_id("main")].clone() };
        scout.approvals.insert("shell".to_owned(), ApprovalPolicy::Ask);
        config.agents.insert(parse_agent_id("scout"), scout);
    })
    .await;
    test.answer_by_marker();
    test
}

fn spawn_call(marker: &str, wait: bool) -> ScriptedResponse {
    let arguments = json!({"agent": "scout", "prompt": format!("look marker:{marker}"), "wait": wait});
    ScriptedResponse::tool_call("c1", "spawn_agent", &arguments)
}

async fn wait_approval(test: &TestEngine) -> ApprovalRow {
    poll_until("an approval", async || test.engine.pending_approvals().into_iter().next()).await
}

/// The names of the events of a run about approvals, its own and those below.
fn approval_events(events: &[Arc<RunEvent>]) -> Vec<&'static str> {
    events.iter().map(|event| event.name()).filter(|name| name.contains("approval")).collect()
}

#[tokio::test]
async fn a_stop_resolves_the_approval_in_all_runs_above() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker("top", [spawn_call("middle", true)]);
    test.script_marker("middle", [spawn_call("low", true)]);
    test.script_marker("low", [shell_call("true")]);
    let top = test.send(submission("s", "go marker:top")).await;
    let asked = wait_approval(&test).await;
    let middle = test.engine.live_run(&asked.run_id).unwrap().lineage()[1].clone();
    test.stop_and_wait(&top).await;
    for run in [&top, &middle] {
        let events = watcher.run_events(run);
        assert_eq!(approval_events(&events), ["sub_run.approval_requested", "sub_run.approval_resolved"], "{run}");
        let approvals: Vec<&ApprovalRow> = events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::SubRunApprovalRequested { approval } | EventKind::SubRunApprovalResolved { approval } => {
                    Some(&**approval)
                }
                _ => None,
            })
            .collect();
        assert_eq!(*approvals[0], asked);
        assert_eq!((&approvals[1].id, &approvals[1].state), (&asked.id, &ApprovalState::Cancelled));
        assert_eq!(events.last().unwrap().name(), "run.ended");
    }
    let own = watcher.run_events(&asked.run_id);
    assert_eq!(approval_events(&own), ["approval.requested", "approval.resolved"]);
    test.close().await;
}

#[tokio::test]
async fn a_late_reader_learns_of_an_approval_below() {
    let test = start_engine().await;
    let mut long_answer = ScriptedStream::new().wait_for_gate("write");
    for piece in 0..40 {
        long_answer = long_answer.text(format!("{piece} {}\n", "x".repeat(1000)));
    }
    let long_answer = long_answer.wait_for_gate("finish").text("done");
    test.script_marker("top", [spawn_call("below", false), long_answer.into()]);
    test.script_marker("below", [shell_call("true"), ScriptedResponse::text("as you like")]);
    let top = test.send(submission("s", "go marker:top")).await;
    let asked = wait_approval(&test).await;
    let live_run = test.engine.live_run(&top).unwrap();
    test.model.open_gate("write");
    poll_until("the text", async || live_run.streaming_text().contains("39 x").then_some(())).await;
    let Some(RunFollow::Live(mut late)) = test.engine.follow_run(&top, 0).await.unwrap() else {
        panic!("{top} is over")
    };
    let first = late.next().await.unwrap();
    let EventKind::Snapshot { approvals, .. } = &first.kind else { panic!("{first:#?}") };
    assert_eq!(approvals, std::slice::from_ref(&asked));
    test.engine.answer_approval(&root(), &asked.id, Decision::Deny.into()).unwrap();
    loop {
        let event = late.next().await.unwrap();
        if let EventKind::SubRunApprovalResolved { approval } = &event.kind {
            assert!(matches!(&approval.state, ApprovalState::Denied { by, .. } if by.principal == root().principal));
            break;
        }
        assert!(!matches!(event.kind, EventKind::Ended { .. }), "the end came first");
    }
    test.model.open_gate("finish");
    test.wait_ended(&top).await;
    test.wait_ended(&asked.run_id).await;
    test.close().await;
}

/// The session of a new sub-agent is private, also if that of the run above is shared.
#[tokio::test(flavor = "multi_thread")]
async fn only_those_who_see_an_approval_are_told_of_it_above() {
    let server = TestServer::start_with_asking_sub_agent().await;
    let delegation = json!({"agent": "team/writer", "prompt": "look"});
    server.model.script(ScriptedResponse::tool_call("c0", "spawn_agent", &delegation)).script(list_files_call());
    server.model.script(ScriptedResponse::text("not listed")).script(ScriptedResponse::text("done"));
    let ann = server.api_with_new_token("ann", "write").await;
    let run = ann.send_message("s", "go").await;
    let waiting = async || server.http.get("/api/approvals").await.expect_status(200)["items"].get(0).cloned();
    let asked = poll_until("an approval", waiting).await;
    let _ = ann.put("/api/sessions/s/sharing", &json!({"shared": true})).await.expect_status(200);
    let guest = server.api_with_new_token("guest", "read").await;
    let approver = server.api_with_new_token("approver", "approve").await;
    let logs = [ann.run_events(&run, 0).await, approver.run_events(&run, 0).await, guest.run_events(&run, 0).await];
    let path = format!("/api/approvals/{}", asked["id"].as_str().unwrap());
    server.http.post(&path, &json!({"decision": "deny"})).await.expect_status(200);
    let mut told = Vec::new();
    for log in logs {
        let log = log.read_to_end().await;
        assert_eq!(log.verdict(), "completed");
        told.push(log.kinds().into_iter().filter(|kind| kind.starts_with("sub_run.")).count());
    }
    assert_eq!(told, [2, 2, 0]);
}
