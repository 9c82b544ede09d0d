//! Turns, resets and deleted sessions.

use super::*;
use crate::{HistoryItem, StoreError};

fn turn_item(id: &str) -> HistoryItem {
    let (agent, principal) = (AgentId::parse("main").unwrap(), Principal::parse("admin").unwrap());
    HistoryItem::Turn { turn: format!("turn {id}"), agent, principal }
}

fn reset_item(at: &str) -> HistoryItem {
    HistoryItem::Reset { at: at.into() }
}

pub(crate) async fn turns_come_back_in_order_and_once<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for id in ["a", "b", "c"] {
        run_to_end(&store, id, "s").await;
    }
    run_to_end(&store, "other", "t").await;
    append_turn(&store, "s", "a", "a again", "view").await.unwrap();
    assert_eq!(turns(&store, "s").await, ["turn a", "turn b", "turn c"]);
    assert_eq!(turns(&store, "nobody").await, Vec::<String>::new());
    assert_eq!(find_session(&store, "s").await.turns, 3);
}

pub(crate) async fn a_reset_hides_old_turns_from_the_model_and_not_from_people<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "a", "s").await;
    run_to_end(&store, "b", "s").await;
    assert_eq!(store.history().reset(session_key("s"), "noon".into()).await, Ok(true));
    assert_eq!(turns(&store, "s").await, Vec::<String>::new());
    assert_eq!(find_session(&store, "s").await.turns, 0);
    run_to_end(&store, "c", "s").await;
    assert_eq!(turns(&store, "s").await, ["turn c"]);
    let (past, more) = store.history().page(session_key("s"), 100, None).await.unwrap();
    assert_eq!(past, [turn_item("a"), turn_item("b"), reset_item("noon"), turn_item("c")]);
    assert_eq!(more, None);
}

pub(crate) async fn a_second_reset_of_nothing_leaves_no_second_boundary<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    assert_eq!(store.history().reset(session_key("s"), "dawn".into()).await, Ok(false));
    run_to_end(&store, "a", "s").await;
    assert_eq!(store.history().reset(session_key("s"), "noon".into()).await, Ok(true));
    assert_eq!(store.history().reset(session_key("s"), "dusk".into()).await, Ok(true));
    assert_eq!(
        store.history().page(session_key("s"), 100, None).await.unwrap().0,
        [turn_item("a"), reset_item("noon")]
    );
}

pub(crate) async fn history_pages_run_from_new_to_old_without_a_gap<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    for id in ["a", "b", "c", "d"] {
        run_to_end(&store, id, "s").await;
        run_to_end(&store, &format!("{id}-elsewhere"), "t").await;
    }
    store.history().reset(session_key("s"), "noon".into()).await.unwrap();
    run_to_end(&store, "e", "s").await;
    let (newest, cursor) = store.history().page(session_key("s"), 2, None).await.unwrap();
    assert_eq!(newest, [reset_item("noon"), turn_item("e")]);
    // New items do not move the older pages.
    run_to_end(&store, "f", "s").await;
    let (middle, cursor) = store.history().page(session_key("s"), 2, cursor).await.unwrap();
    assert_eq!(middle, [turn_item("c"), turn_item("d")]);
    let (oldest, cursor) = store.history().page(session_key("s"), 2, cursor).await.unwrap();
    assert_eq!((oldest, cursor), (vec![turn_item("a"), turn_item("b")], None));
}

pub(crate) async fn numbered_turns_begin_after_the_last_reset<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "a", "s").await;
    store.history().reset(session_key("s"), "noon".into()).await.unwrap();
    for id in ["b", "c", "d"] {
        run_to_end(&store, id, "s").await;
        run_to_end(&store, &format!("{id}-elsewhere"), "t").await;
    }
    assert_eq!(store.history().first_turn(session_key("s")).await, Ok(Some("turn b".to_owned())));
    assert_eq!(store.history().first_turn(session_key("nobody")).await, Ok(None));
    let newest = store.history().newest_turns(session_key("s"), i64::MAX, 2).await.unwrap();
    assert_eq!(newest.iter().map(|(_, turn)| turn.as_str()).collect::<Vec<_>>(), ["turn d", "turn c"]);
    let older = store.history().newest_turns(session_key("s"), newest[1].0, 9).await.unwrap();
    assert_eq!(
        older.iter().map(|(_, turn)| turn.as_str()).collect::<Vec<_>>(),
        ["turn b"],
        "none from before the reset"
    );
    assert!(older[0].0 < newest[1].0 && newest[1].0 < newest[0].0, "numbers rise with time");
}

pub(crate) async fn a_deleted_session_is_gone_with_its_turns_and_runs<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "a", "s").await;
    accept_run(&store, "b", "s").await;
    run_to_end(&store, "c", "t").await;
    assert_eq!(delete_session(&store, "s", &["a"]).await, DeleteSessionOutcome::InUse(vec![run_id("b")]));
    assert_eq!(turns(&store, "s").await, ["turn a"]);
    assert_eq!(delete_session(&store, "s", &["b"]).await, DeleteSessionOutcome::Deleted);
    assert_eq!(delete_session(&store, "s", &[]).await, DeleteSessionOutcome::Unknown);
    assert_eq!(store.sessions().find(session_key("s")).await, Ok(None));
    assert_eq!(turns(&store, "s").await, Vec::<String>::new());
    assert_eq!(store.history().page(session_key("s"), 9, None).await, Ok((vec![], None)));
    assert_eq!(run_ids(&store.runs().list(all_runs()).await.unwrap().0), ["c"]);
    assert_eq!(store.runs().list_open().await, Ok(vec![]));
    assert_eq!(turns(&store, "t").await, ["turn c"]);
    let late = append_turn(&store, "s", "b", "turn", "view").await;
    assert_eq!(late, Err(StoreError::NoSuchRun(run_id("b"))));
    // The key can be used again, and brings back nothing of the old session.
    run_to_end(&store, "d", "s").await;
    assert_eq!(turns(&store, "s").await, ["turn d"]);
}

pub(crate) async fn texts_come_back_unchanged<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let odd = "nul \0, quote ' \" `, snow \u{2603}, \u{1F980}, line\r\n end".to_string();
    accept_run(&store, "a", "agent:main:user-456/\u{fc}'--").await;
    let session = session_key("agent:main:user-456/\u{fc}'--");
    append_turn(&store, session.as_str(), "a", &odd, &odd).await.unwrap();
    let large = "x".repeat(3_000_000);
    accept_run(&store, "b", session.as_str()).await;
    append_turn(&store, session.as_str(), "b", &large, "view").await.unwrap();
    assert_eq!(store.history().turns(session.clone()).await, Ok(vec![odd.clone(), large]));
    assert_eq!(find_run(&store, "a").await.view, odd);
    assert_eq!(store.sessions().find(session.clone()).await.unwrap().unwrap().key, session);
}
