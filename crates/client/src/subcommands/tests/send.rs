//! `quell send`: streaming, stopping, lost connections, and exit codes.

use quell_protocol::approval::ApprovalRow;
use quell_protocol::receipt::Receipt;
use quell_protocol::{CallEnd, CallId, EventKind, StopReason, Verdict};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::test_support::daemon::{
    ScriptedStreamPiece, accepted_answer, event_piece, not_found_problem, run_view, stop_ticket, stream_of,
    text_delta_piece,
};
use crate::test_support::receipts;

fn ended(seq: u64, receipt: Receipt, text: Option<&str>) -> ScriptedStreamPiece {
    let verdict = receipt.verdict.clone();
    event_piece(seq, EventKind::Ended { verdict, receipt: Box::new(receipt), steps: 2, text: text.map(str::to_owned) })
}

fn ending(seq: u64, receipt: &Receipt) -> ScriptedStreamPiece {
    event_piece(seq, EventKind::Ending { verdict: receipt.verdict.clone() })
}

fn tool(seq: u64, id: &str, command: &str) -> ScriptedStreamPiece {
    let arguments = json!({"command": command});
    event_piece(seq, EventKind::ToolStarted { call_id: CallId::parse(id).unwrap(), tool: "shell".into(), arguments })
}

fn tool_over(seq: u64, id: &str, end: CallEnd, ms: f64) -> ScriptedStreamPiece {
    event_piece(
        seq,
        EventKind::ToolEnded {
            call_id: CallId::parse(id).unwrap(),
            end,
            code: None,
            output: "x".into(),
            diff: None,
            ms,
        },
    )
}

fn step(seq: u64, step: u32) -> ScriptedStreamPiece {
    event_piece(seq, EventKind::StepStarted { step })
}

/// A run of two steps with two tool calls between them.
fn conversation() -> Vec<ScriptedStreamPiece> {
    vec![
        step(1, 1),
        event_piece(2, EventKind::ThinkingDelta { text: "hm".into() }),
        text_delta_piece(3, "Let me "),
        text_delta_piece(4, "look."),
        tool(5, "a", "cargo\ntest"),
        tool(6, "b", "rm x"),
        tool_over(7, "a", CallEnd::Ok, 2100.0),
        tool_over(8, "b", CallEnd::Error, 3.0),
        step(9, 2),
        text_delta_piece(10, "All "),
        text_delta_piece(11, "good."),
        ended(12, receipts::completed_receipt(), Some("All good.")),
    ]
}

#[tokio::test]
async fn the_answer_streams_to_the_output_and_nothing_else_does() {
    let daemon = ScriptedDaemon::with_run(vec![stream_of(conversation())]);
    let seen =
        run_done(&daemon, &["send", "--agent", "coder", "--on-busy", "steer", "--timeout", "1.5", "hi", "you"]).await;
    assert_eq!(seen.out(), "Let me look.\nAll good.\n");
    assert_eq!(
        seen.err(),
        "shell  cargo test   2.1 s  ok\nshell  rm x   3 ms  failed\n",
        "a pipe is told of the tools"
    );
    let body = daemon.requests().remove(0).body;
    assert!(body["idempotencyKey"].is_string());
    assert_eq!(body["text"], "hi you");
    assert_eq!((&body["agent"], &body["onBusy"], &body["timeoutMs"]), (&json!("coder"), &json!("steer"), &json!(1500)));
    assert_eq!(body.get("literal"), None);
}

fn retried() -> Vec<ScriptedStreamPiece> {
    let retry = EventKind::ModelRetry { attempt: 2, attempts: 6, delay_ms: 4000, reason: "503 overloaded".into() };
    let end = ended(4, receipts::completed_receipt(), Some("Yes."));
    vec![step(1, 1), event_piece(2, retry), text_delta_piece(3, "Yes."), end]
}

fn failed() -> Vec<ScriptedStreamPiece> {
    let verdict = Verdict::Failed { code: "model_error".into(), message: "the provider said 500".into() };
    let receipt = Receipt { verdict, ..receipts::completed_receipt() };
    vec![text_delta_piece(1, "half"), ended(2, receipt, None)]
}

