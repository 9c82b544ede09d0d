//! The command line with the real binary: what it prints, how it ends, what signals do to it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quell_testkit::ScriptedModel;
use quell_testkit::commands::{self, Marker};
use quell_testkit::daemon::{Daemon, Home};
use quell_testkit::model::{Behaviour, Stream};
use quell_testkit::pace::allowed;
use reqwest::Method;
use rstest::rstest;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

/// Longest wait for a process. It decides only how late a failing test fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// The binary under test.
pub(crate) fn exe() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_quell"))
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command to its end; a signal that ended it counts as code -1.
pub(crate) fn run(command: &mut Command) -> Ran {
    let ended = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: ended.status.code().unwrap_or(-1), out: text(ended.stdout), err: text(ended.stderr) }
}

/// A verb of the daemon's home, from another terminal as it were.
fn verb(home: &Home, words: &[&str]) -> Ran {
    run(home.command(exe()).args(words))
}

fn config(model: &ScriptedModel) -> String {
    format!(
        "[providers.scripted]\nkind = \"openai\"\nbase_url = \"{}\"\nmax_retries = 0\n[agents.main]\nmodel = \"scripted/m\"\n",
        model.base_url()
    )
}

/// A `send` under way.
struct Talk {
    child: tokio::process::Child,
    out: tokio::process::ChildStdout,
    seen: String,
}

impl Talk {
    fn start(home: &Home, words: &[&str]) -> Self {
        let mut command = home.command(exe());
        command.arg("send").args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut command = tokio::process::Command::from(command);
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        Self { child, out, seen: String::new() }
    }

    /// Reads on until the answer so far ends like this.
    async fn says(&mut self, end: &str) {
        let reading = async {
            let mut bytes = [0; 1024];
            while !self.seen.ends_with(end) {
                let n = self.out.read(&mut bytes).await.unwrap();
                assert!(n > 0, "the answer ended with {:?}", self.seen);
                self.seen.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
            }
        };
        let waited = tokio::time::timeout(PATIENCE, reading).await;
        assert!(waited.is_ok(), "{end:?} never came: {:?}", self.seen);
    }

    /// Ctrl-C, as a terminal sends it.
    fn interrupt(&self) {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).unwrap())).unwrap();
        kill_process(pid, Signal::INT).unwrap();
    }

    async fn end(mut self) -> Ran {
        let mut out = self.seen;
        self.out.read_to_string(&mut out).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, self.child.wait_with_output()).await.unwrap().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        Ran { code: ended.status.code().unwrap_or(-1), out, err }
    }
}

/// The run that is active.
async fn active_run(daemon: &Daemon) -> String {
    let list = daemon.http().get("/api/runs?state=active").await.expect_status(200);
    list["items"][0]["runId"].as_str().unwrap_or_else(|| panic!("no active run: {list:#}")).to_owned()
}

/// Starts a run whose model calls the shell with this command, and waits until `n` of its processes live.
async fn run_command(daemon: &Daemon, model: &ScriptedModel, (command, mark, n): (&str, &Marker, usize)) -> String {
    model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command})));
    let started = daemon.http().post("/api/sessions/s/runs", &json!({"text": "work"})).await.expect_status(202);
    mark.at_least(n).await;
    started["runId"].as_str().unwrap().to_owned()
}

/// The active run takes the message: its answer is the answer, and there is nothing else to wait for.
#[tokio::test]
async fn a_steered_message_that_was_taken_ends_with_the_run_that_took_it() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let look = Stream::new().text("I look. ").wait_for("go").tool_call("c1", "list_files", &json!({}));
    model.script(look).script(Behaviour::text("Both are done."));
    let body = json!({"text": "one thing"});
    drop(daemon.http().post("/api/sessions/s/runs", &body).await.expect_status(202));
    model.request(0).resting().await;
    let mut talk = Talk::start(daemon.home(), &["--session", "s", "--on-busy", "steer", "and another"]);
    talk.says("I look. ").await;
    model.open_gate("go");
    let ran = talk.end().await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "I look. \nBoth are done.\n"), "{ran:?}");
    assert!(ran.err.starts_with("handed to the active run ") && ran.err.contains("\nlist_files "), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 2, "{ran:?}");
}

