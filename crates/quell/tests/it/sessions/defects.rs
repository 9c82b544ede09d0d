//! What went wrong in the origin of this design, each by its symptom. Every one of these fails on its logic: check, wait, then
//! act on a table without a lock; touch at the acquisition only; one history object for all tabs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use quell_protocol::hook::HookEvent;
use quell_testkit::commands::Marker;
use quell_testkit::{Behaviour, leaks};
use serde_json::json;
use tokio::sync::Semaphore;

use super::{Around, LONG, Scene, request};
use crate::doors::gated;
use crate::harness::{PATIENCE, alice, flat, message};
use crate::mcp::own_server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_messages_at_once_on_one_chat_leak_no_second_session() {
    let scene = Scene::open().await;
    let both = join_all(["one", "two"].map(|text| scene.house.send(message("s", text)))).await;
    for run in &both {
        scene.house.ended(run).await;
    }
    assert_eq!(scene.around.noted(), ["begin a"]);
    scene.pass(LONG);
    scene.alive(0).await;
    assert_eq!(scene.around.noted(), ["begin a", "undo a"]);
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_a_session_that_is_being_cleaned_up() {
    let undo_gate = Arc::new(Semaphore::new(0));
    let around = Around { names: vec!["a"], undo_gate: Some(Arc::clone(&undo_gate)), ..Around::default() };
    let scene = Scene::with(around, |_| {}).await;
    scene.house.ask("s", "hello").await;
    scene.pass(LONG);
    let around = Arc::clone(&scene.around);
    leaks::settled(PATIENCE, move || {
        if around.heard_of("s").contains(&HookEvent::Terminate) { Ok(()) } else { Err("no clean-up".to_owned()) }
    })
    .await;
    // It has left the table before its clean-up began, and its successor waits until that is over.
    let before = scene.house.model.request_count();
    let run = scene.house.send(message("s", "too early")).await;
    let opened = scene.house.engine.open_session(&alice(), request("other", "c")).await;
    assert!(opened.is_ok(), "a clean-up holds up another session");
    assert_eq!(scene.house.model.request_count(), before, "a run uses a session that is being cleaned up");
    undo_gate.add_permits(10);
    scene.house.ended(&run).await;
    let noted = scene.around.noted();
    let of_s: Vec<&str> = noted.iter().map(String::as_str).collect();
    assert_eq!(of_s.iter().filter(|note| **note == "undo a").count(), 1, "{noted:?}");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_longer_than_the_idle_limit_keeps_its_session_and_its_model() {
    let scene = Scene::open().await;
    scene.house.script("long", [Behaviour::tool_call("c1", "list_files", &json!({})), gated("half a day later")]);
    let run = scene.house.send(message("s", "marker:long")).await;
    scene.house.model.marked("long").await;
    for _ in 0..24 {
        scene.pass(LONG);
        assert_eq!(scene.around.alive(), 1, "a session was swept while it was in use");
    }
    scene.house.model.open_gate("half a day later");
    let view = scene.house.ended(&run).await;
    assert_eq!(view.verdict.unwrap().word(), "completed");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_is_asked_for_during_a_long_run_is_not_torn_down_under_it() {
    let scene = Scene::open().await;
    scene.house.script("long", [gated("an hour later")]);
    let run = scene.house.send(message("u:c:scripted", "marker:long")).await;
    scene.house.model.marked("long").await;
    scene.time.skip(LONG);
    let mut asked = request("u", "c");
    for language in ["ko-KR", "de-DE"] {
        asked.language = Some(language.to_owned());
        scene.house.engine.open_session(&alice(), asked.clone()).await.unwrap();
        scene.time.skip(LONG);
        scene.house.engine.open_session(&alice(), asked.clone()).await.unwrap();
    }
    assert_eq!(scene.around.noted(), ["begin a"], "a session was cleaned up while a run was at work in it");
    assert_eq!(scene.state("u:c:scripted").await, "active");
    scene.house.model.open_gate("an hour later");
    assert_eq!(scene.house.ended(&run).await.verdict.unwrap().word(), "completed");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_waits_for_long_finds_the_session_that_was_there_when_it_came() {
    let scene = Scene::with(Around { names: vec!["a"], ..Around::default() }, |config| {
        config.limits.in_flight_runs = 1;
    })
    .await;
    scene.house.ask("s", "hello").await;
    // Behind a run of another session first, then behind one of its own.
    for (session, marker) in [("other", "first"), ("s", "second")] {
        scene.house.script(marker, [gated(marker)]);
        let long = scene.house.send(message(session, &format!("marker:{marker}"))).await;
        scene.house.model.marked(marker).await;
        let waits = scene.house.send(message("s", "next")).await;
        scene.pass(LONG);
        scene.house.model.open_gate(marker);
        scene.house.ended(&long).await;
        assert_eq!(scene.house.ended(&waits).await.verdict.unwrap().word(), "completed");
    }
    let heard = scene.around.heard_of("s");
    assert!(!heard.contains(&HookEvent::Expire), "a session with a queued run has expired: {heard:?}");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_come_during_a_sweep_are_neither_swept_nor_forgotten() {
    let scene = Scene::open().await;
    let open = |user: &'static str, number: i32| {
        let engine = scene.house.engine.clone();
        async move { engine.open_session(&alice(), request(user, &number.to_string())).await.unwrap() }
    };
    join_all((0..200).map(|number| open("old", number))).await;
    scene.time.skip(LONG);
    let sweeping = async {
        for _ in 0..20 {
            scene.house.engine.sweep_sessions();
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(join_all((0..200).map(|number| open("new", number))), sweeping);
    scene.alive(200).await;
    assert_eq!(scene.house.engine.live_sessions(), 200);
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_tabs_on_one_chat_do_not_swap_their_memory_and_two_chats_share_none() {
    let scene = Scene::open().await;
    scene.house.script("first", [gated("go on")]);
    let first = scene.house.send(message("s", "secret of the first tab marker:first")).await;
    scene.house.model.marked("first").await;
    let second = scene.house.send(message("s", "of the second tab")).await;
    let other = scene.house.send(message("other", "another chat marker:other")).await;
    scene.house.ended(&other).await;
    let seen_there = scene.house.model.marked("other").await;
    assert!(!flat(seen_there.messages()).contains("secret"), "one chat sees another");
    assert!(!flat(scene.house.model.marked("first").await.messages()).contains("second tab"));
    scene.house.model.open_gate("go on");
    scene.house.ended(&first).await;
    scene.house.ended(&second).await;
    let last = flat(&scene.house.last_messages());
    assert!(last.contains("secret of the first tab") && last.contains("of the second tab"), "{last}");
    assert_eq!(scene.around.most.load(Ordering::SeqCst), 2, "one session for each chat");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_prompt_and_a_rotated_key_are_in_force_at_the_next_message() {
    let scene = Scene::open().await;
    let mut asked = request("u", "c");
    (asked.instruction, asked.model) = (Some("Speak like a pirate.".to_owned()), Some("model".to_owned()));
    asked.api_key = Some(quell_protocol::session::Secret::new("sk-old".to_owned()));
    let (session, _) = scene.house.engine.open_session(&alice(), asked.clone()).await.unwrap();
    scene.house.ask(session.as_str(), "hello").await;
    let seen = scene.house.model.seen().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-old"));
    asked.instruction = Some("Speak like a judge.".to_owned());
    asked.api_key = Some(quell_protocol::session::Secret::new("sk-new".to_owned()));
    scene.house.engine.open_session(&alice(), asked).await.unwrap();
    scene.house.ask(session.as_str(), "and now").await;
    let seen = scene.house.model.seen().pop().unwrap();
    assert_eq!(seen.header("authorization"), Some("Bearer sk-new"));
    let messages = flat(seen.messages());
    assert!(messages.contains("judge") && !messages.contains("pirate"), "{messages}");
    assert!(messages.contains("hello"), "the session was lost with its key");
    assert_eq!(scene.around.noted(), ["begin a"], "the session was made anew");
    scene.house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_mcp_connection_that_another_task_opened_is_really_closed() {
    let (mark, folder) = (Marker::new(), tempfile::tempdir().unwrap());
    let log = folder.path().join("log");
    let server = own_server(&mark, &log);
    let around = Around { names: vec!["a"], ..Around::default() };
    let scene = Scene::with(around, |config| {
        config.mcp.insert("test".to_owned(), server);
    })
    .await;
    for session in ["s", "t"] {
        let call = Behaviour::tool_call("c", "test__echo", &json!({"text": "hello"}));
        scene.house.script(session, [call, Behaviour::text("done")]);
        scene.house.ask(session, &format!("marker:{session}")).await;
    }
    assert_eq!(scene.house.engine.mcp().alive(), 2, "a server for each session");
    scene.pass(LONG);
    scene.alive(0).await;
    let engine = scene.house.engine.clone();
    leaks::settled(PATIENCE, move || match engine.mcp().alive() {
        0 => Ok(()),
        alive => Err(format!("{alive} MCP servers are alive")),
    })
    .await;
    mark.gone(Duration::from_secs(10)).await;
    scene.house.close().await;
}

/// A session expired between the end of a run and the sleep of its actor, and lost its desk to the sweep: its next message had
/// two actors, and one of them looked for its desk without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_come_while_everything_expires_at_once_are_all_answered() {
    let around = Around { names: vec!["a"], ..Around::default() };
    let scene = Scene::with(around, |config| {
        config.sessions.idle_s = 0;
        // They wait for places, too.
        config.limits.in_flight_runs = 2;
    })
    .await;
    let talk = |session: &'static str| {
        let house = &scene.house;
        async move {
            for _ in 0..60 {
                // The second one comes while the first one is at work or ends.
                let (one, two) = (house.send(message(session, "one")).await, house.send(message(session, "two")).await);
                for run in [one, two] {
                    let view = tokio::time::timeout(PATIENCE, house.ended(&run)).await.expect("nobody answers");
                    assert_eq!(view.verdict.unwrap().word(), "completed");
                }
            }
        }
    };
    let sweeping = async {
        loop {
            scene.house.engine.sweep_sessions();
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ((), (), ()) = async { tokio::join!(talk("s"), talk("t"), talk("u")) } => {}
        () = sweeping => {}
    }
    scene.house.close().await;
}
