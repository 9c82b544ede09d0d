//! Hooks at the start and the end of runs.

use quell_testkit::commands;

use super::*;
use crate::sessions::session_request;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_tells_its_hooks_that_it_starts_and_how_it_ended_and_never_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let (starts, ends) = (dir.path().join("starts"), dir.path().join("ends"));
    let test = start_engine(|hooks| {
        let keep = |file| format!("printf '%s ' \"$QUELL_RUN_ID\" >> ids; {}", append_stdin_command(file));
        hooks.on_run_start = keep(&starts).as_str().into();
        hooks.on_run_end = keep(&ends).as_str().into();
    })
    .await;
    test.model.script(ScriptedResponse::text("the secret answer"));
    let view = test.run_message("s", "the secret question").await;
    assert_eq!(view.verdict, Some(Verdict::Completed));
    let (start, end) = (wait_bodies(&starts, 1).await.remove(0), wait_bodies(&ends, 1).await.remove(0));
    for (body, event) in [(&start, HookEvent::RunStart), (&end, HookEvent::RunEnd)] {
        assert_eq!(body["event"], event.as_str(), "{body:#}");
        assert_eq!(body["session"], json!({"key": "s", "agent": "main"}), "{body:#}");
        assert_fields(&body["run"], &json!({"runId": view.run_id, "principal": "alice", "surface": "http"}));
        assert!(!body.to_string().contains("secret"), "{body:#}");
    }
    assert!(start["run"].get("verdict").is_none() && start["run"].get("receipt").is_none(), "{start:#}");
    assert_eq!(end["run"]["verdict"], json!({"kind": "completed"}), "{end:#}");
    assert_eq!(end["run"]["receipt"], serde_json::to_value(receipt_of(&view)).unwrap(), "{end:#}");
    assert_ne!(start["id"], end["id"]);
    // No process that carries the run's id may be alive after the run, so the end hook has an id of its own.
    let ids = std::fs::read_to_string(test.test_dir.path().join("ids")).unwrap();
    let ids: Vec<&str> = ids.split_whitespace().collect();
    assert_eq!(ids[0], view.run_id.as_str());
    assert!(ids[1].starts_with("hook-"), "{ids:?}");
    let held: Vec<_> = receipt_of(&view).resources.iter().map(|row| (row.kind, row.how.as_str())).collect();
    assert!(held.contains(&(ResourceKind::Hook, "finished")), "{held:?}");
    assert!(held.contains(&(ResourceKind::Process, "exited")), "{held:?}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_tells_whose_session_it_works_in_also_when_its_daemon_dies() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let with_hooks = |config: &mut EngineConfig| {
        config.hooks.on_activate = append_stdin_command(&file).as_str().into();
        config.hooks.on_run_start = append_stdin_command(&file).as_str().into();
        config.hooks.on_run_end = append_stdin_command(&file).as_str().into();
    };
    let session = json!({"userId": "ann", "chatId": "7", "provider": "scripted"});
    let data_dir = TestDataDir::new();
    let test = TestEngine::start_on(&data_dir, with_hooks).await;
    test.answer_by_marker();
    let (key, _) = test.engine.open_session(&alice(), session_request("ann", "7")).await.unwrap();
    test.run_message(key.as_str(), "hello").await;
    for body in wait_bodies(&file, 3).await {
        assert_fields(&body["session"], &session);
    }
    let view = test.run_message(key.as_str(), "again").await;
    assert_eq!(wait_bodies(&file, 6).await.len(), 6);
    test.close().await;
    // The state that a daemon leaves when it dies during the run.
    OtherProgram::connect(data_dir.path()).undo_end(&view.run_id);
    let test = TestEngine::start_on(&data_dir, with_hooks).await;
    let last = wait_bodies(&file, 7).await.remove(6);
    assert_fields(&last, &json!({"event": "on_run_end", "run": {"runId": view.run_id}, "session": session}));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_fails_when_a_run_starts_or_ends_changes_nothing() {
    let test = start_engine(|hooks| {
        hooks.on_run_start.0 =
            vec!["echo I refuse; exit 1".to_owned(), "kill -9 $$".to_owned(), "echo 3 >> seen".to_owned()];
        hooks.on_run_end = "echo 9 >> ended; exit 9".into();
    })
    .await;
    for count in 1..=2 {
        test.model.script(ScriptedResponse::text("here"));
        let view = test.run_message("s", "hello").await;
        assert_eq!((view.verdict.as_ref(), view.output.as_deref()), (Some(&Verdict::Completed), Some("here")));
        let receipt = receipt_of(&view);
        let hooks = receipt.resources.iter().filter(|row| row.kind == ResourceKind::Hook);
        assert_eq!(hooks.map(|row| row.how.as_str()).collect::<Vec<_>>(), ["finished"], "{receipt:#?}");
        assert!(receipt.turn.recorded && receipt.leftovers.is_empty(), "{receipt:#?}");
        // The hook after the failing ones was called, and so was the one at the end.
        assert_eq!(wait_lines(&test.test_dir.path().join("seen"), count).await, vec!["3"; count]);
        assert_eq!(wait_lines(&test.test_dir.path().join("ended"), count).await, vec!["9"; count]);
    }
    test.model.assert_histories_valid();
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_the_hook_of_a_starting_run_hangs_settles_at_once_and_its_receipt_lists_the_hook() {
    let marker = ProcessMarker::new();
    let test = start_engine_with_long_grace(|hooks| {
        hooks.on_run_start = signal_ignoring_command(&marker).as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    let run = test.send(submission("s", "hello")).await;
    wait_signals_ignored(&test, &marker).await;
    let begun = Instant::now();
    let stop = test.stop(&run);
    stop.wait_settled().await;
    // With the grace applied, a command that ignores SIGTERM would live for a minute.
    assert!(begun.elapsed() < SOON_LIMIT, "{:?}", begun.elapsed());
    let view = test.wait_ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    let receipt = receipt_of(&view);
    assert_eq!((receipt.rung, receipt.leftovers.len()), (Rung::Kill, 0), "{receipt:#?}");
    let held: Vec<_> = receipt.resources.iter().map(|row| (row.kind, row.label.as_str(), row.how.as_str())).collect();
    assert!(held.contains(&(ResourceKind::Hook, "on_run_start", "cancelled")), "{held:#?}");
    let process = receipt.resources.iter().find(|row| row.kind == ResourceKind::Process).unwrap();
    assert_eq!(process.how, "kill");
    assert!(process.process.as_ref().unwrap().swept >= 1, "{process:#?}");
    assert_eq!(marker.marked_processes(), []);
    assert!(test.model.recorded_requests().is_empty(), "the model was called before its hook answered");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_hangs_at_the_end_delays_neither_the_end_nor_the_next_run() {
    let marker = ProcessMarker::new();
    let test = start_engine(|hooks| {
        hooks.on_run_end = commands::ignores_signals(&marker).as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    for text in ["one", "two"] {
        test.model.script(ScriptedResponse::text("here"));
        assert_eq!(test.run_message("s", text).await.verdict, Some(Verdict::Completed));
    }
    marker.wait_for_count(1).await;
    test.close().await;
    assert_eq!(marker.marked_processes(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_never_began_has_no_end_to_tell() {
    let dir = tempfile::tempdir().unwrap();
    let ends = dir.path().join("ends");
    let test = start_engine(|hooks| hooks.on_run_end = append_stdin_command(&ends).as_str().into()).await;
    test.model.script(ScriptedResponse::silent_mid_stream("I think"));
    let first = test.send(submission("s", "one")).await;
    test.wait_text(&first).await;
    let queued = test.send(submission("s", "two")).await;
    test.stop_session("s").wait_settled().await;
    test.wait_ended(&queued).await;
    test.wait_ended(&first).await;
    test.model.script(ScriptedResponse::text("here"));
    let third = test.run_message("s", "three").await;
    let bodies = wait_bodies(&ends, 2).await;
    let ids: Vec<_> = bodies.iter().map(|body| body["run"]["runId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids, [first.to_string(), third.run_id.to_string()]);
    assert_eq!(bodies[0]["run"]["verdict"]["kind"], "aborted");
    test.close().await;
}