#[test]
fn the_version_is_one_line() {
    let shown = verb(&Home::new(""), &["--version"]);
    assert_eq!((shown.code, shown.out.lines().count()), (0, 1), "{shown:?}");
    assert!(shown.out.starts_with("quell ") && shown.err.is_empty(), "{shown:?}");
}

#[rstest]
#[case("bash")]
#[case("zsh")]
#[case("fish")]
fn completions_know_the_verbs(#[case] shell: &str) {
    let shown = verb(&Home::new(""), &["completions", shell]);
    assert_eq!(shown.code, 0, "{shown:?}");
    for word in ["quell", "doctor", "on-busy", "no-wait"] {
        assert!(shown.out.contains(word), "{shell} does not complete {word}");
    }
}

/// As after `| head`: the reader has gone before anything is written.
#[test]
fn completions_that_nobody_reads_are_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = Home::new("").command(exe()).args(["completions", "bash"]).stdout(writer).output().unwrap();
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
fn help_shows_an_example(#[case] words: &[&str]) {
    let shown = verb(&Home::new(""), &[words, &["--help"]].concat());
    assert_eq!(shown.code, 0, "{shown:?}");
    assert!(shown.out.contains("Example"), "{}", shown.out);
    assert!(shown.out.lines().filter(|line| line.trim_start().starts_with("quell ")).count() >= 1, "{}", shown.out);
}

#[test]
fn what_is_misspelt_is_a_usage_error() {
    let shown = verb(&Home::new(""), &["sned", "hello"]);
    assert_eq!(shown.code, 2);
    assert!(shown.err.contains("send"), "{shown:?}");
}

#[test]
fn serve_prints_one_line_and_ends_well_at_sigterm() {
    let home = Home::new("");
    let mut child = home
        .command(exe())
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
    for words in [&["send", "hello"][..], &["stop", "--all"], &["runs"], &["hold", "status"]] {
        let shown = verb(&Home::new(""), words);
        assert_eq!(shown.code, 4, "{words:?} {shown:?}");
        assert!(shown.err.contains("quell serve") && shown.out.is_empty(), "{shown:?}");
    }
}

#[tokio::test]
async fn send_streams_while_the_model_still_talks() {
    let model = ScriptedModel::start().await;
    model.script(Stream::new().text("first ").wait_for("gate").text("second"));
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let mut talk = Talk::start(daemon.home(), &["hello"]);
    talk.says("first ").await;
    model.open_gate("gate");
    let ran = talk.end().await;
    assert_eq!((ran.code, ran.out.as_str()), (0, "first second\n"), "{ran:?}");
    model.assert_histories_valid();
}

#[tokio::test]
async fn a_run_that_fails_ends_send_with_1_and_its_reason() {
    let model = ScriptedModel::start().await;
    model.script(Behaviour::status(400));
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let ran = Talk::start(daemon.home(), &["hello"]).end().await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("scripted status 400"), "{ran:?}");
}

#[tokio::test]
async fn ctrl_c_stops_the_run_and_the_receipt_is_summed_up() {
    let model = ScriptedModel::start().await;
    model.script(Behaviour::silent_mid_stream("thinking about it "));
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let mut talk = Talk::start(daemon.home(), &["--session", "s", "hello"]);
    talk.says("about it ").await;
    talk.interrupt();
    let ran = talk.end().await;
    assert_eq!(ran.code, 130, "{ran:?}");
    let receipt = ran.err.lines().last().unwrap_or_default();
    assert!(receipt.starts_with("stopped in ") && receipt.ends_with("history valid"), "{ran:?}");
    model.connections(0).await;
    // The next message works.
    model.script(Behaviour::text("still here"));
    let next = Talk::start(daemon.home(), &["--session", "s", "and now?"]).end().await;
    assert_eq!((next.code, next.out.as_str()), (0, "still here\n"), "{next:?}");
    model.assert_histories_valid();
}

