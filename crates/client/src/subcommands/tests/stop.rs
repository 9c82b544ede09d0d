//! `quell stop`: waiting for receipts, and exit codes.

use quell_protocol::{EventKind, Receipt, Verdict};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::test_support::daemon::{ScriptedStreamPiece, event_piece, not_found_problem, run_view, stop_ticket};
use crate::test_support::receipts;

const LINE: &str = "stopped in 12 ms · model closed after 0.4 ms · 3 processes ended (term) · history valid";

fn settled(receipt: &Receipt, by_us: bool) -> Value {
    let ids = if by_us { json!(["r1"]) } else { json!([]) };
    json!({
        "runId": "r1", "state": "ended", "aborted": by_us, "runIds": ids, "verdict": receipt.verdict, "receipt": receipt,
    })
}

fn over(run: &str, receipt: &Receipt) -> Value {
    let receipt = Receipt { run_id: quell_protocol::RunId::parse(run).unwrap(), ..receipt.clone() };
    run_view(run, json!({"state": "ended", "verdict": receipt.verdict, "receipt": receipt}))
}

#[rstest]
#[case::stopped(settled(&receipts::stopped_receipt(), true), Exit::Done, LINE)]
#[case::left_over(
    settled(&receipts::leftover_receipt(), true),
    Exit::Failed,
    "stopped in 7 s · 1 process still alive: pid 4242 (sudo), cannot be signalled · history valid"
)]
#[case::already_over(
    settled(&receipts::completed_receipt(), false),
    Exit::Done,
    "already over: completed in 2.5 s · history valid"
)]
#[case::already_asked_for(
    settled(&receipts::stopped_receipt(), false),
    Exit::Done,
    &format!("already asked for: {LINE}")
)]
#[case::a_bare_receipt(json!(receipts::stopped_receipt()), Exit::Done, LINE)]
#[tokio::test]
async fn a_stop_waits_for_the_receipt_and_prints_it_in_one_line(
    #[case] reply: Value,
    #[case] wanted: Exit,
    #[case] line: &str,
) {
    let daemon = ScriptedDaemon::with_replies(vec![("POST /api/runs/r1/stop?wait=1", reply)]);
    let (exit, seen) = run_piped(&daemon, &["stop", "r1", "--force", "--reason", "wrong branch"]).await;
    assert_eq!((exit, seen.out(), seen.err()), (wanted, format!("{line}\n"), String::new()));
    assert_eq!(daemon.requests()[0].body, json!({"force": true, "reason": "wrong branch"}));
}

/// The answer to a stop of a session that named no run.
fn nothing_named(more: &Value) -> Value {
    let mut answer = json!({"aborted": false, "runIds": [], "withdrawn": []});
    answer.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    answer
}

#[rstest]
#[case::silent(
    json!({"unreached": [{"node": "b", "stored": true, "leaseEndsInMs": 3900, "leaseEndsBy": "2026-01-02T03:04:05Z"}]}),
    Exit::Failed,
    "the node b does not answer; the stop is stored for it, and what runs there ends within 4 s"
)]
#[case::silent_and_not_stored(
    json!({"unreached": [{"node": "b", "stored": false, "leaseEndsInMs": 900, "leaseEndsBy": "2026-01-02T03:04:05Z"}]}),
    Exit::Failed,
    "the node b does not answer; the stop could not be stored, so send it again, and what runs there ends within 1 s"
)]
#[case::ended(
    json!({"settledNodes": ["b", "c"]}),
    Exit::Done,
    "the nodes b, c ended before the stop was answered: what ran there is over"
)]
#[tokio::test]
async fn nodes_that_could_not_be_asked_are_named(#[case] nodes: Value, #[case] wanted: Exit, #[case] line: &str) {
    let idle = json!({"key": "s", "state": "ready", "createdAt": "", "lastUsedAt": "", "activeRuns": [], "turns": 0});
    let replies = vec![("POST /api/sessions/s/stop?wait=1", nothing_named(&nodes)), ("GET /api/sessions/s", idle)];
    let daemon = ScriptedDaemon::with_replies(replies);
    let (exit, seen) = run_piped(&daemon, &["stop", "--session", "s"]).await;
    assert_eq!((exit, seen.out()), (wanted, format!("{line}\n")), "{}", seen.err());
}

