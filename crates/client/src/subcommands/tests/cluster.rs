//! `quell cluster` and `quell drain`.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::*;

fn node(name: &str, change: &Value) -> Value {
    let mut view = json!({
        "node": name, "epoch": 1, "version": "0.1.0", "joinedAt": "2026-11-20T10:00:00.000000Z", "state": "active",
        "silentForMs": 100, "leaseEndsInMs": 9900, "sessions": 3, "activeRuns": 1, "maxInFlight": 64, "processes": 0,
        "self": false,
    });
    view.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    view
}

fn cluster(nodes: &[Value], skew_ms: i64) -> Value {
    json!({"node": "a", "leaseMs": 10000, "nodes": nodes, "databaseClockSkewMs": skew_ms, "lagMs": 4})
}

#[tokio::test]
async fn nodes_are_listed_and_a_silent_one_is_a_failure() {
    let nodes = [
        node("a", &json!({"self": true})),
        node("b", &json!({"state": "draining"})),
        node("c", &json!({"state": "silent", "silentForMs": 6000, "leaseEndsInMs": 4000})),
    ];
    let well = ScriptedDaemon::with_replies(vec![("GET /api/cluster", cluster(&nodes[..2], 0))]);
    let seen = run_done(&well, &["cluster"]).await;
    let out = seen.out();
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("NODE  STATE       LEASE"), "{out}");
    assert!(lines[1].starts_with("a*    ● active"), "{out}");
    assert!(lines[2].contains("◔ draining") && lines[2].contains("1/64"), "{out}");
    assert!(lines[3].starts_with("* a answers · leases of ") && seen.err().is_empty(), "{}", seen.interleaved());

    let ill = ScriptedDaemon::with_replies(vec![("GET /api/cluster", cluster(&nodes, -5000))]);
    let (exit, seen) = run_piped(&ill, &["cluster", "status"]).await;
    assert_eq!(exit, Exit::Failed);
    assert!(seen.out().contains("▲ silent") && seen.out().contains("(silent for"), "{}", seen.out());
    assert!(seen.err().contains("behind that of a; leases do not depend on it"), "{}", seen.err());
    let (_, seen) = run_piped(&ill, &["cluster", "status", "--json"]).await;
    assert_eq!(seen.json()["nodes"][2]["state"], "silent");
}

#[tokio::test]
async fn a_drain_is_followed_until_nothing_is_left() {
    let left = |sessions: u64| json!({"draining": true, "sessions": sessions, "activeRuns": 0, "processes": 0});
    let answers = Mutex::new(vec![left(0), left(1), left(2)]);
    let daemon = ScriptedDaemon::start(move |_| {
        let next = answers.lock().unwrap().pop();
        ScriptedDaemonReply::Json(200, next.unwrap_or_else(|| left(9)))
    });
    let seen = run_done(&daemon, &["drain", "--stop", "--wait"]).await;
    assert_eq!(seen.out(), "drained: nothing is left on the node, and it takes no new sessions\n");
    let seen = run_done(&daemon, &["drain"]).await;
    assert!(seen.out().contains("9 sessions, 0 runs, 0 background processes left"), "{}", seen.out());
    assert!(parse_args(&["drain", "--undo", "--wait"]).is_err());
}
