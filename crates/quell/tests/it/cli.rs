//! The command line with the real binary: output, exit codes, signals.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Instant;

use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncReadExt;

use crate::prelude::*;

/// A running `quell send`.
struct SendProcess {
    child: tokio::process::Child,
    out: tokio::process::ChildStdout,
    seen: String,
}

impl SendProcess {
    fn start(home: &DaemonHome, args: &[&str]) -> Self {
        let mut command = home.command(quell_exe());
        command.arg("send").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        Self { child, out, seen: String::new() }
    }

    /// Reads on until the output ends with `end`.
    async fn wait_output_ending(&mut self, end: &str) {
        let reading = async {
            let mut bytes = [0; 1024];
            while !self.seen.ends_with(end) {
                let n = self.out.read(&mut bytes).await.unwrap();
                assert!(n > 0, "the answer ended with {:?}", self.seen);
                self.seen.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
            }
        };
        let waited = tokio::time::timeout(WAIT_TIMEOUT, reading).await;
        assert!(waited.is_ok(), "{end:?} is missing in {:?}", self.seen);
    }

    /// Sends SIGINT, as a terminal does for Ctrl-C.
    fn send_ctrl_c(&self) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).unwrap())).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    async fn wait_exit(mut self) -> QuellCliOutput {
        let mut out = self.seen;
        self.out.read_to_string(&mut out).await.unwrap();
        let ended = tokio::time::timeout(WAIT_TIMEOUT, self.child.wait_with_output()).await.unwrap().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        QuellCliOutput { code: ended.status.code().unwrap_or(-1), out, err }
    }
}

async fn active_run_id(daemon: &TestDaemon) -> String {
    let list = daemon.api().get("/api/runs?state=active").await.expect_status(200);
    list["items"][0]["runId"].as_str().unwrap_or_else(|| panic!("no active run: {list:#}")).to_owned()
}

/// Starts a run whose model calls the shell with this command, and waits until `n` of its processes live.
async fn start_shell_run(
    daemon: &TestDaemon,
    model: &ScriptedModel,
    (command, marker, n): (&str, &ProcessMarker, usize),
) -> String {
    model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": command})));
    let started = daemon.api().post_run("s", &json!({"text": "work"})).await.expect_status(202);
    marker.wait_for_count(n).await;
    started["runId"].as_str().unwrap().to_owned()
}

/// The active run takes the message. Its answer is the answer, and `send` waits for nothing else.
#[tokio::test]
async fn a_steered_message_that_was_taken_ends_with_the_run_that_took_it() {
    let (model, daemon) = start_daemon("").await;
    let look = ScriptedStream::new().text("I look. ").wait_for_gate("go").tool_call("c1", "list_files", &json!({}));
    model.script(look).script(ScriptedResponse::text("Both are done."));
    let body = json!({"text": "one thing"});
    drop(daemon.api().post_run("s", &body).await.expect_status(202));
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

#[rstest]
#[case("bash")]
#[case("zsh")]
#[case("fish")]
fn completions_know_the_verbs(#[case] shell: &str) {
    let shown = run_cli(&DaemonHome::new(""), &["completions", shell]);
    assert_eq!(shown.code, 0, "{shown:?}");
    for word in ["quell", "doctor", "on-busy", "no-wait"] {
        assert!(shown.out.contains(word), "{shell} does not complete {word}");
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

#[rstest]
#[case(&[])]
#[case(&["demo"])]
#[case(&["serve"])]
#[case(&["send"])]
#[case(&["stop"])]
#[case(&["runs"])]
#[case(&["sessions"])]
#[case(&["hold"])]
#[case(&["approvals"])]
#[case(&["processes"])]
#[case(&["token"])]
#[case(&["doctor"])]
#[case(&["completions"])]
fn help_shows_an_example(#[case] args: &[&str]) {
    let shown = run_cli(&DaemonHome::new(""), &[args, &["--help"]].concat());
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.out.contains("Example"), "{}", shown.out);
    assert!(shown.out.lines().filter(|line| line.trim_start().starts_with("quell ")).count() >= 1, "{}", shown.out);
}

#[test]
fn a_misspelt_subcommand_is_a_usage_error() {
    let shown = run_cli(&DaemonHome::new(""), &["sned", "hello"]);
    assert_eq!(shown.code, 2);
    assert!(shown.err.contains("send"), "{shown:?}");
}

#[test]
fn serve_prints_one_line_and_ends_well_at_sigterm() {
    let home = DaemonHome::new("");
    let mut child = home
        .command(quell_exe())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
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

#[test]
fn without_a_daemon_the_talking_verbs_say_what_to_do() {
    for args in [&["send", "hello"][..], &["stop", "--all"], &["runs"], &["hold", "status"]] {
        let shown = run_cli(&DaemonHome::new(""), args);
        assert_eq!(shown.code, 4, "{args:?} {shown:?}");
        assert!(shown.err.contains("quell serve") && shown.out.is_empty(), "{shown:?}");
    }
}

#[tokio::test]
async fn send_streams_while_the_model_still_talks() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedStream::new().text("first ").wait_for_gate("gate").text("second"));
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, "")).await;
    let mut send_process = SendProcess::start(daemon.home(), &["hello"]);
    send_process.wait_output_ending("first ").await;
    model.open_gate("gate");
    let ran = send_process.wait_exit().await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "first second\n"), "{ran:?}");
    model.assert_histories_valid();
}