#[tokio::test]
async fn an_unknown_run_is_exit_3() {
    let daemon = ScriptedDaemon::with_replies(vec![]);
    for words in [
        vec!["stop", "r1"],
        vec!["stop", "r1", "--no-wait"],
        vec!["stop", "--session", "s"],
        vec!["runs", "show", "r1"],
    ] {
        let (exit, seen) = run_piped(&daemon, &words).await;
        assert_eq!((exit, exit.code(), seen.out()), (Exit::NotFound, 3, String::new()), "{words:?}");
        assert!(seen.err().contains("run_not_found"), "{}", seen.err());
    }
}

#[tokio::test]
async fn a_daemon_that_did_not_wait_long_enough_is_followed_to_the_end() {
    let (stream, pieces) = tokio::sync::mpsc::channel::<ScriptedStreamPiece>(1);
    let pieces = std::sync::Mutex::new(Some(pieces));
    let daemon = ScriptedDaemon::start(move |asked| match asked.route.as_str() {
        "POST /api/runs/r1/stop?wait=1" => ScriptedDaemonReply::Json(202, stop_ticket("ending")),
        "GET /api/runs/r1" => ScriptedDaemonReply::Json(200, run_view("r1", json!({"state": "ending"}))),
        "GET /api/runs/r1/events?after=7" => ScriptedDaemonReply::Stream(pieces.lock().unwrap().take().unwrap()),
        _ => ScriptedDaemonReply::Problem(not_found_problem()),
    });
    let daemon_side = async {
        daemon.wait_for_request("GET /api/runs/r1/events?after=7", 1).await;
        let receipt = Box::new(receipts::stopped_receipt());
        let end = EventKind::Ended { verdict: receipts::aborted_by_user(), receipt, steps: 1, text: None };
        let _ = stream.send(event_piece(8, end)).await;
    };
    let ((exit, seen), ()) = tokio::join!(run_piped(&daemon, &["stop", "r1"]), daemon_side);
    assert_eq!((exit, seen.out()), (Exit::Done, format!("{LINE}\n")));
}

#[tokio::test]
async fn descendants_that_outlived_an_ended_run_are_told() {
    let mut reply = settled(&receipts::completed_receipt(), false);
    reply["aborted"] = json!(true);
    reply["runIds"] = json!(["child"]);
    let child = over("child", &receipts::stopped_receipt());
    let daemon =
        ScriptedDaemon::with_replies(vec![("POST /api/runs/r1/stop?wait=1", reply), ("GET /api/runs/child", child)]);
    let seen = run_done(&daemon, &["stop", "r1"]).await;
    assert_eq!(seen.out(), format!("already over: completed in 2.5 s · history valid\nbelow it, child  {LINE}\n"));
}

#[tokio::test]
async fn not_waiting_returns_at_once() {
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/runs/r1/stop", stop_ticket("ending")),
        ("POST /api/stop", json!({"aborted": true, "runIds": ["r1", "r2"], "held": false})),
    ]);
    let seen = run_done(&daemon, &["stop", "r1", "--no-wait"]).await;
    assert_eq!(seen.out(), "stop requested · run r1 is ending · see `quell runs show r1`\n");
    let (exit, seen) = run_piped(&daemon, &["stop", "r1", "--no-wait", "--json"]).await;
    assert_eq!((exit, &seen.json()["state"]), (Exit::Done, &json!("ending")));
    let (exit, seen) = run_piped(&daemon, &["stop", "--all", "--no-wait"]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "stop requested for 2 runs: r1, r2\n".into()));
}

#[tokio::test]
async fn everything_is_waited_for_run_by_run() {
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/stop?wait=1", json!({"aborted": true, "runIds": ["r1", "r2", "r3"], "held": true})),
        ("GET /api/runs/r1", over("r1", &receipts::stopped_receipt())),
        ("GET /api/runs/r2", over("r2", &receipts::leftover_receipt())),
    ]);
    let (exit, seen) = run_piped(&daemon, &["stop", "--all", "--hold"]).await;
    assert_eq!(exit, Exit::Failed);
    let out = seen.out();
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], format!("r1  {LINE}"));
    assert!(lines[1].starts_with("r2  stopped in 7 s · 1 process still alive"), "{}", lines[1]);
    assert!(lines[2].starts_with("r3  its end could not be seen"), "{}", lines[2]);
    assert_eq!(
        &lines[3..],
        ["3 runs stopped · 2 runs left something over", "hold is on: new runs are refused until `quell hold off`"]
    );
    assert_eq!(daemon.requests()[0].body, json!({"hold": true}));
}

