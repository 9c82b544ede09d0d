//! Plain HTTP: requests in absolute form, and what both sides see of each other.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use quell_kernel::network_access::RefusalCause;
use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::fixture::*;
use crate::filtering_proxy::{ProxyLimits, proxy_environment};

fn get(url: &str, host: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

#[tokio::test]
async fn an_allowed_server_gets_the_request_in_normal_form() {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let mut client = proxy.connect().await;
    let target = server.at("A.localhost");
    let request = format!(
        "POST http://{target}/x?y=1 HTTP/1.1\r\nHost: {target}\r\nProxy-Connection: keep-alive\r\nX-Gone: 1\r\n\
         Proxy-Authorization: Basic eDp5\r\nConnection: x-gone\r\nX-Kept: 2\r\nContent-Length: 4\r\n\r\nbody"
    );
    client.send(&request).await;
    let answer = client.read_response().await;
    let seen = answer.split_once("\r\n\r\n").unwrap().1.to_ascii_lowercase();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && seen.ends_with("\r\n\r\nbody"), "{answer}");
    assert!(seen.starts_with("post /x?y=1 http/1.1\r\n"), "{seen}");
    assert!(seen.contains(&format!("host: {}\r\n", server.at("a.localhost"))), "{seen}");
    assert!(seen.contains("x-kept: 2\r\n") && seen.contains("connection: close\r\n"), "{seen}");
    assert!(!seen.contains("proxy-") && !seen.contains("x-gone: "), "{seen}");
    assert_eq!(proxy.resolved_names(), ["a.localhost"]);
    assert!(proxy.refusals.texts().is_empty());
}

#[tokio::test]
async fn an_http_client_with_the_proxy_of_its_environment_gets_through() {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let proxy_address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, proxy.port);
    let (_, address) = proxy_environment(proxy_address).into_iter().find(|(name, _)| *name == "http_proxy").unwrap();
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls_without_certificates())
        .proxy(reqwest::Proxy::all(address).unwrap())
        .build()
        .unwrap();
    for (host, status) in [("a.localhost", 200), ("b.localhost", 403), ("a.localhost", 200)] {
        let answer = client.post(format!("http://{}/", server.at(host))).body("posted").send().await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.text().await.unwrap().ends_with("posted"), status == 200);
    }
    // The tunnel for https is refused before TLS begins.
    let error = client.get(format!("https://{}/", server.at("b.localhost"))).send().await.unwrap_err();
    assert!(error.is_connect(), "{error:?}");
    assert_eq!(proxy.refusals.texts().len(), 2);
}

/// One decision for all verbs, on the target only.
#[rstest]
#[tokio::test]
async fn every_verb_gets_the_same_refusal(
    #[values("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "CONNECT")] verb: &str,
    #[values(
        "b.localhost:PORT",
        "a.localhost:1",
        "127.0.0.1:PORT",
        "[::1]:PORT",
        "[::ffff:127.0.0.1]:PORT",
        "127.1:PORT",
        "0x7f.0.0.1:PORT",
        "2130706433:PORT",
        "a.localhost.evil.example:PORT"
    )]
    target: &str,
) {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let target = target.replace("PORT", &server.port.to_string());
    let uri = if verb == "CONNECT" { target.clone() } else { format!("http://{target}/") };
    let mut client = proxy.connect().await;
    client.send(&format!("{verb} {uri} HTTP/1.1\r\nHost: {target}\r\n\r\n")).await;
    let answer = client.read_response().await;
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{answer}");
    let refusal = proxy.refusals.take_only();
    assert!(answer.contains(&refusal.to_string()), "{answer}");
    assert!(refusal.target.starts_with(&target), "{refusal}");
    assert_eq!(proxy.resolved_names(), [] as [String; 0]);
}

