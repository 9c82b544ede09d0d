//! Consolidation after an answer, in the background, and its stop.

use quell_kernel::registry::{BackgroundPolicy, QueuedPolicy};
use quell_protocol::Resource;
use quell_protocol::session::SessionRequest;

use super::*;
use crate::sessions::session_request;

const MESSAGE_TEXT: &str = "please paint my boat red";
const CONSOLIDATION_ANSWER: &str =
    r#"{"history_entry": "The boat was painted red.", "memory_update": "The user likes red boats."}"#;
const TASK_LABEL: &str = "consolidation of the memory";

async fn start_engine_consolidating() -> TestEngine {
    start_engine(|config| config.memory.consolidate = true).await
}

/// Like [`start_engine_consolidating`], with a second model for the agent.
async fn start_engine_with_chain() -> TestEngine {
    start_engine(|config| {
        config.memory.consolidate = true;
        let second = config.providers["scripted"].clone();
        config.providers.insert("second".to_owned(), second);
        let main = config.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.model = serde_json::from_value(json!([main.model.first(), "second/m"])).unwrap();
    })
    .await
}

/// Sends a message and waits until its run is over; background tasks may still run.
async fn run_completed(test: &TestEngine, message: Submission) -> RunView {
    let run = test.send(message).await;
    let view = match test.engine.live_run(&run) {
        Some(live_run) => {
            live_run.wait_for_progress(RunProgress::Ended).await;
            live_run.view()
        }
        None => test.engine.find_run(&run).await.unwrap().unwrap(),
    };
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    view
}

/// Runs a message, with this response to the consolidation request.
async fn run_with_consolidation(
    test: &TestEngine,
    session: &str,
    marker: &str,
    consolidation: impl Into<ScriptedResponse>,
) -> RunView {
    test.script_marker(marker, [ScriptedResponse::text("It is red now."), consolidation.into()]);
    run_completed(test, submission(session, &format!("Now marker:{marker} {MESSAGE_TEXT}"))).await
}

/// A consolidation response that waits for a gate.
fn gated_consolidation(gate: &str) -> ScriptedStream {
    ScriptedStream::new().text("Let me see. ").wait_for_gate(gate).text(CONSOLIDATION_ANSWER)
}

