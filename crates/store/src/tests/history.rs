//! Turns, resets and deleted sessions.

use super::super::{DeleteSessionOutcome, HistoryItem, StoreError};
use super::*;

fn turn_item(id: &str) -> HistoryItem {
    let (agent, principal) = (AgentId::parse("main").unwrap(), Principal::parse("admin").unwrap());
    HistoryItem::Turn { turn: format!("turn {id}"), agent, principal }
}

fn reset_item(at: &str) -> HistoryItem {
    HistoryItem::Reset { at: at.into() }
}

#[tokio::test]
async fn turns_come_back_in_order_and_once() {
    let (store, _home) = new_store();
    for id in ["a", "b", "c"] {
        run_to_end(&store, id, "s").await;
    }
    run_to_end(&store, "other", "t").await;
    store.append_turn(session_key("s"), run_id("a"), "a again".into(), "view".into()).await.unwrap();
    assert_eq!(store.session_turns(session_key("s")).await.unwrap(), ["turn a", "turn b", "turn c"]);
    assert_eq!(store.session_turns(session_key("nobody")).await, Ok(vec![]));
    assert_eq!(store.find_session(session_key("s")).await.unwrap().unwrap().turns, 3);
}

#[tokio::test]
async fn a_reset_hides_old_turns_from_the_model_and_not_from_people() {
    let (store, _home) = new_store();
    run_to_end(&store, "a", "s").await;
    run_to_end(&store, "b", "s").await;
    assert_eq!(store.reset_session(session_key("s"), "noon".into()).await, Ok(true));
    assert_eq!(store.session_turns(session_key("s")).await, Ok(vec![]));
    assert_eq!(store.find_session(session_key("s")).await.unwrap().unwrap().turns, 0);
    run_to_end(&store, "c", "s").await;
    assert_eq!(store.session_turns(session_key("s")).await.unwrap(), ["turn c"]);
    let (past, more) = store.history_page(session_key("s"), 100, None).await.unwrap();
    assert_eq!(past, [turn_item("a"), turn_item("b"), reset_item("noon"), turn_item("c")]);
    assert_eq!(more, None);
}

#[tokio::test]
async fn a_second_reset_of_nothing_leaves_no_second_boundary() {
    let (store, _home) = new_store();
    assert_eq!(store.reset_session(session_key("s"), "dawn".into()).await, Ok(false));
    run_to_end(&store, "a", "s").await;
    assert_eq!(store.reset_session(session_key("s"), "noon".into()).await, Ok(true));
    assert_eq!(store.reset_session(session_key("s"), "dusk".into()).await, Ok(true));
    assert_eq!(store.history_page(session_key("s"), 100, None).await.unwrap().0, [turn_item("a"), reset_item("noon")]);
}

#[tokio::test]
async fn history_pages_run_from_new_to_old_without_a_gap() {
    let (store, _home) = new_store();
    for id in ["a", "b", "c", "d"] {
        run_to_end(&store, id, "s").await;
        run_to_end(&store, &format!("{id}-elsewhere"), "t").await;
    }
    store.reset_session(session_key("s"), "noon".into()).await.unwrap();
    run_to_end(&store, "e", "s").await;
    let (newest, cursor) = store.history_page(session_key("s"), 2, None).await.unwrap();
    assert_eq!(newest, [reset_item("noon"), turn_item("e")]);
    // New items do not move the older pages.
    run_to_end(&store, "f", "s").await;
    let (middle, cursor) = store.history_page(session_key("s"), 2, cursor).await.unwrap();
    assert_eq!(middle, [turn_item("c"), turn_item("d")]);
    let (oldest, cursor) = store.history_page(session_key("s"), 2, cursor).await.unwrap();
    assert_eq!((oldest, cursor), (vec![turn_item("a"), turn_item("b")], None));
}

