//! Hooks of the real daemon: its own start and end, a kill, a shutdown that they would hold up.

use std::time::{Duration, Instant};

use quell_testkit::ScriptedModel;
use quell_testkit::commands::{self, Marker};
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::Behaviour;
use serde_json::{Value, json};

use super::receiver::{Manner, ReceivingServer, SECRET};
use super::{bodies, keeps_in};
use crate::cli::{exe, run};
use crate::harness::Claim;

fn agent(model: &ScriptedModel) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\n[agents.main]\nmodel = \"scripted/m\"\n",
        model.base_url()
    )
}

async fn sent(daemon: &Daemon, text: &str) -> String {
    let sent = daemon.http().post("/api/sessions/s/runs", &json!({"text": text})).await.expect_status(202);
    sent["runId"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_daemon_tells_that_it_is_there_and_that_it_goes() {
    let _claim = Claim::shared().await;
    let home = Home::new("");
    let out = home.data().join("told");
    let keep = json!(keeps_in(&out));
    std::fs::write(home.config(), format!("[hooks]\non_start = {keep}\non_shutdown = [{keep}, {keep}]\n")).unwrap();
    let daemon = home.start(exe()).await;
    bodies(&out, 1).await;
    assert!(daemon.stop().await.success(), "{}", daemon.output());
    let told = bodies(&out, 3).await;
    let events: Vec<_> = told.iter().map(|body| body["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["on_start", "on_shutdown", "on_shutdown"]);
    assert_eq!(told[1]["id"], told[2]["id"]);
    assert!(told.iter().all(|body| body.get("session").is_none() && body.get("run").is_none()), "{told:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_that_hang_do_not_keep_a_shutdown_from_its_deadline_and_leave_no_process() {
    let _claim = Claim::shared().await;
    let (model, mark) = (ScriptedModel::start().await, Marker::new());
    let hang = json!(commands::deaf_setsid_child(&mark));
    let hooks = format!(
        "[hooks]\non_run_end = {hang}\non_start = {hang}\non_shutdown = {hang}\non_run_start = {hang}\n\
         on_terminate = {hang}\ntimeout_ms = 60000\n"
    );
    let daemon = Daemon::start(exe(), &format!("{hooks}{}", agent(&model))).await;
    sent(&daemon, "hello").await;
    // The one of the start and the one of the run, each with its child.
    mark.at_least(4).await;
    let begun = Instant::now();
    let status = daemon.stop().await;
    let took = begun.elapsed();
    println!("ended {took:?} after SIGTERM");
    assert!(took < Duration::from_secs(5), "{took:?}\n{}", daemon.output());
    assert!(status.success(), "{status:?}\n{}", daemon.output());
    assert_eq!(mark.survivors().len(), 0, "{:#?}", mark.survivors());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_survives_the_death_of_the_daemon() {
    let _claim = Claim::shared().await;
    let (model, receiver) = (ScriptedModel::start().await, ReceivingServer::start().await);
    receiver.answers([Manner::Hang]);
    let hooks = format!(
        "[hooks]\non_run_end = \"{}\"\nsecret_env = \"HOOK_SECRET\"\ntimeout_ms = 60000\n",
        receiver.url("ends")
    );
    let home = Home::new(&format!("{hooks}{}", agent(&model))).env("HOOK_SECRET", SECRET);
    let daemon = home.start(exe()).await;
    model.script(Behaviour::text("here"));
    let ended = sent(&daemon, "hello").await;
    daemon.http().events(&ended, 0).await.to_end().await;
    receiver.came(1).await;
    model.script(Behaviour::silent_mid_stream("I think"));
    let cut = sent(&daemon, "and now?").await;
    daemon.http().events(&cut, 0).await.until("text.delta").await;
    daemon.kill9().await;
    let next = home.start(exe()).await;
    let came = receiver.came(3).await;
    let told: Vec<_> = came.iter().map(|came| came.checked()).collect();
    assert_eq!(told[0], told[1], "the same, once more");
    // A run whose daemon died is over, too, and that is told.
    let last = told[2].run.as_ref().unwrap();
    assert_eq!(last.run_id.as_str(), cut);
    let verdict: Value = serde_json::to_value(&last.verdict).unwrap();
    assert_eq!((&verdict["kind"], &verdict["reason"]), (&json!("aborted"), &json!("daemon_stopped")));
    assert!(next.stop().await.success(), "{}", next.output());
    assert_eq!(receiver.came(3).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_not_there_is_said_at_the_start() {
    let _claim = Claim::shared().await;
    let home = Home::new("[hooks]\non_start = \"http://127.0.0.1:9/\"\nsecret_env = \"NO_SUCH_SECRET\"\n");
    let ran = run(home.command(exe()).args(["serve", "--config"]).arg(home.config()));
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("[hooks] secret_env") && ran.err.contains("NO_SUCH_SECRET"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_secret_of_webhooks_is_never_shown() {
    let home = Home::new("[hooks]\non_start = \"http://127.0.0.1:9/\"\nsecret_env = \"HOOK_SECRET\"\n")
        .env("HOOK_SECRET", SECRET);
    let ran = run(home.command(exe()).args(["config", "show", "--config"]).arg(home.config()));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("secret_env = \"HOOK_SECRET\""), "{ran:?}");
    assert!(!ran.out.contains(SECRET) && !ran.err.contains(SECRET), "{ran:?}");
}
