//! `sessions.compact` and `chat.inject`, and the compaction over HTTP.

use super::{WsTestClient, start_connected};
use crate::prelude::*;

async fn send_and_wait(server: &TestServer, client: &mut WsTestClient, text: &str, key: &str, answer: &str) {
    server.model.script(ScriptedResponse::text(answer));
    client.send_chat("s", text, key).await;
    server.wait_ended(key).await;
}

/// The messages of the newest model request, as text.
fn sent_text(server: &TestServer) -> String {
    messages_as_text(server.model.recorded_requests().pop().unwrap().messages())
}

fn shown_texts(history: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let rows = history["messages"].as_array().unwrap().iter();
    rows.map(|row| (text(&row["role"]), text(&row["content"][0]["text"]))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_summarised_on_request() {
    let (server, mut client) = start_connected().await;
    send_and_wait(&server, &mut client, "tell me of boats", "k", "Boats are fine.").await;
    server.model.script(ScriptedResponse::text("It was about boats."));
    let compacted = client.call("sessions.compact", json!({"key": "s"})).await;
    assert_fields(&compacted, &json!({"ok": true, "key": "s", "compacted": true}));
    let again = client.call("sessions.compact", json!({"key": "s"})).await;
    assert_fields(&again, &json!({"ok": true, "compacted": false}));
    assert!(again["reason"].as_str().unwrap().contains("nothing to summarise"), "{again}");
    send_and_wait(&server, &mut client, "and of trains?", "l", "They are, too.").await;
    let sent = sent_text(&server);
    assert!(sent.contains("It was about boats.") && !sent.contains("Boats are fine."), "{sent}");
    let history = client.call("chat.history", json!({"sessionKey": "s"})).await;
    let texts = shown_texts(&history);
    let roles: Vec<&str> = texts.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "assistant", "user", "assistant"], "{texts:?}");
    assert!(texts[2].1.contains("was summarised"), "{texts:?}");
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_ends_a_summary_and_the_conversation_stays() {
    let (server, mut client) = start_connected().await;
    send_and_wait(&server, &mut client, "tell me of boats", "k", "Boats are fine.").await;
    server.model.script(ScriptedResponse::silent_mid_stream("It was ab"));
    let summary_request = server.model.request_at(server.model.request_count());
    let id = client.send_request("sessions.compact", json!({"key": "s"})).await;
    // A run that is stopped before its request would leave this answer to the next message.
    summary_request.wait_paused().await;
    let runs = server.http.get("/api/runs?state=active").await.expect_status(200);
    let run = runs["items"][0]["runId"].as_str().unwrap().to_owned();
    let busy = client.call_refused("sessions.compact", json!({"key": "s"})).await;
    assert!(busy["message"].as_str().unwrap().contains("busy"), "{busy}");
    let stopped = client.call("sessions.abort", json!({"key": "s"})).await;
    assert_eq!(stopped["runIds"], json!([run]));
    let answer = client.wait_response(&id).await["payload"].clone();
    assert_fields(&answer, &json!({"ok": false, "compacted": false, "runId": run}));
    assert_eq!(server.wait_ended(&run).await["receipt"]["leftovers"], json!([]));
    let listed = client.call("sessions.list", json!({"includeLastMessage": true})).await;
    assert_eq!(listed["sessions"][0]["lastMessagePreview"], "Boats are fine.", "{listed:#}");
    send_and_wait(&server, &mut client, "go on", "l", "Yes.").await;
    assert!(!sent_text(&server).contains("asked to summarise"), "{}", sent_text(&server));
    assert!(sent_text(&server).contains("Boats are fine."), "{}", sent_text(&server));
    server.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_summary_is_requested_over_http_and_fails_with_a_reason() {
    let (server, mut client) = start_connected().await;
    let compact = "/api/sessions/s/compact";
    assert_problem(&server.http.post(compact, &json!({})).await, 404, "session_not_found");
    send_and_wait(&server, &mut client, "tell me of boats", "k", "Boats are fine.").await;
    server.model.script(ScriptedResponse::status(401));
    let started = server.http.post(compact, &json!({})).await.expect_status(202);
    let run = server.wait_ended(started["runId"].as_str().unwrap()).await;
    assert_fields(&run["verdict"], &json!({"kind": "failed", "code": "compaction_failed"}));
    server.model.script(ScriptedResponse::text("It was about boats."));
    let started = server.http.post(compact, &json!({})).await.expect_status(202);
    let run = server.wait_ended(started["runId"].as_str().unwrap()).await;
    assert_eq!(run["verdict"]["kind"], "completed", "{run:#}");
    assert_problem(&server.http.post(compact, &json!({})).await, 409, "conflict");
    server.http.put("/api/hold", &json!({})).await.expect_status(200);
    send_held(&server).await;
}

async fn send_held(server: &TestServer) {
    let mut client = WsTestClient::connect_operator(server, &server.token).await;
    let held = client.call_refused("chat.inject", json!({"sessionKey": "s", "message": "x"})).await;
    assert_eq!(held["details"]["reason"], "held", "{held}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_added_in_the_name_of_the_assistant() {
    let (server, mut client) = start_connected().await;
    let mut other = WsTestClient::connect_operator(&server, &server.token).await;
    let inject = |message: &str| json!({"sessionKey": "s", "message": message, "label": "Ops"});
    let unknown = client.call_refused("chat.inject", inject("x")).await;
    assert!(unknown["message"].as_str().unwrap().contains("no session"), "{unknown}");
    send_and_wait(&server, &mut client, "hello", "k", "Hi.").await;
    other.call("sessions.messages.subscribe", json!({"key": "s"})).await;
    let added = client.call("chat.inject", inject("The build is green.")).await;
    let run = added["runId"].as_str().unwrap().to_owned();
    assert_fields(&added, &json!({"ok": true, "messageId": format!("{run}:1")}));
    let shown = other.wait_chat(&run, "final").await;
    assert_eq!(shown["message"]["content"][0]["text"], "[Ops]\n\nThe build is green.");
    let message = other.wait_event("session.message").await["payload"]["message"].clone();
    assert_eq!(message["role"], "assistant", "{message}");
    send_and_wait(&server, &mut client, "and now?", "l", "Good.").await;
    let sent = sent_text(&server);
    assert!(sent.contains("The build is green.") && sent.contains("answers no request"), "{sent}");
    let history = client.call("chat.history", json!({"sessionKey": "s"})).await;
    assert_eq!(history["messages"][2]["__openclaw"]["id"], added["messageId"], "{history:#}");
    let texts = shown_texts(&history);
    let roles: Vec<&str> = texts.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "assistant", "user", "assistant"], "{texts:?}");
    server.model.assert_histories_valid();

    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    client.send_chat("s", "work", "m").await;
    client.wait_chat("m", "delta").await;
    let busy = client.call_refused("chat.inject", inject("x")).await;
    assert!(busy["message"].as_str().unwrap().contains("busy"), "{busy}");
    client.call("chat.abort", json!({"sessionKey": "s"})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn titles_and_previews_leave_out_requests_that_nobody_wrote() {
    let (server, mut client) = start_connected().await;
    let key = client.call("sessions.create", json!({"key": "s"})).await["key"].as_str().unwrap().to_owned();
    client.call("chat.inject", json!({"sessionKey": key, "message": "Welcome."})).await;
    let params = json!({"includeDerivedTitles": true, "includeLastMessage": true});
    let listed = client.call("sessions.list", params).await;
    assert_fields(&listed["sessions"][0], &json!({"derivedTitle": null, "lastMessagePreview": "Welcome."}));
    let previews = client.call("sessions.preview", json!({"keys": [key]})).await;
    assert_eq!(previews["previews"][0]["items"], json!([{"role": "assistant", "text": "Welcome."}]), "{previews:#}");
    server.model.assert_histories_valid();
}

/// The stop is sent right behind the request, so it arrives before, while or after the run is accepted.
#[tokio::test(flavor = "multi_thread")]
async fn an_abort_that_crosses_an_acceptance_ends_the_agent_request() {
    let (server, mut client) = start_connected().await;
    for round in 0..20 {
        server.model.script(ScriptedResponse::SilentBeforeHeaders);
        let key = format!("k{round}");
        let params = json!({"message": "hello", "idempotencyKey": key, "sessionKey": format!("s{round}")});
        let id = client.send_request("agent", params).await;
        let abort = json!({"sessionKey": format!("s{round}"), "runId": key});
        let abort = client.send_request("chat.abort", abort).await;
        assert_eq!(client.wait_response(&abort).await["ok"], true);
        assert_eq!(client.wait_response(&id).await["payload"]["status"], "accepted");
        let last = client.wait_response(&id).await["payload"].clone();
        assert_fields(&last, &json!({"runId": key, "summary": "aborted"}));
        let run = server.wait_ended(&key).await;
        assert_fields(&run["receipt"], &json!({"leftovers": []}));
    }
}
