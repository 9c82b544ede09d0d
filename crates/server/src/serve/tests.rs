//! Tests of the time limits of one connection, with a paused clock.

use std::net::Ipv4Addr;

use axum::routing::get;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

/// A served connection and the client's end of it.
struct TestConnection {
    socket: DuplexStream,
    connection: ConnectionHandle,
    task: JoinHandle<()>,
    started_at: Instant,
}

impl TestConnection {
    fn new(stops_only: bool) -> Self {
        let slow = |seconds: u64| async move {
            sleep(Duration::from_secs(seconds)).await;
            "done"
        };
        let routes = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/20", get(move || slow(20)))
            .route("/60", get(move || slow(60)));
        let connection = UnauthenticatedConnections::new(1, 1000).admit(PeerKey::Loopback);
        let requests = ConnectionRequests {
            routes: TowerToHyperService::new(routes),
            peer: ConnectedPeer::Tcp((Ipv4Addr::LOCALHOST, 1).into()),
            connection: connection.clone(),
            stops_only,
        };
        let (socket, server_end) = duplex(1 << 16);
        #[expect(clippy::disallowed_methods, reason = "a connection has a task of its own, as in the accept loop")]
        let task = tokio::spawn(serve_connection(server_end, requests, CancellationToken::new()));
        Self { socket, connection, task, started_at: Instant::now() }
    }

    async fn write(&mut self, text: &str) {
        self.socket.write_all(text.as_bytes()).await.unwrap();
    }

    async fn get(&mut self, path: &str) {
        self.write(&format!("GET {path} HTTP/1.1\r\nhost: quell\r\n\r\n")).await;
    }

    async fn read_until(&mut self, text: &str) {
        let mut received = Vec::new();
        while !String::from_utf8_lossy(&received).contains(text) {
            let count = self.socket.read_buf(&mut received).await.unwrap();
            assert!(count > 0, "closed after {:?}: {}", self.started_at.elapsed(), String::from_utf8_lossy(&received));
        }
    }

    /// Returns the seconds from the start until the connection was closed, and the text received last.
    async fn wait_closed(mut self) -> (u64, String) {
        let mut received = String::new();
        self.socket.read_to_string(&mut received).await.unwrap();
        self.task.await.unwrap();
        (self.started_at.elapsed().as_secs(), received)
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_end_is_given_up() {
    let mut client = TestConnection::new(false);
    client.write("GET / HTTP/1.1\r\nx-slow: ").await;
    assert_eq!(client.wait_closed().await.0, HEADER_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_in_drops_has_no_longer() {
    let mut client = TestConnection::new(false);
    client.write("GET / HTTP/1.1\r\n").await;
    let (mut reading, mut writing) = tokio::io::split(client.socket);
    let drops = async {
        while writing.write_all(b"x-slow: 1\r\n").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    let closed = async {
        reading.read_to_end(&mut Vec::new()).await.unwrap();
        client.started_at.elapsed().as_secs()
    };
    let (seconds, ()) = tokio::join!(closed, drops);
    assert_eq!(seconds, HEADER_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_lies_idle_is_closed_with_a_token_too() {
    for authenticated in [false, true] {
        let mut client = TestConnection::new(false);
        if authenticated {
            client.connection.mark_authenticated();
        }
        sleep(Duration::from_secs(10)).await;
        client.get("/").await;
        client.read_until("here").await;
        assert_eq!(client.wait_closed().await.0, 10 + HEADER_TIMEOUT.as_secs(), "authenticated: {authenticated}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_token_a_busy_connection_lives_a_minute() {
    let mut client = TestConnection::new(false);
    for _ in 0..5 {
        sleep(Duration::from_secs(11)).await;
        client.get("/").await;
        client.read_until("here").await;
    }
    assert_eq!(client.wait_closed().await.0, UNAUTHENTICATED_LIFETIME.as_secs());
}

/// Regression: whether a token had come was read once, before the first request, so every connection ended after a
/// minute, and a stop that was sent at that moment was lost.
#[rstest]
#[case::before_the_first_request(0)]
#[case::with_the_first_request(1)]
#[case::with_the_last_request_of_the_minute(4)]
#[tokio::test(start_paused = true)]
async fn with_a_token_a_busy_connection_lives_on(#[case] token_at: u64) {
    let mut client = TestConnection::new(false);
    for number in 0..60 {
        if number == token_at {
            client.connection.mark_authenticated();
        }
        sleep(Duration::from_secs(11)).await;
        client.get("/").await;
        client.read_until("here").await;
    }
    assert!(client.started_at.elapsed() > Duration::from_secs(600));
}

/// Regression: the limit was extended again and again, so that a waiting request kept its connection for ever.
#[rstest]
#[case::in_time("/20", 70, true)]
#[case::too_late("/60", 90, false)]
#[tokio::test(start_paused = true)]
async fn an_active_request_after_a_minute_may_end_within_its_limit(
    #[case] path: &str,
    #[case] closed: u64,
    #[case] answered: bool,
) {
    let mut client = TestConnection::new(false);
    sleep(Duration::from_secs(25)).await;
    client.get("/").await;
    client.read_until("here").await;
    sleep(Duration::from_secs(25)).await;
    client.get(path).await;
    let (seconds, response) = client.wait_closed().await;
    assert_eq!((seconds, response.contains("done")), (closed, answered), "{response}");
}

#[tokio::test(start_paused = true)]
async fn a_reserved_descriptor_is_for_one_quick_stop() {
    let mut slow = TestConnection::new(true);
    slow.write("POST /api/stop HTTP/1.1\r\n").await;
    assert_eq!(slow.wait_closed().await.0, RESERVED_HEADER_TIMEOUT.as_secs());
    let mut other = TestConnection::new(true);
    other.get("/").await;
    let (seconds, response) = other.wait_closed().await;
    assert!(seconds == 0 && response.contains("those that are kept back are for stops"), "{seconds} s: {response}");
}

/// Bounds the memory that a request without a token can use.
#[tokio::test(start_paused = true)]
async fn a_head_has_a_bound_whoever_sends_it() {
    let many = "x-more: 1\r\n".repeat(1000);
    let long = format!("x-long: {}\r\n", "x".repeat(4 << 20));
    let query = "q".repeat(1 << 20);
    for (path, headers) in [("/", many), ("/", long), (query.as_str(), String::new())] {
        let client = TestConnection::new(false);
        let (mut reading, mut writing) = tokio::io::split(client.socket);
        let sent = async {
            // The server closes the connection before it has read all of it.
            let head = format!("GET /?{path} HTTP/1.1\r\nhost: quell\r\n{headers}\r\n");
            let _ = writing.write_all(head.as_bytes()).await;
        };
        let reading = async {
            let mut received = Vec::new();
            let _ = reading.read_to_end(&mut received).await;
            String::from_utf8_lossy(&received).into_owned()
        };
        let (response, ()) = tokio::join!(reading, sent);
        assert!(response.starts_with("HTTP/1.1 431 ") || response.starts_with("HTTP/1.1 414 "), "{response:?}");
        assert_eq!(client.started_at.elapsed().as_secs(), 0);
    }
}
