//! Static files of the web page, browser sign-in and sign-out, and the model of a session.

use quell_engine::access::LinkIssuer;
use quell_test_support::ws_client::WsTestClient;
use reqwest::header::{ACCEPT_ENCODING, COOKIE, ETAG, HeaderMap, IF_NONE_MATCH, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode};
use secrecy::ExposeSecret;

use crate::prelude::*;

/// A browser without scripts: it follows no redirects.
fn browser_client() -> Client {
    Client::builder().tls_certs_only([]).redirect(Policy::none()).no_proxy().build().unwrap()
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

const PAGE_SECRET: &str = "x-quell-page";

/// A signed-in browser: its cookie as a header, and the secret of its page.
struct SignedInBrowser {
    cookie: String,
    page_secret: String,
}

impl SignedInBrowser {
    async fn of_answer(answer: Response) -> Self {
        let cookie = session_cookie(answer.headers());
        let body: Value = answer.json().await.unwrap();
        Self { cookie, page_secret: body["pageSecret"].as_str().unwrap().to_owned() }
    }

    async fn status(&self, server: &TestServer, path: &str) -> StatusCode {
        let request = browser_client().get(format!("{}{path}", base_url(server))).header(COOKIE, &self.cookie);
        request.header(PAGE_SECRET, &self.page_secret).send().await.unwrap().status()
    }
}

async fn sign_in(server: &TestServer, proof: &Value) -> Response {
    browser_client().post(format!("{}/api/sign-in", base_url(server))).json(proof).send().await.unwrap()
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
    // A preview of the link does not use it up.
    for _ in 0..2 {
        let answer = browser_client().get(&link).send().await.unwrap();
        let page = format!("/#sign-in={}", code.expose_secret());
        assert_eq!((answer.status(), &answer.headers()[LOCATION]), (StatusCode::SEE_OTHER, &page.parse().unwrap()));
        assert!(answer.headers().get(SET_COOKIE).is_none());
    }
    let odd = browser_client().get(format!("{}/sign-in/a%0d%0ab", base_url(&server))).send().await.unwrap();
    assert_eq!(odd.headers()[LOCATION], "/#sign-in-failed");
    let proof = json!({"code": code.expose_secret()});
    let browser = SignedInBrowser::of_answer(sign_in(&server, &proof).await).await;
    assert_eq!(browser.status(&server, "/api/me").await, 200);
    let second = sign_in(&server, &proof).await;
    assert_eq!(second.status(), 401);
    assert!(second.headers().get(SET_COOKIE).is_none());
    for neither in [json!({}), json!({"token": "x", "code": "y"})] {
        assert_eq!(sign_in(&server, &neither).await.status(), 400, "{neither}");
    }
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
    let as_anna = stranger.post("/api/sign-in", &json!({"token": token})).await.expect_status(200);
    assert_fields(&as_anna, &json!({"principal": "anna", "scope": "write"}));
    let browser = SignedInBrowser::of_answer(sign_in(&server, &json!({"token": token})).await).await;
    assert_eq!(browser.status(&server, "/api/runs").await, 200);
    assert_eq!(browser.status(&server, "/api/tokens").await, 403);
    let SignedInBrowser { cookie, page_secret } = &browser;
    let foreign = stranger.request(Method::POST, "/api/sign-out").header("origin", "http://evil.example");
    assert_eq!(foreign.header(COOKIE, cookie).header(PAGE_SECRET, page_secret).send().await.unwrap().status(), 403);
    // Whoever has the cookie alone does not even sign out.
    let thief = stranger.request(Method::POST, "/api/sign-out").header(COOKIE, cookie).send().await.unwrap();
    assert_eq!((thief.status().as_u16(), browser.status(&server, "/api/runs").await.as_u16()), (204, 200));
    let out = stranger.request(Method::POST, "/api/sign-out").header(COOKIE, cookie);
    let out = out.header(PAGE_SECRET, page_secret).send().await.unwrap();
    assert_eq!(out.status(), 204);
    assert!(out.headers()[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(browser.status(&server, "/api/runs").await, 401);
}

/// A browser sends the cookie to every port of the host. A server on another port, as an agent starts one, gets it, and
/// can do nothing with it on any door, whatever origin it claims.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_another_port_can_do_nothing_with_the_cookie() {
    let (server, run) = TestServer::start_streaming().await;
    let browser = SignedInBrowser::of_answer(sign_in(&server, &json!({"token": server.token})).await).await;
    let other = SignedInBrowser::of_answer(sign_in(&server, &json!({"token": server.token})).await).await;
    let own_origin = base_url(&server);
    for (method, path, body) in [
        (Method::GET, "/api/me".to_owned(), None),
        (Method::GET, "/api/runs".to_owned(), None),
        (Method::GET, format!("/api/runs/{run}/events"), None),
        (Method::POST, "/api/stop".to_owned(), Some(json!({}))),
        (Method::POST, format!("/api/runs/{run}/stop"), Some(json!({}))),
        (Method::POST, "/api/sessions/s/runs".to_owned(), Some(json!({"text": "hello"}))),
        (Method::POST, "/api/tokens".to_owned(), Some(json!({"name": "x", "scope": "admin"}))),
        (Method::POST, "/api/sign-in-link".to_owned(), Some(json!({}))),
        (Method::DELETE, "/api/hold".to_owned(), None),
    ] {
        // Without the secret, with a wrong one, and with that of another sign-in.
        for page_secret in [None, Some("wrong"), Some(other.page_secret.as_str())] {
            let url = format!("{own_origin}{path}");
            let mut request = browser_client().request(method.clone(), url).header(COOKIE, &browser.cookie);
            request = request.header("origin", &own_origin);
            if let Some(secret) = page_secret {
                request = request.header(PAGE_SECRET, secret);
            }
            if let Some(body) = &body {
                request = request.json(body);
            }
            assert_eq!(request.send().await.unwrap().status(), 401, "{method} {path} {page_secret:?}");
        }
    }
    let cookie = browser.cookie.split_once('=').unwrap().1;
    for page_secret in [json!(null), json!("wrong"), json!(other.page_secret)] {
        let mut socket = WsTestClient::open_as_browser(&server, cookie, Some(&own_origin)).await;
        let refused = socket.handshake("", json!({"auth": {"pageSecret": page_secret}})).await;
        assert_eq!(refused["error"]["details"]["code"], "AUTH_TOKEN_MISSING", "{refused}");
    }
    // The page has both.
    assert_eq!(browser.status(&server, "/api/me").await, 200);
    let mut socket = WsTestClient::open_as_browser(&server, cookie, Some(&own_origin)).await;
    let hello = socket.handshake("", json!({"auth": {"pageSecret": browser.page_secret}})).await;
    assert_eq!(hello["ok"], true, "{hello}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_behind_a_proxy_with_tls_never_travels_without_it() {
    let server = TestServer::start().await;
    let request = server.http.request(Method::POST, "/api/sign-in").header("x-forwarded-proto", "https");
    let answer = request.json(&json!({"token": server.token})).send().await.unwrap();
    let set = answer.headers()[SET_COOKIE].to_str().unwrap().to_owned();
    assert!(set.starts_with("__Host-quell_session_") && set.contains("; Secure") && set.contains("; Path=/"), "{set}");
    let browser = SignedInBrowser::of_answer(answer).await;
    let request = |method: Method, path: &str, scheme: Option<&str>| {
        let request = browser_client().request(method, format!("{}{path}", base_url(&server)));
        let request = request.header(COOKIE, &browser.cookie).header(PAGE_SECRET, &browser.page_secret);
        scheme.into_iter().fold(request, |request, scheme| request.header("x-forwarded-proto", scheme))
    };
    // A proxy may name the scheme of the WebSocket, or none for some paths.
    for scheme in [Some("https"), Some("wss"), None] {
        let me = request(Method::GET, "/api/me", scheme).send().await.unwrap();
        assert_eq!(me.status(), 200, "{scheme:?}");
    }
    let out = request(Method::POST, "/api/sign-out", None).send().await.unwrap();
    let deleted: Vec<_> = out.headers().get_all(SET_COOKIE).iter().map(|set| set.to_str().unwrap()).collect();
    assert!(
        deleted.len() == 2 && deleted.iter().all(|set| set.contains("=; ") && set.contains("Max-Age=0")),
        "{deleted:?}"
    );
    assert_eq!(request(Method::GET, "/api/me", None).send().await.unwrap().status(), 401);
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
