//! What happens by itself: a run is shown what its message is about, and messages are saved.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use quell_engine::agent::AgentConfig;
use quell_engine::dispatch::Submission;
use quell_engine::hooks::{LifecycleHook, MessageAnswer};
use quell_engine::llm::{ProviderConfig, ProviderKind};
use quell_engine::scope::Point;
use quell_protocol::Verdict;
use quell_protocol::hook::{HookBody, HookEvent};
use quell_testkit::model::{ModelRequest, Stream};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::harness::{flat, message, message_as, run_id};
use crate::sweep::chat::errand;

const BLOCK: &str = "[Memory context]\n- fence: The fence is green.";

/// A house whose agents `main` and `claude` speak one dialect each and are shown what they know.
async fn recalling() -> House {
    house(|config| {
        config.memory.auto_recall = true;
        let base_url = config.providers["scripted"].base_url.clone();
        let provider = ProviderConfig { base_url, ..ProviderConfig::new(ProviderKind::Anthropic) };
        let provider = ProviderConfig { api_key: Some("sk-ant".to_owned().into()), ..provider };
        config.providers.insert("anthropic".to_owned(), provider);
        let claude = AgentConfig { model: "anthropic/claude".to_owned(), ..config.agents[&agent("main")].clone() };
        config.agents.insert(agent("claude"), claude);
    })
    .await
}

fn to(who: &str, session: &str, text: &str) -> Submission {
    Submission { agent: Some(agent(who)), ..message(session, text) }
}

/// Requests of the model since this many, of runs of one message.
fn since(house: &House, count: usize) -> Vec<ModelRequest> {
    house.model.seen().split_off(count)
}

/// The text of the last message that a user wrote, in either dialect.
fn last_user(messages: &[Value]) -> String {
    let user = messages.iter().rfind(|message| message["role"] == "user" && !has_result(message)).unwrap();
    match &user["content"] {
        Value::Array(blocks) => blocks.last().unwrap()["text"].as_str().unwrap().to_owned(),
        text => text.as_str().unwrap().to_owned(),
    }
}

fn has_result(message: &Value) -> bool {
    message["content"].as_array().is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_result"))
}

