//! The unmodified npm client of the gateway protocol, `@openclaw/gateway-client`, against Quell's door: connect, stream,
//! abort, gap, reconnect. A relay between them loses one event and cuts the connection once.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use quell_testkit::Behaviour;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;

use crate::doors::House;
use crate::node::{self, Packages};

/// The client's folder as it stands in the source.
const CLIENT: Packages = Packages {
    name: "openclaw-client",
    files: &[
        ("package.json", include_str!("openclaw/package.json")),
        ("package-lock.json", include_str!("openclaw/package-lock.json")),
        ("client.mjs", include_str!("openclaw/client.mjs")),
    ],
};

#[tokio::test(flavor = "multi_thread")]
async fn the_unmodified_npm_client_connects_streams_aborts_and_comes_back() {
    if node::is_skipped() {
        return;
    }
    let folder = node::install(&CLIENT).await;
    let house = House::open().await;
    house.model.script(Behaviour::silent_mid_stream("begun")).script(Behaviour::text("back again"));
    let relay = relay(&house).await;
    let mut node = node::command("node");
    node.arg("client.mjs").current_dir(folder).env("QUELL_TEST_URL", relay).env("QUELL_TEST_TOKEN", &house.token);
    let output = tokio::time::timeout(Duration::from_secs(60), node.output()).await.expect("the client ends").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    check(&lines);
    house.model.assert_histories_valid();
}

fn check(lines: &[Value]) {
    let of = |step: &str| lines.iter().filter(|line| line["step"] == step).collect::<Vec<_>>();
    let answers = |method: &str| -> Vec<&Value> {
        of("answer").into_iter().filter(|line| line["method"] == method).map(|line| &line["answer"]).collect()
    };
    assert_eq!(of("violation"), Vec::<&Value>::new(), "against the published schema");
    let hellos = of("hello");
    assert_eq!(hellos.len(), 2, "{lines:#?}");
    assert!(hellos.iter().all(|hello| hello["protocol"] == 4), "{hellos:#?}");
    assert_eq!(answers("chat.send")[0]["status"], "started");
    assert_eq!(answers("chat.abort"), [&json!({"ok": true, "aborted": true, "runIds": ["npm-1"]})]);
    let states: Vec<String> = of("chat")
        .iter()
        .map(|line| {
            format!("{} {}", line["payload"]["runId"].as_str().unwrap(), line["payload"]["state"].as_str().unwrap())
        })
        .collect();
    assert_eq!(states, ["npm-1 delta", "npm-1 aborted", "npm-2 delta", "npm-2 final"]);
    let gaps = of("gap");
    assert_eq!(gaps.len(), 1, "{gaps:#?}");
    assert_eq!(gaps[0]["received"].as_u64(), gaps[0]["expected"].as_u64().map(|expected| expected + 1));
    let ended = of("run").into_iter().find(|line| line["runId"] == "npm-1" && line["state"] == "ended").unwrap();
    assert_eq!(ended["leftovers"], json!([]));
    assert!(!of("close").is_empty(), "it noticed the cut");
    let messages = answers("chat.history")[0]["messages"].as_array().unwrap();
    assert_eq!(messages[0]["role"], "user", "{messages:#?}");
    assert_eq!(lines.last().unwrap()["step"], "done");
}

/// Stands between the client and the door. On the first connection it loses one event and cuts off after the first end of a
/// run; from the second on it only passes frames.
async fn relay(house: &House) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let door = format!("ws://{}/ws", house.address);
    #[expect(clippy::disallowed_methods, reason = "the test's own relay, which ends with its runtime")]
    tokio::spawn(async move {
        let (first, _) = listener.accept().await.unwrap();
        pass(first, &door, Faults::LoseOneAndCut).await;
        while let Ok((next, _)) = listener.accept().await {
            pass(next, &door, Faults::None).await;
        }
    });
    url
}

#[derive(Clone, Copy, PartialEq)]
enum Faults {
    LoseOneAndCut,
    None,
}

async fn pass(socket: TcpStream, door: &str, faults: Faults) {
    let (mut client, (mut door, _)) =
        (tokio_tungstenite::accept_async(socket).await.unwrap(), tokio_tungstenite::connect_async(door).await.unwrap());
    let mut to_lose = faults == Faults::LoseOneAndCut;
    loop {
        // Both sides' frames are whole when they are handed out: none is lost with the other arm.
        tokio::select! {
            frame = client.next() => {
                let Some(Ok(frame)) = frame else { return };
                if door.send(frame).await.is_err() { return }
            }
            frame = door.next() => {
                let Some(Ok(frame)) = frame else { return };
                let event = event_of(&frame);
                // Not the first event: before one has come, the client cannot know of a hole.
                if to_lose && event["event"] == "run" && event["payload"]["state"] == "ending" {
                    to_lose = false;
                    continue;
                }
                let cut = faults == Faults::LoseOneAndCut && event["event"] == "run" && event["payload"]["state"] == "ended";
                if client.send(frame).await.is_err() || cut { return }
            }
        }
    }
}

fn event_of(frame: &Message) -> Value {
    frame.to_text().ok().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
