//! `fetch_url` against servers on loopback.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use crate::fetch::{FetchSettings, Fetcher};

/// A server that answers every path as the test says, and records the requested paths.
struct TestHttpServer {
    base: String,
    asked: Arc<Mutex<Vec<String>>>,
    /// The number of connections that clients have closed.
    closed_connections: watch::Receiver<usize>,
    scope: Scope,
}

impl TestHttpServer {
    /// `answer` gets the path and the base URL; an empty answer keeps the client waiting.
    async fn start(answer: impl Fn(&str, &str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let scope = Scope::new(Clock::start(), PointProbe::default());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (closed, left) = watch::channel(0);
        let (answer, seen, origin, inner) = (Arc::new(answer), Arc::clone(&asked), base.clone(), scope.clone());
        scope.spawn(async move {
            while let Ok(Ok((stream, _))) = inner.race(Point::Fetch, listener.accept()).await {
                let (answer, seen, origin, closed) =
                    (Arc::clone(&answer), Arc::clone(&seen), origin.clone(), closed.clone());
                inner.spawn(async move {
                    serve_connection(stream, |path| {
                        seen.lock().unwrap().push(path.to_owned());
                        answer(path, &origin)
                    })
                    .await;
                    closed.send_modify(|n| *n += 1);
                });
            }
        });
        Self { base, asked, closed_connections: left, scope }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    async fn wait_client_closed(&self) {
        tokio::time::timeout(TEST_TIMEOUT, self.closed_connections.clone().wait_for(|n| *n > 0))
            .await
            .expect("the client leaves")
            .unwrap();
    }
}

impl Drop for TestHttpServer {
    fn drop(&mut self) {
        self.scope.cancel();
    }
}

async fn serve_connection(mut stream: TcpStream, answer: impl Fn(&str) -> Vec<u8>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8(request).unwrap();
    let path = request.split(' ').nth(1).unwrap();
    let whole = answer(path);
    let _ = stream.write_all(&whole).await;
    if !whole.is_empty() && !path.starts_with("/slow") {
        let _ = stream.shutdown().await;
    }
    // Wait until the client closes.
    let mut rest = [0; 1024];
    while matches!(stream.read(&mut rest).await, Ok(1..)) {}
}

fn page_response(kind: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn redirect_response(target: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n").into_bytes()
}

fn install_tls() {
    // The binary does this once; a second time does no harm.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn fetch_fixture() -> ToolFixture {
    install_tls();
    let fetch = FetchSettings { allow_private: true, ..FetchSettings::default() };
    ToolFixture::with(ToolSettings { fetch, ..ToolSettings::default() })
}

/// The HTTP requests in the ledger: label and end.
fn ledger_requests(scope: &Scope) -> Vec<(String, Option<Release>)> {
    let rows = scope.ledger().rows().into_iter();
    rows.filter(|row| row.kind == quell_protocol::ResourceKind::HttpRequest)
        .map(|row| (row.label.clone(), row.release()))
        .collect()
}

#[tokio::test]
async fn a_page_becomes_readable_text() {
    let server = TestHttpServer::start(|_, _| {
        page_response(
            "text/html; charset=utf-8",
            "<!doctype html><html><head><title>A &amp; B</title><style>p{}</style></head><body><h1>Top</h1><p>One\n  two&nbsp;ü\
             <script>if (a < b) { x() }</script><ul><li>first<li><a href=\"/x\">second</a></ul></body></html>",
        )
    })
    .await;
    let fixture = fetch_fixture();
    let url = format!("{}/page?key=secret#part", server.base);
    let text = fixture.call_ok("fetch_url", json!({"url": url})).await;
    let (head, body) = text.split_once("\n\n").unwrap();
    assert_eq!(head, format!("200 OK from \"{url}\", \"text/html\""));
    assert_eq!(body, "A & B\n\n# Top\n\nOne two ü\n- first\n- second");
    assert_eq!(server.asked(), ["/page?key=secret"]);
    assert_eq!(ledger_requests(&fixture.scope), [(format!("GET {}/page", server.base), Some(Release::Finished))]);
    server.wait_client_closed().await;
}

#[rstest]
#[case(page_response("application/json", "{\"a\": 1}"), "200 OK", "\n\n{\"a\": 1}")]
#[case(page_response("image/png", [0x89; 70]), "200 OK", "\n[not text, 70 bytes; not shown]")]
#[case(page_response("text/plain; charset=ISO-8859-1", b"caf\xe9"), "200 OK", "\n\ncafé")]
#[case(page_response("text/plain", b"caf\xe9"), "200 OK", ", some bytes unreadable\n\ncaf\u{fffd}")]
#[case(page_response("text/plain", ""), "200 OK", "\n\n[empty]")]
#[case(b"HTTP/1.1 200 OK\r\n\r\nplain".to_vec(), "200 OK", ", no content type\n\nplain")]
#[case(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na\0".to_vec(), "200 OK", "\n[binary, 2 bytes; not shown]")]
#[case(
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nxx".to_vec(),
    "200 OK", "\n[encoded as \"br\", 2 bytes; not shown]"
)]
#[tokio::test]
async fn bodies_are_shown_as_what_they_are(#[case] answer: Vec<u8>, #[case] status: &str, #[case] wanted: &str) {
    let server = TestHttpServer::start(move |_, _| answer.clone()).await;
    let text = fetch_fixture().call_ok("fetch_url", json!({"url": server.base})).await;
    assert!(text.starts_with(status) && text.ends_with(wanted), "{text}");
}

#[tokio::test]
async fn an_error_status_is_an_error_with_its_page() {
    let server = TestHttpServer::start(|_, _| {
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\n\r\nno such page".to_vec()
    })
    .await;
    let text = fetch_fixture().call_error("fetch_url", json!({"url": server.base})).await;
    assert!(text.starts_with("404 Not Found from ") && text.ends_with("\n\nno such page"), "{text}");
}

#[tokio::test]
async fn large_bodies_are_read_only_as_far_as_allowed() {
    // Announces more than it ever sends, and keeps the connection open: reading to the end would wait forever.
    let server = TestHttpServer::start(|_, _| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 99999999\r\n\r\n".to_vec();
        [head, "ü".repeat(50_000).into_bytes()].concat()
    })
    .await;
    let mut fixture = fetch_fixture();
    fixture.limit = 50_000;
    let text = fixture.call_ok("fetch_url", json!({"url": format!("{}/slow", server.base), "max_bytes": 1001})).await;
    let (head, body) = text.split_once("\n\n").unwrap();
    assert!(head.ends_with(", only its first 1000 bytes"), "{head}");
    assert_eq!(body, "ü".repeat(500));
    server.wait_client_closed().await;
}

