//! The limits of time of one connection, with the clock held still.

use std::net::Ipv4Addr;

use axum::routing::get;
use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;

/// A connection that is served, and its other end.
struct Guest {
    socket: DuplexStream,
    connection: Connection,
    life: JoinHandle<()>,
    begun: Instant,
}

impl Guest {
    fn new(stops_only: bool) -> Self {
        let slow = |seconds: u64| async move {
            sleep(Duration::from_secs(seconds)).await;
            "done"
        };
        let routes = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/20", get(move || slow(20)))
            .route("/60", get(move || slow(60)));
        let connection = Connections::new(1, 1000).admit(Peer::Loopback);
        let visit = Visit {
            routes: TowerToHyperService::new(routes),
            client: Client::Tcp((Ipv4Addr::LOCALHOST, 1).into()),
            connection: connection.clone(),
            stops_only,
        };
        let (socket, theirs) = duplex(1 << 16);
        #[expect(clippy::disallowed_methods, reason = "a connection has a task of its own, as in the accept loop")]
        let life = tokio::spawn(live(theirs, visit, CancellationToken::new()));
        Self { socket, connection, life, begun: Instant::now() }
    }

    async fn says(&mut self, text: &str) {
        self.socket.write_all(text.as_bytes()).await.unwrap();
    }

    async fn asks(&mut self, path: &str) {
        self.says(&format!("GET {path} HTTP/1.1\r\nhost: quell\r\n\r\n")).await;
    }

    /// Reads until this has come.
    async fn hears(&mut self, text: &str) {
        let mut heard = Vec::new();
        while !String::from_utf8_lossy(&heard).contains(text) {
            let count = self.socket.read_buf(&mut heard).await.unwrap();
            assert!(count > 0, "closed after {:?}: {}", self.begun.elapsed(), String::from_utf8_lossy(&heard));
        }
    }

    /// Seconds from the beginning until it is closed, and what was said last.
    async fn closed(mut self) -> (u64, String) {
        let mut heard = String::new();
        self.socket.read_to_string(&mut heard).await.unwrap();
        self.life.await.unwrap();
        (self.begun.elapsed().as_secs(), heard)
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_end_is_given_up() {
    let mut guest = Guest::new(false);
    guest.says("GET / HTTP/1.1\r\nx-slow: ").await;
    assert_eq!(guest.closed().await.0, HEAD.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_in_drops_has_no_longer() {
    let mut guest = Guest::new(false);
    guest.says("GET / HTTP/1.1\r\n").await;
    let (mut reading, mut writing) = tokio::io::split(guest.socket);
    let drops = async {
        while writing.write_all(b"x-slow: 1\r\n").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    };
    let closed = async {
        reading.read_to_end(&mut Vec::new()).await.unwrap();
        guest.begun.elapsed().as_secs()
    };
    let (seconds, ()) = tokio::join!(closed, drops);
    assert_eq!(seconds, HEAD.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_lies_idle_is_closed_with_a_token_too() {
    for authenticated in [false, true] {
        let mut guest = Guest::new(false);
        if authenticated {
            guest.connection.authenticated();
        }
        sleep(Duration::from_secs(10)).await;
        guest.asks("/").await;
        guest.hears("here").await;
        assert_eq!(guest.closed().await.0, 10 + HEAD.as_secs(), "authenticated: {authenticated}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_token_a_busy_connection_lives_a_minute() {
    let mut guest = Guest::new(false);
    for _ in 0..5 {
        sleep(Duration::from_secs(11)).await;
        guest.asks("/").await;
        guest.hears("here").await;
    }
    assert_eq!(guest.closed().await.0, UNAUTHENTICATED.as_secs());
}

#[tokio::test(start_paused = true)]
async fn with_a_token_a_busy_connection_has_no_such_end() {
    let mut guest = Guest::new(false);
    guest.connection.authenticated();
    for _ in 0..20 {
        sleep(Duration::from_secs(11)).await;
        guest.asks("/").await;
        guest.hears("here").await;
    }
}

/// The limit was put off again and again, so that a request that waits kept its connection for ever.
#[rstest]
#[case::in_time("/20", 70, true)]
#[case::too_late("/60", 90, false)]
#[tokio::test(start_paused = true)]
async fn what_it_is_at_after_a_minute_may_end_within_its_limit(
    #[case] path: &str,
    #[case] closed: u64,
    #[case] answered: bool,
) {
    let mut guest = Guest::new(false);
    sleep(Duration::from_secs(25)).await;
    guest.asks("/").await;
    guest.hears("here").await;
    sleep(Duration::from_secs(25)).await;
    guest.asks(path).await;
    let (seconds, said) = guest.closed().await;
    assert_eq!((seconds, said.contains("done")), (closed, answered), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_reserved_descriptor_is_for_one_quick_stop() {
    let mut slow = Guest::new(true);
    slow.says("POST /api/stop HTTP/1.1\r\n").await;
    assert_eq!(slow.closed().await.0, HEAD_OF_RESERVE.as_secs());
    let mut other = Guest::new(true);
    other.asks("/").await;
    let (seconds, said) = other.closed().await;
    assert!(seconds == 0 && said.contains("those that are kept back are for stops"), "{seconds} s: {said}");
}

/// What a request without any token may make the daemon keep.
#[tokio::test(start_paused = true)]
async fn a_head_has_a_bound_whoever_sends_it() {
    let many = "x-more: 1\r\n".repeat(1000);
    let long = format!("x-long: {}\r\n", "x".repeat(4 << 20));
    let query = "q".repeat(1 << 20);
    for (path, headers) in [("/", many), ("/", long), (query.as_str(), String::new())] {
        let guest = Guest::new(false);
        let (mut reading, mut writing) = tokio::io::split(guest.socket);
        let sent = async {
            // It is closed before all of it is read.
            let head = format!("GET /?{path} HTTP/1.1\r\nhost: quell\r\n{headers}\r\n");
            let _ = writing.write_all(head.as_bytes()).await;
        };
        let heard = async {
            let mut heard = Vec::new();
            let _ = reading.read_to_end(&mut heard).await;
            String::from_utf8_lossy(&heard).into_owned()
        };
        let (said, ()) = tokio::join!(heard, sent);
        assert!(said.starts_with("HTTP/1.1 431 ") || said.starts_with("HTTP/1.1 414 "), "{said:?}");
        assert_eq!(guest.begun.elapsed().as_secs(), 0);
    }
}
