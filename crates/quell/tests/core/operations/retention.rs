//! What retention deletes and what it never deletes.
//!
//! Tests pass the time as an argument. They restart the engine between use and retention, so that sessions leave the
//! memory.

use jiff::{SignedDuration, Timestamp};
use quell_engine::engine::Retention;
use quell_scope::clock::{Clock, SkippedTime};

use crate::prelude::*;
use crate::sessions::session_request;

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn days_from_now(days: i32) -> Timestamp {
    Timestamp::now() + DAY * days
}

/// Starts an engine with this retention in this data directory.
async fn start_engine(data_dir: &TestDataDir, retention: Retention) -> TestEngine {
    let change = |config: &mut EngineConfig| config.retention = retention;
    let test = TestEngine::start_on(data_dir, change).await;
    test.answer_by_marker();
    test
}

/// Starts with sessions `a` to `c`, used in this order, none of them in memory.
async fn start_with_three_sessions(data_dir: &TestDataDir, retention: Retention) -> TestEngine {
    let first = start_engine(data_dir, Retention::default()).await;
    for session in ["a", "b", "c"] {
        first.run_message(session, "hello").await;
    }
    first.close().await;
    start_engine(data_dir, retention).await
}

async fn retire_sessions(test: &TestEngine, now: Timestamp) -> Vec<String> {
    test.engine.apply_session_retention(now).await.unwrap().iter().map(ToString::to_string).collect()
}

