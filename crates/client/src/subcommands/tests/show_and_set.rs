//! The subcommands that show and set: runs, sessions, agents, hold, tokens.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::*;
use crate::test_support::daemon::run_view;
use crate::test_support::receipts;

fn items(items: Value) -> Value {
    json!({"items": items})
}

fn lines(seen: &CapturedStreams) -> Vec<String> {
    seen.out().lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn runs_are_listed_with_what_they_do() {
    let stopping = json!({"state": "ending", "verdict": receipts::aborted_by_user(), "processes": 3});
    let queued = json!({"state": "queued", "sessionKey": "other"});
    let runs = json!([run_view("r1", json!({})), run_view("run-2", stopping), run_view("r3", queued)]);
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/runs?state=active", items(runs)),
        ("GET /api/runs", items(json!([]))),
    ]);
    let seen = run_done(&daemon, &["runs"]).await;
    let lines = lines(&seen);
    assert!(lines[0].starts_with("RUN    STATE                    AGE"), "{}", lines[0]);
    assert!(lines[1].starts_with("r1     ◔ waiting for the model  "), "{}", lines[1]);
    assert!(lines[2].contains("◆ stopping") && lines[2].contains("  3  "), "{}", lines[2]);
    assert!(lines[3].contains("○ queued") && lines[3].ends_with("other"), "{}", lines[3]);

    let (_, seen) = run_piped(&daemon, &["runs", "list", "--session", "other", "--json"]).await;
    assert_eq!(seen.json().as_array().unwrap().len(), 1);
    let (_, seen) = run_piped(&daemon, &["runs", "list", "--all"]).await;
    assert_eq!((seen.out(), seen.err()), (String::new(), "no runs: start one with `quell send \"hello\"`\n".into()));
}

#[tokio::test]
async fn a_run_is_shown_with_its_receipt_as_a_picture() {
    let change = json!({
        "state": "ended", "verdict": receipts::aborted_by_user(), "receipt": receipts::stopped_receipt(), "output": "half\nan answer",
    });
    let daemon = ScriptedDaemon::with_replies(vec![("GET /api/runs/r1", run_view("r1", change))]);
    let seen = run_done(&daemon, &["runs", "show", "r1"]).await;
    let out = seen.out();
    for part in [
        "run r1 · ■ stopped\n",
        "session cli:default · agent main · by admin\n",
        "1 step · tokens 10 in, 4 out\n",
        "message: hello\n",
        "partial answer, not seen by the model:\nhalf\nan answer\n",
        "stopped in 12 ms · model closed after 0.4 ms",
        "the stop, 12 ms\n",
    ] {
        assert!(out.contains(part), "{part:?} in {out}");
    }
    let (_, seen) = run_piped(&daemon, &["runs", "show", "r1", "--json"]).await;
    assert_eq!(seen.json()["receipt"]["rung"], "term");
}

#[tokio::test]
async fn a_run_is_shown_with_its_changes_of_files() {
    let change = json!({"state": "ended", "verdict": {"kind": "completed"}, "receipt": receipts::stopped_receipt()});
    let row = |run: &str, diff: &str| json!({"runId": run, "role": "tool", "text": "", "at": "2026-05-01T10:00:00Z", "diff": diff});
    let newest = json!({"items": [row("r2", "+of another run")], "nextCursor": "older"});
    let older = json!({"items": [row("r1", "--- a/x\n+++ b/x\n-one\n+two"), row("r1", "+three")]});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/runs/r1", run_view("r1", change)),
        ("GET /api/sessions/cli:default/history?turns=50", newest),
        ("GET /api/sessions/cli:default/history?turns=50&cursor=older", older),
    ]);
    let out = run_done(&daemon, &["runs", "show", "r1"]).await.out();
    assert!(out.ends_with("\n\n--- a/x\n+++ b/x\n-one\n+two\n\n+three\n") && !out.contains("another run"), "{out}");
}

/// A daemon that lists one state of the runs after the other and then waits for Ctrl-C.
async fn watched(kind: CliOutputStreamKind, words: &[&str]) -> CapturedStreams {
    let looks = Mutex::new(vec![
        json!([]),
        json!([run_view("r1", json!({"steps": 2, "seq": 9}))]),
        json!([run_view("r1", json!({}))]),
    ]);
    let daemon = ScriptedDaemon::start(move |asked| match asked.route.as_str() {
        "GET /api/runs/r1" => {
            let change = json!({"state": "ended", "verdict": receipts::aborted_by_user(), "receipt": receipts::stopped_receipt()});
            ScriptedDaemonReply::Json(200, run_view("r1", change))
        }
        _ => ScriptedDaemonReply::Json(200, items(looks.lock().unwrap().pop().unwrap_or_else(|| json!([])))),
    });
    let mut test_io = TestIo::new(kind);
    let person = async {
        daemon.wait_for_request("GET /api/runs?state=active", 4).await;
        test_io.interruptions.send(Interruption::CtrlC).await.unwrap();
    };
    let (exit, ()) = tokio::join!(run_with_io(&daemon, words, &mut test_io.io), person);
    assert_eq!(exit, Exit::Done);
    test_io.captured
}

