//! What the model is told after a stop: what happened to each call, who stopped the run and why, and not to resume the
//! request. Also what people and receipts keep of a stopped run.

use quell_engine::engine::EngineNotice;
use quell_kernel::turn::PartialPolicy;
use quell_protocol::Surface;
use quell_testkit::model::UsageReporting;

use crate::prelude::*;

fn batch_of_two(first: &str, second: &str) -> ScriptedResponse {
    ScriptedStream::new()
        .tool_call("c1", "shell", &json!({"command": first}))
        .tool_call("c2", "shell", &json!({"command": second}))
        .into()
}

async fn stop_once_printed(test: &TestEngine, text: &str, level: StopLevel) -> RunId {
    let run = test.send(submission("s", "do it")).await;
    test.wait_printed(&run, text).await;
    assert!(test.engine.stop(&alice(), &run_stop_scope(&run), &stop_ask(level)).stopped_anything());
    test.wait_ended(&run).await;
    run
}

/// Rows E4 and E5 of docs/design/requirements.md.
#[tokio::test]
async fn a_finished_call_keeps_its_result_and_the_rest_of_its_batch_was_not_started() {
    let test = TestEngine::start_shared().await;
    let marker = ProcessMarker::new();
    test.model.script(
        ScriptedStream::new()
            .tool_call("c1", "shell", &json!({"command": "echo first is done"}))
            .tool_call(
                "c2",
                "shell",
                &json!({"command": format!("echo second began; {}", commands::setsid_child(&marker))}),
            )
            .tool_call("c3", "shell", &json!({"command": "echo third ran"})),
    );
    stop_once_printed(&test, "second began", StopLevel::Gentle).await;
    let seen = test.next_request_text().await;
    assert!(seen.contains("first is done\\n[exit code 0]"), "{seen}");
    assert!(
        seen.contains("second began\\n[stopped by request, ended by SIGTERM; it may have had effects already]"),
        "{seen}"
    );
    assert!(seen.contains("[Not started: the request ended before this call began. It did nothing.]"), "{seen}");
    assert!(!seen.contains("third ran\\n"), "{seen}");
    assert!(
        seen.contains(
            "[The request above was stopped on purpose by the user, before it was finished. Do not resume it"
        ),
        "{seen}"
    );
    test.close().await;
}

#[rstest]
#[case::ignores_sigterm(
    "trap '' TERM; echo begun; while :; do sleep 0.01; done",
    StopLevel::Gentle,
    &["begun\\n[stopped by request, ended by SIGKILL; it may have had effects already]"]
)]
#[case::forced("echo begun; sleep 1000", StopLevel::Forced, &["Stopped while it ran. Side effects are possible", "begun"])]
// Some shells also print that their job was terminated.
#[case::cleans_up(
    "trap 'echo cleaned up; exit 0' TERM; echo begun; while :; do sleep 0.01; done",
    StopLevel::Gentle,
    &["begun\\n", "cleaned up\\n", "[stopped by request"]
)]
#[tokio::test]
async fn the_end_of_a_stopped_command_and_its_output_are_told(
    #[case] command: &str,
    #[case] level: StopLevel,
    #[case] told: &[&str],
) {
    let test = TestEngine::start_shared().await;
    test.model.script(batch_of_two(command, "true"));
    stop_once_printed(&test, "begun", level).await;
    let seen = test.next_request_text().await;
    assert!(told.iter().all(|text| seen.contains(text)), "{told:?} are not in {seen}");
    test.close().await;
}

#[tokio::test]
async fn a_file_that_was_written_after_the_stop_is_said_to_be_written() {
    let test = TestEngine::start_exclusive().await;
    let write = ScriptedResponse::tool_call("c1", "write_file", &json!({"path": "new.txt", "content": "hello"}));
    test.model.script(write);
    let run = parse_run_id("writes");
    // The writing thread is at work and does not check for a stop any more.
    test.stop_at(Point::Blocking, 2, &run);
    test.send(submission_as(&run, "s", "write it")).await;
    test.wait_ended(&run).await;
    let written = test.workdir().join("new.txt").exists();
    let seen = test.next_request_text().await;
    let own_end = seen.contains("[It came to its own end after the request was stopped. Its effects stand.]");
    let stopped = seen.contains("Stopped while it ran");
    assert_eq!((own_end, stopped), (written, !written), "{seen}");
    test.close().await;
}

