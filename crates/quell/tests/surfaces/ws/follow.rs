//! `runs.follow`, and how the page connects: with a cookie instead of a token.

use quell_engine::access::BrowserSignIn;

use super::WsTestClient;
use crate::prelude::*;

/// Sequence number and type of each event of a followed run so far.
fn followed_events(client: &WsTestClient, run: &str) -> Vec<(u64, String)> {
    let payloads = client.events.iter().filter(|event| event["event"] == "run.event").map(|event| &event["payload"]);
    let of_run = payloads.filter(|payload| payload["runId"] == run);
    of_run.map(|event| (event["seq"].as_u64().unwrap(), event["type"].as_str().unwrap().to_owned())).collect()
}

/// Signs a browser in; returns it and the origin of the page.
async fn sign_in(server: &TestServer) -> (BrowserSignIn, String) {
    let signed_in = server.engine.access().sign_in_with_token(&server.token).await.unwrap().unwrap();
    (signed_in, format!("http://{}", server.address))
}

/// Opens the socket of a signed-in browser.
async fn open_page(server: &TestServer, browser: &BrowserSignIn, origin: Option<&str>) -> WsTestClient {
    WsTestClient::open_as_browser(server, browser.secrets().cookie, origin).await
}

fn page_auth(browser: &BrowserSignIn) -> Value {
    json!({"auth": {"pageSecret": browser.secrets().page_secret}})
}

