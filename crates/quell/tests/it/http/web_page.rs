//! Static files of the web page, browser sign-in and sign-out, and the model of a session.

use quell_engine::access::LinkIssuer;
use reqwest::header::{ACCEPT_ENCODING, COOKIE, ETAG, HeaderMap, IF_NONE_MATCH, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use secrecy::ExposeSecret;

use crate::prelude::*;

/// A browser without scripts: it follows no redirects.
fn browser_client() -> Client {
    Client::builder().redirect(Policy::none()).no_proxy().build().unwrap()
}

fn base_url(server: &TestServer) -> String {
    format!("http://{}", server.address)
}

fn session_cookie(headers: &HeaderMap) -> String {
    let set = headers[SET_COOKIE].to_str().unwrap();
    for wanted in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age=2592000"] {
        assert!(set.contains(wanted), "{set}");
    }
    set.split(';').next().unwrap().to_owned()
}

async fn status_with_cookie(server: &TestServer, cookie: &str, path: &str) -> StatusCode {
    browser_client().get(format!("{}{path}", base_url(server))).header(COOKIE, cookie).send().await.unwrap().status()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_needs_no_token_and_may_run_its_own_scripts_alone() {
    let server = TestServer::start().await;
    let answer = browser_client().get(base_url(&server)).send().await.unwrap();
    let policy = answer.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self'"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
    let html = answer.text().await.unwrap();
    let assets: Vec<&str> = html.split('"').filter(|part| part.starts_with("/assets/")).collect();
    assert!(assets.len() > 5, "{html}");
    for asset in assets {
        let answer = browser_client().get(format!("{}{asset}", base_url(&server))).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{asset}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    }
    for outside in ["/assets/js/none.js", "/assets/..%2fCargo.toml"] {
        let answer = browser_client().get(format!("{}{outside}", base_url(&server))).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{outside}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_travels_compressed_and_once() {
    let server = TestServer::start().await;
    let url = format!("{}/assets/js/main.js", base_url(&server));
    let plain = browser_client().get(&url).send().await.unwrap().bytes().await.unwrap();
    let pressed = browser_client().get(&url).header(ACCEPT_ENCODING, "gzip").send().await.unwrap();
    assert_eq!(pressed.headers()["content-encoding"], "gzip");
    let tag = pressed.headers()[ETAG].to_str().unwrap().to_owned();
    let pressed = pressed.bytes().await.unwrap();
    assert!(pressed.len() < plain.len() && pressed.starts_with(&[0x1f, 0x8b]), "{} of {}", pressed.len(), plain.len());
    let again = browser_client().get(&url).header(IF_NONE_MATCH, tag).send().await.unwrap();
    assert_eq!((again.status(), again.bytes().await.unwrap().len()), (StatusCode::NOT_MODIFIED, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_link_signs_one_browser_in_and_no_second() {
    let server = TestServer::start().await;
    let code = server.engine.access().issue_login_code(LinkIssuer::Person).unwrap();
    let link = format!("{}/sign-in/{}", base_url(&server), code.expose_secret());
    let ahead = browser_client().head(&link).send().await.unwrap();
    assert!(ahead.headers().get(SET_COOKIE).is_none(), "a HEAD request must not use the link up");
    let answer = browser_client().get(&link).send().await.unwrap();
    assert_eq!((answer.status(), &answer.headers()[LOCATION]), (StatusCode::SEE_OTHER, &"/".parse().unwrap()));
    let cookie = session_cookie(answer.headers());
    assert_eq!(status_with_cookie(&server, &cookie, "/api/me").await, 200);
    let second = browser_client().get(&link).send().await.unwrap();
    assert_eq!(second.headers()[LOCATION], "/#sign-in-failed");
    assert!(second.headers().get(SET_COOKIE).is_none());
    // Only admins can create the link.
    let made = server.http.post("/api/sign-in-link", &json!({})).await.expect_status(200);
    assert!(made["path"].as_str().unwrap().starts_with("/sign-in/"));
    let bot = server.api_with_new_token("bot", "write").await;
    assert_problem(&bot.post("/api/sign-in-link", &json!({})).await, 403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_signs_in_as_itself_until_it_signs_out() {
    let server = TestServer::start().await;
    let token = server.create_token("anna", "write").await;
    let stranger = server.http.with_token("");
    assert_problem(&stranger.post("/api/sign-in", &json!({"token": "quell_no"})).await, 401, "unauthorized");
    let request = stranger.request(Method::POST, "/api/sign-in").json(&json!({"token": token}));
    let answer = request.send().await.unwrap();
    let cookie = session_cookie(answer.headers());
    assert_fields(&answer.json().await.unwrap(), &json!({"principal": "anna", "scope": "write"}));
    assert_eq!(status_with_cookie(&server, &cookie, "/api/runs").await, 200);
    assert_eq!(status_with_cookie(&server, &cookie, "/api/tokens").await, 403);
    let foreign = stranger.request(Method::POST, "/api/sign-out").header("origin", "http://evil.example");
    assert_eq!(foreign.header(COOKIE, &cookie).send().await.unwrap().status(), 403);
    let out = stranger.request(Method::POST, "/api/sign-out").header(COOKIE, &cookie).send().await.unwrap();
    assert_eq!(out.status(), 204);
    assert!(out.headers()[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(status_with_cookie(&server, &cookie, "/api/runs").await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_behind_a_proxy_with_tls_never_travels_without_it() {
    let server = TestServer::start().await;
    let request = server.http.request(Method::POST, "/api/sign-in").header("x-forwarded-proto", "https");
    let answer = request.json(&json!({"token": server.token})).send().await.unwrap();
    assert!(answer.headers()[SET_COOKIE].to_str().unwrap().contains("; Secure"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_works_with_another_model_from_its_next_run_on() {
    let server = TestServer::start().await;
    assert_eq!(server.http.get("/api/models").await.expect_status(200)["items"][0]["model"], "scripted/model");
    server.run_to_end("s").await;
    let other = "scripted/other-model";
    let changed = server.http.patch("/api/sessions/s", &json!({"model": other})).await.expect_status(200);
    assert_eq!(changed["config"]["model"], json!({"value": other, "from": "session"}));
    assert_eq!(changed["config"].get("temperature"), None, "a session created by a message has no temperature");
    server.run_to_end("s").await;
    assert_eq!(requested_models(&server), ["model", "other-model"]);
    // An unusable model changes nothing. A session that nobody has used yet can be configured.
    let refused = server.http.patch("/api/sessions/s", &json!({"model": "nobody/x"})).await;
    assert_problem(&refused, 422, "agent_configuration_error");
    assert_eq!(server.http.get("/api/sessions/s").await.expect_status(200)["config"]["model"]["value"], other);
    let _ = server.http.patch("/api/sessions/fresh", &json!({"model": other})).await.expect_status(200);
    server.run_to_end("fresh").await;
    assert_eq!(requested_models(&server)[2], "other-model");
    let bound = json!({"userId": "u", "chatId": "c", "provider": "scripted", "temperature": 0.3});
    let _ = server.http.post("/api/sessions", &bound).await.expect_status(201);
    let path = "/api/sessions/u:c:scripted";
    let moved = server.http.patch(path, &json!({"model": other})).await.expect_status(200);
    assert_fields(&moved["config"], &json!({"userId": "u", "temperature": {"value": 0.3}}));
    assert_problem(&server.http.patch(path, &json!({"model": "demo/x"})).await, 422, "agent_configuration_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_agent_brings_its_own_model() {
    let server = TestServer::start().await;
    let scout = json!({"id": "scout", "model": "scripted/scout-model"});
    let _ = server.http.post("/api/agents", &scout).await.expect_status(201);
    let own = json!({"model": "scripted/own-model"});
    let _ = server.http.patch("/api/sessions/s", &own).await.expect_status(200);
    server.run_to_end("s").await;
    let moved = server.http.patch("/api/sessions/s", &json!({"agent": "scout"})).await.expect_status(200);
    assert_fields(&moved["config"], &json!({"agent": "scout", "model": {"value": "scripted/scout-model"}}));
    server.run_to_end("s").await;
    assert_eq!(requested_models(&server), ["own-model", "scout-model"]);
}

fn requested_models(server: &TestServer) -> Vec<String> {
    server.model.recorded_requests().iter().map(|request| request.body["model"].as_str().unwrap().to_owned()).collect()
}