#[tokio::test]
async fn a_body_of_exactly_the_allowed_size_is_whole() {
    let server = TestHttpServer::start(|_, _| page_response("text/plain", "12345")).await;
    let text = fetch_fixture().call_ok("fetch_url", json!({"url": server.base, "max_bytes": 5})).await;
    assert!(text.ends_with("\"text/plain\"\n\n12345"), "{text}");
}

#[tokio::test]
async fn redirects_are_followed_five_times() {
    let server = TestHttpServer::start(|path, base| match path.trim_start_matches('/').parse::<u32>() {
        Ok(0) => page_response("text/plain", "arrived"),
        Ok(n) if n % 2 == 0 => redirect_response(&format!("{base}/{}", n - 1)),
        Ok(n) => redirect_response(&format!("{}", n - 1)),
        Err(_) => redirect_response("http://[broken"),
    })
    .await;
    let fixture = fetch_fixture();
    let text = fixture.call_ok("fetch_url", json!({"url": format!("{}/5", server.base)})).await;
    assert!(text.starts_with(&format!("200 OK from \"{}/0\"", server.base)) && text.ends_with("arrived"), "{text}");
    let text = fixture.call_error("fetch_url", json!({"url": format!("{}/6", server.base)})).await;
    assert!(text.starts_with("more than 5 redirects"), "{text}");
    let text = fixture.call_error("fetch_url", json!({"url": format!("{}/x", server.base)})).await;
    assert!(text.contains("which is not a URL"), "{text}");
    let hows: Vec<_> = ledger_requests(&fixture.scope).into_iter().map(|(_, how)| how).collect();
    assert_eq!(hows, [Some(Release::Finished), Some(Release::Failed), Some(Release::Failed)]);
}

#[rstest]
#[case("http://127.0.0.2:9/", "127.0.0.2 is an address that may not be reached from here")]
#[case("http://169.254.169.254/latest/meta-data/", "169.254.169.254 is an address")]
#[case("http://[::1]/", "::1 is an address")]
#[case("http://[::ffff:10.0.0.1]/", "::ffff:10.0.0.1 is an address")]
#[case("http://0x7f000002/", "127.0.0.2 is an address")]
#[case("file:///etc/passwd", "only http and https")]
#[case("http://user:pw@127.0.0.1/", "a user name or a password")]
#[tokio::test]
async fn a_redirect_is_checked_like_the_first_url(#[case] target: &'static str, #[case] wanted: &str) {
    install_tls();
    let server = TestHttpServer::start(move |_, _| redirect_response(target)).await;
    // Only the server's own address is allowed, so the first request passes and the redirect is checked.
    let fetcher = Fetcher::with_address_rule(FetchSettings::default(), |ip| ip == IpAddr::from([127, 0, 0, 1]));
    let scope = Scope::new(Clock::start(), PointProbe::default());
    let text = fetcher.failure_of(&server.base, &scope).await;
    assert!(text.contains(wanted) && !text.contains("pw"), "{text}");
    assert_eq!(server.asked(), ["/"]);
    assert_eq!(ledger_requests(&scope), [(format!("GET {}/", server.base), Some(Release::Failed))]);
}