#[tokio::test]
async fn a_run_that_fails_ends_send_with_1_and_its_reason() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::status(400));
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, "")).await;
    let ran = SendProcess::start(daemon.home(), &["hello"]).wait_exit().await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("scripted status 400"), "{ran:?}");
}

#[tokio::test]
async fn ctrl_c_stops_the_run_and_the_receipt_is_summed_up() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::silent_mid_stream("thinking about it "));
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, "")).await;
    let mut send_process = SendProcess::start(daemon.home(), &["--session", "s", "hello"]);
    send_process.wait_output_ending("about it ").await;
    send_process.send_ctrl_c();
    let ran = send_process.wait_exit().await;
    assert_eq!(ran.code, 130, "{ran:?}");
    let receipt = ran.err.lines().last().unwrap_or_default();
    assert!(receipt.starts_with("stopped in ") && receipt.ends_with("history valid"), "{ran:?}");
    model.wait_for_connections(0).await;
    // The next message works.
    model.script(ScriptedResponse::text("still here"));
    let next = SendProcess::start(daemon.home(), &["--session", "s", "and now?"]).wait_exit().await;
    assert_eq!((next.code, next.out.as_str()), (0, "still here\n"), "{next:?}");
    model.assert_histories_valid();
}

#[tokio::test]
async fn a_stop_from_another_terminal_ends_send_with_130() {
    let model = ScriptedModel::start().await;
    model.script(ScriptedResponse::silent_mid_stream("well "));
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, "")).await;
    let mut send_process = SendProcess::start(daemon.home(), &["hello"]);
    send_process.wait_output_ending("well ").await;
    let run = active_run_id(&daemon).await;
    let stopped = run_cli(daemon.home(), &["stop", &run]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert!(stopped.out.contains("stopped in ") && stopped.out.contains("history valid"), "{stopped:?}");
    assert_eq!(send_process.wait_exit().await.code, 130);
    let again = run_cli(daemon.home(), &["stop", &run]);
    assert_eq!(again.code, 0, "a stop of an ended run must succeed: {again:?}");
}

#[tokio::test]
async fn stop_knows_what_there_is_not() {
    let (_model, daemon) = start_daemon("").await;
    assert_eq!(run_cli(daemon.home(), &["stop", "no-such-run"]).code, 3);
    assert_eq!(run_cli(daemon.home(), &["stop", "--session", "no-such-session"]).code, 3);
    assert_eq!(run_cli(daemon.home(), &["stop", "--all"]).code, 0, "a stop with nothing to stop must succeed");
    assert_eq!(run_cli(daemon.home(), &["stop"]).code, 2);
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
async fn sigterm_ends_a_daemon_with_a_deaf_command_in_time_and_leaves_nothing() {
    let (model, marker) = (ScriptedModel::start().await, ProcessMarker::new());
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, "")).await;
    let command = commands::signal_ignoring_setsid_child(&marker);
    let run = start_shell_run(&daemon, &model, (&command, &marker, 2)).await;
    let begin = Instant::now();
    let status = daemon.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}\n{}", begin.elapsed(), daemon.output());
    assert!(status.success(), "{status:?}\n{}", daemon.output());
    assert_eq!(marker.marked_processes().len(), 0);
    let next = daemon.home().start(quell_exe()).await;
    assert_aborted(&next, &run, "shutdown").await;
}

