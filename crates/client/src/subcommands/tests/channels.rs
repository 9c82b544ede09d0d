//! `quell channels` against a scripted daemon.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn rows() -> Value {
    json!({"items": [
        {"name": "irc", "kind": "irc", "state": "lost", "detail": "connection\nreset", "heard": 0, "answered": 0, "undelivered": 2},
        {"name": "shop", "kind": "webhook", "state": "connected", "since": "2026-11-20T10:00:00Z", "account": "webhook shop",
         "heard": 12345, "answered": 7, "undelivered": 0},
    ]})
}

#[tokio::test]
async fn channels_are_listed_with_how_they_fare_and_why() {
    let daemon = ScriptedDaemon::with_replies(vec![("GET /api/channels", rows())]);
    for words in [vec!["channels"], vec!["channels", "list"]] {
        let seen = run_done(&daemon, &words).await;
        let out = seen.out();
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[0].starts_with("NAME  NETWORK  STATE                FOR"), "{out}");
        assert!(lines[1].starts_with("irc   irc      ▲ lost, tries again"), "{out}");
        assert!(lines[2].contains("● connected") && lines[2].contains("webhook shop"), "{out}");
        assert_eq!(seen.err(), "irc: connection reset\n");
    }
    let (_, seen) = run_piped(&daemon, &["channels", "--json"]).await;
    assert_eq!((&seen.json()[0]["state"], &seen.json()[1]["heard"]), (&json!("lost"), &json!(12345)));
    let none = ScriptedDaemon::with_replies(vec![("GET /api/channels", json!({"items": []}))]);
    for words in [vec!["channels"], vec!["channels", "test"]] {
        let (exit, seen) = run_piped(&none, &words).await;
        assert_eq!((exit, seen.out()), (Exit::Done, String::new()));
        assert!(seen.err().starts_with("no channels: add one to quell.toml"), "{}", seen.err());
    }
}

#[tokio::test]
async fn a_test_of_all_fails_when_one_fails_and_unknown_is_exit_3() {
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/channels", rows()),
        ("POST /api/channels/irc/test", json!({"ok": false, "detail": "refused"})),
        ("POST /api/channels/shop/test", json!({"ok": true, "detail": "messages are taken"})),
    ]);
    let (exit, seen) = run_piped(&daemon, &["channels", "test"]).await;
    assert_eq!((exit, seen.out()), (Exit::Failed, "▲ irc: refused\n✓ shop: messages are taken\n".to_owned()));
    let seen = run_done(&daemon, &["channels", "test", "shop", "--json"]).await;
    assert_eq!(seen.json(), json!([{"name": "shop", "ok": true, "detail": "messages are taken"}]));
    let (exit, _) = run_piped(&daemon, &["channels", "test", "other"]).await;
    assert_eq!(exit, Exit::NotFound);
}

#[rstest]
#[case::delivered(json!({"delivery": "delivered", "sent": 1, "of": 1}), Exit::Done, "delivered")]
#[case::many(json!({"delivery": "delivered", "sent": 3, "of": 3}), Exit::Done, "delivered, in 3 messages")]
#[case::partly(json!({"delivery": "partly", "sent": 1, "of": 3, "detail": "gone"}), Exit::Failed, "only 1 of 3 messages were delivered: gone")]
#[case::not(json!({"delivery": "undelivered", "sent": 0, "of": 1, "detail": "no"}), Exit::Failed, "not delivered: no")]
#[case::unknown(
    json!({"delivery": "unknown", "sent": 0, "of": 1, "detail": "cut"}),
    Exit::Failed,
    "it is not known whether it was delivered; look there before you send it again: cut"
)]
#[tokio::test]
async fn the_outcome_of_a_sent_text_is_printed(#[case] answer: Value, #[case] exit: Exit, #[case] says: &str) {
    let daemon = ScriptedDaemon::with_replies(vec![("POST /api/channels/send", answer)]);
    let (ended, seen) = run_piped(&daemon, &["channels", "send", "matrix:!r:s", "good", "morning"]).await;
    assert_eq!((ended, seen.out()), (exit, format!("{says}\n")));
    assert_eq!(daemon.requests()[0].body, json!({"to": "matrix:!r:s", "text": "good morning"}));
}

#[tokio::test]
async fn a_text_may_come_from_a_pipe() {
    let daemon = ScriptedDaemon::with_replies(vec![(
        "POST /api/channels/send",
        json!({"delivery": "delivered", "sent": 1, "of": 1}),
    )]);
    let mut test_io = TestIo::with_input(CliOutputStreamKind::Pipe, "up 3 days\n");
    assert_eq!(run_with_io(&daemon, &["channels", "send", "irc:#team", "-"], &mut test_io.io).await, Exit::Done);
    assert_eq!(daemon.requests()[0].body["text"], "up 3 days\n");
    assert!(parse_args(&["channels", "send", "irc:#team"]).is_err());
}