#[tokio::test]
async fn a_session_without_a_run_has_nothing_to_stop_and_an_unknown_one_is_not_found() {
    let session = json!({
        "key": "a/b", "state": "ready", "createdAt": "2026-01-01T00:00:00Z", "lastUsedAt": "2026-01-01T00:00:00Z",
        "activeRuns": [], "turns": 0,
    });
    let nothing = json!({"aborted": false, "runIds": []});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/sessions/a%2Fb/stop?wait=1", nothing.clone()),
        ("GET /api/sessions/a%2Fb", session),
        ("POST /api/sessions/x/stop?wait=1", nothing),
    ]);
    let (exit, seen) = run_piped(&daemon, &["stop", "--session", "a/b", "--keep-queued"]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "nothing to stop: no run is active\n".into()));
    assert_eq!(daemon.requests()[0].body, json!({"keepQueued": true}));
    let (exit, seen) = run_piped(&daemon, &["stop", "--session", "x"]).await;
    assert_eq!((exit, seen.out()), (Exit::NotFound, String::new()));
}

#[tokio::test]
async fn json_has_every_receipt() {
    let answer = json!({"aborted": true, "runIds": ["r1"], "withdrawn": [{"runId": "r2", "text": "later"}]});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/sessions/s/stop?wait=1", answer),
        ("GET /api/runs/r1", over("r1", &receipts::stopped_receipt())),
    ]);
    let seen = run_done(&daemon, &["stop", "--session", "s", "--json"]).await;
    let value = seen.json();
    assert_eq!((&value["aborted"], &value["withdrawn"][0]["text"]), (&json!(true), &json!("later")));
    let receipt: Receipt = serde_json::from_value(value["runs"][0]["receipt"].clone()).unwrap();
    assert!(matches!(receipt.verdict, Verdict::Aborted { .. }));
}

fn process(leftovers: &[&str]) -> Value {
    json!({
        "id": "p1", "sessionKey": "s", "startedByRun": "r1", "principal": "admin", "command": "npm run dev",
        "state": "ended", "startedAt": "2026-01-01T00:00:00Z", "swept": 2, "how": "kill", "outputBytes": 0,
        "leftovers": leftovers,
    })
}

/// A session without a run may have background processes; the stop ends them too.
#[tokio::test]
async fn stopped_background_commands_are_printed_and_leftovers_fail() {
    let session = |leftovers: &[&str]| json!({"aborted": true, "runIds": [], "processes": [process(leftovers)]});
    let mut ticket = settled(&receipts::completed_receipt(), false);
    ticket["aborted"] = json!(true);
    ticket["processes"] = json!([process(&[])]);
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/sessions/s/stop?wait=1", session(&[])),
        ("POST /api/sessions/t/stop?wait=1", session(&["sudo (pid 7)"])),
        ("POST /api/runs/r1/stop?wait=1", ticket),
    ]);
    let (exit, seen) = run_piped(&daemon, &["stop", "--session", "s"]).await;
    assert_eq!(
        (exit, seen.out()),
        (Exit::Done, "process p1 ended (kill) and 2 processes below it: npm run dev\n".into())
    );
    let (exit, seen) = run_piped(&daemon, &["stop", "--session", "t"]).await;
    assert_eq!(exit, Exit::Failed);
    assert!(seen.out().contains("could not end sudo (pid 7)"), "{}", seen.out());
    let seen = run_done(&daemon, &["stop", "r1"]).await;
    assert!(seen.out().contains("left by it, process p1 ended (kill)"), "{}", seen.out());
}

/// Another client has stopped the run, and it has not ended yet: a second stop, for example a forced one, waits for it
/// too.
#[tokio::test]
async fn a_run_that_is_ending_already_is_waited_for() {
    let answer = json!({"aborted": false, "runIds": [], "ending": ["r1"], "held": false});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/stop?wait=1", answer),
        ("GET /api/runs/r1", over("r1", &receipts::leftover_receipt())),
    ]);
    let (exit, seen) = run_piped(&daemon, &["stop", "--all", "--force"]).await;
    assert_eq!(exit, Exit::Failed);
    assert!(seen.out().starts_with("r1  already asked for: stopped in 7 s"), "{}", seen.out());
}

#[tokio::test]
async fn a_hold_that_could_not_be_stored_is_told_beside_what_was_stopped() {
    let answer = json!({"aborted": true, "runIds": ["r1"], "held": true, "holdProblem": "the disk is full"});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/stop?wait=1", answer),
        ("GET /api/runs/r1", over("r1", &receipts::stopped_receipt())),
    ]);
    let (exit, seen) = run_piped(&daemon, &["stop", "--all", "--hold"]).await;
    assert_eq!(exit, Exit::Failed);
    let told = format!("r1  {LINE}\nthe hold could not be stored: the disk is full · it holds until the daemon ends\n");
    assert_eq!(seen.out(), told);
}