fn consolidation_requests(test: &TestEngine) -> Vec<ModelRequestHandle> {
    let is_one = |request: &ModelRequestHandle| messages_as_text(request.messages()).contains("worth remembering?");
    test.model.recorded_requests().into_iter().filter(is_one).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consolidation_writes_notes_after_the_answer() {
    let test = start_engine_consolidating().await;
    let view = run_with_consolidation(&test, "s", "ask", gated_consolidation("gate")).await;
    let of_it = |row: &&Resource| row.label == TASK_LABEL;
    let row = receipt_of(&view).resources.iter().find(of_it).unwrap();
    assert_eq!((row.kind, row.how.as_str()), (ResourceKind::Task, "kept"));
    assert!(list_notes(&test, session_scope("s")).await.is_empty(), "notes were written before the model answered");
    test.model.open_gate("gate");
    test.wait_ended(&view.run_id).await;
    let mut found = list_notes(&test, session_scope("s")).await;
    found.sort_by(|one, other| one.category.cmp(&other.category));
    let notes: Vec<_> = found.iter().map(|note| (note.category.as_str(), note.text.as_str())).collect();
    assert_eq!(notes, [("core", "The user likes red boats."), ("daily", "The boat was painted red.")]);
    assert_eq!(found[1].key, format!("daily_{}", view.run_id));
    let request = consolidation_requests(&test).remove(0);
    let text = messages_as_text(request.messages());
    assert!(text.contains(MESSAGE_TEXT) && text.contains("It is red now."), "{text}");
    assert_eq!(request.body.get("tools"), None);

    // Consolidation is not a message: the next message sees nothing of it, and it creates no session.
    test.run_message("s", "thanks").await;
    assert!(!messages_as_text(&test.last_messages()).contains("worth remembering"));
    let sessions = quell_store::SessionListFilter { search: None, limit: 9, cursor: None, visible_to: None };
    assert_eq!(test.engine.list_sessions(sessions).await.unwrap().items.len(), 1);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consolidation_counts_against_the_daily_limit() {
    let test = start_engine_consolidating().await;
    let view = run_with_consolidation(&test, "s", "ask", gated_consolidation("gate")).await;
    test.model.request_at(1).wait_streaming().await;
    let of_run = view.usage.input_tokens + view.usage.output_tokens;
    test.model.open_gate("gate");
    test.wait_ended(&view.run_id).await;
    let (engine, database) = (test.engine.clone(), OtherProgram::connect(test.test_dir.path()));
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let today = engine.agent_view(&parse_agent_id("main")).unwrap().spend.tokens;
        let stored = database.total_spend();
        if today > of_run && stored == today { Ok(()) } else { Err(format!("{of_run}, {today}, stored {stored}")) }
    })
    .await;
    assert_eq!(test.engine.find_run(&view.run_id).await.unwrap().unwrap().usage, view.usage);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consolidation_needs_the_setting_and_something_to_keep() {
    let test = start_engine(|_| {}).await;
    run_with_consolidation(&test, "s", "off", ScriptedResponse::text(CONSOLIDATION_ANSWER)).await;
    test.close().await;

    let test = start_engine_consolidating().await;
    test.run_message("s", "thanks a lot").await;
    test.script_marker("fails", [ScriptedResponse::status(400)]);
    let failed = test.run_message("s", "this will fail before it is answered marker:fails").await;
    assert!(matches!(failed.verdict, Some(Verdict::Failed { .. })), "{failed:#?}");
    test.script_marker("stopped", [ScriptedResponse::silent_mid_stream("I begin")]);
    let stopped = test.send(submission("s", "this will be stopped on its way marker:stopped")).await;
    test.wait_text(&stopped).await;
    test.stop_and_wait(&stopped).await;
    let spawn = json!({"agent": "main", "prompt": "count all of the boats in the harbour"});
    test.script_marker("spawn", [ScriptedResponse::tool_call("c1", "spawn_agent", &spawn)]);
    test.run_message("s", "Now marker:spawn do go on with this").await;
    // A run leaves the memory only when its background tasks are over, so these are all requests.
    let [one] = &consolidation_requests(&test)[..] else { panic!("more or fewer than one consolidation") };
    assert!(messages_as_text(one.messages()).contains("do go on with this"));
    test.close().await;
}

#[rstest]
#[case(ScriptedResponse::text("I would rather not."))]
#[case(ScriptedResponse::status(400))]
#[case(ScriptedStream::new().text("{\"history_entry\": \"cut").finish_reason("length").into())]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consolidation_that_fails_harms_nobody(#[case] consolidation: ScriptedResponse) {
    let test = start_engine_consolidating().await;
    let view = run_with_consolidation(&test, "s", "ask", consolidation).await;
    test.wait_ended(&view.run_id).await;
    assert_eq!(consolidation_requests(&test).len(), 1);
    assert!(list_notes(&test, session_scope("s")).await.is_empty());
    assert_eq!(test.run_message("s", "thanks").await.verdict, Some(Verdict::Completed));
    test.model.assert_histories_valid();
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_model_consolidates_when_a_provider_fails() {
    let test = start_engine_with_chain().await;
    let [refused, answer] = [ScriptedResponse::status(402), ScriptedResponse::text(CONSOLIDATION_ANSWER)];
    test.script_marker("ask", [ScriptedResponse::text("It is red now."), refused, answer]);
    let view = run_completed(&test, submission("s", &format!("Now marker:ask {MESSAGE_TEXT}"))).await;
    test.wait_ended(&view.run_id).await;
    assert_eq!(consolidation_requests(&test).len(), 2);
    assert_eq!(list_notes(&test, session_scope("s")).await.len(), 2);
    // The refusal costs nothing.
    let expected = view.usage.input_tokens + view.usage.output_tokens + 15;
    let engine = test.engine.clone();
    leaks::wait_until(WAIT_TIMEOUT, move || {
        let today = engine.agent_view(&parse_agent_id("main")).unwrap().spend.tokens;
        if today == expected { Ok(()) } else { Err(format!("{today} instead of {expected}")) }
    })
    .await;
    test.close().await;
}

/// A stop of the run reaches its consolidation at every cancellation point.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_its_run_ends_it_wherever_it_is(
    #[values(
        Point::Consolidation,
        Point::ModelSend,
        Point::ModelStream,
        Point::AfterModel,
        Point::ModelFallback,
        Point::Remember
    )]
    point: Point,
    #[values(StopLevel::Gentle, StopLevel::Forced)] level: StopLevel,
) {
    let test = start_engine_with_chain().await;
    let run = parse_run_id("asked");
    let (engine, id, point_hook) = (test.engine.clone(), run.clone(), test.point_hook.clone());
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let action = move || {
        let stop = engine.stop(&alice(), &run_stop_scope(&id), &stop_ask(level));
        sender.send(stop).unwrap();
    };
    // After this point the run itself passes no other.
    test.point_hook.arm(Point::AfterModel, 1, move || point_hook.arm(point, 1, action));
    let consolidation = match point {
        Point::ModelFallback => ScriptedResponse::status(402),
        _ => ScriptedResponse::text(CONSOLIDATION_ANSWER),
    };
    test.script_marker("ask", [ScriptedResponse::text("It is red now."), consolidation]);
    test.send(submission_as(&run, "s", &format!("Now marker:ask {MESSAGE_TEXT}"))).await;
    let stop = tokio::time::timeout(WAIT_TIMEOUT, receiver.recv()).await.expect("the point was not reached").unwrap();
    assert_eq!(stop.background.tasks.len(), 1);
    stop.wait_settled().await;
    let view = test.wait_ended(&run).await;
    assert!(receipt_of(&view).leftovers.is_empty(), "{view:#?}");
    assert!(list_notes(&test, session_scope("s")).await.is_empty(), "at {point:?}");
    assert!(consolidation_requests(&test).len() <= 1, "another model was asked after the stop");
    assert_eq!(test.run_message("s", "thanks").await.verdict, Some(Verdict::Completed));
    test.model.assert_histories_valid();
    test.close().await;
}

