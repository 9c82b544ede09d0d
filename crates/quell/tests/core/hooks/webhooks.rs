//! Webhooks: vetoes, retries, at-least-once delivery in order.

use quell_store::test_support::CountedRows;
use tokio::net::TcpListener;

use super::*;

fn set_secret(hooks: &mut HookSettings) {
    hooks.secret = Some(SECRET.to_owned().into());
}

async fn start_with_create_hook(url: &str, timeout_ms: u64) -> TestEngine {
    start_engine(|hooks| {
        set_secret(hooks);
        hooks.on_create = url.into();
        hooks.timeout_ms = timeout_ms;
    })
    .await
}

#[rstest]
#[case::with_a_reason(HookReceiverReply::Status(403, r#"{"reason": "no more\ttoday\nor ever"}"#), "no more today")]
#[case::without_one(HookReceiverReply::Status(403, "go away"), "its receiver answered 403 Forbidden")]
#[case::unauthorized(HookReceiverReply::Status(401, "{}"), "its receiver answered 401 Unauthorized")]
#[case::elsewhere(HookReceiverReply::Redirect, "its receiver answered 307 Temporary Redirect, which is no answer")]
#[case::hanging(HookReceiverReply::Hang, "its receiver did not answer within 300 ms")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_does_not_agree_refuses_the_session(#[case] reply: HookReceiverReply, #[case] reason: &str) {
    let receiver = HookReceiver::start().await;
    let timeout_ms = if matches!(reply, HookReceiverReply::Hang) { 300 } else { 5000 };
    receiver.queue_replies([reply]);
    let test = start_with_create_hook(&receiver.url(""), timeout_ms).await;
    let begun = Instant::now();
    assert_eq!(ask_create_hook(&test, "s").await.unwrap_err().reason, reason);
    assert!(begun.elapsed() < SOON_LIMIT, "{:?}", begun.elapsed());
    // A redirect is not followed: the event goes to no other receiver.
    assert_eq!(receiver.wait_received(1).await.len(), 1);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_in_trouble_is_asked_again_with_the_same_id() {
    let receiver = HookReceiver::start().await;
    receiver.queue_replies([HookReceiverReply::Status(500, ""), HookReceiverReply::Status(503, "")]);
    let test = start_with_create_hook(&receiver.url("hooks?team=red"), 10_000).await;
    assert_eq!(ask_create_hook(&test, "s").await, Ok(()));
    let requests = receiver.wait_received(3).await;
    assert!(requests.iter().all(|request| request.path == "/hooks"), "{requests:#?}");
    let bodies: Vec<_> = requests.iter().map(|request| request.verified_body()).collect();
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:#?}");
    assert_eq!((bodies[0].event, bodies[0].session.as_ref()), (HookEvent::Create, Some(&session_facts("s"))));
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_drops_the_connection_is_tried_until_it_answers() {
    let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = first.local_addr().unwrap();
    let test = start_with_create_hook(&format!("http://{address}/"), 20_000).await;
    let asking = ask_create_hook(&test, "s");
    let coming = async {
        // Drop the first attempt without reading it.
        drop(first.accept().await.unwrap());
        drop(first);
        HookReceiver::start_at(address).await
    };
    let (answer, receiver) = tokio::join!(asking, coming);
    assert_eq!(answer, Ok(()));
    assert_eq!(receiver.wait_received(1).await.len(), 1);
    receiver.abort().await;
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_never_comes_refuses_and_its_url_is_not_told() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let test = start_with_create_hook(&format!("http://{address}/token-4711"), 300).await;
    let reason = ask_create_hook(&test, "s").await.unwrap_err().reason;
    assert!(reason.starts_with("its receiver cannot be reached"), "{reason}");
    assert!(!reason.contains("4711"), "{reason}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_closes_the_question_at_once() {
    let receiver = HookReceiver::start().await;
    receiver.queue_replies([HookReceiverReply::Hang]);
    let test = start_with_create_hook(&receiver.url(""), 60_000).await;
    let scope = new_scope();
    let (hooks, own) = (test.engine.hooks().clone(), scope.clone());
    let asking = tokio::spawn(async move { hooks.ask_hooks(session_trigger(HookEvent::Create, "s"), &own).await });
    receiver.wait_received(1).await;
    scope.cancel();
    assert_eq!(tokio::time::timeout(SOON_LIMIT, asking).await.unwrap().unwrap(), Err(Interrupted::Cancelled));
    tokio::time::timeout(SOON_LIMIT, scope.close()).await.unwrap();
    let held: Vec<_> = scope.ledger().rows().iter().map(|row| (row.kind, row.release().unwrap())).collect();
    assert_eq!(held, [(ResourceKind::Hook, Release::Cancelled), (ResourceKind::HttpRequest, Release::Closed)]);
    test.close().await;
}

/// Sends the terminate event of each session, one after the other.
fn send_terminate_events(test: &TestEngine, names: &[&str]) {
    for name in names {
        test.engine.hooks().notify(session_trigger(HookEvent::Terminate, name));
    }
}

async fn start_with_terminate_hook(dir: &TestDataDir, url: &str) -> TestEngine {
    TestEngine::start_on(dir, |config| {
        set_secret(&mut config.hooks);
        config.hooks.on_terminate = url.into();
        config.hooks.on_shutdown = url.into();
        config.hooks.timeout_ms = 1000;
    })
    .await
}

/// Repeated as long as the receiver does not say that it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_deliveries_are_repeated_in_order_with_the_same_id() {
    let (dir, receiver) = (TestDataDir::new(), HookReceiver::start().await);
    let (done, gone) = (HookReceiverReply::Status(204, ""), HookReceiverReply::Status(410, ""));
    receiver.queue_replies([HookReceiverReply::Status(500, ""), HookReceiverReply::Hang, done, gone]);
    let test = start_with_terminate_hook(&dir, &receiver.url("")).await;
    test.engine.hooks().notify_and_wait(session_trigger(HookEvent::Terminate, "one"), WAIT_TIMEOUT).await;
    send_terminate_events(&test, &["two", "three"]);
    let requests = receiver.wait_received(5).await;
    let bodies: Vec<_> = requests.iter().map(|request| request.verified_body()).collect();
    let mut names: Vec<_> = bodies.iter().map(|body| body.session.as_ref().unwrap().key.to_string()).collect();
    // Events of two sessions happen beside each other.
    names[3..].sort();
    assert_eq!(names, ["one", "one", "one", "three", "two"]);
    assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2] && bodies[0].id != bodies[3].id, "{bodies:#?}");
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_engine_delivers_pending_events_and_the_shutdown() {
    let first = HookReceiver::start().await;
    let (address, url) = (first.address(), first.url("hooks"));
    first.queue_replies([HookReceiverReply::Hang]);
    let dir = TestDataDir::new();
    let test = start_with_terminate_hook(&dir, &url).await;
    send_terminate_events(&test, &["one"]);
    let before = first.wait_received(1).await.remove(0).verified_body();
    first.abort().await;
    test.close().await;
    let second = HookReceiver::start_at(address).await;
    let test = start_with_terminate_hook(&dir, &url).await;
    let requests = second.wait_received(2).await;
    let after: Vec<_> = requests.iter().map(|request| request.verified_body()).collect();
    assert_eq!(after[0], before);
    assert_eq!(after[1].event, HookEvent::Shutdown);
    test.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_for_a_url_no_longer_configured_are_dropped() {
    let (old, new) = (HookReceiver::start().await, HookReceiver::start().await);
    let url = old.url("old");
    old.abort().await;
    let dir = TestDataDir::new();
    let test = start_with_terminate_hook(&dir, &url).await;
    send_terminate_events(&test, &["one"]);
    test.close().await;
    let waiting = || OtherProgram::connect(dir.path()).count(CountedRows::Webhooks);
    // The terminate event and the shutdown event.
    assert_eq!(waiting(), 2);
    let test = start_with_terminate_hook(&dir, &new.url("new")).await;
    test.close().await;
    assert_eq!(waiting(), 0);
    assert_eq!(new.wait_received(1).await.len(), 1, "the shutdown event of the second engine");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_are_told_by_webhook_and_wait_for_nobody() {
    let receiver = HookReceiver::start().await;
    receiver.queue_replies([HookReceiverReply::Hang]);
    let test = start_engine(|hooks| {
        set_secret(hooks);
        hooks.on_run_start = receiver.url("start").as_str().into();
        hooks.on_run_end = receiver.url("end").as_str().into();
        hooks.timeout_ms = 2000;
    })
    .await;
    test.model.script(ScriptedResponse::text("here"));
    let view = test.run_message("s", "hello").await;
    // The start event hangs for two seconds and is sent again.
    let requests = receiver.wait_received(3).await;
    let starts: Vec<_> =
        requests.iter().filter(|request| request.path == "/start").map(|request| request.verified_body()).collect();
    assert!(starts.len() == 2 && starts[0] == starts[1], "{requests:#?}");
    let end = requests.iter().find(|request| request.path == "/end").unwrap().verified_body();
    assert_eq!(end.run.as_ref().unwrap().receipt, view.receipt);
    assert_eq!(end.id, format!("run-end-{}", view.run_id));
    let data_dir = test.test_dir.path().to_owned();
    let undelivered = move || OtherProgram::connect(&data_dir).count(CountedRows::Webhooks);
    leaks::wait_for_value("undelivered webhooks", 0, undelivered).await;
    test.close().await;
}
