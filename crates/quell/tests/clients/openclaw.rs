//! OpenClaw's own clients, unmodified, against Quell: its terminal, its commands, its Control UI, and the npm client of
//! the gateway protocol.
//!
//! `@openclaw/gateway-client` goes through a lossy relay, which loses one event and cuts the connection once: it covers
//! connect, stream, abort, gap and reconnect.

mod clients;
mod command_line;
mod control_ui;
mod terminal;

use futures_util::{SinkExt, StreamExt};
use quell_test_support::npm_packages::{self, NpmPackages};
use tokio::net::{TcpListener, TcpStream};

use crate::prelude::*;

const CLIENT_PACKAGES: NpmPackages = NpmPackages {
    name: "openclaw-client",
    files: &[
        ("package.json", include_str!("openclaw/package.json")),
        ("package-lock.json", include_str!("openclaw/package-lock.json")),
        ("client.mjs", include_str!("openclaw/client.mjs")),
    ],
};

#[tokio::test(flavor = "multi_thread")]
async fn the_unmodified_npm_client_connects_streams_aborts_and_comes_back() {
    if npm_packages::is_skipped() {
        return;
    }
    let folder = npm_packages::install_packages(&CLIENT_PACKAGES).await;
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::silent_mid_stream("begun")).script(ScriptedResponse::text("back again"));
    let relay = start_relay(&server).await;
    let mut node = npm_packages::program_command("node");
    node.arg("client.mjs").current_dir(folder).env("QUELL_TEST_URL", relay).env("QUELL_TEST_TOKEN", &server.token);
    let output =
        tokio::time::timeout(Duration::from_secs(60), node.output()).await.expect("the client did not end").unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    check_transcript(&lines);
    server.model.assert_histories_valid();
}

fn check_transcript(lines: &[Value]) {
    let of = |step: &str| lines.iter().filter(|line| line["step"] == step).collect::<Vec<_>>();
    let answers = |method: &str| -> Vec<&Value> {
        of("answer").into_iter().filter(|line| line["method"] == method).map(|line| &line["answer"]).collect()
    };
    assert_eq!(of("violation"), Vec::<&Value>::new(), "violations of the published schema");
    let hellos = of("hello");
    assert_eq!(hellos.len(), 2, "{lines:#?}");
    assert!(hellos.iter().all(|hello| hello["protocol"] == 4), "{hellos:#?}");
    assert_eq!(answers("chat.send")[0]["status"], "started");
    assert_eq!(answers("chat.abort"), [&json!({"ok": true, "aborted": true, "runIds": ["npm-1"]})]);
    let chats = of("chat");
    let states = chats.iter().map(|line| ["runId", "state"].map(|field| line["payload"][field].as_str().unwrap()));
    let wanted = [["npm-1", "delta"], ["npm-1", "aborted"], ["npm-2", "delta"], ["npm-2", "final"]];
    assert_eq!(states.collect::<Vec<_>>(), wanted);
    let gaps = of("gap");
    assert_eq!(gaps.len(), 1, "{gaps:#?}");
    assert_eq!(gaps[0]["received"].as_u64(), gaps[0]["expected"].as_u64().map(|expected| expected + 1));
    let ended = of("run").into_iter().find(|line| line["runId"] == "npm-1" && line["state"] == "ended").unwrap();
    assert_eq!(ended["leftovers"], json!([]));
    assert!(!of("close").is_empty(), "the client did not notice the cut");
    let messages = answers("chat.history")[0]["messages"].as_array().unwrap();
    assert_eq!(messages[0]["role"], "user", "{messages:#?}");
    assert_eq!(lines.last().unwrap()["step"], "done");
}

/// Relays between the client and the server. On the first connection it drops one event and closes after the first end
/// of a run; later connections only pass frames.
async fn start_relay(server: &TestServer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let server_url = format!("ws://{}/ws", server.address);
    #[expect(clippy::disallowed_methods, reason = "the test's own relay, which ends with its runtime")]
    tokio::spawn(async move {
        for number in 0.. {
            let (socket, _) = listener.accept().await.unwrap();
            relay_connection(socket, &server_url, number).await;
        }
    });
    url
}

async fn relay_connection(socket: TcpStream, server_url: &str, number: u32) {
    let (mut client, (mut server, _)) = (
        tokio_tungstenite::accept_async(socket).await.unwrap(),
        tokio_tungstenite::connect_async(server_url).await.unwrap(),
    );
    let mut to_lose = number == 0;
    loop {
        // Both `next` return whole frames, so no frame is lost when the other branch wins.
        tokio::select! {
            frame = client.next() => {
                let Some(Ok(frame)) = frame else { return };
                if server.send(frame).await.is_err() { return }
            }
            frame = server.next() => {
                let Some(Ok(frame)) = frame else { return };
                let event: Value = frame.to_text().ok().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
                // Not the first event: before one has arrived, the client cannot detect a gap.
                if to_lose && event["event"] == "run" && event["payload"]["state"] == "ending" {
                    to_lose = false;
                    continue;
                }
                let cut = number == 0 && event["event"] == "run" && event["payload"]["state"] == "ended";
                if client.send(frame).await.is_err() || cut { return }
            }
        }
    }
}
