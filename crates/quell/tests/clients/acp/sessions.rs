//! Sessions of an editor: prompts with files, edits as diffs, plans, loading, listing, modes, and bad input.

use super::client::joined_text;
use super::*;

/// A picture of one pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_changes_the_project_and_shows_its_diff() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let session = fixture.new_session(&mut client).await;
    std::fs::write(fixture.project.path().join("a.txt"), "one\n").unwrap();
    let items = json!({"items": [{"text": "Write it", "status": "in_progress"}]});
    let plan = ScriptedStream::new().thinking("First a plan.").tool_call("c0", "todo", &items);
    let write = ScriptedResponse::tool_call("c1", "write_file", &json!({"path": "a.txt", "content": "two\n"}));
    fixture.model.script(plan).script(write).script(ScriptedResponse::text("Written."));
    let answer = client.call("session/prompt", text_prompt(&session, "write it")).await.unwrap();
    assert_eq!(answer["stopReason"], "end_turn", "{answer:#}");
    assert_eq!(std::fs::read_to_string(fixture.project.path().join("a.txt")).unwrap(), "two\n");
    let updates = client.take_updates();
    let of = |kind: &str| updates.iter().filter(|update| update["sessionUpdate"] == kind).collect::<Vec<_>>();
    assert_eq!(of("plan")[0]["entries"][0]["content"], "Write it", "{updates:#?}");
    let call = of("tool_call").into_iter().find(|call| call["title"] == "Write a.txt").unwrap();
    assert_fields(call, &json!({"kind": "edit", "status": "in_progress"}));
    let place = fixture.project.path().join("a.txt");
    assert_eq!(call["locations"][0]["path"], place.to_str().unwrap());
    let end = of("tool_call_update").into_iter().find(|update| update["content"][0]["type"] == "diff").unwrap();
    assert_fields(
        &end["content"][0],
        &json!({"path": place.to_str().unwrap(), "oldText": "one\n", "newText": "two\n"}),
    );
    assert_eq!(joined_text(&updates, "agent_thought_chunk"), "First a plan.");
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "Written.");
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_and_files_of_a_prompt_reach_the_model() {
    let Some(fixture) = AcpFixture::start("vision = true\n").await else { return };
    let mut client = fixture.connect().await;
    let session = fixture.new_session(&mut client).await;
    fixture.model.script(ScriptedResponse::text("I see."));
    let blocks = json!([
        {"type": "text", "text": "Compare "},
        {"type": "resource_link", "name": "b.rs", "uri": "file:///src/b.rs"},
        {"type": "resource", "resource": {"uri": "file:///src/c.rs", "text": "fn c() {}"}},
        {"type": "image", "mimeType": "image/png", "data": PNG},
    ]);
    let answer = client.call("session/prompt", json!({"sessionId": session, "prompt": blocks})).await.unwrap();
    assert_eq!(answer["stopReason"], "end_turn");
    let request = fixture.model.recorded_requests().remove(0);
    let messages = messages_as_text(request.messages());
    for part in ["[b.rs](/src/b.rs)", "fn c() {}"] {
        assert!(messages.contains(part), "{part} is missing: {messages}");
    }
    let picture = format!("data:image/png;base64,{PNG}");
    assert!(request.body.to_string().contains(&picture), "the picture is missing: {}", request.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_loads_the_session_with_its_history() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let session = fixture.new_session(&mut client).await;
    fixture.model.script(shell_call("echo found")).script(ScriptedResponse::text("It is there."));
    client.call("session/prompt", text_prompt(&session, "look")).await.unwrap();
    let live = client.take_updates();
    client.close_input().await;
    let mut again = fixture.connect().await;
    let listed = again.call("session/list", json!({"cwd": fixture.project()})).await.unwrap();
    assert_fields(&listed["sessions"][0], &json!({"sessionId": session, "cwd": fixture.project()}));
    let place = json!({"sessionId": session, "cwd": fixture.project(), "mcpServers": []});
    let loaded = again.call("session/load", place).await.unwrap();
    assert_eq!(loaded["modes"]["currentModeId"], "main", "{loaded:#}");
    let replayed = again.take_updates();
    assert_eq!(joined_text(&replayed, "user_message_chunk"), "look");
    assert_eq!(joined_text(&replayed, "agent_message_chunk"), "It is there.");
    let ids = |updates: &[Value]| {
        let calls = updates.iter().filter(|update| update["sessionUpdate"] == "tool_call");
        calls.map(|call| call["toolCallId"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&replayed), ids(&live));
    fixture.model.script(ScriptedResponse::text("Yes."));
    again.call("session/prompt", text_prompt(&session, "sure?")).await.unwrap();
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_and_models_take_effect_at_the_next_prompt() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let session = fixture.new_session(&mut client).await;
    client.call("session/set_mode", json!({"sessionId": session, "modeId": "other"})).await.unwrap();
    let update = client.wait_update("config_option_update").await;
    assert_eq!(update["configOptions"][1]["currentValue"], "scripted/other", "{update:#}");
    fixture.model.script(ScriptedResponse::text("I am other."));
    client.call("session/prompt", text_prompt(&session, "who?")).await.unwrap();
    let option = json!({"sessionId": session, "configId": "model", "value": "scripted/m"});
    let set = client.call("session/set_config_option", option).await.unwrap();
    assert_eq!(set["configOptions"][1]["currentValue"], "scripted/m", "{set:#}");
    fixture.model.script(ScriptedResponse::text("I am m."));
    client.call("session/prompt", text_prompt(&session, "and now?")).await.unwrap();
    let models: Vec<Value> =
        fixture.model.recorded_requests().iter().map(|request| request.body["model"].clone()).collect();
    assert_eq!(models, ["other", "m"]);
    let unknown = client.call("session/set_mode", json!({"sessionId": session, "modeId": "nobody"})).await;
    assert!(unknown.unwrap_err()["message"].as_str().unwrap().contains("nobody"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_gets_an_error_that_says_what_to_do() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let prompt = client.call("session/prompt", text_prompt("acp:unknown", "hi")).await.unwrap_err();
    assert_eq!(prompt["code"], -32002, "{prompt:#}");
    let load = json!({"sessionId": "acp:unknown", "cwd": fixture.project(), "mcpServers": []});
    assert_eq!(client.call("session/load", load).await.unwrap_err()["code"], -32002);
    let text_of = |error: Result<Value, Value>| error.unwrap_err()["message"].as_str().unwrap().to_owned();
    let relative = text_of(client.call("session/new", json!({"cwd": "here", "mcpServers": []})).await);
    assert!(relative.contains("absolute"), "{relative}");
    let missing = text_of(client.call("session/new", json!({"cwd": "/nowhere/at/all", "mcpServers": []})).await);
    assert!(missing.contains("/nowhere/at/all"), "{missing}");
    let data = fixture.daemon.home().data_dir();
    let protected = text_of(client.call("session/new", json!({"cwd": data, "mcpServers": []})).await);
    assert!(protected.contains("keys"), "{protected}");
    let server = json!([{"name": "docs", "command": "/bin/docs", "args": [], "env": []}]);
    let own_server = text_of(client.call("session/new", json!({"cwd": fixture.project(), "mcpServers": server})).await);
    assert!(own_server.contains("docs") && own_server.contains("--ignore-mcp-servers"), "{own_server}");
    client.send_raw("{no json").await;
    client.send_raw(r#"{"jsonrpc":"2.0","id":77,"method":"session/prompt","params":{"sessionId":3}}"#).await;
    assert_eq!(client.call("session/nothing", json!({})).await.unwrap_err()["code"], -32601);
    let session = fixture.new_session(&mut client).await;
    let audio = json!({"sessionId": session, "prompt": [{"type": "audio", "mimeType": "audio/wav", "data": "AA=="}]});
    assert!(text_of(client.call("session/prompt", audio).await).contains("audio"));
    fixture.model.script(ScriptedResponse::text("fine"));
    assert_eq!(client.call("session/prompt", text_prompt(&session, "hi")).await.unwrap()["stopReason"], "end_turn");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_of_the_editor_are_left_out_only_if_asked() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect_with(&["--ignore-mcp-servers", "--agent", "other"]).await;
    let server = json!([{"name": "docs", "command": "/bin/docs", "args": [], "env": []}]);
    let params = json!({"cwd": fixture.project(), "mcpServers": server});
    let opened = client.call("session/new", params).await.unwrap();
    assert_eq!(opened["modes"]["currentModeId"], "other", "{opened:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_run_is_an_error_with_its_reason() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let session = fixture.new_session(&mut client).await;
    fixture.model.script(ScriptedResponse::error_inside_stream("I be", "the engine is on fire"));
    let failed = client.call("session/prompt", text_prompt(&session, "hi")).await.unwrap_err();
    assert_eq!(failed["code"], -32603, "{failed:#}");
    assert!(failed["message"].as_str().unwrap().contains("on fire"), "{failed:#}");
    assert_eq!(failed["data"]["receipt"]["verdict"]["kind"], "failed", "{failed:#}");
}
