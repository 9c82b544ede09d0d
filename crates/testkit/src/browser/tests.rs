//! The driven browser against small pages: it must notice what it is there to notice.

use bytes::BytesMut;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::process::port_in;
use super::*;
use crate::leaks;
use crate::model::wire_http::{plain, read_request};

const POLICY: &str = "default-src 'none'; script-src 'sha256-never'; style-src 'unsafe-inline'";

/// Serves one page under every path, and answers its address.
async fn page(html: &'static str, policy: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    #[expect(clippy::disallowed_methods, reason = "the test's own server, which ends with its runtime")]
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let Ok(Some(request)) = read_request(&mut stream, &mut BytesMut::new()).await else { continue };
            let headers = [
                ("content-type".to_owned(), "text/html".to_owned()),
                ("content-security-policy".to_owned(), policy.to_owned()),
            ];
            let answer = if request.path == "/" { plain(200, &headers, html) } else { plain(204, &[], "") };
            // A browser opens connections that it does not use.
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
        }
    });
    url
}

#[test]
fn the_port_is_read_where_the_driver_names_it() {
    assert_eq!(port_in("ChromeDriver was started successfully on port 40123."), Some(40123));
    assert_eq!(port_in("Starting ChromeDriver 156.0.8078.79 on port 0"), None);
}

#[test]
fn a_text_becomes_a_literal_that_cannot_end_early() {
    assert_eq!(quoted("a\"b\\\u{2028}'"), r#""a\"b\\\u2028'""#);
}

const FORM: &str = "<!doctype html><title>form</title><link rel=icon href=data:,><p id=said></p>
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
    let browser = Browser::start(Screen::WIDE).await;
    let pid = browser.process.pid();
    browser.open(&page(FORM, "").await).await;
    browser.fill("#text", "안녕, \"world\"").await;
    browser.click("#late").await;
    browser.reads("#said", "안녕, \"world\"").await;
    browser.press(Key::Escape).await;
    browser.reads("#said", "escaped").await;
    browser.tab_to("#late").await;
    assert_eq!(browser.value("[innerWidth, innerHeight]").await, json!([1440, 900]));
    browser.screen(Screen::PHONE).await;
    browser.scheme(Scheme::Dark).await;
    browser
        .until("matchMedia('(prefers-color-scheme: dark)').matches && matchMedia('(pointer: coarse)').matches")
        .await;
    browser.assert_quiet(&[]).await;
    let below = leaks::descendants_of(pid);
    assert!(!below.is_empty());
    drop(browser);
    let alive = move || {
        let left: Vec<_> =
            below.iter().filter_map(|one| leaks::process(one.pid)).filter(|one| one.state != 'Z').collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    };
    leaks::settled(PATIENCE, alive).await;
}

#[tokio::test]
async fn it_keeps_the_book_of_what_a_page_should_not_do() {
    if is_skipped() {
        return;
    }
    let browser = Browser::start(Screen::WIDE).await;
    let cases = [
        ("<script>console.error('loud')</script>", "", "loud"),
        ("<script>throw new Error('thrown')</script>", "", "thrown"),
        ("<script>Promise.reject(new Error('lost'))</script>", "", "lost"),
        ("<script>alert('hello')</script>", "", "alert hello"),
        ("<script>fetch('http://127.0.0.1:1/').catch(() => {})</script>", "", "ERR_"),
        ("<p onclick='1'>inline</p><script>1</script>", POLICY, "script-src"),
    ];
    for (html, policy, expected) in cases {
        browser.open(&page(html, policy).await).await;
        let found = browser.faults(&["favicon"]).await;
        assert!(found.iter().any(|fault| fault.contains(expected)), "{html}: {found:?}");
        assert_eq!(
            browser.faults(&[expected, "favicon", "Content Security Policy", "inline"]).await,
            Vec::<String>::new()
        );
    }
}
