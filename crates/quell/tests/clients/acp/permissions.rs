//! Calls that wait for a person, asked in the editor.

use super::client::joined_text;
use super::*;

const ASKS: &str = "approvals = { shell = \"ask\" }\n";

struct AskedPrompt {
    session: String,
    request: u64,
    permission: Value,
}

async fn ask(fixture: &AcpFixture, client: &mut AcpTestClient) -> AskedPrompt {
    let session = fixture.new_session(client).await;
    fixture.model.script(shell_call("echo it ran"));
    let request = client.begin("session/prompt", text_prompt(&session, "run it")).await;
    let permission = client.wait_for("permission", |line| line.get("permission").is_some()).await;
    assert_eq!(permission["params"]["toolCall"]["title"], "`echo it ran`", "{permission:#}");
    AskedPrompt { session, request, permission }
}

fn selected(option: &str) -> Value {
    json!({"outcome": "selected", "optionId": option})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allowed_call_runs_and_always_covers_the_next() {
    let Some(fixture) = AcpFixture::start(ASKS).await else { return };
    let mut client = fixture.connect().await;
    let asked = ask(&fixture, &mut client).await;
    fixture.model.script(shell_call("echo again")).script(ScriptedResponse::text("done"));
    client.permit(&asked.permission, selected("allow_session")).await;
    let answer = client.answer(asked.request).await.unwrap();
    assert_eq!(answer["stopReason"], "end_turn");
    let updates = client.take_updates();
    let outputs: Vec<&Value> = updates.iter().filter(|update| update["status"] == "completed").collect();
    assert_eq!(outputs.len(), 2, "{updates:#?}");
    assert!(outputs[0]["rawOutput"]["output"].as_str().unwrap().contains("it ran"), "{outputs:#?}");
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_call_does_not_run() {
    let Some(fixture) = AcpFixture::start(ASKS).await else { return };
    let mut client = fixture.connect().await;
    let asked = ask(&fixture, &mut client).await;
    fixture.model.script(ScriptedResponse::text("as you like"));
    client.permit(&asked.permission, selected("reject")).await;
    assert_eq!(client.answer(asked.request).await.unwrap()["stopReason"], "end_turn");
    let updates = client.take_updates();
    let end = updates.iter().find(|update| update["status"] == "failed").unwrap();
    assert_eq!(end["rawOutput"]["end"], "denied", "{end:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_turn_withdraws_its_question() {
    let Some(fixture) = AcpFixture::start(ASKS).await else { return };
    let mut client = fixture.connect().await;
    let asked = ask(&fixture, &mut client).await;
    client.notify("session/cancel", json!({"sessionId": asked.session})).await;
    client.wait_for("withdrawal", |line| line.get("withdrawn").is_some()).await;
    assert_eq!(client.answer(asked.request).await.unwrap()["stopReason"], "cancelled");
    let run = fixture.ended_run(&asked.session).await;
    assert_fields(&run, &json!({"verdict": {"kind": "aborted", "reason": "user"}, "receipt": {"leftovers": []}}));
    let open = fixture.daemon.api().get("/api/approvals").await.expect_status(200);
    assert!(open["items"].as_array().unwrap().iter().all(|row| row["state"] != "pending"), "{open:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_permission_ends_the_turn() {
    let Some(fixture) = AcpFixture::start(ASKS).await else { return };
    let mut client = fixture.connect().await;
    let asked = ask(&fixture, &mut client).await;
    client.permit(&asked.permission, json!({"outcome": "cancelled"})).await;
    assert_eq!(client.answer(asked.request).await.unwrap()["stopReason"], "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_elsewhere_withdraws_the_question() {
    let Some(fixture) = AcpFixture::start(ASKS).await else { return };
    let mut client = fixture.connect().await;
    let asked = ask(&fixture, &mut client).await;
    fixture.model.script(ScriptedResponse::text("as you like"));
    let open = fixture.daemon.api().get("/api/approvals").await.expect_status(200);
    let id = open["items"][0]["id"].as_str().unwrap();
    let answer = json!({"decision": "deny"});
    fixture.daemon.api().post(&format!("/api/approvals/{id}"), &answer).await.expect_status(200);
    client.wait_for("withdrawal", |line| line.get("withdrawn").is_some()).await;
    assert_eq!(client.answer(asked.request).await.unwrap()["stopReason"], "end_turn");
}

/// A run of `main` whose sub-agent waits for a person, asked in the editor.
async fn ask_for_sub_agent(fixture: &AcpFixture, client: &mut AcpTestClient) -> AskedPrompt {
    let session = fixture.new_session(client).await;
    let spawn = json!({"agent": "asker", "prompt": "run it"});
    fixture.model.script(ScriptedStream::new().tool_call("c1", "spawn_agent", &spawn));
    fixture.model.script(shell_call("echo it ran"));
    let request = client.begin("session/prompt", text_prompt(&session, "let it run")).await;
    let permission = client.wait_for("permission", |line| line.get("permission").is_some()).await;
    assert_eq!(permission["params"]["toolCall"]["title"], "`echo it ran`", "{permission:#}");
    let note = &permission["params"]["toolCall"]["content"][0]["content"]["text"];
    assert_eq!(note, "Asked by the sub-agent asker.", "{permission:#}");
    AskedPrompt { session, request, permission }
}

const ASKING_SUB_AGENT: &str = "delegates = [\"asker\"]\n[agents.asker]\nmodel = \"scripted/asker\"\n\
    approvals = { shell = \"ask\" }\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_sub_agent_is_asked_in_the_editor() {
    let Some(fixture) = AcpFixture::start(ASKING_SUB_AGENT).await else { return };
    let mut client = fixture.connect().await;
    let asked = ask_for_sub_agent(&fixture, &mut client).await;
    fixture.model.script(ScriptedResponse::text("it ran")).script(ScriptedResponse::text("all done"));
    client.permit(&asked.permission, selected("allow_once")).await;
    assert_eq!(client.answer(asked.request).await.unwrap()["stopReason"], "end_turn");
    let (updates, call) = (client.take_updates(), &asked.permission["params"]["toolCall"]["toolCallId"]);
    let end = updates.iter().find(|update| update["toolCallId"] == *call).unwrap();
    assert_eq!(end["status"], "completed", "{updates:#?}");
    assert_eq!(joined_text(&updates, "agent_message_chunk"), "all done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_of_a_sub_agent_ends_elsewhere_too() {
    let Some(fixture) = AcpFixture::start(ASKING_SUB_AGENT).await else { return };
    let mut client = fixture.connect().await;
    let asked = ask_for_sub_agent(&fixture, &mut client).await;
    fixture.model.script(ScriptedResponse::text("as you like")).script(ScriptedResponse::text("it did not run"));
    let open = fixture.daemon.api().get("/api/approvals").await.expect_status(200);
    let path = format!("/api/approvals/{}", open["items"][0]["id"].as_str().unwrap());
    fixture.daemon.api().post(&path, &json!({"decision": "deny"})).await.expect_status(200);
    assert_eq!(client.answer(asked.request).await.unwrap()["stopReason"], "end_turn");
    client.wait_for("withdrawal", |line| line.get("withdrawn").is_some()).await;
    let (updates, call) = (client.take_updates(), &asked.permission["params"]["toolCall"]["toolCallId"]);
    let end = updates.iter().find(|update| update["toolCallId"] == *call).unwrap();
    assert_eq!(end["status"], "failed", "{updates:#?}");

    let asked = ask_for_sub_agent(&fixture, &mut client).await;
    client.notify("session/cancel", json!({"sessionId": asked.session})).await;
    assert_eq!(client.answer(asked.request).await.unwrap()["stopReason"], "cancelled");
    let run = fixture.ended_run(&asked.session).await;
    assert_fields(&run, &json!({"verdict": {"kind": "aborted", "reason": "user"}, "receipt": {"leftovers": []}}));
}
