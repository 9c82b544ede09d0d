//! Test `DaemonClient` against scripted daemons.

use std::sync::atomic::{AtomicUsize, Ordering};

use quell_protocol::api::SendRequest;
use quell_protocol::web_ui::SessionPatch;
use quell_protocol::{ErrorCode, EventKind, RunId, SessionKey, Verdict};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::test_support::daemon::{
    ScriptedDaemon, ScriptedDaemonReply, ScriptedStreamPiece, accepted_answer, event_piece, install_tls_provider,
    not_found_problem, run_view, stream_of, text_delta_piece,
};
use crate::test_support::receipts;

fn run() -> RunId {
    RunId::parse("r1").unwrap()
}

fn key(text: &str) -> SessionKey {
    SessionKey::parse(text).unwrap()
}

fn message(key: Option<&str>) -> SendRequest {
    SendRequest {
        text: "hi".into(),
        agent: None,
        idempotency_key: key.map(|key| RunId::parse(key).unwrap()),
        on_busy: None,
        timeout_ms: None,
        literal: false,
        attachments: Vec::new(),
    }
}

pub(crate) fn ended(seq: u64) -> ScriptedStreamPiece {
    let receipt = Box::new(receipts::completed_receipt());
    event_piece(seq, EventKind::Ended { verdict: Verdict::Completed, receipt, steps: 1, text: None })
}

fn word(seen: &RunEventStreamItem) -> String {
    match seen {
        RunEventStreamItem::Event(event) => event.seq.to_string(),
        RunEventStreamItem::Disconnected { .. } => "lost".into(),
        RunEventStreamItem::Reconnected => "back".into(),
    }
}

/// Follows to the end or the error; events as their number, other items as one word.
async fn trace(client: &DaemonClient) -> (Vec<String>, Option<ClientError>) {
    let mut following = client.follow_run(&run(), 0);
    let mut seen = Vec::new();
    while let Some(next) = following.next().await {
        match next {
            Ok(next) => seen.push(word(&next)),
            Err(error) => return (seen, Some(error)),
        }
    }
    (seen, None)
}

fn cursors(daemon: &ScriptedDaemon) -> Vec<(String, Option<String>)> {
    let events = daemon.requests().into_iter().filter(|asked| asked.route.contains("/events"));
    events.map(|asked| (asked.route, asked.last_event_id)).collect()
}

#[tokio::test]
async fn ids_are_escaped_in_paths_and_the_token_goes_along() {
    let daemon = ScriptedDaemon::with_replies(vec![]);
    let client = daemon.client();
    let error = client.get_session(&key("agent:main/ü %2F?")).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    let asked = daemon.requests().remove(0);
    assert_eq!(asked.route, "GET /api/sessions/agent:main%2F%C3%BC%20%252F%3F");
    assert_eq!(asked.token.as_deref(), Some("Bearer secret"));
    assert_eq!(asked.surface.as_deref(), Some("cli"));
    assert!(!format!("{client:?}").contains("secret"));
}

#[tokio::test]
async fn a_key_of_dots_is_refused_instead_of_naming_another_route() {
    let daemon = ScriptedDaemon::with_replies(vec![]);
    let error = daemon.client().delete_session(&key("..")).await.unwrap_err();
    assert!(matches!(error, ClientError::InvalidPathSegment(_)), "{error:?}");
    assert!(daemon.requests().is_empty());
}

#[tokio::test]
async fn an_address_with_a_path_keeps_it() {
    let daemon = ScriptedDaemon::with_replies(vec![("GET /base/api/hold", json!({"held": true}))]);
    install_tls_provider();
    let url = Some(format!("http://{}/base/", daemon.addr));
    let client = DaemonClient::discover(&DaemonTarget { url, ..daemon.target() }).unwrap();
    assert!(client.get_hold().await.unwrap().held);
}

