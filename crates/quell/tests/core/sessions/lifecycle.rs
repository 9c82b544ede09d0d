//! Session states, expiry and revival, and what keeps a session alive.

use quell_protocol::approval::Decision;
use quell_store::test_support::RefusedWrite;
use quell_tools::attachment::attachment_folder;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_ready_active_ready_expired_and_ready_again_with_its_history() {
    let fixture = SessionFixture::start().await;
    let (session, got) = fixture.open(session_request("u", "c")).await.unwrap();
    assert_eq!((session.as_str(), got), ("u:c:scripted", OpenSessionOutcome::Created));
    assert_eq!(fixture.session_state("u:c:scripted").await, "ready");
    let run = fixture.start_hanging("u:c:scripted").await;
    assert_eq!(fixture.session_state("u:c:scripted").await, "active");
    fixture.stop(&run).wait_settled().await;
    fixture.wait_ended(&run).await;
    fixture.run_message("u:c:scripted", "remember the number 4711").await;
    assert_eq!(fixture.session_state("u:c:scripted").await, "ready");
    fixture.expire_all().await;
    assert_eq!(fixture.session_state("u:c:scripted").await, "expired");
    fixture.run_message("u:c:scripted", "and now").await;
    assert!(messages_as_text(&fixture.last_messages()).contains("4711"), "the history is gone");
    assert_eq!(fixture.session_state("u:c:scripted").await, "ready");
    use HookEvent::{Activate, Create, Expire, RunEnd, RunStart, Terminate};
    let mut events = fixture.program.hook_events_of("u:c:scripted");
    events.retain(|event| ![RunStart, RunEnd].contains(event));
    assert_eq!(events, [Create, Activate, Activate, Expire, Terminate, Create, Activate]);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_life_of_a_session_is_told_in_its_order() {
    let fixture = SessionFixture::start_with(RecordingProgram::with_stages(&["a", "b"]), |_| {}).await;
    fixture.run_message("s", "hello").await;
    let program = Arc::clone(&fixture.program);
    fixture.close().await;
    // The program's own events are not ordered against those of the session.
    let (mut own, mut of_session) = (Vec::new(), Vec::new());
    for event in program.recorded() {
        match event {
            ProgramEvent::Hook(event, session) if session.is_empty() => own.push(event),
            ProgramEvent::Hook(event, _) => of_session.push(event.to_string()),
            ProgramEvent::Stage(text) => of_session.push(text),
        }
    }
    let before = ["on_create", "begin a", "begin b", "on_activate", "on_run_start", "on_run_end"];
    assert_eq!(of_session, [before.as_slice(), &["on_terminate", "undo b", "undo a"]].concat());
    own.sort();
    assert_eq!(own, [HookEvent::Start, HookEvent::Shutdown]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pending_approval_keeps_its_session() {
    let fixture = SessionFixture::start_configured(|config| {
        let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("*".to_owned(), quell_kernel::approval::ApprovalPolicy::Ask);
    })
    .await;
    fixture.script_marker("ask", [list_files_call(), ScriptedResponse::text("done")]);
    let run = fixture.send(submission("s", "marker:ask")).await;
    let row = fixture.wait_approval_of(&run).await;
    fixture.advance_time(Duration::from_secs(800));
    fixture.advance_time(PAST_IDLE_LIMIT);
    assert_eq!(fixture.program.count_alive(), 1, "a session with a pending approval has expired");
    fixture.engine.answer_approval(&bob(), &row.id, Decision::Allow.into()).unwrap();
    fixture.assert_completes(&run).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_process_keeps_its_session_until_it_ends() {
    let fixture = SessionFixture::start().await;
    fixture.script_marker("serve", [background_call("sleep 1000"), ScriptedResponse::text("done")]);
    fixture.run_message_in_memory("s", "marker:serve").await;
    fixture.advance_time(PAST_IDLE_LIMIT);
    assert_eq!(fixture.program.count_alive(), 1, "a session with a background process has expired");
    fixture.stop_session("s").wait_settled().await;
    fixture.expire_all().await;
    fixture.close().await;
}

/// A deletion that was cut short must not leave files without their session; a removed agent has no workdir to look in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_session_go_before_it_whichever_agent_has_left() {
    let fixture = SessionFixture::start().await;
    fixture.run_message("s", "hello").await;
    let work_dir = fixture.engine.config().work_dir.clone();
    let file = |agent: &str, session: &str| {
        work_dir.join(agent).join(attachment_folder(&parse_session_key(session))).join("r1/0-cat.png")
    };
    let (own_file, others) = (file("has-left", "s"), file("has-left", "t"));
    for file in [&own_file, &others] {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "cat").unwrap();
    }
    let database = OtherProgram::connect(fixture.test_dir.path());
    database.refuse(RefusedWrite::SessionDeletion);
    let (key, ask) = (parse_session_key("s"), stop_ask(StopLevel::Gentle));
    assert!(fixture.engine.delete_session(&alice(), &key, &ask).await.is_err());
    assert!(!own_file.exists() && others.exists());
    database.accept_again();
    assert!(fixture.delete_session("s").await, "it can be deleted again");
    // It is cleaned up before the answer.
    assert_eq!((fixture.session_state("s").await.as_str(), fixture.program.count_alive()), ("none", 0));
    assert_eq!(fixture.program.hook_events_of("s").last(), Some(&HookEvent::Terminate));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_deleted_under_its_run_does_not_live_on_with_its_settings() {
    let fixture = SessionFixture::start().await;
    for _ in 0..30 {
        let asked = SessionRequest {
            api_key: Some(Secret::new("sk-old".to_owned())),
            instruction: Some("Be brief.".to_owned()),
            ..session_request("u", "c")
        };
        let (session, got) = fixture.open(asked).await.unwrap();
        assert_eq!(got, OpenSessionOutcome::Created, "the deleted session is still there");
        fixture.start_hanging(session.as_str()).await;
        // The deletion stops the run, whose actor may still hold the session for a moment.
        assert!(fixture.delete_session(session.as_str()).await);
        let left = (fixture.engine.count_live_sessions(), fixture.program.count_alive());
        assert_eq!(left, (0, 0), "the session is still in memory");
    }
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_cleans_every_session_up() {
    let fixture = SessionFixture::start().await;
    for number in 0..50 {
        fixture.open(session_request("u", &format!("c{number}"))).await.unwrap();
    }
    assert_eq!(fixture.program.count_alive(), 50);
    let program = Arc::clone(&fixture.program);
    fixture.close().await;
    assert_eq!(program.count_alive(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_waits_for_a_place_is_deleted_without_one() {
    let fixture = SessionFixture::start_configured(|config| config.limits.in_flight_runs = 1).await;
    fixture.run_message("waits", "hello").await;
    let run = fixture.start_hanging("works").await;
    fixture.send(submission("waits", "later")).await;
    let deleted = tokio::time::timeout(WAIT_TIMEOUT, fixture.delete_session("waits")).await;
    assert!(deleted.expect("it waits for another session"));
    assert_eq!(fixture.engine.count_live_sessions(), 1);
    fixture.stop(&run).wait_settled().await;
    fixture.close().await;
}