#[tokio::test]
async fn a_second_signal_forces() {
    let (model, marker) = (ScriptedModel::start().await, ProcessMarker::new());
    // A gentle stop alone would take until the shutdown forces, 2 s after the first signal.
    let slow = "[stop]\nterm_ms = 20000\ngrace_ms = 30000\n";
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, slow)).await;
    let command = commands::ignores_signals(&marker);
    let run = start_shell_run(&daemon, &model, (&command, &marker, 1)).await;
    let mut events = daemon.api().run_events(&run, 0).await;
    let begin = Instant::now();
    daemon.signal(Signal::TERM);
    events.wait_for("run.ending").await;
    daemon.signal(Signal::TERM);
    daemon.wait_exit().await;
    let took = begin.elapsed();
    assert!(took < scaled_limit(Duration::from_secs(2)), "{took:?}\n{}", daemon.output());
    assert_eq!(marker.marked_processes().len(), 0);
}

#[tokio::test]
async fn nothing_outlives_kill_9_and_the_next_start_seals() {
    let (model, marker) = (ScriptedModel::start().await, ProcessMarker::new());
    let daemon = TestDaemon::start(quell_exe(), &config_toml(&model, "")).await;
    let command = commands::signal_ignoring_setsid_child(&marker);
    let run = start_shell_run(&daemon, &model, (&command, &marker, 2)).await;
    daemon.kill9().await;
    println!("processes gone after {:?}", marker.wait_gone(Duration::from_secs(10)).await);
    model.wait_for_connections(0).await;
    let next = daemon.home().start(quell_exe()).await;
    assert_aborted(&next, &run, "daemon_stopped").await;
    model.script(ScriptedResponse::text("here again"));
    let ran = run_cli(next.home(), &["send", "--session", "s", "go on"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "here again\n"), "{ran:?}");
    model.assert_histories_valid();
}

async fn assert_aborted(daemon: &TestDaemon, run: &str, reason: &str) {
    let view: Value = daemon.api().run_view(run).await;
    assert_eq!((&view["verdict"]["kind"], &view["verdict"]["reason"]), (&json!("aborted"), &json!(reason)), "{view:#}");
    assert_eq!(view["receipt"]["leftovers"], json!([]), "{view:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_a_person_is_allowed_from_another_terminal() {
    let model = ScriptedModel::start().await;
    let config = format!("{}approvals.shell = \"ask\"\n", config_toml(&model, ""));
    let daemon = TestDaemon::start(quell_exe(), &config).await;
    let harmless = ": harmless; ".repeat(30);
    let command = json!({"command": format!("{harmless}echo from-the-shell > made.txt; cat made.txt")});
    model.script(ScriptedResponse::tool_call("c1", "shell", &command)).script(ScriptedResponse::text("done"));
    let send_process = SendProcess::start(daemon.home(), &["make it"]);
    let run = daemon.api().wait_approval().await["runId"].as_str().unwrap().to_owned();
    let listed = run_cli(daemon.home(), &["approvals"]);
    assert!(listed.code == 0 && listed.out.contains("from-the-shell"), "{listed:?}");
    let rows: Value = serde_json::from_str(&run_cli(daemon.home(), &["approvals", "--json"]).out).unwrap();
    let id = rows[0]["id"].as_str().unwrap();
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
    model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": command, "background": true})));
    model.script(ScriptedResponse::text("it runs"));
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
    assert_eq!(
        run_cli(daemon.home(), &["processes", "output", id]).out,
        "serving\n",
        "process ids must be valid without a session"
    );
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
    let start = |marker| json!({"command": commands::setsid_child(marker), "background": true});
    model.script(ScriptedResponse::tool_call("c1", "shell", &start(&marker))).script(ScriptedResponse::text("it runs"));
    assert_eq!(run_cli(daemon.home(), &["send", "--session", "s", "serve"]).code, 0);
    marker.wait_for_count(2).await;
    let kept = http.post("/api/sessions/s/stop", &json!({"keepBackground": true})).await.expect_status(200);
    assert_eq!((&kept["aborted"], &kept["processes"]), (&json!(false), &Value::Null));
    let stopped = http.post("/api/sessions/s/stop?wait=1", &json!({})).await.expect_status(200);
    assert_eq!((&stopped["aborted"], &stopped["runIds"]), (&json!(true), &json!([])));
    assert_eq!(stopped["processes"][0]["state"], "ended", "{stopped:#}");
    marker.wait_gone(WAIT_TIMEOUT).await;
}