#[tokio::test]
async fn a_stop_from_another_terminal_ends_send_with_130() {
    let model = ScriptedModel::start().await;
    model.script(Behaviour::silent_mid_stream("well "));
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let mut talk = Talk::start(daemon.home(), &["hello"]);
    talk.says("well ").await;
    let run = active_run(&daemon).await;
    let stopped = verb(daemon.home(), &["stop", &run]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert!(stopped.out.contains("stopped in ") && stopped.out.contains("history valid"), "{stopped:?}");
    assert_eq!(talk.end().await.code, 130);
    let again = verb(daemon.home(), &["stop", &run]);
    assert_eq!(again.code, 0, "an ended run is settled: {again:?}");
}

#[tokio::test]
async fn stop_knows_what_there_is_not() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model)).await;
    assert_eq!(verb(daemon.home(), &["stop", "no-such-run"]).code, 3);
    assert_eq!(verb(daemon.home(), &["stop", "--session", "no-such-session"]).code, 3);
    assert_eq!(verb(daemon.home(), &["stop", "--all"]).code, 0, "nothing to stop is settled");
    assert_eq!(verb(daemon.home(), &["stop"]).code, 2);
}

#[tokio::test]
async fn while_held_send_is_refused_with_the_remedy() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model)).await;
    assert_eq!(verb(daemon.home(), &["hold", "on"]).code, 0);
    let refused = verb(daemon.home(), &["send", "hello"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("quell hold off"), "{refused:?}");
    assert_eq!(verb(daemon.home(), &["hold", "off"]).code, 0);
    model.script(Behaviour::text("yes"));
    assert_eq!(verb(daemon.home(), &["send", "hello"]).code, 0);
}

#[tokio::test]
async fn a_second_daemon_on_the_same_data_is_refused_by_pid() {
    let daemon = Daemon::start(exe(), "").await;
    let second = verb(daemon.home(), &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.code, 1, "{second:?}");
    let pid = format!("pid {}", daemon.pid());
    assert!(second.err.contains(&pid) && second.err.contains("QUELL_HOME"), "{second:?}");
    assert!(!daemon.has_ended());
}

#[tokio::test]
async fn a_daemon_is_ready_soon_on_an_existing_database() {
    let home = Home::new("");
    let first = home.start(exe()).await;
    println!("start to ready with a new database: {:?}", first.ready_after());
    assert!(first.stop().await.success());
    let second = home.start(exe()).await;
    println!("start to ready with an existing database: {:?}", second.ready_after());
    // The bench holds the real figure; this is the bound of what a person would call broken.
    assert!(second.ready_after() < Duration::from_secs(5));
}

#[tokio::test]
async fn sigterm_ends_a_daemon_with_a_deaf_command_in_time_and_leaves_nothing() {
    let (model, mark) = (ScriptedModel::start().await, Marker::new());
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let command = commands::deaf_setsid_child(&mark);
    let run = run_command(&daemon, &model, (&command, &mark, 2)).await;
    let begin = Instant::now();
    let status = daemon.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}\n{}", begin.elapsed(), daemon.output());
    assert!(status.success(), "{status:?}\n{}", daemon.output());
    assert_eq!(mark.survivors().len(), 0);
    let next = daemon.home().start(exe()).await;
    assert_aborted(&next, &run, "shutdown").await;
}

