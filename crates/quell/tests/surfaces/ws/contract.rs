//! The parameters of the gateway protocol: each is supported, or refused by its name.

use super::WsTestClient;
use super::{chat_send_params, start_connected, start_streaming_and_connect, start_with_socket};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_array_is_no_frame_and_no_params() {
    let (server, run, mut client) = start_streaming_and_connect().await;
    client.send_text(r#"["req", "a1", "stop.all", {}, null, null]"#).await;
    assert_eq!(client.wait_response("").await["error"]["code"], "INVALID_REQUEST");
    for (method, params) in [
        ("stop.all", json!([true, true])),
        ("hold.set", json!([true])),
        ("runs.stop", json!([run])),
        ("sessions.abort", json!(["s"])),
        ("chat.abort", json!(["s"])),
        ("sessions.reset", json!(["s"])),
        ("sessions.delete", json!(["s"])),
        ("chat.send", json!(["s", "x", "k"])),
        ("sessions.list", json!([])),
        ("health", json!([1])),
        ("agents.list", json!("x")),
    ] {
        client.call_refused_as("INVALID_REQUEST", method, params).await;
    }
    server.assert_running(&run).await;
    assert_eq!(client.call("hold.get", json!({})).await["held"], false);
    let mut other = WsTestClient::open_socket(&server).await;
    let hello = other.handshake(&server.token, json!({"client": ["test", "1", "linux", "test"]})).await;
    assert_eq!(hello["ok"], false, "{hello}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_that_is_not_heeded_is_refused_by_name() {
    let (server, mut client) = start_connected().await;
    let send = chat_send_params("s", "x", "k");
    let more = "thinking fastMode deliver originatingChannel replyToId toolBindings intent mentions expectedLeafEntryId workContext atachments";
    for (method, params, names) in [
        ("chat.send", send, more),
        ("chat.history", json!({"sessionKey": "s"}), "maxChars messageId pendingBefore before"),
        ("chat.abort", json!({"sessionKey": "s"}), "runid keepQueued"),
        ("sessions.abort", json!({"key": "s"}), "runid"),
        ("sessions.list", json!({}), "ownerId involvingMe boardFace serach"),
        ("sessions.describe", json!({"key": "s"}), "agent"),
        ("sessions.resolve", json!({"key": "s"}), "shortId slugHint"),
        ("sessions.subscribe", json!({}), "key"),
        ("sessions.reset", json!({"key": "s"}), "keepBackground"),
        ("sessions.delete", json!({"key": "s"}), "archivedOnly expectedLifecycleRevision"),
        ("agents.list", json!({}), "agentId"),
        ("models.list", json!({}), "preparedOnly refresh"),
        ("commands.list", json!({}), "search"),
        ("question.list", json!({}), "sessionKey"),
        ("plugin.approval.list", json!({}), "limit"),
        ("plugin.approval.resolve", json!({"id": "none", "decision": "deny"}), "reviewer"),
        ("approvals.resolve", json!({"id": "none", "decision": "deny"}), "reviewer"),
        ("approvals.list", json!({}), "limit"),
        ("agent.wait", json!({"runId": "none"}), "timeout"),
        ("node.event", json!({"event": "chat.subscribe", "payload": {"sessionKey": "s"}}), "key"),
        ("runs.list", json!({}), "search"),
        ("runs.get", json!({"runId": "none"}), "wait"),
        ("runs.stop", json!({"runId": "none"}), "forced"),
        ("runs.follow", json!({"runId": "none"}), "before"),
        ("runs.unfollow", json!({"runId": "none"}), "after"),
        ("stop.all", json!({}), "held"),
        ("hold.get", json!({}), "held"),
        ("hold.set", json!({"held": false}), "force"),
        ("health", json!({}), "verbose"),
        ("status", json!({}), "verbose"),
    ] {
        for name in names.split(' ') {
            let mut more = params.clone();
            more[name] = json!("x");
            let error = client.call_refused_as("INVALID_REQUEST", method, more).await;
            let details = json!({"code": "UNSUPPORTED_PARAMETER", "parameter": name});
            assert_eq!(error["details"], details, "{method}: {error}");
            assert!(error["message"].as_str().unwrap().contains(name), "{method}: {error}");
        }
    }
    assert!(server.model.recorded_requests().is_empty(), "nothing was sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_requests_of_the_terminal_client_are_accepted() {
    let (server, mut client) = start_connected().await;
    server.model.script(ScriptedResponse::text("done")).script(ScriptedResponse::silent_mid_stream("begun"));
    let given = json!({"sessionKey": "s", "sessionId": "s", "message": "x", "deliver": false, "thinking": null, "fastMode": false});
    let send = |key: &str| {
        let mut params = given.clone();
        params["idempotencyKey"] = json!(key);
        params
    };
    client.call("chat.send", send("k1")).await;
    client.wait_chat("k1", "final").await;
    client.call("chat.history", json!({"sessionKey": "s", "limit": 200})).await;
    client.call("commands.list", json!({"agentId": "main", "scope": "text", "includeArgs": false})).await;
    assert_eq!(client.call("sessions.list", json!({"agentId": "main", "limit": 1})).await["count"], 1);
    client.call("sessions.resolve", json!({"key": "s", "includeGlobal": true, "includeUnknown": true})).await;
    client.call("chat.send", send("k2")).await;
    client.wait_chat("k2", "delta").await;
    let stopped = client.call("chat.abort", json!({"sessionKey": "s", "preserveSideRuns": true})).await;
    assert_eq!(stopped["runIds"], json!(["k2"]));
    let params = json!({"sessionKey": "s", "sessionId": "t", "message": "x", "idempotencyKey": "k3"});
    assert_eq!(client.call_refused("chat.send", params).await["details"]["parameter"], "sessionId");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_aborted_with_its_queue_unless_it_is_kept() {
    let server = TestServer::start().await;
    let (run, later) = (server.start_streaming_run("s").await, server.send_message("s", "later").await);
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    server.model.script(ScriptedResponse::silent_mid_stream("next"));
    let kept = client.call("sessions.abort", json!({"key": "s", "clearQueued": false})).await;
    assert_eq!((&kept["runIds"], kept.get("withdrawn")), (&json!([run]), None));
    client.wait_chat(&later, "delta").await;
    let last = server.send_message("s", "last").await;
    let all = client.call("sessions.abort", json!({"key": "s", "clearQueued": true})).await;
    assert_eq!(all["withdrawn"][0]["runId"], last);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_model_is_listed_once() {
    let (_server, mut client) = start_connected().await;
    let agents = client.call("agents.list", json!({})).await["agents"].clone();
    assert_eq!(agents.as_array().unwrap().len(), 2, "two agents, one model");
    let models = client.call("models.list", json!({})).await["models"].clone();
    assert_eq!(models, json!([{"id": "model", "name": "model", "provider": "scripted"}]));
    let of_one = client.call("models.list", json!({"agentId": "team/writer", "view": "configured"})).await;
    assert_eq!(of_one["models"], models);
    let unknown = client.call_refused("models.list", json!({"agentId": "nobody"})).await;
    assert_eq!(unknown["details"]["code"], "UNKNOWN_AGENT_ID");
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_approvals_is_a_known_scope() {
    let (server, mut client) = start_with_socket().await;
    let hello = client.handshake(&server.token, json!({"scopes": ["operator.read", "operator.approvals"]})).await;
    assert_eq!(hello["payload"]["auth"]["scopes"], json!(["operator.read", "operator.approvals"]));
    assert_eq!(client.call("approvals.list", json!({})).await["approvals"], json!([]));
    let unknown = client.call_refused("approvals.resolve", json!({"id": "none", "decision": "deny"})).await;
    assert_eq!(unknown["details"]["code"], "APPROVAL_NOT_FOUND", "it may answer: {unknown}");
    client.call_refused_as("FORBIDDEN", "chat.send", chat_send_params("s", "x", "k")).await;
    let reader = server.create_token("reader", "read").await;
    let mut client = WsTestClient::open_socket(&server).await;
    let hello = client.handshake(&reader, json!({"scopes": ["operator.read", "operator.approvals"]})).await;
    assert_eq!(hello["payload"]["auth"]["scopes"], json!(["operator.read"]), "a token gives what it has");
    let error = client.call_refused("approvals.resolve", json!({"id": "none", "decision": "deny"})).await;
    assert_eq!(error["details"]["missingScope"], "operator.approvals");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_not_known_here_is_no_prompt() {
    let (server, mut client) = start_connected().await;
    let text = "/Queue collect";
    let error = client.call_refused("chat.send", chat_send_params("s", text, "k")).await;
    assert_eq!(error["details"], json!({"code": "UNSUPPORTED_COMMAND", "command": "/queue"}), "{error}");
    assert!(server.model.recorded_requests().is_empty(), "nothing was sent");
    assert_eq!(client.call("sessions.list", json!({})).await["count"], 0, "and no session was made");
    server.model.script(ScriptedResponse::text("done"));
    let mut literal = chat_send_params("s", text, "k");
    literal["suppressCommandInterpretation"] = json!(true);
    client.call("chat.send", literal).await;
    client.wait_chat("k", "final").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_help_are_answered_without_a_model() {
    let (server, run, mut client) = start_streaming_and_connect().await;
    assert_fields(&client.send_chat("s", "/status", "k1").await, &json!({"runId": "k1", "status": "ok"}));
    let status = client.wait_chat("k1", "final").await["message"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(status.starts_with("Working since") && status.contains("scripted/model"), "{status}");
    client.send_chat("s", "/help", "k2").await;
    let help = client.wait_chat("k2", "final").await["message"]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(help.contains("/stop") && help.contains("/status"), "{help}");
    assert_eq!(server.model.recorded_requests().len(), 1, "the model was not asked");
    let names: Vec<Value> = client.call("commands.list", json!({})).await["commands"].as_array().unwrap().clone();
    let names: Vec<&str> = names.iter().map(|command| command["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["stop", "status", "help", "new"]);
    assert_eq!(client.send_chat("s", "/new", "k3").await["status"], "ok");
    server.wait_ended(&run).await;
    let history = client.call("chat.history", json!({"sessionKey": "s"})).await;
    assert_eq!(history["messages"], json!([]), "a new conversation began");
}

fn message_ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| row["__openclaw"]["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn history_in_pages_is_the_history_as_a_whole() {
    let server = TestServer::start().await;
    for text in ["one", "two", "three"] {
        // With a call, so that each run has four rows.
        server.model.script(list_files_call());
        server.run_scripted("s", text, ScriptedResponse::text(text)).await;
    }
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let whole = client.call("chat.history", json!({"sessionKey": "s"})).await;
    let whole = whole["messages"].as_array().unwrap().clone();
    assert_eq!(whole.len(), 12);
    let seqs: Vec<u64> = whole.iter().map(|row| row["__openclaw"]["seq"].as_u64().unwrap()).collect();
    assert!(seqs.is_sorted_by(|one, next| one < next), "numbers rise with the transcript: {seqs:?}");
    for limit in [1, 2, 3, 5, 7, 12, 13] {
        let (mut by_cursor, mut by_offset, mut cursor) = (Vec::new(), Vec::new(), Value::Null);
        while by_offset.len() < whole.len() {
            let params = json!({"sessionKey": "s", "limit": limit, "cursor": cursor});
            let page = client.call("chat.history", params).await;
            cursor = page["nextCursor"].clone();
            let params = json!({"sessionKey": "s", "limit": limit, "offset": by_offset.len()});
            let other_page = client.call("chat.history", params).await;
            for (rows, page) in [(&mut by_cursor, page), (&mut by_offset, other_page)] {
                let page = page["messages"].as_array().unwrap();
                assert!(!page.is_empty() && page.len() <= limit, "at most {limit}: {}", page.len());
                rows.splice(0..0, page.iter().cloned());
            }
        }
        assert!(cursor.is_null(), "pages of {limit}");
        assert_eq!(by_cursor, whole, "pages of {limit}");
        assert_eq!(message_ids(&by_offset), message_ids(&whole), "offsets with {limit}");
    }
    let beyond = client.call("chat.history", json!({"sessionKey": "s", "offset": 12})).await;
    assert_eq!((&beyond["messages"], &beyond["nextCursor"]), (&json!([]), &Value::Null));
    for (name, bad) in [("limit", json!(0)), ("limit", json!(1001)), ("offset", json!(-1)), ("cursor", json!("none"))] {
        client.call_refused_as("INVALID_REQUEST", "chat.history", json!({"sessionKey": "s", name: bad})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn history_begins_at_the_last_reset() {
    let server = TestServer::start().await;
    server.run_to_end("s").await;
    let _ = server.http.post("/api/sessions/s/reset", &json!({})).await.expect_status(200);
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let empty = client.call("chat.history", json!({"sessionKey": "s"})).await;
    assert_eq!((&empty["messages"], &empty["nextCursor"]), (&json!([]), &Value::Null));
    server.model.script(ScriptedResponse::text("anew"));
    let run = server.send_message("s", "after").await;
    server.wait_forgotten(&run).await;
    for params in [json!({"sessionKey": "s"}), json!({"sessionKey": "s", "limit": 2})] {
        let history = client.call("chat.history", params).await;
        let rows = history["messages"].as_array().unwrap();
        assert_eq!(rows.iter().map(|row| &row["content"][0]["text"]).collect::<Vec<_>>(), ["after", "anew"]);
        assert_eq!(history["nextCursor"], Value::Null, "there is nothing before a reset");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_note_for_the_model_is_not_shown_to_people() {
    let (server, run, mut client) = start_streaming_and_connect().await;
    client.call("chat.abort", json!({"sessionKey": "s"})).await;
    server.wait_forgotten(&run).await;
    let notes = server.http.get("/api/sessions/s/history").await.expect_status(200);
    assert!(notes["items"].as_array().unwrap().iter().any(|row| row["role"] == "note"), "there is one: {notes}");
    let history = client.call("chat.history", json!({"sessionKey": "s"})).await;
    let rows = history["messages"].as_array().unwrap();
    let roles: Vec<&Value> = rows.iter().map(|row| &row["role"]).collect();
    assert_eq!(roles, ["user", "assistant"], "{rows:#?}");
    assert_eq!(rows[1]["openclawAbort"]["aborted"], true, "{rows:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_in_the_history_while_its_run_works() {
    let server = TestServer::start().await;
    server.run_to_end("s").await;
    server.model.script(list_files_call()).script(gated_response("go"));
    let run = server.send_message("s", "now this").await;
    server.http.run_events(&run, 0).await.wait_for("text.delta").await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let during = client.call("chat.history", json!({"sessionKey": "s"})).await;
    let rows = during["messages"].as_array().unwrap().clone();
    let roles: Vec<&str> = rows.iter().map(|row| row["role"].as_str().unwrap()).collect();
    assert_eq!(roles[..3], ["user", "assistant", "user"], "{rows:#?}");
    assert_eq!(rows[2]["content"][0]["text"], "now this");
    assert_fields(&during, &json!({"inFlightRun": {"runId": run, "text": "begun"}}));
    server.model.open_gate("go");
    server.wait_forgotten(&run).await;
    let after = client.call("chat.history", json!({"sessionKey": "s"})).await;
    let after = after["messages"].as_array().unwrap();
    assert_eq!(message_ids(&after[..rows.len()]), message_ids(&rows), "rows keep their ids when the run is over");
    assert_eq!(after.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_sessions_heeds_its_filters() {
    let server = TestServer::start().await;
    for key in ["alpha", "beta", "gamma"] {
        server.run_to_end(key).await;
    }
    server.model.script(ScriptedResponse::text("wrote"));
    let run = server.http.start_run("delta", &json!({"text": "say wrote", "agent": "team/writer"})).await;
    server.wait_forgotten(&run).await;
    let mut client = WsTestClient::connect_operator(&server, &server.token).await;
    let mut keys = async |params: Value| -> Vec<String> {
        let list = client.call("sessions.list", params).await;
        let rows = list["sessions"].as_array().unwrap().clone();
        assert_eq!(list["count"], rows.len());
        rows.iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(json!({})).await, ["delta", "gamma", "beta", "alpha"]);
    assert_eq!(keys(json!({"limit": 2, "offset": 1})).await, ["gamma", "beta"]);
    assert_eq!(keys(json!({"agentId": "team/writer"})).await, ["delta"]);
    assert_eq!(keys(json!({"agentId": "main", "limit": 2})).await, ["gamma", "beta"]);
    assert_eq!(keys(json!({"search": "et"})).await, ["beta"]);
    assert_eq!(keys(json!({"activeMinutes": 60, "sortBy": "updatedAt"})).await.len(), 4);
    assert_eq!(keys(json!({"archived": true})).await, Vec::<String>::new(), "none is archived");
    assert_eq!(keys(json!({"archived": false, "includeGlobal": true, "includeUnknown": true})).await.len(), 4);
    assert_eq!(keys(json!({"label": "x"})).await, Vec::<String>::new(), "none has a label");
    for bad in [json!({"limit": 0}), json!({"sortBy": "name"}), json!({"offset": "x"}), json!({"activeMinutes": 0})] {
        client.call_refused_as("INVALID_REQUEST", "sessions.list", bad).await;
    }
    let params = json!({"search": "alpha", "includeDerivedTitles": true, "includeLastMessage": true});
    let row = client.call("sessions.list", params).await["sessions"][0].clone();
    assert_fields(&row, &json!({"derivedTitle": "say done", "lastMessagePreview": "done"}));
}
