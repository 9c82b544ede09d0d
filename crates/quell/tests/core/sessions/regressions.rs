//! Known defects of the original design, each by its symptom. Their causes were: check, wait, then act on a table
//! without a lock; count only the start of a run as a use; share one history object between all tabs.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_messages_at_once_on_one_chat_leak_no_second_session() {
    let fixture = SessionFixture::start().await;
    let both = join_all(["one", "two"].map(|text| fixture.send(submission("s", text)))).await;
    for run in &both {
        fixture.wait_ended(run).await;
    }
    assert_eq!(fixture.program.recorded_stages(), ["begin a"]);
    fixture.expire_all().await;
    assert_eq!(fixture.program.recorded_stages(), ["begin a", "undo a"]);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_in_clean_up_is_given_to_no_caller() {
    let (fixture, undo_gate) = SessionFixture::start_undo_gated().await;
    fixture.run_message("s", "hello").await;
    fixture.advance_time(PAST_IDLE_LIMIT);
    fixture.wait_hook_event("s", HookEvent::Terminate).await;
    // The session leaves the table before its cleanup, and its successor waits until the cleanup is over.
    let before = fixture.model.request_count();
    let run = fixture.send(submission("s", "too early")).await;
    let opened = fixture.open(session_request("other", "c")).await;
    assert!(opened.is_ok(), "a clean-up holds up another session");
    assert_eq!(fixture.model.request_count(), before, "a run uses a session that is being cleaned up");
    undo_gate.add_permits(10);
    fixture.wait_ended(&run).await;
    let events = fixture.program.recorded_stages();
    assert_eq!(events.iter().filter(|event| *event == "undo a").count(), 1, "{events:?}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_longer_than_the_idle_limit_keeps_its_session_and_its_model() {
    let fixture = SessionFixture::start().await;
    fixture.script_marker("long", [list_files_call(), gated_response("half a day later")]);
    let run = fixture.send(submission("s", "marker:long")).await;
    fixture.model.wait_for_marked_request("long").await;
    for _ in 0..24 {
        fixture.advance_time(PAST_IDLE_LIMIT);
        assert_eq!(fixture.program.count_alive(), 1, "a session was swept while it was in use");
    }
    fixture.model.open_gate("half a day later");
    fixture.assert_completes(&run).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_asked_for_during_a_long_run_is_not_torn_down_under_it() {
    let fixture = SessionFixture::start().await;
    let run = fixture.start_gated_run("u:c:scripted", "long").await;
    fixture.clock.skip(PAST_IDLE_LIMIT);
    let mut asked = session_request("u", "c");
    for language in ["ko-KR", "de-DE"] {
        asked.language = Some(language.to_owned());
        fixture.open(asked.clone()).await.unwrap();
        fixture.clock.skip(PAST_IDLE_LIMIT);
        fixture.open(asked.clone()).await.unwrap();
    }
    let stages = fixture.program.recorded_stages();
    assert_eq!(stages, ["begin a"], "a session was cleaned up while a run was at work in it");
    assert_eq!(fixture.session_state("u:c:scripted").await, "active");
    fixture.model.open_gate("long");
    fixture.assert_completes(&run).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_waits_for_long_finds_the_session_that_was_there_when_it_came() {
    let fixture = SessionFixture::start_configured(|config| config.limits.in_flight_runs = 1).await;
    fixture.run_message("s", "hello").await;
    // First behind a run of another session, then behind a run of its own session.
    for (session, marker) in [("other", "first"), ("s", "second")] {
        let long = fixture.start_gated_run(session, marker).await;
        let waits = fixture.send(submission("s", "next")).await;
        fixture.advance_time(PAST_IDLE_LIMIT);
        fixture.model.open_gate(marker);
        fixture.wait_ended(&long).await;
        fixture.assert_completes(&waits).await;
    }
    let events = fixture.program.hook_events_of("s");
    assert!(!events.contains(&HookEvent::Expire), "a session with a queued run has expired: {events:?}");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_come_during_a_sweep_are_neither_swept_nor_forgotten() {
    let fixture = SessionFixture::start().await;
    let requests = |user: &'static str| (0..200).map(move |number| session_request(user, &number.to_string()));
    join_all(requests("old").map(|asked| fixture.open(asked))).await;
    fixture.clock.skip(PAST_IDLE_LIMIT);
    let sweeping = async {
        for _ in 0..20 {
            fixture.engine.sweep_sessions();
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(join_all(requests("new").map(|asked| fixture.open(asked))), sweeping);
    fixture.wait_alive(200).await;
    assert_eq!(fixture.engine.count_live_sessions(), 200);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tabs_on_one_chat_do_not_swap_their_memory_and_two_chats_share_none() {
    let fixture = SessionFixture::start().await;
    fixture.script_marker("first", [gated_response("go on")]);
    let first = fixture.send(submission("s", "secret of the first tab marker:first")).await;
    fixture.model.wait_for_marked_request("first").await;
    let second = fixture.send(submission("s", "of the second tab")).await;
    let other = fixture.send(submission("other", "another chat marker:other")).await;
    fixture.wait_ended(&other).await;
    let seen_there = fixture.model.wait_for_marked_request("other").await;
    assert!(!messages_as_text(seen_there.messages()).contains("secret"), "one chat sees another");
    assert!(!messages_as_text(fixture.model.wait_for_marked_request("first").await.messages()).contains("second tab"));
    fixture.model.open_gate("go on");
    fixture.wait_ended(&first).await;
    fixture.wait_ended(&second).await;
    let last = messages_as_text(&fixture.last_messages());
    assert!(last.contains("secret of the first tab") && last.contains("of the second tab"), "{last}");
    assert_eq!(fixture.program.max_alive.load(Ordering::SeqCst), 2, "one session for each chat");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_prompt_and_a_rotated_key_are_in_force_at_the_next_message() {
    let fixture = SessionFixture::start().await;
    let mut asked = session_request("u", "c");
    (asked.instruction, asked.model) = (Some("Speak like a pirate.".to_owned()), Some("model".to_owned()));
    asked.api_key = Some(Secret::new("sk-old".to_owned()));
    let (session, _) = fixture.open(asked.clone()).await.unwrap();
    fixture.run_message(session.as_str(), "hello").await;
    let seen = fixture.model.recorded_requests().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-old"));
    asked.instruction = Some("Speak like a judge.".to_owned());
    asked.api_key = Some(Secret::new("sk-new".to_owned()));
    fixture.open(asked).await.unwrap();
    fixture.run_message(session.as_str(), "and now").await;
    let seen = fixture.model.recorded_requests().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-new"));
    let messages = messages_as_text(seen.messages());
    assert!(messages.contains("judge") && !messages.contains("pirate"), "{messages}");
    assert!(messages.contains("hello"), "the change of the key lost the session");
    assert_eq!(fixture.program.recorded_stages(), ["begin a"], "the session was created again");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_mcp_connection_that_another_task_opened_is_really_closed() {
    let (mark, folder) = (ProcessMarker::new(), tempfile::tempdir().unwrap());
    let log = folder.path().join("log");
    let server = test_server_config(&mark, &log);
    let fixture = SessionFixture::start_configured(|config| {
        config.mcp.insert("test".to_owned(), server);
    })
    .await;
    for session in ["s", "t"] {
        let call = ScriptedResponse::tool_call("c", "test__echo", &json!({"text": "hello"}));
        fixture.script_marker(session, [call, ScriptedResponse::text("done")]);
        fixture.run_message(session, &format!("marker:{session}")).await;
    }
    assert_eq!(fixture.engine.mcp().count_live(), 2, "a server for each session");
    fixture.expire_all().await;
    let engine = fixture.engine.clone();
    leaks::wait_for_value("live MCP servers", 0, move || engine.mcp().count_live()).await;
    mark.wait_gone(WAIT_TIMEOUT).await;
    fixture.close().await;
}

/// A session expired between the end of a run and the idle wait of its actor, and the sweep removed its entry. Its next
/// message then had two actors, and one of them looked for the entry in an endless loop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_come_while_everything_expires_at_once_are_all_answered() {
    let fixture = SessionFixture::start_configured(|config| {
        config.sessions.idle_s = 0;
        // Runs wait for permits, too.
        config.limits.in_flight_runs = 2;
    })
    .await;
    let talk = |session: &'static str| {
        let fixture = &fixture;
        async move {
            for _ in 0..60 {
                // The second message arrives while the first run works or ends.
                let one = fixture.send(submission(session, "one")).await;
                let two = fixture.send(submission(session, "two")).await;
                for run in [one, two] {
                    let ended = tokio::time::timeout(WAIT_TIMEOUT, fixture.assert_completes(&run)).await;
                    ended.expect("nobody answers");
                }
            }
        }
    };
    let sweeping = async {
        loop {
            fixture.engine.sweep_sessions();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ((), (), ()) = async { tokio::join!(talk("s"), talk("t"), talk("u")) } => {}
        () = sweeping => {}
    }
    fixture.close().await;
}