#[rstest]
#[case::command(StopReason::Command)]
#[case::own_words(StopReason::Other("because I say so".to_owned()))]
#[tokio::test]
async fn the_note_says_who_and_never_in_the_callers_words(#[case] reason: StopReason) {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedResponse::silent_mid_stream("half"));
    let run = test.send(submission("s", "go")).await;
    test.wait_text(&run).await;
    let ask = quell_kernel::registry::StopRequest { level: StopLevel::Gentle, reason, surface: Surface::Http };
    assert!(test.engine.stop(&alice(), &run_stop_scope(&run), &ask).stopped_anything());
    test.wait_ended(&run).await;
    let seen = test.next_request_text().await;
    assert!(seen.contains("stopped on purpose by the user") && !seen.contains("because I say so"), "{seen}");
    test.close().await;
}

#[tokio::test]
async fn a_time_out_is_told_as_one() {
    let test = TestEngine::start_shared().await;
    // Not by script: on a busy machine the time is over before the model is asked.
    test.model.respond_by_prompt(|_, _| ScriptedResponse::silent_mid_stream("half"));
    let timed = Submission { timeout: Some(Duration::from_millis(50)), ..submission("s", "go") };
    let run = test.send(timed).await;
    test.wait_ended(&run).await;
    assert!(test.next_request_text().await.contains("stopped on purpose because its time was used up"));
    test.close().await;
}

/// Rows E3 and X8 of docs/design/requirements.md.
#[rstest]
#[case::discard(PartialPolicy::Discard, false)]
#[case::keep(PartialPolicy::Keep, true)]
#[tokio::test]
async fn partial_text_follows_the_agents_policy_and_its_tokens_are_counted(
    #[case] policy: PartialPolicy,
    #[case] shown: bool,
) {
    let test = TestEngine::start_with_main(|main| main.partial = policy).await;
    let counted = ScriptedStream::new().tool_call("c1", "list_files", &json!({"path": "."}));
    test.model.script(counted.usage(UsageReporting::Always, 1000, 100));
    test.model.script(ScriptedResponse::silent_mid_stream("The answer is forty"));
    let run = test.send(submission("s", "what is it?")).await;
    test.wait_text(&run).await;
    assert!(test.stop(&run).stopped_anything());
    let view = test.wait_ended(&run).await;
    assert_eq!(view.output.as_deref(), Some("The answer is forty"), "the output of the run keeps it");
    let result = json!({"success": false, "cancelled": true, "error": "Execution paused", "loopCount": 2});
    assert_eq!(serde_json::to_value(&view.result).unwrap(), result);
    let usage = receipt_of(&view).usage;
    assert!(
        usage.estimated && usage.input_tokens > 1000 && usage.output_tokens > 100,
        "the interrupted step costs too: {usage:?}"
    );
    assert_eq!(view.usage, usage);
    let seen = test.next_request_text().await;
    assert_eq!(seen.contains("The answer is forty"), shown, "{seen}");
    assert_eq!(seen.contains("[Interrupted: this message was cut off here"), shown, "{seen}");
    test.close().await;
}

#[tokio::test]
async fn nothing_is_told_of_a_run_that_was_done_when_the_stop_came() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedResponse::text("done"));
    let view = test.run_message("s", "go").await;
    assert!(!test.stop(&view.run_id).stopped_anything());
    let seen = test.next_request_text().await;
    assert!(!seen.contains("stopped"), "{seen}");
    let kinds: Vec<ResourceKind> = receipt_of(&view).resources.iter().map(|row| row.kind).collect();
    assert_eq!(kinds, [ResourceKind::Permit, ResourceKind::ModelRequest]);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e6_embedders_hear_of_the_cancel_before_the_stream_ends_and_nothing_runs_after_it() {
    let test = TestEngine::start_shared().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.model.script(ScriptedResponse::silent_mid_stream("Once upon"));
    let run = test.send(submission("s", "a story")).await;
    test.model.request_at(0).wait_paused().await;
    assert_eq!(test.engine.active_run_ids_of_session(&parse_session_key("s")), std::slice::from_ref(&run));
    test.stop(&run);
    test.wait_ended(&run).await;
    assert!(test.engine.active_run_ids_of_session(&parse_session_key("s")).is_empty());
    let seen = watcher.read_notices();
    let cancelling = seen.iter().position(|notice| {
        matches!(notice, EngineNotice::Cancelling { run_id, session_key, reason }
            if *run_id == run && *session_key == parse_session_key("s") && *reason == StopReason::User)
    });
    let ending = seen.iter().position(
        |notice| matches!(notice, EngineNotice::Run(event) if matches!(event.kind, EventKind::Ending { .. })),
    );
    assert!(cancelling.is_some() && cancelling < ending, "{seen:#?}");
    test.close().await;
}