#[tokio::test]
async fn watching_in_json_prints_a_line_per_change() {
    let seen = watched(CliOutputStreamKind::Pipe, &["runs", "watch", "--json"]).await;
    let values: Vec<Value> = lines(&seen).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let changes: Vec<&str> = values.iter().map(|value| value["change"].as_str().unwrap()).collect();
    assert_eq!(changes, ["new", "changed", "over"]);
    assert_eq!(values[2]["run"]["verdict"]["kind"], "aborted");
}

#[tokio::test]
async fn watching_in_a_pipe_prints_words_without_escape_sequences() {
    let seen = watched(CliOutputStreamKind::Pipe, &["runs", "watch"]).await;
    let lines = lines(&seen);
    assert_eq!(lines.len(), 3);
    assert!(lines[0].ends_with("new  r1  ◔ waiting for the model"), "{}", lines[0]);
    assert!(lines[2].contains("over  r1  ■ stopped  stopped in 12 ms"), "{}", lines[2]);
    assert!(!seen.interleaved().contains('\u{1b}'));
}

#[tokio::test]
async fn watching_on_a_terminal_redraws_one_table() {
    let seen = watched(CliOutputStreamKind::Plain, &["runs", "watch"]).await;
    let out = seen.out();
    assert!(out.contains("1 active run · 0 processes · Ctrl-C leaves"), "{out:?}");
    assert!(out.contains("\u{1b}[3A\r"), "goes up over the sum, the heads and the row: {out:?}");
}

#[tokio::test]
async fn sessions_are_listed_shown_reset_and_deleted() {
    let row = json!({
        "key": "s/1", "state": "active", "agent": "main", "createdAt": "2026-01-01T00:00:00Z",
        "lastUsedAt": "2026-01-01T00:00:00Z", "activeRuns": ["r1"], "turns": 2,
    });
    let history = json!([
        {"runId": "r0", "role": "user", "text": "hello", "at": "2026-01-01T00:00:00Z"},
        {"runId": "r0", "role": "assistant", "text": "half", "at": "2026-01-01T00:00:00Z", "partial": true,
         "calls": [{"id": "c", "tool": "shell", "arguments": {"command": "ls"}}], "verdict": receipts::aborted_by_user()},
    ]);
    let daemon = ScriptedDaemon::with_replies(vec![
        ("GET /api/sessions", items(json!([row]))),
        ("GET /api/sessions/s%2F1", row),
        ("GET /api/sessions/s%2F1/history", items(history)),
        ("POST /api/sessions/s%2F1/reset", json!({})),
        ("DELETE /api/sessions/s%2F1", json!({})),
    ]);
    let (_, seen) = run_piped(&daemon, &["sessions"]).await;
    assert!(lines(&seen)[1].starts_with("s/1      ● active, 1 run  main   2      "), "{}", seen.out());
    let (_, seen) = run_piped(&daemon, &["sessions", "show", "s/1"]).await;
    let out = seen.out();
    for part in
        ["s/1 · active · 2 turns", "quell stop r1", "hello\n", "not seen by the model", "shell  {\"command\":\"ls\"}"]
    {
        assert!(out.contains(part), "{part:?} in {out}");
    }
    assert!(out.ends_with("■ stopped · run r0\n"), "{out}");
    let (exit, seen) = run_piped(&daemon, &["sessions", "reset", "s/1"]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "session s/1 is reset\n".into()));
    let (exit, seen) = run_piped(&daemon, &["sessions", "delete", "s/1", "--json"]).await;
    assert_eq!((exit, seen.json()), (Exit::Done, json!({"key": "s/1", "deleted": true})));
    let (exit, _) = run_piped(&daemon, &["sessions", "delete", "unknown"]).await;
    assert_eq!(exit, Exit::NotFound);
}

