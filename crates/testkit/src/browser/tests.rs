//! The driven browser against small pages: it detects every kind of page error.

use std::future::ready;

use super::*;
use crate::fake_server::{FakeHttpReply, FakePort, serve_http};

const STRICT_CONTENT_POLICY: &str = "default-src 'none'; script-src 'sha256-never'; style-src 'unsafe-inline'";

fn serve_page(html: &'static str, policy: &'static str) -> FakePort {
    FakePort::start(&(), move |stream, ()| {
        serve_http(stream, move |incoming| {
            let page = FakeHttpReply::html(200, html).with_header("content-security-policy", policy);
            let reply = if incoming.path == "/" { page } else { FakeHttpReply::new(204, "") };
            ready(Some(reply))
        })
    })
}

#[tokio::test]
#[ignore = "full: Chromium"]
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
        let server = serve_page(html, policy);
        browser.open(&server.url()).await;
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
