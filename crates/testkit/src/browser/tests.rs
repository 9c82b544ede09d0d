//! The driven browser against small pages: it detects every kind of page error.

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::chromedriver::parse_port;
use super::*;
use crate::leaks;
use crate::model::http1::{plain_response, read_request};

const STRICT_CONTENT_POLICY: &str = "default-src 'none'; script-src 'sha256-never'; style-src 'unsafe-inline'";

/// Serves one page under every path; returns its URL.
async fn serve_page(html: &'static str, policy: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    #[expect(clippy::disallowed_methods, reason = "ends with the runtime of the test")]
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let Ok(Some(request)) = read_request(&mut stream, &mut BytesMut::new()).await else { continue };
            let headers = [
                ("content-type".to_owned(), "text/html".to_owned()),
                ("content-security-policy".to_owned(), policy.to_owned()),
            ];
            let answer =
                if request.path == "/" { plain_response(200, &headers, html) } else { plain_response(204, &[], "") };
            // A browser opens connections that it does not use.
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
        }
    });
    url
}

#[test]
fn the_port_is_read_where_the_driver_names_it() {
    assert_eq!(parse_port("ChromeDriver was started successfully on port 40123."), Some(40123));
    assert_eq!(parse_port("Starting ChromeDriver 156.0.8078.79 on port 0"), None);
}

#[test]
fn a_text_becomes_a_literal_that_cannot_end_early() {
    assert_eq!(js_string_literal("a\"b\\\u{2028}'"), r#""a\"b\\\u2028'""#);
}

const FORM_PAGE: &str = "<!doctype html><title>form</title><link rel=icon href=data:,><p id=said></p>
<form><input id=text autofocus><button id=late disabled>Say</button></form>
<script>
  const say = (event) => { event.preventDefault(); said.textContent = text.value; };
  document.forms[0].addEventListener('submit', say);
  document.addEventListener('keydown', (event) => { if (event.key === 'Escape') said.textContent = 'escaped'; });
  setTimeout(() => { late.disabled = false; }, 30);
</script>";

#[tokio::test]
async fn it_types_clicks_waits_and_leaves_no_process() {
    if is_skipped() {
        return;
    }
    let browser = Browser::start(Viewport::DESKTOP).await;
    let pid = browser.process.pid();
    browser.open(&serve_page(FORM_PAGE, "").await).await;
    browser.fill("#text", "안녕, \"world\"").await;
    browser.click("#late").await;
    browser.wait_text("#said", "안녕, \"world\"").await;
    browser.press_key(Key::Escape).await;
    browser.wait_text("#said", "escaped").await;
    browser.tab_until_focused("#late").await;
    assert_eq!(browser.eval("[innerWidth, innerHeight]").await, json!([1440, 900]));
    browser.set_viewport(Viewport::PHONE).await;
    browser.set_color_scheme(ColorScheme::Dark).await;
    browser
        .wait_for("matchMedia('(prefers-color-scheme: dark)').matches && matchMedia('(pointer: coarse)').matches")
        .await;
    browser.assert_no_page_errors(&[]).await;
    let below = leaks::descendants_of(pid);
    assert!(!below.is_empty());
    drop(browser);
    let alive = move || {
        let left: Vec<_> =
            below.iter().filter_map(|one| leaks::read_process(one.pid)).filter(|one| one.state != 'Z').collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    };
    leaks::wait_until(WAIT_TIMEOUT, alive).await;
}

#[tokio::test]
async fn it_keeps_the_book_of_what_a_page_should_not_do() {
    if is_skipped() {
        return;
    }
    let browser = Browser::start(Viewport::DESKTOP).await;
    let cases = [
        ("<script>console.error('loud')</script>", "", "loud"),
        ("<script>throw new Error('thrown')</script>", "", "thrown"),
        ("<script>Promise.reject(new Error('lost'))</script>", "", "lost"),
        ("<script>alert('hello')</script>", "", "alert hello"),
        ("<script>fetch('http://127.0.0.1:1/').catch(() => {})</script>", "", "ERR_"),
        ("<p onclick='1'>inline</p><script>1</script>", STRICT_CONTENT_POLICY, "script-src"),
    ];
    for (html, policy, expected) in cases {
        browser.open(&serve_page(html, policy).await).await;
        let mut found = Vec::new();
        // A failed request is logged some time after the page has loaded.
        let wait_for_entry = async {
            while !found.iter().any(|fault: &String| fault.contains(expected)) {
                found.extend(browser.page_errors(&["favicon"]).await);
            }
        };
        let waited = tokio::time::timeout(WAIT_TIMEOUT, wait_for_entry).await;
        assert!(waited.is_ok(), "{html}: {found:?}");
        found.retain(|fault| ![expected, "Content Security Policy", "inline"].iter().any(|part| fault.contains(part)));
        assert_eq!(found, Vec::<String>::new(), "{html}");
    }
}