#[tokio::test]
async fn a_closed_port_is_no_daemon() {
    install_tls_provider();
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let target = DaemonTarget { url: Some(addr.to_string()), token: Some("t".into()), data_dir: None };
    let error = DaemonClient::discover(&target).unwrap().get_hold().await.unwrap_err();
    assert!(matches!(error, ClientError::NoDaemon { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&addr.to_string()) && text.contains("refused") && text.contains("quell serve"), "{text}");
}

#[tokio::test]
async fn a_refused_token_says_where_it_came_from() {
    let daemon =
        ScriptedDaemon::start(|_| ScriptedDaemonReply::Problem(Problem::new(ErrorCode::Unauthorized, "unknown token")));
    let error = daemon.client().get_hold().await.unwrap_err();
    assert!(matches!(error, ClientError::BadToken { .. }), "{error:?}");
    assert!(error.to_string().contains("--token or QUELL_TOKEN was refused: unknown token"), "{error}");
}

#[test]
fn a_token_that_cannot_be_sent_is_refused_before_anything_is() {
    install_tls_provider();
    let target = DaemonTarget { url: Some("http://127.0.0.1:1".into()), token: Some("a\nb".into()), data_dir: None };
    let error = DaemonClient::discover(&target).unwrap_err();
    assert!(matches!(error, ClientError::BadToken { .. }), "{error:?}");
    assert!(!error.to_string().contains("a\nb"));
}

#[tokio::test]
async fn answers_that_are_not_quells_are_named_as_such() {
    for (status, text) in [(200, "<html>"), (404, "<html>"), (302, "elsewhere")] {
        let daemon = ScriptedDaemon::start(move |_| ScriptedDaemonReply::Raw(status, text));
        let error = daemon.client().get_hold().await.unwrap_err();
        assert!(matches!(error, ClientError::UnexpectedAnswer { .. }), "{status}: {error:?}");
        assert_eq!(daemon.requests().len(), 1, "{status}: asked once and nowhere else");
    }
}

#[tokio::test]
async fn lists_are_read_page_by_page() {
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/runs?state=active", json!({"items": [run_view("r1", json!({}))], "nextCursor": "a b"})),
        ("GET /api/runs?state=active&cursor=a+b", json!({"items": [run_view("r2", json!({}))]})),
    ]);
    let runs = daemon.client().list_runs(ClientRunFilter::Active).await.unwrap();
    let ids: Vec<&str> = runs.iter().map(|run| run.run_id.as_str()).collect();
    assert_eq!(ids, ["r1", "r2"]);
}

#[tokio::test]
async fn a_history_is_read_from_its_newest_page_and_given_oldest_first() {
    let said = |text: &str| json!({"runId": "r1", "role": "user", "text": text, "at": "2026-01-01T00:00:00Z"});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/sessions/s/history", json!({"items": [said("c"), said("d")], "nextCursor": "9"})),
        ("GET /api/sessions/s/history?cursor=9", json!({"items": [said("a"), said("b")]})),
    ]);
    let history = daemon.client().get_history(&key("s")).await.unwrap();
    let texts: Vec<&str> = history.iter().map(|message| message.text.as_str()).collect();
    assert_eq!(texts, ["a", "b", "c", "d"]);
}

/// A daemon whose first answer breaks off in the middle.
fn breaking_once() -> ScriptedDaemon {
    let calls = AtomicUsize::new(0);
    ScriptedDaemon::start(move |_| match calls.fetch_add(1, Ordering::Relaxed) {
        0 => ScriptedDaemonReply::Stream(stream_of(vec![
            ScriptedStreamPiece::Text("{".into()),
            ScriptedStreamPiece::Break,
        ])),
        _ => ScriptedDaemonReply::Json(202, accepted_answer("running")),
    })
}

#[tokio::test]
async fn a_message_with_a_key_is_sent_again_when_its_answer_is_lost() {
    let daemon = breaking_once();
    let sent = daemon.client().send_message(&key("s"), &message(Some("k1"))).await.unwrap();
    assert!(matches!(sent, SendReply::Accepted(answer) if answer.run_id == run()));
    let keys: Vec<_> = daemon.requests().iter().map(|asked| asked.body["idempotencyKey"].clone()).collect();
    assert_eq!(keys, ["k1", "k1"]);
}

#[tokio::test]
async fn a_message_without_a_key_is_never_sent_twice() {
    let daemon = breaking_once();
    let error = daemon.client().send_message(&key("s"), &message(None)).await.unwrap_err();
    assert!(matches!(error, ClientError::ConnectionLost { .. }), "{error:?}");
    assert_eq!(daemon.requests().len(), 1);
}

#[tokio::test]
async fn a_broken_stream_goes_on_behind_the_last_event() {
    let (first, pieces) = mpsc::channel(8);
    let daemon = ScriptedDaemon::with_run(vec![
        pieces,
        stream_of(vec![text_delta_piece(2, "b"), text_delta_piece(3, "c")]),
        stream_of(vec![text_delta_piece(4, "d"), ended(5), text_delta_piece(6, "never")]),
    ]);
    let half = ScriptedStreamPiece::Text("id: 3\nevent: text.del".into());
    for piece in [text_delta_piece(1, "a"), text_delta_piece(2, "b"), half] {
        let _ = first.send(piece).await;
    }
    let mut following = daemon.client().follow_run(&run(), 0);
    let mut seen = Vec::new();
    while let Some(next) = following.next().await {
        seen.push(word(&next.unwrap()));
        if seen.last().is_some_and(|word| word == "2") {
            let _ = first.send(ScriptedStreamPiece::Break).await;
        }
    }
    assert_eq!(seen, ["1", "2", "lost", "back", "3", "lost", "back", "4", "5"]);
    let expected = ["0", "2", "3"].map(|n| (format!("GET /api/runs/r1/events?after={n}"), Some(n.to_owned())));
    assert_eq!(cursors(&daemon), expected);
}

