//! What a tunnel carries: TLS for its target, HTTP for its target, and everything else untouched.

use std::sync::Arc;
use std::time::Duration;

use quell_kernel::network_access::RefusalCause;
use rstest::rstest;
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt as _;

use super::fixture::*;
use crate::filtering_proxy::ProxyLimits;

/// The first message of a TLS client; without a server name for an IP address.
fn client_hello(server_name: &str) -> Vec<u8> {
    let server_name = ServerName::try_from(server_name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(tls_without_certificates()), server_name).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    hello
}

/// An echo server whose port counts as one for TLS.
async fn start_on_tls_port(hosts: &[&str]) -> (Server, ProxyUnderTest) {
    let server = Server::start_echo().await;
    let limits = ProxyLimits { tls_ports: vec![server.port], ..ProxyLimits::default() };
    let options = ProxyOptions { limits, ..ProxyOptions::default() };
    let entries: Vec<String> = hosts.iter().map(|host| server.at(host)).collect();
    let proxy = ProxyUnderTest::start_with(&entries, options).await;
    (server, proxy)
}

const TLS_ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 49];

#[tokio::test]
async fn each_side_of_a_tunnel_ends_by_itself() {
    let server = Server::start_echo().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send("\0binary").await;
    assert_eq!(client.read_exactly(7).await, b"\0binary");
    client.send("last words,").await;
    client.0.shutdown().await.unwrap();
    // The server hears the end, and what it says after it arrives.
    assert_eq!(client.read_all().await, "last words, the end");
}

