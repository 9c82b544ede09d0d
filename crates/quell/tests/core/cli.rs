//! The command line with the real binary: output, exit codes, signals.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Instant;

use quell_test_support::send_process::SendProcess;
use rustix::process::{Pid, Signal, kill_process};

use crate::prelude::*;

/// The active run takes the message. Its answer is the answer, and `send` waits for nothing else.
#[tokio::test]
async fn a_steered_message_that_was_taken_ends_with_the_run_that_took_it() {
    let (model, daemon) = start_daemon("").await;
    let look = ScriptedStream::new().text("I look. ").wait_for_gate("go").tool_call("c1", "list_files", &json!({}));
    model.script(look).script(ScriptedResponse::text("Both are done."));
    daemon.api().send_message("s", "one thing").await;
    model.request_at(0).wait_paused().await;
    let mut send_process = SendProcess::start(daemon.home(), &["--session", "s", "--on-busy", "steer", "and another"]);
    send_process.wait_output_ending("I look. ").await;
    model.open_gate("go");
    let ran = send_process.wait_exit().await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "I look. \nBoth are done.\n"), "{ran:?}");
    assert!(ran.err.starts_with("handed to the active run ") && ran.err.contains("\nlist_files "), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 2, "{ran:?}");
}

#[test]
fn the_version_is_one_line() {
    let shown = run_cli(&DaemonHome::new(""), &["--version"]);
    assert_eq!((shown.code, shown.out.lines().count()), (0, 1), "{shown:?}");
    assert!(shown.out.starts_with("quell ") && shown.err.is_empty(), "{shown:?}");
}

#[test]
fn completions_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let shown = run_cli(&DaemonHome::new(""), &["completions", shell]);
        assert_eq!(shown.code, 0, "{shown:?}");
        for word in ["quell", "doctor", "on-busy", "no-wait"] {
            assert!(shown.out.contains(word), "{shell} does not complete {word}");
        }
    }
}

/// As after `| head`: the reader is gone before anything is written.
#[test]
fn completions_that_nobody_reads_are_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = DaemonHome::new("").command(quell_exe()).args(["completions", "bash"]).stdout(writer).output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap().as_str()), (Some(1), ""));
}

/// Unit tests of the client and of the terminal check the help of their own subcommands.
#[test]
fn help_shows_an_example() {
    for args in
        [&["--help"][..], &["demo", "--help"], &["serve", "--help"], &["doctor", "--help"], &["completions", "--help"]]
    {
        let shown = run_cli(&DaemonHome::new(""), args);
        assert_eq!(shown.code, 0, "{shown:?}");
        assert!(shown.out.contains("Example"), "{args:?}: {}", shown.out);
        assert!(shown.out.lines().any(|line| line.trim_start().starts_with("quell ")), "{args:?}: {}", shown.out);
    }
}

#[test]
fn serve_prints_one_line_and_ends_well_at_sigterm() {
    let home = DaemonHome::new("");
    let mut serve = home.command(quell_exe());
    serve.args(["serve", "--listen", "127.0.0.1:0"]);
    let mut child = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(line.contains("http://127.0.0.1:"), "{line:?}");
    assert_eq!(rest, "");
}

#[tokio::test]
async fn ctrl_c_stops_the_run_and_the_receipt_is_summed_up() {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::silent_mid_stream("thinking about it "));
    let mut send_process = SendProcess::start(daemon.home(), &["--session", "s", "hello"]);
    send_process.wait_output_ending("about it ").await;
    send_process.send_ctrl_c();
    let ran = send_process.wait_exit().await;
    assert_eq!(ran.code, 130, "{ran:?}");
    let receipt = ran.err.lines().last().unwrap_or_default();
    assert!(receipt.starts_with("stopped in ") && receipt.ends_with("history valid"), "{ran:?}");
    let list = daemon.api().get("/api/runs").await.expect_status(200);
    assert_eq!(list["items"][0]["verdict"]["by"]["surface"], "cli", "{list:#}");
    model.wait_for_connections(0).await;
    // The next message works.
    model.script(ScriptedResponse::text("still here"));
    let next = SendProcess::start(daemon.home(), &["--session", "s", "and now?"]).wait_exit().await;
    assert_eq!((next.code, next.out.as_str()), (0, "still here\n"), "{next:?}");
    model.assert_histories_valid();
}