#[tokio::test]
async fn a_stream_that_goes_silent_without_closing_is_opened_anew() {
    let (silent, pieces) = mpsc::channel(1);
    let daemon = ScriptedDaemon::with_run(vec![pieces, stream_of(vec![text_delta_piece(2, "b"), ended(3)])]);
    let _ = silent.send(text_delta_piece(1, "a")).await;
    let mut following = daemon.client().follow_run_with_idle_timeout(&run(), 0, Duration::from_millis(500));
    let mut seen = Vec::new();
    while let Some(next) = following.next().await {
        seen.push(word(&next.unwrap()));
    }
    assert_eq!(seen, ["1", "lost", "back", "2", "3"]);
    drop(silent);
}

#[tokio::test]
async fn a_proxys_answer_for_an_absent_daemon_is_a_lost_connection() {
    for status in [429, 502, 503, 504] {
        let daemon = ScriptedDaemon::start(move |_| ScriptedDaemonReply::Raw(status, "<html>"));
        let error = daemon.client().get_hold().await.unwrap_err();
        assert!(matches!(error, ClientError::ConnectionLost { .. }), "{status}: {error:?}");
    }
}

#[tokio::test]
async fn events_of_a_younger_daemon_are_passed_over_and_broken_ones_are_not() {
    let unknown =
        ScriptedStreamPiece::Text("id: 1\nevent: weather\ndata: {\"type\":\"weather\"}\n\n: alive\n\n".into());
    let daemon = ScriptedDaemon::with_run(vec![stream_of(vec![unknown, text_delta_piece(2, "a"), ended(3)])]);
    let (seen, error) = trace(&daemon.client()).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(seen, ["2", "3"]);

    let broken = ScriptedStreamPiece::Text("id: 1\nevent: run.ended\ndata: {\"type\":\"run.ended\"}\n\n".into());
    let daemon = ScriptedDaemon::with_run(vec![stream_of(vec![broken])]);
    let (_, error) = trace(&daemon.client()).await;
    assert!(matches!(error, Some(ClientError::UnexpectedAnswer { .. })), "{error:?}");
}

#[tokio::test]
async fn a_full_daemon_is_asked_again_until_the_patience_is_gone() {
    let daemon = ScriptedDaemon::with_run(vec![]);
    let (seen, error) = trace(&daemon.client()).await;
    assert!(matches!(error, Some(ClientError::Refused(problem)) if problem.code == "too_many_connections"));
    assert!(seen.len() > 2 && seen.iter().all(|word| word == "lost"), "{seen:?}");
}

#[tokio::test]
async fn an_unknown_run_is_not_asked_for_again() {
    let daemon = ScriptedDaemon::start(|_| ScriptedDaemonReply::Problem(not_found_problem()));
    let (seen, error) = trace(&daemon.client()).await;
    assert!(error.is_some_and(|error| error.is_not_found()));
    assert!(seen.is_empty());
    assert_eq!(daemon.requests().len(), 1);
}

#[tokio::test]
async fn a_link_names_the_surface_that_it_speaks_for() {
    let daemon = ScriptedDaemon::with_replies(vec![("GET /api/hold", json!({"held": false}))]);
    daemon.client().with_surface(quell_protocol::Surface::Tui).get_hold().await.unwrap();
    assert_eq!(daemon.requests().remove(0).surface.as_deref(), Some("tui"));
}

#[tokio::test]
async fn one_page_of_a_history_is_one_request() {
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/sessions/s/history?turns=30", json!({"items": [], "nextCursor": "9"})),
        ("GET /api/sessions/s/history?turns=30&cursor=9", json!({"items": []})),
    ]);
    let client = daemon.client();
    assert_eq!(client.get_history_page(&key("s"), 30, None).await.unwrap().next_cursor.as_deref(), Some("9"));
    assert_eq!(client.get_history_page(&key("s"), 30, Some("9")).await.unwrap().next_cursor, None);
    assert_eq!(daemon.requests().len(), 2);
}

#[tokio::test]
async fn a_session_is_given_another_model() {
    let row = json!({"key": "s", "state": "ready", "createdAt": "", "lastUsedAt": "", "activeRuns": [], "turns": 0});
    let daemon = ScriptedDaemon::with_replies(vec![("PATCH /api/sessions/s", row)]);
    let patch = SessionPatch { model: Some("openai/gpt-5".into()), ..SessionPatch::default() };
    daemon.client().patch_session(&key("s"), &patch).await.unwrap();
    assert_eq!(daemon.requests().remove(0).body, json!({"model": "openai/gpt-5"}));
}
