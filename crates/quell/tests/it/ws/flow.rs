//! Limits and the life of a connection: sizes, odd frames, a client that does not read, the end of the daemon.

use std::time::Duration;

use futures_util::StreamExt;
use quell_testkit::Behaviour;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::{Client, message};
use crate::doors::House;

#[tokio::test(flavor = "multi_thread")]
async fn a_huge_frame_is_1009_and_the_daemon_lives() {
    let house = House::open().await;
    let mut client = Client::operator(&house, &house.token).await;
    client.text(&"x".repeat(26_214_401)).await;
    let (code, _, before) = client.closed().await;
    assert_eq!((code, before.len()), (1009, 0));
    Client::operator(&house, &house.token).await.call("health", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_frame_within_the_limit_is_taken() {
    let house = House::open().await;
    house.model.script(Behaviour::text("long"));
    let mut client = Client::operator(&house, &house.token).await;
    client.call("chat.send", message("s", &"x".repeat(1024 * 1024), "r1")).await;
    client.event_with("chat", "state", "final").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_frames_are_refused_and_the_connection_goes_on() {
    let house = House::open().await;
    let mut client = Client::operator(&house, &house.token).await;
    client.frame(Message::binary(vec![1])).await;
    assert_eq!(client.answer("").await["error"]["code"], "INVALID_REQUEST");
    client.text("not json").await;
    assert_eq!(client.answer("").await["error"]["code"], "INVALID_REQUEST");
    client.text(r#"{"type":"req","id":"e1","method":"health","extra":1}"#).await;
    let extra = client.answer("e1").await;
    assert!(extra["error"]["message"].as_str().unwrap().starts_with("invalid request frame"), "{extra}");
    client.text(r#"{"type":"event","id":"e2","method":"health"}"#).await;
    assert_eq!(client.answer("e2").await["ok"], false);
    client.text(r#"{"type":"req","id":7,"method":"health"}"#).await;
    assert_eq!(client.answer("").await["ok"], false);
    let unknown = client.refused("no.such", json!({})).await;
    assert_eq!((&unknown["code"], &unknown["message"]), (&json!("INVALID_REQUEST"), &json!("unknown method: no.such")));
    assert_eq!(client.refused("connect", json!({})).await["code"], "INVALID_REQUEST");
    client.frame(Message::Ping(vec![1].into())).await;
    assert_eq!(client.call("health", json!({})).await["ok"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_given_up_and_harms_nobody() {
    let house = House::open().await;
    house.model.script(Behaviour::text("done"));
    let mut good = Client::operator(&house, &house.token).await;
    good.call("chat.send", message("long", &"x".repeat(4 * 1024 * 1024), "r1")).await;
    good.event_with("run", "state", "ended").await;
    let mut slow = Client::operator(&house, &house.token).await;
    assert_eq!(house.door.stream_count(), 2);
    // Answers are facts: sixty of 4 MiB each do not fit into 50 MiB and the buffers of two sockets.
    for _ in 0..60 {
        slow.begin("chat.history", json!({"sessionKey": "long"})).await;
    }
    let run = house.streaming_run("s").await;
    good.call("chat.abort", json!({"sessionKey": "s", "runId": run})).await;
    good.event_with("chat", "state", "aborted").await;
    let given_up = async {
        while house.door.stream_count() > 1 {
            // The count of streams has no event.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), given_up).await.expect("the place is free again");
    good.call("health", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closing_daemon_says_so_and_stops_the_runs() {
    let house = House::open().await;
    let run = house.streaming_run("s").await;
    let mut client = Client::operator(&house, &house.token).await;
    house.engine.shut_down().await;
    let (code, why, before) = client.closed().await;
    assert_eq!((code, why.as_str()), (1012, "service restart"));
    let at = |name: &str, state: &str| {
        let fits = |frame: &&serde_json::Value| {
            frame["event"] == name && (state.is_empty() || frame["payload"]["state"] == state)
        };
        before.iter().position(|frame| fits(&frame)).unwrap_or_else(|| panic!("no {name} {state} in {before:#?}"))
    };
    assert_eq!(before[at("shutdown", "")]["payload"]["reason"], "shutdown");
    assert!(at("shutdown", "") < at("chat", "aborted") && at("chat", "aborted") < at("run", "ended"));
    assert_eq!(before[at("run", "ended")]["payload"]["runId"], run);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_closes_is_answered_and_its_place_is_free() {
    let house = House::open().await;
    let mut client = Client::operator(&house, &house.token).await;
    client.frame(Message::Close(None)).await;
    while let Some(Ok(_)) = client.socket.next().await {}
    let freed = async {
        while house.door.stream_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), freed).await.expect("the place is free again");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "waits for the 30 s between ticks"]
async fn a_tick_comes_every_thirty_seconds() {
    let house = House::open().await;
    let mut client = Client::operator(&house, &house.token).await;
    let waiting = tokio::time::timeout(Duration::from_secs(40), async {
        loop {
            // The door pings every 25 s, so that a frame comes before this client's patience ends.
            if let Some(tick) = client.next().await.filter(|frame| frame["event"] == "tick") {
                return tick;
            }
        }
    });
    let tick = waiting.await.unwrap();
    assert!(tick["payload"]["ts"].is_number() && tick["seq"].is_number(), "{tick}");
}