#[tokio::test]
async fn a_second_signal_forces() {
    let (model, mark) = (ScriptedModel::start().await, Marker::new());
    // Gently this would take until the shutdown's own force, 2 s after the first signal.
    let slow = "[stop]\nterm_ms = 20000\ngrace_ms = 30000\n";
    let daemon = Daemon::start(exe(), &format!("{}{slow}", config(&model))).await;
    let command = commands::ignores_signals(&mark);
    let run = run_command(&daemon, &model, (&command, &mark, 1)).await;
    let mut events = daemon.http().events(&run, 0).await;
    let begin = Instant::now();
    daemon.signal(Signal::TERM);
    events.until("run.ending").await;
    daemon.signal(Signal::TERM);
    daemon.ended().await;
    let took = begin.elapsed();
    assert!(took < allowed(Duration::from_secs(2)), "{took:?}\n{}", daemon.output());
    assert_eq!(mark.survivors().len(), 0);
}

#[tokio::test]
async fn nothing_outlives_kill_9_and_the_next_start_seals() {
    let (model, mark) = (ScriptedModel::start().await, Marker::new());
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let command = commands::deaf_setsid_child(&mark);
    let run = run_command(&daemon, &model, (&command, &mark, 2)).await;
    daemon.kill9().await;
    println!("processes gone after {:?}", mark.gone(Duration::from_secs(10)).await);
    model.connections(0).await;
    let next = daemon.home().start(exe()).await;
    assert_aborted(&next, &run, "daemon_stopped").await;
    model.script(Behaviour::text("here again"));
    let ran = verb(next.home(), &["send", "--session", "s", "go on"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "here again\n"), "{ran:?}");
    model.assert_histories_valid();
}

