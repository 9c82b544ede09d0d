//! The daemon test support against a fake executable.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;

use bytes::BytesMut;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::*;
use crate::commands::ProcessMarker;
use crate::leaks;
use crate::model::http1::{plain_response, read_request};

/// Answers requests one at a time, each on its own connection; `answers` maps request line and token to bytes.
async fn serve_requests(listener: TcpListener, mut answers: impl FnMut(&str, &str) -> Vec<u8>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let Ok(Some(request)) = read_request(&mut stream, &mut BytesMut::new()).await else { continue };
        let token = request.headers.iter().find(|(name, _)| name == "authorization").map(|(_, value)| value.clone());
        let line = format!("{} {} {}", request.method, request.path, String::from_utf8_lossy(&request.body));
        stream.write_all(&answers(line.trim(), &token.unwrap_or_default())).await.unwrap();
        stream.shutdown().await.unwrap();
    }
}

async fn bind_free_port() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A fake binary: prints `url`, writes its token, records its arguments, then runs `then`.
fn write_stand_in(folder: &Path, url: &str, then: &str) -> PathBuf {
    let path = folder.join("stand-in");
    let script = format!(
        "#!/bin/sh\necho \"$@\" > \"$QUELL_HOME/arguments\"\necho \"[$OPENAI_API_KEY$EXTRA]\" >&2\n\
         echo secret-token > \"$QUELL_HOME/token\"\necho 'quell listens on {url}/#sign-in=abc'\n{then}\n"
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

const READY_REQUEST: &str = "GET /readyz";

#[tokio::test]
async fn a_daemon_is_started_asked_stopped_and_started_again() {
    let ((listener, address), folder, mark) =
        (bind_free_port().await, tempfile::tempdir().unwrap(), ProcessMarker::new());
    let url = format!("http://{address}");
    let wait = format!("trap 'exit 7' TERM\necho started\n{}", "while :; do sleep 600 & wait; done");
    let exe = write_stand_in(folder.path(), &url, &wait);
    let mut asked = 0;
    let answers = move |line: &str, token: &str| {
        asked += usize::from(line == READY_REQUEST);
        match line {
            READY_REQUEST if asked < 3 => plain_response(503, &[], ""),
            READY_REQUEST => plain_response(200, &[], ""),
            "GET /text" => plain_response(404, &[("content-type".into(), "text/plain".into())], "not here"),
            other => plain_response(201, &[], &json!({"line": other, "token": token, "code": "held"}).to_string()),
        }
    };
    let home = DaemonHome::new("[server]\n").with_env("EXTRA", mark.as_str());
    let scenario = async {
        let daemon = home.start(&exe).await;
        assert_eq!((daemon.url(), daemon.token()), (url.as_str(), "secret-token"));
        let arguments = fs::read_to_string(home.data_dir().join("arguments")).unwrap();
        assert_eq!(arguments.trim(), format!("serve --config {} --listen 127.0.0.1:0", home.config_file().display()));
        assert_eq!(fs::read_to_string(home.config_file()).unwrap(), "[server]\n");
        let answer = daemon.api().post("/api/stop", &json!({"force": true})).await;
        assert_eq!((answer.problem_code(), answer.content_type.as_str()), (Some("held"), "application/json"));
        let body = answer.expect_status(201);
        assert_eq!(body["line"], "POST /api/stop {\"force\":true}");
        assert_eq!(body["token"], "Bearer secret-token");
        assert_eq!(daemon.api().with_token("").delete("/api/hold").await.body["token"], "");
        let text = daemon.api().get("/text").await;
        assert_eq!((text.status, text.body), (404, json!("not here")));
        assert!(leaks::read_process(daemon.pid()).is_some() && !daemon.has_exited());
        assert_eq!(daemon.stop().await.code(), Some(7));
        assert!(daemon.has_exited() && daemon.output().contains(&format!("[{}]", mark.as_str())));
        let again = home.start(&exe).await;
        assert_eq!(again.kill9().await.signal(), Some(9));
        let pid = home.start(&exe).await.pid();
        assert!(leaks::read_process(pid).is_none(), "dropping it did not end it");
    };
    tokio::select! {
        () = serve_requests(listener, answers) => unreachable!("it serves for ever"),
        () = scenario => {}
    }
}

#[tokio::test]
#[should_panic(expected = "config.toml: line 3")]
async fn a_daemon_that_ends_at_once_fails_with_its_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stand-in");
    fs::write(&path, "#!/bin/sh\necho 'config.toml: line 3' >&2\nexit 1\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    TestDaemon::start(&path, "").await;
}

#[rstest]
#[case("quell 0.1 on http://127.0.0.1:40123/#token=x", Some("http://127.0.0.1:40123"))]
#[case("http://127.0.0.1:1", Some("http://127.0.0.1:1"))]
#[case("http://127.0.0.1:/", None)]
#[case("listening", None)]
fn the_address_is_found_in_the_line(#[case] line: &str, #[case] expected: Option<&str>) {
    assert_eq!(parse_address(line).as_deref(), expected);
}

fn sse_frame(kind: &str, seq: u64, more: &Value) -> String {
    let mut data = json!({"type": kind, "seq": seq, "runId": "r"});
    data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    format!("id: {seq}\nevent: {kind}\ndata: {data}\n\n")
}

#[tokio::test]
async fn events_are_read_to_their_end() {
    let (listener, address) = bind_free_port().await;
    let verdict = json!({"verdict": {"kind": "aborted"}, "receipt": {"leftovers": []}});
    let body = [
        sse_frame("run.started", 4, &json!({})),
        ": keep-alive\n\n".to_owned(),
        sse_frame("text.delta", 5, &json!({"text": "There "})),
        sse_frame("text.delta", 6, &json!({"text": "are"})),
        sse_frame("run.ending", 7, &verdict),
        sse_frame("run.ended", 8, &verdict),
    ];
    let answers = move |line: &str, _: &str| {
        assert_eq!(line, "GET /api/runs/r-1/events?after=3");
        plain_response(200, &[("content-type".into(), "text/event-stream".into())], &body.concat())
    };
    let reading = async {
        let mut events = TestApiClient::new(&format!("http://{address}"), "t").run_events("r-1", 3).await;
        assert_eq!(events.wait_for("text.delta").await.data["text"], "There ");
        events.read_to_end().await
    };
    let log = tokio::select! {
        () = serve_requests(listener, answers) => unreachable!("it serves for ever"),
        log = reading => log,
    };
    log.assert_valid();
    assert_eq!((log.text().as_str(), log.verdict()), ("There are", "aborted"));
    assert_eq!((log.events.len(), &log.receipt()["leftovers"]), (5, &json!([])));
}

fn event_log(kinds: &[(u64, &str)]) -> TestRunEventLog {
    let event = |(seq, kind): &(u64, &str)| {
        let data = json!({"type": kind, "seq": seq, "callId": "c1", "verdict": {"kind": "aborted"}});
        ReceivedEvent { seq: *seq, kind: (*kind).to_owned(), data, at: Instant::now() }
    };
    TestRunEventLog { after: 0, events: kinds.iter().map(event).collect() }
}

const VALID_SEQUENCE: &[(u64, &str)] = &[
    (1, "run.queued"),
    (2, "run.started"),
    (3, "text.delta"),
    (4, "tool.started"),
    (5, "run.ending"),
    (6, "tool.output"),
    (7, "tool.ended"),
    (8, "approval.resolved"),
    (9, "run.ended"),
];

#[test]
fn a_sound_log_has_no_faults_also_with_a_snapshot_or_from_the_middle() {
    assert_eq!(event_log(VALID_SEQUENCE).violations(), Vec::<String>::new());
    let behind = event_log(&[(1, "run.queued"), (40, "run.snapshot"), (41, "run.ended")]);
    assert_eq!(behind.violations(), Vec::<String>::new());
    let resumed = TestRunEventLog { after: 7, ..event_log(&VALID_SEQUENCE[7..]) };
    assert_eq!(resumed.violations(), Vec::<String>::new());
}

#[rstest]
#[case::number_falls(3, (2, "text.delta"), "does not rise")]
#[case::number_repeats(2, (3, "text.delta"), "does not rise")]
#[case::delta_after_ending(5, (6, "text.delta"), "text.delta after the ending")]
#[case::thinking_after_ending(5, (6, "thinking.delta"), "thinking.delta after the ending")]
#[case::tool_after_ending(7, (8, "tool.started"), "tool.started after the ending")]
#[case::second_ending(5, (6, "run.ending"), "2 endings")]
#[case::second_end(8, (9, "run.ended"), "2 ends")]
#[case::after_the_end(9, (10, "usage"), "1 ends; exactly one is due, as the last event")]
#[case::second_tool_end(7, (8, "tool.ended"), "call c1: started 1, ended 2")]
fn an_event_too_many_is_a_fault(#[case] at: usize, #[case] event: (u64, &str), #[case] fault: &str) {
    let mut kinds = VALID_SEQUENCE.to_vec();
    kinds.insert(at, event);
    let faults = event_log(&kinds).violations();
    assert!(faults.iter().any(|found| found.contains(fault)), "{faults:#?}");
}

#[rstest]
#[case::delta(3, "a hole behind 2 without a snapshot")]
#[case::ending(5, "0 endings")]
#[case::tool_end(7, "call c1: started 1, ended 0")]
#[case::end(9, "0 ends")]
fn an_event_too_few_is_a_fault(#[case] seq: u64, #[case] fault: &str) {
    let kinds: Vec<(u64, &str)> = VALID_SEQUENCE.iter().copied().filter(|(at, _)| *at != seq).collect();
    let faults = event_log(&kinds).violations();
    assert!(faults.iter().any(|found| found.contains(fault)), "{faults:#?}");
}

#[test]
fn a_frame_that_contradicts_its_data_and_two_verdicts_are_faults() {
    let mut wrong = event_log(VALID_SEQUENCE);
    wrong.events[2].kind = "thinking.delta".into();
    wrong.events[1].data["seq"] = json!(7);
    wrong.events[8].data["verdict"]["kind"] = json!("completed");
    let faults = wrong.violations();
    for fault in ["is not of type thinking.delta", "has another number", "different verdicts"] {
        assert!(faults.iter().any(|found| found.contains(fault)), "{faults:#?}");
    }
}
