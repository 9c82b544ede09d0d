//! Accepting runs, and state changes.

use futures_util::future::join_all;

use super::*;
use crate::{AcceptRunOutcome, StoreError, StoredRunState};

pub(crate) async fn two_hundred_callers_at_once_each_get_their_own_answer<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let callers = (0..200).map(|n| store.runs().accept(accepted_row(&format!("run-{}", n % 100), "s")));
    let answers = join_all(callers).await;
    let new = answers.iter().filter(|answer| **answer == Ok(AcceptRunOutcome::New)).count();
    let repeats = answers.iter().filter(|answer| matches!(answer, Ok(AcceptRunOutcome::Existing(_)))).count();
    assert_eq!((new, repeats), (100, 100));
    for (n, answer) in answers.iter().enumerate() {
        if let Ok(AcceptRunOutcome::Existing(existing)) = answer {
            assert_eq!(existing.id.as_str(), format!("run-{}", n % 100));
        }
    }
    assert_eq!(store.runs().list_open().await.unwrap().len(), 100);
}

pub(crate) async fn a_repeat_answers_the_first_run_and_changes_nothing<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    store.runs().record_start(run_id("a"), "started".into()).await.unwrap();
    let mut repeat = accepted_row("a", "another");
    repeat.fingerprint = "other words".into();
    let Ok(AcceptRunOutcome::Existing(first)) = store.runs().accept(repeat).await else { panic!("accepted twice") };
    assert_eq!((first.fingerprint.as_str(), first.view.as_str()), ("hash of a", "started"));
    assert_eq!(first.state, StoredRunState::Started);
    assert_eq!(store.sessions().find(session_key("another")).await, Ok(None));
}

pub(crate) async fn a_run_only_moves_forward<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    run_to_end(&store, "a", "s").await;
    store.runs().record_start(run_id("a"), "late start".into()).await.unwrap();
    store.runs().record_steered(run_id("a"), run_id("b")).await.unwrap();
    append_turn(&store, "s", "a", "late turn", "late view").await.unwrap();
    let run = find_run(&store, "a").await;
    assert_eq!((run.state, run.view.as_str()), (StoredRunState::Ended, "ended a"));
    store.runs().record_end(run_id("a"), "amended".into(), no_spend()).await.unwrap();
    assert_eq!(find_run(&store, "a").await.view, "amended");
}

pub(crate) async fn a_run_that_is_stored_at_its_end_is_stored_once_with_its_turn<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let row = RunRow { state: StoredRunState::Started, ..accepted_row("a", "calls") };
    for _ in 0..2 {
        store.runs().insert_with_turn(row.clone(), "turn of a".to_owned()).await.unwrap();
    }
    assert_eq!(turns(&store, "calls").await, ["turn of a"]);
    let session = store.sessions().find(session_key("calls")).await.unwrap().expect("the session of the run");
    assert_eq!(session.turns, 1);
    assert_eq!(store.runs().list_open().await.unwrap().len(), 1, "its end is not stored yet");
    store.runs().record_end(run_id("a"), "ended a".into(), no_spend()).await.unwrap();
    assert_eq!(find_run(&store, "a").await.state, StoredRunState::Ended);
}

pub(crate) async fn a_turn_recorded_after_the_end_leaves_the_receipt_alone<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    store.runs().record_end(run_id("a"), "receipt: not recorded".into(), no_spend()).await.unwrap();
    append_turn(&store, "s", "a", "turn", "no receipt").await.unwrap();
    assert_eq!(find_run(&store, "a").await.view, "receipt: not recorded");
    assert_eq!(turns(&store, "s").await, ["turn"]);
}

pub(crate) async fn a_steered_run_says_where_its_text_went_and_is_not_open<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    accept_run(&store, "b", "s").await;
    store.runs().record_steered(run_id("b"), run_id("a")).await.unwrap();
    store.runs().record_end(run_id("b"), "never was one".into(), no_spend()).await.unwrap();
    let run = find_run(&store, "b").await;
    assert_eq!(run.state, StoredRunState::Steered { into: run_id("a") });
    assert_eq!(run.view, "accepted b");
    assert_eq!(run_ids(&store.runs().list_open().await.unwrap()), ["a"]);
}

pub(crate) async fn an_unknown_run_is_named<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    let missing = || Err(StoreError::NoSuchRun(run_id("x")));
    assert_eq!(store.runs().record_start(run_id("x"), String::new()).await, missing());
    assert_eq!(store.runs().record_end(run_id("x"), String::new(), no_spend()).await, missing());
    assert_eq!(store.runs().record_steered(run_id("x"), run_id("y")).await, missing());
    assert_eq!(append_turn(&store, "s", "x", "t", "").await, missing());
    assert_eq!(store.runs().find(run_id("x")).await, Ok(None));
}

pub(crate) async fn a_turn_of_another_session_is_refused<D: TestDatabase>() {
    let (store, _home) = new_store::<D>();
    accept_run(&store, "a", "s").await;
    accept_run(&store, "b", "t").await;
    let refused = append_turn(&store, "t", "a", "turn", "").await;
    assert_eq!(refused, Err(StoreError::NoSuchRun(run_id("a"))));
    assert_eq!(turns(&store, "t").await, Vec::<String>::new());
}
