//! Turns, resets, and what is left of a deleted session.

use super::super::{Deleted, Past, StoreError};
use super::*;

fn turn(id: &str) -> Past {
    let (agent, principal) = (AgentId::parse("main").unwrap(), Principal::parse("admin").unwrap());
    Past::Turn { turn: format!("turn {id}"), agent, principal }
}

fn reset(at: &str) -> Past {
    Past::Reset { at: at.into() }
}

#[tokio::test]
async fn turns_come_back_in_order_and_once() {
    let (store, _home) = fresh();
    for id in ["a", "b", "c"] {
        live(&store, id, "s").await;
    }
    live(&store, "other", "t").await;
    store.append_turn(key("s"), run_id("a"), "a again".into(), "view".into()).await.unwrap();
    assert_eq!(store.turns(key("s")).await.unwrap(), ["turn a", "turn b", "turn c"]);
    assert_eq!(store.turns(key("nobody")).await, Ok(vec![]));
    assert_eq!(store.session(key("s")).await.unwrap().unwrap().turns, 3);
}

#[tokio::test]
async fn a_reset_hides_old_turns_from_the_model_and_not_from_people() {
    let (store, _home) = fresh();
    live(&store, "a", "s").await;
    live(&store, "b", "s").await;
    assert_eq!(store.reset_session(key("s"), "noon".into()).await, Ok(true));
    assert_eq!(store.turns(key("s")).await, Ok(vec![]));
    assert_eq!(store.session(key("s")).await.unwrap().unwrap().turns, 0);
    live(&store, "c", "s").await;
    assert_eq!(store.turns(key("s")).await.unwrap(), ["turn c"]);
    let (past, more) = store.turn_page(key("s"), 100, None).await.unwrap();
    assert_eq!(past, [turn("a"), turn("b"), reset("noon"), turn("c")]);
    assert_eq!(more, None);
}

#[tokio::test]
async fn a_second_reset_of_nothing_leaves_no_second_boundary() {
    let (store, _home) = fresh();
    assert_eq!(store.reset_session(key("s"), "dawn".into()).await, Ok(false));
    live(&store, "a", "s").await;
    assert_eq!(store.reset_session(key("s"), "noon".into()).await, Ok(true));
    assert_eq!(store.reset_session(key("s"), "dusk".into()).await, Ok(true));
    assert_eq!(store.turn_page(key("s"), 100, None).await.unwrap().0, [turn("a"), reset("noon")]);
}

#[tokio::test]
async fn history_pages_run_from_new_to_old_without_a_gap() {
    let (store, _home) = fresh();
    for id in ["a", "b", "c", "d"] {
        live(&store, id, "s").await;
        live(&store, &format!("{id}-elsewhere"), "t").await;
    }
    store.reset_session(key("s"), "noon".into()).await.unwrap();
    live(&store, "e", "s").await;
    let (newest, cursor) = store.turn_page(key("s"), 2, None).await.unwrap();
    assert_eq!(newest, [reset("noon"), turn("e")]);
    // What is added meanwhile does not move the older pages.
    live(&store, "f", "s").await;
    let (middle, cursor) = store.turn_page(key("s"), 2, cursor).await.unwrap();
    assert_eq!(middle, [turn("c"), turn("d")]);
    let (oldest, cursor) = store.turn_page(key("s"), 2, cursor).await.unwrap();
    assert_eq!((oldest, cursor), (vec![turn("a"), turn("b")], None));
}

#[tokio::test]
async fn numbered_turns_begin_after_the_last_reset() {
    let (store, _home) = fresh();
    live(&store, "a", "s").await;
    store.reset_session(key("s"), "noon".into()).await.unwrap();
    for id in ["b", "c", "d"] {
        live(&store, id, "s").await;
        live(&store, &format!("{id}-elsewhere"), "t").await;
    }
    assert_eq!(store.first_turn(key("s")).await, Ok(Some("turn b".to_owned())));
    assert_eq!(store.first_turn(key("nobody")).await, Ok(None));
    let newest = store.newest_turns(key("s"), i64::MAX, 2).await.unwrap();
    assert_eq!(newest.iter().map(|(_, turn)| turn.as_str()).collect::<Vec<_>>(), ["turn d", "turn c"]);
    let older = store.newest_turns(key("s"), newest[1].0, 9).await.unwrap();
    assert_eq!(
        older.iter().map(|(_, turn)| turn.as_str()).collect::<Vec<_>>(),
        ["turn b"],
        "none from before the reset"
    );
    assert!(older[0].0 < newest[1].0 && newest[1].0 < newest[0].0, "numbers rise with time");
}

#[tokio::test]
async fn a_deleted_session_is_gone_with_its_turns_and_runs() {
    let (store, _home) = fresh();
    live(&store, "a", "s").await;
    accept(&store, "b", "s").await;
    live(&store, "c", "t").await;
    assert_eq!(store.delete_session(key("s"), vec![run_id("a")]).await, Ok(Deleted::InUse(vec![run_id("b")])));
    assert_eq!(store.turns(key("s")).await.unwrap(), ["turn a"]);
    assert_eq!(store.delete_session(key("s"), vec![run_id("b")]).await, Ok(Deleted::Yes));
    assert_eq!(store.delete_session(key("s"), vec![]).await, Ok(Deleted::Unknown));
    assert_eq!(store.session(key("s")).await, Ok(None));
    assert_eq!(store.turns(key("s")).await, Ok(vec![]));
    assert_eq!(store.turn_page(key("s"), 9, None).await, Ok((vec![], None)));
    assert_eq!(ids(&store.runs(all_runs()).await.unwrap().0), ["c"]);
    assert_eq!(store.open_runs().await, Ok(vec![]));
    assert_eq!(store.turns(key("t")).await.unwrap(), ["turn c"]);
    let late = store.append_turn(key("s"), run_id("b"), "turn".into(), "view".into()).await;
    assert_eq!(late, Err(StoreError::NoSuchRun(run_id("b"))));
    // The name is free again, and nothing of the old session comes back with it.
    live(&store, "d", "s").await;
    assert_eq!(store.turns(key("s")).await.unwrap(), ["turn d"]);
}

#[tokio::test]
async fn texts_come_back_unchanged() {
    let (store, _home) = fresh();
    let odd = "nul \0, quote ' \" `, snow \u{2603}, \u{1F980}, line\r\n end".to_string();
    accept(&store, "a", "agent:main:user-456/\u{fc}'--").await;
    let session = key("agent:main:user-456/\u{fc}'--");
    store.append_turn(session.clone(), run_id("a"), odd.clone(), odd.clone()).await.unwrap();
    let large = "x".repeat(3_000_000);
    accept(&store, "b", session.as_str()).await;
    store.append_turn(session.clone(), run_id("b"), large.clone(), "view".into()).await.unwrap();
    assert_eq!(store.turns(session.clone()).await, Ok(vec![odd.clone(), large]));
    assert_eq!(store.run(run_id("a")).await.unwrap().unwrap().view, odd);
    assert_eq!(store.session(session.clone()).await.unwrap().unwrap().key, session);
}
