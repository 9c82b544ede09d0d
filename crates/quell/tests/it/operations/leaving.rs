//! Callers who leave: what they asked for is done all the same, in the database, in memory and in the audit list.

use futures_util::poll;
use quell_engine::memory::NoteScope;
use quell_kernel::Push;
use quell_testkit::leaks;
use rusqlite::Connection;

use crate::harness::{House, PATIENCE, alice, ask, flat, key, root};
use crate::sessions::request;

/// Another program that writes: until it is done, whoever asks the engine for a write waits.
fn writer(house: &House) -> Connection {
    let other = Connection::open(house.dir.path().join("quell.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

/// Lets somebody ask, and leave before the answer.
async fn ask_and_leave<T>(house: &House, question: impl Future<Output = T>) {
    let other = writer(house);
    {
        let mut question = std::pin::pin!(question);
        assert!(poll!(&mut question).is_pending(), "it was answered before anybody could leave");
    }
    other.execute_batch("ROLLBACK").unwrap();
}

/// Waits for an entry of the audit list.
async fn noted(house: &House, action: &str) {
    let begun = std::time::Instant::now();
    loop {
        let list = house.engine.audit_list(0, 100).await.unwrap().items;
        if list.iter().any(|row| row.action == action) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{action} is not in the audit list: {list:#?}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_whose_caller_leaves_empties_what_the_model_sees() {
    let house = House::shared().await;
    house.answer_by_marker();
    house.ask("s", "my number is 4711").await;
    ask_and_leave(&house, house.engine.reset_session(&alice(), &key("s"), &ask(Push::Gentle))).await;
    noted(&house, "reset_session").await;
    house.ask("s", "what is my number").await;
    assert!(!flat(&house.last_messages()).contains("4711"), "the model is shown what was reset");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_whose_caller_leaves_deletes_what_the_model_sees() {
    let house = House::shared().await;
    house.answer_by_marker();
    house.ask("s", "my number is 4711").await;
    ask_and_leave(&house, house.engine.delete_session(&alice(), &key("s"), &ask(Push::Gentle))).await;
    noted(&house, "delete_session").await;
    house.ask("s", "what is my number").await;
    assert!(!flat(&house.last_messages()).contains("4711"), "the model is shown what was deleted");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_is_lifted_by_somebody_who_leaves_is_lifted() {
    let house = House::shared().await;
    house.answer_by_marker();
    house.engine.set_hold(&root(), true, None).await.unwrap();
    ask_and_leave(&house, house.engine.set_hold(&root(), false, None)).await;
    noted(&house, "lift_hold").await;
    let engine = house.engine.clone();
    leaks::settled(PATIENCE, move || if engine.is_held() { Err("still held".to_owned()) } else { Ok(()) }).await;
    house.ask("s", "hello").await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_did_who_left_is_in_the_audit_list() {
    let house = House::shared().await;
    house.answer_by_marker();
    house.ask("s", "hello").await;
    ask_and_leave(&house, house.engine.open_session(&alice(), request("u", "c"))).await;
    noted(&house, "configure_session").await;
    ask_and_leave(&house, house.engine.create_token(&root(), "t", quell_protocol::api::Scope::Read)).await;
    noted(&house, "create_token").await;
    ask_and_leave(&house, house.engine.revoke_token(&root(), "t")).await;
    noted(&house, "revoke_token").await;
    let connection = Connection::open(house.dir.path().join("quell.db")).unwrap();
    let note = "INSERT INTO note_scopes (id, kind, name) VALUES (9, 'agent', 'main');
                INSERT INTO note_scopes (id, kind, name) VALUES (10, 'sender', 'tg:1');
                INSERT INTO notes (scope, key, category, text, at) VALUES (9, 'k', 'core', 'text', '2026-01-01T00:00:00Z');
                INSERT INTO notes (scope, key, category, text, at) VALUES (10, 'k', 'core', 'text', '2026-01-01T00:00:00Z')";
    connection.execute_batch(note).unwrap();
    drop(connection);
    let scope = NoteScope::Agent(crate::harness::agent("main"));
    ask_and_leave(&house, house.engine.forget_note(&alice(), scope, "k".to_owned())).await;
    noted(&house, "forget_note").await;
    ask_and_leave(&house, house.engine.forget_sender(&alice(), "tg:1".to_owned())).await;
    noted(&house, "forget_sender").await;
    house.close().await;
}
