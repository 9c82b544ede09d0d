//! `runs.follow`, and the page's way in: a cookie in place of a token.

use std::time::Duration;

use quell_testkit::model::Stream;
use quell_testkit::{Behaviour, leaks};
use serde_json::{Value, json};

use super::{Client, PATIENCE, message};
use crate::doors::House;

/// The events of a followed run so far: number and type.
fn followed(client: &Client, run: &str) -> Vec<(u64, String)> {
    let mine = client.events.iter().filter(|event| event["event"] == "run.event" && event["payload"]["runId"] == run);
    mine.map(|event| {
        let payload = &event["payload"];
        (payload["seq"].as_u64().unwrap(), payload["type"].as_str().unwrap().to_owned())
    })
    .collect()
}

async fn page(house: &House) -> Client {
    let mut client = Client::dial(house).await;
    let hello = client.connect(&house.token, json!({"caps": ["run-events"]})).await;
    assert_eq!(hello["ok"], true, "{hello}");
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_run_is_told_as_its_sse_route_tells_it() {
    let house = House::open().await;
    house.model.script(Stream::new().thinking("hm").text("one ").wait_for("go").text("two"));
    let mut client = page(&house).await;
    client.call("chat.send", message("s", "hello", "r1")).await;
    assert_eq!(client.call("runs.follow", json!({"runId": "r1"})).await, json!({"following": true}));
    client.event_with("run.event", "type", "text.delta").await;
    house.model.open_gate("go");
    client.event_with("run.event", "type", "run.ended").await;
    let told: Vec<Value> =
        client.events.iter().filter(|event| event["event"] == "run.event").map(|e| e["payload"].clone()).collect();
    let sse = house.http.events("r1", 0).await.to_end().await;
    let receipt = |event: &Value| event["receipt"].clone();
    assert_eq!(receipt(told.last().unwrap()), receipt(&sse.events.last().unwrap().data));
    let text: String =
        told.iter().filter(|event| event["type"] == "text.delta").map(|e| e["text"].as_str().unwrap()).collect();
    assert_eq!(text, "one two");
    assert!(!client.events.iter().any(|event| event["event"] == "chat"), "a client with run-events gets no chat");
    let seqs: Vec<u64> = followed(&client, "r1").iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "from 1, without a hole");
}