#[rstest]
#[case::a_retry_of_the_model_call(
    retried(),
    Exit::Done,
    "Yes.\n",
    "◔ attempt 2 of 6 failed, next in 4 s: 503 overloaded\n"
)]
#[case::a_failed_run(failed(), Exit::Failed, "half\n", "▲ failed (model_error): the provider said 500\n")]
#[tokio::test]
async fn a_pipe_is_told_what_went_wrong(
    #[case] pieces: Vec<ScriptedStreamPiece>,
    #[case] wanted: Exit,
    #[case] out: &str,
    #[case] err: &str,
) {
    let daemon = ScriptedDaemon::with_run(vec![stream_of(pieces)]);
    let (exit, seen) = run_piped(&daemon, &["send", "hi"]).await;
    assert_eq!((exit, seen.out(), seen.err()), (wanted, out.into(), err.into()));
}

#[tokio::test]
async fn a_terminal_sees_thinking_and_tools_as_quiet_lines() {
    let daemon = ScriptedDaemon::with_run(vec![stream_of(conversation())]);
    let mut test_io = TestIo::new(CliOutputStreamKind::Colored);
    assert_eq!(run_with_io(&daemon, &["send", "hi"], &mut test_io.io).await, Exit::Done);
    let shown = test_io.captured.interleaved();
    for part in [
        "\u{1b}[2mhm\u{1b}[0m\nLet me look.\n",
        "\u{1b}[2mshell  cargo test   2.1 s  ok\u{1b}[0m\n",
        "\u{1b}[33mshell  rm x   3 ms  failed\u{1b}[0m\n",
        "All good.\n",
    ] {
        assert!(shown.contains(part), "{part:?} in {shown:?}");
    }
}

#[tokio::test]
async fn a_call_of_a_sub_agent_that_waits_is_shown_with_its_answers() {
    let approval = json!({
        "id": "a1", "runId": "r2", "sessionKey": "s2", "agent": "scout", "principal": "ann", "callId": "c1", "tool": "shell",
        "arguments": {"command": "rm x"}, "requestedAt": "", "expiresAt": "", "state": "pending",
    });
    let approval: ApprovalRow = serde_json::from_value(approval).unwrap();
    let asked = EventKind::SubRunApprovalRequested { approval: Box::new(approval.clone()) };
    let [earlier_text, text, thinking] = std::array::from_fn(|_| String::new());
    let snapshot = EventKind::Snapshot { earlier_text, text, thinking, calls: Vec::new(), approvals: vec![approval] };
    // Whoever fell behind learns of it from the snapshot; nobody is shown it twice.
    for told in [vec![asked.clone()], vec![snapshot.clone()], vec![asked, snapshot]] {
        let told = (2..).zip(told).map(|(seq, event)| event_piece(seq, event));
        let end = ended(9, receipts::completed_receipt(), Some("done"));
        let stream = [step(1, 1)].into_iter().chain(told).chain([end]).collect();
        let daemon = ScriptedDaemon::with_run(vec![stream_of(stream)]);
        let (exit, seen) = run_piped(&daemon, &["send", "hi"]).await;
        let said = seen.err();
        assert_eq!(exit, Exit::Done);
        assert!(said.starts_with("◔ shell of the sub-agent scout asks whether it may run:\n"), "{said}");
        assert!(said.contains("rm x") && said.ends_with("  quell approvals deny a1\n"), "{said}");
        assert_eq!(said.matches("quell approvals allow a1").count(), 1, "{said}");
    }
}

#[tokio::test]
async fn json_prints_one_object_at_the_end() {
    let daemon = ScriptedDaemon::with_run(vec![stream_of(conversation())]);
    let seen = run_done(&daemon, &["send", "--json", "hi"]).await;
    let value = seen.json();
    assert_eq!((&value["success"], &value["cancelled"], &value["loopCount"]), (&json!(true), &json!(false), &json!(2)));
    assert_eq!((&value["text"], &value["partial"]), (&json!("All good."), &json!(false)));
    assert_eq!((&value["runId"], &value["sessionKey"]), (&json!("r1"), &json!("cli:default")));
    assert_eq!(value["receipt"]["verdict"]["kind"], "completed");
}