#[rstest]
#[case("http://localhost:{port}/", "localhost is at ")]
#[case("http://127.0.0.1:{port}/", "127.0.0.1 is an address")]
#[case("http://2130706433:{port}/", "127.0.0.1 is an address")]
#[case("http://0177.1:{port}/", "127.0.0.1 is an address")]
#[case("http://127.0.0.1.:{port}/", "127.0.0.1 is an address")]
#[case("http://[::ffff:7f00:1]:{port}/", "is an address")]
#[case("http://0:{port}/", "0.0.0.0 is an address")]
#[case("http://user@example.invalid/", "a user name or a password")]
#[case("ftp://example.invalid/", "only http and https")]
#[case("data:text/plain,hello", "only http and https")]
#[case("example.invalid/page", "is not a URL")]
#[tokio::test]
async fn private_addresses_are_denied_by_default(#[case] url: &str, #[case] wanted: &str) {
    install_tls();
    let server = TestHttpServer::start(|_, _| page_response("text/plain", "private")).await;
    let port = server.base.rsplit(':').next().unwrap();
    let text = ToolFixture::new().call_error("fetch_url", json!({"url": url.replace("{port}", port)})).await;
    assert!(text.contains(wanted), "{text}");
    assert_eq!(server.asked(), [""; 0]);
}

#[rstest]
#[case::before_headers("/slow", b"".as_slice())]
#[case::in_the_body("/slow", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nabc")]
#[tokio::test]
async fn a_stop_closes_the_connection(#[case] path: &str, #[case] answer: &'static [u8]) {
    let server = TestHttpServer::start(move |_, _| answer.to_vec()).await;
    let fixture = fetch_fixture();
    let call = fixture.try_call("fetch_url", json!({"url": format!("{}{path}", server.base)}));
    let stop = async {
        while server.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        fixture.scope.cancel();
    };
    let (output, ()) = tokio::join!(call, stop);
    assert_eq!(output, Err(Cancelled));
    server.wait_client_closed().await;
    tokio::time::timeout(TEST_TIMEOUT, fixture.scope.close()).await.expect("nothing is held");
    assert_eq!(ledger_requests(&fixture.scope)[0].1, Some(Release::Closed));
}

#[tokio::test]
async fn a_stopped_fetch_does_not_wait_for_the_set_up_of_another_one() {
    let fetcher = Fetcher::with_address_rule(FetchSettings::default(), |_| true);
    let scope = Scope::new(Clock::start(), PointProbe::default());
    let url = "http://127.0.0.1:9/";
    let stopped = async {
        let other = fetcher.stall_client_setup();
        let (mut other, mut call) = (std::pin::pin!(other), std::pin::pin!(fetcher.outcome(url, &scope)));
        assert!(futures_util::poll!(&mut other).is_pending());
        assert!(futures_util::poll!(&mut call).is_pending(), "it waits for the other one");
        scope.cancel();
        call.await
    };
    let outcome = tokio::time::timeout(TEST_TIMEOUT, stopped).await.expect("a stop ends the wait");
    assert_eq!(outcome, Err(Cancelled));
}

#[tokio::test]
async fn a_dropped_call_closes_the_connection() {
    let server = TestHttpServer::start(|_, _| Vec::new()).await;
    let fixture = fetch_fixture();
    {
        let call = fixture.try_call("fetch_url", json!({"url": server.base}));
        let asked = async {
            while server.asked().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            output = call => panic!("nobody answers, but {output:?}"),
            () = asked => {}
        }
    }
    server.wait_client_closed().await;
    assert_eq!(ledger_requests(&fixture.scope)[0].1, Some(Release::Closed));
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    install_tls();
    let server = TestHttpServer::start(|_, _| Vec::new()).await;
    let fetch =
        FetchSettings { allow_private: true, time_limit: Duration::from_millis(50), ..FetchSettings::default() };
    let fixture = ToolFixture::with(ToolSettings { fetch, ..ToolSettings::default() });
    let text = fixture.call_error("fetch_url", json!({"url": server.base})).await;
    assert_eq!(text, "no complete answer within 0.05 s");
    assert_eq!(ledger_requests(&fixture.scope)[0].1, Some(Release::Failed));
    server.wait_client_closed().await;
}

#[rstest]
#[case(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\nabc".as_slice())]
#[case(b"no http at all\r\n\r\n".as_slice())]
#[tokio::test]
async fn a_broken_answer_is_an_error(#[case] answer: &'static [u8]) {
    let server = TestHttpServer::start(move |_, _| answer.to_vec()).await;
    let fixture = fetch_fixture();
    let text = fixture.call_error("fetch_url", json!({"url": server.base})).await;
    assert!(text.starts_with(&format!("GET \"{}/\" failed: ", server.base)), "{text}");
    assert_eq!(ledger_requests(&fixture.scope)[0].1, Some(Release::Failed));
}
