//! A run's events: from the beginning, resumed, after the end, and for a reader that does not read.

use std::time::Duration;

use quell_testkit::Behaviour;
use quell_testkit::model::{Step, Stream};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::doors::{House, assert_problem, gated};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_told_from_its_beginning_to_its_end() {
    let house = House::open().await;
    house.model.script(Stream::new().thinking("hm").text("one ").wait_for("go").text("two"));
    let run = house.send("s", "x").await;
    let events = house.http.events(&run, 0).await;
    house.model.open_gate("go");
    let log = events.to_end().await;
    log.assert_sound();
    let kinds = log.kinds();
    assert_eq!(kinds[..3], ["run.queued", "run.started", "step.started"]);
    assert_eq!(kinds[kinds.len() - 2..], ["run.ending", "run.ended"]);
    assert_eq!(log.text(), "one two");
    assert_eq!(log.verdict(), "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_is_an_event_stream_that_nobody_buffers() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let answer = house.http.request(Method::GET, &format!("/api/runs/{run}/events")).send().await.unwrap();
    let _ = house.http.post("/api/stop", &json!({})).await.expect_status(200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    assert!(answer.headers().contains_key("cache-control"));
    let text = answer.text().await.unwrap();
    // A run that only the database knows any more is told by a snapshot and its end.
    let first = text.split("\n\n").next().unwrap();
    assert!(first.starts_with("id: ") && first.contains("\nevent: run.") && first.contains("\ndata: {"), "{first}");
    assert!(text.contains("\nevent: run.ended\ndata: {"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_resumes_where_it_was() {
    let house = House::open().await;
    house.model.script(gated("go"));
    let run = house.send("s", "x").await;
    let mut events = house.http.events(&run, 0).await;
    let seen = events.until("text.delta").await.seq;
    drop(events);
    let resumed = house.http.events(&run, seen).await;
    // The header wins over the query.
    let request = house.http.request(Method::GET, &format!("/api/runs/{run}/events?after=0"));
    let other = request.header("last-event-id", (seen + 1).to_string()).send().await.unwrap();
    house.model.open_gate("go");
    let log = resumed.to_end().await;
    log.assert_sound();
    assert_eq!((log.events[0].seq, log.text().as_str()), (seen + 1, " and done"));
    let text = other.text().await.unwrap();
    assert!(text.starts_with(&format!("id: {}\n", seen + 2)), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_at_or_beyond_the_end_still_gets_the_end() {
    let house = House::open().await;
    let run = house.finished_run("s").await;
    for stored in [false, true] {
        if stored {
            house.forgotten(&run).await;
        }
        let last = house.http.get(&format!("/api/runs/{run}")).await.expect_status(200)["seq"].as_u64().unwrap();
        for after in [last - 1, last, last + 100] {
            let path = format!("/api/runs/{run}/events?after={after}");
            let text = house.http.get(&path).await.expect_status(200).as_str().unwrap().to_owned();
            assert!(text.starts_with(&format!("id: {last}\nevent: run.ended\n")), "after {after}: {text}");
            assert_eq!(text.matches("event: ").count(), 1, "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_ended_long_ago_is_told_without_an_unexplained_hole() {
    let house = House::open().await;
    let run = house.finished_run("s").await;
    house.forgotten(&run).await;
    let log = house.http.events(&run, 0).await.to_end().await;
    log.assert_sound();
    assert_eq!(log.kinds(), ["run.snapshot", "run.ended"]);
    assert_eq!(log.events[0].data["text"], "done");
    assert_eq!(log.verdict(), "completed");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_cursors_are_refused() {
    let house = House::open().await;
    let run = house.finished_run("s").await;
    let path = format!("/api/runs/{run}/events");
    assert_problem(&house.http.get(&format!("{path}?after=x")).await, 400, "invalid_request");
    assert_problem(&house.http.get(&format!("{path}?afer=1")).await, 400, "invalid_request");
    let answer = house.http.send(house.http.request(Method::GET, &path).header("last-event-id", "x")).await;
    assert_problem(&answer, 400, "invalid_request");
}

/// Bytes of text that the buffers of two sockets do not hold.
const HUGE: usize = 8 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_gets_a_snapshot_and_the_end() {
    let house = House::open().await;
    house.model.script(Stream::new().text("begun").wait_for("go").step(Step::HugeOutput { bytes: HUGE }));
    let run = house.send("s", "x").await;
    house.model.request(0).resting().await;
    let slow = tokio::net::TcpSocket::new_v4().unwrap();
    slow.set_recv_buffer_size(32 * 1024).unwrap();
    let mut slow = slow.connect(house.address).await.unwrap();
    let (address, token) = (house.address, &house.token);
    let head = format!("GET /api/runs/{run}/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n");
    slow.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut first = [0; 12];
    slow.read_exact(&mut first).await.unwrap();
    house.model.open_gate("go");
    // Nobody waits for it: the run ends, and another reader is told.
    let view = tokio::time::timeout(Duration::from_secs(60), house.ended(&run)).await.unwrap();
    assert_eq!(view["verdict"]["kind"], "completed");
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(60), slow.read_to_end(&mut rest)).await.unwrap().unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("event: run.snapshot\n"), "a hole was not explained");
    assert_eq!(rest.matches("event: run.ended\n").count(), 1);
    let end = rest.rfind("event: run.ended\n").unwrap();
    assert_eq!(rest[end..].matches("event: ").count(), 1, "nothing follows the end");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_readers_see_the_same() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let logs = [house.http.events(&run, 0).await, house.http.events(&run, 0).await];
    let _ = house.http.post("/api/stop", &json!({})).await.expect_status(200);
    let mut seen = Vec::new();
    for log in logs {
        let log = log.to_end().await;
        log.assert_sound();
        seen.push(log.events.iter().map(|event| event.data.clone()).collect::<Vec<_>>());
    }
    assert_eq!(seen[0], seen[1]);
    house.model.script(Behaviour::text("unused"));
}