/// A cancelled job, a closed terminal, `timeout`, and `kill -9`, which only the daemon can notice.
#[rstest]
#[case::terminated(Signal::TERM, 143)]
#[case::hung_up(Signal::HUP, 143)]
#[case::killed(Signal::KILL, -1)]
#[tokio::test]
async fn a_send_that_is_ended_stops_its_run(#[case] signal: Signal, #[case] code: i32) {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::silent_mid_stream("thinking about it "));
    let mut send_process = SendProcess::start(daemon.home(), &["hello"]);
    send_process.wait_output_ending("about it ").await;
    send_process.send_signal(signal);
    assert_eq!(send_process.wait_exit().await.code, code);
    assert_send_was_stopped(&model, &daemon).await;
}

#[tokio::test]
async fn a_send_whose_reader_is_gone_stops_its_run() {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::silent_mid_stream("thinking about it "));
    let mut send_process = SendProcess::start(daemon.home(), &["hello"]);
    send_process.wait_output_ending("about it ").await;
    // The model is silent from now on, so no write can fail.
    assert_eq!(send_process.close_output().await, Some(1));
    assert_send_was_stopped(&model, &daemon).await;
}

async fn assert_send_was_stopped(model: &ScriptedModel, daemon: &TestDaemon) {
    model.wait_for_connections(0).await;
    let list = daemon.api().get("/api/runs").await.expect_status(200);
    let run = list["items"][0]["runId"].as_str().unwrap().to_owned();
    let view = daemon.api().wait_ended(&run).await;
    assert_eq!(view["verdict"]["kind"], "aborted", "{view:#}");
}

#[tokio::test]
async fn a_detached_message_stays_at_work() {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::text("done"));
    let sent = SendProcess::start(daemon.home(), &["--detach", "hello"]).wait_exit().await;
    assert_eq!(sent.code, 0, "{sent:?}");
    assert_eq!(daemon.api().wait_ended(sent.out.trim()).await["verdict"]["kind"], "completed");
}