#[tokio::test(flavor = "multi_thread")]
async fn following_goes_on_behind_a_cursor_and_ends_when_it_is_given_up() {
    let house = House::open().await;
    house.model.script(Behaviour::tokens_forever(Duration::from_millis(2)));
    let mut client = page(&house).await;
    client.call("chat.send", message("s", "hello", "r1")).await;
    client.call("runs.follow", json!({"runId": "r1", "after": 3})).await;
    client.event_with("run.event", "type", "text.delta").await;
    assert!(followed(&client, "r1")[0].0 >= 4);
    client.call("runs.unfollow", json!({"runId": "r1"})).await;
    client.call("health", json!({})).await;
    let before = followed(&client, "r1").len();
    client.call("sessions.abort", json!({"key": "s"})).await;
    client.event_with("run", "state", "ended").await;
    assert_eq!(followed(&client, "r1").len(), before, "nothing more after it was given up");
    // Whoever comes late gets the end, with the receipt.
    client.call("runs.follow", json!({"runId": "r1", "after": 1_000_000})).await;
    let end = client.event_with("run.event", "type", "run.ended").await;
    assert_eq!(end["receipt"]["verdict"]["kind"], "aborted");
    let unknown = client.refused("runs.follow", json!({"runId": "nobody"})).await;
    assert_eq!(unknown["code"], "INVALID_REQUEST");
    client.refused("runs.follow", json!({"runId": ""})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_behind_the_runs_ring_gets_a_snapshot() {
    let house = House::open().await;
    let pieces = (0..40).fold(Stream::new(), |stream, _| stream.text("x".repeat(1000)));
    house.model.script(pieces.wait_for("go").text("y"));
    let run = house.send("s", "hello").await;
    let mut live = house.http.events(&run, 0).await;
    let mut written = 0;
    while written < 40_000 {
        let event = live.next().await.unwrap();
        let length = event.data["text"].as_str().map_or(0, str::len);
        match event.kind.as_str() {
            "text.delta" => written += length,
            // This reader may be behind, too.
            "run.snapshot" => written = length,
            _ => {}
        }
    }
    let mut client = page(&house).await;
    client.call("runs.follow", json!({"runId": run})).await;
    let snapshot = client.event_with("run.event", "type", "run.snapshot").await;
    assert_eq!(snapshot["text"].as_str().unwrap().len(), 40_000);
    house.model.open_gate("go");
    let end = client.event_with("run.event", "type", "run.ended").await;
    assert_eq!(end["text"].as_str().unwrap().len(), 40_001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_followed_anew_takes_no_second_place() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let mut client = page(&house).await;
    for _ in 0..70 {
        client.call("runs.follow", json!({"runId": run})).await;
    }
    client.call("sessions.abort", json!({"key": "s"})).await;
    client.event_with("run.event", "type", "run.ended").await;
    let ends = followed(&client, &run).iter().filter(|(_, kind)| kind == "run.ended").count();
    assert_eq!(ends, 1, "only the last of them goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cookie_of_the_page_opens_the_socket_from_its_own_origin_alone() {
    let house = House::open().await;
    let signed_in = house.engine.access().sign_in(&house.token).await.unwrap().unwrap();
    let cookie = secrecy::ExposeSecret::expose_secret(&signed_in.cookie).to_owned();
    let own = format!("http://{}", house.address);
    let mut client = Client::browser(&house, &cookie, Some(&own)).await;
    let hello = client.connect("", json!({"auth": null})).await;
    assert_eq!(hello["ok"], true, "{hello}");
    house.model.script(Behaviour::silent_mid_stream("begun"));
    client.call("chat.send", message("s", "hello", "r1")).await;
    house.model.request(0).resting().await;
    client.call("sessions.abort", json!({"key": "s"})).await;
    let run = house.ended("r1").await;
    assert_eq!(run["verdict"]["by"], json!({"principal": "admin", "surface": "page"}));
    // Without an origin it is no browser, and a cookie is no token; neither is a wrong one.
    for (value, origin) in [(cookie.as_str(), None), ("wrong", Some(own.as_str()))] {
        let mut other = Client::browser(&house, value, origin).await;
        let refused = other.connect("", json!({"auth": null})).await;
        assert_eq!(refused["error"]["details"]["code"], "AUTH_TOKEN_MISSING", "{refused}");
    }
    // A token that is shown counts, not the cookie beside it.
    let mut wrong = Client::browser(&house, &cookie, Some(&own)).await;
    let refused = wrong.connect("quell_no", json!({})).await;
    assert_eq!(refused["error"]["details"]["code"], "AUTH_TOKEN_MISMATCH", "{refused}");
    drop(client);
    let door = house.door.clone();
    leaks::settled(PATIENCE, move || if door.stream_count() <= 1 { Ok(()) } else { Err("streams stay open".into()) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_socket_and_an_open_stream_end_with_what_let_them_in() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let own = format!("http://{}", house.address);
    let signed_in = house.engine.access().sign_in(&house.token).await.unwrap().unwrap();
    let cookie = secrecy::ExposeSecret::expose_secret(&signed_in.cookie).to_owned();
    let mut browser = Client::browser(&house, &cookie, Some(&own)).await;
    browser.connect("", json!({"auth": null})).await;
    let token = house.token("bot", "read").await;
    let mut bot = Client::operator(&house, &token).await;
    let mut admin = Client::operator(&house, &house.token).await;
    let mut stream = house.http.with_token(&token).events(&run, 0).await;
    stream.until("text.delta").await;
    house.engine.access().sign_out(&cookie).await.unwrap();
    assert_eq!(browser.closed().await.0, 1008);
    assert_eq!(house.http.delete("/api/tokens/bot").await.status, 204);
    assert_eq!(bot.closed().await.0, 1008);
    assert!(!stream.to_end().await.kinds().contains(&"run.ended"), "the stream ended, not the run");
    admin.call("health", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_that_is_taken_back_at_once_follows_nothing() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let mut client = page(&house).await;
    let follow = client.begin("runs.follow", json!({"runId": run})).await;
    let unfollow = client.begin("runs.unfollow", json!({"runId": run})).await;
    client.answer(&follow).await;
    client.answer(&unfollow).await;
    // What was told before it was taken back is told; nothing comes after that.
    let before = followed(&client, &run);
    client.call("sessions.abort", json!({"key": "s"})).await;
    client.event_with("run", "state", "ended").await;
    client.call("health", json!({})).await;
    assert_eq!(followed(&client, &run), before);
}
