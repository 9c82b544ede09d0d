//! Sign in and out: by the one-time link and by the token; wrong tokens and used links are refused.

use quell_testkit::browser::Key;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::{PageConfig, PageFixture, UNAUTHORIZED_ENTRY};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_link_signs_in_once_and_the_token_ever_after() {
    let Some(fixture) = PageFixture::start_with(&PageConfig::default()).await else { return };
    let link = fixture.sign_in_link();
    fixture.open(fixture.daemon.url()).await;
    fixture.wait_view("sign-in").await;
    fixture.wait_visible("#sign-in #token").await;
    assert!(!fixture.eval("!!document.querySelector('#sign-in-error').textContent.trim()").await.as_bool().unwrap());

    fixture.fill("#token", "no such token").await;
    fixture.click("#sign-in-button").await;
    fixture.wait_for("document.querySelector('#sign-in-error').textContent.trim()").await;
    assert_eq!(fixture.eval("document.body.dataset.view").await, "sign-in");
    assert_eq!(fixture.eval("document.querySelector('#sign-in-error').getAttribute('role')").await, "alert");
    assert!(session_cookie(&fixture).await.is_none());

    fixture.sign_in().await;
    let cookie = session_cookie(&fixture).await.expect("a cookie");
    assert_fields(&cookie, &json!({"httpOnly": true, "sameSite": "Strict", "path": "/"}));
    assert_eq!(fixture.eval("document.cookie").await, "", "scripts cannot read it");
    assert!(!fixture.eval("location.href").await.as_str().unwrap().contains("sign-in"), "no code stays in the address");

    sign_out(&fixture).await;
    fixture.open(&link).await;
    fixture.wait_view("sign-in").await;
    let refused = fixture.wait_for("document.querySelector('#sign-in-error').textContent.trim()").await;
    assert!(refused.as_str().unwrap().split_whitespace().count() >= 4, "a used link is explained: {refused}");
    assert!(session_cookie(&fixture).await.is_none());

    fixture.fill("#token", fixture.daemon.token()).await;
    fixture.press_key(Key::Enter).await;
    fixture.wait_view("chat").await;
    fixture.reload().await;
    fixture.wait_live().await;
    let kept = fixture.eval("JSON.stringify([{...localStorage}, {...sessionStorage}]) + document.body.outerHTML").await;
    assert!(!kept.as_str().unwrap().contains(fixture.daemon.token()), "the token is kept nowhere");
    sign_out(&fixture).await;
    fixture.assert_no_page_errors(&[UNAUTHORIZED_ENTRY]).await;
}

/// The secret is in the storage of the origin, so that a reload and another tab have it. A page that another port of the
/// host serves gets the cookie, and has no access to that storage.
#[tokio::test(flavor = "multi_thread")]
async fn another_tab_is_signed_in_and_a_page_on_another_port_is_not() {
    let Some(fixture) = PageFixture::start_signed_in().await else { return };
    fixture.reload().await;
    fixture.wait_live().await;
    fixture.open_tab(fixture.daemon.url()).await;
    fixture.wait_view("chat").await;
    fixture.wait_live().await;
    assert_eq!(fixture.eval("localStorage.getItem('quell.page-secret').length").await, 64);

    let (thief, seen) = CookieThief::start().await;
    fixture.open(&format!("http://127.0.0.1:{thief}/")).await;
    let cookie = seen.await.unwrap();
    assert!(cookie.contains("quell_session_"), "browsers send the cookie to every port: {cookie}");
    assert_eq!(fixture.eval("localStorage.getItem('quell.page-secret')").await, Value::Null);
    let stolen = fixture.http.with_token("").request(Method::GET, "/api/me").header("cookie", cookie);
    assert_eq!(stolen.send().await.unwrap().status(), 401);
}

/// A server on another port, as an agent may start one.
struct CookieThief;

impl CookieThief {
    /// Its port, and the cookies of the first request.
    async fn start() -> (u16, oneshot::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let mut sender = Some(sender);
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = vec![0; 16 * 1024];
                let length = stream.read(&mut head).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&head[..length]).into_owned();
                let cookie = head.lines().find_map(|line| line.strip_prefix("Cookie: ")).map(str::to_owned);
                if let Some(cookie) = cookie
                    && let Some(sender) = sender.take()
                {
                    let _ = sender.send(cookie);
                }
                let page =
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi";
                let _ = stream.write_all(page.as_bytes()).await;
            }
        });
        (port, receiver)
    }
}

/// Signs out, and checks that the session is gone on the page and on the daemon.
async fn sign_out(fixture: &PageFixture) {
    let old = session_cookie(fixture).await.expect("a cookie");
    fixture.click("#sign-out").await;
    fixture.wait_view("sign-in").await;
    // The page may be refused by another request before the answer to this one deletes the cookie.
    let gone = async { while session_cookie(fixture).await.is_some() {} };
    assert!(tokio::time::timeout(WAIT_TIMEOUT, gone).await.is_ok(), "the cookie stays");
    fixture.reload().await;
    fixture.wait_visible("#sign-in").await;
    // A copy of the cookie is refused, too.
    let cookie = format!("{}={}", old["name"].as_str().unwrap(), old["value"].as_str().unwrap());
    let copied = fixture.http.with_token("").request(Method::GET, "/api/me").header("cookie", cookie);
    assert_eq!(copied.send().await.unwrap().status(), 401);
}

async fn session_cookie(fixture: &PageFixture) -> Option<Value> {
    let cookie = fixture.cdp("Network.getCookies", json!({"urls": [fixture.daemon.url()]})).await;
    let is_ours = |cookie: &&Value| cookie["name"].as_str().is_some_and(|name| name.starts_with("quell_session_"));
    cookie["cookies"].as_array().unwrap().iter().find(is_ours).cloned()
}
