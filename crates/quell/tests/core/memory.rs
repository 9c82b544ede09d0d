//! Memory with a whole engine: tools, automatic recall, automatic saving, stops.

mod auto_recall;
mod consolidation;
mod http_and_cli;
mod tools;

use std::sync::Mutex;

use futures_util::future::join_all;
use quell_engine::engine::NoteFilter;
use quell_engine::memory::NoteScope;
use quell_protocol::memory::NoteRow;
use quell_test_support::channel_origin::channel_origin;

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

/// Blocks all writes to the database once a run or its background work reaches this point.
fn lock_writes_at(test: &TestEngine, point: Point) -> Arc<Mutex<OtherProgram>> {
    let database = Arc::new(Mutex::new(OtherProgram::connect(test.test_dir.path())));
    let locked = Arc::clone(&database);
    test.point_hook.arm(point, 1, move || locked.lock().unwrap().lock_writes());
    database
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