/// Sends in a pipe, presses Ctrl-C at the first text; the daemon answers the stop by ending the run.
async fn interrupted(words: &[&str], receipt: Receipt) -> (Exit, CapturedStreams, Value) {
    let (stream, pieces) = mpsc::channel(8);
    let daemon = ScriptedDaemon::with_run(vec![pieces]);
    let mut test_io = TestIo::new(CliOutputStreamKind::Pipe);
    let person = async {
        for piece in [step(1, 1), text_delta_piece(2, "half an ans")] {
            let _ = stream.send(piece).await;
        }
        daemon.wait_for_request("GET /api/runs/r1/events?after=0", 1).await;
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
        let asked = daemon.wait_for_request("POST /api/runs/r1/stop", 1).await;
        for piece in [ending(3, &receipt), ended(4, receipt, None)] {
            let _ = stream.send(piece).await;
        }
        asked.body
    };
    let (exit, body) = tokio::join!(run_with_io(&daemon, words, &mut test_io.io), person);
    (exit, test_io.captured, body)
}

#[rstest]
#[case::stopped(
    receipts::stopped_receipt(),
    130,
    "stopped in 12 ms · model closed after 0.4 ms · 3 processes ended (term) · history valid"
)]
#[case::too_late(receipts::completed_receipt(), 0, "completed in 2.5 s · history valid")]
#[case::left_over(
    receipts::leftover_receipt(),
    130,
    "stopped in 7 s · 1 process still alive: pid 4242 (sudo), cannot be signalled · history valid"
)]
#[tokio::test]
async fn ctrl_c_stops_the_run_and_ends_in_the_receipt_line(
    #[case] receipt: Receipt,
    #[case] code: u8,
    #[case] line: &str,
) {
    let (exit, seen, body) = interrupted(&["send", "hi"], receipt).await;
    assert_eq!((exit.code(), body), (code, json!({})));
    assert_eq!((seen.out(), seen.err()), ("half an ans\n".into(), format!("{line}\n")));
}

/// SIGTERM, SIGHUP or a closed pipe: the run is stopped, and nobody waits for its end.
#[tokio::test]
async fn the_end_of_the_process_stops_the_run() {
    let (stream, pieces) = mpsc::channel(8);
    let daemon = ScriptedDaemon::with_run(vec![pieces]);
    let mut test_io = TestIo::new(CliOutputStreamKind::Pipe);
    let system = async {
        stream.send(text_delta_piece(1, "half an ans")).await.unwrap();
        daemon.wait_for_request("GET /api/runs/r1/events?after=0", 1).await;
        test_io.interruptions.send(Interruption::End).await.unwrap();
        daemon.wait_for_request("POST /api/runs/r1/stop", 1).await
    };
    let (exit, stop) = tokio::join!(run_with_io(&daemon, &["send", "hi"], &mut test_io.io), system);
    assert_eq!((exit, stop.body), (Exit::Terminated, json!({})));
}

#[tokio::test]
async fn a_stopped_run_in_json_has_the_words_of_row_e3() {
    let (exit, seen, _) = interrupted(&["send", "--json", "hi"], receipts::stopped_receipt()).await;
    assert_eq!(exit, Exit::Stopped);
    let value = seen.json();
    assert_eq!((&value["success"], &value["cancelled"]), (&json!(false), &json!(true)));
    assert_eq!((&value["error"], &value["loopCount"]), (&json!("Execution paused"), &json!(2)));
    assert_eq!((&value["text"], &value["partial"]), (&json!("half an ans"), &json!(true)));
    assert_eq!(value["receipt"]["leftovers"], json!([]));
}

#[tokio::test]
async fn a_second_ctrl_c_forces_and_a_third_leaves() {
    let (_stream, pieces) = mpsc::channel(8);
    let daemon = ScriptedDaemon::with_run(vec![pieces]);
    let mut test_io = TestIo::new(CliOutputStreamKind::Plain);
    let person = async {
        daemon.wait_for_request("GET /api/runs/r1/events?after=0", 1).await;
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
        daemon.wait_for_request("POST /api/runs/r1/stop", 1).await;
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
        let forced = daemon.wait_for_request("POST /api/runs/r1/stop", 2).await;
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
        forced.body
    };
    let (exit, forced) = tokio::join!(run_with_io(&daemon, &["send", "hi"], &mut test_io.io), person);
    assert_eq!((exit, forced), (Exit::Stopped, json!({"force": true})));
    let said = test_io.captured.err();
    assert!(said.contains("Ctrl-C again forces") && said.contains("forced · Ctrl-C again leaves"), "{said:?}");
    assert!(said.ends_with("left before the end · see `quell runs show r1`\n"), "{said:?}");
    assert_eq!(daemon.requests().iter().filter(|asked| asked.route.ends_with("/stop")).count(), 2);
}

