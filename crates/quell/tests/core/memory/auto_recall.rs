//! Automatic recall and automatic saving of messages.

use quell_protocol::api::OnBusy;
use quell_store::test_support::CountedRows;

use super::*;

const RECALL_BLOCK: &str = "[Memory context]\n- fence: The fence is green.";

/// Starts an engine with automatic recall, whose agents `main` and `claude` speak one dialect each.
async fn start_engine_recalling() -> TestEngine {
    start_engine(|config| {
        config.memory.auto_recall = true;
        add_anthropic_provider(config);
        let main = config.agents[&parse_agent_id("main")].clone();
        let claude = AgentConfig { model: "anthropic/claude".into(), ..main };
        config.agents.insert(parse_agent_id("claude"), claude);
    })
    .await
}

/// Sends a message to this agent and waits until its run has left the memory.
async fn run_of(test: &TestEngine, agent_id: &str, session: &str, text: &str) -> RunView {
    let message = Submission { agent: Some(parse_agent_id(agent_id)), ..submission(session, text) };
    test.wait_ended(&test.send(message).await).await
}

/// The text of the last user message, in either dialect.
fn last_user_text(messages: &[Value]) -> String {
    let user = messages.iter().rfind(|message| message["role"] == "user" && !has_result(message)).unwrap();
    without_time(match &user["content"] {
        Value::Array(blocks) => blocks.last().unwrap()["text"].as_str().unwrap(),
        text => text.as_str().unwrap(),
    })
}