#[tokio::test]
async fn numbered_turns_begin_after_the_last_reset() {
    let (store, _home) = new_store();
    run_to_end(&store, "a", "s").await;
    store.reset_session(session_key("s"), "noon".into()).await.unwrap();
    for id in ["b", "c", "d"] {
        run_to_end(&store, id, "s").await;
        run_to_end(&store, &format!("{id}-elsewhere"), "t").await;
    }
    assert_eq!(store.first_turn(session_key("s")).await, Ok(Some("turn b".to_owned())));
    assert_eq!(store.first_turn(session_key("nobody")).await, Ok(None));
    let newest = store.newest_turns(session_key("s"), i64::MAX, 2).await.unwrap();
    assert_eq!(newest.iter().map(|(_, turn)| turn.as_str()).collect::<Vec<_>>(), ["turn d", "turn c"]);
    let older = store.newest_turns(session_key("s"), newest[1].0, 9).await.unwrap();
    assert_eq!(
        older.iter().map(|(_, turn)| turn.as_str()).collect::<Vec<_>>(),
        ["turn b"],
        "none from before the reset"
    );
    assert!(older[0].0 < newest[1].0 && newest[1].0 < newest[0].0, "numbers rise with time");
}

#[tokio::test]
async fn a_deleted_session_is_gone_with_its_turns_and_runs() {
    let (store, _home) = new_store();
    run_to_end(&store, "a", "s").await;
    accept_run(&store, "b", "s").await;
    run_to_end(&store, "c", "t").await;
    assert_eq!(
        store.delete_session(session_key("s"), vec![run_id("a")]).await,
        Ok(DeleteSessionOutcome::InUse(vec![run_id("b")]))
    );
    assert_eq!(store.session_turns(session_key("s")).await.unwrap(), ["turn a"]);
    assert_eq!(store.delete_session(session_key("s"), vec![run_id("b")]).await, Ok(DeleteSessionOutcome::Deleted));
    assert_eq!(store.delete_session(session_key("s"), vec![]).await, Ok(DeleteSessionOutcome::Unknown));
    assert_eq!(store.find_session(session_key("s")).await, Ok(None));
    assert_eq!(store.session_turns(session_key("s")).await, Ok(vec![]));
    assert_eq!(store.history_page(session_key("s"), 9, None).await, Ok((vec![], None)));
    assert_eq!(run_ids(&store.list_runs(all_runs()).await.unwrap().0), ["c"]);
    assert_eq!(store.list_open_runs().await, Ok(vec![]));
    assert_eq!(store.session_turns(session_key("t")).await.unwrap(), ["turn c"]);
    let late = store.append_turn(session_key("s"), run_id("b"), "turn".into(), "view".into()).await;
    assert_eq!(late, Err(StoreError::NoSuchRun(run_id("b"))));
    // The key can be used again, and brings back nothing of the old session.
    run_to_end(&store, "d", "s").await;
    assert_eq!(store.session_turns(session_key("s")).await.unwrap(), ["turn d"]);
}

#[tokio::test]
async fn texts_come_back_unchanged() {
    let (store, _home) = new_store();
    let odd = "nul \0, quote ' \" `, snow \u{2603}, \u{1F980}, line\r\n end".to_string();
    accept_run(&store, "a", "agent:main:user-456/\u{fc}'--").await;
    let session = session_key("agent:main:user-456/\u{fc}'--");
    store.append_turn(session.clone(), run_id("a"), odd.clone(), odd.clone()).await.unwrap();
    let large = "x".repeat(3_000_000);
    accept_run(&store, "b", session.as_str()).await;
    store.append_turn(session.clone(), run_id("b"), large.clone(), "view".into()).await.unwrap();
    assert_eq!(store.session_turns(session.clone()).await, Ok(vec![odd.clone(), large]));
    assert_eq!(store.find_run(run_id("a")).await.unwrap().unwrap().view, odd);
    assert_eq!(store.find_session(session.clone()).await.unwrap().unwrap().key, session);
}
