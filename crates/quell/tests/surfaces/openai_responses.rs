//! OpenAI's Responses API: in the foreground and in the background, stopped by its client and by others.

mod continuation;
mod conversations;
mod restart;

use quell_testkit::history_check::corpus::ModelDialect;
use quell_testkit::history_check::corpus::ModelDialect::{Anthropic, Gemini, OpenAi, OpenAiResponses};
use quell_testkit::model::UsageReporting;

use crate::prelude::*;
use crate::test_engine::add_dialect_agents;

const MODEL: &str = "scripted/model";

fn question() -> Value {
    json!({"model": MODEL, "instructions": "Be brief.", "input": "What is two and two?"})
}

fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn create(server: &TestServer, body: &Value) -> Value {
    server.http.post("/v1/responses", body).await.expect_status(200)
}

fn path(response: &Value) -> String {
    format!("/v1/responses/{}", response["id"].as_str().unwrap())
}

async fn show(server: &TestServer, response: &Value) -> Value {
    server.http.get(&path(response)).await.expect_status(200)
}

/// Polls a response until it has ended.
async fn wait_over(server: &TestServer, response: &Value) -> Value {
    poll_until("the end of the response", async || {
        let shown = show(server, response).await;
        (shown["status"] != "in_progress").then_some(shown)
    })
    .await
}

fn text_of(response: &Value) -> String {
    let output = response["output"].as_array().unwrap();
    output.iter().filter_map(|item| item["content"][0]["text"].as_str()).collect()
}

/// Reads the events of a stream. Their numbers rise by one from the first one on.
fn parse_events(body: &str) -> Vec<Value> {
    let data = |frame: &str| Some(serde_json::from_str::<Value>(frame.split_once("\ndata: ")?.1).unwrap());
    let events: Vec<Value> = body.split("\n\n").filter_map(data).collect();
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    events
}

async fn open_stream(server: &TestServer, body: &Value) -> reqwest::Response {
    let body = with(body.clone(), &json!({"stream": true}));
    let response = server.http.request(Method::POST, "/v1/responses").json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    response
}

fn run_of(response: &reqwest::Response) -> String {
    response.headers()["x-quell-run"].to_str().unwrap().to_owned()
}

/// The id of the response that a run makes.
fn response_of_run(run: &str) -> Value {
    json!({"id": format!("resp_{}", run.replace('-', ""))})
}

/// A response in the background whose model waits for the gate `more`.
async fn start_in_background(server: &TestServer) -> Value {
    let at = server.model.request_count();
    server.model.script(ScriptedStream::new().text("one ").wait_for_gate("more").text("two"));
    let response = create(server, &with(question(), &json!({"background": true}))).await;
    assert_fields(&response, &json!({"status": "in_progress", "background": true}));
    server.model.request_at(at).wait_paused().await;
    wait_for_text(&server.http).await;
    response
}

