//! Signing in and out: by the one-time link, by the token, and by neither.

use quell_testkit::browser::{Key, is_skipped};
use serde_json::{Value, json};

use super::{SIGNED_OUT, Scene};
use crate::harness::PATIENCE;

#[tokio::test(flavor = "multi_thread")]
async fn the_link_signs_in_once_and_the_token_ever_after() {
    if is_skipped() {
        return;
    }
    let scene = Scene::open().await;
    let (browser, link) = (&scene.browser, scene.link());
    browser.open(scene.daemon.url()).await;
    browser.until("document.body.dataset.view === 'sign-in'").await;
    browser.shown("#sign-in #token").await;
    assert!(!browser.value("!!document.querySelector('#sign-in-error').textContent.trim()").await.as_bool().unwrap());

    browser.fill("#token", "no such token").await;
    browser.click("#sign-in-button").await;
    browser.until("document.querySelector('#sign-in-error').textContent.trim()").await;
    assert_eq!(browser.value("document.body.dataset.view").await, "sign-in");
    assert_eq!(browser.value("document.querySelector('#sign-in-error').getAttribute('role')").await, "alert");
    assert!(cookie(&scene).await.is_none());

    scene.sign_in().await;
    let held = cookie(&scene).await.expect("a cookie");
    assert_eq!(
        (&held["httpOnly"], &held["sameSite"], &held["path"]),
        (&json!(true), &json!("Strict"), &json!("/")),
        "{held:#}"
    );
    assert_eq!(browser.value("document.cookie").await, "", "no script reads it");
    assert!(
        !browser.value("location.href").await.as_str().unwrap().contains("sign-in"),
        "no code stays in the address"
    );

    sign_out(&scene).await;
    browser.open(&link).await;
    browser.until("document.body.dataset.view === 'sign-in'").await;
    let refused = browser.until("document.querySelector('#sign-in-error').textContent.trim()").await;
    assert!(refused.as_str().unwrap().split_whitespace().count() >= 4, "a used link is explained: {refused}");
    assert!(cookie(&scene).await.is_none());

    browser.fill("#token", scene.daemon.token()).await;
    browser.press(Key::Enter).await;
    browser.until("document.body.dataset.view === 'chat'").await;
    browser.reload().await;
    browser.shown("[data-fact=connection][data-state=live]").await;
    let kept =
        browser.value("JSON.stringify([{...localStorage}, {...sessionStorage}]) + document.body.outerHTML").await;
    assert!(!kept.as_str().unwrap().contains(scene.daemon.token()), "the token is kept nowhere");
    sign_out(&scene).await;
    browser.assert_quiet(&[SIGNED_OUT]).await;
}

/// Signs out, and makes sure that nobody is signed in any more.
async fn sign_out(scene: &Scene) {
    let browser = &scene.browser;
    let old = cookie(scene).await.expect("a cookie");
    browser.click("#sign-out").await;
    browser.until("document.body.dataset.view === 'sign-in'").await;
    // Another request of the page may be refused before the answer to this one takes the cookie away.
    let gone = async { while cookie(scene).await.is_some() {} };
    assert!(tokio::time::timeout(PATIENCE, gone).await.is_ok(), "the cookie stays");
    browser.reload().await;
    browser.shown("#sign-in").await;
    // Whoever has copied the cookie is out as well.
    let cookie = format!("{}={}", old["name"].as_str().unwrap(), old["value"].as_str().unwrap());
    let copied = scene.http.with_token("").request(reqwest::Method::GET, "/api/me").header("cookie", cookie);
    assert_eq!(copied.send().await.unwrap().status(), 401);
}

async fn cookie(scene: &Scene) -> Option<Value> {
    let held = scene.browser.cdp("Network.getCookies", json!({"urls": [scene.daemon.url()]})).await;
    held["cookies"].as_array().unwrap().iter().find(|cookie| is_ours(cookie)).cloned()
}

fn is_ours(cookie: &Value) -> bool {
    cookie["name"].as_str().is_some_and(|name| name.starts_with("quell_session_"))
}
