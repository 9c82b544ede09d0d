//! Files that gateway clients send with a message.

use quell_process::{WardenExe, base_environment};

use super::{WsTestClient, chat_send_params};
use crate::prelude::*;

/// The smallest file that counts as a picture, its signature alone.
const PNG: &str = "iVBORw0KGgo=";

async fn start_seeing() -> (TestServer, WsTestClient) {
    let server = TestServer::start_with(|config| {
        config.engine.agents.get_mut(&parse_agent_id("main")).unwrap().vision = true;
    })
    .await;
    let client = WsTestClient::connect_operator(&server, &server.token).await;
    (server, client)
}

fn with_files(text: &str, key: &str, files: &Value) -> Value {
    let mut params = chat_send_params("s", text, key);
    params["attachments"] = files.clone();
    params
}

/// The content of the newest message, as the model got it.
fn sent_content(server: &TestServer) -> Value {
    let request = server.model.recorded_requests().pop().unwrap();
    request.messages().last().unwrap()["content"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_reaches_the_model_and_not_the_history() {
    let (server, mut client) = start_seeing().await;
    let picture = json!([{"type": "image", "mimeType": "image/png", "fileName": "dot.png", "content": PNG}]);
    server.model.script(ScriptedResponse::text("a dot")).script(ScriptedResponse::text("the dot"));
    client.call("chat.send", with_files("what is this?", "k", &picture)).await;
    client.wait_chat("k", "final").await;
    let url = format!("data:image/png;base64,{PNG}");
    let shown = json!({"type": "image_url", "image_url": {"url": url}});
    let content = sent_content(&server);
    assert_eq!(content.as_array().unwrap().last(), Some(&shown), "{content:#}");
    let receipt = server.wait_ended("k").await["receipt"].clone();
    assert!(receipt["resources"].to_string().contains("files of a message (1)"), "{receipt:#}");
    let again = client.call("chat.send", with_files("what is this?", "k", &picture)).await;
    assert_eq!(again["status"], "ok", "a repeat: {again}");
    let other = client.call_refused("chat.send", with_files("what is this?", "k", &json!([]))).await;
    assert_eq!(other["details"]["reason"], "chat-request-conflict", "{other}");
    let history = client.call("chat.history", json!({"sessionKey": "s"})).await;
    let blocks = json!([{"type": "text", "text": "what is this?"}, {"type": "image", "omitted": true}]);
    assert_eq!(history["messages"][0]["content"], blocks, "{history:#}");

    let source = json!({"type": "base64", "media_type": "image/png", "data": url});
    let params = json!({"message": "and this?", "idempotencyKey": "l", "sessionKey": "s",
                        "attachments": [{"type": "image", "source": source}]});
    let id = client.send_request("agent", params).await;
    client.wait_response(&id).await;
    assert_eq!(client.wait_response(&id).await["payload"]["status"], "ok");
    assert_eq!(sent_content(&server).as_array().unwrap().last(), Some(&shown));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_file_is_put_into_the_folder_of_the_session() {
    let (server, mut client) = start_seeing().await;
    let file = json!([{"type": "file", "mimeType": "text/plain", "fileName": "../a b.txt", "content": "aGVsbG8="}]);
    server.model.script(ScriptedResponse::text("read"));
    client.call("chat.send", with_files("", "k", &file)).await;
    client.wait_chat("k", "final").await;
    let content = sent_content(&server).to_string();
    let path = content.split("[FILE:").nth(1).unwrap().split(']').next().unwrap();
    assert!(path.contains("/attachments/") && path.ends_with("/k/0-_a_b.txt"), "{content}");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "hello");
    client.call("sessions.delete", json!({"key": "s"})).await;
    assert!(!std::path::Path::new(path).exists(), "the file goes with its session");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_no_model_can_be_given_is_refused_with_a_reason() {
    let (server, mut client) = start_seeing().await;
    let picture = |content: &Value| json!({"mimeType": "image/png", "fileName": "x.png", "content": content});
    for (file, word) in [
        (picture(&json!("not base64!")), "base64"),
        (picture(&Value::Null), "base64"),
        (picture(&json!("")), "empty"),
        (picture(&json!("aGVsbG8=")), "neither PNG"),
    ] {
        let refused = client.call_refused("chat.send", with_files("look", "k", &json!([file]))).await;
        let details = json!({"code": "ATTACHMENT_REFUSED", "index": 0});
        assert_eq!((&refused["code"], &refused["details"]), (&json!("INVALID_REQUEST"), &details), "{refused}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("x.png") && message.contains(word), "{message}");
    }
    let many: Vec<Value> = (0..11).map(|_| picture(&json!(PNG))).collect();
    let refused = client.call_refused("chat.send", with_files("look", "k", &json!(many))).await;
    assert!(refused["message"].as_str().unwrap().contains("11 attachments"), "{refused}");
    assert!(server.model.recorded_requests().is_empty(), "nothing was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_word_with_files_that_are_refused_stops_the_run() {
    let (server, mut client) = start_seeing().await;
    let many: Vec<Value> = (0..11).map(|_| json!({"mimeType": "image/png", "content": PNG})).collect();
    let bad = json!([{"mimeType": "image/png", "content": "not base64!"}]);
    for (round, files) in [bad, json!(many), json!([{"content": 5}])].iter().enumerate() {
        let key = format!("k{round}");
        server.model.script(ScriptedResponse::silent_mid_stream("begun"));
        client.send_chat("s", "work", &key).await;
        client.wait_chat(&key, "delta").await;
        let stopped = client.call("chat.send", with_files("stop", &format!("stop{round}"), files)).await;
        assert_eq!(stopped["runIds"], json!([key]), "{files}: {stopped}");
        assert_eq!(server.wait_ended(&key).await["verdict"]["kind"], "aborted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_during_the_start_hook_leaves_the_files_with_their_message() {
    let dir = tempfile::tempdir().unwrap();
    let begun = dir.path().join("begun");
    let server = TestServer::start_with(|config| {
        config.engine.warden_exe = WardenExe::Path(quell_exe().into());
        config.engine.environment = base_environment(std::env::vars_os());
        config.engine.hooks.on_run_start = format!(": > {}; sleep 600", begun.display()).as_str().into();
        config.engine.hooks.timeout_ms = 600_000;
    })
    .await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let file = json!([{"mimeType": "text/plain", "fileName": "a.txt", "content": "aGVsbG8="}]);
    client.call("chat.send", with_files("read this", "k", &file)).await;
    poll_until("the hook has begun", async || begun.exists().then_some(())).await;
    client.call("chat.abort", json!({"sessionKey": "s"})).await;
    server.wait_ended("k").await;
    let history = server.http.get("/api/sessions/s/history").await.expect_status(200).to_string();
    let path = history.split("[FILE:").nth(1).unwrap_or_else(|| panic!("{history}")).split(']').next().unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), "hello");
}
