//! `quell memory` against a scripted daemon.

use serde_json::json;

use super::*;

#[tokio::test]
async fn notes_are_listed_searched_and_forgotten() {
    let note = json!({"key": "fence/colour", "category": "core", "text": "The fence\nis green.", "at": "2026-11-20T10:00:00Z"});
    let mut found = note.clone();
    found["score"] = json!(0.8234);
    let daemon = Daemon::of(vec![
        ("GET /api/sessions/demo/memory", json!({"items": [note]})),
        ("GET /api/agents/a%2Fb/memory?query=which+fence%3F&limit=3", json!({"items": [found]})),
        ("GET /api/agents/main/memory", json!({"items": []})),
        ("DELETE /api/sessions/demo/memory/fence%2Fcolour", json!({})),
    ])
    .await;
    let (exit, seen) = piped(&daemon, &["memory", "list", "--session", "demo"]).await;
    assert_eq!(exit, Exit::Done);
    let out = seen.out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("KEY           CATEGORY  REMEMBERED"), "{out}");
    assert!(lines[1].starts_with("fence/colour  core      ") && lines[1].ends_with("The fence is green."), "{out}");
    let words = ["memory", "search", "which fence?", "--agent", "a/b", "--limit", "3"];
    let (exit, seen) = piped(&daemon, &words).await;
    assert_eq!(exit, Exit::Done, "{}", seen.both());
    assert!(seen.out().contains("  0.82   The fence is green."), "{}", seen.out());
    let (_, seen) =
        piped(&daemon, &["memory", "search", "which fence?", "--agent", "a/b", "--limit", "3", "--json"]).await;
    assert_eq!(seen.json()[0]["score"], 0.8234);
    let (_, seen) = piped(&daemon, &["memory", "list", "--agent", "main"]).await;
    assert_eq!((seen.out(), seen.err()), (String::new(), "nothing is remembered there\n".into()));
    let (exit, seen) = piped(&daemon, &["memory", "forget", "fence/colour", "--session", "demo"]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "the note fence/colour is forgotten\n".into()));
    let (exit, seen) = piped(&daemon, &["memory", "forget", "other", "--session", "demo"]).await;
    assert_eq!(exit, Exit::NotFound, "{}", seen.both());
}

#[test]
fn whose_notes_are_meant_has_to_be_said_once() {
    for words in [
        vec!["memory"],
        vec!["memory", "list"],
        vec!["memory", "search", "x"],
        vec!["memory", "list", "--session", "s", "--agent", "a"],
    ] {
        assert!(parse(&words).is_err(), "{words:?}");
    }
}