fn has_result(message: &Value) -> bool {
    message["content"].as_array().is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"))
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_step_of_a_run_is_shown_the_same_and_no_turn_holds_it(#[values("main", "claude")] agent_id: &str) {
    let test = start_engine_recalling().await;
    let know = json!({"text": "The fence is green.", "key": "fence", "scope": "agent"});
    test.script_marker("know", [ScriptedResponse::tool_call("c1", "remember", &know)]);
    run_of(&test, agent_id, "elsewhere", "hello marker:know").await;

    let before = test.model.recorded_requests().len();
    let look = ScriptedStream::new().text("I look.").tool_call("c1", "list_files", &json!({}));
    test.script_marker("ask", [look.into(), ScriptedResponse::tool_call("c2", "list_files", &json!({}))]);
    let question = "which colour is the fence? marker:ask";
    assert_eq!(run_of(&test, agent_id, "s", question).await.verdict, Some(Verdict::Completed));
    let steps = test.model.recorded_requests().split_off(before);
    assert_eq!(steps.len(), 3);
    for step in &steps {
        assert_eq!(last_user_text(step.messages()), format!("{RECALL_BLOCK}\n\n{question}"));
    }
    for (one, next) in steps.iter().zip(&steps[1..]) {
        let (one, next) = (without_cache_marks(one.messages()), without_cache_marks(next.messages()));
        assert_eq!(next[..one.len()], one, "a later step changed earlier messages");
    }

    // The next run sees what was said, but not the recalled notes; its own message is about something else.
    run_of(&test, agent_id, "s", "thanks").await;
    let next = messages_as_text(test.model.recorded_requests()[before + 3].messages());
    assert!(next.contains(question) && !next.contains("[Memory"), "{next}");
    let page = test.engine.history_page(&parse_session_key("s"), 10, None).await.unwrap();
    assert!(page.messages.iter().all(|message| !message.text.contains("[Memory")), "{page:#?}");
    let database = OtherProgram::connect(test.test_dir.path());
    assert_eq!(database.count(CountedRows::TurnsWith("Memory context")), 0);
    test.close().await;
}

#[tokio::test]
async fn auto_recall_needs_the_setting_and_a_close_match() {
    for is_set in [false, true] {
        let test = start_engine(|config| {
            config.memory.min_relevance_score = 1.0;
            config.memory.auto_recall |= is_set;
        })
        .await;
        remember(&test, "s", &json!({"text": "The fence is green.", "key": "fence"})).await;
        test.run_message("s", "which colour is the fence?").await;
        assert!(!messages_as_text(&test.last_messages()).contains("[Memory"), "the note matches too few words");
        test.run_message("s", "is the fence green").await;
        let shown = if is_set { format!("{RECALL_BLOCK}\n\n") } else { String::new() };
        assert_eq!(last_user_text(&test.last_messages()), format!("{shown}is the fence green"));
        test.close().await;
    }
}

#[tokio::test]
async fn messages_are_saved_in_their_session_and_shown_later_but_not_to_their_own_run() {
    let test = start_engine(|config| (config.memory.auto_save, config.memory.auto_recall) = (true, true)).await;
    let first = "my boat is called Emma";
    let run = parse_run_id("r_1");
    test.send(submission_as(&run, "s", first)).await;
    test.wait_ended(&run).await;
    assert_eq!(last_user_text(&test.last_messages()), first, "a message was recalled to its own run");
    let saved = list_notes(&test, session_scope("s")).await;
    assert_eq!(saved.len(), 1, "{saved:?}");
    assert_eq!((saved[0].key.as_str(), saved[0].category.as_str()), ("http_alice_r%5F1", "conversation"));
    assert_eq!(saved[0].text, first);
    assert!(list_notes(&test, main_agent_scope()).await.is_empty());
    let question = "what is my boat called?";
    test.run_message("s", question).await;
    let shown = format!("[Memory context]\n- http_alice_r%5F1: {first}\n\n{question}");
    assert_eq!(last_user_text(&test.last_messages()), shown);
    test.run_message("t", question).await;
    assert_eq!(last_user_text(&test.last_messages()), question, "another session recalled it");
    test.close().await;
}

#[tokio::test]
async fn only_what_people_say_is_saved_and_only_what_could_be_shown() {
    let test = start_engine(|config| config.memory.auto_save = true).await;
    let spawn = json!({"agent": "main", "prompt": "count the boats"});
    test.script_marker("ask", [ScriptedResponse::tool_call("c1", "spawn_agent", &spawn)]);
    test.run_message("s", "let someone count marker:ask").await;
    test.run_message("s", &"very long ".repeat(500)).await;
    test.run_message("s", "look at [IMAGE:/tmp/boat.png]").await;
    let sessions = test.engine.list_sessions(quell_store::SessionListFilter {
        search: None,
        limit: 9,
        cursor: None,
        visible_to: None,
    });
    let mut saved = Vec::new();
    for session in sessions.await.unwrap().items {
        saved.extend(list_notes(&test, NoteScope::Session(session.key)).await);
    }
    assert_eq!(saved.iter().map(|note| note.text.as_str()).collect::<Vec<_>>(), ["let someone count marker:ask"]);
    test.close().await;
}

#[tokio::test]
async fn a_steered_message_is_saved_too() {
    let test = start_engine(|config| config.memory.auto_save = true).await;
    test.script_marker("first", [ScriptedStream::new().text("one").wait_for_gate("gate").text(".").into()]);
    let run = test.send(submission("s", "begin marker:first")).await;
    test.wait_text(&run).await;
    let steer = Submission { on_busy: OnBusy::Steer, ..submission("s", "and paint the boat") };
    let steered = test.send_for_answer(steer).await;
    assert_eq!(steered.state, "steered");
    test.model.open_gate("gate");
    test.wait_ended(&run).await;
    // The active run took it, or it became a run of its own; it is saved either way.
    test.wait_ended(&steered.message_id.unwrap()).await;
    let texts: Vec<String> = list_notes(&test, session_scope("s")).await.into_iter().map(|note| note.text).collect();
    assert!(texts.contains(&"and paint the boat".to_owned()), "{texts:?}");
    test.close().await;
}

/// A hook that removes a phrase about fences from a message.
const REDACTING_HOOK: &str = r#"sed 's/.*"content":"\([^"]*\)".*/{"content": "\1"}/; s/colour of the fence/thing/'"#;

/// Regression: recalled notes revealed what a hook had removed from a message, and a message without text matched notes
/// about its placeholder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_from_a_chat_is_about_the_words_that_its_hooks_left_of_it() {
    let test = start_engine(|config| {
        (config.memory.auto_recall, config.memory.auto_save) = (true, true);
        config.hooks.on_message_received = REDACTING_HOOK.into();
    })
    .await;
    let mut number = 0;
    let mut say = async |content: &str, text: &str| {
        number += 1;
        let channel_origin = Some(channel_origin(&number.to_string(), content));
        let run = test.send(Submission { channel_origin, ..submission(&format!("s{number}"), text) }).await;
        assert_eq!(test.wait_ended(&run).await.verdict, Some(Verdict::Completed));
        last_user_text(&test.last_messages())
    };
    for note in ["The fence has the colour green.", "These files came without words."] {
        say(note, note).await;
    }
    let shown = say("has the fence the colour green?", "has the fence the colour green?").await;
    assert!(shown.contains("[Memory context]\n- "), "{shown}");
    let hidden = say("what is the colour of the fence?", "what is the colour of the fence?").await;
    assert!(hidden.contains("what is the thing?") && !hidden.contains("[Memory"), "{hidden}");
    let files = say("", "(files, without words)").await;
    assert!(files.contains("[FILE:short.txt]") && !files.contains("[Memory"), "{files}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_forgets_what_the_run_that_it_stops_has_just_saved() {
    let test = start_engine(|config| config.memory.auto_save = true).await;
    let ask = stop_ask(StopLevel::Gentle);
    for round in 0..30 {
        let run = parse_run_id(&format!("round-{round}"));
        test.script_marker(run.as_str(), [ScriptedResponse::SilentBeforeHeaders]);
        test.send(submission_as(&run, "s", &format!("my boat is called Emma marker:{run}"))).await;
        if round % 2 == 0 {
            test.model.wait_for_marked_request(run.as_str()).await;
        }
        assert!(test.engine.reset_session(&alice(), &parse_session_key("s"), &ask).await.unwrap());
        test.wait_ended(&run).await;
        assert_eq!(list_notes(&test, session_scope("s")).await, [], "round {round}");
    }
    test.close().await;
}

#[tokio::test]
async fn a_run_goes_on_without_its_notes_when_they_cannot_be_read() {
    let test = start_engine(|config| (config.memory.auto_recall, config.memory.auto_save) = (true, true)).await;
    remember(&test, "s", &json!({"text": "The fence is green.", "key": "fence"})).await;
    let database = OtherProgram::connect(test.test_dir.path());
    database.drop_note_index();
    let view = test.run_message("s", "which colour is the fence?").await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    assert_eq!(last_user_text(&test.last_messages()), "which colour is the fence?");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_stopped_while_it_recalls_never_asks_the_model() {
    let test = start_engine_recalling().await;
    let run = parse_run_id("recalling");
    test.stop_at(Point::Recall, 1, &run);
    test.send(submission_as(&run, "s", "which colour is the fence?")).await;
    let view = test.wait_ended(&run).await;
    abort_reason(view.verdict.as_ref());
    assert!(view.receipt.unwrap().leftovers.is_empty());
    assert_eq!(test.model.request_count(), 0);
    test.close().await;
}