/// The messages without what marks a place in a prompt cache, which moves on with each request.
fn plain(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for block in messages.iter_mut().filter_map(|message| message["content"].as_array_mut()).flatten() {
        block.as_object_mut().unwrap().remove("cache_control");
    }
    messages
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_step_of_a_run_is_shown_the_same_and_no_turn_holds_it(#[values("main", "claude")] who: &str) {
    let house = recalling().await;
    let know = json!({"text": "The fence is green.", "key": "fence", "scope": "agent"});
    house.script("know", [Behaviour::tool_call("c1", "remember", &know)]);
    let run = house.send(to(who, "elsewhere", "hello marker:know")).await;
    house.ended(&run).await;

    let before = house.model.seen().len();
    let look = Stream::new().text("I look.").tool_call("c1", "list_files", &json!({}));
    house.script("ask", [look.into(), Behaviour::tool_call("c2", "list_files", &json!({}))]);
    let question = "which colour is the fence? marker:ask";
    let run = house.send(to(who, "s", question)).await;
    assert_eq!(house.ended(&run).await.verdict, Some(Verdict::Completed));
    let steps = since(&house, before);
    assert_eq!(steps.len(), 3);
    for step in &steps {
        assert_eq!(last_user(step.messages()), format!("{BLOCK}\n\n{question}"));
    }
    for (one, next) in steps.iter().zip(&steps[1..]) {
        let (one, next) = (plain(one.messages()), plain(next.messages()));
        assert_eq!(next[..one.len()], one, "the cache of what was read stays good");
    }

    // The next run knows what was said and not what was shown; its own message is about something else.
    let run = house.send(to(who, "s", "thanks")).await;
    house.ended(&run).await;
    let next = flat(since(&house, before + 3)[0].messages());
    assert!(next.contains(question) && !next.contains("[Memory"), "{next}");
    let page = house.engine.history(&key("s"), 10, None).await.unwrap();
    assert!(page.messages.iter().all(|message| !message.text.contains("[Memory")), "{page:#?}");
    let database = rusqlite::Connection::open(house.dir.path().join("quell.db")).unwrap();
    let sql = "SELECT count(*) FROM history WHERE instr(turn, 'Memory context')";
    let held: i64 = database.query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(held, 0);
    house.close().await;
}

#[tokio::test]
async fn nothing_is_shown_that_was_not_asked_for_in_the_configuration_or_fits_too_little() {
    let house = house(|_| {}).await;
    remember(&house, "s", &json!({"text": "The fence is green.", "key": "fence"})).await;
    house.ask("s", "which colour is the fence?").await;
    assert!(!flat(&house.last_messages()).contains("[Memory"), "it is off by default");
    house.close().await;
    let house = super::house(|config| {
        config.memory.auto_recall = true;
        config.memory.min_relevance_score = 1.0;
    })
    .await;
    remember(&house, "s", &json!({"text": "The fence is green.", "key": "fence"})).await;
    house.ask("s", "which colour is the fence?").await;
    assert!(!flat(&house.last_messages()).contains("[Memory"), "it has not all of the words");
    house.ask("s", "is the fence green").await;
    assert_eq!(last_user(&house.last_messages()), format!("{BLOCK}\n\nis the fence green"));
    house.close().await;
}

#[tokio::test]
async fn messages_are_saved_in_their_session_and_shown_later_but_not_to_their_own_run() {
    let house = house(|config| {
        (config.memory.auto_save, config.memory.auto_recall) = (true, true);
    })
    .await;
    let first = "my boat is called Emma";
    let run = run_id("r_1");
    house.send(message_as(&run, "s", first)).await;
    house.ended(&run).await;
    assert_eq!(last_user(&house.last_messages()), first, "a message is no memory of itself");
    let saved = notes(&house, of_session("s")).await;
    assert_eq!(saved.len(), 1, "{saved:?}");
    assert_eq!((saved[0].key.as_str(), saved[0].category.as_str()), ("http_alice_r%5F1", "conversation"));
    assert_eq!(saved[0].text, first);
    assert!(notes(&house, of_main()).await.is_empty());
    let question = "what is my boat called?";
    house.ask("s", question).await;
    let shown = format!("[Memory context]\n- http_alice_r%5F1: {first}\n\n{question}");
    assert_eq!(last_user(&house.last_messages()), shown);
    house.ask("t", question).await;
    assert_eq!(last_user(&house.last_messages()), question, "another session does not know it");
    house.close().await;
}

#[tokio::test]
async fn only_what_people_say_is_saved_and_only_what_could_be_shown() {
    let house = house(|config| config.memory.auto_save = true).await;
    let spawn = json!({"agent": "main", "prompt": "count the boats"});
    house.script("ask", [Behaviour::tool_call("c1", "spawn_agent", &spawn)]);
    house.ask("s", "let someone count marker:ask").await;
    house.ask("s", &"very long ".repeat(500)).await;
    house.ask("s", "look at [IMAGE:/tmp/boat.png]").await;
    let sessions = house.engine.sessions(quell_engine::store::SessionFilter { search: None, limit: 9, cursor: None });
    let mut saved = Vec::new();
    for session in sessions.await.unwrap().items {
        saved.extend(notes(&house, NoteScope::Session(session.key)).await);
    }
    assert_eq!(saved.iter().map(|note| note.text.as_str()).collect::<Vec<_>>(), ["let someone count marker:ask"]);
    house.close().await;
}

#[tokio::test]
async fn a_steered_message_is_saved_too() {
    let house = house(|config| config.memory.auto_save = true).await;
    house.script("first", [Stream::new().text("one").wait_for("gate").text(".").into()]);
    let run = house.send(message("s", "begin marker:first")).await;
    house.text_came(&run).await;
    let steer = Submission { on_busy: quell_protocol::api::OnBusy::Steer, ..message("s", "and paint the boat") };
    let steered = house.answer(steer).await;
    assert_eq!(steered.state, "steered");
    house.model.open_gate("gate");
    house.ended(&run).await;
    // It was taken by the run or has become one of its own; either way it is saved.
    house.ended(&steered.message_id.unwrap()).await;
    let texts: Vec<String> = notes(&house, of_session("s")).await.into_iter().map(|note| note.text).collect();
    assert!(texts.contains(&"and paint the boat".to_owned()), "{texts:?}");
    house.close().await;
}

/// Keeps what fences are from everybody.
struct Discreet;

impl LifecycleHook for Discreet {
    fn name(&self) -> &str {
        "discreet"
    }

    fn wants(&self, event: HookEvent) -> bool {
        event == HookEvent::MessageReceived
    }

    fn on_message_received<'a>(&'a self, body: &'a HookBody) -> BoxFuture<'a, MessageAnswer> {
        let hidden = body.message.as_ref().unwrap().content.replace("colour of the fence", "thing");
        ready(MessageAnswer::Content(hidden)).boxed()
    }
}

/// What a hook took out of a message was shown by the notes about it; and a message without words was about those that say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_from_a_chat_is_about_the_words_that_its_hooks_left_of_it() {
    let house = house(|config| {
        (config.memory.auto_recall, config.memory.auto_save) = (true, true);
        config.lifecycle.push(Arc::new(Discreet));
    })
    .await;
    let mut number = 0;
    let mut say = async |content: &str, text: &str| {
        number += 1;
        let errand = Some(errand(&number.to_string(), content));
        let run = house.send(Submission { errand, ..message(&format!("s{number}"), text) }).await;
        assert_eq!(house.ended(&run).await.verdict, Some(Verdict::Completed));
        last_user(&house.last_messages())
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
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_forgets_what_the_run_that_it_stops_has_just_saved() {
    let house = house(|config| config.memory.auto_save = true).await;
    let ask = crate::harness::ask(quell_kernel::Push::Gentle);
    for round in 0..30 {
        let run = run_id(&format!("round-{round}"));
        house.script(run.as_str(), [Behaviour::SilentBeforeHeaders]);
        house.send(message_as(&run, "s", &format!("my boat is called Emma marker:{run}"))).await;
        if round % 2 == 0 {
            house.model.marked(run.as_str()).await;
        }
        assert!(house.engine.reset_session(&crate::harness::alice(), &key("s"), &ask).await.unwrap());
        house.ended(&run).await;
        assert_eq!(notes(&house, of_session("s")).await, [], "round {round}");
    }
    house.close().await;
}

#[tokio::test]
async fn a_run_goes_on_without_its_notes_when_they_cannot_be_read() {
    let house = house(|config| (config.memory.auto_recall, config.memory.auto_save) = (true, true)).await;
    remember(&house, "s", &json!({"text": "The fence is green.", "key": "fence"})).await;
    let database = rusqlite::Connection::open(house.dir.path().join("quell.db")).unwrap();
    database.execute_batch("DROP TABLE note_words").unwrap();
    let view = house.ask("s", "which colour is the fence?").await;
    assert_eq!(view.verdict, Some(Verdict::Completed), "{view:#?}");
    assert_eq!(last_user(&house.last_messages()), "which colour is the fence?");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_stopped_while_it_recalls_never_asks_the_model() {
    let house = recalling().await;
    let run = run_id("recalling");
    let (engine, id) = (house.engine.clone(), run.clone());
    house.trap.arm(Point::Recall, 1, move || {
        let stop = engine.stop(
            &crate::harness::alice(),
            &crate::harness::of_run(&id),
            &crate::harness::ask(quell_kernel::Push::Gentle),
        );
        assert_eq!(stop.aborted, [id]);
    });
    house.send(message_as(&run, "s", "which colour is the fence?")).await;
    let view = house.ended(&run).await;
    crate::harness::abort_reason(view.verdict.as_ref());
    assert!(view.receipt.unwrap().leftovers.is_empty());
    assert_eq!(house.model.request_count(), 0);
    house.close().await;
}