/// Regression: the note was written after the stop, as soon as the database was free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_note_that_waits_for_the_database_is_not_written_behind_the_stop() {
    let test = start_engine_consolidating().await;
    let database = lock_writes_at(&test, Point::Remember);
    let view = run_with_consolidation(&test, "s", "ask", gated_consolidation("gate")).await;
    test.model.open_gate("gate");
    test.point_hook.wait_fired().await;
    let stop = test.stop(&view.run_id);
    assert_eq!(stop.background.tasks.len(), 1);
    stop.wait_settled().await;
    database.lock().unwrap().unlock_writes();
    test.wait_ended(&view.run_id).await;
    // This message is written after any waiting note.
    test.run_message("s", "thanks").await;
    assert!(list_notes(&test, session_scope("s")).await.is_empty());
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_the_session_closes_its_request_and_one_that_keeps_the_background_does_not() {
    let test = start_engine_consolidating().await;
    let view = run_with_consolidation(&test, "s", "ask", gated_consolidation("never")).await;
    let request = test.model.wait_for_requests(2).await.remove(1);
    request.wait_streaming().await;
    let keeping = StopScope::Session {
        key: parse_session_key("s"),
        queued: QueuedPolicy::Withdraw,
        background: BackgroundPolicy::Keep,
    };
    let stop = test.engine.stop(&alice(), &keeping, &stop_ask(StopLevel::Gentle));
    assert!(stop.background.tasks.is_empty() && !stop.stopped_anything());
    let whole = StopScope::whole_session(parse_session_key("s"));
    let others = test.engine.stop(&bob(), &whole, &stop_ask(StopLevel::Gentle));
    assert!(others.background.tasks.is_empty(), "another principal stopped it");
    let stop = test.stop_session("s");
    assert!(stop.aborted.is_empty() && stop.withdrawn.is_empty(), "consolidation counts as a message: {stop:?}");
    request.wait_client_left().await;
    stop.wait_settled().await;
    test.wait_ended(&view.run_id).await;
    assert!(list_notes(&test, session_scope("s")).await.is_empty());
    test.close().await;
}

