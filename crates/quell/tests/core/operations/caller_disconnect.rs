//! Requests complete even when their caller disconnects: in the database, in memory and in the audit log.

use futures_util::poll;
use quell_engine::access::TokenSpec;
use quell_engine::memory::{Note, NoteScope};
use quell_protocol::api::AccessLevel;

use crate::prelude::*;
use crate::sessions::session_request;

/// Polls a request once, and drops it before it is answered: another program holds the write lock of the database.
async fn poll_once_and_drop<T>(test: &TestEngine, question: impl Future<Output = T>) {
    let other = OtherProgram::connect(test.test_dir.path());
    other.lock_writes();
    assert!(poll!(Box::pin(question)).is_pending(), "the request completed before the caller could disconnect");
    other.unlock_writes();
}

async fn wait_audit_entry(test: &TestEngine, action: &str) {
    poll_until(action, async || {
        let list = test.engine.list_audit(0, 100).await.unwrap().items;
        list.iter().any(|row| row.action == action).then_some(())
    })
    .await;
}

#[rstest]
#[case::reset(false, "reset_session")]
#[case::deletion(true, "delete_session")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_is_gone_although_the_caller_of_its_removal_left(#[case] deletes: bool, #[case] action: &str) {
    let test = TestEngine::start_shared().await;
    test.answer_by_marker();
    test.run_message("s", "my number is 4711").await;
    let (caller, session, ask) = (alice(), parse_session_key("s"), stop_ask(StopLevel::Gentle));
    if deletes {
        poll_once_and_drop(&test, test.engine.delete_session(&caller, &session, &ask)).await;
    } else {
        poll_once_and_drop(&test, test.engine.reset_session(&caller, &session, &ask)).await;
    }
    wait_audit_entry(&test, action).await;
    test.run_message("s", "what is my number").await;
    assert!(!messages_as_text(&test.last_messages()).contains("4711"), "the model sees the removed history");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_lifted_by_somebody_who_leaves_is_lifted() {
    let test = TestEngine::start_shared().await;
    test.answer_by_marker();
    test.engine.set_hold(&root(), true, None).await.unwrap();
    poll_once_and_drop(&test, test.engine.set_hold(&root(), false, None)).await;
    wait_audit_entry(&test, "lift_hold").await;
    let engine = test.engine.clone();
    leaks::wait_for_true("the hold is lifted", move || !engine.is_held()).await;
    test.run_message("s", "hello").await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actions_of_callers_that_left_are_audited() {
    let test = TestEngine::start_shared().await;
    test.answer_by_marker();
    test.run_message("s", "hello").await;
    poll_once_and_drop(&test, test.engine.open_session(&alice(), session_request("u", "c"))).await;
    wait_audit_entry(&test, "configure_session").await;
    poll_once_and_drop(&test, test.engine.create_token(&root(), TokenSpec::new("t", AccessLevel::Read))).await;
    wait_audit_entry(&test, "create_token").await;
    poll_once_and_drop(&test, test.engine.revoke_token(&root(), "t")).await;
    wait_audit_entry(&test, "revoke_token").await;
    let [key, category, text, at] = ["k", "core", "text", "2026-01-01T00:00:00Z"].map(str::to_owned);
    let (note, scope) = (Note { key, category, text, at }, NoteScope::Agent(parse_agent_id("main")));
    for scope in [&scope, &NoteScope::Sender("tg:1".to_owned())] {
        OtherProgram::connect(test.test_dir.path()).save_note(scope, &note);
    }
    poll_once_and_drop(&test, test.engine.forget_note(&alice(), scope, "k".to_owned())).await;
    wait_audit_entry(&test, "forget_note").await;
    poll_once_and_drop(&test, test.engine.forget_sender(&alice(), "tg:1".to_owned())).await;
    wait_audit_entry(&test, "forget_sender").await;
    test.close().await;
}