#[tokio::test]
async fn ctrl_c_before_the_daemon_answers_stops_the_run_by_the_id_that_was_chosen_here() {
    let daemon = ScriptedDaemon::start(|asked| match asked.route.as_str() {
        "POST /api/sessions/cli:default/runs" => ScriptedDaemonReply::Silence,
        _ => ScriptedDaemonReply::Problem(not_found_problem()),
    });
    let mut test_io = TestIo::new(CliOutputStreamKind::Pipe);
    let person = async {
        let asked = daemon.wait_for_request("POST /api/sessions/cli:default/runs", 1).await;
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
        let id = asked.body["idempotencyKey"].as_str().unwrap().to_owned();
        daemon.wait_for_request(&format!("POST /api/runs/{id}/stop"), 1).await;
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
        let forced = daemon.wait_for_request(&format!("POST /api/runs/{id}/stop"), 2).await;
        assert_eq!(forced.body, json!({"force": true}));
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
    };
    let (exit, ()) = tokio::join!(run_with_io(&daemon, &["send", "hi"], &mut test_io.io), person);
    assert_eq!(exit, Exit::Stopped);
    assert!(!test_io.captured.err().contains("could not"), "{}", test_io.captured.err());
}

#[tokio::test]
async fn a_stop_asked_for_too_early_is_asked_for_again_by_the_runs_own_name() {
    let (answer, sent) = mpsc::channel(1);
    let (stream, pieces) = mpsc::channel(8);
    let once = std::sync::Mutex::new((Some(sent), Some(pieces)));
    let daemon = ScriptedDaemon::start(move |asked| match asked.route.as_str() {
        // The test decides when the message is answered.
        "POST /api/sessions/cli:default/runs" => ScriptedDaemonReply::Stream(once.lock().unwrap().0.take().unwrap()),
        "GET /api/runs/r1/events?after=0" => ScriptedDaemonReply::Stream(once.lock().unwrap().1.take().unwrap()),
        "POST /api/runs/r1/stop" => ScriptedDaemonReply::Json(202, stop_ticket("ending")),
        _ => ScriptedDaemonReply::Problem(not_found_problem()),
    });
    let mut test_io = TestIo::new(CliOutputStreamKind::Pipe);
    let person = async {
        let asked = daemon.wait_for_request("POST /api/sessions/cli:default/runs", 1).await;
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
        let id = asked.body["idempotencyKey"].as_str().unwrap().to_owned();
        daemon.wait_for_request(&format!("POST /api/runs/{id}/stop"), 1).await;
        let _ = answer.send(ScriptedStreamPiece::Text(accepted_answer("running").to_string())).await;
        drop(answer);
        let again = daemon.wait_for_request("POST /api/runs/r1/stop", 1).await;
        let _ = stream.send(ended(1, receipts::stopped_receipt(), None)).await;
        again.body
    };
    let (exit, again) = tokio::join!(run_with_io(&daemon, &["send", "hi"], &mut test_io.io), person);
    assert_eq!((exit, again), (Exit::Stopped, json!({})));
    assert!(test_io.captured.err().starts_with("stopped in 12 ms"), "{}", test_io.captured.err());
}

#[tokio::test]
async fn a_used_up_budget_is_no_stop_and_has_its_own_exit_code() {
    let verdict = Verdict::Aborted { reason: StopReason::Steps, by: None };
    let receipt = Receipt { verdict, ..receipts::stopped_receipt() };
    let daemon = ScriptedDaemon::with_run(vec![stream_of(vec![ended(1, receipt, None)])]);
    let (exit, seen) = run_piped(&daemon, &["send", "--json", "hi"]).await;
    assert_eq!(exit.code(), 5);
    let result = seen.json();
    assert_eq!((&result["cancelled"], &result["limit"]), (&json!(false), &json!("steps")));
    assert_eq!(result["error"], "Step limit reached");
    assert!(seen.err().ends_with("reason: max_steps\n"), "{}", seen.err());
}

