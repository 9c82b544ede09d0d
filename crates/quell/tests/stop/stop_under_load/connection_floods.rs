//! Many connections that never complete a request. They have no token, except where a test says so.

use std::io::{Read, Write};
use std::net::TcpStream;

use futures_util::future::join_all;

use super::*;

/// So few descriptors that [`CONNECTIONS`] use them all.
const LOW_FILE_LIMIT: &str = "ulimit -n 256";
const CONNECTIONS: usize = 400;

/// Opens this many connections that send this text and nothing more.
fn open_connections(fixture: &EndlessRunDaemon, count: usize, text: &str) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = TcpStream::connect(fixture.daemon.address()).unwrap();
        // The daemon may close the connection at once.
        let _ = stream.write_all(text.as_bytes());
        stream
    };
    (0..count).map(open).collect()
}

#[rstest]
#[case::idle_at_the_usual_soft_limit("ulimit -Sn 1024", 1100, "")]
#[case::idle_at_a_hard_limit_that_is_no_higher("ulimit -n 1024", 1100, "")]
#[case::headers(LOW_FILE_LIMIT, CONNECTIONS, "POST /api/stop HTTP/1.1\r\nhost: quell\r\nx-slow: ")]
#[case::bodies(
    LOW_FILE_LIMIT,
    CONNECTIONS,
    "POST /api/sign-in HTTP/1.1\r\nhost: quell\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{"
)]
#[case::web_sockets(
    LOW_FILE_LIMIT,
    CONNECTIONS,
    "GET /ws HTTP/1.1\r\nhost: quell\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)]
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_never_end_keep_no_stop_out(#[case] limit: &str, #[case] count: usize, #[case] request: &str) {
    let mut fixture = EndlessRunDaemon::start_under(limit).await;
    let _connections = open_connections(&fixture, count, request);
    fixture.stop_over_http().await;
    fixture.run = fixture.start_endless_run().await;
    fixture.stop_by_command().await;
}

/// Connections with a token are not closed to make room; descriptors are reserved for stops.
#[rstest]
#[case::over_tcp(false)]
#[case::at_the_socket(true)]
#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_somebody_with_a_token_keep_no_stop_out(#[case] by_socket: bool) {
    let fixture = EndlessRunDaemon::start_under(LOW_FILE_LIMIT).await;
    let head = format!(
        "POST /api/sessions/x/runs HTTP/1.1\r\nhost: quell\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 900\r\n\r\n{{",
        fixture.daemon.token()
    );
    let _connections = open_connections(&fixture, CONNECTIONS, &head);
    if by_socket {
        let ran = run_cli(fixture.daemon.home(), &["stop", "--all", "--force", "--no-wait"]).await;
        assert_eq!(ran.code, 0, "{ran:?}");
    } else {
        let _ = fixture.request_stop().await;
    }
    fixture.model.wait_for_connections(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_never_read_keep_no_stop_out() {
    let fixture = EndlessRunDaemon::start().await;
    let head = format!(
        "GET /api/runs/{}/events HTTP/1.1\r\nhost: quell\r\nauthorization: Bearer {}\r\n\r\n",
        fixture.run,
        fixture.daemon.token()
    );
    let _connections = open_connections(&fixture, CONNECTIONS, &head);
    fixture.stop_over_http().await;
}

/// The newest connection is accepted and the oldest is closed, also when all arrive at once.
#[tokio::test(flavor = "multi_thread")]
async fn somebody_without_a_token_yet_gets_in_beside_a_crowd() {
    let fixture = EndlessRunDaemon::start_under(LOW_FILE_LIMIT).await;
    let _connections = open_connections(&fixture, CONNECTIONS, "");
    let http = fixture.daemon.api().with_token("");
    let answers = join_all((0..8).map(|_| http.get("/healthz"))).await;
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    fixture.stop_over_http().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_without_tls_is_not_spoken() {
    let fixture = EndlessRunDaemon::start().await;
    let mut stream = TcpStream::connect(fixture.daemon.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    // The preface and an empty SETTINGS frame.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{:?}", String::from_utf8_lossy(&answer));
    fixture.stop_over_http().await;
}