/// Waits until the only active run has shown text: what the provider has sent may still be on its way.
async fn wait_for_text(api: &TestApiClient) {
    let runs = api.get("/api/runs?state=active").await.expect_status(200);
    let run = runs["items"][0]["runId"].as_str().expect("a run that is active");
    api.run_events(run, 0).await.wait_for("text.delta").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_is_made_kept_and_deleted() {
    let server = TestServer::start().await;
    server.model.script(ScriptedStream::new().text("Fo").text("ur.").usage(UsageReporting::default(), 12, 3));
    let body = with(question(), &json!({"metadata": {"a": "b"}, "temperature": 0.5}));
    let response = create(&server, &body).await;
    let expected = json!({"object": "response", "status": "completed", "model": MODEL, "metadata": {"a": "b"},
        "temperature": 0.5, "instructions": "Be brief.", "store": true, "error": null, "parallel_tool_calls": true,
        "usage": {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15}});
    assert_fields(&response, &expected);
    assert_eq!(text_of(&response), "Four.");
    assert_eq!(show(&server, &response).await, response);
    let items = server.http.get(&format!("{}/input_items", path(&response))).await.expect_status(200);
    assert_eq!(items["data"][0]["content"][0]["text"], "What is two and two?");
    let stream = server.http.get(&format!("{}?stream=true", path(&response))).await;
    assert_eq!(stream.status, 400, "only responses in the background are streamed again");
    let deleted = server.http.delete(&path(&response)).await.expect_status(200);
    assert_eq!(deleted, json!({"id": response["id"], "object": "response", "deleted": true}));
    let gone = server.http.get(&path(&response)).await.expect_status(404);
    assert_eq!(
        (&gone["error"]["type"], &gone["error"]["code"]),
        (&json!("invalid_request_error"), &json!("not_found"))
    );
    server.model.script(ScriptedResponse::text("Five."));
    let unstored = create(&server, &with(question(), &json!({"store": false}))).await;
    server.http.get(&path(&unstored)).await.expect_status(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_has_numbered_events_and_closed_items() {
    let server = TestServer::start().await;
    server.model.script(ScriptedStream::new().thinking("hm").text("Fo").text("ur."));
    let events = parse_events(&open_stream(&server, &question()).await.text().await.unwrap());
    assert_eq!((&events[0]["type"], &events[0]["sequence_number"]), (&json!("response.created"), &json!(0)));
    let last = events.last().unwrap();
    assert_eq!((&last["type"], text_of(&last["response"])), (&json!("response.completed"), "Four.".to_owned()));
    assert_eq!(last["response"]["output"][0]["summary"][0]["text"], "hm");
    // Whoever has the last event can continue at once.
    assert_eq!(show(&server, &last["response"]).await, last["response"]);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_stops_its_response(#[values(false, true)] store: bool) {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::text("next"));
    let mut stream = open_stream(&server, &with(question(), &json!({"store": store}))).await;
    stream.chunk().await.unwrap().expect("the beginning of the answer");
    let run = run_of(&stream);
    drop(stream);
    server.model.request_at(0).wait_client_left().await;
    let view = server.wait_ended(&run).await;
    assert_fields(&view["receipt"], &json!({"verdict": {"kind": "aborted", "reason": "disconnect"}, "leftovers": []}));
    let response = response_of_run(&run);
    if store {
        let kept = poll_until("the response", async || {
            let answer = server.http.get(&path(&response)).await;
            (answer.status == 200).then_some(answer.body)
        })
        .await;
        assert_eq!((&kept["status"], text_of(&kept)), (&json!("cancelled"), "begun".to_owned()));
    } else {
        server.http.get(&path(&response)).await.expect_status(404);
    }
    assert_eq!(text_of(&create(&server, &question()).await), "next");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_somebody_else_stops_ends_with_closed_items() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::silent_mid_stream("no"));
    let stream = open_stream(&server, &question()).await;
    server.model.request_at(0).wait_paused().await;
    let stopped = server.http.stop_run(&run_of(&stream)).await;
    assert_fields(&stopped, &json!({"state": "ended", "verdict": {"reason": "user"}}));
    let events = parse_events(&stream.text().await.unwrap());
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.incomplete"), &json!("cancelled")));
    let ends: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert!(ends.ends_with(&["response.content_part.done", "response.output_item.done", "response.incomplete"]));
    assert_eq!(show(&server, &last["response"]).await, last["response"]);
    // Without a stream it is an error, which clients do not repeat.
    let request = server.http.request(Method::POST, "/v1/responses").json(&question());
    let (answer, ()) = tokio::join!(server.http.send(request), async {
        server.model.request_at(1).wait_paused().await;
        server.http.post("/api/stop?wait=1", &json!({})).await.expect_status(200);
    });
    assert_eq!((answer.status, &answer.body["error"]["code"]), (409, &json!("stopped")), "{:#}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_response_goes_on_and_is_streamed_again() {
    let server = TestServer::start().await;
    server.model.script(ScriptedStream::new().text("one ").wait_for_gate("more").text("two"));
    let mut stream = open_stream(&server, &with(question(), &json!({"background": true}))).await;
    let response = response_of_run(&run_of(&stream));
    stream.chunk().await.unwrap().expect("the beginning of the answer");
    drop(stream);
    server.model.request_at(0).wait_paused().await;
    let again = server.http.request(Method::GET, &format!("{}?stream=true&starting_after=1", path(&response)));
    let again = again.send().await.unwrap();
    assert_eq!(show(&server, &response).await["status"], "in_progress");
    server.model.open_gate("more");
    let live = parse_events(&again.text().await.unwrap());
    assert_eq!(live[0]["sequence_number"], 2);
    assert_eq!(text_of(&live.last().unwrap()["response"]), "one two");
    assert_eq!(text_of(&wait_over(&server, &response).await), "one two");
    poll_until("the events in the database", async || {
        let stored = server.http.request(Method::GET, &format!("{}?stream=true&starting_after=1", path(&response)));
        let stored = parse_events(&stored.send().await.unwrap().text().await.unwrap());
        (stored == live).then_some(())
    })
    .await;
    let last = live.last().unwrap()["sequence_number"].as_u64().unwrap();
    let nothing = server.http.request(Method::GET, &format!("{}?stream=true&starting_after={last}", path(&response)));
    assert_eq!(nothing.send().await.unwrap().text().await.unwrap(), "");
    for (query, field) in [("stream=yes", "stream"), ("starting_after=-1", "starting_after")] {
        let refused = server.http.get(&format!("{}?{query}", path(&response))).await.expect_status(400);
        assert_eq!(refused["error"]["param"], field, "{refused:#}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_response_stays_cancelled() {
    let server = TestServer::start().await;
    let response = start_in_background(&server).await;
    let cancelled = server.http.post(&format!("{}/cancel", path(&response)), &json!({})).await.expect_status(200);
    assert_eq!((&cancelled["status"], text_of(&cancelled)), (&json!("cancelled"), "one ".to_owned()));
    server.model.request_at(0).wait_client_left().await;
    for _ in 0..2 {
        let again = server.http.post(&format!("{}/cancel", path(&response)), &json!({})).await.expect_status(200);
        assert_eq!(again, cancelled);
    }
    assert_eq!(show(&server, &response).await, cancelled);
    // One in the foreground has ended with its connection, or has a run that can be stopped.
    server.model.script(ScriptedResponse::text("done"));
    let foreground = create(&server, &question()).await;
    let refused = server.http.post(&format!("{}/cancel", path(&foreground)), &json!({})).await.expect_status(400);
    assert_eq!(refused["error"]["code"], "invalid_request");
    server.http.post("/v1/responses/resp_none/cancel", &json!({})).await.expect_status(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_response_is_stopped_first() {
    let server = TestServer::start().await;
    let response = start_in_background(&server).await;
    server.http.delete(&path(&response)).await.expect_status(200);
    server.model.request_at(0).wait_client_left().await;
    server.http.get(&path(&response)).await.expect_status(404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_sees_the_responses_of_others() {
    let server = TestServer::start().await;
    let response = start_in_background(&server).await;
    let conversation = server.http.post("/v1/conversations", &json!({})).await.expect_status(200);
    let conversation = conversation["id"].as_str().unwrap();
    let other = server.api_with_new_token("other", "write").await;
    let path = path(&response);
    other.get(&path).await.expect_status(404);
    other.get(&format!("{path}?stream=true")).await.expect_status(404);
    other.get(&format!("{path}/input_items")).await.expect_status(404);
    other.post(&format!("{path}/cancel"), &json!({})).await.expect_status(404);
    other.delete(&path).await.expect_status(404);
    other.get(&format!("/v1/conversations/{conversation}")).await.expect_status(404);
    other.get(&format!("/v1/conversations/{conversation}/items")).await.expect_status(404);
    other.delete(&format!("/v1/conversations/{conversation}")).await.expect_status(404);
    for more in [json!({"previous_response_id": response["id"]}), json!({"conversation": conversation})] {
        other.post("/v1/responses", &with(question(), &more)).await.expect_status(404);
    }
    let reference = json!([{"role": "user", "content": "a"}, {"type": "item_reference",
        "id": response["id"].as_str().unwrap().replace("resp_", "msg_")}]);
    other.post("/v1/responses", &with(question(), &json!({"input": reference}))).await.expect_status(400);
    assert_eq!(show(&server, &response).await["status"], "in_progress");
}

fn look_tool() -> Value {
    json!([{"type": "function", "name": "look", "description": "Looks.", "strict": false,
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}])
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tools_of_a_client_continue_with_every_provider(
    #[values(OpenAi, OpenAiResponses, Anthropic, Gemini)] dialect: ModelDialect,
    #[values(false, true)] with_agent: bool,
) {
    let server = TestServer::start_with(|config| add_dialect_agents(&mut config.engine)).await;
    let kind = dialect.kind();
    let call = ScriptedStream::new().thinking("I had better ").thinking("look.").text("I look.");
    server.model.script(call.tool_call("call_1", "look", &json!({"at": "ü"}))).script(ScriptedResponse::text("A cat."));
    let model = if with_agent { format!("agent/{kind}") } else { format!("{kind}/m") };
    let body = json!({"model": model, "input": "What is there?", "tools": look_tool()});
    let response = create(&server, &body).await;
    let call = response["output"].as_array().unwrap().iter().find(|item| item["type"] == "function_call").unwrap();
    assert_fields(call, &json!({"name": "look", "arguments": "{\"at\":\"ü\"}", "status": "completed"}));
    let output = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "a cat"}]);
    let next = with(body, &json!({"input": output, "previous_response_id": response["id"]}));
    let next = create(&server, &next).await;
    assert_eq!((text_of(&next), &next["previous_response_id"]), ("A cat.".to_owned(), &response["id"]));
    // The model checks that the history is valid and that reasoning comes back unchanged.
    server.model.assert_histories_valid();
    let seen = messages_as_text(server.model.recorded_requests()[1].messages());
    assert!(seen.contains("What is there?") && seen.contains("a cat"), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instructions_are_those_of_the_request_alone() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("Four.")).script(ScriptedResponse::text("Five."));
    let first = create(&server, &question()).await;
    let next = json!({"model": MODEL, "input": "And one more?", "previous_response_id": first["id"]});
    assert_eq!(text_of(&create(&server, &next).await), "Five.");
    let seen = messages_as_text(server.model.recorded_requests()[1].messages());
    assert!(seen.contains("What is two and two?") && seen.contains("Four.") && !seen.contains("Be brief."), "{seen}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_grows_with_its_responses() {
    let server = TestServer::start().await;
    let begin = json!({"metadata": {"a": "b"}, "items": [{"role": "user", "content": "I am Ann."}]});
    let conversation = server.http.post("/v1/conversations", &begin).await.expect_status(200);
    assert_fields(&conversation, &json!({"object": "conversation", "metadata": {"a": "b"}}));
    let path = format!("/v1/conversations/{}", conversation["id"].as_str().unwrap());
    assert_eq!(server.http.get(&path).await.expect_status(200), conversation);
    server.model.script(ScriptedResponse::text("Four.")).script(ScriptedResponse::text("Five."));
    let body = with(question(), &json!({"conversation": conversation["id"]}));
    let first = create(&server, &body).await;
    assert_eq!(first["conversation"], json!({"id": conversation["id"]}));
    let next = with(question(), &json!({"conversation": {"id": conversation["id"]}, "input": "And one more?"}));
    create(&server, &next).await;
    let seen = messages_as_text(server.model.recorded_requests()[1].messages());
    assert!(seen.contains("I am Ann.") && seen.contains("Four."), "{seen}");
    let items = server.http.get(&format!("{path}/items?order=asc&limit=4")).await.expect_status(200);
    let texts: Vec<&str> =
        items["data"].as_array().unwrap().iter().map(|item| item["content"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["I am Ann.", "What is two and two?", "Four.", "And one more?"]);
    assert_eq!(items["has_more"], true);
    let after = items["last_id"].as_str().unwrap();
    let rest = server.http.get(&format!("{path}/items?order=asc&after={after}")).await.expect_status(200);
    assert_eq!((&rest["data"][0]["content"][0]["text"], &rest["has_more"]), (&json!("Five."), &json!(false)));
    server.http.delete(&path).await.expect_status(200);
    server.http.get(&path).await.expect_status(404);
    let gone = server.http.post("/v1/responses", &next).await.expect_status(404);
    assert_eq!(gone["error"]["param"], "conversation");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metadata_of_a_request_bind_it_to_a_session() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("Four.")).script(ScriptedResponse::text("Five."));
    let bound = |text: &str| json!({"model": "agent/main", "input": text, "metadata": {"session": "sums", "a": "b"}});
    let first = create(&server, &bound("What is two and two?")).await;
    assert_eq!(first["metadata"], json!({"session": "sums", "a": "b"}));
    create(&server, &bound("And one more?")).await;
    let seen = messages_as_text(server.model.recorded_requests()[1].messages());
    assert!(seen.contains("What is two and two?") && seen.contains("Four."), "{seen}");
    let history = server.http.get("/api/sessions/sums/history").await.expect_status(200);
    assert!(history.to_string().contains("Five."), "{history:#}");
    // A plain model call has none.
    let plain = with(question(), &json!({"metadata": {"session": "sums"}}));
    let refused = server.http.post("/v1/responses", &plain).await.expect_status(400);
    assert_eq!(refused["error"]["code"], "invalid_request");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reference_stands_for_a_stored_item() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::text("Four.")).script(ScriptedResponse::text("Five."));
    let first = create(&server, &question()).await;
    let reference = json!({"type": "item_reference", "id": first["output"][0]["id"]});
    let input = json!([{"role": "user", "content": "a sum"}, reference, {"role": "user", "content": "and one?"}]);
    create(&server, &json!({"model": MODEL, "input": input})).await;
    let seen = messages_as_text(server.model.recorded_requests()[1].messages());
    assert!(seen.contains("a sum") && seen.contains("Four."), "{seen}");
}

#[rstest]
#[case::no_input(json!({"model": MODEL}), 400, "invalid_request", json!("input"))]
#[case::built_in_tool(with(question(), &json!({"tools": [{"type": "web_search"}]})), 400, "invalid_request", json!("tools[0].type"))]
#[case::unknown_field(with(question(), &json!({"nonsense": 1})), 400, "invalid_request", json!("nonsense"))]
#[case::unstored(with(question(), &json!({"background": true, "store": false})), 400, "invalid_request", json!("background"))]
#[case::unknown_previous(with(question(), &json!({"previous_response_id": "resp_no"})), 404, "not_found", json!("previous_response_id"))]
#[case::odd_previous(with(question(), &json!({"previous_response_id": "\0"})), 404, "not_found", json!("previous_response_id"))]
#[case::unknown_model(with(question(), &json!({"model": "nowhere/m"})), 404, "model_not_found", json!(null))]
#[case::no_call(with(question(), &json!({"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]})), 400, "invalid_request", json!("input[0]"))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_name_the_field(
    #[case] body: Value,
    #[case] status: u16,
    #[case] code: &str,
    #[case] field: Value,
) {
    let server = TestServer::start().await;
    let error = server.http.post("/v1/responses", &body).await.expect_status(status)["error"].clone();
    assert_eq!((&error["code"], &error["param"]), (&json!(code), &field), "{error:#}");
    assert_eq!(server.model.request_count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_counted_without_a_call() {
    let server = TestServer::start().await;
    let counted = server.http.post("/v1/responses/input_tokens", &question()).await.expect_status(200);
    assert_eq!(counted["object"], "response.input_tokens");
    assert!(counted["input_tokens"].as_u64().unwrap() > 4, "{counted}");
    assert_eq!(server.model.request_count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_a_limit_cut_is_incomplete() {
    let server = TestServer::start().await;
    server.model.script(ScriptedStream::new().text("It is a lo").finish_reason("length"));
    let response = create(&server, &question()).await;
    let expected = json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}});
    assert_fields(&response, &expected);
    assert_eq!(text_of(&response), "It is a lo");
}

fn long_message(mib: usize) -> Value {
    json!({"items": [{"role": "user", "content": "x".repeat(mib << 20)}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_has_room_for_so_much() {
    let server = TestServer::start_with(|config| config.engine.retention.responses_mib = 2).await;
    for text in ["one", "two", "three"] {
        server.model.script(ScriptedResponse::text(text));
    }
    let long = with(question(), &json!({"input": "x".repeat(3 << 20)}));
    let first = create(&server, &long).await;
    let second = create(&server, &question()).await;
    server.http.get(&path(&first)).await.expect_status(404);
    assert_eq!(show(&server, &second).await, second, "the oldest one goes");
    server.http.post("/v1/conversations", &long_message(3)).await.expect_status(200);
    let other = server.api_with_new_token("other", "write").await;
    for (path, body) in [("/v1/conversations", json!({})), ("/v1/responses", question())] {
        let refused = server.http.post(path, &body).await;
        assert_eq!((refused.status, &refused.body["error"]["code"]), (429, &json!("storage_limit")));
    }
    other.post("/v1/conversations", &json!({})).await.expect_status(200);
    assert_eq!(text_of(&create(&server, &with(question(), &json!({"store": false}))).await), "three");
}
