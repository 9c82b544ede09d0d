//! Hooks that are URLs: asked, they refuse or agree in time; told, they are delivered at least once, in order.

use std::time::{Duration, Instant};

use quell_engine::hooks::{Happening, HookSettings, Targets};
use quell_engine::scope::Cancelled;
use quell_protocol::ResourceKind;
use quell_protocol::hook::HookEvent;
use quell_testkit::{Behaviour, leaks};
use rstest::rstest;
use tokio::net::TcpListener;

use super::receiver::{Manner, ReceivingServer, SECRET};
use super::{SOON, house, may_be_made, scope, session};
use crate::harness::{Claim, DataDir, Ground, House, PATIENCE};

/// Hooks that are signed.
fn signed(hooks: &mut HookSettings) {
    hooks.secret = Some(SECRET.to_owned().into());
}

fn to(url: &str) -> Targets {
    url.into()
}

async fn asked_at(url: &str, timeout_ms: u64) -> House {
    house(|hooks| {
        signed(hooks);
        hooks.on_create = to(url);
        hooks.timeout_ms = timeout_ms;
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_asked_gets_a_signed_body_and_agrees() {
    let receiver = ReceivingServer::start().await;
    let house = asked_at(&receiver.url("hooks?team=red"), 5000).await;
    assert_eq!(may_be_made(&house, "s").await, Ok(()));
    let came = receiver.came(1).await;
    let body = came[0].checked();
    assert_eq!((came.len(), came[0].path.as_str()), (1, "/hooks"));
    assert_eq!((body.event, body.session), (HookEvent::Create, Some(session("s"))));
    house.close().await;
}

#[rstest]
#[case::with_a_reason(Manner::Status(403, r#"{"reason": "no more\ttoday\nor ever"}"#), "no more today")]
#[case::without_one(Manner::Status(403, "go away"), "its receiver answered 403 Forbidden")]
#[case::unauthorized(Manner::Status(401, "{}"), "its receiver answered 401 Unauthorized")]
#[case::elsewhere(Manner::Elsewhere, "its receiver answered 307 Temporary Redirect, which is no answer")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_does_not_agree_refuses_the_session(#[case] manner: Manner, #[case] reason: &str) {
    let receiver = ReceivingServer::start().await;
    receiver.answers([manner]);
    let house = asked_at(&receiver.url(""), 5000).await;
    let veto = may_be_made(&house, "s").await.unwrap_err();
    assert_eq!(veto.reason, reason);
    // A redirect is not followed: the event goes to nobody else.
    assert_eq!(receiver.came(1).await.len(), 1);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_in_trouble_is_asked_again_with_the_same_id() {
    let receiver = ReceivingServer::start().await;
    receiver.answers([Manner::Status(500, ""), Manner::Status(503, "")]);
    let house = asked_at(&receiver.url(""), 10_000).await;
    assert_eq!(may_be_made(&house, "s").await, Ok(()));
    let came = receiver.came(3).await;
    let bodies: Vec<_> = came.iter().map(|came| came.checked()).collect();
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:#?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_hangs_refuses_when_its_time_is_up() {
    let receiver = ReceivingServer::start().await;
    receiver.answers([Manner::Hang]);
    let house = asked_at(&receiver.url(""), 300).await;
    let begun = Instant::now();
    assert_eq!(may_be_made(&house, "s").await.unwrap_err().reason, "its receiver did not answer within 300 ms");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_is_not_there_is_tried_until_it_comes() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let house = asked_at(&format!("http://{address}/"), 20_000).await;
    let asking = may_be_made(&house, "s");
    let coming = async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        ReceivingServer::at(address).await
    };
    let (answer, receiver) = tokio::join!(asking, coming);
    assert_eq!(answer, Ok(()));
    receiver.die().await;
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_never_comes_refuses_and_its_url_is_not_told() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let house = asked_at(&format!("http://{address}/token-4711"), 300).await;
    let reason = may_be_made(&house, "s").await.unwrap_err().reason;
    assert!(reason.starts_with("its receiver cannot be reached"), "{reason}");
    assert!(!reason.contains("4711"), "{reason}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_closes_the_question_at_once() {
    let receiver = ReceivingServer::start().await;
    receiver.answers([Manner::Hang]);
    let house = asked_at(&receiver.url(""), 60_000).await;
    let scope = scope();
    let (hooks, own) = (house.engine.hooks().clone(), scope.clone());
    let asking =
        tokio::spawn(async move { hooks.ask(Happening::of_session(HookEvent::Create, session("s")), &own).await });
    receiver.came(1).await;
    scope.cancel();
    assert_eq!(tokio::time::timeout(SOON, asking).await.unwrap().unwrap(), Err(Cancelled));
    tokio::time::timeout(SOON, scope.close()).await.unwrap();
    let held: Vec<_> = scope.ledger().rows().iter().map(|row| (row.kind, row.how)).collect();
    assert_eq!(held, [(ResourceKind::Hook, "cancelled"), (ResourceKind::HttpRequest, "closed")]);
    house.close().await;
}

/// Tells that sessions are cleaned up, one after the other.
fn told(house: &House, names: &[&str]) {
    for name in names {
        house.engine.hooks().tell(Happening::of_session(HookEvent::Terminate, session(name)));
    }
}

async fn telling(ground: Ground, url: &str) -> House {
    House::on(ground, Claim::shared().await, |config| {
        signed(&mut config.hooks);
        config.hooks.on_terminate = to(url);
        config.hooks.on_shutdown = to(url);
        config.hooks.timeout_ms = 1000;
    })
    .await
}

fn fresh() -> Ground {
    Ground::Own(DataDir::new())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_taken_comes_again_with_the_same_id_and_before_what_came_after_it() {
    let receiver = ReceivingServer::start().await;
    receiver.answers([Manner::Status(500, ""), Manner::Hang]);
    let house = telling(fresh(), &receiver.url("")).await;
    let one = Happening::of_session(HookEvent::Terminate, session("one"));
    house.engine.hooks().tell_and_wait(one, PATIENCE).await;
    told(&house, &["two"]);
    let came = receiver.came(4).await;
    let bodies: Vec<_> = came.iter().map(|came| came.checked()).collect();
    let names: Vec<_> = bodies.iter().map(|body| body.session.as_ref().unwrap().key.to_string()).collect();
    assert_eq!(names, ["one", "one", "one", "two"]);
    assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2] && bodies[0].id != bodies[3].id, "{bodies:#?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_took_is_delivered_by_the_next_engine_the_shutdown_included() {
    let first = ReceivingServer::start().await;
    let (address, url) = (first.address(), first.url("hooks"));
    first.answers([Manner::Hang]);
    let dir = DataDir::new();
    let house = telling(Ground::Lent(dir.path().to_owned()), &url).await;
    told(&house, &["one"]);
    let before = first.came(1).await.remove(0).checked();
    first.die().await;
    let begun = Instant::now();
    house.close().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let second = ReceivingServer::at(address).await;
    let house = telling(Ground::Lent(dir.path().to_owned()), &url).await;
    let came = second.came(2).await;
    let after: Vec<_> = came.iter().map(|came| came.checked()).collect();
    assert_eq!(after[0], before);
    assert_eq!(after[1].event, HookEvent::Shutdown);
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_says_it_is_gone_does_not_get_that_one_again() {
    let receiver = ReceivingServer::start().await;
    receiver.answers([Manner::Status(410, "")]);
    let house = telling(fresh(), &receiver.url("")).await;
    told(&house, &["one"]);
    receiver.came(1).await;
    told(&house, &["two"]);
    let came = receiver.came(2).await;
    assert_eq!(came[1].checked().session.unwrap().key.as_str(), "two");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_url_that_is_not_configured_any_more_goes() {
    let (old, new) = (ReceivingServer::start().await, ReceivingServer::start().await);
    let url = old.url("old");
    old.die().await;
    let dir = DataDir::new();
    let house = telling(Ground::Lent(dir.path().to_owned()), &url).await;
    told(&house, &["one"]);
    house.close().await;
    let waiting = || {
        let database = rusqlite::Connection::open(dir.path().join("quell.db")).unwrap();
        database.query_row("SELECT count(*) FROM hook_outbox", [], |row| row.get::<_, i64>(0)).unwrap()
    };
    // The first one, and the shutdown.
    assert_eq!(waiting(), 2);
    let house = telling(Ground::Lent(dir.path().to_owned()), &new.url("new")).await;
    house.close().await;
    assert_eq!(waiting(), 0);
    assert_eq!(new.came(1).await.len(), 1, "the shutdown of the second one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_are_told_by_webhook_and_wait_for_nobody() {
    let receiver = ReceivingServer::start().await;
    receiver.answers([Manner::Hang]);
    let house = house(|hooks| {
        signed(hooks);
        hooks.on_run_start = to(&receiver.url("start"));
        hooks.on_run_end = to(&receiver.url("end"));
        hooks.timeout_ms = 2000;
    })
    .await;
    house.model.script(Behaviour::text("here"));
    let view = house.ask("s", "hello").await;
    // The start hangs for two seconds and comes again.
    let came = receiver.came(3).await;
    let starts: Vec<_> = came.iter().filter(|came| came.path == "/start").map(|came| came.checked()).collect();
    assert!(starts.len() == 2 && starts[0] == starts[1], "{came:#?}");
    let end = came.iter().find(|came| came.path == "/end").unwrap().checked();
    assert_eq!(end.run.as_ref().unwrap().receipt, view.receipt);
    assert_eq!(end.id, format!("run-end-{}", view.run_id));
    let database = house.dir.path().join("quell.db");
    leaks::settled(PATIENCE, move || {
        let database = rusqlite::Connection::open(&database).unwrap();
        let left: i64 = database.query_row("SELECT count(*) FROM hook_outbox", [], |row| row.get(0)).unwrap();
        if left == 0 { Ok(()) } else { Err(format!("{left} webhooks wait")) }
    })
    .await;
    house.close().await;
}
