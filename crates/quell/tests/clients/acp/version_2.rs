//! The draft of version 2, with the experimental client of the same package.

use std::collections::BTreeMap;

use super::client::joined_text;
use super::*;

/// A prompt whose command runs and whose processes carry the mark. Its request is answered already.
struct RunningPrompt {
    session: String,
    message: Value,
    mark: ProcessMarker,
}

async fn connect(fixture: &AcpFixture) -> AcpTestClient {
    AcpTestClient::start_version_2(&fixture.daemon, 2).await
}

/// Sends a prompt; returns the id of its message.
async fn prompt(client: &mut AcpTestClient, session: &str, text: &str) -> Value {
    client.call("session/prompt", text_prompt(session, text)).await.unwrap()["messageId"].clone()
}

async fn start_command(fixture: &AcpFixture, client: &mut AcpTestClient) -> RunningPrompt {
    let (session, mark) = (fixture.new_session(client).await, ProcessMarker::new());
    fixture.model.script(shell_call(commands::setsid_child(&mark)));
    let message = prompt(client, &session, "run it").await;
    mark.wait_for_count(2).await;
    RunningPrompt { session, message, mark }
}

/// The updates up to the idle state, in order.
async fn updates_until_idle(client: &mut AcpTestClient) -> Vec<Value> {
    client.updates_until("idle state", |line| line["update"]["state"] == "idle").await
}

fn states(updates: &[Value]) -> Vec<&str> {
    updates.iter().filter_map(|update| update["state"].as_str()).collect()
}

/// The messages that these updates leave in an editor, by their ids: kind and text.
fn messages(updates: &[Value]) -> BTreeMap<String, (String, String)> {
    let mut messages: BTreeMap<String, (String, String)> = BTreeMap::new();
    for update in updates.iter().filter(|update| update["messageId"].is_string()) {
        let (id, kind) = (update["messageId"].as_str().unwrap(), update["sessionUpdate"].as_str().unwrap());
        let message = messages.entry(id.to_owned()).or_default();
        kind.trim_end_matches("_chunk").clone_into(&mut message.0);
        if kind.ends_with("_chunk") {
            message.1.push_str(update["content"]["text"].as_str().unwrap());
        } else {
            let blocks = update["content"].as_array().unwrap();
            message.1 = blocks.iter().map(|block| block["text"].as_str().unwrap()).collect();
        }
    }
    messages
}

