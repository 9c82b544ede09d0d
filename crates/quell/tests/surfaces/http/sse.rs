//! Stream the events of a run: from the start, resumed, after the end, to a slow reader.

use quell_testkit::model::StreamStep;
use tokio::io::AsyncReadExt;

use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_told_from_its_beginning_to_its_end() {
    let server = TestServer::start().await;
    server.model.script(ScriptedStream::new().thinking("hm").text("one ").wait_for_gate("go").text("two"));
    let run = server.send_message("s", "x").await;
    let events = server.http.run_events(&run, 0).await;
    server.model.open_gate("go");
    let log = events.read_to_end().await;
    log.assert_valid();
    let kinds = log.kinds();
    assert_eq!(kinds[..3], ["run.queued", "run.started", "step.started"]);
    assert_eq!(kinds[kinds.len() - 2..], ["run.ending", "run.ended"]);
    assert_eq!((log.text().as_str(), log.verdict()), ("one two", "completed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_is_an_event_stream_that_nobody_buffers() {
    let (server, run) = TestServer::start_streaming().await;
    let answer = server.http.request(Method::GET, &format!("/api/runs/{run}/events")).send().await.unwrap();
    let _ = server.http.post("/api/stop", &json!({})).await.expect_status(200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    assert!(answer.headers().contains_key("cache-control"));
    let text = answer.text().await.unwrap();
    // A run that is in the database only is sent as a snapshot and its end.
    let first = text.split("\n\n").next().unwrap();
    assert!(first.starts_with("id: ") && first.contains("\nevent: run.") && first.contains("\ndata: {"), "{first}");
    assert!(text.contains("\nevent: run.ended\ndata: {"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_resumes_where_it_was() {
    let server = TestServer::start().await;
    server.model.script(gated_response("go"));
    let run = server.send_message("s", "x").await;
    let mut events = server.http.run_events(&run, 0).await;
    let seen = events.wait_for("text.delta").await.seq;
    drop(events);
    let resumed = server.http.run_events(&run, seen).await;
    // The header takes precedence over the query.
    let request = server.http.request(Method::GET, &format!("/api/runs/{run}/events?after=0"));
    let other = request.header("last-event-id", (seen + 1).to_string()).send().await.unwrap();
    server.model.open_gate("go");
    let log = resumed.read_to_end().await;
    log.assert_valid();
    assert_eq!((log.events[0].seq, log.text().as_str()), (seen + 1, " and done"));
    let text = other.text().await.unwrap();
    assert!(text.starts_with(&format!("id: {}\n", seen + 2)), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_at_or_beyond_the_end_still_gets_the_end() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    for stored in [false, true] {
        if stored {
            server.wait_forgotten(&run).await;
        }
        let last = server.http.run_view(&run).await["seq"].as_u64().unwrap();
        for after in [last - 1, last, last + 100] {
            let path = format!("/api/runs/{run}/events?after={after}");
            let text = server.http.get(&path).await.expect_status(200).as_str().unwrap().to_owned();
            assert!(text.starts_with(&format!("id: {last}\nevent: run.ended\n")), "after {after}: {text}");
            assert_eq!(text.matches("event: ").count(), 1, "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_long_ago_is_told_without_an_unexplained_hole() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    server.wait_forgotten(&run).await;
    let log = server.http.run_events(&run, 0).await.read_to_end().await;
    log.assert_valid();
    assert_eq!((log.kinds(), log.verdict()), (vec!["run.snapshot", "run.ended"], "completed"));
    assert_eq!(log.events[0].data["text"], "done");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_cursors_are_refused() {
    let server = TestServer::start().await;
    let run = server.run_to_end("s").await;
    let path = format!("/api/runs/{run}/events");
    assert_problem(&server.http.get(&format!("{path}?after=x")).await, 400, "invalid_request");
    assert_problem(&server.http.get(&format!("{path}?afer=1")).await, 400, "invalid_request");
    let answer = server.http.send(server.http.request(Method::GET, &path).header("last-event-id", "x")).await;
    assert_problem(&answer, 400, "invalid_request");
}

/// Bytes of text that exceed the buffers of two sockets.
const LARGE_TEXT_BYTES: usize = 8 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_gets_a_snapshot_and_the_end() {
    let server = TestServer::start().await;
    let begun = ScriptedStream::new().text("begun").wait_for_gate("go");
    server.model.script(begun.step(StreamStep::HugeOutput { bytes: LARGE_TEXT_BYTES }));
    let run = server.send_message("s", "x").await;
    server.model.request_at(0).wait_paused().await;
    let mut slow = quell_test_support::ws_client::connect_with_small_buffer(&server.address.to_string()).await;
    server.write_head(&mut slow, "GET", &format!("/api/runs/{run}/events"), "connection: close").await;
    let mut first = [0; 12];
    slow.read_exact(&mut first).await.unwrap();
    server.model.open_gate("go");
    // The slow reader blocks nothing: the run ends, and another reader gets the events.
    let view = tokio::time::timeout(Duration::from_secs(60), server.wait_ended(&run)).await.unwrap();
    assert_eq!(view["verdict"]["kind"], "completed");
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(60), slow.read_to_end(&mut rest)).await.unwrap().unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("event: run.snapshot\n"), "a gap came without a snapshot");
    assert_eq!(rest.matches("event: run.ended\n").count(), 1);
    let end = rest.rfind("event: run.ended\n").unwrap();
    assert_eq!(rest[end..].matches("event: ").count(), 1, "nothing follows the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_see_the_same() {
    let (server, run) = TestServer::start_streaming().await;
    let logs = [server.http.run_events(&run, 0).await, server.http.run_events(&run, 0).await];
    let _ = server.http.post("/api/stop", &json!({})).await.expect_status(200);
    let mut seen = Vec::new();
    for log in logs {
        let log = log.read_to_end().await;
        log.assert_valid();
        seen.push(log.events.iter().map(|event| event.data.clone()).collect::<Vec<_>>());
    }
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_told_the_end_before_the_daemon_goes() {
    let (server, run) = TestServer::start_streaming().await;
    let events = server.http.run_events(&run, 0).await;
    server.engine.shut_down().await;
    let log = events.read_to_end().await;
    log.assert_valid();
    assert_eq!(log.events.last().unwrap().data["verdict"]["reason"], "shutdown");
    assert_eq!(log.receipt()["leftovers"], json!([]));
}
