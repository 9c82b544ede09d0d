//! The built program with its database on a PostgreSQL server.

use quell_test_support::crash_copies::certain_leftovers;
use quell_testkit::postgres::TestPostgres;

use crate::prelude::*;

fn store_toml(server: &TestPostgres, model: &ScriptedModel) -> String {
    format!("[store]\nurl = \"{}\"\n{}", server.url(), config_toml(model, ""))
}

/// A server, and a daemon with the agent `main` on it.
async fn start() -> Option<(TestPostgres, ScriptedModel, TestDaemon)> {
    let server = TestPostgres::start()?;
    let model = ScriptedModel::start().await;
    let daemon = TestDaemon::start(quell_exe(), &store_toml(&server, &model)).await;
    Some((server, model, daemon))
}

/// Sends a message that is answered with a text.
async fn complete_run(model: &ScriptedModel, api: &TestApiClient, session: &str) -> String {
    model.script(ScriptedResponse::text("an answer \u{1f980}"));
    let run = api.send_message(session, "a question").await;
    assert_eq!(api.run_events(&run, 0).await.read_to_end().await.verdict(), "completed");
    run
}

/// Starts a run that works on a command until it is stopped.
async fn start_command(model: &ScriptedModel, api: &TestApiClient, marker: &ProcessMarker) -> String {
    model.script(shell_call(commands::ignores_signals(marker)));
    let run = api.send_message("s", "work").await;
    marker.wait_for_count(1).await;
    run
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_its_processes_and_its_receipt_is_in_the_database() {
    let Some((server, model, daemon)) = start().await else { return };
    let (api, marker) = (daemon.api(), ProcessMarker::new());
    let run = start_command(&model, &api, &marker).await;
    let stopped = api.stop_run(&run).await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    let receipt = api.run_view(&run).await["receipt"].clone();
    assert_eq!(receipt["leftovers"], json!([]), "{stopped:#}");
    complete_run(&model, &api, "s").await;
    assert!(daemon.stop().await.success(), "{}", daemon.output());
    assert_eq!(server.sql("SELECT state, count(*) FROM runs GROUP BY state"), "ended|2");
    assert!(!daemon.home().data_dir().join("quell.db").exists(), "nothing is in a file");

    let next = daemon.home().start(quell_exe()).await;
    assert_eq!(next.api().run_view(&run).await["receipt"], receipt);
    complete_run(&model, &next.api(), "s").await;
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_a_killed_daemon_is_sealed_by_the_next_one() {
    let Some((server, model, daemon)) = start().await else { return };
    let marker = ProcessMarker::new();
    let done = complete_run(&model, &daemon.api(), "s").await;
    let run = start_command(&model, &daemon.api(), &marker).await;
    daemon.kill9().await;
    marker.wait_gone(WAIT_TIMEOUT).await;
    let next = daemon.home().start(quell_exe()).await;
    let view = next.api().run_view(&run).await;
    assert_fields(&view, &json!({"state": "ended", "verdict": {"kind": "aborted", "reason": "daemon_stopped"}}));
    assert_eq!(certain_leftovers(&view["receipt"]["leftovers"]), [""; 0], "{view:#}");
    assert_eq!(next.api().run_view(&done).await["verdict"]["kind"], "completed");
    assert_eq!(server.sql("SELECT count(*) FROM journal"), "0");
    complete_run(&model, &next.api(), "s").await;
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_is_down_messages_are_refused_and_stops_work() {
    let Some((mut server, model, daemon)) = start().await else { return };
    let (api, marker) = (daemon.api(), ProcessMarker::new());
    let run = start_command(&model, &api, &marker).await;
    server.kill();
    assert_problem(&api.post_run("t", &json!({"text": "hello"})).await, 503, "store_unavailable");
    let _ = api.post(&format!("/api/runs/{run}/stop"), &json!({})).await.expect_status(202);
    marker.wait_gone(WAIT_TIMEOUT).await;
    server.start_again();
    let ended = poll_until("the end of the run in the database", async || {
        let view = api.run_view(&run).await;
        (view["state"] == "ended").then_some(view)
    });
    assert_eq!(ended.await["verdict"]["kind"], "aborted");
    model.script(ScriptedResponse::text("here again"));
    let again = poll_until("an accepted message", async || {
        let sent = api.post_run("s", &json!({"text": "hello"})).await;
        (sent.status == 202).then_some(sent)
    });
    let again = again.await.body["runId"].as_str().unwrap().to_owned();
    assert_eq!(api.run_events(&again, 0).await.read_to_end().await.verdict(), "completed");
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_server_hangs_a_stop_ends_the_processes_and_is_recorded_later() {
    let Some((mut server, model, daemon)) = start().await else { return };
    let (api, marker) = (daemon.api(), ProcessMarker::new());
    let run = start_command(&model, &api, &marker).await;
    server.pause();
    let _ = api.post(&format!("/api/runs/{run}/stop"), &json!({})).await.expect_status(202);
    marker.wait_gone(WAIT_TIMEOUT).await;
    server.resume();
    assert_eq!(api.wait_ended(&run).await["verdict"]["kind"], "aborted");
    assert!(daemon.stop().await.success(), "{}", daemon.output());
    assert_eq!(server.sql("SELECT state, count(*) FROM runs GROUP BY state"), "ended|1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_does_not_keep_the_daemon_from_ending() {
    stop_beside_hanging_server().await;
}

/// Returns the time that the daemon needed to end; `None` where the server is switched off for the tests.
async fn stop_beside_hanging_server() -> Option<Duration> {
    let (mut server, model, daemon) = start().await?;
    let (api, marker) = (daemon.api(), ProcessMarker::new());
    let run = start_command(&model, &api, &marker).await;
    server.pause();
    let begin = std::time::Instant::now();
    daemon.stop().await;
    let took = begin.elapsed();
    marker.wait_gone(WAIT_TIMEOUT).await;
    server.resume();
    let next = daemon.home().start(quell_exe()).await;
    let view = next.api().run_view(&run).await;
    assert_fields(&view, &json!({"state": "ended", "verdict": {"kind": "aborted"}}));
    complete_run(&model, &next.api(), "s").await;
    model.assert_histories_valid();
    Some(took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_on_another_machine_takes_over_and_the_first_one_ends() {
    let Some((server, model, first)) = start().await else { return };
    // Another data directory, as on another machine.
    let second = TestDaemon::start(quell_exe(), &store_toml(&server, &model)).await;
    assert_eq!(first.api().post_run("s", &json!({"text": "hello"})).await.status, 503);
    assert_eq!(first.wait_exit().await.code(), Some(1), "{}", first.output());
    assert!(first.output().contains("another quell has taken over the database"), "{}", first.output());
    complete_run(&model, &second.api(), "s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_and_postgresql_export_an_imported_session_alike() {
    let Some((_server, model, daemon)) = start().await else { return };
    let (source_model, source) = start_daemon("").await;
    let files: [(&str, &TestDaemon); 2] = [("postgres", &daemon), ("sqlite", &start_daemon("").await.1)];
    for _ in 0..3 {
        complete_run(&source_model, &source.api(), "s").await;
    }
    source_model.script(ScriptedResponse::tool_call("c1", "list_files", &json!({"path": "nul \0 and \u{e000}"})));
    complete_run(&source_model, &source.api(), "s").await;
    let _ = source.api().post("/api/sessions/s/reset", &json!({})).await.expect_status(200);
    let marker = ProcessMarker::new();
    let stopped = start_command(&source_model, &source.api(), &marker).await;
    let _ = source.api().stop_run(&stopped).await;
    let archive = export(&source.api()).await;
    let mut exports = Vec::new();
    for (name, daemon) in files {
        let import = daemon.api().request(Method::POST, "/api/import").header("content-type", "application/x-ndjson");
        let _ = daemon.api().send(import.body(archive.clone())).await.expect_status(201);
        exports.push((name, without_import_times(&export(&daemon.api()).await)));
    }
    assert!(exports[0].1.contains("\\u0000") && exports[0].1.lines().count() > 10, "{}", exports[0].1);
    assert_eq!(exports[0].1, exports[1].1);
    complete_run(&model, &daemon.api(), "s").await;
    model.assert_histories_valid();
}

async fn export(api: &TestApiClient) -> String {
    api.request(Method::GET, "/api/sessions/s/export").send().await.unwrap().text().await.unwrap()
}

/// Each daemon writes the time of the import into the runs.
fn without_import_times(lines: &str) -> String {
    let mark = "\"imported\":{\"at\":\"";
    let mut parts = lines.split(mark);
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| format!("{text}{mark}{}", &part[part.find('"').unwrap()..]))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_need_a_file_say_what_to_do_instead() {
    let Some((server, _model, daemon)) = start().await else { return };
    let file = daemon.home().root_dir().join("copy.db");
    let file = file.to_str().unwrap();
    for (args, remedy) in [(["backup", file], "pg_dump"), (["restore", file], "pg_restore")] {
        let refused = run_cli(daemon.home(), &args);
        assert!(refused.code == 1 && refused.err.contains(remedy), "{refused:?}");
    }
    assert!(!Path::new(file).exists());
    let elsewhere = daemon.api().get("/api/backup").await;
    assert!(elsewhere.body["detail"].as_str().unwrap().contains("pg_dump"), "{elsewhere:?}");
    let healthy = run_cli(daemon.home(), &["doctor", "--json"]);
    let version = server.sql("SHOW server_version");
    assert!(healthy.out.contains(&format!("PostgreSQL {version}")), "{healthy:?}");
    let _ = daemon.stop().await;
    let table = server.sql("SELECT version FROM quell_schema");
    assert_eq!(table, "11");
}

mod timing {
    use super::*;

    /// The target is 6 s.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_daemon_ends_beside_a_server_that_hangs() {
        let Some(took) = stop_beside_hanging_server().await else { return };
        report_time("a shutdown beside a database that hangs", took);
    }
}