/// Sends in a pipe over two connections; the first breaks after its text is printed.
async fn torn(
    first: Vec<ScriptedStreamPiece>,
    text: &str,
    second: Vec<ScriptedStreamPiece>,
) -> (Exit, CapturedStreams, ScriptedDaemon) {
    let (stream, pieces) = mpsc::channel(8);
    let daemon = ScriptedDaemon::with_run(vec![pieces, stream_of(second)]);
    let mut test_io = TestIo::new(CliOutputStreamKind::Pipe);
    let seen = test_io.captured.clone();
    let network = async {
        for piece in first {
            let _ = stream.send(piece).await;
        }
        seen.wait_for_text(text).await;
        let _ = stream.send(ScriptedStreamPiece::Break).await;
    };
    let (exit, ()) = tokio::join!(run_with_io(&daemon, &["send", "hi"], &mut test_io.io), network);
    (exit, test_io.captured, daemon)
}

#[tokio::test]
async fn a_lost_connection_is_told_and_the_text_goes_on_without_a_seam() {
    let snapshot = EventKind::Snapshot {
        earlier_text: String::new(),
        text: "one two three".into(),
        thinking: String::new(),
        calls: Vec::new(),
        approvals: Vec::new(),
    };
    let end = ended(11, receipts::completed_receipt(), Some("one two three four"));
    let first = vec![step(1, 1), text_delta_piece(2, "one "), text_delta_piece(3, "two")];
    let (exit, seen, daemon) =
        torn(first, "one two", vec![event_piece(9, snapshot), text_delta_piece(10, " four"), end]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "one two three four\n".into()));
    let said = seen.err();
    assert!(said.starts_with("connection lost (") && said.ends_with("connected again\n"), "{said}");
    assert!(daemon.requests().iter().any(|asked| asked.route == "GET /api/runs/r1/events?after=3"));
}

fn snapshot_of_a_later_step() -> Vec<ScriptedStreamPiece> {
    let snapshot = EventKind::Snapshot {
        earlier_text: String::new(),
        text: "second".into(),
        thinking: String::new(),
        calls: Vec::new(),
        approvals: Vec::new(),
    };
    vec![event_piece(9, snapshot), ended(11, receipts::completed_receipt(), Some("second step"))]
}

fn snapshot_across_steps() -> Vec<ScriptedStreamPiece> {
    let (earlier_text, text) = ("first and more".into(), "second".into());
    let (thinking, calls, approvals) = (String::new(), Vec::new(), Vec::new());
    let snapshot = EventKind::Snapshot { earlier_text, text, thinking, calls, approvals };
    vec![event_piece(9, snapshot), ended(11, receipts::completed_receipt(), Some("second"))]
}

#[rstest]
#[case::the_rest_of_its_step_and_the_next_ones("first", snapshot_across_steps(), "first and more\nsecond\n")]
#[case::a_later_step_on_a_line_of_its_own("first", snapshot_of_a_later_step(), "first\nsecond step\n")]
#[case::the_rest_from_the_end("one ", vec![ended(9, receipts::completed_receipt(), Some("one two"))], "one two\n")]
#[tokio::test]
async fn text_that_was_missed_is_still_printed(
    #[case] first: &str,
    #[case] second: Vec<ScriptedStreamPiece>,
    #[case] out: &str,
) {
    let (exit, seen, _) = torn(vec![text_delta_piece(1, first)], first, second).await;
    assert_eq!((exit, seen.out()), (Exit::Done, out.into()));
}

#[tokio::test]
async fn a_connection_that_stays_lost_is_exit_4_and_says_that_the_run_may_go_on() {
    let streams = std::sync::Mutex::new(vec![stream_of(vec![text_delta_piece(1, "x"), ScriptedStreamPiece::Break])]);
    let daemon = ScriptedDaemon::start(move |asked| match asked.route.as_str() {
        "POST /api/sessions/cli:default/runs" => ScriptedDaemonReply::Json(202, accepted_answer("running")),
        _ => ScriptedDaemonReply::Stream(
            streams.lock().unwrap().pop().unwrap_or_else(|| stream_of(vec![ScriptedStreamPiece::Break])),
        ),
    });
    let (exit, seen) = run_piped(&daemon, &["send", "hi"]).await;
    assert_eq!(exit, Exit::NoDaemon);
    assert!(seen.err().contains("the run may go on · see `quell runs show r1`"), "{}", seen.err());
}