#[tokio::test]
async fn agents_are_a_tree() {
    let agent = |id: &str, parent: Value, children: Value, status: &str| {
        json!({
            "id": id, "model": "demo/chat", "parent": parent, "children": children, "computeStatus": status,
            "activeRuns": [], "default": id == "main",
        })
    };
    let agents = json!([
        agent("coder", json!("main"), json!([]), "waiting_llm"),
        agent("main", Value::Null, json!(["coder"]), "idle"),
        agent("ring", json!("ring"), json!(["ring"]), "stopping"),
    ]);
    let daemon = ScriptedDaemon::with_replies(vec![("GET /api/agents", items(agents))]);
    let seen = run_done(&daemon, &["agents"]).await;
    let firsts: Vec<String> = lines(&seen).iter().map(|line| line.split("  ").next().unwrap().to_owned()).collect();
    assert_eq!(firsts, ["AGENT", "main (default)", "· coder", "ring"]);
    assert!(seen.out().contains("◔ waiting for the model") && seen.out().contains("◆ stopping"));
}

fn node(id: &str, children: Value) -> Value {
    json!({"id": id, "model": "demo/chat", "computeStatus": "idle", "activeRuns": [], "children": children})
}

#[tokio::test]
async fn the_tree_is_drawn_for_eyes_and_indented_for_programs() {
    let mut main = node("main", json!([node("a", json!([node("b", json!([]))])), node("c", json!([]))]));
    main["default"] = json!(true);
    main["children"][1]["role"] = json!("third");
    let daemon =
        ScriptedDaemon::with_replies(vec![("GET /api/agents/tree", items(json!([main, node("other", json!([]))])))]);
    let firsts = |seen: &CapturedStreams| -> Vec<String> {
        lines(seen).iter().map(|line| line.split("  demo").next().unwrap().trim_end().to_owned()).collect()
    };
    let seen = run_done(&daemon, &["agents", "tree"]).await;
    assert_eq!(firsts(&seen)[1..], ["main (default)", "  a", "    b", "  c", "other"]);
    assert!(seen.out().contains("third"));
    let mut test_io = TestIo::new(CliOutputStreamKind::Plain);
    run_with_io(&daemon, &["agents", "tree"], &mut test_io.io).await;
    assert_eq!(firsts(&test_io.captured)[1..], ["main (default)", "├ a", "│ └ b", "└ c", "other"]);
    let (_, seen) = run_piped(&daemon, &["agents", "tree", "--json"]).await;
    assert_eq!(seen.json()[0]["children"][0]["children"][0]["id"], "b");
}

#[tokio::test]
async fn an_agent_is_shown_with_what_it_has_spent() {
    let agent = json!({
        "id": "coder", "model": "demo/chat", "parent": "main", "children": ["x", "y"], "role": "codes",
        "computeStatus": "waiting_llm", "activeRuns": ["r1"], "default": false,
        "spend": {"day": "2026-05-01", "tokens": 1200, "cost": 0.5, "dailyTokens": 5000, "dailyCost": 2.0},
    });
    let mut chained = agent.clone();
    chained["models"] = json!(["demo/chat", "a/x", "b/y"]);
    let replies = vec![("GET /api/agents/coder", agent.clone()), ("GET /api/agents/chained", chained.clone())];
    let daemon = ScriptedDaemon::with_replies(replies);
    let seen = run_done(&daemon, &["agents", "show", "chained"]).await;
    assert_eq!(lines(&seen)[0], "coder · demo/chat, then a/x, then b/y · ◔ waiting for the model");
    let seen = run_done(&daemon, &["agents", "show", "coder"]).await;
    let wanted = [
        "coder · demo/chat · ◔ waiting for the model",
        "role: codes",
        "parent: main",
        "children: x, y",
        "spent on 2026-05-01 (UTC): 1200 tokens of 5000 · cost 0.5000 of 2",
        "active: run r1 · stop it with `quell stop r1`",
    ];
    assert_eq!(lines(&seen), wanted);
    let (_, seen) = run_piped(&daemon, &["agents", "show", "coder", "--json"]).await;
    assert_eq!(seen.json(), agent);
    let (exit, _) = run_piped(&daemon, &["agents", "show", "nobody"]).await;
    assert_eq!(exit, Exit::NotFound);
}