async fn session_exists(test: &TestEngine, session: &str) -> bool {
    test.engine.find_session(&parse_session_key(session)).await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_kept_unless_somebody_says_otherwise() {
    let data_dir = TestDataDir::new();
    let test = start_with_three_sessions(&data_dir, Retention::default()).await;
    assert!(retire_sessions(&test, days_from_now(100_000)).await.is_empty());
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_sessions_are_deleted_whole_and_audited() {
    let data_dir = TestDataDir::new();
    let retention = Retention { max_age_days: Some(30), ..Retention::default() };
    let test = start_with_three_sessions(&data_dir, retention).await;
    let run = test.engine.list_runs(all_runs()).await.unwrap().items.pop().unwrap().run_id;
    assert!(retire_sessions(&test, days_from_now(29)).await.is_empty());
    // In memory since this message, and so in use.
    test.run_message("b", "again").await;
    assert!(test.engine.is_session_in_use(&parse_session_key("b")));
    assert_eq!(retire_sessions(&test, days_from_now(31)).await, ["a", "c"]);
    assert!(!session_exists(&test, "a").await && session_exists(&test, "b").await);
    let left = test.engine.find_run(&run).await.unwrap().expect("the receipts of its runs are kept");
    assert_eq!((left.text.as_str(), left.output, left.receipt.is_some()), ("", None, true));
    let listed = test.engine.list_runs(all_runs()).await.unwrap().items;
    assert!(listed.iter().all(|row| row.run_id != run), "a run of a deleted session is listed");
    let rows = test.engine.list_audit(0, 10).await.unwrap().items;
    assert_eq!(rows.iter().filter_map(|row| row.target.as_deref()).collect::<Vec<_>>(), ["session a", "session c"]);
    assert!(
        rows.iter().all(|row| (row.principal.as_str(), row.action.as_str()) == ("quell", "delete_session")),
        "{rows:?}"
    );
    assert!(rows[0].detail.as_deref().unwrap().contains("30 days"), "{rows:?}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_asked_for_and_not_written_to_was_used() {
    let data_dir = TestDataDir::new();
    let retention = Retention { max_age_days: Some(30), ..Retention::default() };
    let time: &'static SkippedTime = Box::leak(Box::default());
    let change = |config: &mut EngineConfig| {
        config.clock = Clock::with_skipped_time(time);
        config.retention = retention.clone();
        config.sessions.idle_s = 30 * 24 * 3600;
    };
    let first = TestEngine::start_on(&data_dir, change).await;
    for user in ["ann", "bob"] {
        first.engine.open_session(&root(), session_request(user, "c")).await.unwrap();
    }
    // Often enough that it stays alive.
    time.skip(Duration::from_secs(20 * 24 * 3600));
    first.engine.open_session(&root(), session_request("ann", "c")).await.unwrap();
    let key = parse_session_key("ann:c:scripted");
    let used = first.engine.find_session(&key).await.unwrap().unwrap().last_used_at;
    first.close().await;
    let test = start_engine(&data_dir, retention).await;
    assert_eq!(test.engine.find_session(&key).await.unwrap().unwrap().last_used_at, used);
    assert_eq!(retire_sessions(&test, days_from_now(40)).await, ["bob:c:scripted"]);
    test.close().await;
}

fn all_runs() -> quell_store::RunListFilter {
    quell_store::RunListFilter { session: None, principal: None, visible_to: None, limit: 100, cursor: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_beyond_the_number_go_and_never_one_that_is_in_use() {
    let data_dir = TestDataDir::new();
    let retention = Retention { max_sessions: Some(2), ..Retention::default() };
    let test = start_with_three_sessions(&data_dir, retention).await;
    // The oldest has an active run, so the next one is deleted.
    test.script_marker("work", [ScriptedResponse::silent_mid_stream("begun")]);
    let run = test.send(submission("a", "marker:work")).await;
    test.wait_text(&run).await;
    assert_eq!(retire_sessions(&test, days_from_now(0)).await, ["b"]);
    assert!(retire_sessions(&test, days_from_now(0)).await.is_empty(), "only two sessions are left");
    test.stop(&run).wait_settled().await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_with_a_background_process_stays() {
    let data_dir = TestDataDir::new();
    let retention = Retention { max_age_days: Some(1), ..Retention::default() };
    let change = |config: &mut EngineConfig| {
        config.retention = retention;
        config.sessions.idle_s = 0;
    };
    let test = TestEngine::start_on(&data_dir, change).await;
    test.answer_by_marker();
    let call = json!({"command": "sleep 1000", "background": true});
    test.script_marker("serve", [ScriptedResponse::tool_call("c1", "shell", &call)]);
    let run = test.run_message_in_memory("s", "marker:serve").await;
    assert!(run.receipt.unwrap().resources.iter().any(|row| row.kind == ResourceKind::Process));
    assert!(retire_sessions(&test, days_from_now(10)).await.is_empty());
    assert!(session_exists(&test, "s").await);
    test.engine.stop(&root(), &StopScope::Everything, &stop_ask(StopLevel::Forced)).wait_settled().await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_go_until_the_database_is_small_enough() {
    let data_dir = TestDataDir::new();
    let first = start_engine(&data_dir, Retention::default()).await;
    let long = "word ".repeat(200_000);
    for session in ["a", "b", "c", "d"] {
        first.run_message(session, &long).await;
    }
    first.close().await;
    // Each stores its message twice, in the turn and in the run: about 2 MiB.
    let test = start_engine(&data_dir, Retention { max_mib: Some(5), ..Retention::default() }).await;
    let gone = retire_sessions(&test, days_from_now(0)).await;
    assert_eq!(gone, ["a", "b"], "retention must delete no more than needed");
    assert!(retire_sessions(&test, days_from_now(0)).await.is_empty());
    // The remaining sessions are complete.
    assert_eq!(test.engine.history_page(&parse_session_key("c"), 10, None).await.unwrap().messages.len(), 2);
    test.run_message("c", "and on").await;
    test.close().await;
}

#[rstest]
#[case::too_big(Retention { max_mib: Some(4), ..Retention::default() })]
#[case::too_old(Retention { max_age_days: Some(30), ..Retention::default() })]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_conversations_go_before_any_session(#[case] retention: Retention) {
    let data_dir = TestDataDir::new();
    let test = start_with_three_sessions(&data_dir, retention).await;
    let responses = test.engine.responses();
    let conversation = quell_store::StoredConversation {
        id: "c".to_owned(),
        owner: alice().principal,
        created_at: 1,
        metadata: String::new(),
    };
    let item = quell_store::ConversationItem { id: "i".to_owned(), item: "x".repeat(6 << 20) };
    responses.create_conversation(conversation, vec![item]).await.unwrap();
    assert!(retire_sessions(&test, days_from_now(0)).await.is_empty());
    assert!(responses.find_conversation("c".to_owned()).await.unwrap().is_none());
    test.close().await;
}
