//! The audit log: every kind of action over every transport, with its origin. No stop waits for it, and no entry is
//! lost.

use quell_kernel::approval::ApprovalPolicy;
use quell_process::{WardenExe, base_environment};
use quell_protocol::audit::Action;
use quell_scope::clock::{Clock, SkippedTime};
use quell_store::test_support::RefusedWrite;
use quell_test_support::audit_entries::wait_audit_entries;
use quell_test_support::ws_client::WsTestClient;

use crate::prelude::*;

fn audit_columns(row: &Value) -> (&str, &str, &str, &str) {
    let word = |name: &str| row[name].as_str().unwrap_or_default();
    (word("principal"), word("surface"), word("action"), word("target"))
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_are_written_down_with_who_what_and_from_where() {
    let server = TestServer::start().await;
    let first = server.start_streaming_run("s").await;
    let path = format!("/api/runs/{first}/stop?wait=1");
    let _ = server.http.post(&path, &json!({"reason": "lunch"})).await.expect_status(200);
    let rows = wait_audit_entries(&server.http, 0, 1).await;
    assert_eq!(audit_columns(&rows[0]), ("admin", "http", "stop", format!("run {first}").as_str()), "{rows:#?}");
    // The first entry is the first use of the token.
    assert_eq!((&rows[0]["seq"], &rows[0]["from"]), (&json!(2), &json!("127.0.0.1")));
    assert_eq!(rows[0]["detail"], format!("stopped: {first}; reason: lunch"));
    assert!(rows[0]["at"].as_str().unwrap().ends_with('Z'), "{rows:#?}");

    // Behind a proxy on this machine both addresses are kept; the header of a remote peer would be ignored. It grants
    // no access.
    let second = server.start_streaming_run("s").await;
    let stop = server.http.request(Method::POST, "/api/sessions/s/stop?wait=1");
    let stop = stop.header("x-forwarded-for", "127.0.0.1").header("x-forwarded-for", "10.0.0.1, 203.0.113.9");
    let _ = server.http.send(stop).await.expect_status(200);
    let third = server.start_streaming_run("t").await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    client.call("chat.abort", json!({"sessionKey": "t"})).await;
    server.wait_ended(&third).await;
    let rows = wait_audit_entries(&server.http, 2, 2).await;
    assert_eq!(audit_columns(&rows[0]), ("admin", "http", "stop", "session s"));
    assert_eq!(rows[0]["from"], "127.0.0.1, forwarded for 10.0.0.1, 203.0.113.9");
    assert!(rows[0]["detail"].as_str().unwrap().contains(&second));
    assert_eq!(audit_columns(&rows[1]), ("admin", "ws", "stop", "session t"));
    assert_eq!(rows[1]["from"], "127.0.0.1");
    let outsider = server.http.with_token("").request(Method::GET, "/api/audit").header("x-forwarded-for", "127.0.0.1");
    assert_problem(&server.http.send(outsider).await, 401, "unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_effect_are_not_audited() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    server.wait_forgotten(&run).await;
    for path in [format!("/api/runs/{run}/stop"), "/api/sessions/s/stop".to_owned(), "/api/stop".to_owned()] {
        let _ = server.http.post(&path, &json!({})).await.expect_status(200);
    }
    let _ = server.http.delete("/api/tokens/nobody").await.expect_status(404);
    let _ = server.http.delete("/api/sessions/none").await.expect_status(404);
    let _ = server.post_run("s", &json!({"text": "/stop"})).await.expect_status(200);
    // Entries are ordered, so an entry before the hold would be visible by now.
    let _ = server.http.put("/api/hold", &json!({"reason": "upgrade"})).await.expect_status(200);
    let rows = wait_audit_entries(&server.http, 0, 1).await;
    assert_eq!((audit_columns(&rows[0]), &rows[0]["detail"]), (("admin", "http", "hold", ""), &json!("upgrade")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_force_behind_a_stop_is_a_deed_of_its_own() {
    let server = TestServer::start_with(|plan| {
        plan.engine.warden_exe = WardenExe::Path(quell_exe().into());
        plan.engine.environment = base_environment(std::env::vars_os());
        (plan.engine.stop_timeouts.term, plan.engine.stop_timeouts.grace) = (WAIT_TIMEOUT, WAIT_TIMEOUT * 2);
    })
    .await;
    let deaf = json!({"command": "trap '' TERM; echo armed; while :; do sleep 1; done"});
    server.model.script(ScriptedResponse::tool_call("c1", "shell", &deaf));
    let run = server.send_message("s", "do not listen").await;
    server.http.run_events(&run, 0).await.wait_for("tool.output").await;
    let path = format!("/api/runs/{run}/stop");
    let _ = server.http.post(&path, &json!({})).await.expect_status(202);
    // A repeated gentle stop adds no entry.
    let _ = server.http.post(&path, &json!({})).await.expect_status(202);
    let _ = server.http.post(&format!("{path}?wait=1"), &json!({"force": true})).await.expect_status(200);
    let rows = wait_audit_entries(&server.http, 0, 2).await;
    assert_eq!(rows[0]["detail"], format!("stopped: {run}; reason: user"));
    assert_eq!(rows[1]["detail"], format!("ending before: {run}; forced; reason: user"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_other_deed_is_written_down() {
    let server = TestServer::start_with(|plan| {
        let main = plan.engine.agents.get_mut(&AgentId::parse("main").unwrap()).unwrap();
        main.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
    })
    .await;
    let http = &server.http;
    server.run_to_end("s").await;
    let export = http.request(Method::GET, "/api/sessions/s/export").send().await.unwrap().text().await.unwrap();
    let writer = server.api_with_new_token("writer", "write").await;
    let approver = server.api_with_new_token("approver", "approve").await;
    for (decision, session) in [("allow", "a"), ("deny", "b")] {
        server.model.script(list_files_call()).script(ScriptedResponse::text("done"));
        let run = server.send_message(session, "list").await;
        let path = format!("/api/approvals/{}", http.wait_approval().await["id"].as_str().unwrap());
        let _ = approver.post(&path, &json!({"decision": decision})).await.expect_status(200);
        server.wait_ended(&run).await;
    }
    let _ = http.post("/api/sessions/s/reset", &json!({})).await.expect_status(200);
    let _ = http.delete("/api/sessions/s").await.expect_status(204);
    let import = http.request(Method::POST, "/api/import").body(export);
    let _ = http.send(import).await.expect_status(201);
    let _ = http.delete("/api/hold").await.expect_status(200);
    let _ = http.delete("/api/tokens/writer").await.expect_status(204);
    let rows = wait_audit_entries(http, 0, 9).await;
    let columns: Vec<_> = rows.iter().map(|row| (audit_columns(row).2, audit_columns(row).3)).collect();
    assert_eq!(columns[0], ("create_token", "token writer"));
    assert_eq!(columns[1], ("create_token", "token approver"));
    assert!(columns[2].0 == "approve" && columns[2].1.starts_with("approval "), "{columns:?}");
    assert_eq!(columns[3].0, "deny", "{columns:?}");
    for (column, action) in columns[4..7].iter().zip(["reset_session", "delete_session", "import_session"]) {
        assert_eq!(*column, (action, "session s"));
    }
    assert_eq!(columns[7..], [("lift_hold", ""), ("revoke_token", "token writer")]);
    assert!(rows[2]["detail"].as_str().unwrap().contains("tool: list_files"), "{:#}", rows[2]);
    let words: Vec<&str> = Action::ALL.iter().map(|action| action.as_str()).collect();
    assert!(columns.iter().all(|(action, _)| words.contains(action)));
    // Tokens of scope write or read may not read the log.
    assert_problem(&writer.get("/api/audit").await, 401, "unauthorized");
    assert_problem(&server.api_with_new_token("other", "write").await.get("/api/audit").await, 403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_is_read_in_pages_and_survives_its_daemon() {
    let server = TestServer::start().await;
    for held in [true, false, true, false, true] {
        let _ = server.http.put("/api/hold", &json!({"held": held})).await.expect_status(200);
    }
    // Entries from just before the end are included.
    let server = server.restart().await;
    let mut path = "/api/audit?limit=2".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = server.http.get(&path).await.expect_status(200);
        seen.extend(page["items"].as_array().unwrap().iter().map(|row| row["seq"].as_u64().unwrap()));
        let Some(next) = page["nextCursor"].as_str() else { break };
        path = format!("/api/audit?limit=2&after={next}");
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 6], "the first use of the token, and five holds");
    assert_problem(&server.http.get("/api/audit?after=x").await, 400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_no_list_and_what_was_refused_is_written_later_or_is_in_the_log() {
    let (model, daemon) = start_daemon("").await;
    let (http, other) = (daemon.api(), OtherProgram::connect(&daemon.home().data_dir()));
    other.refuse(RefusedWrite::AuditEntry);
    model.script(ScriptedResponse::silent_mid_stream("begun"));
    let run_id = http.send_message("s", "go on for ever").await;
    model.request_at(0).wait_paused().await;
    let stopped = http.stop_run(&run_id).await;
    assert_eq!(stopped["state"], "ended", "{stopped:#}");
    other.accept_again();
    let rows = wait_audit_entries(&http, 0, 1).await;
    assert_eq!(audit_columns(&rows[0]).3, format!("run {run_id}"));

    let shown = run_cli(daemon.home(), &["audit"]);
    let stop_line = shown.out.lines().find(|line| line.contains(&format!("run {run_id}")));
    assert!(shown.code == 0 && stop_line.is_some_and(|line| line.contains("  stop  ")), "{shown:?}");
    let none = run_cli(daemon.home(), &["audit", "--after", "1000", "--json"]);
    assert_eq!((none.code, none.out.as_str()), (0, "[]\n"), "{none:?}");

    other.refuse(RefusedWrite::AuditEntry);
    let _ = http.put("/api/hold", &json!({"reason": "the last deed"})).await.expect_status(200);
    daemon.stop().await;
    let log = daemon.output();
    let line = log.lines().find(|line| line.contains("only in this log"));
    let line = line.unwrap_or_else(|| panic!("the entry is lost: {log}"));
    for part in ["ERROR", "admin", "hold", "the last deed", "127.0.0.1"] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
}

/// The entries with this action, when there are `n`.
async fn wait_entries_of(api: &TestApiClient, action: &str, n: usize) -> Vec<Value> {
    poll_until(action, async || {
        let list = api.get("/api/audit?limit=1000").await.expect_status(200);
        let of_action = list["items"].as_array().unwrap().iter().filter(|row| row["action"] == action);
        let rows: Vec<Value> = of_action.cloned().collect();
        assert!(rows.len() <= n, "{rows:#?}");
        (rows.len() == n).then_some(rows)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_of_known_principals_are_written_down() {
    let time: &'static SkippedTime = Box::leak(Box::default());
    let server = TestServer::start_with(|plan| {
        plan.engine.clock = Clock::with_skipped_time(time);
        let main = plan.engine.agents.get_mut(&parse_agent_id("main")).unwrap();
        main.approvals.insert("list_files".to_owned(), ApprovalPolicy::Ask);
    })
    .await;
    let run = server.start_streaming_run("s").await;
    server.model.script(list_files_call());
    let _asking = server.send_message("asking", "list").await;
    let approval = server.http.wait_approval().await["id"].as_str().unwrap().to_owned();
    let body = json!({"name": "guest", "scope": "write", "expiresInS": 3600});
    let made = server.http.post("/api/tokens", &body).await.expect_status(201);
    let token = made["token"].as_str().unwrap();
    let guest = server.http.with_token(token);
    assert_problem(&guest.get("/api/audit").await, 403, "forbidden");
    assert_problem(&guest.post(&format!("/api/runs/{run}/stop"), &json!({})).await, 403, "forbidden");
    assert_problem(&guest.post_run("s", &json!({"text": "x"})).await, 403, "forbidden");
    let mut client = WsTestClient::connect_operator(&server, token).await;
    client.call_refused("hold.set", json!({"held": true})).await;
    client.call_refused("approvals.resolve", json!({"id": approval, "decision": "allow"})).await;
    // Strangers are in the log of the daemon, because nobody knows who they are.
    assert_problem(&server.http.with_token("wrong").get("/api/runs").await, 401, "unauthorized");
    assert_problem(&guest.get("/api/runs/none").await, 404, "run_not_found");
    time.skip(Duration::from_secs(3600));
    assert_problem(&guest.get("/api/runs").await, 401, "unauthorized");
    let rows = wait_entries_of(&server.http, "refused", 6).await;
    let targets: Vec<&str> = rows.iter().map(|row| row["target"].as_str().unwrap()).collect();
    let stop = format!("request POST /api/runs/{run}/stop");
    let expected = [
        "request GET /api/audit",
        &stop,
        "request POST /api/sessions/s/runs",
        "request hold.set",
        "request approvals.resolve",
        "request GET /api/runs",
    ];
    assert_eq!(targets, expected);
    assert!(rows.iter().all(|row| row["principal"] == "guest" && row["from"] == "127.0.0.1"), "{rows:#?}");
    assert!(rows[0]["detail"].as_str().unwrap().contains("scope admin"), "{rows:#?}");
    assert!(rows[5]["detail"].as_str().unwrap().contains("guest expired at"), "{rows:#?}");
    assert!(!json!(rows).to_string().contains(token), "the list holds a secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_use_of_a_token_from_an_address_is_written_down_once() {
    let server = TestServer::start().await;
    let token = server.create_token("bot", "read").await;
    let bot = server.http.with_token(&token);
    for proxied in [None, Some("203.0.113.9"), Some("203.0.113.9"), None, Some("2001:db8::1"), Some("2001:db8::2")] {
        let request = bot.request(Method::GET, "/api/runs");
        let request = match proxied {
            Some(address) => request.header("x-forwarded-for", address),
            None => request,
        };
        let _ = bot.send(request).await.expect_status(200);
    }
    let networks = |rows: &[Value]| -> Vec<String> {
        let of_bot = rows.iter().filter(|row| row["target"] == "token bot");
        of_bot.map(|row| row["detail"].as_str().unwrap().to_owned()).collect()
    };
    // One of them is the admin's.
    let rows = wait_entries_of(&server.http, "new_address", 4).await;
    let expected = ["127.0.0.1", "127.0.0.1 for 203.0.113.9", "127.0.0.1 for 2001:db8::/64"];
    assert_eq!(networks(&rows), expected.map(|network| format!("first use from {network}")));
    let server = server.restart().await;
    let bot = server.http.with_token(&token);
    let _ = bot.get("/api/runs").await.expect_status(200);
    let request = bot.request(Method::GET, "/api/runs").header("x-forwarded-for", "198.51.100.1");
    let _ = bot.send(request).await.expect_status(200);
    let rows = wait_entries_of(&server.http, "new_address", 5).await;
    assert_eq!(networks(&rows).len(), 4, "known addresses survive a restart: {rows:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_exported_as_lines_of_json_by_admins() {
    let (_model, daemon) = start_daemon("").await;
    let http = daemon.api();
    for n in 0..3 {
        let _ = http.put("/api/hold", &json!({"held": n % 2 == 0})).await.expect_status(200);
    }
    let listed = wait_audit_entries(&http, 0, 3).await;
    let path = "/api/audit?format=jsonl";
    let answer = http.request(Method::GET, path).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    let text = answer.text().await.unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(text.ends_with('\n') && listed.iter().all(|row| rows.contains(row)), "{text}");
    let rest = http.request(Method::GET, &format!("{path}&after={}&limit=1", rows[0]["seq"]));
    assert_eq!(rest.send().await.unwrap().text().await.unwrap(), text.lines().nth(1).unwrap().to_owned() + "\n");
    let shown = run_cli(daemon.home(), &["audit", "export"]);
    assert!(shown.code == 0 && shown.out.starts_with(&text), "{shown:?}");
    let none = run_cli(daemon.home(), &["audit", "export", "--after", "1000"]);
    assert_eq!((none.code, none.out.as_str()), (0, ""));
    let made = http.post("/api/tokens", &json!({"name": "eyes", "scope": "read:all"})).await.expect_status(201);
    let reader = http.with_token(made["token"].as_str().unwrap());
    assert_problem(&reader.get(path).await, 403, "forbidden");
    assert_problem(&http.get("/api/audit?format=csv").await, 400, "invalid_request");
}
