//! Hooks of the real daemon: start, shutdown, kill, and a shutdown with hanging hooks.

use quell_testkit::commands;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_daemon_tells_that_it_is_there_and_that_it_goes() {
    let _process_lock = ProcessLock::shared().await;
    let home = DaemonHome::new("");
    let out = home.data_dir().join("told");
    let keep = json!(append_stdin_command(&out));
    std::fs::write(home.config_file(), format!("[hooks]\non_start = {keep}\non_shutdown = [{keep}, {keep}]\n"))
        .unwrap();
    let daemon = home.start(quell_exe()).await;
    wait_bodies(&out, 1).await;
    assert!(daemon.stop().await.success(), "{}", daemon.output());
    let bodies = wait_bodies(&out, 3).await;
    let events: Vec<_> = bodies.iter().map(|body| body["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["on_start", "on_shutdown", "on_shutdown"]);
    assert_eq!(bodies[1]["id"], bodies[2]["id"]);
    assert!(bodies.iter().all(|body| body.get("session").is_none() && body.get("run").is_none()), "{bodies:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_that_hang_do_not_keep_a_shutdown_from_its_deadline_and_leave_no_process() {
    shut_down_beside_hanging_hooks().await;
}

/// Returns the time that the shutdown took.
async fn shut_down_beside_hanging_hooks() -> Duration {
    let _process_lock = ProcessLock::shared().await;
    let (model, marker) = (ScriptedModel::start().await, ProcessMarker::new());
    let hang = json!(commands::signal_ignoring_setsid_child(&marker));
    let hooks = format!(
        "[hooks]\non_run_end = {hang}\non_start = {hang}\non_shutdown = {hang}\non_run_start = {hang}\n\
         on_terminate = {hang}\ntimeout_ms = 60000\n"
    );
    let daemon = TestDaemon::start(quell_exe(), &format!("{hooks}{}", config_toml(&model, ""))).await;
    daemon.api().send_message("s", "hello").await;
    // The `on_start` hook and the `on_run_start` hook, each with its child.
    marker.wait_for_count(4).await;
    let begun = Instant::now();
    let status = daemon.stop().await;
    let took = begun.elapsed();
    assert!(status.success(), "{status:?}\n{}", daemon.output());
    assert_eq!(marker.marked_processes(), []);
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_survives_the_death_of_the_daemon() {
    let _process_lock = ProcessLock::shared().await;
    let (model, receiver) = (ScriptedModel::start().await, HookReceiver::start().await);
    receiver.queue_replies([HookReceiverReply::Hang]);
    let hooks = format!(
        "[hooks]\non_run_end = \"{}\"\nsecret_env = \"HOOK_SECRET\"\ntimeout_ms = 60000\n",
        receiver.url("ends")
    );
    let home = DaemonHome::new(&format!("{hooks}{}", config_toml(&model, ""))).with_env("HOOK_SECRET", SECRET);
    let daemon = home.start(quell_exe()).await;
    model.script(ScriptedResponse::text("here"));
    let ended = daemon.api().send_message("s", "hello").await;
    daemon.api().run_events(&ended, 0).await.read_to_end().await;
    receiver.wait_received(1).await;
    model.script(ScriptedResponse::silent_mid_stream("I think"));
    let cut = daemon.api().send_message("s", "and now?").await;
    daemon.api().run_events(&cut, 0).await.wait_for("text.delta").await;
    daemon.kill9().await;
    let next = home.start(quell_exe()).await;
    let requests = receiver.wait_received(3).await;
    let bodies: Vec<_> = requests.iter().map(|request| request.verified_body()).collect();
    assert_eq!(bodies[0], bodies[1], "the same, once more");
    // The next daemon also reports the end of a run whose daemon died.
    let last = bodies[2].run.as_ref().unwrap();
    assert_eq!(last.run_id.as_str(), cut);
    let verdict: Value = serde_json::to_value(&last.verdict).unwrap();
    assert_eq!((&verdict["kind"], &verdict["reason"]), (&json!("aborted"), &json!("daemon_stopped")));
    assert!(next.stop().await.success(), "{}", next.output());
    assert_eq!(receiver.wait_received(3).await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_is_not_there_is_said_at_the_start_and_one_that_is_is_never_shown() {
    let home = DaemonHome::new("[hooks]\non_start = \"http://127.0.0.1:9/\"\nsecret_env = \"HOOK_SECRET\"\n");
    let config = format!("--config={}", home.config_file().display());
    let ran = run_cli(&home, &["serve", &config]);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(ran.err.contains("[hooks] secret_env") && ran.err.contains("HOOK_SECRET"), "{ran:?}");
    let ran = run_cli(&home.with_env("HOOK_SECRET", SECRET), &["config", "show", &config]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("secret_env = \"HOOK_SECRET\""), "{ran:?}");
    assert!(!ran.out.contains(SECRET) && !ran.err.contains(SECRET), "{ran:?}");
}

mod timing {
    use super::*;

    /// The target is 5 s.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_shutdown_ends_hanging_hooks() {
        report_time("a shutdown beside hanging hooks", shut_down_beside_hanging_hooks().await);
    }
}