async fn connect_page(server: &TestServer) -> WsTestClient {
    let mut client = WsTestClient::open_socket(server).await;
    let hello = client.handshake(&server.token, json!({"caps": ["run-events"]})).await;
    assert_eq!(hello["ok"], true, "{hello}");
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_run_is_told_as_its_sse_route_tells_it() {
    let server = TestServer::start().await;
    server.model.script(ScriptedStream::new().thinking("hm").text("one ").wait_for_gate("go").text("two"));
    let mut client = connect_page(&server).await;
    client.send_chat("s", "hello", "r1").await;
    assert_eq!(client.call("runs.follow", json!({"runId": "r1"})).await, json!({"following": true}));
    client.wait_event_with("run.event", "type", "text.delta").await;
    server.model.open_gate("go");
    client.wait_event_with("run.event", "type", "run.ended").await;
    let followed = client.events.iter().filter(|event| event["event"] == "run.event").map(|event| &event["payload"]);
    let sse = server.http.run_events("r1", 0).await.read_to_end().await;
    assert_eq!(followed.clone().next_back().unwrap()["receipt"], sse.events.last().unwrap().data["receipt"]);
    let deltas = followed.filter(|event| event["type"] == "text.delta");
    assert_eq!(deltas.map(|event| event["text"].as_str().unwrap()).collect::<String>(), "one two");
    assert!(!client.events.iter().any(|event| event["event"] == "chat"), "a client with run-events gets no chat");
    let seqs: Vec<u64> = followed_events(&client, "r1").iter().map(|(seq, _)| *seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "from 1, without a hole");
}

#[tokio::test(flavor = "multi_thread")]
async fn following_goes_on_behind_a_cursor_and_ends_when_it_is_given_up() {
    let server = TestServer::start().await;
    server.model.script(ScriptedResponse::tokens_forever(Duration::from_millis(2)));
    let mut client = connect_page(&server).await;
    client.send_chat("s", "hello", "r1").await;
    client.call("runs.follow", json!({"runId": "r1", "after": 3})).await;
    client.wait_event_with("run.event", "type", "text.delta").await;
    assert!(followed_events(&client, "r1")[0].0 >= 4);
    client.call("runs.unfollow", json!({"runId": "r1"})).await;
    client.call("health", json!({})).await;
    let before = followed_events(&client, "r1").len();
    client.call("sessions.abort", json!({"key": "s"})).await;
    client.wait_event_with("run", "state", "ended").await;
    assert_eq!(followed_events(&client, "r1").len(), before, "nothing more after it was given up");
    // A client that follows after the end gets `run.ended` with the receipt.
    client.call("runs.follow", json!({"runId": "r1", "after": 1_000_000})).await;
    let end = client.wait_event_with("run.event", "type", "run.ended").await;
    assert_eq!(end["receipt"]["verdict"]["kind"], "aborted");
    for unknown in ["nobody", ""] {
        client.call_refused_as("INVALID_REQUEST", "runs.follow", json!({"runId": unknown})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_behind_the_ring_gets_a_snapshot() {
    let server = TestServer::start().await;
    let pieces = (0..40).fold(ScriptedStream::new(), |stream, _| stream.text("x".repeat(1000)));
    server.model.script(pieces.wait_for_gate("go").text("y"));
    let run = server.send_message("s", "hello").await;
    let mut live = server.http.run_events(&run, 0).await;
    let mut written = 0;
    while written < 40_000 {
        let event = live.next().await.unwrap();
        let length = event.data["text"].as_str().map_or(0, str::len);
        match event.kind.as_str() {
            "text.delta" => written += length,
            // This reader may have fallen behind, too.
            "run.snapshot" => written = length,
            _ => {}
        }
    }
    let mut client = connect_page(&server).await;
    client.call("runs.follow", json!({"runId": run})).await;
    let snapshot = client.wait_event_with("run.event", "type", "run.snapshot").await;
    assert_eq!(snapshot["text"].as_str().unwrap().len(), 40_000);
    server.model.open_gate("go");
    let end = client.wait_event_with("run.event", "type", "run.ended").await;
    assert_eq!(end["text"].as_str().unwrap().len(), 40_001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_followed_anew_takes_no_second_place() {
    let (server, run) = TestServer::start_streaming().await;
    let mut client = connect_page(&server).await;
    for _ in 0..70 {
        client.call("runs.follow", json!({"runId": run})).await;
    }
    client.call("sessions.abort", json!({"key": "s"})).await;
    client.wait_event_with("run.event", "type", "run.ended").await;
    let ends = followed_events(&client, &run).iter().filter(|(_, kind)| kind == "run.ended").count();
    assert_eq!(ends, 1, "only the last of them goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cookie_of_the_page_opens_the_socket_from_its_own_origin_alone() {
    let server = TestServer::start().await;
    let (browser, own) = sign_in(&server).await;
    let mut client = open_page(&server, &browser, Some(&own)).await;
    let hello = client.handshake("", page_auth(&browser)).await;
    assert_eq!(hello["ok"], true, "{hello}");
    server.model.script(ScriptedResponse::silent_mid_stream("begun"));
    client.send_chat("s", "hello", "r1").await;
    server.model.request_at(0).wait_paused().await;
    client.call("sessions.abort", json!({"key": "s"})).await;
    assert_eq!(server.wait_ended("r1").await["verdict"]["by"], json!({"principal": "admin", "surface": "page"}));
    // Without an origin it is not a browser, and its cookie does not authenticate; a wrong cookie does not either.
    for (value, origin) in [(browser.secrets().cookie, None), ("wrong", Some(own.as_str()))] {
        let mut other = WsTestClient::open_as_browser(&server, value, origin).await;
        let refused = other.handshake("", page_auth(&browser)).await;
        assert_eq!(refused["error"]["details"]["code"], "AUTH_TOKEN_MISSING", "{refused}");
    }
    // If a token is given, it counts instead of the cookie.
    let mut wrong = open_page(&server, &browser, Some(&own)).await;
    let refused = wrong.handshake("quell_no", json!({})).await;
    assert_eq!(refused["error"]["details"]["code"], "AUTH_TOKEN_MISMATCH", "{refused}");
    drop(client);
    let state = server.state.clone();
    leaks::wait_for_true("the streams are closed", move || state.stream_count() <= 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_socket_and_an_open_stream_end_with_what_let_them_in() {
    let (server, run) = TestServer::start_streaming().await;
    let (signed_in, own) = sign_in(&server).await;
    let mut browser = open_page(&server, &signed_in, Some(&own)).await;
    browser.handshake("", page_auth(&signed_in)).await;
    let token = server.create_token("bot", "read:all").await;
    let mut bot = WsTestClient::connect_operator(&server, &token).await;
    let mut admin = WsTestClient::connect_operator(&server, &server.token).await;
    let mut stream = server.http.with_token(&token).run_events(&run, 0).await;
    stream.wait_for("text.delta").await;
    server.engine.access().sign_out(signed_in.secrets()).await.unwrap();
    assert_eq!(browser.wait_close().await.0, 1008);
    assert_eq!(server.http.delete("/api/tokens/bot").await.status, 204);
    assert_eq!(bot.wait_close().await.0, 1008);
    assert!(!stream.read_to_end().await.kinds().contains(&"run.ended"), "the stream ended, not the run");
    admin.call("health", json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_that_is_taken_back_at_once_follows_nothing() {
    let (server, run) = TestServer::start_streaming().await;
    let mut client = connect_page(&server).await;
    let follow = client.send_request("runs.follow", json!({"runId": run})).await;
    let unfollow = client.send_request("runs.unfollow", json!({"runId": run})).await;
    client.wait_response(&follow).await;
    client.wait_response(&unfollow).await;
    // Events that were sent before `runs.unfollow` arrived are there; no more come after it.
    let before = followed_events(&client, &run);
    client.call("sessions.abort", json!({"key": "s"})).await;
    client.wait_event_with("run", "state", "ended").await;
    client.call("health", json!({})).await;
    assert_eq!(followed_events(&client, &run), before);
}
