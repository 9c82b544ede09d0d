//! What is thrown away and what never is. Time comes in as an argument; between its use and the look a session leaves the memory
//! by a restart.

use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use quell_engine::EngineConfig;
use quell_engine::clock::{Clock, Skipped};
use quell_engine::dispatch::Retention;
use quell_protocol::ResourceKind;
use quell_testkit::Behaviour;
use serde_json::json;

use crate::harness::{Claim, Ground, House, key, message, root};
use crate::sessions::request;

const DAY: SignedDuration = SignedDuration::from_hours(24);

fn later(days: i32) -> Timestamp {
    Timestamp::now() + DAY * days
}

/// A house that throws away, on this ground.
async fn house(ground: &Path, retention: Retention) -> House {
    let change = |config: &mut EngineConfig| config.retention = retention;
    let house = House::on(Ground::Lent(ground.to_path_buf()), Claim::shared().await, change).await;
    house.answer_by_marker();
    house
}

/// Sessions `a` to `c`, used in this order, none of them in memory any more.
async fn three_sessions(ground: &Path, retention: Retention) -> House {
    let first = house(ground, Retention::default()).await;
    for session in ["a", "b", "c"] {
        first.ask(session, "hello").await;
    }
    first.close().await;
    house(ground, retention).await
}

async fn retired(house: &House, now: Timestamp) -> Vec<String> {
    house.engine.retire_sessions(now).await.unwrap().iter().map(ToString::to_string).collect()
}

async fn there(house: &House, session: &str) -> bool {
    house.engine.session(&key(session)).await.unwrap().is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_kept_unless_somebody_says_otherwise() {
    let ground = tempfile::tempdir().unwrap();
    let house = three_sessions(ground.path(), Retention::default()).await;
    assert!(retired(&house, later(100_000)).await.is_empty());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_used_for_long_goes_whole_and_says_so() {
    let ground = tempfile::tempdir().unwrap();
    let retention = Retention { max_age_days: Some(30), ..Retention::default() };
    let house = three_sessions(ground.path(), retention).await;
    let run = house.engine.runs(all()).await.unwrap().items.pop().unwrap().run_id;
    assert!(retired(&house, later(29)).await.is_empty());
    // In memory since this message, and so in use.
    house.ask("b", "again").await;
    assert!(house.engine.is_in_use(&key("b")));
    assert_eq!(retired(&house, later(31)).await, ["a", "c"]);
    assert!(!there(&house, "a").await && there(&house, "b").await);
    let left = house.engine.run(&run).await.unwrap().expect("the receipts of its runs are kept");
    assert_eq!((left.text.as_str(), left.output, left.receipt.is_some()), ("", None, true));
    assert!(house.engine.runs(all()).await.unwrap().items.iter().all(|row| row.run_id != run), "its runs went with it");
    let rows = house.engine.audit_list(0, 10).await.unwrap().items;
    let told: Vec<_> =
        rows.iter().map(|row| (row.principal.as_str(), row.action.as_str(), row.target.as_deref())).collect();
    assert_eq!(told, [("quell", "delete_session", Some("session a")), ("quell", "delete_session", Some("session c"))]);
    assert!(rows[0].detail.as_deref().unwrap().contains("30 days"), "{rows:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_was_asked_for_and_not_written_to_was_used() {
    let ground = tempfile::tempdir().unwrap();
    let retention = Retention { max_age_days: Some(30), ..Retention::default() };
    let time: &'static Skipped = Box::leak(Box::default());
    let change = |config: &mut EngineConfig| {
        config.clock = Clock::skipping(time);
        config.retention = retention.clone();
        config.sessions.idle_s = 30 * 24 * 3600;
    };
    let first = House::on(Ground::Lent(ground.path().to_path_buf()), Claim::shared().await, change).await;
    for user in ["ann", "bob"] {
        first.engine.open_session(&root(), request(user, "c")).await.unwrap();
    }
    // Often enough that it lives on.
    time.skip(Duration::from_secs(20 * 24 * 3600));
    first.engine.open_session(&root(), request("ann", "c")).await.unwrap();
    let used = first.engine.session(&key("ann:c:scripted")).await.unwrap().unwrap().last_used_at;
    first.close().await;
    let house = house(ground.path(), retention).await;
    assert_eq!(house.engine.session(&key("ann:c:scripted")).await.unwrap().unwrap().last_used_at, used);
    assert_eq!(retired(&house, later(40)).await, ["bob:c:scripted"]);
    house.close().await;
}

fn all() -> quell_engine::store::RunFilter {
    quell_engine::store::RunFilter { session: None, principal: None, limit: 100, cursor: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_beyond_the_number_go_and_never_one_that_is_in_use() {
    let ground = tempfile::tempdir().unwrap();
    let retention = Retention { max_sessions: Some(2), ..Retention::default() };
    let house = three_sessions(ground.path(), retention).await;
    // The oldest is at work now: the next one goes in its place.
    house.script("work", [Behaviour::silent_mid_stream("begun")]);
    let run = house.send(message("a", "marker:work")).await;
    house.text_came(&run).await;
    assert_eq!(retired(&house, later(0)).await, ["b"]);
    assert!(retired(&house, later(0)).await.is_empty(), "two are left");
    house.stop(&run).settled().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_with_a_background_process_stays() {
    let ground = tempfile::tempdir().unwrap();
    let retention = Retention { max_age_days: Some(1), ..Retention::default() };
    let change = |config: &mut EngineConfig| {
        config.retention = retention;
        config.sessions.idle_s = 0;
    };
    let house = House::on(Ground::Lent(ground.path().to_path_buf()), Claim::shared().await, change).await;
    house.answer_by_marker();
    let call = json!({"command": "sleep 1000", "background": true});
    house.script("serve", [Behaviour::tool_call("c1", "shell", &call)]);
    let run = house.ask_and_wait("s", "marker:serve").await;
    assert!(run.receipt.unwrap().resources.iter().any(|row| row.kind == ResourceKind::Process));
    assert!(retired(&house, later(10)).await.is_empty());
    assert!(there(&house, "s").await);
    house
        .engine
        .stop(&root(), &quell_kernel::registry::StopScope::Everything, &crate::harness::ask(quell_kernel::Push::Forced))
        .settled()
        .await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_go_until_the_database_is_small_enough() {
    let ground = tempfile::tempdir().unwrap();
    let first = house(ground.path(), Retention::default()).await;
    let long = "word ".repeat(200_000);
    for session in ["a", "b", "c", "d"] {
        first.ask(session, &long).await;
    }
    first.close().await;
    // Each has its message twice, in the turn and in the run: some 2 MiB.
    let house = house(ground.path(), Retention { max_mib: Some(5), ..Retention::default() }).await;
    let gone = retired(&house, later(0)).await;
    assert_eq!(gone, ["a", "b"], "no more than it takes");
    assert!(retired(&house, later(0)).await.is_empty());
    // What stayed is whole.
    let page = house.engine.history(&key("c"), 10, None).await.unwrap();
    assert_eq!(page.messages.len(), 2);
    house.ask("c", "and on").await;
    house.close().await;
}