/// Also when another principal than the run's owner does it.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_and_a_deletion_let_nothing_be_remembered_behind_them(
    #[values(false, true)] deletes: bool,
    #[values(false, true)] by_another: bool,
) {
    let test = start_engine_consolidating().await;
    let view = run_with_consolidation(&test, "s", "ask", gated_consolidation("gate")).await;
    test.model.request_at(1).wait_streaming().await;
    let caller = if by_another { root() } else { alice() };
    let (key, ask) = (parse_session_key("s"), stop_ask(StopLevel::Gentle));
    let done = match deletes {
        true => test.engine.delete_session(&caller, &key, &ask).await,
        false => test.engine.reset_session(&caller, &key, &ask).await,
    };
    assert!(done.unwrap());
    // The session exists again before the model has answered.
    test.run_message("s", "hello").await;
    test.model.open_gate("gate");
    let gone = async || test.engine.live_run(&view.run_id).is_none().then_some(());
    poll_until("the end of the run's tasks", gone).await;
    assert!(list_notes(&test, session_scope("s")).await.is_empty());
    test.close().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_sender_gets_no_note_from_work_under_way(#[values(false, true)] answered_before: bool) {
    let test = start_engine(|config| (config.memory.consolidate, config.memory.auto_save) = (true, true)).await;
    let text = format!("Now marker:ask {MESSAGE_TEXT}");
    let message = Submission { channel_origin: Some(channel_origin("1", &text)), ..submission("s", &text) };
    let sender = "paper:alice".to_owned();
    let run = if answered_before {
        test.script_marker("ask", [ScriptedResponse::text("It is red now."), gated_consolidation("gate").into()]);
        let view = run_completed(&test, message).await;
        test.model.request_at(1).wait_streaming().await;
        view.run_id
    } else {
        test.script_marker("ask", [gated_consolidation("gate").into(), ScriptedResponse::text(CONSOLIDATION_ANSWER)]);
        let run = test.send(message).await;
        test.wait_text(&run).await;
        run
    };
    assert_eq!(list_notes(&test, NoteScope::Sender(sender.clone())).await.len(), 1, "auto_save must store the message");
    assert_eq!(test.engine.forget_sender(&root(), sender.clone()).await.unwrap(), 1);
    test.model.open_gate("gate");
    test.wait_ended(&run).await;
    assert_eq!(consolidation_requests(&test).len(), 1);
    assert!(list_notes(&test, NoteScope::Sender(sender.clone())).await.is_empty());
    // Later messages of the same sender are remembered again, as notes of the sender and not of the private chat.
    test.script_marker("ask", [ScriptedResponse::text("It is red now."), ScriptedResponse::text(CONSOLIDATION_ANSWER)]);
    let message = Submission { channel_origin: Some(channel_origin("2", &text)), ..submission("s", &text) };
    let view = run_completed(&test, message).await;
    test.wait_ended(&view.run_id).await;
    assert_eq!(list_notes(&test, NoteScope::Sender(sender)).await.len(), 3);
    assert!(list_notes(&test, session_scope("s")).await.is_empty());
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_are_at_work_at_once_and_one_that_waits_ends_at_once() {
    let test = start_engine_consolidating().await;
    let sessions: Vec<String> = (0..6).map(|n| format!("s{n}")).collect();
    let asking =
        sessions.iter().map(|session| run_with_consolidation(&test, session, session, gated_consolidation("gate")));
    let views = join_all(asking).await;
    test.model.wait_for_requests(6 + 4).await;
    let at_work = consolidation_requests(&test);
    let asks = |request: &ModelRequestHandle, marker: &str| messages_as_text(request.messages()).contains(marker);
    let waits = |view: &&RunView| !at_work.iter().any(|one| asks(one, &format!("marker:{} ", view.session_key)));
    let waiting: Vec<&RunView> = views.iter().filter(waits).collect();
    assert_eq!(waiting.len(), 2, "of six consolidations four run");
    let stop = test.stop(&waiting[0].run_id);
    assert_eq!(stop.background.tasks.len(), 1);
    stop.wait_settled().await;
    test.model.open_gate("gate");
    for view in &views {
        test.wait_ended(&view.run_id).await;
    }
    assert_eq!(consolidation_requests(&test).len(), 5);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shut_down_ends_it() {
    let test = start_engine_consolidating().await;
    run_with_consolidation(&test, "s", "ask", gated_consolidation("never")).await;
    let request = test.model.wait_for_requests(2).await.remove(1);
    request.wait_streaming().await;
    assert!(test.engine.shut_down().await.is_empty());
    request.wait_client_left().await;
}

/// A session's own model, provider and key apply to the consolidation too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_model_that_answered_is_asked_and_no_other() {
    let test = start_engine_consolidating().await;
    let own = ScriptedModel::start().await;
    own.respond_by_prompt(|prompt, _| {
        ScriptedResponse::text(if prompt.contains("worth remembering?") { CONSOLIDATION_ANSWER } else { "Red." })
    });
    let request = SessionRequest { base_url: Some(own.base_url()), ..session_request("ann", "c") };
    let (session, _) = test.engine.open_session(&alice(), request).await.unwrap();
    let view = run_completed(&test, submission(session.as_str(), MESSAGE_TEXT)).await;
    test.wait_ended(&view.run_id).await;
    assert_eq!((own.request_count(), test.model.request_count()), (2, 0));
    assert_eq!(list_notes(&test, NoteScope::Session(session)).await.len(), 2);
    test.close().await;
}
