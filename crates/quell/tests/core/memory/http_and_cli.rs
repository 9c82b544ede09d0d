//! The HTTP routes and the `quell memory` command.

use quell_test_support::audit_entries::wait_audit_entries;

use super::*;

/// Starts a server with two notes of session `s` and one of the agent `main`.
async fn start_server_with_notes() -> TestServer {
    let server = TestServer::start().await;
    for (key, text, scope) in [
        ("fence/colour", "The fence is green.", "session"),
        ("울타리", "울타리는 초록색이다", "session"),
        ("fences", "Fences need paint.", "agent"),
    ] {
        let note = json!({"text": text, "key": key, "scope": scope});
        server.model.script(ScriptedResponse::tool_call("c1", "remember", &note));
        server.run_to_end("s").await;
    }
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_are_listed_searched_and_forgotten_over_http() {
    let server = start_server_with_notes().await;
    let list = server.http.get("/api/sessions/s/memory").await.expect_status(200);
    let keys: Vec<_> = list["items"].as_array().unwrap().iter().map(|note| note["key"].clone()).collect();
    assert_eq!(keys, ["울타리", "fence/colour"], "the newest note comes first");
    assert!(list["items"][0]["at"].is_string() && list["items"][0].get("score").is_none(), "{list}");
    let page = server.http.get("/api/sessions/s/memory?limit=1").await.expect_status(200);
    let cursor = page["nextCursor"].as_str().unwrap();
    let next = server.http.get(&format!("/api/sessions/s/memory?limit=1&cursor={cursor}")).await.expect_status(200);
    assert_eq!((&next["items"][0]["key"], next.get("nextCursor")), (&json!("fence/colour"), None));

    for (query, key) in [("which fence%3F", "fence/colour"), ("%EC%B4%88%EB%A1%9D%EC%83%89", "울타리")] {
        let found = server.http.get(&format!("/api/sessions/s/memory?query={query}")).await.expect_status(200);
        assert_eq!(found["items"].as_array().unwrap().len(), 1, "{found}");
        assert_eq!(found["items"][0]["key"], key);
        assert!(found["items"][0]["score"].as_f64().unwrap() > 0.4, "{found}");
    }
    for odd in ["%22", "*", "NEAR(", "AND", "%00", ""] {
        let found = server.http.get(&format!("/api/sessions/s/memory?query={odd}")).await.expect_status(200);
        assert_eq!(found["items"], json!([]), "{odd}");
    }
    let agent = server.http.get("/api/agents/main/memory").await.expect_status(200);
    assert_eq!(agent["items"][0]["text"], "Fences need paint.");

    assert_eq!(server.http.delete("/api/sessions/s/memory/fence%2Fcolour").await.status, 204);
    assert_problem(&server.http.delete("/api/sessions/s/memory/fence%2Fcolour").await, 404, "not_found");
    let list = server.http.get("/api/sessions/s/memory").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(server.http.delete("/api/agents/main/memory/fences").await.status, 204);
    assert_eq!(server.http.get("/api/agents/main/memory").await.expect_status(200)["items"], json!([]));
    let audit = wait_audit_entries(&server.http, 0, 2).await;
    let columns = |at: usize| ["action", "target", "detail"].map(|field| &audit[at][field]);
    assert_eq!(columns(0), ["forget_note", "note fence/colour", "of session \"s\""]);
    assert_eq!(columns(1), ["forget_note", "note fences", "of agent \"main\""]);
}

#[tokio::test(flavor = "multi_thread")]
async fn looking_needs_read_and_forgetting_what_others_began_an_admin() {
    let server = start_server_with_notes().await;
    let reader = server.api_with_new_token("eyes", "read:all").await;
    let writer = server.api_with_new_token("hands", "write").await;
    let _ = reader.get("/api/sessions/s/memory").await.expect_status(200);
    let _ = reader.get("/api/agents/main/memory?query=paint").await.expect_status(200);
    assert_problem(&reader.delete("/api/agents/main/memory/fences").await, 403, "forbidden");
    for path in ["/api/agents/main/memory/fences", "/api/senders/tg:1/memory/x", "/api/senders/tg:1/memory"] {
        assert_problem(&writer.delete(path).await, 403, "forbidden");
    }
    assert_problem(&writer.delete("/api/sessions/s/memory/fence%2Fcolour").await, 403, "forbidden");
    assert_eq!(server.http.delete("/api/agents/main/memory/fences").await.status, 204);
    let stranger = server.http.with_token("wrong");
    assert_problem(&stranger.get("/api/sessions/s/memory").await, 401, "unauthorized");
    assert_problem(&reader.get("/api/sessions/nobody/memory").await, 404, "session_not_found");
    assert_problem(&reader.get("/api/agents/nobody/memory").await, 404, "agent_not_found");
    assert_problem(&writer.delete("/api/sessions/nobody/memory/x").await, 404, "not_found");
    assert_problem(&reader.get("/api/sessions/s/memory?q=x").await, 400, "invalid_request");
    assert_problem(&reader.get("/api/sessions/s/memory?cursor=x").await, 400, "invalid_request");
    assert_problem(&reader.get("/api/sessions/s/memory?query=x&cursor=n").await, 400, "invalid_request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_reads_the_memory_of_a_daemon_that_was_started_anew() {
    let (model, daemon) = start_daemon("[memory]\nauto_save = true\nauto_recall = true\n").await;
    let know = json!({"text": "The fence is green.", "key": "fence-colour", "scope": "agent"});
    model.script(ScriptedResponse::tool_call("c1", "remember", &know)).script(ScriptedResponse::text("Noted."));
    let sent = run_cli(daemon.home(), &["send", "--session", "demo", "remember that the fence is green"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(daemon.stop().await.success());

    let daemon = daemon.home().start(quell_exe()).await;
    let listed = run_cli(daemon.home(), &["memory", "list", "--agent", "main"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    assert!(listed.out.contains("fence-colour  core") && listed.out.contains("The fence is green."), "{listed:?}");
    let search = ["memory", "search", "what colour is the fence?", "--session", "demo", "--json"];
    let found = run_cli(daemon.home(), &search);
    let found: Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!(found[0]["text"], "remember that the fence is green");
    assert_eq!(found[0]["category"], "conversation");

    model.script(ScriptedResponse::text("Green."));
    let sent = run_cli(daemon.home(), &["send", "--session", "other", "which colour has the fence?"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let asked = model.recorded_requests().pop().unwrap();
    let text = asked.messages().last().unwrap()["content"].as_str().unwrap().to_owned();
    assert_eq!(
        without_time(&text),
        "[Memory context]\n- fence-colour: The fence is green.\n\nwhich colour has the fence?"
    );

    let forgotten = run_cli(daemon.home(), &["memory", "forget", "fence-colour", "--agent", "main"]);
    assert_eq!((forgotten.code, forgotten.out.as_str()), (0, "the note fence-colour is forgotten\n"));
    let missing = run_cli(daemon.home(), &["memory", "forget", "fence-colour", "--agent", "main"]);
    assert_eq!(missing.code, 3, "{missing:?}");
    assert!(missing.err.contains("the agent \"main\" has no note \"fence-colour\""), "{missing:?}");
    assert!(daemon.stop().await.success());
}
