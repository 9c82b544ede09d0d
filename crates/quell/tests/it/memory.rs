//! Memory with a whole engine: the tools, what a run is shown unasked, what is saved by itself, and stops in the middle of it.

mod consolidated;
mod people;
mod tools;
mod unasked;

use std::time::Instant;

use quell_engine::EngineConfig;
use quell_engine::dispatch::NoteFilter;
use quell_engine::memory::{Note, NoteScope};
use quell_engine::store::Store;
use quell_protocol::memory::NoteRow;
use quell_protocol::{CallEnd, EventKind, RunId};
use quell_testkit::Behaviour;
use serde_json::{Value, json};

use crate::harness::{Claim, DataDir, Ground, House, Watcher, agent, key};

async fn house(change: impl FnOnce(&mut EngineConfig)) -> House {
    let house = House::with(Claim::shared().await, change).await;
    house.answer_by_marker();
    house
}

fn of_session(session: &str) -> NoteScope {
    NoteScope::Session(key(session))
}

fn of_main() -> NoteScope {
    NoteScope::Agent(agent("main"))
}

/// What a model's call of one of the tools came to.
async fn call(house: &House, session: &str, tool: &str, arguments: &Value) -> (CallEnd, String) {
    let mut watcher = Watcher::of(&house.engine);
    house.script("call", [Behaviour::tool_call("c1", tool, arguments)]);
    let view = house.ask(session, "do it marker:call").await;
    outputs(&mut watcher, &view.run_id).remove(0)
}

fn outputs(watcher: &mut Watcher, run: &RunId) -> Vec<(CallEnd, String)> {
    let ended = |kind: &EventKind| match kind {
        EventKind::ToolEnded { end, output, .. } => Some((*end, output.clone())),
        _ => None,
    };
    watcher.events(run).iter().filter_map(|event| ended(&event.kind)).collect()
}

async fn remember(house: &House, session: &str, arguments: &Value) {
    let (end, said) = call(house, session, "remember", arguments).await;
    assert_eq!(end, CallEnd::Ok, "{said}");
}

async fn notes(house: &House, scope: NoteScope) -> Vec<NoteRow> {
    house.engine.notes(scope, NoteFilter { query: None, limit: 100, cursor: None }).await.unwrap().items
}

#[tokio::test]
async fn a_reset_and_a_deletion_take_the_notes_of_the_session_with_them() {
    let house = house(|_| {}).await;
    let (alice, ask) = (crate::harness::alice(), crate::harness::ask(quell_kernel::Push::Gentle));
    for session in ["one", "two"] {
        remember(&house, session, &json!({"text": "The boat is red.", "key": "boat"})).await;
    }
    remember(&house, "one", &json!({"text": "Boats float.", "key": "boats", "scope": "agent"})).await;
    assert!(house.engine.reset_session(&alice, &key("one"), &ask).await.unwrap());
    assert!(notes(&house, of_session("one")).await.is_empty());
    assert_eq!(notes(&house, of_session("two")).await.len(), 1);
    assert!(house.engine.delete_session(&alice, &key("two"), &ask).await.unwrap());
    assert!(notes(&house, of_session("two")).await.is_empty());
    assert_eq!(notes(&house, of_main()).await.len(), 1, "what the agent knows stays");
    let (_, said) = call(&house, "two", "recall", &json!({"query": "boat", "scope": "session"})).await;
    assert_eq!(said, "This session has no notes yet. `remember` writes one.");
    house.close().await;
}

#[tokio::test]
async fn ten_thousand_notes_are_searched_without_a_wait_that_anybody_notices() {
    const NOTES: usize = 10_000;
    let dir = DataDir::new();
    let store = Store::open(dir.path(), "quell.db").unwrap();
    let remembered = (0..NOTES).map(|n| {
        let text = format!("Note {n}: the user said that the {} is {}.", thing(n), ["red", "green", "blue"][n % 3]);
        let (key, category, at) = (format!("note-{n}"), "core".to_owned(), "2026-11-21T10:00:00Z".to_owned());
        store.remember(of_main(), Note { key, category, text, at })
    });
    for written in futures_util::future::join_all(remembered).await {
        written.unwrap();
    }
    store.close().await;
    let house = House::on(Ground::Lent(dir.path().to_owned()), Claim::shared().await, |_| {}).await;
    let every_note = "the is that note user said a and of 1 2 3 red green blue boat house tree ".repeat(5);
    for (query, least) in [("what did the user say about house 17?", 0.4), (&thing(4711), 0.99), (&every_note, 0.0)] {
        let begun = Instant::now();
        let filter = NoteFilter { query: Some(query.to_owned()), limit: 5, cursor: None };
        let found = house.engine.notes(of_main(), filter).await.unwrap().items;
        let ms = begun.elapsed().as_secs_f64() * 1000.0;
        println!("{ms:.1} ms among {NOTES} notes for {:?}", query.chars().take(50).collect::<String>());
        assert_eq!(found.len(), 5);
        assert!(found[0].score.unwrap() > least, "{found:?}");
    }
    house.close().await;
}

fn thing(n: usize) -> String {
    format!("{} {n}", ["boat", "house", "tree", "fence"][n % 4])
}
