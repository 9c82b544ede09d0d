//! Memory with a whole engine: tools, automatic recall, automatic saving, stops.

mod auto_recall;
mod consolidation;
mod http_and_cli;
mod tools;

use std::time::Instant;

use quell_engine::engine::NoteFilter;
use quell_engine::memory::{Note, NoteScope};
use quell_protocol::memory::NoteRow;
use quell_store::Store;

use crate::prelude::*;

async fn start_engine(change: impl FnOnce(&mut EngineConfig)) -> TestEngine {
    let test = TestEngine::start_with(ProcessLock::shared().await, change).await;
    test.answer_by_marker();
    test
}

fn session_scope(session: &str) -> NoteScope {
    NoteScope::Session(parse_session_key(session))
}

fn main_agent_scope() -> NoteScope {
    NoteScope::Agent(parse_agent_id("main"))
}

/// Runs one call of a memory tool, and returns its result.
async fn call_tool(test: &TestEngine, session: &str, tool: &str, arguments: &Value) -> (CallEnd, String) {
    let mut watcher = NoticeRecorder::subscribe(&test.engine);
    test.script_marker("call", [ScriptedResponse::tool_call("c1", tool, arguments)]);
    let view = test.run_message(session, "do it marker:call").await;
    watcher.call_ends(&view.run_id).remove(0)
}

async fn remember(test: &TestEngine, session: &str, arguments: &Value) {
    let (end, output) = call_tool(test, session, "remember", arguments).await;
    assert_eq!(end, CallEnd::Ok, "{output}");
}

async fn list_notes(test: &TestEngine, scope: NoteScope) -> Vec<NoteRow> {
    test.engine.list_notes(scope, NoteFilter { query: None, limit: 100, cursor: None }).await.unwrap().items
}

#[tokio::test]
async fn a_reset_and_a_deletion_take_the_notes_of_the_session_with_them() {
    let test = start_engine(|_| {}).await;
    let (alice, ask) = (alice(), stop_ask(StopLevel::Gentle));
    for session in ["one", "two"] {
        remember(&test, session, &json!({"text": "The boat is red.", "key": "boat"})).await;
    }
    remember(&test, "one", &json!({"text": "Boats float.", "key": "boats", "scope": "agent"})).await;
    assert!(test.engine.reset_session(&alice, &parse_session_key("one"), &ask).await.unwrap());
    assert!(list_notes(&test, session_scope("one")).await.is_empty());
    assert_eq!(list_notes(&test, session_scope("two")).await.len(), 1);
    assert!(test.engine.delete_session(&alice, &parse_session_key("two"), &ask).await.unwrap());
    assert!(list_notes(&test, session_scope("two")).await.is_empty());
    assert_eq!(list_notes(&test, main_agent_scope()).await.len(), 1, "the agent's notes were deleted");
    let (_, output) = call_tool(&test, "two", "recall", &json!({"query": "boat", "scope": "session"})).await;
    assert_eq!(output, "This session has no notes yet. `remember` writes one.");
    test.close().await;
}

#[tokio::test]
async fn ten_thousand_notes_are_searched_without_a_wait_that_anybody_notices() {
    const NOTES: usize = 10_000;
    let dir = TestDataDir::new();
    let store = Store::open(dir.path(), "quell.db").unwrap();
    let remembered = (0..NOTES).map(|n| {
        let text =
            format!("Note {n}: the user said that the {} is {}.", note_topic(n), ["red", "green", "blue"][n % 3]);
        let (key, category, at) = (format!("note-{n}"), "core".to_owned(), "2026-11-21T10:00:00Z".to_owned());
        store.notes().save(main_agent_scope(), Note { key, category, text, at })
    });
    for written in futures_util::future::join_all(remembered).await {
        written.unwrap();
    }
    store.close().await;
    let test = TestEngine::start_on(dir.path(), |_| {}).await;
    let every_note = "the is that note user said a and of 1 2 3 red green blue boat house tree ".repeat(5);
    for (query, least) in
        [("what did the user say about house 17?", 0.4), (&note_topic(4711), 0.99), (&every_note, 0.0)]
    {
        let begun = Instant::now();
        let filter = NoteFilter { query: Some(query.to_owned()), limit: 5, cursor: None };
        let found = test.engine.list_notes(main_agent_scope(), filter).await.unwrap().items;
        let ms = begun.elapsed().as_secs_f64() * 1000.0;
        println!("{ms:.1} ms among {NOTES} notes for {:?}", query.chars().take(50).collect::<String>());
        assert_eq!(found.len(), 5);
        assert!(found[0].score.unwrap() > least, "{found:?}");
    }
    test.close().await;
}

fn note_topic(n: usize) -> String {
    format!("{} {n}", ["boat", "house", "tree", "fence"][n % 4])
}