#[tokio::test]
async fn each_request_of_a_kept_connection_is_checked() {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let mut client = proxy.connect().await;
    for (host, status) in [("a.localhost", "200"), ("b.localhost", "403"), ("a.localhost", "200")] {
        let target = server.at(host);
        client.send(&get(&format!("http://{target}/"), &target)).await;
        let answer = client.read_response().await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
    let text = proxy.refusals.take_only().to_string();
    assert!(text.contains(&format!("\"{}\"", server.at("b.localhost"))), "{text}");
}

#[rstest]
#[case("b.localhost", 403)]
#[case("b.localhost:PORT", 403)]
#[case("a.localhost:1", 403)]
#[case("", 403)]
#[case("a.localhost:PORT\r\nHost: b.localhost:PORT", 400)]
#[case("A.LOCALHOST.:PORT", 200)]
#[case("a.localhost", 200)]
#[tokio::test]
async fn the_host_header_has_to_name_the_target(#[case] host: &str, #[case] status: u16) {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let host = host.replace("PORT", &server.port.to_string());
    let mut client = proxy.connect().await;
    client.send(&get(&format!("http://{}/", server.at("a.localhost")), &host)).await;
    let answer = client.read_response().await;
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    if status == 403 {
        assert!(matches!(proxy.refusals.take_only().cause, RefusalCause::HostHeaderDiffers { .. }));
    }
}

#[rstest]
#[case("127.0.0.1")]
#[case("10.0.0.1")]
#[case("169.254.169.254")]
#[case("::ffff:169.254.169.254")]
#[case("fd00:ec2::254")]
#[case("64:ff9b::a9fe:a9fe")]
#[tokio::test]
async fn private_addresses_behind_an_allowed_name_are_refused(#[case] address: &str) {
    let resolver = ScriptedResolver::default().answer("allowed.test", &["1.1.1.1", address]);
    let options = ProxyOptions { resolver, ..ProxyOptions::default() };
    let proxy = ProxyUnderTest::start_with(&["allowed.test:80".to_owned()], options).await;
    let mut client = proxy.connect().await;
    client.send(&get("http://allowed.test/", "allowed.test")).await;
    let answer = client.read_response().await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(matches!(proxy.refusals.take_only().cause, RefusalCause::NonPublicAddress { .. }));
}

#[tokio::test]
async fn a_name_that_is_bound_anew_is_refused() {
    let server = Server::start_mirror().await;
    let resolver =
        ScriptedResolver::default().answer("a.localhost", &["127.0.0.1"]).answer("a.localhost", &["169.254.169.254"]);
    let options = ProxyOptions { resolver, ..ProxyOptions::default() };
    let proxy = ProxyUnderTest::start_with(&[server.at("a.localhost")], options).await;
    let target = server.at("a.localhost");
    let mut client = proxy.connect().await;
    // The second answer of the resolver is neither asked for nor used by the first request.
    for (status, lookups) in [("200", 1), ("403", 2)] {
        client.send(&get(&format!("http://{target}/"), &target)).await;
        let answer = client.read_response().await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(proxy.resolved_names().len(), lookups);
    }
    assert!(matches!(proxy.refusals.take_only().cause, RefusalCause::NonPublicAddress { .. }));
}

#[rstest]
#[case("GET / HTTP/1.1\r\nHost: a.localhost\r\n\r\n")]
#[case("GET https://a.localhost:PORT/ HTTP/1.1\r\nHost: a.localhost\r\n\r\n")]
#[case("GET http://user@a.localhost:PORT/ HTTP/1.1\r\nHost: a.localhost\r\n\r\n")]
#[case("CONNECT a.localhost HTTP/1.1\r\nHost: a.localhost\r\n\r\n")]
#[case("CONNECT user@a.localhost:PORT HTTP/1.1\r\nHost: a.localhost\r\n\r\n")]
#[tokio::test]
async fn other_forms_of_requests_are_told_the_right_one(#[case] request: &str) {
    let server = Server::start_mirror().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let mut client = proxy.connect().await;
    client.send(&request.replace("PORT", &server.port.to_string())).await;
    let answer = client.read_response().await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert_eq!(proxy.resolved_names(), [] as [String; 0]);
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let proxy = ProxyUnderTest::start(&["a.localhost:1".to_owned()]).await;
    let mut client = proxy.connect().await;
    let line = format!("X-Filler: {}\r\n", "x".repeat(1000));
    let head = format!("GET http://a.localhost:1/ HTTP/1.1\r\n{}", line.repeat(80));
    client.send(&head).await;
    let answer = client.read_all().await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[rstest]
#[case("")]
#[case("GET http://a.loc")]
#[case("\u{5}")]
#[case("\u{5}\u{1}\0\u{5}\u{1}\0\u{3}")]
#[tokio::test]
async fn a_slow_head_is_not_waited_for(#[case] begin: &str) {
    let limits = ProxyLimits { head_timeout: Duration::from_millis(100), ..ProxyLimits::default() };
    let options = ProxyOptions { limits, ..ProxyOptions::default() };
    let proxy = ProxyUnderTest::start_with(&["a.localhost:1".to_owned()], options).await;
    // `exchange` ends when the proxy closes the connection.
    let answer = proxy.exchange(begin).await;
    assert!(!answer.contains("200"), "{answer}");
}

#[tokio::test]
async fn an_unreachable_server_is_a_bad_gateway() {
    let port = Server::start_mirror().await.port;
    let proxy = ProxyUnderTest::start(&[format!("a.localhost:{port}"), "b.localhost:1".to_owned()]).await;
    let mut client = proxy.connect().await;
    client.send(&get("http://b.localhost:1/", "b.localhost:1")).await;
    let answer = client.read_response().await;
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains("b.localhost:1 cannot be reached"), "{answer}");
    assert!(proxy.refusals.texts().is_empty());
}

#[tokio::test]
async fn bodies_stream_in_both_directions() {
    const SIZE: usize = 4 << 20;
    let server = Server::start(|mut stream| async move {
        let mut received = Vec::new();
        while !received.ends_with(b"0\r\n\r\n") {
            let mut part = vec![0; 65536];
            let count = stream.read(&mut part).await.unwrap();
            received.extend_from_slice(&part[..count]);
        }
        let count = received.iter().filter(|byte| **byte == b'Z').count();
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
        let block = format!("{SIZE:x}\r\n{}\r\n", "Q".repeat(SIZE));
        stream.write_all(block.as_bytes()).await.unwrap();
        stream.write_all(format!("9\r\n{count:09}\r\n0\r\n\r\n").as_bytes()).await.unwrap();
    })
    .await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let target = server.at("a.localhost");
    let mut client = proxy.connect().await;
    let head = format!(
        "PUT http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    client.send(&format!("{head}{SIZE:x}\r\n{}\r\n0\r\n\r\n", "Z".repeat(SIZE))).await;
    let answer = client.read_all().await;
    assert_eq!(answer.matches('Q').count(), SIZE);
    assert!(answer.contains(&format!("{SIZE:09}")), "all of the upload arrived");
}

/// Answers 101, then echoes.
async fn start_websocket_server() -> Server {
    Server::start(|mut stream| async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let is_upgrade = String::from_utf8_lossy(&head).to_ascii_lowercase().contains("upgrade: websocket\r\n");
        let answer: &[u8] = if is_upgrade {
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        } else {
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nplain"
        };
        stream.write_all(answer).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    })
    .await
}

#[tokio::test]
async fn a_websocket_passes() {
    let server = start_websocket_server().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let target = server.at("a.localhost");
    let upgrade = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n";
    let absolute = (proxy.connect().await, format!("http://{target}/"));
    let tunnelled = (proxy.open_tunnel(&target).await, "/".to_owned());
    for (mut client, uri) in [absolute, tunnelled] {
        client.send(&format!("GET {uri} HTTP/1.1\r\nHost: {target}\r\n{upgrade}\r\n")).await;
        let head = client.read_head().await.to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 101 ") && head.contains("upgrade: websocket\r\n"), "{head}");
        client.send("GET / HTTP/1.1, a frame").await;
        assert_eq!(client.read_exactly(23).await, b"GET / HTTP/1.1, a frame");
    }
}

#[tokio::test]
async fn another_protocol_is_not_passed_on() {
    let server = start_websocket_server().await;
    let proxy = ProxyUnderTest::start(&[server.at("a.localhost")]).await;
    let target = server.at("a.localhost");
    let mut client = proxy.connect().await;
    let upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n";
    client.send(&format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\n{upgrade}\r\n")).await;
    let answer = client.read_response().await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("plain"), "{answer}");
}