/// Checks the end of a stopped prompt: the idle state is the last update, no process is left, and the next prompt works.
async fn assert_stopped(fixture: &AcpFixture, client: &mut AcpTestClient, running: &RunningPrompt) {
    let updates = updates_until_idle(client).await;
    let idle = updates.last().unwrap();
    assert_eq!(idle["stopReason"], "cancelled", "{updates:#?}");
    assert_eq!(idle["_meta"]["quell"]["receipt"]["leftovers"], json!([]), "{idle:#}");
    assert_eq!(updates.iter().filter(|update| update["status"] == "cancelled").count(), 1, "{updates:#?}");
    running.mark.wait_gone(WAIT_TIMEOUT).await;
    let run = fixture.ended_run(&running.session).await;
    assert_fields(&run, &json!({"verdict": {"kind": "aborted", "reason": "user"}, "receipt": {"leftovers": []}}));
    fixture.model.wait_for_connections(0).await;
    // A cancellation that crosses the end of its prompt covers none.
    client.notify("session/cancel", json!({"sessionId": running.session})).await;
    fixture.model.script(ScriptedResponse::text("back again"));
    assert_ne!(prompt(client, &running.session, "and now?").await, running.message);
    let updates = updates_until_idle(client).await;
    assert_eq!(updates.last().unwrap()["stopReason"], "end_turn");
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "back again");
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_enters_the_conversation_and_ends_idle() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = connect(&fixture).await;
    let session = fixture.new_session(&mut client).await;
    let place = fixture.project.path().join("a.txt");
    std::fs::write(&place, "one\n").unwrap();
    let items = json!({"items": [{"text": "Write it", "status": "in_progress"}]});
    let plan = ScriptedStream::new().thinking("First a plan.").tool_call("c0", "todo", &items);
    let write = ScriptedResponse::tool_call("c1", "write_file", &json!({"path": "a.txt", "content": "two\n"}));
    fixture.model.script(plan).script(write).script(ScriptedResponse::text("Written."));
    let message = prompt(&mut client, &session, "write it").await;
    let updates = updates_until_idle(&mut client).await;
    assert_fields(&updates[0], &json!({"sessionUpdate": "user_message", "messageId": message}));
    assert_eq!(states(&updates), ["running", "idle"]);
    let idle = updates.last().unwrap();
    assert_fields(idle, &json!({"stopReason": "end_turn", "_meta": {"quell": {"receipt": {"leftovers": []}}}}));
    let of = |kind: &str| updates.iter().filter(|update| update["sessionUpdate"] == kind).collect::<Vec<_>>();
    assert_eq!(of("plan_update")[0]["plan"]["entries"][0]["content"], "Write it", "{updates:#?}");
    let end = of("tool_call_update").into_iter().find(|update| update["content"][0]["type"] == "diff").unwrap();
    let place = place.to_str().unwrap();
    assert_eq!(end["content"][0]["changes"], json!([{"operation": "modify", "path": place}]), "{end:#}");
    let patch = format!("diff --git {place} {place}\n--- {place}\n+++ {place}\n@@ -1 +1 @@\n-one\n+two\n");
    assert_eq!(end["content"][0]["patch"]["text"], patch);
    let texts: Vec<String> = messages(&updates).into_values().map(|(_, text)| text).collect();
    assert_eq!(texts, ["Written.", "First a plan.", "write it"]);
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_prompt_ends_idle_and_cancelled() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = connect(&fixture).await;
    let running = start_command(&fixture, &mut client).await;
    client.notify("session/cancel", json!({"sessionId": running.session})).await;
    assert_stopped(&fixture, &mut client, &running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_by_somebody_else_ends_idle_and_cancelled() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = connect(&fixture).await;
    let running = start_command(&fixture, &mut client).await;
    let path = format!("/api/sessions/{}/stop?wait=1", percent_encode(&running.session));
    fixture.daemon.api().post(&path, &json!({})).await.expect_status(200);
    assert_stopped(&fixture, &mut client, &running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_prompt_that_is_cancelled_never_was_there() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = connect(&fixture).await;
    let running = start_command(&fixture, &mut client).await;
    let withdrawn = client.begin("session/prompt", text_prompt(&running.session, "not this")).await;
    let path = format!("/api/runs?state=active&session={}", percent_encode(&running.session));
    poll_until("both runs are there", async || {
        let runs = fixture.daemon.api().get(&path).await.expect_status(200);
        (runs["items"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    client.cancel_request(withdrawn).await;
    assert_eq!(client.answer(withdrawn).await.unwrap_err()["code"], -32800);
    client.notify("session/cancel", json!({"sessionId": running.session})).await;
    assert_stopped(&fixture, &mut client, &running).await;
    let history =
        fixture.daemon.api().get(&format!("/api/sessions/{}/history", percent_encode(&running.session))).await;
    let history = history.expect_status(200).to_string();
    assert!(history.contains("run it") && !history.contains("not this"), "{history}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_session_has_nothing_left_at_work() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = connect(&fixture).await;
    let (session, background) = (fixture.new_session(&mut client).await, ProcessMarker::new());
    fixture.model.script(background_call(commands::setsid_child(&background)));
    fixture.model.script(ScriptedResponse::text("started"));
    prompt(&mut client, &session, "start it").await;
    updates_until_idle(&mut client).await;
    background.wait_for_count(2).await;
    let mark = ProcessMarker::new();
    fixture.model.script(shell_call(commands::setsid_child(&mark)));
    prompt(&mut client, &session, "run it").await;
    mark.wait_for_count(2).await;
    let close = client.begin("session/close", json!({"sessionId": session})).await;
    assert_eq!(updates_until_idle(&mut client).await.last().unwrap()["stopReason"], "cancelled");
    client.answer(close).await.unwrap();
    mark.wait_gone(WAIT_TIMEOUT).await;
    background.wait_gone(WAIT_TIMEOUT).await;
    let refused = client.call("session/prompt", text_prompt(&session, "more")).await.unwrap_err();
    assert_fields(&refused, &json!({"code": -32002, "data": {"sessionId": session}}));
    client.call("session/close", json!({"sessionId": session})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_input_stops_the_runs_of_version_2() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = connect(&fixture).await;
    let running = start_command(&fixture, &mut client).await;
    client.close_input().await;
    let exit = client.wait_for("exit", |line| line.get("exit").is_some()).await;
    assert_eq!(exit["exit"], 0, "{exit:#}");
    running.mark.wait_gone(WAIT_TIMEOUT).await;
    let run = fixture.ended_run(&running.session).await;
    assert_fields(&run, &json!({"verdict": {"kind": "aborted", "reason": "disconnect"}}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resumed_session_replays_the_same_messages() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = connect(&fixture).await;
    let session = fixture.new_session(&mut client).await;
    fixture.model.script(shell_call("echo found")).script(ScriptedResponse::text("It is there."));
    prompt(&mut client, &session, "look").await;
    let live = updates_until_idle(&mut client).await;
    client.close_input().await;
    let mut again = connect(&fixture).await;
    let listed = again.call("session/list", json!({"cwd": fixture.project()})).await.unwrap();
    assert_fields(&listed["sessions"][0], &json!({"sessionId": session, "cwd": fixture.project()}));
    let place =
        |replay: Value| json!({"sessionId": session, "cwd": fixture.project(), "mcpServers": [], "replayFrom": replay});
    let resume = again.begin("session/resume", place(json!({"type": "start"}))).await;
    let replayed = updates_until_idle(&mut again).await;
    let resumed = again.answer(resume).await.unwrap();
    assert_eq!(resumed["configOptions"][0]["currentValue"], "main", "{resumed:#}");
    assert_eq!(messages(&replayed), messages(&live));
    let calls = |updates: &[Value]| {
        let calls = updates.iter().filter(|update| update["status"] == "completed");
        calls.map(|call| call["toolCallId"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(calls(&replayed), calls(&live));
    let resume = again.begin("session/resume", place(Value::Null)).await;
    assert_eq!(updates_until_idle(&mut again).await.len(), 1, "only the state");
    again.answer(resume).await.unwrap();
    let unknown = again.call("session/resume", place(json!({"type": "_message", "id": "x"}))).await.unwrap_err();
    assert_eq!(unknown["code"], -32602, "{unknown:#}");
    let option = json!({"sessionId": session, "configId": "mode", "type": "id", "value": "other"});
    let set = again.call("session/set_config_option", option).await.unwrap();
    assert_eq!(set["configOptions"][1]["currentValue"], "scripted/other", "{set:#}");
    fixture.model.script(ScriptedResponse::text("Yes."));
    prompt(&mut again, &session, "sure?").await;
    updates_until_idle(&mut again).await;
    assert_eq!(fixture.model.recorded_requests().last().unwrap().body["model"], "other");
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_makes_the_session_wait_for_a_person() {
    let Some(fixture) = AcpFixture::start("approvals = { shell = \"ask\" }\n").await else { return };
    let mut client = connect(&fixture).await;
    let session = fixture.new_session(&mut client).await;
    let ask = async |client: &mut AcpTestClient| {
        fixture.model.script(shell_call("echo it ran"));
        prompt(client, &session, "run it").await;
        client.wait_for("state", |line| line["update"]["state"] == "requires_action").await;
        client.wait_for("permission", |line| line.get("permission").is_some()).await
    };
    let permission = ask(&mut client).await;
    assert_eq!(permission["params"]["title"], "`echo it ran`", "{permission:#}");
    let subject = json!({"type": "tool_call", "toolCall": {"kind": "execute", "status": "pending"}});
    assert_fields(&permission["params"]["subject"], &subject);
    client.take_updates();
    fixture.model.script(ScriptedResponse::text("done"));
    client.permit(&permission, json!({"outcome": "selected", "optionId": "allow_once"})).await;
    let updates = updates_until_idle(&mut client).await;
    assert_eq!(states(&updates), ["running", "idle"]);
    assert_eq!(updates.iter().filter(|update| update["status"] == "completed").count(), 1, "{updates:#?}");

    ask(&mut client).await;
    client.notify("session/cancel", json!({"sessionId": session})).await;
    client.wait_for("withdrawal", |line| line.get("withdrawn").is_some()).await;
    assert_eq!(updates_until_idle(&mut client).await.last().unwrap()["stopReason"], "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_of_version_2_gets_an_error() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = AcpTestClient::start_version_2(&fixture.daemon, 3).await;
    let unknown = client.call("session/prompt", text_prompt("acp:unknown", "hi")).await.unwrap_err();
    assert_fields(&unknown, &json!({"code": -32002, "data": {"sessionId": "acp:unknown"}}));
    let text_of = |error: Result<Value, Value>| error.unwrap_err()["message"].as_str().unwrap().to_owned();
    let relative = text_of(client.call("session/new", json!({"cwd": "here", "mcpServers": []})).await);
    assert!(relative.contains("absolute"), "{relative}");
    let server = json!([{"type": "stdio", "name": "docs", "command": "/bin/docs", "args": [], "env": []}]);
    let own_server = text_of(client.call("session/new", json!({"cwd": fixture.project(), "mcpServers": server})).await);
    assert!(own_server.contains("docs") && own_server.contains("--ignore-mcp-servers"), "{own_server}");
    client.send_raw("{no json").await;
    client.send_raw(r#"{"jsonrpc":"2.0","id":77,"method":"session/prompt","params":{"sessionId":3}}"#).await;
    let load = json!({"sessionId": "acp:unknown", "cwd": fixture.project(), "mcpServers": []});
    assert_eq!(client.call("session/load", load).await.unwrap_err()["code"], -32601, "version 2 has no session/load");
    let session = fixture.new_session(&mut client).await;
    let audio = json!({"sessionId": session, "prompt": [{"type": "audio", "mimeType": "audio/wav", "data": "AA=="}]});
    assert!(text_of(client.call("session/prompt", audio).await).contains("audio"));
    let option = json!({"sessionId": session, "configId": "speed", "type": "id", "value": "high"});
    assert_eq!(client.call("session/set_config_option", option).await.unwrap_err()["code"], -32602);
    fixture.model.script(ScriptedResponse::error_inside_stream("I be", "the engine is on fire"));
    prompt(&mut client, &session, "hi").await;
    let idle = updates_until_idle(&mut client).await.pop().unwrap();
    assert_eq!(idle["stopReason"], "error", "{idle:#}");
    assert!(idle["error"]["message"].as_str().unwrap().contains("on fire"), "{idle:#}");
    assert_eq!(idle["error"]["data"]["receipt"]["verdict"]["kind"], "failed", "{idle:#}");
}