async fn assert_aborted(daemon: &Daemon, run: &str, reason: &str) {
    let view: Value = daemon.http().get(&format!("/api/runs/{run}")).await.expect_status(200);
    assert_eq!((&view["verdict"]["kind"], &view["verdict"]["reason"]), (&json!("aborted"), &json!(reason)), "{view:#}");
    assert_eq!(view["receipt"]["leftovers"], json!([]), "{view:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_for_a_person_is_allowed_from_another_terminal() {
    let model = ScriptedModel::start().await;
    let config = format!("{}approvals.shell = \"ask\"\n", config(&model));
    let daemon = Daemon::start(exe(), &config).await;
    let harmless = ": harmless; ".repeat(30);
    let command = json!({"command": format!("{harmless}echo from-the-shell > made.txt; cat made.txt")});
    model.script(Behaviour::tool_call("c1", "shell", &command)).script(Behaviour::text("done"));
    let talk = Talk::start(daemon.home(), &["make it"]);
    let run = loop {
        let list = daemon.http().get("/api/approvals").await.expect_status(200);
        if let Some(run) = list["items"][0]["runId"].as_str() {
            break run.to_owned();
        }
    };
    let listed = verb(daemon.home(), &["approvals"]);
    assert!(listed.code == 0 && listed.out.contains("from-the-shell"), "{listed:?}");
    let rows: Value = serde_json::from_str(&verb(daemon.home(), &["approvals", "--json"]).out).unwrap();
    let id = rows[0]["id"].as_str().unwrap();
    let allowed = verb(daemon.home(), &["approvals", "allow", id]);
    assert!(allowed.code == 0 && allowed.out.contains(&run), "{allowed:?}");
    let ended = talk.end().await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "done\n"), "{ended:?}");
    assert!(ended.err.contains(&format!("quell approvals allow {id}")), "{ended:?}");
    assert!(ended.err.contains("cat made.txt"), "who decides sees all of it: {ended:?}");
    let late = verb(daemon.home(), &["approvals", "deny", id]);
    assert!(late.code == 1 && late.err.contains("settled before (allow)"), "{late:?}");
    let unknown = verb(daemon.home(), &["approvals", "deny", "none"]);
    assert_eq!(unknown.code, 3, "{unknown:?}");
    assert_eq!(verb(daemon.home(), &["approvals"]).err, "nothing waits for an approval\n");
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn background_processes_are_shown_and_ended_over_http() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let (http, mark) = (daemon.http(), Marker::new());
    let command = format!("echo serving; {}", commands::setsid_child(&mark));
    model.script(Behaviour::tool_call("c1", "shell", &json!({"command": command, "background": true})));
    model.script(Behaviour::text("it runs"));
    let ran = verb(daemon.home(), &["send", "--session", "s/1", "serve"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "it runs\n"), "{ran:?}");
    mark.at_least(2).await;
    let metrics = http.get("/metrics").await.body;
    assert!(metrics.as_str().unwrap().contains("quell_background_processes 1\n"), "{metrics}");
    let base = "/api/sessions/s%2F1/processes";
    let row = http.get(base).await.expect_status(200)["items"][0].clone();
    assert_eq!((&row["state"], &row["sessionKey"]), (&json!("running"), &json!("s/1")));
    let one = format!("{base}/{}", row["id"].as_str().unwrap());
    // What it prints is read by a task of the daemon, which may come after the processes that it starts are seen.
    let printed = async {
        loop {
            let shown = http.get(&one).await.expect_status(200);
            if shown["next"] != json!(0) {
                return shown;
            }
        }
    };
    let shown = tokio::time::timeout(PATIENCE, printed).await.expect("it prints");
    assert_eq!((&shown["output"], &shown["next"]), (&json!("serving\n"), &json!(8)));
    assert_eq!(http.get(&format!("{one}?after=8")).await.expect_status(200)["output"], "");
    assert_eq!(http.get(&format!("{base}/p99")).await.code(), Some("not_found"));
    let other = http.post("/api/tokens", &json!({"name": "other", "scope": "write"})).await.expect_status(201);
    let other = http.with_token(other["token"].as_str().unwrap());
    assert_eq!(other.send(other.request(Method::DELETE, &one)).await.code(), Some("forbidden"));
    let listed = verb(daemon.home(), &["processes", "--session", "s/1"]);
    assert!(listed.code == 0 && listed.out.contains("running") && listed.out.contains("echo serving"), "{listed:?}");
    let id = row["id"].as_str().unwrap();
    assert_eq!(verb(daemon.home(), &["processes", "--session", "s/1", "output", id]).out, "serving\n");
    let ended = http.send(http.request(Method::DELETE, &one)).await.expect_status(200);
    assert_eq!((&ended["state"], &ended["how"]), (&json!("ended"), &json!("term")));
    mark.gone(PATIENCE).await;
    assert_eq!(verb(daemon.home(), &["processes", "output", id]).out, "serving\n", "ids are the daemon's");
    let everywhere = verb(daemon.home(), &["processes"]);
    assert!(everywhere.code == 0 && everywhere.out.contains("s/1"), "{everywhere:?}");
    let killed = verb(daemon.home(), &["processes", "kill", id]);
    assert!(killed.code == 0 && killed.out.starts_with(&format!("process {id} ended (")), "{killed:?}");
    assert_eq!(verb(daemon.home(), &["processes", "--session", "s/1", "kill", "p99"]).code, 3);
    assert_eq!(verb(daemon.home(), &["processes", "kill", "p99"]).code, 3);
    model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_over_http_names_the_background_processes_that_it_ends() {
    let model = ScriptedModel::start().await;
    let daemon = Daemon::start(exe(), &config(&model)).await;
    let (http, mark) = (daemon.http(), Marker::new());
    let start = |mark| json!({"command": commands::setsid_child(mark), "background": true});
    model.script(Behaviour::tool_call("c1", "shell", &start(&mark))).script(Behaviour::text("it runs"));
    assert_eq!(verb(daemon.home(), &["send", "--session", "s", "serve"]).code, 0);
    mark.at_least(2).await;
    let kept = http.post("/api/sessions/s/stop", &json!({"keepBackground": true})).await.expect_status(200);
    assert_eq!((&kept["aborted"], &kept["processes"]), (&json!(false), &Value::Null));
    let stopped = http.post("/api/sessions/s/stop?wait=1", &json!({})).await.expect_status(200);
    assert_eq!((&stopped["aborted"], &stopped["runIds"]), (&json!(true), &json!([])));
    assert_eq!(stopped["processes"][0]["state"], "ended", "{stopped:#}");
    mark.gone(PATIENCE).await;
}
