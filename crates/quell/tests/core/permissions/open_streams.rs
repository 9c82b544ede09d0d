//! Tokens that expire, are rotated or revoked, and sharing that is taken back: what is open ends at once, and says why.

use quell_scope::clock::{Clock, SkippedTime};
use quell_test_support::ws_client::WsTestClient;
use tokio::time::timeout;

use super::*;

/// A streaming run of `ann`, whose session is shared.
struct SharedRun {
    server: TestServer,
    clock: &'static SkippedTime,
    ann: TestApiClient,
    run: String,
}

impl SharedRun {
    async fn start() -> Self {
        let clock: &'static SkippedTime = Box::leak(Box::default());
        let server = TestServer::start_with(|plan| plan.engine.clock = Clock::with_skipped_time(clock)).await;
        let ann = server.api_with_new_token("ann", "write").await;
        server.model.script(gated_response("go"));
        let run = ann.send_message("s", "go on").await;
        server.model.request_at(0).wait_paused().await;
        let _ = ann.put("/api/sessions/s/sharing", &json!({"shared": true})).await.expect_status(200);
        Self { server, clock, ann, run }
    }

    async fn token(&self, body: Value) -> String {
        let made = self.server.http.post("/api/tokens", &body).await.expect_status(201);
        made["token"].as_str().unwrap().to_owned()
    }

    /// The text of an open event stream. It is read when the stream ends.
    async fn open_stream(&self, token: &str) -> reqwest::Response {
        let path = format!("/api/runs/{}/events", self.run);
        let opened = self.server.http.with_token(token).request(Method::GET, &path).send().await.unwrap();
        assert_eq!(opened.status(), 200);
        opened
    }

    async fn assert_still_running(&self) {
        self.server.assert_running(&self.run).await;
    }
}

