//! `quell memory` against a scripted daemon.

use serde_json::json;

use super::*;

#[tokio::test]
async fn notes_are_listed_searched_and_forgotten() {
    let note = json!({"key": "fence/colour", "category": "core", "text": "The fence\nis green.", "at": "2026-11-20T10:00:00Z"});
    let mut found = note.clone();
    found["score"] = json!(0.8234);
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/sessions/demo/memory", json!({"items": [note]})),
        ("GET /api/agents/a%2Fb/memory?query=which+fence%3F&limit=3", json!({"items": [found]})),
        ("GET /api/agents/main/memory", json!({"items": []})),
        ("DELETE /api/sessions/demo/memory/fence%2Fcolour", json!({})),
    ]);
    let seen = run_done(&daemon, &["memory", "list", "--session", "demo"]).await;
    let out = seen.out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("KEY           CATEGORY  REMEMBERED"), "{out}");
    assert!(lines[1].starts_with("fence/colour  core      ") && lines[1].ends_with("The fence is green."), "{out}");
    let words = ["memory", "search", "which fence?", "--agent", "a/b", "--limit", "3"];
    let seen = run_done(&daemon, &words).await;
    assert!(seen.out().contains("  0.82   The fence is green."), "{}", seen.out());
    let (_, seen) =
        run_piped(&daemon, &["memory", "search", "which fence?", "--agent", "a/b", "--limit", "3", "--json"]).await;
    assert_eq!(seen.json()[0]["score"], 0.8234);
    let (_, seen) = run_piped(&daemon, &["memory", "list", "--agent", "main"]).await;
    assert_eq!((seen.out(), seen.err()), (String::new(), "nothing is remembered there\n".into()));
    let (exit, seen) = run_piped(&daemon, &["memory", "forget", "fence/colour", "--session", "demo"]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "the note fence/colour is forgotten\n".into()));
    let (exit, seen) = run_piped(&daemon, &["memory", "forget", "other", "--session", "demo"]).await;
    assert_eq!(exit, Exit::NotFound, "{}", seen.interleaved());
}

#[tokio::test]
async fn senders_are_listed_and_forgotten() {
    let sender = |name: &str, notes: u64| json!({"sender": name, "notes": notes, "newestAt": "2026-11-20T10:00:00Z"});
    let note = json!({"key": "shop_kim_1", "category": "conversation", "text": "a boat", "at": "2026-11-20T10:00:00Z"});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/senders", json!({"items": [sender("matrix:@ann:h", 12), sender("shop:kim/7 ü\u{7}", 1)]})),
        ("GET /api/senders/shop:kim%2F7%20%C3%BC/memory", json!({"items": [note]})),
        ("DELETE /api/senders/shop:kim%2F7%20%C3%BC/memory/shop_kim_1", json!({})),
        ("DELETE /api/senders/matrix:@ann:h/memory", json!({"forgotten": 12})),
    ]);
    let seen = run_done(&daemon, &["memory", "senders"]).await;
    let out = seen.out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("SENDER         NOTES  NEWEST"), "{out}");
    assert!(lines[1].starts_with("matrix:@ann:h  12     ") && lines[2].starts_with("shop:kim/7 ü   1 "), "{out}");
    let (_, seen) = run_piped(&daemon, &["memory", "senders", "--json"]).await;
    assert_eq!(seen.json()[0], sender("matrix:@ann:h", 12));
    let (_, seen) = run_piped(&daemon, &["memory", "list", "--sender", "shop:kim/7 ü"]).await;
    assert!(seen.out().contains("shop_kim_1") && seen.out().contains("a boat"), "{}", seen.interleaved());
    let (_, seen) = run_piped(&daemon, &["memory", "forget", "shop_kim_1", "--sender", "shop:kim/7 ü"]).await;
    assert_eq!(seen.out(), "the note shop_kim_1 is forgotten\n");
    let all = ["memory", "forget", "--all", "--sender", "matrix:@ann:h"];
    let (exit, seen) = run_piped(&daemon, &all).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "matrix:@ann:h is forgotten: 12 notes\n".into()));
    let (_, seen) = run_piped(&daemon, &[&all[..], &["--json"]].concat()).await;
    assert_eq!(seen.json(), json!({"sender": "matrix:@ann:h", "forgotten": 12}));
    let (exit, seen) = run_piped(&daemon, &["memory", "forget", "--all", "--sender", "tg:1"]).await;
    assert_eq!((exit, seen.out()), (Exit::NotFound, String::new()), "{}", seen.interleaved());
}

#[tokio::test]
async fn an_empty_list_of_senders_is_no_table() {
    let daemon = ScriptedDaemon::with_replies(vec![("GET /api/senders", json!({"items": []}))]);
    let (exit, seen) = run_piped(&daemon, &["memory", "senders"]).await;
    let nobody = "nothing is remembered of anybody who writes in a chat network\n";
    assert_eq!((exit, seen.out(), seen.err()), (Exit::Done, String::new(), nobody.to_owned()));
}

#[test]
fn the_scope_of_notes_must_be_given_exactly_once() {
    for words in [
        vec!["memory"],
        vec!["memory", "list"],
        vec!["memory", "search", "x"],
        vec!["memory", "list", "--session", "s", "--agent", "a"],
        vec!["memory", "list", "--session", "s", "--sender", "tg:1"],
        vec!["memory", "forget", "--sender", "tg:1"],
        vec!["memory", "forget", "--all"],
        vec!["memory", "forget", "--all", "--session", "s"],
        vec!["memory", "forget", "--all", "--agent", "a", "--sender", "tg:1"],
        vec!["memory", "forget", "key", "--all", "--sender", "tg:1"],
    ] {
        assert!(parse_args(&words).is_err(), "{words:?}");
    }
}