#[tokio::test]
async fn agents_are_made_and_deleted() {
    let row = json!({
        "id": "scout", "model": "demo/chat", "children": [], "computeStatus": "idle", "activeRuns": [], "default": false,
    });
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/agents", row),
        ("DELETE /api/agents/scout?force=1", json!({"deleted": ["low", "scout"], "runIds": ["r1"]})),
        ("DELETE /api/agents/scout", json!({"deleted": ["low", "scout"], "runIds": []})),
    ]);
    let words = "agents create scout --model demo/chat --parent main --tool shell --tool fetch_url \
        --approval shell=ask --daily-cost 2 --price 3,15.5 --max-tokens 900";
    let words: Vec<&str> = words.split(' ').collect();
    let seen = run_done(&daemon, &words).await;
    assert_eq!(seen.out(), "agent scout is made; talk to it with `quell send --agent scout TEXT`\n");
    let body = json!({
        "id": "scout", "model": "demo/chat", "parent": "main", "tools": ["shell", "fetch_url"], "approvals": {"shell": "ask"},
        "dailyCost": 2.0, "price": {"input": 3.0, "output": 15.5}, "maxTokens": 900,
    });
    assert_eq!(daemon.requests()[0].body, body, "what is not said has its default there");
    let (exit, seen) = run_piped(&daemon, &["agents", "delete", "scout", "--force"]).await;
    assert_eq!(
        (exit, seen.out()),
        (Exit::Done, "run r1 was stopped\nagent low is deleted\nagent scout is deleted\n".into())
    );
    let (_, seen) = run_piped(&daemon, &["agents", "delete", "scout", "--json"]).await;
    assert_eq!(seen.json()["deleted"], json!(["low", "scout"]));
    for wrong in [
        vec!["agents", "create", "x"],
        vec!["agents", "create", "x", "--model", "a/b", "--price", "3"],
        vec!["agents", "create", "x", "--model", "a/b", "--daily-cost", "3"],
        vec!["agents", "create", "x", "--model", "a/b", "--approval", "shell"],
        vec!["agents", "create", "x", "--model", "a/b", "--no-tools", "--tool", "shell"],
        vec!["agents", "delete"],
    ] {
        assert!(parse_args(&wrong).is_err(), "{wrong:?}");
    }
}

#[tokio::test]
async fn a_hold_is_set_shown_and_lifted() {
    let on = json!({"held": true, "reason": "maintenance", "since": "2026-01-01T00:00:00Z", "by": "admin"});
    let daemon = ScriptedDaemon::with_replies(vec![
        ("PUT /api/hold", on.clone()),
        ("GET /api/hold", on),
        ("DELETE /api/hold", json!({"held": false})),
    ]);
    let seen = run_done(&daemon, &["hold", "on", "--reason", "maintenance"]).await;
    assert!(seen.out().starts_with("hold is on: new runs are refused · since "), "{}", seen.out());
    assert_eq!(daemon.requests()[0].body, json!({"held": true, "reason": "maintenance"}));
    let (_, seen) = run_piped(&daemon, &["hold", "--json"]).await;
    assert_eq!(seen.json()["by"], "admin");
    let (_, seen) = run_piped(&daemon, &["hold", "off"]).await;
    assert_eq!(seen.out(), "hold is off: new runs are taken\n");
}

#[tokio::test]
async fn a_token_is_shown_once_and_alone_on_the_output() {
    let daemon = ScriptedDaemon::with_replies(vec![
        ("POST /api/tokens", json!({"name": "ci", "scope": "read", "token": "q-secret"})),
        ("GET /api/tokens", items(json!([{"name": "ci", "scope": "read", "createdAt": "2026-01-01T00:00:00Z"}]))),
        ("POST /api/tokens/ci/rotate", json!({"name": "ci", "scope": "read", "token": "q-new"})),
        ("DELETE /api/tokens/ci", json!({})),
    ]);
    let (exit, seen) = run_piped(&daemon, &["token", "create", "ci", "--scope", "read"]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "q-secret\n".into()));
    assert_eq!(daemon.requests()[0].body, json!({"name": "ci", "scope": "read"}));
    let (_, seen) = run_piped(&daemon, &["token", "list"]).await;
    assert!(lines(&seen)[1].starts_with("ci    read   ") && lines(&seen)[1].contains("  never  "), "{}", seen.out());
    let words = ["token", "rotate", "ci", "--overlap", "10m", "--expires", "30d"];
    let (exit, seen) = run_piped(&daemon, &words).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "q-new\n".into()));
    assert_eq!(daemon.requests().last().unwrap().body, json!({"overlapS": 600, "expiresInS": 2_592_000}));
    let (exit, seen) = run_piped(&daemon, &["token", "revoke", "ci"]).await;
    assert_eq!((exit, seen.out()), (Exit::Done, "token ci is revoked\n".into()));
    let (exit, _) = run_piped(&daemon, &["token", "revoke", "other"]).await;
    assert_eq!(exit, Exit::NotFound);
}
