//! A prompt that is stopped: by the editor in each of its ways, by somebody else, and by a lost connection.

use super::client::joined_text;
use super::*;

/// A prompt whose command runs and whose processes carry the mark.
struct RunningPrompt {
    session: String,
    request: u64,
    mark: ProcessMarker,
}

async fn start_command(fixture: &AcpFixture, client: &mut AcpTestClient) -> RunningPrompt {
    let (session, mark) = (fixture.new_session(client).await, ProcessMarker::new());
    fixture.model.script(shell_call(commands::setsid_child(&mark)));
    let request = client.begin("session/prompt", text_prompt(&session, "run it")).await;
    mark.wait_for_count(2).await;
    client.wait_update("tool_call").await;
    RunningPrompt { session, request, mark }
}

/// Checks the end of a stopped prompt: no process, a receipt, a valid history, and an answer to the next prompt.
async fn assert_stopped(fixture: &AcpFixture, running: &RunningPrompt, reason: &str) {
    running.mark.wait_gone(WAIT_TIMEOUT).await;
    let run = fixture.ended_run(&running.session).await;
    assert_fields(&run, &json!({"verdict": {"kind": "aborted", "reason": reason}, "receipt": {"leftovers": []}}));
    fixture.model.wait_for_connections(0).await;
}

async fn assert_next_prompt_works(fixture: &AcpFixture, client: &mut AcpTestClient, session: &str) {
    client.take_updates();
    fixture.model.script(ScriptedResponse::text("back again"));
    let answer = client.call("session/prompt", text_prompt(session, "and now?")).await.unwrap();
    assert_eq!(answer["stopReason"], "end_turn");
    assert_eq!(joined_text(&client.take_updates(), "agent_message_chunk"), "back again");
    fixture.model.assert_histories_valid();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_cancel_stops_and_the_answer_is_cancelled() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let running = start_command(&fixture, &mut client).await;
    client.notify("session/cancel", json!({"sessionId": running.session})).await;
    let answer = client.answer(running.request).await.unwrap();
    assert_eq!(answer["stopReason"], "cancelled", "{answer:#}");
    let receipt = &answer["_meta"]["quell"]["receipt"];
    assert_eq!(receipt["leftovers"], json!([]), "{receipt:#}");
    // The call has its end before the answer of the prompt.
    let ends = client.take_updates().into_iter().filter(|update| update["status"] == "failed").count();
    assert_eq!(ends, 1);
    assert_stopped(&fixture, &running, "user").await;
    let run = fixture.ended_run(&running.session).await;
    assert_eq!(run["verdict"]["by"]["surface"], "acp", "{run:#}");
    // A cancellation that crosses the end of its prompt covers none.
    client.notify("session/cancel", json!({"sessionId": running.session})).await;
    assert_next_prompt_works(&fixture, &mut client, &running.session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_request_of_a_prompt_stops_its_run() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let running = start_command(&fixture, &mut client).await;
    client.cancel_request(running.request).await;
    let answer = client.answer(running.request).await.unwrap();
    assert_eq!(answer["stopReason"], "cancelled", "{answer:#}");
    assert_stopped(&fixture, &running, "user").await;
    assert_next_prompt_works(&fixture, &mut client, &running.session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_by_somebody_else_cancels_the_prompt() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let running = start_command(&fixture, &mut client).await;
    let path = format!("/api/sessions/{}/stop?wait=1", percent_encode(&running.session));
    fixture.daemon.api().post(&path, &json!({})).await.expect_status(200);
    let answer = client.answer(running.request).await.unwrap();
    assert_eq!(answer["stopReason"], "cancelled", "{answer:#}");
    assert_stopped(&fixture, &running, "user").await;
    assert_next_prompt_works(&fixture, &mut client, &running.session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_input_stops_the_runs_and_ends_the_process() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let running = start_command(&fixture, &mut client).await;
    client.close_input().await;
    let exit = client.wait_for("exit", |line| line.get("exit").is_some()).await;
    assert_eq!(exit["exit"], 0, "{exit:#}");
    assert_stopped(&fixture, &running, "disconnect").await;
    let mut again = fixture.connect().await;
    let params = json!({"sessionId": running.session, "cwd": fixture.project(), "mcpServers": []});
    again.call("session/resume", params).await.unwrap();
    assert_next_prompt_works(&fixture, &mut again, &running.session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_client_process_stops_its_runs() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let running = start_command(&fixture, &mut client).await;
    client.kill9().await;
    assert_stopped(&fixture, &running, "disconnect").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_prompt_is_cancelled_with_the_one_before() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let running = start_command(&fixture, &mut client).await;
    let queued = client.begin("session/prompt", text_prompt(&running.session, "then this")).await;
    let path = format!("/api/runs?state=active&session={}", percent_encode(&running.session));
    poll_until("both runs are there", async || {
        let runs = fixture.daemon.api().get(&path).await.expect_status(200);
        (runs["items"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    client.notify("session/cancel", json!({"sessionId": running.session})).await;
    for request in [running.request, queued] {
        assert_eq!(client.answer(request).await.unwrap()["stopReason"], "cancelled");
    }
    running.mark.wait_gone(WAIT_TIMEOUT).await;
    assert_next_prompt_works(&fixture, &mut client, &running.session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_session_has_no_run_left() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let running = start_command(&fixture, &mut client).await;
    client.call("session/close", json!({"sessionId": running.session})).await.unwrap();
    assert_eq!(client.answer(running.request).await.unwrap()["stopReason"], "cancelled");
    assert_stopped(&fixture, &running, "user").await;
    let refused = client.call("session/prompt", text_prompt(&running.session, "more")).await.unwrap_err();
    assert_eq!(refused["code"], -32002, "{refused:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_after_the_daemon_died_is_no_error() {
    let Some(fixture) = AcpFixture::start("").await else { return };
    let mut client = fixture.connect().await;
    let running = start_command(&fixture, &mut client).await;
    fixture.daemon.kill9().await;
    client.notify("session/cancel", json!({"sessionId": running.session})).await;
    let answer = client.answer(running.request).await.unwrap();
    assert_eq!(answer["stopReason"], "cancelled", "{answer:#}");
    let shown = joined_text(&client.take_updates(), "agent_message_chunk");
    assert!(shown.contains("The end of the run is not known"), "{shown}");
    running.mark.wait_gone(WAIT_TIMEOUT).await;
}
