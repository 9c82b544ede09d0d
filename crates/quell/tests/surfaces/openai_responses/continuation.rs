//! What follows a response that was stopped or has failed: what its model reads, and what its conversation has.

use quell_kernel::turn::PartialPolicy;
use quell_store::test_support::{OtherProgram, RefusedWrite};

use super::*;

const AGENT: &str = "agent/main";

fn request(input: &str) -> Value {
    json!({"model": AGENT, "input": input})
}

async fn new_conversation(server: &TestServer) -> Value {
    let conversation = server.http.post("/v1/conversations", &json!({})).await.expect_status(200);
    json!({"conversation": conversation["id"]})
}

/// The texts of a conversation, the oldest first.
async fn conversation_texts(api: &TestApiClient, conversation: &Value) -> Vec<String> {
    let path = format!("/v1/conversations/{}/items?order=asc", conversation["conversation"].as_str().unwrap());
    let items = api.get(&path).await.expect_status(200);
    assert!(!items.to_string().contains("quell_end"), "{items:#}");
    let items = items["data"].as_array().unwrap();
    items.iter().map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
}

/// What the model read in its last request.
fn last_request(server: &TestServer) -> String {
    messages_as_text(server.model.recorded_requests().last().unwrap().messages())
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_answer_is_followed_by_a_note(
    #[values(false, true)] in_conversation: bool,
    #[values(PartialPolicy::Discard, PartialPolicy::Keep)] policy: PartialPolicy,
) {
    let server = TestServer::start_with(|config| {
        config.engine.agents.values_mut().for_each(|agent| agent.partial = policy);
    })
    .await;
    let place = if in_conversation { new_conversation(&server).await } else { json!({}) };
    server.model.script(ScriptedResponse::silent_mid_stream("half of it"));
    let begun = create(&server, &with(with(request("work"), &place), &json!({"background": true}))).await;
    server.model.request_at(0).wait_paused().await;
    wait_for_text(&server.http).await;
    let cancelled = server.http.post(&format!("{}/cancel", path(&begun)), &json!({})).await.expect_status(200);
    assert_eq!((&cancelled["status"], text_of(&cancelled)), (&json!("cancelled"), "half of it".to_owned()));
    assert!(!show(&server, &begun).await.to_string().contains("quell_end"));
    server.model.script(ScriptedResponse::text("next"));
    let place = if in_conversation { place } else { json!({"previous_response_id": begun["id"]}) };
    create(&server, &with(request("and now?"), &place)).await;
    let seen = last_request(&server);
    assert!(seen.contains("work") && seen.contains("stopped on purpose by the user"), "{seen}");
    let is_kept = policy == PartialPolicy::Keep;
    assert_eq!((seen.contains("half of it"), seen.contains("[Interrupted:")), (is_kept, is_kept), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_request_can_be_sent_to_its_conversation_again() {
    let server = TestServer::start().await;
    let place = new_conversation(&server).await;
    server.model.script(ScriptedResponse::status(400));
    let failed = server.http.post("/v1/responses", &with(request("work"), &place)).await;
    assert!(failed.status >= 400, "{:#}", failed.body);
    // It never reached a model.
    let unknown = with(json!({"model": "nowhere/m", "input": "work"}), &place);
    server.http.post("/v1/responses", &unknown).await.expect_status(404);
    assert_eq!(conversation_texts(&server.http, &place).await, [""; 0]);
    server.model.script(ScriptedResponse::text("done"));
    create(&server, &with(request("work"), &place)).await;
    assert_eq!(conversation_texts(&server.http, &place).await, ["work", "done"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_makes_one_response_at_a_time() {
    let server = TestServer::start().await;
    let place = new_conversation(&server).await;
    server.model.script(ScriptedResponse::silent_mid_stream("half")).script(ScriptedResponse::text("done"));
    let stream = open_stream(&server, &with(request("first"), &place)).await;
    server.model.request_at(0).wait_paused().await;
    let refused = server.http.post("/v1/responses", &with(request("second"), &place)).await;
    assert_eq!((refused.status, &refused.body["error"]["code"]), (409, &json!("conversation_locked")));
    assert_eq!(refused.body["error"]["param"], "conversation");
    let made = response_of_run(&run_of(&stream));
    assert_eq!(show(&server, &made).await["status"], "in_progress");
    server.http.post(&format!("{}/cancel", path(&made)), &json!({})).await.expect_status(400);
    let early = with(request("second"), &json!({"previous_response_id": made["id"]}));
    let early = server.http.post("/v1/responses", &early).await.expect_status(400);
    assert_eq!(early["error"]["param"], "previous_response_id");
    drop(stream);
    poll_until("the end of the first response", async || {
        (show(&server, &made).await["status"] == "cancelled").then_some(())
    })
    .await;
    create(&server, &with(request("second"), &place)).await;
    assert_eq!(conversation_texts(&server.http, &place).await, ["first", "half", "second", "done"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_whose_end_cannot_be_stored_has_failed(#[values(false, true)] background: bool) {
    let server = TestServer::start().await;
    let place = new_conversation(&server).await;
    let database = OtherProgram::connect(server.data_dir());
    database.refuse(RefusedWrite::ResponseEnd);
    server.model.script(ScriptedResponse::text("lost")).script(ScriptedResponse::text("found"));
    let body = with(with(request("work"), &place), &json!({"background": background, "stream": true}));
    let stream = server.http.request(Method::POST, "/v1/responses").json(&body).send().await.unwrap();
    let made = response_of_run(&run_of(&stream));
    let last = parse_events(&stream.text().await.unwrap()).pop().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    if background {
        assert_eq!(show(&server, &made).await["status"], "failed", "an end never changes");
    }
    database.accept_again();
    poll_until("the end in the database", async || {
        let again = server.http.post("/v1/responses", &with(request("work"), &place)).await;
        assert!(again.status == 200 || again.body["error"]["code"] == "conversation_locked", "{:#}", again.body);
        (again.status == 200).then_some(())
    })
    .await;
    assert_eq!(show(&server, &made).await["status"], "failed");
    assert_eq!(conversation_texts(&server.http, &place).await, ["work", "found"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_in_the_foreground_is_not_found_while_it_is_made() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("half"));
    let stream = open_stream(&server, &question()).await;
    server.model.request_at(0).wait_paused().await;
    let made = response_of_run(&run_of(&stream));
    server.http.post(&format!("{}/cancel", path(&made)), &json!({})).await.expect_status(404);
    server.http.get(&path(&made)).await.expect_status(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_shows_that_it_is_alive_while_a_tool_prints() {
    let server = TestServer::start_with_processes().await;
    let command = "i=0; while [ $i -lt 600 ]; do echo $i; i=$((i + 1)); sleep 0.1; done";
    server.model.script(ScriptedResponse::tool_call("c1", "shell", &json!({"command": command})));
    let mut stream = open_stream(&server, &request("work")).await;
    let run = run_of(&stream);
    let mut seen = String::new();
    while !seen.contains(": waiting") {
        let chunk = stream.chunk().await.unwrap().expect("the stream is open while the command runs");
        seen.push_str(&String::from_utf8_lossy(&chunk));
    }
    assert!(server.http.get(&format!("/api/runs/{run}")).await.expect_status(200)["verdict"].is_null(), "{seen}");
    drop(stream);
    server.wait_ended(&run).await;
}