#[tokio::test]
async fn a_server_may_speak_first_and_end_first() {
    let server = Server::start(|mut stream| async move {
        stream.write_all(b"220 ready\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut heard).await.unwrap();
        assert_eq!(heard, "EHLO me\r\nQUIT\r\n");
    })
    .await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    assert_eq!(client.read_all().await, "220 ready\r\n");
    client.send("EHLO me\r\n").await;
    client.send("QUIT\r\n").await;
    client.0.shutdown().await.unwrap();
    proxy.proxy.close().await;
}

#[tokio::test]
async fn tls_for_the_target_passes_in_whatever_pieces() {
    let (server, proxy) = start_on_tls_port(&["a.localhost"]).await;
    let hello = client_hello("A.localhost");
    for piece in [1, 2, 5, 100, hello.len()] {
        let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
        for bytes in hello.chunks(piece) {
            client.send_bytes(bytes).await;
        }
        assert_eq!(client.read_exactly(hello.len()).await, hello);
        client.send("anything from here on").await;
        assert_eq!(client.read_exactly(21).await, b"anything from here on");
    }
    assert!(proxy.refusals.texts().is_empty());
}

#[tokio::test]
async fn tls_for_another_name_is_refused_with_an_alert() {
    let (server, proxy) = start_on_tls_port(&["a.localhost", "b.localhost"]).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send_bytes(&client_hello("b.localhost")).await;
    assert_eq!(client.read_exactly(7).await, TLS_ALERT);
    assert_eq!(client.read_all().await, "");
    let refusal = proxy.refusals.take_only();
    assert_eq!(refusal.cause, RefusalCause::ServerNameDiffers { server_name: "b.localhost".to_owned() });
}

#[tokio::test]
async fn tls_for_another_name_is_refused_on_every_port() {
    let server = Server::start_echo().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send_bytes(&client_hello("b.localhost")).await;
    assert_eq!(client.read_exactly(7).await, TLS_ALERT);
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    let nameless = client_hello("192.0.2.1");
    client.send_bytes(&nameless).await;
    assert_eq!(client.read_exactly(nameless.len()).await, nameless, "a name is demanded on ports for TLS only");
}

#[tokio::test]
async fn tls_without_a_name_is_refused_unless_the_target_is_an_address() {
    let (server, proxy) = start_on_tls_port(&["a.localhost", "127.0.0.1"]).await;
    let hello = client_hello("127.0.0.1");
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send_bytes(&hello).await;
    assert_eq!(client.read_exactly(7).await, TLS_ALERT);
    assert_eq!(proxy.refusals.take_only().cause, RefusalCause::ServerNameMissing);
    let mut client = proxy.open_tunnel(&server.at("127.0.0.1")).await;
    client.send_bytes(&hello).await;
    assert_eq!(client.read_exactly(hello.len()).await, hello);
    let mut client = proxy.open_tunnel(&server.at("127.0.0.1")).await;
    client.send_bytes(&client_hello("a.localhost")).await;
    assert_eq!(client.read_exactly(7).await, TLS_ALERT);
}

#[rstest]
#[case("GET / HTTP/1.1\r\nHost: a.localhost\r\n\r\n", true)]
#[case("SSH-2.0-OpenSSH_9.9\r\n", false)]
#[case("\u{16}\u{1}\0\0", false)]
#[tokio::test]
async fn a_port_for_tls_takes_nothing_else(#[case] begin: &str, #[case] is_answered: bool) {
    let (server, proxy) = start_on_tls_port(&["a.localhost"]).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send(begin).await;
    let answer = client.read_all().await;
    assert_eq!(answer.starts_with("HTTP/1.1 403 "), is_answered, "{answer}");
    assert_eq!(proxy.refusals.take_only().cause, RefusalCause::TlsExpected);
}

#[tokio::test]
async fn a_broken_client_hello_is_refused() {
    let (server, proxy) = start_on_tls_port(&["a.localhost"]).await;
    let mut hello = client_hello("a.localhost");
    // The length of the message no longer fits.
    hello[8] = hello[8].wrapping_sub(3);
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send_bytes(&hello).await;
    assert_eq!(client.read_exactly(7).await, TLS_ALERT);
    assert_eq!(proxy.refusals.take_only().cause, RefusalCause::InvalidClientHello);
}

#[tokio::test]
async fn http_in_a_tunnel_is_checked_request_by_request() {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost"), server.at("b.localhost")]).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    let (own, other) = (server.at("a.localhost"), server.at("b.localhost"));
    for (uri, host, status) in [
        ("/", own.as_str(), 200),
        ("/", other.as_str(), 403),
        (&format!("http://{own}/"), own.as_str(), 200),
        (&format!("http://{other}/"), own.as_str(), 403),
        (&format!("http://{other}/"), other.as_str(), 403),
        ("/again", own.as_str(), 200),
    ] {
        client.send(&format!("GET {uri} HTTP/1.1\r\nHost: {host}\r\n\r\n")).await;
        let answer = client.read_response().await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{uri} {host}: {answer}");
    }
    assert_eq!(proxy.refusals.texts().len(), 3);
    // The name is not resolved again for what is inside.
    assert_eq!(proxy.resolved_names(), ["a.localhost"]);
}

/// A proxy behind this one would open what this one refuses.
#[rstest]
#[case("CONNECT b.localhost:443 HTTP/1.1\r\nHost: b.localhost:443\r\n\r\n")]
#[case("\r\nCONNECT b.localhost:443 HTTP/1.1\r\n\r\n")]
#[case("CONNECT a.localhost:443 HTTP/1.1\r\nHost: a.localhost:443\r\n\r\n")]
#[case("GET http://b.localhost/ HTTP/1.1\r\nHost: b.localhost\r\n\r\n")]
#[tokio::test]
async fn a_request_that_is_relayed_to_another_proxy_is_refused(#[case] request: &str) {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost"), "b.localhost:1".to_owned()]).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send(request).await;
    let answer = client.read_response().await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(matches!(proxy.refusals.take_only().cause, RefusalCause::TunnelTargetDiffers { .. }));
}

#[tokio::test]
async fn the_proxy_opens_no_tunnel_to_itself() {
    let proxy = ProxyUnderTest::start(&["a.localhost:1".to_owned()]).await;
    let mut client = proxy.connect().await;
    client.send(&format!("CONNECT 127.0.0.1:{0} HTTP/1.1\r\nHost: 127.0.0.1:{0}\r\n\r\n", proxy.port)).await;
    let answer = client.read_response().await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

/// Strict about what servers are lenient about.
#[rstest]
#[case("GET /  HTTP/1.1\r\nHost: b.localhost\r\n\r\n")]
#[case("GET / http/1.1\r\nHost: b.localhost\r\n\r\n")]
#[case(" GET / HTTP/1.1\r\nHost: b.localhost\r\n\r\n")]
#[case("GET\u{b}/\u{b}HTTP/1.1\r\nHost: b.localhost\r\n\r\n")]
#[case("GET\t/\tHTTP/1.1\r\nHost: b.localhost\r\n\r\n")]
#[case("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")]
#[tokio::test]
async fn malformed_requests_reach_no_server(#[case] request: &str) {
    let server = Server::start_echo().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let mut client = proxy.open_tunnel(&server.at("a.localhost")).await;
    client.send(request).await;
    let answer = client.read_all().await;
    assert!(!answer.contains("b.localhost") && !answer.contains(" the end"), "{answer}");
}

#[tokio::test]
async fn a_line_that_never_ends_is_not_passed_on() {
    let server = Server::start_echo().await;
    let limits = ProxyLimits { head_timeout: Duration::from_millis(100), ..ProxyLimits::default() };
    let options = ProxyOptions { limits, ..ProxyOptions::default() };
    let proxy = ProxyUnderTest::start_with(&[server.at("a.localhost")], options).await;
    let mut slow = proxy.open_tunnel(&server.at("a.localhost")).await;
    slow.send("GET /").await;
    assert_eq!(slow.read_all().await, "");
    let mut long = proxy.open_tunnel(&server.at("a.localhost")).await;
    // More than the proxy reads, so that a late write may fail.
    let _ = long.0.write_all(format!("GET /{}", "x".repeat(40_000)).as_bytes()).await;
    let answer = long.read_all().await;
    assert!(!answer.contains("xxx"), "{answer}");
    assert_eq!(proxy.refusals.take_only().cause, RefusalCause::UnreadableRequest);
}
