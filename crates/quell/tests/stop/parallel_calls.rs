//! Tool calls of one message that run at the same time, and those that wait for others.

use crate::prelude::*;
use crate::test_engine::shell_call;

fn spawn(stream: ScriptedStream, id: &str, marker: &str) -> ScriptedStream {
    stream.tool_call(id, "spawn_agent", &json!({"agent": "main", "prompt": format!("look marker:{marker}")}))
}

fn shell(stream: ScriptedStream, id: &str, command: &str) -> ScriptedStream {
    stream.tool_call(id, "shell", &json!({"command": command}))
}

fn gated(gate: &str, text: &str) -> ScriptedResponse {
    ScriptedStream::new().wait_for_gate(gate).text(text).into()
}

async fn start_engine() -> TestEngine {
    start_engine_with(|_| {}).await
}

async fn start_engine_with(change: impl FnOnce(&mut EngineConfig)) -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, change).await;
    test.answer_by_marker();
    test
}

/// Names of the events about calls, with the id of the call.
fn call_events(watcher: &mut NoticeRecorder, run: &RunId) -> Vec<String> {
    let event_of_call = |kind: &EventKind| match kind {
        EventKind::ToolWaiting { call_id, .. }
        | EventKind::ToolStarted { call_id, .. }
        | EventKind::ToolEnded { call_id, .. } => Some(format!("{} {call_id}", kind.name())),
        _ => None,
    };
    watcher.run_events(run).iter().filter_map(|event| event_of_call(&event.kind)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sub_agents_work_together_and_their_results_stay_in_order() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let calls = spawn(spawn(ScriptedStream::new(), "c1", "first"), "c2", "second");
    test.script_marker("top", [calls.into(), ScriptedResponse::text("Both are done.")]);
    test.script_marker("first", [gated("first", "one")]);
    test.script_marker("second", [gated("second", "two")]);
    let run = test.send(submission("s", "go marker:top")).await;
    // Both are at work before either has ended; the second one ends first.
    test.model.wait_for_marked_request("first").await.wait_paused().await;
    test.model.wait_for_marked_request("second").await.wait_paused().await;
    test.model.open_gate("second");
    let ended = |event: &quell_protocol::RunEvent| matches!(event.kind, EventKind::ToolEnded { .. });
    watcher.wait_event(&run, "end of a call", ended).await;
    test.model.open_gate("first");
    let view = test.wait_ended(&run).await;
    assert_eq!(view.output.as_deref(), Some("Both are done."));
    let events = call_events(&mut watcher, &run);
    assert_eq!(events[..2], ["tool.waiting c1", "tool.waiting c2"]);
    assert_eq!(events[4..], ["tool.ended c2", "tool.ended c1"]);
    let next = messages_as_text(test.last_messages().as_slice());
    assert!(next.find("\"one\"").unwrap() < next.find("\"two\"").unwrap(), "{next}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_waits_for_calls_before_it_and_holds_back_those_after() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    std::fs::create_dir_all(test.workdir()).unwrap();
    std::fs::write(test.workdir().join("a.txt"), "before").unwrap();
    let read = json!({"path": "a.txt"});
    let calls = ScriptedStream::new().tool_call("c1", "read_file", &read);
    let calls = shell(calls, "c2", "printf after > a.txt").tool_call("c3", "read_file", &read);
    test.script_marker("top", [calls.into(), ScriptedResponse::text("Done.")]);
    let view = test.run_message("s", "go marker:top").await;
    let ends: Vec<String> = watcher.call_ends(&view.run_id).into_iter().map(|(_, output)| output).collect();
    assert!(ends[0].contains("before") && ends[2].contains("after"), "{ends:?}");
    assert_eq!(
        call_events(&mut watcher, &view.run_id),
        [
            "tool.waiting c1",
            "tool.waiting c2",
            "tool.waiting c3",
            "tool.started c1",
            "tool.ended c1",
            "tool.started c2",
            "tool.ended c2",
            "tool.started c3",
            "tool.ended c3"
        ]
        .map(str::to_owned)
    );
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_calls_run_together_than_the_limit_says() {
    let test = start_engine_with(|config| config.limits.parallel_calls = 1).await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let calls = spawn(spawn(ScriptedStream::new(), "c1", "first"), "c2", "second");
    test.script_marker("top", [calls.into(), ScriptedResponse::text("Both are done.")]);
    let view = test.run_message("s", "go marker:top").await;
    let events = call_events(&mut watcher, &view.run_id);
    assert_eq!(events[2..], ["tool.started c1", "tool.ended c1", "tool.started c2", "tool.ended c2"]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_calls_that_run_and_calls_that_wait() {
    let test = start_engine().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    let process_marker = ProcessMarker::new();
    let calls = spawn(spawn(ScriptedStream::new(), "c1", "first"), "c2", "second");
    test.script_marker("top", [shell(calls, "c3", "echo never").into()]);
    test.script_marker("first", [shell_call(commands::setsid_child(&process_marker))]);
    test.script_marker("second", [shell_call(commands::setsid_child(&process_marker))]);
    let run = test.send(submission("s", "go marker:top")).await;
    process_marker.wait_for_count(4).await;
    let view = test.stop_and_wait(&run).await;
    process_marker.wait_gone(WAIT_TIMEOUT).await;
    let receipt = receipt_of(&view);
    assert!(receipt.leftovers.is_empty(), "{receipt:#?}");
    assert_eq!(receipt.resources.iter().filter(|row| row.kind == ResourceKind::Run).count(), 2);
    let ends: Vec<CallEnd> = watcher.call_ends(&run).into_iter().map(|(end, _)| end).collect();
    assert_eq!(ends, [CallEnd::Stopped, CallEnd::Stopped, CallEnd::NotStarted]);
    test.assert_next_message_works("s").await;
    test.close().await;
}

/// A call that waits for a person holds back commands after it, but no call beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_run_together_wait_for_persons_together() {
    let test = TestEngine::start_with_main(|main| {
        main.approvals.insert("spawn_agent".to_owned(), quell_kernel::approval::ApprovalPolicy::Ask);
    })
    .await;
    test.answer_by_marker();
    let calls = spawn(spawn(ScriptedStream::new(), "c1", "first"), "c2", "second");
    test.script_marker("top", [calls.into(), ScriptedResponse::text("Both are done.")]);
    let run = test.send(submission("s", "go marker:top")).await;
    let engine = test.engine.clone();
    leaks::wait_until(WAIT_TIMEOUT, move || match engine.pending_approvals().len() {
        2 => Ok(()),
        count => Err(format!("{count} approvals wait")),
    })
    .await;
    let view = test.stop_and_wait(&run).await;
    assert_eq!(test.engine.pending_approvals().len(), 0);
    assert_eq!(receipt_of(&view).resources.iter().filter(|row| row.kind == ResourceKind::Approval).count(), 2);
    test.close().await;
}