/// The data of the last event of a stream that the server ended.
async fn closed_event(stream: reqwest::Response) -> Value {
    let text = timeout(WAIT_TIMEOUT, stream.text()).await.expect("the stream is still open").unwrap();
    assert!(!text.contains("event: run.ended"), "the stream ended, not the run: {text}");
    let data = text.split("event: stream.closed\ndata: ").nth(1).unwrap_or_else(|| panic!("no reason: {text}"));
    serde_json::from_str(data.trim()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_ends_its_streams_and_is_refused_by_name() {
    let shared = SharedRun::start().await;
    let token = shared.token(json!({"name": "guest", "scope": "read", "expiresInS": 3600})).await;
    let stream = shared.open_stream(&token).await;
    let mut client = WsTestClient::connect_operator(&shared.server, &token).await;
    // No timer notices the time that was skipped, but every change of a token lets the streams look again.
    shared.clock.skip(Duration::from_secs(3600));
    let _ = shared.token(json!({"name": "gone", "scope": "read"})).await;
    assert_eq!(shared.server.http.delete("/api/tokens/gone").await.status, 204);
    let (code, reason, _) = client.wait_close().await;
    assert_eq!((code, reason.as_str()), (1008, "the token has expired; ask an admin for a new secret"));
    assert_eq!(closed_event(stream).await["code"], "token_expired");
    let guest = shared.server.http.with_token(&token);
    let refused = guest.get("/api/runs").await;
    assert_problem(&refused, 401, "unauthorized");
    let detail = refused.body["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("guest expired at 20") && detail.contains("quell token rotate guest"), "{detail}");
    let sign_in = guest.post("/api/sign-in", &json!({"token": token})).await;
    assert!(sign_in.status == 401 && sign_in.body["detail"].as_str().unwrap().contains("expired"), "{sign_in:?}");
    let mut again = WsTestClient::open_socket(&shared.server).await;
    let hello = again.handshake(&token, json!({})).await;
    assert!(hello["error"]["message"].as_str().unwrap().contains("expired at"), "{hello}");
    let listed = shared.server.http.get("/api/tokens").await.expect_status(200);
    let guest = listed["items"].as_array().unwrap().iter().find(|row| row["name"] == "guest").unwrap().clone();
    assert!(guest["expiresAt"].as_str().unwrap().ends_with('Z'), "{listed:#}");
    // A new secret with a new lifetime brings it back.
    let path = "/api/tokens/guest/rotate";
    assert_problem(&shared.server.http.post(path, &json!({})).await, 400, "invalid_request");
    let made = shared.server.http.post(path, &json!({"expiresInS": 60})).await.expect_status(200);
    let guest = shared.server.http.with_token(made["token"].as_str().unwrap());
    assert_eq!(guest.get("/api/runs").await.status, 200);
    shared.assert_still_running().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_token_keeps_what_it_owns_and_its_old_streams_end() {
    let shared = SharedRun::start().await;
    let old = shared.token(json!({"name": "ops", "scope": ["write", "read:all"]})).await;
    let owner = shared.server.http.with_token(&old);
    let _ = owner.post("/api/sessions", &json!({"userId": "u", "chatId": "c", "provider": "scripted"})).await;
    let stream = shared.open_stream(&old).await;
    let mut client = WsTestClient::connect_operator(&shared.server, &old).await;
    let overlapped =
        shared.server.http.post("/api/tokens/ops/rotate", &json!({"overlapS": 600})).await.expect_status(200);
    assert_eq!(overlapped["scopes"], json!(["write", "read:all"]));
    client.call("health", json!({})).await;
    assert_eq!(owner.get("/api/runs").await.status, 200, "the old secret is valid in the overlap");
    let second = overlapped["token"].as_str().unwrap().to_owned();
    let second_stream = shared.open_stream(&second).await;
    let rotated = shared.server.http.post("/api/tokens/ops/rotate", &json!({})).await.expect_status(200);
    // The secret before the last one is forgotten, the last one is known as replaced.
    let (code, reason, _) = client.wait_close().await;
    assert!(code == 1008 && reason.starts_with("signed out"), "{code} {reason}");
    assert_eq!(closed_event(stream).await["code"], "signed_out");
    assert_eq!(closed_event(second_stream).await["code"], "token_rotated");
    let refused = shared.server.http.with_token(&second).get("/api/runs").await;
    assert_problem(&refused, 401, "unauthorized");
    assert!(refused.body["detail"].as_str().unwrap().contains("ops got a new secret"), "{refused:?}");
    let newest = shared.server.http.with_token(rotated["token"].as_str().unwrap());
    let me = newest.get("/api/me").await.expect_status(200);
    assert_fields(&me, &json!({"principal": "ops", "scopes": ["write", "read:all"]}));
    assert_problem(&shared.server.http.post("/api/tokens/nobody/rotate", &json!({})).await, 404, "not_found");
    assert_problem(&newest.post("/api/tokens/ops/rotate", &json!({})).await, 403, "forbidden");
    shared.assert_still_running().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sharing_that_is_taken_back_ends_the_streams_of_others_and_of_no_one_else() {
    let shared = SharedRun::start().await;
    let bob = shared.token(json!({"name": "bob", "scope": "write"})).await;
    let auditor = shared.token(json!({"name": "auditor", "scope": "read:all"})).await;
    let stream = shared.open_stream(&bob).await;
    let mut kept = shared.server.http.with_token(&auditor).run_events(&shared.run, 0).await;
    let mut client = WsTestClient::connect_operator(&shared.server, &bob).await;
    client.call("runs.follow", json!({"runId": shared.run})).await;
    client.wait_event("run.event").await;
    let waiting = client.send_request("agent.wait", json!({"runId": shared.run, "timeoutMs": 600_000})).await;
    client.call("health", json!({})).await;
    let _ = shared.ann.put("/api/sessions/s/sharing", &json!({"shared": false})).await.expect_status(200);
    assert_eq!(closed_event(stream).await["code"], "sharing_withdrawn");
    let ended = client.wait_event("run.unfollowed").await;
    assert_fields(&ended["payload"], &json!({"runId": shared.run, "code": "sharing_withdrawn"}));
    let answer = client.wait_response(&waiting).await;
    assert_eq!(answer["ok"], false, "{answer}");
    // The connection itself stays, and so do the streams of those who may read the run.
    client.call("health", json!({})).await;
    assert_eq!(client.request("runs.follow", json!({"runId": shared.run})).await["ok"], false);
    shared.server.model.open_gate("go");
    kept.wait_for("run.ended").await;
    client.call("health", json!({})).await;
    let unfollowed = client.events.iter().position(|event| event["event"] == "run.unfollowed").unwrap();
    let frames = &client.events[unfollowed + 1..];
    assert!(!frames.iter().any(|frame| frame.to_string().contains(&shared.run)), "{frames:#?}");
}