#[tokio::test]
async fn a_stop_text_prints_what_was_stopped() {
    let over =
        json!({"state": "ended", "verdict": receipts::aborted_by_user(), "receipt": receipts::stopped_receipt()});
    let answer = json!({"aborted": true, "runIds": ["r1"], "withdrawn": [{"runId": "r2", "text": "later"}]});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/sessions/cli:default/runs", answer),
        ("GET /api/runs/r1", run_view("r1", over)),
    ]);
    let seen = run_done(&daemon, &["send", "/stop"]).await;
    assert_eq!(
        seen.out(),
        "r1  stopped in 12 ms · model closed after 0.4 ms · 3 processes ended (term) · history valid\n\
         withdrawn from the queue: later\n"
    );
    let (_, seen) = run_piped(&daemon, &["send", "--json", "/stop"]).await;
    let value = seen.json();
    assert_eq!((&value["aborted"], &value["runIds"]), (&json!(true), &json!(["r1"])));
}

#[tokio::test]
async fn a_steered_message_that_was_not_taken_is_followed_as_its_own_run() {
    let streams = std::sync::Mutex::new(vec![stream_of(vec![
        text_delta_piece(1, "first"),
        ended(2, receipts::completed_receipt(), Some("first")),
    ])]);
    let daemon = ScriptedDaemon::start(move |asked| match asked.route.as_str() {
        "POST /api/sessions/cli:default/runs" => ScriptedDaemonReply::Json(
            202,
            json!({"runId": "r1", "sessionKey": "cli:default", "state": "steered", "messageId": "m1"}),
        ),
        "GET /api/runs/r1/events?after=0" => ScriptedDaemonReply::Stream(streams.lock().unwrap().pop().unwrap()),
        "GET /api/runs/m1" => ScriptedDaemonReply::Json(200, run_view("m1", json!({}))),
        "GET /api/runs/m1/events?after=0" => {
            let end = json!({
                "runId": "m1", "sessionKey": "cli:default", "seq": 1, "at": "2026-03-01T12:00:00Z", "type": "run.ended",
                "verdict": {"kind": "completed"}, "receipt": receipts::completed_receipt(), "steps": 1, "text": "second",
            });
            ScriptedDaemonReply::Stream(stream_of(vec![ScriptedStreamPiece::Text(format!(
                "event: run.ended\ndata: {end}\n\n"
            ))]))
        }
        _ => ScriptedDaemonReply::Problem(not_found_problem()),
    });
    let (exit, seen) = run_piped(&daemon, &["send", "--on-busy", "steer", "also this"]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "first\nsecond\n".into()));
    assert_eq!(seen.err(), "handed to the active run r1\n");
}

#[tokio::test]
async fn a_dash_reads_the_message_from_the_input() {
    let daemon = ScriptedDaemon::with_run(vec![stream_of(vec![ended(1, receipts::completed_receipt(), None)])]);
    let mut test_io = TestIo::with_input(CliOutputStreamKind::Pipe, "line one\nline two\n");
    assert_eq!(run_with_io(&daemon, &["send", "--literal", "-"], &mut test_io.io).await, Exit::Done);
    let body = daemon.requests().remove(0).body;
    assert_eq!((&body["text"], &body["literal"]), (&json!("line one\nline two\n"), &json!(true)));
}

#[tokio::test]
async fn an_empty_message_is_refused_here() {
    let daemon = ScriptedDaemon::with_replies(vec![]);
    let mut test_io = TestIo::with_input(CliOutputStreamKind::Pipe, " \n");
    assert_eq!(run_with_io(&daemon, &["send", "-"], &mut test_io.io).await, Exit::Usage);
    assert_eq!(test_io.captured.err(), "error: the message is empty\n");
    assert!(daemon.requests().is_empty());
}
