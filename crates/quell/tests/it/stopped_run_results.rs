//! What a stopped run returns, leaves and costs, and what a daemon that died leaves, at the engine (rows E and X of
//! docs/design/requirements.md).

use std::slice::from_ref;

use quell_engine::Engine;
use quell_engine::engine::EngineNotice;
use quell_protocol::ErrorCode;
use quell_scope::PointProbe;
use quell_testkit::model::UsageReporting;

use crate::prelude::*;
use crate::test_engine::engine_config;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e2_an_error_that_surfaces_after_the_stop_is_cancelled_not_failed() {
    let test = TestEngine::start_shared().await;
    let run = parse_run_id("late-error");
    // The stop comes while the error answer is read; the error itself arrives after it.
    test.stop_at(Point::ModelError, 1, &run);
    test.model.script(ScriptedResponse::status(400));
    test.send(submission_as(&run, "s", "hello")).await;
    let view = test.wait_ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_a_stopped_run_answers_execution_paused_with_the_steps_that_ran() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": "true"})));
    test.model.script(ScriptedResponse::SilentBeforeHeaders);
    let run = test.send(submission("s", "hello")).await;
    test.model.request_at(1).wait_arrived().await;
    test.stop(&run);
    let result = serde_json::to_value(test.wait_ended(&run).await.result).unwrap();
    let expected = json!({"success": false, "cancelled": true, "error": "Execution paused", "loopCount": 2});
    assert_eq!(result, expected);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e4_e5_the_next_message_continues_on_the_finished_tool_results() {
    let test = TestEngine::start_shared().await;
    let batch = ScriptedStream::new()
        .tool_call("c1", "shell", &json!({"command": "echo $((40 + 2)) is known"}))
        .tool_call("c2", "shell", &json!({"command": "sleep 600"}));
    test.model.script(batch);
    let run = test.send(submission("s", "work")).await;
    let mut watcher = test.engine.live_run(&run).unwrap().follow(0);
    let mut started = 0;
    while started < 2 {
        let event = watcher.next().await.unwrap();
        started += u32::from(matches!(event.kind, EventKind::ToolStarted { .. }));
    }
    test.wait_resource_held(&run, ResourceKind::Process).await;
    test.stop(&run);
    test.wait_ended(&run).await;
    test.model.script(ScriptedResponse::text("I go on with 42."));
    test.run_message("s", "go on").await;
    let messages = test.last_messages();
    let results: Vec<_> = messages.iter().filter(|message| message["role"] == "tool").collect();
    assert_eq!(results.len(), 2, "{messages:#?}");
    assert!(results[0]["content"].as_str().unwrap().contains("42 is known"), "{messages:#?}");
    assert!(results[1]["content"].as_str().unwrap().contains("topped"), "{messages:#?}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e6_embedders_hear_of_the_cancel_before_the_stream_ends_and_nothing_runs_after_it() {
    let test = TestEngine::start_shared().await;
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.model.script(ScriptedResponse::silent_mid_stream("Once upon"));
    let run = test.send(submission("s", "a story")).await;
    test.model.request_at(0).wait_paused().await;
    assert_eq!(test.engine.active_run_ids_of_session(&parse_session_key("s")), from_ref(&run));
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x8_the_tokens_of_an_interrupted_step_are_counted_and_marked_as_estimated() {
    let test = TestEngine::start_shared().await;
    let counted = ScriptedStream::new().tool_call("c1", "shell", &json!({"command": "true"})).usage(
        UsageReporting::Always,
        1000,
        100,
    );
    test.model.script(counted).script(ScriptedResponse::silent_mid_stream("word ".repeat(40)));
    let run = test.send(submission("s", "hello")).await;
    test.model.request_at(1).wait_paused().await;
    test.wait_text(&run).await;
    test.stop(&run);
    let view = test.wait_ended(&run).await;
    let usage = receipt_of(&view).usage;
    assert!(usage.estimated, "{usage:?}");
    assert!(usage.input_tokens > 1000 && usage.output_tokens > 100, "the cut step costs too: {usage:?}");
    assert_eq!(view.usage, usage);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_stops_what_runs_and_what_waits_and_leaves_nothing() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": "trap '' TERM; sleep 600"})));
    let running = test.send(submission("s", "run it")).await;
    test.wait_resource_held(&running, ResourceKind::Process).await;
    let queued = test.send(submission("s", "wait for it")).await;
    let left = test.engine.shut_down().await;
    assert!(left.is_empty(), "{left:?}");
    leaks::wait_no_process_with_env(&format!("QUELL_RUN_ID={running}"), WAIT_TIMEOUT).await;
    let refused = test.expect_refusal(submission("t", "too late")).await;
    assert_eq!(refused.code(), ErrorCode::ShuttingDown);

    let again = Engine::start(engine_config(test.test_dir.path(), &test.model.base_url(), PointProbe::default()))
        .await
        .unwrap();
    for (run, turn) in [(&running, true), (&queued, false)] {
        let view = again.find_run(run).await.unwrap().unwrap();
        assert_eq!(view.verdict, Some(Verdict::Aborted { reason: StopReason::Shutdown, by: None }), "{view:#?}");
        assert_eq!(receipt_of(&view).turn.recorded, turn, "{view:#?}");
    }
    assert!(again.shut_down().await.is_empty());
}

/// A copy of the data directory at that moment is what a daemon that dies then leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_of_a_dead_daemon_are_sealed_and_not_resumed() {
    let test = TestEngine::start_shared().await;
    test.model.script(ScriptedResponse::text("before"));
    test.run_message("s", "earlier").await;
    test.model.script(ScriptedResponse::silent_mid_stream("half"));
    let started = test.send(submission("s", "started when it died")).await;
    test.model.request_at(1).wait_paused().await;
    let queued = test.send(submission("s", "queued when it died")).await;
    test.engine.set_hold(&root(), true, None).await.unwrap();
    let left = copy_data_dir(test.test_dir.path());
    test.engine.shut_down().await;

    let again = Engine::start(engine_config(left.path(), &test.model.base_url(), PointProbe::default())).await.unwrap();
    assert!(again.active_runs().is_empty());
    for (run, turn) in [(&started, true), (&queued, false)] {
        let view = again.find_run(run).await.unwrap().unwrap();
        assert_eq!(view.verdict, Some(Verdict::Aborted { reason: StopReason::DaemonStopped, by: None }));
        assert_eq!((view.state.as_str(), receipt_of(&view).turn.recorded), ("ended", turn), "{view:#?}");
    }
    assert!(again.hold().await.unwrap().held, "a hold survives");
    again.set_hold(&root(), false, None).await.unwrap();
    assert_eq!(test.model.recorded_requests().len(), 2, "the model got no further request");
    test.model.script(ScriptedResponse::text("after"));
    again.submit(&alice(), submission("s", "later")).await.unwrap();
    let request = test.model.request_at(2).wait_arrived().await;
    let seen = messages_as_text(request.messages());
    assert!(seen.contains("earlier") && seen.contains("started when it died"), "{seen}");
    assert!(seen.contains("because the service went down") && !seen.contains("queued when it died"), "{seen}");
    request.wait_finished().await;
    assert!(again.shut_down().await.is_empty());
    test.model.assert_histories_valid();
}