#[tokio::test]
async fn a_stop_from_another_terminal_ends_send_with_130() {
    let (model, daemon) = start_daemon("").await;
    model.script(ScriptedResponse::silent_mid_stream("well "));
    let mut send_process = SendProcess::start(daemon.home(), &["hello"]);
    send_process.wait_output_ending("well ").await;
    let active = daemon.api().get("/api/runs?state=active").await.expect_status(200);
    let run = active["items"][0]["runId"].as_str().unwrap();
    let stopped = run_cli(daemon.home(), &["stop", run]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert!(stopped.out.contains("stopped in ") && stopped.out.contains("history valid"), "{stopped:?}");
    assert_eq!(send_process.wait_exit().await.code, 130);
    let again = run_cli(daemon.home(), &["stop", run]);
    assert_eq!(again.code, 0, "a stop of an ended run must succeed: {again:?}");
}

#[tokio::test]
async fn while_held_send_is_refused_with_the_remedy() {
    let (model, daemon) = start_daemon("").await;
    assert_eq!(run_cli(daemon.home(), &["hold", "on"]).code, 0);
    let refused = run_cli(daemon.home(), &["send", "hello"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("quell hold off"), "{refused:?}");
    assert_eq!(run_cli(daemon.home(), &["hold", "off"]).code, 0);
    model.script(ScriptedResponse::text("yes"));
    assert_eq!(run_cli(daemon.home(), &["send", "hello"]).code, 0);
}

#[tokio::test]
async fn a_second_daemon_on_the_same_data_is_refused_by_pid() {
    let daemon = TestDaemon::start(quell_exe(), "").await;
    let second = run_cli(daemon.home(), &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.code, 1, "{second:?}");
    let pid = format!("pid {}", daemon.pid());
    assert!(second.err.contains(&pid) && second.err.contains("QUELL_HOME"), "{second:?}");
    assert!(!daemon.has_exited());
}

#[tokio::test]
async fn a_second_signal_ends_the_daemon() {
    end_by_two_signals().await;
}

/// Returns the time from the first signal to the end.
async fn end_by_two_signals() -> Duration {
    let (model, daemon) = start_daemon("[stop]\nterm_ms = 20000\ngrace_ms = 30000\n").await;
    let marker = ProcessMarker::new();
    model.script(shell_call(commands::ignores_signals(&marker)));
    let run = daemon.api().send_message("s", "work").await;
    marker.wait_for_count(1).await;
    let mut events = daemon.api().run_events(&run, 0).await;
    let begin = Instant::now();
    daemon.signal(Signal::TERM);
    events.wait_for("run.ending").await;
    daemon.signal(Signal::TERM);
    daemon.wait_exit().await;
    let took = begin.elapsed();
    assert_eq!(marker.marked_processes().len(), 0);
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_a_person_is_allowed_from_another_terminal() {
    let (model, daemon) = start_daemon("approvals.shell = \"ask\"\n").await;
    let command = format!("{}echo from-the-shell > made.txt; cat made.txt", ": harmless; ".repeat(30));
    model.script(shell_call(command)).script(ScriptedResponse::text("done"));
    let send_process = SendProcess::start(daemon.home(), &["make it"]);
    let run = daemon.api().wait_approval().await["runId"].as_str().unwrap().to_owned();
    let listed = run_cli(daemon.home(), &["approvals"]);
    assert!(listed.code == 0 && listed.out.contains("from-the-shell"), "{listed:?}");
    let rows: Value = serde_json::from_str(&run_cli(daemon.home(), &["approvals", "--json"]).out).unwrap();
    let id = rows[0]["id"].as_str().unwrap();
    // The token alone, as a program that has read it would use it, does not allow the call of its own run.
    let token = std::fs::read_to_string(daemon.home().data_dir().join("token")).unwrap();
    let over_tcp = ["--url", daemon.url(), "--token", token.trim(), "approvals", "allow", id];
    let refused = run_cli(daemon.home(), &over_tcp);
    assert!(refused.code == 1 && refused.err.contains("may not allow its own calls"), "{refused:?}");
    let allowed = run_cli(daemon.home(), &["approvals", "allow", id]);
    assert!(allowed.code == 0 && allowed.out.contains(&run), "{allowed:?}");
    let ended = send_process.wait_exit().await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "done\n"), "{ended:?}");
    assert!(ended.err.contains(&format!("quell approvals allow {id}")), "{ended:?}");
    assert!(ended.err.contains("cat made.txt"), "the whole command must be shown: {ended:?}");
    let late = run_cli(daemon.home(), &["approvals", "deny", id]);
    assert!(late.code == 1 && late.err.contains("settled before (allow)"), "{late:?}");
    let unknown = run_cli(daemon.home(), &["approvals", "deny", "none"]);
    assert_eq!(unknown.code, 3, "{unknown:?}");
    assert_eq!(run_cli(daemon.home(), &["approvals"]).err, "nothing waits for an approval\n");
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn background_processes_are_shown_and_ended_over_http() {
    let (model, daemon) = start_daemon("").await;
    let (http, marker) = (daemon.api(), ProcessMarker::new());
    let command = format!("echo serving; {}", commands::setsid_child(&marker));
    model.script(background_call(command)).script(ScriptedResponse::text("it runs"));
    let ran = run_cli(daemon.home(), &["send", "--session", "s/1", "serve"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "it runs\n"), "{ran:?}");
    marker.wait_for_count(2).await;
    let metrics = http.get("/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains("quell_background_processes 1\n"), "{metrics}");
    let base = "/api/sessions/s%2F1/processes";
    let row = http.get(base).await.expect_status(200)["items"][0].clone();
    assert_eq!((&row["state"], &row["sessionKey"]), (&json!("running"), &json!("s/1")));
    let one = format!("{base}/{}", row["id"].as_str().unwrap());
    // A task of the daemon reads the output, perhaps after the processes of the command are seen.
    let shown = poll_until("output of the process", async || {
        let shown = http.get(&one).await.expect_status(200);
        (shown["next"] != json!(0)).then_some(shown)
    })
    .await;
    assert_eq!((&shown["output"], &shown["next"]), (&json!("serving\n"), &json!(8)));
    assert_eq!(http.get(&format!("{one}?after=8")).await.expect_status(200)["output"], "");
    assert_eq!(http.get(&format!("{base}/p99")).await.problem_code(), Some("not_found"));
    let other = http.post("/api/tokens", &json!({"name": "other", "scope": "write"})).await.expect_status(201);
    let other = http.with_token(other["token"].as_str().unwrap());
    assert_eq!(other.send(other.request(Method::DELETE, &one)).await.problem_code(), Some("forbidden"));
    let listed = run_cli(daemon.home(), &["processes", "--session", "s/1"]);
    assert!(listed.code == 0 && listed.out.contains("running") && listed.out.contains("echo serving"), "{listed:?}");
    let id = row["id"].as_str().unwrap();
    assert_eq!(run_cli(daemon.home(), &["processes", "--session", "s/1", "output", id]).out, "serving\n");
    let ended = http.send(http.request(Method::DELETE, &one)).await.expect_status(200);
    assert_eq!((&ended["state"], &ended["how"]), (&json!("ended"), &json!("term")));
    marker.wait_gone(WAIT_TIMEOUT).await;
    // Process ids are valid without a session.
    assert_eq!(run_cli(daemon.home(), &["processes", "output", id]).out, "serving\n");
    let everywhere = run_cli(daemon.home(), &["processes"]);
    assert!(everywhere.code == 0 && everywhere.out.contains("s/1"), "{everywhere:?}");
    let killed = run_cli(daemon.home(), &["processes", "kill", id]);
    assert!(killed.code == 0 && killed.out.starts_with(&format!("process {id} ended (")), "{killed:?}");
    assert_eq!(run_cli(daemon.home(), &["processes", "--session", "s/1", "kill", "p99"]).code, 3);
    assert_eq!(run_cli(daemon.home(), &["processes", "kill", "p99"]).code, 3);
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_over_http_names_the_background_processes_that_it_ends() {
    let (model, daemon) = start_daemon("").await;
    let (http, marker) = (daemon.api(), ProcessMarker::new());
    model.script(background_call(commands::setsid_child(&marker))).script(ScriptedResponse::text("it runs"));
    assert_eq!(run_cli(daemon.home(), &["send", "--session", "s", "serve"]).code, 0);
    marker.wait_for_count(2).await;
    let kept = http.post("/api/sessions/s/stop", &json!({"keepBackground": true})).await.expect_status(200);
    assert_eq!((&kept["aborted"], &kept["processes"]), (&json!(false), &Value::Null));
    let stopped = http.post("/api/sessions/s/stop?wait=1", &json!({})).await.expect_status(200);
    assert_eq!((&stopped["aborted"], &stopped["runIds"]), (&json!(true), &json!([])));
    assert_eq!(stopped["processes"][0]["state"], "ended", "{stopped:#}");
    marker.wait_gone(WAIT_TIMEOUT).await;
}

mod timing {
    use super::*;

    /// A gentle stop alone would take until the shutdown forces, 2 s after the first signal.
    #[tokio::test]
    async fn a_second_signal_forces() {
        report_time("two signals", end_by_two_signals().await);
    }
}
