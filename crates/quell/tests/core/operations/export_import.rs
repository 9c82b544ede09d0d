//! Export and import sessions over HTTP.

use crate::prelude::*;

async fn export_session(api: &TestApiClient, session: &str) -> String {
    let request = api.request(Method::GET, &format!("/api/sessions/{}/export", percent_encode(session)));
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
    assert!(answer.headers().contains_key("content-length"), "without it a client cannot detect a truncated export");
    answer.text().await.unwrap()
}

/// The lines of an export without the mark of an import.
fn without_import_marks(lines: &str) -> Vec<Value> {
    let read = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if let Some(view) = line.get_mut("view").and_then(Value::as_object_mut) {
            view.remove("imported");
        }
        line
    };
    lines.lines().map(read).collect()
}

async fn import_lines(api: &TestApiClient, lines: impl Into<reqwest::Body>) -> TestApiResponse {
    let request = api.request(Method::POST, "/api/import").header("content-type", "application/x-ndjson");
    api.send(request.body(lines)).await
}

const SESSION_KEY: &str = "agent:main:ä/ö 1";

/// Fills a session with everything that it can have: a run with a call, a reset boundary, a stopped run with half an
/// answer, a steered message.
async fn fill_session(server: &TestServer) {
    server.model.script(ScriptedResponse::tool_call("c1", "list_files", &json!({"path": "."})));
    server.model.script(ScriptedResponse::text("first answer ü \u{1f980}"));
    let run = server.send_message(SESSION_KEY, "first question").await;
    server.wait_forgotten(&run).await;
    let reset = format!("/api/sessions/{}/reset", percent_encode(SESSION_KEY));
    let _ = server.http.post(&reset, &json!({})).await.expect_status(200);
    let run = server.start_streaming_run(SESSION_KEY).await;
    server.http.stop_run(&run).await;
    server.wait_forgotten(&run).await;
    let look = ScriptedStream::new().text("I look. ").wait_for_gate("go").tool_call("c2", "list_files", &json!({}));
    server.model.script(look).script(ScriptedResponse::text("second answer"));
    let index = server.model.recorded_requests().len();
    let run = server.send_message(SESSION_KEY, "second question").await;
    server.model.request_at(index).wait_paused().await;
    let steered = server.post_run(SESSION_KEY, &json!({"text": "on the way", "onBusy": "steer"})).await;
    assert_eq!(steered.expect_status(202)["state"], "steered");
    server.model.open_gate("go");
    server.wait_forgotten(&run).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_imported_into_an_empty_daemon_is_exported_byte_for_byte_and_goes_on() {
    let first = TestServer::start().await;
    fill_session(&first).await;
    let lines = export_session(&first.http, SESSION_KEY).await;
    let kinds: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_fields(&kinds[0], &json!({"quell": "session", "version": 1, "key": SESSION_KEY}));
    let words: Vec<&str> = kinds[1..].iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(words, ["run", "run", "run", "run", "turn", "reset", "turn", "turn"]);
    assert!(kinds[1]["view"]["receipt"]["settledAt"].is_object(), "the receipt is missing: {:#}", kinds[1]);
    let stopped = kinds[2]["id"].as_str().unwrap().to_owned();

    let second = TestServer::start().await;
    let row = import_lines(&second.http, lines.clone()).await.expect_status(201);
    assert_fields(&row, &json!({"key": SESSION_KEY, "turns": 2, "state": "expired"}));
    let again = export_session(&second.http, SESSION_KEY).await;
    assert_eq!(without_import_marks(&again), without_import_marks(&lines));
    assert!(again.lines().nth(1).unwrap().contains("\"imported\":{"), "the mark of the import is missing");
    let (here, there) = (first.http.run_view(&stopped).await, second.http.run_view(&stopped).await);
    assert_eq!(here["receipt"], there["receipt"]);

    second.run_scripted(SESSION_KEY, "third question", ScriptedResponse::text("third answer")).await;
    let seen = messages_as_text(second.model.recorded_requests().last().unwrap().messages());
    for text in ["second question", "second answer", "on the way"] {
        assert!(seen.contains(text), "{text} is not in {seen}");
    }
    assert!(!seen.contains("first question"), "history before the reset reached the model: {seen}");
    second.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_at_work_is_not_in_an_export() {
    let server = TestServer::start().await;
    server.run_to_end("s").await;
    let run = server.start_streaming_run("s").await;
    // The announced end of a run is enough for the export to contain it.
    let lines = export_session(&server.http, "s").await;
    assert!(!lines.contains(&run) && !lines.contains("begun"), "{lines}");
    assert_eq!(lines.lines().count(), 3, "{lines}");
    server.http.stop_run(&run).await;
    server.wait_forgotten(&run).await;
    assert!(export_session(&server.http, "s").await.contains(&run));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_over_what_is_there_is_refused_and_after_a_deletion_it_is_what_counts() {
    let server = TestServer::start().await;
    server.run_to_end("s").await;
    let lines = export_session(&server.http, "s").await;
    let refused = import_lines(&server.http, lines.clone()).await;
    assert_problem(&refused, 409, "conflict");
    assert!(refused.body["detail"].as_str().unwrap().contains("delete it first"), "{:#}", refused.body);
    // The same runs under another key would give receipts to two sessions.
    let moved = import_lines(&server.http, lines.replace("\"s\"", "\"t\"")).await;
    assert_problem(&moved, 409, "conflict");
    assert!(moved.body["detail"].as_str().unwrap().contains("in another session"), "{:#}", moved.body);
    // The next message must not see cached history of the deleted session.
    let _ = server.http.delete("/api/sessions/s").await.expect_status(204);
    let _ = import_lines(&server.http, lines.clone()).await.expect_status(201);
    assert_eq!(without_import_marks(&export_session(&server.http, "s").await), without_import_marks(&lines));
    server.run_to_end("s").await;
    let seen = server.model.recorded_requests().last().map(|request| request.messages().len()).unwrap();
    assert_eq!(seen, 4, "system, the imported turn, the new message");
}

#[rstest]
#[case::nothing("", 1, "nothing here")]
#[case::no_json("{\"quell\":\n", 1, "no JSON")]
#[case::no_head("{\"kind\":\"turn\"}\n", 1, "no session exported by quell")]
#[case::newer("{\"quell\":\"session\",\"version\":2,\"more\":1}\n", 1, "newer quell")]
#[case::another_thing(
    "{\"quell\":\"garden\",\"version\":1,\"key\":\"s\",\"agent\":\"a\",\"createdAt\":\"\",\"lastUsedAt\":\"\"}",
    1,
    "garden"
)]
#[case::unknown_field("HEAD,\"mood\":1}\n", 1, "mood")]
#[case::bad_time(
    "{\"quell\":\"session\",\"version\":1,\"key\":\"s\",\"agent\":\"a\",\"createdAt\":\"soon\",\"lastUsedAt\":\"x\"}",
    1,
    "createdAt"
)]
#[case::two_heads("HEAD}\nHEAD}\n", 2, "second head")]
#[case::unknown_kind("HEAD}\n\n{\"kind\":\"dream\",\"x\":1}\n", 3, "dream")]
#[case::no_kind("HEAD}\n{\"x\":1}\n", 2, "no kind")]
#[case::no_such_run("HEAD}\n{\"kind\":\"turn\",\"run\":\"r\",\"turn\":TURN}", 2, "no line before")]
#[case::wrong_run("HEAD}\n{\"kind\":\"turn\",\"run\":\"q\",\"turn\":TURN}", 2, "is of run r")]
#[case::damaged_turn("HEAD}\n{\"kind\":\"turn\",\"run\":\"r\",\"turn\":{\"version\":2}}", 2, "not readable")]
#[case::newer_turn("HEAD}\n{\"kind\":\"turn\",\"run\":\"r\",\"turn\":{\"version\":9}}", 2, "version 9")]
#[case::bad_view("HEAD}\nRUN,\"view\":{\"runId\":\"r\"}}", 2, "the view of run r")]
#[case::bad_utf8("HEAD}\n\u{fffd}", 2, "no JSON")]
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_line_is_named_with_its_number_and_nothing_is_imported(
    #[case] lines: &str,
    #[case] line: usize,
    #[case] why: &str,
) {
    const HEAD: &str = r#"{"quell":"session","version":1,"key":"s","agent":"main","createdAt":"2026-01-01T00:00:00Z","lastUsedAt":"2026-01-01T00:00:00Z""#;
    const RUN: &str = r#"{"kind":"run","id":"r","agent":"main","principal":"p","fingerprint":"f","state":"ended","acceptedAt":"2026-01-01T00:00:00Z""#;
    const TURN: &str = r#"{"version":2,"run_id":"r","items":[{"kind":"user","text":"hi"}],"verdict":{"kind":"completed"},"sealed_at":"2026-01-01T00:00:00Z","usage":{"inputTokens":1,"outputTokens":1,"estimated":false}}"#;
    let server = TestServer::start().await;
    let lines = lines.replace("HEAD", HEAD).replace("RUN", RUN).replace("TURN", TURN);
    let refused = import_lines(&server.http, lines).await;
    assert_problem(&refused, 400, "invalid_request");
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.starts_with(&format!("line {line}: ")) && detail.contains(why), "{detail}");
    assert!(detail.ends_with("nothing was imported"), "{detail}");
    let _ = server.http.get("/api/sessions/s").await.expect_status(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_are_not_over_are_refused_by_name() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    let lines = export_session(&server.http, "s").await;
    let _ = server.http.delete("/api/sessions/s").await.expect_status(204);
    let line = lines.lines().nth(1).unwrap();
    for (place, state) in [("/view/state", "running"), ("/state", "accepted")] {
        let mut row: Value = serde_json::from_str(line).unwrap();
        *row.pointer_mut(place).unwrap() = json!(state);
        let refused = import_lines(&server.http, lines.replace(line, &row.to_string())).await;
        assert_problem(&refused, 400, "invalid_request");
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(detail.starts_with("line 2: ") && detail.contains(state), "{detail}");
        assert!(state == "accepted" || detail.contains(&run), "{detail}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_has_its_own_limit_scope_and_kind_and_an_export_its_reader() {
    let server = TestServer::start_with(|plan| plan.engine.limits.import_bytes = 2000).await;
    server.run_to_end("s").await;
    let lines = export_session(&server.http, "s").await;
    let _ = server.http.delete("/api/sessions/s").await.expect_status(204);
    // Larger than the socket buffers: the server answers while the client still sends.
    let large = import_lines(&server.http, format!("{lines}{}", " \n".repeat(8 << 20))).await;
    assert_problem(&large, 413, "body_too_large");
    assert!(large.body["detail"].as_str().unwrap().contains("import_bytes"), "{:#}", large.body);
    let reader = server.api_with_new_token("eyes", "read").await;
    assert_problem(&import_lines(&reader, lines.clone()).await, 403, "forbidden");
    assert_problem(&reader.get("/api/sessions/s/export").await, 404, "session_not_found");
    assert_problem(&reader.with_token("nobody").get("/api/sessions/s/export").await, 401, "unauthorized");
    let form = server.http.request(Method::POST, "/api/import").header("content-type", "text/plain").body(lines);
    assert_problem(&server.http.send(form).await, 415, "unsupported_media_type");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_goes_along_without_its_keys_and_so_do_the_notes() {
    let (first, second) = (TestServer::start().await, TestServer::start().await);
    let asked = json!({"userId": "u", "chatId": "c", "provider": "scripted", "apiKey": "sk-secret", "instruction": "Be brief."});
    let made = first.http.post("/api/sessions", &asked).await.expect_status(201);
    let key = made["key"].as_str().unwrap().to_owned();
    let note = json!({"text": "The fence is green.", "key": "fence"});
    first.model.script(ScriptedResponse::tool_call("c1", "remember", &note));
    first.run_scripted(&key, "remember the fence", ScriptedResponse::text("noted")).await;
    let lines = export_session(&first.http, &key).await;
    assert!(!lines.contains("sk-secret") && lines.contains("Be brief."), "{lines}");
    let note = lines.lines().find(|line| line.contains("\"kind\":\"note\"") && line.contains("\"key\":\"fence\""));
    assert!(note.is_some_and(|line| line.contains("The fence is green.")), "{lines}");

    let _ = import_lines(&second.http, lines.clone()).await.expect_status(201);
    assert_eq!(without_import_marks(&export_session(&second.http, &key).await), without_import_marks(&lines));
    second.model.script(ScriptedResponse::tool_call("c1", "recall", &json!({"query": "fence"})));
    second.run_scripted(&key, "which colour?", ScriptedResponse::text("green")).await;
    let seen = messages_as_text(second.model.recorded_requests().last().unwrap().messages());
    assert!(seen.contains("Be brief."), "the session's own instruction is missing: {seen}");
    assert!(seen.matches("The fence is green.").count() >= 2, "the recalled note is missing: {seen}");

    // A key in plain text is refused, and so is the configuration of another session.
    let _ = second.http.delete(&format!("/api/sessions/{}", percent_encode(&key))).await.expect_status(204);
    for (bad, why) in [(r#""chatId":"c","apiKey":"k""#, "without its keys"), (r#""chatId":"d""#, "that of session")] {
        let refused = import_lines(&second.http, lines.replacen("\"chatId\":\"c\"", bad, 1)).await.expect_status(400);
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.starts_with("line 2: ") && detail.contains(why), "{detail}");
    }
}
