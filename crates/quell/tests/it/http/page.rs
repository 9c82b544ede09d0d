//! The page's files, the ways in and out for a browser, and which model a session works with.

use quell_engine::agent::AgentConfig;
use quell_protocol::AgentId;
use quell_testkit::Behaviour;
use reqwest::header::{ACCEPT_ENCODING, COOKIE, ETAG, HeaderMap, IF_NONE_MATCH, LOCATION, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, StatusCode};
use secrecy::ExposeSecret;
use serde_json::json;

use crate::doors::{House, assert_problem};

/// A browser without scripts: it follows nothing by itself.
fn browser() -> Client {
    Client::builder().redirect(Policy::none()).no_proxy().build().unwrap()
}

fn url_of(house: &House) -> String {
    format!("http://{}", house.address)
}

fn cookie_of(headers: &HeaderMap) -> String {
    let set = headers[SET_COOKIE].to_str().unwrap();
    for wanted in ["; Path=/", "; HttpOnly", "; SameSite=Strict", "; Max-Age=2592000"] {
        assert!(set.contains(wanted), "{set}");
    }
    set.split(';').next().unwrap().to_owned()
}

async fn status(house: &House, cookie: &str, path: &str) -> StatusCode {
    browser().get(format!("{}{path}", url_of(house))).header(COOKIE, cookie).send().await.unwrap().status()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_needs_no_token_and_may_run_its_own_scripts_alone() {
    let house = House::open().await;
    let answer = browser().get(url_of(&house)).send().await.unwrap();
    let policy = answer.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self'"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
    let html = answer.text().await.unwrap();
    let assets: Vec<&str> = html.split('"').filter(|part| part.starts_with("/assets/")).collect();
    assert!(assets.len() > 5, "{html}");
    for asset in assets {
        let answer = browser().get(format!("{}{asset}", url_of(&house))).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{asset}");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
    }
    let missing = browser().get(format!("{}/assets/js/none.js", url_of(&house))).send().await.unwrap();
    assert_eq!(missing.status(), 404);
    let outside = browser().get(format!("{}/assets/..%2fCargo.toml", url_of(&house))).send().await.unwrap();
    assert_eq!(outside.status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_travels_compressed_and_once() {
    let house = House::open().await;
    let url = format!("{}/assets/js/main.js", url_of(&house));
    let plain = browser().get(&url).send().await.unwrap().bytes().await.unwrap();
    let pressed = browser().get(&url).header(ACCEPT_ENCODING, "gzip").send().await.unwrap();
    assert_eq!(pressed.headers()["content-encoding"], "gzip");
    let tag = pressed.headers()[ETAG].to_str().unwrap().to_owned();
    let pressed = pressed.bytes().await.unwrap();
    assert!(pressed.len() < plain.len() && pressed.starts_with(&[0x1f, 0x8b]), "{} of {}", pressed.len(), plain.len());
    let again = browser().get(&url).header(IF_NONE_MATCH, tag).send().await.unwrap();
    assert_eq!((again.status(), again.bytes().await.unwrap().len()), (StatusCode::NOT_MODIFIED, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_link_signs_one_browser_in_and_no_second() {
    let house = House::open().await;
    let code = house.engine.access().issue_link().unwrap();
    let link = format!("{}/sign-in/{}", url_of(&house), code.expose_secret());
    let ahead = browser().head(&link).send().await.unwrap();
    assert!(ahead.headers().get(SET_COOKIE).is_none(), "who only looks ahead does not use it up");
    let answer = browser().get(&link).send().await.unwrap();
    assert_eq!((answer.status(), &answer.headers()[LOCATION]), (StatusCode::SEE_OTHER, &"/".parse().unwrap()));
    let cookie = cookie_of(answer.headers());
    assert_eq!(status(&house, &cookie, "/api/me").await, 200);
    let second = browser().get(&link).send().await.unwrap();
    assert_eq!(second.headers()[LOCATION], "/#sign-in-failed");
    assert!(second.headers().get(SET_COOKIE).is_none());
    // The link is for admins to hand out.
    let made = house.http.post("/api/sign-in-link", &json!({})).await.expect_status(200);
    assert!(made["path"].as_str().unwrap().starts_with("/sign-in/"));
    assert_problem(&house.api("bot", "write").await.post("/api/sign-in-link", &json!({})).await, 403, "forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_signs_in_as_itself_until_it_signs_out() {
    let house = House::open().await;
    let made = house.http.post("/api/tokens", &json!({"name": "anna", "scope": "write"})).await.expect_status(201);
    let stranger = house.http.with_token("");
    let wrong = stranger.post("/api/sign-in", &json!({"token": "quell_no"})).await;
    assert_problem(&wrong, 401, "unauthorized");
    let request = stranger.request(Method::POST, "/api/sign-in").json(&json!({"token": made["token"]}));
    let answer = request.send().await.unwrap();
    let cookie = cookie_of(answer.headers());
    let me: serde_json::Value = answer.json().await.unwrap();
    assert_eq!((&me["principal"], &me["scope"]), (&json!("anna"), &json!("write")));
    assert_eq!(status(&house, &cookie, "/api/runs").await, 200);
    assert_eq!(status(&house, &cookie, "/api/tokens").await, 403);
    let foreign = stranger.request(Method::POST, "/api/sign-out").header("origin", "http://evil.example");
    assert_eq!(foreign.header(COOKIE, &cookie).send().await.unwrap().status(), 403);
    let out = stranger.request(Method::POST, "/api/sign-out").header(COOKIE, &cookie).send().await.unwrap();
    assert_eq!(out.status(), 204);
    assert!(out.headers()[SET_COOKIE].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(status(&house, &cookie, "/api/runs").await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cookie_behind_a_proxy_with_tls_never_travels_without_it() {
    let house = House::open().await;
    let request = house.http.request(Method::POST, "/api/sign-in").header("x-forwarded-proto", "https");
    let answer = request.json(&json!({"token": house.token})).send().await.unwrap();
    assert!(answer.headers()[SET_COOKIE].to_str().unwrap().contains("; Secure"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_works_with_another_model_from_its_next_run_on() {
    let house = House::open().await;
    house.model.script(Behaviour::text("one")).script(Behaviour::text("two")).script(Behaviour::text("three"));
    let models = house.http.get("/api/models").await.expect_status(200);
    let first = models["items"][0]["model"].as_str().unwrap().to_owned();
    let (provider, _) = first.split_once('/').unwrap();
    house.ended(&house.send("s", "hello").await).await;
    let other = format!("{provider}/other-model");
    let changed = house.http.patch("/api/sessions/s", &json!({"model": other})).await.expect_status(200);
    assert_eq!(changed["config"]["model"], json!({"value": other, "from": "session"}));
    assert_eq!(changed["config"].get("temperature"), None, "a session that a message made says no temperature");
    house.ended(&house.send("s", "hello again").await).await;
    assert_eq!(asked(&house), [first.split_once('/').unwrap().1, "other-model"]);
    // What cannot be used changes nothing; a session that nobody has used yet can be set up.
    let refused = house.http.patch("/api/sessions/s", &json!({"model": "nobody/x"})).await;
    assert_problem(&refused, 422, "agent_configuration_error");
    let kept = house.http.get("/api/sessions/s").await.expect_status(200);
    assert_eq!(kept["config"]["model"]["value"], other);
    let _ = house.http.patch("/api/sessions/fresh", &json!({"model": other})).await.expect_status(200);
    house.ended(&house.send("fresh", "hello").await).await;
    assert_eq!(asked(&house)[2], "other-model");
    let bound = json!({"userId": "u", "chatId": "c", "provider": provider, "temperature": 0.3});
    let key = house.http.post("/api/sessions", &bound).await.expect_status(201)["key"].clone();
    let path = format!("/api/sessions/{}", key.as_str().unwrap());
    let moved = house.http.patch(&path, &json!({"model": other})).await.expect_status(200);
    assert_eq!((&moved["config"]["userId"], &moved["config"]["temperature"]["value"]), (&json!("u"), &json!(0.3)));
    assert_problem(&house.http.patch(&path, &json!({"model": "demo/x"})).await, 422, "agent_configuration_error");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_agent_brings_its_own_model() {
    let other = |plan: &mut crate::doors::Plan| {
        let main = plan.engine.agents.values().next().unwrap().clone();
        let scout = AgentConfig { model: "scripted/scout-model".to_owned(), ..main };
        plan.engine.agents.insert(AgentId::parse("scout").unwrap(), scout);
    };
    let house = House::with(other).await;
    for _ in 0..3 {
        house.model.script(Behaviour::text("done"));
    }
    house.ended(&house.send("s", "one").await).await;
    let own = json!({"model": "scripted/own-model"});
    let _ = house.http.patch("/api/sessions/s", &own).await.expect_status(200);
    house.ended(&house.send("s", "two").await).await;
    let moved = house.http.patch("/api/sessions/s", &json!({"agent": "scout"})).await.expect_status(200);
    assert_eq!(
        (&moved["config"]["agent"], &moved["config"]["model"]["value"]),
        (&json!("scout"), &json!("scripted/scout-model"))
    );
    house.ended(&house.send("s", "three").await).await;
    assert_eq!(asked(&house)[1..], ["own-model", "scout-model"]);
}

/// The models that were asked so far.
fn asked(house: &House) -> Vec<String> {
    house.model.seen().iter().map(|request| request.body["model"].as_str().unwrap().to_owned()).collect()
}
