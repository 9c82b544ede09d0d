//! The life of a session from outside: states, touch, expiry, revival, what keeps one alive.

use std::time::Duration;

use quell_engine::dispatch::Got;
use quell_engine::tools::attachment::folder_of;
use quell_kernel::Push;
use quell_protocol::ResourceKind;
use quell_protocol::approval::Decision;
use quell_protocol::hook::HookEvent;
use quell_protocol::session::SessionRequest;
use quell_testkit::Behaviour;
use serde_json::json;

use super::{Around, LONG, Scene, request};
use crate::harness::{PATIENCE, agent, alice, ask, flat, key, message};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_is_ready_active_ready_expired_and_ready_again_with_its_history() {
    let scene = Scene::open().await;
    let (session, got) = scene.house.engine.open_session(&alice(), request("u", "c")).await.unwrap();
    assert_eq!((session.as_str(), got), ("u:c:scripted", Got::Created));
    assert_eq!(scene.state("u:c:scripted").await, "ready");
    scene.house.script("hang", [Behaviour::silent_mid_stream("begun")]);
    let run = scene.house.send(message("u:c:scripted", "marker:hang")).await;
    scene.house.text_came(&run).await;
    assert_eq!(scene.state("u:c:scripted").await, "active");
    scene.house.stop(&run).settled().await;
    scene.house.ended(&run).await;
    scene.house.ask("u:c:scripted", "remember the number 4711").await;
    assert_eq!(scene.state("u:c:scripted").await, "ready");
    scene.pass(LONG);
    scene.alive(0).await;
    assert_eq!(scene.state("u:c:scripted").await, "expired");
    scene.house.ask("u:c:scripted", "and now").await;
    assert!(flat(&scene.house.last_messages()).contains("4711"), "the history is gone");
    assert_eq!(scene.state("u:c:scripted").await, "ready");
    use HookEvent::{Activate, Create, Expire, Terminate};
    let heard = scene.around.heard_of("u:c:scripted");
    let life: Vec<HookEvent> =
        heard.into_iter().filter(|event| matches!(event, Activate | Create | Expire | Terminate)).collect();
    assert_eq!(life, [Create, Activate, Activate, Expire, Terminate, Create, Activate]);
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_the_limit_is_not_too_long_and_a_touch_begins_it_anew() {
    let scene = Scene::open().await;
    scene.house.ask("s", "hello").await;
    scene.pass(Duration::from_secs(1790));
    assert_eq!(scene.state("s").await, "ready");
    scene.house.ask("s", "again").await;
    scene.pass(Duration::from_secs(1790));
    assert_eq!(scene.state("s").await, "ready", "the second message was no touch");
    scene.pass(Duration::from_secs(20));
    scene.alive(0).await;
    assert_eq!(scene.state("s").await, "expired");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_may_have_a_limit_of_its_own() {
    let scene = Scene::with(Around { names: vec!["a"], ..Around::default() }, |config| {
        config.agents.get_mut(&agent("main")).unwrap().idle_s = Some(60);
    })
    .await;
    scene.house.ask("s", "hello").await;
    scene.pass(Duration::from_secs(59));
    assert_eq!(scene.state("s").await, "ready");
    scene.pass(Duration::from_secs(3));
    scene.alive(0).await;
    assert_eq!(scene.state("s").await, "expired");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_waits_behind_another_keeps_its_session() {
    let scene = Scene::with(Around { names: vec!["a"], ..Around::default() }, |config| {
        config.limits.in_flight_runs = 1;
    })
    .await;
    scene.house.ask("second", "hello").await;
    scene.house.script("hang", [Behaviour::silent_mid_stream("begun")]);
    let first = scene.house.send(message("first", "marker:hang")).await;
    scene.house.text_came(&first).await;
    let queued = scene.house.send(message("second", "next")).await;
    scene.pass(LONG);
    assert_eq!(scene.around.alive(), 2, "a session with a queued run has expired");
    scene.house.stop(&first).settled().await;
    assert_eq!(scene.house.ended(&queued).await.verdict.unwrap().word(), "completed");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pending_approval_keeps_its_session() {
    let scene = Scene::with(Around { names: vec!["a"], ..Around::default() }, |config| {
        let main = config.agents.get_mut(&agent("main")).unwrap();
        main.approvals.insert("*".to_owned(), quell_kernel::approval::ApprovalPolicy::Ask);
    })
    .await;
    scene.house.script("ask", [Behaviour::tool_call("c1", "list_files", &json!({})), Behaviour::text("done")]);
    let run = scene.house.send(message("s", "marker:ask")).await;
    scene.house.holds(&run, ResourceKind::Approval).await;
    scene.pass(Duration::from_secs(800));
    scene.pass(LONG);
    assert_eq!(scene.around.alive(), 1, "a session with a pending approval has expired");
    let pending = scene.house.engine.approvals();
    scene.house.engine.answer_approval(&alice(), &pending[0].id, Decision::Allow).unwrap();
    assert_eq!(scene.house.ended(&run).await.verdict.unwrap().word(), "completed");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_process_keeps_its_session_until_it_ends() {
    let scene = Scene::open().await;
    let call = json!({"command": "sleep 1000", "background": true});
    scene.house.script("serve", [Behaviour::tool_call("c1", "shell", &call), Behaviour::text("done")]);
    scene.house.ask_and_wait("s", "marker:serve").await;
    scene.pass(LONG);
    assert_eq!(scene.around.alive(), 1, "a session with a background process has expired");
    scene.house.stop_session("s").settled().await;
    scene.pass(LONG);
    scene.alive(0).await;
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_session_is_cleaned_up_before_the_answer() {
    let scene = Scene::open().await;
    scene.house.ask("s", "hello").await;
    let ask = crate::harness::ask(quell_kernel::Push::Gentle);
    assert!(scene.house.engine.delete_session(&alice(), &key("s"), &ask).await.unwrap());
    assert_eq!(scene.around.alive(), 0);
    assert_eq!(scene.state("s").await, "none");
    assert_eq!(scene.around.heard_of("s").last(), Some(&HookEvent::Terminate));
    scene.house.close().await;
}

/// Where the deletion was cut short, the session was gone and its files stayed; and an agent that has left has no workdir to look in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_a_session_go_before_it_whichever_agent_has_left() {
    let scene = Scene::open().await;
    scene.house.ask("s", "hello").await;
    let homes = scene.house.engine.config().work_dir.clone();
    let file = |agent: &str, session: &str| homes.join(agent).join(folder_of(&key(session))).join("r1/0-cat.png");
    let (left, others) = (file("has-left", "s"), file("has-left", "t"));
    for file in [&left, &others] {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "cat").unwrap();
    }
    let database = rusqlite::Connection::open(scene.house.dir.path().join("quell.db")).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE DELETE ON sessions BEGIN SELECT RAISE(ABORT, 'no'); END";
    database.execute_batch(refuse).unwrap();
    let ask = crate::harness::ask(quell_kernel::Push::Gentle);
    assert!(scene.house.engine.delete_session(&alice(), &key("s"), &ask).await.is_err());
    assert!(!left.exists() && others.exists());
    database.execute_batch("DROP TRIGGER refuse").unwrap();
    assert!(scene.house.engine.delete_session(&alice(), &key("s"), &ask).await.unwrap(), "it can be deleted again");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_deleted_under_its_run_does_not_live_on_with_its_key() {
    let scene = Scene::open().await;
    scene.house.script("hang", (0..30).map(|_| Behaviour::silent_mid_stream("begun")));
    let ask = crate::harness::ask(quell_kernel::Push::Gentle);
    for _ in 0..30 {
        let mut asked = request("u", "c");
        asked.api_key = Some(quell_protocol::session::Secret::new("sk-old".to_owned()));
        let (session, got) = scene.house.engine.open_session(&alice(), asked).await.unwrap();
        assert_eq!(got, Got::Created);
        let run = scene.house.send(message(session.as_str(), "marker:hang")).await;
        scene.house.text_came(&run).await;
        // It stops the run, whose actor may be at its desk for a moment longer.
        assert!(scene.house.engine.delete_session(&alice(), &session, &ask).await.unwrap());
        assert_eq!((scene.house.engine.live_sessions(), scene.around.alive()), (0, 0), "it lives on");
    }
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_cleans_every_session_up() {
    let scene = Scene::open().await;
    for number in 0..50 {
        scene.house.engine.open_session(&alice(), request("u", &format!("c{number}"))).await.unwrap();
    }
    assert_eq!(scene.around.alive(), 50);
    let around = std::sync::Arc::clone(&scene.around);
    scene.house.close().await;
    assert_eq!(around.alive(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_deleted_under_a_run_leaves_nothing_of_itself_in_memory() {
    let scene = Scene::open().await;
    let engine = &scene.house.engine;
    for _ in 0..20 {
        let asked = SessionRequest { instruction: Some("Be brief.".to_owned()), ..request("u", "c") };
        let (session, got) = engine.open_session(&alice(), asked).await.unwrap();
        assert_eq!(got, Got::Created, "what was deleted lives on");
        scene.house.script("hang", [Behaviour::silent_mid_stream("begun")]);
        let run = scene.house.send(message(session.as_str(), "marker:hang")).await;
        scene.house.text_came(&run).await;
        assert!(engine.delete_session(&alice(), &session, &ask(Push::Gentle)).await.unwrap());
        assert_eq!(engine.live_sessions(), 0, "it was deleted and works with what it had");
    }
    scene.alive(0).await;
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_waits_for_a_place_is_deleted_without_one() {
    let scene = Scene::with(Around { names: vec!["a"], ..Around::default() }, |config| {
        config.limits.in_flight_runs = 1;
    })
    .await;
    scene.house.ask("waits", "hello").await;
    scene.house.script("hang", [Behaviour::silent_mid_stream("begun")]);
    let run = scene.house.send(message("works", "marker:hang")).await;
    scene.house.text_came(&run).await;
    scene.house.send(message("waits", "later")).await;
    let (caller, waits, gently) = (alice(), key("waits"), ask(Push::Gentle));
    let deleted = scene.house.engine.delete_session(&caller, &waits, &gently);
    assert!(tokio::time::timeout(PATIENCE, deleted).await.expect("it waits for another session").unwrap());
    assert_eq!(scene.house.engine.live_sessions(), 1);
    scene.house.stop(&run).settled().await;
    scene.house.close().await;
}
