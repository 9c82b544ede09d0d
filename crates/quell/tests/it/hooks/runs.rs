//! Hooks at the beginning and the end of runs: awaited in the run, and after its end.

use std::time::Instant;

use quell_engine::EngineConfig;
use quell_protocol::{HookEvent, ResourceKind, Rung, StopReason, Verdict};
use quell_testkit::Behaviour;
use quell_testkit::commands::{self, Marker};
use serde_json::{Value, json};

use super::{SOON, bodies, deaf_with_child, house, is_deaf, keeps_in, patient_house};
use crate::harness::{Claim, Ground, House, abort_reason, alice, message, receipt};
use crate::sessions::request;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_tells_its_hooks_that_it_starts_and_how_it_ended_and_never_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let (starts, ends) = (dir.path().join("starts"), dir.path().join("ends"));
    let house = house(|hooks| {
        hooks.on_run_start = format!("printf '%s ' \"$QUELL_RUN_ID\" >> ids; {}", keeps_in(&starts)).as_str().into();
        hooks.on_run_end = format!("printf '%s ' \"$QUELL_RUN_ID\" >> ids; {}", keeps_in(&ends)).as_str().into();
    })
    .await;
    house.model.script(Behaviour::text("the secret answer"));
    let view = house.ask("s", "the secret question").await;
    assert_eq!(view.verdict, Some(Verdict::Completed));
    let (start, end) = (bodies(&starts, 1).await.remove(0), bodies(&ends, 1).await.remove(0));
    for (body, event) in [(&start, HookEvent::RunStart), (&end, HookEvent::RunEnd)] {
        assert_eq!(body["event"], event.word(), "{body:#}");
        assert_eq!(body["session"], json!({"key": "s", "agent": "main"}), "{body:#}");
        let run = &body["run"];
        assert_eq!(
            (&run["runId"], &run["principal"], &run["surface"]),
            (&json!(view.run_id), &json!("alice"), &json!("http")),
            "{body:#}"
        );
        assert!(!body.to_string().contains("secret"), "{body:#}");
    }
    assert!(start["run"].get("verdict").is_none() && start["run"].get("receipt").is_none(), "{start:#}");
    assert_eq!(end["run"]["verdict"], json!({"kind": "completed"}), "{end:#}");
    assert_eq!(end["run"]["receipt"], serde_json::to_value(receipt(&view)).unwrap(), "{end:#}");
    assert_ne!(start["id"], end["id"]);
    // Nothing that carries the run's id may be alive after it.
    let ids = std::fs::read_to_string(house.dir.path().join("ids")).unwrap();
    let ids: Vec<&str> = ids.split_whitespace().collect();
    assert_eq!(ids[0], view.run_id.as_str());
    assert!(ids[1].starts_with("hook-"), "{ids:?}");
    let held: Vec<_> = receipt(&view).resources.iter().map(|row| (row.kind, row.how.as_str())).collect();
    assert!(held.contains(&(ResourceKind::Hook, "finished")), "{held:?}");
    assert!(held.contains(&(ResourceKind::Process, "exited")), "{held:?}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_tells_whose_session_it_works_in_also_when_its_daemon_dies() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("told");
    let with_hooks = |config: &mut EngineConfig| {
        config.hooks.on_activate = keeps_in(&file).as_str().into();
        config.hooks.on_run_start = keeps_in(&file).as_str().into();
        config.hooks.on_run_end = keeps_in(&file).as_str().into();
    };
    let whose = |body: &Value| ["userId", "chatId", "provider"].map(|name| body["session"][name].clone());
    let ground = dir.path().join("house");
    std::fs::create_dir(&ground).unwrap();
    let house = House::on(Ground::Lent(ground.clone()), Claim::shared().await, with_hooks).await;
    house.answer_by_marker();
    let (session, _) = house.engine.open_session(&alice(), request("ann", "7")).await.unwrap();
    house.ask(session.as_str(), "hello").await;
    for body in bodies(&file, 3).await {
        assert_eq!(whose(&body), ["ann", "7", "scripted"].map(Value::from), "{body:#}");
    }
    let view = house.ask(session.as_str(), "again").await;
    assert_eq!(bodies(&file, 6).await.len(), 6);
    house.close().await;
    // As a daemon leaves it that dies under the run.
    let database = rusqlite::Connection::open(ground.join("quell.db")).unwrap();
    database.execute("DELETE FROM history WHERE run = ?1", [view.run_id.as_str()]).unwrap();
    database.execute("UPDATE runs SET state = 'started' WHERE id = ?1", [view.run_id.as_str()]).unwrap();
    drop(database);
    let house = House::on(Ground::Lent(ground), Claim::shared().await, with_hooks).await;
    let told = bodies(&file, 7).await.remove(6);
    assert_eq!(
        (told["event"].as_str(), told["run"]["runId"].as_str()),
        (Some("on_run_end"), Some(view.run_id.as_str()))
    );
    assert_eq!(whose(&told), ["ann", "7", "scripted"].map(Value::from), "{told:#}");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_fails_when_a_run_starts_or_ends_changes_nothing() {
    let house = house(|hooks| {
        hooks.on_run_start.0 =
            vec!["echo I refuse; exit 1".to_owned(), "kill -9 $$".to_owned(), "echo 3 >> seen".to_owned()];
        hooks.on_run_end = "exit 9".into();
    })
    .await;
    house.model.script(Behaviour::text("here"));
    assert_eq!(house.ask("s", "hello").await.verdict, Some(Verdict::Completed));
    assert_eq!(std::fs::read_to_string(house.dir.path().join("seen")).unwrap(), "3\n");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_the_hook_of_a_starting_run_hangs_settles_at_once_and_its_receipt_lists_the_hook() {
    let mark = Marker::new();
    let house = patient_house(|hooks| {
        hooks.on_run_start = deaf_with_child(&mark).as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    let run = house.send(message("s", "hello")).await;
    is_deaf(&house, &mark).await;
    let begun = Instant::now();
    let stop = house.stop(&run);
    stop.settled().await;
    // A deaf command of a tool would have its minute from SIGTERM on.
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    let view = house.ended(&run).await;
    assert_eq!(abort_reason(view.verdict.as_ref()), StopReason::User);
    let receipt = receipt(&view);
    assert_eq!((receipt.rung, receipt.leftovers.len()), (Rung::Kill, 0), "{receipt:#?}");
    let held: Vec<_> = receipt.resources.iter().map(|row| (row.kind, row.label.as_str(), row.how.as_str())).collect();
    assert!(held.contains(&(ResourceKind::Hook, "on_run_start", "cancelled")), "{held:#?}");
    let process = receipt.resources.iter().find(|row| row.kind == ResourceKind::Process).unwrap();
    assert_eq!(process.how, "kill");
    assert!(process.process.as_ref().unwrap().swept >= 1, "{process:#?}");
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
    assert!(house.model.seen().is_empty(), "the model was asked before its hook had answered");
    house.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_hangs_at_the_end_delays_neither_the_end_nor_the_next_run() {
    let mark = Marker::new();
    let house = house(|hooks| {
        hooks.on_run_end = commands::ignores_signals(&mark).as_str().into();
        hooks.timeout_ms = 60_000;
    })
    .await;
    for text in ["one", "two"] {
        house.model.script(Behaviour::text("here"));
        assert_eq!(house.ask("s", text).await.verdict, Some(Verdict::Completed));
    }
    mark.at_least(1).await;
    house.close().await;
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_never_began_has_no_end_to_tell() {
    let dir = tempfile::tempdir().unwrap();
    let ends = dir.path().join("ends");
    let house = house(|hooks| hooks.on_run_end = keeps_in(&ends).as_str().into()).await;
    house.model.script(Behaviour::silent_mid_stream("I think"));
    let first = house.send(message("s", "one")).await;
    house.text_came(&first).await;
    let queued = house.send(message("s", "two")).await;
    house.stop_session("s").settled().await;
    house.ended(&queued).await;
    house.ended(&first).await;
    house.model.script(Behaviour::text("here"));
    let third = house.ask("s", "three").await;
    let told = bodies(&ends, 2).await;
    let ids: Vec<_> = told.iter().map(|body| body["run"]["runId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids, [first.to_string(), third.run_id.to_string()]);
    assert_eq!(told[0]["run"]["verdict"]["kind"], "aborted");
    house.close().await;
}
